"""Models that Ollama and LM Studio keep, found by the names that these programs give them.

Source: the layout of their folders: `manifests/HOST/USER/NAME/TAG` beside `blobs/sha256-...` in `OLLAMA_MODELS` or
`~/.ollama/models`; `PUBLISHER/REPOSITORY/FILE.gguf` in `~/.lmstudio/models` or `~/.cache/lm-studio/models`. Their files
are only read.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from sqale_edge.errors import StoreError

OLLAMA, LM_STUDIO = "ollama:", "lmstudio:"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_PART = re.compile(r"[\w.-]+", re.ASCII)


def find_in_other_store(text: str) -> tuple[Path, str] | None:
    """The file and a name of the model that `ollama:NAME` or `lmstudio:PUBLISHER/REPOSITORY` stands for.

    None for a text that begins otherwise.

    Raises:
        StoreError: There is no such model, or more than one.
    """
    if text.startswith(OLLAMA):
        return _find_ollama(text.removeprefix(OLLAMA), text)
    if text.startswith(LM_STUDIO):
        return _find_lm_studio(text.removeprefix(LM_STUDIO), text)
    return None


def _find_ollama(name: str, text: str) -> tuple[Path, str]:
    folder = Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()
    whole, _, tag = name.partition(":")
    parts = whole.split("/")
    # Source: a name without them is of registry.ollama.ai, and there of `library`.
    parts = [*["registry.ollama.ai", "library"][: max(0, 3 - len(parts))], *parts, tag or "latest"]
    path = folder.joinpath("manifests", *parts)
    if not all(_PART.fullmatch(part) and part.strip(".") for part in parts) or not path.is_file():
        raise StoreError(f"there is no {text!r}: no file {str(path)!r}", hint="ollama list shows the names")
    try:
        layers = json.loads(path.read_text(encoding="utf-8"))["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error}", hint="pull the model again with ollama") from None
    if len(digests) != 1 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]):
        raise StoreError(f"{text!r} is not one GGUF file", hint="give the path of a .gguf file instead")
    return folder / "blobs" / digests[0].replace(":", "-"), parts[-2]


def _find_lm_studio(name: str, text: str) -> tuple[Path, str]:
    folders = [Path(path).expanduser() for path in ("~/.lmstudio/models", "~/.cache/lm-studio/models")]
    parts = name.split("/")
    if not all(_PART.fullmatch(part) and part.strip(".") for part in parts):
        raise StoreError(f"{text!r} is no name of LM Studio's", hint="give lmstudio:PUBLISHER/REPOSITORY")
    places = [folder.joinpath(*parts) for folder in folders]
    found = [path for path in places if path.is_file()]
    found += [path for place in places if place.is_dir() for path in sorted(place.glob("*.gguf"))]
    if len(found) == 1:
        return found[0], found[0].stem
    if not found:
        raise StoreError(f"there is no {text!r} in {str(folders[0])!r}", hint="give lmstudio:PUBLISHER/REPOSITORY")
    raise StoreError(
        f"{text!r} has {len(found)} files: {', '.join(path.name for path in found[:8])}",
        hint=f"name one of them: {text}/{found[0].name}",
    )
