"""The texts in a Python source file, found by reading it: nothing is imported, compiled or executed.

A text is a string constant, a concatenation, an f-string, or what a few harmless methods make of one (`format`, `join`,
`strip`, ...). What is only known when the program runs is left as a hole; where a condition decides, both texts are
kept, so that "1 turn" and "2 turns" come out of one f-string. Statements are followed in order: both branches of every
`if`, loops once.

Not guaranteed: texts built in other ways. They are simply not found.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from sqale_edge.errors import CheckpointError

from .effort import spend
from .expressions import MOST_ITEMS, add, choose, evaluate, read_text_of
from .foreign import quote, shorten
from .texts import Text, write_source

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_KEY = 80
_SHORTEST_LOOSE = 12  # characters of a text without a name, to leave out dictionary keys and the like


@dataclasses.dataclass(frozen=True)
class Uses:
    """How constants are filled in: those with `NAME.format(...)`, and the fields in `NAME.replace("{field}", ...)`."""

    formatted: set[str] = dataclasses.field(default_factory=set)
    replaced: dict[str, list[str]] = dataclasses.field(default_factory=dict)


def find_texts(source: str, path: Path) -> tuple[dict[str, Text], Uses]:
    """Every text of a module by its name, in the order of the source.

    A name is `NAME`, `Class.NAME`, `function.name`, `function()` for what a function returns, `NAME[key]` for an entry
    of a dictionary, and `function:LINE` for a text without a name.

    Raises:
        CheckpointError: The source cannot be parsed.
        RecursionError, MemoryError: It is nested too deeply, or too much work; see `effort`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in someone else's source
            module = ast.parse(source, filename=path.name)
        reader = _Reader(_assigned_once(module))
        reader.run(module.body, {}, "")
    except (SyntaxError, ValueError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        what = shorten(error.msg if isinstance(error, SyntaxError) else str(error))
        raise CheckpointError(f"{path.name} cannot be parsed as Python: {what}{where}", path=path) from error
    return reader.texts, reader.uses


class _Reader:
    """Follows the statements of a module and collects its texts. Values are those of `expressions`."""

    def __init__(self, assigned_once: set[str]) -> None:
        self._assigned_once = assigned_once
        self.texts: dict[str, Text] = {}
        self.uses = Uses()

    def run(self, statements: list[ast.stmt], names: dict[str, Any], scope: str) -> Any:
        """Follow a block; the value that it returns, or None."""
        for index, statement in enumerate(statements):
            if isinstance(statement, ast.Return):
                value = evaluate(statement.value, names)
                if not isinstance(value, Text):  # a text will be noted under the function's name
                    self._note_loose(statement.value, names, scope)
                return value
            if isinstance(statement, ast.If):
                self._note_loose(statement.test, names, scope)
                spend(len(names))
                then, other = dict(names), dict(names)
                returned = [self.run(statement.body, then, scope), self.run(statement.orelse, other, scope)]
                has_returned = [_always_returns(branch) for branch in (statement.body, statement.orelse)]
                rest = statements[index + 1 :]
                if has_returned == [True, False]:
                    return choose(statement.test, names, returned[0], self.run(rest, other, scope))
                if has_returned == [False, True]:
                    return choose(statement.test, names, self.run(rest, then, scope), returned[1])
                self._merge(statement.test, names, then, other)
                if all(has_returned):
                    return choose(statement.test, names, *returned)
            else:
                self._follow(statement, names, scope)
        return None

    def _merge(self, test: ast.expr, names: dict[str, Any], then: dict[str, Any], other: dict[str, Any]) -> None:
        """`names` after an `if`: whatever differs depends on the condition."""
        spend(len(names))
        before = dict(names)
        for name in {**then, **other}:
            if then.get(name) is not other.get(name):
                names[name] = choose(test, before, then.get(name), other.get(name))

    def _follow(self, statement: ast.stmt, names: dict[str, Any], scope: str) -> None:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{scope}{statement.name}"
            spend(len(names))
            parameters = _parameters(statement)
            local = {name: value for name, value in names.items() if name not in parameters}
            returned = self.run(statement.body, local, f"{inner}.")
            if isinstance(returned, Text):
                self._note(f"{inner}()", returned)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(statement, names, scope)
        elif isinstance(statement, ast.Expr):
            if not isinstance(statement.value, ast.Constant):  # a docstring is no text of the program
                self._append(statement.value, names)
                self._note_loose(statement.value, names, scope)
        else:
            for field in ("test", "iter", "subject", "exc"):
                self._note_loose(getattr(statement, field, None), names, scope)
            blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
            blocks += [part.body for field in ("handlers", "cases") for part in getattr(statement, field, [])]
            for block in blocks:
                if isinstance(returned := self.run(block, names, scope), Text):
                    self._note(f"{scope.rstrip('.')}()", returned)

    def _assign(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign, names: dict[str, Any], scope: str) -> None:
        if statement.value is None:
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = evaluate(statement.value, names)
        self._note_uses(statement.value)
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                for each, part in zip(target.elts, statement.value.elts, strict=False):
                    self._assign(ast.copy_location(ast.Assign([each], part), statement), names, scope)
                continue
            if not isinstance(target, ast.Name):
                self._note_loose(statement.value, names, scope)
                continue
            if isinstance(statement, ast.AugAssign):
                is_sum = isinstance(statement.op, ast.Add)
                value = add(names.get(target.id), target, value, statement.value) if is_sum else None
            is_changing = isinstance(value, (int, float)) and target.id not in self._assigned_once
            names[target.id] = None if is_changing else value  # a number that changes is a hole in every text
            if isinstance(value, Text):
                self._note(f"{scope}{target.id}", value)
            elif isinstance(statement.value, ast.Dict):
                self._note_entries(f"{scope}{target.id}", statement.value, names, scope)
            else:
                self._note_loose(statement.value, names, scope)

    def _append(self, call: ast.expr, names: dict[str, Any]) -> None:
        """`name.append(text)`, where `name` is a known list."""
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[item]):
                known = names.get(name)
                if isinstance(known, list) and len(known) < MOST_ITEMS:
                    names[name] = [*known, read_text_of(item, names)]

    # -- collecting ------------------------------------------------------------------------------------------------

    def _note(self, name: str, text: Text) -> None:
        known = self.texts.get(name)
        # A name that is assigned again, piece by piece, stands for the longest text that it held.
        if known is None or len(known.parts) <= len(text.parts):
            self.texts[name] = text

    def _note_entries(self, name: str, node: ast.Dict, names: dict[str, Any], scope: str) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            text = evaluate(value, names)
            if isinstance(text, Text) and isinstance(key, ast.Constant):
                self._note(f"{name}[{_short_key(key.value)}]", text)
            else:
                self._note_loose(value, names, scope)

    def _note_loose(self, node: ast.expr | None, names: dict[str, Any], scope: str) -> None:
        """The largest texts inside an expression."""
        if node is None:
            return
        self._note_uses(node)
        waiting: list[ast.AST] = [node]
        while waiting:
            inner = waiting.pop()
            spend()
            text = evaluate(inner, names) if isinstance(inner, ast.expr) and not isinstance(inner, ast.Name) else None
            if not isinstance(text, Text):
                waiting += ast.iter_child_nodes(inner)
            elif len(text.render(show=lambda hole: hole.source)) >= _SHORTEST_LOOSE:
                self._note(f"{scope.rstrip('.') or 'module'}:{getattr(inner, 'lineno', 0)}", text)

    def _note_uses(self, node: ast.expr) -> None:
        for call in ast.walk(node):
            spend()
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name = write_source(call.func.value).split(".replace(")[0].rpartition(".")[2]
                if call.func.attr == "format":
                    self.uses.formatted.add(name)
                elif call.func.attr == "replace" and call.args and isinstance(call.args[0], ast.Constant):
                    marker = str(call.args[0].value)
                    if marker.startswith("{") and marker.endswith("}"):
                        self.uses.replaced.setdefault(name, []).append(marker[1:-1])


def _short_key(key: Any) -> str:
    return key if isinstance(key, str) and key.isprintable() and len(key) <= _LONGEST_KEY else quote(key)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return set()
    arguments = node.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _assigned_once(module: ast.Module) -> set[str]:
    stored = [node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name for name, count in collections.Counter(stored).items() if count == 1}


def _always_returns(statements: list[ast.stmt]) -> bool:
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))
