"""A sequence on llama.cpp: the token log, how much of it is evaluated, and the logits of its last token.

A token that was drawn but not evaluated yet is *pending*: the next append or decode step evaluates it together with
what follows.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge.engine import BaseSequence, Decoding, Prefill
from sqale_edge.errors import ContextOverflowError, ModelError
from sqale_edge.llama import sampling
from sqale_edge.llama.drafts import PromptLookup, guess_phrase
from sqale_edge.settings import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqale_edge.engine import Grammar
    from sqale_edge.llama.engine import LlamaEngine
    from sqale_edge.llama.sampling import Logits

_MAGIC = b"SQALEEDGE-SEQUENCE-1\n"
_HEADER = struct.Struct("<QI")  # bytes of the JSON header, CRC-32 of everything after this


class LlamaSequence(BaseSequence):
    """See `sqale_edge.engine.TokenSequence`. Made by `LlamaEngine`, closed by its owner or with the engine.

    Attributes:
        seq_id: llama.cpp's number for it.
        n_evaluated: Tokens of the log that the KV cache and recurrent state hold.
        logits: Of the last evaluated token, (V,) float32; None until something is evaluated.
        guesses: Tokens that llama.cpp has evaluated behind the log's evaluated ones, each with the logits behind it.
            One that is drawn need not be evaluated any more; `LlamaEngine` takes the others back.
        is_rolled_back: Guesses were taken back, and nothing was evaluated since: llama.cpp goes back at the next step.
        failure: What its next step raises; set by a cancel or a failed evaluation, and final.
    """

    def __init__(self, engine: LlamaEngine, seq_id: int, seed: int, sampling_settings: SamplingSettings) -> None:
        self._engine: LlamaEngine = engine
        self._tokens: list[int] = []
        self.seq_id = seq_id
        self.seed = seed
        self.sampling = sampling_settings
        self.n_evaluated = 0
        self.logits: sampling.Logits | None = None
        self.failure: ModelError | None = None
        self.is_closed = False
        self.guesses: list[tuple[int, sampling.Logits]] = []
        self.is_rolled_back = False
        self._lookup = PromptLookup()
        self._n_looked_up = 0  # of the guesses that were made last

    @property
    def tokens(self) -> Sequence[int]:
        """The log so far, as a copy."""
        return tuple(self._tokens)

    @property
    def pending(self) -> list[int]:
        """Tokens at the end of the log that are not evaluated yet."""
        return self._tokens[self.n_evaluated :]

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Sequence[int]) -> Prefill:
        """Put `tokens` into the log and evaluate all that is pending."""
        self.check_usable()
        self._engine.check_room(self, len(tokens))
        self._engine.check_tokens(tokens)
        start = time.perf_counter()
        n_cached = self.n_evaluated
        self._tokens.extend(tokens)
        self._engine.evaluate([self])
        return Prefill(n_new=self.n_evaluated - n_cached, n_cached=n_cached, seconds=time.perf_counter() - start)

    # Guesses.

    def guess(self, decoding: Decoding, n_most: int) -> list[int]:
        """At most `n_most` tokens that may come behind the log in `decoding`, whose sequence this is."""
        self._n_looked_up = 0
        n_most = min(n_most, decoding.max_tokens - decoding.n_decoded - 1)
        if n_most < 1:
            return []
        if isinstance(decoding.phase, sampling.LlamaGrammar):
            written = self._tokens[len(self._tokens) - decoding.n_decoded :]
            phrase = guess_phrase(written, decoding.phase.phrases, n_most)
            if phrase:
                return phrase
        found = self._lookup.guess(self._tokens, n_most)
        self._n_looked_up = len(found)
        return found

    def take_guesses(self, guesses: list[tuple[int, sampling.Logits]]) -> None:
        """These were evaluated behind the whole log."""
        self.guesses = guesses

    def confirm_guesses(self) -> int:
        """Count those as evaluated that the log has by now. Returns how many; the others stay as they are."""
        n_before = self.n_evaluated
        while self.guesses and self.pending[:1] == [self.guesses[0][0]]:
            _, self.logits = self.guesses.pop(0)
            self.n_evaluated += 1
        if self.n_evaluated > n_before and not self.guesses:
            self._learn()
        return self.n_evaluated - n_before

    def drop_guesses(self) -> None:
        """The others are not evaluated any more."""
        self._learn()
        self.guesses = []
        self.is_rolled_back = True

    def _learn(self) -> None:
        """Tell the lookup how many of its guesses were right: those that are still open are wrong."""
        if self._n_looked_up:
            self._lookup.learn(self._n_looked_up, self._n_looked_up - len(self.guesses))

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """A decode for `LlamaEngine.decode_batch`."""
        self.check_usable()
        state = phase.start() if isinstance(phase, sampling.LlamaGrammar) else None
        return Decoding(sequence=self, phase=phase, max_tokens=max_tokens, stop=stop, state=state)

    def draw(self, decoding: Decoding) -> int:
        """Draw the next token from the logits and put it into the log."""
        if self.logits is None:
            raise ModelError("an empty sequence cannot be decoded: append a prompt first")
        token, was_masked = sampling.sample(self.logits, self.sampling, self.seed, len(self._tokens), decoding.state)
        self._tokens.append(token)
        decoding.n_refused += was_masked
        decoding.count(token)
        return token

    def fork(self, seed: int) -> LlamaSequence:
        """A second sequence with the same log and state."""
        self.check_usable()
        twin = self._engine.new_sequence(seed, self.sampling)
        try:
            self._engine.copy_state(self, twin)
        except BaseException:
            twin.close()
            raise
        twin.take_over(self._tokens, self.n_evaluated, self.logits)
        return twin

    def take_over(self, tokens: Sequence[int], n_evaluated: int, logits: sampling.Logits | None) -> None:
        """Set log and counts to those of another sequence, whose state is already in place."""
        self._tokens = list(tokens)
        self.n_evaluated = n_evaluated
        self.logits = None if logits is None else logits.copy()

    def load(self, snapshot: bytes, tokens: Sequence[int]) -> None:
        """Take over log and state of `snapshot`; see `TokenSequence`."""
        parsed = parse_snapshot(snapshot, self._engine.fingerprint)
        if parsed.tokens != list(tokens):
            raise ModelError(f"the snapshot is of another log, of {len(parsed.tokens)} tokens")
        self.put(parsed)

    def put(self, snapshot: Snapshot) -> None:
        """The same, with a snapshot that was read before."""
        self.check_usable()
        if self._tokens:
            raise ModelError(f"a sequence of {len(self._tokens)} tokens cannot take over a snapshot: it is not empty")
        if len(snapshot.tokens) >= self._engine.info.n_ctx:
            raise ContextOverflowError(
                f"the snapshot has {len(snapshot.tokens)} tokens, the context holds {self._engine.info.n_ctx}"
            )
        if snapshot.n_evaluated:
            self._engine.write_state(self, snapshot.state)
        self.take_over(snapshot.tokens, snapshot.n_evaluated, snapshot.logits)

    def snapshot(self) -> bytes:
        """Everything that `LlamaEngine.restore` needs, with a checksum."""
        self.check_usable()
        header: dict[str, Any] = {
            "model": self._engine.fingerprint,
            "tokens": self._tokens,
            "n_evaluated": self.n_evaluated,
            "seed": self.seed,
            "sampling": [self.sampling.temperature, self.sampling.top_k, self.sampling.top_p],
            "n_logits": 0 if self.logits is None else len(self.logits),
        }
        head = json.dumps(header).encode()
        parts: list[bytes | memoryview] = [
            head,
            b"" if self.logits is None else self.logits.tobytes(),
            self._engine.read_state(self),
        ]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join([_MAGIC, _HEADER.pack(len(head), checksum), *parts])

    def close(self) -> None:
        """Give the place back."""
        if not self.is_closed:
            self.is_closed = True
            self.logits = None
            self._engine.release(self)

    def check_usable(self) -> None:
        """Raise ModelError, or Cancelled, if the sequence can only be closed."""
        if self.failure:
            raise self.failure
        if self.is_closed:
            raise ModelError("the sequence is closed")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a snapshot holds: see `LlamaSequence`. `state` is KV cache and recurrent state in llama.cpp's own form."""

    tokens: list[int]
    n_evaluated: int
    seed: int
    sampling: SamplingSettings
    logits: Logits | None
    state: memoryview


def parse_snapshot(snapshot: bytes, fingerprint: str) -> Snapshot:
    """What is in the bytes of a snapshot.

    Raises ModelError where they are damaged, or of another model or build.
    """
    if not snapshot.startswith(_MAGIC) or len(snapshot) < len(_MAGIC) + _HEADER.size:
        raise ModelError("these bytes are not a snapshot of a sequence")
    n_head, checksum = _HEADER.unpack_from(snapshot, len(_MAGIC))
    body = memoryview(snapshot)[len(_MAGIC) + _HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise ModelError("the snapshot is damaged: its checksum does not match")
    header = json.loads(bytes(body[:n_head]))
    if header["model"] != fingerprint:
        raise ModelError(f"the snapshot is of another model or build: {header['model']!r}, loaded is {fingerprint!r}")
    n_logits = header["n_logits"]
    temperature, top_k, top_p = header["sampling"]
    return Snapshot(
        tokens=header["tokens"],
        n_evaluated=header["n_evaluated"],
        seed=header["seed"],
        sampling=SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p),
        logits=np.frombuffer(body, np.float32, n_logits, offset=n_head).copy() if n_logits else None,
        state=body[n_head + 4 * n_logits :],
    )
