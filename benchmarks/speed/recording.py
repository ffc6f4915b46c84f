"""An engine that writes what a script says, with the tokens of a real one, and keeps what it was given.

So a token log comes about as every episode does: real prompts, tools, budgets and results; only the model's decisions
are a script. Nothing is evaluated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqale_edge.engine import BaseSequence, Decoding, Prefill
from sqale_edge.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqale_edge.engine import Engine, Grammar, ModelInfo, Piece
    from sqale_edge.settings import SamplingSettings


@dataclasses.dataclass
class Step:
    """A prompt that was appended, or tokens that were decoded.

    Attributes:
        kind: `prompt`; `free` for decoded text without a grammar, `grammar` for text under it.
        tokens: In order.
    """

    kind: str
    tokens: list[int] = dataclasses.field(default_factory=list)


class RecordingEngine:
    """An `Engine` with the tokens of `engine`, that writes `script`, one text a turn.

    Attributes:
        steps: What happened on the one sequence, in order.
    """

    def __init__(self, engine: Engine, script: Sequence[str]) -> None:
        self._engine = engine
        self._script = list(script)
        self._queue: list[int] = []
        self.steps: list[Step] = []

    @property
    def info(self) -> ModelInfo:
        """The real engine's."""
        return self._engine.info

    @property
    def state_key(self) -> None:
        """There is no state that could be kept."""

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """The real engine's."""
        return self._engine.tokenize(text, trusted)

    def tokenize_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """The real engine's."""
        return self._engine.tokenize_pieces(pieces)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The real engine's."""
        return self._engine.detokenize(tokens)

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> Grammar:
        """The real engine's."""
        return self._engine.compile_grammar(gbnf, phrases)

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> RecordingSequence:
        """See `Engine`."""
        del seed, sampling
        return RecordingSequence(self)

    def restore(self, snapshot: bytes) -> RecordingSequence:
        """See `Engine`; there is no state to restore."""
        raise ModelError(f"nothing is evaluated here, and {len(snapshot)} bytes of state were given")

    def decode_batch(self, decodings: Sequence[Decoding]) -> list[int]:
        """See `Engine`."""
        return [decoding.sequence.draw(decoding) for decoding in decodings]

    def next_token(self) -> int:
        """The script's next token; behind each text comes the end of the turn."""
        if not self._queue:
            if not self._script:
                raise ModelError("the script has ended, and another turn is asked for")
            self._queue = [*self.tokenize(self._script.pop(0), trusted=True), self._end_token()]
        return self._queue.pop(0)

    def end_turn(self) -> None:
        """Forget what is left of the turn's text."""
        self._queue.clear()

    def _end_token(self) -> int:
        """The one that the model's template ends turns with, as far as that can be told."""
        known = [token for token in sorted(self.info.end_tokens) if self.detokenize([token]) == b"<|im_end|>"]
        return known[0] if known else min(self.info.end_tokens)

    def cancel(self) -> None:
        """See `Engine`; a script is short."""

    def close(self) -> None:
        """See `Engine`; the real engine stays open."""


class RecordingSequence(BaseSequence):
    """The log of the one episode."""

    _engine: RecordingEngine

    def __init__(self, engine: RecordingEngine) -> None:
        self._engine = engine
        self._tokens: list[int] = []
        self._n_evaluated = 0

    @property
    def tokens(self) -> Sequence[int]:
        """See `TokenSequence`."""
        return tuple(self._tokens)

    def append(self, tokens: Sequence[int]) -> Prefill:
        """See `TokenSequence`."""
        self._engine.end_turn()
        self._engine.steps.append(Step("prompt", list(tokens)))
        n_cached, self._n_evaluated = self._n_evaluated, len(self._tokens) + len(tokens)
        self._tokens.extend(tokens)
        return Prefill(n_new=self._n_evaluated - n_cached, n_cached=n_cached, seconds=0.0)

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """See `TokenSequence`."""
        self._engine.steps.append(Step("free" if phase is None else "grammar"))
        return Decoding(sequence=self, phase=phase, max_tokens=max_tokens, stop=stop)

    def draw(self, decoding: Decoding) -> int:
        """The script's next token."""
        token = self._engine.next_token()
        self._engine.steps[-1].tokens.append(token)
        self._n_evaluated = len(self._tokens)
        self._tokens.append(token)
        decoding.count(token)
        return token

    def fork(self, seed: int) -> RecordingSequence:
        """See `TokenSequence`; a log is of one sequence."""
        raise ModelError(f"a log is of one sequence, and a fork with seed {seed} was asked for")

    def snapshot(self) -> bytes:
        """See `TokenSequence`; there is no state to save."""
        raise ModelError("nothing is evaluated here: there is no state to save")

    def load(self, snapshot: bytes, tokens: Sequence[int]) -> None:
        """See `TokenSequence`; there is no state that could be taken over."""
        raise ModelError(f"nothing is evaluated here, and {len(snapshot)} bytes of {len(tokens)} tokens were given")

    def close(self) -> None:
        """See `TokenSequence`."""
