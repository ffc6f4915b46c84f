"""A store of its own for every test, and a stand-in for the hub that the real client asks."""

from __future__ import annotations

import os

import pytest
from checkpoints import write_checkpoint
from huggingface_hub import close_session, constants
from stand_in_hub import AGENT_SOURCE, READY, SQALE, StandInHub

from sqale_edge.store.pull import pull_model


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folder of the store, and no token, cache or setting of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("SQALE_EDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    return tmp_path / "home"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Two shards, a training prompt, a licence, and files that no conversion needs."""
    folder = write_checkpoint(tmp_path_factory.mktemp("hub") / "checkpoint", agent_source=AGENT_SOURCE, n_shards=2)
    (folder / "LICENSE").write_text("Do what you like.", encoding="utf-8")
    for name in ("README.md", "optimizer.pt", "model.ckpt", "training_args.bin"):
        (folder / name).write_bytes(b"not needed")
    return folder


@pytest.fixture
def hub(monkeypatch, checkpoint):
    """A hub with the repository of `sqale`, asked by this process and its children."""
    with StandInHub() as hub:
        hub.add(SQALE, checkpoint, license="apache-2.0", base_model="Qwen/Qwen3.5-2B")
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setattr("sqale_edge.store.download._WAIT_S", 0.01)
        yield hub
    close_session()


@pytest.fixture
def ready(hub, qwen_gguf):
    """A repository with a finished file that lacks its training prompt; its content."""
    content = qwen_gguf.read_bytes()
    hub.add(READY, {"files/ready-Q4.gguf": content, "README.md": b"x"}, license="mit", base_model=[SQALE])
    return content


@pytest.fixture(scope="session")
def pulled(tmp_path_factory, checkpoint):
    """A store with `sqale` in it, made once; tests only look at it."""
    home = tmp_path_factory.mktemp("pulled")
    with pytest.MonkeyPatch.context() as patch, StandInHub() as hub:
        patch.setenv("SQALE_EDGE_HOME", str(home))
        patch.setenv("NO_PROXY", "*")
        patch.setattr(constants, "ENDPOINT", hub.url)
        hub.commit = hub.add(SQALE, checkpoint, license="apache-2.0")
        installed = pull_model("sqale", keep_source=True)
    close_session()
    return home, hub, installed
