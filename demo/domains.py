"""Populated SQLite databases: 1 to 12 tables, foreign keys, values that look real, NULLs; no two alike.

    world = make_world(random.Random(1), "train", difficulty=1.0)
    world.write(Path("some.sqlite"))

A world is a plain description; `questions.py` asks about it. Names and values of the split `held_out` are made of words
that no world of the split `train` has (see `words.py`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import random
import sqlite3
from typing import TYPE_CHECKING, Literal

from words import belongs, make_word, plural, read_categories, read_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from words import Split

Kind = Literal["id", "name", "key", "int", "real", "category", "city", "date"]
Cell = str | int | float | None

_ENTITY_KINDS = ("people", "things", "events", "places")
_LABELS = ("name", "name", "title", "label")
_CITY_WORDS = ("city", "town", "hometown", "location", "venue", "site", "birthplace", "destination", "region", "port")
# Words that SQLite would not take as a name without quotes.
_RESERVED = frozenset(
    "order group index table transaction values select from where join on as by to in is not null check default case "
    "end exists primary references release all and or set key match commit view trigger plan query range rows row over "
    "window filter limit offset partition replace update delete insert natural left right inner outer cross full "
    "temp temporary cast collate column create cascade conflict constraint escape except intersect union".split()
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name in SQL, and the words that a person says for it."""

    name: str
    words: str
    kind: Kind
    parent: int | None = None  # for a key: the position of the table it points to
    has_nulls: bool = False
    spoken: dict[str, str] = dataclasses.field(default_factory=dict)  # stored value -> how people write it


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: its name in SQL, the words for one and for several of what it holds, and its rows."""

    name: str
    one: str
    many: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def of_kind(self, *kinds: Kind) -> list[Column]:
        """Its columns of these kinds."""
        return [column for column in self.columns if column.kind in kinds]

    def values(self, column: Column) -> list[Cell]:
        """The column's values that are not NULL."""
        place = self.columns.index(column)
        return [row[place] for row in self.rows if row[place] is not None]

    @property
    def label(self) -> Column:
        """What its rows are called by: a name, or else the id."""
        return next((column for column in self.columns if column.kind == "name"), self.columns[0])

    @property
    def id(self) -> Column:
        """Its primary key."""
        return self.columns[0]


@dataclasses.dataclass(frozen=True)
class World:
    """A database, described."""

    tables: tuple[Table, ...]
    has_key_clauses: bool  # foreign keys stand at the end of the statement, not beside their column

    def write(self, path: Path) -> None:
        """Write the database to a new file."""
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for table in self.tables:
            connection.execute(self.statement(table))
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)
        connection.execute("COMMIT")
        connection.close()

    def statement(self, table: Table) -> str:
        """The CREATE TABLE statement."""
        parts, clauses = [], []
        types = {"id": "INTEGER PRIMARY KEY", "key": "INTEGER", "int": "INTEGER", "real": "REAL"}
        for column in table.columns:
            part = f"{column.name} {types.get(column.kind, 'TEXT')}"
            if column.parent is not None:
                parent = self.tables[column.parent]
                target = f"REFERENCES {parent.name}({parent.id.name})"
                part += "" if self.has_key_clauses else f" {target}"
                clauses += [f"FOREIGN KEY ({column.name}) {target}"] if self.has_key_clauses else []
            parts.append(part)
        return f"CREATE TABLE {table.name} ({', '.join(parts + clauses)})"


class _Naming:
    """One database's habits: how words become names."""

    def __init__(self, rng: random.Random) -> None:
        styles = ("snake", "pascal", "camel", "upper", "flat")
        (self.style,) = rng.choices(styles, (10, 4, 2, 3, 1))
        self.is_plural = rng.random() < 0.6
        self.has_long_id = rng.random() < 0.3
        self.prefix = rng.choice(("tbl", "tb", "dim", "app", "t")) if rng.random() < 0.1 else ""
        self.column_prefix = rng.random() < 0.05  # the table's word stands before each column
        self.cut = rng.choice((3, 4)) if rng.random() < 0.06 else 0  # long words are abbreviated

    def spell(self, words: list[str]) -> str:
        """`words` as a name."""
        if self.cut and len(words) > 1:
            words = [word if len(word) <= 6 else word[: self.cut] for word in words]
        joined = {
            "snake": "_".join(words),
            "upper": "_".join(words).upper(),
            "flat": "".join(words),
            "pascal": "".join(word.capitalize() for word in words),
            "camel": words[0] + "".join(word.capitalize() for word in words[1:]),
        }[self.style]
        return f"{joined}_" if joined.lower() in _RESERVED else joined

    def table(self, words: list[str]) -> str:
        """The name of a table for things called `words`, in the singular."""
        if self.is_plural:
            words = [*words[:-1], plural(words[-1])]
        return self.spell([self.prefix, *words] if self.prefix else words)

    def column(self, table: list[str], words: list[str]) -> str:
        """The name of a column."""
        return self.spell([table[-1], *words] if self.column_prefix else words)


