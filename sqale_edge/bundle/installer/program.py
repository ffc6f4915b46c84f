"""`install.py` of a bundle, as a person runs it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .contents import CHUNK_BYTES, Folder, InstallError, check_bundle
from .installation import install_bundle
from .place import find_command


def _show_line(step: str, name: str, n_done: int, n_total: int) -> None:
    """Progress for a person at a terminal, on one line."""
    if sys.stderr.isatty():
        share = f" {100 * n_done // n_total}%" if n_total > CHUNK_BYTES else ""
        sys.stderr.write(f"\r\x1b[K{step} {name}{share}"[:110])
        sys.stderr.flush()


def main(folder: Path, arguments: list[str] | None = None) -> int:
    """Install the bundle in `folder`.

    Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 cancelled.
    """
    parser = argparse.ArgumentParser(description="Install sqale-edge from the bundle that this file lies in.")
    parser.add_argument("--venv", type=Path, default=Path.home() / "sqale-edge", help="where to; default: %(default)s")
    parser.add_argument("--digest", help="the bundle's digest, as its maker says it is")
    parser.add_argument("--no-models", action="store_true", help="leave the models where they are")
    parser.add_argument("--verify", action="store_true", help="look at every byte, and install nothing")
    options = parser.parse_args(arguments)
    source = Folder(folder)
    venv: Path = options.venv.expanduser().absolute()
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        if options.verify:
            digest = check_bundle(source, _show_line, options.digest).digest
        else:
            digest = install_bundle(source, venv, _show_line, digest=options.digest, models=not options.no_models)
    except KeyboardInterrupt:
        return _end("Cancelled.", 130)
    except InstallError as error:
        return _end(f"Error: {error}. Fix: {error.hint}.", 1)
    except OSError as error:
        return _end(f"Error: {error}.", 1)
    _end(f"The bundle is whole. Its digest is {digest}", 0)
    if not options.verify:
        _end(f"Try it: {find_command(venv)} demo", 0)
        sys.stdout.write(f"{find_command(venv)}\n")
    return 0


def _end(line: str, code: int) -> int:
    """Write a line in place of the progress, and return the code."""
    sys.stderr.write(f"\r\x1b[K{line}\n" if sys.stderr.isatty() else f"{line}\n")
    return code
