"""What is in the model store: one folder a model, and in it a manifest that says what the model is.

    models/NAME/manifest.json      a model is there if its manifest is; it is replaced as a whole
    models/NAME/VERSION/           the files that the manifest speaks of
    models/.work/NAME/             a download or conversion that is not finished
    models/.locks/NAME.lock        held by the process that changes NAME

This module only reads, so that a store on a read-only disk can be used; `sqale_edge.store` changes it. The manifest
names its files relative to its own folder: a store can be moved.

Not guaranteed: that a model's file is the one that was put there, byte for byte; `sqale-edge models verify` looks.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Literal, Self

from sqale_edge.errors import StoreError
from sqale_edge.home import HOME_VARIABLE, home_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Origin = Literal["converted", "ready-made"]

MANIFEST_NAME = "manifest.json"
FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LONGEST_MANIFEST = 1 << 22  # bytes; the training texts are the most of it, and have at most 256 Ki characters


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file and what it must be.

    Attributes:
        name: Relative to the model's folder, with `/`.
        sha256: In hexadecimal digits.
    """

    name: str
    n_bytes: int
    sha256: str


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_file(value: object) -> bool:
    return isinstance(value, StoredFile) and [type(part) for part in dataclasses.astuple(value)] == [str, int, str]


# How a value out of JSON is looked at, by the type that `Manifest` says.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "Origin": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
    "StoredFile": _is_file,
    "tuple[StoredFile, ...]": lambda value: all(map(_is_file, value)),
    "tuple[str, ...]": lambda value: all(map(_is_text, value)),
    "dict[str, str]": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a model in the store is.

    Attributes:
        name: In the store.
        origin: `converted` by this program from a checkpoint, or a `ready-made` GGUF of somebody else.
        file: The GGUF; its name is an absolute path where it was only linked to.
        quant: Its file type, as far as it is known.
        recipe: The name of the recipe that it was made by, if it was.
        recipe_sha256, imatrix_sha256: Digests of that, and of the importance matrix that was used.
        source: Where it comes from: a repository, or a path.
        repository: `owner/name` on the hub, if it comes from there.
        revision: The commit there.
        source_files: What it was made of.
        files: What is kept beside it: licence, training prompt, and the source where that was asked for.
        licence: As the repository names it.
        prompt_source: Where the training texts are from; None if there are none.
        texts: Training texts that the GGUF lacks, by the keys that they would have in it.
        versions: Of the programs that made it.
        made_at: When, in UTC.
        notes: What a person should know.
    """

    name: str
    origin: Origin
    file: StoredFile
    quant: str | None
    source: str
    repository: str | None = None
    revision: str | None = None
    source_files: tuple[StoredFile, ...] = ()
    files: tuple[StoredFile, ...] = ()
    licence: str | None = None
    prompt_source: str | None = None
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    made_at: str = ""
    notes: tuple[str, ...] = ()
    recipe: str | None = None
    recipe_sha256: str | None = None
    imatrix_sha256: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain JSON types."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """The manifest out of `to_dict`. Raises ValueError, TypeError or KeyError for anything else."""
        values = dict(value)
        if values.pop("format") != FORMAT:
            raise ValueError("another version of sqale-edge wrote it")
        values["file"] = StoredFile(**values["file"])
        for key in ("source_files", "files"):
            values[key] = tuple(StoredFile(**entry) for entry in values[key])
        values["notes"] = tuple(values["notes"])
        manifest = cls(**values)
        for field in dataclasses.fields(cls):
            if not _KINDS[str(field.type)](getattr(manifest, field.name)):
                raise TypeError(f"its {field.name} is of a wrong type")
        return manifest


@dataclasses.dataclass(frozen=True)
class InstalledModel:
    """A model in the store.

    Attributes:
        folder: Of the model, absolute.
    """

    folder: Path
    manifest: Manifest

    @property
    def path(self) -> Path:
        """Of the GGUF file."""
        return self.folder / self.manifest.file.name

    def check_present(self) -> None:
        """Raise StoreError unless the GGUF is there, in its length; a look at the folder, not at its content."""
        name, expected = self.manifest.name, self.manifest.file.n_bytes
        try:
            n_bytes = self.path.stat().st_size
        except OSError as error:
            raise StoreError(
                f"the file of the model {name!r} is gone: {str(self.path)!r}: {error.strerror}", hint=self.renewal()
            ) from None
        if n_bytes != expected:
            raise StoreError(
                f"the file of the model {name!r} has {n_bytes:,} bytes instead of {expected:,}: {str(self.path)!r}",
                hint=self.renewal(),
            )

    def renewal(self) -> str:
        """What to do when its files are wrong."""
        manifest = self.manifest
        if not manifest.revision:
            return f"remove it with sqale-edge models rm {manifest.name}, and add it again"
        how = f" --quant {manifest.quant}" if manifest.origin == "converted" else ""
        if manifest.recipe:
            how = f" --recipe {manifest.recipe}"
        if manifest.imatrix_sha256:
            how += " --imatrix FILE"
        return f"get it again with sqale-edge models pull {manifest.source} --name {manifest.name}{how}"


def store_folder() -> Path:
    """Where the models are: `models` in `SQALE_EDGE_HOME`, or in this user's folder for data; it may be missing.

    Raises:
        StoreError: There is no home.
    """
    return home_folder("data") / "models"


def is_model_name(text: str) -> bool:
    """Whether a model in the store can be called `text`; large letters count as small ones."""
    name = text.lower()
    return _NAME.fullmatch(name) is not None and not name.endswith((".", ".gguf"))


def read_installed(name: str) -> InstalledModel | None:
    """The model of that name; None where there is none.

    Raises:
        StoreError: Its manifest cannot be read.
    """
    if not is_model_name(name):
        return None
    folder = store_folder() / name.lower()
    path = folder / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error.strerror}", hint="check its permissions") from None
    try:
        manifest = Manifest.from_dict(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{str(path)!r} is no manifest that this version can read: {error}",
            hint=f"remove the model with sqale-edge models rm {name.lower()}, and get it again",
        ) from None
    return InstalledModel(folder, manifest)


def list_names() -> list[str]:
    """The models that have a manifest, sorted. Raises StoreError if the store cannot be looked at."""
    folder = store_folder()
    try:
        found = {entry.name.lower() for entry in folder.iterdir() if is_model_name(entry.name)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(
            f"the store {str(folder)!r} cannot be read: {error.strerror}",
            hint=f"check its permissions, or set {HOME_VARIABLE} to another folder",
        ) from None
    return sorted(name for name in found if has_manifest(folder / name))


def has_manifest(folder: Path) -> bool:
    """Whether a model is there; also one that this user may not look at, about which `read_installed` says so."""
    try:
        (folder / MANIFEST_NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
