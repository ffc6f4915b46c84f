"""Damaged files that llama.cpp would answer with an assertion, which ends the process: each is one clear error."""

from __future__ import annotations

import math
import shutil
import struct
import subprocess
import sys

import gguf
import pytest
from plain_llama import write_llama_gguf

from sqale_edge import Agent, EngineSettings
from sqale_edge.errors import ModelLoadError
from sqale_edge.llama import LlamaEngine, read_model_info
from sqale_edge.llama.file_check import check_file
from sqale_edge.llama.gguf_header import read_header
from sqale_edge.llama.worker import run_in_child

SMALL = EngineSettings(n_ctx=256, threads=1)


def change(source, target, key, value, index=0):
    """A copy of a file with another value for a key; for a list with another item."""
    shutil.copyfile(source, target)
    reader = gguf.GGUFReader(target, "r+")
    field = reader.get_field(key)
    field.parts[field.data[index]][:] = value
    reader.data.flush()
    return target


def rename_token(source, target, old: bytes, new: bytes):
    """A copy in which a token of the vocabulary has another text of the same length."""
    data = bytearray(source.read_bytes())
    entry = struct.pack("<Q", len(old)) + old
    assert data.count(entry) == 1
    assert len(old) == len(new)
    start = data.index(entry) + 8
    data[start : start + len(old)] = new
    target.write_bytes(data)
    return target


# (what is changed: an old token, and its new text of the same length)
DOUBLES = {
    "the same": (b"<|fim_prefix|>", b"<tool_call>\0\0\0"),
    "up to a NUL": (b"<|im_start|>", b"A\0xxxxxxxxxx"),
    "both with a NUL": (b"<|endoftext|>", b"</think>\0zzzz"),
    "a name of llama.cpp's": (b"<|image_pad|>", b"[EMPTY_36]\0zz"),
}


@pytest.mark.parametrize("kind", DOUBLES)
def test_a_token_that_is_there_twice_is_an_error(qwen_gguf, tmp_path, kind):
    """As llama.cpp reads tokens; wherever a file is loaded, the line names both, and the process lives on."""
    path = rename_token(qwen_gguf, tmp_path / "m.gguf", *DOUBLES[kind])
    if kind.startswith("a name"):
        path = rename_token(path, path, b"$", b"\0")
    uses = [
        lambda: LlamaEngine(path, SMALL),
        lambda: Agent.load(path),
        lambda: read_model_info(path),
        lambda: run_in_child("load", str(path)),
    ]
    for use in uses:
        with pytest.raises(ModelLoadError, match=r"m\.gguf.* cannot be loaded: its tokens \d+ and \d+ are both"):
            use()


def test_empty_tokens_are_not_the_same(qwen_gguf, tmp_path):
    """llama.cpp gives each a name of its own."""
    path = rename_token(qwen_gguf, tmp_path / "m.gguf", b"<tool_call>", b"\0" * 11)
    LlamaEngine(rename_token(path, path, b"</tool_call>", b"\0" * 12), SMALL).close()


# (key, values that end the process at load, when a context is made, or at the first token)
DEADLY = [
    ("qwen35.block_count", [0, 513, 2**32 - 1]),
    ("qwen35.rope.dimension_count", [0, 3, 66, 2**32 - 2]),
    ("qwen35.rope.dimension_sections", [-1, 64, 2**31 - 1]),
    ("qwen35.attention.layer_norm_rms_epsilon", [-1.0, math.nan]),
    ("qwen35.ssm.inner_size", [0, 64, 129]),
]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in DEADLY for value in values])
def test_a_shape_that_cannot_be_is_an_error(qwen_gguf, tmp_path, key, value):
    """The line names the key with its value."""
    path = change(qwen_gguf, tmp_path / "m.gguf", key, value)
    with pytest.raises(ModelLoadError, match=f"its {key} is ") as caught:
        LlamaEngine(path, SMALL)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# (key, value) of a Llama that llama.cpp would assert not to be so.
IMPOSSIBLE = [
    {"nextn_predict_layers": 3},
    {"expert_count": 1025, "expert_used_count": 1},
    {"expert_count": 4, "expert_used_count": 5},
    {"expert_count": 4},
    {"expert_used_count": 1},
    {"expert_group_count": 1},
    {"expert_count": 4, "expert_used_count": 2, "expert_group_count": 3, "expert_group_used_count": 1},
    {"expert_count": 4, "expert_used_count": 2, "expert_group_count": 2, "expert_group_used_count": 2},
]


