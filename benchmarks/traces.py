"""Single questions for people to read: what went wrong and how, and where two files differ."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from .analysis import find_common_notes
from .charts import clip
from .failures import FAILURES
from .seen import find_opened, find_seen
from .summary import is_pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqale_edge.episode import Episode, Turn

    from .question import Question
    from .results_file import Answer
    from .scoring import Excerpt, Outcome

_THOUGHT_CHARS, _RESULT_CHARS, _SQL_CHARS, _CALLS = 2_000, 1_000, 5_000, 40


@dataclasses.dataclass(frozen=True)
class CallTrace:
    """A tool call: its arguments as SQL or JSON, and the answer, None if it was not run."""

    name: str
    arguments: str
    output: str | None
    is_error: bool = False


@dataclasses.dataclass(frozen=True)
class TurnTrace:
    """A turn. `text` is what it wrote where that is no tool call."""

    title: str
    thought: str
    text: str
    calls: tuple[CallTrace, ...]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A question that was answered wrong.

    Attributes:
        kind: One of `FAILURES`.
        facts: What else there is to say of it, as names and texts.
        gold, answer: What they give; None for what did not run.
        turns: None without an episode.
    """

    id: str
    kind: str
    question: str
    facts: tuple[tuple[str, str], ...]
    gold_sql: str
    gold: Excerpt
    sql: str
    answer: Excerpt | None
    turns: tuple[TurnTrace, ...]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A question that two files answer differently: for each rule who is right."""

    id: str
    question: str
    right: tuple[tuple[str, str], ...]
    gold_sql: str
    sql_a: str
    sql_b: str


def make_traces(
    questions: Iterable[Question], outcomes: Sequence[Outcome], answers: Mapping[str, Answer]
) -> Iterator[Trace]:
    """The questions that are wrong by the strict rule.

    Args:
        questions: Those of the outcomes, in the same order.
        outcomes: Of one file.
        answers: A model's, by the ids of questions; empty for a file of predictions.
    """
    said = find_common_notes([answer.episode for answer in answers.values() if answer.episode])
    for question, outcome in zip(questions, outcomes, strict=True):
        if outcome.excerpts:
            gold, answer = outcome.excerpts
            given = answers.get(outcome.id)
            episode = given.episode if given else None
            yield Trace(
                id=outcome.id,
                kind=outcome.failure,
                question=question.question,
                facts=tuple(_list_facts(question, outcome, given, said)),
                gold_sql=clip(gold.sql, _SQL_CHARS) or "(a CSV file)",
                gold=gold,
                sql=clip(answer.sql, _SQL_CHARS),
                answer=answer if outcome.prediction == "ran" else None,
                turns=tuple(_trace_turns(episode)) if episode else (),
            )


def _list_facts(
    question: Question, outcome: Outcome, answer: Answer | None, said: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """All but the notes that are `said` elsewhere."""
    yield "what is wrong", FAILURES[outcome.failure]
    if outcome.detail:
        yield "the error", outcome.detail
    if right := [rule for rule, is_right in outcome.right.items() if is_right]:
        yield "right by", ", ".join(right)
    yield "database", outcome.db
    if question.evidence:
        yield "evidence", clip(question.evidence, _THOUGHT_CHARS)
    if outcome.difficulty:
        yield "difficulty", outcome.difficulty
    if answer and answer.error:
        yield "not asked", answer.error
    if answer and answer.votes:
        yield "votes", f"{answer.votes['n_agree']} of {answer.votes['n_votes']} for this answer"
    if answer and answer.episode:
        episode = answer.episode
        opened = find_opened(episode, outcome.gold_tables)
        seen = find_seen(episode, outcome.gold_literals)
        yield "ended by", f"{episode.ended_by} after {len(episode.turns)} turns"
        yield "gold tables", _mark(outcome.gold_tables, opened, "opened", "not opened")
        if outcome.gold_literals:
            values = [repr(one.value) for one in outcome.gold_literals]
            yield "gold values", _mark(values, [repr(one.value) for one in seen], "seen", "not seen")
        yield from (("note", note) for note in episode.notes if note not in said)


def _mark(names: Sequence[str], found: Sequence[str], yes: str, no: str) -> str:
    return ", ".join(f"{clip(name, 80)} ({yes if name in found else no})" for name in names) or "none"


def _trace_turns(episode: Episode) -> Iterator[TurnTrace]:
    shown: set[str] = set()
    for number, turn in enumerate(episode.turns, 1):
        parts = [f"Turn {number}", "no tools any more"] if turn.is_final else [f"Turn {number}"]
        if len(turn.calls) > _CALLS:
            parts.append(f"the first {_CALLS} of {len(turn.calls)} calls")
        parts += [f"{turn.usage.n_evaluated:,} tokens evaluated", f"{turn.usage.n_decoded:,} decoded"]
        yield TurnTrace(
            ", ".join(parts),
            clip(turn.thought.strip(), _THOUGHT_CHARS),
            clip(turn.text.strip(), _THOUGHT_CHARS) if turn.is_final or not turn.calls else "",
            tuple(_trace_calls(turn, shown)),
        )


def _trace_calls(turn: Turn, shown: set[str]) -> Iterator[CallTrace]:
    """The calls of a turn; what an earlier one has `shown` is not shown again."""
    for place, call in enumerate(turn.calls[:_CALLS]):
        result = turn.results[place] if place < len(turn.results) else None
        arguments = _show_arguments(call.args)
        key = f"{call.name} {arguments}"
        output = clip(result.output, _RESULT_CHARS) if result else None
        if key in shown and output is not None:
            output = "(as before)"
        shown.add(key)
        yield CallTrace(
            clip(call.name, 80) or "(unreadable call)",
            clip(arguments, _RESULT_CHARS),
            output,
            is_error=bool(result and result.is_error),
        )


def _show_arguments(arguments: Mapping[str, Any]) -> str:
    """The one text alone, as of `run_query`; else JSON."""
    if len(arguments) == 1 and isinstance(only := next(iter(arguments.values())), str):
        return only
    return json.dumps(arguments, ensure_ascii=False) if arguments else ""


def list_differences(
    questions: Sequence[Question],
    outcomes: tuple[Sequence[Outcome], Sequence[Outcome]],
    sql: tuple[Mapping[str, str | None], Mapping[str, str | None]],
) -> Iterator[Difference]:
    """The scorable questions in both files of which, by some rule, one is right and the other wrong."""
    for question, one, other in zip(questions, *outcomes, strict=True):
        right = tuple(
            (rule, "A" if one.right[rule] else "B") for rule in one.right if one.right[rule] != other.right[rule]
        )
        if right and is_pair(one, other):
            gold = next((both[0].sql for both in (one.excerpts, other.excerpts) if both), (*question.golds, "")[0])
            yield Difference(
                question.id,
                question.question,
                right,
                clip(gold, _SQL_CHARS) or "(a CSV file)",
                *(clip(some.get(question.id) or "", _SQL_CHARS) for some in sql),
            )
