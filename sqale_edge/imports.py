"""CSV, TSV, JSON and JSON lines files as the tables of a private SQLite database.

The first line of a CSV or TSV file that is not blank names its columns. A column is INTEGER or REAL if all of its
values are numbers that lose nothing by it; codes with leading zeros, and numbers of more digits than fit, stay text.
An empty field is NULL. JSON objects and arrays inside a row become JSON text. Files may be compressed with gzip. CSV
and JSON lines are read twice, a piece at a time; a JSON file is held in memory.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
import sqlite3
import sys
import threading
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from sqale_edge.errors import DatabaseOpenError
from sqale_edge.private_files import PrivateDirectory
from sqale_edge.sql_text import quote_name
from sqale_edge.sqlite_files import is_sqlite_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.episode import Cell

_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*_DELIMITERS, *_JSON_LINES, ".json")

_GZIP_MAGIC = b"\x1f\x8b"
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MAX_FIELD_CHARS = 64 << 20
_MAX_HEADER_CHARS = 1 << 20
_ONE_IMPORT = threading.Lock()

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_REAL = re.compile(r"-?(0|[1-9][0-9]*|(?=\.))(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_REAL_DIGITS = 15  # a double keeps as many


class _WrongFileError(ValueError):
    """What is wrong with a file, with the line, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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


