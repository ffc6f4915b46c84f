"""Reading a GGUF head back, from whatever a file holds."""

import contextlib
import random

import gguf
import numpy as np
import pytest
from sqale_edge.convert.gguf_file import GgufFile

from sqale_edge.errors import ConversionError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of gguf's own writer, with a value of every kind."""
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -2)
    writer.add_uint32("u32", 1 << 31)
    writer.add_int32("i32", -3)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -4)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("text", "grün 日本")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("words", ["a", "", "c" * 300])
    writer.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b", np.ones((4, 2, 1), np.float16))
    writer.add_tensor("c", np.zeros((3, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_kind_of_value_is_read(written):
    """Numbers of all widths, text, lists, and where each tensor lies."""
    file = GgufFile.read(written)
    assert file.fields == {
        "general.architecture": "test",
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 1 << 31,
        "i32": -3,
        "u64": 1 << 63,
        "i64": -4,
        "f32": 0.5,
        "f64": 0.1,
        "bool": True,
        "text": "grün 日本",
        "numbers": [1, 2, 3],
        "words": ["a", "", "c" * 300],
    }
    tensors = {name: (tensor.shape, tensor.type, tensor.n_bytes) for name, tensor in file.tensors.items()}
    assert tensors == {"a": ((2, 3), "F32", 24), "b": ((4, 2, 1), "F16", 16), "c": ((3, 32), "Q8_0", 102)}
    start = file.tensors["a"].offset
    assert np.frombuffer(written.read_bytes()[start : start + 24], np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_it_agrees_with_the_gguf_packages_reader(written):
    """Shapes, types and offsets are those of an independent reader."""
    other = {
        tensor.name: (
            tuple(map(int, tensor.shape[::-1])),
            tensor.tensor_type.name,
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        for tensor in gguf.GGUFReader(written).tensors
    }
    mine = {t.name: (t.shape, t.type, t.offset, t.n_bytes) for t in GgufFile.read(written).tensors.values()}
    assert mine == other


def test_a_damaged_head_is_our_error(written, tmp_path):
    """Two thousand mutations: an error that is ours, or a file that still makes sense."""
    whole, rng, path = written.read_bytes(), random.Random(0), tmp_path / "m.gguf"
    n_errors = 0
    for _ in range(2000):
        content = bytearray(whole)
        at = rng.randrange(len(content))
        if rng.random() < 0.2:
            del content[at:]
        else:
            content[at : at + rng.randrange(1, 9)] = rng.choice([b"\xff" * 8, b"\x00" * 4, rng.randbytes(4)])
        path.write_bytes(content)
        with contextlib.suppress(ConversionError):
            GgufFile.read(path)
            n_errors -= 1
        n_errors += 1
    assert n_errors > 500


def test_what_is_no_file_is_an_error(tmp_path):
    """Missing files and folders are not read."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConversionError, match="cannot be read"):
            GgufFile.read(path)
