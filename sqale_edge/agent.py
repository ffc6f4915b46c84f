"""`Agent`: a loaded model that answers questions over databases, one at a time."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqale_edge.database import Database
from sqale_edge.engine import Decoding
from sqale_edge.episode import Event, Finished
from sqale_edge.errors import ModelError
from sqale_edge.grammar import tool_call_grammar
from sqale_edge.loop import CancelFlag, EpisodeLoop
from sqale_edge.protocol import Protocol
from sqale_edge.settings import EngineSettings, EpisodeLimits, SamplingSettings
from sqale_edge.tools import TOOLS, Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sqale_edge.engine import Engine
    from sqale_edge.episode import EndedBy, Episode
    from sqale_edge.turn import Steps


class Agent:
    """Answers questions with `engine`. Use `Agent.load` for a model file.

    One question at a time: a second one, from another thread, waits. `cancel` may come from any thread.

    Args:
        engine: A loaded model; `close` closes it.
        sampling: How tokens are drawn; None takes the model's own settings.
        limits: What one question may cost.

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
    ) -> None:
        self.engine = engine
        self.limits = limits or EpisodeLimits()
        self._sampling = sampling
        self._load_s = load_s
        self._protocol = Protocol(engine.info)
        self._grammar = engine.compile_grammar(tool_call_grammar(TOOLS))
        self._busy = threading.Lock()
        self._busy_thread: int | None = None
        self._running: _Running | None = None

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
            model: Path of a `.gguf` file.
            settings: How the model is loaded; the defaults are `EngineSettings.from_environment()`.
            sampling: As for `Agent`; the defaults are the model's own, with `SQALE_EDGE_*` over them.
            limits: As for `Agent`; the defaults are `EpisodeLimits.from_environment()`.
            on_progress: Called with the share that is loaded, from 0 to 1; returning False stops loading.

        Raises:
            ModelNotFoundError: There is no such file.
            ModelLoadError: llama.cpp cannot load it.
            ModelError: Its chat template cannot be used.
            SettingsError: Layers are to be offloaded, and this build of llama.cpp cannot; or the environment is wrong.
            Cancelled: `on_progress` returned False.
        """
        from sqale_edge.llama import LlamaEngine  # noqa: PLC0415 - loaded when a model is, not before

        limits = limits or EpisodeLimits.from_environment()
        engine = LlamaEngine(Path(model), settings or EngineSettings.from_environment(), on_progress=on_progress)
        try:
            sampling = sampling or engine.info.sampling.with_environment()
            return cls(engine, sampling=sampling, limits=limits, load_s=engine.load_s)
        except BaseException:
            engine.close()
            raise

    def run(
        self, question: str, database: str | Path | Database, evidence: str | None = None, *, seed: int = 0
    ) -> Episode:
        """The finished episode; see `stream`."""
        for event in self.stream(question, database, evidence, seed=seed):
            if isinstance(event, Finished):
                return event.episode
        raise AssertionError("an episode ends with Finished")

    def stream(
        self, question: str, database: str | Path | Database, evidence: str | None = None, *, seed: int = 0
    ) -> Iterator[Event]:
        """Yield what happens while `question` is answered, `Finished` last.

        Closing the iterator early abandons the question.

        Args:
            question: In natural language.
            database: A path as for `Database.open`, or an open database, which stays open.
            evidence: Outside knowledge that the question needs.
            seed: The same seed, model and settings give the same episode.

        Raises:
            DatabaseOpenError: The database cannot be read.
            ContextOverflowError: The question is too long.
            DecodeError: llama.cpp failed.
        """
        if self._busy_thread == threading.get_ident():
            raise ModelError(
                "this agent is still answering a question in this thread",
                hint="finish or close the first stream before the next",
            )
        with self._busy, ExitStack() as stack:
            self._busy_thread = threading.get_ident()
            stack.callback(setattr, self, "_busy_thread", None)
            running = self._running = _Running(self.engine)  # from here on a cancel is heard
            stack.callback(running.end)
            stack.callback(setattr, self, "_running", None)
            if not isinstance(database, Database):
                database = stack.enter_context(Database.open(database))
            running.database = database
            stack.enter_context(running.watch(self.limits.timeout_s))
            sequence = self.engine.new_sequence(seed, self._sampling)
            stack.callback(sequence.close)
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
            )
            yield from drive(loop.steps(), self.engine)

    def cancel(self) -> None:
        """Stop the question that is being answered, within one token, from any thread.

        It ends as `cancelled`; without one, nothing happens.
        """
        running = self._running
        if running:
            running.stop("cancelled")

    def close(self) -> None:
        """Free the model. Safe to call twice, and from any thread.

        The question that is being answered is cancelled; if another thread asked it, its end is waited for.
        """
        self.cancel()
        is_own = self._busy_thread == threading.get_ident()
        with nullcontext() if is_own else self._busy:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Running:
    """The question that is being answered, and how to stop it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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
        """It has ended: wait for a `stop` that is under way, and let no other begin."""
        with self._lock:
            self._has_ended = True

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
