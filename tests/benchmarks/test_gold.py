"""Which gold can be scored, and why the rest cannot."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqale_edge.benchmarks import GoldTable, Question
from sqale_edge.benchmarks.databases import OpenDatabases
from sqale_edge.benchmarks.gold import run_gold
from sqale_edge.benchmarks.statements import advance_clock, break_ties, is_ordered, reverse_tables

SCHEMA = """
CREATE TABLE players (id INTEGER PRIMARY KEY, name TEXT, team TEXT COLLATE NOCASE, points INTEGER, born TEXT);
INSERT INTO players VALUES (1, 'Ann', 'red', 5, '2000-01-01'), (2, 'Bo', 'red', 7, '2001-01-01'),
    (3, 'Cy', 'blue', 7, '1999-01-01'), (4, 'Di', 'BLUE', 2, '1998-01-01');
CREATE TABLE codes (code TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
INSERT INTO codes VALUES ('a', 1), ('b', 2);
CREATE VIEW reds AS SELECT * FROM players WHERE team = 'red';
"""
STATES = {
    "SELECT name FROM players": "scorable",
    "SELECT name FROM players ORDER BY points": "scorable",  # the order of tied rows is open, which rows is not
    "SELECT name FROM players ORDER BY points LIMIT 2": "scorable",
    "SELECT name FROM players ORDER BY points DESC LIMIT 1": "not_deterministic",
    "SELECT points FROM players ORDER BY points DESC LIMIT 1": "scorable",  # tied, but the same
    "SELECT count(*) FROM players GROUP BY team ORDER BY count(*) DESC LIMIT 1": "scorable",
    "SELECT team FROM players GROUP BY team ORDER BY count(*) DESC LIMIT 1": "not_deterministic",
    "SELECT name FROM players LIMIT 2": "not_deterministic",
    "SELECT name FROM players LIMIT 4": "scorable",
    "SELECT count(*) FROM players LIMIT 1": "scorable",
    "SELECT name FROM players WHERE points = (SELECT max(points) FROM players LIMIT 1)": "scorable",
    "SELECT name FROM players WHERE id = (SELECT id FROM players ORDER BY points DESC LIMIT 1)": "not_deterministic",
    "SELECT name FROM players UNION SELECT code FROM codes ORDER BY 1 LIMIT 3": "scorable",
    "SELECT DISTINCT team FROM players ORDER BY team LIMIT 1": "not_deterministic",  # blue or BLUE
    "SELECT team, name FROM players GROUP BY team": "not_deterministic",
    "SELECT team, max(points) FROM players WHERE team = 'red' GROUP BY 2 > 0": "scorable",
    "SELECT group_concat(name) FROM players": "not_deterministic",
    "SELECT random() FROM players": "not_deterministic",
    "SELECT name FROM players ORDER BY random() LIMIT 2": "not_deterministic",
    "SELECT date('now')": "not_deterministic",
    "SELECT date()": "not_deterministic",
    "SELECT current_date": "not_deterministic",
    "SELECT strftime('%Y', 'NOW') - strftime('%Y', born) FROM players": "not_deterministic",
    "SELECT name FROM players WHERE born < date('now')": "scorable",  # as long as time goes forward
    "SELECT 'now' = 'now', name FROM players WHERE name <> 'current_date'": "scorable",
    "WITH red AS (SELECT * FROM players WHERE team = 'red') SELECT name FROM red ORDER BY points LIMIT 1": "scorable",
    "WITH players AS (SELECT 1 AS n) SELECT n FROM players LIMIT 1": "scorable",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3) SELECT i FROM n, codes": "scorable",
    "SELECT name FROM reds LIMIT 1": "not_deterministic",
    "SELECT code FROM codes LIMIT 1": "not_deterministic",
    "SELECT name FROM (SELECT name FROM reds LIMIT 1)": "not_deterministic",
    "SELECT code FROM (SELECT code FROM codes LIMIT 1)": "not_deterministic",
    "VALUES (1), (2)": "scorable",
    "SELECT name FROM players ORDER BY points LIMIT 2 -- the weakest\n ;": "scorable",
    "SELECT name FROM players WHERE points > 100": "empty",
    "SELECT nothing FROM players": "failed",
    "SELECT 1; SELECT 2": "refused",
    "DELETE FROM players": "refused",
    "": "no_gold",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n": "timeout",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200001) SELECT i FROM n": "too_large",
}


@pytest.fixture(scope="module")
def players(tmp_path_factory):
    path = tmp_path_factory.mktemp("gold") / "players.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    return path


@pytest.fixture
def run(players):
    """The golds of a question, run; a statement has 2 seconds."""

    def run_golds(*golds, **fields):
        with OpenDatabases(2.0) as databases:
            return run_gold(Question("q", fields.pop("db", players), "?", golds, **fields), databases)

    return run_golds


@pytest.mark.parametrize("sql", STATES)
def test_state(run, sql):
    """Gold counts where any correct way to run it gives the same rows, at least one, within the limits."""
    result = run(*filter(None, [sql]))
    assert result.state == STATES[sql], result.detail
    assert bool(result.detail) == (result.state not in ("scorable", "empty", "no_gold"))


def test_sums_that_differ_by_rounding_are_the_same(run):
    """Added up in another order, floats differ in their last digits."""
    assert run("SELECT sum(points * 0.1) FROM players").state == "scorable"


def test_one_good_gold_of_several_is_enough(run):
    """The others are left out, so that nobody is right by chance."""
    result = run("SELECT nothing", "SELECT name FROM players LIMIT 1", "SELECT 1")
    assert (result.state, [gold.sql for gold in result.results]) == ("scorable", ["SELECT 1"])


@pytest.mark.parametrize("columns", [(2,), (0, 7), (-1,)])
def test_a_column_that_a_right_result_lacks_is_a_state(run, tmp_path, columns):
    """With no column to compare, every answer of as many rows would be right."""
    path = tmp_path / "gold.csv"
    path.write_text("n,m\n1,2\n")
    wrong = GoldTable(path, columns)
    result = run(gold_tables=(wrong,))
    assert (result.state, result.results) == ("failed", ())
    assert f"asks for column {columns[-1]}, counted from 0, of {str(path)!r}, which has 2" in result.detail
    both = run(gold_tables=(wrong, GoldTable(path, (1,))))
    assert (both.state, [one.columns for one in both.results]) == ("scorable", [(1,)])


@pytest.mark.parametrize("name", ["missing.sqlite", "text.sqlite"])
def test_a_database_that_is_not_there_is_a_state(run, tmp_path, name):
    """Of this question; the others go on."""
    (tmp_path / "text.sqlite").write_text("hello")
    result = run("SELECT 1", db=tmp_path / name)
    assert (result.state, result.n_tables) == ("no_database", None)
    assert name in result.detail


def test_what_cannot_be_answered_needs_no_gold(run):
    """It is a state of its own."""
    assert run(is_unanswerable=True).state == "unanswerable"


@pytest.mark.parametrize(
    ("sql", "ends"),
    [
        ("SELECT name FROM players ORDER BY points", (1, 2, 4)),
        ("SELECT name FROM players ORDER BY points, name", (1, 2, 3, 4)),
        ("SELECT points FROM players ORDER BY points", (1, 2, 3, 4)),
        ("SELECT name FROM players", (4,)),
        ("SELECT name FROM (SELECT * FROM players ORDER BY points)", (4,)),
        ("SELECT name, row_number() OVER (ORDER BY id) FROM players", (4,)),
        ("SELECT name FROM players WHERE name <> 'order by'", (4,)),
    ],
)
def test_order_counts_as_far_as_the_gold_has_one(run, sql, ends):
    """At the top level only, and not among tied rows."""
    (result,) = run(sql).results
    assert result.ends == ends


def test_ehrsql_has_a_clock_of_its_own(run):
    """Its `current_time` is a constant, so such gold is deterministic."""
    sql = "SELECT strftime('%y', current_time) FROM players WHERE points < = temperature_lower"
    (result,) = run(sql, form="ehrsql").results
    assert result.rows == (("2105",),) * 4
    assert run(sql, form="ehrsql2024").results[0].rows[0] == ("2100",)
    assert run(sql).state == "failed"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM t ORDER BY b", True),
        ("SELECT a FROM t order\n/* x */ by b", True),
        ("SELECT a FROM t UNION SELECT 1 ORDER BY 1", True),
        ("WITH u AS (SELECT 1 ORDER BY 1) SELECT * FROM u", False),
        ("SELECT 'ORDER BY', \"order by\", [order by] FROM t -- order by", False),
        ("SELECT ')' FROM t ORDER BY 1", True),
    ],
)
def test_order_at_the_top_level(sql, expected):
    """Literals, names, comments and parentheses are known."""
    assert is_ordered(sql) is expected


def test_changed_statements():
    """What is added goes to its place, also where comments and WITH are."""
    assert break_ties("SELECT a", 1, descending=True) == "SELECT a"
    assert break_ties("SELECT a FROM t LIMIT 1", 1, descending=True) == (
        "SELECT a FROM t \nORDER BY 1 COLLATE BINARY DESC LIMIT 1"
    )
    hidden = '"T" AS (SELECT * FROM main."T" ORDER BY rowid DESC LIMIT -1)'
    assert reverse_tables("SELECT * FROM t", {"t": "T"}) == f"WITH {hidden} SELECT * FROM t"
    assert reverse_tables("with recursive u as (select * from [t]) select 1", {"t": "T"}) == (
        f"with recursive {hidden}, u as (select * from [t]) select 1"
    )
    assert reverse_tables("SELECT 't'", {"u": "u"}) == "SELECT 't'"
    assert advance_clock("SELECT t.current_date, 'nowhere', update_time(), date(d) FROM t") is None


def test_gold_is_run_on_a_file_that_stays_as_it_is(run, players):
    """Not one byte of it, and nothing beside it."""
    before = players.read_bytes(), sorted(Path(players).parent.iterdir())
    run("SELECT name FROM players ORDER BY points", "DROP TABLE players")
    assert (players.read_bytes(), sorted(Path(players).parent.iterdir())) == before
