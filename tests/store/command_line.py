"""The command line in a process of its own: `from command_line import run, start`."""

from __future__ import annotations

import subprocess
import sys


def start(*arguments, **options):
    """The command line in a process of its own."""
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", *map(str, arguments)]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, encoding="utf-8", **options)


def run(*arguments, **options):
    """Exit code, stdout and stderr."""
    with start(*arguments, **options) as process:
        return process.communicate(timeout=120), process.returncode
