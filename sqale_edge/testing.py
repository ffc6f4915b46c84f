"""For testing programs that embed sqale-edge: an engine whose decisions are a script, and a small real database.

Only the model's choices are scripted. Prompts, tools, SQL, budgets and results are the real ones.

Example:
    >>> from sqale_edge import Agent
    >>> script = ['{"tool": "list_tables"}', '{"tool": "submit_sql", "args": {"sql": "SELECT max(total) FROM orders"}}']
    >>> agent = Agent(ScriptedEngine(script))
    >>> agent.run("What was the largest order?", make_shop()).rows
    ((120.0,),)
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqale_edge.engine import BaseSequence, Decoding, ModelInfo, Piece, Prefill
from sqale_edge.errors import Cancelled, ContextOverflowError, ModelError
from sqale_edge.settings import SamplingSettings, check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqale_edge.engine import Grammar

    Script = Sequence[str | Callable[[str], str]]

__all__ = ["ScriptedEngine", "ScriptedSequence", "make_shop"]

_LITERALS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_IDS: Final = {literal: 256 + index for index, literal in enumerate(_LITERALS)}
_END: Final = frozenset({_IDS["<|im_end|>"], _IDS["<|endoftext|>"]})
_PATTERN: Final = re.compile("|".join(map(re.escape, _LITERALS)))


class ScriptedEngine:
    """An `Engine` that writes what it is told, one byte a token. It does not check the text against the grammar.

    Args:
        script: What the model writes, turn by turn: text, or a function of the log's text so far. Where `thinks`, a
            turn is `thought</think>text`. Every turn ends with `<|im_end|>`, unless the turn's budget ends first. A
            function in place of the whole list is called with each sequence's seed.
        thinks: The vocabulary has `<think>` and `</think>`.
        metadata: The model's metadata, for example training texts.
        n_ctx: Tokens that a sequence can hold.
        n_sequences: Sequences that `Agent.run_many` uses at the same time.
    """

    def __init__(
        self,
        script: Script | Callable[[int], Script],
        *,
        thinks: bool = False,
        metadata: dict[str, str] | None = None,
        n_ctx: int = 16_384,
        n_sequences: int = 1,
    ) -> None:
        self.script = script
        self.sequences: list[ScriptedSequence] = []
        self.is_closed = False
        self.info = ModelInfo(
            name="scripted",
            n_ctx=n_ctx,
            n_vocab=256 + len(_LITERALS),
            metadata=metadata or {},
            chat_template=None,
            bos=None,
            eos_text="<|im_end|>",
            end_tokens=_END,
            think_open=_IDS["<think>"] if thinks else None,
            think_close=_IDS["</think>"] if thinks else None,
            offload="nothing to offload",
            sampling=SamplingSettings(),
            n_sequences=n_sequences,
        )

    @property
    def state_key(self) -> None:
        """See `Engine`; a script has no state to keep."""

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """One token a byte; in trusted text a markup literal is one token."""
        tokens: list[int] = []
        start = 0
        for literal in _PATTERN.finditer(text) if trusted else ():
            tokens += [*text[start : literal.start()].encode("utf-8", "replace"), _IDS[literal.group()]]
            start = literal.end()
        return tokens + list(text[start:].encode("utf-8", "replace"))

    def tokenize_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Engine`."""
        return [token for piece in pieces for token in self.tokenize(piece.text, piece.trusted)]

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """See `Engine`."""
        return b"".join(bytes([token]) if token < 256 else _LITERALS[token - 256].encode() for token in tokens)

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> Grammar:
        """See `Engine`; the grammar is not used."""
        del phrases
        return gbnf

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> ScriptedSequence:
        """See `Engine`. Each sequence plays the script from its start."""
        del sampling
        check_seed(seed)
        if self.is_closed:
            raise ModelError("the engine is closed")
        sequence = ScriptedSequence(self, seed)
        self.sequences.append(sequence)
        return sequence

    def restore(self, snapshot: bytes) -> ScriptedSequence:
        """See `Engine`; a script has no state to restore."""
        raise ModelError(f"a scripted engine has no snapshots, and {len(snapshot)} bytes were given")

    def decode_batch(self, decodings: Sequence[Decoding]) -> list[int]:
        """See `Engine`."""
        if any(decoding.is_done for decoding in decodings):
            raise ModelError("a decoding that is done cannot go on")
        return [decoding.sequence.draw(decoding) for decoding in decodings]

    def cancel(self) -> None:
        """See `Engine`."""
        for sequence in self.sequences:
            sequence.is_cancelled = True

    def close(self) -> None:
        """See `Engine`."""
        self.is_closed = True
        for sequence in self.sequences:
            sequence.close()


