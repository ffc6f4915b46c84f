"""From what is installed here to answers on a machine without a network: the real program, pip, llama.cpp and model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import pytest
from command_line import run as run_command
from command_line import start as start_command

from sqale_edge.bundle.installer.place import find_command
from sqale_edge.bundle.unfinished import work_folder
from sqale_edge.models import find_model
from sqale_edge.store.add import add_model
from sqale_edge.store.steps import Listener

NO_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]
WAIT_S = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A zip of this installation with a model of the store in it, and what `create --json` has said."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQALE_EDGE_HOME", str(folder / "home"))
        patch.setenv("PIP_NO_INDEX", "1")
        add_model(str(find_model("demo").path), name="tiny", is_offline=True)
        arguments = ("--model", "tiny", "--output", folder / "sqale edge.zip", "--json")
        (out, err), code = run_command("bundle", "create", *arguments)
    assert code == 0, err
    return folder / "sqale edge.zip", json.loads(out), err


def run_alone(*command, **options):
    """A command in a namespace without a network, if there are namespaces."""
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": WAIT_S} | options
    prefix = NO_NETWORK
    if not sys.platform.startswith("linux") or subprocess.run([*prefix, "true"], check=False).returncode:
        prefix = []
    return subprocess.run([*prefix, *map(str, command)], check=False, **options)


def test_create_says_what_is_in_it(made):
    """The document has path, digest, wheels and models; stderr the digest, for the person."""
    path, report, err = made
    assert report["path"] == str(path)
    assert report["n_bytes"] == path.stat().st_size
    names = {wheel["name"] for wheel in report["about"]["wheels"]}
    assert {"sqale-edge", "llama-cpp-python", "numpy", "huggingface-hub", "pip"} <= names
    assert report["about"]["models"] == ["tiny"]
    assert f"Its digest, to be sent in another way than the bundle: {report['digest']}\n" in err
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["home", path.name]


def test_from_the_zip_to_an_answer_without_a_network(made, tmp_path):
    """verify, unpack, install.py, demo, and the model of the store: no step has a network."""
    path, report, _ = made
    digest = report["digest"]
    assert run_command("bundle", "verify", path)[0][0] == f"{digest}\n"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", path, tmp_path / "stick"], check=True)
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = run_alone(
        sys.executable, tmp_path / "stick/install.py", "--digest", digest, "--venv", tmp_path / "new", env=environment
    )
    assert (done.returncode, done.stdout) == (0, f"{find_command(tmp_path / 'new')}\n"), done.stderr
    command = find_command(tmp_path / "new")
    done = run_alone(command, "demo", "--json", env=environment)
    assert done.returncode in (0, 3), done.stderr  # the demo model does not know every question
    assert sum(one["sql"] is not None for one in json.loads(done.stdout)["episodes"]) >= 4
    assert run_alone(command, "models", "verify").stdout == "tiny: as it was stored\ndemo: as it was stored\n"


def test_models_only(made, run):
    """On a machine that has the program; a wrong digest is refused."""
    path, report, _ = made
    code, out, err = run("bundle", "install", path, "--models-only", "--json")
    assert (code, json.loads(out)) == (0, {"digest": report["digest"], "models": ["tiny"]})
    assert err == "tiny is ready: sqale-edge ask DB QUESTION --model tiny\n"
    code, out, err = run("bundle", "install", path, "--models-only", "--digest", report["digest"])
    assert (code, out, err.startswith("tiny was there already")) == (0, "tiny\n", True)
    code, out, err = run("bundle", "install", path, "--models-only", "--digest", "0" * 64)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: the digest of ")


def test_verify_has_exit_code_1_for_damage(made, tmp_path, run):
    """What is wrong on stdout, one line with the fix on stderr; the digest is only compared if all is whole."""
    path, report, _ = made
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "b.zip").write_bytes(content)
    code, out, err = run("bundle", "verify", tmp_path / "b.zip", "--json")
    document = json.loads(out)
    assert (code, document["digest"], len(document["problems"])) == (1, report["digest"], 1)
    assert "has the wrong checksum" in document["problems"][0]
    assert err.endswith("1 of its files. Fix: copy it again, or have it made again.\n")
    code, out, err = run("bundle", "install", tmp_path / "b.zip", "--venv", tmp_path / "venv")
    assert (code, out, (tmp_path / "venv").exists()) == (1, "", False)
    assert run("bundle", "verify", path, "--digest", report["digest"])[0] == 0
    assert run("bundle", "verify", path, "--digest", "0" * 64)[0] == 1


def test_a_name_that_is_taken(made, tmp_path, run):
    """Nothing is replaced unless that is asked for, and then only a bundle."""
    path, _, _ = made
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("mine", "")
    for arguments in (
        ["-o", path],
        ["-o", tmp_path],
        ["-o", tmp_path, "--overwrite"],
        ["-o", tmp_path / "photos.zip", "--overwrite"],
        ["-o", tmp_path / "x" / "y"],
    ):
        code, out, err = run("bundle", "create", *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert any(text in err for text in ("exists already", "is no bundle", "there is no folder"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_ctrl_c_leaves_nothing_of_create(tmp_path):
    """While wheels are written: exit code 130, and an empty folder."""
    process = start_command("bundle", "create", "-o", tmp_path / "b.zip", start_new_session=True)
    while not list(tmp_path.glob(".sqale-edge-*.part/wheels/*.whl")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, "", "Cancelled.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_what_a_killed_create_leaves_is_deleted_by_the_next(tmp_path):
    """But not while its process lives; and it is said."""
    process = start_command("bundle", "create", "-o", tmp_path / "b.zip")
    while not list(tmp_path.glob(".sqale-edge-*.part/wheels/*.whl")):
        assert process.poll() is None
        time.sleep(0.01)
    (left,) = tmp_path.iterdir()
    notes = []
    listener = Listener(note=notes.append)
    with work_folder(tmp_path / "c.zip", listener) as work:
        assert sorted(tmp_path.iterdir()) == sorted([left, work])
        process.kill()
        process.communicate(timeout=WAIT_S)
        with work_folder(tmp_path / "d.zip", listener) as other:
            assert sorted(tmp_path.iterdir()) == sorted([other, work])
    assert list(tmp_path.iterdir()) == []
    assert notes == [f"deleted what a killed run has left: {str(left)!r}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "--platform", "beos"], "there is no platform 'beos'"),
        (["verify", "nowhere"], "there is no bundle 'nowhere'"),
        (["create", "--model", "nothing"], "there is no model 'nothing' in the store"),
        (["create", "-o", "n" * 300], "cannot be used: File name too long"),
        (["verify", "n" * 300], "cannot be used: File name too long"),
        (["install", "nowhere", "--venv", "~nobody-of-this-name"], "there is no home for "),
    ],
)
def test_errors_are_one_line(run, tmp_path, monkeypatch, arguments, message):
    """With the fix; nothing stays."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run("bundle", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert " Fix: " in err
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_has_exit_code_2(run):
    """Options that contradict each other, and none at all."""
    assert run("bundle", "install", "x", "--models-only", "--no-models")[0] == 2
    assert run("bundle", "verify")[0] == 2
