"""Database.open and Database.query: results, limits, errors, threads."""

import sqlite3
import threading
import time

import pytest

from sqale_edge.database import Database, Table
from sqale_edge.errors import DatabaseOpenError, QueryError
from sqale_edge.tools import Toolbox

COUNT_FOREVER = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture
def make(tmp_path):
    """A function that makes a database of a script and opens it; all are closed afterwards."""
    opened = []

    def make(script, name="shop.sqlite"):
        connection = sqlite3.connect(tmp_path / name)
        connection.executescript(script)
        connection.close()
        opened.append(Database.open(tmp_path / name))
        return opened[-1]

    yield make
    for database in opened:
        database.close()


@pytest.fixture
def numbers(make):
    """A table t of one column n with the numbers 1 to 10."""
    rows = ", ".join(f"({n})" for n in range(1, 11))
    return make(f"CREATE TABLE t(n INTEGER); INSERT INTO t VALUES {rows}")


@pytest.mark.parametrize(("max_rows", "is_truncated"), [(9, True), (10, False), (11, False)])
def test_truncated_is_exact(numbers, max_rows, is_truncated):
    """A table says that it is truncated if and only if a row is missing."""
    table = numbers.query("SELECT n FROM t", max_rows=max_rows)
    assert (len(table.rows), table.truncated, table.has_more_rows) == (min(max_rows, 10), is_truncated, is_truncated)


def test_no_rows(numbers):
    """A query without rows still has its columns."""
    assert numbers.query("SELECT n, n AS n FROM t WHERE n > 99", max_rows=5) == Table(("n", "n"), ())


def test_cells_come_as_sqlite_gave_them(make):
    """64-bit integers, infinities, NULL, BLOBs, embedded NUL and invalid UTF-8 lose nothing."""
    database = make(
        "CREATE TABLE v(a); INSERT INTO v VALUES (cast(x'ff00fe41' AS TEXT)), (cast(x'610062' AS TEXT)), (x'00ff')"
    )
    rows = database.query("SELECT a FROM v", max_rows=9).rows
    assert rows[0][0].encode("utf-8", "surrogateescape") == b"\xff\x00\xfeA"
    assert rows[1:] == (("a\0b",), (b"\x00\xff",))
    row = database.query(
        "SELECT 9223372036854775807, -9223372036854775808, 1e999, -1e999, NULL, 0.1 + 0.2", max_rows=1
    ).rows[0]
    assert row == (2**63 - 1, -(2**63), float("inf"), float("-inf"), None, 0.1 + 0.2)


def test_long_cells_are_cut(make):
    """A cell past max_cell_bytes is cut, which counts as truncated, though no row is missing."""
    database = make("CREATE TABLE b(t, p); INSERT INTO b VALUES (hex(zeroblob(50)), zeroblob(3000000))")
    table = database.query("SELECT t, p, 1 FROM b", max_rows=1, max_cell_bytes=10)
    assert table == Table(("t", "p", "1"), (("0" * 10, bytes(10), 1),), truncated=True, has_more_rows=False)


def test_max_bytes_ends_the_rows(make):
    """The rows end before the one that goes past max_bytes, and the rest is not fetched."""
    database = make("CREATE TABLE b(p)")
    table = database.query(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT 'abcd' FROM r",
        max_rows=10**9,
        max_bytes=10,
    )
    assert (table.rows, table.truncated, table.has_more_rows) == ((("abcd",), ("abcd",)), True, True)


def test_long_stored_values_can_be_read(make):
    """A stored value may be far longer than one that a statement computes."""
    database = make("CREATE TABLE b(id, p, t); INSERT INTO b VALUES (1, zeroblob(30000000), hex(zeroblob(1500000)))")
    table = database.query(
        "SELECT id, p, length(p), length(t), substr(t, 1, 3) FROM b", max_rows=1, max_cell_bytes=1 << 30
    )
    assert table.rows == ((1, bytes(30_000_000), 30_000_000, 3_000_000, "000"),)
    with pytest.raises(QueryError, match="a value is too long"):
        database.query("SELECT replace(t, '0', '00') FROM b", max_rows=1)
    assert database.query("SELECT id FROM b", max_rows=1).rows == ((1,),)


