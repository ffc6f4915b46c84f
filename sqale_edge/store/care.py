"""What becomes of models that are there: looked at byte for byte, or removed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

from sqale_edge.catalogue import read_catalogue
from sqale_edge.errors import ModelNotFoundError
from sqale_edge.installed import StoredFile, has_manifest, is_model_name, read_installed, store_folder
from sqale_edge.models import DEMO, name_models
from sqale_edge.store.steps import Listener, hash_file
from sqale_edge.store.workplace import open_workplace, work_folder

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.installed import InstalledModel


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """A download or conversion that did not end.

    Attributes:
        n_bytes: What it takes on the disk.
    """

    name: str
    n_bytes: int


def get_installed(name: str) -> InstalledModel:
    """The model of that name.

    Raises:
        ModelNotFoundError: There is none.
        StoreError: Its manifest is damaged.
    """
    installed = read_installed(name)
    if installed is None:
        raise missing(name)
    return installed


def missing(name: str) -> ModelNotFoundError:
    """The error for a model that is not there, or that the store does not keep."""
    if name == DEMO:
        return ModelNotFoundError("the demo model is a part of the package", hint="name a model in the store")
    there = name_models()
    can_be_had = name in read_catalogue().models
    hint = f"{there}; get {name} with sqale-edge models pull {name}" if can_be_had else there
    return ModelNotFoundError(f"there is no model {name!r} in the store", hint=hint)


def list_unfinished() -> list[Unfinished]:
    """Work that was not finished and can go on, of models that are there or not; what is going on now, too."""
    found = []
    try:
        entries = sorted((store_folder() / ".work").iterdir())
    except OSError:  # there is none, or it is somebody else's
        return []
    for entry in entries:
        with contextlib.suppress(OSError):  # it may just be finished
            if n_bytes := sum(path.stat().st_size for path in entry.rglob("*") if path.is_file()):
                found.append(Unfinished(entry.name, n_bytes))
    return found


def find_damage(installed: InstalledModel, listener: Listener | None = None) -> list[str]:
    """What is wrong with the model's files, one line each; nothing if every byte is as it was."""
    manifest = installed.manifest
    problems = (
        _compare(installed.folder / file.name, file, listener or Listener())
        for file in (manifest.file, *manifest.files)
    )
    return [problem for problem in problems if problem]


def _compare(path: Path, wanted: StoredFile, listener: Listener) -> str | None:
    try:
        found = hash_file(path, wanted.name, listener)
    except OSError as error:
        return f"{str(path)!r}: {error.strerror}"
    if found.n_bytes != wanted.n_bytes:
        return f"{str(path)!r} has {found.n_bytes:,} bytes instead of {wanted.n_bytes:,}"
    if found.sha256 != wanted.sha256:
        return f"{str(path)!r} has the SHA-256 {found.sha256} instead of {wanted.sha256}"
    return None


def remove_model(name: str, listener: Listener | None = None) -> None:
    """Delete the model, a damaged one, too, and what is kept of its downloads; a file that was linked to stays.

    Raises:
        ModelNotFoundError: There is no such model.
        StoreError: It cannot be deleted.
    """
    name = name.lower()
    if not is_model_name(name) or not (has_manifest(store_folder() / name) or os.path.lexists(work_folder(name))):
        raise missing(name)
    with open_workplace(name, listener or Listener()) as place:
        place.remove()
