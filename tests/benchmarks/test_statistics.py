"""Figures that can be looked up, and counts of small sets."""

import pytest
from sqale_edge.benchmarks import Outcome, compare, count_pairs, summarize
from sqale_edge.benchmarks.statistics import f1, mcnemar, reliability, table_range, wilson_interval


@pytest.mark.parametrize(
    ("n_right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)],
)
def test_wilson(n_right, n, low, high):
    """The examples of R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson_interval(n_right, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_of_nothing():
    """Nothing is known."""
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 22 / 1024), (9, 1, 22 / 1024)]
)
def test_mcnemar(only_a, only_b, p):
    """Twice the smaller tail of a fair coin, and 1 at most."""
    assert mcnemar(only_a, only_b) == pytest.approx(p)


def test_mcnemar_of_many():
    """Numbers that no float holds on the way."""
    assert 0 < mcnemar(4_000, 5_000) < 1e-20


def test_reliability():
    """Wrong answers count as often as they are punished."""
    scores = [1, 1, 0, -1]
    assert [reliability(scores, penalty) for penalty in (0, 5, 10)] == [0.5, -0.75, -2.0]


def test_f1():
    """Two hits, four given, three wanted; and nothing at all."""
    assert f1(2, 4, 3) == {"precision": 0.5, "recall": pytest.approx(2 / 3), "f1": pytest.approx(4 / 7)}
    assert f1(0, 0, 0) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_table_ranges():
    """Every number has one."""
    assert [table_range(n) for n in (1, 5, 6, 100, 101)] == ["1-5", "1-5", "6-10", "51-100", "101+"]


def outcome(id_, *, right, gold="scorable", prediction="ran", n_tables=3, difficulty="easy"):
    return Outcome(id_, "db", difficulty, n_tables, gold, prediction, {"bird": right, "ehrsql": right})


def test_summary():
    """Accuracy is of the scorable ones; EHRSQL's figures count what is not answered."""
    outcomes = [
        outcome("a", right=True, n_tables=200),
        outcome("b", right=False, difficulty="hard"),
        outcome("c", right=False, prediction="no_sql"),
        outcome("d", right=True, gold="unanswerable", prediction="no_sql", n_tables=1),
        outcome("e", right=True, gold="empty"),
        outcome("f", right=False, gold="failed", prediction="not_run"),
    ]
    document = summarize(outcomes, ["bird", "ehrsql"])
    assert (document["n"], document["n_scorable"]) == (6, 3)
    assert document["gold"] == {"scorable": 3, "unanswerable": 1, "failed": 1, "empty": 1}
    assert document["predictions"] == {"ran": 2, "no_sql": 1}
    assert document["bird"]["accuracy"] == pytest.approx(1 / 3)
    assert document["bird"]["accuracy_of_all"] == pytest.approx(2 / 5)
    assert document["by_difficulty"]["hard"] == {"n": 1, "bird": 0.0, "ehrsql": 0.0}
    assert list(document["by_n_tables"]) == ["1-5", "101+"]
    assert document["ehrsql"]["reliability"] == {"0": 0.5, "5": -0.75, "10": -2.0, "N": -0.5}
    assert document["ehrsql"]["answering"]["recall"] == pytest.approx(2 / 3)
    assert document["ehrsql"]["execution"] == {
        "precision": 0.5,
        "recall": pytest.approx(1 / 3),
        "f1": pytest.approx(0.4),
    }
    assert [one["id"] for one in document["outcomes"]] == list("abcdef")


def test_summary_of_nothing():
    """No accuracy where nothing can be scored."""
    document = summarize([outcome("a", right=False, gold="empty")], ["bird", "ehrsql"])
    assert (document["bird"]["accuracy"], document["bird"]["interval"]) == (None, [0.0, 1.0])


def test_compare():
    """Only questions that can be scored, each in its pair."""
    a = [outcome("a", right=True), outcome("b", right=True), outcome("c", right=True, gold="empty")]
    b = [outcome("a", right=True), outcome("b", right=False), outcome("c", right=False, gold="empty")]
    assert compare(a, b, ["bird"])["bird"] == {"both": 1, "only_a": 1, "only_b": 0, "neither": 0, "p": 1.0}


def test_compare_counts_what_both_have():
    """A question that one run was not asked says nothing about who is better; one without an answer is wrong."""
    pairs = {  # A, B, and how often
        (("ran", True), ("ran", True)): 1,
        (("ran", True), ("ran", False)): 2,
        (("ran", True), ("no_sql", False)): 1,
        (("failed", False), ("ran", True)): 4,
        (("ran", False), ("timeout", False)): 5,
        (("ran", True), ("missing", False)): 6,
        (("ran", False), ("missing", False)): 7,
        (("missing", False), ("ran", True)): 8,
        (("missing", False), ("missing", False)): 9,
    }
    everything = [pair for pair, n in pairs.items() for _ in range(n)]
    a, b = (
        [outcome("q", right=right, prediction=state) for state, right in side] for side in zip(*everything, strict=True)
    )
    assert count_pairs(a, b) == {"n": 13, "only_in_a": 13, "only_in_b": 8, "in_neither": 9}
    test = compare(a, b, ["bird"])["bird"]
    assert test == {"both": 1, "only_a": 3, "only_b": 4, "neither": 5, "p": pytest.approx(1.0)}
    swapped = compare(b, a, ["bird"])["bird"]
    assert (swapped["only_a"], swapped["only_b"], swapped["p"]) == (4, 3, test["p"])
