"""Questions about a world, each with the SQL that answers it and with the way there.

    question = ask(random.Random(1), world)

A question is put together from parts. A part says in words what it is about, and in SQL what that means; the statement
is made of the parts' SQL, and the agent's plan (what the model thinks before it writes the statement) of both. So the
statement can be copied from the plan, and the plan links each phrase of the question to a name of the database.

Every statement gives rows, and the same ones each time: `is_answerable` runs it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Literal

from words import plural

if TYPE_CHECKING:
    import random
    import sqlite3
    from collections.abc import Callable

    from domains import Column, Table, World

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
class _Place:
    """A table in a statement; `prefix` is empty, or `T1.`."""

    table: Table
    prefix: str = ""

    def sql(self, column: Column) -> str:
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
_HOW_MANY = ("How many {} are there", "Count the {}", "What is the number of {}", "Tell me how many {} there are")
_LIST = ("List the {} of the {}", "Show the {} of all {}", "What are the {} of the {}", "Give me the {} of {}")


def _end(text: str) -> str:
    is_question = text.startswith(("How", "What", "Which"))
    return text + ("?" if is_question else ".")


def _label(place: _Place) -> Part:
    column = place.table.label
    return Part(plural(column.words), place.sql(column), "select")


def _count() -> Part:
    return Part("count", "COUNT(*)", "select")


# Conditions: a phrase, the part, and the text to look up if there is one.
_Condition = tuple[str, Part, Lookup | None]


def _condition(rng: random.Random, place: _Place, kind: str) -> _Condition | None:
    """A condition of this kind on a column of the table, or None where it has none."""
    makers = {"text": _text_condition, "number": _number_condition, "date": _date_condition, "null": _null_condition}
    return makers[kind](rng, place)


def _spell(rng: random.Random, stored: str, spoken: str) -> str:
    """How the question writes a stored text: as it is stored, in lower case, or as a name."""
    if spoken == stored and rng.random() < 0.85:
        return stored
    return rng.choices((stored, spoken.lower(), spoken.capitalize()), (3, 4, 1))[0]


def _text_condition(rng: random.Random, place: _Place) -> _Condition | None:
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
        pattern = rng.choice(("whose {} is {}", "with the {} {}", "where the {} is {}"))
    lookup = Lookup(place.table.name, column.name, stored, spoken)
    part = Part(column.words, f"{place.sql(column)} = '{VALUE}'", "where")
    return pattern.format(column.words, value), part, lookup


def _number_condition(rng: random.Random, place: _Place) -> _Condition | None:
    columns = place.table.of_kind("int", "real")
    if not columns:
        return None
    column = rng.choice(columns)
    values = sorted(float(value) for value in place.table.values(column))
    middle = values[rng.randrange(len(values) // 4, max(len(values) // 4 + 1, 3 * len(values) // 4))]
    number = f"{middle:.0f}" if column.kind == "int" or rng.random() < 0.5 else f"{middle:g}"
    symbol, phrases = rng.choices(_COMPARE, (4, 4, 1, 1))[0]
    how = rng.choice(phrases).format(number)
    pattern = rng.choice(("whose {} is {}", "with a {} of {}", "where the {} is {}"))
    part = Part(f"{column.words} {how}", f"{place.sql(column)} {symbol} {number}", "where")
    return pattern.format(column.words, how), part, None


def _date_condition(rng: random.Random, place: _Place) -> _Condition | None:
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


def _null_condition(rng: random.Random, place: _Place) -> _Condition | None:
    columns = [column for column in place.table.columns if column.has_nulls]
    if not columns:
        return None
    column = rng.choice(columns)
    pattern = rng.choice(("without a {}", "that have no {}", "whose {} is missing", "whose {} is not known"))
    return pattern.format(column.words), Part(f"no {column.words}", f"{place.sql(column)} IS NULL", "where"), None


# Questions about one table.


def _single(place: _Place, kind: str, text: str, *parts: Part, lookup: Lookup | None = None, **flags: bool) -> Question:
    table = place.table
    return Question(
        kind, _end(text), ((table.many, table.name),), parts, f"FROM {table.name}", lookup=lookup, **flags
    )


def _count_all(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    return _single(place, "count", rng.choice(_HOW_MANY).format(place.table.many), _count())


def _count_where(kind: str) -> Callable[[random.Random, World], Question | None]:
    def make(rng: random.Random, world: World) -> Question | None:
        place = _Place(rng.choice(world.tables))
        condition = _condition(rng, place, kind)
        if condition is None:
            return None
        phrase, part, lookup = condition
        text = rng.choice(_HOW_MANY).format(f"{place.table.many} {phrase}")
        return _single(place, f"count_{kind}", text, _count(), part, lookup=lookup)

    return make


def _list_where(kind: str) -> Callable[[random.Random, World], Question | None]:
    def make(rng: random.Random, world: World) -> Question | None:
        place = _Place(rng.choice(world.tables))
        condition = _condition(rng, place, kind)
        if condition is None:
            return None
        phrase, part, lookup = condition
        label = _label(place)
        if part.sql.startswith(label.sql):
            return None
        text = rng.choice(_LIST).format(label.words, f"{place.table.many} {phrase}")
        return _single(place, f"list_{kind}", text, label, part, lookup=lookup)

    return make


def _total(rng: random.Random, place: _Place) -> tuple[str, Part] | None:
    columns = place.table.of_kind("int", "real")
    if not columns:
        return None
    column = rng.choice(columns)
    function, words = rng.choice(_TOTALS)
    phrase = f"{rng.choice(words)} {column.words}"
    return phrase, Part(phrase, f"{function}({place.sql(column)})", "select")


def _total_all(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    total = _total(rng, place)
    if total is None:
        return None
    pattern = rng.choice(("What is the {} of the {}", "What is the {} of all {}", "Find the {} of the {}"))
    return _single(place, "total", pattern.format(total[0], place.table.many), total[1])


def _total_where(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    total, condition = _total(rng, place), _condition(rng, place, rng.choice(("text", "text", "number", "date")))
    if total is None or condition is None:
        return None
    pattern = rng.choice(("What is the {} of the {} {}", "Find the {} of {} {}"))
    text = pattern.format(total[0], place.table.many, condition[0])
    return _single(place, "total_where", text, total[1], condition[1], lookup=condition[2])


def _distinct(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    columns = place.table.of_kind("category", "city")
    if not columns:
        return None
    column = rng.choice(columns)
    words, name, many = column.words, column.name, place.table.many
    if rng.random() < 0.5:
        pattern = rng.choice(("How many different {} do the {} have", "How many distinct {} are there among the {}"))
        part = Part(f"different {plural(words)}", f"COUNT(DISTINCT {name})", "select")
        return _single(place, "distinct", pattern.format(plural(words), many), part)
    pattern = rng.choice(("What different {} do the {} have", "List the distinct {} of the {}"))
    part = Part(f"different {plural(words)}", name, "select")
    return _single(place, "distinct", pattern.format(plural(words), many), part, is_distinct=True)


def _top(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    columns = [column for column in place.table.of_kind("int", "real") if not column.has_nulls]
    if not columns:
        return None
    column = rng.choice(columns)
    is_most = rng.random() < 0.6
    word = rng.choice(("highest", "largest") if is_most else ("lowest", "smallest"))
    direction = " DESC" if is_most else ""
    label = _label(place)
    if rng.random() < 0.5:
        pattern = rng.choice(("Which {one} has the {word} {col}? Give its {label}", "What is the {label} of the {one} with the {word} {col}"))
        text = pattern.format(one=place.table.one, word=word, col=column.words, label=place.table.label.words)
        limit = 1
    else:
        limit = rng.randint(2, 5)
        pattern = rng.choice(("List the {labels} of the {n} {many} with the {word} {col}", "What are the {labels} of the {n} {many} with the {word} {col}"))
        text = pattern.format(labels=label.words, n=limit, many=place.table.many, word=word, col=column.words)
    order = Part(f"{word} {column.words}", f"ORDER BY {column.name}{direction} LIMIT {limit}", "order")
    label = dataclasses.replace(label, words=place.table.label.words if limit == 1 else label.words)
    text = text if text.count("?") == 0 else f"{text}."
    question = _single(place, "top", text, label, order, is_ordered=True)
    return dataclasses.replace(question, text=text if text.endswith(".") else question.text)


def _group(rng: random.Random, world: World) -> Question | None:
    place = _Place(rng.choice(world.tables))
    columns = place.table.of_kind("category", "city")
    if not columns:
        return None
    column = rng.choice(columns)
    words, name, many = column.words, column.name, place.table.many
    group = Part(f"each {words}", f"GROUP BY {name}", "group")
    select = Part(words, name, "select")
    choice = rng.random()
    if choice < 0.35:
        pattern = rng.choice(("How many {} are there for each {}", "Show the number of {} for each {}", "Count the {} for each {}"))
        return _single(place, "group", pattern.format(many, words), select, _count(), group)
    if choice < 0.65:
        total = _total(rng, place)
        if total is None:
            return None
        pattern = rng.choice(("What is the {} of the {} for each {}", "Show the {} of the {} for each {}"))
        return _single(place, "group", pattern.format(total[0], many, words), select, total[1], group)
    n = rng.randint(2, 5)
    having = Part(f"more than {n} {many}", f"HAVING COUNT(*) > {n}", "having")
    pattern = rng.choice(("Which {} have more than {} {}", "List the {} with more than {} {}"))
    return _single(place, "having", pattern.format(plural(words), n, many), select, group, having)


# Questions that join.


@dataclasses.dataclass(frozen=True)
class _Join:
    """Joined tables, in the order of the statement, and the conditions between them."""

    places: tuple[_Place, ...]
    keys: tuple[str, ...]

    @property
    def source(self) -> str:
        first, *others = (f"{place.table.name} AS {place.prefix[:-1]}" for place in self.places)
        joined = (f"JOIN {other} ON {key}" for other, key in zip(others, self.keys, strict=True))
        return " ".join([f"FROM {first}", *joined])

    def ask(self, kind: str, text: str, *parts: Part, lookup: Lookup | None = None, **flags: bool) -> Question:
        tables = tuple((place.table.many, place.table.name) for place in self.places)
        ends = (tables[0], tables[-1])
        return Question(
            kind, _end(text), ends, parts, self.source, self.keys, (ends[0][1], ends[1][1]), lookup, **flags
        )


def _keys_of(world: World, child: Table) -> list[tuple[Column, Table]]:
    return [(column, world.tables[column.parent]) for column in child.columns if column.parent is not None]


def _find_join(rng: random.Random, world: World) -> _Join | None:
    """A table and one that it refers to; no other key may join these two."""
    found = [
        (child, key, parent)
        for child in world.tables
        for key, parent in _keys_of(world, child)
        if parent is not child
        and sum(other is parent for _, other in _keys_of(world, child)) == 1
        and not any(other is child for _, other in _keys_of(world, parent))
    ]
    if not found:
        return None
    child, key, parent = rng.choice(found)
    return _Join((_Place(child, "T1."), _Place(parent, "T2.")), (f"T1.{key.name} = T2.{parent.id.name}",))


def _find_long_join(rng: random.Random, world: World) -> _Join | None:
    """Three tables in a row, of which the outer two are joined in no other way."""
    edges = [(child, key, parent) for child in world.tables for key, parent in _keys_of(world, child)]
    neighbours: dict[str, set[str]] = {table.name: set() for table in world.tables}
    for child, _, parent in edges:
        neighbours[child.name].add(parent.name)
        neighbours[parent.name].add(child.name)
    ways = []
    for (a, key_a, b), (c, key_c, d) in itertools.product(edges, edges):
        if b is c and a is not d:  # down a chain
            ways.append((a, b, d, f"T1.{key_a.name} = T2.{b.id.name}", f"T2.{key_c.name} = T3.{d.id.name}"))
        elif a is c and b is not d:  # two that a third one refers to
            ways.append((b, a, d, f"T2.{key_a.name} = T1.{b.id.name}", f"T2.{key_c.name} = T3.{d.id.name}"))
    clear = [
        way
        for way in ways
        if way[2].name not in neighbours[way[0].name] and len(neighbours[way[0].name] & neighbours[way[2].name]) == 1
    ]
    if not clear:
        return None
    *tables, first, second = rng.choice(clear)
    places = tuple(_Place(table, f"T{number}.") for number, table in enumerate(tables, 1))
    return _Join(places, (first, second))


def _join_where(rng: random.Random, world: World, *, is_long: bool = False) -> Question | None:
    """Rows of one table (how many, a total, their names) for which a condition on the other one holds."""
    join = _find_long_join(rng, world) if is_long else _find_join(rng, world)
    if join is None:
        return None
    here, there = join.places[0], join.places[-1]
    if not is_long and rng.random() < 0.3:
        here, there = there, here
    condition = _condition(rng, there, rng.choice(("text", "text", "text", "number", "date")))
    if condition is None:
        return None
    phrase, part, lookup = condition
    other = f"{rng.choice(('for', 'of', 'belonging to'))} {there.table.many} {phrase}"
    kind = "two_joins" if is_long else "join"
    is_sure = here is join.places[0] and not is_long  # each row of the child is joined once
    choice = rng.random()
    if choice < 0.4 and is_sure:
        text = rng.choice(_HOW_MANY).format(f"{here.table.many} {other}")
        return join.ask(kind, text, _count(), part, lookup=lookup)
    total = _total(rng, here)
    if choice < 0.7 and is_sure and total is not None:
        pattern = rng.choice(("What is the {} of the {} {}", "Find the {} of {} {}"))
        return join.ask(kind, pattern.format(total[0], here.table.many, other), total[1], part, lookup=lookup)
    label = _label(here)
    related = rng.choice(("that have {}", "with {}")).format(f"{there.table.many} {phrase}")
    words = f"{here.table.many} {other if here is join.places[0] else related}"
    text = rng.choice(_LIST).format(f"different {label.words}", words)
    label = dataclasses.replace(label, words=f"different {label.words}")
    return join.ask(kind, text, label, part, lookup=lookup, is_distinct=True)


def _join_group(rng: random.Random, world: World) -> Question | None:
    """For each row of the parent, something of its children."""
    join = _find_join(rng, world)
    if join is None:
        return None
    child, parent = join.places
    label = parent.table.label
    name = parent.sql(label)
    group = Part(f"each {parent.table.one}", f"GROUP BY {name}", "group")
    select = Part(label.words, name, "select")
    choice = rng.random()
    if choice < 0.4:
        pattern = rng.choice(("How many {} does each {} have? Show its {} and the number", "Count the {} of each {} by {}"))
        text = pattern.format(child.table.many, parent.table.one, label.words)
        return dataclasses.replace(join.ask("join_group", "", select, _count(), group), text=f"{text}.")
    word, order = rng.choice((("most", "COUNT(*) DESC"), ("fewest", "COUNT(*)")))
    best = Part(f"{word} {child.table.many}", f"ORDER BY {order} LIMIT 1", "order")
    pattern = rng.choice(("Which {one} has the {word} {many}? Give its {label}", "What is the {label} of the {one} with the {word} {many}"))
    text = pattern.format(one=parent.table.one, word=word, many=child.table.many, label=label.words)
    text = f"{text}." if "?" in text else f"{text}?"
    return dataclasses.replace(join.ask("join_top", "", select, group, best), text=text)


def _two_joins(rng: random.Random, world: World) -> Question | None:
    return _join_where(rng, world, is_long=True)


# Maker, weight, and the difficulty from which on it is asked.
_MAKERS: tuple[tuple[Callable[[random.Random, World], Question | None], float, float], ...] = (
    (_count_all, 3, 0.0),
    (_count_where("text"), 9, 0.0),
    (_list_where("text"), 8, 0.0),
    (_total_all, 5, 0.0),
    (_count_where("number"), 5, 0.0),
    (_distinct, 5, 0.0),
    (_list_where("number"), 5, 0.2),
    (_total_where, 7, 0.2),
    (_count_where("date"), 4, 0.2),
    (_list_where("date"), 3, 0.2),
    (_count_where("null"), 2, 0.2),
    (_top, 8, 0.2),
    (_group, 10, 0.3),
    (_join_where, 16, 0.4),
    (_join_group, 8, 0.5),
    (_two_joins, 9, 0.6),
)
KINDS = (
    *("count", "count_text", "count_number", "count_date", "count_null", "list_text", "list_number", "list_date"),
    *("total", "total_where", "distinct", "top", "group", "having", "join", "join_group", "join_top", "two_joins"),
)


def ask(rng: random.Random, world: World, difficulty: float = 1.0) -> Question | None:
    """A random question about `world`, or None where the world has nothing of the kind that was drawn."""
    makers = [(make, weight) for make, weight, start in _MAKERS if start <= difficulty]
    (make,) = rng.choices([make for make, _ in makers], [weight for _, weight in makers])
    return make(rng, world)


def is_answerable(question: Question, connection: sqlite3.Connection) -> bool:
    """Whether the statement gives rows, at most 200, without a NULL in them, and without a tie that LIMIT cuts."""
    rows = connection.execute(question.sql()).fetchmany(201)
    if not 0 < len(rows) <= 200 or any(cell is None for row in rows for cell in row):
        return False
    if rows == [(0,)]:
        return False  # not to be told apart from a wrong literal
    head, limit, count = question.sql().rpartition(" LIMIT ")
    if not limit:
        return True
    order = next(part.sql for part in question.parts if part.clause == "order")
    key = order.removeprefix("ORDER BY ").partition(" LIMIT ")[0].removesuffix(" DESC")
    keyed = f"{head.replace('SELECT ', f'SELECT {key}, ', 1)} LIMIT {int(count) + 1}"
    keys = [row[0] for row in connection.execute(keyed)]
    return len(keys) >= int(count) and len(set(keys)) == len(keys)
