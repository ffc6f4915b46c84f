"""The measurement: every file against the one that is not quantized, and against reference outputs.

Contender and base are evaluated side by side, a batch of positions at a time, in the same batches; of each batch only a
few numbers for each position are kept. So memory is bounded by two models and a few batches of logits, at any size of
the vocabulary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from sqale_edge.benchmarks.speed.surroundings import describe_machine, describe_model, describe_versions, now

from sqale_edge.errors import BenchmarkError, Cancelled
from sqale_edge.settings import EngineSettings

from .distributions import Array, Distances, compare
from .figures import EpisodeDistances, summarize
from .references import check_same_checkpoint, read_reference
from .token_logs import choose_logs, read_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sqale_edge.llama.logits import LogitsModel

    from .references import Known, Reference, ReferenceLog
    from .token_logs import TokenLog

FORM = "sqale-edge drift 1"
N_BATCH = 64  # positions; at 248,320 ids their logits are 64 MB
_SHIFTS = (-1, 1)
_MUCH_CLOSER = 0.1  # a neighbour's distribution that is so much closer than a position's own says that rows have moved
_FAR = 0.05  # nats; below it nothing is told by that
_N_ALIGNED = 64


@dataclasses.dataclass(frozen=True)
class _Opponent:
    """Whom a contender is held against: a GGUF file, or reference outputs."""

    label: str
    figure: str
    about: dict[str, Any]
    model: LogitsModel | None = None
    reference: Reference | None = None


class DriftBench:
    """Measures files on token logs. `run` is used once; `stop` comes from any thread.

    Args:
        logs: A file of token logs.
        base: The GGUF file that others are held against, not quantized.
        models: Other GGUF files, for example quantized ones.
        references: Folders of reference outputs.
        n_tokens: Take the first logs that have no more than this together.
        settings: `threads`, `threads_batch`, `gpu_layers`, `use_mmap` count.
        n_batch: Positions that are evaluated at a time, of every file.

    Raises:
        BenchmarkError: A file is missing or broken, or they do not belong together.
    """

    def __init__(
        self,
        logs: Path,
        base: Path,
        models: Sequence[Path] = (),
        references: Sequence[Path] = (),
        *,
        n_tokens: int | None = None,
        settings: EngineSettings | None = None,
        n_batch: int = N_BATCH,
    ) -> None:
        self._file = read_logs(logs)
        self._logs = [log for log in choose_logs(self._file, n_tokens) if len(log.tokens) > 1]
        if not self._logs:
            raise BenchmarkError(f"{str(logs)!r} has no logs", path=logs, hint="record some first")
        self._paths = list(dict.fromkeys([base, *models]))
        self._references = [read_reference(folder, self._file.head) for folder in references]
        check_same_checkpoint(self._references)
        labels = [reference.label for reference in self._references]
        if len({*labels}) < len(labels):
            raise BenchmarkError(f"two references are both {', '.join(labels)}", hint="give one of each kind")
        longest = max(len(log.tokens) for log in self._logs)
        self._settings = dataclasses.replace(
            settings or EngineSettings(), n_ctx=max(longest, n_batch), n_batch=n_batch, n_sequences=1
        )
        self._models: list[LogitsModel] = []
        self._is_stopped = False

    def run(self, done: Mapping[str, dict[str, Any]] | None = None) -> Iterator[str | dict[str, Any]]:
        """Yield a line for each thing that is being done, and a document for each contender when it is measured.

        Args:
            done: Documents of an earlier run by their `key`. What is in it is yielded as it is, and not measured again.

        Raises:
            Cancelled: It was stopped.
            BenchmarkError: Something does not belong together.
            Else what loading a model raises.
        """
        done = done or {}
        machine, versions = describe_machine(), describe_versions()
        files = []
        for path in self._paths:
            yield f"reading {path.name}"
            files.append(describe_model(path, self.check))
        base = files[0]
        for path, file in zip(self._paths, files, strict=True):
            key = self._key(file["sha256"], base["sha256"], versions)
            if key in done:
                yield f"{path.name} was measured before"
                yield done[key]
                continue
            yield from self._measure_file(path, file, base, {"key": key, "machine": machine, "versions": versions})
        yield from self._compare_references({"machine": machine, "versions": versions}, done)

    def _key(self, contender: str, base: str, versions: Mapping[str, Any]) -> str:
        """What is another one if another result may come out."""
        parts = [
            [log.sha256 for log in self._logs],
            contender,
            base,
            [reference.sha256 for reference in self._references],
            [self._settings.n_batch, self._settings.threads_batch, self._settings.threads, self._settings.gpu_layers],
            [versions.get("llama_cpp_python"), versions.get("cpu_features")],
        ]
        return hashlib.sha256(json.dumps([FORM, parts]).encode()).hexdigest()[:32]

    def _measure_file(
        self, path: Path, file: dict[str, Any], base: dict[str, Any], about: dict[str, Any]
    ) -> Iterator[str | dict[str, Any]]:
        start = time.perf_counter()
        is_base = file["sha256"] == base["sha256"]
        with contextlib.ExitStack() as stack:
            yield f"loading {path.name}"
            contender = stack.enter_context(self._load(path))
            opponents = [
                _Opponent(
                    reference.label,
                    "exact" if reference.is_exact else "engine" if is_base else "end to end",
                    _describe_reference(reference),
                    reference=reference,
                )
                for reference in self._references
            ]
            if not is_base:
                model = stack.enter_context(self._load(self._paths[0]))
                opponents.insert(0, _Opponent(f"llama.cpp {_name_type(base)}", "quantization", base, model=model))
            found: dict[str, list[EpisodeDistances]] = {opponent.label: [] for opponent in opponents}
            for number, log in enumerate(self._logs, 1):
                yield f"{path.name}: log {number} of {len(self._logs)}, {len(log.tokens)} tokens"
                for label, one in self._measure_log(contender, opponents, log, is_first=number == 1).items():
                    found[label].append(one)
            shape = {
                "n_batch": self._settings.n_batch,
                "threads": contender.n_threads,
                "offload": contender.offload,
                "kv_cache": "F16",
            }
        yield {
            "form": FORM,
            **about,
            "measured_at": now(),
            "seconds": round(time.perf_counter() - start, 1),
            "shape": shape,
            "logs": self._describe_logs(),
            "contender": {"label": f"llama.cpp {_name_type(file)}", **file, "type": _name_type(file)},
            "against": {
                one.label: {"figure": one.figure, "about": one.about, **summarize(found[one.label])}
                for one in opponents
            },
        }

    def _measure_log(
        self, contender: LogitsModel, opponents: Sequence[_Opponent], log: TokenLog, *, is_first: bool
    ) -> dict[str, EpisodeDistances]:
        """The distances of one log's positions, by the opponent's label."""
        tokens = log.tokens[:-1]  # behind the last one nothing came
        opened = {one.label: one.reference.open_log(log) for one in opponents if one.reference}
        streams = {one.label: one.model.evaluate(tokens) for one in opponents if one.model}
        found: dict[str, list[Distances]] = {one.label: [] for one in opponents}
        start = 0
        for logits in contender.evaluate(tokens):
            self.check()
            end = start + len(logits)
            came = log.tokens[start + 1 : end + 1]
            for label, parts in found.items():
                other = next(streams[label]) if label in streams else _read(opened[label], start, end, label)
                if is_first and start == 0:
                    _check_aligned(other, logits, came, label)
                parts.append(compare(other, logits, came))
            start = end
        kinds = np.array(log.kinds[1:])
        return {label: EpisodeDistances(Distances.join(parts), kinds) for label, parts in found.items()}

    def _compare_references(
        self, about: dict[str, Any], done: Mapping[str, dict[str, Any]]
    ) -> Iterator[str | dict[str, Any]]:
        """References that were rounded, against one that was not."""
        for exact in (one for one in self._references if one.is_exact):
            for rounded in (one for one in self._references if not one.is_exact):
                if not rounded.is_full:
                    yield f"{rounded.label} kept only its likeliest tokens: it is not held against {exact.label}"
                    continue
                parts = [FORM, [log.sha256 for log in self._logs], rounded.sha256, exact.sha256]
                key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
                if key in done:
                    yield done[key]
                    continue
                yield f"{rounded.label} against {exact.label}"
                start = time.perf_counter()
                episodes = [self._compare_log(rounded, exact, log) for log in self._logs]
                yield {
                    "form": FORM,
                    "key": key,
                    **about,
                    "measured_at": now(),
                    "seconds": round(time.perf_counter() - start, 1),
                    "logs": self._describe_logs(),
                    "contender": {"label": rounded.label, **_describe_reference(rounded)},
                    "against": {
                        exact.label: {"figure": "exact", "about": _describe_reference(exact), **summarize(episodes)}
                    },
                }

    def _compare_log(self, rounded: Reference, exact: Reference, log: TokenLog) -> EpisodeDistances:
        one, other = rounded.open_log(log), exact.open_log(log)
        parts, n_rows = [], len(log.tokens) - 1
        for start in range(0, n_rows, self._settings.n_batch):
            self.check()
            end = min(start + self._settings.n_batch, n_rows)
            logprobs = _read(one, start, end, rounded.label).logprobs
            parts.append(compare(_read(other, start, end, exact.label), logprobs, log.tokens[start + 1 : end + 1]))
        return EpisodeDistances(Distances.join(parts), np.array(log.kinds[1:]))

    def _describe_logs(self) -> dict[str, Any]:
        head = self._file.head
        digests = "".join(sorted(log.sha256 for log in self._logs))
        return {
            "file": self._file.path.name,
            "sha256": hashlib.sha256(digests.encode()).hexdigest(),
            "n_logs": len(self._logs),
            "n_tokens": sum(len(log.tokens) for log in self._logs),
            "n_vocab": head.n_vocab,
            "vocabulary_sha256": head.vocabulary_sha256,
            "recorded_with": {"model": head.model, "model_sha256": head.model_sha256, "seed": head.seed},
        }

    @contextlib.contextmanager
    def _load(self, path: Path) -> Iterator[LogitsModel]:
        from sqale_edge.llama.logits import LogitsModel  # noqa: PLC0415 - loaded when a model is, not before

        self.check()
        head = self._file.head
        with LogitsModel(path, self._settings, on_progress=lambda _: not self._is_stopped) as model:
            if (model.n_vocab, model.vocabulary_sha256) != (head.n_vocab, head.vocabulary_sha256):
                raise BenchmarkError(
                    f"{path.name} has another vocabulary than the logs: their ids mean other tokens to it",
                    path=path,
                    hint="compare files that were made from one checkpoint, and record the logs with one of them",
                )
            self._models.append(model)
            try:
                yield model
            finally:
                self._models.remove(model)

    def stop(self) -> None:
        """End it within a batch; `run` raises Cancelled."""
        self._is_stopped = True
        for model in list(self._models):
            model.cancel()

    def check(self) -> None:
        """Raise Cancelled if it was stopped."""
        if self._is_stopped:
            raise Cancelled("the measurement was stopped")


def _read(log: ReferenceLog, start: int, end: int, label: str) -> Known:
    try:
        return log.read(start, end)
    except ValueError as error:
        raise BenchmarkError(f"{label}: {error}", hint="compute the reference again, in a new folder") from error


def _check_aligned(other: Array | Known, logits: Array, tokens: Sequence[int], label: str) -> None:
    """Raise BenchmarkError where rows lie much closer to their neighbours' than to their own: they have moved."""
    n_rows = min(len(logits), _N_ALIGNED)
    if n_rows < 2:
        return
    own = _mean_kl(other, logits, tokens, 0, n_rows)
    if own < _FAR:
        return
    for shift in _SHIFTS:
        if _mean_kl(other, logits, tokens, shift, n_rows) < _MUCH_CLOSER * own:
            raise BenchmarkError(
                f"{label}: its positions are shifted by {shift}: row by row it is {own:.3g} nats away, with that shift "
                f"less than a tenth of it",
                hint="compute the reference again, in a new folder",
            )


