"""Reading files that other people's programs wrote: text, JSON, JSON lines, CSV.

A fault is one line that names the file, the place and the fix. Nothing is repaired by guessing: a line more or less
would move every answer after it to the wrong question. So text is split at line feeds only, never at the other
characters that Unicode counts as line ends, which may be inside a literal.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import reprlib
import stat
import sys
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_ENCODINGS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_MAX_DIGITS = 4_000  # Python reads no longer whole number out of text, unless it is told to
_CLIPPED = 60  # characters of a wrong value that a message shows
BROKEN_JSON = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what damaged JSON leads to


def read_text(path: Path, *, keep_line_ends: bool = False) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark, with line feeds as line ends.

    Args:
        path: The file.
        keep_line_ends: Leave carriage returns as they are: they may be inside a literal.

    Raises:
        BenchmarkError: It cannot be read, or has another encoding.
    """
    data = read_bytes(path)
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        name = encoding.removesuffix("-sig").upper()
        raise BenchmarkError(
            f"{str(path)!r} is not {name}: byte 0x{error.object[error.start]:02x} in line {line}",
            path=path,
            hint="save it as UTF-8",
        ) from error
    return text if keep_line_ends else text.replace("\r\n", "\n")


def read_bytes(path: Path) -> bytes:
    """What is in a file. Raises BenchmarkError if it cannot be read, or is a pipe or a device: some never end."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    raise BenchmarkError(f"{str(path)!r} is a pipe or a device", path=path, hint="put what it gives into a file")


def cannot_read(path: Path, error: OSError) -> BenchmarkError:
    """The error for a file or folder that the system does not give."""
    return BenchmarkError(f"{str(path)!r} cannot be read: {error.strerror or error}", path=path, hint="check the path")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; the last one needs no line end."""
    text = read_text(path)
    return text.removesuffix("\n").split("\n") if text else []


def read_content(path: Path) -> Any:
    """What a file holds: a list of records of JSON lines or CSV; of a JSON document the list or object that it is.

    Raises:
        BenchmarkError: It is none of these, or is broken; the line is named.
    """
    text = read_text(path)
    if text.lstrip()[:1] not in ("[", "{"):
        return _read_csv(path, text)
    try:
        return _parse_json(text)
    except json.JSONDecodeError as error:
        if text.lstrip()[0] == "{" and error.msg == "Extra data":
            return _read_json_lines(path, text)
        raise _json_error(path, error.lineno, error.msg) from error
    except (ValueError, RecursionError) as error:
        raise _json_error(path, None, error) from error


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file: JSON lines, CSV, a JSON list of objects, or a JSON object with that list in `data`."""
    content = read_content(path)
    if isinstance(content, dict):
        content = content["data"] if isinstance(content.get("data"), list) else [content]
    for number, record in enumerate(content, 1):
        if not isinstance(record, dict):
            raise BenchmarkError(f"{str(path)!r}: entry {number} is {clip(record)}, but must be an object", path=path)
    records: list[dict[str, Any]] = content
    if not records:
        raise BenchmarkError(f"{str(path)!r} holds nothing", path=path)
    return records


def clip(value: object) -> str:
    """A value out of a file as a message shows it: its beginning, quoted."""
    if isinstance(value, (list, dict)):
        return reprlib.repr(value)  # however deep it is
    return repr(str(value)[:_CLIPPED])


def check_id(value: object) -> str:
    """An id as text. Raises TypeError for what is no text and no number."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise TypeError(f"the id {clip(value)} is no text and no number")
    return str(value)


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique, parse_int=_whole_number)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; Python would keep the last of two, and no one would notice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {clip(find_twice(key for key, _ in pairs))} occurs twice")
    return found


def find_twice(names: Iterable[str]) -> str | None:
    """The first name that was there before; None if all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _read_json_lines(path: Path, text: str) -> list[Any]:
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                records.append(_parse_json(line))
            except json.JSONDecodeError as error:
                raise _json_error(path, number, error.msg) from error
            except (ValueError, RecursionError) as error:
                raise _json_error(path, number, error) from error
    return records


def _json_error(path: Path, line: int | None, fault: object) -> BenchmarkError:
    place = f"{str(path)!r}, line {line}" if line else repr(str(path))
    return BenchmarkError(f"{place}: not valid JSON: {fault}", path=path, hint="correct the file, or make it again")


def parse_csv(text: str) -> Any:
    """A `csv.reader` of `text` that takes cells of any length and raises `csv.Error` for what is no CSV."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def _read_csv(path: Path, text: str) -> list[dict[str, Any]]:
    """A record for each row under a header of names. A row that is too long or too short is an error."""
    rows = parse_csv(text)
    try:
        names: list[str] = next(rows, [])
        if "question" not in names and "sql" not in names:
            raise BenchmarkError(
                f"{str(path)!r} is neither JSON nor a CSV file whose first line names its columns",
                path=path,
                hint="see docs/accuracy.md for the forms that are read",
            )
        # Columns without a name are not read: a spreadsheet leaves some behind.
        if twice := find_twice(filter(None, names)):
            raise BenchmarkError(
                f"{str(path)!r} has two columns named {clip(twice)}", path=path, hint="leave one of them out"
            )
        records = []
        for row in filter(None, rows):
            if len(row) != len(names):
                raise BenchmarkError(
                    f"{str(path)!r}, line {rows.line_num}: the row does not have {len(names)} cells", path=path
                )
            records.append(dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise BenchmarkError(f"{str(path)!r}, line {rows.line_num}: not valid CSV: {error}", path=path) from error
    return records
