"""A person's database, read-only: one statement at a time, under limits of time, rows and bytes.

Nothing that runs here changes the database, or any other file of the person's. A `Database` may be used from any
thread; one statement runs at a time, a second waits, also if it is cancelled meanwhile. `interrupt` may be called at
any time. When the file changes, the next statement reads it anew.

Not guaranteed: a small limit of memory, and a stop inside a single function call; see docs/security.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from sqale_edge.errors import Cancelled, DatabaseOpenError, QueryError
from sqale_edge.imports import import_files, is_importable
from sqale_edge.private_files import remove_abandoned
from sqale_edge.row_budget import STORED_VALUE_BYTES, VALUE_BYTES, Plan, read_plan
from sqale_edge.sql_text import bare_statement, n_with_copies
from sqale_edge.sqlite_errors import BUSY, HIGHLIGHT_TOO_LONG, ROW_TOO_LONG, describe, is_busy
from sqale_edge.sqlite_files import BUSY_TIMEOUT_S, SECONDS_BETWEEN, FileBusyError, error_code, open_file, wait_open
from sqale_edge.sqlite_guard import DENIED_FUNCTIONS, Guard, touch_virtual_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.episode import Cell, Row
    from sqale_edge.errors import QueryErrorKind
    from sqale_edge.private_files import PrivateDirectory
    from sqale_edge.sqlite_files import OpenFile

T = TypeVar("T")

_OWN_TIMEOUT_S = 30.0
_MEBIBYTE = 1 << 20
_MAX_RUNS = 5
_EXPLAIN = re.compile(r"explain\b", re.IGNORECASE)
_MAX_SQL_CHARS = 990_000  # a little below SQLite's limit: EXPLAIN comes before it
_MAX_WITH_COPIES = 10_000  # SQLite makes them while it compiles, where it is not to be stopped before version 3.41


@dataclasses.dataclass(frozen=True)
class Table:
    """The result of a statement.

    Attributes:
        rows: Cells as SQLite gave them. Text that is not UTF-8 is decoded with `surrogateescape`, so no byte is lost.
        truncated: Something is missing: further rows, or the end of a cell.
        has_more_rows: Further rows are missing.
        has_timed_out: The time was up: these are the rows found until then (Python loses the last one), and whether
            there are more is not known. Only with `keep_partial`; the other two are true as well.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    truncated: bool = False
    has_more_rows: bool = False
    has_timed_out: bool = False


class _Limits(NamedTuple):
    """The arguments of `Database.query` that say how much of a result is kept."""

    max_rows: int
    max_cell_bytes: int
    max_bytes: int
    keep_partial: bool


