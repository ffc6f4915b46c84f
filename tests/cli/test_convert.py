"""`sqale-edge convert`."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from checkpoints import write_checkpoint
from terminals import read_terminal

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals are those of POSIX")
MAIN = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", "convert"]
AGENT_SOURCE = 'SYSTEM_PROMPT = "Use the tools."\nUSER_TEMPLATE = "{question}"\n'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "agent", agent_source=AGENT_SOURCE)


def run(*arguments):
    command = [*MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def test_paths_go_to_stdout_and_the_report_to_stderr(checkpoint, tmp_path):
    """stdout has one path a line; stderr says what was found and that the files run."""
    result = run(checkpoint, "-o", tmp_path, "-q", "q8_0", "-q", "BF16")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [str(tmp_path / f"agent-{quant}.gguf") for quant in ("Q8_0", "BF16")]
    assert result.stderr.count("verified: it loads and decodes") == 2
    assert "system from SYSTEM_PROMPT, user from USER_TEMPLATE" in result.stderr
    assert "not found: result, budget, budget_one, limit" in result.stderr


def test_json_is_one_document(checkpoint, tmp_path):
    """The report with everything in it, and nothing else on stdout."""
    result = run(checkpoint, "-o", tmp_path / "m.gguf", "--json", "--name", "My agent", "--no-training-prompt")
    report = json.loads(result.stdout)
    assert report["name"] == "My agent"
    assert report["prompt"]["texts"] == {}
    assert [(file["path"], file["quant"]) for file in report["files"]] == [(str(tmp_path / "m.gguf"), "Q4_K_M")]
    assert report["files"][0]["verification"]["n_vocab"] == 640


def test_a_file_can_be_verified_alone(checkpoint, tmp_path):
    """`--verify` says what is in a file, and refuses a damaged one with exit code 1."""
    run(checkpoint, "-o", tmp_path / "m.gguf", "-q", "Q4_0")
    result = run("--verify", tmp_path / "m.gguf", "--json")
    assert json.loads(result.stdout)["n_vocab"] == 640
    (tmp_path / "m.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:-500])
    result = run("--verify", tmp_path / "m.gguf")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: m.gguf is not a sound GGUF file")


# (arguments, a part of the message)
WRONG_USAGE = [
    ([], "either a CHECKPOINT"),
    (["somewhere"], "-o FILE"),
    (["somewhere", "--verify", "m.gguf"], "either a CHECKPOINT"),
    (["--no-such-option"], "--no-such-option"),
    (["somewhere", "-o", "m.gguf", "-q", "Q9_Z"], "'Q9_Z' is not a file type; choose one of F32"),
    (["somewhere", "-o", "m.gguf", "-q", "iq1_s"], "importance matrix"),
    (["somewhere", "-o", ""], "it is empty"),
    (["", "-o", "m.gguf"], "it is empty"),
    (["somewhere", "-o", "m.bin"], r"does not end in .gguf"),
    (["somewhere", "-o", "m.gguf", "-q", "Q8_0", "-q", "BF16"], "2 file types cannot all go to 'm.gguf'"),
    (["somewhere", "-o", "m.gguf", "--threads", "0"], "--threads"),
    (["--verify", "m.gguf", "-o", "other.gguf"], "leave out --output"),
    (["--verify", "m.gguf", "-q", "Q8_0", "--name", "m"], "leave out --name, --quant"),
    (["--verify", "m.gguf", "--overwrite", "--threads", "2"], "leave out --overwrite, --threads"),
    (["--verify", "m.gguf", "--no-training-prompt"], "leave out --no-training-prompt"),
    (["--verify", "m.gguf", "--repository", "a/b", "--revision", "c"], "leave out --repository, --revision"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USAGE)
def test_wrong_usage_is_code_2(arguments, message):
    """It is found before anything is read: the checkpoint does not even exist. stderr says what to change."""
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_an_error_is_one_line_with_its_fix(checkpoint, tmp_path):
    """What failed, and what to do about it."""
    (tmp_path / "m.gguf").touch()
    result = run(checkpoint, "-o", tmp_path / "m.gguf")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("exists already. Fix: choose another name, or overwrite it with --overwrite.\n")
    assert result.stderr.count("\n") == 1


def run_on_terminal(*arguments, cwd):
    """Exit code, and all that is written on the terminal that is stdout and stderr."""
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    command = [*MAIN, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=environment, cwd=cwd)
    os.close(slave)
    shown = read_terminal(master).replace("\r\n", "\n")
    return process.wait(), shown


@needs_posix
@pytest.mark.parametrize("name", ["m.gguf", "[bold]m[1].gguf"])
def test_a_terminal_shows_amount_rate_and_remaining_time(checkpoint, tmp_path, name):
    """A bar for each step, beside the name of the file as it is, whatever characters are in it."""
    code, shown = run_on_terminal(checkpoint, "-o", name, "-q", "Q8_0", cwd=tmp_path)
    assert code == 0
    assert shown.endswith(f"\n{name}\n")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    steps = [("write", "BF16"), ("quantize", name), ("verify", name)]
    for step, file in steps:
        amount_rate_time = r"\d+\.\d/\d+\.\d MB +([\d.]+ \wB/s|\?) +(\d:\d\d:\d\d|-:--:--)"
        assert re.search(rf"{step} {re.escape(file)} +\S+ +{amount_rate_time}", plain), step
    assert re.search(r"[\d.]+ MB/s +\d:\d\d:\d\d", plain)


@needs_posix
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_name_cannot_steer_a_terminal(checkpoint, tmp_path, options):
    """On a terminal controls in paths and names are escapes, in the bar, the report and the JSON document."""
    arguments = [checkpoint, "-o", "a\x1b]0;b\x07\x9bc.gguf", "--name", "d\x1b[2J\x9be", *options]
    code, shown = run_on_terminal(*arguments, cwd=tmp_path)
    assert code == 0
    assert "\\x1b]0;b" in shown
    assert not re.search(r"\x1b\]|\x1b\[2J|[\x07\x9b]", shown)


@needs_posix
def test_a_program_gets_paths_as_they_are(checkpoint, tmp_path):
    """Where stdout is no terminal, nothing is taken out of a path; JSON escapes what could do harm when it is shown."""
    target = tmp_path / "a\x1b[31mb\x9b.gguf"
    assert run(checkpoint, "-o", target).stdout == f"{target}\n"
    document = run(checkpoint, "-o", target, "--overwrite", "--json").stdout
    assert json.loads(document)["files"][0]["path"] == str(target)
    assert not {"\x1b", "\x9b"} & set(document)


@needs_posix
def test_ctrl_c_that_is_to_be_ignored_is_ignored(checkpoint, tmp_path):
    """As for a job in the background: whoever started the program decides."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = [*MAIN, str(checkpoint), "-o", str(tmp_path / "m.gguf")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    out, _ = process.communicate()
    assert (process.returncode, out.decode()) == (0, f"{tmp_path / 'm.gguf'}\n")
