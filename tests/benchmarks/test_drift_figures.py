"""Distances of distributions and the figures made of them, against plain formulas."""

import itertools

import numpy as np
import pytest
from sqale_edge.benchmarks.drift.distributions import Distances, compare, log_softmax
from sqale_edge.benchmarks.drift.figures import EpisodeDistances, estimate_mean, summarize
from sqale_edge.benchmarks.drift.references import Known

from sqale_edge.errors import BenchmarkError

N_VOCAB = 50


@pytest.fixture
def rows():
    """Logits of two engines at twelve positions, and the tokens that came."""
    rng = np.random.default_rng(3)
    one = rng.normal(0, 3, (12, N_VOCAB)).astype(np.float32)
    return one, one + rng.normal(0, 0.3, one.shape).astype(np.float32), rng.integers(0, N_VOCAB, 12)


def plain_kl(one, other):
    p, q = (np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum() for row in (one, other))
    return float((p * np.log(p / q)).sum())


def keep_top(logits, tokens, k):
    logprobs = log_softmax(logits).astype(np.float32)
    ids = np.argsort(-logprobs, axis=1)[:, :k].astype(np.int32)
    actual = np.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
    return Known(np.take_along_axis(logprobs, ids, axis=1), ids, actual)


def test_divergence_is_the_plain_formula(rows):
    """Of each row, with the reference first; and what the token's probability changed by."""
    one, other, tokens = rows
    found = compare(one, other, tokens)
    assert found.kl == pytest.approx([plain_kl(a, b) for a, b in zip(one, other, strict=True)], rel=1e-9)
    p, q = np.exp(log_softmax(one)), np.exp(log_softmax(other))
    assert found.delta_p == pytest.approx([q[n, t] - p[n, t] for n, t in enumerate(tokens)], rel=1e-9)
    assert found.is_same.tolist() == (one.argmax(axis=1) == other.argmax(axis=1)).tolist()
    assert not found.is_tied.any()


def test_the_same_is_at_no_distance(rows):
    """Zero and never below, also where one side was rounded to float32 and shifted."""
    one, _, tokens = rows
    assert (compare(one, one, tokens).kl == 0).all()
    rounded = log_softmax(one).astype(np.float32)
    found = compare(one, rounded, tokens)
    assert ((found.kl >= 0) & (found.kl < 1e-10)).all()


def test_ties_are_reported_and_count_as_agreement():
    """Where several tokens are likeliest, one of them in common is enough."""
    one = np.array([[1, 1, 0], [2, 1, 0], [0, 1, 1]], np.float32)
    other = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0]], np.float32)
    found = compare(one, other, [0, 0, 0])
    assert found.is_same.tolist() == [True, False, False]
    assert found.is_tied.tolist() == [True, False, True]


def test_a_reference_of_the_likeliest_gives_a_lower_bound(rows):
    """Of all ids it is the whole divergence, of fewer it is less, and grows with their number."""
    one, other, tokens = rows
    whole = compare(one, other, tokens)
    found = [compare(keep_top(one, tokens, k), other, tokens) for k in (5, 20, 49, N_VOCAB)]
    means = [distances.kl.mean() for distances in found]
    assert all(less <= more + 1e-7 for less, more in itertools.pairwise(means))
    assert found[-1].kl == pytest.approx(whole.kl, abs=1e-6)
    assert all((distances.kl <= whole.kl + 1e-6).all() for distances in found)
    for distances in found:
        assert distances.delta_p == pytest.approx(whole.delta_p, abs=1e-6)
        assert (distances.is_same == whole.is_same).all()


def test_slices_change_nothing(rows, monkeypatch):
    """What is held in float64 at a time is no part of the result."""
    one, other, tokens = rows
    whole = compare(one, other, tokens)
    monkeypatch.setattr("sqale_edge.benchmarks.drift.distributions._SLICE_NUMBERS", 2 * N_VOCAB)
    assert (compare(one, other, tokens).kl == whole.kl).all()


def test_what_has_no_probability_is_an_error():
    """An infinite divergence is no figure; a token without probability on the reference's side adds nothing."""
    one, other = np.array([[0.0, 0.0]], np.float32), np.array([[0.0, -np.inf]], np.float32)
    with pytest.raises(BenchmarkError, match="infinite"):
        compare(one, other, [0])
    assert compare(other, one, [0]).kl == pytest.approx([np.log(2)])


def make_episode(kl, kinds):
    kl = np.asarray(kl, np.float64)
    nothing = np.zeros(len(kl), bool)
    return EpisodeDistances(Distances(kl, kl / 10, ~nothing, nothing), np.array(kinds))


def test_figures_by_kind():
    """`written` leaves out what the model only reads; kinds that never come are not there."""
    found = summarize([make_episode([1, 2, 3], ["prompt", "sql", "sql"]), make_episode([5], ["value"])])
    assert found["all"]["kl"]["mean"] == pytest.approx(11 / 4)
    assert found["written"]["kl"]["mean"] == pytest.approx(10 / 3)
    assert (found["sql"]["n_positions"], found["sql"]["n_episodes"]) == (2, 1)
    assert found["written"]["kl"]["median"] == 3
    assert found["written"]["rms_delta_p"] == pytest.approx(np.sqrt((0.04 + 0.09 + 0.25) / 3))
    assert sorted(found) == ["all", "prompt", "sql", "value", "written"]


def test_errors_are_those_of_episodes_not_of_tokens():
    """A hundred tokens of one episode that say the same say it once: the error is that of two episodes."""
    few = estimate_mean(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    many = estimate_mean(np.array([100.0, 300.0]), np.array([100.0, 100.0]))
    assert (many["mean"], many["standard_error"]) == (few["mean"], few["standard_error"]) == (2.0, 1.0)
    assert estimate_mean(np.array([4.0]), np.array([2.0])) == {"mean": 2.0}


def test_intervals_hold():
    """Of a hundred draws of episodes whose mean is known, the 95 % interval holds it in 88 or more."""
    rng = np.random.default_rng(0)
    n_held = 0
    for _ in range(100):
        levels, counts = rng.exponential(1, 60), rng.integers(20, 40, 60)
        found = estimate_mean(levels * counts, counts.astype(float))
        n_held += found["low"] <= 1 <= found["high"]
        assert found["standard_error"] == pytest.approx((found["high"] - found["low"]) / 3.92, rel=0.2)
    assert n_held >= 88
