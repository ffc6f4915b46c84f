"""GGUF files written as a stream: metadata, tensor table, then each tensor in pieces, straight from the mapped shards.

Memory stays bounded whatever the size of the model. NaN, infinities and values that the file type cannot hold are
errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import gguf
import numpy as np

from sqale_edge.errors import CheckpointError, ConversionError

from .checkpoint import DTYPES
from .foreign import find_unwritable, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .checkpoint import Array
    from .qwen35 import TensorPlan

Kind = Literal["u32", "i32", "f32", "bool", "str", "[i32]", "[bool]", "[str]"]
# A metadata entry: key, type, value.
Field = tuple[str, Kind, Any]

ALIGNMENT = 32  # Source: the default alignment of GGUF
_PIECE_BYTES = 8 << 20
_KINDS = {
    "u32": gguf.GGUFValueType.UINT32,
    "i32": gguf.GGUFValueType.INT32,
    "f32": gguf.GGUFValueType.FLOAT32,
    "bool": gguf.GGUFValueType.BOOL,
    "str": gguf.GGUFValueType.STRING,
}
# Which bits are all set in the exponent of an infinity or a NaN.
_EXPONENTS = {np.dtype(np.uint16): 0x7F80, np.dtype(np.float16): 0x7C00, np.dtype(np.float32): 0x7F800000}


def write_gguf(
    path: Path,
    fields: Sequence[Field],
    plans: Sequence[TensorPlan],
    file_type: str,
    report: Callable[[int], None],
) -> None:
    """Write a new file.

    Args:
        path: Does not exist yet.
        fields: The metadata, without types of tensors.
        plans: The tensors, in the order of the file.
        file_type: Of the matrices, `F32`, `F16` or `BF16`; all else is FP32.
        report: Called with the number of bytes written, after each piece.

    Raises:
        CheckpointError: A weight is NaN or infinite, or beyond what `file_type` can hold.
        ConversionError: The file cannot be written.
    """
    try:
        _write_head(path, fields, plans, file_type)
        with path.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            for plan in plans:
                for piece in convert_tensor(plan, file_type):
                    file.write(piece.view(np.uint8).data)
                    report(piece.nbytes)
                file.write(bytes(-file.tell() % ALIGNMENT))
    except OSError as error:
        raise ConversionError(f"{path.name} cannot be written: {error.strerror}", path=path) from error


def check_strings(fields: Sequence[Field], path: Path) -> None:
    """Raise ConversionError where a string of the metadata of `path`'s model would not be read back as it is."""
    for key, kind, value in fields:
        if kind not in ("str", "[str]"):
            continue
        for text in [value] if kind == "str" else value:
            if problem := find_unwritable(text):
                raise ConversionError(f"{quote(text)} for {key} has {problem}", path=path)


def stored_type(plan: TensorPlan, file_type: str) -> str:
    """The type of one tensor in a file of `file_type`."""
    return "F32" if plan.is_f32 else file_type


def count_bytes(plan: TensorPlan, file_type: str) -> int:
    """The size of one tensor in a file of `file_type`, without padding."""
    return math.prod(plan.shape) * np.dtype(DTYPES[stored_type(plan, file_type)]).itemsize


def _write_head(path: Path, fields: Sequence[Field], plans: Sequence[TensorPlan], file_type: str) -> None:
    """Everything before the tensors' data."""
    architecture = next(value for key, _, value in fields if key == "general.architecture")
    writer = gguf.GGUFWriter(None, architecture)  # writes that key itself
    for key, kind, value in fields:
        if key == "general.architecture":
            continue
        if kind.startswith("["):
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=_KINDS[kind[1:-1]])
        else:
            writer.add_key_value(key, value, _KINDS[kind])
    for plan in plans:
        kind_of_tensor = stored_type(plan, file_type)
        writer.add_tensor_info(
            plan.name,
            plan.shape,
            np.dtype(np.float32),
            count_bytes(plan, file_type),
            gguf.GGMLQuantizationType[kind_of_tensor],
        )
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def convert_tensor(plan: TensorPlan, file_type: str) -> Iterator[Array]:
    """The tensor as it stands in the file, in pieces of whole rows."""
    source = plan.source.map().reshape(plan.shape)
    target = stored_type(plan, file_type)
    row_bytes = max(1, source.nbytes // max(1, len(source)))
    n_rows = max(1, _PIECE_BYTES // row_bytes)
    for start in range(0, len(source), n_rows):
        rows = slice(start, start + n_rows) if plan.rows is None else plan.rows[start : start + n_rows]
        piece = source[rows]
        if plan.columns is not None:
            piece = piece[:, plan.columns]
        _check_finite(piece, plan, "is NaN or infinite")
        if plan.change is not None or plan.source.dtype != target:
            values = _to_float32(piece)
            piece = _from_float32(values if plan.change is None else plan.change(values), target)
            _check_finite(piece, plan, f"is too large for {target}")
        yield np.ascontiguousarray(piece)


def _to_float32(piece: Array) -> Array:
    """Any of `DTYPES` as float32, exactly."""
    if piece.dtype == np.uint16:
        return (piece.astype(np.uint32) << 16).view(np.float32)
    return piece.astype(np.float32)


def _from_float32(values: Array, target: str) -> Array:
    """float32 as one of `DTYPES`, rounded to nearest, ties to even."""
    if target == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):  # the caller looks for infinities
        return values.astype(DTYPES[target])


def _check_finite(piece: Array, plan: TensorPlan, problem: str) -> None:
    bits = piece.view(f"u{piece.itemsize}")
    mask = _EXPONENTS[piece.dtype]
    if ((bits & mask) == mask).any():
        raise CheckpointError(f"a weight of {quote(plan.source.name)} {problem}", path=plan.source.path)
