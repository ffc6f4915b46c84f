"""An agent in a program with threads: waiting, cancelling, timing out, abandoning, closing."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import signal
import threading

import numpy as np
import pytest
from turns import decided

from sqale_edge import Agent, Database, EngineSettings, EpisodeLimits, SamplingSettings
from sqale_edge.episode import Finished, Noted, Prefilled, ToolCalled, ToolReturned, TurnEnded, Wrote
from sqale_edge.errors import DatabaseOpenError, DecodeError, ModelError, QueryError, SettingsError
from sqale_edge.testing import ScriptedEngine, ScriptedSequence

QUESTION = "How many customers are there?"
SUBMIT = json.dumps({"tool": "submit_sql", "args": {"sql": "SELECT count(*) FROM customers"}})
LIST = '{"tool": "list_tables"}'
WAIT_S = 60  # for what certainly comes; a test that waits this long has failed


class Engine(ScriptedEngine):
    """A scripted engine that can be stopped at a token, and counts what is done to it."""

    def __init__(self, script, **options):
        super().__init__(script, **options)
        self.stop_at: int | None = None
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self.cancel_begun, self.cancel_may_end = threading.Event(), threading.Event()
        self.cancel_may_end.set()
        self.n_steps = self.n_closed = self.n_closed_sequences = 0
        self.in_use = threading.Lock()

    def new_sequence(self, seed, sampling=None):
        sequence = Sequence(self)
        self.sequences.append(sequence)
        return sequence

    def decode_batch(self, decodings):
        assert self.in_use.acquire(blocking=False), "one call at a time"
        try:
            self.n_steps += 1
            if self.n_steps == self.stop_at:
                self.stopped.set()
                assert self.go_on.wait(WAIT_S)
            return super().decode_batch(decodings)
        finally:
            self.in_use.release()

    def cancel(self):
        self.cancel_begun.set()
        assert self.cancel_may_end.wait(WAIT_S)
        super().cancel()

    def close(self):
        assert self.in_use.acquire(blocking=False), "not while it decodes"
        self.in_use.release()
        self.n_closed += 1


class Sequence(ScriptedSequence):
    def close(self):
        self._engine.n_closed_sequences += 1


def in_thread(function, *args):
    """`function` running in another thread; `join` returns what it returned."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)), daemon=True)
    thread.start()

    def join():
        thread.join(WAIT_S)
        assert not thread.is_alive()
        return results[0]

    return thread, join


@pytest.mark.parametrize("stop_at", [1, 2, 30, len(LIST) + 1, len(LIST) + 40])
def test_a_cancel_from_another_thread_ends_within_one_token(shop, stop_at):
    """In any turn; the next question works as if nothing had happened."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    engine.stop_at = stop_at
    _, join = in_thread(agent.run, QUESTION, shop)
    assert engine.stopped.wait(WAIT_S)
    n_log = len(engine.sequences[0].tokens)
    agent.cancel()
    engine.go_on.set()
    episode = join()
    assert (episode.ended_by, episode.sql, episode.rows) == ("cancelled", None, ())
    assert len(engine.sequences[0].tokens) <= n_log + 1
    after, fresh = agent.run(QUESTION, shop), Agent(Engine([LIST, SUBMIT])).run(QUESTION, shop)
    assert (after.turns, after.rows, after.usage) == (fresh.turns, fresh.rows, fresh.usage)
    assert engine.n_closed_sequences == 2


@pytest.mark.parametrize("kind", [Prefilled, Wrote, ToolCalled])
def test_a_cancel_from_the_same_thread_works_between_events(shop, kind):
    """A GUI that handles events can cancel there."""
    agent = Agent(Engine([LIST, SUBMIT]))
    events = []
    for event in agent.stream(QUESTION, shop):
        events.append(event)
        if isinstance(event, kind):
            agent.cancel()
    assert events[-1].episode.ended_by == "cancelled"
    assert isinstance(events[-2], kind)
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_a_cancel_without_a_question_does_nothing(shop):
    """Before, between and after questions."""
    agent = Agent(Engine([SUBMIT]))
    for _ in range(2):
        agent.cancel()
        assert agent.run(QUESTION, shop).ended_by == "submit_sql"
    agent.cancel()


def test_a_cancel_is_heard_while_the_database_is_opened(shop):
    """It is not lost in the time before the first token, which an import can take long for."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)

    class SlowPath:
        def __fspath__(self):
            agent.cancel()
            return str(shop)

    episode = agent.run(QUESTION, SlowPath())
    assert (episode.ended_by, episode.turns) == ("cancelled", ())
    assert engine.sequences[0].tokens == ()


