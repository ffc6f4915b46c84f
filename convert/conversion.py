"""`convert_checkpoint`: everything between a folder and a finished GGUF file."""

from __future__ import annotations

import os
from pathlib import Path

from .checkpoint import Checkpoint
from .qwen35 import plan_tensors
from .qwen35_config import Qwen35Config
from .tokenizer import read_vocabulary
from .writer import write_gguf


def convert_checkpoint(source: str | Path, target: str | Path, quant: str = "Q4_K_M") -> None:
    """Convert the checkpoint in the folder `source` to the GGUF file `target`."""
    source, target = Path(source), Path(target)
    checkpoint = Checkpoint.open(source)
    config = Qwen35Config.from_json(checkpoint.config, source / "config.json")
    plans, _ = plan_tensors(config, checkpoint.tensors, source)
    vocabulary = read_vocabulary(checkpoint, config.n_vocab)
    fields = [
        ("general.architecture", "str", "qwen35"),
        ("general.type", "str", "model"),
        ("general.name", "str", source.resolve().name),
        ("general.file_type", "u32", {"F32": 0, "F16": 1, "BF16": 32}[quant]),
        ("general.quantization_version", "u32", 2),
        *config.to_metadata(),
        *vocabulary.to_metadata(),
    ]
    aside = target.with_name(f".{target.name}.part")
    write_gguf(aside, fields, plans, quant, lambda _: None)
    os.replace(aside, target)
