"""Texts that are only partly known: templates as they are read out of a program's source, and how they are filled."""

from __future__ import annotations

import ast
import dataclasses
import operator
import string
from typing import TYPE_CHECKING, Any

from .effort import spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_MOST_CHARS = 1 << 18  # of one piece of a text
_MOST_PARTS = 1 << 10
_CHARS_A_STEP = 1 << 6  # that are copied or searched in the time of a step
_STEPS_A_CHAR = 4  # of source that is written
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclasses.dataclass(frozen=True)
class Hole:
    """What is only known at run time; `source` is the expression as it is written."""

    source: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of two texts; `names` are the values known where `test` stands."""

    test: ast.expr
    names: Mapping[str, Any]
    then: Text
    other: Text


@dataclasses.dataclass(frozen=True)
class Text:
    """A string, as far as it is known."""

    parts: tuple[str | Hole | Choice, ...]

    @property
    def constant(self) -> str | None:
        """The whole string, where all of it is known."""
        texts = [part for part in self.parts if isinstance(part, str)]
        spend(1 + sum(map(len, texts)) // _CHARS_A_STEP)
        return "".join(texts) if len(texts) == len(self.parts) else None

    def render(
        self,
        *,
        show: Callable[[Hole], str],
        literal: Callable[[str], str] = str,
        values: Mapping[str, Any] | None = None,
        unknown: bool = True,
    ) -> str:
        """The text as a string.

        Args:
            show: What to write for a hole.
            literal: What to write for known text.
            values: What to assume for expressions, by their source, in conditions.
            unknown: What to take a condition for that cannot be decided.
        """
        return "".join(
            literal(part) if isinstance(part, str) else show(part) if isinstance(part, Hole) else ""
            for part in self.flatten(values or {}, unknown=unknown)
        )

    def flatten(self, values: Mapping[str, Any], *, unknown: bool = True) -> Iterator[str | Hole]:
        """The parts with every choice made."""
        waiting = list(self.parts[::-1])
        while waiting:
            part = waiting.pop()
            if isinstance(part, Choice):
                spend()
                decided = decide(part.test, {**part.names, **values})
                chosen = part.then if (unknown if decided is None else decided) else part.other
                waiting += chosen.parts[::-1]
            else:
                spend(1 + len(part) // _CHARS_A_STEP if isinstance(part, str) else 1)
                yield part

    def every_hole(self) -> list[str]:
        """The sources of the holes on both sides of every choice, each once."""
        sources: dict[str, None] = {}
        waiting, seen = [self], {id(self)}  # texts are shared between choices: following each path would take forever
        while waiting:
            for part in waiting.pop().parts:
                spend()
                if isinstance(part, Hole):
                    sources[part.source] = None
                elif isinstance(part, Choice):
                    waiting += [text for text in (part.then, part.other) if id(text) not in seen]
                    seen |= {id(part.then), id(part.other)}
        return list(sources)

    def holes(self, *, unknown: bool = True) -> list[str]:
        """The sources of the holes, each once; conditions count as `unknown`."""
        return list(dict.fromkeys(part.source for part in self.flatten({}, unknown=unknown) if isinstance(part, Hole)))


def split_fields(text: str, *, fields: Iterable[str] | None = None) -> Text | None:
    """A constant with its fields as holes: those of `str.format`, or only the given ones and nothing else special.

    None where it is no valid format string.
    """
    spend(1 + len(text))
    if fields is None:
        try:
            pieces = [(before, field) for before, field, _, _ in string.Formatter().parse(text)]
        except ValueError:
            return None
        known: list[str | Hole] = []
        for before, field in pieces:
            known += [before] if field is None else [before, Hole(field)]
        return join_parts(known)
    parts: list[str | Hole] = [text]
    for field in dict.fromkeys(fields):
        spend(len(parts) + len(text) // _CHARS_A_STEP)
        marker = "{" + field + "}"
        parts = [
            new for part in parts for new in (_cut(part, marker, Hole(field)) if isinstance(part, str) else [part])
        ]
    return join_parts(parts)


def _cut(text: str, marker: str, hole: Hole) -> list[str | Hole]:
    first, *rest = text.split(marker)
    return [first, *(part for piece in rest for part in (hole, piece))]


def join_parts(parts: Iterable[str | Hole | Choice]) -> Text:
    """Parts as one text, neighbouring strings merged. Raises MemoryError beyond a size that no prompt has."""
    merged: list[str | Hole | Choice] = []
    waiting: list[str] = []  # neighbouring strings
    n_chars = 0

    def flush() -> None:
        if waiting:
            merged.append("".join(waiting))
            waiting.clear()

    for part in parts:
        spend()
        if not isinstance(part, str):
            flush()
            merged.append(part)
            n_chars = 0
        elif part:
            waiting.append(part)
            n_chars += len(part)
        if len(merged) > _MOST_PARTS or n_chars > _MOST_CHARS:
            raise MemoryError
    flush()
    spend(sum(len(part) for part in merged if isinstance(part, str)) // _CHARS_A_STEP)
    return Text(tuple(merged))


def decide(test: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """The truth of a condition of names, constants, comparisons, `not`, `and` and `or`; None where it is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decide(test.operand, names)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        results = [decide(value, names) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in results else None if None in results else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARISONS:
        left, right = _known(test.left, names), _known(test.comparators[0], names)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return _COMPARISONS[type(test.ops[0])](left, right)
        return None
    value = _known(test, names)
    return bool(value) if isinstance(value, (int, float)) else None


def _known(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return node.value if isinstance(node, ast.Constant) else names.get(write_source(node))


def write_source(node: ast.AST) -> str:
    """An expression as it is written."""
    source = ast.unparse(node)
    spend(1 + _STEPS_A_CHAR * len(source))
    return source
