"""The questions: of every kind, answerable, with one answer."""

from __future__ import annotations

import random
import sqlite3

import pytest
from domains import make_world
from parts import VALUE
from questions import KINDS, ask, is_answerable


def connect(world):
    connection = sqlite3.connect(":memory:")
    world.fill(connection)
    return connection


@pytest.fixture(scope="module")
def asked():
    """Some hundred answerable questions, with their worlds."""
    found = []
    for seed in range(110):
        rng = random.Random(seed)
        world = make_world(rng, "held_out" if seed % 2 else "train")
        connection = connect(world)
        for _ in range(14):
            question = ask(rng, world)
            if question and is_answerable(question, connection):
                found.append((world, question))
        connection.close()
    return found


def test_every_kind_is_asked(asked):
    """All kinds come up, and none that is not listed."""
    assert {question.kind for _, question in asked} == set(KINDS)


def test_answers_are_there_and_do_not_depend_on_the_order_of_rows(asked):
    """The statement gives rows, without NULL, and the same ones when the tables are filled in another order."""
    for world, question in asked[::3]:
        connection, other = connect(world), sqlite3.connect(":memory:")
        for table in world.tables:
            other.execute(world.statement(table))
            rows = list(table.rows)
            random.Random(1).shuffle(rows)
            other.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", rows)
        rows, again = (each.execute(question.sql()).fetchall() for each in (connection, other))
        assert rows
        assert all(cell is not None for row in rows for cell in row)
        rounded = [
            sorted(repr([round(cell, 6) if isinstance(cell, float) else cell for cell in row]) for row in some)
            for some in (rows, again)
        ]
        assert rounded[0] == rounded[1], question.sql()
        connection.close()
        other.close()


def test_literals_come_from_the_question(asked):
    """What a statement compares with stands in the question, a text perhaps in other case."""
    for _, question in asked:
        assert VALUE not in question.sql()
        assert VALUE not in question.plan()
        if question.lookup:
            assert question.lookup.spoken in question.text
            assert question.lookup.spoken.lower() == question.lookup.stored.lower()


def test_some_texts_are_spelled_otherwise(asked):
    """Some literals have to be looked up, and some can be copied."""
    lookups = [question.lookup for _, question in asked if question.lookup]
    assert 0.1 < sum(lookup.spoken != lookup.stored for lookup in lookups) / len(lookups) < 0.6
    assert 0.3 < sum(lookup.spoken[0].isupper() for lookup in lookups) / len(lookups) < 0.8


def test_the_plan_holds_every_name_of_the_statement(asked):
    """The statement can be written from the plan and the tables alone."""
    for _, question in asked:
        for part in question.parts:
            assert part.sql.replace(VALUE, question.lookup.stored if question.lookup else "") in question.plan()


def test_phrasings_vary(asked):
    """A question about counts begins in at least four ways."""
    starts = {" ".join(question.text.split()[:2]) for _, question in asked if question.kind.startswith("count")}
    assert len(starts) >= 4


def test_easy_questions_are_about_one_table():
    """At difficulty 0 nothing is joined."""
    rngs = [random.Random(seed) for seed in range(80)]
    asked = [ask(rng, make_world(rng, "train", 0.0), 0.0) for rng in rngs]
    assert {question.path for question in asked if question} == {None}


def test_ties_at_a_limit_are_refused():
    """A question whose LIMIT would cut between equal rows is not asked; others are."""
    n_tied = n_asked = 0
    for seed in range(60):
        rng = random.Random(seed)
        world = make_world(rng, "train")
        connection = connect(world)
        for question in (ask(rng, world) for _ in range(20)):
            if question is None or question.kind != "top":
                continue
            order = next(part.sql for part in question.parts if part.clause == "order").removeprefix("ORDER BY ")
            column, limit = order.split()[0], int(order.split()[-1])
            by_order = f"SELECT {column} {question.source} ORDER BY {order.split(' LIMIT')[0]} LIMIT {limit + 1}"
            keys = [row[0] for row in connection.execute(by_order)]
            is_tied, is_asked = len({*keys}) < len(keys), is_answerable(question, connection)
            assert not (is_tied and is_asked)
            n_tied, n_asked = n_tied + is_tied, n_asked + is_asked
        connection.close()
    assert n_tied
    assert n_asked


def test_practice_changes_how_often_and_not_what_is_asked():
    """The evaluation's questions have the plain weights; the training asks for joins more often."""
    world = make_world(random.Random(3), "train")

    def kinds(*, is_practice):
        rng = random.Random(0)
        found = [ask(rng, world, is_practice=is_practice) for _ in range(1_500)]
        return [question.kind for question in found if question]

    plain, practice = kinds(is_practice=False), kinds(is_practice=True)
    assert set(plain) == set(practice)
    assert practice.count("join") / len(practice) > 1.1 * plain.count("join") / len(plain)
