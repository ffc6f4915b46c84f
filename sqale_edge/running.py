"""What is being answered at the moment: what that holds, and how it is stopped from any thread."""

from __future__ import annotations

import contextlib
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sqale_edge.database import Database
from sqale_edge.loop import CancelFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.engine import Engine
    from sqale_edge.episode import EndedBy


class Place:
    """What one episode holds: a flag that stops it, its database, its clock, and what else is entered into `held`."""

    def __init__(self) -> None:
        self.held = ExitStack()
        self.flag = CancelFlag()
        self._own_database: Database | None = None
        self._lock = threading.RLock()  # a signal handler may stop an episode in the thread that is ending it
        self._has_ended = False

    def open(self, database: str | Path | Sequence[str | Path] | Database) -> Database:
        """The database, closed with the place unless it was open before."""
        if isinstance(database, Database):
            return database
        self._own_database = self.held.enter_context(Database.open(database))
        return self._own_database

    def set_timer(self, timeout_s: float | None, stop: Callable[[EndedBy], None]) -> None:
        """Call `stop` when this time is up; None is no limit."""
        if timeout_s is not None:
            timer = threading.Timer(timeout_s, stop, ["timeout"])
            timer.daemon = True
            timer.start()
            self.held.callback(timer.cancel)

    def stop(self, reason: EndedBy) -> None:
        """Let the episode end before its next token, and its query at once; do nothing when it has ended.

        In a database that others use, too, the query asks for the flag by itself, again and again.
        """
        with self._lock:
            if self._has_ended:
                return
            self.flag.set(reason)
            if self._own_database is not None:
                self._own_database.interrupt()

    def end(self) -> None:
        """Free what it holds. Waits for a `stop` that is under way, and lets no other begin. Safe to call twice."""
        with self._lock:
            self._has_ended = True
        self.held.close()


class Running:
    """The question, or the questions, that an agent is answering.

    Attributes:
        reader: The thread that asked for an event last.
        is_given_up: That thread has ended, and another question wanted its turn.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: list[Place] = []
        self._lock = threading.RLock()
        self._has_ended = False
        self._reason: EndedBy | None = None
        self.reader = threading.current_thread()
        self.is_given_up = False

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._reason is not None

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A place for the block; after a `stop` its flag is set from the start."""
        place = Place()
        with self._lock:
            self._places.append(place)
            if self._reason:
                place.flag.set(self._reason)
        try:
            yield place
        finally:
            place.end()
            with self._lock:
                self._places.remove(place)

    def stop(self, reason: EndedBy) -> None:
        """Stop it all, from any thread; once it has ended, do nothing: the engine may be at the next question."""
        with self._lock:
            if self._has_ended:
                return
            self._reason = self._reason or reason
            for place in self._places:  # before the engine: an episode that it fails must find its reason
                place.stop(reason)
            self._engine.cancel()

    def end(self) -> None:
        """Free what all places hold. Waits for a `stop` that is under way, and lets no other begin."""
        with self._lock:
            self._has_ended = True
            places = list(self._places)
        for place in places:
            place.end()
