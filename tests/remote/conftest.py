"""A stand-in for a vLLM server, with the demo model behind it."""

from __future__ import annotations

import pytest
from stand_in_vllm import StandInVllm

from sqale_edge import EngineSettings, RemoteSettings
from sqale_edge.models import find_model
from sqale_edge.remote.engine import RemoteEngine


@pytest.fixture
def server():
    """The stand-in; what it serves was loaded from a place that is not here."""
    with StandInVllm(find_model("demo").path, "/nowhere/demo") as stand_in:
        yield stand_in


@pytest.fixture
def connect(server):
    """Engines on the stand-in."""
    engines = []

    def make(n_sequences=1, n_ctx=16_384, **remote):
        remote = {"tokenizer": "demo", "answer_timeout_s": 20.0} | remote
        settings = EngineSettings(n_ctx=n_ctx, n_sequences=n_sequences)
        engines.append(RemoteEngine(server.url, settings, RemoteSettings(**remote)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
