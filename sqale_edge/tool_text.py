"""How the tools write rows, names and errors, and where they cut.

Each rule that the reference's own source could overrule is one name here: `CELL_CHARS`, `MORE_ROWS`, `show_cell`,
`show_name`, `clip`. What comes out of a database stays within its line and its cell: it cannot look like another row,
another cell or a line of the protocol.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import TYPE_CHECKING

from sqale_edge.sql_text import quote_name, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqale_edge.database import Table
    from sqale_edge.episode import Cell

QUERY_ROWS = 5
MORE_ROWS = f"... (showing first {QUERY_ROWS} rows; more rows exist)"
CELL_CHARS = 1_000
NAME_CHARS = 200
BLOB_BYTES = 16

# A `|` that stands alone could be taken for the border of a cell; `a|b` could not. One that has a backslash in the data
# gets another, so that the two can be told apart.
_LONE_BAR = re.compile(r"(?<![^ ])(?=\\*\|(?![^ ]))")
# What the protocol says to the model at the start of a line, also after backslashes.
_PROTOCOL_LINE = re.compile(r"[\\\s]*(\[\d+ tool turns? left|tool results?\b|\.\.\. \(|error:)", re.IGNORECASE)
# Unicode's default-ignorable characters, which are not seen, and the other marks of direction.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_PLAIN_NAME = re.compile(r"(?!\s)[^,|\"]+(?<!\s)")


def show_cell(cell: Cell) -> str:
    """A cell in a row: NULL as None, numbers as Python prints them, text on one line, a BLOB as hex; never long."""
    if isinstance(cell, str):
        text = cell if len(cell) <= CELL_CHARS else f"{cell[:CELL_CHARS]}... ({len(cell)} characters)"
        return _LONE_BAR.sub(r"\\", visible(text))
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'" if len(cell) <= BLOB_BYTES else f"x'{cell[:BLOB_BYTES].hex()}...' ({len(cell)} bytes)"
    return str(cell)


def show_name(name: str) -> str:
    """A name in a list: as it is, or quoted where the list would be ambiguous."""
    shown = visible(name)
    if len(shown) > NAME_CHARS:
        return f"{shown[:NAME_CHARS]}... ({len(name)} characters)"
    return shown if _PLAIN_NAME.fullmatch(shown) and " -> " not in shown else quote_name(shown)


def show_line(line: str) -> str:
    """A line of a result, with a backslash before what only the protocol may say, or what looks like it."""
    seen = line if line.isascii() else unicodedata.normalize("NFKC", _UNSEEN.sub("", line))
    return f"\\{line}" if _PROTOCOL_LINE.match(seen) else line


def show_table(table: Table) -> list[str]:
    """The header line and the row lines."""
    rows = (table.columns, *table.rows)
    return [show_line(" | ".join(show_cell(cell) for cell in row)) for row in rows]


def show_suggestions(names: Iterable[str]) -> str:
    """` Did you mean: a, b?`, or nothing."""
    listed = ", ".join(show_name(name) for name in names)
    return f" Did you mean: {listed}?" if listed else ""


def is_cut(table: Table) -> bool:
    """A cell is longer than is shown."""
    return any(
        (isinstance(cell, str) and len(cell) > CELL_CHARS) or (isinstance(cell, bytes) and len(cell) > BLOB_BYTES)
        for row in table.rows
        for cell in row
    )


def clip(parts: Sequence[str], separator: str, noun: str, max_chars: int) -> tuple[str, bool]:
    """`parts` joined, and whether some are missing; how many are is said at the end. Never longer than `max_chars`."""
    text = separator.join(parts)
    if len(text) <= max_chars:
        return text, False
    room = max_chars - len(f"... ({len(parts)} more {noun})")
    ends = itertools.accumulate(len(part) + len(separator) for part in parts)
    n_kept = sum(end <= room for end in ends)
    if n_kept:
        return separator.join([*parts[:n_kept], f"... ({len(parts) - n_kept} more {noun})"]), True
    n_chars = max(0, max_chars - len(f"... ({len(text)} more characters)"))
    return f"{text[:n_chars]}... ({len(text) - n_chars} more characters)"[:max_chars], True
