"""What a model wrote -> tool calls, or the SQL of a final answer. Pure text functions; nothing here trusts the text."""

from __future__ import annotations

import json
import math
import re

from sqale_edge.episode import ToolCall

# The word after the opening fence names a language, unless the statement starts right there.
_FENCE = re.compile(r"```(?:(?!(?:SELECT|WITH|VALUES)\b)\w+)?\s*(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_DEEPEST = 20  # levels of lists and objects in a call; Python fails at some hundred


def _read_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number")
    return number


# A newline inside a JSON string is an error to the standard and harmless here.
_decoder = json.JSONDecoder(strict=False, parse_float=_read_float, parse_constant=_read_float)

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
    return ToolCall(value["tool"], args) if isinstance(args, dict) and _is_within(args, _DEEPEST) else None


def _is_within(value: object, depth: int) -> bool:
    """Whether lists and objects are nested at most `depth` deep in `value`."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth >= 0 and all(_is_within(item, depth - 1) for item in items)


def final_candidates(text: str) -> list[str]:
    """The statements that a final answer may mean, likeliest first, without duplicates or empty ones.

    A final answer is SQL as text, in one or several lines; sometimes it is fenced, sometimes a `submit_sql` object.
    """
    candidates = []
    fenced = _FENCE.findall(text)
    for part in (*fenced, text):
        written = [call for call in parse_calls(part) if isinstance(call.args.get("sql"), str)]
        submitted = [call for call in written if call.name == "submit_sql"]
        candidates += [call.args["sql"] for call in submitted[:1] or written[-1:]] or [part]
    return list(dict.fromkeys(candidate.strip() for candidate in candidates if candidate.strip()))
