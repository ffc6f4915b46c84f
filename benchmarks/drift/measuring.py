"""The measurement: every file against the one that is not quantized, and against reference outputs.

Contender and base are evaluated side by side, a batch of positions at a time, in the same batches; of each batch only a
few numbers for each position are kept. So memory is bounded by two models and a few batches of logits, at any size of
the vocabulary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from sqale_edge.benchmarks.speed.results import append_document
from sqale_edge.benchmarks.speed.surroundings import describe_machine, describe_model, describe_versions, now

from sqale_edge.errors import BenchmarkError, Cancelled
from sqale_edge.settings import EngineSettings

from .distributions import Array, Distances, check_aligned, compare
from .figures import EpisodeDistances, summarize
from .references import check_same_checkpoint, read_reference
from .token_logs import choose_logs, read_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqale_edge.llama.logits import LogitsModel

    from .distributions import Known
    from .references import Reference
    from .token_logs import TokenLog

FORM = "sqale-edge drift 1"
N_BATCH = 64  # positions; at 248,320 ids their logits are 64 MB


@dataclasses.dataclass(frozen=True)
class _Opponent:
    """Whom a contender is held against: a GGUF file, or reference outputs.

    Attributes:
        figure: What the distance from it says: `engine`, `quantization`, `end to end`, `exact`.
        read: What it computes behind each token of a log but the last, `n_batch` positions or fewer at a time.
    """

    label: str
    figure: str
    about: dict[str, Any]
    read: Callable[[TokenLog], Iterator[Array | Known]]


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

    def run_into(self, output: Path) -> Iterator[str | dict[str, Any]]:
        """`run`, where each new document is added to a file of results, and what is in that is not measured again.

        Raises as `run` does, and BenchmarkError where the file cannot be written.
        """
        done = read_done(output)
        for step in self.run(done):
            if isinstance(step, dict) and step["key"] not in done:
                append_document(step, output)
            yield step

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
        return _digest([FORM, parts])

    def _measure_file(
        self, path: Path, file: dict[str, Any], base: dict[str, Any], about: dict[str, Any]
    ) -> Iterator[str | dict[str, Any]]:
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            yield f"loading {path.name}"
            contender = stack.enter_context(self._load(path))
            opponents = self._list_opponents(stack, base, is_base=file["sha256"] == base["sha256"])
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
        yield self._make_document(
            about,
            start,
            {"label": f"llama.cpp {_name_type(file)}", **file, "type": _name_type(file)},
            {one.label: {"figure": one.figure, "about": one.about, **summarize(found[one.label])} for one in opponents},
            shape=shape,
        )

    def _list_opponents(self, stack: contextlib.ExitStack, base: dict[str, Any], *, is_base: bool) -> list[_Opponent]:
        """Whom a file is held against, the base first; `stack` lets go of it."""
        opponents = []
        if not is_base:
            model = stack.enter_context(self._load(self._paths[0]))
            label = f"llama.cpp {_name_type(base)}"
            opponents.append(_Opponent(label, "quantization", base, lambda log: model.evaluate(log.tokens[:-1])))
        for reference in self._references:
            figure = "exact" if reference.is_exact else "engine" if is_base else "end to end"
            read = functools.partial(reference.read_blocks, n_rows=self._settings.n_batch)
            opponents.append(_Opponent(reference.label, figure, _describe_reference(reference), read))
        return opponents

    def _make_document(
        self, about: dict[str, Any], start: float, contender: dict[str, Any], against: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        """The figures of a contender whose measurement began at `start`, with all that they depend on."""
        return {
            "form": FORM,
            **about,
            "measured_at": now(),
            "seconds": round(time.perf_counter() - start, 1),
            **more,
            "logs": self._describe_logs(),
            "contender": contender,
            "against": against,
        }

    def _measure_log(
        self, contender: LogitsModel, opponents: Sequence[_Opponent], log: TokenLog, *, is_first: bool
    ) -> dict[str, EpisodeDistances]:
        """The distances of one log's positions, by the opponent's label."""
        found: dict[str, list[Distances]] = {one.label: [] for one in opponents}
        blocks = zip(contender.evaluate(log.tokens[:-1]), *(one.read(log) for one in opponents), strict=True)
        start = 1  # behind the last token nothing came
        for logits, *others in blocks:
            self.check()
            came = log.tokens[start : start + len(logits)]
            for (label, parts), other in zip(found.items(), others, strict=True):
                if is_first and start == 1:
                    check_aligned(other, logits, came, label)
                parts.append(compare(other, logits, came))
            start += len(logits)
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
                key = _digest([FORM, [log.sha256 for log in self._logs], rounded.sha256, exact.sha256])
                if key in done:
                    yield done[key]
                    continue
                yield f"{rounded.label} against {exact.label}"
                start = time.perf_counter()
                episodes = [self._compare_log(rounded, exact, log) for log in self._logs]
                yield self._make_document(
                    {"key": key, **about},
                    start,
                    {"label": rounded.label, **_describe_reference(rounded)},
                    {exact.label: {"figure": "exact", "about": _describe_reference(exact), **summarize(episodes)}},
                )

    def _compare_log(self, rounded: Reference, exact: Reference, log: TokenLog) -> EpisodeDistances:
        parts, start = [], 1
        blocks = (one.read_blocks(log, self._settings.n_batch) for one in (rounded, exact))
        for one, other in zip(*blocks, strict=True):
            self.check()
            parts.append(compare(other, one.logprobs, log.tokens[start : start + len(one.logprobs)]))
            start += len(one.logprobs)
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


def _digest(value: list[Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


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
    return {document["key"]: document for document in read_documents(path, FORM) if "key" in document}


def read_documents(path: Path, form: str) -> list[dict[str, Any]]:
    """The documents of that form in a results file, which need not be there; what else is in it is left alone."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    return [document for document in found if isinstance(document, dict) and document.get("form") == form]
