"""The best number of threads, kept for the next start: used where it was measured, never trusted blindly."""

import dataclasses
import json
import logging

import pytest

from sqale_edge import EngineSettings
from sqale_edge.errors import SqaleEdgeError
from sqale_edge.llama import LlamaEngine, default_threads
from sqale_edge.llama.threads import allowed_cpus, identify_machine, physical_cores, tuned_threads
from sqale_edge.llama.tuning import Tuning, read_tuning, tuning_path, write_tuning


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without anything in it."""
    monkeypatch.setenv("SQALE_EDGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tuning():
    """3 and 2: no machine has that by itself."""
    return Tuning(identify_machine(), 3, 2, "a model", "2026-01-31")


def test_without_a_measurement_it_is_the_cores():
    """And nothing is written by looking."""
    assert tuned_threads() is None
    assert default_threads() == (physical_cores(),) * 2


def test_what_was_measured_is_used(tuning, home, qwen_gguf, monkeypatch):
    """By an engine that is told nothing else; a setting wins, and so does a variable."""
    assert write_tuning(tuning) == home / "threads.json"
    assert tuned_threads() == tuning
    assert default_threads() == (3, 2)
    for given, expected in (({}, (3, 2)), ({"threads": 1}, (1, 1)), ({"threads_batch": 1}, (3, 1))):
        engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=128, **given))
        assert (engine.n_threads, engine.n_threads_batch) == expected
        engine.close()
    monkeypatch.setenv("SQALE_EDGE_THREADS", "1")
    assert EngineSettings.from_environment().threads == 1


def test_another_machines_numbers_are_not_used(tuning):
    """Nor those from when this one had another number of CPUs."""
    write_tuning(dataclasses.replace(tuning, machine=identify_machine().replace("cores", "kernels")))
    assert tuned_threads() is None
    assert str(allowed_cpus()) in identify_machine()


GOOD = {
    "form": "sqale-edge threads 1",
    "machine": "m",
    "threads": 1,
    "threads_batch": 1,
    "model": "x",
    "measured_on": "",
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b"1" * 5_000,
        *(
            json.dumps(GOOD | change).encode()
            for change in (
                {"form": "sqale-edge threads 2"},
                {"threads": 0},
                {"threads": 513},
                {"threads": "2"},
                {"threads": 1.5},
                {"threads": True},
                {"threads_batch": None},
                {"machine": 1},
                {"model": []},
                {"further": 1},
            )
        ),
        json.dumps({key: value for key, value in GOOD.items() if key != "model"}).encode(),
    ],
)
def test_a_damaged_file_costs_a_line_in_the_log(home, content, caplog):
    """The cores are used as before, and the file can be written again."""
    home.mkdir()
    (home / "threads.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_tuning("m") is None
    assert len(caplog.records) == 1
    assert "threads.json" in caplog.text
    good = Tuning(**{key: value for key, value in GOOD.items() if key != "form"})
    write_tuning(good)
    assert read_tuning("m") == good


def test_a_place_that_cannot_be_written_is_one_clear_line(tuning, home, tmp_path, monkeypatch):
    """With the way out; nothing half done stays."""
    home.write_text("a file, not a folder")
    with pytest.raises(SqaleEdgeError, match="cannot be written") as caught:
        write_tuning(tuning)
    assert "SQALE_EDGE_HOME" in caught.value.hint
    assert list(tmp_path.iterdir()) == [home]
    monkeypatch.setenv("SQALE_EDGE_HOME", "~nobody-at-all/here")
    assert tuning_path() is None
    assert tuned_threads() is None
    with pytest.raises(SqaleEdgeError, match="no folder"):
        write_tuning(tuning)


def test_the_file_is_replaced_in_one_step(tuning, home):
    """No other file is left beside it."""
    write_tuning(tuning)
    write_tuning(dataclasses.replace(tuning, threads=1))
    assert [path.name for path in home.iterdir()] == ["threads.json"]
    assert tuned_threads().threads == 1
