"""Damaged, contradictory and hostile checkpoints: one clear line, and nothing written."""

import json
import os
import struct
import sys

import numpy as np
import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint, verify_file
from sqale_edge.convert.provenance import find_provenance

from sqale_edge.errors import CheckpointError, ConversionError


def edit_header(folder, edit, name="model.safetensors"):
    """Rewrite the header of a weight file; `edit` changes it in place, or returns the new text."""
    path = folder / name
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    text = edit(header)
    text = json.dumps(header).encode() if text is None else text
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def edit_entry(**changes):
    def edit(folder):
        edit_header(
            folder, lambda header: next(entry for name, entry in header.items() if "A_log" in name).update(changes)
        )

    return edit


def rename(old, new):
    def edit(folder):
        edit_header(folder, lambda header: header.update({new: header.pop(old)}))

    return edit


def set_length(n_bytes):
    def edit(folder):
        with (folder / "model.safetensors").open("r+b") as file:
            file.write(struct.pack("<Q", n_bytes))

    return edit


def truncate(n_bytes):
    return lambda folder: os.truncate(folder / "model.safetensors", n_bytes)


def shard(edit):
    """Write the checkpoint again in shards, and change index or shards."""

    def change(folder):
        for file in folder.iterdir():
            file.unlink()
        write_checkpoint(folder, n_shards=2)
        edit(folder)

    return change


def edit_index(**changes):
    def edit(folder):
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"] |= changes
        path.write_text(json.dumps({**index, "weight_map": {k: v for k, v in index["weight_map"].items() if v}}))

    return edit


def put(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def put_config(**changes):
    def edit(folder):
        config = json.loads((folder / "config.json").read_text())
        config["text_config"] |= changes
        config |= {name: value for name, value in changes.items() if name in config}
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def nest(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def remove(name):
    return lambda folder: (folder / name).unlink()


def replace_by_link(name, target):
    def edit(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return edit


def add_duplicate_key(folder):
    def edit(header):
        text = json.dumps(header)
        name = next(name for name in header if "A_log" in name)
        return (text[:-1] + f', "{name}": {json.dumps(header[name])}}}').encode()

    edit_header(folder, edit)


def add_tensor(name, shape=(4,), dtype="F32"):
    def edit(folder):
        path = folder / "model.safetensors"
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:start])
        data = content[start:]
        n_bytes = int(np.prod(shape)) * 4
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + n_bytes]}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(n_bytes))

    return edit


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(10 << 30)


def poison(folder, value):
    """Put a value into the middle of the weights."""
    write_checkpoint(folder, dtype="F32")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", content[:8])[0]
    content[start + 400_000 : start + 400_004] = np.float32(value).tobytes()
    path.write_bytes(content)


