"""What a figure depends on besides the code, to be recorded beside it: machine, versions, commit, model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge._version import __version__

from .bandwidth import last_cache_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_BYTES = 1 << 22
_GIT_S = 10


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system, and how busy it is."""
    from sqale_edge.llama.memory import available_memory  # noqa: PLC0415 - llama.cpp is loaded with a model
    from sqale_edge.llama.threads import allowed_cpus, cpu_name, physical_cores  # noqa: PLC0415

    load = None
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            load = os.getloadavg()[0]
    return {
        "cpu": cpu_name(),
        "cores": physical_cores(),
        "allowed_cpus": allowed_cpus(),
        "last_cache_bytes": last_cache_bytes(),
        "available_memory_bytes": available_memory(),
        "system": platform.platform(),
        "load_average_at_start": load,
    }


def describe_versions() -> dict[str, Any]:
    """Of everything that computes, the build of llama.cpp among it, and the commit where this is a clone."""
    import numpy as np  # noqa: PLC0415 - keeps the import light

    from sqale_edge.llama import describe_build  # noqa: PLC0415

    return {
        "sqale_edge": __version__,
        "commit": read_commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "sqlite": sqlite3.sqlite_version,
        **describe_build(),
    }


def is_repository(folder: Path) -> bool:
    """Whether `folder` is a clone of this project."""
    with contextlib.suppress(OSError):
        is_ours = 'name = "sqale-edge"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
        return is_ours and (folder / "benchmarks").is_dir()
    return False


def read_commit(folder: Path | None = None) -> str | None:
    """The commit of the clone in the current folder, with a `+` if it has changes; None anywhere else."""
    folder = folder or Path.cwd()
    if not is_repository(folder):
        return None
    answers = []
    for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(  # noqa: S603 - fixed commands
                ["git", "-C", str(folder), *arguments],  # noqa: S607 - wherever it is installed
                capture_output=True,
                check=True,
                text=True,
                timeout=_GIT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return answers[0] + ("+" if answers[1] else "")


def describe_model(path: Path, check: Callable[[], None]) -> dict[str, Any]:
    """The model's file: its digest, and the bytes that each decoded token reads.

    Those are all weights, once; of an embedding beside a head of its own a token reads a row, which does not count.
    KV cache and recurrent state come on top.

    Args:
        path: A GGUF file.
        check: Called now and then; what it raises ends the reading.
    """
    from gguf import GGUFReader  # noqa: PLC0415 - keeps the import light

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            check()
            digest.update(chunk)
    reader = GGUFReader(path)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    field = reader.get_field("general.file_type")
    n_unread = sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0
    return {
        "file": path.name,
        "sha256": digest.hexdigest(),
        "file_bytes": path.stat().st_size,
        "file_type": int(field.parts[field.data[0]][0]) if field else None,
        "read_bytes_per_token": sum(sizes.values()) - n_unread,
    }


def now() -> str:
    """The time in UTC, as in 2026-01-31T12:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
