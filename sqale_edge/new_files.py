"""Files that are whole or not there, and that replace nobody's file unless that is asked for.

A file is written under a name of its own beside its target, and gets the target's name when it is whole. Where the file
system has hard links (ext4, XFS, Btrfs, APFS, NTFS), a name that another process takes at any instant is left to it.
Without them (FAT, some network drives) the name is taken first with an empty file, which stays if the process is killed
at that instant.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def partial_name(target: Path) -> Iterator[Path]:
    """A free name beside `target`, for a file or folder that grows there.

    What is still there when the block ends, however it does, is removed.
    """
    partial = target.with_name(f".sqale-edge-{secrets.token_hex(4)}.part")
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink()


def write_to_disk(path: Path) -> None:
    """What is in the file stays, whatever happens to the machine. Raises OSError."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def put_in_place(source: Path, target: Path, *, overwrite: bool) -> None:
    """Give `source` the name `target`. Raises FileExistsError if that is taken, unless it may `overwrite`; OSError."""
    if overwrite:
        source.replace(target)
    else:
        _move_to_free_name(source, target)


def _move_to_free_name(source: Path, target: Path) -> None:
    """`source.rename(target)`, with a FileExistsError instead of a replaced file."""
    if sys.platform == "win32":
        source.rename(target)  # refuses there by itself
        return
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # each file system without hard links has its own error for that
        target.open("xb").close()
        try:
            source.replace(target)
        except BaseException:
            target.unlink()
            raise
