"""What is wrong with an answer: one kind, the first that fits."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqale_edge.benchmarks import GoldTable, Question, score, summarize
from sqale_edge.benchmarks.failures import FAILURES

RULES = ("bird", "strict")
GOLD = "SELECT customer_id, total FROM orders WHERE total > 20 ORDER BY id"
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
# An answer to GOLD, and its kind.
ANSWERS = {
    "right": (GOLD, ""),
    "right from elsewhere": ("SELECT customer_id, total FROM big_orders ORDER BY id", ""),
    "no SQL": (None, "no_answer"),
    "refused": ("DELETE FROM orders", "error"),
    "a wrong name": ("SELECT nothing FROM orders", "error"),
    "no end": (FOREVER.replace("SELECT i FROM", "SELECT count(*) FROM"), "limit"),
    "a million rows": (FOREVER, "limit"),
    "descending": (f"{GOLD} DESC", "order"),
    "descending, and another table": (
        GOLD.replace("orders", "orders, (SELECT count(*) FROM customers)") + " DESC",
        "order",
    ),
    "twice": (f"SELECT * FROM ({GOLD}) UNION ALL SELECT * FROM ({GOLD})", "repeats"),
    "columns changed": ("SELECT total, customer_id FROM orders WHERE total > 20 ORDER BY id", "columns"),
    "a column less": ("SELECT total FROM orders WHERE total > 20", "columns"),
    "a column more": ("SELECT ordered_on, total, customer_id FROM orders WHERE total > 20", "columns"),
    "another table": ("SELECT id, name FROM customers WHERE id > 20", "tables"),
    "a table more": ("SELECT customer_id, total FROM orders, customers WHERE total > 20", "repeats"),
    "a table more, fewer rows": (
        "SELECT customer_id, total FROM orders JOIN customers c ON c.id = customer_id AND city > 'M' WHERE total > 20",
        "tables",
    ),
    "another value": (GOLD.replace("20", "30"), "literals"),
    "a value less": ("SELECT customer_id, total FROM orders ORDER BY id", "literals"),
    "the value as text": ("SELECT customer_id, -total FROM orders WHERE total > '20'", "literals"),
    "through a view": ("SELECT customer_id, total FROM big_orders WHERE total < 100", "literals"),
    "through a view, the same value": ("SELECT customer_id, total FROM big_orders WHERE total <= 20", "fewer_rows"),
    "more rows": ("SELECT customer_id, total FROM orders WHERE total > 20 OR total IS NOT NULL", "more_rows"),
    "fewer rows": (f"{GOLD} LIMIT 2", "fewer_rows"),
    "no rows": ("SELECT customer_id, total FROM orders WHERE total > 20 AND 0", "fewer_rows"),
    "other cells": ("SELECT customer_id, -total FROM orders WHERE total > 20", "values"),
    "other cells and columns": ("SELECT -total FROM orders WHERE total > 20", "values"),
}


@pytest.fixture
def shop(shop):
    """The shop with a view over its orders."""
    with closing(sqlite3.connect(shop)) as connection:
        connection.executescript("CREATE VIEW big_orders AS SELECT * FROM orders WHERE total > 20")
    return shop


def judge(question, sql, rules=RULES):
    ((outcome,),) = score([question], [{question.id: sql}], rules, timeout_s=2)
    return outcome


@pytest.mark.parametrize("name", ANSWERS)
def test_kind(shop, name):
    """As its definition says; what is right has none and no excerpts."""
    sql, kind = ANSWERS[name]
    outcome = judge(Question("1", shop, "?", (GOLD,)), sql)
    assert (outcome.failure, outcome.right["strict"]) == (kind, kind == "")
    assert (outcome.excerpts is None) == (kind == "")
    assert outcome.to_dict()["failure"] == kind


def test_missing_prediction(shop):
    """It is no answer."""
    ((outcome,),) = score([Question("1", shop, "?", (GOLD,))], [{}], RULES)
    assert (outcome.failure, outcome.prediction) == ("no_answer", "missing")


def test_order_of_a_like_pattern_and_case(shop):
    """The wildcards at its ends do not count, the case of its letters does."""
    question = Question("1", shop, "?", ("SELECT name FROM customers WHERE city = 'London'",))
    kinds = [
        judge(question, f"SELECT id FROM customers WHERE city {condition}").failure
        for condition in ("LIKE '%London%'", "= 'london'")
    ]
    assert kinds == ["values", "literals"]


def test_any_of_several_golds_is_no_failure(shop):
    """What none of them is, is held against the first."""
    question = Question("1", shop, "?", ("SELECT 1", "SELECT count(*) FROM orders"))
    kinds = [judge(question, sql).failure for sql in ("SELECT 6", "SELECT 2", "SELECT 2 FROM orders")]
    assert kinds == ["", "values", "tables"]


def test_a_csv_file_has_no_tables_and_values(shop, tmp_path):
    """Only the rows are compared then."""
    (tmp_path / "gold.csv").write_text("name\nAda\nGrace\n", encoding="utf-8")
    question = Question("1", shop, "?", gold_tables=(GoldTable(tmp_path / "gold.csv"),), form="spider2")
    answers = (
        "SELECT name FROM customers WHERE id < 3",
        "SELECT name FROM customers",
        "SELECT 'Eve' UNION SELECT 'Bo'",
    )
    outcomes = [judge(question, sql, (*RULES, "spider2")) for sql in answers]
    assert [outcome.failure for outcome in outcomes] == ["", "more_rows", "values"]
    assert outcomes[1].gold_tables == outcomes[1].gold_literals == ()


def test_only_what_can_be_scored_fails(shop):
    """A gold without rows, and rules without the strict one, have no failures."""
    assert judge(Question("1", shop, "?", ("SELECT 1 WHERE 0",)), "SELECT 2").failure == ""
    assert judge(Question("1", shop, "?", ("SELECT 1",)), "SELECT 2", ("bird",)).failure == ""


def test_excerpts_are_short(shop):
    """Five rows, 200 characters of a cell, and the whole number of rows."""
    long = FOREVER.replace(") SELECT i", " LIMIT 9) SELECT i, hex(zeroblob(1000)) AS z")
    outcome = judge(Question("1", shop, "?", (long,)), "SELECT zeroblob(300), NULL")
    gold, answer = outcome.excerpts
    assert (gold.sql, gold.columns, gold.n_rows) == (long, ("i", "z"), 9)
    assert gold.rows == tuple((i, "0" * 200) for i in range(1, 6))
    assert answer.rows == ((bytes(200), None),)
    assert "excerpts" not in outcome.to_dict()


def test_failures_are_counted(shop):
    """Kinds in their order, those that occur."""
    questions = [Question(name, shop, "?", (GOLD,)) for name in ANSWERS]
    sql = {name: answer for name, (answer, _) in ANSWERS.items()}
    document = summarize([one for (one,) in score(questions, [sql], RULES, timeout_s=2)], RULES)
    kinds = [kind for _, kind in ANSWERS.values()]
    assert document["failures"] == {kind: kinds.count(kind) for kind in FAILURES}
    assert list(document["failures"]) == list(FAILURES)
    assert document["n_scorable"] - document["strict"]["n_right"] == sum(document["failures"].values())


def test_the_documentation_lists_the_kinds():
    """In their order, with the words that the report has."""
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    places = [text.index(f"| `{kind}` | {meaning} |") for kind, meaning in FAILURES.items()]
    assert places == sorted(places)
