"""What SQL may do on a connection: the authorizer, the limits, the clock.

Denied by default. Allowed are reads, SQLite's own functions (but for a few with effects outside the query),
recursion, and an allow-list of pragmas that describe the schema. That holds alone, also on a writable connection. If
it failed, opening the file read-only would still keep the database, and the limit of attached databases every other
file: `mode=ro` does not stop ATTACH and VACUUM INTO. `query_only` is the weakest: SQL can switch it off.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING

from sqale_edge.row_budget import STORED_VALUE_BYTES
from sqale_edge.sql_text import quote_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})

# These say how the schema is built; their argument is a name.
_NAMED_PRAGMAS = frozenset(
    {"foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"}
)
# These tell one number or list; an argument would set it. FTS and R-Tree ask for some of them themselves.
_PLAIN_PRAGMAS = frozenset(
    {
        "application_id",
        "collation_list",
        "compile_options",
        "data_version",
        "encoding",
        "foreign_keys",
        "freelist_count",
        "function_list",
        "module_list",
        "page_count",
        "page_size",
        "pragma_list",
        "schema_version",
        "user_version",
    }
)

# These load code, swap a tokenizer, write a log, rewrite an index.
DENIED_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "sqlite_log", "optimize"})
# SQLite's own FTS and R-Tree bring these, so they are not marked as built in.
_MODULE_FUNCTIONS = frozenset(
    {
        "bm25",
        "fts5",
        "fts5_source_id",
        "highlight",
        "match",
        "matchinfo",
        "offsets",
        "rtreecheck",
        "rtreedepth",
        "rtreenode",
        "snippet",
    }
)

ONLY_READING = "only reading is allowed. Write one SELECT statement"

_LIKE_PATTERN_BYTES = 1_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: STORED_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1_000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 127,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _LIKE_PATTERN_BYTES,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1_000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_SETUP = (
    "PRAGMA query_only=1",
    "PRAGMA cache_size=-16384",  # KiB
    "PRAGMA temp_store=1",  # in files
    "PRAGMA mmap_size=0",  # a file that shrinks under a memory map kills the process
    "PRAGMA cell_size_check=1",
)

# Measured in a loop that does nothing else: 1,000 cost 3 % of the time, 200 cost 12 %.
_STEPS_BETWEEN_CHECKS = 500

# For statements that read values of more than a mebibyte.
_LONG_LIKE_PATTERN_BYTES = 50
_LONG_STEPS_BETWEEN_CHECKS = 1


class Guard:
    """The authorizer and the clock of the connection that it is attached to.

    Attributes:
        refusal: Why the authorizer refused the last statement; empty if it did not.
        is_recursive: The last statement used recursion.
        reads: What the last statement reads, as `Database.find_reads` returns it.
        is_closed: No statement may run any more.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.is_recursive = False
        self.reads: set[tuple[str, str | None]] = set()
        self.is_closed = False
        self._is_interrupted = False
        self._should_stop: Callable[[], bool] | None = None
        self._is_enforcing = False
        self._deadline = float("inf")
        self._functions: frozenset[str] = frozenset()

    def attach(self, connection: sqlite3.Connection) -> None:
        """Guard `connection` from now on."""
        for category, limit in _LIMITS.items():
            connection.setlimit(category, limit)
        for statement in _SETUP:
            connection.execute(statement)
        rows = connection.execute("SELECT name, builtin FROM pragma_function_list")
        built_in = {name for name, is_built_in in rows if is_built_in}
        self._functions = (frozenset(built_in) | _MODULE_FUNCTIONS) - DENIED_FUNCTIONS
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self.is_over, _STEPS_BETWEEN_CHECKS)

    @contextlib.contextmanager
    def timed(self, timeout_s: float, should_stop: Callable[[], bool] | None = None) -> Iterator[None]:
        """For the block, statements are stopped when the time is up, `should_stop` says so or `interrupt` is called."""
        self.refusal = ""
        self._is_interrupted = False
        self._should_stop = should_stop
        self._deadline = time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._should_stop = None
            self._deadline = float("inf")

    @contextlib.contextmanager
    def enforced(self, connection: sqlite3.Connection, value_bytes: int, *, is_long: bool = False) -> Iterator[None]:
        """For the block, statements are a stranger's: the authorizer decides; no value exceeds `value_bytes`.

        `is_long` expects values of more than a mebibyte: the clock is looked at as often as can be.
        """
        self.is_recursive = False
        self.reads = set()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, value_bytes)
        if is_long:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LONG_LIKE_PATTERN_BYTES)
            connection.set_progress_handler(self.is_over, _LONG_STEPS_BETWEEN_CHECKS)
        self._is_enforcing = True
        try:
            yield
        finally:
            self._is_enforcing = False
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, STORED_VALUE_BYTES)
            if is_long:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LIKE_PATTERN_BYTES)
                connection.set_progress_handler(self.is_over, _STEPS_BETWEEN_CHECKS)

    def interrupt(self) -> None:
        """Stop the statement that runs now; without one, nothing happens."""
        self._is_interrupted = True

    def close(self) -> None:
        """Stop the statement that runs now and every later one."""
        self.is_closed = True

    def is_cancelled(self) -> bool:
        """The statement has to stop because `interrupt` or `close` was called or `should_stop` says so."""
        return self.is_closed or self._is_interrupted or (self._should_stop is not None and self._should_stop())

    def is_over(self) -> bool:
        """The statement has to stop: its time is up, or it was cancelled."""
        return time.monotonic() > self._deadline or self.is_cancelled()

    def check(self) -> None:
        """Raise what SQLite raises for a statement that it stops itself, if this one has to stop."""
        if self.is_over():
            raise sqlite3.OperationalError("interrupted")

    def _authorize(
        self, action: int, name: str | None, argument: str | None, _database: str | None, within: str | None
    ) -> int:
        if not self._is_enforcing:
            return sqlite3.SQLITE_OK
        if self.is_over():  # before 3.41 SQLite does not look at the clock while it compiles
            return sqlite3.SQLITE_DENY
        if action in _READS:
            self.is_recursive |= action == sqlite3.SQLITE_RECURSIVE
            if action == sqlite3.SQLITE_READ:
                self.reads.add((name or "", within))
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            function = (argument or "").lower()
            is_allowed, refusal = function in self._functions, f"the function {function} is not allowed"
        elif action == sqlite3.SQLITE_PRAGMA:
            pragma = (name or "").lower()
            is_allowed = pragma in _NAMED_PRAGMAS or (pragma in _PLAIN_PRAGMAS and argument is None)
            refusal = f"PRAGMA {pragma} is not allowed. Allowed are {', '.join(sorted(_NAMED_PRAGMAS))}"
        else:
            is_allowed, refusal = False, ONLY_READING
        if is_allowed:
            return sqlite3.SQLITE_OK
        self.refusal = self.refusal or refusal
        return sqlite3.SQLITE_DENY


def touch_virtual_tables(connection: sqlite3.Connection) -> None:
    """Connect every virtual table, and the ones that SQLite has without being asked.

    At their first use SQLite asks the authorizer for writes to its schema table, which are denied; connected once,
    they only read. A table whose module is missing stays as it is: using it is an error, the others are not affected.
    """
    pragmas = [f"pragma_{name}" for name in sorted(_NAMED_PRAGMAS | _PLAIN_PRAGMAS)]
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'create virtual%'"
    ).fetchall()
    for name in ["json_each", "json_tree", *pragmas, *(row[0] for row in tables)]:
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            connection.execute(f"SELECT 1 FROM {quote_name(name)} LIMIT 0").close()