def test_time_limit(numbers):
    """A statement that would never end is stopped, and the next one is not affected."""
    started = time.monotonic()
    with pytest.raises(QueryError, match=r"longer than 0\.2 s") as caught:
        numbers.query(COUNT_FOREVER, max_rows=1, timeout_s=0.2)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - started < 2
    assert numbers.query("SELECT count(*) FROM t", max_rows=1).rows == ((10,),)


def test_interrupt_from_another_thread(numbers):
    """interrupt() stops the running statement at once, and the error can be told from a time-out."""
    timer = threading.Timer(0.2, numbers.interrupt)
    timer.start()
    started = time.monotonic()
    with pytest.raises(QueryError) as caught:
        numbers.query(COUNT_FOREVER, max_rows=1, timeout_s=30)
    timer.join()
    assert caught.value.kind == "interrupted"
    assert time.monotonic() - started < 5
    assert numbers.query("SELECT count(*) FROM t", max_rows=1).rows == ((10,),)


def test_interrupt_without_a_query(numbers):
    """interrupt() while nothing runs does not stop the next statement."""
    numbers.interrupt()
    assert numbers.query("SELECT count(*) FROM t", max_rows=1).rows == ((10,),)


def test_a_cancel_before_the_statement_is_not_lost(numbers):
    """A flag that is set before a statement starts, or while it runs, stops it; without the flag it runs."""
    flag = threading.Event()
    assert numbers.query("SELECT count(*) FROM t", max_rows=1, should_stop=flag.is_set).rows == ((10,),)
    timer = threading.Timer(0.2, flag.set)
    timer.start()
    started = time.monotonic()
    with pytest.raises(QueryError) as while_running:
        numbers.query(COUNT_FOREVER, max_rows=1, timeout_s=30, should_stop=flag.is_set)
    timer.join()
    with pytest.raises(QueryError) as before_endless:
        numbers.query(COUNT_FOREVER, max_rows=1, timeout_s=30, should_stop=flag.is_set)
    with pytest.raises(QueryError) as before_short:
        numbers.query("SELECT n FROM t", max_rows=1, should_stop=flag.is_set, keep_partial=True)
    assert [caught.value.kind for caught in (while_running, before_endless, before_short)] == ["interrupted"] * 3
    assert time.monotonic() - started < 5
    assert numbers.query("SELECT count(*) FROM t", max_rows=1).rows == ((10,),)


# The first seven rows come at once, the eighth never.
SLOW_ROWS = f"SELECT n, CASE WHEN n > 7 THEN ({COUNT_FOREVER}) END FROM t"


def test_rows_until_the_time_was_up(numbers):
    """With keep_partial the rows found until the time was up are kept, and the table says what they are."""
    table = numbers.query(SLOW_ROWS, max_rows=99, timeout_s=0.2, keep_partial=True)
    assert table.rows in [tuple((n, None) for n in range(1, last + 1)) for last in (6, 7)]  # Python may drop the last
    assert (table.columns[0], table.truncated, table.has_more_rows, table.has_timed_out) == ("n", True, True, True)
    whole = numbers.query("SELECT n FROM t", max_rows=99, keep_partial=True)
    assert (len(whole.rows), whole.truncated, whole.has_timed_out) == (10, False, False)


def test_no_rows_until_the_time_was_up(numbers):
    """Without keep_partial, without a row, and for a cancelled statement, it is an error as ever."""
    stops = iter([False] * 40)
    for sql, options, kind in [
        (SLOW_ROWS, {}, "timeout"),
        (COUNT_FOREVER, {"keep_partial": True}, "timeout"),
        (SLOW_ROWS, {"keep_partial": True, "should_stop": lambda: next(stops, True)}, "interrupted"),
        ("SELECT abs(n - 6 - 9223372036854775807 - 1) FROM t", {"keep_partial": True}, "failed"),
    ]:
        with pytest.raises(QueryError) as caught:
            numbers.query(sql, max_rows=99, timeout_s=0.3, **options)
        assert caught.value.kind == kind


