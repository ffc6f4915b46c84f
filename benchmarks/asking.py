"""Asking a model the questions of a benchmark, through the same `Agent` that everybody uses."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sqale_edge._version import __version__
from sqale_edge.errors import Cancelled, ContextOverflowError, DatabaseOpenError, ModelLoadError, SqaleEdgeError
from sqale_edge.models import find_model, is_address
from sqale_edge.protocol import Protocol
from sqale_edge.request import Request
from sqale_edge.vote import Vote, stream_vote

from .results_file import Answer, Run, digest_questions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqale_edge.agent import Agent
    from sqale_edge.settings import EngineSettings

    from .question import Question
    from .results_file import ResultsFile

_CHUNK_BYTES = 1 << 22


def describe_run(
    agent: Agent,
    questions: Sequence[Question],
    *,
    model: str,
    settings: EngineSettings,
    seed: int,
    n_votes: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Run:
    """The run in which `agent` is asked these questions.

    Args:
        agent: Loaded with the model's own sampling settings and those of the environment.
        questions: All of the benchmark, also where only some will be asked.
        model: As for `Agent.load`.
        settings: As they were given to `Agent.load`.
        seed: For each question.
        n_votes: Candidates of each question.
        should_stop: Asked while the model's file is read; once it is true, `Cancelled` is raised.
    """
    info = agent.engine.info
    return Run(
        model=model,
        model_sha256="" if is_address(model) else _digest(find_model(model).path, should_stop),
        n_parameters=info.n_parameters,
        prompt=Protocol(info).source,
        settings={
            "engine": dataclasses.asdict(settings),
            "sampling": dataclasses.asdict(info.sampling.with_environment()),
            "limits": dataclasses.asdict(agent.limits),
            "votes": n_votes,
            **({"served": info.served} if info.served else {}),
        },
        seed=seed,
        questions_sha256=digest_questions(questions),
        sqale_edge=__version__,
        sqlite=sqlite3.sqlite_version,
    )


def _digest(path: Path, should_stop: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                if should_stop():
                    raise Cancelled("the evaluation was cancelled")
                digest.update(chunk)
    except OSError as error:
        raise ModelLoadError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def left_to_ask(questions: Sequence[Question], answers: Mapping[str, Any]) -> list[Question]:
    """Those that are not answered yet, and whose database is there."""
    return [question for question in questions if question.id not in answers and question.db.is_file()]


def ask_questions(
    agent: Agent,
    questions: Sequence[Question],
    results: ResultsFile,
    *,
    seed: int = 0,
    n_votes: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Question]:
    """Ask each question that `results` has no answer to, and yield it when its answer is on the disk.

    As many are asked at a time as the engine has sequences, so they are yielded in the order in which they end; where
    there is a vote the sequences are its candidates, and the questions come one by one. A question that is too long
    for the model is answered by that error. A question whose database cannot be opened is not asked, and has no answer:
    it can be asked when the database is there.

    Raises:
        Cancelled: `should_stop` said so, or the agent was cancelled. The questions in progress have no answers.
        DecodeError: llama.cpp failed.
        SqaleEdgeError: The answer cannot be written.
    """
    left = left_to_ask(questions, results.answers)
    requests = (Request(one.question, one.db, one.evidence or None, seed) for one in left if not should_stop())
    n_ended = 0
    with closing(agent.run_many(requests) if n_votes == 1 else _vote_on_each(agent, requests, n_votes)) as outcomes:
        for number, outcome in outcomes:
            question = left[number]
            if isinstance(outcome, SqaleEdgeError):
                if isinstance(outcome, ContextOverflowError):
                    results.add(Answer(question.id, None, error=str(outcome)))
            else:
                episode = outcome.episode if isinstance(outcome, Vote) else outcome
                votes = outcome.to_dict() if isinstance(outcome, Vote) else None
                if episode.ended_by == "cancelled":
                    break
                results.add(Answer(question.id, episode.sql, episode, votes=votes))
            n_ended += 1
            yield question
    if n_ended < len(left):
        raise Cancelled("the evaluation was cancelled")


def _vote_on_each(
    agent: Agent, requests: Iterable[Request], n_votes: int
) -> Generator[tuple[int, Vote | SqaleEdgeError], None, None]:
    """What `Agent.run_many` yields, with a vote in place of an episode."""
    for number, request in enumerate(requests):
        try:
            *_, vote = stream_vote(agent, request, n_votes)
        except (ContextOverflowError, DatabaseOpenError) as error:
            yield number, error
        else:
            assert isinstance(vote, Vote), "the last thing is the vote"
            yield number, vote
