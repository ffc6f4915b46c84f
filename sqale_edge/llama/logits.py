"""The logits behind every token of a log: what files are compared by.

A log is evaluated from its start, `n_batch` tokens at a time, each a prefill of its own with an output behind every
token. The size of these batches moves the last bits of the logits, so who compares files gives all of them the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import llama_cpp
import numpy as np
import numpy.typing as npt

from sqale_edge.errors import Cancelled, ContextOverflowError, DecodeError, ModelError
from sqale_edge.llama import bindings, threads
from sqale_edge.llama.model import LlamaModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.settings import EngineSettings

Logits = npt.NDArray[np.float32]
_WHOLE = -1


class LogitsModel:
    """A loaded file that gives logits. Close it, or use it in a `with` statement.

    Args:
        path: A GGUF file.
        settings: `gpu_layers`, `use_mmap`, `check_memory`, `threads_batch` or `threads`; `n_batch` is how many tokens
            are evaluated at a time; `n_ctx` how many a log can have.
        on_progress: As for `LlamaModel`.

    Attributes:
        n_vocab: Logits behind a token.
        n_threads: That compute.
        offload: What runs on a GPU, as one sentence.
        vocabulary_sha256: See `Vocabulary.digest`.

    Raises:
        ModelLoadError: llama.cpp cannot load the file, or memory does not suffice.
        Else what `LlamaModel` raises.
    """

    def __init__(
        self, path: Path, settings: EngineSettings, *, on_progress: Callable[[float], bool] | None = None
    ) -> None:
        self.path = path
        self._settings = settings
        self._abort_flag = bindings.AbortFlag()
        self._model = LlamaModel(path, settings, on_progress=on_progress)
        self._context: Any = None
        self._batch: Any = None
        try:
            self._context = self._make_context()
            self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        except BaseException:
            self.close()
            raise
        self.n_vocab = self._model.vocabulary.n_tokens
        self.offload = self._model.offload
        self.vocabulary_sha256 = self._model.vocabulary.digest()

    def _make_context(self) -> Any:
        settings = self._settings
        _, self.n_threads = threads.choose_threads(settings)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = settings.n_ctx, 1
        params.n_batch = params.n_ubatch = params.n_outputs_max = settings.n_batch
        params.n_threads = params.n_threads_batch = self.n_threads
        self._abort_flag.attach_to(params)
        return bindings.make_context(self._model.pointer, params, self.path)

    def evaluate(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """The logits behind each of `tokens`, in order, in blocks of (`n_batch` or fewer, V) that are the caller's.

        Raises:
            ModelError: A token is not in the vocabulary.
            ContextOverflowError: They are more than the context holds.
            Cancelled: `cancel` was called.
            DecodeError: llama.cpp failed, or a logit is not finite.
        """
        if len(tokens) > self._settings.n_ctx:
            raise ContextOverflowError(
                f"a log of {len(tokens)} tokens does not fit into a context of {self._settings.n_ctx}"
            )
        bad = next((token for token in tokens if not 0 <= token < self.n_vocab), None)
        if bad is not None:
            raise ModelError(f"token {bad!r} is not in the vocabulary of {self.n_vocab}")
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, _WHOLE, _WHOLE)
        for start in range(0, len(tokens), self._settings.n_batch):
            yield self._evaluate_batch(start, tokens[start : start + self._settings.n_batch])

    def _evaluate_batch(self, start: int, tokens: Sequence[int]) -> Logits:
        if self._abort_flag.is_set:
            raise Cancelled("the evaluation was cancelled")
        bindings.fill_batch(self._batch, tokens, start)
        bindings.forget_errors()
        bindings.check_decode(llama_cpp.llama_decode(self._context, self._batch))
        pointer = llama_cpp.llama_get_logits(self._context)
        logits: Logits = np.ctypeslib.as_array(pointer, (len(tokens), self.n_vocab)).copy()
        if not np.isfinite(logits).all():
            raise DecodeError(f"what {self.path.name} computes is not finite: its weights are damaged")
        return logits

    def cancel(self) -> None:
        """Let the evaluation that is under way, and every later one, raise Cancelled. From any thread."""
        self._abort_flag.set()

    def close(self) -> None:
        """Free the model. Safe to call twice; never while `evaluate` is at work."""
        if self._batch is not None:
            llama_cpp.llama_batch_free(self._batch)
            self._batch = None
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def digest_vocabulary(path: Path) -> tuple[str, int]:
    """`Vocabulary.digest` of a GGUF file, and how many tokens it has; the weights stay on disk."""
    with LlamaModel.without_weights(path) as model:
        return model.vocabulary.digest(), model.vocabulary.n_tokens
