"""Opening SQLite files of every state, and leaving them and their folder as they are."""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from sqale_edge import sqlite_files
from sqale_edge.database import Database
from sqale_edge.errors import DatabaseOpenError, QueryError
from sqale_edge.sqlite_files import sqlite_uri
from sqale_edge.tools import Toolbox

WRITER = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print("ready", flush=True)
for line in sys.stdin:
    if line == "crash\\n":
        os._exit(1)
    connection.execute(line)
    print("done", flush=True)
connection.close()
"""


class Writer:
    """Another program that writes to the database."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.process.stdout.readline()

    def do(self, *statements):
        for statement in statements:
            self.process.stdin.write(statement + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def crash(self):
        self.process.communicate("crash\n")

    def leave(self):
        if not self.process.stdin.closed:
            self.process.communicate()


@pytest.fixture
def start_writer():
    """A function that starts another program on a file; all have ended afterwards."""
    writers = []

    def start(path):
        writers.append(Writer(path))
        return writers[-1]

    yield start
    for writer in writers:
        writer.leave()


@pytest.fixture
def writer(tmp_path, start_writer):
    """Another program that has `folder/shop.sqlite` open."""
    (tmp_path / "folder").mkdir()
    return start_writer(tmp_path / "folder" / "shop.sqlite")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "shop.sqlite"


def fingerprint(folder, *, ignore=()):
    """The names and contents of everything in a folder."""
    files = (path for path in folder.iterdir() if path.suffix not in ignore)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows(database):
    return [row[0] for row in database.query("SELECT a FROM t ORDER BY a", max_rows=99).rows]


START_WAL = (
    "PRAGMA journal_mode=wal",
    "CREATE TABLE t(a)",
    "INSERT INTO t VALUES (1)",
    "PRAGMA wal_checkpoint(truncate)",
)


def test_wal_beside_a_writer(writer, path):
    """Rows that are only in the -wal are there, new ones appear, and only the -shm may change."""
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    before = fingerprint(path.parent, ignore=(".sqlite-shm",))
    with Database.open(path) as database:
        assert rows(database) == [1, 2]
        assert fingerprint(path.parent, ignore=(".sqlite-shm",)) == before
        writer.do("INSERT INTO t VALUES (3)")
        assert rows(database) == [1, 2, 3]
        writer.do("PRAGMA wal_checkpoint(truncate)", "INSERT INTO t VALUES (4)")
        assert rows(database) == [1, 2, 3, 4]
        assert database.notes == ()


def test_wal_closed_properly(writer, path):
    """A database in WAL mode that nobody has open gets no -wal and no -shm by being read."""
    writer.do(*START_WAL)
    writer.leave()
    before = fingerprint(path.parent)
    assert list(before) == ["shop.sqlite"]
    with Database.open(path) as database:
        assert rows(database) == [1]
        assert fingerprint(path.parent) == before
    assert fingerprint(path.parent) == before


def test_wal_written_after_opening(writer, start_writer, path):
    """A writer that comes later is noticed, though nothing was locked: no row is missing."""
    writer.do(*START_WAL)
    writer.leave()
    with Database.open(path) as database:
        assert rows(database) == [1]
        second = start_writer(path)
        second.do("INSERT INTO t VALUES (2)")
        assert rows(database) == [1, 2]
        second.do("INSERT INTO t VALUES (3)")
        second.leave()
        assert rows(database) == [1, 2, 3]
        assert list(fingerprint(path.parent)) == ["shop.sqlite"]


def query_while_changing(path, n_changes):
    """The rows of a statement of which each of the first runs sees another program open, change and close the file."""
    sql = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 20000) SELECT a, count(*) FROM r, t"
    n_calls = [0]

    def count():
        n_calls[0] += 1
        return False

    def change():
        if not count() and n_calls[0] % n_calls_of_a_run == n_calls_of_a_run // 2 and n_calls[0] < n_changed_calls:
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE t SET a = a + 1")
        return False

    with Database.open(path) as database:
        database.query(sql, max_rows=1, should_stop=count)
        n_calls_of_a_run, n_calls[0] = n_calls[0], 0
        n_changed_calls = n_changes * n_calls_of_a_run
        return database.query(sql, max_rows=1, timeout_s=60, should_stop=change).rows


