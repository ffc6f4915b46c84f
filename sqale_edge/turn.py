"""One turn of the model: a thought under a budget, then tool calls under the grammar, or a final answer as free text.

The generators here yield events, and a `Decoding` whenever they need the next token; whoever drives them answers with
`send(token)`. So one driver can run a single episode and another many of them in one batch, with the same code in
between.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from sqale_edge.engine import Decoding
from sqale_edge.episode import Event, Thought, ToolCall, ToolResult, Turn, Usage, Wrote
from sqale_edge.replies import parse_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqale_edge.engine import Engine, Grammar, Prefill, TokenSequence

Steps = Generator[Event | Decoding, int | None, None]


class OpenTurn:
    """Turn number `number`, being written into `sequence`, whose prompt is evaluated; `check` raises to stop it.

    Attributes:
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
        check: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._prefill = prefill
        self._grammar = grammar
        self._thinks = thinks
        self._check = check
        self._n_prompt = len(sequence.tokens)
        self._n_decoded = self._n_forced = self._n_refused = 0
        self.number = number
        self._written: dict[type[Event], str] = {Thought: "", Wrote: ""}
        self.end_token: int | None = None
        self.calls: tuple[ToolCall, ...] = ()
        self.results: list[ToolResult] = []
        self.decode_s = 0.0
        self.first_token_at: float | None = None

    def write(self, max_tokens: int, call_tokens: int) -> Steps:
        """Decode at most `max_tokens`, of which `call_tokens` are kept for what follows the thought.

        A model without thoughts gets no more than these for its calls, and all of `max_tokens` for a final answer.
        """
        info = self._engine.info
        if self._thinks and info.think_close is not None:
            stop = info.end_tokens | {info.think_close}
            last = yield from self._decode(Thought, None, max(1, max_tokens - call_tokens), stop)
            if last in info.end_tokens:
                self.end_token = last
                return
            if last is None:
                self.decode_s += self._sequence.append([info.think_close]).seconds
                self._n_forced += 1
            n_left = max_tokens - self._n_decoded - self._n_forced
        else:
            n_left = max_tokens if self._grammar is None else min(max_tokens, call_tokens)
        self.end_token = yield from self._decode(Wrote, self._grammar, n_left, info.end_tokens)

    def _decode(
        self, kind: type[Thought | Wrote], phase: Grammar | None, max_tokens: int, stop: frozenset[int]
    ) -> Generator[Event | Decoding, int | None, int | None]:
        """Decode until a stop token, which is returned, or None where the budget ended first."""
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        last = None
        n_refused_before = self._n_refused
        decoding = self._sequence.start(phase, max_tokens, stop)
        while not decoding.is_done:
            self._check()
            start = time.perf_counter()
            token = yield decoding
            assert token is not None, "the driver answers every Decoding with a token"
            now = time.perf_counter()
            self.decode_s += now - start
            self.first_token_at = self.first_token_at or now
            self._n_decoded += 1
            self._n_refused = n_refused_before + decoding.n_refused
            if token in stop:
                last = token
                break
            yield from self._keep(kind, characters.decode(self._engine.detokenize([token])))
            if phase is not None and _ends_with_submit(self.text):
                break
        yield from self._keep(kind, characters.decode(b"", final=True))
        return last

    def _keep(self, kind: type[Thought | Wrote], piece: str) -> Iterator[Event]:
        """Keep `piece`, also for an episode that is cancelled in the middle of a turn, and say so."""
        self._written[kind] += piece
        if piece:
            yield kind(self.number, piece)

    @property
    def thought(self) -> str:
        """What the model wrote before `</think>`."""
        return self._written[Thought]

    @property
    def text(self) -> str:
        """What it wrote after it."""
        return self._written[Wrote]

    @property
    def usage(self) -> Usage:
        """The turn's counts so far."""
        return Usage(
            n_prompt=self._n_prompt,
            n_cached=self._prefill.n_cached,
            n_evaluated=self._prefill.n_new,
            n_decoded=self._n_decoded,
            n_forced=self._n_forced,
            n_refused=self._n_refused,
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