def test_a_late_cancel_does_not_hit_the_next_question(shop):
    """A cancel that is under way when its question ends holds the next one up instead of cancelling it."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    next(stream)
    engine.cancel_may_end.clear()
    _, join_cancel = in_thread(agent.cancel)
    assert engine.cancel_begun.wait(WAIT_S)

    def end_this_and_ask_the_next():
        stream.close()
        return agent.run(QUESTION, shop)

    thread, join_next = in_thread(end_this_and_ask_the_next)
    thread.join(0.1)
    assert thread.is_alive()
    engine.cancel_may_end.set()
    join_cancel()
    assert join_next().ended_by == "submit_sql"


def test_a_stop_that_comes_after_the_end_does_nothing(shop):
    """As of a timer that fires while the answer is being handed over: the engine may be at the next question."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    next(stream)
    ended = agent._running
    stream.close()
    ended.stop("timeout")
    assert not engine.cancel_begun.is_set()


def test_a_call_that_is_cancelled_before_it_runs_is_not_run(shop):
    """Whoever cancels at `ToolCalled` does not wait for the query, and gets no answer from it."""
    agent = Agent(Engine([SUBMIT]))
    events = []
    for event in agent.stream(QUESTION, shop):
        events.append(event)
        if isinstance(event, ToolCalled):
            agent.cancel()
    episode = events[-1].episode
    assert (episode.ended_by, episode.sql, episode.rows, episode.turns[0].results) == ("cancelled", None, (), ())
    assert episode.timing.tool_s == 0


QUERY = json.dumps({"tool": "run_query", "args": {"sql": "SELECT count(*) FROM customers"}})
FAILED_SUBMIT = json.dumps({"tool": "submit_sql", "args": {"sql": "SELECT nonsense"}})


@pytest.mark.parametrize("submit", [SUBMIT, FAILED_SUBMIT])
@pytest.mark.parametrize("kind", [ToolCalled, ToolReturned, TurnEnded])
def test_a_cancel_in_the_turn_of_an_answer_leaves_none(shop, kind, submit):
    """Neither the answer nor, where it does not run, the last query that did; unless the answer was already there."""
    agent = Agent(Engine([QUERY, submit]))
    events = []
    for event in agent.stream(QUESTION, shop):
        events.append(event)
        if isinstance(event, kind) and event.turn == 2:
            agent.cancel()
    episode = events[-1].episode
    was_there = submit == SUBMIT and kind is not ToolCalled
    assert (episode.ended_by, episode.rows) == (("submit_sql", ((4,),)) if was_there else ("cancelled", ()))
    assert (episode.sql is None) == (not was_there)


def test_a_second_question_from_another_thread_waits(shop):
    """It is answered when the first is done."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    next(stream)
    thread, join = in_thread(agent.run, QUESTION, shop)
    thread.join(0.1)
    assert thread.is_alive()
    assert len(engine.sequences) <= 1
    *_, last = stream
    assert last.episode.ended_by == "submit_sql"
    assert join().rows == ((4,),)


def test_many_threads_are_answered_one_after_the_other(shop):
    """The engine, which would fail otherwise, never serves two at a time; no answer is mixed up."""
    engine = Engine([LIST, lambda log: SUBMIT.replace("count(*)", log.partition("number ")[2][:2])])
    agent = Agent(engine)
    joins = [in_thread(agent.run, f"number {n}", shop)[1] for n in range(10, 20)]
    assert [join().rows[0][0] for join in joins] == list(range(10, 20))


def test_a_second_question_in_the_same_thread_is_a_clear_error(shop):
    """It would wait for itself; the first goes on undisturbed."""
    agent = Agent(Engine([LIST, SUBMIT]))
    stream = agent.stream(QUESTION, shop)
    next(stream)
    with pytest.raises(ModelError, match="still answering a question in this thread") as caught:
        agent.run(QUESTION, shop)
    assert "finish or close" in caught.value.hint
    *_, last = stream
    assert last.episode.ended_by == "submit_sql"
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_nothing_happens_before_the_first_event_is_asked_for(shop):
    """A stream that is never used holds nothing up."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)
    unused = agent.stream(QUESTION, shop)
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"
    assert len(engine.sequences) == 1
    unused.close()


