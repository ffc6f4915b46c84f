"""Qwen3.5's language model: which tensors it has, and the pure array changes from the Hugging Face layout to ggml's.

What is dropped is named here and nowhere else: the vision tower, multi-token prediction, and buffers that hold no
weights. Every other tensor of a checkpoint must be one that the configuration asks for, and the other way round.

Sources: src/models/qwen35.cpp of ggml-org/llama.cpp for names and shapes; its conversion of this family for the
changes, whose results are compared byte for byte.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge.errors import CheckpointError, TensorShapeError

from .foreign import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from .checkpoint import Array, StoredTensor
    from .qwen35_config import Qwen35Config

_ROOTS = (
    "model.language_model.",
    "language_model.model.",
    "model.",
)  # Transformers 5 writes the first, plain causal models the last.
_DROPPED_ROOTS = ("model.visual.", "visual.", "model.mtp.", "mtp.")
_DROPPED_ENDS = (".rotary_emb.inv_freq",)


@dataclasses.dataclass(frozen=True)
class TensorPlan:
    """How one GGUF tensor comes out of one stored tensor.

    Attributes:
        name: In the GGUF file.
        shape: `(rows, columns)` or `(n,)` as NumPy counts: the last axis is contiguous.
        is_f32: Kept in FP32 whatever the file type: everything that is not a matrix.
        rows, columns: Where each row and column comes from, `order[new] = old`; None leaves them.
        change: Elementwise, on float32; None leaves the values.
    """

    name: str
    source: StoredTensor
    shape: tuple[int, ...]
    is_f32: bool
    rows: Array | None
    columns: Array | None
    change: Callable[[Array], Array] | None


def tile_value_heads(n_key_heads: int, n_value_heads: int, width: int) -> Array:
    """Where each row comes from when value heads of `width` rows are regrouped; the identity for equal counts.

    A checkpoint keeps the value heads of one key head together. ggml repeats the key heads as a whole, so it wants the
    first value head of every key head, then the second of every one.

    Shapes:
        returns (n_value_heads * width,) int64
    """
    grouped = np.arange(n_value_heads * width).reshape(n_key_heads, n_value_heads // n_key_heads, width)
    return grouped.transpose(1, 0, 2).reshape(-1)


def add_one(weight: Array) -> Array:
    """A zero-centred norm's weight as the factor that ggml multiplies with."""
    result: Array = weight + np.float32(1)
    return result


def to_decay(a_log: Array) -> Array:
    """`-exp(A_log)`; through float64, because NumPy's float32 exp is not always the nearest one."""
    result: Array = -np.exp(a_log.astype(np.float64)).astype(np.float32)
    return result


def plan_tensors(
    config: Qwen35Config, stored: Mapping[str, StoredTensor], path: Path
) -> tuple[list[TensorPlan], list[str]]:
    """A plan for every tensor of the GGUF file, in layer order, and the names of the stored tensors that are dropped.

    Raises:
        CheckpointError: A tensor is missing, is there twice, or is not one of this family's.
        TensorShapeError: A shape is not what the configuration asks for.
    """
    available, dropped = _sort_names(stored, path)
    # What config.json says about tied embeddings does not decide: a stored head is used.
    rules = {rule.stored: rule for rule in _list_rules(config, has_head="lm_head.weight" in available)}
    _check_complete(rules.keys(), available, path)
    plans = []
    for name, rule in rules.items():
        tensor = available[name]
        if tensor.shape != rule.shape:
            raise TensorShapeError(
                f"{quote(tensor.name)} has shape {quote([*tensor.shape])}, but config.json asks for {[*rule.shape]}",
                path=tensor.path,
            )
        shape = tuple(n for axis, n in enumerate(rule.shape) if axis != 1 or len(rule.shape) == 2)
        plans.append(TensorPlan(rule.name, tensor, shape, len(rule.shape) != 2, rule.rows, rule.columns, rule.change))
    return plans, dropped


