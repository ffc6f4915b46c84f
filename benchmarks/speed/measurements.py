"""What is measured, each by a function of the benchmark and of its share of the seconds.

Episodes are in `episodes.py`, what several measurements need in `peers.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import ModelError
from sqale_edge.protocol import Protocol

from .bandwidth import choose_array_bytes, last_cache_bytes, measure_bandwidth
from .contenders import LLAMA_CPP_PYTHON, OURS, SERVER
from .decoding import choose_depths, measure_depths
from .episodes import measure_episodes
from .first_prompts import lengthen_prompt
from .measuring import Figure, Ratio, alternate, summarize
from .peers import Result, child_settings, open_peers, try_log
from .processes import Child, MissingError
from .replaying import Replay, replay
from .token_logs import write_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqale_edge.llama import LlamaEngine

    from .bench import Bench

N_WORK_PREFILL, N_WORK_DECODE = 600, 8  # more than a batch, and a few single tokens: all buffers are in use
_QUESTIONS = (  # about equally long
    "How many orders of each customer were delivered in 2023, the customers with most of them first of all?",
    "Which products of each supplier were never ordered in 2024, the most expensive ones at the beginning?",
    "What is the average amount of the invoices of each city in 2025, with the largest of them at the top?",
)
_MARGIN = 256  # cells behind an episode


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One of them: its name on the command line, its share of the time against the others', and how it is done."""

    name: str
    title: str
    weight: float
    measure: Callable[[Bench, float, Result], None]


def measure_memory_bandwidth(bench: Bench, seconds: float, result: Result) -> None:
    """Reading, copying and a triad, with as many threads as decode a token."""
    from sqale_edge.llama.memory import available_memory  # noqa: PLC0415 - llama.cpp is loaded with a model
    from sqale_edge.llama.threads import choose_threads  # noqa: PLC0415

    wanted, is_sure = choose_array_bytes(available_memory(), last_cache_bytes())
    array_bytes = bench.plan.array_bytes or wanted
    n_threads, _ = choose_threads(bench.settings)
    rates = measure_bandwidth(array_bytes, n_threads, n_rounds=bench.plan.n_rounds, seconds=seconds, check=bench.check)
    best = max(summarize(values)["median"] for values in rates.values())
    counts = {
        "array_bytes": array_bytes,
        "threads": n_threads,
        "beyond_all_caches": is_sure and array_bytes >= wanted,
        **{name: summarize(values) for name, values in rates.items()},
        "best_bytes_per_s": best,
        "ceiling_tok_per_s": best / bench.model["read_bytes_per_token"],
    }
    result.counts |= counts


def measure_decoding(bench: Bench, seconds: float, result: Result) -> None:
    """Prefill and decode apart, at several depths; bare, with sampling, with the grammar."""
    plan, n_ctx = bench.plan, bench.settings.n_ctx
    depths = choose_depths(plan.depths, n_ctx, plan.n_prefill)
    for depth in plan.depths:
        if depth not in depths:
            result.skipped.append((f"depth {depth}", f"a context of {n_ctx} is too small"))
    with bench.load(n_ctx, n_sequences=2) as engine:
        for figure in measure_depths(
            engine,
            depths,
            n_rounds=plan.n_rounds,
            seconds=seconds,
            n_prefill=plan.n_prefill,
            n_decode=plan.n_decode,
            check=bench.check,
        ):
            result.figures.append(figure)


def measure_first_token(bench: Bench, seconds: float, result: Result) -> None:
    """Seconds to the first token: a first question, a second one, and the first one after a restart; loading apart.

    Each round has a home of its own, so that nothing that was kept before is found, and two processes.
    """
    settings = child_settings(bench)
    names = [OURS, *([SERVER] if bench.plan.with_peers else [])]
    phases = ("cold", "warm", "restarted")
    samples: dict[str, list[float]] = {}
    end = time.perf_counter() + seconds
    for number in range(bench.plan.n_rounds):
        begun = time.perf_counter()
        for name in list(names):
            try:
                answers = _ask_three(bench, name, settings)
            except (MissingError, ModelError) as error:
                bench.check()
                result.skipped.append((name, str(error)))
                names.remove(name)
                for phase in phases:
                    samples.pop(f"{name}, {phase}", None)
                continue
            for phase, answer in zip(phases, answers, strict=True):
                samples.setdefault(f"{name}, {phase}", []).append(answer.pop("seconds"))
                result.counts[f"{name}, {phase}"] = answer
        if number and time.perf_counter() + (time.perf_counter() - begun) > end:
            break
    ratios = [
        Ratio(f"{name}: {phase} against cold", f"{name}, {phase}", f"{name}, cold")
        for name in names
        for phase in phases[1:]
    ]
    if {OURS, SERVER} <= set(names):
        ratios.append(Ratio("restarted, against the server restarted", f"{OURS}, restarted", f"{SERVER}, restarted"))
    if samples:
        result.figures.append(Figure("first token", samples, ratios=ratios))


