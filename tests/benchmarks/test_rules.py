"""Which results each rule takes for the same."""

import itertools
import random

import pytest
from sqale_edge.benchmarks.csv_results import read_result, untyped
from sqale_edge.benchmarks.gold import GoldResult
from sqale_edge.benchmarks.rules import RULES, choose_rules, is_right

ALL = tuple(RULES)
# predicted, gold, and the rules by which that is right. Gold is not ordered.
CASES = {
    "equal": ([(1, "x")], [(1, "x")], ALL),
    "rows in another order": ([(2,), (1,)], [(1,), (2,)], ALL),
    "swapped columns": ([(2, 1)], [(1, 2)], ("spider", "spider2")),
    "a lost duplicate": ([(1,)], [(1,), (1,)], ("bird",)),
    "another row doubled": ([(1,), (1,), (2,)], [(1,), (2,), (2,)], ("bird",)),
    "NULL against 0": ([(0,)], [(None,)], ()),
    "NULL against an empty text": ([("",)], [(None,)], ()),
    "NULL against the text None": ([("None",)], [(None,)], ("ehrsql", "ehrsql2024")),
    "0.1 + 0.2 against 0.3": ([(0.1 + 0.2,)], [(0.3,)], ("strict", "ehrsql2024", "spider2")),
    "0.31 against 0.305": ([(0.31,)], [(0.305,)], ("ehrsql2024", "spider2")),
    "9.999 against 10.001": ([(9.999,), (3.0,)], [(10.001,), (3.0,)], ("ehrsql2024", "spider2")),
    "text against number": ([("1",)], [(1,)], ("ehrsql", "ehrsql2024")),
    "1.0 against 1": ([(1.0,)], [(1,)], ("bird", "strict", "spider", "spider2")),
    "an extra column": ([(1, 2)], [(1,)], ("ehrsql", "spider2")),
    "a missing column": ([(1,)], [(1, 2)], ("ehrsql",)),
    "the same columns, other values": ([("Ann", 3)], [("Ann", 4)], ("ehrsql",)),
    "cells that change places between rows": ([(1, 4), (2, 3)], [(1, 3), (2, 4)], ("ehrsql", "spider2")),
    "nothing against something": ([], [(1,)], ()),
    "text and bytes": ([(b"a",)], [("a",)], ()),
    "bytes that are no UTF-8": ([(b"\xff",)], [(b"\xff",)], ALL),
    "case of a text": ([("ann",)], [("Ann",)], ()),
    "101 rows of which the greatest differs": (
        [("a",)] * 100 + [("b",)],
        [("a",)] * 100 + [("c",)],
        ("ehrsql2024",),
    ),
}


def gold(rows, sql="SELECT 1", ends=None):
    return GoldResult(tuple(rows), sql, (len(rows),) if ends is None else ends)


@pytest.mark.parametrize("name", CASES)
def test_each_rule_tells_apart_what_it_says(name):
    """Every case by every rule."""
    predicted, rows, rules = CASES[name]
    assert [rule for rule in RULES if is_right(rule, predicted, gold(rows))] == [
        rule for rule in RULES if rule in rules
    ]


def test_strict_order_counts_as_far_as_the_gold_orders():
    """Rows 2 and 3 are tied in the gold: they may change places, others may not."""
    tied = gold([(1,), (2,), (3,), (4,)], "SELECT x FROM t ORDER BY y", (1, 3, 4))
    assert is_right("strict", [(1,), (3,), (2,), (4,)], tied)
    assert not is_right("strict", [(2,), (1,), (3,), (4,)], tied)
    assert is_right("bird", [(2,), (1,), (3,), (4,)], tied)


def test_spider_takes_order_from_the_text():
    """Its rule: `order by` anywhere in the gold."""
    rows, other = [(1,), (2,)], [(2,), (1,)]
    assert is_right("spider", other, gold(rows, "SELECT x FROM t"))
    assert not is_right("spider", other, gold(rows, "SELECT x FROM (SELECT x FROM t ORDER BY y)"))


