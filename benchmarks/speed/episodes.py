"""Whole episodes of fixed shapes, ours and the peers', replayed from the same logs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any

from .contenders import LLAMA_CPP_PYTHON, OURS, SERVER
from .measuring import Figure, Ratio, alternate
from .peers import open_peers, try_log
from .replaying import Replay, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqale_edge.llama import LlamaEngine

    from .bench import Bench
    from .peers import Result
    from .processes import Child
    from .token_logs import TokenLog

PUBLISHED_TFLOP = 224  # a question of M_SQaLe in the reference's own harness
_WARM, _PLAIN = f"{OURS}, warm", f"{OURS}, without drafts"
_APPENDING = f"{LLAMA_CPP_PYTHON}, appending"


def measure_episodes(bench: Bench, seconds: float, result: Result) -> None:
    """Whole episodes of fixed shapes, ours and the peers'."""
    result.counts["published_tflop"] = PUBLISHED_TFLOP
    end = time.perf_counter() + seconds
    # The second sequence holds what the warm one begins with; drafts are those of an engine with a single one.
    n_draft = dataclasses.replace(bench.settings, n_sequences=1).n_guesses
    with (
        bench.folder() as folder,
        bench.load(bench.settings.n_ctx, n_sequences=2, n_draft=n_draft) as engine,
        contextlib.ExitStack() as stack,
    ):
        peers = open_peers(bench, stack, result, n_sequences=1)
        for place, shape in enumerate(bench.plan.shapes):
            share = max(0.0, end - time.perf_counter()) / (len(bench.plan.shapes) - place)
            log = try_log(engine, shape, folder, result)
            if log:
                result.figures.append(_measure_episode(bench, engine, log, peers, seconds=share))


def _measure_episode(
    bench: Bench, engine: LlamaEngine, log: TokenLog, peers: Mapping[str, Child], *, seconds: float
) -> Figure:
    """Replay one log with everybody."""
    last: dict[str, Replay | dict[str, Any]] = {}
    base = engine.new_sequence(0)
    n_served = 0

    def ours(name: str) -> float:
        cost = replay(engine, log, base=base if name == _WARM else None, drafts=name != _PLAIN, check=bench.check)
        last[name] = cost
        return cost.total_s

    def llama_cpp_python(*, keeps_thoughts: bool) -> float:
        answer = peers[LLAMA_CPP_PYTHON].call("episode", log=log.to_dict(), keeps_thoughts=keeps_thoughts)
        last[_APPENDING if keeps_thoughts else LLAMA_CPP_PYTHON] = answer
        return float(answer.pop("seconds"))

    def server() -> float:
        nonlocal n_served
        n_served += 1
        last[SERVER] = answer = peers[SERVER].call("episode", log=log.to_dict(), variant=n_served)
        return float(answer.pop("seconds"))

    contenders: dict[str, Callable[[], float]] = {name: functools.partial(ours, name) for name in (OURS, _WARM, _PLAIN)}
    if LLAMA_CPP_PYTHON in peers:
        contenders[LLAMA_CPP_PYTHON] = functools.partial(llama_cpp_python, keeps_thoughts=False)
        contenders[_APPENDING] = functools.partial(llama_cpp_python, keeps_thoughts=True)
    if SERVER in peers:
        contenders[SERVER] = server
    try:
        base.append(log.turns[0].prompt[: log.n_shared])
        if SERVER in peers:  # it has the shared part of the prompt in its cache, as the warm one of ours has
            peers[SERVER].call("ask", question="", database="", prompt=list(log.turns[0].prompt[: log.n_shared + 1]))
        samples = alternate(contenders, n_rounds=bench.plan.n_rounds, seconds=seconds, n_warm_up=0, check=bench.check)
    finally:
        base.close()
    ratios = [
        Ratio(f"{ours_name} against {name}", ours_name, name)
        for ours_name, name in ((OURS, _PLAIN), (OURS, LLAMA_CPP_PYTHON), (OURS, _APPENDING), (_WARM, SERVER))
        if name in contenders
    ]
    cost = last[_PLAIN]  # drafted tokens are evaluated, too, and may be wrong
    assert isinstance(cost, Replay), "it was replayed"
    about = {
        "log": log.count(),
        "tflop": 2 * bench.model["n_parameters"] * (log.n_tokens - 1) / 1e12,
        "ours": {"ttft_s": cost.ttft_s, "prefill_s": cost.prefill_s, "decode_s": cost.decode_s, **cost.counts()},
        "peers": {name: counts for name, counts in last.items() if not isinstance(counts, Replay)},
    }
    return Figure(f"{log.name} episode", samples, log.n_tokens, ratios, about)
