"""How many values a statement holds, and so how long each may be."""

import contextlib
import sqlite3

import pytest

from sqale_edge.database import Database
from sqale_edge.errors import QueryError
from sqale_edge.row_budget import ROW_BYTES, STORED_VALUE_BYTES, VALUE_BYTES, read_plan

SCRIPT = """
CREATE TABLE t(id INTEGER PRIMARY KEY, photo BLOB, note TEXT, loud AS (upper(note)), doubled AS (hex(note)));
INSERT INTO t(photo, note) VALUES (zeroblob(9000000), 'x'), (NULL, replace(hex(zeroblob(1000000)), '00', 'abc'));
"""


@pytest.fixture
def path(tmp_path):
    """A database with a BLOB of 9 MB and a text of 3 MB."""
    with contextlib.closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection:
        connection.executescript(SCRIPT)
    return tmp_path / "t.sqlite"


@pytest.fixture
def query(path):
    """A function that runs a statement and returns its rows, each cell as its length."""
    with Database.open(path) as database:

        def query(sql):
            rows = database.query(sql, max_rows=9, max_cell_bytes=1 << 30, timeout_s=60).rows
            return [tuple(len(cell) if isinstance(cell, (str, bytes)) else cell for cell in row) for row in rows]

        yield query


@pytest.mark.parametrize(
    ("sql", "n_values", "functions"),
    [
        ("SELECT 1", 0, ()),
        ("SELECT photo, note FROM t", 2, ()),
        ("SELECT " + ", ".join(["photo"] * 100) + " FROM t", 100, ()),
        ("SELECT note || '1', note || '2' FROM t", 4, ()),
        ("SELECT loud, doubled FROM t", 4, ("upper", "hex")),
        ("WITH a AS (SELECT note || note AS n FROM t), b AS (SELECT n || n AS m FROM a) SELECT m || m FROM b", 7, ()),
        ("SELECT id FROM t WHERE note LIKE '%a'", 8, ("like",)),
        ("SELECT note FROM t ORDER BY photo", 32, ()),
        ("SELECT " + ", ".join(f"hex(zeroblob({n}))" for n in range(500)), 1000, ("hex", "zeroblob")),
    ],
)
def test_plan(path, sql, n_values, functions):
    """Each column, each operator and each call is a value; functions of generated columns are seen."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = read_plan(connection, sql, lambda: None)
    assert plan.n_values >= n_values
    assert plan.functions == set(functions)
    assert plan.n_values * plan.value_bytes(STORED_VALUE_BYTES) <= ROW_BYTES


def test_ordinary_statements_lose_nothing(path):
    """Long lists of constants and many columns leave a value its mebibyte."""
    constants = ", ".join(f"'{n}'" for n in range(9999))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for sql in (f"SELECT id FROM t WHERE note IN ({constants})", "SELECT " + ", ".join(["note"] * 200) + " FROM t"):
            assert read_plan(connection, sql, lambda: None).value_bytes(VALUE_BYTES) == VALUE_BYTES


def test_long_values(query):
    """A stored value of more than a mebibyte can be read, measured, cut and compared."""
    assert query("SELECT id, photo FROM t WHERE id = 1") == [(1, 9_000_000)]
    assert query("SELECT length(note), substr(note, 1, 5), lower(note), loud FROM t WHERE id = 2") == [
        (3_000_000, 5, 3_000_000, 3_000_000)
    ]
    assert query("SELECT id FROM t WHERE note LIKE '%cabc' ORDER BY id") == [(2,)]
    assert query("SELECT id, round(1.5), date('2024-01-01') FROM t WHERE photo IS NOT NULL") == [(1, 2.0, 10)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + ", ".join(["photo"] * 100) + " FROM t",
        "SELECT " + ", ".join(f"note || {n}" for n in range(100)) + " FROM t",
        "SELECT " + " + ".join(["length(lower(note))"] * 100) + " FROM t",
        "SELECT " + ", ".join(f"hex(zeroblob({500_000 + n}))" for n in range(1500)),
    ],
)
def test_values_of_a_row_share_a_budget(query, sql):
    """A row that would take more than its budget is an error that says to select fewer columns."""
    with pytest.raises(QueryError, match=r"all of a row together 256 MiB\. Select fewer columns, or length\(\)"):
        query(sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT instr(note, 'b') FROM t", "where functions work on it"),
        ("SELECT doubled FROM t", "where functions work on it"),
        ("SELECT max(note, (SELECT group_concat(note) FROM t)) FROM t", "where functions work on it"),
        (
            "WITH RECURSIVE r(x) AS (SELECT note FROM t WHERE id = 2 UNION ALL SELECT x || x FROM r) SELECT x FROM r",
            "where functions work on it",
        ),
        (f"SELECT id FROM t WHERE note LIKE '%a{'_' * 60}c'", "pattern too complex"),
    ],
)
def test_what_long_values_are_not_given_to(query, sql, message):
    """Functions that could take very long, also in generated columns, recursion and long patterns get none of them."""
    with pytest.raises(QueryError, match=message):
        query(sql)


def test_highlight_makes_no_bomb(tmp_path):
    """FTS5's highlight(), whose result SQLite does not bound, works on short values only; snippet() on any."""
    with contextlib.closing(sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)) as connection:
        connection.execute("CREATE VIRTUAL TABLE d USING fts5(x)")
        connection.execute("INSERT INTO d VALUES ('a b'), (?)", ("a " * 9_000,))
    with Database.open(tmp_path / "t.sqlite") as database:
        marks = "'[', ']'"
        assert database.query(f"SELECT highlight(d, 0, {marks}) FROM d('b')", max_rows=1).rows == (("a [b]",),)
        assert database.query(f"SELECT snippet(d, 0, {marks}, '', 2) FROM d('a') WHERE rowid = 2", max_rows=1).rows
        for marks in ("hex(zeroblob(400000)), ''", "'[', ']'"):
            with pytest.raises(QueryError, match=r"too long for highlight\(\): more than 4 KiB\. Use snippet\(\)"):
                database.query(f"SELECT highlight(d, 0, {marks}) FROM d('a')", max_rows=9)
