"""Loading: what is no model is one clear line, and nobody asks for a GPU in vain."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading

import gguf
import llama_cpp
import pytest
from plain_llama import write_llama_gguf

from sqale_edge import EngineSettings, SamplingSettings
from sqale_edge.errors import Cancelled, ModelLoadError, ModelNotFoundError, SettingsError
from sqale_edge.llama import LlamaEngine, bindings, default_threads, describe_build, read_model_info
from sqale_edge.llama.gguf_header import read_header
from sqale_edge.llama.memory import available_memory, check_fits, estimate_memory, read_cgroup_room
from sqale_edge.llama.model import choose_gpu_layers, read_sampling
from sqale_edge.llama.threads import allowed_cpus, own_cgroups, read_cgroup_quota

SMALL = EngineSettings(n_ctx=256, threads=1)


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def make_other_architecture(path):
    writer = gguf.GGUFWriter(path, "no-such-architecture")
    writer.add_name("Foreign")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BROKEN = {
    "empty": lambda folder, _: write(folder / "m.gguf", b""),
    "text": lambda folder, _: write(folder / "m.gguf", b"hello\n"),
    "web page": lambda folder, _: write(folder / "m.gguf", b"<!DOCTYPE html><html>"),
    "lfs pointer": lambda folder, _: write(
        folder / "m.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0"
    ),
    "folder": lambda folder, _: folder,
    "magic only": lambda folder, _: write(folder / "m.gguf", b"GGUF"),
    "future version": lambda folder, good: write(folder / "m.gguf", b"GGUF" + (99).to_bytes(4, "little") + good[8:]),
    "huge counts": lambda folder, good: write(folder / "m.gguf", good[:8] + b"\xff" * 16 + good[24:]),
    "cut in the metadata": lambda folder, good: write(folder / "m.gguf", good[:3000]),
    "cut in the tensors": lambda folder, good: write(folder / "m.gguf", good[: len(good) * 2 // 3]),
    "cut by a byte": lambda folder, good: write(folder / "m.gguf", good[:-1]),
    "another architecture": lambda folder, _: make_other_architecture(folder / "m.gguf"),
    "no vocabulary": lambda folder, _: write_llama_gguf(folder / "m.gguf", with_vocabulary=False),
    "a missing tensor": lambda folder, good: write(
        folder / "m.gguf", good.replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_nowd.weight")
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_loaded_is_one_line_that_names_the_file(kind, tmp_path, qwen_gguf):
    """Broken, truncated and foreign files are a ModelLoadError with the path and a reason; the process lives on."""
    path = BROKEN[kind](tmp_path, qwen_gguf.read_bytes())
    with pytest.raises(ModelLoadError) as caught:
        LlamaEngine(path, SMALL)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(": ")
    assert "gave no reason" not in str(caught.value)
    LlamaEngine(qwen_gguf, SMALL).close()


def test_a_missing_file_is_not_found(tmp_path):
    """A path without a file is its own error, with the path."""
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        LlamaEngine(tmp_path / "nothing.gguf", SMALL)


def test_a_path_with_any_characters_loads(tmp_path, llama_gguf):
    """Blanks, quotes and non-ASCII in a path are no obstacle."""
    path = tmp_path / "Größe 'é' 日本 %20.gguf"
    path.write_bytes(llama_gguf.read_bytes())
    LlamaEngine(path, SMALL).close()


def test_loading_reports_progress_and_can_be_stopped(qwen_gguf):
    """The share grows to 1; answering False stops loading, and the next load works."""
    shares: list[float] = []
    LlamaEngine(qwen_gguf, SMALL, on_progress=lambda share: shares.append(share) or True).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    with pytest.raises(Cancelled):
        LlamaEngine(qwen_gguf, SMALL, on_progress=lambda share: share < 0.5)
    LlamaEngine(qwen_gguf, SMALL).close()


@pytest.fixture
def models_in_memory(monkeypatch):
    """The models that llama.cpp has loaded and not freed since, as a set of their addresses."""
    alive = set()

    def load(*args):
        pointer = llama_cpp_load(*args)
        alive.update({pointer} - {None})
        return pointer

    def free(pointer):
        alive.remove(pointer)
        llama_cpp_free(pointer)

    llama_cpp_load, llama_cpp_free = llama_cpp.llama_model_load_from_file, llama_cpp.llama_model_free
    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", load)
    monkeypatch.setattr(llama_cpp, "llama_model_free", free)
    return alive


@pytest.mark.parametrize("error", [ZeroDivisionError("my own"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_what_the_progress_callback_raises_reaches_the_caller(qwen_gguf, capfd, models_in_memory, error, at):
    """It stops loading, nothing stays in memory, nothing is printed; it comes out as it is, and the next load works."""

    def fail(share):
        if share >= at:
            calls.append(share)
            raise error
        return True

    calls, n_threads = [], threading.active_count()
    with pytest.raises(type(error)) as caught:
        LlamaEngine(qwen_gguf, SMALL, on_progress=fail)
    assert caught.value is error
    assert len(calls) == 1
    assert (models_in_memory, threading.active_count()) == (set(), n_threads)
    assert capfd.readouterr() == ("", "")
    LlamaEngine(qwen_gguf, SMALL).close()


@pytest.mark.parametrize("with_callback", [False, True])
def test_ctrl_c_stops_loading(qwen_gguf, capfd, models_in_memory, with_callback):
    """Wherever it finds the main thread: nowhere is it lost in C, and nothing stays in memory."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    record, lines = logging.Handler(), []

    def interrupt(line):
        lines.append(line)
        if len(lines) == 1:  # llama.cpp writes its first line: it loads. A second signal could come after the test
            signal.raise_signal(signal.SIGINT)

    record.emit = interrupt
    logger = logging.getLogger("sqale_edge.llama")
    logger.addHandler(record)
    logger.setLevel(logging.DEBUG)
    try:
        with pytest.raises(KeyboardInterrupt):
            LlamaEngine(qwen_gguf, SMALL, on_progress=(lambda _: True) if with_callback else None)
    finally:
        logger.removeHandler(record)
        logger.setLevel(logging.NOTSET)
        signal.signal(signal.SIGINT, before)
    assert models_in_memory == set()
    assert capfd.readouterr() == ("", "")


