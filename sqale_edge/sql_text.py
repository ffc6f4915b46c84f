"""Text on one line: SQL with its tokens, quoted names, and characters that would break a line.

Nothing here decides what may run; the database does that. Text is only taken apart far enough to tell literals,
quoted names and comments from the rest, so that white space can be collapsed without touching a value.
"""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
      (?P<quoted> '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | `(?:[^`]|``)*(?:`|\Z) | \[[^\]]*(?:\]|\Z) )
    | (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<space> [ \t\n\f\r]+ )
    | (?P<word> \w+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


_MAX_WITH_DEPTH = 20  # of WITH inside of WITH, on the average of all words


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """The tokens of `sql` as (kind, text); kind: quoted, comment, space, word or other. Joined they are `sql`."""
    for match in _TOKEN.finditer(sql):
        yield match.lastgroup or "other", match.group()


def quote_name(name: str) -> str:
    """`name` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def unquote_name(text: str) -> str:
    """The name that `"t"`, `[t]`, `` `t` `` or `'t'` stands for; other text unchanged."""
    for left, right in ('""', "[]", "``", "''"):
        if len(text) >= 2 and text[0] == left and text[-1] == right:
            return text[1:-1].replace(right * 2, right) if left == right else text[1:-1]
    return text


def bare_statement(sql: str) -> str:
    """`sql` without the white space, comments and semicolons around it; empty if there is nothing else."""
    start, end, position = -1, 0, 0
    for kind, text in tokens(sql):
        position += len(text)
        if kind not in ("space", "comment") and text != ";":
            start, end = (position - len(text) if start < 0 else start), position
    return sql[start:end] if start >= 0 else ""


def one_line(sql: str) -> str:
    """`sql` with white space collapsed outside literals and quoted names, and `-- text` comments as `/* text */`."""
    pieces = []
    for kind, text in tokens(sql):
        if kind == "comment":
            body = text[2:] if text.startswith("--") else text[2:].removesuffix("*/")
            pieces.append(f"/* {' '.join(body.replace('*/', '* /').split())} */")
        else:
            pieces.append(" " if kind == "space" else visible(text))
    kept = [piece for before, piece in zip(["", *pieces], pieces, strict=False) if piece != " " or before != " "]
    return "".join(kept).strip()


def n_with_copies(sql: str, limit: int) -> int:
    """About how often SQLite copies a table in WITH, once for each use, also for a use in a copy; `limit` at most."""
    if not re.search(r"\bwith\b", sql, re.IGNORECASE):
        return 0
    words = [unquote_name(text).lower() for kind, text in tokens(sql) if kind not in ("space", "comment")]
    bodies: dict[str, list[str]] = {}
    opened: list[int] = []
    partner: dict[int, int] = {}
    n_words = 0
    for i, word in enumerate(words):
        if word == "(":
            opened.append(i)
        elif word == ")" and opened:
            partner[i] = start = opened.pop()
            name = _with_name(words, start, partner)
            if name:
                n_words += i - start
                if n_words > _MAX_WITH_DEPTH * len(words):
                    return limit
                bodies.setdefault(name, []).extend(words[start : i + 1])
    uses = {
        name: collections.Counter(word for word in body if word in bodies and word != name)
        for name, body in bodies.items()
    }
    copies = dict.fromkeys(bodies, 1)
    for _ in range(min(len(bodies), limit.bit_length() + 1)):  # one round for each level of WITH, whatever their order
        copies = {name: 1 + sum(n * copies[used] for used, n in uses[name].items()) for name in bodies}
        if max(copies.values()) >= limit:
            return limit
    return max(copies.values(), default=0)


def _with_name(words: list[str], start: int, partner: dict[int, int]) -> str | None:
    """The name before `AS (`, where the parenthesis at `start` is the body of a table in WITH."""
    i = start - 1
    while i > 0 and words[i] in ("materialized", "not"):
        i -= 1
    if i < 1 or words[i] != "as":
        return None
    i -= 1
    if words[i] == ")":
        i = partner.get(i, 0) - 1
    return words[i] if i >= 0 else None


# Everything that could start a new line, end a text or steer a terminal; a tab stays.
_INVISIBLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""`text` on one line: line ends as `\n`, other controls as `\x1b`, bytes that were not UTF-8 as U+FFFD."""
    if text.isprintable():
        return text
    return _SURROGATE.sub("\ufffd", _INVISIBLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text))
