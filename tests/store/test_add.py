"""`add`: files and checkpoints that are on this machine already, and models of other programs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from stand_in_hub import AGENT_SOURCE, SQALE

from sqale_edge.errors import ModelLoadError, ModelNotFoundError, StoreError
from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.llama import read_model_info
from sqale_edge.models import find_model
from sqale_edge.protocol import Protocol
from sqale_edge.store.add import add_model
from sqale_edge.store.care import find_damage, remove_model
from sqale_edge.store.training_texts import PromptChoice


def test_a_file_is_copied(qwen_gguf, tmp_path):
    """The original can go; it says that somebody else made it."""
    original = tmp_path / "My Model (v2).GGUF"
    original.write_bytes(qwen_gguf.read_bytes())
    installed = add_model(str(original))
    original.unlink()
    assert (installed.manifest.name, installed.manifest.origin) == ("my-model-v2", "ready-made")
    assert installed.manifest.source == str(original)
    assert find_damage(installed) == []
    assert find_model("my-model-v2").path == installed.path


def test_a_linked_file_stays_where_it_is(qwen_gguf, tmp_path):
    """`rm` does not delete it; when it is gone, the error says so."""
    original = tmp_path / "x.gguf"
    original.write_bytes(qwen_gguf.read_bytes())
    assert add_model(str(original), name="one", is_linked=True).path == original
    add_model(str(original), name="two", is_linked=True)
    remove_model("one")
    assert original.exists()
    original.unlink()
    with pytest.raises(StoreError, match="the file of the model 'two' is gone") as error:
        find_model("two")
    assert "models rm two" in error.value.hint


def test_a_changed_file_is_found(qwen_gguf):
    """By its length at once, by one other bit when every byte is read."""
    installed = add_model(str(qwen_gguf), name="x")
    content = bytearray(installed.path.read_bytes())
    content[-1] ^= 1
    installed.path.write_bytes(content)
    assert find_model("x").path == installed.path
    (problem,) = find_damage(installed)
    assert hashlib.sha256(content).hexdigest() in problem
    installed.path.write_bytes(content[:-1])
    with pytest.raises(StoreError, match=f"has {len(content) - 1:,} bytes instead of {len(content):,}"):
        find_model("x")


def test_a_checkpoint_is_converted(checkpoint, tmp_path):
    """As the manual steps say where there is no network; the folder is as it was."""
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    installed = add_model(str(checkpoint), name="sqale")
    assert (installed.manifest.origin, installed.manifest.quant) == ("converted", "Q4_K_M")
    assert installed.manifest.repository == SQALE
    assert Protocol(read_model_info(installed.path)).source == "training"
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


def test_a_known_model_gets_its_texts(hub, qwen_gguf, tmp_path):
    """It is known by its file's name; the texts come from the hub, once."""
    original = tmp_path / "Qwen3.5-2B-GRPO-SQaLe.Q4_K_M.gguf"
    original.write_bytes(qwen_gguf.read_bytes())
    installed = add_model(str(original), name="mine")
    assert installed.manifest.texts["sqale.prompt.user"] == "Q: {question}"
    assert hub.list_downloads() == ["sqale_agent.py"]
    assert (installed.path.parent / "sqale_agent.py").read_text(encoding="utf-8") == AGENT_SOURCE


def test_a_known_model_without_a_network_says_what_to_do(qwen_gguf, tmp_path):
    """It is not taken without its texts unless that is wanted; they can be given."""
    original = tmp_path / "qwen3.5-2b-grpo-bird-Q8_0.gguf"
    original.write_bytes(qwen_gguf.read_bytes())
    with pytest.raises(StoreError, match=r"training prompt of trl-lab/qwen3\.5-2b-grpo-bird") as error:
        add_model(str(original), is_offline=True)
    assert "/trl-lab/qwen3.5-2b-grpo-bird/resolve/main/sqale_agent.py" in error.value.hint
    assert list_names() == []
    source = tmp_path / "anything.py"
    source.write_text(AGENT_SOURCE, encoding="utf-8")
    given = add_model(str(original), name="given", prompt=PromptChoice(source), is_offline=True)
    assert given.manifest.prompt_source == str(source)
    model = find_model("given")
    assert Protocol(model.complete(read_model_info(model.path))).source == "training"
    without = add_model(str(original), name="without", prompt=PromptChoice(is_wanted=False), is_offline=True)
    assert without.manifest.texts == {}


# (content of the file, part of the message)
PROMPTS = [
    ("x = 1\n", "does not hold the training prompt: not found: system, user"),
    ("SYSTEM_PROMPT = (\n", "cannot be parsed as Python"),
]


@pytest.mark.parametrize(("content", "message"), PROMPTS)
def test_a_wrong_training_prompt(qwen_gguf, tmp_path, content, message):
    """The file is read, never run; what is wrong with it is one line."""
    source = tmp_path / "agent.py"
    source.write_text(content, encoding="utf-8")
    with pytest.raises(StoreError, match=message):
        add_model(str(qwen_gguf), name="x", prompt=PromptChoice(source))
    with pytest.raises(StoreError, match="does not exist"):
        add_model(str(qwen_gguf), name="x", prompt=PromptChoice(tmp_path / "nothing.py"))
    assert list_names() == []


