"""The grammar accepts all valid turns of calls and no others, on the real llama.cpp."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sqale_edge import EngineSettings
from sqale_edge.grammar import tool_call_grammar
from sqale_edge.llama import LlamaEngine
from sqale_edge.replies import parse_calls
from sqale_edge.tools import MAX_LIMIT, TOOLS, Parameter, ToolSpec

LIST = '{"tool": "list_tables"}'
QUERY = '{"tool": "run_query", "args": {"sql": "SELECT 1"}}'


def query(sql: str) -> str:
    """A call with `sql` put in as it is, not escaped."""
    return f'{{"tool": "run_query", "args": {{"sql": "{sql}"}}}}'


def sample(limit: str) -> str:
    return f'{{"tool": "sample_rows", "args": {{"table_name": "t", "limit": {limit}}}}}'


ACCEPTED = [
    # every tool, with and without its optional arguments
    LIST,
    '{"tool": "list_tables", "args": {}}',
    '{"tool": "describe_table", "args": {"table_name": "customers"}}',
    '{"tool": "foreign_keys"}',
    '{"tool": "foreign_keys", "args": {}}',
    '{"tool": "foreign_keys", "args": {"table_name": "orders"}}',
    '{"tool": "join_path", "args": {"table_a": "a", "table_b": "b"}}',
    '{"tool": "sample_rows", "args": {"table_name": "t"}}',
    '{"tool": "sample_rows", "args": {"table_name": "t", "limit": 3}}',
    '{"tool": "distinct_values", "args": {"table_name": "t", "column_name": "c"}}',
    '{"tool": "distinct_values", "args": {"table_name": "t", "column_name": "c", "limit": 10}}',
    QUERY,
    '{"tool": "submit_sql", "args": {"sql": "SELECT 1"}}',
    # white space: as json.dumps writes it, or none at all
    '{"tool":"run_query","args":{"sql":"SELECT 1"}}',
    '{"tool": "run_query","args": {"sql":"SELECT 1"}}',
    f"\n{LIST}",
    f"\n\n{LIST}",
    f"{LIST}\n",
    f"\n\n{LIST}\n{QUERY}\n",
    # several calls
    f"{LIST}\n{LIST}",
    f"{LIST}{LIST}",
    "\n".join([LIST, QUERY] * 20),
    f'{{"tool": "submit_sql", "args": {{"sql": "SELECT 1"}}}}{LIST}',
    # strings
    query(""),
    query(r"SELECT \"a\" FROM \"t\" -- \\ \/ \b\f\n\r\t"),
    query(r"SELECT '\u00e9\uD83D\uDE00'"),
    query("SELECT 'grün', '日本', '😀' WHERE a <> 'x' AND b >= 1"),
    query("SELECT '{}[]: , ' || '<b>' || '```'"),
    query(" " * 50),
    query("x" * 3000),
    # numbers
    *(sample(limit) for limit in ("1", "9", "10", "99", "100", "999", str(MAX_LIMIT))),
]

REFUSED = [
    # nothing, or not only calls
    "",
    "\n",
    "\n\n",
    "Let me look.",
    f"Sure! {LIST}",
    f"{LIST} Done.",
    f"```json\n{LIST}\n```",
    f"<tool_call>{LIST}</tool_call>",
    f"[{LIST}]",
    "SELECT 1",
    "{}",
    # white space
    f" {LIST}",
    f"\t{LIST}",
    f"\r\n{LIST}",
    f"\n\n\n{LIST}",
    f"{LIST}\n\n",
    f"{LIST} ",
    f"{LIST}\n\n{LIST}",
    f"{LIST} {LIST}",
    f"{LIST},{LIST}",
    '{ "tool": "list_tables"}',
    '{"tool":  "list_tables"}',
    '{"tool" : "list_tables"}',
    '{"tool": "list_tables" }',
    '{"tool": "list_tables", "args": { }}',
    '{"tool": "run_query",  "args": {"sql": "SELECT 1"}}',
    '{"tool": "run_query", "args":\n{"sql": "SELECT 1"}}',
    # names
    '{"tool": "drop_table"}',
    '{"tool": "List_Tables"}',
    '{"tool": "list_table"}',
    '{"tool": ""}',
    '{"tool": null}',
    '{"name": "list_tables"}',
    "{'tool': 'list_tables'}",
    '{"tool": "list_tables"',
    '{"tool": "list_tables"}}',
    # arguments
    '{"tool": "run_query"}',
    '{"tool": "run_query", "args": {}}',
    '{"tool": "run_query", "args": null}',
    '{"tool": "run_query", "args": ["SELECT 1"]}',
    '{"tool": "run_query", "args": "SELECT 1"}',
    '{"tool": "run_query", "sql": "SELECT 1"}',
    '{"tool": "run_query", "args": {"query": "SELECT 1"}}',
    '{"tool": "run_query", "args": {"sql": "SELECT 1", "limit": 5}}',
    '{"tool": "run_query", "args": {"sql": "SELECT 1"}, "why": "x"}',
    '{"tool": "run_query", "args": {"sql": "SELECT 1",}}',
    '{"args": {"sql": "SELECT 1"}, "tool": "run_query"}',
    '{"tool": "list_tables", "args": {"table_name": "t"}}',
    '{"tool": "join_path", "args": {"table_b": "b", "table_a": "a"}}',
    '{"tool": "join_path", "args": {"table_a": "a"}}',
    '{"tool": "sample_rows", "args": {"limit": 3}}',
    '{"tool": "sample_rows", "args": {"limit": 3, "table_name": "t"}}',
    '{"tool": "distinct_values", "args": {"table_name": "t", "limit": 3}}',
    '{"tool": "run_query", "args": {"sql": 1}}',
    '{"tool": "run_query", "args": {"sql": null}}',
    '{"tool": "run_query", "args": {"sql": ["SELECT 1"]}}',
    '{"tool": "describe_table", "args": {"table_name": t}}',
    # numbers
    *(
        sample(limit)
        for limit in ("0", "00", "01", "-1", "+1", "1.0", "1e2", '"3"', "true", "null", "", str(MAX_LIMIT + 1), "9999")
    ),
    # strings
    '{"tool": "run_query", "args": {"sql": "SELECT 1}}',
    query('SELECT "a"'),
    query("SELECT\n1"),
    query("SELECT\t1"),
    query("SELECT\r1"),
    query("\x00"),
    query("\x1b[31m"),
    query("\x7f"),
    query(r"\x"),
    query(r"\'"),
    query(r"\u12g4"),
    query(r"\u123"),
    query("SELECT\\"),
]


@pytest.fixture(scope="module")
def module_engine(qwen_gguf):
    engine = LlamaEngine(qwen_gguf, EngineSettings(n_ctx=64, threads=1))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def grammar(module_engine):
    return module_engine.compile_grammar(tool_call_grammar(TOOLS))


def is_turn(engine: LlamaEngine, grammar, tokens: list[int]) -> bool:
    """Whether `tokens`, then the end of the turn, are a turn in the grammar; a refused token is never accepted."""
    state = grammar.start()
    for token in tokens:
        if not state.allows(np.array([token]))[0]:
            return False
        state.accept(token)
    return bool(state.allows(np.array(sorted(engine.info.end_tokens))).all())


def tokens_by_byte(engine: LlamaEngine, text: str) -> list[int]:
    """Another tokenisation of the same text: a token for each byte."""
    return [engine.tokenize(chr(byte), trusted=False)[0] for byte in text.encode()] if text.isascii() else []


@pytest.mark.parametrize("text", ACCEPTED, ids=lambda text: text[:70])
def test_valid_turns_are_accepted(module_engine, grammar, text):
    """Token by token, however it is cut into tokens; the end of the turn is allowed exactly behind a whole call."""
    tokens = module_engine.tokenize(text, trusted=False)
    assert is_turn(module_engine, grammar, tokens)
    if text.isascii():
        assert is_turn(module_engine, grammar, tokens_by_byte(module_engine, text))
    calls = parse_calls(text)
    assert calls
    assert all(call.name in {tool.name for tool in TOOLS} for call in calls)


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:70])
def test_other_turns_are_refused(module_engine, grammar, text):
    """A token of it, or the end behind it, is not allowed."""
    assert not is_turn(module_engine, grammar, module_engine.tokenize(text, trusted=False))
    if text.isascii() and "\0" not in text:
        assert not is_turn(module_engine, grammar, tokens_by_byte(module_engine, text))


def test_the_end_of_a_turn_is_allowed_only_behind_a_whole_call(module_engine, grammar):
    """Not at its start, and at no token in the middle of one."""
    text = f"\n\n{LIST}\n{QUERY}\n"
    ends = np.array(sorted(module_engine.info.end_tokens))
    state = grammar.start()
    written = b""
    for token in module_engine.tokenize(text, trusted=False):
        is_whole = written.decode().strip() in (LIST, f"{LIST}\n{QUERY}")
        assert state.allows(ends).all() == state.allows(ends).any() == is_whole
        state.accept(token)
        written += module_engine.detokenize([token])
    assert state.allows(ends).all()


def allowed_bytes(engine: LlamaEngine, state) -> bytes:
    """Which single characters can come next."""
    singles = [engine.tokenize(chr(byte), trusted=False)[0] for byte in range(1, 128)]
    return bytes(byte for byte, is_allowed in enumerate(state.allows(np.array(singles)), 1) if is_allowed)


def test_a_model_cannot_loop_in_white_space(module_engine, grammar):
    """From every point outside a string, at most two blanks or newlines can follow each other."""
    text = (
        f"\n\n{LIST}\n" + '{"tool": "distinct_values", "args": {"table_name": "t", "column_name": "c", "limit": 10}}\n'
    )
    tokens = tokens_by_byte(module_engine, text)
    for n_written in range(len(tokens) + 1):
        if text[:n_written].replace('\\"', "").count('"') % 2:
            continue  # inside a string; a budget bounds those
        state = grammar.start()
        for token in tokens[:n_written]:
            state.accept(token)
        n_blanks = 0
        while blanks := [byte for byte in allowed_bytes(module_engine, state) if chr(byte).isspace()]:
            state.accept(module_engine.tokenize(chr(blanks[0]), trusted=False)[0])
            n_blanks += 1
            assert n_blanks <= 2


def test_markup_is_never_allowed(module_engine, grammar):
    """Not between calls, and not inside a string, where every character may stand."""
    literals = ["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"]
    markup = np.array([module_engine.tokenize(literal, trusted=True)[0] for literal in literals])
    state = grammar.start()
    assert not state.allows(markup).any()
    for token in module_engine.tokenize('{"tool": "run_query", "args": {"sql": "SELECT', trusted=False):
        state.accept(token)
        assert not state.allows(markup).any()
    assert not state.allows(np.array(sorted(module_engine.info.end_tokens))).any()


SPECS = [
    (ToolSpec("plain", ""), ["", ', "args": {}'], [', "args": {"a": "x"}']),
    (
        ToolSpec("two_optional", "", (Parameter("a", "string", "", False), Parameter("b", "integer", "", False))),
        ["", ', "args": {}', ', "args": {"a": "x"}', ', "args": {"b": 1}', ', "args": {"a": "x", "b": 1}'],
        [', "args": {"b": 1, "a": "x"}', ', "args": {, "b": 1}', ', "args": {"a": "x" "b": 1}'],
    ),
    (
        ToolSpec(
            "mixed",
            "",
            (
                Parameter("a", "integer", ""),
                Parameter("b", "string", "", False),
                Parameter("c", "string", "", False),
            ),
        ),
        [', "args": {"a": 1}', ', "args": {"a": 1, "c": ""}', ', "args": {"a": 1, "b": "", "c": ""}'],
        ["", ', "args": {}', ', "args": {"b": ""}', ', "args": {"a": 1, "c": "", "b": ""}'],
    ),
]


@pytest.mark.parametrize(("spec", "good", "bad"), SPECS, ids=[spec.name for spec, _, _ in SPECS])
def test_any_tool_can_have_a_grammar(module_engine, spec, good, bad):
    """Tools without arguments, with only optional ones, and with both; other orders of arguments are refused."""
    grammar = module_engine.compile_grammar(tool_call_grammar([spec]))
    for args in [*good, *bad]:
        text = f'{{"tool": "{spec.name}"{args}}}'
        assert is_turn(module_engine, grammar, module_engine.tokenize(text, trusted=False)) == (args in good), text
        if args in good:
            json.loads(text)
