"""What an expression in someone's source is worth, as far as that is known without running it.

Values are `Text`, numbers, lists of `Text`, or None where nothing is known.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

from .effort import spend
from .texts import Choice, Hole, Text, decide, join_parts, split_fields, write_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    Names = Mapping[str, Any]

MOST_ITEMS = 1 << 10  # of one list


def evaluate(node: ast.expr | None, names: Names) -> Any:
    """What an expression is worth: a `Text`, a number, a list, or None where that is not known."""
    spend()
    value: Any = None
    match node:
        case ast.Constant(value=str(text)):
            value = Text((text,) if text else ())
        case ast.Constant(value=bool() | int() | float() as number):
            value = number
        case ast.Name(id=name):
            value = names.get(name)
        case ast.JoinedStr(values=pieces):
            value = join_parts(part for piece in pieces for part in _read_piece(piece, names))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            value = add(evaluate(left, names), left, evaluate(right, names), right)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            value = choose(test, names, evaluate(body, names), evaluate(orelse, names))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            value = [read_text_of(item, names) for item in items]
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            text = evaluate(owner, names)
            value = _call_method(text, method, node, names) if isinstance(text, Text) else _clean(node, names)
        case ast.Call():
            value = _clean(node, names)
    return value


def _read_piece(node: ast.expr, names: Names) -> tuple[str | Hole | Choice, ...]:
    """The parts of one piece of an f-string."""
    if isinstance(node, ast.FormattedValue):
        return read_text_of(node.value, names).parts if node.format_spec is None else (Hole(write_source(node.value)),)
    return read_text_of(node, names).parts


def read_text_of(node: ast.expr, names: Names) -> Text:
    """An expression as it would stand in a string; what is not known as a hole."""
    return _to_text(evaluate(node, names), node)


def _clean(call: ast.Call, names: Names) -> Text | None:
    """`textwrap.dedent(...)` and `inspect.cleandoc(...)` of a known text; None for every other call."""
    function = write_source(call.func).rpartition(".")[2]
    text = evaluate(call.args[0], names) if len(call.args) == 1 else None
    if function not in ("dedent", "cleandoc") or not isinstance(text, Text) or text.constant is None:
        return None
    return Text(((textwrap.dedent if function == "dedent" else inspect.cleandoc)(text.constant),))


def _call_method(text: Text, method: str, call: ast.Call, names: Names) -> Text | None:
    """The methods that prompts are made with; None for every other one."""
    if method in ("strip", "lstrip", "rstrip") and not call.args:
        return _strip(text, method)
    if method == "format":
        return _format(text, call, names)
    items = evaluate(call.args[0], names) if method == "join" and call.args else None
    if not isinstance(items, list):
        return None
    return join_parts(part for n, item in enumerate(items) for part in (*(text.parts if n else ()), *item.parts))


def _format(owner: Text, call: ast.Call, names: Names) -> Text | None:
    """`"...{field}...".format(...)`; a field that no argument fills stays a hole of its own name."""
    if owner.constant is None or (template := split_fields(owner.constant)) is None:
        return None
    given = {str(number): read_text_of(argument, names) for number, argument in enumerate(call.args)}
    given |= {keyword.arg: read_text_of(keyword.value, names) for keyword in call.keywords if keyword.arg}
    count = iter(range(len(template.parts)))
    parts: list[str | Hole | Choice] = []
    for part in template.parts:
        field = (part.source or str(next(count))) if isinstance(part, Hole) else None
        parts += [part] if field is None else given.get(field, Text((Hole(field),))).parts
    return join_parts(parts)


def choose(test: ast.expr, names: Names, then: Any, other: Any) -> Any:
    """One of two values, or both texts as a choice where the condition is not known."""
    decided = decide(test, names)
    if decided is not None:
        return then if decided else other
    if isinstance(then, Text) and isinstance(other, Text):
        return Text((Choice(test, _names_in(test, names), then, other),))
    if isinstance(then, list) and isinstance(other, list):
        return max(then, other, key=len)  # the one that was appended to
    return next((value for value in (then, other) if isinstance(value, Text)), None)


def _to_text(value: Any, node: ast.expr) -> Text:
    """A value as it would stand in a string; what is not known as a hole."""
    if isinstance(value, Text):
        return value
    return Text((str(value),)) if isinstance(value, (int, float)) else Text((Hole(write_source(node)),))


def add(left: Any, left_node: ast.expr, right: Any, right_node: ast.expr) -> Any:
    """The sum of two values: whatever is added to a string is a string."""
    if isinstance(left, list) and isinstance(right, list) and len(left) + len(right) <= MOST_ITEMS:
        return [*left, *right]
    if isinstance(left, Text) or isinstance(right, Text):
        return join_parts([*_to_text(left, left_node).parts, *_to_text(right, right_node).parts])
    return None


def _strip(text: Text, method: str) -> Text:
    parts = list(text.parts)
    if method != "rstrip" and parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if method != "lstrip" and parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return join_parts(parts)


def _names_in(test: ast.expr, names: Names) -> Names:
    """The numbers among the names that a condition mentions."""
    inner = list(ast.walk(test))
    spend(len(inner))
    mentioned = {node.id for node in inner if isinstance(node, ast.Name)}
    return {name: names[name] for name in mentioned if isinstance(names.get(name), (int, float))}