def test_the_progress_callback_runs_in_the_callers_thread(qwen_gguf):
    """As a window's bar needs it."""
    threads = set()
    LlamaEngine(qwen_gguf, SMALL, on_progress=lambda _: threads.add(threading.current_thread()) or True).close()
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize(
    ("wanted", "can_offload", "layers"),
    [("auto", False, 0), ("auto", True, -1), ("off", True, 0), (0, False, 0), (12, True, 12)],
)
def test_layers_to_offload(wanted, can_offload, layers):
    """`auto` takes what the build can do and says so; `off` is off; a count is a count."""
    n_layers, sentence = choose_gpu_layers(EngineSettings(gpu_layers=wanted), can_offload=can_offload)
    assert n_layers == layers
    assert "GPU" in sentence or "CPU" in sentence


def test_offload_that_cannot_be_done_is_an_error(qwen_gguf):
    """Asking for layers on a GPU fails where this build has none, and says how to get one."""
    if describe_build()["can_offload"]:
        LlamaEngine(qwen_gguf, EngineSettings(n_ctx=256, gpu_layers=4)).close()
        return
    with pytest.raises(SettingsError, match="cannot offload") as caught:
        LlamaEngine(qwen_gguf, EngineSettings(n_ctx=256, gpu_layers=4))
    assert "CUDA or Metal" in caught.value.hint


def test_another_version_of_the_bindings_is_refused():
    """A llama-cpp-python that was not tested is an error before anything is called, with the command that fixes it."""
    bindings.check_version(bindings.TESTED_VERSION)
    with pytest.raises(ModelLoadError, match=r"0\.3\.1 is installed") as caught:
        bindings.check_version("0.3.1")
    assert caught.value.hint == f"pip install llama-cpp-python=={bindings.TESTED_VERSION}"


