"""A checkpoint folder in Hugging Face form: its JSON files, and its tensors as memory-mapped arrays.

Everything is checked when the folder is opened, without reading any weights: headers against file sizes, tensors
against each other, shards against the index. What a config *claims* about tensors is not believed here; `qwen35`
compares the two. Nothing is executed, and no pickled weights are read.

Not guaranteed: files that change while they are open.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sqale_edge.errors import CheckpointError

from .foreign import decode, is_folder, is_there, open_regular, parse_object, quote, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Array = np.ndarray[Any, np.dtype[Any]]

# Source: the format's page in huggingface/safetensors. BF16 has no NumPy type: its bits are read as uint16.
DTYPES: dict[str, type[np.generic]] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
# Types that tensors may have which are dropped anyway.
_OTHER_SIZES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_OTHER_SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}
_HEADER_LIMIT = 1 << 24  # bytes: a hundred thousand tensors; the safetensors library takes six times that
_MOST_AXES = 64  # as many as NumPy has
_LARGEST = 1 << 63  # of a dimension and of an offset
_SHARD_NAME = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies.

    Attributes:
        offset: Of its first byte, from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    n_bytes: int

    def map(self) -> Array:
        """The tensor as a read-only memory map; BF16 as uint16.

        Raises:
            CheckpointError: The type is not one of `DTYPES`.
        """
        if self.dtype not in DTYPES:
            raise CheckpointError(
                f"{quote(self.name)} is of type {self.dtype}, but only {', '.join(DTYPES)} can be converted",
                path=self.path,
                hint="save the model unquantized, in bfloat16",
            )
        if not self.n_bytes:
            return np.empty(self.shape, DTYPES[self.dtype])
        return np.memmap(self.path, DTYPES[self.dtype], mode="r", offset=self.offset, shape=self.shape)


_WHOLE_HINT = "download the whole repository; it needs config.json, the weights and tokenizer.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        config: `config.json`.
        tensors: All tensors of all shards, by name.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read `config.json` and every header.

        Raises:
            CheckpointError: Something is missing, damaged, or contradicts something else.
        """
        if not is_folder(folder):
            what = "is not a folder" if is_there(folder) else "does not exist"
            raise CheckpointError(
                f"{str(folder)!r} {what}",
                path=folder,
                hint="give the folder that holds config.json and model.safetensors",
            )
        if not is_there(folder / "config.json"):
            raise CheckpointError(f"no config.json in {str(folder)!r}", path=folder, hint=_WHOLE_HINT)
        config = read_json(folder / "config.json")
        return cls(folder, config, _read_tensors(folder))

    def read_optional(self, name: str) -> dict[str, Any]:
        """The JSON object in the file `name`, or an empty one where there is no such file."""
        path = self.folder / name
        return read_json(path) if is_there(path) else {}


def _read_tensors(folder: Path) -> dict[str, StoredTensor]:
    single, index = folder / _SINGLE, folder / _INDEX
    if is_there(single) and is_there(index):
        raise CheckpointError(
            f"{_SINGLE} and {_INDEX} are both there, and which of them counts would be a guess",
            path=folder,
            hint="remove the stale one",
        )
    if is_there(index):
        return _read_shards(folder, read_json(index))
    if is_there(single):
        return {tensor.name: tensor for tensor in _read_header(single)}
    hint = _WHOLE_HINT
    if is_there(folder / "adapter_model.safetensors"):
        hint = "this is an adapter: merge it into its base model first (merge_and_unload) and save that"
    elif any(folder.glob("pytorch_model*.bin")):
        hint = "pickled weights can run code and are not read: save the model as safetensors"
    raise CheckpointError(f"no {_SINGLE} and no {_INDEX} in {str(folder)!r}", path=folder, hint=hint)


