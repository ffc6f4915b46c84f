"""The numbers of Qwen3.5's language model: read from `config.json`, checked, and written as GGUF metadata.

Sources: src/models/qwen35.cpp of ggml-org/llama.cpp, which says what a GGUF file must hold and what its graph takes for
granted; models/qwen3_5/configuration_qwen3_5.py of huggingface/transformers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.errors import CheckpointError, UnsupportedArchitectureError

from .foreign import quote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .writer import Field

ARCHITECTURES = ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM")
_LAYER_KINDS = {"linear_attention": True, "full_attention": False}
_DEFAULT_SECTIONS = [11, 11, 10]  # Source: Qwen3_5TextRotaryEmbedding in transformers
_DEFAULT_INTERVAL = 4
_LARGEST = 1 << 24  # of any count; far above real models, and it keeps absurd ones from filling memory
_WIDEST = 1 << 20


@dataclasses.dataclass(frozen=True)
class Qwen35Config:
    """The checked numbers, named as in GGUF metadata.

    Attributes:
        n_key_heads, n_value_heads, linear_dim: DeltaNet heads and the width of each.
        is_linear: For each layer, whether it is DeltaNet (recurrent) rather than attention.
        interval: Every how many layers one is attention.
        rope_dim: How many of `head_dim` dimensions rotate.
    """

    n_ctx: int
    n_vocab: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_key_heads: int
    n_value_heads: int
    linear_dim: int
    conv_kernel: int
    is_linear: tuple[bool, ...]
    interval: int
    rms_eps: float
    rope_theta: float
    rope_dim: int
    rope_sections: tuple[int, ...]

    @classmethod
    def from_json(cls, config: Mapping[str, Any], path: Path) -> Self:
        """Read a `config.json`, of the language model alone or of the multimodal one around it.

        Raises:
            UnsupportedArchitectureError: Another model family, or a variant of this one that llama.cpp cannot run.
            CheckpointError: A value is missing or absurd.
        """
        check_architecture(config, path)
        values = _Values(config, path).nested("text_config") if "text_config" in config else _Values(config, path)
        rope = values.nested("rope_parameters")
        head_dim = values.count("head_dim")
        is_linear = _read_layers(values)
        numbers = cls(
            n_ctx=values.count("max_position_embeddings"),
            n_vocab=values.count("vocab_size"),
            n_embd=values.count("hidden_size"),
            n_ff=values.count("intermediate_size"),
            n_heads=values.count("num_attention_heads"),
            n_kv_heads=values.count("num_key_value_heads"),
            head_dim=head_dim,
            n_key_heads=values.count("linear_num_key_heads"),
            n_value_heads=values.count("linear_num_value_heads"),
            linear_dim=values.count("linear_key_head_dim"),
            conv_kernel=values.count("linear_conv_kernel_dim"),
            is_linear=is_linear,
            interval=values.count("full_attention_interval", _DEFAULT_INTERVAL),
            rms_eps=values.number("rms_norm_eps"),
            rope_theta=rope.number("rope_theta"),
            rope_dim=int(head_dim * rope.number("partial_rotary_factor", 0.25)),
            rope_sections=_read_sections(rope),
        )
        if problem := numbers._find_unsupported(values, rope):
            raise UnsupportedArchitectureError(f"config.json asks for {problem}, which llama.cpp cannot run", path=path)
        return numbers

    def _find_unsupported(self, values: _Values, rope: _Values) -> str | None:
        """What the configuration wants that llama.cpp's graph of this family does not do; None where it does it all."""
        value_dim = values.count("linear_value_head_dim")
        rope_type, activation = rope.values.get("rope_type", "default"), values.values.get("hidden_act", "silu")
        widest = max(self.n_value_heads * self.linear_dim, self.n_heads * self.head_dim)
        heads = f"{self.n_heads} attention heads for {self.n_kv_heads} key/value heads"
        value_heads = f"{self.n_value_heads} linear value heads for {self.n_key_heads} key heads"
        wishes = (
            (rope_type != "default", f"rope_type {quote(rope_type)} (supported: 'default')"),
            (activation != "silu", f"hidden_act {quote(activation)} (supported: 'silu')"),
            (value_dim != self.linear_dim, f"linear heads of widths {self.linear_dim} and {value_dim} (must be equal)"),
            (self.n_value_heads % self.n_key_heads, f"{value_heads} (must be a multiple)"),
            (self.n_heads % self.n_kv_heads, f"{heads} (must be a multiple)"),
            (widest > _WIDEST, f"heads that are {widest:,} wide together (at most {_WIDEST:,})"),
            (
                not 0 < self.rope_dim <= self.head_dim or self.rope_dim % 2,
                f"RoPE over {self.rope_dim} dimensions of a head",
            ),
        )
        return next((wish for is_unsupported, wish in wishes if is_unsupported), None)

    def to_metadata(self) -> list[Field]:
        """The `qwen35.*` keys."""
        fields: list[Field] = [
            ("block_count", "u32", len(self.is_linear)),
            ("context_length", "u32", self.n_ctx),
            ("embedding_length", "u32", self.n_embd),
            ("feed_forward_length", "u32", self.n_ff),
            ("attention.head_count", "u32", self.n_heads),
            ("attention.head_count_kv", "u32", self.n_kv_heads),
            ("rope.dimension_sections", "[i32]", list(self.rope_sections)),
            ("rope.freq_base", "f32", self.rope_theta),
            ("attention.layer_norm_rms_epsilon", "f32", self.rms_eps),
            ("attention.key_length", "u32", self.head_dim),
            ("attention.value_length", "u32", self.head_dim),
            ("ssm.conv_kernel", "u32", self.conv_kernel),
            ("ssm.state_size", "u32", self.linear_dim),
            ("ssm.group_count", "u32", self.n_key_heads),
            ("ssm.time_step_rank", "u32", self.n_value_heads),
            ("ssm.inner_size", "u32", self.linear_dim * self.n_value_heads),
            ("attention.recurrent_layers", "[bool]", list(self.is_linear)),
            ("full_attention_interval", "u32", self.interval),
            ("rope.dimension_count", "u32", self.rope_dim),
        ]
        return [(f"qwen35.{name}", kind, value) for name, kind, value in fields]


