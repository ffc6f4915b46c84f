"""What strangers wrote is read in one place: bounded, checked, and quoted in one short line."""

import os
import sys

import pytest
from sqale_edge.convert.foreign import find_unwritable, parse_object, quote, read_json, read_text, shorten

from sqale_edge.errors import CheckpointError

posix_files = pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(10 << 30)


# (how what has the name of a file is made, a part of the message)
NO_FILES = [
    pytest.param(lambda path: None, "cannot be read", id="nothing"),
    pytest.param(lambda path: path.mkdir(), "is not a regular file", id="a folder"),
    pytest.param(os.mkfifo if hasattr(os, "mkfifo") else None, "is not a regular file", id="a pipe"),
    pytest.param(lambda path: path.symlink_to("/dev/zero"), "is not a regular file", id="an endless device"),
    pytest.param(lambda path: path.symlink_to("/dev/tty"), "is not a regular file", id="a terminal"),
    pytest.param(lambda path: path.symlink_to(path.name), "cannot be read", id="a link to itself"),
    pytest.param(lambda path: path.symlink_to("nowhere"), "cannot be read", id="a link to nowhere"),
    pytest.param(make_sparse, r"f is 10,737,418,240 bytes long, more than the 1,000 that", id="ten empty gigabytes"),
    pytest.param(
        lambda path: path.symlink_to("/proc/kallsyms"),
        "more than the 1,000 that",
        id="a file that says it is empty",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux"),
    ),
]


@posix_files
@pytest.mark.parametrize(("make", "message"), NO_FILES)
def test_only_a_small_regular_file_is_read(tmp_path, make, message):
    """Anything else is an error at once, and no memory is filled."""
    make(tmp_path / "f")
    with pytest.raises(CheckpointError, match=message):
        read_text(tmp_path / "f", limit=1000)


def test_a_file_of_exactly_the_limit_is_read(tmp_path):
    """One byte more is too much."""
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(tmp_path / "f", limit=6) == "abc"
    with pytest.raises(CheckpointError, match="6 bytes long, more than the 5"):
        read_text(tmp_path / "f", limit=5)


# (JSON that is refused, a part of the message)
BAD_JSON = [
    ("", "Expecting value"),
    ("[1]", "holds a JSON list, not an object"),
    ('{"a": 1, "a": 1}', "'a' appears twice"),
    ('{"' + "a" * 10**6 + '": 1, "' + "a" * 10**6 + '": 1}', r"a\.\.\.a+' appears twice"),
    ('{"a": ' + "9" * 65 + "}", "a number of 65 digits"),
    ('{"a": ' + "9" * 4299 + "}", "a number of 4,299 digits"),
    ('{"a": -' + "9" * 10**6 + "}", "a number of 1,000,001 digits"),
    ("[" * 10**6, "too large or nested too deeply"),
    ('{"a":' * 10**6, "too large or nested too deeply"),
    (r'{"a": "\ud800"}', "half a surrogate pair"),
    (r'{"a": {"\uDFFF": 1}}', "half a surrogate pair"),
    (r'{"a": ["\uD800x\uDC00"]}', "half a surrogate pair"),
    ('{"a": "\n"}', "Invalid control character"),
]


@pytest.mark.parametrize(("text", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_json_is_one_short_line(tmp_path, text, message):
    """Whatever is wrong with it."""
    with pytest.raises(CheckpointError, match=message) as caught:
        parse_object(text, tmp_path, "f")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_odd_json_is_read(tmp_path):
    """What transformers writes: no limit as a huge number, whole surrogate pairs, infinity."""
    (tmp_path / "f").write_text(
        r'{"model_max_length": 1000000000000000019884624838656, "a": "\ud83d\ude00", "b": Infinity}'
    )
    assert read_json(tmp_path / "f") == {"model_max_length": int(1e30), "a": "\U0001f600", "b": float("inf")}


# A value, and what a message has for it.
QUOTED = [
    ("a", "'a'"),
    ("a\n\x1b[31m\x9b\u2028\ud800", r"'a\n\x1b[31m\x9b\u2028\ud800'"),
    ([1, [2, [3, [4]]]], "[1, [2, [3, [...]]]]"),
    (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
]


@pytest.mark.parametrize(("value", "text"), QUOTED)
def test_values_are_quoted_as_python_writes_them(value, text):
    """On one line, with escapes for what could steer a terminal."""
    assert quote(value) == text


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7,
        ["x" * 10**6] * 100,
        {"x" * 10**6: "y" * 10**6},
        [[["x" * 500] * 9] * 9] * 9,
        10**64,
        {"a": [None] * 10**6},
    ],
)
def test_what_is_quoted_is_short(value):
    """However large the value is."""
    assert len(quote(value)) <= 320


def test_a_shortened_text_is_one_line():
    """White space is one blank, and the end is cut off."""
    assert shorten(" a\n\n b\t") == "a b"
    assert shorten("a\n" * 1000, 10) == "a a a a..."
    assert len(shorten(" " * 10**6 + "a", 10)) <= 10


def test_what_cannot_be_written_is_named():
    """NUL, at which llama.cpp cuts, and what UTF-8 does not have."""
    assert find_unwritable("grün \U0001f600\x01") is None
    assert "NUL" in find_unwritable("a\0b")
    assert "surrogate" in find_unwritable("a\ud800")
