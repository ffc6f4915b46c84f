"""What no statement can do: a table of hostile statements, and the proof that no file changes.

Add a row to `STATEMENTS`: the statement, then `RUNS` and the first cell of its result, or a part of the error's message
(nothing for any error), or `ANY` where the versions of SQLite differ and no harm is all that matters.
"""

import contextlib
import hashlib
import random
import sqlite3
import subprocess
import sys
import time

import pytest

from sqale_edge.database import Database
from sqale_edge.errors import QueryError
from sqale_edge.row_budget import VALUE_BYTES
from sqale_edge.sql_text import bare_statement
from sqale_edge.sqlite_guard import Guard, touch_virtual_tables

SCRIPT = """
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
CREATE VIEW v AS SELECT b FROM t;
CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END;
CREATE VIRTUAL TABLE docs USING fts5(x);
INSERT INTO docs VALUES ('hello world');
CREATE VIRTUAL TABLE old USING fts4(x);
INSERT INTO old VALUES ('hello world');
CREATE VIRTUAL TABLE box USING rtree(id, x0, x1);
INSERT INTO box VALUES (1, 0, 2);
CREATE VIEW loads AS SELECT load_extension('x');
CREATE VIEW listed AS SELECT value FROM json_each('[1, 2]');
"""

READING = "only reading is allowed"
TOO_LONG = "a value is too long"
TIME = "longer than"
RUNS = "=>"
ANY = "any"


def doubling(n_levels, *, is_reversed=False):
    """Tables in WITH of which each uses the one before twice: SQLite copies the first 2 ** n_levels times."""
    parts = ["c0(a) AS (SELECT 1)"]
    parts += [f'"c{n}"(a) AS MATERIALIZED (SELECT 1 FROM c{n - 1} x, [C{n - 1}] y)' for n in range(1, n_levels + 1)]
    return f"WITH {', '.join(parts[::-1] if is_reversed else parts)} SELECT count(*) FROM c{n_levels}"


