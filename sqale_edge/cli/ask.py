"""`sqale-edge ask`: one question, one answer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.answers import FORMATS, format_answer
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import model_options
from sqale_edge.cli.session import Session
from sqale_edge.cli.text import printable, write_out
from sqale_edge.cli.trace import Progress, Trace
from sqale_edge.episode import Finished, Noted
from sqale_edge.errors import Cancelled
from sqale_edge.sql_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqale_edge.episode import Episode, Event
    from sqale_edge.settings import GpuLayers


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
@click.option("--trace", is_flag=True, help="Show thoughts, calls, results and token counts on stderr, live.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="The same seed gives the same answer.",
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), metavar="S", help="Give up after S seconds. [default: none]"
)
@click.option("--max-rows", type=click.IntRange(1), help="Rows of the answer to show. [default: 1000]")
def ask(
    db: tuple[str, ...],
    question: str,
    *,
    model: str,
    gpu_layers: GpuLayers | None,
    threads: int | None,
    evidence: str | None,
    form: str,
    trace: bool,
    seed: int,
    timeout: float | None,
    max_rows: int | None,
) -> int:
    """Answer QUESTION over DB: a SQLite file, or CSV, TSV, JSON or JSONL files. DB is never changed.

    \b
    Example:
      sqale-edge ask shop.sqlite "How many customers are there?" --model model.gguf --trace
    """
    from sqale_edge.database import Database  # noqa: PLC0415 - keeps --help light
    from sqale_edge.settings import EngineSettings, EpisodeLimits  # noqa: PLC0415

    settings = EngineSettings.from_environment(gpu_layers=gpu_layers, threads=threads)
    limits = EpisodeLimits.from_environment(timeout_s=timeout, max_rows=max_rows)
    session = Session(model, settings, limits)

    def answer() -> Iterator[Event]:
        files = list(db) if len(db) > 1 else db[0]
        with (
            Database.open(files, should_stop=lambda: session.is_stopped) as database,
            session.load_agent() as agent,
        ):
            yield Noted(1, agent.engine.info.offload)
            if not session.is_stopped:
                yield from agent.stream(question, database, evidence, seed=seed)

    console = Console(stderr=True)
    view = Trace(console) if trace else Progress(console)
    episode: Episode | None = None
    try:
        with contextlib.closing(iterate_in_background(answer, session.stop)) as events:
            for event in events:
                view.show(event)
                if isinstance(event, Finished):
                    episode = event.episode
    finally:
        view.close()
    if episode is None:
        raise Cancelled("the question was cancelled before it was asked")
    return _report(episode, form, limits.timeout_s, is_traced=trace)


def _report(episode: Episode, form: str, timeout_s: float | None, *, is_traced: bool) -> int:
    """Print the answer and what the person should know; the exit code."""
    if not is_traced:
        for note in episode.notes:
            click.echo(printable(f"Note: {note}."), err=True)
    answer = format_answer(episode, form)
    if answer:
        write_out(answer)
    if episode.ended_by == "cancelled":
        raise Cancelled("the question was cancelled")
    if episode.sql is None:
        if episode.ended_by == "timeout":
            reason = f"the time limit of {timeout_s:g} s was reached. Allow more with --timeout"
        elif is_traced:
            reason = "the model found no query that runs. Ask in other words, or try another --seed"
        else:
            reason = "the model found no query that runs. See why with --trace, or try another --seed"
        click.echo(f"No answer: {reason}.", err=True)
        return EXIT_NO_ANSWER
    if form not in ("sql", "json"):
        click.echo(printable(f"SQL: {one_line(episode.sql)}"), err=True)
    if episode.truncated:
        click.echo(f"Only the first {len(episode.rows)} rows are shown; see more with --max-rows.", err=True)
    return 0
