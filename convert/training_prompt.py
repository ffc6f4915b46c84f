"""The texts that a model was trained with, taken out of the `sqale_agent.py` beside its weights, as `sqale.*` metadata.

Each text has a role. Roles are recognised by the usual names first, by what the text says otherwise. Whatever is found
is also kept, under its own name, in `sqale.texts`. The runtime (`sqale_edge.protocol`) reads these keys and uses its
own wording for those that are missing:

`sqale.prompt.system`      the instructions, ready to use
`sqale.prompt.user`        the user message; its field is `{question}`
`sqale.prompt.user_style`  `format`: a template of `str.format`, `{{` is a brace; `plain`: only `{question}` is special
`sqale.prompt.result`      what stands before a tool's result
`sqale.prompt.budget`      how many tool turns are left; only `{n}` is special
`sqale.prompt.budget_one`  the same for one turn
`sqale.prompt.limit`       the message that ends the exploration; only `{query}`, the last query that ran, is special
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Literal

from .effort import limited_effort
from .foreign import find_unwritable, is_there, read_text, shorten
from .source_reader import find_texts
from .texts import Hole, Text, split_fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .source_reader import Uses
    from .writer import Field

# The same names stand in `sqale_edge.protocol`, which a conversion does not need; the tests hold the two together.
SYSTEM_KEY = "sqale.prompt.system"
USER_KEY = "sqale.prompt.user"
USER_STYLE_KEY = "sqale.prompt.user_style"
RESULT_KEY = "sqale.prompt.result"
BUDGET_KEY = "sqale.prompt.budget"
BUDGET_ONE_KEY = "sqale.prompt.budget_one"
LIMIT_KEY = "sqale.prompt.limit"
TEXTS_KEY = "sqale.texts"
ROLE_KEYS = (SYSTEM_KEY, USER_KEY, RESULT_KEY, BUDGET_KEY, BUDGET_ONE_KEY, LIMIT_KEY)

SOURCE_NAME = "sqale_agent.py"
_SOURCE_LIMIT = 1 << 18
_TEXTS_LIMIT = 1 << 18
_MANY = 3  # any count for which a plural is written
_OPEN = "\0"  # stands in no source

# Usual names of each role, and words that its text must have then. Each pattern takes time in proportion to the text.
_SYSTEM_NAME, _SYSTEM_WORDS = re.compile(r"(^|_)SYS(TEM)?(_|$)"), re.compile(r"\w\W+\w")
_USER_NAME = re.compile(r"(^|_)(USER|QUESTION|TASK)(_|$)")
_RESULT_NAME = re.compile(r"TOOL_RESULT|RESULT_(PREFIX|HEADER|TEMPLATE)")
_BUDGET_NAME = re.compile(r"BUDGET|TURNS_LEFT|REMAINING")
_LIMIT_NAME = re.compile(
    r"EXPLORATION|FORCE_FINAL|FINAL_(TURN|ANSWER|MESSAGE|PROMPT)|LIMIT_(MESSAGE|PROMPT|TEMPLATE|TEXT)"
)
_LIMIT_WORDS = re.compile(r"sql|query", re.IGNORECASE)
_ONLY, _TURNS, _LEFT = (
    re.compile(pattern, re.IGNORECASE) for pattern in (r"\bonly\b", r"\bturns?\b", r"\b(left|remain)")
)
_RESULT_SAYS = re.compile(r"tool results?\b[^\n{]*", re.IGNORECASE)
_ONE_TURN = re.compile(r"\b(1|one)( tool)? turn\b", re.IGNORECASE)
_SHORTEST_SYSTEM = 200  # characters of a text that says it is one
_MOST_TRIED = 16  # texts for one role, and holes in one of them


@dataclasses.dataclass(frozen=True)
class TrainingPrompt:
    """What was found.

    Attributes:
        texts: Metadata keys and their values.
        found: For each role's key, the name that the text has in the source.
        missing: The keys of the roles that were not found.
        notes: What a person should know.
    """

    texts: dict[str, str]
    found: dict[str, str]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_metadata(self) -> list[Field]:
        """The `sqale.*` keys of the prompt."""
        return [(key, "str", value) for key, value in self.texts.items()]


def read_training_prompt(folder: Path) -> TrainingPrompt:
    """The texts in the folder's `sqale_agent.py`; none where there is no such file.

    Raises:
        CheckpointError: The file is there, but it is too large or too intricate, no text, or no Python.
    """
    path = folder / SOURCE_NAME
    if not is_there(path):
        return TrainingPrompt({}, {}, ROLE_KEYS, (f"there is no {SOURCE_NAME} in the checkpoint",))
    source = read_text(path, limit=_SOURCE_LIMIT)
    with limited_effort(path):
        return _assign_roles(*find_texts(source, path))


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A text with its fields as holes; `shown` has them as `{source}`."""

    name: str
    text: Text
    shown: str
    style: Literal["format", "plain"]


