"""How sure a figure is: intervals, a paired test, EHRSQL's reliability."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Z_95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson_interval(n_right: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share, 0 to 1; all of it if `n` is 0. `n_right` may be a mean of several counts.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if not n:
        return 0.0, 1.0
    share, z2 = n_right / n, Z_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(n_only_a: int, n_only_b: int) -> float:
    """McNemar's exact test: how likely a split at least that uneven is if both are equally good, 0 to 1.

    Args:
        n_only_a: Questions that only A answered right.
        n_only_b: Those that only B did. Where both did or neither, nothing is learnt.

    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions, Psychometrika 12
    (1947), with the binomial distribution in place of chi squared.
    """
    n, least = n_only_a + n_only_b, min(n_only_a, n_only_b)
    return min(1.0, float(2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n))


def reliability(scores: Iterable[int], penalty: float) -> float:
    """EHRSQL 2024's reliability score: the mean of 1, 0 and -1, each -1 counted `penalty` times.

    Source: `penalize` in scoring_program/scoring_utils.py of glee4810/ehrsql-2024, commit 06855347.
    """
    weighted = [score * penalty if score < 0 else score for score in scores]
    return sum(weighted) / len(weighted)


def f1(n_hit: int, n_given: int, n_wanted: int) -> dict[str, float]:
    """Precision, recall and their harmonic mean; 0 where nothing was given or wanted."""
    precision, recall = (n_hit / n if n else 0.0 for n in (n_given, n_wanted))
    both = precision + recall
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / both if both else 0.0}


def table_range(n_tables: int, bounds: Sequence[int] = (5, 10, 25, 50, 100)) -> str:
    """The range in which the number of a database's tables is counted, for example `6-10`."""
    low = 1
    for bound in bounds:
        if n_tables <= bound:
            return f"{low}-{bound}"
        low = bound + 1
    return f"{low}+"
