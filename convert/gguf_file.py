"""The head of a GGUF file, read back: metadata and the table of tensors. Independent of the code that writes.

Bounded by the file's own size: lengths that point outside of it are errors. The gguf package's reader needs over a
gigabyte for this vocabulary. Source of the format: docs/gguf.md of ggml-org/ggml.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import struct
from typing import TYPE_CHECKING, Any, Self

import gguf

from sqale_edge.errors import ConversionError

from .foreign import is_file, quote

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_VERSION = 3
_MAX_DIMENSIONS = 4


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One line of the table.

    Attributes:
        shape: As NumPy counts, the last axis contiguous: the reverse of what the file holds.
        type: By its ggml name, `Q4_K`.
        offset: From the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """What a file says of itself.

    Attributes:
        fields: Metadata values by key.
        tensors: By name.
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check the head: no tensor overlaps another, and all end within the file.

        Raises:
            ConversionError: It is not a GGUF file, or it is damaged.
        """
        if not is_file(path):
            raise ConversionError(f"{path.name} cannot be read: it is not there, or not a regular file", path=path)
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                cursor = _Cursor(view)
                return cls(path, *_read_head(cursor, len(view)))
        except (ValueError, KeyError, struct.error) as error:
            raise ConversionError(f"{path.name} is not a sound GGUF file: {error}", path=path) from error
        except OSError as error:
            raise ConversionError(f"{path.name} cannot be read: {error.strerror}", path=path) from error


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self.position = 0

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._view) - self.position:
            raise ValueError(f"it ends within a value at byte {self.position:,}")
        self.position += n_bytes
        return self._view[self.position - n_bytes : self.position]

    def scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def string(self) -> str:
        return self.take(self.scalar("<Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, n_values = self.scalar("<I"), self.scalar("<Q")
            if kind in _SCALARS:
                code = _SCALARS[kind].lstrip("<")
                return list(struct.unpack(f"<{n_values}{code}", self.take(n_values * struct.calcsize(code))))
            if kind != _STRING:
                raise ValueError(f"an array of the unknown type {kind}")
            return [self.string() for _ in range(n_values)]
        if kind not in _SCALARS:
            raise ValueError(f"a value of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])


def _read_head(cursor: _Cursor, n_bytes: int) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    if cursor.take(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    if (version := cursor.scalar("<I")) != _VERSION:
        raise ValueError(f"version {version}, not {_VERSION}")
    n_tensors, n_fields = cursor.scalar("<Q"), cursor.scalar("<Q")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        key = cursor.string()
        if key in fields:
            raise ValueError(f"the key {quote(key)} is there twice")
        fields[key] = cursor.value(cursor.scalar("<I"))
    infos = [_read_info(cursor) for _ in range(n_tensors)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"alignment {quote(alignment)}")
    start = cursor.position + -cursor.position % alignment
    tensors = {info.name: dataclasses.replace(info, offset=info.offset + start) for info in infos}
    if len(tensors) < len(infos):
        raise ValueError("a tensor is there twice")
    end = start
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end or info.offset + info.n_bytes > n_bytes:
            raise ValueError(
                f"{quote(info.name)} overlaps another tensor or ends after the file, at {info.offset + info.n_bytes:,}"
            )
        end = info.offset + info.n_bytes
    return fields, tensors


def _read_info(cursor: _Cursor) -> TensorInfo:
    name, n_dimensions = cursor.string(), cursor.scalar("<I")
    if not 0 < n_dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"{quote(name)} has {n_dimensions} dimensions")
    shape = tuple(cursor.scalar("<Q") for _ in range(n_dimensions))[::-1]
    kind = gguf.GGMLQuantizationType(cursor.scalar("<I"))
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(f"{quote(name)} has rows of {shape[-1]}, which {kind.name} cannot hold")
    return TensorInfo(name, shape, kind.name, cursor.scalar("<Q"), math.prod(shape) // block * block_bytes)
