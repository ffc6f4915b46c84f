"""Does a GGUF file load, and does it decode? The last step of a conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge.errors import ModelLoadError
from sqale_edge.llama.engine import LlamaEngine
from sqale_edge.settings import EngineSettings, SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

_PROMPT = "SELECT 1"


def check_loads(path: Path) -> dict[str, Any]:
    """Load the file, evaluate a prompt, decode one token. Returns what was seen, as JSON types.

    Raises:
        ModelError: llama.cpp cannot load or evaluate it, or what it computes is not finite.
    """
    engine = LlamaEngine(path, EngineSettings(n_ctx=64, n_batch=16, gpu_layers="off", use_mmap=True))
    try:
        sequence = engine.new_sequence(seed=0, sampling=SamplingSettings(temperature=0))
        prompt = engine.tokenize(_PROMPT, trusted=True)
        sequence.append(prompt)
        if sequence.logits is None or not np.isfinite(sequence.logits).all():
            raise ModelLoadError(f"{path.name} loads, but what it computes is not finite: its weights are damaged")
        token = next(iter(sequence.decode(None, 1, frozenset())))
        return {"n_vocab": engine.info.n_vocab, "n_prompt": len(prompt), "token": token, "load_s": engine.load_s}
    finally:
        engine.close()