STATEMENTS = [
    # Reading in every dress.
    ("SELECT a FROM t", RUNS, 1),
    ("  SELECT a FROM t ; ; -- done", RUNS, 1),
    ("-- first\n/* ; */ SELECT ';' /* ' */", RUNS, ";"),
    ("WITH x AS (SELECT 5 AS n) SELECT n FROM x", RUNS, 5),
    ("VALUES (1), (2)", RUNS, 1),
    ("EXPLAIN QUERY PLAN SELECT a FROM t", RUNS, 2),
    ("EXPLAIN SELECT 1", RUNS, 0),
    ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 9) SELECT max(n) FROM r", RUNS, 9),
    ("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'", RUNS, 1),
    ("PRAGMA table_info(t)", RUNS, 0),
    ("PRAGMA main.table_info('t')", RUNS, 0),
    ("SELECT name FROM pragma_table_info('t')", RUNS, "a"),
    ("PRAGMA user_version", RUNS, 0),
    ("SELECT value FROM json_each('[7]')", RUNS, 7),
    ("SELECT x FROM docs WHERE docs MATCH 'hello'", RUNS, "hello world"),
    ("SELECT highlight(docs, 0, '[', ']') FROM docs('hello')", RUNS, "[hello] world"),
    ("SELECT snippet(old) FROM old WHERE old MATCH 'world'", RUNS, "hello <b>world</b>"),
    ("SELECT id FROM box WHERE x1 > 1", RUNS, 1),
    ("SELECT value FROM listed", RUNS, 1),
    # Writing in every dress.
    ("INSERT INTO t VALUES (9, 'x')", READING),
    ("REPLACE INTO t VALUES (1, 'x')", READING),
    ("INSERT INTO t VALUES (9, 'x') RETURNING a", READING),
    ("WITH z AS (SELECT 1) INSERT INTO t SELECT 8, 'x' FROM z", READING),
    ("WITH z AS (SELECT 1) DELETE FROM t", READING),
    ("UPDATE t SET b = 'x'", READING),
    ("UPDATE v SET b = 'x'", "cannot modify v"),
    ("DELETE FROM t", READING),
    ("EXPLAIN DELETE FROM t", READING),
    ("INSERT INTO docs(docs) VALUES ('optimize')", READING),
    ("SELECT optimize(old) FROM old", "function optimize"),
    ("CREATE TABLE made(a)", READING),
    ("CREATE TEMP TABLE made AS SELECT 1", READING),
    ("CREATE VIEW made AS SELECT 1", READING),
    ("CREATE TEMP VIEW made AS SELECT 1", READING),
    ("CREATE INDEX made ON t(b)", READING),
    ("CREATE TRIGGER made AFTER INSERT ON t BEGIN SELECT 1; END", READING),
    ("CREATE VIRTUAL TABLE temp.made USING fts5(x)", READING),
    ("DROP TABLE t", READING),
    ("ALTER TABLE t ADD COLUMN c", READING),
    ("REINDEX", READING),
    ("ANALYZE", READING),
    ("VACUUM", READING),
    # Other files.
    ("ATTACH 'made.db' AS m", READING),
    ("ATTACH 'file:made.db?mode=rwc' AS m", READING),
    ("ATTACH ':memory:' AS m", READING),
    ("DETACH main", READING),
    ("VACUUM INTO 'made.db'", READING),
    ("SELECT load_extension('made')", "load_extension"),
    ("SELECT * FROM loads", "load_extension"),
    ("SELECT writefile('made', 'x')", "no such function"),
    ("SELECT readfile('/etc/passwd')", "no such function"),
    ("SELECT fts3_tokenizer('simple')", "function fts3_tokenizer"),
    # Settings.
    ("PRAGMA query_only = 0", "PRAGMA query_only"),
    ("PRAGMA writable_schema = 1", "PRAGMA writable_schema"),
    ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
    ("PRAGMA user_version = 7", "PRAGMA user_version"),
    ("PRAGMA schema_version(7)", "PRAGMA schema_version"),
    ("PRAGMA wal_checkpoint", "PRAGMA wal_checkpoint"),
    ("PRAGMA incremental_vacuum", "PRAGMA incremental_vacuum"),
    ("PRAGMA optimize", "PRAGMA optimize"),
    ("PRAGMA temp_store_directory = '/tmp'", "PRAGMA temp_store_directory"),
    ("PRAGMA database_list", "PRAGMA database_list"),
    ("SELECT * FROM pragma_journal_mode", "allowed"),
    # Transactions, more than one statement.
    ("BEGIN", READING),
    ("BEGIN EXCLUSIVE", READING),
    ("SAVEPOINT s", READING),
    ("ROLLBACK", READING),
    ("SELECT 1; DROP TABLE t", "only one statement"),
    ("PRAGMA table_info(t); DROP TABLE t", "only one statement"),
    ("SELECT a FROM t WHERE b = $x", "parameter"),
    # Bombs.
    ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r", TIME),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 9000) SELECT count(*) FROM r a, r b, r c",
        TIME,
    ),
    ("WITH RECURSIVE r(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM r) SELECT max(length(x)) FROM r", TOO_LONG),
    ("SELECT zeroblob(900000000)", TOO_LONG),
    ("SELECT randomblob(900000000)", TOO_LONG),
    ("SELECT hex(zeroblob(900000))", TOO_LONG),
    ("SELECT replace(hex(zeroblob(400000)), '0', '0000')", TOO_LONG),
    ("SELECT group_concat(hex(zeroblob(400000))) FROM t", TOO_LONG),
    ("SELECT printf('%.*c', 9000000, 'x')", ANY),
    ("SELECT 1" + " UNION ALL SELECT 1" * 600, "too many terms"),
    ("SELECT " + "+".join("1" * 3000), "too large"),
    (doubling(4), RUNS, 1),
    (doubling(4, is_reversed=True), RUNS, 1),
    ("WITH a AS (" * 1000, ANY),
    ("WITH a AS (" * 1000 + "SELECT 1" + ")" * 1000 + "SELECT 1", "use each other too often"),
    (doubling(40), "use each other too often"),
    (doubling(40, is_reversed=True), "use each other too often"),
    ("SELECT " + "(" * 3000 + "1" + ")" * 3000, ""),
]


@pytest.fixture
def directory(tmp_path):
    """An empty folder with the database in it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    connection = sqlite3.connect(folder / "shop.sqlite")
    connection.executescript(SCRIPT)
    connection.close()
    return folder


def has_outcome(database, sql, expected):
    """Whether the statement does what its row says."""
    found = outcome(database, sql)
    if expected[0] in (RUNS, ANY):
        return expected[0] == ANY or found == tuple(expected)
    return isinstance(found, str) and expected[0] in found


def fingerprint(folder):
    """The names and contents of everything in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def outcome(database, sql):
    """The first cell of the first row, or the error's message."""
    try:
        table = database.query(sql, max_rows=2, timeout_s=0.3)
    except QueryError as error:
        return str(error)
    return RUNS, table.rows[0][0]


