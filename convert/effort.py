"""How much work one foreign file may make: a count of steps, the same on every machine, instead of a time.

Reading is quick for any file that a person wrote; nested and shared parts can make it exponential.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING

from sqale_edge.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_STEPS = 1 << 23
_left: contextvars.ContextVar[list[int]] = contextvars.ContextVar("left")


@contextlib.contextmanager
def limited_effort(path: Path) -> Iterator[None]:
    """For the block, `spend` counts. Raises CheckpointError when reading `path` takes too many steps or recursions."""
    token = _left.set([MOST_STEPS])
    try:
        yield
    except (RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path.name} is too large or nested too deeply to be read", path=path) from error
    finally:
        _left.reset(token)


def spend(n_steps: int = 1) -> None:
    """Take note of work done. Raises MemoryError where that was too much."""
    left = _left.get()
    left[0] -= n_steps
    if left[0] < 0:
        raise MemoryError
