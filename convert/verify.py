"""Is a GGUF file whole, is it what was planned, and does llama.cpp run it?"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING

from sqale_edge.errors import ConversionError, ModelError
from sqale_edge.llama.quantize import UNQUANTIZED
from sqale_edge.llama.worker import run_in_child

from .foreign import quote
from .gguf_file import GgufFile
from .writer import stored_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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


def verify_against(path: Path, fields: Sequence[Field], plans: Sequence[TensorPlan], file_type: str) -> None:
    """Read a file back and compare it with what it was to become: every key, every tensor's name, shape and type.

    Raises:
        ConversionError: It differs; the message names both sides.
    """
    file = GgufFile.read(path)
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
        expected = stored_type(plan, file_type)
        if (plan.is_f32 or file_type in UNQUANTIZED) and tensor.type != expected:
            raise ConversionError(f"{plan.name!r} in {path.name} is of type {tensor.type}, not {expected}", path=path)
