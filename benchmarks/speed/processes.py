"""A contender in a process of its own: its memory can be told, its libraries do not meet ours, and it can be ended.

The two sides exchange lines of JSON. The child ends when its parent is gone, however that came about.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.errors import Cancelled, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_POLL_S = 0.1
_REASON_LIMIT = 300


class MissingError(Exception):
    """A contender's package is not installed; the text says which."""


class Child:
    """A contender of `contenders.KINDS`, in its own process. Close it, or use it in a `with` statement.

    Args:
        kind: Which one.
        environment: Variables that it gets besides ours.
        should_stop: Asked ten times a second while an answer is waited for; once it is true, Cancelled is raised.
    """

    def __init__(
        self,
        kind: str,
        *,
        environment: Mapping[str, str] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._kind = kind
        self._should_stop = should_stop
        self._trouble = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # The child imports what this process would import, and never modules that happen to lie in the current folder.
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-P", "-m", "sqale_edge.benchmarks.speed.contenders", kind],
            env={**os.environ, "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._trouble,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def call(self, method: str, **arguments: Any) -> Any:
        """What the contender's method returns.

        Raises:
            MissingError: Its package is not installed.
            Cancelled: As `should_stop` says.
            ModelError: It failed, or died.
        """
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(OSError):  # a child that died has no answer, which is told below
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
        while True:
            if self._should_stop():
                raise Cancelled("the benchmark was stopped")
            try:
                line = self._answers.get(timeout=_POLL_S)
                break
            except queue.Empty:
                continue
        if line is None:
            raise ModelError(f"the process of {self._kind} ended: {self._reason()}", hint="check that memory suffices")
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingError(answer["missing"])
        if "error" in answer:
            raise ModelError(f"{self._kind} failed: {answer['error'][:_REASON_LIMIT]}")
        return answer["result"]

    def _reason(self) -> str:
        code = self._process.wait()
        self._trouble.seek(0)
        lines = self._trouble.read().decode("utf-8", "replace").strip().splitlines()
        return f"code {code}, {lines[-1][:_REASON_LIMIT] if lines else 'no message'}"

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._trouble):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
