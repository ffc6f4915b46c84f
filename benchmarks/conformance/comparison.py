"""Two texts side by side: where their bytes differ."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Literal

_MOST_BYTES = 4_000  # of two texts that are aligned byte by byte; longer ones differ from the first to the last byte


@dataclasses.dataclass(frozen=True)
class Edit:
    """Bytes of ours in whose place the reference has others; either may be empty.

    Attributes:
        offset: Of the first of ours, in bytes of UTF-8.
    """

    offset: int
    ours: str
    theirs: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One text of ours beside the reference's.

    Attributes:
        area: A tool's answer, or a text of the prompt.
        name: The tool, or the text's role.
        case: The call's arguments, or what is filled in.
        theirs: None where there is nothing to compare.
        reason: Why there is not.
        database: On which.
    """

    area: Literal["tool", "text"]
    name: str
    case: dict[str, Any]
    ours: str
    theirs: str | None = None
    reason: str = ""
    database: str = ""

    @property
    def outcome(self) -> Literal["same", "different", "not compared"]:
        """How it ended."""
        if self.theirs is None:
            return "not compared"
        return "same" if self.ours == self.theirs else "different"

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All that differs, in the order of our text."""
        return () if self.theirs is None or self.ours == self.theirs else find_edits(self.ours, self.theirs)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON types."""
        edits = [dataclasses.asdict(edit) for edit in self.edits]
        return {**dataclasses.asdict(self), "outcome": self.outcome, "edits": edits}


def find_edits(ours: str, theirs: str) -> tuple[Edit, ...]:
    """What to change in `ours` to get `theirs`; whole characters, with the offset in bytes."""
    if max(len(ours), len(theirs)) > _MOST_BYTES:
        start = _count_equal(ours, theirs)
        end = _count_equal(ours[start:][::-1], theirs[start:][::-1])
        changes = [(start, len(ours) - end, start, len(theirs) - end)]
    else:
        matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
        changes = [change[1:] for change in matcher.get_opcodes() if change[0] != "equal"]
    return tuple(Edit(len(ours[:i].encode("utf-8", "replace")), ours[i:j], theirs[k:m]) for i, j, k, m in changes)


def _count_equal(one: str, other: str) -> int:
    """Characters at their start that are the same."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
