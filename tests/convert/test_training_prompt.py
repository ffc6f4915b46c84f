"""The training texts are read out of `sqale_agent.py`, whatever they are called, and nothing of it runs."""

import json

import pytest
from checkpoints import write_checkpoint
from sqale_edge.convert import convert_checkpoint
from sqale_edge.convert.gguf_file import GgufFile
from sqale_edge.convert.tokenizer import NORMALIZER_KEY
from sqale_edge.convert.training_prompt import ROLE_KEYS, TEXTS_KEY, read_training_prompt

from sqale_edge.errors import CheckpointError
from sqale_edge.llama.model import read_model_info, uses_nfc
from sqale_edge.protocol import (
    BUDGET_KEY,
    BUDGET_ONE_KEY,
    LIMIT_KEY,
    RESULT_KEY,
    SYSTEM_KEY,
    USER_KEY,
    USER_STYLE_KEY,
    Protocol,
)

CONSTANTS = '''
"""Not a prompt: submit_sql, tool, tool turns left. """
MAX_TURNS = 6
SYSTEM_PROMPT = (
    "You answer questions with tools.\\n"
    'Call {"tool": "submit_sql", "args": {"sql": "..."}} at the end.\\n'
    f"You have {MAX_TURNS} turns."
)
USER_TEMPLATE = """Question: {question}
Reply like {{"tool": "list_tables"}}."""

def budget_line(left):
    """[7 tool turns left in a docstring]"""
    return f"[{left} tool turn{'s' if left != 1 else ''} left before you must answer]"

def limit_message(last_sql):
    message = "The exploration is over. Return ONLY the SQL query, like {this}."
    if last_sql:
        message += f"\\nThe last query that executed without error:\\n{last_sql}\\nReturn it if you are unsure."
    return message

def run(question):
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": USER_TEMPLATE.format(question=question)},
    ]
    for turn in range(MAX_TURNS):
        left = MAX_TURNS - turn - 1
        messages.append({"role": "user", "content": f"Tool result:\\n{result}\\n\\n{budget_line(left)}"})
'''

ANONYMOUS = """
class Agent:
    def start(self, question, evidence=None):
        words = "You can use these tools: list_tables, run_query, submit_sql(sql). Explore first, " \\
                "but only as much as you need. Test a query before you submit it with submit_sql. " \\
                "Mind names, quotes, joins and NULLs; say nothing but tool calls until you are done."
        return [("system", words), ("user", f"{question}{', evidence: ' + evidence if evidence else ''}")]

    def next(self, results, n, last_ok):
        if n == 0:
            return (
                "Exploration is over. Return only the SQL query.\\nYour last working query:\\n"
                + last_ok
                + "\\nReturn it if unsure."
            )
        parts = ["Tool result:"]
        parts.append("\\n".join(results))
        plural = "" if n == 1 else "s"
        parts.append(f"[{n} tool turn{plural} left before you must answer]")
        return "\\n".join(parts)
"""

REPLACED = '''
SYSTEM = "You are an agent with tools."
USER_PROMPT = "Q: <<{q}>> and {literal} braces"
BUDGET_MANY, BUDGET = None, "[{n} tool turns left before you must answer]"
BUDGET_LAST = "[1 tool turn left before you must answer]"
EXPLORATION_LIMIT_MESSAGE = """Exploration is over. Last good query:
{last_sql}
Answer now."""
TOOL_RESULT_TEMPLATE = "Tool result:\\n{result}"

def fill(q, n, sql, result):
    user = USER_PROMPT.replace("{q}", q)
    line = BUDGET_LAST if n == 1 else BUDGET.format(n=n)
    return user, line, EXPLORATION_LIMIT_MESSAGE.format(last_sql=sql), TOOL_RESULT_TEMPLATE.format(result=result)
'''

