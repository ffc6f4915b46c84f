"""Outcomes counted: the one JSON document of an evaluation, of which every other view is made."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from .failures import FAILURES
from .gold import GOLD_STATES
from .scoring import PREDICTION_STATES
from .statistics import f1, mcnemar, reliability, table_range, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .scoring import Outcome

_PENALTIES = (0, 5, 10)


def summarize(outcomes: Sequence[Outcome], rules: Sequence[str]) -> dict[str, Any]:
    """Counts and accuracies of one set of predictions.

    Accuracies are shares from 0 to 1 of the scorable questions, null without any. `accuracy_of_all` is what the
    benchmarks' own scripts would count: also empty gold, and gold of which one result among several is taken; gold
    that does not run counts as wrong.
    """
    scorable = [outcome for outcome in outcomes if outcome.gold == "scorable"]
    gold = collections.Counter(outcome.gold for outcome in outcomes)
    predictions = collections.Counter(outcome.prediction for outcome in scorable)
    failures = collections.Counter(outcome.failure for outcome in scorable)
    n_tables = {table_range(outcome.n_tables): outcome.n_tables for outcome in scorable if outcome.n_tables}
    ranges = sorted(n_tables, key=lambda name: n_tables[name])
    return {
        "n": len(outcomes),
        "n_scorable": len(scorable),
        "gold": {state: gold[state] for state in GOLD_STATES if gold[state]},
        "predictions": {state: predictions[state] for state in PREDICTION_STATES if predictions[state]},
        **{rule: _rate(rule, outcomes) for rule in rules},
        "by_difficulty": split_outcomes(scorable, rules, lambda outcome: outcome.difficulty),
        "by_n_tables": split_outcomes(scorable, rules, lambda outcome: table_range(outcome.n_tables or 0), ranges),
        "failures": {kind: failures[kind] for kind in FAILURES if failures[kind]},
        "outcomes": [outcome.to_dict() for outcome in outcomes],
    }


def _rate(rule: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    answerable = [outcome for outcome in outcomes if outcome.gold != "unanswerable"]
    scorable = [outcome for outcome in answerable if outcome.gold == "scorable"]
    n_right = sum(outcome.right[rule] for outcome in scorable)
    rate: dict[str, Any] = {
        "n_right": n_right,
        "accuracy": n_right / len(scorable) if scorable else None,
        "interval": list(wilson_interval(n_right, len(scorable))),
        "accuracy_of_all": sum(outcome.right[rule] for outcome in answerable) / len(answerable) if answerable else None,
    }
    if rule.startswith("ehrsql"):
        rate |= _rate_ehrsql(rule, [outcome for outcome in outcomes if outcome.gold in ("scorable", "unanswerable")])
    return rate


def _rate_ehrsql(rule: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """EHRSQL's figures, in which not answering counts.

    Source: `reliability_score` in scoring_program/scoring_utils.py of glee4810/ehrsql-2024, commit 06855347, and the
    six figures of evaluate.py of glee4810/EHRSQL, commit 1588e586.
    """
    if not outcomes:
        return {}
    scores = [1 if outcome.right[rule] else 0 if _is_abstained(outcome) else -1 for outcome in outcomes]
    n_given = sum(outcome.prediction != "no_sql" for outcome in outcomes)
    wanted = [outcome for outcome in outcomes if outcome.gold == "scorable"]
    n_answered = sum(outcome.prediction != "no_sql" for outcome in wanted)
    n_right = sum(outcome.right[rule] for outcome in wanted)
    penalties = {**{str(penalty): penalty for penalty in _PENALTIES}, "N": len(scores)}
    return {
        "reliability": {name: reliability(scores, penalty) for name, penalty in penalties.items()},
        "answering": f1(n_answered, n_given, len(wanted)),
        "execution": f1(n_right, n_given, len(wanted)),
    }


def _is_abstained(outcome: Outcome) -> bool:
    return outcome.gold == "scorable" and outcome.prediction == "no_sql"


def split_outcomes(
    outcomes: Sequence[Outcome], rules: Sequence[str], group: Callable[[Outcome], str], order: Sequence[str] = ()
) -> dict[str, Any]:
    """For each group of outcomes how many they are, and the share that is right by each rule.

    Groups come in `order`, then as they appear; one without a name is left out.
    """
    groups: dict[str, list[Outcome]] = {name: [] for name in order}
    for outcome in outcomes:
        if name := group(outcome):
            groups.setdefault(name, []).append(outcome)
    return {
        name: {
            "n": len(members),
            **{rule: sum(member.right[rule] for member in members) / len(members) for rule in rules},
        }
        for name, members in groups.items()
        if members
    }


def compare(a: Sequence[Outcome], b: Sequence[Outcome], rules: Sequence[str]) -> dict[str, Any]:
    """McNemar's paired test for each rule, over the scorable questions that are in both; see `count_pairs`."""
    pairs = [(one, other) for one, other in zip(a, b, strict=True) if is_pair(one, other)]
    result = {}
    for rule in rules:
        counts = collections.Counter((one.right[rule], other.right[rule]) for one, other in pairs)
        only_a, only_b = counts[True, False], counts[False, True]
        result[rule] = {
            "both": counts[True, True],
            "only_a": only_a,
            "only_b": only_b,
            "neither": counts[False, False],
            "p": mcnemar(only_a, only_b),
        }
    return result


def count_pairs(a: Sequence[Outcome], b: Sequence[Outcome]) -> dict[str, int]:
    """How many scorable questions two sets of predictions have in common.

    One that was not asked says nothing about who is better, so it is left out of the comparison, and counted here. In
    the accuracies of its own set it is wrong.
    """
    counts = collections.Counter(
        (one.prediction != "missing", other.prediction != "missing")
        for one, other in zip(a, b, strict=True)
        if one.gold == "scorable"
    )
    return {
        "n": counts[True, True],
        "only_in_a": counts[True, False],
        "only_in_b": counts[False, True],
        "in_neither": counts[False, False],
    }


def is_pair(one: Outcome, other: Outcome) -> bool:
    """Two outcomes of one question that can be compared: it is scorable, and was asked both times."""
    return one.gold == "scorable" and "missing" not in (one.prediction, other.prediction)
