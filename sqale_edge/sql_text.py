"""SQL as text: its tokens, quoted names, one statement without its trailing semicolons, a statement on one line.

Nothing here decides what may run; the database does that. Text is only taken apart far enough to tell literals, quoted names and
comments from the rest, so that white space can be collapsed without touching a value.
"""

from __future__ import annotations

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


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """The tokens of `sql` as (kind, text), kind one of quoted, comment, space, word, other; joined they are `sql` again."""
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
    parts = [(kind, text) for kind, text in tokens(sql)]
    meaningful = [i for i, (kind, text) in enumerate(parts) if kind not in ("space", "comment") and text != ";"]
    if not meaningful:
        return ""
    return "".join(text for _, text in parts[meaningful[0] : meaningful[-1] + 1])


def one_line(sql: str) -> str:
    """`sql` with white space collapsed outside literals and quoted names, and `-- text` comments as `/* text */`."""
    line = ""
    for kind, text in tokens(sql):
        if kind == "comment":
            body = text[2:] if text.startswith("--") else text[2:].removesuffix("*/")
            line += "/* " + " ".join(body.replace("*/", "* /").split()) + " */"
        else:
            line += " " if kind == "space" else text
        if kind == "space":
            line = line.rstrip(" ") + " "
    return line.strip()
