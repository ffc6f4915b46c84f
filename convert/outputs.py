"""Which files a conversion makes: file types and recipes, what each asks of its tensors, and where it goes."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import ConversionError, QuantizationError
from sqale_edge.llama.quantize import UNQUANTIZED, Mix, check_file_type

from .foreign import is_folder
from .placing import name_taken
from .recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .imatrix import Imatrix

DEFAULT_QUANT = "Q4_K_M"
"""What is made where nothing is chosen."""


@dataclasses.dataclass(frozen=True)
class Output:
    """One file to make.

    Attributes:
        label: The name of its recipe, else its file type; what `{quant}` in a target stands for.
        file_type: As llama.cpp spells it.
        mix: Which tensors have other types, and what the file says about it.
        importance: By the names of tensors; None where no importance matrix is used.
        imatrix_sha256: Of its file.
    """

    label: str
    file_type: str
    recipe: Recipe | None = None
    mix: Mix = dataclasses.field(default_factory=Mix)
    importance: Mapping[str, NDArray[np.float32]] | None = None
    imatrix_sha256: str | None = None

    @property
    def is_direct(self) -> bool:
        """Written straight from the checkpoint."""
        return self.file_type in UNQUANTIZED


def list_outputs(
    quant: str | Sequence[str] | None, recipe: str | Path | Recipe | Sequence[str | Path | Recipe] | None
) -> list[Output]:
    """The files that are asked for, each once; without either it is one of `DEFAULT_QUANT`.

    Raises:
        QuantizationError: A type or a recipe is not there; or two recipes have the same name.
    """
    if quant is None:
        quant = [] if recipe is not None else DEFAULT_QUANT
    quants = [quant] if isinstance(quant, str) else quant
    named = [recipe] if isinstance(recipe, (str, Path, Recipe)) else recipe or []
    outputs = {name: Output(name, name) for name in map(check_file_type, quants)}
    for each in named:
        found = each if isinstance(each, Recipe) else find_recipe(each)
        other = outputs.get(found.name)
        if other and other.recipe and other.recipe.digest != found.digest:
            raise QuantizationError(
                f"two recipes are called {found.name}", path=found.path, hint="give one of them another name"
            )
        outputs[found.name] = Output(found.name, found.base, found)
    return list(outputs.values())


def complete_outputs(
    outputs: Sequence[Output], shapes: Mapping[str, tuple[int, ...]], imatrix: Imatrix | None
) -> list[Output]:
    """The same with the types of a model's tensors, and with the importance matrix where it is used.

    Args:
        outputs: Of `list_outputs`.
        shapes: Of the model's tensors by their names; the last number is the length of a row.
        imatrix: The importance matrix that is given.

    Raises:
        QuantizationError: A recipe or the importance matrix does not fit the model, or one is needed and not given; or
            none of the files uses the one that is given.
    """
    check_imatrix_use(outputs, imatrix)
    importance = imatrix.choose_columns(shapes) if imatrix else None
    completed = []
    for output in outputs:
        recipe = output.recipe
        mix = recipe.choose_types(shapes) if recipe else Mix()
        fields: dict[str, str | int] = {}
        if recipe:
            fields |= {"sqale.recipe.name": recipe.name, "sqale.recipe.sha256": recipe.digest}
        if imatrix and _uses_imatrix(output):
            mix = dataclasses.replace(mix, fields=fields | imatrix.to_fields())
            completed.append(dataclasses.replace(output, mix=mix, importance=importance, imatrix_sha256=imatrix.sha256))
        else:
            completed.append(dataclasses.replace(output, mix=dataclasses.replace(mix, fields=fields)))
    return completed


def check_imatrix_use(outputs: Sequence[Output], imatrix: Imatrix | None) -> None:
    """Raise QuantizationError if a recipe needs an importance matrix and there is none, or none uses the one there is.

    Of a model's tensors nothing needs to be known.
    """
    if imatrix and not any(map(_uses_imatrix, outputs)):
        names = ", ".join(output.label for output in outputs)
        raise QuantizationError(
            f"the importance matrix {imatrix.name!r} is of no use for {names}", hint="leave it out, or add a file type"
        )
    for output in outputs:
        if output.recipe and output.recipe.imatrix == "required" and not imatrix:
            raise QuantizationError(
                f"the recipe {output.label} needs an importance matrix",
                path=output.recipe.path,
                hint="give one with --imatrix FILE; sqale-edge imatrix makes it",
            )


def _uses_imatrix(output: Output) -> bool:
    return not output.is_direct and (output.recipe is None or output.recipe.imatrix != "unused")


def check_target(target: Path, labels: Sequence[str]) -> None:
    """Raise ConversionError unless files of these types and recipes can have the name `target`."""
    if not labels:
        raise ConversionError("no file type is given", path=target, hint="for example Q4_K_M")
    if "\0" in str(target):
        raise ConversionError(f"the target {str(target)!r} has a NUL in it", path=target, hint="choose another name")
    if _is_folder(target):
        return
    if len(labels) > 1 and "{quant}" not in target.name:
        raise ConversionError(
            f"{len(labels)} file types cannot all go to {str(target)!r}",
            path=target,
            hint="give a folder, or a name with {quant} in it",
        )
    if target.suffix != ".gguf":
        raise ConversionError(
            f"the target {str(target)!r} does not end in .gguf",
            path=target,
            hint="llama.cpp programs expect that ending",
        )


def _is_folder(target: Path) -> bool:
    """Whether it is one, or is to become one."""
    return is_folder(target) or not (target.suffix or os.path.lexists(target))


def choose_targets(target: Path, labels: Sequence[str], name: str, *, overwrite: bool) -> dict[str, Path]:
    """Where each file of the model `name` goes. Raises ConversionError for a place where it cannot or should not."""
    folder = target.parent
    if _is_folder(target):
        target /= re.sub(r"[^\w.-]+", "-", name) + "-{quant}.gguf"
    if not is_folder(folder):
        state = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise ConversionError(f"the output's folder {str(folder)!r} {state}", path=target, hint="make it first")
    targets = {label: target.with_name(target.name.replace("{quant}", label)) for label in labels}
    for path in targets.values():
        if is_folder(path):
            raise ConversionError(f"{str(path)!r} is a folder", path=path)
        if os.path.lexists(path) and not overwrite:
            raise name_taken(path)
    return targets