def test_another_architecture_without_thinking_works(llama_gguf):
    """A plain Llama loads, says that it does not think, and warm equals cold there, too."""
    engine = LlamaEngine(llama_gguf, EngineSettings(n_ctx=512, n_sequences=2, threads=1))
    assert not engine.info.thinks
    assert engine.info.bos == engine.tokenize("<|begin|>", trusted=True)[0]
    chosen = SamplingSettings(temperature=1, top_k=0, top_p=1)
    warm = engine.new_sequence(5, chosen)
    for _ in range(3):
        warm.append(engine.tokenize("<|im_start|>user\nHello<|im_end|>\n", trusted=True))
        list(warm.decode(None, 6, frozenset()))
    cold = engine.new_sequence(5, chosen)
    cold.append(warm.tokens)
    assert list(warm.decode(None, 10, frozenset())) == list(cold.decode(None, 10, frozenset()))
    engine.close()


def test_the_log_goes_to_logging_and_nowhere_else(qwen_gguf, caplog, capfd):
    """llama.cpp's words reach the logger; stdout and stderr stay empty, and their descriptors are untouched."""
    with caplog.at_level(logging.DEBUG, "sqale_edge.llama"):
        LlamaEngine(qwen_gguf, SMALL).close()
    assert any("qwen35" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_a_context_that_cannot_be_made_is_one_line(tmp_path):
    """With its size, the file, llama.cpp's reason and what can be done."""
    bindings.initialise()
    params = llama_cpp.llama_context_default_params()
    with pytest.raises(ModelLoadError, match=r"no context of 512 tokens .* for '.*m\.gguf': .*NULL") as caught:
        bindings.make_context(None, params, tmp_path / "m.gguf")
    assert "SQALE_EDGE_N_CTX" in caught.value.hint


def test_metadata_can_be_read_without_the_weights(qwen_gguf):
    """Name, vocabulary and markup of a file are there without loading it whole."""
    info = read_model_info(qwen_gguf)
    assert info.thinks
    assert info.n_vocab > 256
    assert info.metadata["general.architecture"] == "qwen35"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, SamplingSettings()),
        ({"general.sampling.temp": "0.2", "general.sampling.top_k": "5"}, SamplingSettings(temperature=0.2, top_k=5)),
        ({"general.sampling.temp": "warm"}, SamplingSettings()),
        ({"general.sampling.top_p": "7"}, SamplingSettings()),
    ],
)
def test_sampling_settings_come_from_the_file(metadata, expected):
    """The checkpoint's own settings count; what makes no sense does not."""
    assert read_sampling(metadata) == expected


def test_threads_stay_within_the_allowed_cpus():
    """Never more threads than CPUs that this process may use, and at least one."""
    assert all(1 <= n_threads <= allowed_cpus() for n_threads in default_threads())