def test_a_taken_name(qwen_gguf):
    """Nothing is replaced; large letters are no other name."""
    add_model(str(qwen_gguf), name="x")
    with pytest.raises(StoreError, match="there is a model 'x' already") as error:
        add_model(str(qwen_gguf), name="X")
    assert "models rm x" in error.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<html>log in</html>", "not a GGUF file, but a web page"), (b"", "not a GGUF file, but empty")],
)
def test_a_file_that_is_no_model(tmp_path, content, message):
    """A page that was saved under the model's name, for example."""
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        add_model(str(tmp_path / "x.gguf"))
    with pytest.raises(StoreError, match="there is nothing at"):
        add_model(str(tmp_path / "y.gguf"))
    assert list_names() == []
    assert list((store_folder() / ".work").iterdir()) == []


def write_ollama(folder, parts, content, **layer):
    digest = hashlib.sha256(content).hexdigest()
    path = folder.joinpath("manifests", *parts)
    path.parent.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / f"sha256-{digest}").write_bytes(content)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"} | layer,
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}), encoding="utf-8")


def test_a_model_of_ollama(qwen_gguf, tmp_path, monkeypatch):
    """By the name that `ollama list` shows; the blob is only read, and can be linked to."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    content = qwen_gguf.read_bytes()
    write_ollama(tmp_path / "ollama", ["registry.ollama.ai", "library", "coder", "1.5b"], content)
    write_ollama(tmp_path / "ollama", ["hf.co", "someone", "repo", "latest"], content)
    assert add_model("ollama:coder:1.5b").path.read_bytes() == content
    linked = add_model("ollama:hf.co/someone/repo", is_linked=True)
    assert (linked.manifest.name, linked.path.parent) == ("repo", tmp_path / "ollama" / "blobs")
    assert linked.manifest.source == "ollama:hf.co/someone/repo"
    for text in ("ollama:nothing", "ollama:../../x", "ollama:coder:9b"):
        with pytest.raises(StoreError, match="there is no 'ollama:") as error:
            add_model(text)
        assert error.value.hint == "ollama list shows the names"
    write_ollama(tmp_path / "ollama", ["registry.ollama.ai", "library", "bad", "latest"], b"x", digest="sha256:../x")
    with pytest.raises(StoreError, match="is not one GGUF file"):
        add_model("ollama:bad")


def test_a_model_of_lm_studio(qwen_gguf, tmp_path, monkeypatch):
    """By publisher and repository, and by the file where there are several."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    folder = tmp_path / ".lmstudio" / "models" / "someone" / "repo"
    folder.mkdir(parents=True)
    (folder / "a-Q4.gguf").write_bytes(qwen_gguf.read_bytes())
    assert add_model("lmstudio:someone/repo").manifest.name == "a-q4"
    (folder / "b.gguf").write_bytes(qwen_gguf.read_bytes())
    with pytest.raises(StoreError, match=r"has 2 files: a-Q4\.gguf, b\.gguf") as error:
        add_model("lmstudio:someone/repo")
    assert error.value.hint == "name one of them: lmstudio:someone/repo/a-Q4.gguf"
    assert add_model("lmstudio:someone/repo/b.gguf").manifest.name == "b"
    for text in ("lmstudio:someone/other", "lmstudio:../x"):
        with pytest.raises(StoreError):
            add_model(text)


def test_removing(qwen_gguf):
    """All of it is gone; a second time is an error that says what there is."""
    installed = add_model(str(qwen_gguf), name="x")
    remove_model("X")
    assert not installed.folder.exists()
    assert read_installed("x") is None
    for name in ("x", "../x", ".work", ""):
        with pytest.raises(ModelNotFoundError, match="there is no model") as error:
            remove_model(name)
        assert error.value.hint == "there are: demo"


def test_a_store_that_cannot_be_written_to(qwen_gguf, tmp_path, monkeypatch):
    """One line with the path, and how to have another store; what is in it can be used."""
    installed = add_model(str(qwen_gguf), name="x")
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("SQALE_EDGE_HOME", str(tmp_path / "file"))
    assert list_names() == []
    with pytest.raises(StoreError, match="in the model store cannot be used: Not a directory") as error:
        add_model(str(qwen_gguf), name="y")
    assert "SQALE_EDGE_HOME" in error.value.hint
    assert installed.path.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a mount namespace")
def test_a_store_on_a_read_only_disk(qwen_gguf, home):
    """It is read, and everything that would change it is one line."""
    add_model(str(qwen_gguf), name="x")
    script = (
        'mount --bind "$SQALE_EDGE_HOME" "$SQALE_EDGE_HOME" && mount -o remount,ro,bind "$SQALE_EDGE_HOME" || exit 77\n'
        'for what in "list" "path x" "verify x" "show x" "rm x --yes"; do\n'
        f'"{sys.executable}" -P -c "from sqale_edge.cli import main; main()" models $what >&2; echo $?\ndone'
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.stdout.split() == ["0", "0", "0", "0", "1"]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "in the model store cannot be used" in last
    assert find_damage(read_installed("x")) == []
