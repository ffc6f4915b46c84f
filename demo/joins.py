"""Questions about two or three tables, joined along foreign keys."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import random

    from world import Column, Table, World


@dataclasses.dataclass(frozen=True)
class _Join:
    """Joined tables, in the order of the statement, and the conditions between them."""

    places: tuple[Place, ...]
    keys: tuple[str, ...]

    @property
    def source(self) -> str:
        first, *others = (f"{place.table.name} AS {place.prefix[:-1]}" for place in self.places)
        joined = (f"JOIN {other} ON {key}" for other, key in zip(others, self.keys, strict=True))
        return " ".join([f"FROM {first}", *joined])

    def ask(self, kind: str, text: str, *parts: Part, lookup: Lookup | None = None, **flags: Any) -> Question:
        tables = tuple((place.table.many, place.table.name) for place in self.places)
        ends = (tables[0], tables[-1])
        return Question(
            kind, add_end(text), ends, parts, self.source, self.keys, (ends[0][1], ends[1][1]), lookup, **flags
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
    return _Join((Place(child, "T1."), Place(parent, "T2.")), (f"T1.{key.name} = T2.{parent.id.name}",))


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
    places = tuple(Place(table, f"T{number}.") for number, table in enumerate(tables, 1))
    return _Join(places, (first, second))


def join_where(rng: random.Random, world: World, *, is_long: bool = False) -> Question | None:
    """Rows of one table (how many, a total, their names) for which a condition on the other one holds."""
    join = _find_long_join(rng, world) if is_long else _find_join(rng, world)
    if join is None:
        return None
    here, there = join.places[0], join.places[-1]
    if not is_long and rng.random() < 0.3:
        here, there = there, here
    condition = make_condition(rng, there, rng.choice(("text", "text", "text", "number", "date")))
    if condition is None:
        return None
    phrase, part, lookup = condition
    other = f"{rng.choice(('for', 'of', 'belonging to'))} {there.table.many} {phrase}"
    kind = "two_joins" if is_long else "join"
    is_sure = here is join.places[0] and not is_long  # each row of the child is joined once
    choice = rng.random()
    if choice < 0.4 and is_sure:
        text = rng.choice(HOW_MANY).format(f"{here.table.many} {other}")
        return join.ask(kind, text, make_count(), part, lookup=lookup)
    total = make_total(rng, here)
    if choice < 0.7 and is_sure and total is not None:
        pattern = rng.choice(("What is the {} of the {} {}", "Find the {} of {} {}"))
        return join.ask(kind, pattern.format(total[0], here.table.many, other), total[1], part, lookup=lookup)
    label = make_label(here)
    related = rng.choice(("that have {}", "with {}")).format(f"{there.table.many} {phrase}")
    words = f"{here.table.many} {other if here is join.places[0] else related}"
    text = rng.choice(LIST).format(f"different {label.words}", words)
    label = dataclasses.replace(label, words=f"different {label.words}")
    return join.ask(kind, text, label, part, lookup=lookup, is_distinct=True)


def join_group(rng: random.Random, world: World) -> Question | None:
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
        pattern = rng.choice(
            ("How many {} does each {} have? Show its {} and the number", "Count the {} of each {} by {}")
        )
        text = pattern.format(child.table.many, parent.table.one, label.words)
        return dataclasses.replace(join.ask("join_group", "", select, make_count(), group), text=f"{text}.")
    word, order = rng.choice((("most", "COUNT(*) DESC"), ("fewest", "COUNT(*)")))
    best = Part(f"{word} {child.table.many}", f"ORDER BY {order} LIMIT 1", "order")
    pattern = rng.choice(
        (
            "Which {one} has the {word} {many}? Give its {label}",
            "What is the {label} of the {one} with the {word} {many}",
        )
    )
    text = pattern.format(one=parent.table.one, word=word, many=child.table.many, label=label.words)
    text = f"{text}." if "?" in text else f"{text}?"
    return dataclasses.replace(join.ask("join_top", "", select, group, best), text=text)


def two_joins(rng: random.Random, world: World) -> Question | None:
    """The same with a table between the two."""
    return join_where(rng, world, is_long=True)
