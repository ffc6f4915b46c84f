"""Programs that the installer runs with another Python, and what becomes of them when it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

from .contents import InstallError, says_full

if TYPE_CHECKING:
    from pathlib import Path

    from .contents import Show

_POLL_S = 0.1
_GRACE_S = 20.0  # for a child that cleans up after itself
_WITH_PARENT = """
import os, runpy, sys, threading
def watch():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
"""
_PIP = f"""{_WITH_PARENT}
sys.path.insert(0, sys.argv[1])
sys.argv[:2] = ["pip"]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_DECODE = f"""{_WITH_PARENT}
from sqale_edge.convert import verify_file
from sqale_edge.models import find_model
verify_file(find_model("demo").path)
"""
# What to run; -I leaves this user's variables and packages out. The first two end with this process, also where it is
# killed, because nobody else may then write into the folder: their input ends.
RUN_PIP = ["-I", "-c", _PIP]  # then: the wheel of pip, and what pip is to do
TRY = ["-I", "-c", _DECODE]
RUN_COMMAND = ["-I", "-c", "from sqale_edge.cli import main; main()"]


def without_settings_of_pip() -> dict[str, str]:
    """The environment of this process, without what could send pip to a network or to other wheels."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**environment, "PIP_CONFIG_FILE": os.devnull}  # pip then reads no file of settings


def run_python(python: Path, arguments: list[str], show: Show, step: str, label: str) -> None:
    """Run Python, and go on when it has ended. Raises InstallError with the last line that it has written."""
    env = without_settings_of_pip()
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(  # noqa: S603 - Python, with arguments of this package
            [str(python), *arguments], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=env
        ) as child,
    ):
        try:
            while child.poll() is None:
                show(step, label, 0, 1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
            show(step, label, 1, 1)
        except BaseException:
            _stop(child)
            raise
        output.seek(0)
        lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if child.returncode:
        raise _explain(child.returncode, step, label, lines)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Let it clean up after itself, for a while."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
        child.kill()


def _explain(code: int, step: str, label: str, lines: list[str]) -> InstallError:
    errors = [line for line in lines if re.match("error: ", line, re.IGNORECASE)] or lines
    message, _, hint = (errors[-1] if errors else f"exit code {code}").partition(" Fix: ")
    message = re.sub("^error: ", "", message, flags=re.IGNORECASE).rstrip(".")
    if step == "try":
        return InstallError(
            f"the program does not run on this machine: {message}",
            hint="its llama.cpp may be compiled for a newer processor: make the bundle on a machine like this one, or "
            "with CMAKE_ARGS=-DGGML_NATIVE=OFF, see docs/air-gap.md",
        )
    if step == "models":
        return InstallError(message, hint=hint.rstrip(".") or "run the same command again")
    hint = "free some space, and run the same command again" if says_full(message) else "run the same command again"
    return InstallError(f"{label} could not be installed: {message}", hint=hint)