class ScriptedSequence(BaseSequence):
    """A token log that plays the engine's script. `log_text` is the log as text, for assertions."""

    def __init__(self, engine: ScriptedEngine, seed: int = 0) -> None:
        self._engine: ScriptedEngine = engine
        self._script = engine.script(seed) if callable(engine.script) else engine.script
        self._tokens: list[int] = []
        self._turn = 0
        self._queue: list[int] = []
        self.n_evaluated = 0
        self.is_cancelled = self.is_closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """See `TokenSequence`."""
        return tuple(self._tokens)

    @property
    def log_text(self) -> str:
        """The whole log as text."""
        return self._engine.detokenize(self._tokens).decode("utf-8", "replace")

    def append(self, tokens: Sequence[int]) -> Prefill:
        """See `TokenSequence`."""
        self._check(n_more=len(tokens))
        if list(tokens) == [_IDS["</think>"]] and tokens[0] in self._queue:
            # The thought was closed for it; the script goes on behind its own close.
            del self._queue[: self._queue.index(tokens[0]) + 1]
        elif list(tokens) != [_IDS["</think>"]]:
            self._queue.clear()
        n_cached = self.n_evaluated
        self._tokens.extend(tokens)
        self.n_evaluated = len(self._tokens)
        return Prefill(n_new=self.n_evaluated - n_cached, n_cached=n_cached, seconds=0.0)

    def start(self, phase: Grammar | None, max_tokens: int, stop: frozenset[int]) -> Decoding:
        """See `TokenSequence`."""
        self._check()
        return Decoding(sequence=self, phase=phase, max_tokens=max_tokens, stop=stop)

    def draw(self, decoding: Decoding) -> int:
        """The script's next token."""
        self._check(n_more=1)
        if not self._queue:
            self._begin_turn(decoding)
        token = self._queue.pop(0)
        self.n_evaluated = len(self._tokens)
        self._tokens.append(token)
        decoding.count(token)
        return token

    def _begin_turn(self, decoding: Decoding) -> None:
        if decoding.n_decoded:
            raise ModelError("the script's turn has ended, and more of it is asked for")
        if self._turn == len(self._script):
            raise ModelError(f"the script has {self._turn} turns, and another one is asked for")
        written = self._script[self._turn]
        self._turn += 1
        text = written if isinstance(written, str) else written(self.log_text)
        self._queue = [*self._engine.tokenize(text, trusted=True), _IDS["<|im_end|>"]]

    def fork(self, seed: int) -> ScriptedSequence:
        """See `TokenSequence`."""
        self._check()
        twin = self._engine.new_sequence(seed)
        twin._tokens, twin.n_evaluated = list(self._tokens), self.n_evaluated  # noqa: SLF001 - its own class
        twin._turn, twin._queue = self._turn, list(self._queue)  # noqa: SLF001 - its own class
        return twin

    def snapshot(self) -> bytes:
        """See `TokenSequence`; a script has no state to save."""
        raise ModelError("a scripted engine has no snapshots")

    def load(self, snapshot: bytes, tokens: Sequence[int]) -> None:
        """See `TokenSequence`; a script has no state to take over."""
        raise ModelError(f"a scripted engine has no snapshots, and {len(snapshot)} bytes for {len(tokens)} were given")

    def close(self) -> None:
        """See `TokenSequence`."""
        self.is_closed = True

    def _check(self, n_more: int = 0) -> None:
        if self.is_cancelled:
            raise Cancelled("the sequence was cancelled")
        if self.is_closed:
            raise ModelError("the sequence is closed")
        if len(self._tokens) + n_more > self._engine.info.n_ctx:
            raise ContextOverflowError(
                f"{len(self._tokens)} tokens and {n_more} more do not fit into {self._engine.info.n_ctx}"
            )


def make_shop(path: str | Path | None = None) -> Path:
    """Write a small shop database to `path`, or to a new temporary file, and return where it is."""
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="shop-")) / "shop.sqlite"
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(_SHOP)
    connection.close()
    return Path(path)


_SHOP: Final = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers(id),
    ordered_on TEXT NOT NULL,
    total REAL
);
INSERT INTO customers VALUES (1, 'Ada', 'London'), (2, 'Grace', 'New York'), (3, 'Edsger', 'Austin'), (4, 'Barbara',
NULL); INSERT INTO orders VALUES
    (1, 1, '2024-01-15', 25.5), (2, 1, '2024-02-03', 120.0), (3, 2, '2024-02-10', 80.25),
    (4, 1, '2024-03-21', 15.0), (5, 3, '2025-01-02', 60.0), (6, 2, '2025-04-30', NULL);
"""
