"""The vocabulary and texts of a served model come from a GGUF, the store, or the checkpoint's folder."""

import shutil

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint
from stand_in_vllm import StandInVllm

from sqale_edge import EngineSettings, RemoteSettings
from sqale_edge.errors import ModelLoadError
from sqale_edge.models import find_model
from sqale_edge.remote.engine import RemoteEngine
from sqale_edge.store.add import add_model

AGENT_SOURCE = 'SYSTEM_PROMPT = "Use the tools."\nUSER_TEMPLATE = "Q: {question}"\n'
SETTINGS = EngineSettings(n_ctx=1024)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint's folder, and the file that it becomes."""
    folder = write_checkpoint(tmp_path_factory.mktemp("served") / "agent", agent_source=AGENT_SOURCE)
    convert_checkpoint(folder, folder.parent / "agent.gguf", quant="BF16")
    return folder, folder.parent / "agent.gguf"


def describe(engine):
    info = engine.info
    engine.close()
    texts = {key: value for key, value in info.metadata.items() if key.startswith("sqale.")}
    return texts, info.chat_template, info.end_tokens, info.think_close, info.sampling, info.n_vocab


def test_a_folder_says_what_its_file_does(checkpoint, tmp_path):
    """Its weights are not needed; the server's own folder is found by itself where that is on this machine."""
    folder, gguf = checkpoint
    small = tmp_path / "small"
    shutil.copytree(folder, small, ignore=shutil.ignore_patterns("*.safetensors*"))
    with StandInVllm(gguf, folder, n_ctx=1024) as server:
        found = [
            describe(RemoteEngine(server.url, SETTINGS, RemoteSettings(tokenizer=tokenizer)))
            for tokenizer in (str(gguf), str(small), None)
        ]
    assert found[0] == found[1] == found[2]
    assert found[0][0]["sqale.prompt.system"] == "Use the tools."


def test_a_model_of_the_store(server):
    """By its name, with the notes that belong to it."""
    add_model(str(find_model("demo").path), name="tiny", is_offline=True)
    engine = RemoteEngine(server.url, EngineSettings(), RemoteSettings(tokenizer="tiny"))
    engine.close()
    assert engine.source.said == "tiny"


def test_a_folder_without_a_tokenizer(server, tmp_path):
    """What is missing, and what else can be named."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"the vocabulary in .* cannot be used") as caught:
        RemoteEngine(server.url, EngineSettings(), RemoteSettings(tokenizer=str(tmp_path)))
    assert "--tokenizer" in caught.value.hint


def test_nothing_of_a_folder_is_left_behind(checkpoint, tmp_path, monkeypatch):
    """The file that is made of a folder is gone when it is read."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, gguf = checkpoint
    with StandInVllm(gguf, "x", n_ctx=1024) as server:
        RemoteEngine(server.url, SETTINGS, RemoteSettings(tokenizer=str(folder))).close()
    assert list(tmp_path.iterdir()) == []
