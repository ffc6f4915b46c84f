"""`sqale-edge models` at the terminal, and models of the store in the other commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

import pytest
from command_line import start
from stand_in_hub import SQALE
from terminals import read_terminal

from sqale_edge.installed import read_installed, store_folder
from sqale_edge.models import find_model
from sqale_edge.store.add import add_model

WAIT_S = 120
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="terminals are those of POSIX")
QUESTION = "How many customers are there?"


@pytest.fixture
def tiny(home):
    """The demo model under another name: one that answers."""
    return add_model(str(find_model("demo").path), name="tiny", is_offline=True)


def test_from_the_hub_to_an_answer(hub, run):
    """pull, list, show, verify, path, rm: stdout has the answer alone, each also as one JSON document."""
    code, out, err = run("models", "pull", "sqale")
    path = f"{read_installed('sqale').path}\n"
    assert (code, out, err) == (0, path, "sqale is ready: sqale-edge ask DB QUESTION --model sqale\n")
    code, out, err = run("models", "list")
    assert re.search(rf"^sqale +here +Q4_K_M +0\.00 GB +{SQALE} ", out, re.MULTILINE)
    assert re.search(r"^bird +not here +trl-lab/qwen3.5-2b-grpo-bird ", out, re.MULTILINE)
    assert out.endswith(f"\nStore: {store_folder()}\n")
    code, out, err = run("models", "list", "--json")
    assert [(entry["name"], entry["state"]) for entry in json.loads(out)] == [
        ("sqale", "here"),
        ("demo", "part of the package"),
        ("bird", "not here"),
        ("synsql", "not here"),
        ("base", "not here"),
    ]
    code, out, err = run("models", "show", "sqale")
    for part in (r"origin +converted by this program from the checkpoint", rf"from +{SQALE}@[0-9a-f]{{40}}"):
        assert re.search(rf"^{part}$", out, re.MULTILINE)
    assert re.search(r"^licence +apache-2.0$", out, re.MULTILINE)
    code, out, err = run("models", "show", "sqale", "--json")
    assert json.loads(out)["file"]["sha256"] == hashlib.sha256(read_installed("sqale").path.read_bytes()).hexdigest()
    assert run("models", "verify", "sqale") == (0, "sqale: as it was stored\n", "")
    assert run("models", "path", "sqale") == (0, path, "")
    code, out, err = run("doctor", "--model", "sqale", "--json")
    assert json.loads(out)["model"]["prompt"] == "training"
    code, out, err = run("models", "rm", "sqale", "--json")
    assert (code, json.loads(out), err) == (0, {"removed": "sqale"}, "")
    code, out, err = run("models", "path", "sqale")
    problem = "there is no model 'sqale' in the store"
    hint = "there are: demo; get sqale with sqale-edge models pull sqale"
    assert (code, out, err) == (1, "", f"Error: {problem}. Fix: {hint}.\n")
    code, out, err = run("models", "rm", "demo", "--yes")
    assert (code, out) == (1, "")
    assert err == "Error: the demo model is a part of the package. Fix: name a model in the store.\n"


def test_a_model_of_the_store_answers(tiny, run, shop):
    """By its name, in `ask`, and in Python."""
    code, out, _ = run("ask", shop, QUESTION, "--model", "tiny", "--threads", 1, "--format", "csv")
    assert (code, out.splitlines()[-1].isdigit()) == (0, True)


def test_a_name_that_is_not_there(run, shop, tiny):
    """Every command says what there is, and how to get the model of the catalogue."""
    for command in (["ask", shop, QUESTION, "--model", "bird"], ["doctor", "--model", "bird"]):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert err == (
            "Error: there is no model 'bird' in the store, and no such file. Fix: there are: tiny, demo; get bird with "
            "sqale-edge models pull bird, or give the path of a .gguf file.\n"
        )


def test_no_name_at_all(run, shop, tiny):
    """A command that needs a model names those that are here, and says how to get one."""
    code, out, err = run("ask", shop, QUESTION)
    assert (code, out) == (2, "")
    assert err.endswith(
        "Error: Missing option '-m' / '--model' (env var: 'SQALE_EDGE_MODEL'). Fix: there are: tiny, demo; get sqale "
        "with sqale-edge models pull sqale, or give the path of a .gguf file\n"
    )


def test_the_demo_model_is_like_the_others(run):
    """It is shown, verified and found, but cannot be removed."""
    path = str(find_model("demo").path)
    assert run("models", "path", "demo") == (0, f"{path}\n", "")
    code, out, _ = run("models", "show", "demo", "--json")
    assert (code, json.loads(out)["path"]) == (0, path)
    assert run("models", "verify") == (0, "demo: as it was stored\n", "")
    assert run("models", "rm", "demo")[0] == 1


def test_damage_has_exit_code_1(tiny, run):
    """`verify` names the file and what to do; `list` says it of a file that is gone, and goes on."""
    tiny.path.write_bytes(b"GGUF" + bytes(tiny.manifest.file.n_bytes - 4))
    code, out, err = run("models", "verify", "--json")
    assert code == 1
    assert "has the SHA-256" in json.loads(out)[0]["problems"][0]
    assert err == "Error: damaged: tiny. Fix: sqale-edge models rm tiny, and pull or add it again.\n"
    tiny.path.unlink()
    assert re.search(r"^tiny +damaged ", run("models", "list")[1], re.MULTILINE)
    (tiny.folder / "manifest.json").write_text('{"format": 99}', encoding="utf-8")
    code, out, err = run("models", "show", "tiny")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "is no manifest that this version can read: another version of sqale-edge wrote it" in err
    assert run("models", "rm", "tiny")[0] == 0
    assert not tiny.folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "sqale", "--quant", "Q5_X"], "Q5_X"),
        (["pull", "sqale", "--training-prompt", "x.py", "--no-training-prompt"], "contradict each other"),
        (["pull"], "Missing argument 'MODEL'"),
        (["show"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_has_exit_code_2(run, arguments, message):
    """And says how it is used."""
    code, out, err = run("models", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_name_that_is_too_long(tiny, run):
    """For any command it is one that is not there."""
    for command in ("show", "path", "rm", "verify"):
        code, out, err = run("models", command, "n" * 300)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "there is no model 'nnn" in err


@needs_posix
def test_a_manifest_cannot_steer_a_terminal(tiny, hub, run):
    """Texts of the hub are shown with their controls escaped."""
    path = tiny.folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8")) | {"licence": "\x1b[2Jmit", "notes": ["\x9bx"]}
    path.write_text(json.dumps(document), encoding="utf-8")
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", "models", "show", "tiny"]
    master, slave = os.openpty()
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        shown = read_terminal(master)
    assert "\\x1b[2Jmit" in shown
    assert "\x9b" not in shown


@needs_posix
def test_rm_asks_at_a_terminal(tiny):
    """And only there; without a yes the model stays."""
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", "models", "rm", "tiny"]
    master, slave = os.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.write(master, b"n\n")
    shown = read_terminal(master)
    assert process.wait(WAIT_S) == 130
    assert "Delete the model 'tiny'? [y/N]" in shown
    assert tiny.path.exists()
    process = start("models", "rm", "tiny")
    process.communicate(timeout=WAIT_S)
    assert (process.returncode, tiny.folder.exists()) == (0, False)


@needs_posix
def test_one_bar_at_a_terminal(hub):
    """While it downloads; nothing of it stays, and stdout has the path."""
    hub.chunk_bytes, hub.delay_s = 50_000, 0.02
    master, slave = os.openpty()
    process = start("models", "pull", "sqale", stderr=slave)
    os.close(slave)
    shown = read_terminal(master)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, f"{read_installed('sqale').path}\n")
    assert f"download {SQALE}" in shown
    assert "sqale is ready" in shown


def test_no_request_but_those_of_pull(hub, tiny, run, shop):
    """What reads the store asks the hub nothing."""
    for command in (["list"], ["show", "tiny"], ["verify"], ["path", "tiny"]):
        assert run("models", *command)[0] == 0
    assert run("models", "rm", "tiny")[0] == 0
    assert hub.requests == []
