"""What a bar chart shows, as shares of its axis; the template `charts.jinja` draws it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .statistics import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LABEL_CHARS = 30
_N_TICKS = 4


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        length, low, high: Its end, and the ends of its error bar if it has one, from 0 to 1 along the axis.
        text: Its value in words.
    """

    length: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """Groups of horizontal bars.

    Attributes:
        name: Unique in the report, made of letters, digits and `-`.
        axis: What its axis measures.
        series: The names of the bars of each group, in their order.
        groups: Label, and bars.
        ticks: Places from 0 to 1, and what stands there.
    """

    name: str
    title: str
    axis: str
    series: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def description(self) -> str:
        """The whole chart in words, for those who do not see it."""
        groups = (
            f"{label}: " + ", ".join(f"{name} {bar.text}" for name, bar in zip(self.series, bars, strict=True))
            for label, bars in self.groups
        )
        return f"{self.axis}. " + "; ".join(groups)


def percent(share: float | None) -> str:
    """`62.5 %`, which no line end divides, or a dash for what is not known."""
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def show_interval(interval: Sequence[float]) -> str:
    """`41.2 to 60.1 %`."""
    return f"{100 * interval[0]:.1f} to {percent(interval[1])}"


def accuracy_chart(name: str, title: str, groups: Mapping[str, Mapping[str, Any]], rules: Sequence[str]) -> Chart:
    """The accuracies of groups of questions, with 95 % intervals.

    Args:
        name: Of the chart.
        title: Above it.
        groups: For each label `n`, and for each rule the share that is right.
        rules: A bar of each group for each of them.
    """
    bars = [
        (f"{clip(label, _LABEL_CHARS)} (n = {group['n']})", tuple(_accuracy(group[rule], group["n"]) for rule in rules))
        for label, group in groups.items()
    ]
    ticks = tuple((i / _N_TICKS, f"{100 * i // _N_TICKS} %") for i in range(_N_TICKS + 1))
    axis = "share of questions that are right, with 95 % intervals"
    return Chart(name, title, axis, tuple(rules), tuple(bars), ticks)


def _accuracy(share: float, n: int) -> Bar:
    low, high = wilson_interval(round(share * n), n)
    return Bar(share, percent(share), low, high)


def count_chart(name: str, title: str, axis: str, counts: Mapping[str, int]) -> Chart:
    """Bars that count something; the axis ends at a multiple of 4."""
    most = max(_N_TICKS, -(-max(counts.values(), default=0) // _N_TICKS) * _N_TICKS)
    groups = tuple((clip(label, _LABEL_CHARS), (Bar(n / most, str(n)),)) for label, n in counts.items())
    ticks = tuple((i / _N_TICKS, str(most * i // _N_TICKS)) for i in range(_N_TICKS + 1))
    return Chart(name, title, axis, ("number",), groups, ticks)


def clip(text: str, n_chars: int) -> str:
    """The beginning of a text, and how much is missing."""
    return text if len(text) <= n_chars else f"{text[:n_chars]}… ({len(text) - n_chars:,} more characters)"
