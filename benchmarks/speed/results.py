"""The file of results: a line of JSON for each run, the newest last."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def append_document(document: dict[str, Any], path: Path) -> None:
    """Put the document at the end of the file, which is made if it is not there, as one line. Raises BenchmarkError."""
    line = json.dumps(document).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            n_before = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) < len(line):
                    raise OSError(0, "the disk is full")  # noqa: TRY301 - as if the system had said so
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(n_before)
                raise
    except OSError as error:
        raise BenchmarkError(
            f"{str(path)!r} cannot be written: {error.strerror}", path=path, hint="name another file with --output"
        ) from error


def combine_documents(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One document for each model, machine, build and settings, with the newest result of each measurement.

    What was left out is said of those results alone; `runs` says of each where it is from. The setting for drafts does
    not tell two of them apart: what drafts says how many.
    """
    combined: dict[str, dict[str, Any]] = {}
    for document in documents:
        build = {key: value for key, value in document["versions"].items() if key not in ("sqale_edge", "commit")}
        settings = {key: value for key, value in document["settings"].items() if key != "n_draft"}
        key = json.dumps([document["model"], document["machine"]["cpu"], build, settings], sort_keys=True)
        before = combined.pop(key, {"measurements": {}, "runs": {}, "skipped": []})
        kept = [one for one in before["skipped"] if one["measurement"] not in document["measurements"]]
        combined[key] = document | {
            "measurements": before["measurements"] | document["measurements"],
            "runs": before["runs"] | dict.fromkeys(document["measurements"], describe_run(document)),
            "skipped": kept + document["skipped"],
        }
    return list(combined.values())


def describe_run(document: dict[str, Any]) -> dict[str, Any]:
    """Where a document's results are from."""
    return {
        "measured_at": document["measured_at"],
        "commit": document["versions"]["commit"],
        "load_average_at_start": document["machine"]["load_average_at_start"],
    }
