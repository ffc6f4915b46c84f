"""How far one distribution over the next token is from another, position by position, in float64.

Everything is renormalised in float64 first: logprobs that were rounded to float32 add up to 1 give or take 1e-5, which
is enough to make a small KL divergence negative. Of a reference that kept only its k likeliest ids, the others count as
one: what comes out is then a lower bound of the whole divergence.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sqale_edge.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

_SLICE_NUMBERS = 1 << 21  # that are held in float64 at a time, several times over
_SHIFTS = (-1, 1)
_MUCH_CLOSER = 0.1  # a neighbour's distribution that is so much closer than a position's own says that rows have moved
_FAR = 0.05  # nats; below it nothing is told by that
_N_ALIGNED = 64


@dataclasses.dataclass(frozen=True)
class Known:
    """What a reference knows about some positions, a row each.

    Attributes:
        logprobs: (n, V) float32 of all ids; or (n, k), the largest ones.
        ids: (n, k) int32, which those are; None if they are all.
        actual: (n,) float32, of the token that came.
    """

    logprobs: Array
    ids: Array | None
    actual: Array

    def __getitem__(self, rows: slice) -> Self:
        ids = None if self.ids is None else self.ids[rows]
        return dataclasses.replace(self, logprobs=self.logprobs[rows], ids=ids, actual=self.actual[rows])


@dataclasses.dataclass(frozen=True)
class Distances:
    """A contender against a reference, (n,) each.

    Attributes:
        kl: KL divergence in nats, the reference first.
        delta_p: The probability of the token that came, the contender's less the reference's.
        is_same: One of the contender's likeliest tokens is one of the reference's.
        is_tied: Either has more than one likeliest token.
    """

    kl: Array
    delta_p: Array
    is_same: Array
    is_tied: Array

    @classmethod
    def join(cls, some: Sequence[Self]) -> Self:
        """One after the other."""
        fields = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(one, name) for one in some]) for name in fields))


def log_softmax(logits: Array) -> Array:
    """The logprobs of each row, in float64."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values


def compare(reference: Array | Known, contender: Array, tokens: Sequence[int]) -> Distances:
    """Distances of the rows of `contender`, logits or logprobs (n, V), from those of `reference`.

    Args:
        reference: Logits or logprobs (n, V), or what a reference knows.
        contender: Of all ids.
        tokens: (n,), those that came.

    Raises:
        BenchmarkError: The contender excludes a token that the reference does not.
    """
    n_rows = max(1, _SLICE_NUMBERS // contender.shape[1])
    parts = []
    for start in range(0, len(contender), n_rows):
        rows = slice(start, start + n_rows)
        known, came = reference[rows], np.asarray(tokens[rows])
        if isinstance(known, Known) and known.ids is not None:
            parts.append(_compare_top(known, known.ids, contender[rows], came))
        else:
            logprobs = known.logprobs if isinstance(known, Known) else known
            parts.append(_compare_full(logprobs, contender[rows], came))
    return Distances.join(parts)


def _compare_full(reference: Array, contender: Array, tokens: Array) -> Distances:
    log_p, log_q = log_softmax(reference), log_softmax(contender)
    best_p, best_q = (array == array.max(axis=1, keepdims=True) for array in (reference, contender))
    here = tokens[:, None]
    return Distances(
        kl=_sum_up(log_p, log_q),
        delta_p=(np.exp(np.take_along_axis(log_q, here, 1)) - np.exp(np.take_along_axis(log_p, here, 1)))[:, 0],
        is_same=(best_p & best_q).any(axis=1),
        is_tied=(best_p.sum(axis=1) > 1) | (best_q.sum(axis=1) > 1),
    )


def _compare_top(known: Known, ids: Array, contender: Array, tokens: Array) -> Distances:
    log_p, log_q = known.logprobs.astype(np.float64), log_softmax(contender)
    total = np.exp(log_p).sum(axis=1, keepdims=True)
    log_p -= np.log(np.maximum(total, 1.0))
    top_q = np.take_along_axis(log_q, ids, axis=1)
    rest_p = np.maximum(0.0, 1.0 - np.exp(log_p).sum(axis=1))
    others = log_q.copy()
    np.put_along_axis(others, ids, -np.inf, axis=1)
    rest_q = np.exp(others).sum(axis=1)
    rest_p[rest_q == 0] = 0  # of a k that leaves nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(rest_p > 0, rest_p * (np.log(rest_p) - np.log(rest_q)), 0.0)
    best_q = contender == contender.max(axis=1, keepdims=True)
    is_best_p = known.logprobs == known.logprobs[:, :1]
    actual_q = np.take_along_axis(log_q, tokens[:, None], axis=1)[:, 0]
    return Distances(
        kl=_sum_up(log_p, top_q, rest),
        delta_p=np.exp(actual_q) - np.exp(known.actual.astype(np.float64)),
        is_same=(np.take_along_axis(best_q, ids, axis=1) & is_best_p).any(axis=1),
        is_tied=(is_best_p.sum(axis=1) > 1) | (best_q.sum(axis=1) > 1),
    )


def _sum_up(log_p: Array, log_q: Array, rest: Array | float = 0.0) -> Array:
    """The KL divergence of each row. What rounding leaves below zero is zero."""
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):  # what has no probability adds nothing, whatever its logarithm
        terms = np.where(p > 0, p * (log_p - log_q), 0.0)
    kl: Array = np.maximum(terms.sum(axis=1) + rest, 0.0)
    if not np.isfinite(kl).all():
        raise BenchmarkError("the divergence is infinite: a token that the reference allows has no probability at all")
    return kl


def check_aligned(other: Array | Known, logits: Array, tokens: Sequence[int], label: str) -> None:
    """Raise BenchmarkError where rows lie much closer to their neighbours' than to their own: they have moved."""
    n_rows = min(len(logits), _N_ALIGNED)
    if n_rows < 2:
        return
    own = _mean_kl(other, logits, tokens, 0, n_rows)
    if own < _FAR:
        return
    for shift in _SHIFTS:
        if _mean_kl(other, logits, tokens, shift, n_rows) < _MUCH_CLOSER * own:
            raise BenchmarkError(
                f"{label}: its positions are shifted by {shift}: row by row it is {own:.3g} nats away, with that shift "
                f"less than a tenth of it",
                hint="compute the reference again, in a new folder",
            )


def _mean_kl(other: Array | Known, logits: Array, tokens: Sequence[int], shift: int, n_rows: int) -> float:
    """Mean divergence where row r of `other` is held against row r + shift of `logits`."""
    rows = slice(max(0, -shift), n_rows - max(0, shift))
    moved = logits[rows.start + shift : rows.stop + shift]
    return float(compare(other[rows], moved, tokens[rows]).kl.mean())
