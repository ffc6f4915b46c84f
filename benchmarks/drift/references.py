"""Reading reference outputs: the form that `reference_vllm.py` documents and writes.

What does not belong to the logs is an error, never a number: another vocabulary, other tokens, rows that are missing or
moved, a damaged array.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from sqale_edge.benchmarks.files import BROKEN_JSON, clip, read_text
from sqale_edge.benchmarks.reference_vllm import FORM, digest_file

from sqale_edge.errors import BenchmarkError

from .distributions import Known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .distributions import Array
    from .token_logs import LogsHead, TokenLog

_BROKEN = (OSError, *BROKEN_JSON)
_ENGINES = {"vllm": "vLLM", "transformers": "transformers"}
_DTYPES = {"bfloat16": "BF16", "float32": "FP32"}
_ROUNDING = 1e-3  # nats; logprobs of float32 agree with themselves to 1e-5
_AGAIN = "compute the reference again, in a new folder"


@dataclasses.dataclass(frozen=True)
class Reference:
    """A folder of reference outputs.

    Attributes:
        label: As in `vLLM BF16`.
        about: What computed it: the fields of `reference.json`.
        numbers: The number of each log in it, by its question's id.
        sha256: Digest of what it says, from the digests of its arrays.
    """

    folder: Path
    label: str
    about: dict[str, Any]
    numbers: dict[str, int]
    sha256: str

    @property
    def is_full(self) -> bool:
        """Whether it has all logprobs of a position."""
        return self.about["top_k"] is None

    @property
    def is_exact(self) -> bool:
        """Whether it was computed in float32."""
        return bool(self.about["dtype"] == "float32")

    def open_log(self, log: TokenLog) -> ReferenceLog:
        """What it says about a log, checked. Raises BenchmarkError."""
        if log.id not in self.numbers:
            raise self._wrong(f"has nothing about the log of {clip(log.id)}", hint="run the same command again")
        number = self.numbers[log.id]
        try:
            return ReferenceLog.open(self, number, log)
        except _BROKEN as error:
            raise self._wrong(f"cannot be read: log {number}: {error}") from error

    def read_blocks(self, log: TokenLog, n_rows: int) -> Iterator[Known]:
        """What it says about a log, checked, `n_rows` positions or fewer at a time. Raises BenchmarkError."""
        opened, n_all = self.open_log(log), len(log.tokens) - 1
        for start in range(0, n_all, n_rows):
            try:
                known = opened.read(start, min(start + n_rows, n_all))
            except ValueError as error:
                raise BenchmarkError(f"{self.label}: {error}", hint=_AGAIN) from error
            yield known

    def _wrong(self, fault: str, hint: str = _AGAIN) -> BenchmarkError:
        return BenchmarkError(f"the reference {str(self.folder)!r} {fault}", path=self.folder, hint=hint)


class ReferenceLog:
    """What a reference says about one log; its arrays stay on the disk until they are asked for."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    @classmethod
    def open(cls, reference: Reference, number: int, log: TokenLog) -> ReferenceLog:
        """The arrays of a log. Raises BenchmarkError for what does not belong to it, ValueError for what is broken."""
        stem = f"{number:05d}"
        entry = json.loads(read_text(reference.folder / f"{stem}.json"))
        arrays = {}
        for part, digest in entry["sha256"].items():
            path = reference.folder / f"{stem}.{part}.npy"
            if digest_file(path) != digest:
                raise ValueError(f"{path.name} is not what was written: its digest is another")
            arrays[part] = np.load(path, mmap_mode="r", allow_pickle=False)
        if arrays["tokens"].tolist() != list(log.tokens):
            raise ValueError(f"its tokens are not those of the log of {clip(log.id)}")
        n_rows, k = len(log.tokens) - 1, reference.about["top_k"]
        wanted: dict[str, tuple[int, ...]] = {
            "actual": (n_rows,),
            "logprobs": (n_rows, k or reference.about["n_vocab"]),
            **({"ids": (n_rows, k)} if k else {}),
        }
        for part, shape in wanted.items():
            if arrays[part].shape != shape:
                raise ValueError(f"{part} is of shape {arrays[part].shape}, not {shape}: positions are missing")
        return cls(arrays)

    def read(self, start: int, end: int) -> Known:
        """Rows `start` to `end`, in memory. Raises ValueError where they contradict themselves."""
        known = Known(
            np.array(self._arrays["logprobs"][start:end]),
            np.array(self._arrays["ids"][start:end]) if "ids" in self._arrays else None,
            np.array(self._arrays["actual"][start:end]),
        )
        _check_rows(known, self._arrays["tokens"][start + 1 : end + 1], start)
        return known


