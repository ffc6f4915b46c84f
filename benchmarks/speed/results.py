"""The file of results: a line of JSON for each run, the newest last."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from sqale_edge.errors import BenchmarkError

from .surroundings import is_repository


def default_results_path() -> Path | None:
    """`benchmarks/results/speed.jsonl` where the current folder is a clone of this project; else None."""
    return Path("benchmarks/results/speed.jsonl") if is_repository(Path.cwd()) else None


def append_document(document: dict[str, Any], path: Path) -> None:
    """Put the document at the end of the file, which is made if it is not there, as one line. Raises BenchmarkError."""
    line = json.dumps(document).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            n_before = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) < len(line):
                    raise OSError(0, "the disk is full")  # noqa: TRY301 - as if the system had said so
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(n_before)
                raise
    except OSError as error:
        raise BenchmarkError(
            f"{str(path)!r} cannot be written: {error.strerror}", path=path, hint="name another file with --output"
        ) from error
