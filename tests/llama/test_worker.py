"""Calls into llama.cpp in a child process: results, errors, crashes, and no child that outlives its parent."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sqale_edge import errors
from sqale_edge.errors import ModelError, ModelLoadError, QuantizationError, SettingsError, SqaleEdgeError
from sqale_edge.llama.quantize import FILE_TYPES, UNQUANTIZED, check_file_type, quantize_file
from sqale_edge.llama.worker import _describe_error, _read_answer, run_in_child


def test_a_result_comes_back(qwen_gguf):
    """What the job returns is what the call returns."""
    seen = run_in_child("load", str(qwen_gguf))
    assert seen["n_vocab"] == 640
    assert seen["n_prompt"] >= 1


def test_an_error_comes_back_with_its_type(qwen_gguf, tmp_path):
    """The job's own errors are raised here, as they were there."""
    (tmp_path / "bad.gguf").write_bytes(qwen_gguf.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match=r"bad\.gguf cannot be loaded"):
        run_in_child("load", str(tmp_path / "bad.gguf"))
    with pytest.raises(QuantizationError, match="could not be quantized to Q8_0") as caught:
        run_in_child("quantize", str(tmp_path / "bad.gguf"), str(tmp_path / "out.gguf"), "Q8_0", 1)
    assert caught.value.path == str(tmp_path / "bad.gguf")


TREE = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SqaleEdgeError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_of_ours_can_come_back(kind):
    """With all that it carries, whichever it is."""
    details = {"field": "n_ctx", "value": 3} if kind is SettingsError else {}
    error = kind("too small", hint="take more", **details)
    with pytest.raises(kind, match="too small") as caught:
        _read_answer("load", 0, json.dumps(_describe_error(error)).encode(), b"")
    assert type(caught.value) is kind
    assert vars(caught.value) == vars(error)


def test_a_child_that_dies_is_an_error(qwen_gguf):
    """However the child ends without an answer, the message says so in one line."""
    with pytest.raises(ModelError, match=r"ended with code 1: KeyError: 'no such job'") as caught:
        run_in_child("no such job")
    assert "\n" not in str(caught.value)


def test_waiting_can_be_stopped(qwen_gguf, tmp_path):
    """What `on_wait` raises comes out, and the child is gone."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_child("quantize", str(qwen_gguf), str(tmp_path / "out.gguf"), "Q4_0", 1, on_wait=stop)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_child_ends_with_its_parent(tmp_path):
    """A parent that is killed takes its child along."""
    script = "from sqale_edge.llama.worker import run_in_child; run_in_child('load', '/dev/zero')"
    pipe = tmp_path / "pipe.gguf"
    script = script.replace("/dev/zero", str(pipe))
    import os

    os.mkfifo(pipe)  # opening it waits forever, as a long job would
    parent = subprocess.Popen([sys.executable, "-P", "-c", script])
    child = wait_for(lambda: find_child(parent.pid))
    assert child
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not Path(f"/proc/{child}").exists())


def find_child(pid):
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            return int(status.parent.name)
    return None


def wait_for(condition, timeout_s=20.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    return None


def test_file_types_are_those_of_llama_cpp():
    """Every code is the one that llama.cpp has under that name."""
    import llama_cpp

    for name, file_type in FILE_TYPES.items():
        constant = "LLAMA_FTYPE_ALL_F32" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}"
        assert file_type.code == getattr(llama_cpp, constant)


@pytest.mark.parametrize("name", [name for name in FILE_TYPES if name not in UNQUANTIZED])
def test_every_offered_type_can_be_made(qwen_gguf, tmp_path, name):
    """No type of the list needs what is not there, and each loads."""
    quantize_file(qwen_gguf, tmp_path / "out.gguf", name, threads=2, buffer_bytes=1 << 16)
    assert run_in_child("load", str(tmp_path / "out.gguf"))["n_vocab"] == 640


def test_unknown_types_are_refused_with_the_list():
    """Names are taken in any case; what is not offered is told apart from what needs an importance matrix."""
    assert check_file_type("q4_k_m") == "Q4_K_M"
    with pytest.raises(QuantizationError, match="'Q4' is not a file type") as caught:
        check_file_type("Q4")
    assert "Q4_K_M" in caught.value.hint
    with pytest.raises(QuantizationError, match="of no use without an importance matrix, and is not offered"):
        check_file_type("iq1_s")
