"""Work in a second thread, so that Ctrl-C is heard while llama.cpp or SQLite computes.

Python handles signals in the main thread, between two of its own instructions; one call into llama.cpp can take
seconds.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, TypeVar

from sqale_edge.cli import EXIT_CANCELLED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

T = TypeVar("T")
_POLL_S = 0.1  # a wait without a limit cannot be interrupted on Windows


def iterate_in_background(
    make_items: Callable[[], Iterable[T]], on_interrupt: Callable[[], None]
) -> Generator[T, None, None]:
    """Yield what `make_items()` yields, computed in another thread; its exception is raised here.

    The first Ctrl-C calls `on_interrupt`, which should make the items end soon; the second ends the process at once.
    Closing this iterator early calls it, too, and waits for the thread: the process must not end while llama.cpp works.
    """
    items: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in make_items():
                items.put((item,))
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            items.put(error)
        else:
            items.put(None)

    thread = threading.Thread(target=work, daemon=True)
    with _interrupts_handled(on_interrupt):
        thread.start()
        item: tuple[T] | BaseException | None = None
        try:
            while isinstance(item := _wait_for(items), tuple):
                yield item[0]
            if item is not None:
                raise item
        finally:
            if isinstance(item, tuple):  # there would have been more
                on_interrupt()
            while thread.is_alive():
                thread.join(_POLL_S)


def _wait_for(items: queue.SimpleQueue[T]) -> T:
    while True:
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=_POLL_S)


@contextlib.contextmanager
def _interrupts_handled(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """For the block Ctrl-C raises nothing, wherever it finds the main thread, but calls `on_interrupt`."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in (signal.SIG_IGN, None):  # whoever started this program wants it to ignore Ctrl-C
        yield
        return
    is_interrupted = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            os._exit(EXIT_CANCELLED)
        is_interrupted = True
        on_interrupt()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
