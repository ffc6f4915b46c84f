"""The values that flow: each is frozen and comes back from JSON as it was."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqale_edge import episode as values
from sqale_edge.episode import (
    Episode,
    Event,
    Finished,
    Noted,
    Prefilled,
    Thought,
    Timing,
    ToolCall,
    ToolCalled,
    ToolResult,
    ToolReturned,
    Turn,
    TurnEnded,
    Usage,
    Wrote,
)

SLOWLY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates are among them
CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXT,
    st.binary(),
)
ARGS = st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
CALLS = st.builds(ToolCall, TEXT, ARGS)
RESULTS = st.builds(ToolResult, TEXT, TEXT, st.booleans(), st.booleans())
USAGES = st.builds(Usage, *[st.integers(0, 99_999)] * 6)
TURNS = st.builds(Turn, TEXT, TEXT, st.lists(CALLS).map(tuple), st.lists(RESULTS).map(tuple), st.booleans(), USAGES)
EPISODES = st.builds(
    Episode,
    question=TEXT,
    evidence=st.none() | TEXT,
    sql=st.none() | TEXT,
    columns=st.lists(TEXT).map(tuple),
    rows=st.lists(st.lists(CELLS).map(tuple)).map(tuple),
    truncated=st.booleans(),
    ended_by=st.sampled_from(values.EndedBy.__args__),
    prompt=st.sampled_from(["training", "own"]),
    model=TEXT,
    seed=st.integers(0, 2**64 - 1),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    notes=st.lists(TEXT, max_size=3).map(tuple),
    usage=USAGES,
    timing=st.builds(Timing, *[st.floats(0, 1e6)] * 6),
)


def through_json(value):
    return type(value).from_dict(json.loads(json.dumps(value.to_dict())))


@SLOWLY
@given(EPISODES)
def test_an_episode_round_trips_through_json(episode):
    """Cells of every type, lone surrogates and 64-bit integers included, come back equal and of the same type."""
    again = through_json(episode)
    assert again == episode
    assert repr(again) == repr(episode)  # 1 is not 1.0, and 0.0 not -0.0


EVENTS = [
    Noted(1, "the model file lacks training texts"),
    Prefilled(1, 812, 800, 0.25),
    Thought(1, "h\ud800m"),
    Wrote(1, '{"tool"'),
    ToolCalled(2, ToolCall("run_query", {"sql": "SELECT 'é'"})),
    ToolReturned(2, ToolResult("run_query", "a\n1", truncated=True), is_repeat=True),
    TurnEnded(2, Usage(1, 2, 3, 4, 5, 6)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_round_trips_through_json(event):
    """The JSON form of an event gives the same event."""
    assert through_json(event) == event


@SLOWLY
@given(EPISODES)
def test_the_last_event_brings_the_episode(episode):
    """`Finished` round-trips with its episode inside."""
    assert through_json(Finished(3, episode)) == Finished(3, episode)


def test_every_event_is_in_the_table():
    """A new event needs a row above."""
    kinds = {kind for _, kind in inspect.getmembers(values, inspect.isclass) if issubclass(kind, Event)}
    assert kinds - {Event, Finished} == {type(event) for event in EVENTS}


def make_episode(**changes) -> Episode:
    plain = Episode(
        question="How many?",
        evidence=None,
        sql="SELECT 1",
        columns=("1",),
        rows=((1,),),
        truncated=False,
        ended_by="submit_sql",
        prompt="own",
        model="m",
        seed=0,
        turns=(),
        notes=(),
        usage=Usage(),
        timing=Timing(),
    )
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("cell", "form"),
    [
        (math.inf, {"float": "inf"}),
        (-math.inf, {"float": "-inf"}),
        (b"\x00\xff", {"base64": "AP8="}),
        (b"", {"base64": ""}),
        ('{"float": "inf"}', '{"float": "inf"}'),
        (None, None),
        (2**63 - 1, 9223372036854775807),
    ],
)
def test_cells_that_json_lacks_have_a_form_of_one_key(cell, form):
    """Infinities and bytes are objects, text that looks like one stays text, and the JSON is standard JSON."""
    data = make_episode(rows=((cell,),)).to_dict()
    assert data["rows"] == [[form]]
    json.dumps(data, allow_nan=False)
    assert Episode.from_dict(data).rows == ((cell,),)


def test_nan_is_kept():
    """SQLite has no NaN, but a value that someone makes comes back as one."""
    (cell,) = through_json(make_episode(rows=((math.nan,),))).rows[0]
    assert math.isnan(cell)


def test_an_episode_can_be_read_like_the_reference_loops_result():
    """`episode["sql"]` is `episode.sql` for every field; another name is a KeyError."""
    episode = make_episode()
    for field in dataclasses.fields(Episode):
        assert episode[field.name] == getattr(episode, field.name)
    for name in ("nonsense", "to_dict", "__class__"):
        with pytest.raises(KeyError, match=name):
            episode[name]


@pytest.mark.parametrize("data", [{}, {"turn": 1}, {"call": {"name": "x", "args": {}}}])
def test_other_data_is_refused(data):
    """`from_dict` does not make half a value."""
    with pytest.raises(KeyError):
        ToolCalled.from_dict(data)


@SLOWLY
@given(st.lists(USAGES))
def test_usage_adds_up_field_by_field(usages):
    """The sum of no turns is zero; each count is summed on its own."""
    total = sum(usages, Usage())
    assert total.to_dict() == {
        field.name: sum(getattr(usage, field.name) for usage in usages) for field in dataclasses.fields(Usage)
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sql": 5}, "int in place of NoneType or str"),
        ({"seed": True}, "bool in place of int"),
        ({"truncated": 1}, "int in place of bool"),
        ({"turns": "abc"}, "str in place of list"),
        ({"turns": [5]}, "int in place of dict"),
        ({"columns": [1]}, "int in place of str"),
        ({"rows": [[[1]]]}, "list in place of NoneType or bytes or float or int or str"),
        ({"rows": [[True]]}, "bool in place of NoneType or bytes or float or int or str"),
        ({"ended_by": "boredom"}, "'boredom' is none of 'submit_sql'"),
        ({"usage": {**Usage().to_dict(), "n_prompt": "3"}}, "str in place of int"),
        ({"timing": {**Timing().to_dict(), "total_s": {"base64": "AA=="}}}, "bytes in place of float"),
    ],
)
def test_a_field_of_another_type_is_refused(change, message):
    """Where it is read, and not where somebody counts with it."""
    with pytest.raises(TypeError, match=re.escape(message)):
        Episode.from_dict(make_episode().to_dict() | change)


def test_a_whole_number_may_stand_for_a_float():
    """JSON of other programs has 3 for 3.0."""
    assert Timing.from_dict(Timing().to_dict() | {"total_s": 3}).total_s == 3
