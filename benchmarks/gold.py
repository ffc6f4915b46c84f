"""What is right, found by running it: under the limits of a prediction, and checked for what it leaves open.

A question counts only if its gold is *scorable*. Each other state is counted apart:

| state | the gold |
|---|---|
| `unanswerable` | is that there is no answer; only EHRSQL's rules count these |
| `no_gold` | is not in the file |
| `no_database` | is about a database that is missing or cannot be opened |
| `failed`, `refused`, `timeout`, `too_large` | did not run to its end within the limits |
| `empty` | has no rows, and so any query that finds nothing would be right |
| `not_deterministic` | gave other rows when it ran again in a way that SQL allows |

Run again means: with rows that are tied in ascending and in descending order; with SQLite walking backwards wherever
the statement leaves the order open (`PRAGMA reverse_unordered_selects`); over tables whose rows come in the opposite
order; and, if it asks for the time, in the year 2100. That finds ties under a LIMIT, a LIMIT
without an order, columns that GROUP BY leaves open, random(), the clock, and group_concat without an order.

Not seen: `strftime` without a time; columns that GROUP BY leaves open in views, in tables WITHOUT ROWID and in tables
named with `main.`; random() where it happens to give the same rows three times; and a middle row of tied ones under
`LIMIT 1 OFFSET 1`, which is the same from both ends.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Literal, get_args

from sqale_edge.errors import BenchmarkError, DatabaseOpenError, QueryError
from sqale_edge.results import same_rows
from sqale_edge.sql_text import bare_statement

from .csv_results import read_result
from .databases import reason
from .ehrsql import prepare_sql
from .sources import Sources, find_sources
from .statements import advance_clock, break_ties, is_ordered, reverse_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqale_edge.episode import Row

    from .databases import OpenDatabase, OpenDatabases
    from .question import GoldTable, Question

GoldState = Literal[
    "scorable",
    "unanswerable",
    "no_gold",
    "no_database",
    "refused",
    "failed",
    "timeout",
    "too_large",
    "empty",
    "not_deterministic",
]
GOLD_STATES: tuple[GoldState, ...] = get_args(GoldState)


@dataclasses.dataclass(frozen=True)
class GoldResult:
    """The rows of one gold.

    Attributes:
        sql: The statement; empty if the rows come from a CSV file.
        ends: Where each group of rows ends whose order among themselves is open: all rows where nothing orders them,
            each row alone where the order is complete.
        columns: The positions of the columns that an answer must have; empty for all. Spider 2 only.
        names: What its columns are called; empty if the rows come from a CSV file.
    """

    rows: tuple[Row, ...]
    sql: str = ""
    ends: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class GoldRun:
    """What became of a question's golds.

    Attributes:
        state: `scorable` if at least one is; otherwise that of the first.
        detail: Why it is not scorable, in one line.
        results: The golds to compare with: the scorable ones, or if there is none those that gave rows or could have.
        n_tables: Tables of the database; None if it cannot be opened.
        sources: What the first of `results` rests on, if the state is `scorable` and it is no CSV file.
    """

    state: GoldState
    detail: str = ""
    results: tuple[GoldResult, ...] = ()
    n_tables: int | None = None
    sources: Sources = dataclasses.field(default_factory=Sources)


def run_gold(question: Question, databases: OpenDatabases) -> GoldRun:
    """Run all golds of a question. Raises QueryError, kind `interrupted`, when it is to stop."""
    try:
        database = databases.get(question.db)
        n_tables = len(database.tables)
    except (DatabaseOpenError, QueryError) as error:
        reason(error)
        return GoldRun("no_database", str(error))
    if question.is_unanswerable:
        return GoldRun("unanswerable", n_tables=n_tables)
    runs = [_run_sql(prepare_sql(question.form, sql), database) for sql in question.golds]
    runs += [_read_table(table) for table in question.gold_tables]
    if not runs:
        return GoldRun("no_gold", n_tables=n_tables)
    best = [run for run in runs if run.state == "scorable"] or runs
    results = tuple(result for run in best for result in run.results)
    sql = results[0].sql if best[0].state == "scorable" else ""
    return GoldRun(best[0].state, best[0].detail, results, n_tables, find_sources(sql, database) if sql else Sources())


def _read_table(table: GoldTable) -> GoldRun:
    try:
        rows = read_result(table.path)
    except BenchmarkError as error:
        return GoldRun("failed", str(error))
    n_columns = len(rows[0]) if rows else 0
    if rows and (wrong := [place for place in table.columns if not 0 <= place < n_columns]):
        # Without it every answer of as many rows would be right.
        detail = (
            f"its standard asks for column {wrong[0]}, counted from 0, of {str(table.path)!r}, which has {n_columns}"
        )
        return GoldRun("failed", detail)
    ends = tuple(range(1, len(rows) + 1)) if table.is_ordered else (len(rows),)
    return GoldRun("scorable" if rows else "empty", results=(GoldResult(rows, ends=ends, columns=table.columns),))


def _run_sql(sql: str, database: OpenDatabase) -> GoldRun:
    sql = bare_statement(sql)
    try:
        table = database.query(sql)
    except (QueryError, DatabaseOpenError) as error:
        kind = reason(error)
        return GoldRun(next(state for state in GOLD_STATES if state == kind), str(error))
    if table.truncated:
        return GoldRun("too_large", f"more than {len(table.rows)} rows")
    if not table.rows:
        return GoldRun("empty", results=(GoldResult((), sql),))
    everything = (len(table.rows),)
    tied = _run_tied(sql, len(table.columns), database)
    others = [*tied, *_run_again(sql, database)]
    if not all(same_rows(table.rows, rows) for rows in others):
        detail = "it gives other rows when it runs again"
        return GoldRun("not_deterministic", detail, (GoldResult(table.rows, sql, everything),))
    ends = _find_ends(len(table.rows), tied) if is_ordered(sql) else everything
    return GoldRun("scorable", results=(GoldResult(table.rows, sql, ends, names=table.columns),))


def _run_tied(sql: str, n_columns: int, database: OpenDatabase) -> list[tuple[Row, ...]]:
    """The rows with tied ones in ascending and in descending order, if the statement has an order or a limit."""
    ascending, descending = (break_ties(sql, n_columns, descending=descending) for descending in (False, True))
    return [] if ascending == sql else list(_run_each([ascending, descending], database))


def _run_again(sql: str, database: OpenDatabase) -> Iterator[tuple[Row, ...]]:
    """The rows with SQLite walking backwards, over tables that are, and in a later year."""
    yield from _run_each([sql], database, is_reversed=True)
    later = advance_clock(sql)
    yield from _run_each([reverse_tables(sql, database.tables), *([later] if later else ())], database)


def _run_each(
    statements: Sequence[str], database: OpenDatabase, *, is_reversed: bool = False
) -> Iterator[tuple[Row, ...]]:
    """The rows of those that run: a statement of ours may not be possible, or take longer than the gold."""
    for statement in statements:
        try:
            table = database.query(statement, is_reversed=is_reversed)
        except (QueryError, DatabaseOpenError) as error:
            reason(error)
            continue
        yield table.rows


def _find_ends(n_rows: int, tied: Sequence[Sequence[Row]]) -> tuple[int, ...]:
    """Where each group of tied rows ends: there both orders have had the same rows."""
    if len(tied) != 2:
        return tuple(range(1, n_rows + 1))
    ends = []
    difference: collections.Counter[Row] = collections.Counter()
    for place, (one, other) in enumerate(zip(*tied, strict=True), 1):
        difference[one] += 1
        difference[other] -= 1
        for row in (one, other):
            if not difference[row]:
                del difference[row]
        if not difference:
            ends.append(place)
    return tuple(ends)