def _assign_roles(texts: dict[str, Text], uses: Uses) -> TrainingPrompt:
    candidates = [_make_candidate(name, text, uses) for name, text in texts.items()]
    values: dict[str, str] = {}
    found: dict[str, str] = {}
    notes: list[str] = []
    for find in (_find_system, _find_limit, _find_budget, _find_result, _find_user):
        free = [candidate for candidate in candidates if candidate.name not in found.values()]
        finding = find(free, notes)
        problems = {name: problem for name, value in finding.values() if (problem := find_unwritable(value))}
        notes += [f"{name} is not used as part of the prompt: it has {problem}" for name, problem in problems.items()]
        for key, (name, value) in ({} if problems else finding).items():
            values[key] = value
            if key in ROLE_KEYS:
                found[key] = name
    missing = tuple(key for key in ROLE_KEYS if key not in values)
    if candidates:
        values[TEXTS_KEY] = _dump(candidates, notes)
    return TrainingPrompt(values, found, missing, tuple(map(shorten, notes)))


def _make_candidate(name: str, text: Text, uses: Uses) -> _Candidate:
    """A constant that the program fills in elsewhere gets its fields as holes."""
    last = name.rpartition(".")[2]
    style: Literal["format", "plain"] = "format"
    template = None
    if text.constant is not None:
        template = split_fields(text.constant)
        has_fields = template is not None and all(hole.isidentifier() for hole in template.holes())
        if fields := uses.replaced.get(last):
            template, style = split_fields(text.constant, fields=fields), "plain"
        elif "{question}" in text.constant and last not in uses.formatted and not has_fields:
            # Not said how it is filled in, and braces that are no fields: JSON, most likely.
            template, style = split_fields(text.constant, fields=["question"]), "plain"
        elif last not in uses.formatted and not _USER_NAME.search(last.upper()):
            template = None
    text = template or text
    return _Candidate(name, text, text.render(show=lambda hole: f"{{{hole.source}}}"), style)


def _rank(
    candidates: list[_Candidate],
    name: re.Pattern[str],
    words: Callable[[str], object],
    says: Callable[[_Candidate], object],
) -> list[_Candidate]:
    """Those of a usual name, then those that say what the role says; as many as are tried."""
    named = [one for one in candidates if name.search(one.name.rpartition(".")[2].upper()) and words(one.shown)]
    names = {one.name for one in named}
    return (named + [one for one in candidates if one.name not in names and says(one)])[:_MOST_TRIED]


def _says_system(one: _Candidate) -> bool:
    text = one.shown.lower()
    return len(text) >= _SHORTEST_SYSTEM and "tool" in text and "submit_sql" in text


def _says_limit(one: _Candidate) -> bool:
    text = one.shown.lower()
    return "exploration" in text and "sql" in text and _ONLY.search(text) is not None


def _find_budget_line(text: str) -> str | None:
    """The first line that says how many turns are left."""
    for line in text.split("\n"):
        if (turns := _TURNS.search(line)) and _LEFT.search(line, turns.end()):
            return line
    return None


def _asks_question(one: _Candidate) -> bool:
    return any("question" in hole.lower() for hole in one.text.holes())


_Finding = dict[str, tuple[str, str]]  # key to the name in the source and the text


def _find_system(candidates: list[_Candidate], notes: list[str]) -> _Finding:
    ranked = _rank(candidates, _SYSTEM_NAME, _SYSTEM_WORDS.search, _says_system)
    for one in ranked:
        if not (holes := one.text.holes()):
            return {SYSTEM_KEY: (one.name, one.text.render(show=str))}
        notes.append(f"{one.name} is not used as the system prompt: {_list(holes)} in it is only known at run time")
    return {}


