"""Episodes compared by what happened in them, whatever of their prompts was cached."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqale_edge import Episode
    from sqale_edge.episode import Turn


def decided(episode: Episode) -> list[Turn]:
    """The turns, with nothing in them that says what was cached and what was evaluated."""
    usage = {"n_cached": 0, "n_evaluated": 0}
    return [dataclasses.replace(turn, usage=dataclasses.replace(turn.usage, **usage)) for turn in episode.turns]
