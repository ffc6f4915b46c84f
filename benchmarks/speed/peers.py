"""What the measurements share: a place for what they find, logs for their engines, and the peers, loaded.

What a measurement found it puts into a `Result` bit by bit, so that little is lost where the time is up.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import ContextOverflowError, ModelError

from .contenders import LLAMA_CPP_PYTHON, SERVER
from .processes import Child, MissingError
from .token_logs import make_log

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from sqale_edge.llama import LlamaEngine

    from .bench import Bench
    from .measuring import Figure
    from .token_logs import Shape, TokenLog

_N_WARM_UP = 8  # tokens to prefill, and to decode


@dataclasses.dataclass
class Result:
    """What a measurement found.

    Attributes:
        figures: Times.
        counts: Everything else, JSON values.
        skipped: What was left out, and why.
    """

    figures: list[Figure] = dataclasses.field(default_factory=list)
    counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        return {"figures": [figure.to_dict() for figure in self.figures], **self.counts}


def child_settings(bench: Bench, **changed: int) -> dict[str, Any]:
    """The engine's settings, with its numbers of threads said: what is chosen by itself here is no peer's choice."""
    from sqale_edge.llama.threads import choose_threads  # noqa: PLC0415 - llama.cpp is loaded with a model

    settings = dataclasses.replace(bench.settings, n_sequences=1)
    n_threads, n_threads_batch = choose_threads(settings)
    return dataclasses.asdict(settings) | {"threads": n_threads, "threads_batch": n_threads_batch, **changed}


def try_log(engine: LlamaEngine, shape: Shape, folder: Path, result: Result) -> TokenLog | None:
    """The log of an episode; None where it does not fit, which `result` says."""
    try:
        return make_log(engine, shape, folder)
    except ContextOverflowError as error:
        result.skipped.append((f"the {shape.name} episode", str(error)))
        return None


def open_peers(
    bench: Bench,
    stack: ExitStack,
    result: Result,
    *,
    n_sequences: int,
    names: tuple[str, ...] = (LLAMA_CPP_PYTHON, SERVER),
    n_ctx: int | None = None,
) -> dict[str, Child]:
    """The peers that are installed, loaded; they end with `stack`."""
    peers = {}
    for name in names if bench.plan.with_peers else ():
        child = stack.enter_context(Child(name, should_stop=bench.is_ended))
        settings = child_settings(bench, n_sequences=n_sequences, n_ctx=n_ctx or bench.settings.n_ctx)
        try:
            loaded = child.call("load", model=str(bench.path), settings=settings)
            child.call("work", n_prefill=_N_WARM_UP, n_decode=_N_WARM_UP)  # warm up; counters leave their first 1
        except (MissingError, ModelError) as error:
            bench.check()
            result.skipped.append((name, str(error)))
            child.close()
            continue
        loaded.pop("seconds")
        result.counts.setdefault("peers", {})[name] = loaded
        peers[name] = child
    return peers
