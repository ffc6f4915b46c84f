"""How a model worked: real agents, whose decisions are scripted, and figures that can be counted by hand."""

import dataclasses
import json
import sqlite3
from contextlib import closing

import pytest
from sqale_edge.benchmarks import (
    Answer,
    Question,
    Results,
    ResultsFile,
    Run,
    analyze,
    ask_questions,
    read_results,
    score,
)
from sqale_edge.benchmarks.analysis import UNKNOWN, UNREADABLE, count_tflop
from sqale_edge.benchmarks.results_file import digest_questions
from sqale_edge.benchmarks.seen import find_opened, find_seen

from sqale_edge import Agent
from sqale_edge.episode import Usage
from sqale_edge.settings import EpisodeLimits
from sqale_edge.testing import ScriptedEngine

RULES = ("bird", "strict")


def call(tool, **args):
    return json.dumps({"tool": tool, "args": args})


def submit(sql):
    return call("submit_sql", sql=sql)


@pytest.fixture
def shop(shop):
    """The shop with a view, a column of wide contents, and values that its CREATE statement lists."""
    with closing(sqlite3.connect(shop)) as connection:
        connection.executescript(
            """
            CREATE VIEW "Big Orders" AS SELECT id, total FROM orders WHERE total > 70;
            CREATE TABLE states (code TEXT CHECK (code IN ('open', 'paid')), size VARCHAR(20), note TEXT);
            INSERT INTO states VALUES ('open', 5, 'a | b'), (NULL, '007', 'Port Said, Saida');
            """
        )
    return shop


def play(shop, gold, script):
    """The outcome and the episode of one question."""
    question = Question("1", shop, "?", (gold,))
    episode = Agent(ScriptedEngine(script), limits=EpisodeLimits(tool_turns=3)).run("?", shop)
    ((outcome,),) = score([question], [{"1": episode.sql}], RULES)
    return outcome, episode


OPENED = {
    "by describe_table": ([call("describe_table", table_name="customers"), submit("SELECT 1")], ["customers"]),
    "by sample_rows": ([call("sample_rows", table_name="orders", limit=1), submit("SELECT 1")], ["orders"]),
    "in other case": ([call("describe_table", table_name="CUSTOMERS"), submit("SELECT 1")], ["customers"]),
    "quoted, with a schema": ([call("describe_table", table_name='main."Orders";'), submit("SELECT 1")], ["orders"]),
    "both in one turn, twice": (
        [
            *[
                call("describe_table", table_name="orders") + call("describe_table", table_name="customers"),
            ]
            * 2,
            submit("SELECT 1"),
        ],
        ["customers", "orders"],
    ),
    "not by its error": ([call("describe_table", table_name="customer"), submit("SELECT 1")], []),
    "not by other tools": (
        [
            call("list_tables") + call("foreign_keys", table_name="orders"),
            call("run_query", sql="SELECT * FROM orders, customers")
            + call("distinct_values", table_name="customers", column_name="city"),
            submit("SELECT 1"),
        ],
        [],
    ),
    "not by other tables": ([call("describe_table", table_name="Big Orders"), submit("SELECT 1")], []),
    "not in the turn of the answer": ([call("describe_table", table_name="orders") + submit("SELECT 1")], []),
    "not behind the answer": ([submit("SELECT 1") + call("describe_table", table_name="orders")], []),
    "before a final answer": (
        [call("describe_table", table_name="orders")] * 3 + ["SELECT 1"],
        ["orders"],
    ),
    "before no answer": ([call("describe_table", table_name="orders")] * 3 + ["I give up."], ["orders"]),
}


@pytest.mark.parametrize("name", OPENED)
def test_opened_tables(shop, name):
    """Those whose contents the model had read before it answered."""
    script, opened = OPENED[name]
    outcome, episode = play(shop, "SELECT count(*) FROM orders o JOIN Customers c ON c.id = o.customer_id", script)
    assert outcome.gold_tables == ("customers", "orders")
    assert find_opened(episode, outcome.gold_tables) == opened


