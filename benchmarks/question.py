"""One question of a benchmark, and what is right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_SUFFIXES = (".sqlite", ".db", ".sqlite3")


@dataclasses.dataclass(frozen=True)
class GoldTable:
    """A right result as a CSV file, as Spider 2 has them.

    Attributes:
        columns: The positions of those that an answer must have; empty for all.
        is_ordered: The order of its rows counts.
    """

    path: Path
    columns: tuple[int, ...] = ()
    is_ordered: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: Unique in its file; where the form has none, the position, counted from 0.
        db: The SQLite file, which may be missing.
        golds: Statements of which each is right.
        gold_tables: Results of which each is right, where the benchmark has those instead of SQL.
        difficulty: The benchmark's own word; empty where it has none.
        is_unanswerable: The database cannot answer it; right is not to answer.
        form: The form it was read from, one of `forms.FORMS`.
    """

    id: str
    db: Path
    question: str
    golds: tuple[str, ...] = ()
    gold_tables: tuple[GoldTable, ...] = ()
    evidence: str = ""
    difficulty: str = ""
    is_unanswerable: bool = False
    form: str = "jsonl"

    @property
    def db_name(self) -> str:
        """The benchmark's name of the database."""
        return self.db.stem if self.db.suffix in DATABASE_SUFFIXES else self.db.name
