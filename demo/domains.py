"""Populated SQLite databases: 1 to 12 tables, foreign keys, values that look real, NULLs; no two alike.

    world = make_world(random.Random(1), "train", difficulty=1.0)
    world.write(Path("some.sqlite"))

`questions.py` asks about them. Names and values of the split `held_out` are made of words that no world of the split
`train` has (see `words.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import TYPE_CHECKING

from columns import Author
from naming import Naming
from words import belongs, make_word, plural, read_categories, read_words
from world import Column, Table, World

if TYPE_CHECKING:
    from words import Split
    from world import Cell

ENTITY_KINDS = ("people", "things", "events", "places")
_LABELS = ("name", "name", "title", "label")
# The share of made-up words in a database. Names that no list has teach to copy, so the training has many of them; what
# is asked of the model afterwards has fewer.
_MADE_UP = {"train": (0.3, 0.6, 1.0, 1.0, 1.0), "held_out": (0.0, 0.0, 0.3, 1.0)}
_N_TABLES = {1: 8, 2: 16, 3: 24, 4: 20, 5: 14, 6: 8, 8: 5, 10: 3, 12: 2}  # and how frequent they are


@dataclasses.dataclass(frozen=True)
class _Entity:
    """What a table is about: `words` is one of its things, in the singular."""

    kind: str
    words: list[str]


def make_world(rng: random.Random, split: Split, difficulty: float = 1.0) -> World:
    """A random database; `difficulty` from 0 (one or two narrow tables) to 1 (up to twelve)."""
    (n_tables,) = rng.choices(list(_N_TABLES), list(_N_TABLES.values()))
    n_tables = min(n_tables, 2 + round(difficulty * 10))
    naming, author = Naming(rng), Author(rng, split, made_up=rng.choice(_MADE_UP[split]))
    entities = _choose_entities(author, naming, n_tables)
    tables: list[Table] = []
    for number, entity in enumerate(entities):
        parents = _choose_parents(rng, number)
        known = {parent: (entities[parent].words, len(tables[parent].rows)) for parent in parents}
        tables.append(_make_table(author, naming, entity, known, n_most=2 + round(3 * difficulty)))
    return World(_shuffle(rng, tables), has_key_clauses=rng.random() < 0.25)


def _choose_entities(author: Author, naming: Naming, n_tables: int) -> list[_Entity]:
    """Things whose names differ, also without their modifiers."""
    entities: list[_Entity] = []
    names: set[str] = set()
    while len(entities) < n_tables:
        kind = author.rng.choice(ENTITY_KINDS)
        words = author.word(kind).split("_")
        if author.rng.random() < 0.3:
            words = [author.word("modifiers"), *words][-2:]
        spelled = {naming.table(words).lower(), naming.table(words[-1:]).lower()}
        if not names & spelled:
            names |= spelled
            entities.append(_Entity(kind, words))
    return entities


def _choose_parents(rng: random.Random, number: int) -> list[int]:
    (n_parents,) = rng.choices((0, 1, 2), (1, 6, 3))
    return rng.sample(range(number), min(n_parents, number))


def _make_table(
    author: Author, naming: Naming, entity: _Entity, parents: dict[int, tuple[list[str], int]], n_most: int
) -> Table:
    """A table with a few columns of its own and a key for each parent, whose words and number of rows are given."""
    rng, words = author.rng, entity.words
    n_rows = rng.randint(12, 36) if parents else rng.randint(6, 20)
    found: list[tuple[Column, list[Cell]]] = [(Column(naming.id(words), "id", "id"), list(range(1, n_rows + 1)))]
    if entity.kind != "events" or rng.random() < 0.2:
        label = rng.choice(_LABELS)
        found.append((Column(naming.column(words, [label]), label, "name"), author.names(entity.kind, n_rows)))
    found += [author.column(naming, words, n_rows) for _ in range(rng.randint(1, n_most))]
    for parent, (parent_words, n_parents) in parents.items():
        key = Column(naming.spell([*parent_words, "id"]), f"{' '.join(parent_words)} id", "key", parent=parent)
        used = rng.sample(range(1, n_parents + 1), max(2, n_parents * 3 // 4))
        found.append((key, [rng.choice(used) for _ in range(n_rows)]))
    by_name: dict[str, tuple[Column, list[Cell]]] = {}
    for column, values in found:
        if column.words not in [other.words for other, _ in by_name.values()]:
            by_name.setdefault(column.name.lower(), (column, values))
    columns, cells = zip(*by_name.values(), strict=True)
    many = " ".join([*words[:-1], plural(words[-1])])
    return Table(naming.table(words), " ".join(words), many, tuple(columns), tuple(zip(*cells, strict=True)))


def _shuffle(rng: random.Random, tables: list[Table]) -> tuple[Table, ...]:
    """The tables in another order, with their keys pointing to the same ones."""
    order = rng.sample(range(len(tables)), len(tables))
    places = {old: new for new, old in enumerate(order)}

    def move(column: Column) -> Column:
        return column if column.parent is None else dataclasses.replace(column, parent=places[column.parent])

    return tuple(
        dataclasses.replace(tables[old], columns=tuple(move(column) for column in tables[old].columns)) for old in order
    )


def training_words() -> list[str]:
    """Words as training databases have them, real and made up, for the vocabulary."""
    rng = random.Random(0)
    names = ("first_names", "surnames", "cities", "adjectives", "nouns")
    kinds = (*ENTITY_KINDS, "modifiers", "measures", "moments", *names)
    real = itertools.chain.from_iterable(read_words(kind, "train") for kind in kinds)
    parts = [part for entry in real for part in entry.split("_")]
    values = [value for _, some in read_categories() for value in some if belongs(value, "train")]
    return [*parts, *map(plural, parts), *values, *(make_word(rng, "train", 2) for _ in range(2_000))]
