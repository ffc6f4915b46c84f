"""One outcome for each question, whatever the predictions try."""

import math
import sqlite3
import time
from contextlib import closing

import pytest
from sqale_edge.benchmarks import Question, score

from sqale_edge.errors import Cancelled, SettingsError

RULES = ("bird", "strict")
NAMES = "SELECT name FROM customers"
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
# A prediction for the names of the customers, its state, and whether it is right.
PREDICTIONS = {
    "the gold": (NAMES, "ran", True),
    "another way": ("SELECT c.name AS n FROM customers c WHERE id > 0", "ran", True),
    "the same column name, other values": ("SELECT upper(name) AS name FROM customers", "ran", False),
    "comments and semicolons": (f"-- names\n/* ; */ {NAMES} ; -- ;\n;", "ran", True),
    "tabs and lines": ("SELECT\tname\n\nFROM\r\n customers", "ran", True),
    "no rows": (f"{NAMES} WHERE 0", "ran", False),
    "empty": ("", "refused", False),
    "a comment alone": ("-- none", "refused", False),
    "no answer": (None, "no_sql", False),
    "two statements": (f"{NAMES}; {NAMES}", "refused", False),
    "prose": ("I do not know.", "failed", False),
    "fences": (f"```sql\n{NAMES}\n```", "failed", False),
    "a wrong column": ("SELECT nome FROM customers", "failed", False),
    "NUL": (f"{NAMES}\0", "refused", False),
    "half a character": ("SELECT '\ud800'", "refused", False),
    "a parameter": (f"{NAMES} WHERE id = ?", "refused", False),
    "an insert": ("INSERT INTO customers VALUES (9, 'Eve', NULL)", "refused", False),
    "an insert that returns": ("INSERT INTO customers VALUES (9, 'Eve', NULL) RETURNING name", "refused", False),
    "a drop": ("DROP TABLE customers", "refused", False),
    "a temporary view over the table": ("CREATE TEMP VIEW customers AS SELECT 'Eve' AS name", "refused", False),
    "a transaction": ("BEGIN EXCLUSIVE", "refused", False),
    "another file": ("ATTACH 'other.sqlite' AS other", "refused", False),
    "a copy": ("VACUUM INTO 'copy.sqlite'", "refused", False),
    "LIKE made case sensitive": ("PRAGMA case_sensitive_like=1", "refused", False),
    "rows in reverse": ("PRAGMA reverse_unordered_selects=1", "refused", False),
    "a writable schema": ("PRAGMA writable_schema=1", "refused", False),
    "without end": (FOREVER, "timeout", False),
    "too many rows": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "too_large",
        False,
    ),
}


def score_all(questions, predictions, timeout_s=2.0, **options):
    return [outcome for (outcome,) in score(questions, [predictions], RULES, timeout_s=timeout_s, **options)]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_prediction(shop, name):
    """Its state; the question after it is judged as if it had not been; no file changes or appears."""
    sql, state, is_right = PREDICTIONS[name]
    before = shop.read_bytes(), sorted(shop.parent.iterdir())
    like = "SELECT name FROM customers WHERE name LIKE 'a%'"
    questions = [Question("1", shop, "Names?", (NAMES,)), Question("2", shop, "With A?", (like,))]
    first, second = score_all(questions, {"1": sql, "2": "SELECT 'Ada'"})
    assert (first.prediction, dict(first.right)) == (state, dict.fromkeys(RULES, is_right))
    assert bool(first.detail) == (state not in ("ran", "no_sql"))
    assert "\n" not in first.detail
    assert second.right == {"bird": True, "strict": True}
    assert (shop.read_bytes(), sorted(shop.parent.iterdir())) == before


def test_gold_as_prediction_is_always_right(shop):
    """For whatever can be scored: ties, NULL, floats, bytes, texts that are no UTF-8."""
    golds = [
        "SELECT * FROM orders ORDER BY customer_id DESC",
        "SELECT city, NULL, 0.1 + 0.2 FROM customers",
        "SELECT x'ff00', CAST(x'ff' AS TEXT), 9223372036854775807, 9e999, -0.0",
        "SELECT customer_id, sum(total) FROM orders GROUP BY 1",
        "SELECT ordered_on FROM orders ORDER BY ordered_on LIMIT 3",
    ]
    questions = [Question(str(i), shop, "?", (gold,)) for i, gold in enumerate(golds)]
    outcomes = score_all(questions, {question.id: question.golds[0] for question in questions})
    assert [(one.gold, *one.right.values()) for one in outcomes] == [("scorable", True, True)] * len(golds)


