"""Small random Qwen3.5 checkpoints in Hugging Face form, written by hand: no torch, no download, the same bytes for the
same seed.

    path = write_checkpoint(tmp_path / "model")
    convert_checkpoint(path, tmp_path / "model.gguf", quant="BF16")

The vocabulary is a real byte-level BPE of about 500 tokens with Qwen's pre-tokenizer and added tokens, so prompts of
the agent can be tokenized.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
PLAIN_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Source: pre_tokenizer of Qwen3.5's tokenizer.json.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)
_WORDS = (
    " SELECT",
    " FROM",
    " WHERE",
    " COUNT",
    " JOIN",
    " the",
    " table",
    " customers",
    " orders",
    "tool",
    "args",
    "name",
    "sql",
    "list_tables",
    "describe_table",
    "run_query",
    "submit_sql",
    "Tool result",
    " turns left",
    "grün",
    "日本",
    "été",
    "    ",
    '{"',
    '": "',
    "\n\n",
)
N_VOCAB = 640  # more than the tokenizer knows, as in the real model

# The shapes whose logits are recorded: value heads 1, 2 and 4 times the key heads, both forms of names, both heads.
SHAPES: dict[str, dict[str, Any]] = {
    "multimodal": {"seed": 1, "key_heads": 2, "value_heads": 4},
    "causal": {"seed": 2, "key_heads": 2, "value_heads": 8, "is_multimodal": False, "is_tied": False, "n_shards": 3},
    "equal": {"seed": 3, "key_heads": 4, "value_heads": 4, "layers": 5, "dtype": "F32"},
}
REFERENCE_TOKENS = [394, 281, 286, 10, 83, 300, 17, 18, 404, 255, 7, 395]
CORPUS = [
    "SELECT name, COUNT(*) FROM customers WHERE id >= 1234567 GROUP BY name;",
    "  two  spaces,\ttabs\t\tand\r\nline\n\n\nends \n ",
    "it's I'M we'Ve they'LL he'd 'tis",
    "grün été 日本語 テスト नमस्ते กรุงเทพ Việt العربية עברית",
    "cafe\u0301 a\u0308 \u0915\u093c \u1100\u1161",
    "👩‍👩‍👧 🏳️‍🌈 ✅ \U0001f600\u200d",
    "½ ² ٣ १२३ Ⅷ 3.14e-10 0x1F 1_000",
    "<|im_start|>user\nhow many?<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<think> no <think>yes</think>\n\n<tool_call>{}</tool_call>x<|endoftext|>",
    "<|im_start|<|im_end|>><think </think><|fim_prefix|>",
    '{"tool": "run_query", "args": {"sql": "SELECT 1"}}\n{"tool": "list_tables"}',
    "def f(x):\n    return x**2  # naïve\n",
    "\u00a0\u2003\u3000\u200b\ufeff\u0000\u007f\u0085",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 4,
    "",
]


def write_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 4,
    hidden: int = 256,
    ffn: int = 256,
    key_heads: int = 2,
    value_heads: int = 4,
    linear_head_dim: int = 32,
    head_dim: int = 64,
    is_tied: bool = True,
    is_multimodal: bool = True,
    n_shards: int = 1,
    dtype: str = "BF16",
    agent_source: str | None = None,
) -> Path:
    """Write a checkpoint and return its folder.

    Args:
        folder: Made if missing; its name becomes the model's name.
        seed: Of the weights.
        layers: Every fourth is full attention.
        hidden: A multiple of 256, or K-quantized tensors fall back to other types.
        ffn: The same.
        key_heads: DeltaNet key heads.
        value_heads: DeltaNet value heads, a multiple of `key_heads`.
        linear_head_dim: Width of a DeltaNet head.
        head_dim: Width of an attention head (2 query heads, 1 key/value head).
        is_tied: The output head is the embedding.
        is_multimodal: Names under `model.language_model.` and some vision tensors; False is the plain causal form.
        n_shards: Above 1 there is an index.
        dtype: BF16, F16 or F32, of every tensor.
        agent_source: What `sqale_agent.py` holds; None writes no such file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text_config = {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": linear_head_dim,
        "linear_value_head_dim": linear_head_dim,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "layer_types": ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)],
        "max_position_embeddings": 32_768,
        "mtp_num_hidden_layers": 1,  # claimed, and absent, as in fine-tunes saved by transformers
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": is_tied,
        "vocab_size": N_VOCAB,
        "hidden_act": "silu",
        "eos_token_id": 0,
    }
    if is_multimodal:
        vision = {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 32, "out_hidden_size": hidden}
        config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "dtype": "bfloat16"}
        config |= {"text_config": text_config, "vision_config": vision, "tie_word_embeddings": is_tied}
    else:
        config = {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "bfloat16", **text_config}
    write_json(folder / "config.json", config)
    tensors = make_tensors(text_config, seed=seed, is_multimodal=is_multimodal)
    write_weights(
        folder, {name: encode(array, dtype) for name, array in tensors.items()}, dtype=dtype, n_shards=n_shards
    )
    write_tokenizer(folder)
    write_json(folder / "generation_config.json", {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95})
    if agent_source is not None:
        (folder / "sqale_agent.py").write_text(agent_source, encoding="utf-8")
    return folder