def test_spider_finds_any_order_of_columns():
    """As trying all of them does, for rows of few values, where columns look alike."""
    numbers = random.Random(0)
    for _ in range(200):
        rows = [tuple(numbers.randrange(2) for _ in range(4)) for _ in range(5)]
        other = [tuple(numbers.randrange(2) for _ in range(4)) for _ in range(5)]
        order = numbers.sample(range(4), 4)
        permuted = [tuple(row[i] for i in order) for row in rows]
        assert is_right("spider", numbers.sample(permuted, 5), gold(rows))
        expected = any(
            sorted(tuple(row[i] for i in order) for row in other) == sorted(rows)
            for order in itertools.permutations(range(4))
        )
        assert is_right("spider", other, gold(rows)) == expected


def test_spider_does_not_search_forever():
    """Twenty columns that look alike, and no order of them that is right."""
    rows = [tuple(int(i == j) for j in range(20)) for i in range(20)]
    other = [tuple(int((i + j) % 20 in (0, 1)) if i % 2 else int(i == j) for j in range(20)) for i in range(20)]
    assert is_right("spider", other, gold(rows)) is False


def test_spider2_takes_the_columns_that_it_is_told():
    """`condition_cols`: the others may be missing."""
    wanted = GoldResult(((1.0, 5.0), (2.0, 6.0)), columns=(1,), ends=(2,))
    assert is_right("spider2", [(6,), (5.005,)], wanted)
    assert not is_right("spider2", [(1,), (2,)], wanted)


def test_results_from_csv_are_compared_as_csv(tmp_path):
    """There text and number, NULL and empty text look the same, whatever the rule."""
    path = tmp_path / "gold.csv"
    path.write_text('n,"a, b"\n007,Zoë\n,"x ""y"""\n', encoding="utf-8")
    result = GoldResult(read_result(path), ends=(2,))
    assert result.rows == ((7, "Zoë"), (None, 'x "y"'))
    assert is_right("strict", [(None, 'x "y"'), ("7", "Zoë")], result)
    assert not is_right("strict", [(None, 'x "y"'), (8, "Zoë")], result)
    assert untyped([(1, None), (2.5, b"a")]) == ((1, None), (2.5, "a"))
    assert untyped([]) == ()


def test_rows_of_null_in_one_column_are_read_back(tmp_path):
    """An empty line is such a row; the csv module gives it no cells."""
    path = tmp_path / "gold.csv"
    path.write_text("n\n1\n\n2\n", encoding="utf-8")
    assert read_result(path) == ((1,), (None,), (2,))


def test_numbers_that_are_too_great_are_told_apart(tmp_path):
    """Whole numbers that Python does not read, and those that no float holds: they are text, in gold and answer."""
    path = tmp_path / "gold.csv"
    for first, second in (("9" * 5000, "9" * 4999 + "8"), ("1" * 400, "2" * 400), ("1e999", "1e998")):
        path.write_text(f"n\n{first}\n1\n", encoding="utf-8")
        result = GoldResult(read_result(path), ends=(2,))
        assert result.rows == ((first,), ("1",))
        for rule in RULES:
            assert is_right(rule, [(first,), (1,)], result), rule
            assert not is_right(rule, [(second,), (1,)], result), rule
    assert untyped([("0" * 5000 + "7",), ("1" * 300,)]) == ((7.0,), (int("1" * 300),))


def test_a_long_cell_is_looked_at_once():
    """Digits and then a letter: not one try for each digit."""
    text = "1" * 1_000_000 + "x"
    assert untyped([(text,)]) == ((text,),)


def test_a_gold_file_may_have_long_cells(tmp_path):
    """Longer than the csv module takes by itself."""
    path = tmp_path / "gold.csv"
    path.write_text("t\n" + "x" * 200_000 + "\n", encoding="utf-8")
    assert read_result(path) == (("x" * 200_000,),)


def test_benchmarks_bring_their_own_rule():
    """Beside BIRD's and the strict one, and each once."""
    assert choose_rules("spider", ["bird", "ehrsql"]) == ("bird", "strict", "spider", "ehrsql")
    assert choose_rules("jsonl") == ("bird", "strict")