@pytest.mark.parametrize(
    ("sql", "expected"), [(row[0], row[1:]) for row in STATEMENTS], ids=[row[0][:50] for row in STATEMENTS]
)
def test_statement(directory, monkeypatch, sql, expected):
    """The statement has the outcome that its row says, changes no file, and leaves nothing to the next one."""
    monkeypatch.chdir(directory)
    before = fingerprint(directory)
    with Database.open(directory / "shop.sqlite") as database:
        assert has_outcome(database, sql, expected)
        assert outcome(database, "SELECT x FROM docs WHERE docs MATCH 'world'") == (RUNS, "hello world")
        assert outcome(database, "SELECT count(*) FROM sqlite_temp_master") == (RUNS, 0)
    assert fingerprint(directory) == before


def test_all_statements_on_one_connection(directory, monkeypatch):
    """The outcomes do not depend on what ran before."""
    monkeypatch.chdir(directory)
    before = fingerprint(directory)
    rows = [row for row in STATEMENTS if row[1] != TIME]
    random.Random(4).shuffle(rows)
    with Database.open(directory / "shop.sqlite") as database:
        for sql, *expected in rows:
            assert has_outcome(database, sql, expected), sql
    assert fingerprint(directory) == before


def test_authorizer_alone(directory, monkeypatch):
    """On a writable connection the authorizer alone lets the same statements run, and no file changes."""
    monkeypatch.chdir(directory)
    before = fingerprint(directory)
    guard = Guard()
    with contextlib.closing(sqlite3.connect("shop.sqlite", isolation_level=None, cached_statements=0)) as connection:
        guard.attach(connection)
        connection.execute("PRAGMA query_only=0")
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 10)
        touch_virtual_tables(connection)
        for sql, *expected in STATEMENTS:
            if expected[0] == "use each other too often":
                continue  # refused before SQLite sees it
            with guard.timed(0.3), guard.enforced(connection, VALUE_BYTES):
                try:
                    n_rows = len(connection.execute(bare_statement(sql)).fetchmany(1))
                except (sqlite3.Error, sqlite3.Warning, MemoryError):
                    n_rows = 0
            assert expected[0] == ANY or n_rows == (expected[0] == RUNS), sql
            assert not connection.in_transaction
            assert fingerprint(directory) == before, sql
        connection.execute("INSERT INTO docs VALUES ('it could have been written')")
    assert fingerprint(directory) != before


INSERT, ATTACH, COPY = "INSERT INTO t(b) VALUES ('x')", "ATTACH 'made.db' AS m", "VACUUM INTO 'copy.db'"
JOURNAL, TEMPORARY = "PRAGMA journal_mode=wal", "CREATE TEMP TABLE made(a)"


@pytest.mark.parametrize(
    ("barrier", "stopped", "not_stopped"),
    [
        ("mode=ro", [[INSERT], [JOURNAL], ["PRAGMA query_only=0", INSERT]], [[ATTACH], [COPY], [TEMPORARY]]),
        ("query_only", [[INSERT], [TEMPORARY]], [["PRAGMA query_only=0", INSERT], [JOURNAL]]),
        ("no attached databases", [[ATTACH], [COPY]], [[INSERT], [TEMPORARY]]),
        ("no authorizer", [[INSERT], ["PRAGMA query_only=0", INSERT], [ATTACH], [COPY], [JOURNAL]], []),
    ],
)
def test_each_barrier_alone(directory, monkeypatch, barrier, stopped, not_stopped):
    """Each barrier stops what docs/security.md says, and no more; without the authorizer no file changes."""
    monkeypatch.chdir(directory)
    before = fingerprint(directory)
    is_all = barrier == "no authorizer"
    for statements in stopped + not_stopped:
        mode = "ro" if is_all or barrier == "mode=ro" else "rw"
        with contextlib.closing(sqlite3.connect(f"file:shop.sqlite?mode={mode}", uri=True)) as connection:
            connection.isolation_level = None
            if is_all or barrier == "query_only":
                connection.execute("PRAGMA query_only=1")
            if is_all or barrier == "no attached databases":
                connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            *preparing, last = statements
            for statement in preparing:
                connection.execute(statement)
            if statements in stopped:
                with pytest.raises(sqlite3.OperationalError):
                    connection.execute(last).fetchall()
                assert fingerprint(directory) == before
            else:
                connection.execute(last).fetchall()
        if statements in not_stopped and statements != [TEMPORARY]:
            assert fingerprint(directory) != before


