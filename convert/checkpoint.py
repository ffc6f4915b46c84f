"""A checkpoint folder in Hugging Face form: its JSON files, and its tensors as memory-mapped arrays.

Everything is checked when the folder is opened, without reading any weights: headers against file sizes, tensors
against each other, shards against the index. What a config *claims* about tensors is not believed here; `qwen35`
compares the two. Nothing is executed, and no pickled weights are read.

Not guaranteed: files that change while they are open.
"""

from __future__ import annotations

import dataclasses
import json
import math
import stat
import struct
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sqale_edge.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Array = np.ndarray[Any, np.dtype[Any]]

# Source: the format's page in huggingface/safetensors. BF16 has no NumPy type: its bits are read as uint16.
DTYPES: dict[str, type[np.generic]] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
# Types that tensors may have which are dropped anyway.
_OTHER_SIZES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_OTHER_SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}
_HEADER_LIMIT = 100_000_000  # Source: the limit of the safetensors library itself
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
                f"{self.name!r} is of type {self.dtype}, but only {', '.join(DTYPES)} can be converted",
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
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise CheckpointError(
                f"{str(folder)!r} {what}",
                path=folder,
                hint="give the folder that holds config.json and model.safetensors",
            )
        if not (folder / "config.json").exists():
            raise CheckpointError(f"no config.json in {str(folder)!r}", path=folder, hint=_WHOLE_HINT)
        config = read_json(folder / "config.json")
        return cls(folder, config, _read_tensors(folder))

    def read_optional(self, name: str) -> dict[str, Any]:
        """The JSON object in the file `name`, or an empty one where there is no such file."""
        path = self.folder / name
        return read_json(path) if is_there(path) else {}


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, if only a link to nowhere: that is damage, not absence."""
    return path.exists() or path.is_symlink()


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The whole of a regular file of at most `limit` bytes. Raises CheckpointError for anything else."""
    n_bytes = _file_size(path)
    if n_bytes > limit:
        raise CheckpointError(
            f"{path.name} is {n_bytes:,} bytes long, more than the {limit:,} that such a file may have", path=path
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", path=path) from error


def read_text(path: Path, *, limit: int) -> str:
    """`read_bytes` as UTF-8."""
    try:
        return read_bytes(path, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path.name} is not UTF-8: {error.reason} at byte {error.start}", path=path) from error


def read_json(path: Path, *, limit: int = 1 << 28) -> dict[str, Any]:
    """The JSON object in a file. A key that appears twice is an error: which of the two counts would be a guess."""
    return _parse_object(read_text(path, limit=limit), path, path.name)


def _parse_object(text: str | bytes, path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a JSON {type(value).__name__}, not an object", path=path)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{name!r} appears twice")
    return result


def _file_size(path: Path) -> int:
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", path=path) from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path.name} is not a regular file", path=path)
    return status.st_size


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
    if (folder / "adapter_model.safetensors").exists():
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
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not shard.endswith(".safetensors") or any(character in shard for character in "/\\:\0"):
            raise CheckpointError(
                f"{_INDEX} names the shard {shard!r}, which is not a .safetensors file of this folder", path=path
            )
        for tensor in _read_header(folder / shard):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"{tensor.name!r} is in {tensors[tensor.name].path.name} and in {shard}", path=path
                )
            tensors[tensor.name] = tensor
            if weight_map.get(tensor.name) != shard:
                listed = weight_map.get(tensor.name, "no shard")
                raise CheckpointError(f"{tensor.name!r} is in {shard}, but {_INDEX} says {listed}", path=path)
    if missing := weight_map.keys() - tensors.keys():
        name = min(missing)
        raise CheckpointError(
            f"{_INDEX} says that {weight_map[name]} holds {name!r}, which it does not{_and_more(missing)}", path=path
        )
    return tensors


def _and_more(names: Iterable[str]) -> str:
    n_more = len(set(names)) - 1
    return f" (and {n_more} more)" if n_more else ""


def _read_header(path: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, checked to fill it exactly."""
    n_bytes = _file_size(path)
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            n_header = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < n_header <= min(_HEADER_LIMIT, n_bytes - 8):
                raise CheckpointError(
                    f"{path.name} is truncated or not safetensors: {n_bytes:,} bytes, header of {n_header:,}", path=path
                )
            text = file.read(n_header)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", path=path) from error
    header = _parse_object(text, path, f"the header of {path.name}")
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
            f"the header of {path.name} does not give {name!r} a dtype, a shape and two data_offsets", path=path
        ) from error
    sizes = {**_OTHER_SIZES, **{dtype: np.dtype(kind).itemsize for dtype, kind in DTYPES.items()}}
    if not isinstance(dtype, str) or dtype not in sizes:
        raise CheckpointError(f"{name!r} in {path.name} is of the unknown type {dtype!r}", path=path)
    is_sound = isinstance(shape, list) and all(type(number) is int and number >= 0 for number in [*shape, begin, end])
    if not is_sound or math.prod(shape) * sizes[dtype] != end - begin:
        raise CheckpointError(
            f"{name!r} in {path.name} has shape {shape!r} of {dtype}, but bytes {begin!r} to {end!r}: one of them lies",
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
                f"{tensor.name!r} in {path.name} {what}: it starts at byte {tensor.offset:,}, not {end:,}", path=path
            )
        end += tensor.n_bytes
    if end != n_bytes:
        raise CheckpointError(
            f"{path.name} is {n_bytes:,} bytes long, but its tensors end at {end:,}",
            path=path,
            hint="download it again",
        )
