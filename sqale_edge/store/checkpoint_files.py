"""Which files of a repository a conversion needs, and what they take on the disk meanwhile.

What is small comes first, and has to be right before gigabytes are downloaded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqale_edge.errors import StoreError
from sqale_edge.store.training_texts import SOURCE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.store.download import Downloads
    from sqale_edge.store.hub import HubFile, Listing

_CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
# What the conversion reads beside the weights.
_SMALL = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    _INDEX,
    SOURCE_NAME,
)
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE)(\.(txt|md))?", re.IGNORECASE)
_SHARD = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)
_BITS_OF_SOURCE = 16


def is_licence(name: str) -> bool:
    """Whether a file is one that a copy must be accompanied by."""
    return _LICENCE.fullmatch(name) is not None


def list_small_files(listing: Listing, *, with_prompt: bool) -> list[HubFile]:
    """All but the weights.

    Raises:
        StoreError: It is no repository with a checkpoint that could be converted.
    """
    files = listing.files
    needed = sorted({_CONFIG, "tokenizer.json"} - files.keys())
    if needed or not {_SINGLE, _INDEX} & files.keys():
        ready = sorted(name for name in files if name.endswith(".gguf"))
        raise StoreError(
            f"{listing.repository} holds no checkpoint that can be converted: "
            f"there is no {needed[0] if needed else f'{_SINGLE} and no {_INDEX}'}",
            hint=(
                f"it holds finished files: sqale-edge models pull hf:{listing.repository}/{ready[0]}"
                if ready
                else "give the repository of a fine-tune of Qwen3.5, with its weights as safetensors"
            ),
        )
    names = [name for name in _SMALL if name in files and (with_prompt or name != SOURCE_NAME)]
    return [files[name] for name in names] + [file for name, file in files.items() if is_licence(name)]


def check_small_files(folder: Path) -> None:
    """Raise ConversionError for a model that the conversion does not know, or a training prompt it cannot read."""
    from sqale_edge.convert.foreign import read_json  # noqa: PLC0415 - not a light import
    from sqale_edge.convert.qwen35_config import Qwen35Config  # noqa: PLC0415
    from sqale_edge.convert.training_prompt import read_training_prompt  # noqa: PLC0415

    Qwen35Config.from_json(read_json(folder / _CONFIG), folder / _CONFIG)
    read_training_prompt(folder)


def list_weights(folder: Path, listing: Listing) -> list[HubFile]:
    """The files with weights; those that the index in `folder` names, where there is one.

    Raises:
        StoreError: One of them is not there, or two kinds of them are.
    """
    from sqale_edge.convert.foreign import read_json  # noqa: PLC0415 - not a light import

    files = listing.files
    if _INDEX not in files:
        return [files[_SINGLE]]
    if _SINGLE in files:
        raise StoreError(
            f"{listing.repository} holds {_SINGLE} and {_INDEX}, and which of them counts would be a guess",
            hint="pull another revision, with REPOSITORY@REVISION",
        )
    entries = read_json(folder / _INDEX).get("weight_map")
    names = sorted({str(name) for name in entries.values()}) if isinstance(entries, dict) else []
    wrong = [name for name in names if not _SHARD.fullmatch(name) or name not in files]
    if wrong or not names:
        what = f"names {wrong[0]!r}, which is not there" if wrong else "names no files"
        raise StoreError(f"the {_INDEX} of {listing.repository} {what}", hint="pull another revision")
    return [files[name] for name in names]


def count_peak(downloads: Downloads, weights: list[HubFile], quant: str) -> dict[str, int]:
    """Bytes that are on the disk at the same time, beside what is there: an upper bound for weights of 16 bits or more.

    The sizes of `FILE_TYPES` are means; the conversion looks again when it knows the tensors.
    """
    from sqale_edge.llama.quantize import FILE_TYPES, HEAD_BITS, UNQUANTIZED  # noqa: PLC0415 - not a light import

    n_source = sum(file.n_bytes for file in weights)
    bits = max(FILE_TYPES[quant].bits_per_weight, HEAD_BITS)
    return {
        "download": downloads.count_left(weights),
        "BF16": 0 if quant in UNQUANTIZED else n_source,
        quant: int(n_source * bits / _BITS_OF_SOURCE),
    }
