"""Directories for files of this process alone: copies and imported tables.

A directory is removed when its owner lets go of it, at the latest when Python ends; never by a forked child, to which
it does not belong. After a crash it stays, and the
first start that finds it older than a minute removes it: each holds a file that its owner keeps locked, and a
directory whose file can be locked has no owner. A directory without that file is somebody else's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sqlite3
import stat
import tempfile
import time
import weakref
from pathlib import Path

_PREFIX = ".sqale-edge-private-"
_OWNER = "owner"
_SECONDS_TO_LOCK = 60.0  # a younger directory may not have its lock yet


class NoDirectoryError(OSError):
    """There is no place for temporary files."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"temporary files cannot be written: {reason}")


class PrivateDirectory:
    """A new directory that only this user may read."""

    def __init__(self) -> None:
        """Make it. Raises NoDirectoryError where no temporary folder can be written."""
        remove_abandoned()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        except OSError as error:
            raise NoDirectoryError(error.strerror or str(error)) from error
        owner = sqlite3.connect(self.path / _OWNER, isolation_level=None, check_same_thread=False)
        try:
            owner.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            owner.close()
            shutil.rmtree(self.path, ignore_errors=True)
            raise NoDirectoryError(str(error)) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, owner, os.getpid())

    def remove(self) -> None:
        """Delete it and everything in it; a second time does nothing."""
        self._finalizer()


@functools.cache
def remove_abandoned() -> None:
    """Delete the directories of processes that died. Once in a process; what cannot be deleted is left."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:  # none that can be written
        return
    for directory in folder.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError, sqlite3.Error):
            found = directory.lstat()
            is_ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
            if is_ours and stat.S_ISDIR(found.st_mode) and found.st_mtime < time.time() - _SECONDS_TO_LOCK:
                _remove_unlocked(directory)


def _remove_unlocked(directory: Path) -> None:
    """Delete `directory` if it is empty, or holds an owner file that nobody has locked."""
    if not any(directory.iterdir()):
        directory.rmdir()  # its process died before it had an owner file
        return
    uri = (directory / _OWNER).absolute().as_uri() + "?mode=rw"  # a missing one is not made
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)) as owner:
        owner.execute("BEGIN EXCLUSIVE")
    shutil.rmtree(directory, ignore_errors=True)


def _remove(path: Path, owner: sqlite3.Connection, pid: int) -> None:
    if os.getpid() == pid:
        owner.close()
        shutil.rmtree(path, ignore_errors=True)
