"""What is said while several candidates are at work."""

from rich.console import Console

from sqale_edge import Agent, Request
from sqale_edge.cli.candidates import CandidatesView
from sqale_edge.testing import ScriptedEngine
from sqale_edge.vote import Vote, stream_vote

SUBMIT = '{"tool": "submit_sql", "args": {"sql": "SELECT 4"}}'


def test_the_line_says_how_far_each_candidate_is(shop):
    """From the first evaluated prompt on, not only when one has ended; who has ended is at work no more."""
    scripts = {0: ['{"tool": "list_tables"}', SUBMIT], 1: ['{"tool": "list_tables"}'] * 3 + [SUBMIT]}
    agent = Agent(ScriptedEngine(lambda seed: scripts[seed], n_sequences=2))
    view = CandidatesView(Console(stderr=True), 2, is_traced=False)
    said = []
    for event in stream_vote(agent, Request("How many customers are there?", shop), 2):
        if not isinstance(event, Vote):
            view.show(*event)
            said.append(str(view._progress._status.status))
    view.close()
    assert said[0] == "loading the model"
    assert "0 of 2 candidates have ended, the others are in turn 1, 1" in said
    assert "0 of 2 candidates have ended, the others are in turn 2, 2" in said
    assert "1 of 2 candidates have ended, the others are in turn 4" in said
    assert said[-1] == "2 of 2 candidates have ended"
