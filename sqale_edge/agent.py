"""`Agent`: a loaded model that answers questions over databases, one at a time."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Self

from sqale_edge.database import Database
from sqale_edge.engine import Decoding
from sqale_edge.episode import Event, Finished
from sqale_edge.errors import ModelError
from sqale_edge.exclusive import Exclusive
from sqale_edge.grammar import tool_call_grammar
from sqale_edge.loop import CancelFlag, EpisodeLoop
from sqale_edge.models import find_model
from sqale_edge.protocol import Protocol
from sqale_edge.settings import EngineSettings, EpisodeLimits, SamplingSettings, check_seed, require
from sqale_edge.tools import TOOLS, Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from sqale_edge.engine import Engine
    from sqale_edge.episode import EndedBy, Episode
    from sqale_edge.turn import Steps

_POLL_S = 0.1  # how soon it is seen that a thread has ended


class Agent:
    """Answers questions with `engine`. Use `Agent.load` for a model file.

    One question at a time: a second one, from another thread, waits. `cancel` may come from any thread.

    Args:
        engine: A loaded model; `close` closes it.
        sampling: How tokens are drawn; None takes the model's own settings.
        limits: What one question may cost.
        load_s: Seconds that loading took, for the records.
        notes: What a person should know about the model; every episode has them.

    Example:
        >>> from sqale_edge.testing import ScriptedEngine, make_shop
        >>> agent = Agent(ScriptedEngine(['{"tool": "submit_sql", "args": {"sql": "SELECT count(*) FROM customers"}}']))
        >>> agent.run("How many customers are there?", make_shop()).rows
        ((4,),)
    """

    def __init__(
        self,
        engine: Engine,
        *,
        sampling: SamplingSettings | None = None,
        limits: EpisodeLimits | None = None,
        load_s: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        _check_parts(sampling, limits)
        self.engine = engine
        self.limits = limits or EpisodeLimits()
        self._sampling = sampling
        self._load_s = load_s
        self._notes = notes
        self._protocol = Protocol(engine.info)
        self._grammar = engine.compile_grammar(tool_call_grammar(TOOLS))
        # Held for one event at a time, never while a caller has the stream: who reads it may change, or go away.
        self._work = Exclusive(self._free)
        self._turn = threading.Condition(self._work.lock)
        self._running: _Running | None = None
        self._is_closing = False

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        settings: EngineSettings | None = None,
        sampling: SamplingSettings | None = None,
        limits: EpisodeLimits | None = None,
        on_progress: Callable[[float], bool] | None = None,
    ) -> Self:
        """The agent with the model in a GGUF file.

        Args:
            model: Path of a `.gguf` file; or `demo`, the small model of this package.
            settings: How the model is loaded; the defaults are `EngineSettings.from_environment()`.
            sampling: As for `Agent`; the defaults are the model's own, with `SQALE_EDGE_*` over them.
            limits: As for `Agent`; the defaults are `EpisodeLimits.from_environment()`.
            on_progress: Called with the share that is loaded, from 0 to 1, in this thread; returning False stops
                loading, and so does what it raises, which is raised here.

        Raises:
            ModelNotFoundError: There is no such file.
            ModelLoadError: llama.cpp cannot load it.
            ModelError: Its chat template cannot be used.
            SettingsError: Layers are to be offloaded, and this build of llama.cpp cannot; or an argument or the
                environment is wrong.
            Cancelled: `on_progress` returned False.
        """
        from sqale_edge.llama import LlamaEngine  # noqa: PLC0415 - loaded when a model is, not before

        require(_is_path(model), "model", model, "the path of a file")
        require(settings is None or isinstance(settings, EngineSettings), "settings", settings, "an EngineSettings")
        require(on_progress is None or callable(on_progress), "on_progress", on_progress, "a function")
        _check_parts(sampling, limits)
        limits = limits or EpisodeLimits.from_environment()
        file = find_model(model)
        engine = LlamaEngine(file.path, settings or EngineSettings.from_environment(), on_progress=on_progress)
        try:
            sampling = sampling or engine.info.sampling.with_environment()
            return cls(engine, sampling=sampling, limits=limits, load_s=engine.load_s, notes=file.notes)
        except BaseException:
            engine.close()
            raise

    def run(
        self, question: str, database: str | Path | Database, evidence: str | None = None, *, seed: int = 0
    ) -> Episode:
        """The finished episode; see `stream`."""
        with closing(self.stream(question, database, evidence, seed=seed)) as events:
            for event in events:
                if isinstance(event, Finished):
                    return event.episode
        raise AssertionError("an episode ends with Finished")

    def stream(
        self, question: str, database: str | Path | Database, evidence: str | None = None, *, seed: int = 0
    ) -> Generator[Event, None, None]:
        """Yield what happens while `question` is answered, `Finished` last.

        Closing or dropping the iterator early abandons the question. Its events may be asked for from changing threads.

        Args:
            question: In natural language.
            database: A path as for `Database.open`, or an open database, which stays open.
            evidence: Outside knowledge that the question needs.
            seed: From 0 to 2**64 - 1. The same seed, model and settings give the same episode.

        Raises:
            SettingsError: An argument is of a wrong type or out of its range; raised at once.
            DatabaseOpenError: The database cannot be read.
            ContextOverflowError: The question is too long.
            DecodeError: llama.cpp failed.
        """
        require(isinstance(question, str), "question", question, "text")
        require(evidence is None or isinstance(evidence, str), "evidence", evidence, "text or None")
        require(_is_database(database), "database", database, "a path, paths or an open Database")
        return self._answer(question, database, evidence, check_seed(seed))

    def _answer(
        self, question: str, database: str | Path | Database, evidence: str | None, seed: int
    ) -> Generator[Event, None, None]:
        """The stream that a caller holds: dropping it, wherever it is, ends the question."""
        running = _Running(self.engine)
        running.events = self._events(running, question, database, evidence, seed)
        try:
            self._take_turn(running)
            while (event := self._advance(running)) is not None:
                if isinstance(event, Finished):  # the next question need not wait for this stream to be dropped
                    running.events.close()
                    self._end(running)
                yield event
        finally:
            running.events.close()
            self._end(running)

    def _take_turn(self, running: _Running) -> None:
        """Wait until no other question is being answered; one whose reader's thread has ended is given up."""
        with self._turn:
            while (other := self._running) is not None:
                if other.reader is threading.current_thread():
                    raise ModelError(
                        "this agent is still answering a question in this thread",
                        hint="finish or close the first stream before the next",
                    )
                if other.reader.is_alive():
                    self._turn.wait(_POLL_S)
                else:
                    other.is_given_up = True
                    self._end(other)
            self._running = running  # from here on a cancel is heard
            if self._is_closing:
                raise ModelError("the agent is closed")

    def _advance(self, running: _Running) -> Event | None:
        """The question's next event; None behind the last."""
        with self._work.work():
            if running.is_given_up:
                raise ModelError(
                    "this stream was given up: the thread that read it ended, and another question was asked",
                    hint="read a stream to its end, or close it",
                )
            running.reader = threading.current_thread()
            return next(running.events, None)

    def _events(
        self, running: _Running, question: str, database: str | Path | Database, evidence: str | None, seed: int
    ) -> Generator[Event, None, None]:
        """What happens while the question is answered; `running` holds what that takes."""
        if self._is_closing:
            raise ModelError("the agent is closed")
        if not isinstance(database, Database):
            database = running.held.enter_context(Database.open(database))
        running.database = database
        running.held.enter_context(running.watch(self.limits.timeout_s))
        sequence = self.engine.new_sequence(seed, self._sampling)
        running.held.callback(sequence.close)
        loop = EpisodeLoop(
            engine=self.engine,
            sequence=sequence,
            protocol=self._protocol,
            grammar=self._grammar,
            database=database,
            toolbox=Toolbox(database, query_timeout_s=self.limits.query_timeout_s, should_stop=running.flag.is_set),
            limits=self.limits,
            flag=running.flag,
            question=question,
            evidence=evidence,
            seed=seed,
            load_s=self._load_s,
            notes=self._notes,
        )
        yield from drive(loop.steps(), self.engine)

    def _end(self, running: _Running) -> None:
        """Free what the question holds, unless that was done before."""
        if self._running is not running:
            return
        with self._work.work():
            try:
                running.end()
            finally:
                if self._running is running:
                    self._running = None
                self._turn.notify_all()

    def cancel(self) -> None:
        """Stop the question that is being answered, within one token, from any thread.

        It ends as `cancelled`; without one, nothing happens.
        """
        running = self._running
        if running:
            running.stop("cancelled")

    def close(self) -> None:
        """Free the model. Safe to call twice, from any thread and from a signal handler.

        The question that is being answered is cancelled. Where another thread is at work on it, that is waited for;
        where a stream is half read, its next event is the one that says so. In a handler that interrupts the work the
        model is freed after the handler.
        """
        self._is_closing = True
        self.cancel()
        self._work.close()

    def _free(self) -> None:
        try:
            if self._running:
                self._end(self._running)
        finally:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _check_parts(sampling: Any, limits: Any) -> None:
    require(sampling is None or isinstance(sampling, SamplingSettings), "sampling", sampling, "a SamplingSettings")
    require(limits is None or isinstance(limits, EpisodeLimits), "limits", limits, "an EpisodeLimits")


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _is_database(value: Any) -> bool:
    is_several = isinstance(value, (list, tuple)) and bool(value) and all(map(_is_path, value))
    return isinstance(value, Database) or _is_path(value) or is_several


