"""The demo model's shape, as `config.json` has it.

The architecture is that of Qwen3.5's language model, made small: Gated DeltaNet and gated attention take turns. To copy
a name that was never seen takes attention, so every second layer is one (in the large model every fourth). Every row of
every matrix is a multiple of 256 wide, so that K-quantized types work.
"""

from __future__ import annotations

from typing import Any

LAYERS = 6
# One likeliest answer: a demonstration should give the same one every time.
GENERATION = {"do_sample": False, "temperature": 0.0, "top_k": 20, "top_p": 0.95}


def make_config(n_vocab: int, end_token: int) -> dict[str, Any]:
    """The configuration of a model with `n_vocab` tokens."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": n_vocab,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_act": "silu",
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "layer_types": ["full_attention" if layer % 2 else "linear_attention" for layer in range(LAYERS)],
        "full_attention_interval": 2,
        "max_position_embeddings": 16_384,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "eos_token_id": end_token,
        "initializer_range": 0.02,
    }