def test_each_question_has_an_outcome(shop, tmp_path):
    """A missing prediction, a missing database, a gold that fails: counted, and nothing moves."""
    questions = [
        Question("missing", shop, "?", ("SELECT 1",)),
        Question("database", tmp_path / "none.sqlite", "?", ("SELECT 1",)),
        Question("gold", shop, "?", ("SELECT nothing",)),
        Question("unanswerable", shop, "?", is_unanswerable=True),
        Question("last", shop, "?", ("SELECT 2",), difficulty="hard"),
    ]
    predictions = {"database": "SELECT 1", "gold": "SELECT nothing", "unanswerable": None, "last": "SELECT 2"}
    outcomes = score_all(questions, predictions)
    assert [(one.id, one.gold, one.prediction, one.right["strict"]) for one in outcomes] == [
        ("missing", "scorable", "missing", False),
        ("database", "no_database", "not_run", False),
        ("gold", "failed", "not_run", False),
        ("unanswerable", "unanswerable", "no_sql", True),
        ("last", "scorable", "ran", True),
    ]
    assert (outcomes[4].db, outcomes[4].difficulty, outcomes[4].n_tables) == ("shop", "hard", 2)


def test_a_failing_gold_makes_nobody_right(shop):
    """BIRD's script puts the row ('error',) in the place of both results, and finds them equal."""
    (outcome,) = score_all([Question("1", shop, "?", ("SELECT nothing",))], {"1": "SELECT 'error'"})
    assert outcome.right == {"bird": False, "strict": False}


@pytest.mark.parametrize(("sql", "is_right"), [("SELECT 10.1 + 0.2", True), ("SELECT 9.999999", False)])
def test_numbers_are_matched_as_numbers(shop, sql, is_right):
    """Sorted as text, 9.7 comes after 10.3, and the pairs that are then compared belong to different rows."""
    gold = "SELECT 9.7 UNION ALL SELECT 10.3"
    (outcome,) = score_all([Question("1", shop, "?", (gold,))], {"1": f"{sql} UNION ALL SELECT 9.7"})
    assert outcome.right["strict"] is is_right


def test_a_timeout_stops_sqlite(shop):
    """The statement is not left to run on in a thread: the work after it is done by the one that waited."""
    questions = [Question(str(i), shop, "?", ("SELECT 1",)) for i in range(4)]
    started, cpu = time.monotonic(), time.process_time()
    outcomes = score_all(questions, dict.fromkeys("0123", FOREVER), timeout_s=0.2)
    assert [one.prediction for one in outcomes] == ["timeout"] * 4
    assert time.monotonic() - started < 60
    cpu = time.process_time() - cpu
    assert cpu < 60
    idle = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - idle < 0.4


@pytest.mark.parametrize("sql", ["SELECT 1", "SELECT 2", "SELECT 3"])
def test_any_of_several_golds(shop, sql):
    """The first or the second is right, the third is not."""
    (outcome,) = score_all([Question("1", shop, "?", ("SELECT 1", "SELECT 2"))], {"1": sql})
    assert outcome.right["strict"] is (sql != "SELECT 3")


def test_gold_runs_once_for_several_predictions(shop):
    """Each set has outcomes of its own."""
    question = Question("1", shop, "?", ("SELECT 1",))
    (pair,) = score([question], [{"1": "SELECT 1"}, {"1": "SELECT 2"}], RULES)
    assert [outcome.right["bird"] for outcome in pair] == [True, False]


def test_order_is_judged_up_to_ties(shop):
    """Two orders of one customer may change places, those of two customers not."""
    question = Question("1", shop, "?", ("SELECT id FROM orders ORDER BY customer_id",))
    right = [
        score_all([question], {"1": f"SELECT id FROM orders ORDER BY {order}"})[0].right["strict"]
        for order in ("customer_id, id", "customer_id, id DESC", "id", "customer_id DESC")
    ]
    assert right == [True, True, False, False]


def test_ehrsql_predictions_have_its_clock(shop):
    """Gold and prediction are prepared alike."""
    question = Question("1", shop, "?", ("SELECT '2100-12-31 23:59:00'",), form="ehrsql2024")
    assert score_all([question], {"1": "SELECT current_time"})[0].right["bird"]


def test_more_databases_than_stay_open(tmp_path):
    """Each question is asked of its own."""
    questions = []
    for i in range(9):
        with closing(sqlite3.connect(tmp_path / f"{i}.sqlite")) as connection:
            connection.executescript(f"CREATE TABLE t AS SELECT {i} AS n")
        questions.append(Question(str(i), tmp_path / f"{i}.sqlite", "?", (f"SELECT {i}",)))
    outcomes = score_all(questions, dict.fromkeys("012345678", "SELECT n FROM t"))
    assert all(one.right["strict"] for one in outcomes)


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, 0.0, -1.0, 1e300])
def test_a_limit_that_is_none_is_refused(shop, timeout_s):
    """Before anything runs for ever."""
    with pytest.raises(SettingsError, match=r"timeout_s is .*, but must be above 0 and at most 1000000"):
        score_all([Question("1", shop, "?", (FOREVER,))], {"1": FOREVER}, timeout_s=timeout_s)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_an_evaluation_can_be_stopped(shop, when):
    """Within a statement, too."""
    question = Question("1", shop, "?", ("SELECT 1",))
    until = time.monotonic() + (0 if when == "before" else 0.5)
    with pytest.raises(Cancelled):
        score_all([question], {"1": FOREVER}, timeout_s=600, should_stop=lambda: time.monotonic() > until)
