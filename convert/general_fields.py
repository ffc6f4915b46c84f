"""What llama.cpp shows and uses of any model, under `general.*`: architecture, size, sampling defaults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gguf

from sqale_edge.errors import CheckpointError

from .foreign import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .checkpoint import Checkpoint
    from .qwen35 import TensorPlan
    from .writer import Field

# Names in generation_config.json, and after `general.sampling.`.
_SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p"}


def describe_model(plans: Sequence[TensorPlan]) -> list[Field]:
    """What llama.cpp shows of any model: architecture and size."""
    n_parameters = sum(math.prod(plan.shape) for plan in plans)
    return [
        ("general.architecture", "str", "qwen35"),
        ("general.type", "str", "model"),
        ("general.size_label", "str", gguf.size_label(n_parameters, 0, 0, 0)),
    ]


def read_sampling(checkpoint: Checkpoint) -> list[Field]:
    """The sampling defaults of `generation_config.json`, under llama.cpp's keys.

    Raises:
        CheckpointError: One of them is no number.
    """
    values = checkpoint.read_optional("generation_config.json")
    fields: list[Field] = []
    for name, short in _SAMPLING.items():
        value: Any = values.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 <= value <= 1 << 20:
            raise CheckpointError(
                f"generation_config.json has {name} {quote(value)}, which is no number from 0", path=checkpoint.folder
            )
        key = f"general.sampling.{short}"
        fields.append((key, "i32", int(value)) if name == "top_k" else (key, "f32", float(value)))
    return fields
