"""`sqale-edge demo`, and the name `demo` in other commands; all of it with sockets forbidden."""

import json
import os
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
    home = {name: str(tmp_path / "home") for name in ("HOME", "XDG_DATA_HOME", "LOCALAPPDATA", "USERPROFILE")}

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-P", "-c", OFFLINE, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=WAIT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **home, **environment},
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


def test_a_file_that_somebody_chose_is_not_replaced(run, tmp_path):
    """One line that says so, and the file as it was."""
    mine = tmp_path / "mine.sqlite"
    mine.write_bytes(b"mine")
    done = run("demo", "--output", mine)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "mine.sqlite" in done.stderr
    assert "--output" in done.stderr
    assert mine.read_bytes() == b"mine"


def test_the_shop_is_written_again_each_time(run, tmp_path):
    """The program's own copy may be old, or spoiled."""
    run("demo", "--json", "--threads", "1")
    (shop,) = (tmp_path / "home").rglob("shop.sqlite")
    shop.write_bytes(b"spoiled")
    assert run("demo", "--json", "--threads", "1").returncode == 0


def test_a_place_that_cannot_be_written(run, tmp_path):
    """One line, and the way out."""
    (tmp_path / "file").write_text("")
    done = run("demo", "--output", tmp_path / "file" / "shop.sqlite")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--output" in done.stderr


def test_doctor_knows_the_demo_model(run):
    """Its label is among the notes."""
    done = run("doctor", "--model", "demo", "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["model"]
    assert model["architecture"] == "qwen35"
    assert any("demo model" in note for note in model["notes"])
