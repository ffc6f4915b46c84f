"""What each token of an episode is: given to the model, thought, or which part of what it wrote.

| kind | what that is |
|---|---|
| `prompt` | the first prompt: instructions and question |
| `result` | what the tools answered, with the budget line and the markup around it |
| `thought` | what is thought, and the `</think>` that ends it |
| `json` | of a tool call all but its arguments' values: braces, quotes, keys, the tool's name; the end of a turn |
| `identifier` | a table or column, as an argument or in SQL |
| `sql` | SQL but for identifiers and values: keywords, functions, operators, brackets |
| `value` | texts and numbers in SQL, and numbers as arguments |

A token can reach over a border: it is what its first letter or digit is, else what its first character that is no blank
is. Not guaranteed: SQL is taken apart by its tokens, not parsed, so a function without its bracket is an identifier.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from sqale_edge.sql_text import tokens as sql_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqale_edge.episode import Turn

GIVEN = ("prompt", "result")
WRITTEN = ("thought", "json", "identifier", "sql", "value")
KINDS = (*GIVEN, *WRITTEN)

_PLAIN = bytes(byte if byte < 0x80 else ord("x") for byte in range(0x100))  # a letter in place of each other byte
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d.eE+-]*")
_CHARACTER = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_NAMES = {"table_name", "column_name", "table_a", "table_b"}
# Source: https://www.sqlite.org/lang_keywords.html
_KEYWORDS = frozenset(
    """
    abort action add after all alter always analyze and as asc attach autoincrement before begin between by cascade case
    cast check collate column commit conflict constraint create cross current current_date current_time
    current_timestamp database default deferrable deferred delete desc detach distinct do drop each else end escape
    except exclude exclusive exists explain fail filter first following for foreign from full generated glob group
    groups having if ignore immediate in index indexed initially inner insert instead intersect into is isnull join key
    last left like limit match materialized natural no not nothing notnull null nulls of offset on or order others outer
    over partition plan pragma preceding primary query raise range recursive references regexp reindex release rename
    replace restrict returning right rollback row rows savepoint select set table temp temporary then ties to
    transaction trigger unbounded union unique update using vacuum values view virtual when where window with without
    """.split()  # noqa: SIM905 - a list of words
)


def mark_kinds(
    tokens: Sequence[int], turns: Sequence[Turn], piece: Callable[[int], bytes], think_close: int | None
) -> list[str]:
    """The kind of each token of an episode's log.

    Args:
        tokens: The log.
        turns: The episode's. Where one begins and ends follows from what it counts.
        piece: The bytes of a token.
        think_close: The token `</think>`; None for a model that does not think.
    """
    kinds: list[str] = []
    for number, turn in enumerate(turns):
        kinds += ["result" if number else "prompt"] * (turn.usage.n_prompt - len(kinds))
        written = tokens[len(kinds) : len(kinds) + turn.usage.n_decoded + turn.usage.n_forced]
        n_thought = written.index(think_close) + 1 if think_close in written else 0
        if turn.thought and not n_thought:
            n_thought = len(written)  # it ended within the thought
        kinds += ["thought"] * n_thought
        kinds += mark_reply([piece(token) for token in written[n_thought:]])
    return kinds + ["result"] * (len(tokens) - len(kinds))


def mark_reply(pieces: Sequence[bytes]) -> list[str]:
    """The kinds of the tokens that stand behind a thought: calls, or SQL as text."""
    # Markup, which ends a turn, is no part of a call; and what SQL there is ends with it.
    plain = ["" if piece.startswith(b"<|") else piece.translate(_PLAIN).decode("ascii") for piece in pieces]
    text = "".join(plain)
    marks = _mark_calls(text) if text.lstrip().startswith("{") else _mark_sql(text)
    kinds, start = [], 0
    for part in plain:
        kinds.append(marks[start + _telling(part)] if part else "json")
        start += len(part)
    return kinds


def _telling(part: str) -> int:
    """Where the character stands by which a token is told."""
    for test in (lambda one: one.isalnum() or one == "_", lambda one: not one.isspace()):
        for place, one in enumerate(part):
            if test(one):
                return place
    return 0


def _mark_calls(text: str) -> list[str]:
    """The kind of each character of tool calls, which may be cut off anywhere."""
    marks = ["json"] * len(text)
    position, key = 0, ""
    while position < len(text):
        if match := _STRING.match(text, position):
            start, end = match.start() + 1, match.end()
            content = text[start:end].removesuffix('"')
            if text[end:].lstrip()[:1] == ":":
                key = content
            elif key == "sql":
                marks[start : start + len(content)] = _mark_quoted_sql(content)
            elif key != "tool":
                marks[start : start + len(content)] = ["identifier" if key in _NAMES else "value"] * len(content)
        elif match := _NUMBER.match(text, position):
            marks[position : match.end()] = ["value"] * len(match.group())
        position = match.end() if match else position + 1
    return marks


def _mark_quoted_sql(content: str) -> Iterator[str]:
    """The kind of each character of SQL that is written as a JSON string."""
    parts = _CHARACTER.findall(content)
    for part, mark in zip(parts, _mark_sql("".join(map(_unescape, parts))), strict=True):
        yield from [mark] * len(part)


def _unescape(part: str) -> str:
    """The one character that `part` stands for."""
    if len(part) == 1 or part[0] != "\\":
        return part
    if part[1] != "u":
        return _ESCAPES.get(part[1], part[1])
    character = json.loads(f'"{part}"')
    return str(character) if character.isascii() else "x"


def _mark_sql(sql: str) -> list[str]:
    marks: list[str] = []
    for kind, text in sql_tokens(sql):
        mark = "sql"
        if kind == "quoted":
            mark = "value" if text[0] == "'" else "identifier"
        elif kind == "word" and text[0].isdigit():
            mark = "value"
        elif kind == "word" and text.lower() not in _KEYWORDS:
            is_function = sql[len(marks) + len(text) :].lstrip().startswith("(")
            mark = "sql" if is_function else "identifier"
        marks += [mark] * len(text)
    return marks
