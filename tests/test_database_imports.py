"""CSV, TSV, JSON and JSON lines files as databases."""

import codecs
import contextlib
import csv
import gzip
import itertools
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sqale_edge.database import Database
from sqale_edge.errors import Cancelled, DatabaseOpenError


@pytest.fixture
def write(tmp_path):
    """A function that writes a file and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def tables(paths):
    """Every table as its columns with types, and its rows."""
    with Database.open(paths) as database:
        names = [row[0] for row in database.query("SELECT name FROM sqlite_master ORDER BY rowid", max_rows=99).rows]
        found = {}
        for name in names:
            columns = database.query(f"SELECT name, type FROM pragma_table_info('{name}')", max_rows=9999).rows
            found[name] = (dict(columns), database.query(f'SELECT * FROM "{name}"', max_rows=9999).rows)
        return found


def test_csv(write):
    """Types are detected, empty fields are NULL, and codes, long numbers and text stay as they are written."""
    path = write(
        "sales 2024.csv",
        "id,zip,price,big,code,note,empty\r\n"
        '1,00123,9.5,123456789012345678,1e5,"a ""b"", c\r\nd",\r\n'
        "2,04567,-3,2,12,,\r\n",
    )
    types = {
        "id": "INTEGER",
        "zip": "TEXT",
        "price": "REAL",
        "big": "INTEGER",
        "code": "REAL",
        "note": "TEXT",
        "empty": "TEXT",
    }
    rows = (
        (1, "00123", 9.5, 123456789012345678, 100000.0, 'a "b", c\r\nd', None),
        (2, "04567", -3.0, 2, 12.0, None, None),
    )
    assert tables(path) == {"sales_2024": (types, rows)}


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "2"], "INTEGER"),
        (["1", "", "2.5"], "REAL"),
        ([".5", "-1e-3"], "REAL"),
        (["1", "x"], "TEXT"),
        (["01", "2"], "TEXT"),
        (["1,5", "2"], "TEXT"),
        (["12345678901234567890", "1"], "TEXT"),
        (["1234567890123456789", "0.5"], "TEXT"),
        (["123456789012345678", "0.5"], "TEXT"),
        (["1e", "1"], "TEXT"),
        (["e5", "1"], "TEXT"),
        (["-", "1"], "TEXT"),
        (["NaN", "1"], "TEXT"),
        (["0x10", "1"], "TEXT"),
        (["", ""], "TEXT"),
        (["1.1", "1.10"], "TEXT"),
        (["1.1", "1.2", "1.10"], "TEXT"),
        (["1E2", "100"], "TEXT"),
        (["1e2", "10e1"], "TEXT"),
        (["5", "5.0"], "TEXT"),
        (["0", "-0"], "TEXT"),
        (["5", "5 "], "TEXT"),
        (["5", "\u00a06"], "TEXT"),
        (["9.50", "12.00", "-3.25"], "REAL"),
        (["0", "12.50", "3.25"], "REAL"),
        (["5.0", "2.5", "3.25", "1e-07"], "REAL"),
        (["5", "2.5", "3.25"], "REAL"),
        (["1.0", "1.10", "1.2"], "REAL"),
        (["1e5", "12"], "REAL"),
        (["5 ", "6"], "INTEGER"),
    ],
)
def test_type_of_a_column(write, values, type_):
    """A column is numeric only if no value loses anything by it."""
    path = write("t.tsv", "k\ta\n" + "".join(f"x\t{value}\n" for value in values))
    columns, rows = tables(path)["t"]
    assert columns["a"] == type_
    if type_ == "TEXT":
        assert [row[1] for row in rows] == [value or None for value in values]


@pytest.mark.parametrize(
    "before",
    ["", "\n", "\r\n \r\n", "\n" * 9999, " " * 9999 + "\n", "\ufeff", "\ufeff\n"],
    ids=["nothing", "blank", "blanks", "many", "long", "BOM", "BOM and blank"],
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json"])
def test_blank_lines_before_the_data(write, before, name):
    """Blank lines at the beginning, however many, change neither the delimiter nor the columns."""
    content = 'a;"b,c,d"\n1;2\n' if name == "t.csv" else '{"a": 1, "b,c,d": 2}\n'
    assert tables(write(name, before + content)) == {"t": ({"a": "INTEGER", "b,c,d": "INTEGER"}, ((1, 2),))}


def test_delimiter_behind_a_long_name(write):
    """What is in quotes does not decide about the delimiter, and a quoted name may have several lines."""
    path = write("t.csv", '"a, ""b"", c\n, d";e\n1;2\n')
    assert tables(path) == {"t": ({'a, "b", c , d': "INTEGER", "e": "INTEGER"}, ((1, 2),))}


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "a\n" + "x" * 200_000 + "\n", "a\n1,2\n", ",".join("c" * 2001)])
def test_limit_of_the_csv_module_is_given_back(write, content):
    """The longest field that the csv module reads is the whole process's: it is as before, also after an error."""
    before = csv.field_size_limit()
    kept = None
    try:
        Database.open(write("t.csv", content)).close()
    except DatabaseOpenError as error:
        kept = error  # its traceback keeps what was running alive
    assert csv.field_size_limit() == before
    del kept


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("t.csv", "a,b\n1,2,3\n", "into double quotes"),
        ("t.csv", 'a,b\n1,"2\n', "quotes in it is written"),
        ("t.csv", "\n", "names the columns"),
        ("t.csv", b"\x89PNG\r\n\0\1\2\3" * 9, "export it"),
        ("t.csv", ",".join(f"c{n}" for n in range(2001)) + "\n", "2,000 columns"),
        ("t.csv.gz", gzip.compress(b"a\n" + bytes(range(65, 91)) * 999)[:60], "get it again"),
        ("t.json", '{"a": 1}\n{"a": 2}\n', ".jsonl"),
        ("t.jsonl", '{"a": 1} {"a": 2}\n', ".json"),
        ("t.json", "[1]", '{"column": value'),
        ("t.json", "[]", "at least one key"),
        ("t.json", '{"a": ' + "1" * 5000 + "}", "as a string"),
        ("t.csv", codecs.BOM_UTF8 + b"a\n\xff\n", "as UTF-8"),
        ("missing.csv", None, "check the path"),
        ("t.json", '[{"a": 1, "a": 2}]', "a name of its own"),
        ("t.json", '[{"a": [1e999]}]', "as a string"),
        ("t.jsonl", "".join(f'{{"k{n}": 1}}\n' for n in range(2001)), "2,000 columns"),
        ("t.jsonl.gz", gzip.compress(b"\n" * (70 << 20)), "with gunzip"),
        ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * (20 << 20)), "with gunzip"),
        ("t.json.gz", gzip.compress(b"[" + b" " * (70 << 20)), "with gunzip"),
    ],
)
def test_wrong_files_have_a_hint(write, tmp_path, name, content, hint):
    """The error says what to do, where something helps."""
    path = tmp_path / name if content is None else write(name, content)
    with pytest.raises(DatabaseOpenError) as caught:
        Database.open(path)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("content", "columns", "rows"),
    [
        ("name;price, net;price, gross, total\na;1;2\nb;3;4\n", ["name", "price, net", "price, gross, total"], 2),
        ("a, b;c\n1,5;2,5\n2,5;1,5\n", ["a, b", "c"], 2),
        ("name,notes; old; new\nx,one\ny,two; three\n", ["name", "notes; old; new"], 2),
        ("a,b;c;d\n", ["a,b", "c", "d"], 0),
        ("name\nx\n", ["name"], 1),
        ("sep=;\nname,first;n\nx;1\n", ["name,first", "n"], 1),
        ('\ufeff\n"sep=|"\r\na|b\r\n1|2\r\n', ["a", "b"], 1),
        ("SEP=\t\na;b\tc\n1\t2\n", ["a;b", "c"], 1),
    ],
)
def test_delimiter_that_fits(write, content, columns, rows):
    """The delimiter is the one that cuts the lines alike, or that Excel's first line names."""
    found, lines = tables(write("t.csv", content))["t"]
    assert (list(found), len(lines)) == (columns, rows)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(write, delimiter):
    """The delimiter of a CSV file is the one that its first line has most of."""
    assert tables(write("t.csv", f"a{delimiter}b\n1{delimiter}x y\n")) == {
        "t": ({"a": "INTEGER", "b": "TEXT"}, ((1, "x y"),))
    }


