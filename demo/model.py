"""The demo model's shape, and its checkpoint as a Hugging Face folder. Only this module and `train` need torch.

The architecture is that of Qwen3.5's language model, made small: Gated DeltaNet and gated attention take turns. To copy
a name that was never seen takes attention, so every second layer is one (in the large model every fourth). Every row of
every matrix is a multiple of 256 wide, so that K-quantized types work.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from prompt import SOURCE_PATH
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

if TYPE_CHECKING:
    from pathlib import Path

    from vocabulary import Vocabulary

HIDDEN = 256
LAYERS = 6
FFN = 512
# One likeliest answer: a demonstration should give the same one every time.
GENERATION = {"do_sample": False, "temperature": 0.0, "top_k": 20, "top_p": 0.95}


def make_config(n_vocab: int, end_token: int, layers: int = LAYERS) -> Qwen3_5TextConfig:
    """The configuration of a model with `n_vocab` tokens."""
    return Qwen3_5TextConfig(
        vocab_size=n_vocab,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["full_attention" if layer % 2 else "linear_attention" for layer in range(layers)],
        full_attention_interval=2,  # type: ignore[call-arg]  # says the same to those who read no list
        max_position_embeddings=16_384,
        rms_norm_eps=1e-6,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        tie_word_embeddings=True,
        eos_token_id=end_token,
        initializer_range=0.02,
    )


def make_model(config: Qwen3_5TextConfig, seed: int) -> Qwen3_5ForCausalLM:
    """An untrained model in float32; the same weights for the same seed."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"  # noqa: SLF001 - transformers has no public way; on a CPU the plain one is the fastest
    return Qwen3_5ForCausalLM(config)


def export_folder(model: Qwen3_5ForCausalLM, vocabulary: Vocabulary, folder: Path) -> None:
    """Write a checkpoint in BF16 as transformers would, with the prompt's texts beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "bfloat16"}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", GENERATION)
    vocabulary.write_tokenizer(folder)
    (folder / SOURCE_PATH.name).write_text(SOURCE_PATH.read_text(encoding="utf-8"), encoding="utf-8")


def load_folder(folder: Path) -> Qwen3_5ForCausalLM:
    """The model of an exported folder, in float32."""
    config = Qwen3_5TextConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model = make_model(config, seed=0)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    return model


def write_json(path: Path, value: object) -> None:
    """Write `value`, readable."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