def make_world(rng: random.Random, split: Split, difficulty: float = 1.0) -> World:
    """A random database; `difficulty` from 0 (one or two narrow tables) to 1 (up to twelve)."""
    n_most = rng.choices((1, 2, 3, 4, 5, 6, 8, 10, 12), (8, 16, 24, 20, 14, 8, 5, 3, 2))[0]
    n_tables = max(1, min(n_most, 2 + round(difficulty * 10)))
    naming = _Naming(rng)
    made_up = rng.choice((0.0, 0.0, 0.3, 1.0))  # the share of words that are no real ones
    entities: list[tuple[str, list[str]]] = []
    names: set[str] = set()
    while len(entities) < n_tables:
        kind, words = _name_entity(rng, split, made_up)
        if naming.table(words).lower() not in names and not names & {naming.table(words[-1:]).lower()}:
            names.add(naming.table(words).lower())
            entities.append((kind, words))
    tables: list[Table] = []
    for number, (kind, words) in enumerate(entities):
        parents = _choose_parents(rng, number)
        known = [(parent, entities[parent][1], len(tables[parent].rows)) for parent in parents]
        tables.append(_make_table(rng, split, naming, kind, words, known, made_up, difficulty))
    order = list(range(n_tables))
    rng.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    moved = [
        dataclasses.replace(
            tables[old],
            columns=tuple(
                column if column.parent is None else dataclasses.replace(column, parent=place[column.parent])
                for column in tables[old].columns
            ),
        )
        for old in order
    ]
    return World(tuple(moved), has_key_clauses=rng.random() < 0.25)


def _name_entity(rng: random.Random, split: Split, made_up: float) -> tuple[str, list[str]]:
    kind = rng.choice(_ENTITY_KINDS)
    words = _word(rng, split, kind, made_up).split("_")
    if rng.random() < 0.3:
        words = [_word(rng, split, "modifiers", made_up), *words]
    return kind, words[-2:]


def _word(rng: random.Random, split: Split, kind: str, made_up: float) -> str:
    if rng.random() < made_up:
        return make_word(rng, split, rng.choice((1, 2, 2, 3)))
    return rng.choice(read_words(kind, split))


def _choose_parents(rng: random.Random, number: int) -> list[int]:
    if number == 0:
        return []
    n_parents = rng.choices((0, 1, 2), (1, 6, 3))[0]
    return rng.sample(range(number), min(n_parents, number))


