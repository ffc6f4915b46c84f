"""`sqale-edge drift`: the whole way from a model file to tables, with nothing done twice."""

import json
import os
import signal
import subprocess
import sys

import pytest
from sqale_edge.convert import convert_checkpoint

from sqale_edge.models import find_model
from sqale_edge.sample_shop import write_sample_shop


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    write_sample_shop(folder / "shop.sqlite")
    question = {"id": "one", "db": "shop.sqlite", "question": "How many customers are there?"}
    (folder / "questions.jsonl").write_text(json.dumps(question) + "\n")
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder, tmp_path_factory):
    sys.path.append(str(__file__).partition("tests")[0] + "demo")
    from restore import restore_folder

    restore_folder(find_model("demo").path, folder / "checkpoint")
    return folder / "checkpoint"


def test_everything_at_once_and_again(run, folder, checkpoint, tmp_path):
    """Files, logs, figures and partings; the second time nothing is measured, and the tables are the same."""
    results = tmp_path / "drift.jsonl"
    command = ["drift", "run", checkpoint, folder / "questions.jsonl", "--folder", tmp_path / "work"]
    command += ["-q", "Q8_0", "-o", results, "--threads", 1]
    code, table, progress = run(*command)
    assert code == 0
    assert "converting to Q8_0" in progress
    assert "| Q8_0.gguf | llama.cpp BF16 |" in table
    assert "Where episodes part" in table
    documents = [json.loads(line) for line in results.read_text().splitlines()]
    assert [one["form"] for one in documents] == ["sqale-edge drift 1"] * 2 + ["sqale-edge parting 1"]
    code, again, progress = run(*command)
    assert (code, again) == (0, table)
    assert "Q8_0.gguf was measured before" in progress
    assert "converting" not in progress
    assert results.read_text().count("\n") == 3
    assert run("drift", "show", results)[1] == table


def test_an_interpreter_without_the_engine_is_a_clear_error(run, folder, checkpoint, tmp_path):
    """The script's own last line is in the message, and what was made before stays."""
    command = ["drift", "run", checkpoint, folder / "questions.jsonl", "--folder", tmp_path / "work", "-q", "Q8_0"]
    code, _, errors = run(*command, "-o", tmp_path / "r.jsonl", "--threads", 1, "--vllm", sys.executable)
    assert code == 1
    assert "No module named" in errors
    assert "run it by hand" in errors
    code, _, errors = run(*command, "-o", tmp_path / "r.jsonl", "--threads", 1, "--vllm", "no-such-python")
    assert (code, "cannot be started" in errors) == (1, True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_ctrl_c_keeps_what_is_done(run, folder, checkpoint, tmp_path):
    """Exit code 130, nothing half made, and the same command goes on from there."""
    command = ["drift", "run", checkpoint, folder / "questions.jsonl", "--folder", tmp_path / "work", "-q", "Q8_0"]
    command += ["-o", tmp_path / "r.jsonl", "--threads", "1"]
    script = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", *map(str, command)]
    process = subprocess.Popen(script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = b""
    while b"converting to Q8_0" not in err:
        chunk = os.read(process.stderr.fileno(), 65536)
        assert chunk, err
        err += chunk
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"the same command goes on from there" in err
    assert [path.name for path in (tmp_path / "work").rglob("*") if path.is_file()] == ["BF16.gguf"]
    code, _, progress = run(*command)
    assert code == 0
    assert "converting to BF16" not in progress


def test_step_by_step(run, folder, checkpoint, tmp_path):
    """Recording, measuring and comparing, each with files that are there already."""
    for quant in ("BF16", "Q4_0"):
        convert_checkpoint(checkpoint, tmp_path / f"{quant}.gguf", quant=quant)
        logs = tmp_path / f"{quant}.jsonl"
        recording = ["drift", "record", folder / "questions.jsonl", "-m", tmp_path / f"{quant}.gguf", "-o", logs]
        code, output, errors = run(*recording, "--threads", 1)
        assert (code, output) == (0, "")
        assert "1 of 1: one" in errors
    files = [tmp_path / "BF16.gguf", tmp_path / "Q4_0.gguf"]
    measuring = ["drift", "measure", tmp_path / "BF16.jsonl", *files, "-o", tmp_path / "r.jsonl", "--threads", 1]
    code, output, _ = run(*measuring, "--json")
    documents = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert documents[1]["against"]["llama.cpp BF16"]["written"]["kl"]["mean"] > 0
    code, output, _ = run("drift", "part", tmp_path / "BF16.jsonl", tmp_path / "Q4_0.jsonl", "-o", tmp_path / "r.jsonl")
    assert code == 0
    assert "| BF16.gguf (" in output
    pytest.importorskip("matplotlib")
    assert run("drift", "show", tmp_path / "r.jsonl", "--plot", tmp_path / "r.png")[0] == 0
    assert (tmp_path / "r.png").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["measure", "missing.jsonl", "missing.gguf"],
        ["part", "missing.jsonl", "missing.jsonl"],
        ["show", "missing.jsonl"],
        ["run", "missing", "missing.jsonl"],
    ],
)
def test_what_is_missing_is_one_clear_line(run, command):
    """On stderr, with exit code 1."""
    code, output, errors = run("drift", *command)
    assert (code, output) == (1, "")
    assert errors.startswith("Error: ")
    assert "missing" in errors


def test_a_file_of_something_else_is_no_results(run, tmp_path):
    """Neither is half a line."""
    for text in ("{", "[1]\n", '{"form": "sqale-edge drift 1"}\n'):
        (tmp_path / "r.jsonl").write_text(text)
        code, _, errors = run("drift", "show", tmp_path / "r.jsonl")
        assert (code, "no file of drift results" in errors) == (1, True)