def _sort_names(stored: Mapping[str, StoredTensor], path: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The language model's tensors by their names without root, and the names of those that are dropped."""
    available: dict[str, StoredTensor] = {}
    dropped = []
    for name, tensor in stored.items():
        if name.startswith(_DROPPED_ROOTS) or name.endswith(_DROPPED_ENDS):
            dropped.append(name)
            continue
        short = next((name.removeprefix(root) for root in _ROOTS if name.startswith(root)), name)
        if short in available:
            raise CheckpointError(f"{quote(available[short].name)} and {quote(name)} are the same tensor", path=path)
        available[short] = tensor
    return available, dropped


def _check_complete(wanted: Any, available: Mapping[str, StoredTensor], path: Path) -> None:
    missing, extra = sorted(wanted - available.keys()), sorted(available.keys() - wanted)
    parts = []
    if missing:
        parts.append(f"{len(missing)} tensors are missing, first {missing[0]!r}")
    if extra:
        parts.append(f"{len(extra)} are not part of this architecture, first {quote(available[extra[0]].name)}")
    if parts:
        raise CheckpointError(f"config.json and the weights disagree: {'; '.join(parts)}", path=path)


@dataclasses.dataclass(frozen=True)
class _Rule:
    """What a tensor is called and how it is shaped in the checkpoint, and what becomes of it; see `TensorPlan`."""

    stored: str
    name: str
    shape: tuple[int, ...]
    rows: Array | None = None
    columns: Array | None = None
    change: Callable[[Array], Array] | None = None


def _list_rules(config: Qwen35Config, *, has_head: bool) -> Iterator[_Rule]:
    """Every tensor of the model, in the order in which it is evaluated."""
    yield _Rule("embed_tokens.weight", "token_embd.weight", (config.n_vocab, config.n_embd))
    blocks = {
        True: [*_common_rules(config), *_linear_rules(config)],
        False: [*_common_rules(config), *_attention_rules(config)],
    }
    for layer, is_linear in enumerate(config.is_linear):
        for rule in blocks[is_linear]:
            yield dataclasses.replace(rule, stored=f"layers.{layer}.{rule.stored}", name=f"blk.{layer}.{rule.name}")
    yield _Rule("norm.weight", "output_norm.weight", (config.n_embd,), change=add_one)
    if has_head:
        yield _Rule("lm_head.weight", "output.weight", (config.n_vocab, config.n_embd))


def _common_rules(config: Qwen35Config) -> Iterator[_Rule]:
    wide, narrow = (config.n_ff, config.n_embd), (config.n_embd, config.n_ff)
    yield _Rule("input_layernorm.weight", "attn_norm.weight", (config.n_embd,), change=add_one)
    yield _Rule("post_attention_layernorm.weight", "post_attention_norm.weight", (config.n_embd,), change=add_one)
    yield _Rule("mlp.gate_proj.weight", "ffn_gate.weight", wide)
    yield _Rule("mlp.up_proj.weight", "ffn_up.weight", wide)
    yield _Rule("mlp.down_proj.weight", "ffn_down.weight", narrow)


def _attention_rules(config: Qwen35Config) -> Iterator[_Rule]:
    query, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    # Each query head is followed by its output gate, so the projection is twice as wide.
    yield _Rule("self_attn.q_proj.weight", "attn_q.weight", (2 * query, config.n_embd))
    yield _Rule("self_attn.k_proj.weight", "attn_k.weight", (kv, config.n_embd))
    yield _Rule("self_attn.v_proj.weight", "attn_v.weight", (kv, config.n_embd))
    yield _Rule("self_attn.o_proj.weight", "attn_output.weight", (config.n_embd, query))
    yield _Rule("self_attn.q_norm.weight", "attn_q_norm.weight", (config.head_dim,), change=add_one)
    yield _Rule("self_attn.k_norm.weight", "attn_k_norm.weight", (config.head_dim,), change=add_one)


def _linear_rules(config: Qwen35Config) -> Iterator[_Rule]:
    n_heads, n_embd = config.n_value_heads, config.n_embd
    keys, values = config.n_key_heads * config.linear_dim, n_heads * config.linear_dim
    heads = values_order = mixed = None
    if n_heads != config.n_key_heads:
        heads = tile_value_heads(config.n_key_heads, n_heads, 1)
        values_order = tile_value_heads(config.n_key_heads, n_heads, config.linear_dim)
        mixed = np.concatenate([np.arange(2 * keys), 2 * keys + values_order])  # queries and keys stay, values move
    channels = 2 * keys + values
    yield _Rule("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", (channels, n_embd), rows=mixed)
    yield _Rule("linear_attn.in_proj_z.weight", "attn_gate.weight", (values, n_embd), rows=values_order)
    yield _Rule("linear_attn.in_proj_a.weight", "ssm_alpha.weight", (n_heads, n_embd), rows=heads)
    yield _Rule("linear_attn.in_proj_b.weight", "ssm_beta.weight", (n_heads, n_embd), rows=heads)
    yield _Rule("linear_attn.conv1d.weight", "ssm_conv1d.weight", (channels, 1, config.conv_kernel), rows=mixed)
    yield _Rule("linear_attn.dt_bias", "ssm_dt.bias", (n_heads,), rows=heads)
    yield _Rule("linear_attn.A_log", "ssm_a", (n_heads,), rows=heads, change=to_decay)
    yield _Rule("linear_attn.norm.weight", "ssm_norm.weight", (config.linear_dim,))
    yield _Rule("linear_attn.out_proj.weight", "ssm_out.weight", (n_embd, values), columns=values_order)