@pytest.mark.parametrize("n_events", range(1, 12))
def test_an_abandoned_stream_frees_the_engine(shop, n_events):
    """Wherever it is left; the next question works, and every sequence and database is closed."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    for event in itertools.islice(agent.stream(QUESTION, shop), n_events):
        assert not isinstance(event, Finished)
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"
    assert engine.n_closed_sequences == len(engine.sequences) == 2


def test_leaving_at_the_last_event_is_allowed(shop):
    """`Finished` is the last event, and whoever stops there has not abandoned anything."""
    agent = Agent(Engine([SUBMIT]))
    for event in agent.stream(QUESTION, shop):
        if isinstance(event, Finished):
            break
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_a_timeout_leaves_no_thread_behind(shop):
    """Not when it comes, and not when the question is answered, fails or is abandoned before."""
    before = threading.active_count()
    agent = Agent(Engine([LIST, SUBMIT]), limits=EpisodeLimits(timeout_s=1_000_000))
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"
    next(agent.stream(QUESTION, shop))
    with pytest.raises(DatabaseOpenError):
        agent.run(QUESTION, shop.with_name("missing.sqlite"))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(WAIT_S)
    assert threading.active_count() == before


def test_each_question_has_its_own_time(shop):
    """The clock starts anew, and the question after one that timed out is answered."""
    engine = Engine([SUBMIT])
    agent = Agent(engine, limits=EpisodeLimits(timeout_s=0.05))
    engine.stop_at = 3
    engine.go_on = engine.cancel_begun
    assert agent.run(QUESTION, shop).ended_by == "timeout"
    assert Agent(engine).run(QUESTION, shop).ended_by == "submit_sql"


@pytest.mark.parametrize("error", [DecodeError("llama.cpp failed"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_in_the_middle_is_raised_and_the_agent_stays_usable(shop, error):
    """Engine errors and Ctrl-C in the caller's own thread reach the caller; sequence, database and lock are freed."""

    class Failing(Engine):
        def decode_batch(self, decodings):
            if self.n_steps == 20:
                self.n_steps += 1
                raise error
            return super().decode_batch(decodings)

    engine = Failing([LIST, SUBMIT])
    agent = Agent(engine)
    with pytest.raises(type(error)):
        agent.run(QUESTION, shop)
    assert engine.n_closed_sequences == 1
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_a_missing_database_is_the_callers_mistake(shop):
    """It raises, nothing is evaluated, and the agent can be asked again."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)
    with pytest.raises(DatabaseOpenError, match=r"missing\.sqlite"):
        agent.run(QUESTION, shop.with_name("missing.sqlite"))
    assert engine.sequences == []
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_databases_can_be_paths_text_or_open(shop, tmp_path):
    """An open database stays open; one that the agent opened is closed."""
    (tmp_path / "customers.csv").write_text("name\nAda\nGrace\n", encoding="utf-8")
    agent = Agent(Engine([SUBMIT]))
    assert agent.run(QUESTION, shop).rows == agent.run(QUESTION, str(shop)).rows == ((4,),)
    assert agent.run(QUESTION, tmp_path / "customers.csv").rows == ((2,),)
    with Database.open(shop) as database:
        for _ in range(2):
            assert agent.run(QUESTION, database).rows == ((4,),)
        assert database.query("SELECT 1", max_rows=1).rows == ((1,),)


def test_the_database_is_not_changed(shop):
    """Not by answering, and not by what a model tries."""
    before = shop.read_bytes()
    attack = json.dumps({"tool": "run_query", "args": {"sql": "DELETE FROM customers"}})
    Agent(Engine([attack, SUBMIT])).run(QUESTION, shop)
    assert shop.read_bytes() == before
    assert [path.name for path in shop.parent.iterdir()] == [shop.name]


def test_closing_waits_for_the_question_of_another_thread(shop):
    """It is cancelled; the model is freed only when nobody uses it any more."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    engine.stop_at = 5
    engine.go_on = engine.cancel_begun
    _, join = in_thread(agent.run, QUESTION, shop)
    assert engine.stopped.wait(WAIT_S)
    agent.close()
    assert engine.n_closed == 1
    assert join().ended_by == "cancelled"


