"""Replaying a token log on our engine, with all the work that a real episode has but for the tools.

Each decoded token is drawn as always, from logits in which the log's token is made certain: evaluation, truncation,
draw and grammar cost what they cost, and the outcome is known. The real loop could not be held to a log.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import ModelError
from sqale_edge.grammar import tool_call_grammar, tool_call_phrases
from sqale_edge.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqale_edge.engine import Grammar
    from sqale_edge.llama import LlamaEngine
    from sqale_edge.llama.sequence import LlamaSequence

    from .token_logs import TokenLog

_CERTAIN = 1e4  # a logit; what is left for the others is e to the power of minus thousands


@dataclasses.dataclass
class Replay:
    """What replaying a log cost.

    Attributes:
        total_s, ttft_s: Seconds, up to the last and to the first decoded token.
        prefill_s, decode_s: Seconds; together about `total_s`.
        n_evaluated_by_turn: Tokens that llama.cpp itself says it evaluated, of all sequences together.
        n_expected_by_turn: Tokens that are new, for all sequences together; the same, if nothing is evaluated twice.
    """

    total_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    n_evaluated_by_turn: list[int] = dataclasses.field(default_factory=list)
    n_expected_by_turn: list[int] = dataclasses.field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """Evaluated tokens, turn by turn."""
        return {
            "n_evaluated_by_turn": self.n_evaluated_by_turn,
            "n_expected_by_turn": self.n_expected_by_turn,
            "only_new_tokens": self.n_evaluated_by_turn == self.n_expected_by_turn,
        }


def replay(
    engine: LlamaEngine,
    log: TokenLog,
    n_sequences: int = 1,
    *,
    base: LlamaSequence | None = None,
    drafts: bool = True,
    check: Callable[[], None] = lambda: None,
) -> Replay:
    """Replay `log` on a new sequence, or on several at a time as in a vote: the first prompt is evaluated once.

    The last token is drawn and not evaluated, as in a real episode.

    Args:
        engine: With as many sequences free.
        log: What to replay.
        n_sequences: How many at a time.
        base: Holds the start of the first prompt, which need not be evaluated again.
        drafts: Whether an engine that can draft does so, which it does on a single sequence alone.
        check: Called before each turn; what it raises ends the replay.

    Raises:
        ModelError: The grammar does not allow a token of the log, or the engine has too few sequences.
        ContextOverflowError: It does not fit into the engine's context.
        Cancelled: The engine was cancelled.
    """
    grammar = engine.compile_grammar(tool_call_grammar(TOOLS), tool_call_phrases(TOOLS))
    cost = Replay()
    sequences = [base.fork(0) if base else engine.new_sequence(0)]
    try:
        start = time.perf_counter()
        for number, turn in enumerate(log.turns):
            check()
            n_before = engine.count_evaluated()
            prompt = turn.prompt[len(base) if base and number == 0 else 0 :]
            n_new = sum(len(sequence.pending) + len(prompt) for sequence in sequences)
            cost.prefill_s += sum(sequence.append(prompt).seconds for sequence in sequences)
            while len(sequences) < n_sequences:
                sequences.append(sequences[0].fork(len(sequences)))
            decode_start = time.perf_counter()
            for phase, tokens in ((None, turn.free), (grammar, turn.grammar)):
                for place in _decode_each(engine, sequences, tokens, phase, drafts=drafts and len(sequences) == 1):
                    if place == 0 and not cost.ttft_s:
                        cost.ttft_s = time.perf_counter() - start
            cost.decode_s += time.perf_counter() - decode_start
            # Of the tokens that are decoded the last is left pending for the next turn.
            cost.n_expected_by_turn.append(n_new + len(sequences) * (len(turn.decoded) - 1))
            cost.n_evaluated_by_turn.append(engine.count_evaluated() - n_before)
        cost.total_s = time.perf_counter() - start
    finally:
        for sequence in sequences:
            sequence.close()
    return cost


def decode_log(
    engine: LlamaEngine, sequences: Sequence[LlamaSequence], tokens: Sequence[int], phase: Grammar | None
) -> float:
    """Decode `tokens` on each of `sequences`, in one batch a step, and draft none; the seconds. Raises as `replay`."""
    start = time.perf_counter()
    for _ in _decode_each(engine, sequences, tokens, phase, drafts=False):
        pass
    return time.perf_counter() - start


def _decode_each(
    engine: LlamaEngine,
    sequences: Sequence[LlamaSequence],
    tokens: Sequence[int],
    phase: Grammar | None,
    *,
    drafts: bool,
) -> Iterator[int]:
    """Decode as `decode_log` does, and yield the place of each token once it is drawn; `drafts`: if the engine does."""
    if not tokens:
        return
    decodings = [sequence.start(phase, len(tokens), frozenset()) for sequence in sequences]
    for place, token in enumerate(tokens):
        engine.evaluate(sequences, decodings[0] if drafts else None)
        for sequence, decoding in zip(sequences, decodings, strict=True):
            assert sequence.logits is not None, "a prompt was evaluated"
            sequence.logits[token] = _CERTAIN
            drawn = sequence.draw(decoding)
            if drawn != token:
                raise ModelError(f"the log's token {token} was refused by the grammar, and {drawn} drawn instead")
        yield place
