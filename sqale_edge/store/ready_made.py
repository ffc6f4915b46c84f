"""A GGUF file of somebody else becomes a model of the store: verified, and with the texts that it was trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqale_edge.installed import Manifest
from sqale_edge.store.conversion import find_versions, now
from sqale_edge.store.steps import Step, hash_file
from sqale_edge.store.training_texts import SOURCE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.installed import StoredFile
    from sqale_edge.store.hub import Listing
    from sqale_edge.store.steps import Listener
    from sqale_edge.store.training_texts import TextSearch
    from sqale_edge.store.workplace import Workplace

# Source: enum llama_ftype in llama.h, as far as this program can make them; see `llama.quantize`.
_FILE_TYPE_KEY = "general.file_type"


def describe_gguf(
    place: Workplace,
    path: Path,
    file: StoredFile,
    listener: Listener,
    *,
    name: str,
    asked: str,
    search: TextSearch,
    listing: Listing | None = None,
) -> Manifest:
    """Verify the file, find its texts, and describe it.

    Args:
        place: What belongs beside the file is put into its `version`.
        path: Of the file.
        file: The same as it is to stand in the manifest.
        listener: Told meanwhile.
        name: In the store.
        asked: What the person asked for.
        search: Where its texts may be.
        listing: The repository that it comes from, if it comes from one.

    Raises:
        ConversionError: It is no language model that runs.
        ModelLoadError: It is no GGUF.
        StoreError: The texts cannot be had.
    """
    from sqale_edge.convert import verify_file  # noqa: PLC0415 - not a light import
    from sqale_edge.llama import read_model_info  # noqa: PLC0415
    from sqale_edge.llama.model import check_gguf  # noqa: PLC0415

    check_gguf(path)
    verify_file(path, on_wait=lambda: listener.show(Step("verify", path.name, 0, file.n_bytes)))
    metadata = read_model_info(path).metadata
    texts, prompt_source = search.find(metadata, place, listener)
    is_unknown = prompt_source is None and search.choice.is_wanted
    beside = place.version / SOURCE_NAME
    return Manifest(
        name=name,
        origin="ready-made",
        file=file,
        quant=_read_file_type(metadata),
        source=asked,
        repository=listing.repository if listing else None,
        revision=listing.commit if listing else None,
        files=(hash_file(beside, beside.name, listener),) if beside.exists() else (),
        licence=(listing.licence if listing else None) or metadata.get("general.license"),
        prompt_source=prompt_source,
        texts=texts,
        versions=find_versions(),
        made_at=now(),
        notes=("nobody knows what it was trained with: it gets this package's own instructions",) if is_unknown else (),
    )


def _read_file_type(metadata: dict[str, str]) -> str | None:
    """The file type by its name, where the file says its number."""
    from sqale_edge.llama.quantize import FILE_TYPES  # noqa: PLC0415 - not a light import

    codes = {str(kind.code): name for name, kind in FILE_TYPES.items()}
    return codes.get(metadata.get(_FILE_TYPE_KEY, ""))
