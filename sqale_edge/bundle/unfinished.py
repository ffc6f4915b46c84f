"""The hidden folder beside a new bundle that the bundle grows in, and what becomes of it when its process is killed.

The process that works in such a folder is known by a lock that ends with it, so whoever makes the next bundle beside it
can tell what nobody will finish. The lock comes first: a folder with a lock alone has just been begun.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from typing import TYPE_CHECKING

from sqale_edge.new_files import partial_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.store.steps import Listener

REPLACED_NAME = "replaced"  # in the folder, for an instant: the bundle that is overwritten
_LOCK_NAME = "sqale-edge.lock"  # SQLite, whose locks are used


@contextlib.contextmanager
def work_folder(output: Path, listener: Listener) -> Iterator[Path]:
    """A new folder beside `output`, which is deleted when the block ends; what kills have left there is deleted before.

    Raises:
        OSError: It cannot be made.
    """
    for folder in output.absolute().parent.glob(".sqale-edge-*.part"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
            listener.note(f"deleted what a killed run has left: {str(folder)!r}")
    with partial_name(output) as work, contextlib.ExitStack() as held:
        work.mkdir()
        if lock := _lock(work / _LOCK_NAME):  # where the file system has none, a kill leaves the folder
            held.callback(lock.close)
        yield work


def _is_left(folder: Path) -> bool:
    """Whether nobody works in the folder, and nothing in it is missed."""
    if folder.is_symlink():
        return False
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError:
        return False  # a file, or somebody else's
    if _LOCK_NAME not in names or len(names) == 1 or REPLACED_NAME in names:
        return False
    lock = _lock(folder / _LOCK_NAME)
    if lock:
        lock.close()
    return lock is not None


def _lock(path: Path) -> sqlite3.Connection | None:
    """A lock that is held until it is closed; None if it cannot be had."""
    try:
        lock = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    except sqlite3.Error:
        return None
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:
        lock.close()
        return None
    return lock