def test_closing_in_the_middle_of_ones_own_stream_does_not_wait_for_it(shop):
    """As at the end of a `with` block that an exception leaves."""
    engine = Engine([LIST, SUBMIT])
    with Agent(engine) as agent:
        stream = agent.stream(QUESTION, shop)
        next(stream)
    assert engine.n_closed == 1
    stream.close()
    agent.close()
    assert engine.n_closed_sequences == len(engine.sequences)


def test_closing_waits_for_whoever_is_at_work_now(shop):
    """Not for the thread that began the stream: one began it, another reads on, a third closes."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    in_thread(next, stream)[1]()
    engine.stop_at = 5
    _, join_reader = in_thread(list, stream)
    assert engine.stopped.wait(WAIT_S)
    closer, join_closer = in_thread(agent.close)
    assert engine.cancel_begun.wait(WAIT_S)
    closer.join(0.1)
    assert (closer.is_alive(), engine.n_closed) == (True, 0)
    engine.go_on.set()
    join_closer()
    assert engine.n_closed == 1
    assert join_reader()[-1].episode.ended_by == "cancelled"


@pytest.mark.parametrize("n_events", range(1, 8))
def test_closing_does_not_wait_for_a_stream_that_nobody_reads(shop, n_events):
    """Its thread is gone: what it held is freed, and whoever still has it reads that it was cancelled."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    in_thread(lambda: [next(stream) for _ in range(n_events)])[1]()
    in_thread(agent.close)[1]()
    assert (engine.n_closed, engine.n_closed_sequences) == (1, len(engine.sequences))
    *_, last = stream
    assert last.episode.ended_by == "cancelled"
    with pytest.raises(ModelError, match="the agent is closed"):
        agent.run(QUESTION, shop)


def test_a_question_does_not_wait_for_a_stream_whose_thread_is_gone(shop):
    """It takes its place; the stream that was given up says so when it is read on, and cannot disturb."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    in_thread(lambda: [next(stream) for _ in range(3)])[1]()
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"
    other = agent.stream(QUESTION, shop)
    next(other)
    with pytest.raises(ModelError, match="given up"):
        next(stream)
    assert next(stream, None) is None
    *_, last = other
    assert last.episode.ended_by == "submit_sql"
    assert engine.n_closed_sequences == len(engine.sequences) == 3


def test_a_question_waits_for_a_stream_that_another_thread_reads_on(shop):
    """The thread that began it is gone, the one that reads it is not."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    stream = agent.stream(QUESTION, shop)
    in_thread(next, stream)[1]()
    next(stream)
    thread, join = in_thread(agent.run, QUESTION, shop)
    thread.join(0.3)
    assert thread.is_alive()
    *_, last = stream
    assert last.episode.ended_by == join().ended_by == "submit_sql"


def test_a_question_that_waits_hears_that_the_agent_is_closed(shop):
    """It is not asked, and not waited for."""
    agent = Agent(Engine([LIST, SUBMIT]))
    stream = agent.stream(QUESTION, shop)
    next(stream)

    def ask():
        with pytest.raises(ModelError, match="the agent is closed"):
            agent.run(QUESTION, shop)

    thread, join = in_thread(ask)
    thread.join(0.1)
    assert thread.is_alive()
    agent.close()
    join()


@pytest.mark.parametrize("is_in_cycle", [False, True])
def test_a_dropped_stream_frees_what_it_held(shop, is_in_cycle):
    """At once, or when the garbage collection finds it."""
    engine = Engine([LIST, SUBMIT])
    agent = Agent(engine)
    holder = [agent.stream(QUESTION, shop)]
    for _ in range(3):
        next(holder[0])
    if is_in_cycle:
        holder.append(holder)
    del holder
    gc.collect()
    assert engine.n_closed_sequences == len(engine.sequences) == 1
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


