"""A checkpoint's folder becomes a model of the store: converted, verified, described."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
import re
from typing import TYPE_CHECKING

from sqale_edge._version import __version__
from sqale_edge.installed import Manifest
from sqale_edge.store.steps import Step, hash_file
from sqale_edge.store.training_texts import SOURCE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from sqale_edge.installed import StoredFile
    from sqale_edge.store.quantization import Choice
    from sqale_edge.store.steps import Listener
    from sqale_edge.store.workplace import Workplace

_PACKAGES = ("llama-cpp-python", "huggingface_hub", "gguf", "numpy")


def convert_into(
    place: Workplace,
    source: Path,
    listener: Listener,
    *,
    name: str,
    asked: str,
    choice: Choice,
    repository: str | None = None,
    revision: str | None = None,
    use_training_prompt: bool = True,
    licence: str | None = None,
    source_files: tuple[StoredFile, ...] = (),
    extra_files: tuple[StoredFile, ...] = (),
) -> Manifest:
    """Convert `source` into the version that `place` is to show, and describe it.

    Raises:
        ConversionError: It is no checkpoint that can be converted.
    """
    from sqale_edge.convert import convert_checkpoint  # noqa: PLC0415 - not a light import

    title = repository.rpartition("/")[2] if repository else name
    target = place.version / f"{_file_name(title)}-{choice.label}.gguf"
    conversion = convert_checkpoint(
        source,
        target,
        None if choice.recipe else choice.quant,
        recipe=choice.recipe,
        imatrix=choice.imatrix,
        training_prompt=use_training_prompt,
        name=title,
        repository=repository,
        revision=revision,
        on_progress=lambda step: listener.show(Step(step.step, step.file, step.n_done, step.n_total)),
    )
    found = conversion.prompt.found
    return Manifest(
        name=name,
        origin="converted",
        file=hash_file(target, target.name, listener),
        quant=choice.quant,
        recipe=choice.recipe.name if choice.recipe else None,
        recipe_sha256=choice.recipe_sha256,
        imatrix_sha256=choice.imatrix_sha256,
        source=asked,
        repository=conversion.repository,
        revision=conversion.revision,
        source_files=source_files,
        files=extra_files,
        licence=licence,
        prompt_source=f"{SOURCE_NAME} of the checkpoint ({', '.join(sorted(found.values()))})" if found else None,
        versions=find_versions(),
        made_at=now(),
        notes=conversion.notes,
    )


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.-]+", "-", title)


def find_versions() -> dict[str, str]:
    """Of the programs that take part."""
    versions = {"sqale_edge": __version__, "python": platform.python_version()}
    return versions | {package: importlib.metadata.version(package) for package in _PACKAGES}


def now() -> str:
    """The time, in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
