"""At which turn do episodes part? The same questions and seeds, answered by two files, compared token by token.

Sampling draws by seed and position, so two files that compute the same write the same; from the first token that
differs on they are different episodes.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from sqale_edge.benchmarks.speed.surroundings import now
from sqale_edge.benchmarks.statistics import wilson_interval

from sqale_edge.errors import BenchmarkError
from sqale_edge.results import same_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqale_edge.episode import Episode

    from .token_logs import TokenLog, TokenLogs

FORM = "sqale-edge parting 1"


@dataclasses.dataclass(frozen=True)
class Parting:
    """One question, answered twice.

    Attributes:
        place: Of the first token that differs, from 0; None if all are the same.
        turn: The turn it stands in, from 1.
        kind: What the first of the two wrote there; `end` where its log is over.
        has_same_result: Both end with the same rows, or both without.
    """

    id: str
    place: int | None
    turn: int | None
    kind: str | None
    has_same_result: bool


def compare_logs(one: TokenLogs, other: TokenLogs) -> dict[str, Any]:
    """Where the episodes of two files of logs part, as a document.

    Raises:
        BenchmarkError: They were not asked the same with the same settings, or have no question in common.
    """
    _check_comparable(one, other)
    both = [key for key in one.logs if key in other.logs]
    if not both:
        raise BenchmarkError(
            f"{str(one.path)!r} and {str(other.path)!r} have no question in common", path=other.path, hint="record both"
        )
    partings = [compare_log(one.logs[key], other.logs[key]) for key in both]
    parted = [parting for parting in partings if parting.place is not None]
    n_other = sum(not parting.has_same_result for parting in partings)
    low, high = wilson_interval(n_other, len(partings))
    return {
        "form": FORM,
        "measured_at": now(),
        "models": [
            {
                "model": logs.head.model,
                "sha256": logs.head.model_sha256,
                "versions": logs.head.versions,
                "machine": logs.head.machine,
            }
            for logs in (one, other)
        ],
        "seed": one.head.seed,
        "questions_sha256": one.head.questions_sha256,
        "n": len(partings),
        "n_only_in_one": len(one.logs) + len(other.logs) - 2 * len(both),
        "n_parted": len(parted),
        "n_other_result": n_other,
        "other_result": {"share": n_other / len(partings), "low": low, "high": high},
        "by_turn": _count(str(parting.turn) for parting in parted),
        "by_kind": _count(str(parting.kind) for parting in parted),
        "partings": [dataclasses.asdict(parting) for parting in partings],
    }


def _check_comparable(one: TokenLogs, other: TokenLogs) -> None:
    for field in ("n_vocab", "vocabulary_sha256", "seed", "questions_sha256", "settings"):
        if getattr(one.head, field) != getattr(other.head, field):
            raise BenchmarkError(
                f"{str(one.path)!r} and {str(other.path)!r} differ in {field}: they cannot be compared",
                path=other.path,
                hint="record both with the same questions, seed and settings, from files of one checkpoint",
            )


def compare_log(one: TokenLog, other: TokenLog) -> Parting:
    """Where two episodes about one question part."""
    pairs = itertools.zip_longest(one.tokens, other.tokens)
    place = next((place for place, (left, right) in enumerate(pairs) if left != right), None)
    same = _same_result(one.episode, other.episode)
    if place is None:
        return Parting(one.id, None, None, None, same)
    kind = one.kinds[place] if place < len(one.kinds) else "end"
    return Parting(one.id, place, one.turn_of(place), kind, same)


def _same_result(one: Episode, other: Episode) -> bool:
    if one.sql is None or other.sql is None:
        return one.sql is other.sql
    return same_rows(one.rows, other.rows)


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(collections.Counter(values).items()))