def test_slow_rows_end_in_time(make):
    """The clock is looked at after every row, not only after many steps: rows of one slow call each end in time."""
    database = make("CREATE TABLE t(n); INSERT INTO t VALUES " + ", ".join(f"({n})" for n in range(99)))
    slow = "replace(hex(zeroblob(400000)), '000000000000000000000000000000000000001' || n, 'x')"
    started = time.monotonic()
    table = database.query(f"SELECT length({slow}) FROM t", max_rows=99, timeout_s=0.1, keep_partial=True)
    assert 0 < len(table.rows) < 99
    assert time.monotonic() - started < 1


def test_many_threads(numbers):
    """A database opened in one thread answers any number of others, one at a time."""
    results = []

    def ask():
        results.extend(numbers.query("SELECT sum(n) FROM t", max_rows=1).rows[0][0] for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [55] * 80


@pytest.mark.parametrize(
    ("sql", "kind", "message"),
    [
        ("", "refused", "the SQL is empty. Write one SELECT statement"),
        (" ; -- nothing\n/* here */ ", "refused", "the SQL is empty. Write one SELECT statement"),
        ("SELECT 1; SELECT 2", "refused", "only one statement can run. Write one SELECT statement"),
        (
            "SELECT n FROM t WHERE n = ?",
            "refused",
            "the SQL has a parameter without a value, ? or :name. Write the value itself",
        ),
        (
            "SELECT n FROM t WHERE n = :x",
            "refused",
            "the SQL has a parameter without a value, ? or :name. Write the value itself",
        ),
        ("SELECT 1 -- " + " " * 990_000, "refused", "the SQL has more than 990,000 characters. Make it simpler"),
        ("SELECT 1\0", "refused", "the SQL has a NUL character in it"),
        ("SELECT '\ud800'", "refused", "the SQL has characters in it that are not valid Unicode"),
        ("SELECT m FROM t", "failed", "no such column: m"),
        ("SELECT n FROM u", "failed", "no such table: u"),
        ("SELEC n FROM t", "failed", 'near "SELEC": syntax error'),
        ("DELETE FROM t", "refused", "only reading is allowed. Write one SELECT statement"),
    ],
)
def test_what_is_wrong_is_said(numbers, sql, kind, message):
    """Each mistake has its own one-line message and kind."""
    with pytest.raises(QueryError) as caught:
        numbers.query(sql, max_rows=1)
    assert (str(caught.value), caught.value.kind) == (message, kind)


def test_changed_schema_is_seen(make, tmp_path):
    """A table that another program adds is there for the next statement, also a virtual one; `version` differs."""
    database = make("CREATE TABLE t(n)")
    before = database.version
    with sqlite3.connect(tmp_path / "shop.sqlite") as writer:
        writer.executescript("CREATE VIRTUAL TABLE docs USING fts5(x); INSERT INTO docs VALUES ('hello world')")
    writer.close()
    assert database.query("SELECT x FROM docs WHERE docs MATCH 'hello'", max_rows=1).rows == (("hello world",),)
    assert database.version != before


def test_replaced_file_is_seen(make, tmp_path):
    """When another file takes the name, the next statement reads that one, also if its schema version is equal."""
    database = make("CREATE TABLE t(n); INSERT INTO t VALUES ('old')")
    before = database.version
    make("CREATE TABLE t(n); INSERT INTO t VALUES ('new')", "other.sqlite").close()
    (tmp_path / "other.sqlite").replace(tmp_path / "shop.sqlite")
    assert database.query("SELECT n FROM t", max_rows=1).rows == (("new",),)
    assert database.version != before


def test_deleted_file(make, tmp_path):
    """A file that is gone is an error of its own: not the statement's fault."""
    database = make("CREATE TABLE t(n)")
    (tmp_path / "shop.sqlite").unlink()
    with pytest.raises(DatabaseOpenError, match="there is no file"):
        database.query("SELECT n FROM t", max_rows=1)


def test_no_lock_is_held_between_statements(make, tmp_path):
    """Another program can write while a database is open here, and its rows are seen."""
    database = make("CREATE TABLE t(n)")
    database.query("SELECT n FROM t", max_rows=1)
    writer = sqlite3.connect(tmp_path / "shop.sqlite", timeout=0)
    writer.execute("INSERT INTO t VALUES (7)")
    writer.commit()
    writer.close()
    assert database.query("SELECT n FROM t", max_rows=1).rows == ((7,),)


def test_closing_twice(numbers):
    """close() may be called again; a statement after it is an error, not a crash."""
    numbers.close()
    numbers.close()
    with pytest.raises(QueryError, match="closed"):
        numbers.query("SELECT 1", max_rows=1)


@pytest.mark.parametrize("n_waiting", [0, 3])
def test_closing_stops_the_statement(numbers, n_waiting):
    """close() does not wait for an endless statement, nor for those that wait behind it: all end as errors."""
    messages = []
    runs = threading.Event()

    def ask():
        with pytest.raises(QueryError) as caught:
            numbers.query(COUNT_FOREVER, max_rows=1, timeout_s=600, should_stop=lambda: bool(runs.set()))
        messages.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(1 + n_waiting)]
    for thread in threads:
        thread.start()
    assert runs.wait(60)
    numbers.close()
    for thread in threads:
        thread.join(60)
    assert messages == ["the database is closed"] * (1 + n_waiting)


