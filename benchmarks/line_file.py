"""A file of JSON lines that grows, and that a kill at any instant leaves usable: a torn last line is dropped."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.errors import BenchmarkError

if TYPE_CHECKING:
    from pathlib import Path


class LineFile:
    """The file, open to be added to. Close it, or use it in a `with` statement.

    Args:
        path: Made if it is not there.
        n_bytes: Of its whole lines; what comes behind them is cut off.
        hint: What to do where it cannot be written.

    Raises:
        BenchmarkError: It cannot be written.
    """

    def __init__(self, path: Path, n_bytes: int, hint: str = "") -> None:
        self._path, self._hint = path, hint
        try:
            self._file = path.open("r+b" if path.exists() else "xb", buffering=0)
            self._file.truncate(n_bytes)
            self._file.seek(n_bytes)
        except OSError as error:
            raise self._cannot_write(error) from error

    def write(self, record: dict[str, Any]) -> None:
        """Put `record` at the end; when this returns it is on the disk. Raises BenchmarkError."""
        line = memoryview(json.dumps(record).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> BenchmarkError:
        return BenchmarkError(
            f"{str(self._path)!r} cannot be written: {error.strerror}", path=self._path, hint=self._hint
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
