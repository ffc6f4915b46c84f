"""Small random models of other architectures, for what must work beyond Qwen3.5.

No thinking, a BOS token; a Llama with plain attention, and a Mamba, whose layers are all recurrent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
from checkpoints import train_bpe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>")
N_EMBD, N_HEADS, N_LAYERS, N_FF = 64, 4, 2, 128


def write_llama_gguf(
    path: Path,
    *,
    seed: int = 0,
    with_vocabulary: bool = True,
    values: Mapping[str, int | str] | None = None,
    more_tokens: Sequence[str] = (),
) -> Path:
    """Write a Llama of two layers with the tests' byte-level vocabulary.

    `values` are further keys of its architecture, `more_tokens` further normal tokens.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Plain Llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (values or {}).items():
        add_value = writer.add_string if isinstance(value, str) else writer.add_uint32
        add_value(f"llama.{key}", value)
    n_vocab = _add_vocabulary(writer, more_tokens) if with_vocabulary else len(train_bpe()[0]) + len(SPECIAL)
    rng = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.3, shape).astype(np.float32))

    add("token_embd.weight", n_vocab, N_EMBD)
    add("output_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", N_EMBD)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", N_EMBD, N_EMBD)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", N_FF, N_EMBD)
        add(f"blk.{layer}.ffn_down.weight", N_EMBD, N_FF)
    return _finish(writer, path)


def write_mamba_gguf(path: Path) -> Path:
    """Write a Mamba of two layers with the same vocabulary."""
    n_inner, n_state, n_conv, rank = 2 * N_EMBD, 8, 4, 4
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("Plain Mamba")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = _add_vocabulary(writer)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.3, shape).astype(np.float32))

    add("token_embd.weight", n_vocab, N_EMBD)
    add("output_norm.weight", N_EMBD)
    for layer in range(N_LAYERS):
        add(f"blk.{layer}.attn_norm.weight", N_EMBD)
        add(f"blk.{layer}.ssm_in.weight", 2 * n_inner, N_EMBD)
        add(f"blk.{layer}.ssm_conv1d.weight", n_inner, n_conv)
        add(f"blk.{layer}.ssm_conv1d.bias", n_inner)
        add(f"blk.{layer}.ssm_x.weight", rank + 2 * n_state, n_inner)
        add(f"blk.{layer}.ssm_dt.weight", n_inner, rank)
        add(f"blk.{layer}.ssm_dt.bias", n_inner)
        writer.add_tensor(f"blk.{layer}.ssm_a", -np.exp(rng.normal(0, 0.3, (n_inner, n_state))).astype(np.float32))
        add(f"blk.{layer}.ssm_d", n_inner)
        add(f"blk.{layer}.ssm_out.weight", N_EMBD, n_inner)
    return _finish(writer, path)


def _add_vocabulary(writer: gguf.GGUFWriter, more_tokens: Sequence[str] = ()) -> int:
    """Add the tests' byte-level vocabulary. Returns how many tokens it has."""
    words, merges = train_bpe()
    words = [*words, *more_tokens]
    tokens = [*words, *SPECIAL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.CONTROL] * len(SPECIAL))
    writer.add_bos_token_id(tokens.index("<|begin|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(True)
    return len(tokens)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