class Interrupted(Engine):
    """Gets a signal in the middle of a step."""

    def decode_batch(self, decodings):
        tokens = super().decode_batch(decodings)
        with self.in_use:
            if self.n_steps == 20:
                signal.raise_signal(signal.SIGINT)
        return tokens


@pytest.fixture
def on_signal():
    """Sets what the next SIGINT does."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda function: signal.signal(signal.SIGINT, lambda *_: function())
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["cancel", "close"])
def test_a_signal_handler_can_cancel_and_close(shop, on_signal, name):
    """In the middle of a step: the question ends as cancelled; the model is freed, but not under the step."""
    engine = Interrupted([LIST, SUBMIT])
    agent = Agent(engine)
    on_signal(getattr(agent, name))
    assert agent.run(QUESTION, shop).ended_by == "cancelled"
    assert engine.n_steps <= 21
    assert engine.n_closed == (name == "close")
    assert engine.n_closed_sequences == 1


def test_a_signal_handler_can_cancel_where_locks_are_held(shop, on_signal):
    """Also in the middle of a cancel, and while the question ends: the thread holds these locks itself."""

    class EverySignal(Engine):
        def cancel(self):
            super().cancel()
            if self.n_signals < 3:
                self.n_signals += 1
                signal.raise_signal(signal.SIGINT)

    engine = EverySignal([LIST, SUBMIT])
    engine.n_signals = 0
    agent = Agent(engine)
    on_signal(agent.cancel)
    stream = agent.stream(QUESTION, shop)
    next(stream)
    agent.cancel()
    *_, last = stream
    assert (last.episode.ended_by, engine.n_signals) == ("cancelled", 3)

    class SignalAtTheEnd(Sequence):
        def close(self):
            signal.raise_signal(signal.SIGINT)
            super().close()

    engine.new_sequence = lambda seed, sampling=None: SignalAtTheEnd(engine)
    assert agent.run(QUESTION, shop).ended_by == "submit_sql"


def test_a_model_is_not_freed_under_a_token_that_is_computed(llama_gguf, shop):
    """With asyncio each event may be made by another thread; closing in the middle ends the stream, again and again."""
    limits = EpisodeLimits(tool_turns=1, turn_tokens=400, call_tokens=380, final_tokens=20)

    async def ask_and_close(n_events):
        agent = Agent.load(llama_gguf, settings=EngineSettings(n_ctx=4096, threads=1), limits=limits)
        stream = agent.stream(QUESTION, shop)
        for _ in range(n_events):
            await asyncio.to_thread(next, stream)
        reader = asyncio.create_task(asyncio.to_thread(list, stream))
        await asyncio.sleep(0.001 * n_events)
        await asyncio.to_thread(agent.close)
        return (await reader)[-1].episode.ended_by

    for n_events in range(1, 12):
        assert asyncio.run(ask_and_close(n_events)) == "cancelled"


# (argument, values that are none)
WRONG = {
    "question": [None, b"how many?", 5, ["q"]],
    "evidence": [5, b"x", ["e"]],
    "database": [None, 5, b"shop.sqlite", [], [None], [b"x"], {}],
    "seed": [-1, 2**64, "1", 1.0, None, True],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_argument_is_named_before_anything_runs(shop, name, value):
    """At the call, with the value; the agent answers the next question."""
    engine = Engine([SUBMIT])
    agent = Agent(engine)
    arguments = {"question": QUESTION, "database": shop, "evidence": None, "seed": 0}
    for ask in (agent.stream, agent.run):
        with pytest.raises(SettingsError, match=f"^{name} is .*, but must be ") as caught:
            ask(**arguments | {name: value})
        assert (caught.value.field, repr(caught.value.value)) == (name, repr(value))
    assert engine.sequences == []
    assert agent.run(**arguments).ended_by == "submit_sql"


def test_the_ends_of_the_seeds_are_seeds(shop):
    """Also as another kind of whole number; the episode has Python's own."""
    for seed in (0, 2**64 - 1, np.uint64(2**64 - 1)):
        episode = Agent(Engine([SUBMIT])).run(QUESTION, shop, seed=seed)
        assert (type(episode.seed), episode.seed) == (int, int(seed))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", None),
        ("model", 5),
        ("model", b"m.gguf"),
        ("settings", {"n_ctx": 512}),
        ("settings", EpisodeLimits()),
        ("sampling", 0.5),
        ("limits", {"max_rows": 3}),
        ("limits", SamplingSettings()),
        ("on_progress", 3),
    ],
)
def test_a_wrong_part_is_named_before_a_model_is_loaded(llama_gguf, name, value):
    """Nothing is read, nothing is loaded."""
    arguments = {"model": llama_gguf.with_name("missing.gguf")} | {name: value}
    with pytest.raises(SettingsError, match=f"^{name} is .*, but must be ") as caught:
        Agent.load(**arguments)
    assert caught.value.field == name
    if name in ("sampling", "limits"):
        with pytest.raises(SettingsError, match=f"^{name} is "):
            Agent(Engine([SUBMIT]), **{name: value})


