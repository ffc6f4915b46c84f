"""The generated databases: sound, varied, and held out in every word."""

from __future__ import annotations

import random
import re
import sqlite3

import pytest
from domains import make_world
from words import GLUE, make_word, plural, split_of


def make_worlds(split, n=60):
    return [make_world(random.Random(seed), split) for seed in range(n)]


def connect(world):
    connection = sqlite3.connect(":memory:")
    world.fill(connection)
    return connection


def words_of(world):
    """The words that people say for its tables, columns and texts."""
    phrases = [phrase for table in world.tables for phrase in (table.one, *(column.words for column in table.columns))]
    cells = [cell for table in world.tables for row in table.rows for cell in row if isinstance(cell, str)]
    return {word for text in (*phrases, *cells) for word in re.findall(r"[a-z]+", text.lower())} - set(GLUE)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_word_is_of_its_split(split):
    """No word of a table, a column or a value belongs to the other split, except the few that all databases share."""
    for world in make_worlds(split):
        assert {word for word in words_of(world) if split_of(word) != split} == set()


def test_splits_share_no_name():
    """Tables, columns and texts of the two splits have nothing in common but the shared words."""
    train, held_out = (
        {word for world in make_worlds(split, 120) for word in words_of(world)} for split in ("train", "held_out")
    )
    assert len(held_out) > 300
    assert not train & held_out


def test_worlds_are_sound_databases():
    """Each world can be written, its keys point to rows that exist, and its numbers of tables go from 1 to 12."""
    n_tables = set()
    for world in make_worlds("train", 200):
        connection = connect(world)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        n_tables.add(len(world.tables))
        connection.close()
    assert min(n_tables) == 1
    assert 10 <= max(n_tables) <= 12


def test_worlds_vary():
    """There are NULLs, foreign keys in both notations, and names in several styles."""
    worlds = make_worlds("train")
    text = "\n".join(world.statement(table) for world in worlds for table in world.tables)
    for style in (r"TABLE [a-z]+_[a-z]+ ", r"TABLE [A-Z][a-z]+ ", r"TABLE [A-Z_]+ ", r"TABLE [a-z]+[A-Z][a-z]+ "):
        assert re.search(style, text)
    assert "FOREIGN KEY (" in text
    assert re.search(r"INTEGER REFERENCES \w+\(\w+\)", text)
    assert any(None in row for world in worlds for table in world.tables for row in table.rows)


def test_same_seed_gives_the_same_world():
    """A world depends on its seed alone."""
    assert make_world(random.Random(5), "train") == make_world(random.Random(5), "train")
    assert make_world(random.Random(5), "train") != make_world(random.Random(6), "train")


def test_easy_worlds_are_small():
    """At difficulty 0 there are at most two tables."""
    assert {len(make_world(random.Random(seed), "train", 0.0).tables) for seed in range(80)} == {1, 2}


def test_written_world_is_read_back(tmp_path):
    """The file holds the rows of the description."""
    world = make_world(random.Random(1), "train")
    world.write(tmp_path / "world.sqlite")
    connection = sqlite3.connect(tmp_path / "world.sqlite")
    for table in world.tables:
        assert connection.execute(f"SELECT * FROM {table.name}").fetchall() == list(table.rows)
    connection.close()


@pytest.mark.parametrize(
    ("word", "many"),
    [("order", "orders"), ("city", "cities"), ("day", "days"), ("box", "boxes"), ("branch", "branches")],
)
def test_plurals(word, many):
    """Regular English plurals."""
    assert plural(word) == many


def test_made_up_words_are_of_their_split():
    """A made-up word belongs to the split it was made for."""
    rng = random.Random(0)
    for split in ("train", "held_out"):
        assert {split_of(make_word(rng, split)) for _ in range(50)} == {split}
