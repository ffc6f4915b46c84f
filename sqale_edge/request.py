"""A question over a database, checked."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from sqale_edge.database import Database
from sqale_edge.settings import check_seed, require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Request:
    """A question over a database.

    Args:
        question: In natural language.
        database: A path as for `Database.open`, or an open database, which stays open.
        evidence: Outside knowledge that the question needs.
        seed: From 0 to 2**64 - 1. The same seed, model and settings give the same episode.

    Raises:
        SettingsError: One of them is of a wrong type or out of its range.
    """

    question: str
    database: str | Path | Sequence[str | Path] | Database
    evidence: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(isinstance(self.question, str), "question", self.question, "text")
        require(self.evidence is None or isinstance(self.evidence, str), "evidence", self.evidence, "text or None")
        require(_is_database(self.database), "database", self.database, "a path, paths or an open Database")
        object.__setattr__(self, "seed", check_seed(self.seed))


def is_path(value: Any) -> bool:
    """Whether `value` is of a type that names a file."""
    return isinstance(value, (str, os.PathLike))


def _is_database(value: Any) -> bool:
    is_several = isinstance(value, (list, tuple)) and bool(value) and all(map(is_path, value))
    return isinstance(value, Database) or is_path(value) or is_several
