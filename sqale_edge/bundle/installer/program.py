"""`install.py` of a bundle, as a person runs it."""

from __future__ import annotations

import argparse
import io
import re
import signal
import sys
from pathlib import Path

from .contents import CHUNK_BYTES, Folder, InstallError, check_bundle, explain
from .installation import install_bundle
from .place import choose_place, find_command

# Ctrl-C, `kill` or a shutdown, a closed terminal; Windows does not have all of them.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _show_line(step: str, name: str, n_done: int, n_total: int) -> None:
    """Progress for a person at a terminal, on one line."""
    if sys.stderr.isatty():
        share = f" {100 * n_done // n_total}%" if n_total > CHUNK_BYTES else ""
        sys.stderr.write(f"\r\x1b[K{step} {name}{share}"[:110])
        sys.stderr.flush()


def _hear_once() -> None:
    """The first request to end raises KeyboardInterrupt; what cleans up after it is interrupted by none.

    What this process was started to ignore stays ignored.
    """
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def handle(*_: object) -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in heard:
        signal.signal(number, handle)


def main(folder: Path, arguments: list[str] | None = None) -> int:
    """Install the bundle in `folder`.

    Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 cancelled.
    """
    parser = argparse.ArgumentParser(description="Install sqale-edge from the bundle that this file lies in.")
    parser.add_argument("--venv", type=Path, help="where to; default: sqale-edge in your home")
    parser.add_argument("--digest", help="the bundle's digest, as its maker says it is")
    parser.add_argument("--no-models", action="store_true", help="leave the models where they are")
    parser.add_argument("--verify", action="store_true", help="look at every byte, and install nothing")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # a path may have any characters
    source = Folder(folder)
    venv: Path | None = None
    _hear_once()
    try:
        if options.verify:
            digest = check_bundle(source, _show_line, options.digest).digest
        else:
            venv = choose_place(options.venv)
            digest = install_bundle(source, venv, _show_line, digest=options.digest, models=not options.no_models)
    except KeyboardInterrupt:
        return _end("Cancelled.", 130)
    except (InstallError, OSError) as error:
        known = error if isinstance(error, InstallError) else explain(error, venv or folder)
        return _end(f"Error: {known}. Fix: {known.hint}.", 1)
    _end(f"The bundle is whole. Its digest is {digest}", 0)
    if venv:
        _end(f"Try it: {find_command(venv)} demo", 0)
        sys.stdout.write(f"{find_command(venv)}\n")
    return 0


def _end(line: str, code: int) -> int:
    """Write a line in place of the progress, and return the code."""
    line = _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", line)
    sys.stderr.write(f"\r\x1b[K{line}\n" if sys.stderr.isatty() else f"{line}\n")
    return code
