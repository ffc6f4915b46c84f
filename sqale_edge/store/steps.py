"""How far the work on a model is, and what a person should know meanwhile."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from sqale_edge.installed import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Step:
    """How far one step is, in bytes.

    Attributes:
        step: `wait` for another process, `download`, `check`, `copy`, or a step of the conversion.
        file: Of what.
    """

    step: str
    file: str
    n_done: int
    n_total: int


@dataclasses.dataclass(frozen=True)
class Listener:
    """Who is told.

    Attributes:
        show: Called often; what it raises stops the work. What is downloaded by then is kept.
        note: One sentence that cannot wait until the end.
    """

    show: Callable[[Step], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


def hash_file(path: Path, name: str, listener: Listener, *, copy_to: Path | None = None) -> StoredFile:
    """The file `path` as it is, under the name `name`; on the way it is copied, where that is wanted.

    Raises:
        OSError: It cannot be read, or the copy not be written.
    """
    step = "copy" if copy_to else "check"
    digest, n_total, n_done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file, (copy_to or path).open("wb" if copy_to else "rb") as copy:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if copy_to:
                copy.write(chunk)
            n_done += len(chunk)
            listener.show(Step(step, path.name, n_done, max(n_done, n_total)))
    return StoredFile(name, n_done, digest.hexdigest())
