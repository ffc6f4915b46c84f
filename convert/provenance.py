"""Where a checkpoint comes from: its name, its repository and revision."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sqale_edge.errors import CheckpointError

from .foreign import read_text

if TYPE_CHECKING:
    from .writer import Field

_CACHE_FOLDER = re.compile(r"models--([^/\\]+?)--([^/\\]+)")
_NOTE_LIMIT = 1 << 12
_REVISION = re.compile(r"[0-9a-f]{40}")


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
    path = Path(os.fsencode(folder.resolve()).decode("utf-8", "replace"))  # it goes into a file
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
        first = read_text(note, limit=_NOTE_LIMIT).partition("\n")[0].strip()
    except CheckpointError:  # the conversion does not depend on it
        return None
    return first if _REVISION.fullmatch(first) else None
