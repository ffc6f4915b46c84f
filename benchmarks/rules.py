"""When is a result right? One function a rule, each given the predicted rows and one gold.

| rule | rows | columns | numbers | source |
|---|---|---|---|---|
| `bird` | a set | in order | exact | evaluation.py of BIRD |
| `strict` | counted; in order as far as the gold orders them | in order | rounding forgiven | `sqale_edge.results` |
| `spider` | counted; in order where the gold has `order by` anywhere | any order | exact | exec_eval.py of Spider |
| `ehrsql` | counted, as text | the first one only | as text | evaluate.py of EHRSQL |
| `ehrsql2024` | the first 100 sorted as text | in order | rounded to one decimal | scoring_utils.py of EHRSQL 2024 |
| `spider2` | each column alone | any order, more are allowed | within 0.01 | evaluate.py of Spider 2 |

`docs/accuracy.md` has the commits, and where these differ from the scripts.
"""

from __future__ import annotations

import collections
import itertools
import math
from typing import TYPE_CHECKING

from sqale_edge.results import same_rows

from .csv_results import untyped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.episode import Cell, Row

    from .gold import GoldResult

_MAX_TRIED = 10_000
_SPIDER2_TOLERANCE = 1e-2
_EHRSQL_ROWS = 100


def is_right(rule: str, rows: Sequence[Row], gold: GoldResult) -> bool:
    """Whether `rows` are right by a rule of RULES. With a gold from a CSV file both sides are read as CSV."""
    return RULES[rule](as_gold_is_read(rows, gold), gold)


def as_gold_is_read(rows: Sequence[Row], gold: GoldResult) -> Sequence[Row]:
    """`rows` with the types that the gold's have: of a gold from a CSV file those that a CSV file keeps."""
    return rows if gold.sql else untyped(rows)


def _bird(rows: Sequence[Row], gold: GoldResult) -> bool:
    return same_rows(rows, gold.rows, strict=False)


def _strict(rows: Sequence[Row], gold: GoldResult) -> bool:
    if len(rows) != len(gold.rows):
        return False
    if same_rows(rows, gold.rows, ordered=True):
        return True
    groups = itertools.pairwise((0, *gold.ends))
    return all(same_rows(rows[start:end], gold.rows[start:end]) for start, end in groups)


def _spider(rows: Sequence[Row], gold: GoldResult) -> bool:
    if len(rows) != len(gold.rows):
        return False
    if not rows:
        return True
    is_ordered = "order by" in gold.sql.lower()  # also inside a literal or a subquery: that is their rule
    columns, gold_columns = list(zip(*rows, strict=True)), list(zip(*gold.rows, strict=True))
    return len(columns) == len(gold_columns) and match_columns(columns, gold_columns, is_ordered=is_ordered)


def match_columns(
    columns: Sequence[tuple[Cell, ...]], gold_columns: Sequence[tuple[Cell, ...]], *, is_ordered: bool
) -> bool:
    """Whether some of `columns`, in some order, make the same rows as `gold_columns`.

    Columns are placed one by one; as soon as the rows so far differ, another one is tried. After 10,000 tries, which
    only columns of very few values can need, the answer is no.
    """

    def same(chosen: Sequence[int]) -> bool:
        ours = list(zip(*(columns[i] for i in chosen), strict=True))
        theirs = list(zip(*gold_columns[: len(chosen)], strict=True))
        return ours == theirs if is_ordered else collections.Counter(ours) == collections.Counter(theirs)

    n_tried = 0
    pending: list[tuple[int, ...]] = [()]
    while pending and n_tried < _MAX_TRIED:
        chosen = pending.pop()
        if len(chosen) == len(gold_columns):
            return True
        tried = set()
        for i in range(len(columns)):
            if i not in chosen and columns[i] not in tried:
                tried.add(columns[i])  # of equal columns one is enough
                n_tried += 1
                if same((*chosen, i)):
                    pending.append((*chosen, i))
    return False


def _ehrsql(rows: Sequence[Row], gold: GoldResult) -> bool:
    return sorted(str(row[0]) for row in rows) == sorted(str(row[0]) for row in gold.rows)


def _ehrsql2024(rows: Sequence[Row], gold: GoldResult) -> bool:
    def shown(some: Sequence[Row]) -> list[list[str]]:
        return sorted([str(round(c, 1) if isinstance(c, float) else c) for c in row] for row in some)[:_EHRSQL_ROWS]

    return shown(rows) == shown(gold.rows)


def _spider2(rows: Sequence[Row], gold: GoldResult) -> bool:
    if len(rows) != len(gold.rows):
        return False
    is_ordered = len(gold.ends) == len(gold.rows) > 1
    columns = [column if is_ordered else sorted(column, key=_by_type) for column in zip(*rows, strict=True)]
    wanted = [
        column if is_ordered else sorted(column, key=_by_type)
        for place, column in enumerate(zip(*gold.rows, strict=True))
        if not gold.columns or place in gold.columns
    ]
    return all(any(all(map(_is_near, column, other)) for other in columns) for column in wanted)


def _by_type(cell: Cell) -> tuple[int, float, str]:
    """Numbers as numbers: sorted as text, 9.999 and 10.001 would be far apart."""
    if isinstance(cell, (int, float)):
        return (1, cell, "")
    return (0 if cell is None else 2, 0, str(cell))


def _is_near(a: Cell, b: Cell) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, abs_tol=_SPIDER2_TOLERANCE)
    return a == b


RULES: dict[str, Callable[[Sequence[Row], GoldResult], bool]] = {
    "bird": _bird,
    "strict": _strict,
    "spider": _spider,
    "ehrsql": _ehrsql,
    "ehrsql2024": _ehrsql2024,
    "spider2": _spider2,
}

ALWAYS = ("bird", "strict")
"""The rules that every question is judged by; each benchmark's own one comes on top."""


def choose_rules(form: str, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The rules for questions of a form, those in `wanted` among them, each once."""
    own = (form,) if form in RULES else ()
    return tuple(dict.fromkeys((*ALWAYS, *own, *wanted)))
