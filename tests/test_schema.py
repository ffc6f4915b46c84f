"""Names, kinds, keys and join paths with the right values written out, and of generated schemas, built to be known.

A comparison with SQLite's own pragmas, for every tool, is in test_tools.py.
"""

import contextlib
import cProfile
import itertools
import sqlite3
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqale_edge.database import Database
from sqale_edge.schema import ForeignKey, Schema, close_names
from sqale_edge.sql_text import bare_statement, n_with_copies, one_line, quote_name, tokens, unquote_name, visible
from sqale_edge.tools import Toolbox

SHAPES = """
CREATE TABLE album(artist TEXT, name TEXT, PRIMARY KEY (name, artist));
CREATE TABLE song(id INTEGER PRIMARY KEY, a TEXT, n TEXT, FOREIGN KEY (n, a) REFERENCES album);
CREATE TABLE cover(a TEXT, n TEXT, FOREIGN KEY (a, n) REFERENCES ALBUM(ARTIST, Name));
CREATE TABLE unit(id INTEGER PRIMARY KEY);
CREATE TABLE reading(uid INT REFERENCES unit, gone INT REFERENCES vanished(id), lost INT REFERENCES vanished);
CREATE TABLE emp(id INTEGER PRIMARY KEY, boss INT REFERENCES emp(id));
CREATE TABLE airport(code TEXT PRIMARY KEY);
CREATE TABLE flight(src TEXT REFERENCES airport(code), dst TEXT REFERENCES airport(code));
CREATE TABLE island(x INT);
CREATE TABLE a(id INTEGER PRIMARY KEY, b_id INT REFERENCES b(id));
CREATE TABLE b(id INTEGER PRIMARY KEY, a_id INT REFERENCES a(id));
CREATE VIEW units AS SELECT id FROM unit;
CREATE TABLE uses(u INT REFERENCES units(id), k INT REFERENCES keyless);
CREATE TABLE keyless(x INT);
"""


@pytest.fixture
def make(tmp_path):
    """A function that makes a database of a script and gives its schema."""
    opened = []

    def make(script):
        connection = sqlite3.connect(tmp_path / "shop.sqlite")
        connection.executescript(script)
        connection.close()
        opened.append(Database.open(tmp_path / "shop.sqlite"))
        return Schema(opened[-1])

    yield make
    for database in opened:
        database.close()


def test_names_and_kinds(make):
    """Tables, views and virtual tables are listed as created; shadow tables and SQLite's own can only be found."""
    schema = make(
        "CREATE TABLE z(a INTEGER PRIMARY KEY AUTOINCREMENT); CREATE VIEW y AS SELECT * FROM nowhere;"
        "CREATE VIRTUAL TABLE docs USING fts5(x); CREATE TABLE docs_notes(a);"
        "CREATE TABLE b(k PRIMARY KEY) WITHOUT ROWID"
    )
    assert schema.names == ("z", "y", "docs", "docs_notes", "b")
    kinds = {
        name: schema.find(name).kind for name in ("z", "y", "docs", "docs_data", "sqlite_sequence", "sqlite_master")
    }
    assert list(kinds.values()) == ["table", "view", "virtual", "shadow", "internal", "internal"]


@pytest.mark.parametrize("module", ['"fts5"', "[FTS5]", "`fts5`", "'fts5'", "/* using rtree */ fts5", '"rtree_i32"'])
@pytest.mark.parametrize("name", ["docs", '"using"', '"a using b"', "[using]"])
def test_shadows_of_a_quoted_module(make, module, name):
    """However a module's name is written, and whatever the table's, its shadow tables are not listed."""
    schema = make(f"CREATE VIRTUAL TABLE {name} USING {module}(id, x, y)")
    assert schema.names == (unquote_name(name),)
    kinds = [relation.kind for relation in schema.relations]
    assert kinds == ["virtual"] + ["shadow"] * (len(kinds) - 1)
    assert len(kinds) >= 4


def test_missing_module(make):
    """A virtual table whose module is missing is listed and described, and the rest works."""
    schema = make(
        "CREATE TABLE t(a REFERENCES u); CREATE TABLE u(b PRIMARY KEY); PRAGMA writable_schema=1;"
        "INSERT INTO sqlite_master VALUES"
        " ('table', 'vec', 'vec', 0, 'CREATE VIRTUAL TABLE vec USING no_such_module(e)')"
    )
    assert schema.names == ("t", "u", "vec")
    assert schema.find("vec").sql == "CREATE VIRTUAL TABLE vec USING no_such_module(e)"
    assert schema.foreign_keys == (ForeignKey("t", ("a",), "u", ("b",)),)


