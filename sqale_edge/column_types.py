"""The SQL type of a column of imported texts: a number only where no text loses anything by it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqale_edge.episode import Cell

_BLANKS = " \t\n\r\f\v"  # around a number; SQLite's own
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_REAL = re.compile(r"-?(0|[1-9][0-9]*|(?=\.))(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.([0-9]+))?")
_REAL_DIGITS = 15  # a double keeps as many


@dataclasses.dataclass
class Column:
    """What is known of the values of a column.

    Attributes:
        kinds: INTEGER, LONG INTEGER (more digits than a REAL keeps), REAL, TEXT.
        styles: The ways of writing numbers that all of its texts have in common; None without texts.
    """

    kinds: set[str] = dataclasses.field(default_factory=set)
    styles: frozenset[str] | None = None

    def add(self, cell: Cell) -> None:
        """Take one more value into account."""
        if cell is None or "TEXT" in self.kinds:
            return
        self.kinds.add(_kind(cell))
        if isinstance(cell, str):
            self.styles = _styles(cell) if self.styles is None else self.styles & _styles(cell)

    @property
    def type(self) -> str:
        """Its type in SQL."""
        if self.kinds and self.kinds <= {"INTEGER", "LONG INTEGER"}:
            return "INTEGER"
        return "REAL" if self.kinds and self.kinds <= {"INTEGER", "REAL"} else "TEXT"

    @property
    def is_mixed(self) -> bool:
        """Its numbers are written in different ways, so that different texts may be the same number."""
        return self.type != "TEXT" and self.styles == frozenset()


def _kind(cell: Cell) -> str:
    if isinstance(cell, float):
        return "REAL"
    text = str(cell).strip(_BLANKS)
    n_digits = sum(character.isdigit() for character in text)
    if _INTEGER.fullmatch(text):
        return "INTEGER" if n_digits <= _REAL_DIGITS else "LONG INTEGER"
    return "REAL" if n_digits <= _REAL_DIGITS and _REAL.fullmatch(text) else "TEXT"


def _styles(text: str) -> frozenset[str]:
    """The ways of writing numbers that `text` follows. Two texts in the same way are the same, or different numbers.

    So prices (9.50 and 12.00) are numbers, whose texts differ from those of versions (1.1 and 1.10) only in that.
    """
    match = _PLAIN.fullmatch(text)
    if not match or (text[0] == "-" and float(text) == 0):
        return frozenset({"python"} if not match and _is_python(text) else ())
    decimals = match[1] or ""
    styles = {f"{len(decimals)} decimals"}
    if not decimals.endswith("0"):
        styles.add("short")
    if _is_python(text):
        styles.add("python")
    return frozenset(styles)


def _is_python(text: str) -> bool:
    try:
        return repr(float(text)) == text
    except ValueError:
        return False
