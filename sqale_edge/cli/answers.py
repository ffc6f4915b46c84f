"""A finished episode as text for stdout, in the format that was asked for."""

from __future__ import annotations

import csv
import io
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from sqale_edge.cli.tables import make_table, render_table
from sqale_edge.cli.text import dump_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqale_edge.episode import Cell, Episode

_TABLE_CELL_CHARS = 200
_UNFOLDED = 1_000_000  # characters: a piped table has one line for each row


def format_answer(episode: Episode, form: str, votes: dict[str, Any] | None = None) -> str:
    """The answer in one of FORMATS, without a newline at the end; `json` has the votes in it, if there was a vote.

    Without an answer only `json` has something to say.
    """
    if votes and form == "json":
        return dump_json({**episode.to_dict(), "votes": votes}, indent=2)
    if episode.sql is None and form != "json":
        return ""
    return FORMATS[form](episode).rstrip("\n")


def _as_table(episode: Episode) -> str:
    table = make_table()
    for name in episode.columns:
        table.add_column(Text(printable(name)), overflow="fold")
    for row in episode.rows:
        table.add_row(
            *(
                Text(_clip(printable(_show(cell))), justify="right" if isinstance(cell, (int, float)) else "left")
                for cell in row
            )
        )
    return render_table(table, Console().width if sys.stdout.isatty() else _UNFOLDED)


def _clip(text: str) -> str:
    return text if len(text) <= _TABLE_CELL_CHARS else f"{text[:_TABLE_CELL_CHARS]}… ({len(text)} characters)"


def _show(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, bytes):
        return f"x'{cell[:16].hex()}{'…' if len(cell) > 16 else ''}' ({len(cell)} bytes)"
    return str(cell)


def _as_markdown(episode: Episode) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(printable(cell).replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"

    rows = [line([_show(cell) for cell in row]) for row in episode.rows]
    return "\n".join([line(list(episode.columns)), line(["---"] * len(episode.columns)), *rows])


def _as_csv(episode: Episode) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(episode.columns)
    writer.writerows([cell.hex() if isinstance(cell, bytes) else cell for cell in row] for row in episode.rows)
    return file.getvalue()


def _as_json(episode: Episode) -> str:
    return dump_json(episode.to_dict(), indent=2)


def _as_jsonl(episode: Episode) -> str:
    names = _unique(episode.columns)
    rows = episode.to_dict()["rows"]
    return "\n".join(dump_json(dict(zip(names, row, strict=True))) for row in rows)


def _unique(names: tuple[str, ...]) -> list[str]:
    """Column names that can be keys: a second `id` becomes `id_2`."""
    unique: list[str] = []
    for name in names:
        candidate, n = name, 1
        while candidate in unique:
            n += 1
            candidate = f"{name}_{n}"
        unique.append(candidate)
    return unique


def _as_sql(episode: Episode) -> str:
    return episode.sql or ""


FORMATS: dict[str, Callable[[Episode], str]] = {
    "table": _as_table,
    "json": _as_json,
    "jsonl": _as_jsonl,
    "csv": _as_csv,
    "markdown": _as_markdown,
    "sql": _as_sql,
}
