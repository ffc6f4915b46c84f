"""`sqale-edge imatrix`, and what `convert` makes of its file."""

import json
import os
import signal
import subprocess
import sys

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint
from sqale_edge.convert.imatrix import Imatrix

from sqale_edge.testing import make_shop

WAIT_S = 120
TEXT = "SELECT name, count(*) FROM customers GROUP BY name\n" * 20
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "agent")


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "bf16.gguf"
    convert_checkpoint(checkpoint, path, "BF16")
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_from_a_question_to_a_file_made_by_a_recipe(run, checkpoint, model, text, tmp_path):
    """An answer, text, the matrix of both, a recipe that needs it, and what `doctor` says of the result."""
    shop = make_shop(tmp_path / "shop.sqlite")
    options = ("--threads", "1", "-m", "demo", "--format", "json")
    code, out, _ = run("ask", shop, "How many customers are there?", *options)
    assert code == 0
    (tmp_path / "episode.json").write_text(out, encoding="utf-8")
    matrix = tmp_path / "i.gguf"
    code, out, err = run("imatrix", tmp_path / "episode.json", text, "-m", model, "-o", matrix, "--threads", 1)
    assert (code, out) == (0, f"{matrix}\n")
    assert "31 matrices, " in err
    assert err.endswith(" tokens in 2 transcripts\n")
    assert Imatrix.read(matrix).datasets == ("episode.json", "text.txt")
    target = tmp_path / "fast.gguf"
    code, out, err = run("convert", checkpoint, "-o", target, "--recipe", "q4-fast", "--imatrix", matrix)
    assert (code, out) == (0, f"{target}\n"), err
    assert "recipe q4-fast on Q4_0, with an importance matrix" in err
    code, out, _ = run("doctor", "-m", target, "--json")
    report = json.loads(out)["model"]
    assert report["recipe"].startswith("q4-fast (")
    assert report["imatrix"] == Imatrix.read(matrix).sha256


def test_json_is_one_document(run, model, text, tmp_path):
    """How much was read; `--max-tokens` ends it early, and a `.dat` file is of the older form."""
    options = ("-m", model, "-o", tmp_path / "i.dat", "--threads", 1, "--max-tokens", 70, "--json")
    code, out, _ = run("imatrix", text, text, *options)
    assert code == 0
    assert json.loads(out) == {
        "path": str(tmp_path / "i.dat"),
        "n_matrices": 31,
        "n_tokens": 70,
        "n_transcripts": 1,
    }
    assert (tmp_path / "i.dat").read_bytes()[:4] == (31).to_bytes(4, "little")


def test_what_cannot_be_done_is_said_before_the_work(run, model, text, tmp_path):
    """Usage with exit code 2, everything else with 1, one line, and nothing is left."""
    (tmp_path / "there.gguf").touch()
    (tmp_path / "empty.jsonl").write_text('{"form": "sqale-edge results 1"}\n')
    before = sorted(tmp_path.iterdir())
    cases = [
        ([text, "-m", model, "-o", tmp_path / "i.bin"], 2, "ends neither in .gguf nor in .dat"),
        (["-m", model, "-o", tmp_path / "i.gguf"], 2, "TRANSCRIPTS"),
        ([tmp_path / "empty.jsonl", "-m", model, "-o", tmp_path / "i.gguf"], 2, "hold no episode"),
        ([text, "-m", model, "-o", tmp_path / "there.gguf"], 1, "exists already"),
        ([text, "-m", model, "-o", tmp_path / "missing" / "i.gguf"], 1, "is in no folder that exists"),
        ([text, "-m", tmp_path / "missing.gguf", "-o", tmp_path / "i.gguf"], 1, "missing.gguf"),
        ([tmp_path / "missing.txt", "-m", model, "-o", tmp_path / "i.gguf"], 1, "cannot be read"),
    ]
    for arguments, expected, message in cases:
        code, out, err = run("imatrix", *arguments)
        assert (code, out) == (expected, ""), err
        assert message in " ".join(err.split())
        assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


@needs_posix
def test_ctrl_c_leaves_nothing(model, tmp_path):
    """In the middle of the work: exit code 130, and no file."""
    lines = [json.dumps({"tokens": list(range(1, 400))})] * 4000
    (tmp_path / "logs.jsonl").write_text("\n".join(lines))
    arguments = ["-v", "imatrix", tmp_path / "logs.jsonl", "-m", model, "-o", tmp_path / "i.gguf", "--threads", "1"]
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = b""
    while b"llama_context" not in err:  # llama.cpp's log: the evaluation begins
        chunk = os.read(process.stderr.fileno(), 65536)
        assert chunk, err
        err += chunk
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, b"")
    assert rest.endswith(b"Cancelled.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["logs.jsonl"]


def test_recipes_are_listed(run):
    """For a person and as JSON, with what is made where none is given."""
    code, out, _ = run("convert", "--list-recipes")
    assert code == 0
    assert ["q4-protected", "Q4_K_M", "optional"] in [line.split()[:3] for line in out.splitlines()]
    assert out.splitlines()[-1].startswith("Without --recipe: --quant Q4_K_M")
    code, out, _ = run("convert", "--list-recipes", "--json")
    document = json.loads(out)
    assert document["default"] == "Q4_K_M"
    recipes = {recipe["name"]: recipe for recipe in document["recipes"]}
    assert recipes["q4-fast"]["imatrix"] == "required"
    assert len(recipes["q4-protected"]["sha256"]) == 64


# (arguments of convert, a part of the message)
WRONG_USAGE = [
    (["somewhere", "-o", "m.gguf", "--recipe", "q4-best"], "there is no recipe 'q4-best'; choose q4-fast"),
    (["somewhere", "-o", "m.gguf", "--recipe", "Q8_0"], "types such as Q8_0 go to --quant"),
    (["somewhere", "-o", "m.gguf", "--recipe", "q4-fast", "-q", "Q8_0"], "2 file types cannot all go to 'm.gguf'"),
    (["--list-recipes", "--recipe", "q4-fast"], "--list-recipes converts nothing: leave out --recipe"),
    (["--verify", "m.gguf", "--imatrix", "i.gguf"], "leave out --imatrix"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USAGE)
def test_wrong_usage_of_convert_is_code_2(run, arguments, message):
    """Found before anything is read; stderr says what to change."""
    code, out, err = run("convert", *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