def test_names(write):
    """Columns without a name, and names that SQLite would take for the same, become different ones."""
    columns, _ = tables(write("sqlite_x.csv", "a,A,,select, b \n1,2,3,4,5\n"))["data_sqlite_x"]
    assert list(columns) == ["a", "A_2", "column_3", "select", "b"]


def test_short_and_blank_lines(write):
    """Missing fields at the end of a line are NULL; blank lines are nothing."""
    assert tables(write("t.csv", "a,b\n\n1\n\n2,3\n"))["t"][1] == ((1, None), (2, 3))


def test_header_alone(write):
    """A file with nothing but names is a table without rows."""
    assert tables(write("t.csv", "a,b\n")) == {"t": ({"a": "TEXT", "b": "TEXT"}, ())}


def test_wide(write):
    """A file may have as many columns as SQLite has."""
    columns, rows = tables(write("t.csv", ",".join(f"c{n}" for n in range(2000)) + "\n" + ",".join("1" * 2000) + "\n"))[
        "t"
    ]
    assert len(columns) == len(rows[0]) == 2000


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_encodings(write, encoding):
    """The usual encodings are recognised; one that is a guess is said out loud."""
    path = write("t.csv", "name,n\nGröße €,1\n".encode(encoding))
    assert tables(path) == {"t": ({"name": "TEXT", "n": "INTEGER"}, (("Größe €", 1),))}
    with Database.open(path) as database:
        assert bool(database.notes) == (encoding in ("cp1252", "utf-16-le", "utf-16-be"))