def test_columns(make):
    """Generated columns are columns; the hidden ones of a virtual table are not."""
    schema = make(
        "CREATE TABLE t(a, b AS (a + 1), c AS (a * 2) STORED) ; CREATE VIRTUAL TABLE docs USING fts5(x, y);"
        "CREATE VIEW v AS SELECT a AS first, b FROM t"
    )
    assert [schema.columns(schema.find(name)) for name in ("t", "docs", "v")] == [
        ("a", "b", "c"),
        ("x", "y"),
        ("first", "b"),
    ]


def test_strict_tables_and_triggers(make):
    """A STRICT table is one like any other with its keys and types; a trigger is neither listed nor found."""
    if sqlite3.sqlite_version_info < (3, 37):
        pytest.skip("STRICT came with SQLite 3.37")
    schema = make(
        "CREATE TABLE person(id INTEGER PRIMARY KEY, name TEXT NOT NULL, extra ANY) STRICT;"
        "CREATE TABLE visit(person INT REFERENCES person, day TEXT, PRIMARY KEY (person, day)) STRICT, WITHOUT ROWID;"
        "CREATE TRIGGER greet AFTER INSERT ON person BEGIN INSERT INTO visit VALUES (new.id, 'first'); END;"
        "CREATE VIEW guest AS SELECT name FROM person;"
        "CREATE TRIGGER invite INSTEAD OF INSERT ON guest BEGIN INSERT INTO person(name) VALUES (new.name); END;"
        "INSERT INTO guest VALUES ('Ann')"
    )
    assert schema.names == ("person", "visit", "guest")
    assert schema.find("greet") is None
    assert schema.columns(schema.find("person")) == ("id", "name", "extra")
    assert schema.foreign_keys == (ForeignKey("visit", ("person",), "person", ("id",)),)
    assert schema.find("visit").sql.endswith("STRICT, WITHOUT ROWID")


@pytest.mark.parametrize(
    "spelling", ['"Order Details"', "[order details]", "`Order Details`", "'Order Details'", " order details ; "]
)
def test_spellings(make, spelling):
    """A name is found as a model writes it: quoted, in other case, with main., blanks or a semicolon."""
    schema = make('CREATE TABLE "Order Details"(a)')
    for text in (spelling, f"main.{spelling.strip()}"):
        assert schema.find(text).name == "Order Details"
    assert schema.find("Order") is None


def test_exact_name_comes_first(make):
    """Of names that differ little, the one that is meant exactly is found."""
    names = ["é", "É", "t ", "t", '"t"', "main.t", "[t]", "a\nb", "a\\nb"]
    schema = make(";".join(f"CREATE TABLE {quote_name(name)}(x)" for name in names))
    assert [schema.find(name).name for name in names] == names
    assert schema.find("T").name == "t"


def test_close_names():
    """Names that resemble the wanted one are offered, the closest first; very long ones cost no time."""
    assert close_names("custmers", ["orders", "customers", "Customer_2"]) == ["customers", "Customer_2"]
    assert close_names("x" * 100_000, ["y" * 100_000] * 400) == []


def test_close_names_of_many():
    """Of thousands of names that all resemble the wanted one, few are compared, and the closest is among them."""
    names = [f"measurements_of_station_{n:05}_{'ab' * 20}" for n in range(4000)]
    profile = cProfile.Profile()
    found = profile.runcall(close_names, names[1234].replace("_", ""), names)
    assert found[0] == names[1234]
    n_compared = sum(entry.callcount for entry in profile.getstats() if getattr(entry.code, "co_name", "") == "ratio")
    assert 0 < n_compared <= 2 * 300
    assert close_names("orders", [*names, "order"]) == ["order"]


def test_foreign_keys(make):
    """Composite keys are one edge, missing parent columns are the parent's key, names have the parent's spelling."""
    assert make(SHAPES).foreign_keys == (
        ForeignKey("song", ("n", "a"), "album", ("name", "artist")),
        ForeignKey("cover", ("a", "n"), "album", ("artist", "name")),
        ForeignKey("reading", ("uid",), "unit", ("id",)),
        ForeignKey("reading", ("gone",), "vanished", ("id",)),
        ForeignKey("reading", ("lost",), "vanished", ()),
        ForeignKey("emp", ("boss",), "emp", ("id",)),
        ForeignKey("flight", ("src",), "airport", ("code",)),
        ForeignKey("flight", ("dst",), "airport", ("code",)),
        ForeignKey("a", ("b_id",), "b", ("id",)),
        ForeignKey("b", ("a_id",), "a", ("id",)),
        ForeignKey("uses", ("u",), "units", ("id",)),
        ForeignKey("uses", ("k",), "keyless", ()),
    )