@pytest.mark.parametrize("values", IMPOSSIBLE)
def test_experts_that_cannot_be_are_an_error(tmp_path, values):
    """Counts that contradict each other are named."""
    path = write_llama_gguf(tmp_path / "m.gguf", values=values)
    with pytest.raises(ModelLoadError, match=f"its llama.*{next(reversed(values)).partition('_')[0]}"):
        LlamaEngine(path, SMALL)


def test_an_unknown_scaling_is_an_error(tmp_path):
    """llama.cpp knows four."""
    path = write_llama_gguf(tmp_path / "m.gguf", values={"rope.scaling.type": "x"})
    with pytest.raises(ModelLoadError, match=r"llama\.rope\.scaling\.type is b'x'"):
        LlamaEngine(path, SMALL)


@pytest.mark.parametrize("values", [{}, {"expert_group_count": 0}, {"rope.scaling.type": "yarn"}])
def test_what_can_be_is_not_refused(tmp_path, values):
    """The check has no opinion on what llama.cpp can load."""
    LlamaEngine(write_llama_gguf(tmp_path / "m.gguf", values=values), SMALL).close()


def as_bytes(value):
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def test_the_header_is_what_ggufs_own_reader_finds(qwen_gguf, llama_gguf):
    """Every key with its value; long lists of numbers are left out."""
    for path in (qwen_gguf, llama_gguf):
        header = read_header(path).values
        fields = {key: field for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
        assert header.keys() == fields.keys()
        for key, field in fields.items():
            assert header[key] == as_bytes(field.contents())


def test_a_header_that_is_cut_anywhere_is_left_to_llama_cpp(llama_gguf, tmp_path):
    """No length in it is believed; llama.cpp refuses the file without harm."""
    data = llama_gguf.read_bytes()
    for n_bytes in [*range(4, 900), 5000]:
        (tmp_path / "m.gguf").write_bytes(data[:n_bytes])
        assert read_header(tmp_path / "m.gguf") is None
        check_file(tmp_path / "m.gguf")
    huge = data[:16] + b"\xff" * 8 + data[24:]
    (tmp_path / "m.gguf").write_bytes(huge)
    assert read_header(tmp_path / "m.gguf") is None


def test_doctor_survives_a_damaged_vocabulary(qwen_gguf, tmp_path):
    """A process of its own: one line, exit code 1."""
    path = rename_token(qwen_gguf, tmp_path / "m.gguf", *DOUBLES["the same"])
    code = "from sqale_edge.cli import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", code, "doctor", "-m", path], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert b"are both '<tool_call>'" in done.stderr


@pytest.mark.parametrize(
    ("key", "stray", "real"), [(b"block_count", 1, 100_000), (b"qwen35.block_count\0", 100_000, 1)]
)
def test_a_stray_key_hides_nothing(qwen_gguf, tmp_path, key, stray, real):
    """Neither one without the architecture's name, nor one that for llama.cpp ends at its NUL and comes first."""
    path = change(qwen_gguf, tmp_path / "m.gguf", "qwen35.block_count", real)
    data = path.read_bytes()
    (n_values,) = struct.unpack_from("<Q", data, 16)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, stray)
    path.write_bytes(data[:16] + struct.pack("<Q", n_values + 1) + entry + data[24:])
    with pytest.raises(ModelLoadError, match=r"qwen35\.block_count is 100000"):
        check_file(path)


@pytest.mark.parametrize("kind", [1, 8, 12, 24, 26, 30])
def test_a_norm_that_is_not_f32_is_an_error(qwen_gguf, tmp_path, kind):
    """llama.cpp multiplies activations by it element by element, and asserts that both are F32."""
    data = bytearray(qwen_gguf.read_bytes())
    name = b"blk.0.attn_norm.weight"
    start = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    assert struct.unpack_from("<I", data, start) == (1,)
    struct.pack_into("<I", data, start + 12, kind)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelLoadError, match=f"'blk.0.attn_norm.weight' is of type {kind}"):
        Agent.load(tmp_path / "m.gguf", settings=SMALL)
