"""How a model came to its answers, counted over the episodes of a results file.

`docs/accuracy.md` defines each figure. Shares of right answers, tables opened and values seen are over the scorable
questions that have an episode; turns, tokens and tool calls over all questions that have one. Of a vote the episode is
the winner's, and the tokens are those of all its candidates.
"""

from __future__ import annotations

import collections
import statistics
from typing import TYPE_CHECKING, Any, get_args

from sqale_edge.episode import EndedBy, Usage
from sqale_edge.tools import SPECS

from .seen import find_opened, find_seen
from .summary import split_outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqale_edge.episode import Episode

    from .results_file import Answer, Results
    from .scoring import Outcome

_HOW_MANY = ("all", "some", "none")
UNREADABLE, UNKNOWN = "(unreadable call)", "(no such tool)"


def analyze(outcomes: Sequence[Outcome], results: Results, rules: Sequence[str]) -> dict[str, Any]:
    """The analyses of the outcomes of one results file, as plain JSON types."""
    answers = [results.answers[outcome.id] for outcome in outcomes if outcome.id in results.answers]
    episodes = {answer.id: answer.episode for answer in answers if answer.episode}
    scorable = [outcome for outcome in outcomes if outcome.gold == "scorable" and outcome.id in episodes]

    def split(name: Callable[[Outcome], str], order: Sequence[str]) -> dict[str, Any]:
        return split_outcomes(scorable, rules, name, order)

    opened = {one.id: find_opened(episodes[one.id], one.gold_tables) for one in scorable}
    seen = {one.id: find_seen(episodes[one.id], one.gold_literals) for one in scorable}
    usages = [_usage(answer) for answer in answers if answer.episode]
    n_parameters = results.run.n_parameters
    n_turns = sorted({len(episodes[one.id].turns) for one in scorable})
    return {
        "n_asked": len(answers),
        "n_episodes": len(episodes),
        "n_scorable": len(scorable),
        "notes": find_common_notes(list(episodes.values())),
        "gold_tables": {
            **_share(sum(len(opened[one.id]) for one in scorable), sum(len(one.gold_tables) for one in scorable)),
            "by_found": split(lambda one: _how_many(opened[one.id], one.gold_tables), _HOW_MANY),
        },
        "gold_literals": {
            **_share(sum(len(seen[one.id]) for one in scorable), sum(len(one.gold_literals) for one in scorable)),
            **{
                kind: _share(
                    sum(isinstance(literal.value, types) for one in scorable for literal in seen[one.id]),
                    sum(isinstance(literal.value, types) for one in scorable for literal in one.gold_literals),
                )
                for kind, types in (("texts", (str,)), ("numbers", (int, float)))
            },
            "by_found": split(lambda one: _how_many(seen[one.id], one.gold_literals), _HOW_MANY),
        },
        "ended_by": split(lambda one: episodes[one.id].ended_by, get_args(EndedBy)),
        "turns": {
            **_average([len(episode.turns) for episode in episodes.values()]),
            "by_n": split(lambda one: str(len(episodes[one.id].turns)), [str(n) for n in n_turns]),
        },
        "tokens": _count_tokens(usages),
        "tflop": _average([count_tflop(n_parameters, usage) for usage in usages] if n_parameters else []),
        "tools": _count_calls(episodes),
    }


def find_common_notes(episodes: Sequence[Episode]) -> list[str]:
    """What was said in every episode: it is about the model, not about a question."""
    return [note for note in episodes[0].notes if all(note in other.notes for other in episodes)] if episodes else []


def count_tflop(n_parameters: int, usage: Usage) -> float:
    """10^12 floating-point operations: two for each parameter and each token evaluated or decoded.

    What attention does beside its matrices is left out; it grows with the length of the context.
    """
    return 2 * n_parameters * (usage.n_evaluated + usage.n_decoded) / 1e12


def _usage(answer: Answer) -> Usage:
    """What the answer took: of a vote all its candidates that ended."""
    if answer.votes:
        return sum((Usage.from_dict(one["usage"]) for one in answer.votes["candidates"]), Usage())
    return answer.episode.usage if answer.episode else Usage()


def _share(n_found: int, n: int) -> dict[str, Any]:
    return {"n": n, "n_found": n_found, "share": n_found / n if n else None}


def _how_many(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    if not wanted:
        return ""
    return "all" if len(found) == len(wanted) else "some" if found else "none"


def _average(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"total": None, "mean": None, "median": None}
    return {"total": sum(values), "mean": statistics.fmean(values), "median": float(statistics.median(values))}


def _count_tokens(usages: Sequence[Usage]) -> dict[str, Any]:
    return {
        "prompt": _average([usage.n_prompt for usage in usages]),
        "evaluated": _average([usage.n_evaluated for usage in usages]),
        "decoded": _average([usage.n_decoded for usage in usages]),
    }


def _count_calls(episodes: Mapping[str, Episode]) -> dict[str, Any]:
    """For each tool its calls that were answered, from memory, too; in how many questions; and the errors."""
    calls: dict[str, list[tuple[str, bool]]] = collections.defaultdict(list)
    for key, episode in episodes.items():
        for turn in episode.turns:
            for call, result in zip(turn.calls, turn.results, strict=False):  # no call after submit_sql is run
                name = call.name if call.name in SPECS else UNKNOWN if call.name else UNREADABLE
                calls[name].append((key, result.is_error))
    counts = {}
    for name in (*SPECS, UNKNOWN, UNREADABLE):
        if name in calls:
            n_errors = sum(is_error for _, is_error in calls[name])
            counts[name] = {
                "n_calls": len(calls[name]),
                "n_questions": len({key for key, _ in calls[name]}),
                "n_errors": n_errors,
                "error_rate": n_errors / len(calls[name]),
            }
    return counts
