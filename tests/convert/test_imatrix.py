"""Importance matrices: files of both forms, what is wrong with one, and what it does to a quantized file."""

import hashlib
import struct

import gguf
import numpy as np
import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint
from sqale_edge.convert.gguf_file import GgufFile
from sqale_edge.convert.imatrix import Imatrix, check_output, make_imatrix

from sqale_edge.errors import ConversionError, QuantizationError

RNG = np.random.default_rng(0)
SUMS = {"blk.1.ffn_up.weight": RNG.random(64) * 9, "blk.0.attn_qkv.weight": RNG.random(33) * 700}
COUNTS = dict.fromkeys(SUMS, 700)


@pytest.fixture
def matrix():
    return make_imatrix(SUMS, COUNTS, ["episodes.jsonl", "größer.txt"], 3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("source") / "agent")


@pytest.fixture(scope="module")
def plain(checkpoint, tmp_path_factory):
    """The model without an importance matrix, and its shapes."""
    folder = tmp_path_factory.mktemp("plain")
    convert_checkpoint(checkpoint, folder, ["F32", "Q4_0"])
    return folder, {name: t.shape for name, t in GgufFile.read(folder / "agent-F32.gguf").tensors.items()}


@pytest.fixture(scope="module")
def fitting(plain):
    """A matrix for that model: the first columns matter a thousand times more."""
    sums = {}
    for name, shape in plain[1].items():
        if len(shape) == 2 and name.startswith("blk."):
            sums[name] = np.where(np.arange(shape[1]) < 16, 1000.0, 1.0) * 50
    return make_imatrix(sums, dict.fromkeys(sums, 50), ["text.txt"], 1)


