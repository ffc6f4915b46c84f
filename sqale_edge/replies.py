"""What a model wrote -> tool calls, or the SQL of a final answer. Pure text functions; nothing here trusts the text."""

from __future__ import annotations

import json
import re

from sqale_edge.episode import ToolCall

_FENCE = re.compile(r"```[a-zA-Z]*\s*\n?(.*?)(?:```|\Z)", re.DOTALL)
# A newline inside a JSON string is an error to the standard and harmless here.
_decoder = json.JSONDecoder(strict=False)

MALFORMED = ""  # the tool name of a call that could not be read


def parse_calls(text: str) -> tuple[ToolCall, ...]:
    """The calls in `text`, in order.

    What is no call becomes one call with the name MALFORMED and the text, and ends the list.
    """
    calls = []
    position = _skip_blanks(text, 0)
    while position < len(text):
        try:
            value, end = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            value, end = None, position
        call = _as_call(value)
        if call is None:
            calls.append(ToolCall(MALFORMED, {"text": text[position:]}))
            break
        calls.append(call)
        position = _skip_blanks(text, end)
    return tuple(calls)


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _as_call(value: object) -> ToolCall | None:
    """`value` as a call, or None."""
    if not isinstance(value, dict) or not isinstance(value.get("tool"), str):
        return None
    args = value.get("args", {})
    return ToolCall(value["tool"], args) if isinstance(args, dict) else None


def final_candidates(text: str) -> list[str]:
    """The statements that a final answer may mean, likeliest first, without duplicates or empty ones.

    A final answer is SQL as text, in one or several lines; sometimes it is fenced, sometimes a `submit_sql` object.
    """
    candidates = []
    fenced = _FENCE.findall(text)
    for part in (*fenced, text):
        submitted = [call.args["sql"] for call in parse_calls(part) if isinstance(call.args.get("sql"), str)]
        candidates += submitted[-1:] or [part]
    return list(dict.fromkeys(candidate.strip() for candidate in candidates if candidate.strip()))
