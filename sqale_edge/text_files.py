"""Text files for an import: in the usual encodings, compressed or not, read a piece at a time.

Every piece that is read asks whether to stop, and what a file unpacks to is bounded. A line is held in memory as a
whole, so its length is bounded, too.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import stat
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_LINE_CHARS = 64 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BYTES = 64 << 20  # may always be unpacked; of a larger file as much more as data shrinks at most
_GZIP_RATIO = 100

BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class WrongFileError(ValueError):
    """What is wrong with a file, with the line, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TextFile:
    """A file with some text in it, which can be read more than once.

    Args:
        check: Called again and again while the file is read; it may raise.

    Attributes:
        max_bytes: No more bytes of text than this are read.
        encoding: What its byte order mark says; else UTF-8 if all of it is; else what Windows wrote in the west.

    Raises:
        WrongFileError: It is not a regular file, not text, or blank.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self.path = path
        self._check = check
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise WrongFileError(
                "it is not a regular file", hint="name a file; what comes out of a pipe can be saved as one"
            )
        with path.open("rb") as file:
            self._is_compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        self.max_bytes = max(_GZIP_BYTES, _GZIP_RATIO * found.st_size) if self._is_compressed else found.st_size
        self.encoding = self._find_encoding()
        with self.open() as text:
            if not any(piece.strip() for piece in iter(lambda: text.read(1 << 16), "")):
                raise WrongFileError("it is empty", hint="a CSV file has at least a line that names the columns")

    @property
    def is_guessed(self) -> bool:
        """Nothing but its look speaks for its encoding."""
        return self.encoding not in ("utf-8", *BOMS.values())

    def open(self) -> IO[str]:
        """The text from its beginning, with its line ends as they are."""
        return io.TextIOWrapper(self._open_bytes(), encoding=self.encoding, newline="")

    def lines(self) -> Iterator[str]:
        """The lines of the text, with their ends."""
        with self.open() as file:
            for number in itertools.count(1):
                line = file.readline(MAX_LINE_CHARS + 1)
                if len(line) > MAX_LINE_CHARS:
                    hint = "a line is one row; check that the file has line ends"
                    raise WrongFileError(f"line {number} has more than {MAX_LINE_CHARS:,} characters", hint=hint)
                if not line:
                    return
                yield line

    def _open_bytes(self) -> IO[bytes]:
        if not self._is_compressed:
            return io.BufferedReader(_Watched(self.path.open("rb"), self._check, None))
        unpacked = cast("IO[bytes]", gzip.GzipFile(self.path))
        return io.BufferedReader(_Watched(unpacked, self._check, self.max_bytes), 1 << 16)

    def _find_encoding(self) -> str:
        with self._open_bytes() as file:
            head = file.read(4096)
        for bom, encoding in BOMS.items():
            if head.startswith(bom):
                return encoding
        if b"\0" in head:
            half = len(head) // 4
            if head[1::2].count(0) > half:
                return "utf-16-le"
            if head[::2].count(0) > half:
                return "utf-16-be"
            raise WrongFileError("it is not a text file", hint="export it as CSV or JSON with the program that made it")
        for encoding in ("utf-8", "cp1252"):
            with contextlib.suppress(UnicodeDecodeError), self._open_bytes() as file:
                decoder = codecs.getincrementaldecoder(encoding)()
                while piece := file.read(1 << 20):
                    decoder.decode(piece)
                decoder.decode(b"", final=True)
                return encoding
        return "latin-1"


class _Watched(io.RawIOBase):
    """The bytes of `file`, `max_bytes` at most."""

    def __init__(self, file: IO[bytes], check: Callable[[], None], max_bytes: int | None) -> None:
        self._file = file
        self._check = check
        self._max_bytes = max_bytes
        self._n_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._check()
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        self._n_bytes += len(piece)
        if self._max_bytes is not None and self._n_bytes > self._max_bytes:
            raise WrongFileError(
                f"it unpacks to more than {self._max_bytes >> 20:,} MiB",
                hint="if you trust it, unpack it with gunzip, and open the unpacked file",
            )
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()
