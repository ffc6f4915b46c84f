"""What a model wrote, read as calls or as the SQL of a final answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqale_edge.episode import ToolCall
from sqale_edge.replies import MALFORMED, final_candidates, parse_calls

LIST = ToolCall("list_tables")
QUERY = ToolCall("run_query", {"sql": "SELECT 1"})

# (text, its calls; None where the rest cannot be read)
REPLIES = [
    ("", []),
    ("\n\n", []),
    ('{"tool": "list_tables"}', [LIST]),
    ('\n\n{"tool": "list_tables"}\n', [LIST]),
    ('{"tool": "list_tables", "args": {}}', [LIST]),
    ('{"tool":"run_query","args":{"sql":"SELECT 1"}}', [QUERY]),
    ('{"args": {"sql": "SELECT 1"}, "tool": "run_query"}', [QUERY]),
    ('{"tool": "list_tables"}{"tool": "run_query", "args": {"sql": "SELECT 1"}}', [LIST, QUERY]),
    ('{"tool": "list_tables"}\n{"tool": "list_tables"}', [LIST, LIST]),
    ('{"tool": "run_query", "args": {"sql": "SELECT\n1"}}', [ToolCall("run_query", {"sql": "SELECT\n1"})]),
    (r'{"tool": "run_query", "args": {"sql": "\"\u00e9\n\\"}}', [ToolCall("run_query", {"sql": '"é\n\\'})]),
    ('{"tool": "run_query", "args": {"sql": "{\\"tool\\": 1}"}}', [ToolCall("run_query", {"sql": '{"tool": 1}'})]),
    ('{"tool": "no_such_tool", "args": {"x": [1, null, true]}}', [ToolCall("no_such_tool", {"x": [1, None, True]})]),
    ('{"tool": "sample_rows", "args": {"limit": 1.5}}', [ToolCall("sample_rows", {"limit": 1.5})]),
    ("SELECT 1", [None]),
    ("I will look at the tables first.", [None]),
    ('```json\n{"tool": "list_tables"}\n```', [None]),
    ('<tool_call>{"tool": "list_tables"}</tool_call>', [None]),
    ('{"tool": "list_tables"} and then?', [LIST, None]),
    ('{"tool": "list_tables"},{"tool": "list_tables"}', [LIST, None]),
    ('{"tool": "run_query", "args": {"sql": "SELECT', [None]),
    ('{"tool": "list_tables"}\n{"tool": "run_query", "args": {"sql": "SELECT', [LIST, None]),
    ('{"name": "list_tables"}', [None]),
    ('{"tool": 1}', [None]),
    ('{"tool": ["list_tables"]}', [None]),
    ('{"tool": "list_tables", "args": null}', [None]),
    ('{"tool": "list_tables", "args": "x"}', [None]),
    ('[{"tool": "list_tables"}]', [None]),
    ("1", [None]),
    ('{"tool": "sample_rows", "args": {"limit": NaN}}', [None]),
    ('{"tool": "sample_rows", "args": {"limit": -Infinity}}', [None]),
    ('{"tool": "sample_rows", "args": {"limit": 1e999}}', [None]),
    ('{"tool": "sample_rows", "args": {"limit": %s}}' % ("9" * 5000), [None]),
    ('{"tool": "x", "args": {"a": %s}}' % ("[" * 30 + "]" * 30), [None]),
    ('{"tool": "x", "args": {"a": %s}}' % ('{"a":' * 900 + "1" + "}" * 900), [None]),
    ("[" * 100_000, [None]),
]


@pytest.mark.parametrize(("text", "expected"), REPLIES, ids=[text[:60] for text, _ in REPLIES])
def test_calls_are_read_in_order_until_something_else_stands_there(text, expected):
    """Bare JSON objects are calls; whatever else there is becomes one malformed call that keeps its text, the last."""
    calls = parse_calls(text)
    assert [None if call.name == MALFORMED else call for call in calls] == expected
    for call in calls:
        if call.name == MALFORMED:
            assert text.endswith(call.args["text"])


SLOWLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(ToolCall, st.text(min_size=1), st.dictionaries(st.text(), JSON_VALUES, max_size=3))
BLANKS = st.sampled_from(["", "\n", "\n\n", " ", "\t"])


@SLOWLY
@given(st.lists(st.tuples(BLANKS, CALLS)), BLANKS, st.booleans())
def test_no_call_is_lost(pieces, end, is_ascii):
    """Whatever white space stands between them, all calls come back, in order, with their arguments."""
    text = "".join(
        blank + json.dumps({"tool": call.name, "args": call.args}, ensure_ascii=is_ascii) for blank, call in pieces
    )
    assert parse_calls(text + end) == tuple(call for _, call in pieces)


@SLOWLY
@given(st.lists(CALLS), st.text())
def test_calls_before_nonsense_are_kept(calls, nonsense):
    """Any text after the calls takes none of them away, and none of it is lost."""
    written = "".join(json.dumps({"tool": call.name, "args": call.args}) for call in calls)
    read = parse_calls(written + nonsense)
    assert read[: len(calls)] == tuple(calls)
    left = read[len(calls) :]
    assert bool(left) == bool(nonsense.strip())


FRAGMENTS = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", '"', "\\", ":", ",", '"tool"', '"args"', '"sql"', "```", "sql", "\n", " ", "1", "null"]
    )
    | st.text(max_size=4)
).map("".join)


@SLOWLY
@given(FRAGMENTS)
def test_nothing_that_a_model_writes_raises(text):
    """Fragments of JSON, fences and text: calls and candidates are always plain values."""
    calls = parse_calls(text)
    assert all(call.name != MALFORMED for call in calls[:-1])
    json.dumps([call.to_dict() for call in calls], allow_nan=False)
    candidates = final_candidates(text)
    assert all(candidate and candidate == candidate.strip() for candidate in candidates)
    assert len(set(candidates)) == len(candidates)


SQL = "SELECT name\nFROM customers\nWHERE city = 'London'"
SUBMIT = json.dumps({"tool": "submit_sql", "args": {"sql": SQL}})

# Final answers that mean SQL.
ANSWERS = [
    SQL,
    f"\n\n{SQL}\n",
    f"```sql\n{SQL}\n```",
    f"```SQL\n{SQL}\n```",
    f"```sqlite3\n{SQL}\n```",
    f"```\n{SQL}\n```",
    f"```{SQL}```",
    f"```sql {SQL}```",
    f"``` {SQL} ```",
    f"```sql\n{SQL}",
    f"The query is:\n\n```sql\n{SQL}\n```\n\nIt lists who lives there.",
    f"{SQL}\n```",
    SUBMIT,
    f"\n\n{SUBMIT}\n",
    f"```json\n{SUBMIT}\n```",
    f"{SUBMIT}\nDone.",
    json.dumps({"tool": "run_query", "args": {"sql": "SELECT 0"}}) + SUBMIT,
    json.dumps({"tool": "list_tables"}) + SUBMIT,
]


@pytest.mark.parametrize("text", ANSWERS)
def test_every_shape_of_a_final_answer_is_understood(text):
    """Plain, fenced in every way, with prose around the fence, or as a call: the likeliest candidate is the SQL."""
    (first, *_) = final_candidates(text)
    assert first.removesuffix("```").strip() == SQL


@pytest.mark.parametrize("keyword", ["SELECT", "select", "WITH", "with", "VALUES"])
def test_a_statement_that_starts_right_after_the_fence_keeps_its_first_word(keyword):
    """Only a language's name is taken off."""
    assert final_candidates(f"```{keyword} x```")[0] == f"{keyword} x"
    assert final_candidates(f"```{keyword}\nx```")[0] == f"{keyword}\nx"


@pytest.mark.parametrize("text", ["", "\n \n", "``````", "```sql\n```", "```"])
def test_an_empty_answer_has_no_statement(text):
    """Nothing, or fences around nothing: at most the fences are left, which no database takes for SQL."""
    assert all(set(candidate) <= set("`sql\n") for candidate in final_candidates(text))


def test_several_fences_are_tried_in_their_order_and_the_whole_text_last():
    """Each is a candidate once."""
    text = "```sql\nSELECT 1\n```\nor\n```sql\nSELECT 2\n```\nor\n```sql\nSELECT 1\n```"
    assert final_candidates(text) == ["SELECT 1", "SELECT 2", text]
