"""llama.cpp's quantizer: a GGUF file of another file type out of an unquantized one.

Importance matrices and types by tensor are parameters of `llama_model_quantize` that are not used yet.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import TYPE_CHECKING

import llama_cpp

from sqale_edge.errors import QuantizationError
from sqale_edge.llama import bindings
from sqale_edge.llama.threads import allowed_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
            "needs an importance matrix, which is not supported" if upper in _NEED_IMATRIX else "is not a file type"
        )
        raise QuantizationError(f"{name!r} {problem}", hint=f"choose one of {', '.join(FILE_TYPES)}")
    return upper


def quantize_file(
    source: Path, target: Path, file_type: str, *, threads: int | None = None, buffer_bytes: int = BUFFER_BYTES
) -> None:
    """Quantize a file. Cannot be interrupted: see `worker` for one that can.

    Args:
        source: Not quantized.
        target: A new file.
        file_type: One of `FILE_TYPES`.
        threads: None takes as many as this process has CPUs.
        buffer_bytes: How much of a tensor is kept in memory at once.

    Raises:
        QuantizationError: The type is not offered, llama.cpp refuses the file, or the disk is full.
    """
    code = FILE_TYPES[check_file_type(file_type)].code
    bindings.initialise()
    bindings.forget_errors()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = code
    params.nthread = threads or allowed_cpus()
    params.max_buf_size = buffer_bytes
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        reason = bindings.last_error().rpartition("failed to quantize: ")[2] or "llama.cpp gave no reason"
        raise QuantizationError(f"{source.name} could not be quantized to {file_type}: {reason}", path=source)
