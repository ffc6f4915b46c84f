"""`Agent`: a loaded model that answers questions over databases, one at a time."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqale_edge.batch import drive
from sqale_edge.episode import Event, Finished
from sqale_edge.errors import ContextOverflowError, DatabaseOpenError, ModelError, SqaleEdgeError
from sqale_edge.exclusive import Exclusive
from sqale_edge.grammar import tool_call_grammar, tool_call_phrases
from sqale_edge.loading import load_engine
from sqale_edge.loop import EpisodeLoop
from sqale_edge.prefixes import Prefixes
from sqale_edge.protocol import Protocol
from sqale_edge.request import Request, is_path
from sqale_edge.running import Running
from sqale_edge.settings import (
    EngineSettings,
    EpisodeLimits,
    PrefixSettings,
    RemoteSettings,
    SamplingSettings,
    require,
)
from sqale_edge.tools import TOOLS, Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqale_edge.database import Database
    from sqale_edge.engine import Decoding, Engine, TokenSequence
    from sqale_edge.episode import EndedBy, Episode
    from sqale_edge.turn import Steps

T = TypeVar("T")
_POLL_S = 0.1  # how soon it is seen that a thread has ended


class Agent:
    """Answers questions with `engine`. Use `Agent.load` for a model file.

    One question at a time: a second one, from another thread, waits. `cancel` may come from any thread.

    Args:
        engine: A loaded model; `close` closes it.
        sampling: How tokens are drawn; None takes the model's own settings.
        limits: What one question may cost.
        prefixes: What is kept of a prompt for the next question and the next start.
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
        prefixes: PrefixSettings | None = None,
        load_s: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        _check_parts(sampling, limits, prefixes)
        self.engine = engine
        self.limits = limits or EpisodeLimits()
        self._sampling = sampling
        self._load_s = load_s
        self._notes = notes
        self._protocol = Protocol(engine.info)
        self._prefixes = Prefixes(engine, self._protocol, prefixes or PrefixSettings())
        self._grammar = engine.compile_grammar(tool_call_grammar(TOOLS), tool_call_phrases(TOOLS))
        # Held for one event at a time, never while a caller has the stream: who reads it may change, or go away.
        self._work = Exclusive(self._free)
        self._turn = threading.Condition(self._work.lock)
        self._running: Running | None = None
        self._is_closing = False

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        settings: EngineSettings | None = None,
        sampling: SamplingSettings | None = None,
        limits: EpisodeLimits | None = None,
        prefixes: PrefixSettings | None = None,
        remote: RemoteSettings | None = None,
        on_progress: Callable[[float], bool] | None = None,
    ) -> Self:
        """The agent with the model in a GGUF file, or in a vLLM server.

        Args:
            model: The name of a model in the store; path of a `.gguf` file; `demo`, the small model of this package; or
                the address of a vLLM server, `http://...`.
            settings: How the model is loaded; the defaults are `EngineSettings.from_environment()`.
            sampling: As for `Agent`; the defaults are the model's own, with `SQALE_EDGE_*` over them.
            limits: As for `Agent`; the defaults are `EpisodeLimits.from_environment()`.
            prefixes: As for `Agent`; the defaults are `PrefixSettings.from_environment()`.
            remote: How a server is asked; the defaults are `RemoteSettings.from_environment()`.
            on_progress: Called with the share that is loaded, from 0 to 1, in this thread; returning False stops
                loading, and so does what it raises, which is raised here.

        Raises:
            ModelNotFoundError: There is no such file, and no such model in the store.
            StoreError: The model in the store is damaged.
            ModelLoadError: llama.cpp cannot load it, or the server has another model than its files here.
            ServerError: The server cannot be reached, or is none of vLLM.
            ModelError: Its chat template cannot be used.
            SettingsError: Layers are to be offloaded, and this build of llama.cpp cannot; or an argument or the
                environment is wrong.
            Cancelled: `on_progress` returned False.
        """
        require(is_path(model), "model", model, "the path of a file")
        require(settings is None or isinstance(settings, EngineSettings), "settings", settings, "an EngineSettings")
        require(remote is None or isinstance(remote, RemoteSettings), "remote", remote, "a RemoteSettings")
        require(on_progress is None or callable(on_progress), "on_progress", on_progress, "a function")
        _check_parts(sampling, limits, prefixes)
        limits = limits or EpisodeLimits.from_environment()
        prefixes = prefixes or PrefixSettings.from_environment()
        settings = settings or EngineSettings.from_environment()
        remote = remote or RemoteSettings.from_environment()
        engine, notes = load_engine(model, settings, remote, on_progress)
        try:
            sampling = sampling or engine.info.sampling.with_environment()
            return cls(engine, sampling=sampling, limits=limits, prefixes=prefixes, load_s=engine.load_s, notes=notes)
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

        The arguments are those of a `Request`.

        Raises:
            SettingsError: An argument is of a wrong type or out of its range; raised at once.
            DatabaseOpenError: The database cannot be read.
            ContextOverflowError: The question is too long.
            DecodeError: llama.cpp failed.
        """
        request = Request(question, database, evidence, seed)

        return self._answer(lambda running: self._events(running, request), lambda event: isinstance(event, Finished))

    def run_many(self, requests: Iterable[Request]) -> Generator[tuple[int, Episode | SqaleEdgeError], None, None]:
        """Answer several questions at a time, as many as the engine has sequences, their tokens decoded in one batch.

        Yields the number of each request, counted from 0, with its episode, in the order in which they end. A question
        that is too long and a database that cannot be opened are no reason to stop: their errors are yielded instead.
        `cancel` ends all that are being answered; those that are not begun are not, and not yielded. The time limit of
        a question is looked at between two tokens.

        Raises:
            SettingsError: One of them is no `Request`; what is being answered is ended.
            DecodeError: llama.cpp failed.
        """
        return self._answer(lambda running: self._outcomes(running, requests), lambda _: False)

    def stream_seeds(self, request: Request, seeds: Sequence[int]) -> Generator[tuple[int, Event], None, None]:
        """Answer one question once for each seed, at a time, from one evaluation of its prompt.

        Yields the number of the seed, counted from 0, with each event of its episode. Each is the episode that `stream`
        gives with that seed, but for what a batch of another shape does to the last bits of the logits. The seed of
        `request` does not matter, and its time limit is one for all.

        Raises:
            SettingsError: A seed is out of range, or there is none, or more of them than the engine has sequences.
            Else what `stream` raises.
        """
        n_sequences = self.engine.info.n_sequences
        allowed = f"from 1 to the engine's n_sequences, {n_sequences}"
        require(1 <= len(seeds) <= n_sequences, "seeds", len(seeds), allowed)
        requests = [dataclasses.replace(request, seed=seed) for seed in seeds]
        return self._answer(lambda running: self._candidates(running, requests), lambda _: False)

    def _answer(
        self, make_events: Callable[[Running], Generator[T, None, None]], is_last: Callable[[T], bool]
    ) -> Generator[T, None, None]:
        """The stream that a caller holds: dropping it, wherever it is, ends what is being answered."""
        running = Running(self.engine)
        events = make_events(running)
        try:
            self._take_turn(running)
            while (event := self._advance(running, events)) is not None:
                if is_last(event):  # the next question need not wait for this stream to be dropped
                    events.close()
                    self._end(running)
                yield event
        finally:
            events.close()
            self._end(running)

    def _take_turn(self, running: Running) -> None:
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

    def _advance(self, running: Running, events: Iterator[T]) -> T | None:
        """The next event; None behind the last."""
        with self._work.work():
            if running.is_given_up:
                raise ModelError(
                    "this stream was given up: the thread that read it ended, and another question was asked",
                    hint="read a stream to its end, or close it",
                )
            running.reader = threading.current_thread()
            return next(events, None)

    def _events(self, running: Running, request: Request) -> Generator[Event, None, None]:
        """What happens while one question is answered."""
        with closing(drive([self._steps(running, request, running.stop)], self.engine)) as events:
            for _, event in events:
                yield event

    def _outcomes(
        self, running: Running, requests: Iterable[Request]
    ) -> Generator[tuple[int, Episode | SqaleEdgeError], None, None]:
        """How each of many questions ended."""
        lanes = (self._steps_or_error(running, request) for request in _take_until_stopped(requests, running))
        with closing(drive(lanes, self.engine, self.engine.info.n_sequences)) as events:
            for number, event in events:
                if isinstance(event, Finished):
                    yield number, event.episode
                elif isinstance(event, SqaleEdgeError):
                    yield number, event

    def _candidates(self, running: Running, requests: Sequence[Request]) -> Generator[tuple[int, Event], None, None]:
        """What happens while one question is answered several times."""
        twins: list[TokenSequence] = []  # the first has evaluated its prompt, and drawn nothing, when the others begin
        with running.place() as place:
            database = place.open(requests[0].database)
            lanes = (
                self._steps(running, dataclasses.replace(request, database=database), running.stop, twins)
                for request in requests
                if not (twins and self._is_closing)  # a half-read stream ends with what has begun
            )
            with closing(drive(lanes, self.engine, len(requests))) as events:
                yield from events

    def _steps_or_error(
        self, running: Running, request: Request
    ) -> Generator[Event | SqaleEdgeError | Decoding, int | None, None]:
        """One of many episodes: what is wrong with its question or database ends it alone."""
        try:
            yield from self._steps(running, request)
        except (ContextOverflowError, DatabaseOpenError) as error:
            yield error

    def _steps(
        self,
        running: Running,
        request: Request,
        stop: Callable[[EndedBy], None] | None = None,
        twins: list[TokenSequence] | None = None,
    ) -> Steps:
        """One episode, in a place of its own.

        Args:
            running: Lends the place.
            request: What is asked.
            stop: Called when the time is up; without it this episode alone is stopped.
            twins: Sequences with the same prompt, of which the first is forked; this one's is added.
        """
        if self._is_closing:
            raise ModelError("the agent is closed")
        with running.place() as place:
            database = place.open(request.database)
            place.set_timer(self.limits.timeout_s, stop or place.stop)
            sequence = self._begin_sequence(running, request.seed, twins)
            place.held.callback(sequence.close)
            if twins is not None:
                twins.append(sequence)
            loop = EpisodeLoop(
                engine=self.engine,
                sequence=sequence,
                protocol=self._protocol,
                grammar=self._grammar,
                prefixes=self._prefixes,
                database=database,
                toolbox=Toolbox(database, query_timeout_s=self.limits.query_timeout_s, should_stop=place.flag.is_set),
                limits=self.limits,
                flag=place.flag,
                question=request.question,
                evidence=request.evidence,
                seed=request.seed,
                load_s=self._load_s,
                notes=self._notes,
            )
            yield from loop.steps()

    def _begin_sequence(self, running: Running, seed: int, twins: Sequence[TokenSequence] | None) -> TokenSequence:
        """A fork of the first twin, or a new one; also where the twin was stopped, for then nothing is evaluated."""
        if twins:
            try:
                return twins[0].fork(seed)
            except ModelError:
                if not running.is_stopped:
                    raise
        return self._new_sequence(seed)

    def _new_sequence(self, seed: int) -> TokenSequence:
        return self.engine.new_sequence(seed, self._sampling)

    def _end(self, running: Running) -> None:
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


def _take_until_stopped(requests: Iterable[Request], running: Running) -> Iterator[Request]:
    """The requests; once `running` is stopped no other is taken from where they come from, which may never end."""
    waiting = iter(requests)
    while not running.is_stopped:
        try:
            request = next(waiting)
        except StopIteration:
            return
        require(isinstance(request, Request), "requests", request, "Request objects only")
        if not running.is_stopped:
            yield request


def _check_parts(sampling: Any, limits: Any, prefixes: Any) -> None:
    require(sampling is None or isinstance(sampling, SamplingSettings), "sampling", sampling, "a SamplingSettings")
    require(limits is None or isinstance(limits, EpisodeLimits), "limits", limits, "an EpisodeLimits")
    require(prefixes is None or isinstance(prefixes, PrefixSettings), "prefixes", prefixes, "a PrefixSettings")
