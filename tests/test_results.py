"""Result sets that are the same, and those that only look so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqale_edge.results import same_rows

# a, b, same by BIRD's rule, same by the strict one
PAIRS = {
    "equal": ([(1, "x")], [(1, "x")], True, True),
    "rows in another order": ([(1,), (2,)], [(2,), (1,)], True, True),
    "swapped columns": ([(1, 2)], [(2, 1)], False, False),
    "a lost duplicate": ([(1,), (1,)], [(1,)], True, False),
    "another row doubled": ([(1,), (1,), (2,)], [(1,), (2,), (2,)], True, False),
    "NULL against 0": ([(None,)], [(0,)], False, False),
    "NULL against NULL": ([(None,)], [(None,)], True, True),
    "NULL against an empty text": ([(None,)], [("",)], False, False),
    "rounding": ([(0.1 + 0.2,)], [(0.3,)], False, True),
    "more than rounding": ([(0.3001,)], [(0.3,)], False, False),
    "a number and its text": ([(1,)], [("1",)], False, False),
    "integer and float": ([(1,)], [(1.0,)], True, True),
    "large integers": ([(2**60,)], [(2**60 + 1,)], False, False),
    "an extra column": ([(1, 2)], [(1,)], False, False),
    "nothing": ([], [], True, True),
    "nothing against NULL": ([], [(None,)], False, False),
    "case of a text": ([("Ann",)], [("ann",)], False, False),
    "text and bytes": ([("a",)], [(b"a",)], False, False),
    "bytes that are no UTF-8": ([(b"\xff",)], [(b"\xff",)], True, True),
    "infinity": ([(float("inf"),)], [(float("inf"),)], True, True),
    "zero and almost zero": ([(0,)], [(5.5e-17,)], False, True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rules(name):
    """Each pair is told apart as its rule says, from both sides."""
    a, b, bird, strict = PAIRS[name]
    assert same_rows(a, b, strict=False) is same_rows(b, a, strict=False) is bird
    assert same_rows(a, b) is same_rows(b, a) is strict


def test_order_counts_where_it_is_asked_for():
    """Only the strict rule looks at order, and only with `ordered`."""
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert same_rows([(0.1 + 0.2,), (2,)], [(0.3,), (2,)], ordered=True)
    assert same_rows([(1,), (2,)], [(2,), (1,)], ordered=True, strict=False)


def test_rounding_does_not_depend_on_how_rows_sort():
    """Rows whose floats differ by rounding are matched by their other cells, however they would sort."""
    a = [(0.3, "b"), (0.1 + 0.2, "a")]
    assert same_rows(a, [(0.3, "a"), (0.3, "b")])
    assert not same_rows(a, [(0.3, "a"), (0.3, "a")])


cells = st.none() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=2) | st.binary(max_size=2)


@given(st.lists(st.tuples(cells, cells), max_size=6), st.randoms(use_true_random=False))
def test_any_result_equals_itself_shuffled(rows, random):
    """Whatever is in it."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert same_rows(rows, shuffled)
    assert same_rows(rows, shuffled, strict=False)
    assert same_rows(rows, rows, ordered=True)


@given(st.lists(st.tuples(cells), min_size=1, max_size=6))
def test_a_lost_row_is_always_seen(rows):
    """The strict rule counts."""
    assert not same_rows(rows, rows[1:])