LIMITS = EpisodeLimits(tool_turns=1, turn_tokens=40, call_tokens=20, final_tokens=20)


def test_the_environment_changes_how_a_loaded_model_samples(llama_gguf, shop, monkeypatch):
    """`SQALE_EDGE_TEMPERATURE=0` makes it greedy: the seed no longer matters."""
    settings = EngineSettings(n_ctx=4096, threads=1)

    def turns():
        with Agent.load(llama_gguf, settings=settings, limits=LIMITS) as agent:
            return [decided(agent.run(QUESTION, shop, seed=seed)) for seed in (1, 2)]

    first, second = turns()
    assert first != second
    monkeypatch.setenv("SQALE_EDGE_TEMPERATURE", "0")
    first, second = turns()
    assert first == second


def test_a_finished_question_does_not_keep_the_agent(llama_gguf, shop):
    """A stream that was read to `Finished`, but not to its end, and is kept: the next question is answered."""
    with Agent.load(llama_gguf, settings=EngineSettings(n_ctx=4096, threads=1), limits=LIMITS) as agent:
        stream = agent.stream(QUESTION, shop)
        first = next(event for event in stream if isinstance(event, Finished)).episode
        again = agent.run(QUESTION, shop)
        assert decided(again) == decided(first)
        assert list(stream) == []


def test_a_model_that_cannot_be_used_is_freed(llama_gguf, monkeypatch):
    """Loading fails after the weights are in memory: they do not stay there."""
    from sqale_edge.llama import LlamaEngine

    def loaded():
        gc.collect()  # engines of other tests that were never loaded
        engines = [it for it in gc.get_objects() if isinstance(it, LlamaEngine)]
        return [it for it in engines if hasattr(it, "_model") and it._model.pointer]  # some failed before that

    before = len(loaded())
    monkeypatch.setenv("SQALE_EDGE_TOP_P", "half")
    with pytest.raises(SettingsError, match="SQALE_EDGE_TOP_P"):
        Agent.load(llama_gguf, settings=EngineSettings(n_ctx=64, threads=1))
    assert len(loaded()) == before


@pytest.mark.parametrize("kind", [Noted, Prefilled, Wrote, ToolCalled, ToolReturned, TurnEnded, Finished])
def test_a_model_can_be_closed_wherever_a_stream_is(llama_gguf, shop, kind):
    """The stream ends as cancelled, a new question is an error, closing again does nothing; nothing is used freed."""
    agent = Agent.load(llama_gguf, settings=EngineSettings(n_ctx=4096, threads=1), limits=LIMITS)
    stream = agent.stream(QUESTION, shop)
    assert any(isinstance(event, kind) for event in stream)
    agent.close()
    agent.close()
    ends = [event.episode.ended_by for event in stream if isinstance(event, Finished)]
    assert ends == ([] if kind is Finished else ["cancelled"])
    with pytest.raises(ModelError, match="closed"):
        agent.run(QUESTION, shop)


def test_a_database_that_was_closed_is_the_callers_mistake(shop):
    """An open database must stay open while it is asked."""
    database = Database.open(shop)
    database.close()
    with pytest.raises(QueryError, match="closed"):
        database.query("SELECT 1", max_rows=1)
    episode = Agent(Engine([SUBMIT])).run(QUESTION, database)
    assert episode.ended_by == "no_answer"