@pytest.mark.parametrize("n_changes", [1, 2, 4])
def test_wal_written_while_a_statement_runs(writer, path, n_changes):
    """Read without locks, a result is that of the file's last state, however often it changed meanwhile."""
    writer.do(*START_WAL)
    writer.leave()
    assert query_while_changing(path, n_changes) == ((1 + n_changes, 20_000),)
    assert list(fingerprint(path.parent)) == ["shop.sqlite"]


def test_wal_written_all_the_time(writer, path):
    """A file that changes under every run of a statement is an error in the end, never a result of two states."""
    writer.do(*START_WAL)
    writer.leave()
    with pytest.raises(QueryError, match="another program is writing"):
        query_while_changing(path, 99)
    assert list(fingerprint(path.parent)) == ["shop.sqlite"]


def test_switch_to_wal_after_opening(writer, path):
    """A database that goes over to WAL mode while it is open here still gets no file beside it."""
    writer.do("CREATE TABLE t(a)", "INSERT INTO t VALUES (1)")
    with Database.open(path) as database:
        assert rows(database) == [1]
        writer.do("PRAGMA journal_mode=wal", "INSERT INTO t VALUES (2)")
        writer.leave()
        assert rows(database) == [1, 2]
        assert list(fingerprint(path.parent)) == ["shop.sqlite"]


@pytest.mark.parametrize("with_shm", [True, False])
def test_wal_after_a_crash(writer, path, with_shm):
    """The rows of a -wal that a crash left, or that was copied without -shm, are there; every file stays as it is."""
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    writer.crash()
    if not with_shm:
        Path(f"{path}-shm").unlink()
    before = fingerprint(path.parent)
    with Database.open(path) as database:
        assert rows(database) == [1, 2]
        assert fingerprint(path.parent) == before
        assert bool(database.notes) is not with_shm
    assert fingerprint(path.parent) == before


def test_empty_wal(writer, path):
    """An empty -wal without -shm is as good as none."""
    writer.do(*START_WAL)
    writer.leave()
    Path(f"{path}-wal").touch()
    before = fingerprint(path.parent)
    with Database.open(path) as database:
        assert rows(database) == [1]
    assert fingerprint(path.parent) == before


def test_rollback_after_a_crash(writer, path):
    """A change that a crashed program began is undone in a private copy, said out loud; the original stays as it is."""
    writer.do("CREATE TABLE t(a, b)", "PRAGMA cache_size=5", "BEGIN")
    writer.do(
        *[f"INSERT INTO t VALUES ({n}, hex(zeroblob(1000)))" for n in range(99)],
        "COMMIT",
        "BEGIN",
        "UPDATE t SET a = a + 1000",
    )
    writer.crash()
    assert Path(f"{path}-journal").stat().st_size > 512
    before = fingerprint(path.parent)
    with Database.open(path) as database:
        assert rows(database) == list(range(99))
        assert "private copy" in database.notes[0]
        copies = set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*/copy"))
        assert copies
    assert not copies & set(Path(tempfile.gettempdir()).glob(".sqale-edge-private-*/copy"))
    assert fingerprint(path.parent) == before


