"""`sqale-edge demo`: a sample database, the demo model and a few questions, offline."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from sqale_edge.cli import EXIT_NO_ANSWER
from sqale_edge.cli.answers import format_answer
from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.options import PATH, load_options
from sqale_edge.cli.session import Session
from sqale_edge.cli.text import dump_json, printable, write_out
from sqale_edge.cli.trace import Progress, Trace
from sqale_edge.episode import Event, Finished, Noted
from sqale_edge.errors import Cancelled, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from sqale_edge.episode import Episode
    from sqale_edge.settings import GpuLayers

QUESTIONS = (
    "How many customers are there?",
    "How many orders of customers whose city is Ghent are there?",
    "What is the average price of the products?",
    "List the names of the 3 products with the highest price.",
    "Show the number of orders for each status.",
)


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Write the sample database to FILE. [default: shop.sqlite in this program's data folder]",
)
@load_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and no trace.")
def demo(
    *, output: Path | None, gpu_layers: GpuLayers | None, threads: int | None, no_prefix_cache: bool, as_json: bool
) -> int:
    """Write a sample database, a small shop, and ask the demo model a few questions about it.

    The demo model is part of this program and nothing is downloaded. It shows how things work; how often it is right is
    said first, and an answer that is wrong is shown as it is.

    \b
    Example:
      sqale-edge demo
    """
    shop = _write_shop(output)
    console = Console(stderr=True)
    view = Progress(console) if as_json else Trace(console)
    episodes: list[Episode] = []
    try:
        with contextlib.closing(_ask_all(shop, gpu_layers, threads, no_prefix_cache=no_prefix_cache)) as events:
            for event in events:
                if isinstance(event, Event):
                    view.show(event)
                elif not as_json:
                    console.print(Text(f"\n{event}"), style="bold magenta", highlight=False, soft_wrap=True)
                if isinstance(event, Finished):
                    episodes.append(event.episode)
                    if not as_json:
                        write_out(format_answer(event.episode, "table") or "(no answer)")
    finally:
        view.close()
    if len(episodes) < len(QUESTIONS) or episodes[-1].ended_by == "cancelled":
        raise Cancelled("the demonstration was cancelled")
    if as_json:
        write_out(dump_json({"database": str(shop), "episodes": [one.to_dict() for one in episodes]}, indent=2))
    else:
        _say_what_next(console, shop, episodes)
    return 0 if all(episode.sql is not None for episode in episodes) else EXIT_NO_ANSWER


def _write_shop(output: Path | None) -> Path:
    """Write the sample database; what somebody has under a name that was given is never replaced."""
    from sqale_edge.home import home_folder  # noqa: PLC0415 - keeps --help light
    from sqale_edge.sample_shop import write_sample_shop  # noqa: PLC0415

    path = output or home_folder("data") / "shop.sqlite"
    if output is not None and os.path.lexists(output):
        raise _name_taken(path)
    try:
        write_sample_shop(path, overwrite=output is None)
    except FileExistsError:
        raise _name_taken(path) from None
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise DatabaseError(
            f"the sample database {str(path)!r} cannot be written: {reason or error}",
            path=path,
            hint="choose a place that can be written with --output",
        ) from None
    return path


def _name_taken(path: Path) -> DatabaseError:
    if path.is_dir():
        return DatabaseError(
            f"{str(path)!r} is a folder", path=path, hint=f"name a file in it: --output {path / 'shop.sqlite'}"
        )
    what = "is a link to nothing" if path.is_symlink() and not path.exists() else "exists already"
    return DatabaseError(f"{str(path)!r} {what}", path=path, hint="choose another name with --output")


def _ask_all(
    shop: Path, gpu_layers: GpuLayers | None, threads: int | None, *, no_prefix_cache: bool
) -> Generator[Event | str, None, None]:
    """The model's label, then each question, as a text, and what happens while it is answered."""
    from sqale_edge.models import DEMO, find_model  # noqa: PLC0415 - keeps --help light
    from sqale_edge.settings import EngineSettings, EpisodeLimits  # noqa: PLC0415

    # So small a model gains nothing from a second thread, and loses much where other programs compute.
    settings = EngineSettings.from_environment(gpu_layers=gpu_layers, threads=threads or 1)
    session = Session(DEMO, settings, EpisodeLimits.from_environment(), no_prefix_cache=no_prefix_cache)

    labels = [Noted(1, note) for note in find_model(DEMO).notes]

    def answer() -> Iterator[Event | str]:
        with session.load_agent() as agent:
            yield from labels
            for question in QUESTIONS:
                if not session.is_stopped:
                    yield question
                    yield from (event for event in agent.stream(question, shop) if event not in labels)

    return iterate_in_background(answer, session.stop)


def _say_what_next(console: Console, shop: Path, episodes: list[Episode]) -> None:
    """The sum, and where to go from here."""
    n_tokens = sum(episode.usage.n_evaluated + episode.usage.n_decoded for episode in episodes)
    seconds = sum(episode.timing.total_s for episode in episodes)
    lines = (
        f"{len(episodes)} questions, {n_tokens} tokens, {seconds:.1f} s. The sample database is {shop}",
        "Ask it yourself, or ask a database of yours:",
        f'  sqale-edge ask {_quote(shop)} "How many orders with status open are there?" --model demo --trace',
        "For real questions get a model that was trained for them: sqale-edge models pull sqale",
    )
    console.print(Text(printable("\n".join(lines))), highlight=False, soft_wrap=True)


def _quote(path: Path) -> str:
    """`path` as one word of a command line."""
    return subprocess.list2cmdline([str(path)]) if sys.platform == "win32" else shlex.quote(str(path))