def _read_shards(folder: Path, index: dict[str, Any]) -> dict[str, StoredTensor]:
    """The tensors of all shards that the index names; each exactly where the index says."""
    path = folder / _INDEX
    weight_map = index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(shard, str) for shard in weight_map.values())
    ):
        raise CheckpointError(f"{_INDEX} has no weight_map from tensor names to files", path=path)
    shards = sorted(set(weight_map.values()))
    if wrong := [shard for shard in shards if not _SHARD_NAME.fullmatch(shard)]:
        raise CheckpointError(
            f"{_INDEX} names the shard {quote(wrong[0])}, which is not a .safetensors file of this folder", path=path
        )
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for tensor in _read_header(folder / shard):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"{quote(tensor.name)} is in {tensors[tensor.name].path.name} and in {shard}", path=path
                )
            tensors[tensor.name] = tensor
            if weight_map.get(tensor.name) != shard:
                listed = weight_map.get(tensor.name, "no shard")
                raise CheckpointError(f"{quote(tensor.name)} is in {shard}, but {_INDEX} says {listed}", path=path)
    if missing := weight_map.keys() - tensors.keys():
        name = min(missing)
        raise CheckpointError(
            f"{_INDEX} says that {weight_map[name]} holds {quote(name)}, which it does not{_and_more(missing)}",
            path=path,
        )
    return tensors


def _and_more(names: Iterable[str]) -> str:
    n_more = len(set(names)) - 1
    return f" (and {n_more} more)" if n_more else ""


def _read_header(path: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, checked to fill it exactly."""
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        n_header = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 0 < n_header <= n_bytes - 8:
            raise CheckpointError(
                f"{path.name} is truncated or not safetensors: {n_bytes:,} bytes, header of {n_header:,}", path=path
            )
        if n_header > _HEADER_LIMIT:
            raise CheckpointError(
                f"{path.name} has a header of {n_header:,} bytes, more than the {_HEADER_LIMIT:,} it may have",
                path=path,
            )
        content = file.read(n_header)
    what = f"the header of {path.name}"
    header = parse_object(decode(content, path, what), path, what)
    header.pop("__metadata__", None)
    start = 8 + n_header
    tensors = [_read_entry(name, entry, path, start) for name, entry in header.items()]
    _check_layout(tensors, path, start, n_bytes)
    return tensors


def _read_entry(name: str, entry: Any, path: Path, start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"the header of {path.name} does not give {quote(name)} a dtype, a shape and two data_offsets", path=path
        ) from error
    sizes = {**_OTHER_SIZES, **{dtype: np.dtype(kind).itemsize for dtype, kind in DTYPES.items()}}
    if not isinstance(dtype, str) or dtype not in sizes:
        raise CheckpointError(f"{quote(name)} in {path.name} is of the unknown type {quote(dtype)}", path=path)
    is_sound = isinstance(shape, list) and len(shape) <= _MOST_AXES
    is_sound = is_sound and all(type(number) is int and 0 <= number < _LARGEST for number in [*shape, begin, end])
    if not is_sound or math.prod(shape) * sizes[dtype] != end - begin:
        raise CheckpointError(
            f"{quote(name)} in {path.name} has shape {quote(shape)} of {dtype}, "
            f"but bytes {quote(begin)} to {quote(end)}: one of them lies",
            path=path,
        )
    return StoredTensor(name, dtype, tuple(shape), path, start + begin, end - begin)


def _check_layout(tensors: list[StoredTensor], path: Path, start: int, n_bytes: int) -> None:
    """The tensors follow each other without overlap or gap, to the end of the file."""
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.n_bytes)):
        if tensor.offset != end:
            what = "overlaps the tensor before it" if tensor.offset < end else "leaves a gap before it"
            raise CheckpointError(
                f"{quote(tensor.name)} in {path.name} {what}: it starts at byte {tensor.offset:,}, not {end:,}",
                path=path,
            )
        end += tensor.n_bytes
    if end != n_bytes:
        raise CheckpointError(
            f"{path.name} is {n_bytes:,} bytes long, but its tensors end at {end:,}",
            path=path,
            hint="download it again",
        )
