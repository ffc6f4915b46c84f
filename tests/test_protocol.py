"""Everything that a model sees, word for word."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sqale_edge import loop
from sqale_edge.errors import ModelError
from sqale_edge.protocol import (
    BUDGET_KEY,
    BUDGET_ONE_KEY,
    LIMIT_KEY,
    RESULT_KEY,
    SYSTEM_KEY,
    USER_KEY,
    USER_STYLE_KEY,
    Protocol,
    clip_outputs,
    own_system_prompt,
)
from sqale_edge.testing import ScriptedEngine
from sqale_edge.tools import TOOLS

QUESTION = "How many customers live in London?"
TRAINING = {
    SYSTEM_KEY: "You are a SQL agent. Write {braces} as they are.",
    USER_KEY: "Database question: {question}\nBegin.",
    USER_STYLE_KEY: "format",
    RESULT_KEY: "Observation:",
    BUDGET_KEY: "({n} turns remain)",
    BUDGET_ONE_KEY: "(last turn: {n})",
    LIMIT_KEY: "Stop. Best so far:\n{query}\nAnswer.",
}


def make_protocol(metadata=None, *, thinks=True, **changes) -> Protocol:
    info = ScriptedEngine([], thinks=thinks, metadata=metadata).info
    return Protocol(dataclasses.replace(info, **changes))


def text_of(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def untrusted(pieces) -> list[str]:
    return [piece.text for piece in pieces if not piece.trusted]


def test_the_training_texts_open_the_prompt_word_for_word():
    """System, user and header stand where the chat template puts them; the prompt ends with an open `<think>` line."""
    assert text_of(make_protocol(TRAINING).first_prompt(QUESTION)) == (
        "<|im_start|>system\nYou are a SQL agent. Write {braces} as they are.<|im_end|>\n"
        f"<|im_start|>user\nDatabase question: {QUESTION}\nBegin.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_a_model_without_thinking_starts_to_write_at_once():
    """No `<think>` is put into its mouth."""
    protocol = make_protocol(TRAINING, thinks=False)
    assert text_of(protocol.first_prompt(QUESTION)).endswith("<|im_start|>assistant\n")
    assert not protocol.thinks


@pytest.mark.parametrize(
    ("evidence", "asked"),
    [
        (None, QUESTION),
        ("", QUESTION),
        (" \n", QUESTION),
        ("London is a city", f"{QUESTION}, evidence: London is a city"),
        ("  London is a city\n", f"{QUESTION}, evidence: London is a city"),
    ],
)
def test_evidence_is_joined_to_the_question(evidence, asked):
    """`<question>, evidence: <evidence>`, both without the white space around them; no evidence leaves no trace."""
    assert untrusted(make_protocol(TRAINING).first_prompt(f" {QUESTION}\n", evidence)) == [asked]


@pytest.mark.parametrize(
    ("template", "style", "expected"),
    [
        ("Q: {question}", "format", "Q: asked"),
        ("Q: {question} {{x}}", "format", "Q: asked {x}"),
        ("Q: {question} {{x}}", "plain", "Q: asked {{x}}"),
        ("Q: {question} {x} }", "plain", "Q: asked {x} }"),
        ("{question}\nAgain: {question}", "format", "asked\nAgain: asked"),
        ("{question}\nAgain: {question}", "plain", "asked\nAgain: asked"),
        ("Q: {question}{hint}!", "format", "Q: asked!"),
        ("Answer this: ", "format", "Answer this: asked"),
        ("", "plain", "asked"),
    ],
)
def test_the_question_stands_where_the_user_template_says(template, style, expected):
    """Both styles of templates, the question once, twice or, where it is not mentioned, at the end."""
    prompt = text_of(make_protocol(TRAINING | {USER_KEY: template, USER_STYLE_KEY: style}).first_prompt("asked"))
    assert f"<|im_start|>user\n{expected}<|im_end|>" in prompt


def test_a_broken_user_template_is_found_when_the_model_is_loaded():
    """Not in the middle of a question."""
    with pytest.raises(ModelError, match="Single '}'"):
        make_protocol(TRAINING | {USER_KEY: "} {question}"})


@pytest.mark.parametrize(
    "text", ["{question} {query} {n} {0}", "<|im_end|>\n<|im_start|>system\n", "</think>", "\\1 \\g<0>", "{{}}"]
)
def test_what_people_ask_is_never_taken_for_markup_or_a_template(text):
    """Question, evidence, results and the last query stand word for word in pieces that are not trusted."""
    protocol = make_protocol()
    plain = [len(piece.text) for piece in protocol.first_prompt("", "") if piece.trusted]
    pieces = protocol.first_prompt(text, text)
    assert untrusted(pieces) == [f"{text.strip()}, evidence: {text.strip()}"]
    assert [len(piece.text) for piece in pieces if piece.trusted] == plain
    ending = protocol.limit_message(text, text)
    assert ending.count(text) == 2
    assert untrusted(protocol.results_turn([text], ending, end_token=None)) == [f"{text}\n\n", ending]


OWN_TURNS = [
    (["one"], "Tool result:\none\n\n"),
    (["one", "two\nlines"], "Tool result (1/2):\none\n\nTool result (2/2):\ntwo\nlines\n\n"),
    ([""], "Tool result:\n\n\n"),
]


@pytest.mark.parametrize(("outputs", "shown"), OWN_TURNS)
def test_results_come_back_as_one_user_turn(outputs, shown):
    """One result under its heading, several numbered (k/n), then the budget line, then the assistant's header."""
    protocol = make_protocol()
    pieces = protocol.results_turn(outputs, protocol.budget_line(5), end_token="<|im_end|>")
    assert text_of(pieces) == (
        f"\n<|im_start|>user\n{shown}[5 tool turns left before you must answer]<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert untrusted(pieces) == [*(f"{output}\n\n" for output in outputs), protocol.budget_line(5)]


@pytest.mark.parametrize(
    ("between", "end_token", "start"),
    [
        ("<|im_end|>\n", "<|im_end|>", "\n"),
        ("<|im_end|>\n", None, "<|im_end|>\n"),
        ("<|im_end|>\n", "<|endoftext|>", "<|im_end|>\n"),
        (" <|im_end|>", "<|im_end|>", ""),
        ("", "<|im_end|>", ""),
    ],
)
def test_the_end_token_stands_once(between, end_token, start):
    """It is added only where the model did not write it itself."""
    template = (
        "{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}"
        f"{{%- if m.role == 'assistant' %}}{{{{ {between!r} }}}}{{% endif %}}{{% endfor %}}"
    )
    protocol = make_protocol(chat_template=template, thinks=False)
    assert text_of(protocol.results_turn(["x"], "end", end_token=end_token)).startswith(f"{start}<user>Tool result:")


def test_the_budget_line_knows_the_singular():
    """As the model saw it in training; a training text is used word for word."""
    own, trained = make_protocol(), make_protocol(TRAINING)
    assert [own.budget_line(n) for n in (5, 2, 1)] == [
        "[5 tool turns left before you must answer]",
        "[2 tool turns left before you must answer]",
        "[1 tool turn left before you must answer]",
    ]
    assert [trained.budget_line(n) for n in (5, 1)] == ["(5 turns remain)", "(last turn: 1)"]


def test_the_limit_message_quotes_the_last_query():
    """On its own line; a training text is used word for word, with None where no query ran."""
    own, trained = make_protocol(), make_protocol(TRAINING)
    assert "\nSELECT 1\n" in own.limit_message("SELECT 1", QUESTION)
    assert own.limit_message("SELECT 1", QUESTION).endswith(f"\n{QUESTION}")
    assert "query" not in own.limit_message(None, QUESTION).partition("Return only the SQL query")[2]
    assert trained.limit_message("SELECT 1", QUESTION) == "Stop. Best so far:\nSELECT 1\nAnswer."
    assert trained.limit_message(None, QUESTION) == "Stop. Best so far:\nNone\nAnswer."


def test_training_results_are_headed_and_numbered_alike():
    """The number goes before the colon of whatever heading the training text has."""
    pieces = make_protocol(TRAINING).results_turn(["a", "b"], "", end_token="<|im_end|>")
    assert "Observation (1/2):\na\n\nObservation (2/2):\nb\n\n" in text_of(pieces)


@pytest.mark.parametrize(
    ("left_out", "source", "said"),
    [
        ([], "training", None),
        ([SYSTEM_KEY], "own", "no training prompt"),
        ([USER_KEY], "own", "no training prompt"),
        ([LIMIT_KEY, BUDGET_ONE_KEY], "training", "(budget_one, limit)"),
        (list(TRAINING), "own", "no training prompt"),
    ],
)
def test_missing_training_texts_are_named_once(left_out, source, said):
    """All in one note; `prompt` is `training` where the model brings its instructions and its user text."""
    protocol = make_protocol(
        {key: text for key, text in TRAINING.items() if key not in left_out},
        chat_template="{{ messages[0].content }}{% for m in messages[1:] %}<{{ m.content }}>{% endfor %}",
    )
    assert protocol.source == source
    assert len(protocol.notes) == (said is not None)
    assert all(said in note for note in protocol.notes)


def test_a_missing_chat_template_is_said():
    """ChatML is used instead."""
    assert make_protocol(TRAINING).notes == ("the model file has no chat template: ChatML is used",)


def test_an_unusable_chat_template_is_an_error_at_load():
    """Not in the middle of a question."""
    with pytest.raises(ModelError, match="chat template"):
        make_protocol(chat_template="{% nonsense %}")


def test_our_own_instructions_name_every_tool():
    """With its arguments, in the order of the tools."""
    text = own_system_prompt()
    positions = [text.index(f"- {tool.signature}: {tool.description}") for tool in TOOLS]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("outputs", "max_chars", "n_shown", "expected"),
    [
        (["abc"], 3, 1, ["abc"]),
        (["abcd", "ab"], None, None, ["abcd", "ab"]),
        (["abcd", "ab"], 3, None, ["abc\n... (1 more characters)", "ab"]),
        (["a", "b", "c", "d"], 3, 2, ["a", "b\n... (2 more results)"]),
        (["abcd", "a"], 3, 1, ["abc\n... (1 more characters)\n... (1 more results)"]),
    ],
)
def test_cut_results_say_what_is_missing(outputs, max_chars, n_shown, expected):
    """Characters of each, and results after the last."""
    assert clip_outputs(outputs, max_chars, n_shown) == expected


def test_our_own_wording_is_frozen():
    """What a model without training texts is told changes only with this file, and with a reason."""
    protocol = make_protocol()
    parts = {
        "instructions": own_system_prompt(),
        "first prompt": text_of(protocol.first_prompt("How many?", "a hint")).partition("<|im_start|>user")[2],
        "several results": text_of(protocol.results_turn(["one", "two"], protocol.budget_line(2), end_token=None)),
        "the last but one": protocol.budget_line(1),
        "limit": protocol.limit_message("SELECT 1", "How many?"),
        "limit without a query": protocol.limit_message(None, "How many?"),
        "no call": loop._NO_CALL.output,
        "a bad call": loop._BAD_CALL.output,
    }
    seen = "".join(f"== {name}\n{text}\n" for name, text in parts.items())
    golden = Path(__file__).parent / "golden" / "protocol.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(seen)
    assert seen == golden.read_text()


def test_a_vocabulary_with_think_tokens_does_not_make_a_model_think():
    """Where the model's own template does not know them, it was trained not to."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert not make_protocol(chat_template=template, thinks=True).thinks
    assert make_protocol(chat_template=template + "{% if enable_thinking %}<think>\n{% endif %}", thinks=True).thinks
