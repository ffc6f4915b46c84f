"""What is wrong with an answer: one kind for each question that is wrong by the strict rule.

The kinds are tried in the order of `FAILURES`, and the first that fits counts: a few that need no rows; then right
rows but for one thing; then what the statement rests on; and last the number of rows. Where several golds are right,
the answer is held against the first one that is scorable.

The columns of results with more than 100,000 cells are not tried in other orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqale_edge.results import same_rows

from .rules import as_gold_is_read, match_columns
from .sources import find_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqale_edge.episode import Row

    from .databases import OpenDatabase
    from .gold import GoldRun
    from .sources import Sources

FAILURES = {
    "no_answer": "there is no SQL",
    "error": "the SQL is refused, or SQLite reports an error",
    "limit": "the SQL runs longer, or gives more rows, than is allowed",
    "order": "the right rows, in another order",
    "repeats": "the right rows, but some of them more often or less often",
    "columns": "the right rows, but for columns that are missing, further ones, or their order",
    "tables": "it reads other tables than the gold",
    "literals": "it reads the same tables, and compares with other values",
    "more_rows": "same tables, same values compared: it has more rows",
    "fewer_rows": "same tables, same values compared: it has fewer rows",
    "values": "same tables, same values compared, as many rows: other cells",
}

_MAX_CELLS = 100_000


def find_failure(state: str, rows: Sequence[Row], sql: str | None, gold: GoldRun, database: OpenDatabase) -> str:
    """The kind of failure of a prediction that is wrong by the strict rule.

    Args:
        state: Of the prediction, as in `scoring`.
        rows: Its rows, if it `ran`.
        sql: The statement as it ran.
        gold: A scorable one; what it rests on is not looked at where it comes from a CSV file.
        database: The question's.

    Raises:
        QueryError: Kind `interrupted`.
    """
    if state != "ran" or sql is None:
        return {"refused": "error", "failed": "error", "timeout": "limit", "too_large": "limit"}.get(state, "no_answer")
    first = gold.results[0]
    rows = as_gold_is_read(rows, first)
    return (
        _compare_rows(rows, first.rows)
        or (_compare_sources(find_sources(sql, database), gold.sources) if first.sql else "")
        or _compare_sizes(len(rows), len(first.rows))
    )


def _compare_rows(rows: Sequence[Row], gold_rows: Sequence[Row]) -> str:
    if same_rows(rows, gold_rows):
        return "order"
    if same_rows(rows, gold_rows, strict=False):
        return "repeats"
    return "columns" if _differs_in_columns(rows, gold_rows) else ""


def _compare_sources(sources: Sources, gold_sources: Sources) -> str:
    if sources.tables != gold_sources.tables:
        return "tables"
    return "literals" if _values(sources) != _values(gold_sources) else ""


def _compare_sizes(n_rows: int, n_gold_rows: int) -> str:
    return "more_rows" if n_rows > n_gold_rows else "fewer_rows" if n_rows < n_gold_rows else "values"


def _differs_in_columns(rows: Sequence[Row], gold_rows: Sequence[Row]) -> bool:
    """The columns of one are, in some order, among those of the other."""
    if len(rows) != len(gold_rows) or not rows or len(rows) * (len(rows[0]) + len(gold_rows[0])) > _MAX_CELLS:
        return False
    fewer, more = sorted((list(zip(*rows, strict=True)), list(zip(*gold_rows, strict=True))), key=len)
    return match_columns(more, fewer, is_ordered=False)


def _values(sources: Sources) -> set[str | int | float]:
    return {literal.value for literal in sources.literals}