class _Running:
    """The question that is being answered: what it holds, who reads it, and how to stop it.

    Attributes:
        events: What happens, made as it is asked for.
        held: Frees sequence, clock and database.
        reader: The thread that asked for an event last.
        is_given_up: That thread has ended, and another question wanted its place.
    """

    events: Generator[Event, None, None]

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.held = ExitStack()
        self.reader = threading.current_thread()
        self.is_given_up = False
        self._lock = threading.RLock()  # a signal handler may stop a question in the thread that is ending it
        self._has_ended = False
        self.database: Database | None = None
        self.flag = CancelFlag()

    def stop(self, reason: EndedBy) -> None:
        """Stop it, from any thread; once it has ended, do nothing: the engine may be at the next question."""
        with self._lock:
            if self._has_ended:
                return
            self.flag.set(reason)
            self._engine.cancel()
            if self.database is not None:
                self.database.interrupt()

    def end(self) -> None:
        """Free what it holds. Waits for a `stop` that is under way, and lets no other begin."""
        with self._lock:
            self._has_ended = True
        self.held.close()

    def watch(self, timeout_s: float | None) -> ExitStack:
        """A context that stops the question when its time is up."""
        stack = ExitStack()
        if timeout_s is not None:
            timer = threading.Timer(timeout_s, self.stop, ["timeout"])
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        return stack


def drive(steps: Steps, engine: Engine) -> Generator[Event, None, None]:
    """Run one episode's `steps`, drawing a token whenever they ask for one."""
    token: int | None = None
    failure: ModelError | None = None
    while True:
        try:
            step = steps.throw(failure) if failure else steps.send(token)
        except StopIteration:
            return
        token = failure = None
        if not isinstance(step, Decoding):
            yield step
            continue
        try:
            (token,) = engine.decode_batch([step])
        except ModelError as error:
            failure = error
