"""Tables for stdout: columns of text without a frame."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table


def make_table() -> Table:
    """An empty table."""
    return Table(show_edge=False, pad_edge=False, box=None, header_style="bold")


def render_table(table: Table, width: int) -> str:
    """The table as lines of at most `width` characters, without blanks at their ends.

    It is text alone, also where the environment asks for colours: it may go to a file, and on a terminal `write_out`
    shows escape sequences instead of obeying them.
    """
    text = io.StringIO()
    Console(file=text, width=width, highlight=False, force_terminal=False, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