def write_like_llama_cpp(path, entries, *, more_fields=True, kind=np.float32):
    """As llama.cpp's tool writes it, by the package that llama.cpp ships; the newest version adds `in_sum`."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["wiki.train.raw"])
    if more_fields:
        writer.add_uint32("imatrix.chunk_count", 2)
        writer.add_uint32("imatrix.chunk_size", 512)
    for name, parts in entries.items():
        for part, values in parts.items():
            writer.add_tensor(f"{name}.{part}", np.atleast_2d(np.asarray(values, kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pack_dat(entries, trailer=b""):
    """The older form: name, chunks and values of each entry."""
    content = struct.pack("<i", len(entries))
    for name, n_chunks, values in entries:
        content += struct.pack("<i", len(name)) + name + struct.pack("<ii", n_chunks, len(values))
        content += np.asarray(values, "<f4").tobytes()
    return content + trailer


def test_gguf_is_what_llama_cpp_writes(matrix, tmp_path):
    """Its keys, and for each matrix sums and counts as F32 with a row for each matrix, sorted by name."""
    matrix.write(tmp_path / "i.gguf")
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert fields == {
        "general.type": "imatrix",
        "imatrix.datasets": ["episodes.jsonl", "größer.txt"],
        "imatrix.chunk_count": 3,
        "imatrix.chunk_size": 234,
    }
    found = {tensor.name: (tensor.shape.tolist(), tensor.data.ravel().tolist()) for tensor in reader.tensors}
    assert list(found) == [f"{name}.{part}" for name in sorted(SUMS) for part in ("in_sum2", "counts")]
    for name, sums in SUMS.items():
        assert found[f"{name}.in_sum2"] == ([len(sums), 1], sums.astype(np.float32).tolist())
        assert found[f"{name}.counts"] == ([1, 1], [700.0])


@pytest.mark.parametrize("name", ["i.gguf", "i.dat"])
def test_what_is_written_is_read(matrix, tmp_path, name):
    """In both forms the mean squares are the same; the digest is the file's."""
    path = tmp_path / name
    matrix.write(path)
    read = Imatrix.read(path)
    assert (read.name, read.sha256) == (name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert read.n_chunks == 3
    columns = read.choose_columns({name: (8, len(sums)) for name, sums in SUMS.items()})
    for key, sums in SUMS.items():
        np.testing.assert_allclose(columns[key], sums / 700, rtol=1e-6)


def test_files_of_llama_cpp_are_read(tmp_path):
    """GGUF with more in it than we use, and the older form with and without what comes behind its entries."""
    up = {"in_sum2": [4.0, 8.0, 0.0], "counts": [4.0], "in_sum": [-1.0, 2.0, 0.0]}
    write_like_llama_cpp(tmp_path / "i.gguf", {"blk.0.ffn_up.weight": up, "output.weight": up})
    shapes = {"blk.0.ffn_up.weight": (5, 3), "token_embd.weight": (9, 3)}
    read = Imatrix.read(tmp_path / "i.gguf")
    assert (read.datasets, read.n_chunks, read.chunk_size) == (("wiki.train.raw",), 2, 512)
    assert read.choose_columns(shapes)["blk.0.ffn_up.weight"].tolist() == [1, 2, 0]
    entries = [(b"blk.0.ffn_up.weight", 4, [4, 8, 0]), (b"output.weight", 4, [1, 1, 1])]
    for trailer in (b"", struct.pack("<i", 4), struct.pack("<ii8s", 4, 8, b"wiki.raw")):
        (tmp_path / "i.dat").write_bytes(pack_dat(entries, trailer))
        read = Imatrix.read(tmp_path / "i.dat")
        assert read.choose_columns(shapes)["blk.0.ffn_up.weight"].tolist() == [1, 2, 0]
        assert read.datasets == (("wiki.raw",) if len(trailer) > 8 else ())


NAN, INF = float("nan"), float("inf")
ENTRY = {"in_sum2": [1.0, 2.0], "counts": [2.0]}
# (entries of a GGUF file or bytes, a part of the message)
DAMAGE = [
    ({}, "it is empty"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, NAN], "counts": [2.0]}}, "'blk.0.a.weight' has a value that is NaN"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, 2.0], "counts": [INF]}}, "'blk.0.a.weight' has a value that is NaN"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, -2.0], "counts": [2.0]}}, "has a negative sum of squares"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, 2.0], "counts": [0.0]}}, "has no data: nothing was evaluated"),
    ({"blk.0.a.weight": {"in_sum2": [0.0, 0.0], "counts": [9.0]}}, "has no data: nothing was evaluated"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, 2.0]}}, "'blk.0.a.weight' has sums without counts"),
    ({"blk.0.a.weight": {"in_sum2": [1.0, 2.0], "counts": [1.0, 1.0, 1.0]}}, "has 2 sums and 3 counts"),
    (b"", "it is empty"),
    (b"\x01\x00", "it is cut off, or no importance matrix"),
    (b"SELECT 1 FROM a_text;", "it is cut off, or no importance matrix"),
    (pack_dat([]), "it is empty"),
    (pack_dat([(b"blk.0.a.weight", 1, [1, 2])])[:-3], "it is cut off, or no importance matrix"),
    (pack_dat([(b"blk.0.a.weight", 1, [1, NAN])]), "has a value that is NaN"),
    (pack_dat([(b"blk.0.a.weight", 0, [1, 2])]), "has no data"),
    (pack_dat([(b"blk.0.a.weight", 1, [])]), "has 0 sums and 1 counts"),
    (pack_dat([(b"a", 1, [1])] * 2), "'a' is there twice"),
    (struct.pack("<ii", 1, -5), "it is cut off, or no importance matrix"),
    (struct.pack("<ii1sii", 1, 1, b"a", 1, -1), "it is cut off, or no importance matrix"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGE)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, message):
    """In one line, with the file and the tensor."""
    path = tmp_path / "i.imatrix"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_like_llama_cpp(path, content)
    with pytest.raises(QuantizationError) as caught:
        Imatrix.read(path)
    assert message in str(caught.value)
    assert "'i.imatrix'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path, qwen_gguf, matrix):
    """A model, a GGUF of which the end is missing, one without llama.cpp's keys, another number type, no file."""
    matrix.write(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:-40])
    write_like_llama_cpp(tmp_path / "keys.gguf", {"a": ENTRY}, more_fields=False)
    write_like_llama_cpp(tmp_path / "f16.gguf", {"a": ENTRY}, kind=np.float16)
    for path, message in [
        (qwen_gguf, "a GGUF file of another kind"),
        (tmp_path / "cut.gguf", "not a sound GGUF file"),
        (tmp_path / "keys.gguf", r"it has no imatrix\.chunk_count"),
        (tmp_path / "f16.gguf", "'a.in_sum2' is of type F16, not F32"),
        (tmp_path / "missing.gguf", "not there"),
        (tmp_path, "not there, or not a regular file"),
    ]:
        with pytest.raises(QuantizationError, match=message):
            Imatrix.read(path)


