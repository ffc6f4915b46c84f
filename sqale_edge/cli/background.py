"""Work in a second thread, so that Ctrl-C is heard while llama.cpp or SQLite computes.

Python handles signals in the main thread, between two of its own instructions; one call into llama.cpp can take
seconds.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from sqale_edge.cli import EXIT_CANCELLED

T = TypeVar("T")
_POLL_S = 0.1  # a wait without a limit cannot be interrupted on Windows


def iterate_in_background(make_items: Callable[[], Iterable[T]], on_interrupt: Callable[[], None]) -> Iterator[T]:
    """Yield what `make_items()` yields, computed in another thread; its exception is raised here.

    The first Ctrl-C calls `on_interrupt`, which should make the items end soon; the second ends the process at once.
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

    threading.Thread(target=work, daemon=True).start()
    is_interrupted = False
    while True:
        try:
            item = items.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        except KeyboardInterrupt:
            if is_interrupted:
                os._exit(EXIT_CANCELLED)
            is_interrupted = True
            on_interrupt()
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        yield item[0]
