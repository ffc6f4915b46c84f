"""First prompts that are as long as those that models are trained with, also where the model at hand brings none."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqale_edge.protocol import SYSTEM_KEY, Protocol, own_system_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqale_edge.engine import ModelInfo, Piece

N_PROMPT = 800  # tokens, at least: the goal for the first token is about such prompts
_MORE = (
    " Before a query is written, look at the tables that the question is about, and at the values that it names. Say "
    "which column holds what is asked for, and which one joins two tables. Where two columns could be meant, look at "
    "some rows of both."
)


def lengthen_prompt(info: ModelInfo, tokenize: Callable[[Sequence[Piece]], list[int]]) -> ModelInfo:
    """`info` with instructions that make the shortest first prompt `N_PROMPT` of `tokenize`'s tokens, or a few more."""
    system = info.metadata.get(SYSTEM_KEY, own_system_prompt())
    while len(tokenize(Protocol(info).first_prompt(""))) < N_PROMPT:
        system += _MORE
        info = dataclasses.replace(info, metadata=info.metadata | {SYSTEM_KEY: system})
    return info
