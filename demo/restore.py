"""The way back: a Hugging Face folder from the demo's GGUF file, for programs that read no GGUF.

    python demo/restore.py FILE.gguf FOLDER

For BF16 files of this architecture with as many value heads as key heads, and for the demo's own vocabulary. Converting
the folder gives the same tensors again, bit for bit; a test does it. No torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from prompt import SOURCE_PATH
from shape import GENERATION, make_config
from vocabulary import Vocabulary

_BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
_NAMES = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}


def restore_folder(source: Path, folder: Path) -> None:
    """Write the checkpoint that `source` was converted from.

    Raises:
        ValueError: The file is none that this can be done for.
    """
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    vocabulary = Vocabulary.load()
    if fields["tokenizer.ggml.tokens"][: len(vocabulary.tokens)] != vocabulary.tokens:
        raise ValueError(f"{source} has another vocabulary than {vocabulary.__class__.__module__}.json")
    if fields["qwen35.ssm.group_count"] != fields["qwen35.ssm.time_step_rank"]:
        raise ValueError(f"{source} has more value heads than key heads; their order is not undone here")
    folder.mkdir(parents=True, exist_ok=True)
    write_weights({_old_name(tensor.name): _undo(tensor) for tensor in reader.tensors}, folder / "model.safetensors")
    settings = {"config.json": read_config(fields, vocabulary), "generation_config.json": GENERATION}
    for name, value in settings.items():
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    vocabulary.write_tokenizer(folder)
    shutil.copyfile(SOURCE_PATH, folder / SOURCE_PATH.name)


def read_config(fields: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """`config.json`, with the numbers that the file gives."""

    def number(name: str) -> Any:
        return fields[f"qwen35.{name}"]

    config = make_config(len(fields["tokenizer.ggml.tokens"]), vocabulary.end_token)
    kinds = {True: "linear_attention", False: "full_attention"}
    config |= {
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "linear_conv_kernel_dim": number("ssm.conv_kernel"),
        "linear_key_head_dim": number("ssm.state_size"),
        "linear_value_head_dim": number("ssm.state_size"),
        "linear_num_key_heads": number("ssm.group_count"),
        "linear_num_value_heads": number("ssm.time_step_rank"),
        "layer_types": [kinds[bool(is_linear)] for is_linear in number("attention.recurrent_layers")],
        "full_attention_interval": number("full_attention_interval"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": round(number("attention.layer_norm_rms_epsilon"), 12),
    }
    config["rope_parameters"] |= {
        "rope_theta": number("rope.freq_base"),
        "partial_rotary_factor": number("rope.dimension_count") / number("attention.key_length"),
        "mrope_section": list(number("rope.dimension_sections"))[:3],
    }
    return {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "bfloat16", **config}


def _old_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{_BLOCK_NAMES[rest]}"
    return f"model.{_NAMES[name]}"


def _undo(tensor: gguf.ReaderTensor) -> np.ndarray:
    """The stored tensor as BF16, the upper halves of float32, in uint16."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
        return np.asarray(tensor.data).view(np.uint16).reshape(shape)
    if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
        raise ValueError(f"{tensor.name} is of type {tensor.tensor_type.name}; only BF16 files can be restored")
    values = np.asarray(tensor.data).reshape(shape).astype(np.float64)
    if tensor.name.endswith("ssm_a"):
        values = np.log(-values)
    elif tensor.name.endswith("norm.weight") and "ssm_norm" not in tensor.name:
        values = values - 1
    elif tensor.name.endswith("conv1d.weight"):
        values = values[:, None, :]
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_weights(tensors: dict[str, np.ndarray], path: Path) -> None:
    """A safetensors file of BF16 tensors. Source: the format's page in huggingface/safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description="Write a Hugging Face folder from the demo's GGUF file.")
    parser.add_argument("source", type=Path, metavar="FILE.gguf")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    restore_folder(arguments.source, arguments.folder)


if __name__ == "__main__":
    main()
