"""What is in a GGUF file, short enough for a fixture. Read with llama.cpp's own reader, never with ours."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import gguf

if TYPE_CHECKING:
    from pathlib import Path

# Left out: where the model comes from, which each converter words in its own way.
_PREFIXES = ("qwen35.", "tokenizer.", "general.sampling.")
_KEYS = {"general.architecture", "general.type", "general.file_type", "general.quantization_version"}
_SHOWN = 128  # longer values and tensors become SHA-256


def digest_fields(path: Path) -> dict[str, Any]:
    """The keys that decide how llama.cpp runs the file: their types and values."""
    fields = {name: field for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}
    chosen = {name: field for name, field in fields.items() if name in _KEYS or name.startswith(_PREFIXES)}
    return {name: [[kind.name for kind in field.types], _shorten(field.contents())] for name, field in chosen.items()}


def digest_tensors(path: Path) -> dict[str, list[Any]]:
    """For each tensor its type, its shape as ggml counts, and its bytes: in hex where they are few, else SHA-256."""
    digests = {}
    for tensor in gguf.GGUFReader(path).tensors:
        content = tensor.data.tobytes()
        shown = content.hex() if len(content) <= _SHOWN // 2 else hashlib.sha256(content).hexdigest()
        digests[tensor.name] = [tensor.tensor_type.name, tensor.shape.tolist(), shown]
    return digests


def _shorten(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _SHOWN else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"
