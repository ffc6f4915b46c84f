"""Recipes: which types the tensors of a quantized file get, as data. `recipes/*.toml` holds those of this package.

A recipe's patterns are matched against llama.cpp's whole names of tensors, as file names are against `*.txt`: `*` is
any text, `?` one character, `[qk]` one of these. The first pattern that matches decides. Nothing is silently without
effect: a pattern that gives no tensor a type is an error, and so is a type that a tensor's rows cannot have.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqale_edge.errors import CheckpointError, QuantizationError
from sqale_edge.llama.quantize import EMBEDDING, FILE_TYPES, HEAD, QUANTIZED, TENSOR_TYPES, Mix, is_quantized

from .foreign import quote, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

ImatrixUse = Literal["required", "optional", "unused"]

_FOLDER = Path(__file__).with_name("recipes")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_LIMIT = 1 << 16  # bytes
_NEEDED = ("name", "about", "base", "imatrix")
_KEYS = (*_NEEDED, "output", "token_embedding", "tensors")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a file is quantized.

    Attributes:
        about: One line for a person.
        base: The file type, which decides on all tensors that no pattern matches.
        imatrix: Whether an importance matrix is needed, used where it is given, or not used.
        output: Type of the output head, and of the embedding where that is the head, too; None is `base`'s own.
        token_embedding: Type of an embedding beside a head; None is `base`'s own.
        tensors: Patterns and types, in their order.
        path: Of its file.
    """

    name: str
    about: str
    base: str
    imatrix: ImatrixUse
    output: str | None
    token_embedding: str | None
    tensors: tuple[tuple[str, str], ...]
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain JSON types, with its digest."""
        return {**self._content(), "sha256": self.digest}

    def _content(self) -> dict[str, Any]:
        content = {key: getattr(self, key) for key in _KEYS}
        return {**content, "tensors": [list(pair) for pair in self.tensors]}

    @property
    def digest(self) -> str:
        """SHA-256 of what counts: comments, line ends and the text about it do not."""
        content = {key: value for key, value in self._content().items() if key != "about"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def choose_types(self, shapes: Mapping[str, tuple[int, ...]]) -> Mix:
        """The types of a model's tensors.

        Args:
            shapes: Of all tensors by their names; the last number is the length of a row.

        Raises:
            QuantizationError: A pattern matches no tensor that is quantized, or comes too late to decide on any; or a
                type's blocks do not fit a tensor's rows.
        """
        matrices = [name for name, shape in shapes.items() if is_quantized(name, shape)]
        inner = [name for name in matrices if name not in (EMBEDDING, HEAD)]
        types: dict[str, str] = {}
        for pattern, kind in self.tensors:
            matched = fnmatch.filter(inner, pattern)
            if not matched:
                raise self._no_match(pattern, matrices)
            if types.keys() >= set(matched):
                raise self._error(f"the pattern {quote(pattern)} decides on no tensor: those before it match them all")
            types |= {name: kind for name in matched if name not in types}
        has_head = HEAD in shapes
        head = {HEAD if has_head else EMBEDDING: self.output}
        beside = {EMBEDDING: self.token_embedding} if has_head else {}
        for name, chosen in (types | head | beside).items():
            width, block = shapes[name][-1], TENSOR_TYPES[chosen].block if chosen else 1
            if width % block:
                raise self._error(
                    f"{name} has rows of {width}, which the blocks of {block} of {chosen} do not fill",
                    hint="choose a type with smaller blocks, such as Q8_0",
                )
        return Mix(types, self.output, beside.get(EMBEDDING))

    def _no_match(self, pattern: str, matrices: list[str]) -> QuantizationError:
        if fnmatch.filter(matrices, pattern):
            return self._error(
                f"the pattern {quote(pattern)} is of the head", hint="its types are 'output' and 'token_embedding'"
            )
        return self._error(
            f"the pattern {quote(pattern)} matches no tensor that is quantized",
            hint="patterns are of llama.cpp's whole names, such as blk.*.ffn_down.weight",
        )

    def _error(self, problem: str, *, hint: str = "") -> QuantizationError:
        return QuantizationError(f"the recipe {self.name} cannot be used here: {problem}", path=self.path, hint=hint)


@functools.cache
def list_recipes() -> tuple[Recipe, ...]:
    """The recipes of this package, by name."""
    return tuple(read_recipe(path) for path in sorted(_FOLDER.glob("*.toml")))


def find_recipe(name: str | Path) -> Recipe:
    """The recipe of that name, or in that file: what ends in `.toml` is a file.

    Raises:
        QuantizationError: There is none, or the file holds something else.
    """
    if isinstance(name, Path) or name.endswith(".toml"):
        return read_recipe(Path(name))
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    if name.lower() not in recipes:
        raise QuantizationError(
            f"there is no recipe {name!r}",
            hint=f"choose {', '.join(recipes)}, or give a file that ends in .toml; types such as Q8_0 go to --quant",
        )
    return recipes[name.lower()]


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        QuantizationError: It is not there, or it is no recipe; the message says what is wrong.
    """
    try:
        content = tomllib.loads(read_text(path, limit=_FILE_LIMIT))
        return _parse(content, path)
    except CheckpointError as error:
        raise QuantizationError(str(error), path=path, hint="check the path") from error
    except RecursionError:
        raise QuantizationError(f"{path.name} is nested too deeply to be a recipe", path=path) from None
    except ValueError as error:
        raise QuantizationError(
            f"{path.name} is no recipe: {' '.join(str(error).split())}",
            path=path,
            hint="docs/quantization.md describes the form",
        ) from error


