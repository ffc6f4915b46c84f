"""Results as CSV files keep them: without types, so both sides of a comparison have to go through the same door."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from sqale_edge.errors import SqaleEdgeError

from .files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sqale_edge.episode import Cell, Row

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_result(path: Path) -> tuple[Row, ...]:
    """The rows under the header of a CSV file, typed by `untyped`. Raises SqaleEdgeError."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as error:
        raise SqaleEdgeError(f"{str(path)!r} is not valid CSV: {error}") from error
    n_columns = len(rows[0]) if rows else 0
    filled = [row if row or n_columns != 1 else [""] for row in rows[1:]]  # NULL in a single column is an empty line
    if any(len(row) != n_columns for row in filled):
        raise SqaleEdgeError(f"{str(path)!r} has rows that are not as long as its header")
    return untyped(filled)


def untyped(rows: Iterable[Sequence[Cell]]) -> tuple[Row, ...]:
    """Rows as they come back from a CSV file: a column of numbers has numbers, any other has text, nothing is NULL."""
    columns = zip(*rows, strict=True)
    return tuple(zip(*map(_untyped_column, columns), strict=True))


def _untyped_column(cells: Iterable[Cell]) -> list[Cell]:
    texts = [_show(cell) for cell in cells]
    if all(_NUMBER.fullmatch(text) for text in texts if text):
        return [_number(text) if text else None for text in texts]
    return [text or None for text in texts]


def _number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _show(cell: Cell) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    return "" if cell is None else str(cell)