def _ask_three(bench: Bench, name: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A first question, a second one, and one in a second process."""
    with bench.folder() as folder:
        database = folder / "small.sqlite"
        write_database(database, 5)
        prompts = _first_prompts(bench.path, _QUESTIONS)
        calls = [
            {"question": question, "database": str(database), "prompt": prompt}
            for question, prompt in zip(_QUESTIONS, prompts, strict=True)
        ]
        loading = {"model": str(bench.path), "settings": settings}
        if name == SERVER:
            loading["folder"] = str(folder)
        open_child = functools.partial(
            Child, name, environment={"SQALE_EDGE_HOME": str(folder / "home")}, should_stop=bench.is_ended
        )
        with open_child() as child:
            child.call("load", **loading)
            answers = [child.call("ask", **call) for call in calls[:2]]
            child.call("keep")
        with open_child() as child:
            child.call("load", **loading)
            child.call("bring_back")
            answers.append(child.call("ask", **calls[2]))
    return answers


def _first_prompts(path: Path, questions: tuple[str, ...]) -> list[list[int]]:
    """The tokens of each question's first prompt; the weights stay on the disk."""
    from sqale_edge.llama.model import LlamaModel  # noqa: PLC0415 - llama.cpp is loaded with a model

    with LlamaModel.without_weights(path) as model:
        protocol = Protocol(lengthen_prompt(model.describe(n_ctx=1), model.vocabulary.tokenize))
        return [model.vocabulary.tokenize(protocol.first_prompt(question)) for question in questions]


def measure_votes(bench: Bench, seconds: float, result: Result) -> None:
    """Several episodes at a time in one batch, without an early end, against one; and the server's parallel slots."""
    most = max(bench.plan.votes)
    shape = bench.plan.shapes[0]
    with bench.folder() as folder:
        with bench.load(bench.settings.n_ctx, n_sequences=1) as engine:
            log = try_log(engine, shape, folder, result)
        if log is None:
            return
        n_ctx = min(bench.settings.n_ctx, log.n_tokens + _MARGIN)
        costs: dict[str, Replay] = {}
        served: dict[str, dict[str, Any]] = {}
        variants = itertools.count()  # each time another question, of which no slot has more than the shared part
        with bench.load(n_ctx, n_sequences=most, n_draft=0) as engine, contextlib.ExitStack() as stack:
            peers = open_peers(bench, stack, result, n_sequences=most, names=(SERVER,), n_ctx=n_ctx)

            def ours(n: int) -> float:
                costs[str(n)] = replay(engine, log, n, check=bench.check)
                return costs[str(n)].total_s

            def server(n: int) -> float:
                served[str(n)] = answer = peers[SERVER].call("together", log=log.to_dict(), n=n, variant=next(variants))
                return float(answer.pop("seconds"))

            contenders = {_name_vote(OURS, n): functools.partial(ours, n) for n in bench.plan.votes}
            contenders |= {
                _name_vote(name, n): functools.partial(server, n) for name in peers for n in bench.plan.votes
            }
            samples = alternate(
                contenders, n_rounds=bench.plan.n_rounds, seconds=seconds, n_warm_up=0, check=bench.check
            )
    ratios = [
        Ratio(f"{name}: {n} votes against 1", _name_vote(name, n), _name_vote(name, 1))
        for name in (OURS, *peers)
        for n in bench.plan.votes
        if n > 1 and 1 in bench.plan.votes
    ]
    ratios += [
        Ratio(f"{n} votes against the server's", _name_vote(OURS, n), _name_vote(name, n))
        for name in peers
        for n in bench.plan.votes
    ]
    about = {"log": log.count(), "counts": {n: cost.counts() for n, cost in costs.items()}, "served": served}
    result.figures.append(Figure(f"votes on the {shape.name} episode", samples, ratios=ratios, about=about))


def _name_vote(name: str, n: int) -> str:
    return f"{name}, {n} at a time"


def measure_drafts(bench: Bench, seconds: float, result: Result) -> None:
    """The same episode with drafted tokens and without, on two engines that take turns."""
    single = dataclasses.replace(bench.settings, n_sequences=1, n_draft=bench.settings.n_draft or None)
    n_draft, n_ctx = single.n_guesses, bench.settings.n_ctx
    shape = bench.plan.shapes[0]
    guesses = {"n_guessed": 0, "n_guesses_right": 0}
    with (
        bench.folder() as folder,
        bench.load(n_ctx, n_sequences=1, n_draft=0) as plain,
        bench.load(n_ctx, n_sequences=1, n_draft=n_draft) as drafting,
    ):
        log = try_log(plain, shape, folder, result)
        if log is None:
            return

        def run(engine: LlamaEngine) -> float:
            before = engine.n_guessed, engine.n_guesses_right
            seconds_taken = replay(engine, log, check=bench.check).total_s
            if engine is drafting:
                guesses["n_guessed"] = engine.n_guessed - before[0]
                guesses["n_guesses_right"] = engine.n_guesses_right - before[1]
            return seconds_taken

        names = "without drafts", f"up to {n_draft} drafted"
        samples = alternate(
            {names[0]: functools.partial(run, plain), names[1]: functools.partial(run, drafting)},
            n_rounds=bench.plan.n_rounds,
            seconds=seconds,
            n_warm_up=0,
            check=bench.check,
        )
    ratio = Ratio("with drafts against without", names[1], names[0])
    about = {"log": log.count(), **guesses}
    result.figures.append(Figure(f"drafts on the {shape.name} episode", samples, log.n_tokens, [ratio], about))


def measure_loading(bench: Bench, seconds: float, result: Result) -> None:
    """Seconds to load, and the most memory a process had that loaded the model and evaluated and decoded a little."""
    settings = child_settings(bench)
    n_prefill = min(N_WORK_PREFILL, bench.settings.n_ctx // 2)
    names = [OURS, *([LLAMA_CPP_PYTHON, SERVER] if bench.plan.with_peers else [])]
    peaks: dict[str, list[int]] = {}
    for name in list(names):
        with Child(name, should_stop=bench.is_ended) as child:
            try:
                child.call("prepare")
            except MissingError as error:
                result.skipped.append((name, str(error)))
                names.remove(name)

    def load(name: str) -> float:
        with bench.folder() as folder:
            home = {"SQALE_EDGE_HOME": str(folder)}
            with Child(name, environment=home, should_stop=bench.is_ended) as child:
                loaded = child.call("load", model=str(bench.path), settings=settings)
                child.call("work", n_prefill=n_prefill, n_decode=N_WORK_DECODE)
                peak = child.call("peak")
            if peak is not None:
                peaks.setdefault(name, []).append(peak)
            return float(loaded["seconds"])

    contenders = {name: functools.partial(load, name) for name in names}
    samples = alternate(contenders, n_rounds=bench.plan.n_rounds, seconds=seconds, check=bench.check)
    memory = {name: summarize(values[-len(samples[name]) :]) for name, values in peaks.items()}
    about = {"peak_memory_bytes": memory, "estimated_bytes": _estimate_memory(bench)}
    result.figures.append(Figure("load", samples, about=about))


def _estimate_memory(bench: Bench) -> int:
    """What loading refuses by, before it: bytes."""
    from sqale_edge.llama import read_model_info  # noqa: PLC0415 - llama.cpp is loaded with a model
    from sqale_edge.llama.memory import estimate_memory  # noqa: PLC0415

    settings = dataclasses.replace(bench.settings, n_sequences=1)
    return estimate_memory(read_model_info(bench.path).metadata, bench.path.stat().st_size, settings).total_bytes


MEASUREMENTS = (
    Measurement("bandwidth", "memory bandwidth, and what it allows", 0.5, measure_memory_bandwidth),
    Measurement("decoding", "prefill and decode; sampling and grammar", 5, measure_decoding),
    Measurement("ttft", "the first token: cold, warm, restarted", 2, measure_first_token),
    Measurement("votes", "several episodes in one batch", 4, measure_votes),
    Measurement("drafts", "drafted tokens, with and without", 2, measure_drafts),
    Measurement("loading", "load time and peak memory", 1, measure_loading),
    Measurement("episodes", "whole episodes, and the peers'", 8, measure_episodes),
)
NAMES = tuple(one.name for one in MEASUREMENTS)
