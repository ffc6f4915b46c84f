"""An engine that writes what a teacher tells it, in the demo's vocabulary, and remembers who wrote which token.

`sqale_edge.Agent` runs on it as on any engine. So a training episode is the token log of a real episode: its prompts,
results, budgets and limits are those that the trained model will meet, whatever changes in the agent.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from prompt import CHAT_TEMPLATE, read_metadata

from sqale_edge.engine import BaseSequence, Decoding, ModelInfo, Prefill
from sqale_edge.errors import Cancelled
from sqale_edge.settings import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from vocabulary import Vocabulary

    from sqale_edge.engine import Grammar, Piece


@dataclasses.dataclass(frozen=True)
class Turn:
    """What is written in one turn: a thought, then calls or a final answer.

    Attributes:
        is_lesson: Worth learning; a turn that is made to fail is not.
    """

    thought: str
    text: str
    is_lesson: bool = True


class TeacherEngine:
    """An `Engine`. Put what is to be written into `script`, run an agent on it, and find the log in `log`."""

    state_key = None  # there is no state

    def __init__(self, vocabulary: Vocabulary, n_ctx: int = 16_384) -> None:
        self.vocabulary = vocabulary
        self.script: list[Turn] = []
        self.log = TeacherSequence(self)
        self.info = ModelInfo(
            name="teacher",
            n_ctx=n_ctx,
            n_vocab=vocabulary.n_tokens,
            metadata=read_metadata(),
            chat_template=CHAT_TEMPLATE,
            bos=None,
            eos_text="<|im_end|>",
            end_tokens=frozenset({vocabulary.end_token, vocabulary.ids["<|endoftext|>"]}),
            think_open=vocabulary.ids["<think>"],
            think_close=vocabulary.think_close,
            offload="nothing to offload",
            sampling=SamplingSettings(),
        )

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """See `Engine`."""
        return self.vocabulary.encode(text, trusted=trusted)

    def tokenize_pieces(self, pieces: Collection[Piece]) -> list[int]:
        """See `Engine`."""
        return self.vocabulary.encode_pieces(pieces)

    def detokenize(self, tokens: Collection[int]) -> bytes:
        """See `Engine`."""
        return self.vocabulary.decode(tokens)

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> Grammar:
        """See `Engine`; the teacher needs none."""
        del phrases
        return gbnf

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> TeacherSequence:
        """See `Engine`."""
        del seed, sampling
        self.log = TeacherSequence(self)
        return self.log

    def restore(self, snapshot: bytes) -> TeacherSequence:
        """See `Engine`; there is no state."""
        raise NotImplementedError(f"{len(snapshot)} bytes")

    def decode_batch(self, decodings: Collection[Decoding]) -> list[int]:
        """See `Engine`."""
        return [decoding.sequence.draw(decoding) for decoding in decodings]

    def cancel(self) -> None:
        """See `Engine`."""
        self.log.is_cancelled = True

    def close(self) -> None:
        """See `Engine`."""

    def encode_turn(self, turn: Turn) -> list[int]:
        """The tokens of a turn, as a model would write them."""
        thought, text = (self.vocabulary.encode(part, trusted=False) for part in (turn.thought, f"\n\n{turn.text}"))
        return [*thought, self.vocabulary.think_close, *text, self.vocabulary.end_token]


class TeacherSequence(BaseSequence):
    """A token log. `writers` says for each token which turn of the script it is from; None for prompts."""

    def __init__(self, engine: TeacherEngine) -> None:
        self._engine: TeacherEngine = engine
        self._queue: list[int] = []
        self._n_turns = 0
        self.tokens: list[int] = []
        self.writers: list[int | None] = []
        self.is_cancelled = False

    def append(self, tokens: Collection[int]) -> Prefill:
        """See `TokenSequence`."""
        n_cached = len(self.tokens)
        self.tokens += tokens
        self.writers += [None] * len(tokens)
        self._queue = []
        return Prefill(n_new=len(tokens), n_cached=n_cached, seconds=0.0)

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """See `TokenSequence`."""
        if not self._queue:
            self._queue = self._engine.encode_turn(self._engine.script[self._n_turns])
            self._n_turns += 1
        return Decoding(sequence=self, phase=phase, max_tokens=max_tokens, stop=stop)

    def draw(self, decoding: Decoding) -> int:
        """The next token of the script."""
        if self.is_cancelled:
            raise Cancelled("the sequence was cancelled")
        token = self._queue.pop(0)
        self.tokens.append(token)
        self.writers.append(self._n_turns - 1)
        decoding.count(token)
        return token

    def fork(self, seed: int) -> TeacherSequence:
        """See `TokenSequence`; a script is played once."""
        raise NotImplementedError(str(seed))

    def snapshot(self) -> bytes:
        """See `TokenSequence`; there is no state."""
        raise NotImplementedError

    def load(self, snapshot: bytes, tokens: Collection[int]) -> None:
        """See `TokenSequence`; there is no state."""
        raise NotImplementedError(f"{len(snapshot)} bytes for {len(tokens)} tokens")

    def close(self) -> None:
        """See `TokenSequence`."""