def import_files(paths: Sequence[Path]) -> tuple[PrivateDirectory, Path, tuple[str, ...]]:
    """A private directory, the database in it, and what the person should know. Raises DatabaseOpenError."""
    directory = PrivateDirectory()
    notes: list[str] = []
    path = paths[0]
    try:
        target = directory.path / "tables.sqlite"
        with _long_fields(), contextlib.closing(sqlite3.connect(target, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=off").fetchone()
            connection.execute("PRAGMA synchronous=off")
            connection.execute("BEGIN")
            taken: set[str] = set()
            for path in paths:
                for source in _sources(path, notes):
                    _create_table(connection, source, taken)
            connection.execute("COMMIT")
    except (sqlite3.Error, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
        directory.remove()
        message = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DatabaseOpenError(f"{str(path)!r} cannot be imported: {message}", path=path, hint=_hint(error)) from error
    except BaseException:
        directory.remove()
        raise
    return directory, target, tuple(notes)


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """For the block, a CSV field may be long. That limit is the whole process's, so one import runs at a time."""
    with _ONE_IMPORT:
        limit = csv.field_size_limit(_MAX_FIELD_CHARS)
        try:
            yield
        finally:
            csv.field_size_limit(limit)


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
    return getattr(error, "hint", "")


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _sources(path: Path, notes: list[str]) -> Iterator[_Source]:
    """The tables in a file. What is wrong with it raises ValueError with the line."""
    encoding = _find_encoding(path)
    if encoding not in ("utf-8", *_BOMS.values()):
        notes.append(f"{path.name} is not UTF-8; it is read as {encoding}")

    def open_text() -> IO[str]:
        return io.TextIOWrapper(_open_bytes(path), encoding=encoding, newline="")

    with open_text() as file:
        if not any(line.strip() for line in file):
            raise _WrongFileError("it is empty", hint="a CSV file has at least a line that names the columns")
    suffix = _suffix(path)
    name = path.name.removesuffix(".gz").removesuffix(".GZ")
    # A name that needs no quotes in SQL: "Sales 2024.csv" becomes Sales_2024.
    name = re.sub(r"\W+", "_", name[: -len(suffix)]).strip("_") or "data"
    if suffix in _DELIMITERS:
        yield _csv_source(name, open_text, _DELIMITERS[suffix])
    elif suffix in _JSON_LINES:
        yield _Source(name, lambda: _json_lines_rows(open_text))
    else:
        yield from _json_sources(name, open_text)


def _open_bytes(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_compressed = file.read(2) == _GZIP_MAGIC
    return cast("IO[bytes]", gzip.open(path)) if is_compressed else path.open("rb")


def _find_encoding(path: Path) -> str:
    """UTF-8 if all of the file is, or what its byte order mark says; else what Windows wrote in the west."""
    with _open_bytes(path) as file:
        head = file.read(4096)
        for bom, encoding in _BOMS.items():
            if head.startswith(bom):
                return encoding
        if b"\0" in head:
            half = len(head) // 4
            if head[1::2].count(0) > half:
                return "utf-16-le"
            if head[::2].count(0) > half:
                return "utf-16-be"
            raise _WrongFileError(
                "it is not a text file", hint="export it as CSV or JSON with the program that made it"
            )
        for encoding in ("utf-8", "cp1252"):
            file.seek(0)
            with contextlib.suppress(UnicodeDecodeError):
                decoder = codecs.getincrementaldecoder(encoding)()
                while chunk := file.read(1 << 20):
                    decoder.decode(chunk)
                decoder.decode(b"", final=True)
                return encoding
    return "latin-1"


def _csv_source(name: str, open_text: Callable[[], IO[str]], delimiters: str) -> _Source:
    with open_text() as file:
        delimiter = _find_delimiter(file, delimiters)

    def records() -> Iterator[tuple[int, list[str]]]:
        """The header and the records with their lines, without the blank lines, also those before the header."""
        with open_text() as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                for fields in reader:
                    if len(fields) > 1 or (fields and not fields[0].isspace()):
                        yield reader.line_num, fields
            except csv.Error as error:
                hint = 'a field with quotes in it is written "so ""quoted"" text"'
                raise _WrongFileError(f"line {reader.line_num}: {error}", hint=hint) from error

    header_line, header = next(records())
    columns = tuple(_unique_names(header))

    def rows() -> Iterator[dict[str, Cell]]:
        for line, fields in itertools.islice(records(), 1, None):
            if len(fields) > len(columns):
                raise _WrongFileError(
                    f"line {line} has {len(fields)} fields, but line {header_line} names {len(columns)} columns",
                    hint=f"put a field with {delimiter!r} in it into double quotes, or name the missing columns",
                )
            yield {column: field or None for column, field in zip(columns, fields, strict=False)}

    return _Source(name, rows, columns)


def _find_delimiter(file: IO[str], delimiters: str) -> str:
    """The one of `delimiters` that is most often in the first line that is not blank, outside of quotes."""
    header = ""
    for line in file:
        header += line
        if len(header) > _MAX_HEADER_CHARS or (header.strip() and header.count('"') % 2 == 0):
            break
    outside = re.sub(r'"[^"]*"', "", header)
    return max(delimiters, key=outside.count)


def _json_lines_rows(open_text: Callable[[], IO[str]]) -> Iterator[dict[str, Cell]]:
    with open_text() as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"line {number}"
                hint = "every line is one object; a file that is one JSON value is named .json"
                yield _json_row(_parse_json(line, place, hint), place)


def _json_sources(name: str, open_text: Callable[[], IO[str]]) -> Iterator[_Source]:
    """An array is a table, an object of arrays is several, another object is a table of one row."""
    with open_text() as file:
        value = _parse_json(file.read(), "", "a file with a JSON value on every line is named .jsonl")
    is_several = isinstance(value, dict) and value and all(isinstance(part, list) for part in value.values())
    parts = value if is_several else {name: value if isinstance(value, list) else [value]}
    for part_name, items in parts.items():
        rows = [_json_row(item, f"element {number} of {part_name!r}") for number, item in enumerate(items, 1)]
        yield _Source(part_name, lambda rows=rows: rows)  # type: ignore[misc]


def _parse_json(text: str, place: str, hint: str) -> Any:
    """The value of `text`, which is all that there is at `place`, or a whole file. Raises _WrongFileError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = hint if error.msg == "Extra data" else ""
        raise _WrongFileError(f"{place or f'line {error.lineno}'}: {error.msg}", hint=hint) from error
    except ValueError as error:  # Python's limit against numbers that take long to read
        message = f"a whole number has more than {sys.get_int_max_str_digits():,} digits"
        raise _WrongFileError(f"{place}: {message}".removeprefix(": "), hint="write it as a string") from error
    except RecursionError as error:
        raise _WrongFileError(f"{place or 'it'} is nested too deeply") from error


def _json_row(value: object, place: str) -> dict[str, Cell]:
    if not isinstance(value, dict):
        raise _WrongFileError(f"{place} is not an object", hint='a row is written {"column": value, ...}')
    try:
        return {key: _json_cell(cell) for key, cell in value.items()}
    except RecursionError as error:
        raise _WrongFileError(f"{place} is nested too deeply") from error


def _json_cell(value: Any) -> Cell:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be stored
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return int(value) if isinstance(value, bool) else value


def _create_table(connection: sqlite3.Connection, source: _Source, taken: set[str]) -> None:
    types = _column_types(source)
    if not types:
        raise _WrongFileError(
            f"{source.name!r} has no columns", hint="a table needs at least one object with at least one key"
        )
    table = quote_name(_unique_names([source.name], taken)[0])
    columns = zip(_unique_names(list(types)), types.values(), strict=True)
    connection.execute(f"CREATE TABLE {table} ({', '.join(f'{quote_name(name)} {type_}' for name, type_ in columns)})")
    values = ([row.get(key) for key in types] for row in source.rows())
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(types))})", values)


def _column_types(source: _Source) -> dict[str, str]:
    """The SQL type of every column, in the order of their first appearance."""
    found: dict[str, set[str]] = {column: set() for column in source.columns}
    for row in source.rows():
        for key, cell in row.items():
            types = found.setdefault(key, set())
            if cell is not None and "TEXT" not in types:
                types.add(_cell_type(cell))
    return {key: _column_type(types) for key, types in found.items()}


def _column_type(types: set[str]) -> str:
    if types and types <= {"INTEGER", "LONG INTEGER"}:
        return "INTEGER"
    return "REAL" if types and types <= {"INTEGER", "REAL"} else "TEXT"


def _cell_type(cell: Cell) -> str:
    """INTEGER, LONG INTEGER (more digits than a REAL keeps), REAL or TEXT."""
    text = str(int(cell) if isinstance(cell, bool) else cell).strip()
    n_digits = sum(character.isdigit() for character in text)
    if isinstance(cell, float):
        return "REAL"
    if _INTEGER.fullmatch(text):
        return "INTEGER" if n_digits <= _REAL_DIGITS else "LONG INTEGER"
    return "REAL" if n_digits <= _REAL_DIGITS and _REAL.fullmatch(text) else "TEXT"


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
