"""The demo model's prompt, read the way the conversion reads it, so that training sees what running will see."""

from __future__ import annotations

import functools
from pathlib import Path

from sqale_edge.convert.training_prompt import ROLE_KEYS, read_training_prompt

SOURCE_PATH = Path(__file__).parent / "sqale_agent.py"
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)


@functools.cache
def read_metadata() -> dict[str, str]:
    """The `sqale.prompt.*` keys that the converted model will have."""
    texts = read_training_prompt(SOURCE_PATH.parent).texts
    missing = [key for key in ROLE_KEYS if key not in texts]
    if missing:
        raise ValueError(f"{SOURCE_PATH.name} lacks the texts {', '.join(missing)}")
    return texts
