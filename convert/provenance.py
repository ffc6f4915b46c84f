"""Where a checkpoint comes from: its name, its repository and revision, its sampling defaults."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import gguf

from sqale_edge.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .qwen35 import TensorPlan
    from .writer import Field

_CACHE_FOLDER = re.compile(r"models--([^/\\]+?)--([^/\\]+)")
_REVISION = re.compile(r"[0-9a-f]{40}")
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
}  # in generation_config.json, and after general.sampling.


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Names of the origin; None where they are not known."""

    name: str
    repository: str | None
    revision: str | None

    def to_metadata(self) -> list[Field]:
        """The keys that name the model."""
        fields: list[Field] = [("general.name", "str", self.name)]
        if self.repository:
            fields.append(("general.source.repo_url", "str", f"https://huggingface.co/{self.repository}"))
            fields.append(("sqale.source.repository", "str", self.repository))
        if self.revision:
            fields.append(("sqale.source.revision", "str", self.revision))
        return fields


def find_provenance(
    folder: Path, *, name: str | None = None, repository: str | None = None, revision: str | None = None
) -> Provenance:
    """What is given, else what the folder tells: the layout of the Hugging Face cache, or a download's notes."""
    path = folder.resolve()
    if cached := next(filter(None, map(_CACHE_FOLDER.fullmatch, path.parts)), None):
        repository = repository or "/".join(cached.groups())
        if _REVISION.fullmatch(path.name):
            revision = revision or path.name
    if revision is None:
        revision = _read_download_note(folder)
    # What people call the model; a folder of the cache is named after its revision.
    usual_name = repository.rpartition("/")[2] if repository else path.name
    return Provenance(name or usual_name or "model", repository, revision)


def _read_download_note(folder: Path) -> str | None:
    """The commit that `hf download --local-dir` noted beside the files. Source: _local_folder.py of huggingface_hub."""
    note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    try:
        with note.open(encoding="utf-8") as file:
            first = file.readline(64).strip()
    except (OSError, ValueError):
        return None
    return first if _REVISION.fullmatch(first) else None


def describe_model(plans: Sequence[TensorPlan]) -> list[Field]:
    """What llama.cpp shows of any model: architecture and size."""
    n_parameters = sum(math.prod(plan.shape) for plan in plans)
    return [
        ("general.architecture", "str", "qwen35"),
        ("general.type", "str", "model"),
        ("general.size_label", "str", gguf.size_label(n_parameters, 0, 0, 0)),
    ]


def read_sampling(checkpoint: Checkpoint) -> list[Field]:
    """The sampling defaults of `generation_config.json`, under llama.cpp's keys and under ours.

    Raises:
        CheckpointError: One of them is no number.
    """
    values = checkpoint.read_optional("generation_config.json")
    fields: list[Field] = []
    for name, short in _SAMPLING.items():
        value: Any = values.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 <= value <= 1 << 20:
            raise CheckpointError(
                f"generation_config.json has {name} {value!r}, which is no number from 0", path=checkpoint.folder
            )
        keys = (f"general.sampling.{short}", f"sqale.sampling.{name}")
        fields += [(key, "i32", int(value)) if name == "top_k" else (key, "f32", float(value)) for key in keys]
    return fields