@pytest.mark.parametrize(
    ("named", "table", "is_same"),
    [
        ("ORDERS", "orders", True),
        ("orders", "Orders", True),
        ("main.orders", "orders", False),
        ("orders;", "orders", False),
        ("[orders]", "orders", False),
        ("orders ", "orders", False),
        ("'orders'", "orders", False),
        ("É", "é", False),
        ("ÉA", "Éa", True),
        ("\u212a", "k", False),
        ("a\\nb", "a\nb", False),
    ],
)
def test_foreign_keys_lead_where_sqlite_leads(tmp_path, named, table, is_same):
    """The parent of a key is the table that SQLite means: the same name but for the case of ASCII letters, or none."""
    with contextlib.closing(sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)) as connection:
        connection.execute(f'CREATE TABLE {quote_name(table)}(id INTEGER PRIMARY KEY, "É" UNIQUE)')
        connection.execute(f"CREATE TABLE child(x REFERENCES {quote_name(named)}(ID))")
        connection.execute("PRAGMA foreign_keys=1")
        with pytest.raises(sqlite3.Error, match="constraint failed" if is_same else "no such table"):
            connection.execute("INSERT INTO child VALUES (1)")
    with Database.open(tmp_path / "t.sqlite") as database:
        schema = Schema(database)
        expected = (
            ForeignKey("child", ("x",), table, ("id",)) if is_same else ForeignKey("child", ("x",), named, ("ID",))
        )
        assert schema.foreign_keys == (expected,)
        assert schema.join_path("child", table) == (["child", table] if is_same else None)
        answer = Toolbox(database).run("foreign_keys", {}).output
    shown = named if named.isalnum() else quote_name(named)
    assert answer == (f"child.x -> {table}.id" if is_same else f"child.x -> {shown}.ID")


def test_shadow_tables_are_those_of_sqlite(make):
    """A table whose name differs from a shadow table's in the case of a letter that is not ASCII is an ordinary one."""
    schema = make('CREATE VIRTUAL TABLE "É" USING fts5(a); CREATE TABLE "é_content"(b); CREATE TABLE "É_other"(c)')
    assert schema.names == ("É", "é_content", "É_other")


@pytest.mark.parametrize(
    ("start", "end", "path"),
    [
        ("song", "cover", ["song", "album", "cover"]),
        ("airport", "flight", ["airport", "flight"]),
        ("emp", "emp", ["emp"]),
        ("a", "b", ["a", "b"]),
        ("units", "uses", ["units", "uses"]),
        ("island", "a", None),
        ("unit", "units", None),
    ],
)
def test_join_path(make, start, end, path):
    """The path walks keys both ways, through views too, and there is none between islands."""
    assert make(SHAPES).join_path(start, end) == path


def test_keys_between(make):
    """All keys between two tables belong to their hop, in either direction."""
    schema = make(SHAPES)
    assert [key.columns for key in schema.keys_between("airport", "flight")] == [("src",), ("dst",)]
    assert schema.keys_between("a", "b") == schema.keys_between("b", "a")
    assert len(schema.keys_between("a", "b")) == 2


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: not name.lower().startswith("sqlite_")
)


@st.composite
def schemas(draw):
    """Table names, the columns of each, and single-column foreign keys between them."""
    names = draw(st.lists(NAMES, min_size=1, max_size=7, unique_by=str.lower))
    columns = {name: draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower)) for name in names}
    keys = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=8))
    return columns, [(child, columns[child][0], parent, columns[parent][-1]) for child, parent in keys]


def build(path, columns, keys):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous=off")
    for name, own in columns.items():
        parts = [f"{quote_name(column)} TEXT DEFAULT 'a  b'" for column in own]
        parts += [
            f"FOREIGN KEY ({quote_name(column)}) REFERENCES {quote_name(parent)} ({quote_name(to)})"
            for child, column, parent, to in keys
            if child == name
        ]
        connection.execute(f"CREATE  TABLE\n{quote_name(name)} (\n  {','.join(parts)} -- end\n)")
    connection.close()


