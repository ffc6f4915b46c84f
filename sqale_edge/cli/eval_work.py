"""The two long parts of `sqale-edge eval`, in the background and with a progress bar: asking a model, and scoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sqale_edge import benchmarks
from sqale_edge.benchmarks.asking import left_to_ask
from sqale_edge.cli.session import Session
from sqale_edge.cli.steps import run_counted
from sqale_edge.cli.text import printable
from sqale_edge.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sqale_edge.benchmarks import Outcome, Question


def ask_model(
    model: str,
    everything: Sequence[Question],
    chosen: Sequence[Question],
    output: Path,
    *,
    seed: int,
    n_votes: int,
    loading: Mapping[str, Any],
    no_prefix_cache: bool,
    tokenizer: str | None,
) -> None:
    """Ask `chosen`, and put the answers into the results file `output`; those that are there are not asked again.

    `loading` are fields of `EngineSettings`; one that is None is the environment's.

    Raises what loading, asking and writing raise; `Cancelled` after a request to end.
    """
    from sqale_edge.settings import EngineSettings, EpisodeLimits  # noqa: PLC0415 - keeps --help light

    settings = EngineSettings.from_environment(**loading)
    limits = EpisodeLimits.from_environment()
    session = Session(model, settings, limits, no_prefix_cache=no_prefix_cache, tokenizer=tokenizer)
    n_kept: int | None = None

    def is_stopped() -> bool:
        return session.is_stopped

    def work() -> Iterator[int]:
        nonlocal n_kept
        with session.load_agent() as agent:
            run = benchmarks.describe_run(
                agent,
                everything,
                model=model,
                settings=settings,
                seed=seed,
                n_votes=n_votes,
                should_stop=is_stopped,
            )
            with benchmarks.ResultsFile(output, run) as results:
                n_kept = len(results.answers)
                yield len(chosen) - len(left_to_ask(chosen, results.answers))
                asking = benchmarks.ask_questions(
                    agent, chosen, results, seed=seed, n_votes=n_votes, should_stop=is_stopped
                )
                for _ in asking:
                    n_kept = len(results.answers)
                    yield 1

    try:
        run_counted("asking", work, session.stop, len(chosen))
    except Cancelled:
        if n_kept is not None:
            message = f"{n_kept} answers are kept in {str(output)!r}; the same command goes on from there."
            click.echo(printable(message), err=True)
        raise


def score(
    questions: Sequence[Question],
    predictions: Sequence[Mapping[str, str | None]],
    rules: Sequence[str],
    timeout_s: float,
) -> list[tuple[Outcome, ...]]:
    """The outcomes of each set of predictions."""
    is_stopped = False
    outcomes: list[tuple[Outcome, ...]] = []

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    def work() -> Iterator[int]:
        for some in benchmarks.score(
            questions, predictions, rules, timeout_s=timeout_s, should_stop=lambda: is_stopped
        ):
            outcomes.append(some)
            yield 1

    run_counted("scoring", work, stop, len(questions))
    return list(zip(*outcomes, strict=True))
