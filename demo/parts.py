"""What a question is made of: a part says in words what it is about, and in SQL what that means.

The statement is made of the parts' SQL, and the agent's plan (what the model thinks before it writes the statement) of
both. So the statement can be copied from the plan, and the plan links each phrase of the question to a name of the
database.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from words import plural

if TYPE_CHECKING:
    import random

    from world import Column, Table

Clause = Literal["select", "where", "group", "having", "order"]

VALUE = "\x00"  # stands for the literal until it is known how the data spells it


@dataclasses.dataclass(frozen=True)
class Part:
    """A phrase of the question, what it means in SQL, and where in the statement that belongs."""

    words: str
    sql: str
    clause: Clause


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A text that the question looks for: where it is stored, how, and how the question writes it."""

    table: str
    column: str
    stored: str
    spoken: str


@dataclasses.dataclass(frozen=True)
class Question:
    """A question and its answer.

    Attributes:
        kind: One of `KINDS`.
        tables: What the question calls them, and their names, in the order of the statement.
        path: The two tables to be joined, which others may lie between.
        source: What stands after FROM.
        is_distinct: SELECT DISTINCT.
        is_ordered: The order of the rows is part of the answer.
    """

    kind: str
    text: str
    tables: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    source: str
    keys: tuple[str, ...] = ()
    path: tuple[str, str] | None = None
    lookup: Lookup | None = None
    is_distinct: bool = False
    is_ordered: bool = False

    def sql(self, literal: str | None = None) -> str:
        """The statement; `literal` takes the place of the text as it is stored."""
        clauses = {
            name: [part.sql for part in self.parts if part.clause == name]
            for name in ("select", "where", "group", "having", "order")
        }
        pieces = ["SELECT", *(["DISTINCT"] if self.is_distinct else []), ", ".join(clauses["select"]), self.source]
        if clauses["where"]:
            pieces += ["WHERE", " AND ".join(clauses["where"])]
        pieces += [sql for name in ("group", "having", "order") for sql in clauses[name]]
        return self._fill(" ".join(pieces), literal)

    def plan(self, literal: str | None = None) -> str:
        """What the statement is made of, in the order of the statement."""
        parts = [f"{part.words}: {part.sql}" for part in self.parts]
        return self._fill("; ".join([*self.keys, *parts]), literal)

    def _fill(self, text: str, literal: str | None) -> str:
        stored = self.lookup.stored if self.lookup else ""
        return text.replace(VALUE, (stored if literal is None else literal).replace("'", "''"))


@dataclasses.dataclass(frozen=True)
class Place:
    """A table in a statement; `prefix` is empty, or `T1.`."""

    table: Table
    prefix: str = ""

    def sql(self, column: Column) -> str:
        """A column in the statement."""
        return self.prefix + column.name


_COMPARE = (
    (">", ("above {}", "more than {}", "greater than {}", "over {}")),
    ("<", ("below {}", "less than {}", "under {}", "smaller than {}")),
    (">=", ("at least {}", "no less than {}")),
    ("<=", ("at most {}", "no more than {}")),
)
_TOTALS = (
    ("AVG", ("average", "mean")),
    ("SUM", ("total", "sum of the")),
    ("MAX", ("highest", "maximum", "largest")),
    ("MIN", ("lowest", "minimum", "smallest")),
)
HOW_MANY = ("How many {} are there", "Count the {}", "What is the number of {}", "Tell me how many {} there are")
LIST = ("List the {} of the {}", "Show the {} of all {}", "What are the {} of the {}", "Give me the {} of {}")


def add_end(text: str) -> str:
    """`text` with a question mark or a full stop."""
    is_question = text.startswith(("How", "What", "Which"))
    return text + ("?" if is_question else ".")


def make_label(place: Place) -> Part:
    """What the rows of a table are called by."""
    column = place.table.label
    return Part(plural(column.words), place.sql(column), "select")


def make_count() -> Part:
    """How many rows there are."""
    return Part("count", "COUNT(*)", "select")


# Conditions: a phrase, the part, and the text to look up if there is one.
_Condition = tuple[str, Part, Lookup | None]


