"""Columns and their values: names, numbers, categories, cities, dates; of real words and of made-up ones."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from words import belongs, make_word, read_categories, read_words
from world import Column

if TYPE_CHECKING:
    import random

    from naming import Naming
    from words import Split
    from world import Cell, Kind

_KINDS: dict[Kind, int] = {"int": 4, "real": 3, "category": 5, "city": 2, "date": 2}  # and how frequent they are
_CITY_WORDS = ("city", "town", "hometown", "location", "venue", "site", "birthplace", "destination", "region", "port")
_OF_PIECES = 0.85
_RANGES = ((1, 10), (1, 100), (10, 500), (100, 5_000), (1_000, 90_000))
# The word lists of the two parts of a name, for each kind of thing; a name of one part is of the second list.
_NAME_LISTS = {"people": ("first_names", "surnames"), "places": ("nouns", "cities")}
_Filling = tuple[list[str], list["Cell"], dict[str, str]]  # a column's words, its values, and how people write these


@dataclasses.dataclass(frozen=True)
class Author:
    """Who makes up one database.

    Attributes:
        made_up: The share of words that no language has.
    """

    rng: random.Random
    split: Split
    made_up: float

    def new_word(self, n_syllables: int = 2) -> str:
        """A made-up word.

        In training most of them are made of the vocabulary's pieces: real words and syllables leave out many of these,
        and a piece that was never written in training cannot be copied afterwards.
        """
        of_pieces = self.split == "train" and self.rng.random() < _OF_PIECES
        return make_word(self.rng, self.split, n_syllables, of_pieces=of_pieces)

    def word(self, kind: str) -> str:
        """A word of one of the lists, or a made-up one; in a few cases two, joined by `_`."""
        if self.rng.random() < self.made_up:
            return self.new_word(self.rng.choice((1, 2, 2, 3)))
        return self.rng.choice(read_words(kind, self.split))

    def proper_name(self, kind: str) -> str:
        """A word of one of the lists as a name."""
        if self.rng.random() < self.made_up:
            return self.new_word().capitalize()
        return self.rng.choice(read_words(kind, self.split))

    def names(self, kind: str, n_rows: int) -> list[Cell]:
        """Names that differ from each other, of the kind that such things have."""
        first, last = _NAME_LISTS.get(kind, ("adjectives", "nouns"))
        has_two = self.rng.random() < 0.75
        names: dict[str, None] = {}
        while len(names) < n_rows:
            name = self.proper_name(last)
            if has_two:
                name = f"{self.proper_name(first)} {name}"
            has_two = has_two or name in names  # the single ones are used up
            names[name] = None
        return list(names)

    def column(self, naming: Naming, table: list[str], n_rows: int) -> tuple[Column, list[Cell]]:
        """A column of a random kind for the table of things called `table`."""
        (kind,) = self.rng.choices(list(_KINDS), list(_KINDS.values()))
        fillers = {"category": self._fill_category, "city": self._fill_cities, "date": self._fill_dates}
        words, values, spoken = fillers[kind](n_rows) if kind in fillers else self._fill_numbers(n_rows, kind)
        has_nulls = self.rng.random() < 0.25
        if has_nulls:
            for place in self.rng.sample(range(n_rows), max(1, n_rows // 8)):
                values[place] = None
        return Column(naming.column(table, words), " ".join(words), kind, has_nulls=has_nulls, spoken=spoken), values

    def _fill_numbers(self, n_rows: int, kind: Kind) -> _Filling:
        rng = self.rng
        words = self.word("measures").split("_")
        if rng.random() < 0.2:
            words = [self.word("modifiers"), *words][-2:]
        low, high = rng.choice(_RANGES)
        digits = rng.choice((1, 2))
        values: list[Cell] = [
            rng.randint(low, high) if kind == "int" else round(rng.uniform(low, high), digits) for _ in range(n_rows)
        ]
        return words, values, {}

    def _fill_category(self, n_rows: int) -> _Filling:
        """A few values, each of which occurs, in one of three spellings."""
        rng = self.rng
        fitting = [
            (name.split("_"), known)
            for name, values in read_categories()
            if belongs(name, self.split)
            and len(known := [value for value in values if belongs(value, self.split)]) >= 2
        ]
        words, known = rng.choice(fitting)
        if rng.random() < max(self.made_up, 0.15):
            words = [self.new_word()]
        n_values = rng.randint(2, 6)
        chosen = {value.capitalize() for value in rng.sample(known, min(n_values, len(known)))}
        while len(chosen) < n_values + (self.made_up > 0):
            chosen.add(self.new_word().capitalize())
        style = rng.choices((str.lower, str.capitalize, str.upper), (4, 5, 3))[0]
        spoken = {style(value): value for value in sorted(chosen)}
        stored = list(spoken)
        rng.shuffle(stored)
        weights = [rng.random() + 0.1 for _ in stored]
        values = [*stored, *rng.choices(stored, weights, k=n_rows)][:n_rows]
        rng.shuffle(values)
        return words, list(values), spoken

    def _fill_cities(self, n_rows: int) -> _Filling:
        word = self.rng.choice([word for word in _CITY_WORDS if belongs(word, self.split)])
        cities = [self.proper_name("cities") for _ in range(self.rng.randint(3, 7))]
        return [word], [self.rng.choice(cities) for _ in range(n_rows)], {city: city for city in cities}

    def _fill_dates(self, n_rows: int) -> _Filling:
        rng = self.rng
        words = [rng.choice(read_words("moments", self.split)), rng.choice(("on", "at", "date"))]
        first = dt.date(rng.randint(2008, 2021), 1, 1).toordinal()
        n_days = rng.choice((365, 1_100, 2_000))
        return words, [dt.date.fromordinal(first + rng.randrange(n_days)).isoformat() for _ in range(n_rows)], {}