BUDGETS = {
    RESULT_KEY: "Tool result:",
    BUDGET_KEY: "[{n} tool turns left before you must answer]",
    BUDGET_ONE_KEY: "[1 tool turn left before you must answer]",
}
# (source, what is found in it)
SOURCES = [
    (
        CONSTANTS,
        {
            **BUDGETS,
            SYSTEM_KEY: "You answer questions with tools.\n"
            'Call {"tool": "submit_sql", "args": {"sql": "..."}} at the end.\nYou have 6 turns.',
            USER_KEY: 'Question: {question}\nReply like {{"tool": "list_tables"}}.',
            USER_STYLE_KEY: "format",
            LIMIT_KEY: "The exploration is over. Return ONLY the SQL query, like {this}.\n"
            "The last query that executed without error:\n{query}\nReturn it if you are unsure.",
        },
    ),
    (
        ANONYMOUS,
        {
            **BUDGETS,
            SYSTEM_KEY: "You can use these tools: list_tables, run_query, submit_sql(sql). Explore first, "
            "but only as much as you need. Test a query before you submit it with submit_sql. "
            "Mind names, quotes, joins and NULLs; say nothing but tool calls until you are done.",
            USER_KEY: "{question}",
            USER_STYLE_KEY: "format",
            LIMIT_KEY: "Exploration is over. Return only the SQL query.\nYour last working query:\n{query}\n"
            "Return it if unsure.",
        },
    ),
    (
        REPLACED,
        {
            **BUDGETS,
            SYSTEM_KEY: "You are an agent with tools.",
            USER_KEY: "Q: <<{question}>> and {literal} braces",
            USER_STYLE_KEY: "plain",
            LIMIT_KEY: "Exploration is over. Last good query:\n{query}\nAnswer now.",
        },
    ),
]


def read(tmp_path, source):
    (tmp_path / "sqale_agent.py").write_text(source, encoding="utf-8")
    return read_training_prompt(tmp_path)


@pytest.mark.parametrize(("source", "expected"), SOURCES)
def test_every_role_is_found(tmp_path, source, expected):
    """Constants, f-strings, conditions, lists, `format` and `replace`: each text is as the program would make it."""
    prompt = read(tmp_path, source)
    texts = {key: value for key, value in prompt.texts.items() if key != TEXTS_KEY}
    assert texts == expected
    assert prompt.missing == ()
    assert set(prompt.found) == set(ROLE_KEYS)


# (an expression for the budget with `left`, its text for many and for one)
PLURALS = [
    ("f\"[{left} tool turn{'' if left == 1 else 's'} left]\"", "[{n} tool turns left]", "[1 tool turn left]"),
    ("f\"[{left} tool turn{'s' if left > 1 else ''} left]\"", "[{n} tool turns left]", "[1 tool turn left]"),
    ("f\"[{left} tool turn{'s' if not left == 1 else ''} left]\"", "[{n} tool turns left]", "[1 tool turn left]"),
    ("f\"[{left} tool turn{'s' * (left != 1)} left]\"", None, None),
    ("'[%d tool turns left]' % left", None, None),
    ("'[' + str(left) + ' tool turns left]'", "[{n} tool turns left]", "[1 tool turns left]"),
    ("'[{} tool turns left]'.format(left)", "[{n} tool turns left]", "[1 tool turns left]"),
    (
        "'[1 tool turn left]' if left == 1 else f'[{left} tool turns left]'",
        "[{n} tool turns left]",
        "[1 tool turn left]",
    ),
    (
        'f\'[{MOST - turn} tool turn{"" if MOST - turn == 1 else "s"} left]\'',
        "[{n} tool turns left]",
        "[1 tool turn left]",
    ),
]


@pytest.mark.parametrize(("expression", "many", "one"), PLURALS)
def test_singular_and_plural_come_from_one_expression(tmp_path, expression, many, one):
    """Conditions are decided for one turn and for more; what is not understood is missing, not wrong."""
    prompt = read(tmp_path, f"def line(left):\n    return {expression}\n")
    assert (prompt.texts.get(BUDGET_KEY), prompt.texts.get(BUDGET_ONE_KEY)) == (many, one)


def test_nothing_of_the_source_runs(tmp_path):
    """Import, call and assignment effects do not happen."""
    marker = tmp_path / "ran"
    read(
        tmp_path,
        f"import os\nopen({str(marker)!r}, 'w').close()\nos.system('touch {marker}')\nSYSTEM_PROMPT = exec('1/0')\n",
    )
    assert not marker.exists()


def test_what_is_missing_is_said(tmp_path):
    """A source without texts, and no source at all, leave every role missing."""
    assert read(tmp_path, "x = 1\n").missing == ROLE_KEYS
    (tmp_path / "sqale_agent.py").unlink()
    prompt = read_training_prompt(tmp_path)
    assert prompt.missing == ROLE_KEYS
    assert "no sqale_agent.py" in prompt.notes[0]


