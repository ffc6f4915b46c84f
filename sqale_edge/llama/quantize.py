"""llama.cpp's quantizer: a GGUF file of another file type out of an unquantized one.

A `Mix` says which tensors get other types than the file type gives them. It names every tensor in full, so nothing
depends on how llama.cpp matches patterns. Source: src/llama-quant.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from sqale_edge.errors import QuantizationError
from sqale_edge.llama import bindings
from sqale_edge.llama.threads import allowed_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BUFFER_BYTES = 128 << 20
# The output head, or the embedding that stands in for it, stays at least at Q6_K. Source: src/llama-quant.cpp.
HEAD_BITS = 6.5625


@dataclasses.dataclass(frozen=True)
class FileType:
    """A file type as llama.cpp names it.

    Attributes:
        code: The number in `general.file_type`. Source: enum llama_ftype in llama.h.
        bits_per_weight: Of the matrices other than the head, rounded up; the basis of estimates, not a promise.
    """

    code: int
    bits_per_weight: float


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A type that one tensor can have.

    Attributes:
        code: Source: enum ggml_type in ggml.h.
        block: Weights that are quantized together; a row is a multiple of them.
        bits_per_weight: Exactly, scales included. Source: the blocks in ggml-common.h.
    """

    code: int
    block: int
    bits_per_weight: float


TENSOR_TYPES: Mapping[str, TensorType] = {
    "BF16": TensorType(30, 1, 16),
    "F16": TensorType(1, 1, 16),
    "Q8_0": TensorType(8, 32, 8.5),
    "Q6_K": TensorType(14, 256, 6.5625),
    "Q5_K": TensorType(13, 256, 5.5),
    "Q5_1": TensorType(7, 32, 6),
    "Q5_0": TensorType(6, 32, 5.5),
    "Q4_K": TensorType(12, 256, 4.5),
    "Q4_1": TensorType(3, 32, 5),
    "Q4_0": TensorType(2, 32, 4.5),
    "IQ4_NL": TensorType(20, 32, 4.5),
    "IQ4_XS": TensorType(23, 256, 4.25),
    "Q3_K": TensorType(11, 256, 3.4375),
    "IQ3_S": TensorType(21, 256, 3.4375),
    "Q2_K": TensorType(10, 256, 2.625),
}

UNQUANTIZED: Mapping[str, FileType] = {"F32": FileType(0, 32), "F16": FileType(1, 16), "BF16": FileType(32, 16)}
QUANTIZED: Mapping[str, FileType] = {
    "Q8_0": FileType(7, 8.5),
    "Q6_K": FileType(18, 6.6),
    "Q5_K_M": FileType(17, 5.9),
    "Q5_K_S": FileType(16, 5.6),
    "Q5_1": FileType(9, 6.1),
    "Q5_0": FileType(8, 5.6),
    "Q4_K_M": FileType(15, 5.2),
    "Q4_K_S": FileType(14, 4.8),
    "IQ4_NL": FileType(25, 4.7),
    "IQ4_XS": FileType(30, 4.5),
    "Q4_1": FileType(3, 5.1),
    "Q4_0": FileType(2, 4.6),
    "Q3_K_L": FileType(13, 4.5),
    "Q3_K_M": FileType(12, 4.2),
    "Q3_K_S": FileType(11, 3.7),
    "IQ3_M": FileType(27, 4.0),
    "IQ3_S": FileType(26, 3.7),
    "Q2_K": FileType(10, 3.6),
}
FILE_TYPES: Mapping[str, FileType] = {**UNQUANTIZED, **QUANTIZED}
# Source: tensor_requires_imatrix in src/llama-quant.cpp.
_NEED_IMATRIX = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S"}


def check_file_type(name: str) -> str:
    """`name` as llama.cpp spells it. Raises QuantizationError for a name that is not offered."""
    upper = name.upper()
    if upper not in FILE_TYPES:
        problem = (
            "is of no use without an importance matrix, and is not offered"
            if upper in _NEED_IMATRIX
            else "is not a file type"
        )
        raise QuantizationError(f"{name!r} {problem}", hint=f"choose one of {', '.join(FILE_TYPES)}")
    return upper


EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Matrices that stay as they are. Source: tensor_allows_quantization in src/llama-quant.cpp.
_KEPT = ("_norm.weight", "ssm_conv1d")


def is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Whether a quantized file has this tensor in another type than the source; for models without experts."""
    return len(shape) > 1 and name.endswith("weight") and not any(part in name for part in _KEPT)


@dataclasses.dataclass(frozen=True)
class Mix:
    """What a file has other than its file type says. Plain JSON types, so that a child process can be given it.

    Attributes:
        tensors: Types by the full names of tensors; the file type decides on the others.
        output: Of the output head, and of the embedding where that is the head, too; None is the file type's own.
        token_embedding: Of an embedding beside a head; None is the file type's own.
        fields: Metadata that is added: text of at most 127 bytes, and whole numbers from 0.
    """

    tensors: dict[str, str] = dataclasses.field(default_factory=dict)
    output: str | None = None
    token_embedding: str | None = None
    fields: dict[str, str | int] = dataclasses.field(default_factory=dict)


def quantize_file(
    source: Path,
    target: Path,
    file_type: str,
    *,
    mix: Mix | None = None,
    importance: Mapping[str, NDArray[np.float32]] | None = None,
    threads: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
) -> None:
    """Quantize a file. Cannot be interrupted: see `worker` for one that can.

    Args:
        source: Not quantized.
        target: A new file.
        file_type: One of `FILE_TYPES`.
        mix: What is other than the file type says.
        importance: An importance matrix: by the names of tensors, (columns,) float32, the mean square of what each
            column is multiplied with.
        threads: None takes as many as this process has CPUs.
        buffer_bytes: How much of a tensor is kept in memory at once.

    Raises:
        QuantizationError: The type is not offered, llama.cpp refuses the file, or the disk is full.
    """
    code = FILE_TYPES[check_file_type(file_type)].code
    mix = mix or Mix()
    bindings.initialise()
    bindings.forget_errors()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = code
    params.nthread = threads or allowed_cpus()
    params.max_buf_size = buffer_bytes
    if mix.output:
        params.output_tensor_type = TENSOR_TYPES[mix.output].code
    if mix.token_embedding:
        params.token_embedding_type = TENSOR_TYPES[mix.token_embedding].code
    # Each ends with an empty element. llama.cpp gets their addresses: they live as long as the names here do.
    overrides, fields = _list_overrides(mix.tensors), _list_fields(mix.fields)
    columns = {name: np.ascontiguousarray(values, np.float32) for name, values in (importance or {}).items()}
    matrix = _list_importance(columns)
    if mix.tensors:
        params.tt_overrides = overrides
    if mix.fields:
        params.kv_overrides = fields
    if columns:
        params.imatrix = matrix
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        reason = bindings.last_error().rpartition("failed to quantize: ")[2] or "llama.cpp gave no reason"
        raise QuantizationError(f"{source.name} could not be quantized to {file_type}: {reason}", path=source)


def _list_overrides(tensors: Mapping[str, str]) -> Any:
    array = (llama_cpp.llama_model_tensor_override * (len(tensors) + 1))()
    for entry, (name, kind) in zip(array, tensors.items(), strict=False):
        entry.pattern, entry.type = f"^{re.escape(name)}$".encode(), TENSOR_TYPES[kind].code
    return array


def _list_fields(fields: Mapping[str, str | int]) -> Any:
    array = (llama_cpp.llama_model_kv_override * (len(fields) + 1))()
    for entry, (key, value) in zip(array, fields.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, str):
            entry.tag, entry.value.val_str = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
        else:
            entry.tag, entry.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
    return array


def _list_importance(columns: Mapping[str, NDArray[np.float32]]) -> Any:
    array = (llama_cpp.llama_model_imatrix_data * (len(columns) + 1))()
    for entry, (name, values) in zip(array, columns.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return array
