"""Opening a SQLite file so that neither it nor anything beside it changes."""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from typing import TYPE_CHECKING

from sqale_edge.errors import DatabaseOpenError

if TYPE_CHECKING:
    from pathlib import Path, PurePath

BUSY_TIMEOUT_S = 2.0


def sqlite_uri(path: PurePath, **parameters: object) -> str:
    """The URI of an absolute `path`. SQLite takes nothing of the path for a parameter, and creates nothing with `mode="ro"`."""
    text = path.as_posix()
    prefix = "file://" if text.startswith("/") else "file:///"  # a drive letter; a UNC path has its own two slashes
    return prefix + urllib.parse.quote(text, safe="/:", errors="surrogateescape") + "?" + urllib.parse.urlencode(parameters)


def connect(path: PurePath, **parameters: object) -> sqlite3.Connection:
    """A connection that any thread may use, without transactions of Python's own and without a cache of prepared statements.

    A statement is authorized when it is prepared: a cached one would run without being asked about again.
    """
    connection = sqlite3.connect(
        sqlite_uri(path, **parameters),
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )
    connection.text_factory = _decode
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection to the SQLite file `path`. Raises DatabaseOpenError."""
    if not path.is_file():
        raise DatabaseOpenError(f"there is no database file {str(path)!r}", path=path, hint="check the path")
    connection = connect(path.absolute(), mode="ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        raise DatabaseOpenError(f"cannot read {str(path)!r}: {error}", path=path) from error
    return connection


def _decode(text: bytes) -> str:
    """Text as SQLite stores it; what is not UTF-8 stays recognisable and lossless."""
    return text.decode("utf-8", "surrogateescape")