def test_a_view_is_opened_itself(shop):
    """The gold names the view, so opening the table behind it is not enough."""
    gold = 'SELECT count(*) FROM "big orders"'
    for name, opened in (("BIG ORDERS", ["Big Orders"]), ("orders", [])):
        outcome, episode = play(shop, gold, [call("describe_table", table_name=name), submit("SELECT 1")])
        assert find_opened(episode, outcome.gold_tables) == opened


CITIES = call("distinct_values", table_name="customers", column_name="city")
STATES = call("sample_rows", table_name="states")
# A condition on a table, the turns before the answer, and whether its value was seen.
SEEN = {
    "in a row": ("customers WHERE city = 'London'", [CITIES], True),
    "a word of a cell": ("states WHERE note = 'Port Said'", [STATES], True),
    "no part of a word": ("states WHERE note = 'Said'", [call("run_query", sql="SELECT 'Saida'")], False),
    "with its case": ("customers WHERE city = 'london'", [CITIES], False),
    "a pattern without case": ("customers WHERE city LIKE '%LOND%n'", [CITIES], True),
    "a pattern in one cell": ("customers WHERE city LIKE 'London%Austin'", [CITIES], False),
    "a pattern with a blank": ("customers WHERE city LIKE 'L_ndon'", [CITIES], True),
    "a bar in a cell": ("states WHERE note = 'a | b'", [STATES], True),
    "a number as it is": ("customers WHERE id = 2", [call("sample_rows", table_name="customers")], True),
    "an integer as a float": ("orders WHERE total = 120", [call("sample_rows", table_name="orders")], True),
    "a number as text": ("states WHERE size = 7", [STATES], True),
    "a text that is a number": ("states WHERE size = '5'", [STATES], True),
    "no part of a date": ("customers WHERE id = 2024", [call("sample_rows", table_name="orders")], False),
    "not in a CREATE statement's size": (
        "customers WHERE id = 20",
        [call("describe_table", table_name="states")],
        False,
    ),
    "in a CREATE statement's list": ("states WHERE code = 'paid'", [call("describe_table", table_name="states")], True),
    "not a name of a CREATE statement": (
        "states WHERE code = 'note'",
        [call("describe_table", table_name="states")],
        False,
    ),
    "a pattern in a CREATE statement": (
        "states WHERE code LIKE 'PA%'",
        [call("describe_table", table_name="states")],
        True,
    ),
    "not in a header": (
        "states WHERE code = 'paid'",
        [call("run_query", sql="SELECT count(*), 1 = 'paid' FROM orders")],
        False,
    ),
    "not in a list of tables": ("states WHERE code = 'states'", [call("list_tables")], False),
    "not in an error": (
        "customers WHERE city = 'Rome'",
        [call("distinct_values", table_name="customers", column_name="Rome")],
        False,
    ),
    "not without results": ("customers WHERE city = 'London'", [], False),
}


@pytest.mark.parametrize("name", SEEN)
def test_seen_values(shop, name):
    """Those that stood in a result that the model had read before it answered."""
    source, turns, is_seen = SEEN[name]
    outcome, episode = play(shop, f"SELECT count(*) FROM {source}", [*turns, submit("SELECT 1")])
    assert len(outcome.gold_literals) == 1
    assert find_seen(episode, outcome.gold_literals) == (list(outcome.gold_literals) if is_seen else [])


@pytest.mark.parametrize("last", [CITIES + submit("SELECT 'London'"), submit("SELECT city FROM customers") + CITIES])
def test_too_late_to_be_seen(shop, last):
    """Results of the turn with the answer, that of `submit_sql` among them, are read by nobody."""
    outcome, episode = play(shop, "SELECT name FROM customers WHERE city = 'London'", [call("list_tables"), last])
    assert "London" in "".join(result.output for result in episode.turns[-1].results)
    assert find_seen(episode, outcome.gold_literals) == []