def _make_table(
    rng: random.Random,
    split: Split,
    naming: _Naming,
    kind: str,
    words: list[str],
    parents: list[tuple[int, list[str], int]],
    made_up: float,
    difficulty: float,
) -> Table:
    name = naming.table(words)
    id_words = [words[-1], "id"] if naming.has_long_id else ["id"]
    n_rows = rng.randint(12, 36) if parents else rng.randint(6, 20)
    columns = [Column(naming.spell(id_words), "id", "id")]
    cells: list[list[Cell]] = [list(range(1, n_rows + 1))]
    if kind != "events" or rng.random() < 0.2:
        label = rng.choice(_LABELS)
        columns.append(Column(naming.column(words, [label]), label, "name"))
        cells.append(_make_names(rng, split, kind, n_rows, made_up))
    taken = {column.name.lower() for column in columns}
    n_others = rng.randint(1, 2 + round(3 * difficulty))
    kinds = [_choose_kind(rng) for _ in range(n_others)]
    for column_kind in kinds:
        column, values = _make_column(rng, split, naming, words, column_kind, n_rows, made_up)
        if column.name.lower() not in taken and column.words not in [one.words for one in columns]:
            taken.add(column.name.lower())
            columns.append(column)
            cells.append(values)
    for parent, parent_words, n_parents in parents:
        key = Column(naming.spell([*parent_words, "id"]), f"{' '.join(parent_words)} id", "key", parent=parent)
        if key.name.lower() not in taken:
            taken.add(key.name.lower())
            columns.append(key)
            used = rng.sample(range(1, n_parents + 1), max(2, n_parents * 3 // 4))
            cells.append([rng.choice(used) for _ in range(n_rows)])
    one, many = " ".join(words), " ".join([*words[:-1], plural(words[-1])])
    return Table(name, one, many, tuple(columns), tuple(zip(*cells, strict=True)))


def _choose_kind(rng: random.Random) -> Kind:
    kinds: tuple[Kind, ...] = ("int", "real", "category", "city", "date")
    return rng.choices(kinds, (4, 3, 5, 2, 2))[0]


def _make_names(rng: random.Random, split: Split, kind: str, n_rows: int, made_up: float) -> list[Cell]:
    """Names that differ from each other, of the kind that the things have."""

    def part(file: str) -> str:
        if rng.random() < made_up:
            return make_word(rng, split, 2).capitalize()
        return rng.choice(read_words(file, split))

    has_two = rng.random() < 0.75
    first, last = {"people": ("first_names", "surnames"), "places": ("cities", "nouns")}.get(
        kind, ("adjectives", "nouns")
    )
    single = {"people": "surnames", "places": "cities"}.get(kind, "nouns")
    names: dict[str, None] = {}
    while len(names) < n_rows:
        name = f"{part(first)} {part(last)}" if has_two else part(single)
        if name in names:
            has_two = True  # the single ones are used up
        names[name] = None
    return list(names)


def _make_column(
    rng: random.Random,
    split: Split,
    naming: _Naming,
    table: list[str],
    kind: Kind,
    n_rows: int,
    made_up: float,
) -> tuple[Column, list[Cell]]:
    makers: dict[str, Callable[[], tuple[list[str], list[Cell], dict[str, str]]]] = {
        "int": lambda: _make_numbers(rng, split, n_rows, made_up, is_real=False),
        "real": lambda: _make_numbers(rng, split, n_rows, made_up, is_real=True),
        "category": lambda: _make_category(rng, split, n_rows, made_up),
        "city": lambda: _make_cities(rng, split, n_rows, made_up),
        "date": lambda: _make_dates(rng, split, n_rows),
    }
    words, values, spoken = makers[kind]()
    has_nulls = rng.random() < 0.25
    if has_nulls:
        for place in rng.sample(range(n_rows), max(1, n_rows // 8)):
            values[place] = None
    return Column(naming.column(table, words), " ".join(words), kind, has_nulls=has_nulls, spoken=spoken), values


def _make_numbers(
    rng: random.Random, split: Split, n_rows: int, made_up: float, *, is_real: bool
) -> tuple[list[str], list[Cell], dict[str, str]]:
    words = _word(rng, split, "measures", made_up).split("_")
    if rng.random() < 0.2:
        words = [_word(rng, split, "modifiers", made_up), *words]
    low, high = rng.choice(((1, 10), (1, 100), (10, 500), (100, 5_000), (1_000, 90_000)))
    values: list[Cell]
    if is_real:
        digits = rng.choice((1, 2))
        values = [round(rng.uniform(low, high), digits) for _ in range(n_rows)]
    else:
        values = [rng.randint(low, high) for _ in range(n_rows)]
    return words[-2:], values, {}


def _make_category(
    rng: random.Random, split: Split, n_rows: int, made_up: float
) -> tuple[list[str], list[Cell], dict[str, str]]:
    fitting = [
        (name.split("_"), [value for value in values if belongs(value, split)])
        for name, values in read_categories(split)
        if belongs(name, split)
    ]
    words, values = rng.choice([(name, values) for name, values in fitting if len(values) >= 2])
    if rng.random() < max(made_up, 0.15):
        words = [make_word(rng, split, 2)]
    n_values = rng.randint(2, 6)
    chosen = {value.capitalize() for value in rng.sample(values, min(n_values, len(values)))}
    while len(chosen) < n_values or (made_up and len(chosen) < n_values + 1):
        chosen.add(make_word(rng, split, 2).capitalize())
    style = rng.choices((str.lower, str.capitalize, str.upper), (4, 5, 3))[0]
    spoken = {style(value): value for value in sorted(chosen)}
    stored = list(spoken)
    rng.shuffle(stored)
    values_of_rows: list[Cell] = [*stored, *rng.choices(stored, [rng.random() + 0.1 for _ in stored], k=n_rows)]
    values_of_rows = values_of_rows[:n_rows]
    rng.shuffle(values_of_rows)
    return words, values_of_rows, spoken


def _make_cities(
    rng: random.Random, split: Split, n_rows: int, made_up: float
) -> tuple[list[str], list[Cell], dict[str, str]]:
    words = [rng.choice([word for word in _CITY_WORDS if belongs(word, split)])]
    cities = [
        make_word(rng, split, 2).capitalize() if rng.random() < made_up else rng.choice(read_words("cities", split))
        for _ in range(rng.randint(3, 7))
    ]
    spoken = {city: city for city in cities}
    return words, [rng.choice(cities) for _ in range(n_rows)], spoken


def _make_dates(rng: random.Random, split: Split, n_rows: int) -> tuple[list[str], list[Cell], dict[str, str]]:
    words = [rng.choice(read_words("moments", split)), rng.choice(("on", "at", "date"))]
    first = dt.date(rng.randint(2008, 2021), 1, 1).toordinal()
    n_days = rng.choice((365, 1_100, 2_000))
    return words, [dt.date.fromordinal(first + rng.randrange(n_days)).isoformat() for _ in range(n_rows)], {}


def training_words() -> list[str]:
    """Words as training databases have them, real and made up, for the vocabulary."""
    rng = random.Random(0)
    kinds = (*_ENTITY_KINDS, "modifiers", "measures", "moments", "first_names", "surnames", "cities", "adjectives", "nouns")
    real = itertools.chain.from_iterable(read_words(kind, "train") for kind in kinds)
    parts = [part for entry in real for part in entry.split("_")]
    values = [value for _, some in read_categories("train") for value in some if belongs(value, "train")]
    return [*parts, *map(plural, parts), *values, *(make_word(rng, "train", 2) for _ in range(2_000))]