def _mean_kl(other: Array | Known, logits: Array, tokens: Sequence[int], shift: int, n_rows: int) -> float:
    """Mean divergence where row r of `other` is held against row r + shift of `logits`."""
    rows = slice(max(0, -shift), n_rows - max(0, shift))
    moved = logits[rows.start + shift : rows.stop + shift]
    if isinstance(other, np.ndarray):
        part: Array | Known = other[rows]
    else:
        ids = None if other.ids is None else other.ids[rows]
        part = dataclasses.replace(other, logprobs=other.logprobs[rows], ids=ids, actual=other.actual[rows])
    return float(compare(part, moved, tokens[rows]).kl.mean())


def _name_type(file: Mapping[str, Any]) -> str:
    """llama.cpp's name of a file's type; a file whose tensors were chosen one by one has its base's."""
    from sqale_edge.llama.quantize import FILE_TYPES  # noqa: PLC0415 - llama.cpp is loaded with a model

    names = {kind.code: name for name, kind in FILE_TYPES.items()}
    return names.get(file["file_type"], str(file["file_type"]))


def _describe_reference(reference: Reference) -> dict[str, Any]:
    keys = ("engine", "dtype", "versions", "machine", "model", "top_k")
    return {key: reference.about[key] for key in keys} | {"sha256": reference.sha256}


def read_done(path: Path) -> dict[str, dict[str, Any]]:
    """The documents of a results file by their keys; what is no such document is left alone."""
    found: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict) and document.get("form") == FORM and "key" in document:
                    found[document["key"]] = document
    return found
