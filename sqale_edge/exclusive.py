"""One thread at a time, and freed when nobody is inside: for objects of C libraries that threads and handlers share."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Exclusive:
    """Lets one thread at a time work with something, and frees it when nobody does.

    Args:
        free: Called once, by `close` or by whoever is inside then, as the last thing that they do.

    Attributes:
        lock: Held by the thread that is inside. Re-entrant: a signal handler finds it held by its own thread.
        is_closed: `free` has been called.
    """

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._n_inside = 0
        self._is_closing = False
        self.lock = threading.RLock()
        self.is_closed = False

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Be inside for the block; it may be nested."""
        with self.lock:
            self._n_inside += 1
            try:
                yield
            finally:
                self._n_inside -= 1
                self._free_if_unused()

    def close(self) -> None:
        """Free it: at once, or when the thread that is inside leaves, which is waited for.

        From inside, as a signal handler or a callback may be, nothing can be waited for: it is freed soon after.
        """
        self._is_closing = True
        with self.lock:
            self._free_if_unused()

    def _free_if_unused(self) -> None:
        # The lock is held, so that whoever is inside can only be this thread itself.
        if self._is_closing and not self._n_inside and not self.is_closed:
            self.is_closed = True
            self._free()
