"""How many threads were fastest here: what `sqale-edge bench --tune` found, in a small file for the next start.

The file counts on the machine that it was measured on, with as many CPUs as then. One that is damaged costs a line in
the log and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import tempfile
from pathlib import Path

from sqale_edge.errors import SqaleEdgeError, StoreError
from sqale_edge.home import home_folder

_log = logging.getLogger("sqale_edge.llama")
_FORM = "sqale-edge threads 1"
_MOST = 512


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What was found.

    Attributes:
        machine: Which one, as `threads.identify_machine` says.
        threads, threads_batch: The best numbers for decoding and for prefilling.
        model: The name of the model it was measured with.
        measured_on: The day, as in 2026-01-31.
    """

    machine: str
    threads: int
    threads_batch: int
    model: str
    measured_on: str


def tuning_path() -> Path | None:
    """`threads.json` in `SQALE_EDGE_HOME`, or in this user's configuration folder; None where there is no home."""
    try:
        return home_folder("config") / "threads.json"
    except StoreError:
        return None


def read_tuning(machine: str) -> Tuning | None:
    """What was found on this machine; None if nothing was, or if the file cannot be used."""
    path = tuning_path()
    if path is None:
        return None
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%r is not used: %s", str(path), error)
        return None
    try:
        tuning = _parse(data)
    except (KeyError, TypeError, ValueError):
        _log.warning("%r is not used: it does not hold what sqale-edge bench --tune writes", str(path))
        return None
    return tuning if tuning.machine == machine else None


def _parse(data: object) -> Tuning:
    if not isinstance(data, dict) or data.pop("form") != _FORM:
        raise TypeError
    tuning = Tuning(**data)
    for n_threads in (tuning.threads, tuning.threads_batch):
        if type(n_threads) is not int or not 1 <= n_threads <= _MOST:
            raise ValueError
    for text in (tuning.machine, tuning.model, tuning.measured_on):
        if not isinstance(text, str):
            raise TypeError
    return tuning


def write_tuning(tuning: Tuning) -> Path:
    """Keep it, in place of what was there, in one step; the file. Raises SqaleEdgeError."""
    path = tuning_path()
    if path is None:
        raise SqaleEdgeError("there is no folder for settings", hint="name one with SQALE_EDGE_HOME")
    text = json.dumps({"form": _FORM, **dataclasses.asdict(tuning)}, indent=2) + "\n"
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".threads-")
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a file that is open
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        if name:
            with contextlib.suppress(OSError):
                Path(name).unlink()
        raise SqaleEdgeError(
            f"{str(path)!r} cannot be written: {error.strerror or error}", hint="name another folder: SQALE_EDGE_HOME"
        ) from error
    return path