def test_limits_of_a_guarded_connection(directory):
    """Lengths, depth, terms, variables and steps are bounded, and pages in memory; sorts go to files."""
    with contextlib.closing(sqlite3.connect(directory / "shop.sqlite")) as connection:
        Guard().attach(connection)
        limits = {
            sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,
            sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
            sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1_000,
            sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
            sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1_000,
            sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
            sqlite3.SQLITE_LIMIT_ATTACHED: 0,
            sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
        }
        assert {category: connection.getlimit(category) for category in limits} == limits
        pragmas = {"query_only": 1, "cache_size": -16384, "temp_store": 1, "mmap_size": 0, "cell_size_check": 1}
        for name, value in pragmas.items():
            assert connection.execute(f"PRAGMA {name}").fetchone() == (value,), name


def test_limits_hold_after_the_file_was_opened_again(directory):
    """A database that changed, and was opened again, is guarded as at first."""
    with Database.open(directory / "shop.sqlite") as database:
        for _ in range(2):
            with contextlib.closing(sqlite3.connect(directory / "shop.sqlite")) as writer, writer:
                writer.execute("CREATE TABLE IF NOT EXISTS later(a)")
                writer.execute("INSERT INTO later VALUES (1)")
            assert database.read("PRAGMA query_only") == [(1,)]
            assert database.read("PRAGMA cache_size") == [(-16384,)]
            assert outcome(database, "SELECT a FROM later") == (RUNS, 1)
            assert outcome(database, "SELECT ?1001") == "variable number must be between ?1 and ?1000"
            assert READING in outcome(database, "INSERT INTO later VALUES (2)")


def mutations(seed):
    """Endless broken relatives of the statements above: pieces cut, doubled, swapped and joined."""
    source = random.Random(seed)
    pieces = [row[0] for row in STATEMENTS if len(row[0]) < 200 and row[1] != TIME]
    while True:
        words = f"{source.choice(pieces)} {source.choice(pieces)}".split(" ")
        for _ in range(source.randint(1, 6)):
            i, j = sorted(source.choices(range(len(words) + 1), k=2))
            words = source.choice(
                [
                    words[:i] + words[j:],
                    words[:j] + words[i:],
                    words[i:] + words[:i],
                    [*words[:i], source.choice("(),;'\"*`[]\0é")],
                ]
            )
        text = " ".join(words)
        yield text if source.random() < 0.8 else text[: source.randrange(len(text) + 1)]


def test_mutated_statements(directory, monkeypatch):
    """Whatever the text, a statement gives a table or a QueryError, within its time, and no file changes."""
    monkeypatch.chdir(directory)
    before = fingerprint(directory)
    end = time.monotonic() + 3
    with Database.open(directory / "shop.sqlite") as database:
        for sql in mutations(seed=1):
            started = time.monotonic()
            with contextlib.suppress(QueryError):
                database.query(sql, max_rows=3, timeout_s=0.2)
            assert time.monotonic() - started < 2, sql
            if started > end:
                break
        assert outcome(database, "SELECT count(*) FROM t") == (RUNS, 3)
    assert fingerprint(directory) == before


def test_killed_in_the_middle(directory):
    """A process that is killed while a statement runs leaves the database and its folder as they were."""
    before = fingerprint(directory)
    program = (
        "import sys; from sqale_edge.database import Database; "
        "database = Database.open(sys.argv[1]); print('open', flush=True); "
        "endless = 'WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM t, r'; "
        "database.query(endless, max_rows=1)"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", program, directory / "shop.sqlite"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"open\n"
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert fingerprint(directory) == before


def test_denied_function_in_a_generated_column(tmp_path):
    """A function that is denied is denied in a generated column, too, about which SQLite does not ask."""
    with contextlib.closing(sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t(a, b AS (sqlite_log(1, a)), c AS (upper(a)))")
        connection.execute("INSERT INTO t VALUES ('x')")
    with Database.open(tmp_path / "t.sqlite") as database:
        for sql in ("SELECT b FROM t", "SELECT * FROM t", "SELECT a FROM t WHERE b IS NULL ORDER BY b"):
            assert outcome(database, sql) == "the function sqlite_log is not allowed"
        assert outcome(database, "SELECT c FROM t") == (RUNS, "X")
