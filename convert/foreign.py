"""What strangers wrote: the files of a checkpoint are read here and nowhere else, and so are their values quoted.

Whatever such a file holds, what comes out is its content, or a `CheckpointError` of one short line. That is so for
links to nowhere and to themselves, pipes, devices, folders, files that are too large, text that is no UTF-8, JSON that
is none, that nests too deeply, says a key twice, or has numbers and strings that no other program would take.

Not guaranteed: files that change while they are read, and devices that take the place of a file at that instant.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import reprlib
import stat
from typing import IO, TYPE_CHECKING, Any

from sqale_edge.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_JSON_LIMIT = 1 << 24  # bytes; the largest such file but tokenizer.json is an index of many thousand tensors
_MOST_DIGITS = 64  # of a whole number; transformers writes int(1e30) for "no limit"
_MOST_QUOTED = 160  # characters of a value in a message
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened at once, and refused
# A half of a surrogate pair, which JSON can spell and no file can hold.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_QUOTER = reprlib.Repr()
_QUOTER.maxstring = _QUOTER.maxother = _QUOTER.maxlong = _MOST_QUOTED
_QUOTER.maxlevel = 3


def quote(value: Any) -> str:
    """`repr(value)` for a message: one line that cannot steer a terminal, cut in the middle where it is long."""
    return shorten(_QUOTER.repr(value))


def shorten(text: str, limit: int = 2 * _MOST_QUOTED) -> str:
    """The text as one line of at most `limit` characters."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 3]}..."


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, if only a link to nowhere: that is damage, not absence."""
    return os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """`path.is_dir()`, also for a name that no file can have."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path` raises an error for such a name


def is_file(path: Path) -> bool:
    """`path.is_file()`, also for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, opened for reading. Raises CheckpointError for anything else, and when it cannot be read."""
    try:
        _check_regular(path.stat(), path)  # before it is opened: devices may act on that
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
            _check_regular(os.fstat(file.fileno()), path)
            yield file
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", path=path) from error


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path.name} is not a regular file", path=path)


def read_text(path: Path, *, limit: int) -> str:
    """The whole of a regular file of at most `limit` bytes, as UTF-8. Raises CheckpointError for anything else."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
        n_bytes = max(len(content), os.fstat(file.fileno()).st_size)
    if n_bytes > limit:
        raise CheckpointError(
            f"{path.name} is {n_bytes:,} bytes long, more than the {limit:,} that such a file may have", path=path
        )
    return decode(content, path, path.name)


def decode(content: bytes, path: Path, what: str) -> str:
    """Bytes as UTF-8. Raises CheckpointError for anything else."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{what} is not UTF-8: {error.reason} at byte {error.start}", path=path) from error


def read_json(path: Path, *, limit: int = _JSON_LIMIT) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes. Raises CheckpointError for anything else."""
    return parse_object(read_text(path, limit=limit), path, path.name)


def parse_object(text: str, path: Path, what: str) -> dict[str, Any]:
    """The JSON object that `text` is; its strings can be written to a file, its whole numbers have at most 64 digits.

    Raises:
        CheckpointError: It is something else, or says a key twice: which of the two counts would be a guess.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_parse_int)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{what} is not valid JSON: it has half a surrogate pair", path=path) from error
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is too large or nested too deeply"
        raise CheckpointError(f"{what} is not valid JSON: {shorten(why)}", path=path) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a JSON {type(value).__name__}, not an object", path=path)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{quote(name)} appears twice")
    return result


def _parse_int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def find_unwritable(text: str) -> str | None:
    """What it is in a string that a GGUF file cannot hold, or llama.cpp would read wrongly; None for nothing."""
    if "\0" in text:
        return "a NUL, at which llama.cpp would cut it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half a surrogate pair"
    return None
