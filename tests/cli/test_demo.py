"""`sqale-edge demo`, and the name `demo` in other commands; all of it with sockets forbidden."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

WAIT_S = 300
# Any socket is an error, whoever opens it.
OFFLINE = """
import socket, sys
def refuse(*args, **options):
    raise AssertionError("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from sqale_edge.cli import main
main()
"""


@pytest.fixture
def run(tmp_path):
    """Runs the command line in a process whose data folder is a temporary one."""
    variables = ("SQALE_EDGE_HOME", "HOME", "XDG_DATA_HOME", "LOCALAPPDATA", "USERPROFILE")
    home = {name: str(tmp_path / "home") for name in variables}

    def run(*arguments, max_file_bytes=None, **environment):
        def limit():
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

        return subprocess.run(
            [sys.executable, "-P", "-c", OFFLINE, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=WAIT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **home, **environment},
            preexec_fn=None if max_file_bytes is None else limit,
        )

    return run


def test_the_whole_demonstration(run, tmp_path):
    """A label first, each question with its trace, answers on stdout, and at the end what to do next, which works."""
    done = run("demo", "--threads", "1")
    assert done.returncode == 0, done.stderr
    (shop,) = (tmp_path / "home").rglob("shop.sqlite")
    assert "this is the demo model" in done.stderr.splitlines()[0]
    assert "How many customers are there?" in done.stderr
    assert "→ list_tables" in done.stderr
    assert "tokens" in done.stderr
    assert done.stdout.split()[1] == "20"
    (line,) = (line for line in done.stderr.splitlines() if "sqale-edge ask" in line)
    assert str(shop) in line
    question = line.split('"')[1]
    assert done.stderr.endswith("sqale-edge models pull sqale\n")
    answer = run("ask", shop, question, "--model", "demo", "--threads", "1", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    assert "demo model" in answer.stderr
    assert json.loads(answer.stdout)["sql"]


def test_json(run, tmp_path):
    """One document on stdout; the database is where it was asked for, and is a shop."""
    shop = tmp_path / "my shop.sqlite"
    done = run("demo", "--json", "--output", shop, "--threads", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["database"] == str(shop)
    assert document["episodes"][0]["question"] == "How many customers are there?"
    assert all(episode["sql"] for episode in document["episodes"])
    assert all("demo model" in episode["notes"][0] for episode in document["episodes"])
    with closing(sqlite3.connect(shop)) as connection:
        assert connection.execute("SELECT count(*) FROM customers").fetchone() == (20,)


@pytest.mark.skipif(sys.platform == "win32", reason="not everybody may make links there")
@pytest.mark.parametrize("kind", ["a file", "a link to it", "a link to nothing", "a folder"])
def test_what_somebody_has_under_that_name_stays(run, tmp_path, kind):
    """Whatever it is: one line says what it is, and what to do."""
    path = tmp_path / "mine"
    expected = f"{str(path)!r} exists already. Fix: choose another name with --output."
    if kind == "a folder":
        path.mkdir()
        expected = f"{str(path)!r} is a folder. Fix: name a file in it: --output {path / 'shop.sqlite'}."
    elif kind == "a link to nothing":
        path.symlink_to(tmp_path / "nothing")
        expected = f"{str(path)!r} is a link to nothing. Fix: choose another name with --output."
    elif kind == "a link to it":
        (tmp_path / "other").write_bytes(b"mine")
        path.symlink_to(tmp_path / "other")
    else:
        path.write_bytes(b"mine")

    def look():
        entries = [(one.name, one.lstat().st_ino, one.lstat().st_mode) for one in sorted(tmp_path.iterdir())]
        return entries, path.is_file() and path.read_bytes()

    before = look()
    done = run("demo", "--output", path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {expected}\n")
    assert look() == before


def test_no_name_is_wrong_usage(run):
    """As from a variable that is not set; it would be the current folder."""
    done = run("demo", "--output", "")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'--output': it is empty" in done.stderr


@pytest.mark.parametrize(("name", "reason"), [("x" * 300, "too long"), ("file/shop.sqlite", "Not a directory")])
def test_a_name_that_cannot_be_written(run, tmp_path, name, reason):
    """One line with the system's reason, and the way out."""
    (tmp_path / "file").write_text("")
    done = run("demo", "--output", tmp_path / name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: the sample database {str(tmp_path / name)!r} cannot be written: ")
    assert done.stderr.endswith(". Fix: choose a place that can be written with --output.\n")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_long_name_is_a_name(run, tmp_path):
    """As long as the file system takes it."""
    assert run("demo", "--output", tmp_path / ("x" * 255), "--json", "--threads", "1").returncode == 0
    assert "x" * 255 in {path.name for path in tmp_path.iterdir()}


@pytest.mark.skipif(sys.platform == "win32", reason="the limit that stands in for a full disk is one of POSIX")
@pytest.mark.parametrize("n_bytes", [0, 1000, 9000, 20_000])
def test_a_full_disk_is_one_line(run, tmp_path, n_bytes):
    """Wherever it becomes full, and nothing is left."""
    done = run("demo", "--output", tmp_path / "shop.sqlite", max_file_bytes=n_bytes)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"Error: the sample database {str(tmp_path / 'shop.sqlite')!r} cannot be written: ")
    assert done.stderr.endswith("Fix: choose a place that can be written with --output.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="words are quoted as a POSIX shell takes them")
def test_what_to_do_next_can_be_typed(run, tmp_path):
    """Also with a blank in the path. Where colours are asked for, what goes to stdout is still plain."""
    shop = tmp_path / "my shop.sqlite"
    done = run("demo", "--output", shop, "--threads", "1", FORCE_COLOR="1", NO_COLOR="")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    (line,) = (line for line in plain.splitlines() if "sqale-edge ask" in line)
    assert shlex.split(line)[:3] == ["sqale-edge", "ask", str(shop)]


def test_the_shop_is_written_again_each_time(run, tmp_path):
    """The program's own copy may be old, or spoiled."""
    run("demo", "--json", "--threads", "1")
    (shop,) = (tmp_path / "home").rglob("shop.sqlite")
    shop.write_bytes(b"spoiled")
    assert run("demo", "--json", "--threads", "1").returncode == 0


def test_doctor_knows_the_demo_model(run):
    """Its label is among the notes."""
    done = run("doctor", "--model", "demo", "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["model"]
    assert model["architecture"] == "qwen35"
    assert any("demo model" in note for note in model["notes"])