def test_a_system_prompt_that_is_only_known_at_run_time_is_not_used(tmp_path):
    """Half a prompt would be worse than the runtime's own: it is left out, and the report says why."""
    prompt = read(
        tmp_path,
        'def start(schema):\n    system_prompt = f"Use the tools on {schema} now."\n    return system_prompt\n',
    )
    assert SYSTEM_KEY in prompt.missing
    assert "schema" in prompt.notes[0]


# (a source that cannot be read, a part of the message)
BAD_SOURCES = [
    (b"def f(:\n", r"cannot be parsed as Python: .* \(line 1\)"),
    (b"x = 1\0\n", "cannot be parsed"),
    (b"\xff\xfe", "is not UTF-8"),
    (b"# " + b"x" * (1 << 18), "more than the 262,144"),
    (b"x = " + b"(" * 5000 + b")" * 5000, "cannot be parsed|nested too deeply"),
    (b"x = " + b"-" * 50_000 + b"1", "cannot be parsed|nested too deeply"),
    (b"x = 'a'\n" + b"x = x + x\n" * 60, "too large or nested"),
    (b"def f(a):\n" + b"    if a: return 'b'\n" * 3000, "too large or nested"),
    # Each of these took minutes or more.
    (b"x = 'a'\n" + b"if c: x = f'{x}{x}'\n" * 60, "too large or nested"),
    (
        b"x = " + b"[" * 190 + b"g" + b"]" * 190 + (b"\nx = " + b"[" * 190 + b"g" + b"]" * 190) * 600,
        "too large or nested",
    ),
    (b"P = '" + b"a" * 100_000 + b"'\n" + b"x = P.format(1)\n" * 8000, "too large or nested"),
    (b"P = '" + b"{a}" * 60_000 + b"'\nx = P.replace('{a}', 'b')", "too large or nested"),  # in giving the roles
    (b"X = 0x" + b"f" * 200_000 + b"\nY = f'{X} words'", "cannot be parsed as Python: Exceeds the limit"),
]


@pytest.mark.parametrize(("source", "message"), BAD_SOURCES, ids=range(len(BAD_SOURCES)))
def test_a_source_that_cannot_be_read_stops_the_conversion(tmp_path, source, message):
    """Losing the training prompt silently would cost accuracy, so it is an error; it can be left out on purpose."""
    folder = write_checkpoint(tmp_path / "m")
    (folder / "sqale_agent.py").write_bytes(source)
    with pytest.raises(CheckpointError, match=message) as caught:
        convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "m.gguf").exists()
    report = convert_checkpoint(folder, tmp_path / "m.gguf", "BF16", training_prompt=False)
    assert report.prompt.texts == {}


# Long texts of one kind, for which a pattern could take time in proportion to the square of their length.
LONG_TEXTS = [
    "a ",
    "a",
    "turn ",
    "{{",
    " ",
    "{question",
    "tool ",
    "only sql ",
    "tool result ",
    "turns left\\n",
    "[1 turn ",
]


@pytest.mark.parametrize("part", LONG_TEXTS)
@pytest.mark.parametrize("name", ["X", "SYSTEM_PROMPT", "USER_PROMPT", "BUDGET", "TOOL_RESULT", "EXPLORATION"])
def test_a_long_text_takes_no_longer_than_its_length(tmp_path, name, part):
    """It has a role, or none."""
    prompt = read(tmp_path, f'{name} = "{part * (250_000 // len(part))}"\n')
    assert all(len(note) < 400 for note in prompt.notes)


def test_a_deep_choice_is_no_matter(tmp_path):
    """Thousands of conditions one after the other, each of which adds to a text."""
    prompt = read(tmp_path, "x = 'You have tools. '\n" + "if c: x += 'a'\n" * 1500)
    assert prompt.missing == ROLE_KEYS


# (source, keys that are not there although the source has them, the name in the note)
UNWRITABLE = [
    ('SYSTEM_PROMPT = "Use the \\0 tools."', SYSTEM_KEY, "SYSTEM_PROMPT"),
    ('SYSTEM_PROMPT = "Use the \\ud800 tools."', SYSTEM_KEY, "SYSTEM_PROMPT"),
    ('USER_TEMPLATE = "{question}\\0"', USER_KEY, "USER_TEMPLATE"),
    ('TOOL_RESULT = "Tool result\\0:"', RESULT_KEY, "TOOL_RESULT"),
    ('BUDGET_ONE = "[1 turn left\\0]"', BUDGET_ONE_KEY, "BUDGET_ONE"),
    ('EXPLORATION_OVER = "Only SQL \\0 now"', LIMIT_KEY, "EXPLORATION_OVER"),
]