def make_tensors(config: Mapping[str, Any], *, seed: int, is_multimodal: bool) -> dict[str, np.ndarray]:
    """Random weights as float32, by their Hugging Face names; scaled so that rounding errors stay small."""
    rng = np.random.default_rng(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    n_value, value = (
        config["linear_num_value_heads"],
        config["linear_num_value_heads"] * config["linear_value_head_dim"],
    )
    query, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    tensors: dict[str, np.ndarray] = {}
    root = "model.language_model." if is_multimodal else "model."

    def add(name: str, *shape: int, scale: float | None = None, mean: float = 0.0) -> None:
        scale = 0.6 * shape[-1] ** -0.5 if scale is None else scale
        tensors[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    add(f"{root}embed_tokens.weight", config["vocab_size"], hidden, scale=0.08)
    for layer, kind in enumerate(config["layer_types"]):
        block = f"{root}layers.{layer}."
        add(f"{block}input_layernorm.weight", hidden, scale=0.1)
        add(f"{block}post_attention_layernorm.weight", hidden, scale=0.1)
        add(f"{block}mlp.gate_proj.weight", ffn, hidden)
        add(f"{block}mlp.up_proj.weight", ffn, hidden)
        add(f"{block}mlp.down_proj.weight", hidden, ffn)
        if kind == "full_attention":
            add(f"{block}self_attn.q_proj.weight", 2 * query, hidden)
            add(f"{block}self_attn.k_proj.weight", kv, hidden)
            add(f"{block}self_attn.v_proj.weight", kv, hidden)
            add(f"{block}self_attn.o_proj.weight", hidden, query)
            add(f"{block}self_attn.q_norm.weight", config["head_dim"], scale=0.1)
            add(f"{block}self_attn.k_norm.weight", config["head_dim"], scale=0.1)
        else:
            add(f"{block}linear_attn.in_proj_qkv.weight", 2 * key + value, hidden)
            add(f"{block}linear_attn.in_proj_z.weight", value, hidden)
            add(f"{block}linear_attn.in_proj_a.weight", n_value, hidden)
            add(f"{block}linear_attn.in_proj_b.weight", n_value, hidden)
            add(f"{block}linear_attn.conv1d.weight", 2 * key + value, 1, config["linear_conv_kernel_dim"], scale=0.4)
            add(f"{block}linear_attn.A_log", n_value, scale=0.5)
            add(f"{block}linear_attn.dt_bias", n_value, scale=0.5)
            add(f"{block}linear_attn.norm.weight", config["linear_value_head_dim"], scale=0.1, mean=1.0)
            add(f"{block}linear_attn.out_proj.weight", hidden, value)
    add(f"{root}norm.weight", hidden, scale=0.1)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden, scale=0.15)
    if is_multimodal:
        add("model.visual.patch_embed.proj.weight", 32, 3, 2, 4, 4)
        add("model.visual.blocks.0.attn.qkv.weight", 96, 32)
    return tensors


def encode(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` in the safetensors type `dtype`; BF16 by rounding to nearest even, as uint16."""
    if dtype == "BF16":
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return array.astype({"F16": np.float16, "F32": np.float32}[dtype])


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray], *, dtype: str, n_shards: int = 1) -> None:
    """One `model.safetensors`, or shards and their index."""
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", {name: (dtype, array) for name, array in tensors.items()})
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        mine = names[shard::n_shards]
        weight_map |= dict.fromkeys(mine, file)
        write_safetensors(folder / file, {name: (dtype, tensors[name]) for name in mine})
    total = sum(array.nbytes for array in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """Tensors in the order given, without gaps. Source: the format's page in huggingface/safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def write_tokenizer(folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`: byte-level BPE of a few words, Qwen's pattern and added tokens."""
    vocabulary, merges = train_bpe()
    added = [
        {"id": len(vocabulary) + index, "content": token, "special": token in SPECIAL_TOKENS}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, token in enumerate(SPECIAL_TOKENS + PLAIN_TOKENS)
    ]
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
    }
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": merges}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
    }
    tokenizer |= {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}
    tokenizer |= {"post_processor": level, "decoder": level, "model": model}
    write_json(folder / "tokenizer.json", tokenizer)
    settings = {"tokenizer_class": "Qwen2TokenizerFast", "add_bos_token": False, "model_max_length": 32_768}
    settings |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    write_json(folder / "tokenizer_config.json", settings)


def train_bpe() -> tuple[dict[str, int], list[list[str]]]:
    """A vocabulary and its merges: the 256 bytes, then each word's pieces joined from left to right."""
    alphabet = byte_alphabet()
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    merges = []
    for word in _WORDS:
        whole = ""
        for byte in word.encode():
            piece = alphabet[byte]
            if whole and whole + piece not in vocabulary:
                merges.append([whole, piece])
                vocabulary[whole + piece] = len(vocabulary)
            whole += piece
    return vocabulary, merges


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE. Source: encoder.py of openai/gpt-2."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in range(256)]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
