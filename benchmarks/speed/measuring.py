"""Samples and what is said of them: contenders take turns, so that a change of the machine's pace meets them all.

A figure is the median, its spread the interquartile range. A ratio is taken round by round and then summarized, for the
same reason: a quotient of two medians would mix rounds in which the machine was at work elsewhere.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How often the seconds of `below` go into those of `above`: `above / below`, round by round.

    Attributes:
        name: What a reader sees, and its key.
        above, below: Contenders of the figure.
        scale: What the quotient is multiplied with, where the two do not do the same amount.
    """

    name: str
    above: str
    below: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Figure:
    """One thing, measured for one or several contenders.

    Attributes:
        name: Unique in its measurement.
        samples_s: Seconds by contender, in the order in which they were taken.
        n_tokens: Tokens that a sample evaluates, where that is what counts.
        ratios: Which contenders are compared.
        about: What else a reader must know, JSON values.
    """

    name: str
    samples_s: Mapping[str, Sequence[float]]
    n_tokens: int | None = None
    ratios: Sequence[Ratio] = ()
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The figure as plain JSON types, with its medians, spreads and ratios."""
        contenders = {}
        for name, samples in self.samples_s.items():
            summary = summarize(samples)
            contenders[name] = {f"{key}_s": value for key, value in summary.items()} | {"samples_s": list(samples)}
            if self.n_tokens:
                contenders[name]["tok_per_s"] = self.n_tokens / summary["median"]
        ratios = {
            ratio.name: summarize(
                [
                    ratio.scale * above / below
                    for above, below in zip(self.samples_s[ratio.above], self.samples_s[ratio.below], strict=False)
                ]
            )
            for ratio in self.ratios
        }
        tokens = {"n_tokens": self.n_tokens} if self.n_tokens else {}
        return {"name": self.name, **tokens, **self.about, "contenders": contenders, "ratios": ratios}


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median, interquartile range (0 for a single value), least and largest. Raises ValueError without values."""
    if not values:
        raise ValueError("there are no samples")
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": median, "iqr": upper - lower, "min": min(values), "max": max(values)}


def count_samples(figure: Mapping[str, Any]) -> int:
    """How many rounds a figure's ratios are taken from, `figure` being what `Figure.to_dict` gives."""
    return min(len(one["samples_s"]) for one in figure["contenders"].values())


def alternate(
    contenders: Mapping[str, Callable[[], float]],
    *,
    n_rounds: int,
    seconds: float,
    n_warm_up: int = 1,
    check: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """The samples of each contender: A B, A B, ..., after rounds that do not count.

    Args:
        contenders: Each does its work once, and returns the seconds that count.
        n_rounds: Rounds at the most.
        seconds: No round begins that would be likely to end later than this, but for the first.
        n_warm_up: Rounds that do not count.
        check: Called before each sample; what it raises ends the rounds.
    """
    start = time.perf_counter()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-n_warm_up, n_rounds):
        if number > 0:
            spent = time.perf_counter() - start
            if spent * (1 + 1 / (number + n_warm_up)) > seconds:
                break
        for name, measure in contenders.items():
            check()
            sample = measure()
            if number >= 0:
                samples[name].append(sample)
    return samples
