"""The demo model in torch, and its checkpoint as a Hugging Face folder. Only this module and `train` need torch."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from prompt import SOURCE_PATH
from safetensors.torch import load_file, save_file
from shape import GENERATION
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

if TYPE_CHECKING:
    from pathlib import Path

    from vocabulary import Vocabulary


def make_model(config: dict[str, Any], seed: int) -> Qwen3_5ForCausalLM:
    """An untrained model in float32; the same weights for the same seed."""
    torch.manual_seed(seed)
    settings = Qwen3_5TextConfig(**{name: value for name, value in config.items() if name != "model_type"})
    settings._attn_implementation = "eager"  # noqa: SLF001 - no public way; on a CPU the plain one is the fastest
    return Qwen3_5ForCausalLM(settings)


def export_folder(model: Qwen3_5ForCausalLM, config: dict[str, Any], vocabulary: Vocabulary, folder: Path) -> None:
    """Write a checkpoint in BF16 as transformers would, with the prompt's texts beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "bfloat16", **config}
    for name, value in (("config.json", config), ("generation_config.json", GENERATION)):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    vocabulary.write_tokenizer(folder)
    shutil.copyfile(SOURCE_PATH, folder / SOURCE_PATH.name)


def load_folder(folder: Path) -> Qwen3_5ForCausalLM:
    """The model of an exported folder, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = make_model({name: value for name, value in config.items() if name not in ("architectures", "dtype")}, 0)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    return model