ROOT = "model.language_model."
# (what is wrong, how it comes about, a part of the message)
HOSTILE = [
    ("nothing there", lambda folder: [file.unlink() for file in folder.iterdir()], r"no config\.json in"),
    ("no weights", remove("model.safetensors"), r"no model\.safetensors"),
    (
        "pickled weights",
        lambda f: (remove("model.safetensors")(f), put("pytorch_model.bin", b"x")(f)),
        r"no model\.safetensors",
    ),
    (
        "an adapter",
        lambda f: (f / "model.safetensors").rename(f / "adapter_model.safetensors"),
        r"no model\.safetensors",
    ),
    ("empty config", put("config.json", b""), r"config\.json is not valid JSON"),
    ("config is a list", put("config.json", b"[]"), "holds a JSON list"),
    ("config of deep nesting", put("config.json", b"[" * 200_000), r"config\.json is not valid JSON"),
    (
        "config with a huge number",
        put("config.json", b'{"a": ' + b"1" * 10_000 + b"}"),
        r"config\.json is not valid JSON",
    ),
    ("config not UTF-8", put("config.json", b'{"a": "\xff"}'), "is not UTF-8"),
    ("config says a key twice", put("config.json", b'{"a": 1, "a": 2}'), "'a' appears twice"),
    ("empty weights", truncate(0), "truncated or not safetensors"),
    ("seven bytes", truncate(7), "truncated or not safetensors"),
    ("half a header", truncate(100), "truncated or not safetensors"),
    ("half the weights", truncate(200_000), "but its tensors end at"),
    ("one byte less", lambda f: truncate((f / "model.safetensors").stat().st_size - 1)(f), "but its tensors end at"),
    ("header length zero", set_length(0), "truncated or not safetensors"),
    ("header length huge", set_length(1 << 60), "truncated or not safetensors"),
    (
        "header length of the file",
        lambda f: set_length((f / "model.safetensors").stat().st_size)(f),
        "truncated or not",
    ),
    ("header cut", set_length(50), "is not valid JSON"),
    ("header is a list", lambda f: edit_header(f, lambda _: b"[1, 2]"), "holds a JSON list"),
    (
        "header entry is a number",
        lambda f: edit_header(f, lambda h: h.update(x=7)),
        "does not give .* a dtype, a shape and two data_offsets",
    ),
    ("shape lies", edit_entry(shape=[5]), "one of them lies"),
    ("huge dimensions", edit_entry(shape=[1 << 40, 1 << 40]), "one of them lies"),
    ("negative dimension", edit_entry(shape=[-4]), "one of them lies"),
    ("fractional dimension", edit_entry(shape=[4.0]), "one of them lies"),
    ("shape is text", edit_entry(shape="4"), "one of them lies"),
    ("dimension is true", edit_entry(shape=[True, 4]), "one of them lies"),
    ("offsets overlap", edit_entry(data_offsets=[0, 8]), "overlaps the tensor before it|leaves a gap"),
    ("offsets beyond the end", edit_entry(data_offsets=[1 << 50, (1 << 50) + 8]), "leaves a gap before it"),
    ("offsets backwards", edit_entry(data_offsets=[8, 0]), "one of them lies"),
    ("offsets negative", edit_entry(data_offsets=[-8, 0]), "one of them lies"),
    ("three offsets", edit_entry(data_offsets=[0, 4, 8]), "does not give .* a dtype, a shape and two data_offsets"),
    ("unknown type", edit_entry(dtype="BF17"), "unknown type 'BF17'"),
    ("type is a list", edit_entry(dtype=["BF16"]), "unknown type"),
    ("quantized type", edit_entry(dtype="I16"), "of type I16, but only BF16, F16, F32"),
    ("a tensor twice", add_duplicate_key, "appears twice"),
    ("a tensor under two names", add_tensor("model.norm.weight"), "are the same tensor"),
    (
        "a tensor missing",
        rename(f"{ROOT}norm.weight", "model.visual.norm.weight"),
        r"1 tensors are missing, first 'norm\.weight'",
    ),
    ("a tensor too many", add_tensor(f"{ROOT}layers.0.extra.weight"), "1 are not part of this architecture"),
    ("a layer too many", add_tensor(f"{ROOT}layers.4.input_layernorm.weight"), "not part of this architecture"),
    ("a name that steers a terminal", add_tensor("\x1b[31m"), r"'\\x1b\[31m'"),
    ("weights twice", put("model.safetensors.index.json", b"{}"), "are both there"),
    ("index without map", shard(put("model.safetensors.index.json", b"{}")), "no weight_map"),
    ("index escapes", shard(edit_index(x="../../etc/passwd.safetensors")), "not a .safetensors file of this folder"),
    ("index names a missing shard", shard(edit_index(x="model-3.safetensors")), r"model-3\.safetensors cannot be read"),
    (
        "index names a missing tensor",
        shard(edit_index(x="model-00001-of-00002.safetensors")),
        "holds 'x', which it does not",
    ),
    ("index lacks a tensor", shard(edit_index(**{f"{ROOT}norm.weight": None})), "says no shard"),
    (
        "index swaps shards",
        shard(edit_index(**{f"{ROOT}norm.weight": "model-00002-of-00002.safetensors"})),
        "but model.safetensors.index.json says",
    ),
    ("a shard missing", shard(remove("model-00002-of-00002.safetensors")), "cannot be read"),
    ("NaN", lambda f: poison(f, np.nan), "is NaN or infinite"),
    ("infinity", lambda f: poison(f, -np.inf), "is NaN or infinite"),
    ("a dangling link", replace_by_link("model.safetensors", "nowhere"), "cannot be read"),
    ("a link to itself", replace_by_link("model.safetensors", "model.safetensors"), "cannot be read"),
    ("a link to a folder", replace_by_link("config.json", "."), "is not a regular file"),
    ("tokenizer is a dangling link", replace_by_link("tokenizer.json", "nowhere"), r"tokenizer\.json cannot be read"),
    (
        "template is a dangling link",
        replace_by_link("chat_template.jinja", "nowhere"),
        r"chat_template\.jinja cannot be read",
    ),
    ("no tokenizer", remove("tokenizer.json"), r"no tokenizer\.json"),
    ("sampling is text", put("generation_config.json", b'{"top_k": "20"}'), "top_k '20'"),
    (
        "a header of huge numbers",
        edit_entry(shape=[int("9" * 4299)] * 1500),
        "the header of model.safetensors is not valid JSON: a number of 4,299 digits",
    ),
    ("numbers beyond any file", edit_entry(shape=[10**60] * 60), "one of them lies"),
    ("a million dimensions", edit_entry(shape=[1] * 1_000_000), r"has shape \[1, 1, 1, 1, 1, 1, \.\.\.\]"),
    ("a long name", add_tensor("x" * 1_000_000), r"first 'xxx.*\.\.\..*xxx'"),
    ("a long type", edit_entry(dtype="x" * 1_000_000), r"unknown type 'xxx"),
    ("a large header", lambda f: edit_header(f, lambda _: b" " * 17_000_000), "header of 17,000,000 bytes, more than"),
    ("a header in UTF-16", lambda f: edit_header(f, lambda h: json.dumps(h).encode("utf-16")), "is not UTF-8"),
    ("a shard with a newline", shard(edit_index(x="a\nb.safetensors")), r"names the shard 'a\\nb\.safetensors'"),
    ("a listed shard with a newline", shard(edit_index(**{f"{ROOT}norm.weight": "a\nb"})), r"names the shard 'a\\nb'"),
    ("architecture is a long list", put_config(architectures=[["x" * 10**5] * 10]), "is not supported"),
    ("layer types nest deeply", put_config(layer_types=nest(500)), "but must have 4 times one of"),
    ("hidden_act is long", put_config(hidden_act=["x" * 10**6] * 10), "but must have|asks for hidden_act"),
    ("half a character", put("config.json", b'{"a": "\\ud800"}'), "half a surrogate pair"),
    ("sampling is huge", put("generation_config.json", b'{"top_k": ' + b"9" * 4000 + b"}"), "a number of 4,000 digits"),
    ("sampling is negative", put("generation_config.json", b'{"temperature": -1}'), "temperature -1"),
]


