"""With a model in the store nothing opens a socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sqale_edge.models import find_model
from sqale_edge.store.add import add_model

# Everything that Python's own sockets do raises one of these events, whoever calls it. Prints the exit codes.
FORBIDDING = """
import json, os, sys
def forbid(event, arguments):
    if event.startswith("socket."):
        os.write(2, f"a socket: {event}".encode())
        os._exit(99)
sys.addaudithook(forbid)
from sqale_edge.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as exit:
        codes.append(exit.code)
print(json.dumps(codes))
"""


def run_without_sockets(commands, **environment):
    arguments = [sys.executable, "-P", "-c", FORBIDDING, json.dumps([[str(word) for word in one] for one in commands])]
    environment = {**os.environ, **environment}
    return subprocess.run(
        arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False
    )


@pytest.fixture
def commands(home, shop, tmp_path):
    """All that a person does with a model that is there."""
    add_model(str(find_model("demo").path), name="tiny", is_offline=True)
    question = {"id": "1", "db": str(shop), "question": "How many customers are there?", "sql": "SELECT 4"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    (tmp_path / "customers.csv").write_text("name\nAda\nGrace\n", encoding="utf-8")
    return [
        ["ask", shop, "How many customers are there?", "--model", "tiny", "--threads", "1"],
        ["ask", tmp_path / "customers.csv", "How many customers are there?", "--model", "tiny", "--threads", "1"],
        ["eval", tmp_path / "questions.jsonl", "-m", "tiny", "--threads", "1", "--output", tmp_path / "results.jsonl"],
        ["doctor", "--model", "tiny"],
        ["models", "list"],
        ["models", "show", "tiny"],
        ["models", "verify"],
        ["models", "path", "tiny"],
        ["models", "pull", "sqale", "--offline"],
        ["models", "rm", "tiny"],
    ]


def test_nothing_opens_a_socket(commands):
    """ask, eval, doctor, and all of `models` but pull and add; `pull --offline` fails without one, too."""
    done = run_without_sockets(commands)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    no_answer = [code for command, code in zip(commands, codes, strict=True) if command[0] == "ask" and code == 3]
    assert len(no_answer) <= 1  # the demo model does not know every question
    assert [0 if code == 3 else code for code in codes] == [int("--offline" in command) for command in commands]


def test_the_test_would_see_a_socket():
    """`pull` without --offline opens one, and is stopped."""
    done = run_without_sockets([["models", "pull", "sqale"]], HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 99
    assert done.stderr.startswith("a socket: socket.")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a network namespace")
def test_without_any_interface(commands):
    """In a namespace without a network, child processes included, the same works; `pull` says what to do by hand."""
    prefix = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no namespaces here")
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    main = ["-P", "-c", "from sqale_edge.cli import main; main()"]
    for command in (commands[0], commands[2], commands[3]):
        done = subprocess.run(
            [*prefix, sys.executable, *main, *map(str, command)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*prefix, sys.executable, *main, "models", "pull", "sqale"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "is needed for this, but cannot be reached: " in done.stderr
    assert "models add FOLDER --name sqale" in done.stderr
