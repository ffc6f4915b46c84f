"""Questions about a world, each with the SQL that answers it and with the way there.

    question = ask(random.Random(1), world)

Every statement gives rows, and the same ones each time: `is_answerable` runs it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from joins import join_group, join_where, two_joins
from parts import (
    HOW_MANY,
    LIST,
    Lookup,
    Part,
    Place,
    Question,
    add_end,
    make_condition,
    make_count,
    make_label,
    make_total,
)
from words import plural

if TYPE_CHECKING:
    import random
    import sqlite3
    from collections.abc import Callable

    from world import World

    _Maker = Callable[[random.Random, World], Question | None]


def _single(place: Place, kind: str, text: str, *parts: Part, lookup: Lookup | None = None, **flags: Any) -> Question:
    table = place.table
    return Question(
        kind, add_end(text), ((table.many, table.name),), parts, f"FROM {table.name}", lookup=lookup, **flags
    )


def _count_all(rng: random.Random, world: World) -> Question | None:
    place = Place(rng.choice(world.tables))
    return _single(place, "count", rng.choice(HOW_MANY).format(place.table.many), make_count())


def _count_where(kind: str) -> Callable[[random.Random, World], Question | None]:
    def make(rng: random.Random, world: World) -> Question | None:
        place = Place(rng.choice(world.tables))
        condition = make_condition(rng, place, kind)
        if condition is None:
            return None
        phrase, part, lookup = condition
        text = rng.choice(HOW_MANY).format(f"{place.table.many} {phrase}")
        return _single(place, f"count_{kind}", text, make_count(), part, lookup=lookup)

    return make


def _list_where(kind: str) -> Callable[[random.Random, World], Question | None]:
    def make(rng: random.Random, world: World) -> Question | None:
        place = Place(rng.choice(world.tables))
        condition = make_condition(rng, place, kind)
        if condition is None:
            return None
        phrase, part, lookup = condition
        label = make_label(place)
        if part.sql.startswith(label.sql):
            return None
        text = rng.choice(LIST).format(label.words, f"{place.table.many} {phrase}")
        return _single(place, f"list_{kind}", text, label, part, lookup=lookup)

    return make


def _total_all(rng: random.Random, world: World) -> Question | None:
    place = Place(rng.choice(world.tables))
    total = make_total(rng, place)
    if total is None:
        return None
    pattern = rng.choice(("What is the {} of the {}", "What is the {} of all {}", "Find the {} of the {}"))
    return _single(place, "total", pattern.format(total[0], place.table.many), total[1])


def _total_where(rng: random.Random, world: World) -> Question | None:
    place = Place(rng.choice(world.tables))
    total, condition = (
        make_total(rng, place),
        make_condition(rng, place, rng.choice(("text", "text", "number", "date"))),
    )
    if total is None or condition is None:
        return None
    pattern = rng.choice(("What is the {} of the {} {}", "Find the {} of {} {}"))
    text = pattern.format(total[0], place.table.many, condition[0])
    return _single(place, "total_where", text, total[1], condition[1], lookup=condition[2])


def _distinct(rng: random.Random, world: World) -> Question | None:
    place = Place(rng.choice(world.tables))
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
    place = Place(rng.choice(world.tables))
    columns = [column for column in place.table.of_kind("int", "real") if not column.has_nulls]
    if not columns:
        return None
    column = rng.choice(columns)
    is_most = rng.random() < 0.6
    word = rng.choice(("highest", "largest") if is_most else ("lowest", "smallest"))
    direction = " DESC" if is_most else ""
    label = make_label(place)
    if rng.random() < 0.5:
        pattern = rng.choice(
            (
                "Which {one} has the {word} {col}? Give its {label}",
                "What is the {label} of the {one} with the {word} {col}",
            )
        )
        text = pattern.format(one=place.table.one, word=word, col=column.words, label=place.table.label.words)
        limit = 1
    else:
        limit = rng.randint(2, 5)
        pattern = rng.choice(
            (
                "List the {labels} of the {n} {many} with the {word} {col}",
                "What are the {labels} of the {n} {many} with the {word} {col}",
            )
        )
        text = pattern.format(labels=label.words, n=limit, many=place.table.many, word=word, col=column.words)
    order = Part(f"{word} {column.words}", f"ORDER BY {column.name}{direction} LIMIT {limit}", "order")
    label = dataclasses.replace(label, words=place.table.label.words if limit == 1 else label.words)
    text = text if text.count("?") == 0 else f"{text}."
    question = _single(place, "top", text, label, order, is_ordered=True)
    return dataclasses.replace(question, text=text if text.endswith(".") else question.text)


def _group(rng: random.Random, world: World) -> Question | None:
    place = Place(rng.choice(world.tables))
    columns = place.table.of_kind("category", "city")
    if not columns:
        return None
    column = rng.choice(columns)
    words, name, many = column.words, column.name, place.table.many
    group = Part(f"each {words}", f"GROUP BY {name}", "group")
    select = Part(words, name, "select")
    choice = rng.random()
    if choice < 0.35:
        pattern = rng.choice(
            ("How many {} are there for each {}", "Show the number of {} for each {}", "Count the {} for each {}")
        )
        return _single(place, "group", pattern.format(many, words), select, make_count(), group)
    if choice < 0.65:
        total = make_total(rng, place)
        if total is None:
            return None
        pattern = rng.choice(("What is the {} of the {} for each {}", "Show the {} of the {} for each {}"))
        return _single(place, "group", pattern.format(total[0], many, words), select, total[1], group)
    n = rng.randint(2, 5)
    having = Part(f"more than {n} {many}", f"HAVING COUNT(*) > {n}", "having")
    pattern = rng.choice(("Which {} have more than {} {}", "List the {} with more than {} {}"))
    return _single(place, "having", pattern.format(plural(words), n, many), select, group, having)


# Maker, weight, how much more often the training asks it than the evaluation, and the difficulty from which on.
_MAKERS: tuple[tuple[_Maker, float, float, float], ...] = (
    (_count_all, 3, 0.7, 0.0),
    (_count_where("text"), 9, 1.0, 0.0),
    (_list_where("text"), 8, 1.0, 0.0),
    (_total_all, 5, 0.7, 0.0),
    (_count_where("number"), 5, 0.7, 0.0),
    (_distinct, 5, 1.0, 0.0),
    (_list_where("number"), 5, 1.0, 0.2),
    (_total_where, 7, 1.0, 0.2),
    (_count_where("date"), 4, 1.0, 0.2),
    (_list_where("date"), 3, 1.0, 0.2),
    (_count_where("null"), 2, 1.0, 0.2),
    (_top, 8, 1.0, 0.2),
    (_group, 10, 1.2, 0.3),
    (join_where, 16, 1.5, 0.4),
    (join_group, 8, 1.2, 0.5),
    (two_joins, 9, 1.5, 0.6),
)
KINDS = (
    *("count", "count_text", "count_number", "count_date", "count_null", "list_text", "list_number", "list_date"),
    *("total", "total_where", "distinct", "top", "group", "having", "join", "join_group", "join_top", "two_joins"),
)


def ask(rng: random.Random, world: World, difficulty: float = 1.0, *, is_practice: bool = False) -> Question | None:
    """A random question about `world`, or None where the world has nothing of the kind that was drawn."""
    makers = [
        (make, weight * (practice if is_practice else 1))
        for make, weight, practice, start in _MAKERS
        if start <= difficulty
    ]
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
