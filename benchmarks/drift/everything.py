"""All of it with one command: files, logs, reference outputs, drift, and where episodes part.

Everything lies in one folder, in a folder of its own for each checkpoint and set of questions, so that what is there
already is used again and nothing old is taken for new. Stopped at any instant, the same command goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqale_edge.benchmarks import reference_vllm
from sqale_edge.benchmarks.results_file import digest_questions
from sqale_edge.benchmarks.speed.results import append_document

from sqale_edge.errors import BenchmarkError, Cancelled
from sqale_edge.settings import EngineSettings

from . import parting
from .measuring import DriftBench, read_documents
from .parting import compare_logs
from .recording import describe_recording, record_logs
from .token_logs import LogsFile, read_logs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from sqale_edge.benchmarks.question import Question

    from sqale_edge.agent import Agent

BASE = "BF16"
QUANTS = ("Q8_0", "Q4_K_M", "Q4_0")
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriftPlan:
    """What is to be measured.

    Attributes:
        checkpoint: A Hugging Face folder, or a GGUF file that is not quantized, which has no reference outputs.
        questions, chosen: All of the benchmark, and those to ask.
        folder: For all files that are made.
        output: The file of results, which documents are added to.
        quants: File types that are made of the checkpoint.
        models: Further GGUF files of it.
        pythons: Interpreters with vLLM or transformers by the engine's name; one that is missing is left out.
        n_tokens: Of the logs, the first so many tokens are measured; None takes all.
        settings: How models are loaded.
        seed: Of the episodes.
    """

    checkpoint: Path
    questions: Sequence[Question]
    chosen: Sequence[Question]
    folder: Path
    output: Path
    quants: Sequence[str] = QUANTS
    models: Sequence[Path] = ()
    pythons: dict[str, str] = dataclasses.field(default_factory=dict)
    n_tokens: int | None = None
    settings: EngineSettings = dataclasses.field(default_factory=EngineSettings)
    seed: int = 0


class DriftRun:
    """Does what a plan says. `steps` is used once; `stop` comes from any thread."""

    def __init__(self, plan: DriftPlan) -> None:
        self._plan = plan
        self._is_stopped = False
        self._agent: Agent | None = None
        self._bench: DriftBench | None = None

    def steps(self) -> Iterator[str | dict[str, Any]]:
        """Yield a line for each thing that is being done, and each document when it is made; those of earlier runs too.

        Raises:
            Cancelled: It was stopped.
            Else what converting, asking, measuring and writing raise.
        """
        plan = self._plan
        yield "reading the checkpoint"
        folder = plan.folder / self._identify()
        folder.mkdir(parents=True, exist_ok=True)
        base, models = yield from self._make_models(folder)
        logs = {}
        for path in [base, *models]:
            logs[path] = yield from self._record(path, folder)
        references = yield from self._make_references(logs[base], folder)
        self._check()
        self._bench = DriftBench(logs[base], base, models, references, n_tokens=plan.n_tokens, settings=plan.settings)
        yield from self._bench.run_into(plan.output)
        known = [{**one, "measured_at": ""} for one in read_documents(plan.output, parting.FORM)]
        for path in models:
            yield f"{path.name}: where do its episodes part?"
            document = compare_logs(read_logs(logs[base]), read_logs(logs[path]))
            if {**document, "measured_at": ""} not in known:
                append_document(document, plan.output)
            yield document

    def _identify(self) -> str:
        """A name that is another one with another checkpoint or other questions."""
        path = self._plan.checkpoint
        if path.is_dir():
            files = sorted(reference_vllm.describe_checkpoint(path)["files"].items())
        else:
            try:
                files = [("", reference_vllm.digest_file(path))]
            except OSError as error:
                raise BenchmarkError(f"{str(path)!r} cannot be read: {error.strerror}", path=path) from error
        asked = [files, digest_questions(self._plan.questions), [one.id for one in self._plan.chosen]]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]

    def _make_models(self, folder: Path) -> Generator[str, None, tuple[Path, list[Path]]]:
        """The files that are compared, the unquantized one first."""
        plan, made = self._plan, folder / "models"
        if not plan.checkpoint.is_dir():
            return plan.checkpoint, list(plan.models)
        from sqale_edge.convert import convert_checkpoint  # noqa: PLC0415 - loaded when it is needed

        made.mkdir(exist_ok=True)
        for quant in (BASE, *plan.quants):
            path = made / f"{quant}.gguf"
            if not path.exists():
                yield f"converting to {quant}"
                convert_checkpoint(plan.checkpoint, path, quant=quant, on_progress=lambda _: self._check())
        return made / f"{BASE}.gguf", [*(made / f"{quant}.gguf" for quant in plan.quants), *plan.models]

    def _record(self, path: Path, folder: Path) -> Generator[str, None, Path]:
        """Logs of all questions with one file."""
        from sqale_edge.agent import Agent  # noqa: PLC0415 - loaded when a model is

        plan = self._plan
        self._check()
        target = folder / f"{path.stem}-{reference_vllm.digest_file(path)[:8]}-seed-{plan.seed}.logs.jsonl"
        with Agent.load(path, settings=plan.settings, on_progress=lambda _: not self._is_stopped) as agent:
            self._agent = agent
            head = describe_recording(
                agent,
                path,
                plan.questions,
                settings=plan.settings,
                seed=plan.seed,
                should_stop=lambda: self._is_stopped,
            )
            with LogsFile(target, head) as file:
                recorded = record_logs(agent, plan.chosen, file, seed=plan.seed, should_stop=lambda: self._is_stopped)
                for question, log in recorded:
                    yield f"{path.name}: {question.id}, " + (f"{len(log.tokens)} tokens" if log else "not asked")
        self._agent = None
        return target

    def _make_references(self, logs: Path, folder: Path) -> Generator[str, None, list[Path]]:
        """Reference outputs on the logs, each by a process of its own in an environment of its own."""
        plan = self._plan
        made = []
        for engine, python in plan.pythons.items():
            if not plan.checkpoint.is_dir():
                yield f"no reference of {engine}: {plan.checkpoint.name} is no checkpoint's folder"
                continue
            target = folder / f"{logs.name.removesuffix('.logs.jsonl')}-{engine}"
            arguments = [str(logs), str(plan.checkpoint), "-o", str(target), "--engine", engine]
            arguments += ["--tokens", str(plan.n_tokens)] if plan.n_tokens else []
            arguments += ["--threads", str(plan.settings.threads)] if plan.settings.threads else []
            yield f"{engine} is computing"
            self._run_script(python, arguments, engine)
            made.append(target)
        return made

    def _run_script(self, python: str, arguments: Sequence[str], engine: str) -> None:
        with tempfile.TemporaryFile() as output:
            command = [python, str(Path(reference_vllm.__file__)), *arguments]
            try:
                process = subprocess.Popen(  # noqa: S603 - a script of this package, run by who the person names
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                raise BenchmarkError(
                    f"{python!r} cannot be started: {error.strerror}", hint=f"name an interpreter that has {engine}"
                ) from error
            try:
                while process.poll() is None:
                    self._check()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_S)
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                output.seek(0)
                lines = output.read().decode("utf-8", "replace").strip().splitlines()
                raise BenchmarkError(
                    f"{engine} ended with code {process.returncode}: {lines[-1] if lines else 'no message'}",
                    hint=f"run it by hand: {' '.join(command)}",
                )

    def stop(self) -> None:
        """End it soon; `steps` raises Cancelled."""
        self._is_stopped = True
        if self._agent:
            self._agent.cancel()
        if self._bench:
            self._bench.stop()

    def _check(self) -> None:
        if self._is_stopped:
            raise Cancelled("the measurement was stopped")
