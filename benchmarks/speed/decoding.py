"""Prefill and decode, apart, behind histories of several lengths; and what sampling and the grammar add to a decode."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING

from sqale_edge.grammar import tool_call_grammar
from sqale_edge.tools import TOOLS

from .measuring import Figure, Ratio, alternate
from .replaying import decode_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqale_edge.engine import Grammar
    from sqale_edge.llama import LlamaEngine
    from sqale_edge.llama.sequence import LlamaSequence

DEPTHS = (0, 1024, 4096, 8192)
N_PREFILL, N_DECODE = 512, 32
_CALL = {"tool": "run_query", "args": {"sql": "SELECT category, count(*) FROM orders WHERE amount > 10 GROUP BY 1"}}
_TEXT = "Each order has a customer, a date and an amount; each customer has a name and lives in a city. "
_RATIOS = (
    Ratio("speed of sampling against bare", above="decode_bare", below="decode_sampling"),
    Ratio("speed of grammar against sampling", above="decode_sampling", below="decode_grammar"),
)


def choose_depths(wanted: Sequence[int], n_ctx: int, n_prefill: int = N_PREFILL) -> list[int]:
    """Those that leave room for what is measured."""
    return [depth for depth in wanted if depth + n_prefill + N_DECODE + 2 <= n_ctx]


def measure_depths(
    engine: LlamaEngine,
    depths: Sequence[int],
    *,
    n_rounds: int,
    seconds: float,
    n_prefill: int = N_PREFILL,
    n_decode: int = N_DECODE,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Figure]:
    """A figure of prefilling and one of decoding for each depth; `engine` needs room for two sequences.

    All decode the same tokens, calls that the grammar allows; for `decode_bare` see `sqale_edge.llama.bare`.
    """
    from sqale_edge.llama.bare import decode_bare  # noqa: PLC0415 - llama.cpp is loaded with a model, not before

    grammar = engine.compile_grammar(tool_call_grammar(TOOLS))
    text = engine.tokenize(_TEXT, trusted=False)
    filler = itertools.cycle(text)
    calls = engine.tokenize("\n".join([json.dumps(_CALL)] * (n_decode // 8 + 1)), trusted=False)[:n_decode]
    base = engine.new_sequence(0)

    def time_prefill() -> float:
        twin = base.fork(1)
        try:
            return twin.append(list(itertools.islice(itertools.cycle(text), n_prefill))).seconds
        finally:
            twin.close()

    def on_twin(measure: Callable[[LlamaSequence], float]) -> Callable[[], float]:
        def run() -> float:
            twin = base.fork(1)
            try:
                twin.append(text[:1])  # also behind nothing there are logits to draw from
                return measure(twin)
            finally:
                twin.close()

        return run

    def time_sampling(phase: Grammar | None) -> Callable[[], float]:
        return on_twin(lambda twin: decode_log(engine, [twin], calls, phase) + _evaluate_last(twin))

    contenders = {
        "decode_bare": on_twin(lambda twin: decode_bare(engine, twin, calls)),
        "decode_sampling": time_sampling(None),
        "decode_grammar": time_sampling(grammar),
    }
    try:
        end = time.perf_counter() + seconds
        for place, depth in enumerate(depths):
            if depth > len(base):
                base.append(list(itertools.islice(filler, depth - len(base))))
            share = max(0.0, end - time.perf_counter()) / (2 * (len(depths) - place))
            prefill = alternate({"prefill": time_prefill}, n_rounds=n_rounds, seconds=share, check=check)
            yield Figure(f"prefill at {depth}", prefill, n_tokens=n_prefill, about={"depth": depth})
            decode = alternate(contenders, n_rounds=n_rounds, seconds=share, check=check)
            yield Figure(f"decode at {depth}", decode, len(calls), _RATIOS, {"depth": depth})
    finally:
        base.close()


def _evaluate_last(sequence: LlamaSequence) -> float:
    """Evaluate the token that a decode leaves pending, so that all contenders evaluate the same number."""
    return sequence.append([]).seconds
