"""Tables for stdout: columns of text without a frame."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table


def make_table() -> Table:
    """An empty table."""
    return Table(show_edge=False, pad_edge=False, box=None, header_style="bold")


def render_table(table: Table, width: int) -> str:
    """The table as lines of at most `width` characters, without blanks at their ends."""
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
