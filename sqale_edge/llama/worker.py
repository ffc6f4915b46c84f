"""Long calls into llama.cpp in a process of their own.

A call of minutes cannot be interrupted from Python, and an assertion in C ends the process it is in. In a child both
are harmless: the parent kills it, or reports how it ended. The child ends by itself when its parent is gone, however
that came about.

Not guaranteed: programs in which `sys.executable` is not a Python interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sqale_edge import errors
from sqale_edge.llama.load_check import check_loads
from sqale_edge.llama.quantize import Mix, quantize_file

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.1
_REASON_LIMIT = 300


def run_in_child(job: str, *args: Any, on_wait: Callable[[], None] | None = None) -> Any:
    """Run a job of `_JOBS` in a child process, and return what it returns.

    Args:
        job: Its name.
        args: JSON values, paths as text.
        on_wait: Called every tenth of a second meanwhile; what it raises stops the child.

    Raises:
        SqaleEdgeError: The error that the job raised, of the same type.
        ModelError: The child died.
    """
    # The child imports what this process would import, and never modules that happen to lie in the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["GGML_NO_BACKTRACE"] = "1"  # at an assertion ggml would start a debugger for one
    command = [sys.executable, "-P", "-m", "sqale_edge.llama.worker", job, json.dumps(args)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as trouble:
        # In a session of its own a terminal's Ctrl-C reaches the parent alone, which decides.
        child = subprocess.Popen(  # noqa: S603 - this module
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=trouble, start_new_session=True
        )
        try:
            while _is_running(child):
                if on_wait:
                    on_wait()
        finally:
            child.kill()
            child.wait()
            if child.stdin:
                child.stdin.close()
        output.seek(0)
        trouble.seek(0)
        return _read_answer(job, child.returncode, output.read(), trouble.read())


def _is_running(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _read_answer(job: str, code: int, output: bytes, trouble: bytes) -> Any:
    try:
        answer = json.loads(output)
    except ValueError:
        lines = trouble.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1][:_REASON_LIMIT] if lines else "it left no message"
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        raise errors.ModelError(
            f"the process for {job!r} {ended}: {reason}", hint="check that memory and disk space suffice"
        ) from None
    if "error" not in answer:
        return answer["result"]
    raise getattr(errors, answer["error"])(answer["message"], **answer["details"])


def _quantize(source: str, target: str, file_type: str, threads: int | None, how: dict[str, Any] | None = None) -> None:
    """`how` has the fields of a `mix`, and the path of `importance`, an `.npz` file with an array for each tensor."""
    how = how or {}
    columns = {}
    if how.get("importance"):
        with np.load(how["importance"], allow_pickle=False) as arrays:
            columns = dict(arrays.items())
    mix = Mix(**how.get("mix", {}))
    quantize_file(Path(source), Path(target), file_type, mix=mix, importance=columns, threads=threads)


def _check_loads(path: str) -> dict[str, Any]:
    return check_loads(Path(path))


_JOBS: dict[str, Any] = {"quantize": _quantize, "load": _check_loads}


def _describe_error(error: errors.SqaleEdgeError) -> dict[str, Any]:
    """What it takes to raise it again: its attributes are the arguments that it was made of."""
    return {"error": type(error).__name__, "message": str(error), "details": vars(error)}


def _end_with_parent() -> None:
    """The parent's end of stdin closes when the parent ends."""
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """The child: run the job that the arguments name, and print what comes of it as one JSON document."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job, args = sys.argv[1], json.loads(sys.argv[2])
    try:
        answer = {"result": _JOBS[job](*args)}
    except errors.SqaleEdgeError as error:
        answer = _describe_error(error)
    print(json.dumps(answer, default=str), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
