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
import sys
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import SqaleEdgeError

if TYPE_CHECKING:
    from pathlib import Path

_ENCODINGS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark, with line feeds as line ends.

    Raises:
        SqaleEdgeError: It cannot be read, or has another encoding.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SqaleEdgeError(f"{str(path)!r} cannot be read: {error.strerror}", hint="check the path") from error
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{data[error.start]:02x} in line {line}"
        raise SqaleEdgeError(f"{str(path)!r} is not UTF-8: {byte}", hint="save it as UTF-8") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; the last one needs no line end."""
    text = read_text(path)
    return text.removesuffix("\n").split("\n") if text else []


def read_content(path: Path) -> Any:
    """What a file holds: a list of records of JSON lines or CSV; of a JSON document the list or object that it is.

    Raises:
        SqaleEdgeError: It is none of these, or is broken; the line is named.
    """
    text = read_text(path)
    if text.lstrip()[:1] not in ("[", "{"):
        return _read_csv(path, text)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        if text.lstrip()[0] == "{" and error.msg == "Extra data":
            return _read_json_lines(path, text)
        raise _json_error(path, error.lineno, error.msg) from error
    except (_DuplicateKeyError, RecursionError) as error:
        raise _json_error(path, None, error) from error


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file: JSON lines, CSV, a JSON list of objects, or a JSON object with that list in `data`."""
    content = read_content(path)
    if isinstance(content, dict):
        content = content["data"] if isinstance(content.get("data"), list) else [content]
    for number, record in enumerate(content, 1):
        if not isinstance(record, dict):
            raise SqaleEdgeError(f"{str(path)!r}: entry {number} is {str(record)[:60]!r}, but must be an object")
    records: list[dict[str, Any]] = content
    if not records:
        raise SqaleEdgeError(f"{str(path)!r} holds nothing")
    return records


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; Python would keep the last of two, and no one would notice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _DuplicateKeyError(f"the key {twice!r} occurs twice")
    return found


def _read_json_lines(path: Path, text: str) -> list[Any]:
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line, object_pairs_hook=_unique))
            except json.JSONDecodeError as error:
                raise _json_error(path, number, error.msg) from error
            except (_DuplicateKeyError, RecursionError) as error:
                raise _json_error(path, number, error) from error
    return records


def _json_error(path: Path, line: int | None, fault: object) -> SqaleEdgeError:
    place = f"{str(path)!r}, line {line}" if line else repr(str(path))
    return SqaleEdgeError(f"{place}: not valid JSON: {fault}", hint="correct the file, or make it again")


def _read_csv(path: Path, text: str) -> list[dict[str, Any]]:
    """A record for each row under a header of names. A row that is too long or too short is an error."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        if "question" not in names and "sql" not in names:
            raise SqaleEdgeError(
                f"{str(path)!r} is neither JSON nor a CSV file whose first line names its columns",
                hint="see docs/accuracy.md for the forms that are read",
            )
        records = []
        for record in reader:
            if None in record or None in record.values():
                raise SqaleEdgeError(f"{str(path)!r}, line {reader.line_num}: the row does not have {len(names)} cells")
            records.append(record)
    except csv.Error as error:
        raise SqaleEdgeError(f"{str(path)!r}, line {reader.line_num}: not valid CSV: {error}") from error
    return records
