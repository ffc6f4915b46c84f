"""Kills at every instant, and several processes at once: the store never lies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import start
from stand_in_hub import SQALE

from sqale_edge.installed import list_names, read_installed, store_folder
from sqale_edge.store.care import find_damage, list_unfinished
from sqale_edge.store.steps import Listener
from sqale_edge.store.workplace import open_workplace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and forks are those of POSIX")
WAIT_S = 120


def kill(what):
    command = [sys.executable, "-P", str(Path(__file__).with_name("killed.py")), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_while_a_model_is_replaced_leaves_the_old_or_the_new_one():
    """Before each of its changes on the disk; both are seen, and the last run leaves nothing else."""
    result = kill("replace")
    assert result["n_kills"] >= 15
    assert 2 <= result["n_new"] < result["n_kills"]
    assert [name.rpartition("/")[2] for name in result["left"]] == ["m.lock", "m.gguf", "manifest.json"]  # a lock first


def test_a_kill_while_a_model_is_removed_leaves_it_whole_or_gone():
    """Never a name without its file."""
    result = kill("remove")
    assert result["n_kills"] >= 8
    assert 2 <= result["n_gone"] <= result["n_kills"]


def test_a_killed_pull_goes_on(hub):
    """At twelve places of the download and six of the conversion; then the same command succeeds."""
    hub.chunk_bytes = 20_000
    result = kill("pull")
    assert result["n_kills"] == result["n_instants"] == 18
    assert result["unfinished"] == ["sqale"]
    assert result["left"] == []
    # What a killed run had was not asked for again: most of these requests are for the rest of a file.
    weights = [asked for _, path, asked in hub.requests if path.startswith("/cdn/") and "safetensors" in path]
    assert sum(asked is not None for asked in weights) >= 8
    assert sum(asked is None for asked in weights) <= 4


def test_two_pulls_at_once_share_the_work(hub):
    """The second says for whom it waits, and finds the model there; each file is downloaded once."""
    hub.chunk_bytes, hub.delay_s = 2_000, 0.05  # so slow that the first one is at work until the second one waits
    first = start("models", "pull", "sqale")
    while not hub.list_downloads():
        assert first.poll() is None
        time.sleep(0.02)
    second = start("models", "pull", "sqale")
    assert f"Note: waiting for process {first.pid}" in second.stderr.readline()
    hub.delay_s = 0.0
    answers = [process.communicate(timeout=WAIT_S) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert [out for out, _ in answers] == [f"{read_installed('sqale').path}\n"] * 2
    assert not any("waiting for process" in err for _, err in answers)
    downloads = hub.list_downloads()
    assert len(downloads) == len(set(downloads)) == 9
    assert find_damage(read_installed("sqale")) == []


def test_ctrl_c_keeps_what_is_downloaded(hub):
    """Exit code 130, and a line that says how to go on and how to get rid of it."""
    hub.chunk_bytes, hub.delay_s = 20_000, 0.1
    process = start("models", "pull", "sqale", start_new_session=True)
    part = store_folder() / ".work" / "sqale" / "source" / "model-00001-of-00002.safetensors.part"
    while not (part.exists() and part.stat().st_size):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, "")
    lines = err.splitlines()
    assert "MB of sqale are kept: the same command goes on, and sqale-edge models rm sqale deletes" in lines[0]
    assert lines[1:] == ["Cancelled."]
    assert list_names() == []
    assert [one.name for one in list_unfinished()] == ["sqale"]
    assert SQALE in hub.repositories


def test_ctrl_c_ends_the_wait_for_another_process(home):
    """Nobody has to wait for a process that hangs."""
    with open_workplace("sqale", Listener()):
        process = start("models", "rm", "sqale", "--yes", stdout=subprocess.DEVNULL, start_new_session=True)
        line = process.stderr.readline()
        assert f"waiting for process {os.getpid()}, which is changing the model 'sqale'" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        process.stderr.close()
