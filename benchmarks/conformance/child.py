"""The process in which a checkpoint's own code runs: started, asked, and ended when it takes too long.

Not guaranteed: that the code does no harm. It runs with this user's rights, as if one had called it oneself; it is kept
from this process's memory and from the user's database, of which it gets a copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.errors import BenchmarkError, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SCRIPT = Path(__file__).with_name("reference.py")
_POLL_S = 0.1
_LOAD_S = 120.0  # packages that it imports can be large


class ReferenceProcess:
    """Answers what `reference.py` answers.

    Args:
        source: The checkpoint's `sqale_agent.py`.
        database: A copy; the code may do anything with it.
        adapter: Expressions by the names of tools and texts.
        python: Which Python runs it.
        timeout_s: For one request. A process that takes longer is ended, and another one is started.
        should_stop: Asked while an answer is waited for.

    Attributes:
        stand_ins: Packages that it imports and that are not installed.

    Raises:
        BenchmarkError: The code cannot be loaded.
        Cancelled: `should_stop` said so.
    """

    def __init__(
        self,
        source: Path,
        database: Path,
        adapter: Mapping[str, str],
        *,
        python: str = sys.executable,
        timeout_s: float = 10.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source, self._database, self._adapter = source, database, adapter
        self._python, self._timeout_s, self._should_stop = python, timeout_s, should_stop
        self.stand_ins: list[str] = []
        self._start()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the person asked for
                [self._python, "-P" if self._python == sys.executable else "-E", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            raise BenchmarkError(
                f"{self._python!r} cannot be started: {error.strerror}", hint="name another one with --python"
            ) from None
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._process, self._answers), daemon=True)
        self._reader.start()
        task = {"source": str(self._source), "database": str(self._database), "adapter": dict(self._adapter)}
        answer = self._exchange(task, _LOAD_S)
        if answer is None or "failed" in answer:
            reason = f"it took more than {_LOAD_S:g} s" if answer is None else answer["failed"]
            self.close()
            raise BenchmarkError(
                f"{str(self._source)!r} cannot be loaded: {reason}",
                path=self._source,
                hint="run it with the Python that has its packages: --python PATH",
            )
        self.stand_ins = answer["stand_ins"]

    @staticmethod
    def _read(process: subprocess.Popen[bytes], answers: queue.SimpleQueue[bytes]) -> None:
        assert process.stdout is not None, "it is a pipe"
        with contextlib.suppress(ValueError, OSError):
            for line in process.stdout:
                answers.put(line)
        answers.put(b"")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the code answers: `text`, `raised` or `missing`."""
        answer = self._exchange(request, self._timeout_s)
        if answer is not None and "ended" not in answer:
            return answer
        self.close()
        self._start()
        return {"missing": f"it took more than {self._timeout_s:g} s" if answer is None else "it ended the process"}

    def _exchange(self, value: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer; None where it did not come in time."""
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(OSError):  # it has ended: so says the answer
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        waited_s = 0.0
        while waited_s < timeout_s:
            if self._should_stop():
                raise Cancelled("the comparison was cancelled")
            with contextlib.suppress(queue.Empty):
                line = self._answers.get(timeout=_POLL_S)
                answer: dict[str, Any] = json.loads(line) if line else {"ended": True, "failed": "it ended the process"}
                return answer
            waited_s += _POLL_S
        return None

    def close(self) -> None:
        """End the process, and those that it started."""
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "it is a pipe"
            with contextlib.suppress(OSError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
