"""Finished files get their names: all of them or none, and nobody else's file is replaced unless that is asked for.

Guaranteed where the file system has hard links (ext4, XFS, Btrfs, APFS, NTFS): a name that another process takes at any
instant is left to it, and a file that is replaced is whole, old or new, at every instant.

Not guaranteed:
- Without hard links (FAT, some network drives) a name is taken first with an empty file, and that stays if the process
  is killed at that instant; and of several files that replace others, those already replaced stay replaced when a
  later one fails.
- A process that is killed between two of several files leaves the first.
- Two processes that both overwrite the same name: the later one wins.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from sqale_edge.errors import ConversionError
from sqale_edge.new_files import put_in_place, write_to_disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    # A finished file, and the name that it is to get.
    Move = tuple[Path, Path]


def move_into_place(moves: Sequence[Move], *, overwrite: bool) -> None:
    """Give every file its final name.

    Args:
        moves: Each file lies in a folder on its target's disk that is removed afterwards; what is replaced is kept
            there until the last file is in place.
        overwrite: Replace what has a target's name; False refuses.

    Raises:
        ConversionError: A name is taken, or a file cannot be moved. All targets are as they were.
    """
    with contextlib.ExitStack() as undo:
        for number, (source, target) in enumerate(moves):
            try:
                write_to_disk(source)
                _prepare_undo(undo, source, target, source.parent / f"replaced-{number}")
                put_in_place(source, target, overwrite=overwrite)
            except FileExistsError as error:
                raise name_taken(target) from error
            except OSError as error:
                raise ConversionError(
                    f"{str(target)!r} cannot be put in place: {error.strerror}", path=target
                ) from error
        undo.pop_all()


def name_taken(target: Path) -> ConversionError:
    """The error for a target that is there and is not to be overwritten."""
    return ConversionError(
        f"{str(target)!r} exists already", path=target, hint="choose another name, or overwrite it with --overwrite"
    )


def _prepare_undo(undo: contextlib.ExitStack, source: Path, target: Path, kept: Path) -> None:
    """Have the move of `source` taken back on failure, with `kept` as a second name for what it replaces.

    Where that cannot have a second name, the move will stay: a new file is better than none.
    """
    is_there = os.path.lexists(target)
    if is_there:
        try:
            if target.is_symlink():
                kept.symlink_to(target.readlink())
            else:
                os.link(target, kept)
        except OSError:
            return
    undo.callback(_take_back, source.stat(), target, kept if is_there else None)


def _take_back(new: os.stat_result, target: Path, kept: Path | None) -> None:
    """`target` as it was before, if it is the `new` file; what another process has put there meanwhile stays."""
    with contextlib.suppress(OSError):
        if os.path.samestat(target.lstat(), new):
            if kept:
                kept.replace(target)
            else:
                target.unlink()
