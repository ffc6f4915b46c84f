"""A folder beside the target in which files grow until they are whole. Nothing of it stays, whatever happens.

A killed process cannot clean up; its folder is recognised by the lock that it no longer holds, and removed when the
next conversion into the same place starts. The one platform-specific place of the conversion.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sqale_edge.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = ".sqale-edge-convert-"
_LOCK_NAME = "lock"

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        """Whether nobody else holds it. Raises OSError where the file system has no locks."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        """Whether nobody else holds it. Raises OSError where the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def open_workspace(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder`, removed with all that is in it when the context ends.

    Raises:
        ConversionError: `folder` cannot be written to.
    """
    remove_stale(folder)
    try:
        workspace, lock = _make_workspace(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        with lock:
            yield workspace
    finally:
        _remove(workspace)


def _unusable(folder: Path, error: OSError) -> ConversionError:
    return ConversionError(
        f"{str(folder)!r} cannot be written to: {error.strerror}",
        path=folder,
        hint="choose another place for the output",
    )


def _make_workspace(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new folder and its lock, held. Until it is held, another process may take the folder for a stale one."""
    while True:
        workspace = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        try:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                lock = (workspace / _LOCK_NAME).open("xb")
                if _is_ours(lock, workspace / _LOCK_NAME):
                    return workspace, lock
                lock.close()
        except BaseException:
            _remove(workspace)
            raise


def _is_ours(lock: IO[bytes], path: Path) -> bool:
    try:
        return _try_lock(lock) and _is_still(lock, path)
    except OSError:  # without locks nobody takes a folder for stale
        return True


def _is_still(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is the one of that name, and not one that has been removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(workspace: Path) -> None:
    try:
        shutil.rmtree(workspace, ignore_errors=True)
    except BaseException:  # a second Ctrl-C while the first is cleaned up
        shutil.rmtree(workspace, ignore_errors=True)
        raise


def remove_stale(folder: Path) -> None:
    """Remove what killed conversions left in `folder`; those that are running are left alone, and so are links."""
    for workspace in folder.glob(f"{PREFIX}*/"):
        # The lock is made where it is missing: the process was killed while it made or removed the folder.
        with contextlib.suppress(OSError), open(workspace / _LOCK_NAME, "ab", opener=_open_itself) as lock:
            if workspace.is_symlink() or not stat.S_ISREG(os.fstat(lock.fileno()).st_mode) or not _try_lock(lock):
                continue
            shutil.rmtree(workspace, ignore_errors=True)
            if sys.platform == "win32":  # an open file cannot be removed there
                lock.close()
                shutil.rmtree(workspace, ignore_errors=True)


def _open_itself(name: str, flags: int) -> int:
    """Not what a link points to, and without waiting for the other end of a pipe."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def check_disk_space(folder: Path, parts: Iterable[tuple[str, int]]) -> None:
    """Raise ConversionError unless `folder`'s disk has room for all `parts` (name and bytes each) at the same time."""
    parts = list(parts)
    needed = sum(n_bytes for _, n_bytes in parts)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unusable(folder, error) from error
    if needed > free:
        details = ", ".join(f"{name} {n_bytes / 1e9:.2f} GB" for name, n_bytes in parts)
        raise ConversionError(
            f"the disk of {str(folder)!r} has {free / 1e9:.2f} GB free, but needs {needed / 1e9:.2f} GB ({details})",
            path=folder,
            hint="free some space, or choose a target on another disk",
        )
