"""What the numbers that a model computes depend on, besides its tokens and settings: its file, the build, the machine.

A file is told apart by where it is and what the file system says of it, besides the samples of its contents that the
engine takes: reading all of a file of 1.3 GB takes a second or more at each start, and a digest that is remembered by
size and time is no safer than these themselves. `st_ctime_ns` changes with every change, also one that sets the time of
modification back. Not guaranteed: Windows, where it is the time of creation; there a change that keeps size and time,
and falls between the samples, is not seen.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import llama_cpp

from sqale_edge.llama import bindings

FileIdentity = list[str | int]
_SWITCHES = ("GGML_", "LLAMA_")  # environment variables by which these libraries change what they compute


def identify_file(path: Path) -> FileIdentity | None:
    """What is another list when the file is another or was changed; None where there is none that can be looked at."""
    try:
        found = path.stat()
        return [os.path.realpath(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    except OSError:
        return None


def identify_build() -> list[Any] | None:
    """What is another list with another llama.cpp, one compiled in another way, or another processor or GPU.

    Its own version does not say how it was compiled; its libraries do, by size and time. None where they are not found.
    """
    given = os.environ.get("LLAMA_CPP_LIB_PATH")  # as llama_cpp itself reads it
    folder = Path(given) if given else Path(llama_cpp.__file__).parent / "lib"
    try:
        stats = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:
        return None
    libraries = [[name, found.st_size, found.st_mtime_ns] for name, found in stats]
    features = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SWITCHES))
    return [libraries, features, bindings.list_devices(), switches]
