"""Which number of threads is fastest here: a few seconds of decoding and prefilling with each that makes sense.

The numbers take turns, and what counts is the median, so that a busy machine disturbs all of them alike. Numbers that
are clearly slower drop out after two rounds, and where samples spread there are more rounds, up to a limit of time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import time
from typing import TYPE_CHECKING, Any

from .measuring import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.llama import LlamaEngine
    from sqale_edge.llama.tuning import Tuning

SECONDS = 20.0  # by default
N_PREFILL, N_DECODE = 64, 8
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 40
_CALM = 0.05  # an interquartile range of this share of the median needs no more rounds
_CLOSE = 1.03  # fewer threads are taken where they are within this of the best: others need the CPU, too
_HOPELESS = 1.5  # times the best, in the least samples of both


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What was measured.

    Attributes:
        decode_s, prefill_s: Samples by number of threads.
        threads, threads_batch: The best numbers for decoding and for prefilling.
    """

    decode_s: dict[int, list[float]]
    prefill_s: dict[int, list[float]]

    @property
    def threads(self) -> int:
        """For decoding."""
        return choose(self.decode_s)

    @property
    def threads_batch(self) -> int:
        """For prefilling."""
        return choose(self.prefill_s)

    def to_dict(self) -> dict[str, Any]:
        """The rates as plain JSON types."""

        def rates(samples: dict[int, list[float]], n_tokens: int) -> dict[str, Any]:
            return {
                str(n): {"tok_per_s": n_tokens / summarize(values)["median"], "samples_s": values}
                for n, values in samples.items()
            }

        return {
            "threads": self.threads,
            "threads_batch": self.threads_batch,
            "decode": rates(self.decode_s, N_DECODE),
            "prefill": rates(self.prefill_s, N_PREFILL),
        }


def candidate_threads(n_allowed: int, n_cores: int) -> list[int]:
    """The numbers to try: all up to eight, then powers of two, and always the cores, one less, and all CPUs."""
    numbers = {*range(1, min(n_allowed, 8) + 1), n_cores, n_cores - 1, n_allowed}
    numbers |= {power for power in (16, 32, 64, 128) if power <= n_allowed}
    return sorted(number for number in numbers if 1 <= number <= n_allowed)


def choose(samples: dict[int, list[float]]) -> int:
    """The number with the least median, or a smaller one that is as good, of those that did not drop out."""
    n_rounds = max(map(len, samples.values()))
    medians = {n: summarize(values)["median"] for n, values in samples.items() if len(values) == n_rounds}
    best = min(medians.values())
    return min(n for n, median in medians.items() if median <= best * _CLOSE)


def tune(
    engine: LlamaEngine,
    candidates: Sequence[int],
    *,
    seconds: float = SECONDS,
    check: Callable[[], None] = lambda: None,
) -> Tuned:
    """Measure each number of threads; `engine` needs room for two sequences, and keeps the best numbers.

    Args:
        engine: A loaded and warmed-up model.
        candidates: Numbers of threads.
        seconds: About how long it may take; what does not drop out is tried three times at least.
        check: Called before each sample; what it raises ends it.
    """
    base = engine.new_sequence(0)
    text = engine.tokenize("SELECT name, city FROM customers WHERE id = 7; ", trusted=False)
    prompt = list(itertools.islice(itertools.cycle(text), N_PREFILL))

    def time_decode(n_threads: int) -> float:
        engine.set_threads(n_threads, n_threads)
        twin = base.fork(1)
        try:
            list(twin.decode(None, 1, frozenset()))  # drawn from what is there; the next one is evaluated
            start = time.perf_counter()
            list(twin.decode(None, N_DECODE, frozenset()))
            return time.perf_counter() - start
        finally:
            twin.close()

    def time_prefill(n_threads: int) -> float:
        engine.set_threads(n_threads, n_threads)
        twin = base.fork(1)
        try:
            return twin.append(prompt).seconds
        finally:
            twin.close()

    try:
        base.append(prompt[: N_PREFILL // 2])
        tuned = Tuned(
            decode_s=_take_samples(candidates, time_decode, seconds / 2, check),
            prefill_s=_take_samples(candidates, time_prefill, seconds / 2, check),
        )
    finally:
        base.close()
    engine.set_threads(tuned.threads, tuned.threads_batch)
    return tuned


def _take_samples(
    candidates: Sequence[int], measure: Callable[[int], float], seconds: float, check: Callable[[], None]
) -> dict[int, list[float]]:
    """Rounds until the samples of those that are still in the running are calm, or the time is up; three at least."""
    samples: dict[int, list[float]] = {n: [] for n in candidates}
    running = list(candidates)
    start = time.perf_counter()
    for number in range(_MOST_ROUNDS):
        begun = time.perf_counter()
        for n in running:
            check()
            samples[n].append(measure(n))
        now = time.perf_counter()
        if number == 0:
            continue  # a single sample may have been disturbed
        best = min(min(samples[n]) for n in running)
        running = [n for n in running if min(samples[n]) <= best * _HOPELESS]
        if number + 1 < _LEAST_ROUNDS:
            continue
        found = [summarize(samples[n]) for n in running]
        is_calm = all(one["iqr"] <= _CALM * one["median"] for one in found)
        if is_calm or now - start + (now - begun) > seconds:
            break
    return samples


def make_tuning(tuned: Tuned, model: str) -> Tuning:
    """What is kept of it for the next start."""
    from sqale_edge.llama.threads import identify_machine  # noqa: PLC0415 - llama.cpp is loaded with a model
    from sqale_edge.llama.tuning import Tuning  # noqa: PLC0415

    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return Tuning(identify_machine(), tuned.threads, tuned.threads_batch, model, today)
