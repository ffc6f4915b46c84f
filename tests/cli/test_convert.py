"""`sqale-edge convert`."""

import json
import subprocess
import sys

import pytest
from checkpoints import write_checkpoint

AGENT_SOURCE = 'SYSTEM_PROMPT = "Use the tools."\nUSER_TEMPLATE = "{question}"\n'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "agent", agent_source=AGENT_SOURCE)


def run(*arguments):
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", "convert", *map(str, arguments)]
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


@pytest.mark.parametrize("arguments", [[], ["somewhere"], ["somewhere", "--verify", "m.gguf"], ["--no-such-option"]])
def test_wrong_usage_is_code_2(arguments):
    """A checkpoint needs an output, and either a checkpoint or a file to verify is given."""
    assert run(*arguments).returncode == 2


def test_an_error_is_one_line_with_its_fix(checkpoint, tmp_path):
    """What failed, and what to do about it."""
    (tmp_path / "m.gguf").touch()
    result = run(checkpoint, "-o", tmp_path / "m.gguf")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("exists already. Fix: choose another name, or overwrite it with --overwrite.\n")
    assert result.stderr.count("\n") == 1
