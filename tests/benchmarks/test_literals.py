"""Which values of a statement count as compared, and what it rests on."""

import sqlite3
from contextlib import closing

import pytest
from sqale_edge.benchmarks.databases import OpenDatabase
from sqale_edge.benchmarks.literals import SqlLiteral, find_literals
from sqale_edge.benchmarks.sources import Sources, find_sources

# A condition, and the values in it that count.
CONDITIONS = {
    "a = 'x'": ["x"],
    "'x' = a": ["x"],
    "a == 'it''s'": ["it's"],
    "a <> 'x' AND b != 5": ["x", 5],
    "a<5 OR a>=-2.5": [5, -2.5],
    "a = +.5": [0.5],
    "a > 1e3 AND a < 0x1F": [1000.0, 31],
    "a = 123456789012345678901": [123456789012345678901.0],
    "a = 1e999": [],
    "5 < a": [5],
    "a IS 'x' OR a IS NOT 'y'": ["x", "y"],
    "a LIKE '%Paris_'": ["Paris"],
    "a NOT LIKE 'a%b%'": ["a%b"],
    "a LIKE '%' OR a = ''": [],
    "a LIKE '%' || 'x' || '%'": [],
    "a IN ('x', 'y', 3, -4)": ["x", "y", 3, -4],
    "a NOT IN (1)": [1],
    "'x' IN (SELECT a FROM t)": ["x"],
    "a IN (SELECT 7 FROM t WHERE b = 8 LIMIT 9)": [8],
    "a BETWEEN 1 AND 5 AND b = 6": [1, 5, 6],
    "a BETWEEN lower('P') AND 'q' AND (b BETWEEN 2 AND 3)": ["q", 2, 3],
    "a NOT BETWEEN 'x' AND 'y'": ["x", "y"],
    "CASE a WHEN 'x' THEN 'no' ELSE 'neither' END = 'y'": ["x", "y"],
    "round(a, 2) > 10": [10],
    "strftime('%Y', a) = '2024'": ["2024"],
    "a = 5 * 100 AND a - 3 > b": [],
    "a -> '$.x' = 'y' AND a ->> 'z' = 1": ["y", 1],
    "a << 2 = 8": [8],
    "a = x'00ff' OR a IS NULL OR b IS TRUE": [],
    "a = (5)": [],
    "a/* = 'no' */= 'x' -- = 'no'": ["x"],
    "a = 'x' OR b = 'x'": ["x"],
    "a = [x] OR a = `y`": [],
    "[a] = 5 AND `b`='x'": [5, "x"],
    "a = 5.": [5.0],
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_values_that_count(condition):
    """Those that are compared, each once and in their order; none of what is calculated, shown or counted."""
    sql = f"SELECT 'label', 1, count(*) FROM t WHERE {condition}\nGROUP BY 1 ORDER BY 2 LIMIT 3 OFFSET 4"
    assert [literal.value for literal in find_literals(sql)] == CONDITIONS[condition]


def test_patterns_are_marked():
    """What stands after LIKE is a pattern, also if it has no wildcard."""
    assert find_literals("SELECT a LIKE 'x', b = 'x'") == (SqlLiteral("x", is_pattern=True), SqlLiteral("x"))


def test_double_quotes_are_names_unless_known_as_texts():
    """The caller knows which."""
    sql = 'SELECT a FROM t WHERE "a" = "b c" AND b = "say ""hi"""'
    assert find_literals(sql) == ()
    assert [one.value for one in find_literals(sql, {"b c", 'say "hi"'})] == ["b c", 'say "hi"']


@pytest.fixture
def database(tmp_path):
    """Two tables, one with a blank in its name, and two views of which one reads the other."""
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE singer(id INTEGER, name TEXT, "home town" TEXT);
            CREATE TABLE "Big Concert"(id INTEGER, singer_id INTEGER, at TEXT);
            CREATE VIEW stars AS SELECT id AS star_id FROM singer WHERE name = 'Ada';
            CREATE VIEW shows AS WITH s AS (SELECT * FROM stars) SELECT * FROM s JOIN [Big Concert] c ON star_id = c.id;
            CREATE VIRTUAL TABLE words USING fts5(body);
            """
        )
    opened = OpenDatabase(path, 5)
    yield opened
    opened.close()


# A statement: what it names, and the tables that it reads in the end.
STATEMENTS = {
    "SELECT name FROM singer": (["singer"], {"singer"}),
    "SELECT S.Name FROM SINGER AS s": (["singer"], {"singer"}),
    'SELECT 1 FROM "singer", [Big Concert] x': (["Big Concert", "singer"], {"singer", "Big Concert"}),
    "SELECT count(*) FROM `BIG CONCERT`": (["Big Concert"], {"Big Concert"}),
    "SELECT count(*) FROM main.singer": (["singer"], {"singer"}),
    "WITH c AS (SELECT * FROM singer) SELECT id FROM c": (["singer"], {"singer"}),
    'WITH singer AS (SELECT id FROM "Big Concert") SELECT id FROM singer': (["Big Concert"], {"Big Concert"}),
    "SELECT star_id FROM stars": (["stars"], {"singer"}),
    "SELECT count(*) FROM Stars": (["stars"], {"singer"}),
    "SELECT at FROM shows": (["shows"], {"singer", "Big Concert"}),
    "SELECT 'Big Concert', star_id AS singer_id FROM stars": (["stars"], {"singer"}),
    "SELECT body FROM words WHERE words MATCH 'x'": (["words"], {"words"}),
    "SELECT name FROM sqlite_master": ([], set()),
    "SELECT name FROM pragma_table_info('singer')": ([], set()),
    "SELECT id FROM singer WHERE id IN (SELECT singer_id FROM [Big Concert])": (
        ["Big Concert", "singer"],
        {"singer", "Big Concert"},
    ),
    "SELECT 1": ([], set()),
    "SELECT nothing FROM nowhere": ([], set()),
    "DROP TABLE singer": ([], set()),
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_tables_of_a_statement(database, sql):
    """As the schema spells them; aliases and WITH tables are none, and of a view both it and its tables are known."""
    sources = find_sources(sql, database)
    named, tables = STATEMENTS[sql]
    assert (list(sources.named), sources.tables) == (named, frozenset(tables))


def test_sqlite_says_what_double_quotes_mean(database):
    """A name where there is one, and else a text; an alias is no text."""
    sql = 'SELECT name AS "Total" FROM singer WHERE "home town" = "Ghent" AND name LIKE "%da" ORDER BY "Total"'
    literals = find_sources(sql, database).literals
    assert literals == (SqlLiteral("Ghent"), SqlLiteral("da", is_pattern=True))


def test_what_does_not_compile_rests_on_nothing(database):
    """Not even on its values."""
    assert find_sources("SELECT x FROM singer WHERE id = 5", database) == Sources()
