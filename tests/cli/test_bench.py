"""`sqale-edge bench` as a person or a program meets it; on tiny models, and no time is judged."""

import json
import os
import signal
import subprocess
import sys

import pytest

from sqale_edge.cli import main

WAIT_S = 120


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without anything in it, and a current folder that is no clone."""
    for name in ("SQALE_EDGE_THREADS", "SQALE_EDGE_THREADS_BATCH", "SQALE_EDGE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SQALE_EDGE_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.fixture
def run(capsys):
    """Runs the command line in this process: exit code, stdout, stderr."""

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_json_is_one_document_on_stdout(run, qwen_gguf, tmp_path):
    """On its last and only line; the same one is added to the file, and the time is said beforehand on stderr."""
    options = ("-m", qwen_gguf, "--threads", "1", "--only", "votes", "--no-peers", "--quick", "--minutes", "1.5")
    code, out, err = run("bench", *options, "--json", "-o", tmp_path / "speed.jsonl")
    assert code == 0, err
    assert err.startswith("at most 1.5 minutes")
    document = json.loads(out.splitlines()[-1])
    assert (out.count("\n"), document["plan"]["seconds"], document["plan"]["only"]) == (1, 90.0, ["votes"])
    assert document["measurements"]["votes"]["figures"]
    assert json.loads((tmp_path / "speed.jsonl").read_text()) == document


def test_without_json_there_are_tables(run, qwen_gguf):
    """And no file, which only -o writes."""
    code, out, _ = run("bench", "-m", qwen_gguf, "--threads", "1", "--only", "votes", "--no-peers", "--minutes", "0.05")
    assert code == 0
    assert out.startswith("## Speed of ")
    assert os.listdir() == []  # noqa: PTH208 - the current folder


def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(run, qwen_gguf, tmp_path):
    """The figures come first; what fails behind them is an error all the same."""
    (tmp_path / "file").write_text("")
    options = ("-m", qwen_gguf, "--threads", "1", "--only", "votes", "--no-peers", "--quick", "--minutes", "0.05")
    code, out, err = run("bench", *options, "-o", tmp_path / "file" / "speed.jsonl")
    assert code == 1
    assert out.startswith("## Speed of ")
    assert "cannot be written" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--only", "nonsense"], "--only"),
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--minutes", "inf"], "--minutes"),
        (["--tune"], "demo model is too small"),
        (["--tune", "-m", "m.gguf", "--threads", "2"], "leave out --threads"),
        (["--tune", "-m", "m.gguf", "-o", "speed.jsonl"], "leave out --quick"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, args, word):
    """Nothing on stdout; stderr says what is wrong."""
    code, out, err = run("bench", *args)
    assert (code, out) == (2, "")
    assert word in err


def test_a_missing_model_is_one_clear_line(run, tmp_path):
    """With its name, for both ways."""
    for options in (["--only", "votes"], ["--tune"]):
        code, out, err = run("bench", "-m", tmp_path / "none.gguf", *options)
        assert (code, out) == (1, "")
        assert "none.gguf" in err.splitlines()[-1]
        assert "Traceback" not in err


def test_tuning_is_used_from_then_on(run, qwen_gguf, home, monkeypatch):
    """It is kept in the home, a variable wins, and `doctor` says where its numbers of threads come from."""
    _, out, _ = run("doctor", "--json")
    assert json.loads(out)["machine"]["threads_chosen"] == "by the cores"
    code, out, err = run("bench", "--tune", "-m", qwen_gguf, "--minutes", "0.001")
    assert code == 0, err
    found = json.loads((home / "threads.json").read_text())
    best = f"Best: {found['threads']} to decode, {found['threads_batch']} to prefill"
    assert out.splitlines()[-1] == f"{best}; used from now on, and kept in {home / 'threads.json'}"
    _, out, _ = run("doctor", "--json")
    machine = json.loads(out)["machine"]
    assert (machine["threads_decode"], machine["threads_prefill"]) == (found["threads"], found["threads_batch"])
    assert machine["threads_chosen"].startswith("by bench --tune, 2")
    assert found["model"] in machine["threads_chosen"]
    monkeypatch.setenv("SQALE_EDGE_THREADS", "1")
    _, out, _ = run("doctor", "--json")
    machine = json.loads(out)["machine"]
    assert (machine["threads_decode"], machine["threads_prefill"]) == (1, 1)
    assert machine["threads_chosen"] == "by SQALE_EDGE_THREADS"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.parametrize(
    "options", [["--only", "loading", "-o", "out.jsonl"], ["--only", "decoding", "--plots", "plots"], ["--tune"]]
)
def test_ctrl_c_leaves_nothing(qwen_gguf, tmp_path, home, options):
    """Exit code 130, nothing on stdout, no process, no file, whatever was under way."""
    (tmp_path / "tmp").mkdir()
    script = "from sqale_edge.cli import main; main()"
    arguments = ["bench", "-m", str(qwen_gguf), *options]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    said = ""
    while not any(word in said for word in ("loading:", "decoding:", "measuring")):
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, "")
    assert rest.splitlines()[-1] == "Cancelled."
    assert list((tmp_path / "tmp").iterdir()) == []
    assert os.listdir() == []  # noqa: PTH208 - the current folder
    assert not (home / "threads.json").exists()
