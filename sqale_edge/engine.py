"""The engine's interface: tokens in, tokens out. It knows nothing of SQL, and this module nothing of llama.cpp.

A `Sequence` is an append-only log of token ids with the KV cache and recurrent state that belong to it. The log is the
truth: history is never rendered or tokenised again, so each turn evaluates its new tokens and nothing else.

`sqale_edge.llama.LlamaEngine` implements it on llama.cpp, `sqale_edge.remote.engine.RemoteEngine` over a vLLM server,
and `sqale_edge.testing.ScriptedEngine` with scripted decisions.
Not guaranteed: that two engines, or one engine with batches of another shape, draw the same tokens; floating-point sums
differ in the last bits.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Sequence as Collection

    from sqale_edge.settings import SamplingSettings


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a prompt.

    Only in a trusted one can a literal like `<|im_end|>` or `</think>` become the token of that name.
    """

    text: str
    trusted: bool


@dataclasses.dataclass(frozen=True)
class Prefill:
    """What an append cost.

    Attributes:
        n_new: Tokens evaluated now, a token decoded last but not evaluated before among them.
        n_cached: Tokens that the KV cache and recurrent state already held.
        seconds: Wall time.
    """

    n_new: int
    n_cached: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What an engine says about its model.

    Attributes:
        name: For people and records.
        n_ctx: Tokens that one sequence can hold.
        n_vocab: Logits of one position.
        metadata: The GGUF's keys and values as text, arrays left out.
        chat_template: The model's own Jinja template, if it has one.
        bos: The token that every log must start with, if there is one.
        eos_text: The literal that chat templates call `eos_token`; may be empty.
        end_tokens: Tokens that end a turn.
        think_open, think_close: The ids of `<think>` and `</think>`, where the vocabulary has them as single tokens.
        offload: What runs on a GPU, as one sentence.
        sampling: The checkpoint's own sampling settings, or the reference's.
        n_parameters: Numbers in all its tensors; 0 where that is unknown.
        n_sequences: Sequences that can exist at the same time.
        served: What a server says about the model, as plain JSON types; None where it runs in this process.
    """

    name: str
    n_ctx: int
    n_vocab: int
    metadata: dict[str, str]
    chat_template: str | None
    bos: int | None
    eos_text: str
    end_tokens: frozenset[int]
    think_open: int | None
    think_close: int | None
    offload: str
    sampling: SamplingSettings
    n_parameters: int = 0
    n_sequences: int = 1
    served: dict[str, Any] | None = None

    @property
    def thinks(self) -> bool:
        """Whether the vocabulary has a thinking phase."""
        return self.think_open is not None and self.think_close is not None


class Grammar(Protocol):
    """A grammar that the engine compiled; it can be used for any number of decodes."""


@dataclasses.dataclass(kw_only=True)
class Decoding:
    """One decode that is under way: which sequence, under which phase, until when.

    Attributes:
        phase: None for free text, or a compiled grammar.
        max_tokens: Tokens it may produce.
        stop: A token of these is the last one; it stays in the log.
        n_decoded: Tokens produced so far.
        n_refused: Those of them for which no likely candidate passed the grammar, so that all tokens were masked.
        is_done: The stop token came, or `max_tokens` did.
        state: The engine's own: how far the grammar has come.
    """

    sequence: Any
    phase: Grammar | None
    max_tokens: int
    stop: frozenset[int]
    n_decoded: int = 0
    n_refused: int = 0
    is_done: bool = False
    state: Any = None

    def __post_init__(self) -> None:
        self.is_done = self.is_done or self.max_tokens < 1

    def count(self, token: int) -> None:
        """Take note of a token that was drawn."""
        self.n_decoded += 1
        self.is_done = token in self.stop or self.n_decoded >= self.max_tokens


class TokenSequence(Protocol):
    """An append-only token log with its KV cache and recurrent state."""

    @property
    def tokens(self) -> Collection[int]:
        """The log. Nothing in it ever changes; it only grows."""

    def append(self, tokens: Collection[int]) -> Prefill:
        """Put `tokens` at the end of the log and evaluate everything that is not evaluated yet.

        Raises ContextOverflowError before anything is evaluated, DecodeError, Cancelled.
        """

    def decode(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Iterator[int]:
        """Draw token after token.

        Each is in the log when it is yielded. Raises ContextOverflowError, DecodeError, Cancelled.
        """

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """The same decode as a value, for `Engine.decode_batch`."""

    def fork(self, seed: int) -> Self:
        """A second sequence with the same log and state, drawing with another seed. Nothing is evaluated."""

    def snapshot(self) -> bytes:
        """Log, KV cache, recurrent state and logits, for `Engine.restore` and `load`."""

    def load(self, snapshot: bytes, tokens: Collection[int]) -> None:
        """Take over the log and state of `snapshot`; this sequence must be empty, and keeps its own seed and sampling.

        Raises ModelError as `Engine.restore` does, and where the log is not `tokens`; it is empty still.
        """

    def close(self) -> None:
        """Give the sequence's place back. Safe to call twice."""


class BaseSequence(abc.ABC):
    """What the sequences of all engines have in common: `TokenSequence.decode`, with nothing else in the batch."""

    _engine: Any

    @abc.abstractmethod
    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """See `TokenSequence`."""

    def decode(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Iterator[int]:
        """See `TokenSequence`."""
        decoding = self.start(phase, max_tokens, stop)
        while not decoding.is_done:
            yield from self._engine.decode_batch([decoding])


class Engine(Protocol):
    """A loaded model. One call at a time; only `cancel` and `close` may come from another thread meanwhile."""

    @property
    def info(self) -> ModelInfo:
        """What the model is."""

    @property
    def state_key(self) -> str | None:
        """All that the state behind given tokens depends on, to the last bit; None if that is not known."""

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """The tokens of `text`; not trusted, nothing in it can become a control or added token."""

    def tokenize_pieces(self, pieces: Collection[Piece]) -> list[int]:
        """The tokens of the joined pieces.

        Text runs on across a boundary, so that the tokens are those of the whole text.
        """

    def detokenize(self, tokens: Collection[int]) -> bytes:
        """The bytes of `tokens`, control tokens as their literals. Not always whole UTF-8 characters."""

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> Grammar:
        """A grammar in llama.cpp's GBNF, with the rule `root`. Raises GrammarError.

        `phrases` are texts that may well stand in what it accepts. An engine may guess with them, and need not.
        """

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> TokenSequence:
        """An empty sequence. The same seed, settings and log give the same tokens.

        Seeds are whole numbers from 0 to 2**64 - 1, and 0 is one like any other; SettingsError for what is none.
        """

    def restore(self, snapshot: bytes) -> TokenSequence:
        """The sequence that `snapshot` was taken of.

        Raises ModelError for bytes that are damaged or of another model.
        """

    def decode_batch(self, decodings: Collection[Decoding]) -> list[int]:
        """One step.

        Evaluate what is pending of all of them in one batch, draw one token each. None of them may be done.
        """

    def cancel(self) -> None:
        """Stop every sequence that exists now, within one token, from any thread.

        They raise Cancelled and can only be closed.
        """

    def close(self) -> None:
        """Free the model. Safe to call twice, and from any thread: a call under way is stopped and waited for."""