def test_gzip(write):
    """A compressed file is read like the file in it, and its name is without .gz."""
    assert tables(write("t.jsonl.gz", gzip.compress(b'{"a": 1}\n'))) == {"t": ({"a": "INTEGER"}, ((1,),))}


def test_json(write):
    """Objects may have different keys; what is nested stays JSON; what does not fit 64 bits stays text."""
    path = write("t.json", json.dumps([{"a": 1, "b": {"x": [1]}}, {"a": 2.5, "c": True}, {"big": 2**70, "n": None}]))
    types = {"a": "REAL", "b": "TEXT", "c": "INTEGER", "big": "TEXT", "n": "TEXT"}
    rows = ((1.0, '{"x": [1]}', None, None, None), (2.5, None, 1, None, None), (None, None, None, str(2**70), None))
    assert tables(path) == {"t": (types, rows)}


def test_json_of_several_tables(write):
    """An object of arrays is a table for each."""
    path = write("t.json", '{"cats": [{"a": 1}], "dogs": [{"b": "x"}, {"b": "y"}]}')
    assert tables(path) == {"cats": ({"a": "INTEGER"}, ((1,),)), "dogs": ({"b": "TEXT"}, (("x",), ("y",)))}


def test_one_json_object(write):
    """An object of other values is a table of one row."""
    assert tables(write("t.json", '{"a": 1, "b": [2]}')) == {"t": ({"a": "INTEGER", "b": "TEXT"}, ((1, "[2]"),))}


def test_several_files(write, tmp_path):
    """Several files are several tables of one database, also if they have the same name."""
    (tmp_path / "sub").mkdir()
    paths = [write("t.csv", "a\n1\n"), write("sub/t.tsv", "b\n2\n"), write("u.jsonl", '{"c": 3}\n\n{"c": 4}\n')]
    found = tables(paths)
    assert {name: rows for name, (_, rows) in found.items()} == {"t": ((1,),), "t_2": ((2,),), "u": ((3,), (4,))}


def test_sqlite_file_with_another_name(tmp_path):
    """A SQLite database is one whatever it is called."""
    connection = sqlite3.connect(tmp_path / "t.csv")
    connection.execute("CREATE TABLE inside(a)")
    connection.close()
    assert list(tables(tmp_path / "t.csv")) == ["inside"]


