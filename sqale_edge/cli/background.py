"""Work in a second thread, so that Ctrl-C is heard while llama.cpp or SQLite computes.

Python handles signals in the main thread, between two of its own instructions; one call into llama.cpp can take
seconds.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, TypeVar

from sqale_edge.cli.signals import end_requests_handled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
_POLL_S = 0.1  # a wait without a limit cannot be interrupted on Windows


def iterate_in_background(
    make_items: Callable[[], Iterable[T]], on_interrupt: Callable[[], None]
) -> Generator[T, None, None]:
    """Yield what `make_items()` yields, computed in another thread; its exception is raised here.

    Ctrl-C and other requests to end call `on_interrupt`, which should make the items end soon; see `signals`.
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
    with end_requests_handled(on_interrupt):
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
