"""What a checkpoint is converted to: a file type or a recipe, with an importance matrix or without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqale_edge.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.convert.recipe import Recipe
    from sqale_edge.installed import Manifest

DEFAULT_QUANT = "Q4_K_M"
"""The recommended one."""


@dataclasses.dataclass(frozen=True)
class Quantization:
    """What a person asks for; None is the recommended file type.

    Attributes:
        quant: A file type.
        recipe: The name of a recipe, or a file that ends in `.toml`.
        imatrix: The file of an importance matrix.
    """

    quant: str | None = None
    recipe: str | None = None
    imatrix: Path | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything is asked for."""
        return any(value is not None for value in (self.quant, self.recipe, self.imatrix))

    def choose(self) -> Choice:
        """What that is. Looked at before anything is downloaded.

        Raises:
            StoreError: A file type and a recipe are given.
            QuantizationError: There is no such type or recipe; or the importance matrix is damaged, or is missing.
        """
        from sqale_edge.convert.imatrix import Imatrix  # noqa: PLC0415 - not a light import
        from sqale_edge.convert.outputs import check_imatrix_use, list_outputs  # noqa: PLC0415

        if self.quant and self.recipe:
            raise StoreError(
                f"{self.quant} and the recipe {self.recipe} contradict each other", hint="give one of the two"
            )
        quant = self.quant or (None if self.recipe else DEFAULT_QUANT)
        outputs = list_outputs(quant, self.recipe)
        matrix = Imatrix.read(self.imatrix) if self.imatrix else None
        check_imatrix_use(outputs, matrix)
        (output,) = outputs
        return Choice(output.label, output.file_type, output.recipe, self.imatrix, matrix.sha256 if matrix else None)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is made.

    Attributes:
        label: The name of the recipe, else the file type.
        quant: The file type, or the one that the recipe starts from.
    """

    label: str
    quant: str
    recipe: Recipe | None
    imatrix: Path | None
    imatrix_sha256: str | None

    @property
    def recipe_sha256(self) -> str | None:
        """The recipe's digest."""
        return self.recipe.digest if self.recipe else None

    def refuse_finished(self, text: str) -> StoreError:
        """The error where nothing is converted."""
        return StoreError(
            f"{text!r} is a finished file, and {self.label} cannot be made of it",
            hint="leave --quant, --recipe and --imatrix out",
        )

    def is_of(self, manifest: Manifest) -> bool:
        """Whether a model was made like this."""
        made = (manifest.quant, manifest.recipe_sha256, manifest.imatrix_sha256)
        return made == (self.quant, self.recipe_sha256, self.imatrix_sha256)
