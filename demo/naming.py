"""How a database's makers turn words into names: case, plural or singular, prefixes, abbreviations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from words import plural

if TYPE_CHECKING:
    import random

# Words that SQLite would not take as a name without quotes.
_RESERVED = frozenset((Path(__file__).parent / "words" / "reserved.txt").read_text(encoding="utf-8").split())


class Naming:
    """One database's habits: how words become names."""

    def __init__(self, rng: random.Random) -> None:
        (self.style,) = rng.choices(("snake", "pascal", "camel", "upper", "flat"), (10, 4, 2, 3, 1))
        self.is_plural = rng.random() < 0.6
        self.has_long_id = rng.random() < 0.3
        self.prefix = rng.choice(("tbl", "tb", "dim", "app", "t")) if rng.random() < 0.1 else ""
        self.column_prefix = rng.random() < 0.05  # the table's word stands before each column
        self.cut = rng.choice((3, 4)) if rng.random() < 0.06 else 0  # long words are abbreviated

    def spell(self, words: list[str]) -> str:
        """`words` as a name."""
        if self.cut and len(words) > 1:
            words = [word if len(word) <= 6 else word[: self.cut] for word in words]
        joined = {
            "snake": "_".join(words),
            "upper": "_".join(words).upper(),
            "flat": "".join(words),
            "pascal": "".join(word.capitalize() for word in words),
            "camel": words[0] + "".join(word.capitalize() for word in words[1:]),
        }[self.style]
        return f"{joined}_" if joined.lower() in _RESERVED else joined

    def table(self, words: list[str]) -> str:
        """The name of a table for things called `words`, in the singular."""
        if self.is_plural:
            words = [*words[:-1], plural(words[-1])]
        return self.spell([self.prefix, *words] if self.prefix else words)

    def id(self, table: list[str]) -> str:
        """The name of the primary key."""
        return self.spell([table[-1], "id"] if self.has_long_id else ["id"])

    def column(self, table: list[str], words: list[str]) -> str:
        """The name of a column."""
        return self.spell([table[-1], *words] if self.column_prefix else words)
