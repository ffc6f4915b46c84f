"""Importance matrices: how much each column of a matrix matters to what the model computes, measured on real text.

For each matrix a file holds the sum, over tokens, of the squares of what each column is multiplied with, and how many
tokens that were. Both of llama.cpp's forms are read and written: GGUF, and the older one whose names end in `.dat`.
Source: tools/imatrix/imatrix.cpp and common/imatrix-loader.cpp of ggml-org/llama.cpp.

Not kept: `in_sum`, the plain sums that newer versions add, which no quantization uses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge.errors import ConversionError, QuantizationError
from sqale_edge.llama.quantize import EMBEDDING, HEAD, is_quantized
from sqale_edge.new_files import partial_name, put_in_place, write_to_disk

from .foreign import find_unwritable, is_file, is_folder, is_there, open_regular, quote
from .gguf_file import GgufFile
from .placing import name_taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS, _N_CHUNKS, _CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_ALIGNMENT = 32
_CHUNK_BYTES = 1 << 20
_U32, _STRING, _ARRAY = 4, 8, 9  # Source: enum gguf_type in gguf.h
_F32_TENSOR = 0  # Source: enum ggml_type in ggml.h
_LONGEST_NAME = 63 - len(_SUMS)  # bytes; Source: GGML_MAX_NAME in ggml.h
_MAKE = "make one with: sqale-edge imatrix TRANSCRIPTS -m MODEL -o FILE"


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is known of one matrix.

    Attributes:
        sums: (columns,) float32, sums of squares; of several matrices in one tensor, one after the other.
        counts: (matrices,) float32, how many rows of activations each sum is over.
    """

    sums: NDArray[np.float32]
    counts: NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Imatrix:
    """An importance matrix.

    Attributes:
        entries: By the names of tensors.
        datasets: Names of the texts that it is of.
        n_chunks: Pieces of text.
        chunk_size: Tokens in each, about.
        name: Of its file; empty before it has one.
        sha256: Of its file.
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...]
    n_chunks: int
    chunk_size: int
    name: str = ""
    sha256: str = ""

    @staticmethod
    def read(path: Path) -> Imatrix:
        """The importance matrix in a file of either form.

        Raises:
            QuantizationError: It is not there, is damaged or empty, or is something else.
        """
        try:
            return dataclasses.replace(_read(path), name=path.name, sha256=_digest(path))
        except (ValueError, struct.error, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise _unusable(path.name, reason, path) from error
        except ConversionError as error:  # a CheckpointError among them
            raise _unusable(path.name, f"it {str(error).removeprefix(f'{path.name} ')}", path) from error

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write a file, whole or not at all: the older form if its name ends in `.dat`, else GGUF.

        Raises:
            ConversionError: The name is taken, a name in it cannot be written, or the disk is full.
        """
        for text in (*self.entries, *self.datasets):
            if problem := find_unwritable(text):
                raise ConversionError(f"{quote(text)} cannot be written: it has {problem}", path=path)
        if long := [name for name in self.entries if len(name.encode()) > _LONGEST_NAME]:
            raise ConversionError(f"the name {quote(long[0])} is too long for an importance matrix", path=path)
        parts = _write_dat(self) if path.suffix == ".dat" else _write_gguf(self)
        try:
            with partial_name(path) as partial:
                with partial.open("xb") as file:
                    file.writelines(parts)
                write_to_disk(partial)
                put_in_place(partial, path, overwrite=overwrite)
        except FileExistsError as error:
            raise name_taken(path) from error
        except OSError as error:
            raise ConversionError(f"{str(path)!r} cannot be written: {error.strerror}", path=path) from error

    def choose_columns(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
        """What the quantizer is given: mean squares for each matrix of a model.

        Args:
            shapes: Of the model's tensors by their names; the last number counts columns.

        Raises:
            QuantizationError: It lacks a matrix of the model, or is of one with other widths.
        """
        matrices = [name for name, shape in shapes.items() if is_quantized(name, shape)]
        # llama.cpp leaves the head out unless it is told otherwise, and so do we.
        missing = [name for name in matrices if name not in self.entries and name not in (EMBEDDING, HEAD)]
        if missing:
            raise _unusable(
                self.name, f"it lacks {len(missing)} of the model's {len(matrices)} matrices, first {missing[0]}"
            )
        columns = {}
        for name in matrices:
            entry, width = self.entries.get(name), shapes[name][-1]
            if entry is None or (name == EMBEDDING and entry.sums.size != width):
                continue
            if entry.sums.size != width or entry.counts.size != 1:
                raise _unusable(self.name, f"it has {entry.sums.size} columns for {name}, which has {width}")
            columns[name] = (entry.sums.astype(np.float64) / entry.counts[0]).astype(np.float32)
        return columns

    def to_fields(self) -> dict[str, str | int]:
        """What a file that was made with it says of it; the last four keys are those of llama.cpp's own tool."""
        fields: dict[str, str | int] = {
            "sqale.imatrix.sha256": self.sha256,
            "quantize.imatrix.file": _cut(self.name),
            "quantize.imatrix.entries_count": len(self.entries),
            "quantize.imatrix.chunks_count": self.n_chunks,
        }
        return fields | ({"quantize.imatrix.dataset": _cut(self.datasets[0])} if self.datasets else {})


def make_imatrix(
    sums: Mapping[str, NDArray[np.float64]], counts: Mapping[str, int], datasets: Sequence[str], n_chunks: int
) -> Imatrix:
    """The importance matrix of sums of squares and the numbers of rows that they are over, by the names of tensors.

    Raises:
        ConversionError: There is nothing, or a sum is more than a file can hold.
    """
    if not sums or not n_chunks:
        raise ConversionError("nothing was evaluated: there is no importance matrix", hint="give longer transcripts")
    entries = {}
    for name in sorted(sums):
        entries[name] = Entry(sums[name].astype(np.float32), np.array([counts[name]], np.float32))
        try:
            _check_entry(name, entries[name])
        except ValueError as error:
            raise ConversionError(f"the importance matrix cannot be used: {error}") from error
    return Imatrix(entries, tuple(datasets), n_chunks, math.ceil(max(counts.values()) / n_chunks))


def check_output(path: Path, *, overwrite: bool) -> None:
    """Raise ConversionError if no file could be written there; before the long work."""
    if is_folder(path) or not is_folder(path.parent):
        problem = "is a folder" if is_folder(path) else "is in no folder that exists"
        raise ConversionError(f"{str(path)!r} {problem}", path=path, hint="choose another name")
    if is_there(path) and not overwrite:
        raise name_taken(path)


def _unusable(name: str, reason: str, path: Path | None = None) -> QuantizationError:
    return QuantizationError(f"the importance matrix {name!r} cannot be used: {reason}", path=path, hint=_MAKE)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _read(path: Path) -> Imatrix:
    """What is in a file. Raises ValueError and others if it is damaged, empty or something else."""
    if not is_file(path):
        raise ValueError("it is not there, or not a regular file")
    with open_regular(path) as file:
        is_gguf = file.read(4) == b"GGUF"
    matrix = _read_gguf(path) if is_gguf else _read_dat(path.read_bytes())
    if not matrix.entries:
        raise ValueError("it is empty")
    for name, entry in matrix.entries.items():
        _check_entry(name, entry)
    return matrix


def _check_entry(name: str, entry: Entry) -> None:
    """Raise ValueError unless the numbers can be what they are said to be."""
    if not entry.sums.size or not entry.counts.size or entry.sums.size % entry.counts.size:
        raise ValueError(f"{quote(name)} has {entry.sums.size} sums and {entry.counts.size} counts")
    if not np.isfinite(entry.sums).all() or not np.isfinite(entry.counts).all():
        raise ValueError(f"{quote(name)} has a value that is NaN or infinite")
    if entry.sums.min() < 0:
        raise ValueError(f"{quote(name)} has a negative sum of squares")
    if entry.counts.max() < 1 or not entry.sums.any():
        raise ValueError(f"{quote(name)} has no data: nothing was evaluated")


def _cut(text: str) -> str:
    """At most 127 bytes, which is what llama.cpp takes."""
    return text.encode("utf-8", "replace")[:127].decode("utf-8", "ignore")


def _read_gguf(path: Path) -> Imatrix:
    file = GgufFile.read(path)
    if file.fields.get("general.type") != "imatrix":
        raise ValueError("it is a GGUF file of another kind")
    for key in (_DATASETS, _N_CHUNKS, _CHUNK_SIZE):
        if key not in file.fields:
            raise ValueError(f"it has no {key}")
    datasets, n_chunks, chunk_size = (file.fields[key] for key in (_DATASETS, _N_CHUNKS, _CHUNK_SIZE))
    if not isinstance(datasets, list) or not all(isinstance(each, str) for each in datasets):
        raise ValueError(f"{_DATASETS} is no list of texts")
    if type(n_chunks) is not int or type(chunk_size) is not int:
        raise ValueError("the number or size of its chunks is no whole number")
    parts: dict[str, dict[str, NDArray[np.float32]]] = {}
    for tensor in file.tensors.values():
        base, dot, kind = tensor.name.rpartition(".")
        if dot + kind not in (_SUMS, _COUNTS):
            continue
        if tensor.type != "F32":
            raise ValueError(f"{quote(tensor.name)} is of type {tensor.type}, not F32")
        values = np.fromfile(path, "<f4", math.prod(tensor.shape), offset=tensor.offset)
        parts.setdefault(base, {})[dot + kind] = values.astype(np.float32)
    if incomplete := [name for name, pair in parts.items() if len(pair) < 2]:
        raise ValueError(f"{quote(incomplete[0])} has sums without counts, or counts without sums")
    entries = {name: Entry(pair[_SUMS], pair[_COUNTS]) for name, pair in parts.items()}
    return Imatrix(entries, tuple(datasets), n_chunks, chunk_size)


def _read_dat(content: bytes) -> Imatrix:
    """Numbers of 32 bits: how many entries; of each its name's length, its name, chunks, values; then what it is of."""
    position = 0

    def take(n_bytes: int) -> bytes:
        nonlocal position
        if n_bytes < 0 or n_bytes > len(content) - position:
            raise ValueError("it is cut off, or no importance matrix")
        position += n_bytes
        return content[position - n_bytes : position]

    def number() -> int:
        value: int = struct.unpack("<i", take(4))[0]
        return value

    if not content:
        raise ValueError("it is empty")
    entries = {}
    for _ in range(number()):
        name = take(number()).decode("utf-8", "replace")
        n_chunks = number()
        sums = np.frombuffer(take(4 * number()), "<f4").astype(np.float32)
        if name in entries:
            raise ValueError(f"{quote(name)} is there twice")
        entries[name] = Entry(sums, np.array([n_chunks], np.float32))
    if position == len(content):  # the oldest files end here
        return Imatrix(entries, (), max((int(entry.counts[0]) for entry in entries.values()), default=0), 0)
    n_chunks = number()
    text = take(number()).decode("utf-8", "replace") if position < len(content) else ""
    return Imatrix(entries, (text,) if text else (), n_chunks, 0)


def _write_dat(matrix: Imatrix) -> Iterator[bytes]:
    yield struct.pack("<i", len(matrix.entries))
    for name, entry in matrix.entries.items():
        n_calls = math.ceil(entry.counts.max() / max(matrix.chunk_size, 1))
        counts = np.repeat(entry.counts, entry.sums.size // entry.counts.size).astype(np.float64)
        values = (entry.sums / np.maximum(counts, 1) * n_calls).astype("<f4")
        encoded = name.encode()
        yield struct.pack(f"<i{len(encoded)}sii", len(encoded), encoded, n_calls, values.size)
        yield values.tobytes()
    dataset = matrix.datasets[-1].encode() if matrix.datasets else b""
    yield struct.pack(f"<ii{len(dataset)}s", matrix.n_chunks, len(dataset), dataset)


def _write_gguf(matrix: Imatrix) -> Iterator[bytes]:
    tensors: list[tuple[str, NDArray[Any]]] = []
    for name, entry in matrix.entries.items():
        n_matrices = entry.counts.size
        tensors.append((name + _SUMS, entry.sums.reshape(n_matrices, -1)))
        tensors.append((name + _COUNTS, entry.counts.reshape(n_matrices, 1)))
    fields = [
        _text("general.type") + struct.pack("<I", _STRING) + _text("imatrix"),
        _text(_DATASETS)
        + struct.pack("<IIQ", _ARRAY, _STRING, len(matrix.datasets))
        + b"".join(map(_text, matrix.datasets)),
        _text(_N_CHUNKS) + struct.pack("<II", _U32, matrix.n_chunks),
        _text(_CHUNK_SIZE) + struct.pack("<II", _U32, matrix.chunk_size),
    ]
    sizes = [_padded(values.size * 4) for _, values in tensors]
    offsets = itertools.accumulate(sizes, initial=0)
    table = [
        _text(name) + struct.pack("<IQQIQ", 2, *reversed(values.shape), _F32_TENSOR, offset)
        for (name, values), offset in zip(tensors, offsets, strict=False)
    ]
    head = b"".join([struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)), *fields, *table])
    yield from _pad([head, *(values.astype("<f4").tobytes() for _, values in tensors)])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(n_bytes: int) -> int:
    return n_bytes + -n_bytes % _ALIGNMENT


def _pad(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Each part up to the alignment."""
    for part in parts:
        yield part.ljust(_padded(len(part)), b"\0")