@pytest.mark.skipif(sys.platform != "linux", reason="affinity masks are Linux's")
def test_threads_follow_the_affinity_mask():
    """A process that is bound to one CPU gets one thread."""
    bind = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"{bind}; from sqale_edge.llama import default_threads; print(default_threads())"
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "(1, 1)"
    )


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({"cpu.max": "max 100000"}, "", None),
        ({"cpu.max": "150000 100000"}, "", 1.5),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "/a/b", 4.0),
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, "/a/b", 1.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "", None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, "", 2.0),
        ({"cpu.max": "nonsense"}, "", None),
        ({}, "/x", None),
    ],
)
def test_cgroup_quotas_are_read(tmp_path, files, own, quota):
    """Both versions of control groups, and the tightest limit on the way up, are understood."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_cgroup_quota(own_cgroups(tmp_path, own)) == quota


def test_memory_of_the_2b_shape_is_estimated_from_its_metadata():
    """KV cache and recurrent state of Qwen3.5-2B come out as llama.cpp allocates them.

    12 KiB a token, 19.3 MiB a sequence, and as much for each token that may be drafted.
    """
    shape = {
        "block_count": 24,
        "embedding_length": 2048,
        "feed_forward_length": 6144,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.inner_size": 2048,
    }
    metadata = {"general.architecture": "qwen35"} | {f"qwen35.{key}": str(value) for key, value in shape.items()}
    for n_draft, n_states in ((0, 1), (None, 9)):
        estimate = estimate_memory(metadata, 1_280_000_000, EngineSettings(n_ctx=16_384, n_draft=n_draft))
        assert estimate.kv_cache_bytes == 16_384 * 12 * 1024
        assert estimate.recurrent_state_bytes / 2**20 == pytest.approx(n_states * 19.27, rel=1e-3)
        assert estimate.total_bytes < 1.9 * 2**30


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is left, and makes large files of nothing")
def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(qwen_gguf, tmp_path, models_in_memory):
    """It says how much is needed and available, and which setting loads it all the same."""
    large = write(tmp_path / "large.gguf", qwen_gguf.read_bytes())
    os.truncate(large, 1 << 40)
    with pytest.raises(
        ModelLoadError, match=r"takes about 1024\.\d GiB .* 256 for each of 1 sequences, .* are available"
    ) as caught:
        LlamaEngine(large, SMALL)
    assert "SQALE_EDGE_CHECK_MEMORY=0" in caught.value.hint
    assert models_in_memory == set()


@pytest.mark.parametrize(("short_of_bytes", "fits"), [(0, True), (1, False), (None, True)])
def test_what_fits_exactly_is_loaded(qwen_gguf, short_of_bytes, fits):
    """To the byte of the estimate; where the system does not say what is available nothing is refused."""
    settings, header = EngineSettings(n_ctx=1024), read_header(qwen_gguf)
    estimate = estimate_memory(read_model_info(qwen_gguf).metadata, qwen_gguf.stat().st_size, settings)
    available = estimate.total_bytes - (short_of_bytes or 0)
    with contextlib.nullcontext() if fits else pytest.raises(ModelLoadError, match="available"):
        check_fits(qwen_gguf, header, settings, None if short_of_bytes is None else available)


def test_the_estimate_covers_a_model_without_attention_heads():
    """A purely recurrent model has none; that is no division by zero."""
    metadata = {"general.architecture": "mamba", "mamba.block_count": "4", "mamba.attention.head_count": "0"}
    assert estimate_memory(metadata, 1000, EngineSettings()).weights_bytes == 1000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is left")
def test_available_memory_shrinks_when_memory_is_taken():
    """What this process holds is no longer available."""
    before = available_memory()
    held = bytearray(b"x") * (512 << 20)
    after = available_memory()
    assert before - after > 200 << 20
    del held


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({"memory.max": "max", "memory.current": "5", "memory.stat": ""}, None),
        (
            {
                "memory.max": "1000",
                "memory.current": "400",
                "memory.stat": "anon 9\ninactive_file 250\nactive_file 40",
            },
            890,
        ),
        ({}, None),
    ],
)
def test_a_control_groups_page_cache_is_not_taken(tmp_path, files, room):
    """A machine that has just read a model still has the memory to load it."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_cgroup_room(tmp_path) == room


def test_the_estimate_is_what_loading_takes(qwen_gguf):
    """KV cache and recurrent state are those that llama.cpp reports in its log, to the KiB."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("sqale_edge.llama")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    settings = EngineSettings(n_ctx=1024, n_sequences=2, threads=1)
    try:
        LlamaEngine(qwen_gguf, settings).close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    text = "\n".join(records)
    reported = [
        float(re.search(rf"{kind}: size = +([0-9.]+) MiB", text)[1]) for kind in ("kv_cache", "memory_recurrent")
    ]
    estimate = estimate_memory(read_model_info(qwen_gguf).metadata, qwen_gguf.stat().st_size, settings)
    assert [estimate.kv_cache_bytes / 2**20, estimate.recurrent_state_bytes / 2**20] == pytest.approx(
        reported, abs=0.01
    )
