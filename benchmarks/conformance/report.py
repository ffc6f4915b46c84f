"""What was compared, as text for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .comparison import Comparison, Edit
    from .run import Conformance

_MOST_SHOWN = 3  # cases of one tool or text, and edits of one case
_MOST_CHARS = 60


def show_report(report: Conformance, *, is_complete: bool = False) -> str:
    """A line for each tool and text, then what differs, then what was not compared.

    Args:
        report: What was compared.
        is_complete: Every case, and every edit; else the first of each.
    """
    groups: dict[str, list[Comparison]] = {}
    for one in report.comparisons:
        groups.setdefault(f"{one.area} {one.name}", []).append(one)
    lines = [f"{'':24} {'same':>6} {'different':>10} {'not compared':>13}"]
    for name, comparisons in groups.items():
        n_same, n_different, n_missing = (
            sum(one.outcome == outcome for one in comparisons) for outcome in ("same", "different", "not compared")
        )
        lines.append(f"{name:24} {n_same:>6} {n_different:>10} {n_missing:>13}")
    n_shown = None if is_complete else _MOST_SHOWN
    for name, comparisons in groups.items():
        lines += _show_different(name, [one for one in comparisons if one.outcome == "different"], n_shown)
    for name, comparisons in groups.items():
        lines += _show_missing(name, [one for one in comparisons if one.outcome == "not compared"])
    if report.stand_ins:
        lines += ["", f"Not installed, and stood in for: {', '.join(report.stand_ins)}."]
    lines += [f"Note: {note}." for note in report.notes]
    return "\n".join(lines)


def _show_different(name: str, comparisons: Sequence[Comparison], n_shown: int | None) -> Iterator[str]:
    for one in comparisons[:n_shown]:
        yield ""
        yield f"{name} {_show_case(one)}"
        edits = one.edits
        for edit in edits[:n_shown]:
            yield f"  at byte {edit.offset}: ours {_quote(edit.ours)}, theirs {_quote(edit.theirs)}{_near(one, edit)}"
        if len(edits) > len(edits[:n_shown]):
            yield f"  ... and {len(edits) - len(edits[:n_shown])} more places"
    if len(comparisons) > len(comparisons[:n_shown]):
        yield f"  ... and {len(comparisons) - len(comparisons[:n_shown])} more cases of {name}; see all with --all"


def _show_missing(name: str, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Each reason once, with how often it came."""
    reasons: dict[str, list[Comparison]] = {}
    for one in comparisons:
        reasons.setdefault(one.reason, []).append(one)
    for reason, those in reasons.items():
        yield ""
        yield f"not compared: {name}, {len(those)} times, first {_show_case(those[0])}: {reason}"


def _show_case(one: Comparison) -> str:
    return json.dumps({key: value for key, value in one.case.items() if value is not None}, ensure_ascii=False)


def _near(one: Comparison, edit: Edit) -> str:
    """What stands before it in our text."""
    before = one.ours.encode("utf-8", "replace")[: edit.offset].decode("utf-8", "replace")[-20:]
    return f", after {before!r}" if before else ", at the start"


def _quote(text: str) -> str:
    if not text:
        return "nothing"
    return repr(text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}... ({len(text)} characters)")
