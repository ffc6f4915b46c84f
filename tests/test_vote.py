"""Several answers to one question, and the one that most agree on."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from sqale_edge import Agent, EngineSettings, EpisodeLimits, Request, SamplingSettings
from sqale_edge.episode import Finished, Noted, Prefilled, ToolCalled
from sqale_edge.errors import SettingsError
from sqale_edge.llama.quantize import quantize_file
from sqale_edge.models import find_model
from sqale_edge.testing import ScriptedEngine
from sqale_edge.vote import Vote, group_candidates, is_decided, stream_vote

QUESTION = "How many customers are there?"


def dice(answers, n_sequences=8):
    """An engine that plays another script for each seed."""
    return ScriptedEngine(lambda seed: answers[seed], n_sequences=n_sequences)


def submit(sql):
    return f'{{"tool": "submit_sql", "args": {{"sql": "{sql}"}}}}'


def hold(shop, scripts, **options):
    """The vote on scripts that are one submitted statement each, or a list of turns."""
    agent = Agent(dice([[submit(one)] if isinstance(one, str) else one for one in scripts]), **options)
    *_, vote = stream_vote(agent, Request(QUESTION, shop), len(scripts))
    assert isinstance(vote, Vote)
    return vote


def test_the_result_counts_and_not_the_wording(shop):
    """Two statements with the same rows are one group; the answer is the first of the largest."""
    four = ["SELECT count(*) FROM customers", "SELECT 4", "SELECT 2 + 2"]
    vote = hold(shop, ["SELECT 7", four[0], "SELECT 7", four[1], four[2]])
    assert vote.groups == ((1, 3, 4), (0, 2))
    assert vote.episode.sql == four[0]
    assert vote.episode.rows == ((4,),)
    assert vote.episode.seed == 1


def test_ties_go_to_fewer_errors_and_then_to_the_earlier(shop):
    """Of two groups of one the one without an error wins; without errors the first."""
    failing = ['{"tool": "run_query", "args": {"sql": "SELECT nothing"}}', submit("SELECT 1")]
    assert hold(shop, [failing, "SELECT 2"]).episode.rows == ((2,),)
    assert hold(shop, ["SELECT 1", "SELECT 2"]).episode.rows == ((1,),)
    assert hold(shop, [failing, "SELECT 1", "SELECT 2"]).groups == ((1, 0), (2,))
    assert hold(shop, [failing, failing, "SELECT 2", "SELECT 1 + 1"]).groups == ((2, 3), (0, 1))
    assert hold(shop, [failing, "SELECT 1", "SELECT 2", "SELECT 1 + 1"]).groups == ((1, 0), (2, 3))


def test_no_answer_is_no_vote(shop):
    """Candidates without an answer count for nobody; without any answer the vote has none either."""
    none = [submit("SELECT nothing")]
    assert hold(shop, [none, none, "SELECT 3"]).episode.rows == ((3,),)
    vote = hold(shop, [none, none])
    assert vote.groups == ()
    assert vote.episode.ended_by == "no_answer"


def test_it_ends_when_it_is_decided(shop):
    """Three of five agree: the two that are still at work are given up, and their places are free."""
    slow = ['{"tool": "list_tables"}'] * 3 + [submit("SELECT 9")]
    agent = Agent(engine := dice([[submit("SELECT 4")]] * 3 + [slow] * 2))
    *events, vote = stream_vote(agent, Request(QUESTION, shop), 5)
    assert sorted(vote.candidates) == [0, 1, 2]
    assert vote.n_votes == 5
    assert sum(isinstance(event, Finished) for _, event in events) == 3
    assert all(sequence.is_closed for sequence in engine.sequences)
    assert agent.run(QUESTION, shop).sql == "SELECT 4"


def test_decided_means_that_no_vote_can_change_it():
    """Compared with trying out every way in which those that are left could vote."""
    for sizes in itertools.product(range(4), repeat=3):
        groups = [range(size) for size in sorted((s for s in sizes if s), reverse=True)]
        for n_left in range(4):
            assert is_decided(groups, n_left) == wins_anyway([len(group) for group in groups], n_left)


def wins_anyway(sizes, n_left):
    """Whether the first group is alone at the top whatever the `n_left` others say; all are counted at the end."""
    if n_left == 0:
        return True
    sizes = [*sizes, *[0] * (n_left + 1)]
    ends = itertools.product(range(len(sizes)), repeat=n_left)
    for votes in ends:
        counts = [size + votes.count(group) for group, size in enumerate(sizes)]
        if counts[0] <= max(counts[1:]):
            return False
    return True


def test_the_prompt_is_evaluated_once(shop):
    """Every candidate but the first finds the whole prompt evaluated."""
    agent = Agent(dice([[submit("SELECT 4")]] * 4))
    events = [event for event in stream_vote(agent, Request(QUESTION, shop), 4) if isinstance(event, tuple)]
    first = {number: event for number, event in reversed(events) if isinstance(event, Prefilled)}
    assert first[0].n_cached == 0
    assert [first[number].n_cached for number in (1, 2, 3)] == [first[0].n_prompt] * 3


def test_candidates_are_the_single_runs_of_their_seeds(tmp_path, shop):
    """On the real engine, with real chances: each candidate's episode is the one that `run` gives with its seed.

    In float32: with fewer bits a batch of another shape moves the logits enough to change a token now and then.
    """
    exact = tmp_path / "demo-f32.gguf"
    quantize_file(find_model("demo").path, exact, "F32")
    settings = EngineSettings(n_ctx=2_048, n_sequences=4, threads=1)
    sampling = SamplingSettings(temperature=3, top_k=0, top_p=1.0)
    limits = EpisodeLimits(tool_turns=2, turn_tokens=48, call_tokens=32, final_tokens=24)
    with Agent.load(exact, settings=settings, sampling=sampling, limits=limits) as agent:
        before = agent.engine.count_evaluated()
        found = {}
        for number, event in agent.stream_seeds(Request(QUESTION, shop), [5, 6, 7, 8]):
            if isinstance(event, Finished):
                found[number] = event.episode
        n_evaluated = agent.engine.count_evaluated() - before
        alone = [agent.run(QUESTION, shop, seed=seed) for seed in (5, 6, 7, 8)]
    assert len({repr(episode.turns) for episode in alone}) > 1
    assert [strip(found[number]) for number in range(4)] == [strip(episode) for episode in alone]
    n_shared = found[1].turns[0].usage.n_prompt
    assert found[1].turns[0].usage.n_cached == n_shared
    n_all = sum(episode.usage.n_evaluated + episode.usage.n_decoded for episode in alone)
    assert n_evaluated <= n_all - 3 * n_shared


def strip(episode):
    """The episode without times and counts of what was shared."""
    turns = tuple(dataclasses.replace(turn, usage=None) for turn in episode.turns)
    return dataclasses.replace(episode, timing=None, usage=None, turns=turns)


def test_wrong_numbers_of_votes_are_refused(shop):
    """None, and more than there are sequences."""
    agent = Agent(dice([[submit("SELECT 4")]] * 4, n_sequences=2))
    for n_votes in (0, 3):
        with pytest.raises(SettingsError, match=str(n_votes)):
            list(stream_vote(agent, Request(QUESTION, shop), n_votes))


def hold_stopped(agent, shop, event_type, stop):
    """The vote of three candidates, `stop` being called at each event of that type."""
    vote = None
    for event in stream_vote(agent, Request(QUESTION, shop), 3):
        if isinstance(event, Vote):
            vote = event
        elif isinstance(event[1], event_type):
            stop()
    return vote


def test_a_cancelled_vote_has_no_answer(shop):
    """Also where some candidates had one."""
    slow = ['{"tool": "list_tables"}'] * 3 + [submit("SELECT 9")]
    agent = Agent(dice([[submit("SELECT 4")], slow, slow]))
    vote = hold_stopped(agent, shop, Finished, agent.cancel)
    assert vote.episode.ended_by == "cancelled"
    assert vote.episode.sql is None


@pytest.mark.parametrize("event_type", [Noted, Prefilled, ToolCalled])
@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_vote_ends_as_it_was_stopped(shop, event_type, reason):
    """Also before all candidates have begun; that is an outcome, not an error, and the agent goes on."""
    slow = ['{"tool": "list_tables"}'] * 3 + [submit("SELECT 9")]
    agent = Agent(dice([slow] * 3))
    vote = hold_stopped(agent, shop, event_type, lambda: agent._running.stop(reason))
    assert {episode.ended_by for episode in vote.candidates.values()} == {reason}
    assert vote.episode.ended_by == reason
    assert agent.run(QUESTION, shop).rows == ((9,),)


@pytest.mark.parametrize("event_type", [Noted, Prefilled])
def test_closing_the_agent_ends_a_half_read_vote(shop, event_type):
    """As it ends a half-read stream: with what has begun, as cancelled."""
    agent = Agent(dice([['{"tool": "list_tables"}', submit("SELECT 9")]] * 3))
    vote = hold_stopped(agent, shop, event_type, agent.close)
    assert vote.episode.ended_by == "cancelled"


class StoppingEngine(ScriptedEngine):
    """Calls `stop` when a sequence is forked, as another thread may."""

    stop = None

    def new_sequence(self, seed, sampling=None):
        sequence = super().new_sequence(seed, sampling)
        fork = sequence.fork

        def stop_and_fork(seed):
            self.stop()
            return fork(seed)

        sequence.fork = stop_and_fork
        return sequence


def test_the_first_candidate_may_be_stopped_while_the_second_begins(shop):
    """Its sequence cannot be forked any more: still that is how the vote ends."""
    engine = StoppingEngine(['{"tool": "list_tables"}', submit("SELECT 9")], n_sequences=2)
    agent = Agent(engine)
    engine.stop = agent.cancel
    *_, vote = stream_vote(agent, Request(QUESTION, shop), 2)
    assert vote.episode.ended_by == "cancelled"
    assert len(vote.candidates) == 2


def test_the_files_are_imported_once_for_all(tmp_path, monkeypatch):
    """Into one private database for four candidates, before any clock runs; it is gone with the vote."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = tmp_path / "customers.csv"
    table.write_text("name\nAda\nBob\n")
    agent = Agent(dice([[submit("SELECT count(*) FROM customers")]] * 4))
    n_copies = []
    vote = None
    for event in stream_vote(agent, Request(QUESTION, table), 4):
        vote = event
        n_copies.append(len(list(tmp_path.glob(".sqale-edge-private-*"))))
    assert vote.episode.rows == ((2,),)
    assert {*n_copies[:-1]} == {1}
    assert n_copies[-1] == 0