def check_architecture(config: Mapping[str, Any], path: Path) -> None:
    """Raise UnsupportedArchitectureError unless the config is of a family that can be converted."""
    found = config.get("architectures")
    if not isinstance(found, list) or not found or found[0] not in ARCHITECTURES:
        name = found[0] if isinstance(found, list) and found else found
        raise UnsupportedArchitectureError(
            f"architecture {quote(name)} is not supported; supported: {', '.join(ARCHITECTURES)}",
            path=path,
            hint="for other models use a GGUF file that exists already; any chat GGUF runs",
        )


@dataclasses.dataclass(frozen=True)
class _Values:
    """One JSON object of a config; every reader says which value is wrong and what was expected."""

    values: Mapping[str, Any]
    path: Path

    def nested(self, name: str) -> _Values:
        inner = self.values.get(name)
        if not isinstance(inner, dict):
            raise self.wrong(name, "an object")
        return _Values(inner, self.path)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not 0 < value <= _LARGEST:
            raise self.wrong(name, f"a whole number from 1 to {_LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name, default)
        if type(value) not in (int, float) or not 0 < value <= 1e30 or not math.isfinite(value):
            raise self.wrong(name, "a number above 0")
        return float(value)

    def wrong(self, name: str, expected: str) -> CheckpointError:
        found = f"{name} {quote(self.values[name])}" if name in self.values else f"no {name}"
        return CheckpointError(f"config.json has {found}, but must have {expected} there", path=self.path)


def _read_layers(values: _Values) -> tuple[bool, ...]:
    """For each layer whether it is DeltaNet; by `layer_types`, or by the interval where there is no such list."""
    n_layers = values.count("num_hidden_layers")
    if n_layers > 4096:
        raise values.wrong("num_hidden_layers", "at most 4096 layers")
    kinds = values.values.get("layer_types")
    if kinds is None:
        interval = values.count("full_attention_interval", _DEFAULT_INTERVAL)
        return tuple((layer + 1) % interval != 0 for layer in range(n_layers))
    if (
        not isinstance(kinds, list)
        or len(kinds) != n_layers
        or not all(isinstance(kind, str) and kind in _LAYER_KINDS for kind in kinds)
    ):
        raise values.wrong("layer_types", f"{n_layers} times one of {', '.join(_LAYER_KINDS)}")
    return tuple(_LAYER_KINDS[kind] for kind in kinds)


def _read_sections(rope: _Values) -> tuple[int, ...]:
    """Multimodal RoPE's sections, padded to the four that GGUF holds."""
    sections = rope.values.get("mrope_section", _DEFAULT_SECTIONS)
    is_sound = isinstance(sections, list) and len(sections) in (3, 4)
    if not is_sound or any(type(section) is not int or not 0 <= section <= _LARGEST for section in sections):
        raise rope.wrong("mrope_section", "three or four whole numbers")
    return tuple([*sections, 0][:4])
