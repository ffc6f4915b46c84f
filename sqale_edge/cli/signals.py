"""Ctrl-C and other requests to end, for commands that clean up after themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

from sqale_edge.cli import EXIT_CANCELLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Ctrl-C, `kill` or a shutdown, a closed terminal; Windows does not have all of them.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def end_requests_handled(on_request: Callable[[], None]) -> Iterator[None]:
    """For the block, the first request to end calls `on_request` and raises nothing, wherever it finds the main thread.

    A Ctrl-C after that ends the process at once: a person has waited long enough. Other requests are only heard once,
    because a closed terminal may send several. What this process was started to ignore stays ignored.
    """
    is_ending = False

    def handle(number: int, _frame: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            on_request()
        elif number == signal.SIGINT:
            os._exit(EXIT_CANCELLED)

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other can set handlers
        before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in heard:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