def test_cut_results_do_not_agree_with_whole_ones(shop):
    """Two rows of many are not two rows."""
    many, two = "SELECT 1 UNION ALL SELECT 1 UNION ALL SELECT 1", "SELECT 1 UNION ALL SELECT 1"
    vote = hold(shop, [many, two], limits=EpisodeLimits(max_rows=2))
    assert vote.groups == ((0,), (1,))


def test_seeds_run_on_behind_the_last_one(shop):
    """Behind 2**64 - 1 comes 0."""
    agent = Agent(ScriptedEngine([submit("SELECT 4")], n_sequences=2))
    *_, vote = stream_vote(agent, Request(QUESTION, shop, seed=2**64 - 1), 2)
    assert {episode.seed for episode in vote.candidates.values()} == {2**64 - 1, 0}


def test_a_vote_as_json(shop):
    """Each candidate in short, with its group."""
    vote = hold(shop, ["SELECT 7", "SELECT 4", "SELECT 4"])
    data = vote.to_dict()
    assert (data["n_votes"], data["n_agree"]) == (3, 2)
    assert [(one["seed"], one["sql"], one["group"]) for one in data["candidates"]] == [
        (0, "SELECT 7", 1),
        (1, "SELECT 4", 0),
        (2, "SELECT 4", 0),
    ]


def test_grouping_ignores_the_order_of_ending(shop):
    """The same candidates give the same groups, whichever ended first."""
    vote = hold(shop, ["SELECT 7", "SELECT 4", "SELECT 7", "SELECT 4"])
    for order in itertools.permutations(vote.candidates.items()):
        assert group_candidates(dict(order)) == ((0, 2), (1, 3))
