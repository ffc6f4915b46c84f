"""One turn of the model: a thought under a budget, then tool calls under the grammar, or a final answer as free text.

The generators here yield events, and a `Decoding` whenever they need the next token; whoever drives them answers with
`send(token)`. So one driver can run a single episode and another many of them in one batch, with the same code in
between.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from sqale_edge.engine import Decoding
from sqale_edge.episode import Event, Thought, ToolCall, ToolResult, Turn, Usage, Wrote
from sqale_edge.replies import parse_calls

if TYPE_CHECKING:
    from sqale_edge.engine import Engine, Grammar, Prefill, TokenSequence

Steps = Generator[Event | Decoding, int | None, None]


class OpenTurn:
    """Turn number `number`, being written into `sequence`, whose prompt is evaluated.

    Attributes:
        thought, text: What the model wrote, before and after `</think>`.
        end_token: The end token it closed its turn with; None if its budget ended first.
        calls, results: Kept here by the episode's loop.
        decode_s: Seconds from asking for tokens to having them.
        first_token_at: `time.perf_counter()` when the first token was there.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: TokenSequence,
        number: int,
        prefill: Prefill,
        *,
        grammar: Grammar | None,
        thinks: bool,
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._prefill = prefill
        self._grammar = grammar
        self._thinks = thinks
        self._n_prompt = len(sequence.tokens)
        self._n_refused_before = sequence.n_refused
        self._n_decoded = self._n_forced = 0
        self.number = number
        self.thought = self.text = ""
        self.end_token: int | None = None
        self.calls: tuple[ToolCall, ...] = ()
        self.results: list[ToolResult] = []
        self.decode_s = 0.0
        self.first_token_at: float | None = None

    def write(self, max_tokens: int, call_tokens: int) -> Steps:
        """Decode at most `max_tokens`, of which `call_tokens` are kept for what follows the thought.

        All there is for a model without one.
        """
        info = self._engine.info
        if self._thinks and info.think_close is not None:
            stop = info.end_tokens | {info.think_close}
            self.thought, last = yield from self._decode(Thought, None, max(1, max_tokens - call_tokens), stop)
            if last in info.end_tokens:
                self.end_token = last
                return
            if last is None:
                self._sequence.append([info.think_close])
                self._n_forced += 1
            n_left = max_tokens - self._n_decoded - self._n_forced
        else:
            n_left = min(max_tokens, call_tokens)
        self.text, self.end_token = yield from self._decode(Wrote, self._grammar, n_left, info.end_tokens)

    def _decode(
        self, event: Callable[[int, str], Event], phase: Grammar | None, max_tokens: int, stop: frozenset[int]
    ) -> Generator[Event | Decoding, int | None, tuple[str, int | None]]:
        """Decode until a stop token; the text before it, and that token or None."""
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        decoding = self._sequence.start(phase, max_tokens, stop)
        while not decoding.is_done:
            start = time.perf_counter()
            token = yield decoding
            assert token is not None, "the driver answers every Decoding with a token"
            now = time.perf_counter()
            self.decode_s += now - start
            self.first_token_at = self.first_token_at or now
            self._n_decoded += 1
            if token in stop:
                return text + characters.decode(b"", final=True), token
            piece = characters.decode(self._engine.detokenize([token]))
            text += piece
            if piece:
                yield event(self.number, piece)
                if phase is not None and _ends_with_submit(text):
                    return text, None
        return text + characters.decode(b"", final=True), None

    @property
    def usage(self) -> Usage:
        """The turn's counts so far."""
        return Usage(
            n_prompt=self._n_prompt,
            n_cached=self._prefill.n_cached,
            n_evaluated=self._prefill.n_new,
            n_decoded=self._n_decoded,
            n_forced=self._n_forced,
            n_refused=self._sequence.n_refused - self._n_refused_before,
        )

    def freeze(self) -> Turn:
        """The turn as a value."""
        is_final = self._grammar is None
        return Turn(self.thought, self.text, self.calls, tuple(self.results), is_final, self.usage)


def _ends_with_submit(text: str) -> bool:
    """Whether the calls in `text` end with a whole `submit_sql`.

    What would follow is not run, so it need not be written.
    """
    return text.endswith("}") and parse_calls(text)[-1].name == "submit_sql"
