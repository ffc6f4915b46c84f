"""What in a GGUF file would end the process: llama.cpp checks it with assertions, which Python cannot catch.

Source: the GGML_ASSERTs that loading, making a context and evaluating reach in llama.cpp as it comes with the tested
llama-cpp-python: src/llama-vocab.cpp, src/llama-model.cpp, src/models/, ggml/src/ggml-cpu/ops.cpp. Found by changing
one value after the other. Not guaranteed: other architectures than Qwen3.5 and Llama, and what tensors hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqale_edge.errors import ModelLoadError
from sqale_edge.llama.gguf_header import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqale_edge.llama.gguf_header import Header

_MAX_LAYERS, _MAX_EXPERTS = 512, 1024
_ROPE_SCALINGS = {b"none", b"linear", b"yarn", b"longrope"}
_F32 = 0  # in enum ggml_type of ggml.h
_DELTA_NETS = {"qwen35", "qwen35moe", "qwen3next"}


def check_file(path: Path) -> Header | None:
    """The file's header, as `read_header` gives it. A quarter of a second for 248,320 tokens.

    Raises ModelLoadError where llama.cpp would end the process.
    """
    header = read_header(path)
    if header is None:
        return None  # llama.cpp refuses such a file without harm, and says why
    values = _Values(header.values)
    checks = (_check_vocabulary, _check_layers, _check_experts, _check_rope)
    problems = [*(problem for check in checks for problem in check(values)), *_check_vectors(header.vector_types)]
    for problem in problems:
        raise ModelLoadError(
            f"{str(path)!r} cannot be loaded: its {problem}",
            hint="the file is damaged: download or convert the model again",
        )
    return header


class _Values:
    """A header; keys of the architecture without its name."""

    def __init__(self, header: dict[str, Any]) -> None:
        self._header = header
        architecture = header.get("general.architecture")
        self.architecture = architecture.decode("utf-8", "replace") if isinstance(architecture, bytes) else ""

    def get(self, key: str, default: Any = None) -> Any:
        name = key if key.startswith("tokenizer.") else f"{self.architecture}.{key}"
        return self._header.get(name, default)

    def largest(self, key: str, default: int = 0) -> int:
        """A whole number, which may be given once or for each layer; the default where there is none."""
        value = self.get(key)
        numbers = value if isinstance(value, list) else [value]
        return max((number for number in numbers if isinstance(number, int)), default=default)

    def show(self, *keys: str) -> str:
        """The keys with their values, for a message."""
        return " and ".join(f"{self.architecture}.{key} is {self.get(key)!r}" for key in keys)


def _check_vectors(types: dict[str, int]) -> Iterator[str]:
    """Norms, biases and decays are added to activations and multiplied with them, which takes the same type: F32."""
    for name, kind in types.items():
        if kind != _F32:
            yield f"tensor {name!r} is of type {kind}, but has to be of type {_F32}, F32"


def _check_vocabulary(values: _Values) -> Iterator[str]:
    tokens = values.get("tokenizer.ggml.tokens")
    if not (isinstance(tokens, list) and tokens and isinstance(tokens[0], bytes)):
        return  # llama.cpp refuses that itself
    # llama.cpp reads a token up to its first NUL, and gives those that are then empty a name of their own.
    texts = [token.partition(b"\0")[0] or b"[EMPTY_%d]" % index for index, token in enumerate(tokens)]
    if len(set(texts)) < len(texts):
        seen: dict[bytes, int] = {}
        index = next(index for index, text in enumerate(texts) if seen.setdefault(text, index) != index)
        yield f"tokens {seen[texts[index]]} and {index} are both {texts[index].decode('utf-8', 'replace')!r}"


def _check_layers(values: _Values) -> Iterator[str]:
    n_layers = values.largest("block_count", 1)
    if not 1 <= n_layers <= _MAX_LAYERS:
        yield values.show("block_count")
    if values.largest("nextn_predict_layers") > n_layers:
        yield values.show("nextn_predict_layers")
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.group_norm_epsilon"):
        epsilon = values.get(key)
        if isinstance(epsilon, float) and not epsilon >= 0:  # as NaN is not
            yield values.show(key)
    state_size = values.largest("ssm.state_size") * values.largest("ssm.time_step_rank")
    if values.architecture in _DELTA_NETS and values.largest("ssm.inner_size", state_size) != state_size:
        yield values.show("ssm.inner_size")


def _check_experts(values: _Values) -> Iterator[str]:
    n_experts, n_used = values.largest("expert_count"), values.largest("expert_used_count")
    if n_experts > _MAX_EXPERTS or n_used > n_experts or (n_experts and not n_used):
        yield values.show("expert_count", "expert_used_count")
    n_groups, n_groups_used = values.largest("expert_group_count"), values.largest("expert_group_used_count")
    is_split = n_groups > 1 and (n_experts % n_groups == 0 and 0 < n_groups_used < n_groups)
    if n_groups >= max(n_experts, 1) or (n_groups > 1 and not is_split):
        yield values.show("expert_group_count", "expert_group_used_count")


def _check_rope(values: _Values) -> Iterator[str]:
    if values.get("rope.scaling.type", b"none") not in _ROPE_SCALINGS:
        yield values.show("rope.scaling.type")
    n_heads = max(1, values.largest("attention.head_count", 1))
    head_width = values.largest("attention.key_length", values.largest("embedding_length") // n_heads)
    n_rotated = values.largest("rope.dimension_count", 2)
    if n_rotated < 1 or n_rotated % 2 or n_rotated > max(head_width, 2):
        yield values.show("rope.dimension_count")
    sections = values.get("rope.dimension_sections")
    if isinstance(sections, list) and all(isinstance(size, int) for size in sections):
        is_whole = all(size >= 0 for size in sections)
        if not is_whole or not 0 < sum(sections) <= head_width:
            yield values.show("rope.dimension_sections")
