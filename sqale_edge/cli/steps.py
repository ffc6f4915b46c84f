"""Progress of long work on stderr, and how a request to end stops it."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from sqale_edge.cli.background import iterate_in_background
from sqale_edge.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SPEED_S = 3_600  # the speed is that of the last hour: one question can take minutes


class Progress(Protocol):
    """How far one step is, in bytes."""

    @property
    def step(self) -> str:
        """What is done."""

    @property
    def file(self) -> str:
        """To what."""

    @property
    def n_done(self) -> int:
        """How many bytes of it."""

    @property
    def n_total(self) -> int:
        """Of how many."""


class Steps:
    """A progress bar with rate and remaining time for each step; nothing where stderr is no terminal.

    A request to end takes effect at the next step forward, and a second Ctrl-C at once. Cleaning up is interrupted by
    neither; a third Ctrl-C ends the process, whatever that leaves.
    """

    def __init__(self, console: Console) -> None:
        name = TextColumn("{task.description}", markup=False)  # the name of a file
        columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._is_ended = self._is_cleaning = False

    def __enter__(self) -> Self:
        if not self._bars.disable:  # or it would end with an empty line
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bars.disable:
            self._bars.stop()

    def say(self, line: str) -> None:
        """A line above the bars."""
        self._bars.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Stop at the next step forward."""
        self._is_ended = True
        last_resort = signal.getsignal(signal.SIGINT)
        if last_resort is signal.SIG_IGN:
            return

        def end_now(*_: object) -> None:
            signal.signal(signal.SIGINT, last_resort)
            if not self._is_cleaning:
                self._stop()

        signal.signal(signal.SIGINT, end_now)

    def _stop(self) -> NoReturn:
        self._is_cleaning = True
        raise KeyboardInterrupt

    def show(self, progress: Progress) -> None:
        """Take note of a step forward. Raises KeyboardInterrupt when the process is to end."""
        if self._is_ended:
            self._stop()
        key = (progress.step, progress.file)
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(
                printable(f"{progress.step} {progress.file}"), total=progress.n_total
            )
        self._bars.update(self._tasks[key], completed=progress.n_done)


def run_counted(title: str, work: Callable[[], Iterable[int]], stop: Callable[[], None], total: int) -> None:
    """Do the work in the background, with a bar where stderr is a terminal.

    Args:
        title: Of the bar.
        work: Yields how much further it is.
        stop: Ends the work soon; called by a request to end.
        total: All that is to be done.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console, is_terminal = Console(stderr=True), sys.stderr.isatty()
    bars = Bars(*columns, console=console, transient=True, disable=not is_terminal, speed_estimate_period=_SPEED_S)
    with bars, contextlib.closing(iterate_in_background(work, stop)) as steps:
        task = bars.add_task(title, total=total)
        for n_done in steps:
            bars.advance(task, n_done)
