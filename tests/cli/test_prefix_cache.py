"""The prefix cache at the terminal: `--no-prefix-cache`, what `doctor` says, and processes that share the store."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from turns import decided

from sqale_edge import Episode

WAIT_S = 120
QUESTION = "How many customers are there?"
LIMITS = {"TOOL_TURNS": "1", "TURN_TOKENS": "40", "CALL_TOKENS": "20", "FINAL_TOKENS": "20"}


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """A random model never comes to an end by itself."""
    for name, value in LIMITS.items():
        monkeypatch.setenv(f"SQALE_EDGE_{name}", value)


def start(*args):
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ask(run, shop, model, *options):
    """The answer as JSON, and (evaluated, cached) of the first turn as the trace says."""
    code, out, err = run("ask", shop, QUESTION, "-m", model, "--threads", "1", "--trace", "-f", "json", *options)
    assert code in (0, 3)
    evaluated, cached = re.search(r"turn 1: (\d+) new tokens evaluated, (\d+) cached", err).groups()
    return json.loads(out), int(evaluated), int(cached)


def doctor(run, *options):
    code, out, err = run("doctor", "--json", *options)
    assert (code, err) == (0, "")
    return json.loads(out)["prefix_cache"]


def test_the_second_ask_evaluates_less_and_answers_the_same(run, shop, llama_gguf, home):
    """What was cached is in the trace and in the JSON document; everything else is as it was."""
    first, n_evaluated, n_cached = ask(run, shop, llama_gguf)
    assert n_cached == 0
    second, n_later, n_cached = ask(run, shop, llama_gguf)
    assert n_later + n_cached == n_evaluated
    assert n_later <= 0.1 * n_evaluated
    assert second["turns"][0]["usage"]["n_cached"] == n_cached
    first, second = map(Episode.from_dict, (first, second))
    assert decided(first) == decided(second)
    assert dataclasses.replace(first, turns=(), usage=None, timing=None) == dataclasses.replace(
        second, turns=(), usage=None, timing=None
    )


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_cache_can_be_turned_off(request, run, shop, llama_gguf, how):
    """Nothing is read, and nothing is written."""
    ask(run, shop, llama_gguf)
    assert doctor(run)["snapshots"] == 1
    if how == "variable":
        request.getfixturevalue("monkeypatch").setenv("SQALE_EDGE_PREFIX_CACHE", "0")
    options = ["--no-prefix-cache"] if how == "option" else []
    assert ask(run, shop, llama_gguf, *options)[2] == 0
    assert doctor(run, "--clear-prefix-cache")["snapshots"] == 0
    assert ask(run, shop, llama_gguf, *options)[2] == 0
    assert doctor(run)["snapshots"] == 0


def test_eval_and_demo_know_the_option(run, shop, llama_gguf, home, tmp_path):
    """An evaluation without it leaves one file, whatever the number of questions; the demo's prompt is too short."""
    questions = tmp_path / "questions.jsonl"
    record = {"db": shop.name, "question": "?", "sql": "SELECT 1"}
    questions.write_text("".join(json.dumps({"id": str(number), **record}) + "\n" for number in range(2)))
    command = ["eval", questions, "-m", llama_gguf, "--threads", "1", "-o"]
    assert run(*command, tmp_path / "off.jsonl", "--no-prefix-cache")[0] == 0
    assert not (home / "prefixes").exists()
    assert run(*command, tmp_path / "on.jsonl")[0] == 0
    assert len(list((home / "prefixes").iterdir())) == 1
    usages = {}
    for name in ("off", "on"):
        _, *answers = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        usages[name] = [answer["episode"]["turns"][0]["usage"] for answer in answers]
    assert [usage["n_cached"] > 0 for usage in usages["on"]] == [False, True]
    assert [usage["n_cached"] for usage in usages["off"]] == [0, 0]
    assert run("demo", "-o", tmp_path / "sample.sqlite", "--no-prefix-cache", "--json")[0] in (0, 3)


def test_doctor_shows_the_store_and_empties_it(run, shop, llama_gguf, home, monkeypatch):
    """Where it is, how many snapshots, how large, the limit, and whether it is in use."""
    empty = {
        "is_on": True,
        "folder": str(home / "prefixes"),
        "snapshots": 0,
        "size_bytes": 0,
        "limit_bytes": 1024 << 20,
    }
    assert doctor(run) == empty
    assert list(home.iterdir()) == []
    ask(run, shop, llama_gguf)
    (path,) = (home / "prefixes").iterdir()
    assert doctor(run) == empty | {"snapshots": 1, "size_bytes": path.stat().st_size}
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert re.search(rf"^prefix_cache\n  is_on +yes\n  folder +{re.escape(str(home))}", out, re.MULTILINE)
    assert re.search(r"^  limit +1,024 MiB$", out, re.MULTILINE)
    assert doctor(run, "--clear-prefix-cache") == empty
    assert not path.exists()
    monkeypatch.setenv("SQALE_EDGE_PREFIX_CACHE", "no")
    monkeypatch.setenv("SQALE_EDGE_PREFIX_CACHE_MIB", "7")
    assert doctor(run) == empty | {"is_on": False, "limit_bytes": 7 << 20}


def test_two_processes_ask_at_once(run, shop, llama_gguf, home):
    """On an empty store: the same answers, whoever is first, and one whole file, which a third uses."""
    command = ["ask", shop, QUESTION, "-m", llama_gguf, "--threads", "1", "-f", "json"]
    processes = [start(*command) for _ in range(2)]
    outputs = [process.communicate(timeout=WAIT_S) for process in processes]
    assert all(b"Traceback" not in err for _, err in outputs)
    first, second = (decided(Episode.from_dict(json.loads(out))) for out, _ in outputs)
    assert first == second
    assert len(list((home / "prefixes").iterdir())) == 1
    third, _, n_cached = ask(run, shop, llama_gguf)
    assert n_cached > 0
    assert decided(Episode.from_dict(third)) == first


def test_a_store_that_cannot_be_used_is_not_seen(shop, llama_gguf, home):
    """The same bytes on stdout and stderr as with one; the log, where it is asked for, has the reason."""
    command = ["ask", shop, QUESTION, "-m", llama_gguf, "--threads", "1", "-f", "csv"]
    expected = start(*command).communicate(timeout=WAIT_S)
    for path in (home / "prefixes").iterdir():
        path.unlink()
    (home / "prefixes").rmdir()
    (home / "prefixes").write_text("in the way")
    assert start(*command).communicate(timeout=WAIT_S) == expected
    out, err = start("-v", *command).communicate(timeout=WAIT_S)
    assert out == expected[0]
    assert err.count(b"no prefix snapshot could be written") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_ctrl_c_leaves_nothing_in_the_store(shop, llama_gguf, home, monkeypatch):
    """Not even of a prompt that was evaluated."""
    monkeypatch.setenv("SQALE_EDGE_TURN_TOKENS", "2000")
    monkeypatch.setenv("SQALE_EDGE_CALL_TOKENS", "1900")
    process = start("ask", shop, QUESTION, "-m", llama_gguf, "--threads", "1", "--trace")
    err = b""
    while b"new tokens evaluated" not in err:
        chunk = os.read(process.stderr.fileno(), 65536)
        assert chunk, err
        err += chunk
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, b"")
    assert list(home.iterdir()) == []