BOMS = [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF32_LE, "utf-32-le")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2\n1,2,3\n", "line 3 has 3 fields, but line 1 names 2"),
        ("t.csv", 'a,b\n1,"2\n', "line 2: unexpected end of data"),
        ("t.csv", 'a,b\n1,"2"x\n', "line 2: ',' expected after '\"'"),
        *[
            (f"t.{suffix}", content, "it is empty")
            for suffix in ("csv", "tsv", "json", "jsonl", "csv.gz")
            for content in (
                b"",
                b"\n",
                b" \t\r\n",
                b"\n" * 9999,
                *(bom + end.encode(encoding) for bom, encoding in BOMS for end in ("", "\n", "\r\n \n")),
            )
        ],
        ("t.csv", b"\x89PNG\r\n\0\1\2\3" * 9, "it is not a text file"),
        ("t.csv", ",".join(f"c{n}" for n in range(2001)) + "\n", "too many columns"),
        ("t.json", '[{"a": 1},\n{"a": }]', "line 2: Expecting value"),
        ("t.json", '[{"a": 1}, 2]', "element 2 of 't' is not an object"),
        ("t.json", "[]", "'t' has no columns"),
        ("t.json", "7", "element 1 of 't' is not an object"),
        ("t.json", "[" * 99999, "it is nested too deeply"),
        ("t.json", '{"a": ' + "1" * 5000 + "}", "imported: a whole number has more than 4,300 digits"),
        ("t.jsonl", '{"a": 1}\n{"a": ' + "1" * 5000 + "}\n", "line 2: a whole number has more than 4,300 digits"),
        ("t.jsonl", '{"a": 1}\n\n{"a": ' + "[" * 99999 + "\n", "line 3 is nested too deeply"),
        ("t.csv", "\n \n\na;b\n1;2\n1;2;3\n", "line 6 has 3 fields, but line 4 names 2"),
        ("t.jsonl", '{"a": 1}\n{"a": \n', "line 2: Expecting value"),
        ("t.jsonl", '{"a": 1}\n[1]\n', "line 2 is not an object"),
        ("t.csv.gz", gzip.compress(b"a\n" + bytes(range(65, 91)) * 999)[:60], "end-of-stream"),
        ("t.json", '[{"a": 1, "b": {"x": 1, "x": 2}}]', "imported: the key 'x' is there twice in one object"),
        ("t.jsonl", '{"a": 1}\n{"b": 1, "c": 2, "b": 3}\n', "line 2: the key 'b' is there twice in one object"),
        ("t.jsonl", '{"a": 1}\n{"a": [Infinity]}\n', "line 2 has a nested number that is infinite"),
        ("t.csv.gz", gzip.compress(b"a\n" * (40 << 20)), "it unpacks to more than 64 MiB"),
    ],
)
def test_wrong_files(write, name, content, message):
    """The error names the file and the line, and nothing is left behind."""
    path = write(name, content)
    before = set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*"))
    with pytest.raises(DatabaseOpenError) as caught:
        Database.open(path)
    assert repr(str(path)) in str(caught.value)
    assert message in str(caught.value)
    assert set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*")) == before


def test_missing_file(tmp_path):
    """A file that is not there is named as it was given."""
    with pytest.raises(DatabaseOpenError, match=r"missing\.csv.*No such file"):
        Database.open(tmp_path / "missing.csv")


def test_private_database_is_removed(write):
    """The database is in a private folder of its own, and gone when it is closed; the file it came from stays."""
    path = write("t.csv", "a\n1\n")
    before = set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*"))
    with Database.open(path) as database:
        assert database.path == path
        (directory,) = set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*")) - before
        assert directory.stat().st_mode & 0o077 == 0 or directory.drive
    assert not directory.exists()
    assert path.read_text() == "a\n1\n"


def private_folders():
    """The private folders that there are."""
    return set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*"))


def test_touched_private_database(write):
    """A program that touches every file in the temporary folder costs no statement."""
    before = private_folders()
    with Database.open(write("t.csv", "a\n1\n")) as database:
        (directory,) = private_folders() - before
        for moment in (1, 2, 3):
            os.utime(directory / "tables.sqlite", (moment, moment))
            assert database.query("SELECT a FROM t", max_rows=9).rows == ((1,),)
    assert not directory.exists()


def test_deleted_private_database(write):
    """A private folder that somebody deletes is an error that says so, and the database can be closed."""
    before = private_folders()
    with Database.open(write("t.csv", "a\n1\n")) as database:
        (directory,) = private_folders() - before
        shutil.rmtree(directory)
        for _ in range(2):
            with pytest.raises(DatabaseOpenError, match=r"there is no file .*tables\.sqlite") as caught:
                database.query("SELECT a FROM t", max_rows=9)
            assert "t.csv" in caught.value.hint