def test_a_matrix_of_another_model_is_refused(fitting, plain, checkpoint, tmp_path):
    """One that lacks a matrix, or has another width, with its name; entries that the model lacks do no harm."""
    _, shapes = plain
    assert len(fitting.choose_columns(shapes)) == 31
    fewer = {name: entry for name, entry in fitting.entries.items() if "ffn_up" not in name}
    lacking = Imatrix(fewer, (), 1, 50, name="i.gguf")
    with pytest.raises(QuantizationError, match=r"lacks 4 of the model's 32 matrices, first blk\.0\.ffn_up\.weight"):
        lacking.choose_columns(shapes)
    wider = shapes | {"blk.2.ffn_up.weight": (256, 512)}
    with pytest.raises(QuantizationError, match=r"it has 256 columns for blk\.2\.ffn_up\.weight, which has 512"):
        fitting.choose_columns(wider)
    lacking.write(tmp_path / "i.gguf")
    with pytest.raises(QuantizationError, match="lacks 4"):
        convert_checkpoint(checkpoint, tmp_path / "m.gguf", recipe="q4-fast", imatrix=tmp_path / "i.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["i.gguf"]


def weighted_error(path, original, name, weights):
    """Sum over columns of weight times squared error of a Q4_0 tensor."""
    tensor, exact = GgufFile.read(path).tensors[name], GgufFile.read(original).tensors[name]
    assert tensor.type == "Q4_0"
    stored = np.fromfile(path, np.uint8, tensor.n_bytes, offset=tensor.offset).reshape(tensor.shape[0], -1)
    values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q4_0)
    wanted = np.fromfile(original, np.float32, exact.n_bytes // 4, offset=exact.offset).reshape(exact.shape)
    return float((np.square(values - wanted) * weights).sum())


def test_columns_that_matter_are_kept_better(fitting, plain, checkpoint, tmp_path):
    """With the matrix the weighted error is smaller than without; the file says which matrix and recipe it was."""
    folder, _ = plain
    fitting.write(tmp_path / "i.dat")
    report = convert_checkpoint(checkpoint, tmp_path, recipe="q4-fast", imatrix=tmp_path / "i.dat")
    made = report.files[0].path
    for name in ("blk.0.ffn_up.weight", "blk.3.attn_q.weight"):
        weights = fitting.entries[name].sums / 50
        before, after = (
            weighted_error(path, folder / "agent-F32.gguf", name, weights)
            for path in (folder / "agent-Q4_0.gguf", made)
        )
        assert after < 0.9 * before
    fields = GgufFile.read(made).fields
    digest = hashlib.sha256((tmp_path / "i.dat").read_bytes()).hexdigest()
    assert fields["sqale.imatrix.sha256"] == report.files[0].imatrix_sha256 == digest
    assert fields["quantize.imatrix.file"] == "i.dat"
    assert fields["quantize.imatrix.entries_count"] == len(fitting.entries)
    assert fields["quantize.imatrix.chunks_count"] == 1
    assert fields["quantize.imatrix.dataset"] == "text.txt"


def test_a_matrix_that_nothing_uses_is_an_error(fitting, checkpoint, tmp_path):
    """Unquantized files alone take none; beside others they are as they were, and plain types use it."""
    fitting.write(tmp_path / "i.gguf")
    with pytest.raises(QuantizationError, match=r"'i\.gguf' is of no use for BF16"):
        convert_checkpoint(checkpoint, tmp_path / "m.gguf", "BF16", imatrix=tmp_path / "i.gguf")
    report = convert_checkpoint(checkpoint, tmp_path, ["BF16", "Q4_0"], imatrix=tmp_path / "i.gguf")
    assert [file.imatrix_sha256 is not None for file in report.files] == [False, True]
    assert "sqale.imatrix.sha256" not in GgufFile.read(report.files[0].path).fields


def test_nothing_is_overwritten_and_nothing_left(matrix, tmp_path):
    """A name that is taken is an error, before the work and after it; nothing but the file is left."""
    path = tmp_path / "i.gguf"
    matrix.write(path)
    before = path.read_bytes()
    for attempt in (lambda: matrix.write(path), lambda: check_output(path, overwrite=False)):
        with pytest.raises(ConversionError, match="exists already"):
            attempt()
    for wrong in (tmp_path, tmp_path / "missing" / "i.gguf"):
        with pytest.raises(ConversionError, match=r"is a folder|is in no folder"):
            check_output(wrong, overwrite=True)
    check_output(path, overwrite=True)
    matrix.write(path, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_file_cannot_hold_is_an_error(tmp_path):
    """Nothing at all, a sum that is too large for float32, and names that llama.cpp would cut."""
    with pytest.raises(ConversionError, match="nothing was evaluated"):
        make_imatrix({}, {}, [], 0)
    with np.errstate(over="ignore"), pytest.raises(ConversionError, match="NaN or infinite"):
        make_imatrix({"a": np.array([1e39])}, {"a": 1}, [], 1)
    for name in ("b" * 60, "a\0b"):
        with pytest.raises(ConversionError, match=r"too long|NUL"):
            make_imatrix({name: np.ones(3)}, {name: 1}, [], 1).write(tmp_path / "i.gguf")