# id: gold, script. "right", "unread" are right by both rules, "order" by BIRD's only.
EPISODES = {
    "right": ("SELECT name FROM customers WHERE city = 'London'", [CITIES, submit("SELECT 'Ada'")]),
    "join": (
        "SELECT count(*) FROM orders JOIN customers c ON c.id = customer_id WHERE c.id = 1 AND total > 20",
        [
            call("describe_table", table_name="orders") + call("sample_rows", table_name="oders"),
            call("sample_rows", table_name="orders", limit=1),
            submit("SELECT 3"),
        ],
    ),
    "order": (
        "SELECT id FROM orders ORDER BY id",
        [call("run_query", sql="SELECT id FROM orders ORDER BY id DESC"), "no", "no", "x"],
    ),
    "unread": ("SELECT count(*) FROM orders", [call("fly"), "nonsense", submit("SELECT 6")]),
    "none": ("SELECT 4", ["?", "?", "?", "I do not know."]),
    "empty": ("SELECT 1 WHERE 0", [submit("SELECT 1")]),
}


@pytest.fixture
def asked(shop, tmp_path):
    """Questions, their outcomes, and the results file of agents that were really asked."""
    questions = [Question(name, shop, f"{name}?", (gold,)) for name, (gold, _) in EPISODES.items()]
    questions += [
        Question("too long", shop, "long " * 9_000, ("SELECT 1",)),
        Question("left", shop, "?", ("SELECT 1",)),
    ]
    settings = {"engine": {}, "sampling": {}, "limits": {}}
    run = Run("m.gguf", "ab" * 32, 1_000_000, "own", settings, 0, digest_questions(questions), "0.1", "3.45")
    with ResultsFile(tmp_path / "r.jsonl", run) as results:
        for question in questions[:-1]:
            script = EPISODES.get(question.id, (None, []))[1]
            agent = Agent(ScriptedEngine(script), limits=EpisodeLimits(tool_turns=3))
            list(ask_questions(agent, [question], results))
    results = read_results(tmp_path / "r.jsonl", questions)
    return questions, [one for (one,) in score(questions, [results.sql], RULES)], results


def test_everything_is_counted(asked):
    """Accuracy over the scorable questions with an episode; turns, tokens and calls over all episodes."""
    _, outcomes, results = asked
    analysis = analyze(outcomes, results, RULES)
    assert (analysis["n_asked"], analysis["n_episodes"], analysis["n_scorable"]) == (7, 6, 5)
    # customers; orders, customers; orders; orders; nothing
    assert analysis["gold_tables"] == {
        "n": 5,
        "n_found": 1,
        "share": 0.2,
        "by_found": {
            "some": {"n": 1, "bird": 0.0, "strict": 0.0},
            "none": {"n": 3, "bird": 1.0, "strict": pytest.approx(2 / 3)},
        },
    }
    # 'London'; 1, 20
    assert analysis["gold_literals"] == {
        "n": 3,
        "n_found": 2,
        "share": pytest.approx(2 / 3),
        "texts": {"n": 1, "n_found": 1, "share": 1.0},
        "numbers": {"n": 2, "n_found": 1, "share": 0.5},
        "by_found": {"all": {"n": 1, "bird": 1.0, "strict": 1.0}, "some": {"n": 1, "bird": 0.0, "strict": 0.0}},
    }
    assert analysis["ended_by"] == {
        "submit_sql": {"n": 3, "bird": pytest.approx(2 / 3), "strict": pytest.approx(2 / 3)},
        "fallback_to_last_working_query": {"n": 1, "bird": 1.0, "strict": 0.0},
        "no_answer": {"n": 1, "bird": 0.0, "strict": 0.0},
    }
    assert analysis["turns"] == {
        "total": 17,
        "mean": pytest.approx(17 / 6),
        "median": 3.0,
        "by_n": {
            "2": {"n": 1, "bird": 1.0, "strict": 1.0},
            "3": {"n": 2, "bird": 0.5, "strict": 0.5},
            "4": {"n": 2, "bird": 0.5, "strict": 0.0},
        },
    }
    assert {name: (one["n_calls"], one["n_questions"], one["n_errors"]) for name, one in analysis["tools"].items()} == {
        "describe_table": (1, 1, 0),
        "sample_rows": (2, 1, 1),
        "distinct_values": (1, 1, 0),
        "run_query": (1, 1, 0),
        "submit_sql": (4, 4, 0),
        UNKNOWN: (1, 1, 1),
        UNREADABLE: (6, 3, 6),
    }
    assert analysis["tools"]["sample_rows"]["error_rate"] == 0.5
    assert json.loads(json.dumps(analysis)) == analysis


