"""CSV, TSV, JSON and JSON lines files as the tables of a private SQLite database.

The first line of a CSV or TSV file that is not blank names its columns, but for Excel's `sep=;`. A column is INTEGER or
REAL if all of its values are numbers that lose nothing by it; codes with leading zeros, numbers of more digits than
fit, and different texts of the same number (the versions 1.1 and 1.10) stay text. An empty field is NULL, and so is
JSON's NaN. JSON objects and arrays inside a row become JSON text. Files may be compressed with gzip. CSV and JSON lines
are read twice or more, a piece at a time; a JSON file is held in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import re
import sqlite3
import zlib
from typing import TYPE_CHECKING

from sqale_edge.column_types import Column
from sqale_edge.csv_files import CsvFile, long_fields
from sqale_edge.errors import DatabaseOpenError
from sqale_edge.json_files import read_json, read_json_lines
from sqale_edge.sql_text import quote_name
from sqale_edge.sqlite_files import error_code, is_sqlite_file, make_directory
from sqale_edge.text_files import TextFile, WrongFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.episode import Cell
    from sqale_edge.private_files import PrivateDirectory

_DELIMITERS = {".csv": ";\t|,", ".tsv": "\t", ".tab": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*_DELIMITERS, *_JSON_LINES, ".json")

_MAX_COLUMNS = 2_000
_SMALL_BYTES = 16 << 20  # may always be stored; of larger files as much more as text grows at most when it becomes rows
_GROWTH = 32


@dataclasses.dataclass(frozen=True)
class _Source:
    """A future table: the columns known so far, and its rows, which can be read more than once."""

    name: str
    rows: Callable[[], Iterable[dict[str, Cell]]]
    columns: tuple[str, ...] = ()


def is_importable(path: Path) -> bool:
    """Its name says CSV, TSV, JSON or JSON lines, and it is not a SQLite database all the same."""
    if _suffix(path) not in _SUFFIXES:
        return False
    try:
        return not is_sqlite_file(path)
    except (OSError, ValueError):
        return True  # the import says what is wrong


def import_files(paths: Sequence[Path], check: Callable[[], None]) -> tuple[PrivateDirectory, Path, tuple[str, ...]]:
    """A private directory, the database in it, and what the person should know. Raises DatabaseOpenError.

    `check` is called again and again, and may raise.
    """
    directory = make_directory(paths[0])
    notes: dict[str, None] = {}
    path = paths[0]
    n_bytes = _SMALL_BYTES
    try:
        target = directory.path / "tables.sqlite"
        with long_fields(), contextlib.closing(sqlite3.connect(target, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=off").fetchone()
            connection.execute("PRAGMA synchronous=off")
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute("BEGIN")
            taken: set[str] = set()
            for path in paths:
                file = TextFile(path, check)
                n_bytes += _GROWTH * file.max_bytes
                connection.execute(f"PRAGMA max_page_count={n_bytes // page_bytes}").fetchone()
                for source in _sources(file, notes):
                    _create_table(connection, source, taken, check)
            connection.execute("COMMIT")
    except (sqlite3.Error, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
        directory.remove()
        message = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        if error_code(error) == sqlite3.SQLITE_FULL:
            message = f"its rows take more than {n_bytes >> 20:,} MiB, or more disk space than there is"
        raise DatabaseOpenError(f"{str(path)!r} cannot be imported: {message}", path=path, hint=_hint(error)) from error
    except BaseException:
        directory.remove()
        raise
    return directory, target, tuple(notes)


def _hint(error: Exception) -> str:
    """What to do about `error`; empty if nothing helps."""
    if isinstance(error, FileNotFoundError):
        return "check the path"
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
        return "the compressed file is damaged: get it again"
    if isinstance(error, UnicodeError):
        return "save it as UTF-8"
    if "too many columns" in str(error):
        return "SQLite allows 2,000 columns; leave some out"
    if error_code(error) == sqlite3.SQLITE_FULL:
        return "make a SQLite database of it yourself, with sqlite3 or sqlite-utils, and open that"
    return getattr(error, "hint", "") or ("correct it there" if isinstance(error, ValueError) else "")


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _sources(file: TextFile, notes: dict[str, None]) -> Iterator[_Source]:
    """The tables in a file. What is wrong with it raises ValueError with the line."""
    if file.is_guessed:
        notes[f"{file.path.name} is not UTF-8; it is read as {file.encoding}"] = None
    suffix = _suffix(file.path)
    name = file.path.name.removesuffix(".gz").removesuffix(".GZ")
    # A name that needs no quotes in SQL: "Sales 2024.csv" becomes Sales_2024.
    name = re.sub(r"\W+", "_", name[: -len(suffix)]).strip("_") or "data"
    if suffix in _DELIMITERS:
        yield _csv_source(name, CsvFile(file, _DELIMITERS[suffix]))
    elif suffix in _JSON_LINES:
        yield _Source(name, lambda: read_json_lines(file, notes))
    else:
        for part_name, rows in read_json(file, name, notes):
            yield _Source(part_name, lambda rows=rows: rows)  # type: ignore[misc]


def _csv_source(name: str, file: CsvFile) -> _Source:
    columns = tuple(_unique_names(file.header))

    def rows() -> Iterator[dict[str, Cell]]:
        for fields in file.records():
            yield {column: field or None for column, field in zip(columns, fields, strict=False)}

    return _Source(name, rows, columns)


def _create_table(connection: sqlite3.Connection, source: _Source, taken: set[str], check: Callable[[], None]) -> None:
    found = _find_columns(source)
    if not found:
        raise WrongFileError(
            f"{source.name!r} has no columns", hint="a table needs at least one object with at least one key"
        )
    types = {key: column.type for key, column in found.items()}
    types |= dict.fromkeys(_ambiguous(connection, source, [key for key in found if found[key].is_mixed]), "TEXT")
    table = quote_name(_unique_names([source.name], taken)[0])
    columns = zip(_unique_names(list(types)), types.values(), strict=True)
    connection.execute(f"CREATE TABLE {table} ({', '.join(f'{quote_name(name)} {type_}' for name, type_ in columns)})")

    def values() -> Iterator[list[Cell]]:
        for number, row in enumerate(source.rows()):
            if number % 1000 == 0:
                check()  # a JSON file is not read any more
            yield [row.get(key) for key in types]

    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(types))})", values())


def _find_columns(source: _Source) -> dict[str, Column]:
    """The columns, in the order of their first appearance."""
    found = {column: Column() for column in source.columns}
    for row in source.rows():
        for key, cell in row.items():
            if key not in found:
                if len(found) == _MAX_COLUMNS:
                    raise WrongFileError(f"too many columns in {source.name!r}")
                found[key] = Column()
            found[key].add(cell)
    return found


def _ambiguous(connection: sqlite3.Connection, source: _Source, keys: Sequence[str]) -> list[str]:
    """Those of `keys` in whose columns different texts are the same number."""
    if not keys:
        return []
    connection.execute("CREATE TEMP TABLE texts(key, text, PRIMARY KEY (key, text)) WITHOUT ROWID")
    cells = ((number, row.get(key)) for row in source.rows() for number, key in enumerate(keys))
    texts = (pair for pair in cells if isinstance(pair[1], str))
    connection.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", texts)
    rows = connection.execute(
        "SELECT DISTINCT key FROM texts GROUP BY key, CAST(text AS NUMERIC) HAVING count(*) > 1"
    ).fetchall()
    connection.execute("DROP TABLE texts")
    return [keys[number] for (number,) in rows]


def _unique_names(names: Sequence[str], taken: set[str] | None = None) -> list[str]:
    """`names` as SQLite takes them: none empty, none twice (it ignores case), none of its own."""
    taken = set() if taken is None else taken
    unique = []
    for number, name in enumerate(names, 1):
        cleaned = re.sub(r"[\x00-\x1f\ud800-\udfff]+", " ", name).strip() or f"column_{number}"
        cleaned = f"data_{cleaned}" if cleaned.lower().startswith("sqlite_") else cleaned
        candidate, suffix = cleaned, 1
        while candidate.lower() in taken:
            suffix += 1
            candidate = f"{cleaned}_{suffix}"
        taken.add(candidate.lower())
        unique.append(candidate)
    return unique
