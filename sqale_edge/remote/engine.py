"""The engine on a vLLM server: each decode is one streamed completion of the log's token ids."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from sqale_edge.engine import Piece
from sqale_edge.errors import Cancelled, ModelError, ModelLoadError
from sqale_edge.exclusive import Exclusive
from sqale_edge.remote.address import Address
from sqale_edge.remote.completion import Completion
from sqale_edge.remote.sequence import RemoteSequence
from sqale_edge.remote.server import ServedModel, Server
from sqale_edge.remote.vocabulary import check_agreement, find_source, load_vocabulary
from sqale_edge.settings import EngineSettings, RemoteSettings, SamplingSettings, check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqale_edge.engine import Decoding, Grammar

T = TypeVar("T")
_CHECKED = "SELECT 1 FROM t"  # of several tokens: a prompt of one ends vLLM 0.32 on a CPU
_POLL_S = 0.05  # how soon it is seen that a step is done, or that loading is to stop


class RemoteEngine:
    """See `sqale_edge.engine.Engine`. Tool calls are not held to a grammar, as in the loop that the models know.

    Args:
        address: Of a vLLM server: `http://host:port`.
        settings: `n_ctx` and `n_sequences` matter here.
        remote: How the server is asked.
        on_progress: Called between the steps; returning False stops them.

    Attributes:
        load_s: Seconds that it took to reach the server and read the vocabulary.
        notes: What a person should know about the server and its model.

    Raises:
        ServerError: The server cannot be reached, is none of vLLM, or lacks something.
        ModelNotFoundError: The vocabulary of its model is not here.
        ModelLoadError: It has another vocabulary, or its context is too small.
        Cancelled: `on_progress` returned False.
    """

    state_key = None  # the state is the server's

    def __init__(
        self,
        address: str,
        settings: EngineSettings | None = None,
        remote: RemoteSettings | None = None,
        *,
        on_progress: Callable[[float], bool] | None = None,
    ) -> None:
        start = time.perf_counter()
        settings, remote = settings or EngineSettings(), remote or RemoteSettings()
        self.server = Server(Address.parse(address), remote)
        loading = _Loading(self.server, on_progress)
        self.served = loading.run(0.0, self.server.describe_model)
        _check_context(self.server, self.served, settings.n_ctx)
        source = find_source(remote.tokenizer, self.served, self.server.address)
        self._model = load_vocabulary(source)
        self._work = Exclusive(self._free)  # whoever uses the vocabulary is inside
        self._lock = threading.RLock()
        self._open: set[RemoteSequence] = set()
        self._max_sequences = settings.n_sequences
        try:
            loading.run(0.6, lambda: check_agreement(self._model.vocabulary, source, self.server, self.served))
            self.info = dataclasses.replace(
                source.file.complete(self._model.describe(settings.n_ctx, settings.n_sequences)),
                name=self.served.name,
                offload=f"in vLLM {self.served.version} at {self.server.address}",
                served={"address": str(self.server.address), **dataclasses.asdict(self.served)},
            )
            loading.run(0.9, self._check_completions)
            loading.check(1.0)
        except BaseException:
            self.close()
            raise
        self.source = source
        self.notes = (*source.file.notes, *_describe_cache(self.served))
        self.load_s = time.perf_counter() - start

    def _check_completions(self) -> None:
        """Draw one token: a server that lacks something says so now, and not after the first question."""
        with self._work.work():
            prompt = self._model.vocabulary.tokenize([Piece(_CHECKED, trusted=False)])
        body = self.make_request(prompt, SamplingSettings(temperature=0), 0, 1, frozenset())
        completion = Completion(self.server, body)
        try:
            completion.next()
        finally:
            completion.close()

    # Text.

    def tokenize(self, text: str, trusted: bool) -> list[int]:
        """See `Engine`."""
        return self.tokenize_pieces([Piece(text, trusted)])

    def tokenize_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Engine`."""
        with self._work.work():
            self._check_open()
            return self._model.vocabulary.tokenize(pieces)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """See `Engine`."""
        with self._work.work():
            self._check_open()
            self.check_tokens(tokens)
            return b"".join(map(self._model.vocabulary.piece, tokens))

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ModelError for a token that the vocabulary does not have."""
        for token in tokens:
            if not 0 <= token < self.info.n_vocab:
                raise ModelError(f"token {token} is not among the {self.info.n_vocab} of the vocabulary")

    def compile_grammar(self, gbnf: str, phrases: Iterable[str] = ()) -> Grammar:
        """See `Engine`; the grammar is not used: what does not fit it is answered as a call that cannot be read."""
        del phrases
        return gbnf

    # Sequences.

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> RemoteSequence:
        """See `Engine`. Raises ModelError when `n_sequences` are open, SettingsError for a wrong seed."""
        seed = check_seed(seed)
        self._check_open()
        with self._lock:
            if len(self._open) >= self._max_sequences:
                raise ModelError(
                    f"all {self._max_sequences} sequences of the engine are in use",
                    hint="close one, or give a larger EngineSettings.n_sequences",
                )
            sequence = RemoteSequence(self, seed, sampling or self.info.sampling)
            self._open.add(sequence)
        return sequence

    def restore(self, snapshot: bytes) -> RemoteSequence:
        """See `Engine`; there are no snapshots."""
        raise ModelError(f"a vLLM server gives no snapshots, and {len(snapshot)} bytes were given")

    def release(self, sequence: RemoteSequence) -> None:
        """Forget a sequence that was closed."""
        with self._lock:
            self._open.discard(sequence)

    def make_request(
        self, tokens: Sequence[int], sampling: SamplingSettings, seed: int, max_tokens: int, stop: frozenset[int]
    ) -> dict[str, Any]:
        """The body of a completion. Whatever the server's own `generation_config.json` sets is set here, too."""
        return {
            "model": self.served.name,
            "prompt": list(tokens),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "stop": [],
            "stop_token_ids": sorted(stop),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "stream": True,
        }

    def decode_batch(self, decodings: Sequence[Decoding]) -> list[int]:
        """See `Engine`. All are asked for before the first is waited for, so that the server can batch them."""
        if any(decoding.is_done for decoding in decodings):
            raise ModelError("a decoding that is done cannot go on")
        with self._work.work():
            self._check_open()
            try:
                for decoding in decodings:
                    decoding.sequence.ask(decoding)
                return [decoding.sequence.draw(decoding) for decoding in decodings]
            except ModelError as error:
                for decoding in decodings:
                    decoding.sequence.fail(error)
                raise

    def cancel(self) -> None:
        """See `Engine`. The server sees its connections close, and stops, too."""
        self._stop(Cancelled("the sequence was cancelled"))

    def close(self) -> None:
        """See `Engine`. Sequences that are still open are closed."""
        self._stop(ModelError("the engine is closed"))
        self.server.give_up()
        self._work.close()

    def _stop(self, failure: ModelError) -> None:
        with self._lock:
            for sequence in self._open:
                sequence.stop(failure)

    def _free(self) -> None:
        with self._lock:
            for sequence in list(self._open):
                sequence.close()
        self._model.close()

    def _check_open(self) -> None:
        if self._work.is_closed:
            raise ModelError("the engine is closed")