def test_closing_from_within_a_statement(make, tmp_path):
    """close() and query() from `should_stop`, in the middle of a statement, end it and wait for it."""
    database = make("CREATE TABLE t(n); INSERT INTO t VALUES (1)")
    calls = []

    def stop():
        calls.append(database)
        if len(calls) == 3:
            with pytest.raises(QueryError, match="running in this thread already"):
                database.query("SELECT 1", max_rows=1)
            database.close()
        return False

    with pytest.raises(QueryError, match="the database is closed"):
        database.query(COUNT_FOREVER, max_rows=1, timeout_s=600, should_stop=stop)
    with pytest.raises(QueryError, match="the database is closed"):
        database.query("SELECT 1", max_rows=1)


def test_file_overwritten_in_place(make, tmp_path):
    """Another database is copied over the open one: `version` differs, also with as many schema changes."""
    database = make("CREATE TABLE old(n); INSERT INTO old VALUES (1)")
    toolbox = Toolbox(database)
    assert toolbox.run("list_tables", {}).output == "old"
    before = database.version
    make("CREATE TABLE new(n); INSERT INTO new VALUES (2)", "other.sqlite").close()
    (tmp_path / "shop.sqlite").write_bytes((tmp_path / "other.sqlite").read_bytes())
    assert database.version != before
    assert toolbox.run("list_tables", {}).output == "new"
    assert database.query("SELECT n FROM new", max_rows=1).rows == ((2,),)


# A statement, the tables and views that it reads, and the views in which something is read.
READS = {
    "SELECT count(*) FROM T AS other": ({"T"}, set()),
    "SELECT x.n FROM (SELECT n FROM t) x": ({"t"}, set()),
    "WITH big AS (SELECT n FROM t WHERE n > 5) SELECT n FROM big": ({"t"}, set()),
    "SELECT m FROM v": ({"t", "v"}, {"v"}),
    "SELECT count(*) FROM v": ({"t"}, {"v"}),
    "SELECT 1": (set(), set()),
    "WITH RECURSIVE r(i) AS (SELECT n FROM t UNION ALL SELECT i + 1 FROM r) SELECT i FROM r": ({"t"}, set()),
}


@pytest.mark.parametrize("sql", READS)
def test_what_a_statement_reads(make, sql):
    """Each table and view, and whether a view reads it; the statement itself, which may be endless, does not run."""
    database = make("CREATE TABLE t(n); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT n AS m FROM t")
    reads = database.find_reads(sql)
    assert ({name for name, _ in reads}, {within for _, within in reads} & {"v"}) == READS[sql]


@pytest.mark.parametrize(
    ("sql", "kind"), [("DELETE FROM t", "refused"), ("SELECT n FROM u", "failed"), ("SELECT 1; SELECT 2", "refused")]
)
def test_what_does_not_compile_reads_nothing(make, sql, kind):
    """It is the error that `query` raises, and the next statement has its own reads."""
    database = make("CREATE TABLE t(n); INSERT INTO t VALUES (1)")
    with pytest.raises(QueryError) as caught:
        database.find_reads(sql)
    assert caught.value.kind == kind
    assert database.find_reads("SELECT 2") == frozenset()
    assert database.query("SELECT n FROM t", max_rows=1).rows == ((1,),)
