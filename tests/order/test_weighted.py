"""Draws with replacement in proportion to weights."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from tests.order import reference

from penstock.order import Order, Weighted
from penstock.testing import OrderSuite

STEEP = 1 / np.arange(1, 1001)


class TestWeighted(OrderSuite):
    is_permutation = False
    changes_with_epoch = True
    repr_evaluates = False

    def make(self) -> list[Order]:
        return [
            Weighted([], seed=3),
            Weighted([2.5], seed=3),
            Weighted([0, 1], seed=3, size=0),
            Weighted([1, 2, 0, 4, 5.5], seed=2**64 - 1, size=97),
            Weighted(np.arange(1025), seed=0),
            Weighted(STEEP, seed=5, size=10**12),
        ]


def chi_square(counts: Any, chances: Any) -> float:
    """How many standard deviations the statistic is above what independent draws have on average."""
    expected = counts.sum() * chances
    degrees = len(chances) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


@pytest.mark.parametrize("weights", [np.ones(1000), STEEP, np.arange(1, 1001.0), np.repeat([1.0, 1000.0], 500)], ids=range(4))
def test_draws_come_in_proportion_to_their_weights(weights: Any):
    order = Weighted(weights, seed=11, size=1 << 20)
    for epoch in (0, 1):
        counts = np.bincount(order.indices(epoch, 0, len(order)), minlength=len(weights))
        assert abs(chi_square(counts, weights / weights.sum())) < 5


def test_draws_of_neighbouring_positions_are_independent():
    weights = np.array([1.0, 2, 3, 4])
    ids = Weighted(weights, seed=2, size=1 << 18).indices(0, 0, 1 << 18)
    pairs = np.bincount(ids[::2] * 4 + ids[1::2], minlength=16)
    chances = np.outer(weights, weights).reshape(-1) / 100
    assert abs(chi_square(pairs, chances)) < 5


@pytest.mark.parametrize("n", [3, 1000, 20_001])
def test_chances_are_right_up_to_two_units_of_2_to_the_minus_32_of_a_mean_chance(n: int):
    weights = np.random.default_rng(n).pareto(1.1, n) ** 3
    columns = Weighted(weights, seed=1).__getstate__()[0].astype(np.int64)
    shares = columns[:, 0].copy()
    np.add.at(shares, columns[:, 1], 2**32 - columns[:, 0])
    exact = weights / math.fsum(weights) * n * 2**32
    assert np.all(np.abs(shares - exact) <= 2 + exact * 2**-30)
    assert shares.sum() == n * 2**32


def test_the_smallest_weight_can_still_come_and_a_weight_of_0_never():
    weights = np.full(5000, 1e-320)
    weights[::7] = 0
    weights[11] = 1e300
    can_come = Weighted(weights, seed=1).can_come()
    assert can_come.tolist() == (weights > 0).tolist()
    few = Weighted([0, 3, 0, 0, 1, 0], seed=4, size=100_000).indices(0, 0, 100_000)
    assert set(few.tolist()) == {1, 4}


def test_weights_of_any_type_and_scale_that_are_the_same_numbers_give_the_same_order():
    weights = np.array([3, 1, 0, 12, 7])
    order = Weighted(weights, seed=9)
    for same in (weights.astype("f4"), weights.astype("u1"), weights.tolist(), weights * 2.0**900, weights[::-1].copy()[::-1]):
        assert Weighted(same, seed=9) == order
    assert len({order, Weighted(weights.tolist(), seed=9)}) == 1
    for other in (Weighted(weights + 1, seed=9), Weighted(weights, seed=8), Weighted(weights, seed=9, size=4)):
        assert other != order
    assert Weighted([True, False], seed=1) == Weighted([1, 0], seed=1)


def test_a_pickle_keeps_the_table_and_not_the_weights():
    order = Weighted(STEEP, seed=9)
    assert len(pickle.dumps(order)) < 8 * len(STEEP) + 500
    columns, seed, size = order.__getstate__()
    columns[3, 1] = len(STEEP)
    with pytest.raises(ValueError, match="lead to one another"):
        Weighted.__new__(Weighted).__setstate__((columns, seed, size))


def test_the_repr_names_the_weights_by_a_digest():
    one, other = (repr(Weighted([1, 2, weight], seed=9)) for weight in (3, 4))
    assert one != other
    assert one.startswith("Weighted(<3 weights ")
    assert one.endswith(">, seed=9, size=3)")


def test_large_tables_are_those_of_the_reference():
    weights = (np.arange(3000) % 17 + 0.25).tolist()
    assert Weighted(weights, seed=1).__getstate__()[0].tolist() == [list(column) for column in reference.alias_table(weights)]


@pytest.mark.parametrize(
    ("weights", "error", "match"),
    [
        ([1, -1], ValueError, r"finite and at least 0, got -1\.0 for record 1"),
        ([1, 2, math.nan], ValueError, "got nan for record 2"),
        ([math.inf, 2], ValueError, "got inf for record 0"),
        ([0, 0.0], ValueError, "at least one weight must be above 0, got 2 of 0"),
        ([[1, 2]], ValueError, r"one number per record, got shape \(1, 2\)"),
        (3, ValueError, "one number per record"),
        (["1"], TypeError, "real numbers"),
        ([1j], TypeError, "real numbers"),
        ([None, 1], TypeError, "real numbers"),
        (np.ma.MaskedArray([1.0, 2.0], mask=[False, True]), ValueError, "that of record 1 is missing"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        Weighted(weights, seed=1)


@pytest.mark.parametrize("settings", [{"seed": -1}, {"seed": 1, "size": -1}, {"seed": 1, "size": 1.5}])
def test_bad_settings_are_refused(settings: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):
        Weighted([1], **settings)
    with pytest.raises(ValueError, match="size"):
        Weighted([], seed=1, size=1)
