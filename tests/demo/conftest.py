"""The demo's scripts are no package: their folder goes on the path. Nothing here needs torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from checkpoints import encode, make_tensors, write_checkpoint, write_json, write_weights
from sqale_edge.convert import convert_checkpoint

from sqale_edge import EngineSettings
from sqale_edge.llama import LlamaEngine

sys.path.append(str(Path(__file__).parents[2] / "demo"))


@pytest.fixture(scope="session")
def vocabulary():
    """The demo's vocabulary."""
    from vocabulary import Vocabulary

    return Vocabulary.load()


@pytest.fixture(scope="session")
def demo_gguf(vocabulary, tmp_path_factory):
    """A BF16 file with the demo's vocabulary and prompt, and random weights."""
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_checkpoint(folder, is_multimodal=False, value_heads=2)
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": vocabulary.n_tokens}
    write_json(folder / "config.json", config)
    tensors = make_tensors(config, seed=0, is_multimodal=False)
    write_weights(folder, {name: encode(array, "BF16") for name, array in tensors.items()}, dtype="BF16")
    vocabulary.write_tokenizer(folder)
    source = Path(__file__).parents[2] / "demo" / "sqale_agent.py"
    (folder / "sqale_agent.py").write_text(source.read_text())
    convert_checkpoint(folder, folder / "demo.gguf", quant="BF16")
    return folder / "demo.gguf"


@pytest.fixture(scope="session")
def demo_engine(demo_gguf):
    """The real engine on that file."""
    engine = LlamaEngine(demo_gguf, EngineSettings(n_ctx=2048, threads=1))
    yield engine
    engine.close()
