"""What each token of an episode is."""

import pytest
from sqale_edge.benchmarks.drift import read_logs
from sqale_edge.benchmarks.drift.token_kinds import GIVEN, mark_reply

J, I, S, V = "json", "identifier", "sql", "value"  # noqa: E741 - short, so that a row is a line


@pytest.mark.parametrize(
    ("pieces", "kinds"),
    [
        (['{"', "tool", '":', ' "', "list", "_tables", '"}', "<|im_end|>"], [J] * 8),
        (['{"args": {"', "table_name", '": "', "cust", "omers", '", "limit": ', "3", "}}"], [J, J, J, I, I, J, V, J]),
        (['{"args": {"sql": "', "SELECT", " count", "(*", ") FROM", ' \\"', "a b", '\\""}}'], [J, S, S, S, S, I, I, I]),
        (['{"args": {"sql": "', "x", " = '", "Gh", "ent", "'", " AND", " 12", '"}}'], [J, I, S, V, V, V, S, V, J]),
        (['{"args": {"sql": "', "a\\n", "FROM", " \\u00e9", 't"}}'], [J, I, S, I, I]),
        (["SELECT", " name", " FROM", " T1", ".x", " WHERE y", " LIKE", " '%a'", ";", "<|im_end|>"],
         [S, I, S, I, I, S, S, V, S, J]),
        (['{"args": {"sql": "SELECT na'], [J]),
        (["\n\n", '{"tool', '": "submit_sql", "args": {"sql": "', "SEL"], [J, J, J, "identifier"]),
        ([], []),
    ],
)  # fmt: skip
def test_kinds_of_a_reply(pieces, kinds):
    """Calls are taken apart into scaffolding, names, SQL and values, also where they are cut off; text is SQL."""
    assert mark_reply([piece.encode() for piece in pieces]) == kinds


def test_characters_that_are_cut_in_two():
    """A token may hold a part of a character only."""
    assert mark_reply([b'{"args": {"table_name": "', b"\xc3", b"\xa9", b'"}}']) == [J, I, I, J]


def test_every_token_of_an_episode_has_a_kind(logs):
    """The first prompt is given, results are; the turns' own tokens are as many as the episode counted."""
    for log in read_logs(logs).logs.values():
        turns = log.episode.turns
        assert log.kinds[: turns[0].usage.n_prompt] == ("prompt",) * turns[0].usage.n_prompt
        n_written = sum(turn.usage.n_decoded + turn.usage.n_forced for turn in turns)
        assert sum(kind not in GIVEN for kind in log.kinds) == n_written
        assert {"thought", "json", "identifier", "sql"} <= {*log.kinds}
        assert log.turn_of(0) == 1
        assert log.turn_of(len(log.tokens) - 1) == len(turns)
