"""Progress of long work on stderr, and how a request to end stops it."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from sqale_edge.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console


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
