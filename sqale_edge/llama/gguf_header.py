"""What a GGUF file says before its weights: values and types, read in Python, before llama.cpp sees the file.

Source: ggml/src/gguf.cpp of llama.cpp, versions 2 and 3. Not guaranteed: that a header which is read here is valid.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    Bytes = mmap.mmap | bytes

_STRING, _ARRAY = 8, 9
# Source: enum gguf_type in gguf.h.
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_VERSIONS = (2, 3)
_LONGEST_LIST = 4096  # of numbers: one for each layer; scores and types of tokens are longer and not kept
_HEAD = struct.Struct("<4sIQQ")  # magic, version, tensors, values
_COUNT = struct.Struct("<Q")
_DIMENSIONS = struct.Struct("<I")  # and a tensor's type is as wide


@dataclass(frozen=True)
class Header:
    """What stands before the weights.

    Attributes:
        values: By key: numbers, bytes for text, lists of either; a long list of numbers is left out.
        vector_types: The number of the type of each tensor with one dimension, by its name.
    """

    values: dict[str, Any]
    vector_types: dict[str, int]


def read_header(path: Path) -> Header | None:
    """The file's header; None where it is cut off or no GGUF: llama.cpp says what is wrong with it."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version, n_tensors, n_values = _HEAD.unpack_from(data)
            if magic != b"GGUF" or version not in _VERSIONS:
                return None
            values: dict[str, Any] = {}
            vector_types: dict[str, int] = {}
            position = _HEAD.size
            for _ in range(n_values):
                key, position = _read_string(data, position)
                value, position = _read_value(data, position)
                values.setdefault(_read_name(key), value)
            for _ in range(n_tensors):
                name, position = _read_string(data, position)
                (n_dimensions,) = _DIMENSIONS.unpack_from(data, position)
                position += _DIMENSIONS.size + n_dimensions * _COUNT.size
                if n_dimensions == 1:
                    vector_types[_read_name(name)] = _DIMENSIONS.unpack_from(data, position)[0]
                position += _DIMENSIONS.size + _COUNT.size
    except (OSError, ValueError, struct.error, KeyError):  # not there, empty, cut off, or of a kind that we do not know
        return None
    return Header(values, vector_types)


def _read_name(name: bytes) -> str:
    """As llama.cpp finds it: up to the first NUL, and of two that are equal then the first."""
    return name.partition(b"\0")[0].decode("utf-8", "replace")


def _read_value(data: Bytes, position: int) -> tuple[Any, int]:
    (kind,) = struct.unpack_from("<I", data, position)
    if kind == _STRING:
        return _read_string(data, position + 4)
    if kind != _ARRAY:
        form = struct.Struct("<" + _FORMS[kind])
        return form.unpack_from(data, position + 4)[0], position + 4 + form.size
    kind, n_items = struct.unpack_from("<IQ", data, position + 4)
    position += 16
    if kind == _STRING:
        return _read_strings(data, position, n_items)
    size = struct.calcsize("<" + _FORMS[kind]) * n_items
    if position + size > len(data):
        raise struct.error("the list is cut off")
    items = list(struct.unpack_from(f"<{n_items}{_FORMS[kind]}", data, position)) if n_items <= _LONGEST_LIST else None
    return items, position + size


def _read_string(data: Bytes, position: int) -> tuple[bytes, int]:
    (n_bytes,) = _COUNT.unpack_from(data, position)
    end = position + 8 + n_bytes
    if end > len(data):
        raise struct.error("the text is cut off")
    return data[position + 8 : end], end


def _read_strings(data: Bytes, position: int, n_items: int) -> tuple[list[bytes], int]:
    """As `_read_string` does it, `n_items` times: a vocabulary has half a million texts."""
    items, read_count, n_data = [], _COUNT.unpack_from, len(data)
    for _ in range(n_items):
        start = position + 8
        position = start + read_count(data, position)[0]
        if position > n_data:
            raise struct.error("the list is cut off")
        items.append(data[start:position])
    return items, position