def _find_limit(candidates: list[_Candidate], notes: list[str]) -> _Finding:
    for one in _rank(candidates, _LIMIT_NAME, _LIMIT_WORDS.search, _says_limit):
        holes = one.text.holes()
        asked = next((hole for hole in holes if _LIMIT_WORDS.search(hole)), holes[0] if len(holes) == 1 else None)
        _note_others(one, holes, asked, notes)
        return {LIMIT_KEY: (one.name, one.text.render(show=_filler(asked, "{query}")))}
    return {}


def _filler(asked: str | None, marker: str) -> Callable[[Hole], str]:
    """Shows one hole as a field, and leaves the others out."""
    return lambda hole: marker if hole.source == asked else ""


def _find_budget(candidates: list[_Candidate], notes: list[str]) -> _Finding:
    """The line with the number of turns left, as it is for more turns and for one."""
    del notes
    finding: _Finding = {}
    for one in _rank(candidates, _BUDGET_NAME, _find_budget_line, lambda one: _find_budget_line(one.shown)):
        holes = one.text.every_hole()[:_MOST_TRIED]
        if not holes and _ONE_TURN.search(one.shown):
            finding.setdefault(BUDGET_ONE_KEY, (one.name, one.shown))
        for hole in holes:
            many, single = _budget_line(one.text, hole, _MANY), _budget_line(one.text, hole, 1)
            if "{n}" in many and BUDGET_KEY not in finding:
                finding[BUDGET_KEY] = (one.name, many)
                if single != many:  # the text knows its own singular
                    finding[BUDGET_ONE_KEY] = (one.name, single.replace("{n}", "1"))
    if BUDGET_KEY in finding:
        name, many = finding[BUDGET_KEY]
        finding.setdefault(BUDGET_ONE_KEY, (name, many.replace("{n}", "1")))
    return finding


def _budget_line(text: Text, hole: str, count: int) -> str:
    """The line of `text` that says how many turns are left, if nothing else in it is open; else an empty one."""
    whole = text.render(show=lambda each: "{n}" if each.source == hole else _OPEN, values={hole: count})
    line = _find_budget_line(whole)
    return line if line and _OPEN not in line else ""


def _find_result(candidates: list[_Candidate], notes: list[str]) -> _Finding:
    del notes
    for one in _rank(candidates, _RESULT_NAME, _RESULT_SAYS.search, lambda one: _RESULT_SAYS.search(one.shown)):
        known = next(one.text.flatten({}), "")
        head = _RESULT_SAYS.match(known.lstrip()) if isinstance(known, str) else None
        if head and (heading := head.group().strip()).endswith(":"):
            return {RESULT_KEY: (one.name, heading)}
    return {}


def _find_user(candidates: list[_Candidate], notes: list[str]) -> _Finding:
    """The user message. Where a condition decides (is there evidence?) without: the runtime adds it itself."""
    for one in _rank(candidates, _USER_NAME, lambda text: "{" in text, _asks_question):
        holes = one.text.holes(unknown=False)
        asked = next((hole for hole in holes if "question" in hole.lower()), holes[0] if len(holes) == 1 else None)
        if asked is None:
            continue
        _note_others(one, holes, asked, notes)
        literal = _double_braces if one.style == "format" else str
        value = one.text.render(show=_filler(asked, "{question}"), literal=literal, unknown=False)
        return {USER_KEY: (one.name, value), USER_STYLE_KEY: (one.name, one.style)}
    return {}


def _double_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _note_others(one: _Candidate, holes: list[str], asked: str | None, notes: list[str]) -> None:
    if others := [hole for hole in holes if hole != asked]:
        notes.append(f"{one.name}: {_list(others)} is left out of the text")


def _list(holes: list[str]) -> str:
    return ", ".join(shorten(hole, 80) for hole in holes)


def _dump(candidates: list[_Candidate], notes: list[str]) -> str:
    """All texts as one JSON object, as many as fit; escapes stand for what no file can hold."""
    kept: dict[str, str] = {}
    n_chars = 0
    for one in candidates:
        n_chars += len(one.name) + len(one.shown)
        if n_chars <= _TEXTS_LIMIT:
            kept[one.name] = one.shown
    if len(kept) < len(candidates):
        notes.append(f"{len(candidates) - len(kept)} long texts are not kept in {TEXTS_KEY}")
    document = json.dumps(kept, ensure_ascii=False)
    return json.dumps(kept) if find_unwritable(document) else document