def plain_distances(names, keys):
    """The lengths of the shortest paths between all tables, the slow way."""
    distance = {(a, b): 0 if a == b else 99 for a in names for b in names}
    for child, _, parent, _ in keys:
        if child != parent:
            distance[child, parent] = distance[parent, child] = 1
    for middle, a, b in itertools.product(names, repeat=3):
        distance[a, b] = min(distance[a, b], distance[a, middle] + distance[middle, b])
    return distance


@given(schemas())
@settings(max_examples=120, deadline=None)
def test_any_schema(schema):
    """Names round-trip, the DDL describes what exists, keys are those declared, join paths are real and shortest."""
    columns, keys = schema
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "shop.sqlite", columns, keys)
        with Database.open(Path(folder) / "shop.sqlite") as database:
            found = Schema(database)
            assert list(found.names) == list(columns)
            assert {(k.child, k.columns[0], k.parent, k.parent_columns[0]) for k in found.foreign_keys} == set(keys)
            for name, own in columns.items():
                assert found.find(name).name == name
                assert found.find(quote_name(name)).name in (name, quote_name(name))
                assert list(found.columns(found.find(name))) == own
                described = Toolbox(database).run("describe_table", {"table_name": name})
                assert_describes(described.output, name, own)
            distances = plain_distances(list(columns), keys)
            for start, end in itertools.product(columns, repeat=2):
                path = found.join_path(start, end)
                assert (99 if path is None else len(path) - 1) == distances[start, end]
                for one, other in itertools.pairwise(path or []):
                    assert found.keys_between(one, other)


def assert_describes(ddl, name, columns):
    """The one-line DDL makes the same table again, wherever no name has control characters in it."""
    assert len(ddl.splitlines()) == 1
    if visible(name + "".join(columns)) == name + "".join(columns):
        connection = sqlite3.connect(":memory:")
        connection.execute(ddl)
        assert [row[1] for row in connection.execute(f"PRAGMA table_info({quote_name(name)})")] == columns
        assert connection.execute("SELECT dflt_value FROM pragma_table_info(?)", (name,)).fetchone() == ("'a  b'",)
        connection.close()


@given(st.text(max_size=40) | st.text("ab '\"`[]-*/;\n", max_size=30))
def test_tokens_lose_nothing(text):
    """The tokens of any text are that text, its bare statement is a part of it, and one line is one line."""
    assert "".join(piece for _, piece in tokens(text)) == text
    assert bare_statement(text) in text
    assert bare_statement(bare_statement(text)) == bare_statement(text)
    assert len(one_line(text).splitlines()) <= 1


def test_nested_with_is_looked_at_in_linear_time():
    """Of a statement of nested WITH, however deep, no more than a small multiple of its length is copied."""
    peaks = []
    for depth in (2_000, 20_000):
        sql = "WITH a AS (" * depth + "SELECT 1" + ")" * depth + "SELECT 1"
        tracemalloc.start()
        assert n_with_copies(sql, 10_000) == 10_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 20 * peaks[0]
    nested = "WITH a AS (" * 15 + "SELECT 1" + ") SELECT * FROM a" * 15
    assert n_with_copies(nested, 10_000) < 100


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("CREATE TABLE t (\n\ta  INT,\r\n b TEXT\n)", "CREATE TABLE t ( a INT, b TEXT )"),
        ("CREATE TABLE t(a DEFAULT 'x  y')", "CREATE TABLE t(a DEFAULT 'x  y')"),
        ("CREATE TABLE t(a DEFAULT 'x\ny')", r"CREATE TABLE t(a DEFAULT 'x\ny')"),
        ('CREATE TABLE "a  b"([c  d], `e  f`)', 'CREATE TABLE "a  b"([c  d], `e  f`)'),
        ("CREATE TABLE t(a, -- the  first\n b)", "CREATE TABLE t(a, /* the first */ b)"),
        ("CREATE TABLE t(a, -- odd */ text\n b)", "CREATE TABLE t(a, /* odd * / text */ b)"),
        ("CREATE TABLE t(a /* two\n lines */, b)", "CREATE TABLE t(a /* two lines */, b)"),
        ("CREATE TABLE t(a DEFAULT 'it''s -- no  comment')", "CREATE TABLE t(a DEFAULT 'it''s -- no  comment')"),
    ],
)
def test_one_line(sql, line):
    """White space is collapsed outside literals and quoted names; a comment to the end of a line gets its end."""
    assert one_line(sql) == line


@given(NAMES)
def test_quoting(name):
    """Quoting a name and unquoting it gives the name."""
    assert unquote_name(quote_name(name)) == name