FORKED = """
import os, sys, warnings
from sqale_edge.database import Database
warnings.simplefilter("ignore")
database = Database.open(sys.argv[1])
if os.fork() == 0:
    print(database.query("SELECT a FROM t", max_rows=9).rows, flush=True)
    sys.exit()
os.wait()
print(database.query("SELECT a FROM t", max_rows=9).rows)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on Windows")
@pytest.mark.parametrize("name", ["t.csv", "t.sqlite"])
def test_forked_process(write, tmp_path, name):
    """A forked child can read, and neither its reading nor its end takes the private database from its parent."""
    path = write("t.csv", "a\n1\n")
    if name == "t.sqlite":
        path = tmp_path / name
        connection = sqlite3.connect(path, isolation_level=None)
        connection.executescript("PRAGMA journal_mode=wal; CREATE TABLE t(a); INSERT INTO t VALUES (1)")
        shutil.copy(path, tmp_path / "copy.sqlite")
        shutil.copy(f"{path}-wal", tmp_path / "copy.sqlite-wal")
        connection.close()
        path = tmp_path / "copy.sqlite"
    before = private_folders()
    found = subprocess.run([sys.executable, "-P", "-c", FORKED, path], capture_output=True, text=True, check=True)
    assert found.stdout == "((1,),)\n((1,),)\n", found.stderr
    assert private_folders() == before


def test_numbers_that_are_not_json(write):
    """NaN is NULL, also inside of JSON text, and is said out loud once; infinity is a number."""
    path = write("t.jsonl", '{"a": NaN, "b": Infinity, "c": [NaN, 1]}\n{"a": 2.5, "b": -1e999, "c": null}\n')
    types = {"a": "REAL", "b": "REAL", "c": "TEXT"}
    assert tables(path) == {"t": (types, ((None, float("inf"), "[null, 1]"), (2.5, float("-inf"), None)))}
    with Database.open(path) as database:
        assert database.notes == ("t.jsonl has numbers that are NaN; they are NULL",)


@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_lone_surrogates(write, name):
    """Half of a character becomes a question mark, also inside of JSON text and in a name."""
    path = write(name, '{"a": "x\\ud83d", "b": {"y\\ud83d": "\\ud83d!"}}\n')
    assert tables(path)["t"][1] == (("x?", '{"y?": "?!"}'),)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO on Windows")
@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.csv.gz", "t.sqlite", "t.db-wal", "t.db-journal"])
def test_a_pipe_does_not_hang(write, tmp_path, name):
    """A FIFO or a socket is an error at once, whatever it is called, also beside a database."""
    path = tmp_path / name
    os.mkfifo(path)
    if "-" in name:
        path = tmp_path / "t.db"
        with contextlib.closing(sqlite3.connect(tmp_path / "u.db")) as connection:
            connection.execute("CREATE TABLE t(a)")
        (tmp_path / "u.db").rename(path)
    program = (
        "import sys; from sqale_edge.database import Database; from sqale_edge.errors import DatabaseOpenError\n"
        "try: Database.open(sys.argv[1])\n"
        "except DatabaseOpenError as error: print(error)"
    )
    command = [sys.executable, "-P", "-c", program, path]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "is not a regular file" in found.stdout
    assert name in found.stdout
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "s.csv"))
        with pytest.raises(DatabaseOpenError, match="not a regular file"):
            Database.open(tmp_path / "s.csv")


@pytest.mark.parametrize("n_calls", [1, 2, 5, 20])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.json"])
def test_cancelled_import(write, name, n_calls):
    """An import can be cancelled at any moment, and leaves nothing behind."""
    content = b"a,b\n" + b"1,x\n" * 99_999 if "csv" in name else b'{"a": 1}\n' * 99_999
    content = b"[" + content.rstrip().replace(b"\n", b",") + b"]" if name == "t.json" else content
    path = write(name, gzip.compress(content) if name.endswith("gz") else content)
    before = private_folders()
    calls = itertools.count(1)
    with pytest.raises(Cancelled, match="the opening of the database was cancelled"):
        Database.open(path, should_stop=lambda: next(calls) > n_calls)
    assert private_folders() == before
    Database.open(path, should_stop=lambda: False).close()


def test_rows_that_grow(write):
    """Short lines of a wide table are bounded by the file's length, with an error that says what to do."""
    path = write("t.csv", ",".join(f"c{n}" for n in range(2000)) + "\n" + "1\n" * 12_000)
    with pytest.raises(DatabaseOpenError, match="its rows take more than 17 MiB") as caught:
        Database.open(path)
    assert "make a SQLite database of it yourself" in caught.value.hint
