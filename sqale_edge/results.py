"""When are two result sets the same? BIRD's rule, and a strict one.

| | BIRD's | strict |
|---|---|---|
| a row that occurs twice | counts once | counts twice |
| the order of rows | is ignored | counts where `ordered` says so |
| the order and number of columns | count | count |
| 1 and 1.0 | the same | the same |
| 1 and '1' | differ | differ |
| NULL | is like NULL only | is like NULL only |
| 0.1 + 0.2 and 0.3 | differ | the same: numbers of which one is a float, and that are close |
| texts, bytes | the same bytes | the same bytes |
| no rows at all | the same | the same |

Source of BIRD's rule: `set(predicted) == set(gold)` over the tuples that Python's sqlite3 returns, in the benchmark's
own evaluation script.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqale_edge.episode import Cell, Row

# Two floats whose difference is rounding: sums of a million values in another order differ by less.
RELATIVE_TOLERANCE = 1e-9
ABSOLUTE_TOLERANCE = 1e-12


def same_rows(a: Sequence[Row], b: Sequence[Row], *, ordered: bool = False, strict: bool = True) -> bool:
    """Whether two lists of rows are the same result; symmetric.

    Args:
        a: Rows as SQLite gave them.
        b: The others.
        ordered: Their order counts; for the strict rule alone.
        strict: The strict rule, or BIRD's. See the module's table.
    """
    if not strict:
        return set(map(tuple, a)) == set(map(tuple, b))
    if len(a) != len(b) or len({len(row) for row in (*a, *b)}) > 1:
        return False
    plain_a, plain_b = _level(a, b)
    return plain_a == plain_b if ordered else Counter(plain_a) == Counter(plain_b)


def _level(a: Sequence[Row], b: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both with every number replaced by the least of those that are close to it in its column."""
    columns = [_level_column(column) for column in zip(*a, *b, strict=True)]
    rows = list(zip(*columns, strict=True))
    return rows[: len(a)], rows[len(a) :]


def _level_column(cells: Iterable[Cell]) -> list[Cell]:
    cells = list(cells)
    numbers = sorted({cell for cell in cells if isinstance(cell, (int, float))})
    if not any(isinstance(number, float) for number in numbers):
        return cells
    least = dict(zip(numbers, numbers, strict=True))
    for low, high in itertools.pairwise(numbers):
        if _is_close(low, high):
            least[high] = least[low]
    return [least[cell] if isinstance(cell, (int, float)) else cell for cell in cells]


def _is_close(low: float, high: float) -> bool:
    """Integers are exact; a pair with a float in it may differ by rounding."""
    if isinstance(low, int) and isinstance(high, int):
        return False
    return math.isclose(low, high, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
