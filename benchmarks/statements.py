"""What a gold statement leaves open, found by changing its text: order, ties, the clock.

SQL is not parsed. Its tokens, with literals and parentheses known, are enough for the top level of a statement: an
ORDER BY or LIMIT outside all parentheses belongs to the whole.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from sqale_edge.sql_text import quote_name, tokens, unquote_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The clock only goes forward, so a time to come is the one to try.
_LATER = {
    "current_date": "'2100-07-01'",
    "current_time": "'12:34:56'",
    "current_timestamp": "'2100-07-01 12:34:56'",
}
_CLOCK_FUNCTIONS = frozenset({"date", "time", "datetime", "julianday", "unixepoch"})


class Token(NamedTuple):
    """A piece of a statement that means something.

    Attributes:
        kind: As in `sql_text.tokens`.
        start: Its place in the statement.
        depth: How many parentheses are open around it.
    """

    kind: str
    text: str
    start: int
    depth: int

    @property
    def word(self) -> str:
        """A word in lower case; empty for what is none."""
        return self.text.lower() if self.kind == "word" else ""


def scan(sql: str) -> list[Token]:
    """The tokens that are no white space and no comment."""
    found = []
    start = depth = 0
    for kind, text in tokens(sql):
        depth -= text == ")"
        if kind not in ("space", "comment"):
            found.append(Token(kind, text, start, depth))
        depth += text == "("
        start += len(text)
    return found


def _top_level(sql: str) -> tuple[int | None, int | None]:
    """Where the ORDER BY and the LIMIT of the whole statement start."""
    order = limit = None
    found = scan(sql)
    for token, following in itertools.pairwise([*found, Token("", "", len(sql), 0)]):
        if token.depth == 0 and token.word == "order" and following.word == "by":
            order = token.start
        elif token.depth == 0 and token.word == "limit":
            limit = token.start
    return order, limit


def is_ordered(sql: str) -> bool:
    """The rows of the whole statement are ordered, not only those of a part of it."""
    return _top_level(sql)[0] is not None


def break_ties(sql: str, n_columns: int, *, descending: bool) -> str:
    """`sql` with rows that its ORDER BY leaves tied in the order of their cells; unchanged where no order matters.

    Of tied rows that a LIMIT divides, the ascending order keeps the least and the descending one the greatest: both
    keep the same only where the rows are the same.
    """
    order, limit = _top_level(sql)
    if order is None and limit is None:
        return sql
    direction = " DESC" if descending else ""
    terms = ", ".join(f"{number} COLLATE BINARY{direction}" for number in range(1, n_columns + 1))
    place = len(sql) if limit is None else limit
    return f"{sql[:place]}\n{'ORDER BY' if order is None else ','} {terms} {sql[place:]}"


def mentioned_names(found: Sequence[Token]) -> set[str]:
    """Every word and quoted text among the tokens, in lower case: all names are among them."""
    return {unquote_name(token.text).lower() for token in found if token.kind in ("word", "quoted")}


def reverse_tables(sql: str, tables: Mapping[str, str]) -> str:
    """`sql` over tables whose rows come in the opposite order: each is hidden by a WITH table of its name.

    Args:
        sql: One statement.
        tables: The names of all tables by their lower-case names.
    """
    found = scan(sql)
    names = [quote_name(tables[key]) for key in sorted(mentioned_names(found) & tables.keys())]
    if not names or not found:
        return sql
    hidden = ", ".join(f"{name} AS (SELECT * FROM main.{name} ORDER BY rowid DESC LIMIT -1)" for name in names)
    if found[0].word != "with":
        return f"WITH {hidden} {sql}"
    first = found[2 if found[1].word == "recursive" else 1]
    return f"{sql[: first.start]}{hidden}, {sql[first.start :]}"


def advance_clock(sql: str) -> str | None:
    """`sql` as if it ran in the year 2100; None if it does not ask for the time, as far as its text tells."""
    changed = "".join(_advanced(sql))
    return changed if changed != sql else None


def _advanced(sql: str) -> Iterator[str]:
    found = scan(sql)
    end = 0
    for i, token in enumerate(found):
        before = found[i - 1].text if i else ""
        after = [following.text for following in found[i + 1 : i + 3]]
        replacement = None
        if token.kind == "quoted" and unquote_name(token.text).strip().lower() == "now" and token.text[0] in "'\"":
            replacement = _LATER["current_timestamp"]
        elif token.word in _LATER and before != ".":
            replacement = _LATER[token.word]
        elif token.text == "(" and before.lower() in _CLOCK_FUNCTIONS and after[:1] == [")"]:
            replacement = f"({_LATER['current_timestamp']}"
        if replacement is not None:
            yield sql[end : token.start] + replacement
            end = token.start + len(token.text)
    yield sql[end:]
