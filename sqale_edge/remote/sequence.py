"""One question's log on a vLLM server: only the log is kept here, and a decode is one completion of it."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from sqale_edge.engine import BaseSequence, Decoding, Prefill
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError
from sqale_edge.remote.completion import Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqale_edge.engine import Grammar
    from sqale_edge.remote.engine import RemoteEngine
    from sqale_edge.settings import SamplingSettings

_NO_STATE = "the state of a log is in the vLLM server, and cannot be taken out"


class RemoteSequence(BaseSequence):
    """See `sqale_edge.engine.TokenSequence`: a log of tokens, whose state is the server's business.

    Attributes:
        n_seen: Tokens of the log that the server has evaluated.
    """

    def __init__(self, engine: RemoteEngine, seed: int, sampling: SamplingSettings) -> None:
        self._engine: RemoteEngine = engine
        self._tokens: list[int] = []
        self._completion: Completion | None = None
        self._decoding: Decoding | None = None
        self._failure: ModelError | None = None
        self._lock = threading.RLock()
        self.seed, self.sampling = seed, sampling
        self.n_seen = 0
        self.is_closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """The log so far, as a copy."""
        return tuple(self._tokens)

    def append(self, tokens: Sequence[int]) -> Prefill:
        """Put `tokens` into the log; they are sent with the next decode, whose first token waits for them.

        So no time is counted here, and `n_cached` is what the server has evaluated of this log, if it keeps that.
        """
        self._check_usable()
        self._check_room(len(tokens))
        self._engine.check_tokens(tokens)
        self._give_up_completion()
        self._tokens.extend(tokens)
        n_cached = self.n_seen if self._engine.served.caches_prefixes else 0
        self.n_seen = len(self._tokens)
        return Prefill(n_new=len(self._tokens) - n_cached, n_cached=n_cached, seconds=0.0)

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """A decode for `RemoteEngine.decode_batch`."""
        self._check_usable()
        return Decoding(sequence=self, phase=phase, max_tokens=max_tokens, stop=stop)

    def ask(self, decoding: Decoding) -> None:
        """Send the request of `decoding`, unless its tokens are coming already."""
        self._check_usable()
        self._check_room(1)
        if self._completion is not None and self._decoding is decoding:
            return
        self._give_up_completion()
        if not self._tokens:
            raise ModelError("an empty sequence cannot be decoded: append a prompt first")
        n_most = min(decoding.max_tokens - decoding.n_decoded, self._engine.info.n_ctx - len(self._tokens))
        seed = derive_seed(self.seed, len(self._tokens))
        body = self._engine.make_request(self._tokens, self.sampling, seed, n_most, decoding.stop)
        with self._lock:
            self._check_usable()
            self._completion, self._decoding = Completion(self._engine.server, body), decoding
        self._completion.send()

    def draw(self, decoding: Decoding) -> int:
        """The next token of the completion that was asked for, put into the log."""
        assert self._completion is not None, "asked for before"
        try:
            token = self._completion.next()
        except Cancelled:
            self._check_usable()
            raise
        self._check_usable()
        self._engine.check_tokens([token])
        self.n_seen = len(self._tokens)  # this token itself is evaluated for the next
        self._tokens.append(token)
        decoding.count(token)
        if decoding.is_done:
            self._give_up_completion()
        return token

    def fork(self, seed: int) -> RemoteSequence:
        """A second sequence with the same log."""
        self._check_usable()
        twin = self._engine.new_sequence(seed, self.sampling)
        twin._tokens, twin.n_seen = list(self._tokens), self.n_seen  # noqa: SLF001 - its own class
        return twin

    def snapshot(self) -> bytes:
        """See `TokenSequence`; there is none."""
        raise ModelError(_NO_STATE)

    def load(self, snapshot: bytes, tokens: Sequence[int]) -> None:
        """See `TokenSequence`; there is none."""
        raise ModelError(f"{_NO_STATE}; {len(snapshot)} bytes for {len(tokens)} tokens were given")

    def close(self) -> None:
        """Give the place back; the server stops writing."""
        if not self.is_closed:
            self.is_closed = True
            self._give_up_completion()
            self._engine.release(self)

    def stop(self, failure: ModelError) -> None:
        """Let its next step, or the one under way, raise `failure`. From any thread."""
        with self._lock:
            self._failure = self._failure or failure
            if self._completion is not None:
                self._completion.give_up()

    def fail(self, error: ModelError) -> None:
        """It can only be closed from now on."""
        self._failure = self._failure or error
        self._give_up_completion()

    def _give_up_completion(self) -> None:
        with self._lock:
            completion, self._completion, self._decoding = self._completion, None, None
        if completion is not None:
            completion.close()

    def _check_usable(self) -> None:
        if self._failure:
            raise self._failure
        if self.is_closed:
            raise ModelError("the sequence is closed")

    def _check_room(self, n_more: int) -> None:
        n_ctx = self._engine.info.n_ctx
        if len(self._tokens) + n_more > n_ctx:
            raise ContextOverflowError(
                f"{len(self._tokens)} tokens and {n_more} more do not fit into the context of {n_ctx}",
                hint="load the model with a larger n_ctx (SQALE_EDGE_N_CTX)",
            )


def derive_seed(seed: int, position: int) -> int:
    """The seed of the request for what follows `position` tokens: one for all would repeat its random numbers."""
    digest = hashlib.sha256(f"{seed}/{position}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # vLLM takes what fits into a signed 64-bit number
