"""What a model had read when it wrote its answer: the tables it had opened, and the values it had seen.

It had read the results of all turns but the last one, in which the answer is written or the episode ends. A result of
that turn comes too late, `submit_sql`'s own among them; and errors show nothing.

A table is opened by `describe_table` and by `sample_rows`. A value is seen

- in a cell that `sample_rows`, `distinct_values` or `run_query` shows below its header: a text word for word, with no
  letter or digit next to it; a number as the whole cell; a LIKE pattern as LIKE finds it, without regard to case;
- in a CREATE statement that `describe_table` shows: a text as the whole of a literal, a pattern in one.

Not told apart: a value that a query of the model's own put into its result. Not known: results that were cut, because
the context was nearly full, before the model could read them.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from sqale_edge.schema import find_name
from sqale_edge.sql_text import tokens, unquote_name
from sqale_edge.tool_text import show_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqale_edge.episode import Episode, ToolCall, ToolResult

    from .literals import SqlLiteral

_OPENING = frozenset({"describe_table", "sample_rows"})
_SHOWING_ROWS = frozenset({"sample_rows", "distinct_values", "run_query"})


def find_opened(episode: Episode, names: Sequence[str]) -> list[str]:
    """Those of the tables and views `names` that were opened, each once."""
    given = [call.args["table_name"] for call, _ in _read_results(episode) if call.name in _OPENING]
    opened = {find_name(name, names) for name in given}
    return [name for name in names if name in opened]


def find_seen(episode: Episode, literals: Sequence[SqlLiteral]) -> list[SqlLiteral]:
    """Those of `literals` that were seen."""
    cells: set[str] = set()
    texts: set[str] = set()
    for call, result in _read_results(episode) if literals else ():
        if call.name in _SHOWING_ROWS:
            cells.update(cell for line in result.output.split("\n")[1:] for cell in line.split(" | "))
        elif call.name == "describe_table":
            quoted = (text for kind, text in tokens(result.output) if kind == "quoted" and text[0] == "'")
            texts.update(map(unquote_name, quoted))
    numbers = set(_numbers(cells)) if any(isinstance(one.value, (int, float)) for one in literals) else set()
    return [one for one in literals if _is_seen(one, cells, numbers, texts)]


def _read_results(episode: Episode) -> Iterator[tuple[ToolCall, ToolResult]]:
    for turn in episode.turns[:-1]:
        for call, result in zip(turn.calls, turn.results, strict=False):  # no call after submit_sql is run
            if not result.is_error:
                yield call, result


def _numbers(cells: Iterable[str]) -> Iterator[int | float]:
    for cell in cells:
        for kind in (int, float) if "_" not in cell else ():
            with contextlib.suppress(ValueError):
                yield kind(cell)
                break


def _is_seen(literal: SqlLiteral, cells: set[str], numbers: set[int | float], texts: set[str]) -> bool:
    if not isinstance(literal.value, str):
        return literal.value in numbers
    shown = show_cell(literal.value)
    if literal.is_pattern:
        pieces = [re.compile(re.escape(piece).replace("_", "."), re.IGNORECASE) for piece in shown.split("%")]
        return any(_finds(pieces, text) for text in (*cells, *texts))
    word = re.compile(rf"(?<!\w){re.escape(shown)}(?!\w)")
    return literal.value in texts or any(word.search(cell) for cell in cells)


def _finds(pieces: Sequence[re.Pattern[str]], text: str) -> bool:
    """Whether `text` has all pieces, one after the other."""
    position = 0
    for piece in pieces:
        match = piece.search(text, position)
        if match is None:
            return False
        position = match.end()
    return True
