"""From positions to figures. Episodes are the independent unit: tokens of one episode are not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from .token_kinds import KINDS, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .distributions import Array, Distances

_N_RESAMPLES = 2_000
_SEED = 20_260
QUANTILES = (0.01, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 0.995, 0.998, 0.999)


@dataclasses.dataclass(frozen=True)
class EpisodeDistances:
    """One episode's positions, with what token comes at each."""

    distances: Distances
    kinds: Array


def summarize(episodes: Sequence[EpisodeDistances]) -> dict[str, Any]:
    """The figures of all that the model writes (`written`), of `all` positions, and of each kind of token.

    A kind that never comes is left out.
    """
    groups: dict[str, tuple[str, ...]] = {"written": WRITTEN, "all": KINDS} | {kind: (kind,) for kind in KINDS}
    found = {name: _summarize_some(episodes, kinds) for name, kinds in groups.items()}
    if found["written"]:
        found["written"]["kl"]["quantiles"] = _list_quantiles(episodes)
    return {name: figures for name, figures in found.items() if figures}


def _list_quantiles(episodes: Sequence[EpisodeDistances]) -> list[float]:
    """The divergence that `QUANTILES` of the written positions do not exceed, to four digits: for a drawing."""
    every = np.concatenate([one.distances.kl[np.isin(one.kinds, WRITTEN)] for one in episodes])
    return [float(f"{value:.4g}") for value in np.quantile(every, QUANTILES)]


def _summarize_some(episodes: Sequence[EpisodeDistances], kinds: tuple[str, ...]) -> dict[str, Any]:
    chosen = [np.isin(episode.kinds, kinds) for episode in episodes]
    counts = np.array([mask.sum() for mask in chosen], np.float64)
    if not counts.sum():
        return {}
    kl, delta_p, is_same, is_tied = (
        [getattr(episode.distances, name)[mask] for episode, mask in zip(episodes, chosen, strict=True)]
        for name in ("kl", "delta_p", "is_same", "is_tied")
    )
    sums = np.array([part.sum() for part in kl])
    same, tied = np.concatenate(is_same), np.concatenate(is_tied)
    every = np.concatenate(kl)
    median, p99, p999 = np.percentile(every, [50, 99, 99.9])
    return {
        "n_positions": int(counts.sum()),
        "n_episodes": int((counts > 0).sum()),
        "kl": {
            **estimate_mean(sums, counts),
            "median": float(median),
            "p99": float(p99),
            "p999": float(p999),
            "max": float(every.max()),
        },
        "top1_agreement": float(same.mean()),
        "top1_agreement_without_ties": float((same & ~tied).sum() / max(1, (~tied).sum())),
        "tied": float(tied.mean()),
        "rms_delta_p": float(np.sqrt(np.mean(np.concatenate(delta_p) ** 2))),
    }


def estimate_mean(sums: Array, counts: Array) -> dict[str, float]:
    """The mean over positions, its standard error and its 95 % interval, where episodes were drawn by chance.

    Args:
        sums: Of the positions of each episode, (m,).
        counts: How many those are.

    The error is that of a ratio of two sums over episodes, as with clusters of unequal size; the interval comes from
    resampling whole episodes, with a fixed seed. Of a single episode neither is known, and both are left out.

    Source: W. G. Cochran, Sampling Techniques (1977), section 9A; B. Efron, The Jackknife, the Bootstrap and Other
    Resampling Plans (1982).
    """
    used = counts > 0
    sums, counts = sums[used], counts[used]
    n, mean = len(sums), float(sums.sum() / counts.sum())
    if n < 2:
        return {"mean": mean}
    error = np.sqrt(n / (n - 1) * ((sums - mean * counts) ** 2).sum()) / counts.sum()
    drawn = np.random.default_rng(_SEED).integers(0, n, (_N_RESAMPLES, n))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": mean, "standard_error": float(error), "low": float(low), "high": float(high)}
