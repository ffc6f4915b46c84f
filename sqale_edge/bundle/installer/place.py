"""The folder that a bundle is installed into: whose it is, and whether what is in it is complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from .contents import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER_NAME = "sqale-edge-bundle.json"  # of which bundle it is, and whether it is complete
_DRAFT_NAME = f"{MARKER_NAME}.new"
_LOCK_NAME = ".sqale-edge-install.lock"  # SQLite, whose locks are used, may keep another file of that name beside it


def choose_place(venv: Path | None) -> Path:
    """Where to install: `venv`, or `sqale-edge` in this user's home. Raises InstallError if that can be nowhere."""
    venv = venv or Path("~/sqale-edge")
    try:
        place = venv.expanduser().absolute()
    except RuntimeError:  # a user without a home, or a "~" of nobody
        hint = "choose another place with --venv"
        raise InstallError(f"there is no home for {str(venv)!r}", hint=hint) from None
    if os.pathsep in str(place):
        raise InstallError(
            f"no program can be installed into {str(place)!r}, because of the {os.pathsep!r} in it",
            hint="choose another place with --venv",
        )
    return place


def find_python(venv: Path) -> Path:
    """The Python of an installation."""
    return venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python"


def find_command(venv: Path) -> Path:
    """The command of an installation."""
    return venv / "Scripts" / "sqale-edge.exe" if os.name == "nt" else venv / "bin" / "sqale-edge"


def is_complete(venv: Path, digest: str) -> bool:
    """Whether it was installed from that bundle. Raises InstallError if it was from another one."""
    try:
        marker = json.loads((venv / MARKER_NAME).read_text(encoding="utf-8"))
        found, is_whole = marker["bundle"], marker["is_complete"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if is_whole and found != digest:
        raise InstallError(
            f"{str(venv)!r} holds the program of another bundle, {found}",
            hint="delete that folder, or choose another one with --venv",
        )
    return is_whole


@contextlib.contextmanager
def held(venv: Path) -> Iterator[None]:
    """For the block the folder is there, this process's alone, and nobody's but a bundle's. It goes if it is empty.

    The holder is known by a lock that ends with its process, so nothing has to be cleaned up after a kill.

    Raises:
        InstallError: It cannot be had.
    """
    is_new = not os.path.lexists(venv)
    if not is_new:
        _check_ours(venv)
    try:
        venv.mkdir(exist_ok=True)
    except FileNotFoundError:
        hint = "make it, or choose another place with --venv"
        raise InstallError(f"there is no folder {str(venv.parent)!r}", hint=hint) from None
    except OSError as error:
        raise _unwritable(venv, error.strerror or str(error)) from None
    path = venv / _LOCK_NAME
    lock = None
    try:
        lock = _lock(venv, path)
        _check_ours(venv)
        yield
    finally:
        if lock:
            lock.close()
            with contextlib.suppress(OSError):
                path.unlink()
        if is_new:
            with contextlib.suppress(OSError):
                venv.rmdir()


def _lock(venv: Path, path: Path) -> sqlite3.Connection:
    try:
        lock = sqlite3.connect(path, isolation_level=None, timeout=0)
    except sqlite3.Error as error:
        raise _unwritable(venv, str(error)) from None
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        lock.close()
        if "locked" in str(error):
            raise InstallError(
                f"another process is installing into {str(venv)!r}", hint="wait until it has ended"
            ) from None
        raise _unwritable(venv, str(error)) from None
    return lock


def _unwritable(venv: Path, why: str) -> InstallError:
    return InstallError(f"{str(venv)!r} cannot be written to: {why}", hint="choose another place with --venv")


def _check_ours(venv: Path) -> None:
    """Raise InstallError if there is something that no installation of a bundle has left."""
    if venv.is_dir():
        names = {path.name for path in venv.iterdir() if not path.name.startswith(_LOCK_NAME)}
        if names <= {_DRAFT_NAME} or MARKER_NAME in names:
            return
    raise InstallError(f"{str(venv)!r} exists already", hint="choose another folder with --venv, or delete it")


def clear(venv: Path, *, with_marker: bool) -> None:
    """Delete what is in the folder, the marker last: without it nobody would know whose the rest is."""
    for path in venv.iterdir():
        if path.name == MARKER_NAME or path.name.startswith(_LOCK_NAME):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if with_marker:
        (venv / MARKER_NAME).unlink(missing_ok=True)


def write_marker(venv: Path, digest: str, *, is_complete: bool) -> None:
    """Say what the folder is; it is said before anything else is in it."""
    draft = venv / _DRAFT_NAME
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"bundle": digest, "is_complete": is_complete}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(venv / MARKER_NAME)
