"""What is to be reached, read off a document: ratios of things measured side by side, counts, and one size."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from .contenders import LLAMA_CPP_PYTHON, OURS, SERVER
from .measuring import count_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIB = 1 << 30
_Q4_0, _Q4_K_M = 2, 15  # Source: enum llama_ftype in llama.h
_N_PARAMETERS_2B = (1.5e9, 2.5e9)
_VOTES = {_Q4_0: {4: 3.2, 8: 5.5}, _Q4_K_M: {4: 3.8, 8: 6.5}}  # times one episode
_MEMORY_GIB = 1.9


@dataclasses.dataclass(frozen=True)
class Goal:
    """One of them.

    Attributes:
        name: What it is about.
        value: What was measured; 1 or 0 for a yes or no.
        sign, limit: What `value` is to be.
        n_samples: What `value` is the median of.
        iqr: Their interquartile range.
    """

    name: str
    value: float
    sign: Literal["<=", ">="]
    limit: float
    n_samples: int
    iqr: float = 0.0

    @property
    def is_met(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit if self.sign == "<=" else self.value >= self.limit


def list_goals(document: dict[str, Any]) -> list[Goal]:
    """The goals that the document has figures for."""
    return [*_decoding(document), *_first_token(document), *_episodes(document), *_votes(document), *_memory(document)]


def _figures(document: dict[str, Any], measurement: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["measurements"].get(measurement, {}).get("figures", [])
    return found


def _ratio(figure: dict[str, Any], ratio: str, name: str, sign: Literal["<=", ">="], limit: float) -> Iterator[Goal]:
    if ratio in figure["ratios"]:
        summary = figure["ratios"][ratio]
        yield Goal(name, summary["median"], sign, limit, count_samples(figure), summary["iqr"])


def _decoding(document: dict[str, Any]) -> Iterator[Goal]:
    for ratio, limit in (("speed of grammar against sampling", 0.97), ("speed of sampling against bare", 0.95)):
        for figure in _figures(document, "decoding"):
            yield from _ratio(figure, ratio, f"{ratio}, {figure['name']}", ">=", limit)


def _first_token(document: dict[str, Any]) -> Iterator[Goal]:
    for figure in _figures(document, "ttft"):
        for phase in ("warm", "restarted"):
            name = f"{OURS}: {phase} against cold"
            yield from _ratio(figure, name, f"first token, {name}", "<=", 0.10)
        name = "restarted, against the server restarted"
        yield from _ratio(figure, name, f"first token, {name}", "<=", 0.3)


def _episodes(document: dict[str, Any]) -> Iterator[Goal]:
    for figure in _figures(document, "episodes"):
        only_new = figure["ours"]["only_new_tokens"]
        yield Goal(f"{figure['name']}: only new tokens are evaluated", only_new, ">=", 1, n_samples=1)
        for ratio, limit in ((f"{OURS} against {LLAMA_CPP_PYTHON}", 0.40), (f"{OURS}, warm against {SERVER}", 1.0)):
            yield from _ratio(figure, ratio, f"{figure['name']}: {ratio}", "<=", limit)


def _votes(document: dict[str, Any]) -> Iterator[Goal]:
    for figure in _figures(document, "votes"):
        for n, limit in _VOTES.get(document["model"]["file_type"], {}).items():
            name = f"{OURS}: {n} votes against 1"
            yield from _ratio(figure, name, name, "<=", limit)


def _memory(document: dict[str, Any]) -> Iterator[Goal]:
    least, most = _N_PARAMETERS_2B
    model, settings = document["model"], document["settings"]
    is_the_one = model["file_type"] == _Q4_K_M and least <= model["n_parameters"] <= most
    for figure in _figures(document, "loading"):
        peak = figure["peak_memory_bytes"].get(OURS)
        if peak and is_the_one and settings["n_ctx"] == 16_384:
            name, n_samples = "peak memory in GiB", count_samples(figure)
            yield Goal(name, peak["median"] / _GIB, "<=", _MEMORY_GIB, n_samples, peak["iqr"] / _GIB)
