"""The sums of an importance matrix, against numbers computed without llama.cpp."""

import ctypes
import threading

import numpy as np
import pytest
from llama_cpp import _ggml
from sqale_edge.convert.gguf_file import GgufFile

from sqale_edge.errors import Cancelled, ConversionError, ModelLoadError
from sqale_edge.llama.activations import ActivationRun
from sqale_edge.llama.ggml_tensor import MUL_MAT, MUL_MAT_ID, GgmlTensor
from sqale_edge.models import find_model

LOGS = [[7 * n % 500 for n in range(3, 90)], [n * n % 600 for n in range(40)]]


def collect(path, logs, n_ctx=4096):
    run = ActivationRun(path, n_ctx=n_ctx, threads=1)
    n_tokens = sum(run.run(logs))
    return run.sums, n_tokens


def read_tensor(file, name):
    """BF16 and F32 as float32."""
    tensor = file.tensors[name]
    if tensor.type == "BF16":
        raw = np.fromfile(file.path, np.uint16, tensor.n_bytes // 2, offset=tensor.offset)
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    assert tensor.type == "F32"
    return np.fromfile(file.path, np.float32, tensor.n_bytes // 4, offset=tensor.offset).reshape(tensor.shape)


@pytest.fixture(scope="module")
def demo():
    return find_model("demo").path


@pytest.fixture(scope="module")
def collected(demo):
    return collect(demo, LOGS)


def test_the_first_layer_has_the_sums_of_plain_numpy(demo, collected):
    """Its input is the normed embedding, which needs no llama.cpp: all four matrices that take it have its squares."""
    file = GgufFile.read(demo)
    tokens = [token for log in LOGS for token in log]
    rows = read_tensor(file, "token_embd.weight")[tokens].astype(np.float64)
    scale = 1 / np.sqrt(np.square(rows).mean(1, keepdims=True) + file.fields["qwen35.attention.layer_norm_rms_epsilon"])
    normed = rows * scale * read_tensor(file, "blk.0.attn_norm.weight")
    expected = np.square(normed).sum(0)
    sums, n_tokens = collected
    assert n_tokens == len(tokens)
    for name in ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"):
        np.testing.assert_allclose(sums.squares[f"blk.0.{name}.weight"], expected, rtol=1e-5)


def test_every_matrix_of_a_layer_is_seen_with_every_token(demo, collected):
    """Those of the last layer, too, which would see one token of a batch if only its logits were asked for."""
    sums, n_tokens = collected
    matrices = {
        name: tensor.shape[1]
        for name, tensor in GgufFile.read(demo).tensors.items()
        if name.startswith("blk.") and tensor.type == "BF16"
    }
    assert {name: len(squares) for name, squares in sums.squares.items()} == matrices
    assert set(sums.counts.values()) == {n_tokens}


def test_logs_are_apart_and_add_up(demo, collected):
    """A log is read from an empty state: in any order and in two runs it gives the same."""
    sums, _ = collected
    first, second = (collect(demo, [log])[0].squares for log in LOGS)
    for name, squares in sums.squares.items():
        np.testing.assert_allclose(first[name] + second[name], squares, rtol=1e-3, atol=1e-6)


def test_a_long_log_is_cut(demo):
    """At the context; batches of another size give the same sums."""
    sums, n_tokens = collect(demo, LOGS, n_ctx=30)
    assert n_tokens == 60
    assert set(sums.counts.values()) == {60}


def test_the_last_batch_counts_whatever_its_size(qwen_gguf):
    """Single tokens have their place in the sums; llama.cpp's own tool leaves out batches of fewer than 16."""
    sums, _ = collect(qwen_gguf, [[1]])
    assert set(sums.counts.values()) == {1}


def test_a_damaged_model_gives_no_matrix(qwen_gguf, tmp_path):
    """NaN in what is computed is an error that names a matrix; a file that is no model does not load."""
    content = bytearray(qwen_gguf.read_bytes())
    norm = GgufFile.read(qwen_gguf).tensors["blk.1.attn_norm.weight"]
    content[norm.offset : norm.offset + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(content)
    with pytest.raises(ConversionError, match=r"what blk\.1\.\w+\.weight is multiplied with is NaN or infinite"):
        collect(tmp_path / "nan.gguf", LOGS)
    (tmp_path / "cut.gguf").write_bytes(content[: norm.offset])
    with pytest.raises(ModelLoadError):
        collect(tmp_path / "cut.gguf", LOGS)


def test_it_can_be_stopped_from_another_thread(qwen_gguf):
    """Before it begins and in the middle of a batch."""
    run = ActivationRun(qwen_gguf, n_ctx=4096, threads=1)
    run.stop()
    with pytest.raises(Cancelled):
        list(run.run(LOGS))
    run = ActivationRun(qwen_gguf, n_ctx=4096, threads=1)
    steps = run.run([LOGS[0]] * 1000)
    next(steps)
    thread = threading.Thread(target=run.stop)
    thread.start()
    with pytest.raises(Cancelled):
        list(steps)
    thread.join()
    assert run.sums.counts["blk.0.ffn_up.weight"] < 500 * len(LOGS[0])


def test_the_structure_is_that_of_this_llama_cpp():
    """Its size, and the numbers of the operations, asked of the library itself."""
    library = _ggml.libggml
    library.ggml_tensor_overhead.restype = ctypes.c_size_t
    library.ggml_op_name.restype = ctypes.c_char_p
    assert ctypes.sizeof(GgmlTensor) == library.ggml_tensor_overhead() - 32  # an object's own head
    assert [library.ggml_op_name(number) for number in (MUL_MAT, MUL_MAT_ID)] == [b"MUL_MAT", b"MUL_MAT_ID"]
