"""Results as CSV files keep them: without types, so both sides of a comparison have to go through the same door."""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING

from sqale_edge.errors import BenchmarkError

from .files import parse_csv, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sqale_edge.episode import Cell, Row

_NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d+)?")  # possessive: cells can be long
_MAX_DIGITS = 400  # a longer whole number is no float, or begins with zeros


def read_result(path: Path) -> tuple[Row, ...]:
    """The rows under the header of a CSV file, typed by `untyped`. Raises BenchmarkError."""
    try:
        rows = list(parse_csv(read_text(path)))
    except csv.Error as error:
        raise BenchmarkError(f"{str(path)!r} is not valid CSV: {error}", path=path) from error
    n_columns = len(rows[0]) if rows else 0
    filled = [row if row or n_columns != 1 else [""] for row in rows[1:]]  # NULL in a single column is an empty line
    if any(len(row) != n_columns for row in filled):
        raise BenchmarkError(f"{str(path)!r} has rows that are not as long as its header", path=path)
    return untyped(filled)


def untyped(rows: Iterable[Sequence[Cell]]) -> tuple[Row, ...]:
    """Rows as they come back from a CSV file: a column of numbers has numbers, any other has text, nothing is NULL.

    A column with a number that is too great for a float is text: as a number it would be equal to others.
    """
    columns = zip(*rows, strict=True)
    return tuple(zip(*map(_untyped_column, columns), strict=True))


def _untyped_column(cells: Iterable[Cell]) -> list[Cell]:
    texts = [_show(cell) for cell in cells]
    if all(_is_number(text) for text in texts if text):
        return [_number(text) if text else None for text in texts]
    return [text or None for text in texts]


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and math.isfinite(float(text))


def _number(text: str) -> float:
    return int(text) if len(text) <= _MAX_DIGITS and text.lstrip("+-").isdigit() else float(text)


def _show(cell: Cell) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    return "" if cell is None else str(cell)
