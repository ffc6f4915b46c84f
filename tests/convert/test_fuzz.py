"""Thousands of ways to damage a checkpoint, of which each run tries the same few hundred: one line, and nothing left.

For more of them raise `max_examples` and leave out `derandomize`.
"""

import json
import os
import shutil
import struct
import sys

import pytest
from checkpoints import write_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqale_edge.convert import convert_checkpoint

from sqale_edge.errors import ConversionError

AGENT_SOURCE = """SYSTEM_PROMPT = "Use the tools."
USER_TEMPLATE = "{question}"
def line(left):
    return f"[{left} tool turn{'s' if left != 1 else ''} left]"
LIMIT_MESSAGE = f"Only SQL now: {last_sql}"
"""
JSON_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
TEXT_FILES = [*JSON_FILES, "sqale_agent.py", "chat_template.jinja"]
# As they stand in a file: wrong types, absurd sizes, what JSON should not have, what no file can hold.
VALUES = ["null", "true", "0", "-1", "3", "0.5", "1e308", str(1 << 63), "9" * 60, '""', '"x"', "[]", "{}", '[["a"]]']
VALUES += ['{"content": ["x"]}', '{"id": {}}', '[{"name": []}]', "NaN", "-Infinity", "1e999", "9" * 5000, "tru", ""]
VALUES += ["[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, '{"a": 1, "a": 1}', '"' + "x" * 100_000 + '"']
VALUES += [r'"\ud800"', r'"a\u0000b"', r'{"\udfff": 1}', r'{"a\u0000": 1}']
PIECES = [b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"{", b"[", rb"\ud800", rb"\0", b"9" * 50, b"(" * 300, b"{x}", b"\n"]

few = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Written(Exception):  # noqa: N818 - no error
    """Reading is over: what follows is the same for every checkpoint that is accepted."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("whole") / "m", agent_source=AGENT_SOURCE)
    path = folder / "tokenizer_config.json"
    entry = {"600": {"content": "<extra>", "special": True}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": entry}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def check(whole, tmp_path):
    """Damages a copy of the checkpoint, and looks at what comes of it."""

    def stop(_):
        raise Written

    def run(damage):
        folder, out = tmp_path / "m", tmp_path / "out"
        for path in (folder, out):
            shutil.rmtree(path, ignore_errors=True)
        out.mkdir()
        shutil.copytree(whole, folder)
        damage(folder)
        try:
            convert_checkpoint(folder, out / "m.gguf", "BF16", on_progress=stop)
        except ConversionError as error:
            message = str(error)
        except Written:
            message = ""
        assert message.isprintable()  # and so one line
        assert len(message) < 600
        assert list(out.iterdir()) == []

    return run


def replace_part(data, value, new):
    """JSON text of `value` with `new`, or nothing, in the place of one part of it."""
    marker = "\ufffe"
    holder, key = {"": value}, ""
    while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
    if holder == {"": value}:
        return new
    if data.draw(st.booleans()):
        holder[key] = marker
    elif isinstance(holder, dict) and data.draw(st.booleans()):
        holder[marker] = holder.pop(key)
        return json.dumps(value, ensure_ascii=False).replace(f'"{marker}"', new if new.startswith('"') else '"x"')
    else:
        del holder[key]
    return json.dumps(value, ensure_ascii=False).replace(f'"{marker}"', new)


@few
@given(data=st.data(), name=st.sampled_from(JSON_FILES), new=st.sampled_from(VALUES))
def test_json_with_a_wrong_part(check, data, name, new):
    """Any value in the place of any other, under any name, or none."""

    def damage(folder):
        value = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(replace_part(data, value, new), encoding="utf-8")

    check(damage)


@few
@given(data=st.data(), new=st.sampled_from(VALUES))
def test_a_header_with_a_wrong_part(check, data, new):
    """The same in the header of the weights."""

    def damage(folder):
        path = folder / "model.safetensors"
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        text = replace_part(data, json.loads(content[8:start]), new).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[start:])

    check(damage)


@few
@given(flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 7)), min_size=1, max_size=8))
def test_a_header_with_flipped_bits(check, flips):
    """Its length and its text."""

    def damage(folder):
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        for at, bit in flips:
            content[at] ^= 1 << bit
        path.write_bytes(content)

    check(damage)


@few
@given(
    name=st.sampled_from(TEXT_FILES),
    cuts=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.sampled_from(PIECES)), max_size=3),
    length=st.none() | st.integers(0, 1 << 12),
)
def test_text_with_wrong_bytes(check, name, cuts, length):
    """Parts of any text replaced by bytes that do not belong there, and its end cut off."""

    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        for at, n_bytes, piece in cuts:
            start = at % len(content)
            content[start : start + n_bytes] = piece
        (folder / name).write_bytes(content[:length])

    check(damage)


NAMES = st.sampled_from(["x", "y", "SYSTEM_PROMPT", "USER_TEMPLATE", "BUDGET", "TOOL_RESULT", "LIMIT_MESSAGE"])
ATOMS = [
    r'"\0"',
    r'"\ud800"',
    '"{question}"',
    '"{"',
    '"Tool result:"',
    'f"{n} tool turns left"',
    "1",
    "1e999",
    "-x",
    "x[y]",
]
ATOMS += [
    '"use a tool, submit_sql " + "a" * 9',
    '"exploration: only sql"',
    "0x" + "f" * 5000,
    '{"a\\n": x, **y}',
    "lambda: x",
]
EXPRESSIONS = st.recursive(
    NAMES | st.sampled_from(ATOMS),
    lambda inner: (
        st.builds("({} + {})".format, inner, inner)
        | st.builds("({} if {} else {})".format, inner, NAMES, inner)
        | st.builds('f"{{{}}}{{{}}}"'.format, NAMES, NAMES)
        | st.builds("{}.format({})".format, NAMES, inner)
        | st.builds('{}.replace("{{x}}", {})'.format, NAMES, inner)
        | st.builds('"".join([{}, {}])'.format, inner, inner)
        | st.builds("{}.strip()".format, NAMES)
    ),
    max_leaves=6,
)
STATEMENTS = st.recursive(
    st.builds("{} = {}".format, NAMES, EXPRESSIONS)
    | st.builds("{} += {}".format, NAMES, EXPRESSIONS)
    | st.builds("return {}".format, EXPRESSIONS)
    | st.builds("{}.append({})".format, NAMES, EXPRESSIONS)
    | EXPRESSIONS,
    lambda inner: st.builds(
        lambda head, body: f"{head}:\n" + "\n".join(body).replace("\n", "\n ").join([" ", ""]),
        st.builds("if {}".format, EXPRESSIONS) | st.sampled_from(["def f(x, y)", "for x in y", "while c", "class A"]),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=12,
)


@few
@given(statements=st.lists(STATEMENTS, max_size=8), times=st.sampled_from([1, 1, 1, 60]))
def test_programs_of_any_shape(check, statements, times):
    """Prompts that are made in odd ways, once or again and again."""
    source = "\n".join(statements * times)
    check(lambda folder: (folder / "sqale_agent.py").write_text(source, encoding="utf-8"))


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(10 << 30)


ODD_FILES = [lambda path: path.touch(), lambda path: path.mkdir(), lambda path: path.symlink_to(path.name)]
ODD_FILES += [lambda path: path.symlink_to("/dev/zero"), getattr(os, "mkfifo", None), make_sparse, lambda path: None]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")
@pytest.mark.parametrize("make", ODD_FILES, ids=["empty", "folder", "loop", "device", "pipe", "sparse", "absent"])
@pytest.mark.parametrize(
    "name", [*TEXT_FILES, "model.safetensors", "model.safetensors.index.json", "chat_template.json"]
)
def test_odd_files(check, name, make):
    """In the place of any file."""

    def damage(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    check(damage)
