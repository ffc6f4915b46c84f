"""The place where one model is changed: held by one process at a time, and shown to others only when it is complete.

What others see changes with one rename of the manifest. Before it the files of the new version lie in a folder that no
manifest speaks of; after it those of the old one do. Whoever changes the model next deletes such folders.

The holder is known by a lock that ends with its process, so nothing has to be cleaned up after a kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING

from sqale_edge.errors import StoreError
from sqale_edge.home import HOME_VARIABLE
from sqale_edge.installed import MANIFEST_NAME, store_folder
from sqale_edge.store.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.installed import Manifest
    from sqale_edge.store.steps import Listener

_POLL_S = 0.1
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclasses.dataclass(frozen=True)
class Workplace:
    """One model's folders.

    Attributes:
        model: What others see.
        work: What is kept from one try to the next: downloads.
    """

    model: Path
    work: Path

    @property
    def source(self) -> Path:
        """Where downloads go."""
        return self.work / "source"

    @property
    def version(self) -> Path:
        """Where the new version is made; empty at the start."""
        return self.work / "version"

    def place(self, manifest: Manifest) -> None:
        """Let others see the files in `version`, with this manifest, instead of what there was.

        The names in the manifest are relative to `version`, or absolute; they become relative to the model's folder.
        """
        self.model.mkdir(exist_ok=True)
        # Not the digest alone: the same file may come again.
        taken = {entry.name for entry in self.model.iterdir()}
        digest = manifest.file.sha256[:12]
        name = next(name for number in range(1000) if (name := f"{digest}-{number}" if number else digest) not in taken)
        files = [manifest.file, *manifest.files]
        moved = [
            file if os.path.isabs(file.name) else dataclasses.replace(file, name=f"{name}/{file.name}")  # noqa: PTH117 - text
            for file in files
        ]
        placed = dataclasses.replace(manifest, file=moved[0], files=tuple(moved[1:]))
        for file in files:
            if not os.path.isabs(file.name):  # noqa: PTH117
                _write_to_disk(self.version / file.name)
        self.version.rename(self.model / name)
        _write_to_disk(self.model)
        draft = self.model / f"{MANIFEST_NAME}.new"
        # A path may hold bytes that are no UTF-8: what stands for them is escaped as JSON escapes it.
        draft.write_text(_dump_manifest(placed), encoding="utf-8", errors="backslashreplace", newline="\n")
        _write_to_disk(draft)
        draft.replace(self.model / MANIFEST_NAME)
        _write_to_disk(self.model)
        self.clean()

    def clean(self) -> None:
        """Delete what no manifest speaks of, downloads left alone."""
        shutil.rmtree(self.version, ignore_errors=True)
        if not self.model.is_dir():
            return
        kept = {MANIFEST_NAME}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            document = json.loads((self.model / MANIFEST_NAME).read_text(encoding="utf-8"))
            kept |= {file["name"].partition("/")[0] for file in [document["file"], *document["files"]]}
        if kept == {MANIFEST_NAME} and (self.model / MANIFEST_NAME).exists():
            return  # a manifest of another version, or a damaged one: nobody knows what is its
        for entry in self.model.iterdir():
            if entry.name not in kept:
                _remove(entry)
        with contextlib.suppress(OSError):
            self.model.rmdir()  # if nothing is left

    def remove(self) -> None:
        """Delete the model and what is kept of downloads. The manifest goes first: then there is no model."""
        (self.model / MANIFEST_NAME).unlink(missing_ok=True)
        for folder in (self.model, self.work):
            if folder.exists():
                shutil.rmtree(folder)


def _dump_manifest(manifest: Manifest) -> str:
    """As it is written to the disk."""
    return json.dumps(manifest.to_dict(), ensure_ascii=False, indent=2) + "\n"


def work_folder(name: str) -> Path:
    """Where unfinished work on the model lies."""
    return store_folder() / ".work" / name


@contextlib.contextmanager
def open_workplace(name: str, listener: Listener) -> Iterator[Workplace]:
    """The model's workplace, held for the block; what is in it that is of no use any more is deleted.

    If another process holds it, that is said, and this one waits.

    Raises:
        StoreError: The store cannot be written to, also inside the block.
    """
    store = store_folder()
    with disk_errors(store):
        locks = store / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with _locked(locks / f"{name}.lock", name, listener):  # no name of its other files ends so
            place = Workplace(store / name, work_folder(name))
            place.work.mkdir(parents=True, exist_ok=True)
            try:
                place.clean()
                place.version.mkdir()
                yield place
            finally:
                with contextlib.suppress(OSError):
                    shutil.rmtree(place.version, ignore_errors=True)
                    place.work.rmdir()  # if nothing is kept


@contextlib.contextmanager
def _locked(path: Path, name: str, listener: Listener) -> Iterator[None]:
    """For the block no other process and no other thread is in one with this path."""
    owner = path.with_name(f"{path.name}.owner")
    if not path.exists():
        path.touch()  # SQLite would not let a group write to it, also where the umask does
    try:
        lock = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        with contextlib.closing(lock):
            is_said = False
            while not _try_lock(lock):
                if not is_said:
                    listener.note(f"waiting for {_read_owner(owner)}, which is changing the model {name!r}")
                    is_said = True
                listener.show(Step("wait", name, 0, 1))
                time.sleep(_POLL_S)
            owner.write_text(str(os.getpid()), encoding="ascii")
            yield
            owner.unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise _unwritable(str(path.parent), str(error)) from error


def _try_lock(lock: sqlite3.Connection) -> bool:
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise
    return True


def _read_owner(owner: Path) -> str:
    try:
        return f"process {int(owner.read_text(encoding='ascii'))}"
    except (OSError, ValueError):
        return "another process"


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """An OSError of the block becomes a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreError(
                f"the disk of {str(folder)!r} is full",
                hint="free some space and run the same command again: what is downloaded is kept",
            ) from error
        raise _unwritable(str(error.filename or folder), error.strerror or str(error)) from error


def _unwritable(path: str, why: str) -> StoreError:
    return StoreError(
        f"{path!r} in the model store cannot be used: {why}",
        hint=f"check its permissions, or set {HOME_VARIABLE} to a folder of your own",
    )


def check_space(folder: Path, parts: dict[str, int]) -> None:
    """Raise StoreError unless the disk of `folder` has room for all parts, in bytes, at the same time."""
    with disk_errors(folder):
        free = shutil.disk_usage(folder).free
    needed = sum(parts.values())
    if needed > free:
        details = ", ".join(f"{name} {n_bytes / 1e9:.2f} GB" for name, n_bytes in parts.items() if n_bytes)
        raise StoreError(
            f"the disk of {str(folder)!r} has {free / 1e9:.2f} GB free, but needs {needed / 1e9:.2f} GB for a while "
            f"({details})",
            hint=f"free some space, or set {HOME_VARIABLE} to a folder on another disk",
        )


def _write_to_disk(path: Path) -> None:
    """What was written there outlives a power cut; a folder only where the system has that."""
    if path.is_dir():
        if os.name == "posix":
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