class _Loading:
    """Steps that talk to a server, watched: a caller that has had enough does not wait for them."""

    def __init__(self, server: Server, on_progress: Callable[[float], bool] | None) -> None:
        self._server = server
        self._on_progress = on_progress or (lambda _: True)

    def check(self, share: float) -> None:
        """Raise Cancelled if loading is to stop, and whatever the caller's function raises."""
        if not self._on_progress(share):
            raise Cancelled("loading the model was cancelled")

    def run(self, share: float, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Its thread may be left behind, with a connection that is given up."""
        outcome: list[T | BaseException] = []

        def note() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                outcome.append(error)

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self.check(share)
                thread.join(_POLL_S)
        except BaseException:
            self._server.give_up()
            raise
        (result,) = outcome
        if isinstance(result, BaseException):
            raise result
        return result


def _check_context(server: Server, served: ServedModel, n_ctx: int) -> None:
    if served.n_ctx < n_ctx:
        raise ModelLoadError(
            f"{server.address} takes logs of {served.n_ctx} tokens, and n_ctx is {n_ctx}",
            hint=f"start it with --max-model-len {n_ctx}, or do with less: SQALE_EDGE_N_CTX={served.n_ctx}",
        )


def _describe_cache(served: ServedModel) -> list[str]:
    if served.caches_prefixes is not False:
        return []
    fix = "start vLLM with --enable-prefix-caching"
    return [f"the server keeps nothing of a log, so each turn is evaluated from its start: {fix}"]