def _check_rows(known: Known, tokens: Array, start: int) -> None:
    """Raise ValueError unless each row is a distribution, and the one that its token was looked up in."""
    values = known.logprobs
    if np.isnan(values).any() or (values > _ROUNDING).any() or not np.isfinite(known.actual).all():
        raise ValueError(f"rows from {start} on hold what is no logprob")
    total = np.exp(values.astype(np.float64)).sum(axis=1)
    if (total > 1 + _ROUNDING).any() or (known.ids is None and (total < 1 - _ROUNDING).any()):
        raise ValueError(
            f"the probabilities of a row from {start} on add up to {total[np.abs(total - 1).argmax()]:.4g}"
        )
    if known.ids is None:
        found = np.take_along_axis(values, tokens[:, None].astype(np.int64), axis=1)[:, 0]
        is_wrong = np.abs(found - known.actual) > _ROUNDING
    else:
        is_actual = known.ids == tokens[:, None]
        found = np.where(is_actual.any(axis=1), np.where(is_actual, values, 0).sum(axis=1), known.actual)
        is_hidden = ~is_actual.any(axis=1) & (known.actual > values[:, -1] + _ROUNDING)
        is_wrong = (np.abs(found - known.actual) > _ROUNDING) | is_hidden
    if is_wrong.any():
        row = start + int(is_wrong.argmax())
        raise ValueError(f"row {row} is not the one that token {row + 1} was looked up in: the positions are shifted")


def read_reference(folder: Path, head: LogsHead) -> Reference:
    """A folder of reference outputs on logs with this head. Raises BenchmarkError if it is broken or of other ids."""
    try:
        about = json.loads(read_text(folder / "reference.json"))
        if about["form"] != FORM:
            raise ValueError(f"it is of the form {clip(about['form'])}")
        label = f"{_ENGINES[about['engine']]} {_DTYPES[about['dtype']]}"
        digest = hashlib.sha256(json.dumps([label, about["model"], about["top_k"]]).encode())
        numbers: dict[str, int] = {}
        for path in sorted(folder.glob("[0-9]*.json")):
            entry = json.loads(read_text(path))
            numbers[entry["id"]] = int(path.stem)
            digest.update(json.dumps(entry["sha256"], sort_keys=True).encode())
        reference = Reference(folder, label, about, numbers, digest.hexdigest())
        vocabulary = about["n_vocab"], about["vocabulary_sha256"]
    except _BROKEN as error:
        raise BenchmarkError(
            f"{str(folder)!r} is no folder of reference outputs: {error}",
            path=folder,
            hint="make one with benchmarks/reference_vllm.py",
        ) from error
    if vocabulary != (head.n_vocab, head.vocabulary_sha256):
        raise BenchmarkError(
            f"the reference {str(folder)!r} has another vocabulary than the logs: its ids mean other tokens",
            path=folder,
            hint="record the logs with a file that was converted from the reference's own checkpoint",
        )
    return reference


def check_same_checkpoint(references: Sequence[Reference]) -> None:
    """Raise BenchmarkError unless all were computed from the same weights."""
    for one in references[1:]:
        if one.about["model"]["files"] != references[0].about["model"]["files"]:
            raise BenchmarkError(
                f"the references {str(references[0].folder)!r} and {str(one.folder)!r} are of different checkpoints",
                path=one.folder,
            )