def test_tokens_and_tflop(asked):
    """Sums, means and medians of what the episodes say; two operations for each parameter and token."""
    _, outcomes, results = asked
    analysis = analyze(outcomes, results, RULES)
    usages = [answer.episode.usage for answer in results.answers.values() if answer.episode]
    assert analysis["tokens"]["decoded"]["total"] == sum(usage.n_decoded for usage in usages)
    assert analysis["tokens"]["prompt"]["mean"] == pytest.approx(sum(usage.n_prompt for usage in usages) / 6)
    assert analysis["tokens"]["evaluated"]["median"] == sum(sorted(usage.n_evaluated for usage in usages)[2:4]) / 2
    n_tokens = sum(usage.n_evaluated + usage.n_decoded for usage in usages)
    assert analysis["tflop"]["total"] == pytest.approx(2 * 1e6 * n_tokens / 1e12)
    assert (
        count_tflop(1_880_000_000, Usage(n_prompt=99_999, n_cached=88_888, n_evaluated=9_000, n_decoded=1_000)) == 37.6
    )
    unknown = Results(dataclasses.replace(results.run, n_parameters=0), results.answers)
    assert analyze(outcomes, unknown, RULES)["tflop"] == {"total": None, "mean": None, "median": None}


@pytest.mark.parametrize("answers", [{}, {"right": Answer("right", None, error="too long")}])
def test_results_without_episodes(asked, answers):
    """Nothing is known then, and nothing is divided by zero."""
    _, outcomes, results = asked
    analysis = analyze(outcomes, Results(results.run, answers), RULES)
    assert (analysis["n_asked"], analysis["n_episodes"], analysis["n_scorable"]) == (len(answers), 0, 0)
    assert analysis["gold_tables"] == {"n": 0, "n_found": 0, "share": None, "by_found": {}}
    assert analysis["turns"] == {"total": None, "mean": None, "median": None, "by_n": {}}
    assert (analysis["ended_by"], analysis["tools"], analysis["gold_literals"]["by_found"]) == ({}, {}, {})
    assert analysis["tokens"]["decoded"]["mean"] is None


def test_answers_to_other_questions_do_not_count(asked):
    """Only those that are scored now: a sample of what was asked."""
    _, outcomes, results = asked
    analysis = analyze(outcomes[:1], results, RULES)
    assert (analysis["n_asked"], analysis["turns"]["total"]) == (1, 2)


def test_a_vote_costs_all_its_candidates(shop, tmp_path):
    """Tokens are those of all that ended; turns and calls are the winner's alone."""
    question = Question("1", shop, "?", ("SELECT 4",))
    run = Run("m.gguf", "ab" * 32, 1_000_000, "own", {}, 0, digest_questions([question]), "0.1", "3.45")
    agent = Agent(
        ScriptedEngine(lambda seed: [submit("SELECT 7")] if seed else [CITIES, submit("SELECT 4")], n_sequences=3)
    )
    with ResultsFile(tmp_path / "r.jsonl", run) as file:
        list(ask_questions(agent, [question], file, n_votes=3))
    results = read_results(tmp_path / "r.jsonl", [question])
    outcomes = [one for (one,) in score([question], [results.sql], RULES)]
    analysis = analyze(outcomes, results, RULES)
    answer = results.answers["1"]
    candidates = answer.votes["candidates"]
    assert answer.sql == "SELECT 7"
    assert len(candidates) > 1
    assert analysis["tokens"]["decoded"]["total"] == sum(one["usage"]["n_decoded"] for one in candidates)
    assert analysis["tokens"]["decoded"]["total"] > answer.episode.usage.n_decoded
    assert (analysis["turns"]["total"], analysis["tools"]["submit_sql"]["n_calls"]) == (1, 1)
