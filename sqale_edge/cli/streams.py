"""stdout and stderr as a command needs them: an answer arrives or the command fails; the rest may be lost."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Closed(io.StringIO):
    """Stands in for a stdout that was closed before the start (`>&-`)."""

    def write(self, text: str, /) -> int:
        del text
        raise OSError(errno.EBADF, "stdout is closed")


class _Lossy:
    """A stream on which nothing fails: a full disk behind stderr must not cost the answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


@contextlib.contextmanager
def prepared_streams() -> Iterator[None]:
    """For the block `sys.stdout` and `sys.stderr` are there, write UTF-8, and fail only where an answer is lost."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            # Cells may hold bytes that are no UTF-8; they are escaped instead of ending the program.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout = before[0] or _Closed()
    sys.stderr = _Lossy(before[1] or io.StringIO())
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            _give_up(stream)


def _give_up(stream: TextIO | None) -> None:
    """Drop what cannot be written: Python would try again at exit, and complain."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()
