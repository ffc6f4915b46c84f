"""JSON and JSON lines files as rows: objects whose values SQLite can store.

What is nested inside a row becomes JSON text. A key that an object has twice is an error; NaN, which Python writes, is
NULL. A JSON lines file is read a line at a time; a JSON file is held in memory.
"""

from __future__ import annotations

import collections
import json
import sys
from typing import TYPE_CHECKING, Any

from sqale_edge.text_files import WrongFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqale_edge.episode import Cell
    from sqale_edge.text_files import TextFile

    JsonRow = dict[str, Cell]

_MAX_JSON_CHARS = 256 << 20


def read_json_lines(file: TextFile, notes: dict[str, None]) -> Iterator[JsonRow]:
    """The objects of a file with one on every line; what the person should know is added to `notes`."""
    constant = _constant_parser(file.path, notes)
    for number, line in enumerate(file.lines(), 1):
        if line.strip():
            place = f"line {number}"
            hint = "every line is one object; a file that is one JSON value is named .json"
            yield _json_row(_parse_json(line, place, hint, constant), place)


def read_json(file: TextFile, name: str, notes: dict[str, None]) -> Iterator[tuple[str, list[JsonRow]]]:
    """The tables in a file: an array is one, an object of arrays is several, another object is one of one row."""
    with file.open() as opened:
        text = opened.read(_MAX_JSON_CHARS + 1)
    if len(text) > _MAX_JSON_CHARS:
        hint = "write one object on every line and name it .jsonl: that is read a line at a time"
        raise WrongFileError(f"it has more than {_MAX_JSON_CHARS:,} characters", hint=hint)
    value = _parse_json(
        text, "", "a file with a JSON value on every line is named .jsonl", _constant_parser(file.path, notes)
    )
    is_several = isinstance(value, dict) and value and all(isinstance(part, list) for part in value.values())
    parts = value if is_several else {name: value if isinstance(value, list) else [value]}
    for part_name, items in parts.items():
        yield part_name, [_json_row(item, f"element {n} of {part_name!r}") for n, item in enumerate(items, 1)]


def _constant_parser(path: Path, notes: dict[str, None]) -> Callable[[str], float | None]:
    """What reads the numbers that are not JSON, but that Python writes; SQLite stores no NaN."""

    def parse(text: str) -> float | None:
        if text == "NaN":
            notes[f"{path.name} has numbers that are NaN; they are NULL"] = None
            return None
        return float(text)

    return parse


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises WrongFileError for a key that is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise WrongFileError(f"the key {twice!r} is there twice in one object", hint="give each key a name of its own")
    return value


def _parse_json(text: str, place: str, hint: str, constant: Callable[[str], float | None]) -> Any:
    """The value of `text`, which is all that there is at `place`, or a whole file. Raises WrongFileError."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=constant)
    except WrongFileError as error:
        raise WrongFileError(f"{place}: {error}".removeprefix(": "), hint=error.hint) from error
    except json.JSONDecodeError as error:
        hint = hint if error.msg == "Extra data" else ""
        raise WrongFileError(f"{place or f'line {error.lineno}'}: {error.msg}", hint=hint) from error
    except ValueError as error:  # Python's limit against numbers that take long to read
        message = f"a whole number has more than {sys.get_int_max_str_digits():,} digits"
        raise WrongFileError(f"{place}: {message}".removeprefix(": "), hint="write it as a string") from error
    except RecursionError as error:
        raise WrongFileError(f"{place or 'it'} is nested too deeply") from error


def _json_row(value: object, place: str) -> JsonRow:
    if not isinstance(value, dict):
        raise WrongFileError(f"{place} is not an object", hint='a row is written {"column": value, ...}')
    try:
        return {key: _json_cell(cell) for key, cell in value.items()}
    except RecursionError as error:
        raise WrongFileError(f"{place} is nested too deeply") from error
    except ValueError as error:
        raise WrongFileError(f"{place} has a nested number that is infinite", hint="write it as a string") from error


def _json_cell(value: Any) -> Cell:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be stored
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return int(value) if isinstance(value, bool) else value
