"""The whole benchmark: one measurement after the other, within a time that is said beforehand, stopped from any thread.

A measurement that does not fit into its share of the time takes fewer rounds, at least one. What cannot be measured is
left out with one line that says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import Cancelled, SqaleEdgeError
from sqale_edge.models import find_model

from .decoding import DEPTHS, N_DECODE, N_PREFILL
from .measurements import MEASUREMENTS
from .peers import Result
from .surroundings import describe_machine, describe_model, describe_versions, now
from .token_logs import SHAPES, SMALL, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqale_edge.llama import LlamaEngine
    from sqale_edge.settings import EngineSettings

FORM = "sqale-edge speed 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured.

    Attributes:
        seconds: For everything together; what is under way then is stopped.
        n_rounds: Samples of each contender, where the time suffices.
        depths: Tokens of history behind which prefill and decode are measured.
        n_prefill, n_decode: Tokens of one sample.
        shapes: Episodes that are replayed.
        votes: How many episodes are decoded at a time.
        array_bytes: For one of the three arrays of the bandwidth; None is enough for this machine's caches.
        with_peers: Measure the peers, too, whose packages are installed.
    """

    seconds: float = 1800.0
    n_rounds: int = 5
    depths: tuple[int, ...] = DEPTHS
    n_prefill: int = N_PREFILL
    n_decode: int = N_DECODE
    shapes: tuple[Shape, ...] = SHAPES
    votes: tuple[int, ...] = (1, 2, 4, 8)
    array_bytes: int | None = None
    with_peers: bool = True


QUICK = Plan(seconds=180.0, n_rounds=3, depths=(0, 1024), n_prefill=128, n_decode=16, shapes=(SMALL,), votes=(1, 4))


class Bench:
    """Measures one model. `run` is used once; `stop` comes from any thread.

    Args:
        model: As for `Agent.load`.
        settings: How it is loaded. `n_sequences` is chosen by each measurement.
        plan: How much.
        only: Names of `measurements.MEASUREMENTS`; empty takes all.
    """

    def __init__(
        self, model: str | Path, settings: EngineSettings, plan: Plan | None = None, only: Iterable[str] = ()
    ) -> None:
        self.path = find_model(model).path
        self.settings = settings
        self.plan = plan or Plan()
        self._only = tuple(only)
        self._engines: list[LlamaEngine] = []
        self._reason = ""
        self.rates: dict[str, float] = {}  # tok/s of prefill and decode, once they are known
        self.model: dict[str, Any] = {}

    def run(self) -> Iterator[str | dict[str, Any]]:
        """Yield a line for each thing that is being done, and the document with all figures last.

        Raises:
            Cancelled: It was stopped.
            Else what loading the model raises.
        """
        start = time.perf_counter()
        timer = threading.Timer(self.plan.seconds, self._end, ["the time was up"])
        timer.daemon = True
        timer.start()
        results: dict[str, Any] = {}
        skipped: list[dict[str, str]] = []
        try:
            yield f"at most {self.plan.seconds / 60:.3g} minutes"
            yield "machine and model"
            machine = describe_machine()
            self.model = describe_model(self.path, self.check)
            with self.load(n_ctx=self.settings.n_ctx, n_sequences=1) as engine:
                self.model |= {"name": engine.info.name, "n_parameters": engine.info.n_parameters}
                threads = {"threads": engine.n_threads, "threads_batch": engine.n_threads_batch}
                offload = engine.info.offload
            left = [one for one in MEASUREMENTS if not self._only or one.name in self._only]
            while left:
                one = left.pop(0)
                remaining = self.plan.seconds - (time.perf_counter() - start)
                share = remaining * one.weight / (one.weight + sum(other.weight for other in left))
                yield f"{one.name}: {one.title} (about {max(share, 0):.0f} s at the most)"
                result = Result()
                try:
                    self.check()
                    one.measure(self, share, result)
                except Cancelled:
                    if self._reason == "stopped":
                        raise
                    result.skipped.append(("the rest", self._reason))
                except SqaleEdgeError as error:
                    result.skipped.append(("the rest", str(error)))
                results[one.name] = result.to_dict()
                skipped += [{"measurement": one.name, "what": what, "why": why} for what, why in result.skipped]
        except Cancelled:
            if self._reason == "stopped":
                raise
            raise SqaleEdgeError(
                "the time was up before anything was measured", hint="allow more of it with --minutes"
            ) from None
        finally:
            timer.cancel()
        plan = dataclasses.asdict(self.plan) | {"shapes": [shape.name for shape in self.plan.shapes]}
        yield {
            "form": FORM,
            "measured_at": now(),
            "seconds": time.perf_counter() - start,
            "machine": machine,
            "versions": describe_versions(),
            "model": self.model,
            "settings": dataclasses.asdict(self.settings) | threads | {"offload": offload},
            "plan": plan | {"only": list(self._only)},
            "measurements": results,
            "skipped": skipped,
        }

    def stop(self) -> None:
        """End it within about a token; `run` raises Cancelled."""
        self._end("stopped")

    def _end(self, reason: str) -> None:
        if self._reason != "stopped":
            self._reason = reason
        for engine in list(self._engines):
            engine.cancel()

    def is_ended(self) -> bool:
        """Whether it was stopped, or its time is up."""
        return bool(self._reason)

    def check(self) -> None:
        """Raise Cancelled if it has ended."""
        if self._reason:
            raise Cancelled(f"the benchmark has ended: {self._reason}")

    @contextlib.contextmanager
    def load(self, n_ctx: int, n_sequences: int, n_draft: int | None = None) -> Iterator[LlamaEngine]:
        """A loaded and warmed-up engine, which `stop` reaches; closed behind the block."""
        from sqale_edge.llama import LlamaEngine  # noqa: PLC0415 - loaded when a model is, not before

        self.check()
        n_draft = self.settings.n_draft if n_draft is None else n_draft
        settings = dataclasses.replace(self.settings, n_ctx=n_ctx, n_sequences=n_sequences, n_draft=n_draft)
        engine = LlamaEngine(self.path, settings, on_progress=lambda _: not self.is_ended())
        try:
            self._engines.append(engine)
            warm_up(engine)
            self.check()
            yield engine
        finally:
            engine.close()
            self._engines = [one for one in self._engines if one is not engine]

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A temporary folder, gone behind the block."""
        with tempfile.TemporaryDirectory(prefix="sqale-edge-bench-", ignore_cleanup_errors=True) as name:
            yield Path(name)


def warm_up(engine: LlamaEngine) -> None:
    """Evaluate a prompt and single tokens: memory is touched, and llama.cpp's counters have left their first 1."""
    sequence = engine.new_sequence(0)
    try:
        sequence.append(engine.tokenize("SELECT 1, 2, 3", trusted=False))
        list(sequence.decode(None, 3, frozenset()))
    finally:
        sequence.close()
