"""The values that a statement compares data with, found in its tokens.

| counted | where it stands |
|---|---|
| a text, a number with its sign | beside `=`, `==`, `<>`, `!=`, `<`, `<=`, `>`, `>=`, `IS`, `LIKE`, on either side |
| | in the list of `IN` |
| | after `BETWEEN`, and after its `AND` |
| | alone between `WHEN` and `THEN` |

Not counted: arguments of functions, operands of `+ - * / % & | ~ << >> -> ->> ||`, results of CASE, what is alone in
parentheses, LIMIT, OFFSET, positions in ORDER BY, BLOBs, NULL, TRUE, FALSE, the empty text, a pattern of nothing but
wildcards. A text between double quotes is a name, unless SQLite has compiled it as a text.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from sqale_edge.sql_text import unquote_name

from .statements import scan

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]{1,16}|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?!\w)", re.ASCII)
_OPERATOR = re.compile(r"->>?|<<|>>|<=|>=|<>|!=|==|\|\||[-+*/%&|~<>=]")
_COMPARING = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "is", "like"})
_MAX_INTEGER_DIGITS = 18  # of more SQLite makes a float, sooner or later


@dataclasses.dataclass(frozen=True)
class SqlLiteral:
    """A value that a statement compares with.

    Attributes:
        value: A text or a finite number; of a pattern without the wildcards at its ends.
        is_pattern: It is the pattern of a LIKE: case does not count, and `%` and `_` are wildcards.
    """

    value: str | int | float
    is_pattern: bool = False


class _Item(NamedTuple):
    """A literal, an operator, a word or a sign of punctuation. `text` is in lower case, and empty for a literal."""

    text: str
    value: str | int | float | None = None
    is_operator: bool = False


_EDGE = _Item("")
_SIGN_FOLLOWS = _COMPARING | {"(", ",", "and", "between", "in", "not", "or", "then", "when"}


def find_literals(sql: str, texts: Container[str] = ()) -> tuple[SqlLiteral, ...]:
    """The values that `sql` compares with, each once.

    Args:
        sql: One statement.
        texts: Those between double quotes that are texts, and no names.
    """
    items = list(_fold_signs(_read_items(sql, texts)))
    opened: list[bool] = []  # of the parentheses around: whether each holds the list of an IN
    ranges: list[int] = []  # how many parentheses are around each BETWEEN whose AND is to come
    bounds = {"between"}  # what comes before the bound of a range: `and` only for one item
    found: dict[SqlLiteral, None] = {}
    for before, item, after in zip([_EDGE, *items], items, [*items[1:], _EDGE], strict=False):
        if item.value is None:
            bounds = {"between"}
            if item.text == "(":
                opened.append(before.text == "in")
            elif item.text == ")" and opened:
                opened.pop()
                ranges = [depth for depth in ranges if depth <= len(opened)]
            elif item.text == "between":
                ranges.append(len(opened))
            elif item.text == "and" and ranges[-1:] == [len(opened)]:
                ranges.pop()
                bounds = {"and"}
            continue
        is_listed = opened[-1:] == [True] and before.text in ("(", ",") and after.text in (",", ")")
        is_compared = before.text in _COMPARING | bounds or _compares(after) or is_listed
        is_compared |= before.text == "is not" or (before.text == "when" and after.text == "then")
        if is_compared and not _calculates(before) and not _calculates(after):
            is_pattern = before.text == "like" and isinstance(item.value, str)
            value = item.value.strip("%_") if is_pattern and isinstance(item.value, str) else item.value
            if value != "":
                found[SqlLiteral(value, is_pattern)] = None
    return tuple(found)


def _calculates(item: _Item) -> bool:
    return item.is_operator and item.text not in _COMPARING


def _compares(item: _Item) -> bool:
    return item.text in _COMPARING or item.text in ("between", "in", "is not", "not")


def _read_items(sql: str, texts: Container[str]) -> Iterator[_Item]:
    end = 0
    before = ""
    for token in scan(sql):
        if token.start < end:
            continue
        is_adjacent, end = token.start == end, token.start + len(token.text)
        item = _Item(token.text.lower())
        if token.kind == "quoted":
            text = unquote_name(token.text)
            is_blob = before == "x" and is_adjacent
            is_text = token.text[0] == "'" or (token.text[0] == '"' and text in texts)
            item = _Item("", text) if is_text and not is_blob else _Item("a name")
        elif number := _NUMBER.match(sql, token.start):
            end = number.end()
            item = _Item("", _read_number(number.group()))
        elif operator := _OPERATOR.match(sql, token.start):
            end = operator.end()
            item = _Item(operator.group(), is_operator=True)
        before = item.text
        yield item


def _read_number(text: str) -> int | float | None:
    """The number; None for one that is too large for a float."""
    if text[:2].lower() == "0x":
        return int(text, 16)
    if text.isdigit() and len(text) <= _MAX_INTEGER_DIGITS:
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else None


def _fold_signs(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items with each sign in its number, and `is not` as one."""
    kept: list[_Item] = []
    for item in items:
        if isinstance(item.value, (int, float)) and kept[-1:] and kept[-1].text in ("-", "+"):
            if len(kept) == 1 or kept[-2].text in _SIGN_FOLLOWS or kept[-2].text == "is not":
                sign = kept.pop()
                kept.append(_Item("", -item.value if sign.text == "-" else item.value))
                continue
        elif item.text == "not" and kept[-1:] and kept[-1].text == "is":
            kept[-1] = _Item("is not")
            continue
        kept.append(item)
    return iter(kept)
