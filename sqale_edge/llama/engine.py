"""The engine on llama.cpp's low-level interface: one context, several sequences, each token evaluated once."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from sqale_edge.engine import Piece
from sqale_edge.errors import Cancelled, ContextOverflowError, DecodeError, ModelError
from sqale_edge.exclusive import Exclusive
from sqale_edge.llama import bindings, threads
from sqale_edge.llama.identity import FileIdentity, identify_build, identify_file
from sqale_edge.llama.model import LlamaModel, sample_digest
from sqale_edge.llama.sampling import LlamaGrammar
from sqale_edge.llama.sequence import LlamaSequence, parse_snapshot
from sqale_edge.settings import EngineSettings, SamplingSettings, check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqale_edge.engine import Decoding
    from sqale_edge.llama.sampling import Logits

_WHOLE = -1  # "from the first to the last position", in llama.cpp's memory calls


@dataclasses.dataclass(frozen=True)
class _Step:
    """One token of a batch."""

    sequence: LlamaSequence
    position: int
    token: int
    wants_logits: bool
    is_guess: bool = False


class LlamaEngine:
    """See `sqale_edge.engine.Engine`.

    Attributes:
        load_s: Seconds that loading took.
        n_threads, n_threads_batch: Threads for decoding and for prefilling.
        n_guessed, n_guesses_right: Tokens that were drafted since loading, and those of them that were drawn then.
        fingerprint: What a snapshot depends on, as text: the model, told apart by samples of its file, and the build.
        state_key: See `Engine`. None where the model's file changed while it was loaded, or libraries are not found.
    """

    def __init__(
        self,
        path: str | Path,
        settings: EngineSettings | None = None,
        *,
        on_progress: Callable[[float], bool] | None = None,
    ) -> None:
        start = time.perf_counter()
        self._settings = settings or EngineSettings()
        file = identify_file(Path(path))
        self._model = LlamaModel(Path(path), self._settings, on_progress=on_progress)
        # Guards abort flag and sequences against `cancel`, which a signal handler may call in this thread.
        self._lock = threading.RLock()
        self._work = Exclusive(self._free)  # whoever calls llama.cpp is inside
        self._open: dict[int, LlamaSequence] = {}
        self._abort_flag = bindings.AbortFlag()
        self.n_guessed = self.n_guesses_right = 0
        try:
            self.info = self._model.describe(self._settings.n_ctx, self._settings.n_sequences)
            self.fingerprint = self._make_fingerprint()
            self._context = self._make_context()
        except BaseException:
            self._model.close()
            raise
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._n_guesses = self._count_guesses()
        self._batch = llama_cpp.llama_batch_init(self._settings.n_batch, 0, 1)
        self.state_key = self._make_state_key(file) if file == identify_file(Path(path)) else None
        self.load_s = time.perf_counter() - start

    def _make_context(self) -> Any:
        settings = self._settings
        self.n_threads, self.n_threads_batch = threads.choose_threads(settings)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.n_ctx * settings.n_sequences
        params.n_batch = params.n_ubatch = settings.n_batch
        params.n_seq_max = settings.n_sequences
        params.n_outputs_max = max(settings.n_sequences, settings.n_guesses + 1)
        params.n_rs_seq = settings.n_guesses  # states to go back to, as far as the last batch goes
        params.kv_unified = True  # a fork shares its prefix's cells
        params.n_threads, params.n_threads_batch = self.n_threads, self.n_threads_batch
        params.no_perf = False
        self._abort_flag.attach_to(params)
        return bindings.make_context(self._model.pointer, params, self._model.path)

    def _count_guesses(self) -> int:
        """Tokens that may be guessed; of recurrent layers llama.cpp keeps earlier states for some models alone."""
        n_guesses, model = self._settings.n_guesses, self._model.pointer
        is_recurrent = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        return min(n_guesses, llama_cpp.llama_n_rs_seq(self._context)) if is_recurrent else n_guesses

    def _make_fingerprint(self) -> str:
        model = self._model
        description = bindings.read_text(llama_cpp.llama_model_desc, model.pointer)
        size, n_params = llama_cpp.llama_model_size(model.pointer), llama_cpp.llama_model_n_params(model.pointer)
        build = f"{llama_cpp.__version__}/{(llama_cpp.llama_version() or b'').decode()}"
        name, digest = model.metadata.get("general.name"), sample_digest(model.path)
        return f"{name}, {description}, {n_params} parameters in {size} bytes ({digest}), llama-cpp-python {build}"

    def _make_state_key(self, file: FileIdentity | None) -> str | None:
        """All settings count: sums depend on sizes of batches, and on threads where a batch is a single token."""
        settings = dataclasses.asdict(self._settings) | {"n_draft": self._settings.n_guesses}
        threads_used = [self.n_threads, self.n_threads_batch]
        build = identify_build()
        return json.dumps([self.fingerprint, file, build, settings, threads_used]) if file and build else None

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Call llama.cpp in the block, one thread at a time. Raises ModelError after `close`: its memory is freed."""
        with self._work.work():
            if self._work.is_closed:
                raise ModelError("the engine is closed")
            yield

    # Text and grammar.

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """See `Engine`."""
        return self.tokenize_pieces([Piece(text, trusted)])

    def tokenize_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Engine`."""
        with self._working():
            return self._model.vocabulary.tokenize(pieces)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """See `Engine`."""
        with self._working():
            self.check_tokens(tokens)
            return b"".join(map(self._model.vocabulary.piece, tokens))

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> LlamaGrammar:
        """See `Engine`."""
        with self._working():
            return LlamaGrammar(self._model.vocabulary, self._model.vocabulary_pointer, gbnf, phrases)

    # Sequences.

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> LlamaSequence:
        """See `Engine`. Raises ModelError when all `n_sequences` places are taken, SettingsError for a wrong seed."""
        seed = check_seed(seed)
        with self._working(), self._lock:
            free = next((i for i in range(self._settings.n_sequences) if i not in self._open), None)
            if free is None:
                raise ModelError(
                    f"all {self._settings.n_sequences} sequences of the engine are in use",
                    hint="close one, or load the model with a larger EngineSettings.n_sequences",
                )
            sequence = self._open[free] = LlamaSequence(self, free, seed, sampling or self.info.sampling)
        return sequence

    def restore(self, snapshot: bytes) -> LlamaSequence:
        """See `Engine`."""
        parsed = parse_snapshot(snapshot, self.fingerprint)
        sequence = self.new_sequence(parsed.seed, parsed.sampling)
        try:
            sequence.put(parsed)
        except BaseException:
            sequence.close()
            raise
        return sequence

    def read_state(self, sequence: LlamaSequence) -> memoryview:
        """KV cache and recurrent state of `sequence`, in llama.cpp's own form."""
        with self._working():
            self._take_back_guesses()
            size = llama_cpp.llama_state_seq_get_size(self._context, sequence.seq_id)
            buffer = (ctypes.c_uint8 * size)()
            n_written = llama_cpp.llama_state_seq_get_data(self._context, buffer, size, sequence.seq_id)
        if n_written != size:
            raise ModelError(f"llama.cpp wrote {n_written} bytes of a state of {size}")
        return memoryview(buffer).cast("B")

    def write_state(self, sequence: LlamaSequence, state: memoryview) -> None:
        """Let `sequence`, which is empty, have what `read_state` gave; it is empty still where that fails.

        llama.cpp checks sizes and types, not values: only bytes that have passed a checksum belong here.
        """
        data = np.frombuffer(state, np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        with self._working():
            self._take_back_guesses()
            n_read = llama_cpp.llama_state_seq_set_data(self._context, pointer, len(data), sequence.seq_id)
            if not n_read or n_read != len(data):
                llama_cpp.llama_memory_seq_rm(self._memory, sequence.seq_id, _WHOLE, _WHOLE)
                raise ModelError("llama.cpp does not accept the snapshot's state")

    def copy_state(self, source: LlamaSequence, target: LlamaSequence) -> None:
        """Let `target`, which is empty, have the KV cache and recurrent state of `source`."""
        with self._working():
            self._take_back_guesses()
            if source.is_rolled_back:  # llama.cpp would copy the recurrent state behind the guesses
                self.write_state(target, self.read_state(source))
            else:
                llama_cpp.llama_memory_seq_cp(self._memory, source.seq_id, target.seq_id, _WHOLE, _WHOLE)

    def release(self, sequence: LlamaSequence) -> None:
        """Forget the state of a sequence that is being closed."""
        with self._work.work(), self._lock:
            if self._open.get(sequence.seq_id) is not sequence:
                return
            del self._open[sequence.seq_id]
            if not llama_cpp.llama_memory_seq_rm(self._memory, sequence.seq_id, _WHOLE, _WHOLE):
                raise ModelError(f"llama.cpp could not drop sequence {sequence.seq_id}")

    # Evaluation.

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ModelError for an id that the vocabulary does not have; llama.cpp would read past its end."""
        bad = next((token for token in tokens if not 0 <= token < self.info.n_vocab), None)
        if bad is not None:
            raise ModelError(f"token {bad!r} is not in the vocabulary of {self.info.n_vocab}")

    def check_room(self, sequence: LlamaSequence, n_more: int) -> None:
        """Raise ContextOverflowError unless `n_more` tokens fit into `sequence`."""
        if len(sequence) + n_more > self.info.n_ctx:
            raise ContextOverflowError(
                f"{len(sequence)} tokens and {n_more} more do not fit into a context of {self.info.n_ctx}",
                hint="load the model with a larger n_ctx (SQALE_EDGE_N_CTX)",
            )

    def decode_batch(self, decodings: Sequence[Decoding]) -> list[int]:
        """See `Engine`. Of a single one what may follow is guessed, and evaluated in the same batch."""
        for decoding in decodings:
            if decoding.is_done:
                raise ModelError("a decoding that is done cannot go on")
            decoding.sequence.check_usable()
            self.check_room(decoding.sequence, 1)
        with self._working():
            self.evaluate([decoding.sequence for decoding in decodings], decodings[0] if len(decodings) == 1 else None)
            return [decoding.sequence.draw(decoding) for decoding in decodings]

    def evaluate(self, sequences: Sequence[LlamaSequence], guessing: Decoding | None = None) -> None:
        """Evaluate what is pending of each, `n_batch` tokens at a time, and keep the logits of each one's last token.

        A failure is final for every sequence that took part: nobody knows how much of it was evaluated.

        Args:
            sequences: Each once.
            guessing: The decode of the first one, behind which tokens may be guessed if nothing else is evaluated.
        """
        for sequence in sequences:
            self.n_guesses_right += sequence.confirm_guesses()
        work = [
            _Step(sequence, position, token, wants_logits=position == len(sequence) - 1)
            for sequence in sequences
            for position, token in enumerate(sequence.pending, sequence.n_evaluated)
        ]
        if not work:
            return
        try:
            with self._working():
                self._take_back_guesses()
            if len(work) == 1 and guessing:
                work += self._guess(guessing)
            for start in range(0, len(work), self._settings.n_batch):
                with self._working():
                    self._evaluate_batch(sequences, work[start : start + self._settings.n_batch])
        except ModelError as error:
            for sequence in sequences:
                sequence.failure = sequence.failure or error
            raise

    def _guess(self, decoding: Decoding) -> list[_Step]:
        """Steps behind the log of the decode's sequence."""
        sequence = decoding.sequence
        n_room = min(self.info.n_ctx - len(sequence), self._n_guesses)
        tokens = sequence.guess(decoding, n_room)
        self.n_guessed += len(tokens)
        steps = enumerate(tokens, len(sequence))
        return [_Step(sequence, position, token, wants_logits=True, is_guess=True) for position, token in steps]

    def _take_back_guesses(self) -> None:
        """Let llama.cpp forget the guesses that are still open; it can as long as no other batch has been evaluated."""
        for sequence in self._open.values():
            if sequence.guesses:
                sequence.drop_guesses()
                if not llama_cpp.llama_memory_seq_rm(self._memory, sequence.seq_id, sequence.n_evaluated, _WHOLE):
                    error = DecodeError("llama.cpp could not take back drafted tokens")
                    sequence.failure = sequence.failure or error
                    raise error

    def _evaluate_batch(self, sequences: Sequence[LlamaSequence], work: Sequence[_Step]) -> None:
        batch = self._batch
        batch.n_tokens = len(work)
        for index, step in enumerate(work):
            batch.token[index], batch.pos[index] = step.token, step.position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, step.sequence.seq_id
            batch.logits[index] = step.wants_logits
        with self._lock:
            for sequence in sequences:
                sequence.check_usable()
            self._abort_flag.clear()
        bindings.forget_errors()
        bindings.check_decode(llama_cpp.llama_decode(self._context, batch))
        guesses = []
        for index, step in enumerate(work):
            if step.is_guess:
                guesses.append((step.token, self._read_logits(index)))
                continue
            step.sequence.n_evaluated += 1
            step.sequence.is_rolled_back = False
            if step.wants_logits:
                step.sequence.logits = self._read_logits(index)
        if guesses:
            work[0].sequence.take_guesses(guesses)

    def _read_logits(self, index: int) -> Logits:
        """Those behind token `index` of the last batch, (V,) float32."""
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(logits, (self.info.n_vocab,)).copy()

    def count_evaluated(self) -> int:
        """Tokens that llama.cpp itself says it has evaluated since the model was loaded.

        It reports at least 1 for prompts and for single tokens each, so only differences count, and only once there was
        one of both.
        """
        with self._working():
            llama_cpp.llama_synchronize(self._context)
            counters = llama_cpp.llama_perf_context(self._context)
        return int(counters.n_p_eval + counters.n_eval)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Decode and prefill with so many threads from now on."""
        with self._working():
            llama_cpp.llama_set_n_threads(self._context, n_threads, n_threads_batch)
            self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def cancel(self) -> None:
        """See `Engine`."""
        self._stop(Cancelled("the sequence was cancelled"))

    def close(self) -> None:
        """See `Engine`. Sequences that are still open are closed."""
        self._stop(ModelError("the engine is closed"))
        self._work.close()

    def _stop(self, failure: ModelError) -> None:
        """Let every sequence fail at its next step, the one that is under way included."""
        with self._lock:
            for sequence in self._open.values():
                sequence.failure = sequence.failure or failure
            if self._open:
                self._abort_flag.set()

    def _free(self) -> None:
        for sequence in list(self._open.values()):
            sequence.close()
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        self._model.close()
