"""Models for the tests: small, seeded, of the real architectures, made once a run."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from checkpoints import write_checkpoint
from plain_llama import write_llama_gguf
from sqale_edge.convert import convert_checkpoint

from sqale_edge import EngineSettings
from sqale_edge.cli import main
from sqale_edge.llama import LlamaEngine
from sqale_edge.testing import make_shop

if TYPE_CHECKING:
    from pathlib import Path

# What somebody has set for their own questions would change what models answer here, and how often they are asked.
for _name in [name for name in os.environ if name.startswith("SQALE_EDGE_")]:
    del os.environ[_name]


@pytest.fixture(autouse=True)
def _hears_all():
    """Children hear these signals even where the tests run in the background, with some of them ignored."""
    if sys.platform == "win32":
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where snapshots are kept: a new folder for each test, and for the processes that it starts."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("SQALE_EDGE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def qwen_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 (Gated DeltaNet and attention layers) with thinking and a real byte-level vocabulary."""
    folder = tmp_path_factory.mktemp("qwen")
    convert_checkpoint(write_checkpoint(folder / "checkpoint"), folder / "qwen.gguf", quant="BF16")
    return folder / "qwen.gguf"


@pytest.fixture(scope="session")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama: another architecture, no thinking, no chat template, a BOS token."""
    return write_llama_gguf(tmp_path_factory.mktemp("llama") / "llama.gguf")


@pytest.fixture
def engine(qwen_gguf: Path):
    """A fresh engine with room for three sequences; its counters have left their minimum of 1 each."""
    engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=4096, n_sequences=3, threads=1))
    warm_up(engine)
    yield engine
    engine.close()


def warm_up(engine: LlamaEngine) -> None:
    """Evaluate a prompt and a single token: from then on differences of `count_evaluated` are exact."""
    sequence = engine.new_sequence(0)
    sequence.append([1, 2, 3])
    list(sequence.decode(None, 2, frozenset()))
    sequence.close()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The small shop database."""
    return make_shop(tmp_path / "shop.sqlite")


@pytest.fixture
def run(capsys):
    """The command line in this process: exit code, stdout, stderr."""

    def run_main(*args):
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        return (caught.value.code, *capsys.readouterr())

    return run_main
