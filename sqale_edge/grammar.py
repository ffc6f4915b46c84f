"""Tool specs -> a GBNF grammar that accepts every valid turn of calls and nothing else.

The grammar starts right after `</think>`, or at the start of the turn for a model that does not think. White space is
bounded everywhere (a model can loop in it), strings have no maximum length (llama.cpp refuses large repetition counts;
the turn's budget bounds them).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqale_edge.tools import Parameter, ToolSpec

_COMMON = r"""
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
integer ::= [1-9] [0-9]? [0-9]? | "1000"
"""


def tool_call_grammar(tools: Iterable[ToolSpec]) -> str:
    """The grammar of one or more `{"tool": ..., "args": {...}}` of `tools`, in GBNF with the rule `root`.

    Between calls there is a newline or nothing, before the first at most two newlines, after the last at most one.
    """
    calls = {f"call-{tool.name.replace('_', '-')}": _call_rule(tool) for tool in tools}
    rules = [
        r'root ::= "\n"? "\n"? call ("\n"? call)* "\n"?',
        f"call ::= {' | '.join(calls)}",
        *(f"{name} ::= {rule}" for name, rule in calls.items()),
    ]
    return "\n".join(rules) + _COMMON


def tool_call_phrases(tools: Iterable[ToolSpec]) -> list[str]:
    """How a call of each of `tools` begins, up to its first argument's value, with the blanks that JSON usually has."""
    return [_call_start(tool) for tool in tools]


def _call_start(tool: ToolSpec) -> str:
    start = f'{{"tool": {json.dumps(tool.name)}'
    needed = next((parameter for parameter in tool.parameters if parameter.required), None)
    return f'{start}, "args": {{{json.dumps(needed.name)}: "' if needed else start


def _call_rule(tool: ToolSpec) -> str:
    head = _literal('{"tool":') + ' " "? ' + _literal(json.dumps(tool.name))
    args = (
        _literal(",")
        + ' " "? '
        + _literal('"args":')
        + ' " "? '
        + _literal("{")
        + f" {_args_rule(tool.parameters)} "
        + _literal("}")
    )
    needs_args = any(parameter.required for parameter in tool.parameters)
    return f"{head} {args if needs_args else f'({args})?'} " + _literal("}")


def _args_rule(parameters: tuple[Parameter, ...]) -> str:
    """The members of `args`: the required ones in order, then any of the optional ones in order."""
    comma = _literal(",") + ' " "? '
    required = [_member(parameter) for parameter in parameters if parameter.required]
    optional = [_member(parameter) for parameter in parameters if not parameter.required]
    if required:
        return comma.join(f"{member} " for member in required) + " ".join(f"({comma}{member})?" for member in optional)
    # Without a required member before it, the first optional one that is present has no comma.
    starts = [
        " ".join([member, *(f"({comma}{later})?" for later in optional[i + 1 :])]) for i, member in enumerate(optional)
    ]
    return f"({' | '.join(starts)})?" if starts else ""


def _member(parameter: Parameter) -> str:
    return _literal(f"{json.dumps(parameter.name)}:") + f' " "? {parameter.kind}'


def _literal(text: str) -> str:
    """`text` as a GBNF string."""
    return json.dumps(text)