def _parse(content: dict[str, Any], path: Path) -> Recipe:
    """Raises ValueError with what is wrong."""
    if unknown := [key for key in content if key not in _KEYS]:
        raise ValueError(f"the key {quote(unknown[0])} is not one of {', '.join(_KEYS)}")
    if missing := [key for key in _NEEDED if key not in content]:
        raise ValueError(f"{missing[0]!r} is missing")
    texts = {key: _check_text(key, value) for key, value in content.items() if key != "tensors"}
    name, base, use = texts["name"], texts["base"], texts["imatrix"]
    if not _NAME.fullmatch(name) or name.upper() in FILE_TYPES or name.endswith((".toml", ".gguf")):
        raise ValueError(f"the name {quote(name)} is not one of small letters, digits, '.', '-' and '_'")
    if base not in QUANTIZED:
        raise ValueError(f"the base {quote(base)} is not one of {', '.join(QUANTIZED)}")
    if use not in get_args(ImatrixUse):
        raise ValueError(f"imatrix {quote(use)} is not one of {', '.join(get_args(ImatrixUse))}")
    tensors = _check_table(content.get("tensors", {}))
    heads = {key: _check_type(key, texts[key]) for key in ("output", "token_embedding") if key in texts}
    return Recipe(
        name,
        texts["about"],
        base,
        use,  # type: ignore[arg-type] # one of them, as was checked
        heads.get("output"),
        heads.get("token_embedding"),
        tuple(tensors.items()),
        path,
    )


def _check_table(tensors: Any) -> dict[str, str]:
    if not isinstance(tensors, dict):
        raise ValueError("'tensors' is not a table of patterns and types")  # noqa: TRY004 - a fault of the file
    return {pattern: _check_type(pattern, kind) for pattern, kind in tensors.items()}


def _check_text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{key} {quote(value)} is not one line of text")
    return value


def _check_type(place: str, kind: Any) -> str:
    """`kind` if it is a tensor's type."""
    if not isinstance(kind, str) or kind not in TENSOR_TYPES:
        reason = "is a file type, and not a tensor's" if kind in FILE_TYPES else "is not a tensor's type"
        raise ValueError(f"{quote(kind)} of {quote(place)} {reason}: give one of {', '.join(TENSOR_TYPES)}")
    return kind
