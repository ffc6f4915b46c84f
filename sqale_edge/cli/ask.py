"""`sqale-edge ask`: one question, one answer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.answers import FORMATS, format_answer
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.candidates import CandidatesView, describe_vote
from sqale_edge.cli.options import SECONDS, SEED, model_options
from sqale_edge.cli.session import Session
from sqale_edge.cli.text import printable, write_out
from sqale_edge.episode import Noted
from sqale_edge.errors import Cancelled
from sqale_edge.sql_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.episode import Episode, Event
    from sqale_edge.settings import GpuLayers
    from sqale_edge.vote import Vote


def _check_question(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty")
    return value


@click.command()
@click.argument("db", nargs=-1, required=True)
@click.argument("question", callback=_check_question)
@model_options
@click.option("--evidence", help="Outside knowledge that the question needs.")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    default="table",
    show_default=True,
    help="Form of the answer.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Show thoughts, calls, results and token counts on stderr, live; with --votes each candidate's at its end.",
)
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="The same seed gives the same answer.",
)
@click.option(
    "--votes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="K",
    help="Answer K times, with seeds from --seed on, and take what most agree on. Slower, and takes more memory.",
)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after S seconds. [default: none]")
@click.option("--max-rows", type=click.IntRange(1), help="Rows of the answer to show. [default: 1000]")
def ask(
    db: tuple[str, ...],
    question: str,
    *,
    model: str,
    gpu_layers: GpuLayers | None,
    threads: int | None,
    no_prefix_cache: bool,
    tokenizer: str | None,
    evidence: str | None,
    form: str,
    trace: bool,
    seed: int,
    votes: int,
    timeout: float | None,
    max_rows: int | None,
) -> int:
    """Answer QUESTION over DB: a SQLite file, or CSV, TSV, JSON or JSONL files. DB is never changed.

    \b
    Example:
      sqale-edge ask shop.sqlite "How many customers are there?" --model sqale --trace
    """
    from sqale_edge.database import Database  # noqa: PLC0415
    from sqale_edge.request import Request  # noqa: PLC0415 - keeps --help light
    from sqale_edge.settings import EngineSettings, EpisodeLimits  # noqa: PLC0415
    from sqale_edge.vote import Vote, stream_vote  # noqa: PLC0415

    n_sequences = votes if votes > 1 else None
    settings = EngineSettings.from_environment(n_sequences=n_sequences, gpu_layers=gpu_layers, threads=threads)
    limits = EpisodeLimits.from_environment(timeout_s=timeout, max_rows=max_rows)
    session = Session(model, settings, limits, no_prefix_cache=no_prefix_cache, tokenizer=tokenizer)

    def answer() -> Iterator[tuple[int, Event] | Vote]:
        files = list(db) if len(db) > 1 else db[0]
        with (
            Database.open(files, should_stop=lambda: session.is_stopped) as database,
            session.load_agent() as agent,
        ):
            yield 0, Noted(1, agent.engine.info.offload)
            if not session.is_stopped:
                yield from stream_vote(agent, Request(question, database, evidence, seed), votes)

    console = Console(stderr=True)
    view = CandidatesView(console, votes, is_traced=trace)
    vote: Vote | None = None
    try:
        with contextlib.closing(iterate_in_background(answer, session.stop)) as events:
            for event in events:
                if isinstance(event, Vote):
                    vote = event
                else:
                    view.show(*event)
    finally:
        view.close()
    if vote is None:
        raise Cancelled("the question was cancelled before it was asked")
    return _report(vote, form, limits.timeout_s, is_traced=trace)


def _report(vote: Vote, form: str, timeout_s: float | None, *, is_traced: bool) -> int:
    """Print the answer and what the person should know; the exit code."""
    episode = vote.episode
    if not is_traced:
        for note in episode.notes:
            click.echo(printable(f"Note: {note}."), err=True)
    votes = vote.to_dict() if vote.n_votes > 1 else None
    answer = format_answer(episode, form, votes)
    if answer:
        write_out(answer)
    if episode.ended_by == "cancelled":
        raise Cancelled("the question was cancelled")
    if episode.sql is None:
        click.echo(f"No answer: {_find_reason(episode, timeout_s, is_traced=is_traced)}.", err=True)
        return EXIT_NO_ANSWER
    if votes:
        click.echo(describe_vote(vote), err=True)
    if form not in ("sql", "json"):
        click.echo(printable(f"SQL: {one_line(episode.sql)}"), err=True)
    if episode.truncated:
        click.echo(f"Only the first {len(episode.rows)} rows are shown; see more with --max-rows.", err=True)
    return 0


def _find_reason(episode: Episode, timeout_s: float | None, *, is_traced: bool) -> str:
    """Why there is no answer, and what can be done."""
    if episode.ended_by == "timeout":
        return f"the time limit of {timeout_s:g} s was reached. Allow more with --timeout"
    if is_traced:
        return "the model found no query that runs. Ask in other words, or try another --seed"
    return "the model found no query that runs. See why with --trace, or try another --seed"