def test_locked(writer, path):
    """A database that another program holds locked is a clear error, at opening and later."""
    writer.do("CREATE TABLE t(a)", "BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseOpenError, match="is locked by another program"):
        Database.open(path)
    writer.do("COMMIT")
    with Database.open(path) as database:
        assert rows(database) == []


@pytest.mark.parametrize("change", [(), ("INSERT INTO t VALUES (2)",)], ids=["lock", "change"])
def test_locked_between_statements(writer, path, change):
    """A writer that holds the lock when the next statement starts is data for the model; then the statement works."""
    writer.do("CREATE TABLE t(a)", "INSERT INTO t VALUES (1)")
    with Database.open(path) as database:
        assert rows(database) == [1]
        writer.do("BEGIN EXCLUSIVE", *change)
        toolbox = Toolbox(database, query_timeout_s=1)
        with pytest.raises(QueryError, match="another program is writing") as caught:
            database.query("SELECT a FROM t", max_rows=1, timeout_s=1)
        assert caught.value.kind == "failed"
        result = toolbox.run("list_tables", {})
        assert result.is_error
        assert result.output == "Error: another program is writing to the database. Try again."
        writer.do("COMMIT")
        assert rows(database) == [1, 2][: 1 + len(change)]
        assert not toolbox.run("list_tables", {}).is_error


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_waiting_for_a_lock_ends_in_time(writer, path, mode):
    """A statement waits for another program's lock no longer than its own time, and a cancel ends the waiting."""
    writer.do(f"PRAGMA journal_mode={mode}", "CREATE TABLE t(a)", "INSERT INTO t VALUES (1)")
    with Database.open(path) as database:
        assert rows(database) == [1]
        writer.do("PRAGMA locking_mode=exclusive", "BEGIN EXCLUSIVE", "INSERT INTO t VALUES (2)")
        n_asked = []
        for timeout_s, should_stop in [(0.01, None), (600, lambda: len(n_asked) > 5 or bool(n_asked.append(1)))]:
            with pytest.raises(QueryError) as caught:
                database.query("SELECT a FROM t", max_rows=9, timeout_s=timeout_s, should_stop=should_stop)
            assert caught.value.kind == ("interrupted" if should_stop else "failed")
        assert "another program is writing" not in str(caught.value)
        writer.do("COMMIT", "PRAGMA locking_mode=normal", "SELECT a FROM t")
        assert rows(database) == [1, 2]


def test_unfinished_change_is_not_seen(writer, path):
    """Rows of a transaction that is not committed do not appear, and reading does not wait for it."""
    writer.do("CREATE TABLE t(a)", "INSERT INTO t VALUES (1)", "BEGIN IMMEDIATE", "INSERT INTO t VALUES (2)")
    with Database.open(path) as database:
        assert rows(database) == [1]
        writer.do("COMMIT")
        assert rows(database) == [1, 2]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(writer, path):
    """A database in WAL mode can be read where nothing can be written."""
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    writer.crash()
    Path(f"{path}-shm").unlink()
    path.parent.chmod(0o500)
    try:
        with Database.open(path) as database:
            assert rows(database) == [1, 2]
    finally:
        path.parent.chmod(0o700)


@pytest.fixture
def good(tmp_path):
    """The bytes of a small sound database."""
    connection = sqlite3.connect(tmp_path / "good.sqlite")
    connection.execute("CREATE TABLE t(a)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
    connection.commit()
    connection.close()
    return (tmp_path / "good.sqlite").read_bytes()


BROKEN_FILES = {
    "empty": (lambda good: b"", "is empty"),
    "truncated": (lambda good: good[: len(good) // 2], "is truncated"),
    "a piece of the header": (lambda good: good[:50], "is truncated"),
    "damaged": (lambda good: good[:100] + b"\xff" * 3996 + good[4096:], "is damaged"),
    "damaged schema": (
        lambda good: good.replace(b"CREATE TABLE t(a)", b"CREATE TABLE \xff(("),
        "has a schema that SQLite",
    ),
    "unknown syntax": (
        lambda good: good.replace(b"CREATE TABLE t(a)", b"CREATE TABLE t(,)"),
        "has a schema that SQLite",
    ),
    "encrypted": (lambda good: hashlib.shake_256(b"secret").digest(8192), "is encrypted"),
    "newer file format": (lambda good: good[:18] + b"\3\3" + good[20:], "newer file format"),
    "newer schema format": (lambda good: good[:44] + b"\0\0\0\x09" + good[48:], "newer file format"),
    "text": (lambda good: b"name,age\nAnn,3\n" * 99, "is a text file"),
    "zip": (lambda good: b"PK\3\4" + bytes(996), "is a zip archive"),
    "gzip": (lambda good: b"\x1f\x8b" + bytes(998), "is compressed with gzip"),
    "zeros": (lambda good: bytes(8192), "is not a SQLite database"),
}


@pytest.mark.parametrize(("make", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_broken_file(tmp_path, good, make, message):
    """The error says what is the matter with the file, in one line, and the file stays as it is."""
    path = tmp_path / "broken.sqlite"
    path.write_bytes(make(good))
    before = fingerprint(tmp_path)
    with pytest.raises(DatabaseOpenError) as caught:
        Database.open(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert repr(str(path)) in str(caught.value)
    assert fingerprint(tmp_path) == before


def test_not_a_file(tmp_path):
    """A missing file, a folder, a pipe and impossible names are errors, and nothing is made."""
    cases = [
        (tmp_path / "missing.sqlite", "there is no file"),
        (tmp_path, "is a directory"),
        ("", "is a directory"),
        (":memory:", "there is no file"),
        ("file:made.sqlite?mode=rwc", "there is no file"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (tmp_path / "nul\0.sqlite", "cannot be read"),
        ([], "one SQLite file"),
        ([tmp_path / "a.sqlite", tmp_path / "b.sqlite"], "one SQLite file"),
    ]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        cases.append((tmp_path / "pipe", "is not a regular file"))
    before = sorted(tmp_path.iterdir())
    for path, message in cases:
        with pytest.raises(DatabaseOpenError, match=message):
            Database.open(path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["what?mode=rwc", "a#b", "100%41", "a b", "größe 表", "a&cache=shared", "'", "x;y"])
def test_any_name(tmp_path, good, name):
    """Nothing of a file's name is taken for a parameter, and the file that is named is the one that is read."""
    folder = tmp_path / f"dir {name}"
    folder.mkdir()
    (folder / f"{name}.sqlite").write_bytes(good)
    with Database.open(folder / f"{name}.sqlite") as database:
        assert database.query("SELECT count(*) FROM t", max_rows=1).rows == ((100,),)
    assert [path.name for path in folder.iterdir()] == [f"{name}.sqlite"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are Unicode")
def test_name_that_is_not_utf8(tmp_path, good):
    """A file whose name is not UTF-8 can be read."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.sqlite"))
    path.write_bytes(good)
    with Database.open(path) as database:
        assert database.query("SELECT count(*) FROM t", max_rows=1).rows == ((100,),)


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PurePosixPath("/a b/c?d#e%.db"), "file:///a%20b/c%3Fd%23e%25.db?mode=ro"),
        (PureWindowsPath(r"C:\a b\c.db"), "file:///C:/a%20b/c.db?mode=ro"),
        (PureWindowsPath(r"\\server\share\c.db"), "file:////server/share/c.db?mode=ro"),
    ],
)
def test_uri(path, uri):
    """Drive letters and UNC paths have the URIs that SQLite's documentation gives them."""
    assert sqlite_uri(path, mode="ro") == uri


def test_a_link_is_followed(tmp_path, good, start_writer):
    """A symbolic link leads to the database, and its -wal is looked for beside the real file."""
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "shop.sqlite"
    writer = start_writer(path)
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    (tmp_path / "link.sqlite").symlink_to(path)
    with Database.open(tmp_path / "link.sqlite") as database:
        assert rows(database) == [1, 2]
    writer.leave()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["good.sqlite", "link.sqlite", "real"]


def test_relative_path(tmp_path, good, monkeypatch):
    """A relative path means the same file after the program has changed its folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy("good.sqlite", "again.sqlite")
    with Database.open("again.sqlite") as database:
        monkeypatch.chdir("/")
        assert database.query("SELECT count(*) FROM t", max_rows=1).rows == ((100,),)


def test_abandoned_copies_are_removed(writer, path, tmp_path):
    """The private copy of a process that was killed is removed at the next start; one that is in use is not."""
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    writer.crash()
    Path(f"{path}-shm").unlink()
    private = tmp_path / "private"
    private.mkdir()
    environment = os.environ | {"TMPDIR": str(private), "TEMP": str(private)}
    program = (
        "import sys; from sqale_edge.database import Database; "
        "database = Database.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )

    def start():
        command = [sys.executable, "-P", "-c", program, path]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdout.readline() == b"open\n"
        return process

    running, killed = start(), start()
    killed.kill()
    killed.communicate()
    for directory in private.iterdir():
        os.utime(directory, (1, 1))  # an hour later
    assert len(list(private.iterdir())) == 2
    third = start()
    assert len(list(private.iterdir())) == 2
    third.communicate()
    running.communicate()
    assert list(private.iterdir()) == []


@pytest.mark.parametrize("is_copy", [False, True], ids=["beside a writer", "private copy"])
def test_killed_in_the_middle(writer, path, tmp_path, is_copy):
    """Killed while a statement runs, a reader leaves the database and its -wal as they were, and the writer goes on."""
    writer.do(*START_WAL, "INSERT INTO t VALUES (2)")
    if is_copy:
        writer.crash()
        Path(f"{path}-shm").unlink()
    ignored = () if is_copy else (".sqlite-shm",)
    before = fingerprint(path.parent, ignore=ignored)
    private = tmp_path / "private"
    private.mkdir()
    program = (
        "import sys; from sqale_edge.database import Database; database = Database.open(sys.argv[1]); "
        "tell = lambda: bool(print('running', flush=True)); "
        "endless = 'WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM t, r'; "
        "database.query(endless, max_rows=1, timeout_s=60, should_stop=tell)"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program, path],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(private), "TEMP": str(private)},
    )
    for _ in range(50):
        assert process.stdout.readline() == b"running\n"
    assert len(list(private.iterdir())) == is_copy
    process.kill()
    process.communicate()
    assert fingerprint(path.parent, ignore=ignored) == before
    if not is_copy:
        writer.do("INSERT INTO t VALUES (3)", "PRAGMA wal_checkpoint(truncate)")
        writer.leave()
        assert list(fingerprint(path.parent)) == ["shop.sqlite"]
    with Database.open(path) as database:
        assert rows(database) == ([1, 2] if is_copy else [1, 2, 3])


def test_only_abandoned_folders_are_removed(tmp_path):
    """Of old folders those go that are empty or have an owner file without a lock; nobody else's is touched."""
    folders = {
        name: tmp_path / name
        for name in (
            "sqale-edge-main",
            ".sqale-edge-private-empty",
            ".sqale-edge-private-young",
            ".sqale-edge-private-of a user?#%",
            ".sqale-edge-private-text",
            ".sqale-edge-private-locked",
            ".sqale-edge-private-abandoned",
        )
    }
    for folder in folders.values():
        folder.mkdir()
    (folders["sqale-edge-main"] / "owner").touch()
    (folders[".sqale-edge-private-of a user?#%"] / "thesis.txt").write_text("years of work")
    (folders[".sqale-edge-private-text"] / "owner").write_text("this is my file, and not a lock" * 40)
    (folders[".sqale-edge-private-abandoned"] / "copy").write_bytes(b"x")
    owners = [sqlite3.connect(folders[f".sqale-edge-private-{name}"] / "owner") for name in ("locked", "abandoned")]
    owners[1].close()
    (folders[".sqale-edge-private-abandoned"] / "owner").touch()
    owners[0].execute("BEGIN EXCLUSIVE")
    for name, folder in folders.items():
        if "young" not in name:
            os.utime(folder, (1, 1))
    environment = os.environ | {"TMPDIR": str(tmp_path), "TEMP": str(tmp_path)}
    program = "from sqale_edge.private_files import remove_abandoned; remove_abandoned()"
    subprocess.run([sys.executable, "-P", "-c", program], env=environment, check=True)
    owners[0].close()
    gone = {".sqale-edge-private-empty", ".sqale-edge-private-abandoned"}
    assert {folder.name for folder in tmp_path.iterdir()} == set(folders) - gone
    assert [entry.name for entry in folders[".sqale-edge-private-of a user?#%"].iterdir()] == ["thesis.txt"]


def test_without_a_temporary_folder_a_database_can_be_read(shop, tmp_path):
    """It needs none; what does is a clear error."""
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    program = f"""
import tempfile
tempfile._candidate_tempdir_list = lambda: [{str(tmp_path / "none")!r}]
from sqale_edge.database import Database
from sqale_edge.errors import DatabaseOpenError
with Database.open({str(shop)!r}) as database:
    assert database.query("SELECT count(*) FROM customers", max_rows=1).rows == ((4,),)
try:
    Database.open({str(table)!r})
except DatabaseOpenError as error:
    print(error, error.hint)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert "table.csv' needs a private copy: temporary files cannot be written: No usable temporary" in done.stdout
    assert "TMPDIR" in done.stdout


HOLDER = """
import contextlib, sqlite3, subprocess, sys
from sqale_edge.database import Database
from sqale_edge.errors import DatabaseOpenError

path, change, begin = sys.argv[1:]
LOCKED = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 512, 0x40000000)"


def is_locked():
    command = [sys.executable, "-c", LOCKED, path]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0


holder = sqlite3.connect(path, isolation_level=None)
holder.execute("CREATE TABLE t(a)")
holder.execute("INSERT INTO t VALUES (1)")
if change == "WAL":
    holder.execute("PRAGMA journal_mode=wal")
for statement in begin.split(";"):
    holder.execute(statement).fetchall()
if change not in ("", "WAL"):
    subprocess.run([sys.executable, "-c", change, path])
before = is_locked()
for _ in range(3):
    with contextlib.suppress(DatabaseOpenError), Database.open(path) as database:
        database.query("SELECT a FROM t", max_rows=9)
print(before, is_locked())
"""
CUT = "import os, sys; os.truncate(sys.argv[1], 4096)"
NEWER = "import sys; file = open(sys.argv[1], 'r+b'); file.seek(18); file.write(bytes([3, 3]))"
CRASH = (
    "import os, sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None); "
    "connection.execute('BEGIN'); connection.execute('UPDATE t SET a = 7'); os._exit(1)"
)


@pytest.mark.skipif(os.name != "posix", reason="only POSIX drops the locks of a process when it closes a file")
@pytest.mark.parametrize("name", ["app.csv", "app.sqlite"])
@pytest.mark.parametrize(
    ("change", "begin"),
    [
        ("", "BEGIN IMMEDIATE"),
        ("", "BEGIN EXCLUSIVE"),
        ("", "BEGIN; SELECT a FROM t"),
        ("WAL", "PRAGMA locking_mode=exclusive; SELECT a FROM t"),
        (CUT, "BEGIN IMMEDIATE"),
        (NEWER, "BEGIN IMMEDIATE"),
        (CRASH, "BEGIN; SELECT a FROM t"),
    ],
    ids=["writing", "exclusive", "reading", "WAL", "truncated", "newer", "crashed"],
)
def test_locks_of_the_same_process_are_kept(tmp_path, name, change, begin):
    """A program that embeds this package keeps its locks on a database, whatever that is called and however it is."""
    command = [sys.executable, "-P", "-c", HOLDER, tmp_path / name, change, begin]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "True True\n", found.stderr


def test_a_wal_that_comes_and_goes(tmp_path, good):
    """A `-wal` that is deleted between two looks at it is never taken for something that is not a file."""
    path, wal = tmp_path / "good.sqlite", tmp_path / "good.sqlite-wal"
    ends = threading.Event()

    def come_and_go():
        while not ends.is_set():
            wal.touch()
            wal.unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(20_000):
            sqlite_files._check_file(path)
    finally:
        ends.set()
        thread.join()