@pytest.mark.parametrize(("edit", "message"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_checkpoint_is_one_line_and_nothing_is_written(tmp_path, edit, message):
    """The error names what is wrong; no file and no folder is left at the target."""
    folder = write_checkpoint(tmp_path / "m")
    edit(folder)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConversionError, match=message) as caught:
        convert_checkpoint(folder, out / "m.gguf", "BF16")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert list(out.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "sqale_agent.py",
    ],
)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    """A named pipe in the place of a file would block forever."""
    folder = write_checkpoint(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    if name == "chat_template.json":  # it counts where there is no other template
        put("tokenizer_config.json", b"{}")(folder)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None), lambda p: p.symlink_to(p), make_sparse])
def test_a_download_note_that_is_no_note_does_not_stop_the_conversion(tmp_path, make):
    """The revision is not known then; a real note names it."""
    folder = write_checkpoint(tmp_path / "m")
    note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    note.parent.mkdir(parents=True)
    make(note)
    assert find_provenance(folder).revision is None
    note.rmdir() if note.is_dir() else note.unlink()
    note.write_text(f"{'a1' * 20}\n0123\n1700000000.0\n")
    assert find_provenance(folder).revision == "a1" * 20


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are Linux")
def test_a_folder_whose_name_is_no_text_gives_the_model_a_name_that_is(tmp_path):
    """Bytes that are no UTF-8 stand for nothing that a file could hold."""
    folder = write_checkpoint(tmp_path / os.fsdecode(b"a\xffb"))
    assert convert_checkpoint(folder, tmp_path, "BF16").name == "a\ufffdb"
    assert [file.name for file in tmp_path.glob("*.gguf")] == ["a-b-BF16.gguf"]


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_given_name_that_no_file_can_hold_is_an_error(tmp_path, name):
    """It would be cut, or could not be written."""
    folder = write_checkpoint(tmp_path / "m")
    with pytest.raises(ConversionError, match=r"for general\.name has"):
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16", name=name)
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a\0b", "a\nb/c"])
def test_names_that_no_file_can_have_are_errors(tmp_path, name):
    """As a source, as a target, as a folder for it, and as a file to verify."""
    folder = write_checkpoint(tmp_path / "m")
    for source, target in ((name, "m.gguf"), (folder, f"{name}.gguf"), (folder, f"{name}/m.gguf"), (folder, name)):
        with pytest.raises(ConversionError) as caught:
            convert_checkpoint(source, tmp_path / target, "BF16")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConversionError, match="cannot be read"):
        verify_file(tmp_path / f"{name}.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


def test_a_source_that_is_no_folder_is_an_error(tmp_path):
    """A missing folder and a file in its place are told apart."""
    with pytest.raises(CheckpointError, match="does not exist"):
        convert_checkpoint(tmp_path / "missing", tmp_path / "m.gguf")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is not a folder"):
        convert_checkpoint(tmp_path / "file", tmp_path / "m.gguf")


def test_hints_name_the_fix(tmp_path):
    """Pickled weights and adapters have their own way out."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        convert_checkpoint(tmp_path, tmp_path / "m.gguf")
    assert "save the model as safetensors" in caught.value.hint
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        convert_checkpoint(tmp_path, tmp_path / "m.gguf")
    assert "merge" in caught.value.hint


def test_scalars_and_empty_tensors_of_dropped_parts_do_no_harm(tmp_path):
    """What is dropped may have any shape and type that the format allows."""
    folder = write_checkpoint(tmp_path / "m")
    add_tensor("model.visual.scale", shape=())(folder)
    add_tensor("model.visual.none", shape=(0, 3), dtype="F64")(folder)
    assert convert_checkpoint(folder, tmp_path / "m.gguf", "BF16").n_dropped == 4
