"""A person's database, read-only: one statement at a time, under limits of time, rows and bytes.

Nothing that is run here changes the database file, or any other file. A `Database` may be used from any thread; one statement runs at a
time, a second waits. `interrupt` may be called meanwhile.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqale_edge.errors import QueryError
from sqale_edge.sql_text import bare_statement
from sqale_edge.sqlite_files import open_read_only
from sqale_edge.sqlite_guard import STORED_VALUE_BYTES, VALUE_BYTES, Guard, touch_virtual_tables

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from sqale_edge.episode import Cell, Row


@dataclasses.dataclass(frozen=True)
class Table:
    """The result of a statement.

    Attributes:
        rows: Cells as SQLite gave them. Text that is not UTF-8 is decoded with `surrogateescape`, so no byte is lost.
        truncated: Something is missing: further rows, or the end of a cell.
        has_more_rows: Further rows are missing.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    truncated: bool = False
    has_more_rows: bool = False


class Database:
    """An open database. Make one with `Database.open`, and close it or use it in a `with` statement.

    Attributes:
        path: The file that was opened; of several, the first.
        notes: What the person should know about how the files are read.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        self._connection = connection
        self._guard = Guard(connection)
        self._lock = threading.RLock()
        self._schema_version: int | None = None

    @classmethod
    def open(cls, path_or_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Self:
        """The database in a SQLite file. Raises DatabaseOpenError."""
        path = Path(path_or_paths)  # type: ignore[arg-type]
        return cls(path, open_read_only(path))

    def close(self) -> None:
        """Close the files. Closing twice is allowed."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def interrupt(self) -> None:
        """Stop the statement that runs now, from any thread: it raises QueryError with kind `interrupted`."""
        self._guard.interrupt()

    def query(
        self,
        sql: str,
        *,
        max_rows: int,
        timeout_s: float = 5.0,
        max_cell_bytes: int = 1 << 20,
        max_bytes: int = 64 << 20,
    ) -> Table:
        """The first rows of one statement that only reads.

        Args:
            max_rows: Rows to return at most.
            timeout_s: Seconds that the statement may run.
            max_cell_bytes: Longer text and BLOBs are cut to this length.
            max_bytes: All cells together; the rows end before the one that goes past it.

        Raises:
            QueryError: Its message is one line that says what is wrong and what to do; its `kind` is `refused`, `failed`, `timeout` or
                `interrupted`.
        """
        statement = bare_statement(sql)
        if not statement:
            raise QueryError("the SQL is empty. Write one SELECT statement", kind="refused")
        with self._lock, self._guard.timed(timeout_s):
            try:
                self._refresh()
                with self._guard.enforced(VALUE_BYTES):
                    return self._fetch(statement, max_rows, max_cell_bytes, max_bytes)
            except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
                raise self._query_error(error, timeout_s) from error

    def read(self, sql: str, parameters: Sequence[Cell] = ()) -> list[Row]:
        """All rows of a statement of this package's own, which may ask what a stranger's may not. Raises QueryError."""
        with self._lock, self._guard.timed(5.0):
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._query_error(error, 5.0) from error

    @property
    def version(self) -> int:
        """Changes when the schema does."""
        with self._lock:
            self._refresh()
            assert self._schema_version is not None
            return self._schema_version

    def _refresh(self) -> None:
        (version,) = self._connection.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            touch_virtual_tables(self._connection)
            self._schema_version = version

    def _fetch(self, statement: str, max_rows: int, max_cell_bytes: int, max_bytes: int) -> Table:
        cursor = self._connection.execute(statement)
        try:
            if cursor.description is None:
                raise QueryError("the statement returns no rows. Write one SELECT statement", kind="refused")
            columns = tuple(column[0] for column in cursor.description)
            rows: list[Row] = []
            while len(rows) < max_rows and (row := cursor.fetchone()) is not None:
                rows.append(row)
            has_more_rows = len(rows) == max_rows and cursor.fetchone() is not None
            return Table(columns, tuple(rows), truncated=has_more_rows, has_more_rows=has_more_rows)
        finally:
            cursor.close()

    def _query_error(self, error: Exception, timeout_s: float) -> QueryError:
        if self._guard.is_interrupted:
            return QueryError("the query was cancelled", kind="interrupted", path=self.path)
        if self._guard.is_out_of_time():
            message = f"the query took longer than {timeout_s:g} s and was stopped. Make it simpler or filter more rows"
            return QueryError(message, kind="timeout", path=self.path)
        if self._guard.refusal:
            return QueryError(self._guard.refusal, kind="refused", path=self.path)
        return QueryError(" ".join(str(error).split()), path=self.path)