class Database:
    """An open database. Make one with `Database.open`, and close it or use it in a `with` statement.

    Attributes:
        path: The file that was opened; of several, the first.
    """

    def __init__(
        self, path: Path, file: OpenFile, notes: tuple[str, ...] = (), directory: PrivateDirectory | None = None
    ) -> None:
        self.path = path
        self._file = file
        self._directory = directory  # of imported tables
        self._notes = notes
        self._guard = Guard()
        self._lock = threading.RLock()
        self._version: tuple[int, ...] = ()
        self._schema_version = -1
        self._is_running = False
        self._is_attached = False  # the guard to the connection, and the connection to its virtual tables
        self._is_released = False
        self._release()

    @classmethod
    def open(
        cls,
        path_or_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> Self:
        """The database in a SQLite file, or in CSV, TSV, JSON or JSON lines files: tables of a private database.

        Args:
            path_or_paths: One SQLite file, or one or more of the others.
            should_stop: Asked again and again; once it is true, the opening ends.

        Raises:
            Cancelled: `should_stop` was true.
            DatabaseOpenError: A file is missing, may not be read, or is not what it should be. Of CSV and JSON the
                wrong line is named.
        """
        several = (path_or_paths,) if isinstance(path_or_paths, (str, os.PathLike)) else path_or_paths
        paths = [Path(path) for path in several]
        remove_abandoned()

        def check() -> None:
            if should_stop and should_stop():
                raise Cancelled("the opening of the database was cancelled")

        if paths and all(is_importable(path) for path in paths):
            directory, imported, notes = import_files(paths, check)
            return cls(paths[0], open_file(imported), notes, directory)
        if len(paths) != 1:
            names = ", ".join(repr(str(path)) for path in paths) or "no file"
            hint = "several CSV, TSV, JSON and JSON lines files can be read together; of SQLite files one at a time"
            raise DatabaseOpenError(
                f"a database is one SQLite file, not {names}", path=paths[0] if paths else None, hint=hint
            )
        return cls(paths[0], wait_open(paths[0], check))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person should know about how the files are read."""
        return (*self._notes, self._file.note) if self._file.note else self._notes

    @property
    def version(self) -> tuple[int, ...]:
        """Differs from an earlier one when the schema does."""
        return self._alone(lambda: self._version, _OWN_TIMEOUT_S)

    def close(self) -> None:
        """Stop the statement that runs, close the files, and delete what was private. Closing twice is allowed."""
        self._guard.close()
        with self._lock:
            if not self._is_running:  # else the statement that runs in this thread closes them at its end
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def interrupt(self) -> None:
        """Stop the statement that runs now, from any thread: it raises QueryError with kind `interrupted`.

        When none runs, nothing happens; the next one is not affected. Whoever must not miss the moment before one
        starts gives `query` a `should_stop`.
        """
        self._guard.interrupt()

    def query(
        self,
        sql: str,
        *,
        max_rows: int,
        timeout_s: float = 5.0,
        max_cell_bytes: int = 4 * _MEBIBYTE,
        max_bytes: int = 64 * _MEBIBYTE,
        keep_partial: bool = False,
        should_stop: Callable[[], bool] | None = None,
    ) -> Table:
        """The first rows of one statement that only reads.

        Args:
            sql: One statement. Semicolons and comments around it do no harm.
            max_rows: Rows to return at most.
            timeout_s: Seconds that the statement may run.
            max_cell_bytes: A longer text or BLOB is cut to this length; a text's is counted in characters.
            max_bytes: All cells together; the rows end before the one that goes past it.
            keep_partial: When the time is up, return the rows found until then, if there are any, instead of raising.
            should_stop: Asked again and again, from this thread; once it is true, the statement stops, or does not
                start, with kind `interrupted`.

        Raises:
            QueryError: Its message is one line that says what is wrong and what to do; its `kind` is `refused`,
                `failed`, `timeout` or `interrupted`.
            DatabaseOpenError: The file has changed, and cannot be opened any more.
        """
        limits = _Limits(max_rows, max_cell_bytes, max_bytes, keep_partial)
        return self._alone(lambda: self._run(_checked(sql), limits), timeout_s, should_stop)

    def find_reads(
        self, sql: str, *, timeout_s: float = 5.0, should_stop: Callable[[], bool] | None = None
    ) -> frozenset[tuple[str, str | None]]:
        """What one statement reads, which is compiled and not run: pairs of a relation and where it is read.

        The first is a table or view, in its own or the statement's spelling; the second the view or WITH table in
        whose text it stands, None for the statement itself. A view of which no column is used may occur as a second
        only.

        Raises:
            QueryError, DatabaseOpenError: As for `query`.
        """

        def compile_alone() -> frozenset[tuple[str, str | None]]:
            connection = self._file.connection
            with self._guard.enforced(connection, STORED_VALUE_BYTES):
                connection.execute(f"EXPLAIN {_checked(sql)}").close()
            return frozenset(self._guard.reads)

        return self._alone(compile_alone, timeout_s, should_stop)

    def read(
        self, sql: str, parameters: Sequence[Cell] = (), *, should_stop: Callable[[], bool] | None = None
    ) -> list[Row]:
        """All rows of a statement of this package's own, about which the authorizer is not asked. Raises QueryError."""
        return self._alone(
            lambda: self._file.connection.execute(sql, parameters).fetchall(), _OWN_TIMEOUT_S, should_stop
        )

    def _alone(self, run: Callable[[], T], timeout_s: float, should_stop: Callable[[], bool] | None = None) -> T:
        """What `run` returns, while this thread has the database to itself; SQLite's errors become QueryError."""
        with self._lock:
            if self._is_running:  # a signal handler, or `should_stop` itself
                raise QueryError("a statement is running in this thread already", path=self.path)
            self._is_running = True
            with self._guard.timed(timeout_s, should_stop):
                try:
                    self._guard.check()  # a cancel that came before
                    return self._repeated(run)
                except (FileBusyError, sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
                    raise self._query_error(error, timeout_s) from error
                finally:
                    self._is_running = False
                    self._release()

    def _refresh(self) -> None:
        """Open the file again if it has changed or was let go; connect its virtual tables if its schema has changed."""
        if self._is_released or self._file.has_changed():
            try:
                renewed = open_file(self._file.path)
            except DatabaseOpenError as error:
                if not self._directory or isinstance(error, FileBusyError):
                    raise
                hint = f"the tables imported from {self.path.name} are gone: open it again"
                raise DatabaseOpenError(str(error), path=self.path, hint=hint) from error
            self._file.close()
            self._file = renewed
            self._is_released = self._is_attached = False
        if not self._is_attached:
            self._guard.attach(self._file.connection)
        (schema_version,) = self._file.connection.execute("PRAGMA schema_version").fetchone()
        if schema_version != self._schema_version or not self._is_attached:
            touch_virtual_tables(self._file.connection)
            # What a file is overwritten with may have the same schema_version.
            schema = self._file.connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            self._version = (*(self._file.signature[0] or ())[:2], schema_version, hash(tuple(schema)))
            self._schema_version, self._is_attached = schema_version, True

    def _repeated(self, run: Callable[[], T]) -> T:
        """What `run` returns on the file as it is now; run again as long as another program locks or changes it."""
        waits_until = time.monotonic() + BUSY_TIMEOUT_S
        n_runs = 0
        while n_runs < _MAX_RUNS:
            try:
                self._refresh()
                result = run()
                if self._file.is_locked or not self._file.has_changed():
                    return result
            except (FileBusyError, sqlite3.OperationalError) as error:
                if is_busy(error):
                    if self._guard.is_over() or time.monotonic() > waits_until:
                        raise
                    time.sleep(SECONDS_BETWEEN)
                    continue
                if self._guard.refusal or error_code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                    raise
            n_runs += 1
            self._is_released = True
        raise QueryError(BUSY, path=self.path)

    def _release(self) -> None:
        """Between statements, hold nothing that another program waits for."""
        self._is_released = self._file.is_shared
        if self._is_released or self._guard.is_closed:
            self._file.close()
        if self._directory and self._guard.is_closed:
            self._directory.remove()

    def _run(self, statement: str, limits: _Limits) -> Table:
        """The statement's table; a value may be long only where the statement cannot have made it."""
        connection = self._file.connection
        with self._guard.enforced(connection, STORED_VALUE_BYTES):
            plan = Plan() if _EXPLAIN.match(statement) else read_plan(connection, statement, self._guard.check)
        for function in plan.functions & DENIED_FUNCTIONS:  # in a generated column
            raise QueryError(f"the function {function} is not allowed", kind="refused", path=self.path)
        value_bytes = plan.value_bytes(VALUE_BYTES)
        try:
            with self._guard.enforced(connection, value_bytes):
                return self._fetch(statement, limits)
        except sqlite3.DataError as error:
            if error_code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            if value_bytes < VALUE_BYTES:
                message = HIGHLIGHT_TOO_LONG if plan.has_highlight else ROW_TOO_LONG
                raise QueryError(message, path=self.path) from error
            if self._guard.is_recursive or not plan.is_linear:
                raise
        try:
            with self._guard.enforced(connection, plan.value_bytes(STORED_VALUE_BYTES), is_long=True):
                return self._fetch(statement, limits)
        except sqlite3.DataError as error:
            if error_code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            raise QueryError(ROW_TOO_LONG, path=self.path) from error

    def _fetch(self, statement: str, limits: _Limits) -> Table:
        with contextlib.closing(self._file.connection.execute(statement)) as cursor:
            if cursor.description is None:
                raise QueryError(
                    "the statement returns no rows. Write one SELECT statement", kind="refused", path=self.path
                )
            columns = tuple(column[0] for column in cursor.description)
            rows: list[Row] = []
            is_cut = False
            n_bytes = 0
            try:
                for row in cursor:
                    cells, n_row_bytes, is_row_cut = _cut(row, limits.max_cell_bytes)
                    n_bytes += n_row_bytes
                    if len(rows) == limits.max_rows or n_bytes > limits.max_bytes:
                        return Table(columns, tuple(rows), truncated=True, has_more_rows=True)
                    rows.append(cells)
                    is_cut |= is_row_cut
                    self._guard.check()
            except sqlite3.OperationalError:
                if not (limits.keep_partial and rows and self._guard.is_over() and not self._guard.is_cancelled()):
                    raise
                return Table(columns, tuple(rows), truncated=True, has_more_rows=True, has_timed_out=True)
        return Table(columns, tuple(rows), truncated=is_cut)

    def _query_error(self, error: Exception, timeout_s: float) -> QueryError:
        kind: QueryErrorKind = "refused"
        if self._guard.is_closed:
            kind, message = "failed", "the database is closed"
        elif self._guard.is_cancelled():
            kind, message = "interrupted", "the query was cancelled"
        elif self._guard.is_over() and not is_busy(error):  # waiting for a writer took the time
            kind = "timeout"
            message = (
                f"the query took longer than {timeout_s:g} s and was stopped. Make it simpler, or filter more rows"
            )
        elif self._guard.refusal:
            self._is_attached = False  # a refused VACUUM disconnects the virtual tables
            message = self._guard.refusal
        elif "one statement at a time" in str(error):
            message = "only one statement can run. Write one SELECT statement"
        elif isinstance(error, sqlite3.ProgrammingError) and "binding" in str(error):
            message = "the SQL has a parameter without a value, ? or :name. Write the value itself"
        else:
            kind, message = "failed", describe(error)
        return QueryError(message, kind=kind, path=self.path)


def _checked(sql: str) -> str:
    """`sql` as one statement that Python can hand to SQLite. Raises QueryError."""
    if len(sql) > _MAX_SQL_CHARS:
        raise QueryError(f"the SQL has more than {_MAX_SQL_CHARS:,} characters. Make it simpler", kind="refused")
    if "\0" in sql:
        raise QueryError("the SQL has a NUL character in it", kind="refused")
    if any("\ud800" <= character <= "\udfff" for character in sql):
        raise QueryError("the SQL has characters in it that are not valid Unicode", kind="refused")
    statement = bare_statement(sql)
    if not statement:
        raise QueryError("the SQL is empty. Write one SELECT statement", kind="refused")
    if n_with_copies(statement, _MAX_WITH_COPIES) >= _MAX_WITH_COPIES:
        raise QueryError("the tables in WITH use each other too often. Write it more simply", kind="refused")
    return statement


def _cut(row: Row, max_cell_bytes: int) -> tuple[Row, int, bool]:
    """The row with its long cells cut, its size, and whether a cell was cut."""
    n_bytes = 0
    is_cut = False
    for cell in row:
        if isinstance(cell, (str, bytes)):
            n_bytes += min(len(cell), max_cell_bytes)
            is_cut |= len(cell) > max_cell_bytes
        else:
            n_bytes += 8
    if is_cut:
        row = tuple(cell[:max_cell_bytes] if isinstance(cell, (str, bytes)) else cell for cell in row)
    return row, n_bytes, is_cut
