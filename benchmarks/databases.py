"""The databases of a benchmark: where they lie, and keeping a few of them open."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Self

from sqale_edge.database import Database
from sqale_edge.errors import QueryError
from sqale_edge.schema import Schema

from .question import DATABASE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.database import Table

MAX_ROWS = 200_000
"""A longer result is not compared: it is counted as too large."""

# Where the benchmarks keep databases, seen from the file with the questions.
USUAL_FOLDERS = (".", "database", "databases", "dev_databases", "resource/databases/spider2-localdb")
_MAX_OPEN = 4


def find_database(name: str, folders: Sequence[Path]) -> Path:
    """The file of the database `name`: a path, `name.sqlite` or `name/name.sqlite` in one of the folders.

    A folder that is a file is the one database of all questions. What is not found is a path that does not exist.
    """
    for folder in folders:
        if _is_file(folder):
            return folder
        for candidate in _candidates(folder, name):
            if _is_file(candidate):
                return candidate
    return folders[0] / (name if name.endswith(DATABASE_SUFFIXES) else f"{name}.sqlite")


def _candidates(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    for suffix in DATABASE_SUFFIXES:
        yield folder / name / f"{name}{suffix}"
        yield folder / f"{name}{suffix}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, say
        return False


class OpenDatabase:
    """One database, opened twice: as it is, and so that SQLite walks through rows backwards where it may choose.

    Args:
        path: A SQLite file.
        timeout_s: Seconds for each statement.
        should_stop: As for `Database.query`.

    Raises:
        DatabaseOpenError: It is missing, or is no database.
    """

    def __init__(self, path: Path, timeout_s: float, should_stop: Callable[[], bool] | None = None) -> None:
        self._timeout_s = timeout_s
        self._should_stop = should_stop
        self._database = Database.open(path)
        try:
            self._reversed = Database.open(path)
        except BaseException:
            self._database.close()
            raise

    def query(self, sql: str, *, is_reversed: bool = False) -> Table:
        """All rows, unless the table says that it is truncated. Raises QueryError."""
        database = self._reversed if is_reversed else self._database
        if is_reversed:
            database.read("PRAGMA reverse_unordered_selects=1")  # each time: the file may have been opened again
        return database.query(
            sql, max_rows=MAX_ROWS, timeout_s=self._timeout_s, max_cell_bytes=64 << 20, should_stop=self._should_stop
        )

    def find_reads(self, sql: str) -> frozenset[tuple[str, str | None]]:
        """As `Database.find_reads`."""
        return self._database.find_reads(sql, timeout_s=self._timeout_s, should_stop=self._should_stop)

    @functools.cached_property
    def schema(self) -> Schema:
        """Its tables and views."""
        return Schema(self._database, should_stop=self._should_stop)

    @functools.cached_property
    def tables(self) -> dict[str, str]:
        """The names of the real tables, by their lower-case names."""
        rows = self._database.read(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'create virtual%' "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
            should_stop=self._should_stop,
        )
        return {str(name).lower(): str(name) for (name,) in rows}

    def close(self) -> None:
        """Close the files."""
        self._database.close()
        self._reversed.close()


class OpenDatabases:
    """Databases by their paths; the few that were used last stay open. Close it, or use it in a `with` statement."""

    def __init__(self, timeout_s: float, should_stop: Callable[[], bool] | None = None) -> None:
        self._timeout_s = timeout_s
        self._should_stop = should_stop
        self._open: collections.OrderedDict[Path, OpenDatabase] = collections.OrderedDict()

    def get(self, path: Path) -> OpenDatabase:
        """The database, opened if it is not. Raises DatabaseOpenError or QueryError."""
        if path not in self._open:
            self._open[path] = OpenDatabase(path, self._timeout_s, self._should_stop)
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        while self._open:
            self._open.popitem()[1].close()


def reason(error: Exception) -> str:
    """Why a statement gave no result, as one word: refused, failed or timeout. An interruption is raised again."""
    if isinstance(error, QueryError):
        if error.kind == "interrupted":
            raise error
        return error.kind
    return "failed"