@pytest.mark.parametrize(("source", "key", "name"), UNWRITABLE)
def test_a_text_that_no_file_can_hold_is_left_out_and_reported(tmp_path, source, key, name):
    """llama.cpp would cut it at a NUL without a word. The list of all texts has it with escapes."""
    folder = write_checkpoint(tmp_path / "m", agent_source=source)
    report = convert_checkpoint(folder, tmp_path / "m.gguf", "BF16")
    assert key in report.prompt.missing
    assert any(note.startswith(f"{name} is not used") for note in report.notes)
    fields = GgufFile.read(tmp_path / "m.gguf").fields
    assert key not in fields
    assert USER_STYLE_KEY not in fields
    assert name in json.loads(fields[TEXTS_KEY])
    assert "\0" not in fields[TEXTS_KEY]


def test_names_of_texts_are_short_and_printable(tmp_path):
    """Keys of a dictionary are part of a name, and reports show names."""
    prompt = read(tmp_path, 'SYSTEM = {"\\n\\x1b[31m\\ud800": "Use the tools.", "%s": "Use a tool."}' % ("k" * 100_000))
    names = json.loads(prompt.texts[TEXTS_KEY])
    assert len(names) == 2
    assert all(name.isprintable() and len(name) < 400 for name in names)


def test_the_texts_reach_the_file(tmp_path):
    """Every key stands in the GGUF, and `sqale.texts` holds all texts by name."""
    folder = write_checkpoint(tmp_path / "m", agent_source=CONSTANTS)
    report = convert_checkpoint(folder, tmp_path / "m.gguf", "Q8_0")
    fields = GgufFile.read(tmp_path / "m.gguf").fields
    for key, value in SOURCES[0][1].items():
        assert fields[key] == value
    assert json.loads(fields[TEXTS_KEY])["SYSTEM_PROMPT"] == fields[SYSTEM_KEY]
    assert report.prompt.found[SYSTEM_KEY] == "SYSTEM_PROMPT"


QUESTION = "How {many} customers?"
# (source, the system and the user message of the first prompt, the limit message after `SELECT 1`)
PROMPTS = [
    (
        CONSTANTS,
        SOURCES[0][1][SYSTEM_KEY],
        f'Question: {QUESTION}\nReply like {{"tool": "list_tables"}}.',
        SOURCES[0][1][LIMIT_KEY].replace("{query}", "SELECT 1"),
    ),
    (ANONYMOUS, SOURCES[1][1][SYSTEM_KEY], QUESTION, SOURCES[1][1][LIMIT_KEY].replace("{query}", "SELECT 1")),
    (
        REPLACED,
        "You are an agent with tools.",
        f"Q: <<{QUESTION}>> and {{literal}} braces",
        "Exploration is over. Last good query:\nSELECT 1\nAnswer now.",
    ),
]


@pytest.mark.parametrize(("source", "system", "user", "limit"), PROMPTS)
def test_the_runtime_uses_what_the_conversion_found(tmp_path, source, system, user, limit):
    """From `sqale_agent.py` through the file to the engine: the prompt is the training prompt, word for word."""
    folder = write_checkpoint(tmp_path / "m", agent_source=source)
    convert_checkpoint(folder, tmp_path / "m.gguf", "Q4_0")
    info = read_model_info(tmp_path / "m.gguf")
    protocol = Protocol(info)
    assert (protocol.source, protocol.notes) == ("training", ())
    assert "".join(piece.text for piece in protocol.first_prompt(QUESTION)) == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert protocol.budget_line(4) == "[4 tool turns left before you must answer]"
    assert protocol.budget_line(1) == "[1 tool turn left before you must answer]"
    assert protocol.limit_message("SELECT 1", QUESTION) == limit
    turn = "".join(piece.text for piece in protocol.results_turn(["a | b"], "ending", end_token="<|im_end|>"))
    assert "<|im_start|>user\nTool result:\na | b\n\nending<|im_end|>" in turn


def test_the_runtime_normalizes_as_the_conversion_says():
    """The key that the conversion writes decides, whatever the vocabulary is."""
    assert uses_nfc({NORMALIZER_KEY: "NFC", "tokenizer.ggml.pre": "unknown"})
    assert not uses_nfc({NORMALIZER_KEY: "none", "tokenizer.ggml.pre": "qwen35"})
