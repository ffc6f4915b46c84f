"""Recording token logs: a benchmark's questions, asked as always, with the tokens kept.

The agent is the one that everybody uses; its engine is only asked to remember which sequence it gave out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from sqale_edge.benchmarks.asking import describe_run
from sqale_edge.benchmarks.speed.surroundings import describe_machine, describe_versions

from sqale_edge.errors import BenchmarkError, Cancelled, ContextOverflowError, DatabaseOpenError

from .token_kinds import mark_kinds
from .token_logs import LogsHead, TokenLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.benchmarks.question import Question

    from sqale_edge.agent import Agent
    from sqale_edge.engine import Engine, TokenSequence
    from sqale_edge.settings import EngineSettings, SamplingSettings

    from .token_logs import LogsFile


class _Keeper:
    """An engine that keeps the sequence which it gave out last; everything else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.last: TokenSequence | None = None

    def new_sequence(self, seed: int, sampling: SamplingSettings | None = None) -> TokenSequence:
        self.last = self._engine.new_sequence(seed, sampling)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def describe_recording(
    agent: Agent,
    path: Path,
    questions: Sequence[Question],
    *,
    settings: EngineSettings,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> LogsHead:
    """The head of a file of logs.

    Args:
        agent: Loaded with the model at `path` and `settings`.
        path: The model's file.
        questions: All of the benchmark, also where only some will be asked.
        settings: As they were given to `Agent.load`.
        seed: For each question.
        should_stop: Asked while the file is read; once it is true, Cancelled is raised.
    """
    from sqale_edge.llama.logits import digest_vocabulary  # noqa: PLC0415 - llama.cpp is loaded with a model

    run = describe_run(agent, questions, model=str(path), settings=settings, seed=seed, should_stop=should_stop)
    vocabulary_sha256, n_vocab = digest_vocabulary(path)
    versions, machine = describe_versions(), describe_machine()
    return LogsHead(
        model=path.name,
        model_sha256=run.model_sha256,
        n_vocab=n_vocab,
        vocabulary_sha256=vocabulary_sha256,
        settings=dict(run.settings),
        seed=seed,
        questions_sha256=run.questions_sha256,
        versions={name: versions[name] for name in ("sqale_edge", "sqlite", "llama_cpp_python")},
        machine={name: machine[name] for name in ("cpu", "system")},
    )


def record_logs(
    agent: Agent,
    questions: Sequence[Question],
    file: LogsFile,
    *,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Question, TokenLog | None]]:
    """Ask each question that `file` has no log of, and yield it when its log is on the disk.

    A question that is too long for the model, and one whose database is not there, has no log: it comes with None.

    Raises:
        Cancelled: `should_stop` said so, or the agent was cancelled. The question in progress has no log.
        DecodeError: llama.cpp failed.
        BenchmarkError: The log cannot be written.
    """
    engine = agent.engine
    keeper = _Keeper(engine)
    agent.engine = cast("Engine", keeper)
    try:
        for question in questions:
            if question.id in file.ids:
                continue
            if should_stop():
                raise Cancelled("the recording was cancelled")
            log = None
            try:
                episode = agent.run(question.question, question.db, question.evidence or None, seed=seed)
            except (ContextOverflowError, DatabaseOpenError):
                pass
            else:
                if episode.ended_by == "cancelled":
                    raise Cancelled("the recording was cancelled")
                if episode.ended_by == "timeout" or keeper.last is None:
                    raise BenchmarkError(
                        f"question {question.id!r} ran into a time limit, so its log would not be the same again",
                        hint="record without SQALE_EDGE_TIMEOUT_S",
                    )
                tokens = tuple(keeper.last.tokens)
                kinds = mark_kinds(
                    tokens, episode.turns, lambda token: engine.detokenize([token]), engine.info.think_close
                )
                log = TokenLog(question.id, tokens, tuple(kinds), dataclasses.replace(episode, model=""))
                file.add(log)
            yield question, log
    finally:
        agent.engine = engine
