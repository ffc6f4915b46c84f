"""Many questions at a time: each as if it were alone."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from sqale_edge import Agent, EngineSettings, EpisodeLimits, Request
from sqale_edge.batch import drive
from sqale_edge.database import Database
from sqale_edge.engine import Decoding
from sqale_edge.episode import Prefilled
from sqale_edge.errors import ContextOverflowError, DatabaseOpenError, DecodeError, ModelError, SettingsError
from sqale_edge.running import Place
from sqale_edge.testing import ScriptedEngine, make_shop

THINK = 'Let me see.</think>\n\n{"tool": "list_tables"}'


def submit(log):
    """Counts the table that the question names."""
    table = log.split("ABOUT ")[1].split()[0]
    return f'So.</think>\n\n{{"tool": "submit_sql", "args": {{"sql": "SELECT count(*) FROM {table}"}}}}'


def make_requests(shop, n):
    """Questions about the two tables in turn, with as many turns as each has."""
    return [Request(f"ABOUT {('customers', 'orders')[number % 2]} ?", shop) for number in range(n)]


@pytest.mark.parametrize("n_sequences", [1, 2, 3, 8])
def test_each_is_answered_as_if_it_were_alone(shop, n_sequences):
    """Whatever number runs at a time: every request has its own episode, the one that `run` gives."""
    requests = make_requests(shop, 7)
    with Agent(ScriptedEngine([THINK, submit], thinks=True, n_sequences=n_sequences)) as agent:
        found = dict(agent.run_many(requests))
        assert sorted(found) == list(range(7))
        for number, request in enumerate(requests):
            alone = agent.run(request.question, shop)
            assert without_times(found[number]) == without_times(alone)
            assert found[number].rows == (((4,), (6,))[number % 2],)


def without_times(episode):
    return dataclasses.replace(episode, timing=None)


def test_after_a_cancel_no_more_requests_are_taken(shop):
    """They may come from something that has no end."""
    taken = []

    def endless():
        while len(taken) < 10:
            taken.append(len(taken))
            yield Request("ABOUT customers ?", shop)

    with Agent(ScriptedEngine([THINK, submit], thinks=True, n_sequences=2)) as agent:
        for _ in agent.run_many(endless()):
            agent.cancel()
        assert len(taken) <= 3
        assert agent.run("ABOUT customers ?", shop).rows == ((4,),)


def test_what_is_no_request_is_refused(shop):
    """When its turn comes, with what it is."""
    with (
        Agent(ScriptedEngine([THINK, submit], thinks=True)) as agent,
        pytest.raises(SettingsError, match="'a question'"),
    ):
        list(agent.run_many([*make_requests(shop, 1), "a question"]))


def test_stopping_one_does_not_stop_the_others_queries(shop):
    """In a database that was given open, and that others use at the same time."""
    slow = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 2000000) SELECT count(*) FROM c"
    with Database.open(shop) as database, ThreadPoolExecutor(1) as pool:
        place = Place()
        assert place.open(database) is database
        found = pool.submit(database.query, slow, max_rows=1, timeout_s=60)
        while not wait([found], 0.01).done:
            place.stop("timeout")
        assert found.result().rows == ((2_000_000,),)


class WatchingEngine(ScriptedEngine):
    """Keeps what an episode would find as its reason at the moment of a cancel."""

    running, reasons = None, ()

    def cancel(self):
        self.reasons = [place.flag.reason for place in self.running._places]
        super().cancel()


def test_a_stopped_episode_finds_its_reason(shop):
    """The engine fails its sequence at once, maybe in another thread: a time limit must not be taken for a cancel."""
    engine = WatchingEngine([THINK, submit], thinks=True)
    with Agent(engine) as agent:
        for event in agent.stream("ABOUT customers ?", shop):
            if isinstance(event, Prefilled) and not engine.reasons:
                engine.running = agent._running
                agent._running.stop("timeout")
        assert engine.reasons == ["timeout"]
        assert event.episode.ended_by == "timeout"


def test_no_more_run_at_a_time_than_there_are_sequences(shop):
    """A question begins when one before it has ended, and requests are taken when they are needed."""
    taken = []

    def take():
        for request in make_requests(shop, 6):
            taken.append(request)
            yield request

    engine = ScriptedEngine([THINK, submit], thinks=True, n_sequences=2)
    with Agent(engine) as agent:
        for n_ended, _ in enumerate(agent.run_many(take()), 1):
            n_open = sum(not sequence.is_closed for sequence in engine.sequences)
            assert n_open <= 2
            assert len(taken) <= n_ended + 2
    assert len(taken) == 6


def test_what_is_wrong_with_one_question_is_its_own(shop, tmp_path):
    """Too long a question and a broken database give their errors; the others are answered."""
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database" * 100)
    good, *_ = make_requests(shop, 1)
    requests = [good, Request("ABOUT " * 1_000, shop), Request("ABOUT x", broken), good]
    with Agent(ScriptedEngine([THINK, submit], thinks=True, n_sequences=2, n_ctx=4_096)) as agent:
        found = dict(agent.run_many(requests))
    assert found[0].rows == found[3].rows == ((4,),)
    assert isinstance(found[1], ContextOverflowError)
    assert isinstance(found[2], DatabaseOpenError)


def test_a_wrong_request_is_refused_at_once(shop):
    """As `run` refuses it."""
    for wrong in ({"question": 3}, {"database": 7}, {"evidence": 1}, {"seed": -1}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            Request(**{"question": "?", "database": shop, **wrong})


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_a_cancel_ends_those_in_progress_and_begins_no_other(shop, n_before):
    """Episodes that had ended stay as they are; those under way end as cancelled; the rest is not there."""
    engine = ScriptedEngine([THINK, submit], thinks=True, n_sequences=2)
    agent = Agent(engine)
    outcomes = agent.run_many(make_requests(shop, 9) if n_before else cancel_at_the_second(agent, shop))
    ended = [episode.ended_by for _, episode in itertools.islice(outcomes, n_before)]
    agent.cancel()
    ended += [episode.ended_by for _, episode in outcomes]
    assert ended[:n_before] == ["submit_sql"] * n_before
    assert set(ended[n_before:]) == {"cancelled"}
    assert 1 <= len(ended[n_before:]) <= 2
    assert all(sequence.is_closed for sequence in engine.sequences)
    assert agent.run("ABOUT orders ?", shop).rows == ((6,),)


def cancel_at_the_second(agent, shop):
    """Requests of which the second cancels them all before it begins."""
    for number, request in enumerate(make_requests(shop, 9)):
        if number == 1:
            agent.cancel()
        yield request


def test_dropping_the_iterator_frees_everything(shop):
    """After a break the agent answers the next question."""
    engine = ScriptedEngine([THINK, submit], thinks=True, n_sequences=3)
    agent = Agent(engine)
    for _ in agent.run_many(make_requests(shop, 9)):
        break
    assert agent.run("ABOUT orders ?", shop).rows == ((6,),)
    assert all(sequence.is_closed for sequence in engine.sequences)


def test_each_has_a_time_limit_of_its_own(shop, tmp_path):
    """A question whose time is up ends; the others go on."""
    slow = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"

    def run_or_wait(log):
        if "slow" in log:
            return f'x</think>\n\n{{"tool": "run_query", "args": {{"sql": "{slow}"}}}}'
        return submit(log)

    limits = EpisodeLimits(timeout_s=0.3, query_timeout_s=60)
    with Agent(ScriptedEngine([run_or_wait, submit], thinks=True, n_sequences=1), limits=limits) as agent:
        found = dict(agent.run_many([Request("slow", shop), Request("ABOUT orders ?", shop)]))
    assert found[0].ended_by == "timeout"
    assert found[1].rows == ((6,),)


def test_a_second_thread_waits(shop):
    """`run` in another thread comes after the questions that are being answered."""
    agent = Agent(ScriptedEngine([THINK, submit], thinks=True, n_sequences=2))
    outcomes = agent.run_many(make_requests(shop, 4))
    next(outcomes)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(agent.run("ABOUT orders ?", shop)))
    thread.start()
    thread.join(0.1)
    assert not answers
    assert len(list(outcomes)) == 3
    thread.join()
    assert answers[0].rows == ((6,),)


def test_a_failed_step_is_raised_in_every_lane_of_it():
    """Each can clean up; the failure reaches the caller, and no lane is left open."""
    seen = []

    class Failing:
        def decode_batch(self, decodings):
            raise DecodeError(f"{len(decodings)} failed")

    def lane(number):
        try:
            yield Decoding(sequence=None, phase=None, max_tokens=1, stop=frozenset())
        except ModelError as error:
            seen.append((number, str(error)))
            if number == 2:
                raise

    with pytest.raises(DecodeError, match="3 failed"):
        list(drive(map(lane, range(3)), Failing(), 3))
    assert seen == [(0, "3 failed"), (1, "3 failed"), (2, "3 failed")]


def test_the_real_engine_gives_the_same_answers_in_a_batch(tmp_path):
    """The demo model, four at a time, against one at a time: the same tokens counted and the same answers."""
    shop = make_shop(tmp_path / "shop.sqlite")
    questions = ["How many customers are there?", "Count the orders.", "What is the average total of the orders?"]
    requests = [Request(question, shop) for question in questions * 2]
    settings = EngineSettings(n_ctx=4_096, n_sequences=4, threads=1)
    with Agent.load("demo", settings=settings) as agent:
        alone = [agent.run(request.question, shop) for request in requests]
        before = agent.engine.count_evaluated()
        together = dict(agent.run_many(requests))
        n_evaluated = agent.engine.count_evaluated() - before
    assert [together[number].sql for number in range(6)] == [episode.sql for episode in alone]
    assert [together[number].usage for number in range(6)] == [episode.usage for episode in alone]
    # The last token of an episode is never evaluated; every other one is, once.
    usages = [episode.usage for episode in together.values()]
    n_pending = [usage.n_evaluated + usage.n_decoded for usage in usages]
    assert n_evaluated <= sum(n_pending)
