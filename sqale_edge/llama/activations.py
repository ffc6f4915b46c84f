"""What a model's matrices are multiplied with, summed up over tokens: the numbers of an importance matrix.

llama.cpp calls back while it evaluates; for each product of a matrix of a layer with activations the squares of these
are summed, column by column, in float64. The head is left out, as llama.cpp's own tool does it. Everything runs on the
CPU, where the callback can read what was computed.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from sqale_edge.errors import Cancelled, ConversionError
from sqale_edge.llama import bindings
from sqale_edge.llama.ggml_tensor import F32, MUL_MAT, MUL_MAT_ID, GgmlTensor
from sqale_edge.llama.load_check import mapped_model
from sqale_edge.llama.model import check_gguf
from sqale_edge.llama.threads import allowed_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_MOST_LOGITS_BYTES = 1 << 27  # of one batch: every position has logits, or the last layer would see one token a batch
_LARGEST_BATCH = 512
_TENSOR = ctypes.POINTER(GgmlTensor)


class ActivationSums:
    """The sums, and the callback that adds to them.

    Attributes:
        squares: By the names of matrices, (columns,) float64: the sum of the squares of what each is multiplied with.
        counts: By the names of matrices: how many rows these are over.
        problem: Why the evaluation was stopped, if it was.
    """

    def __init__(self) -> None:
        self.squares: dict[str, NDArray[np.float64]] = {}
        self.counts: dict[str, int] = {}
        self.problem = ""
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._see)

    def _see(self, address: int, ask: bool, _user_data: Any) -> bool:
        """llama.cpp asks first whether it wants to see a node; then, computed, shows it, and stops for False."""
        try:
            node = ctypes.cast(address, _TENSOR).contents
            name = _matrix_name(node)
            if ask:
                return name is not None
            if name:
                self._add(node, name)
        except Exception as error:  # noqa: BLE001 - it would be lost in C
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        return not self.problem

    def _add(self, node: GgmlTensor, name: str) -> None:
        if node.op == MUL_MAT_ID:
            self.problem = f"{name} belongs to a mixture of experts, which is not supported"
            return
        source = node.src[1].contents
        if source.type != F32:
            self.problem = f"{name} is multiplied with activations of another type than F32"
            return
        rows = _read_rows(source)
        squares = np.square(rows, dtype=np.float64).sum(axis=0)
        if not np.isfinite(squares).all():
            self.problem = f"what {name} is multiplied with is NaN or infinite"
            return
        if name in self.squares:
            self.squares[name] += squares
        else:
            self.squares[name] = squares
        self.counts[name] = self.counts.get(name, 0) + len(rows)


def _matrix_name(node: GgmlTensor) -> str | None:
    """The matrix of a layer that a node multiplies activations with; None for any other node."""
    if node.op not in (MUL_MAT, MUL_MAT_ID):
        return None
    # A copy for another device is called CUDA0#blk.0.attn_q.weight#0.
    name: str = node.src[0].contents.name.decode("utf-8", "replace")
    if "#" in name:
        name = name.split("#")[1]
    return name if name.startswith("blk.") and name.endswith(".weight") else None


def _read_rows(tensor: GgmlTensor) -> NDArray[np.float32]:
    """A view of the tensor in memory, (rows, columns) float32, valid while the callback runs."""
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    n_bytes = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 4
    buffer = (ctypes.c_char * n_bytes).from_address(tensor.data)
    view: NDArray[np.float32] = np.ndarray(shape, np.float32, buffer, strides=strides)
    return view.reshape(-1, shape[-1])


class ActivationRun:
    """Evaluates token logs with one model. `run` is used once; `stop` comes from any thread.

    Args:
        path: A GGUF file, best one that is not quantized.
        n_ctx: Tokens of a log that count at most.
        threads: None takes as many as this process has CPUs.

    Attributes:
        sums: Complete when `run` has ended.
    """

    def __init__(self, path: Path, *, n_ctx: int, threads: int | None = None) -> None:
        self._path = path
        self._n_ctx = n_ctx
        self._threads = threads or allowed_cpus()
        self._abort_flag = bindings.AbortFlag()
        self.sums = ActivationSums()

    def stop(self) -> None:
        """End it within a node of the graph; `run` raises Cancelled."""
        self._abort_flag.set()

    def run(self, logs: Sequence[Sequence[int]]) -> Iterator[int]:
        """Evaluate each log from an empty state. Yields how many tokens were evaluated, after each batch.

        Raises:
            ModelLoadError: llama.cpp cannot load the file, or memory does not suffice.
            ConversionError: What the model computes is not finite, or it is a mixture of experts.
            DecodeError: llama.cpp failed.
            Cancelled: It was stopped.
        """
        check_gguf(self._path)
        with mapped_model(self._path) as model:
            yield from self._run(model, logs)

    def _run(self, model: Any, logs: Sequence[Sequence[int]]) -> Iterator[int]:
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        n_ctx = max((min(len(log), self._n_ctx) for log in logs), default=1)
        n_batch = max(1, min(_LARGEST_BATCH, n_ctx, _MOST_LOGITS_BYTES // (4 * n_vocab)))
        context = self._make_context(model, n_ctx, n_batch)
        batch = llama_cpp.llama_batch_init(n_batch, 0, 1)
        try:
            for log in logs:
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
                for start in range(0, min(len(log), self._n_ctx), n_batch):
                    tokens = log[start : min(start + n_batch, self._n_ctx)]
                    self._evaluate(context, batch, tokens, start)
                    yield len(tokens)
        finally:
            llama_cpp.llama_batch_free(batch)
            llama_cpp.llama_free(context)

    def _make_context(self, model: Any, n_ctx: int, n_batch: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = params.n_outputs_max = n_batch
        params.n_threads = params.n_threads_batch = self._threads
        params.op_offload = False
        params.cb_eval = self.sums.callback  # kept alive by `sums`
        self._abort_flag.attach_to(params)
        return bindings.make_context(model, params, self._path)

    def _evaluate(self, context: Any, batch: Any, tokens: Sequence[int], start: int) -> None:
        bindings.fill_batch(batch, tokens, start)
        bindings.forget_errors()
        code = llama_cpp.llama_decode(context, batch)
        if code == 0:
            llama_cpp.llama_synchronize(context)
        if self._abort_flag.is_set:
            raise Cancelled("the evaluation was cancelled")
        if self.sums.problem:
            raise ConversionError(
                f"{self._path.name} gives no importance matrix: {self.sums.problem}",
                path=self._path,
                hint="use an unquantized file of the model, of type BF16",
            )
        bindings.check_decode(code)
