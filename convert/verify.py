"""Is a GGUF file whole, is it what was planned, and does llama.cpp run it?"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING

from sqale_edge.errors import ConversionError, ModelError
from sqale_edge.llama.quantize import EMBEDDING, HEAD
from sqale_edge.llama.worker import run_in_child

from .foreign import quote
from .gguf_file import GgufFile
from .writer import stored_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .outputs import Output
    from .qwen35 import TensorPlan
    from .writer import Field

# The quantizer writes these itself.
_CHANGED_BY_QUANTIZER = {"general.file_type", "general.quantization_version"}
_F32_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was checked.

    Attributes:
        types: How many tensors there are of each ggml type.
        token: The token that was decoded after a short prompt, the likeliest one.
    """

    n_tensors: int
    n_parameters: int
    n_vocab: int
    n_bytes: int
    types: dict[str, int]
    token: int


def verify_file(path: Path, *, on_wait: Callable[[], None] | None = None) -> Verification:
    """Check one GGUF file by itself: its tables are sound, vocabulary and embedding fit, llama.cpp decodes a token.

    Raises:
        ConversionError: Something is wrong; the message says what.
    """
    file = GgufFile.read(path)
    tokens, embedding = file.fields.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if not isinstance(tokens, list) or embedding is None:
        missing = "token_embd.weight" if isinstance(tokens, list) else "tokenizer.ggml.tokens"
        raise ConversionError(f"{path.name} has no {missing}: it is not a language model", path=path)
    if len(tokens) != embedding.shape[0]:
        raise ConversionError(
            f"{path.name} has {len(tokens):,} tokens, but an embedding of {embedding.shape[0]:,} rows", path=path
        )
    try:
        seen = run_in_child("load", str(path.absolute()), on_wait=on_wait)
    except ModelError as error:
        raise ConversionError(f"{path.name} does not run: {error}", path=path, hint=error.hint) from error
    types = dict(collections.Counter(tensor.type for tensor in file.tensors.values()))
    n_parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    return Verification(len(file.tensors), n_parameters, len(tokens), path.stat().st_size, types, seen["token"])


def verify_against(path: Path, fields: Sequence[Field], plans: Sequence[TensorPlan], output: Output) -> None:
    """Read a file back and compare it with what it was to become: every key, every tensor's name, shape and type.

    The types of a quantized file are compared as far as its recipe chooses them.

    Raises:
        ConversionError: It differs; the message names both sides.
    """
    file = GgufFile.read(path)
    for key, added in output.mix.fields.items():
        if file.fields.get(key) != added:
            raise ConversionError(
                f"{path.name} has {quote(file.fields.get(key))} for {key}, not {quote(added)}", path=path
            )
    for key, kind, value in fields:
        found = file.fields.get(key)
        is_equal = (
            math.isclose(found, value, rel_tol=_F32_ROUNDING)
            if kind == "f32" and isinstance(found, float)
            else found == value
        )
        if not is_equal and key not in _CHANGED_BY_QUANTIZER:
            raise ConversionError(f"{path.name} has {quote(found)} for {key}, not {quote(value)}", path=path)
    wanted = {plan.name: plan.shape for plan in plans}
    types = _expected_types(plans, output)
    if differing := wanted.keys() ^ file.tensors.keys():
        raise ConversionError(
            f"{path.name} and the plan differ in {len(differing)} tensors, first {quote(min(differing))}", path=path
        )
    for plan in plans:
        tensor = file.tensors[plan.name]
        if tensor.shape != plan.shape:
            raise ConversionError(
                f"{plan.name!r} in {path.name} has shape {list(tensor.shape)}, not {list(plan.shape)}", path=path
            )
        expected = types[plan.name]
        if expected and tensor.type != expected:
            raise ConversionError(f"{plan.name!r} in {path.name} is of type {tensor.type}, not {expected}", path=path)


def _expected_types(plans: Sequence[TensorPlan], output: Output) -> dict[str, str | None]:
    """The type that each tensor must have; None where llama.cpp decides."""
    mix = output.mix
    chosen: dict[str, str | None] = {EMBEDDING: mix.output, **mix.tensors}
    if any(plan.name == HEAD for plan in plans):
        chosen |= {HEAD: mix.output, EMBEDDING: mix.token_embedding}
    return {
        plan.name: stored_type(plan, output.file_type) if plan.is_f32 or output.is_direct else chosen.get(plan.name)
        for plan in plans
    }
