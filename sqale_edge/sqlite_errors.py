"""What SQLite's errors mean, in one line that a model can act on: the same with every version of SQLite and Python."""

from __future__ import annotations

import re
import sqlite3

from sqale_edge.row_budget import HIGHLIGHT_BYTES, ROW_BYTES, STORED_VALUE_BYTES, VALUE_BYTES
from sqale_edge.sqlite_files import FileBusyError, error_code

ROW_TOO_LONG = (
    f"a value is too long: one may have {STORED_VALUE_BYTES >> 20} MiB, and all of a row together "
    f"{ROW_BYTES >> 20} MiB. Select fewer columns, or length() or substr() of the long one"
)
HIGHLIGHT_TOO_LONG = f"a value is too long for highlight(): more than {HIGHLIGHT_BYTES >> 10} KiB. Use snippet()"
BUSY = "another program is writing to the database. Try again"
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FAILURES = {
    **dict.fromkeys((*_BUSY_CODES, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN), BUSY),
    sqlite3.SQLITE_TOOBIG: (
        f"a value is too long: more than {VALUE_BYTES >> 20} MiB where functions work on it, or more than "
        f"{STORED_VALUE_BYTES >> 20} MiB. Leave that column out"
    ),
    sqlite3.SQLITE_CORRUPT: "the database file is damaged where this query reads it",
    sqlite3.SQLITE_NOTADB: "the database file is damaged where this query reads it",
    sqlite3.SQLITE_IOERR: "the database file cannot be read where this query reads it",
    sqlite3.SQLITE_FULL: "the query needs more disk space for its temporary files than there is. Make it simpler",
}


def is_busy(error: Exception) -> bool:
    """Another program holds a lock; later it may work."""
    return isinstance(error, FileBusyError) or error_code(error) in _BUSY_CODES


def describe(error: Exception) -> str:
    """What went wrong, in one line that is the same with every version of SQLite and Python."""
    if isinstance(error, FileBusyError):
        return BUSY
    if isinstance(error, MemoryError):
        return "the query is too large. Make it simpler"
    if isinstance(error, UnicodeError):
        return "a name is not valid UTF-8. Name the columns one by one, with AS"
    message = _FAILURES.get(error_code(error)) or " ".join(str(error).split())
    return re.sub(r'^(no such column: )"?(.*?)"? - should this be .*', r"\1\2", message)
