"""The folder of a report: a new or an empty one, or that of an earlier report if it may be overwritten.

A new folder appears with all its files. Files that replace others are each whole, old or new, at every instant. What
else lies in a folder is somebody else's, and nothing is written beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import BenchmarkError, ConversionError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("report.html", "report.md", "report.json")


def check_folder(folder: str | Path, *, overwrite: bool = False) -> None:
    """Raise BenchmarkError unless a report can go to `folder`: before work of hours, rather than after it.

    Args:
        folder: It is made if it is missing, in a folder that is there.
        overwrite: It may hold a report, which is replaced; but nothing else.
    """
    folder = Path(folder)
    found: list[str] = []
    try:
        found = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError as error:
        if folder.is_symlink():
            raise BenchmarkError(f"{str(folder)!r} is a link to nothing", path=folder, hint=_HINT) from error
        if not folder.parent.is_dir():
            raise BenchmarkError(
                f"the folder {str(folder.parent)!r} of the report does not exist", path=folder, hint="make it first"
            ) from error
    except NotADirectoryError as error:
        raise BenchmarkError(f"{str(folder)!r} is not a folder, nor can it be one", path=folder, hint=_HINT) from error
    except (OSError, ValueError) as error:  # a name that is too long, a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise BenchmarkError(
            f"{str(folder)!r} cannot be the report's folder: {reason}", path=folder, hint=_HINT
        ) from error
    foreign = [name for name in found if name not in FILES]
    if foreign:
        from sqale_edge.convert.workspace import PREFIX  # noqa: PLC0415 - loads more than a report needs

        foreign = [name for name in foreign if not name.startswith(PREFIX)]  # a killed process left it
    if foreign:
        raise BenchmarkError(f"{str(folder)!r} holds other files, such as {foreign[0]!r}", path=folder, hint=_HINT)
    if found and not overwrite:
        raise BenchmarkError(
            f"there is a report in {str(folder)!r} already",
            path=folder,
            hint="choose another name, or overwrite it with --overwrite",
        )


_HINT = "name a new folder, or an empty one, with --report"


def write_folder(folder: Path, files: Mapping[str, str], *, overwrite: bool) -> None:
    """Put files of these names and texts into `folder`; raise BenchmarkError, and leave nothing, if that fails."""
    from sqale_edge.convert.placing import move_into_place  # noqa: PLC0415 - loads more than a report needs
    from sqale_edge.convert.workspace import open_workspace  # noqa: PLC0415

    check_folder(folder, overwrite=overwrite)
    is_new = not os.path.lexists(folder)
    try:
        # Inside a folder that is there: it may be on a disk of its own.
        with open_workspace(folder.parent if is_new else folder) as workspace:
            complete = workspace / "report"
            complete.mkdir()
            for name, text in files.items():
                (complete / name).write_text(text, encoding="utf-8", newline="\n")
            if is_new:
                complete.rename(folder)
            else:
                move_into_place([(complete / name, folder / name) for name in files], overwrite=overwrite)
    except ConversionError as error:
        raise BenchmarkError(str(error), path=folder, hint=error.hint) from error
    except OSError as error:
        raise BenchmarkError(
            f"the report {str(folder)!r} cannot be written: {error.strerror}", path=folder, hint=_HINT
        ) from error