def make_condition(rng: random.Random, place: Place, kind: str) -> _Condition | None:
    """A condition of this kind on a column of the table, or None where it has none."""
    makers = {"text": _text_condition, "number": _number_condition, "date": _date_condition, "null": _null_condition}
    return makers[kind](rng, place)


def _spell(rng: random.Random, stored: str, spoken: str) -> str:
    """How the question writes a stored text: as it is stored, in lower case, or as a name."""
    if spoken == stored and rng.random() < 0.6:
        return stored
    return rng.choices((stored, spoken.lower(), spoken.capitalize()), (3, 4, 2))[0]


def _text_condition(rng: random.Random, place: Place) -> _Condition | None:
    columns = place.table.of_kind("category", "city")
    if not columns or (place.table.of_kind("name") and rng.random() < 0.2):
        columns = place.table.of_kind("name")
    if not columns:
        return None
    column = rng.choice(columns)
    stored = str(rng.choice(place.table.values(column)))
    spoken = stored if column.kind == "name" else _spell(rng, stored, column.spoken[stored])
    quote = rng.choices(("", '"'), (5, 1))[0]
    value = f"{quote}{spoken}{quote}"
    pattern = rng.choice(("whose {} is {}", "with {} {}", "where the {} is {}", "that have {} {}"))
    if column.kind == "name":
        pattern = rng.choice(("whose {} is {}", "with the {} {}", "where the {} is {}", "named {1}", "called {1}"))
    lookup = Lookup(place.table.name, column.name, stored, spoken)
    part = Part(column.words, f"{place.sql(column)} = '{VALUE}'", "where")
    return pattern.format(column.words, value), part, lookup


def _number_condition(rng: random.Random, place: Place) -> _Condition | None:
    columns = place.table.of_kind("int", "real")
    if not columns:
        return None
    column = rng.choice(columns)
    values = sorted(float(value or 0) for value in place.table.values(column))
    middle = values[rng.randrange(len(values) // 4, max(len(values) // 4 + 1, 3 * len(values) // 4))]
    number = f"{middle:.0f}" if column.kind == "int" or rng.random() < 0.5 else f"{middle:g}"
    symbol, phrases = rng.choices(_COMPARE, (4, 4, 1, 1))[0]
    how = rng.choice(phrases).format(number)
    pattern = rng.choice(("whose {} is {}", "with a {} of {}", "where the {} is {}"))
    part = Part(f"{column.words} {how}", f"{place.sql(column)} {symbol} {number}", "where")
    return pattern.format(column.words, how), part, None


def _date_condition(rng: random.Random, place: Place) -> _Condition | None:
    columns = place.table.of_kind("date")
    if not columns:
        return None
    column = rng.choice(columns)
    word = column.words.split()[0]
    date = str(rng.choice(place.table.values(column)))
    name = place.sql(column)
    how, sql = rng.choice(
        (
            (f"in {date[:4]}", f"strftime('%Y', {name}) = '{date[:4]}'"),
            (f"after {date}", f"{name} > '{date}'"),
            (f"before {date}", f"{name} < '{date}'"),
            (f"on {date}", f"{name} = '{date}'"),
        )
    )
    return rng.choice((f"{word} {how}", f"that were {word} {how}")), Part(f"{word} {how}", sql, "where"), None


def _null_condition(rng: random.Random, place: Place) -> _Condition | None:
    columns = [column for column in place.table.columns if column.has_nulls]
    if not columns:
        return None
    column = rng.choice(columns)
    pattern = rng.choice(("without a {}", "that have no {}", "whose {} is missing", "whose {} is not known"))
    return pattern.format(column.words), Part(f"no {column.words}", f"{place.sql(column)} IS NULL", "where"), None


def make_total(rng: random.Random, place: Place) -> tuple[str, Part] | None:
    """A total of a numeric column: a phrase, and its part; None where there is no such column."""
    columns = place.table.of_kind("int", "real")
    if not columns:
        return None
    column = rng.choice(columns)
    function, words = rng.choice(_TOTALS)
    phrase = f"{rng.choice(words)} {column.words}"
    return phrase, Part(phrase, f"{function}({place.sql(column)})", "select")
