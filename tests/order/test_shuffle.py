"""Shuffle and Random: bijections and draws, seeds and epochs, and orders of a size no memory holds."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import Random, Shuffle
from penstock.testing import OrderSuite
from penstock.testing.strategies import seeds

MOST = 2**63 - 1


class TestShuffle(OrderSuite):
    changes_with_epoch = True

    def make(self):
        sizes = (0, 1, 2, 3, 5, 64, 65, 97, 1000, 1025, 65_536, 65_537, 2**20 + 1, 10**12, MOST)
        return [Shuffle(n, seed=n % 1009) for n in sizes]


class TestRandom(OrderSuite):
    is_permutation = False
    changes_with_epoch = True

    def make(self):
        return [Random(n, seed=2**64 - 1) for n in (0, 1, 2, 97, 1025, 10**12, MOST)]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 64, 65, 1000, 1024, 1025, 4097, 65_536, 65_537, 10**6, 2**20 + 1])
def test_shuffle_is_a_bijection_with_an_inverse(n):
    order = Shuffle(n, seed=11)
    for epoch in (0, 3):
        ids = order.indices(epoch, 0, n)
        assert np.array_equal(np.bincount(ids, minlength=n), np.ones(n))
        assert np.array_equal(order.positions(epoch, ids), np.arange(n))


@given(n=st.integers(0, 2000), seed=seeds(), epoch=st.integers(0, MOST), step=st.integers(1, 50))
def test_shuffle_of_any_seed_and_epoch_is_a_bijection(n, seed, epoch, step):
    order = Shuffle(n, seed=seed)
    ids = order.indices(epoch, 0, n)
    assert sorted(ids.tolist()) == list(range(n))
    assert order.indices(epoch, 0, n, step).tolist() == ids[::step].tolist()


@given(n=st.integers(65_537, MOST), seed=seeds(), data=st.data())
def test_shuffle_of_any_size_can_be_undone(n, seed, data):
    order = Shuffle(n, seed=seed)
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    ids = order.at(5, positions)
    assert np.all((ids >= 0) & (ids < n))
    assert order.positions(5, ids).tolist() == positions
    assert order.at(5, order.positions(5, positions)).tolist() == positions


@given(seed=st.integers(0, 2**64 - 2), epoch=st.integers(0, 2**62))
def test_l16_next_epoch_is_not_the_next_seed(seed, epoch):
    for kind in (Shuffle, Random):
        orders = [
            kind(100, seed=seed).indices(epoch, 0, 100).tolist(),
            kind(100, seed=seed).indices(epoch + 1, 0, 100).tolist(),
            kind(100, seed=seed + 1).indices(epoch, 0, 100).tolist(),
        ]
        assert len({tuple(ids) for ids in orders}) == 3


def test_l16_no_two_of_many_seeds_and_epochs_are_alike():
    found = {tuple(Shuffle(50, seed=seed).indices(epoch, 0, 50)) for seed in range(60) for epoch in range(60)}
    assert len(found) == 3600


def test_shuffle_and_random_of_one_seed_are_unrelated():
    same = np.mean(Shuffle(10_000, seed=1).indices(0, 0, 10_000) == Random(10_000, seed=1).indices(0, 0, 10_000))
    assert same < 0.002  # 0.0001 by chance


def test_all_permutations_of_five_come_equally_often():
    count = Counter(tuple(Shuffle(5, seed=seed).indices(0, 0, 5).tolist()) for seed in range(20_000))
    expected = 20_000 / 120
    chi_squared = sum((count[p] - expected) ** 2 / expected for p in count) + (120 - len(count)) * expected
    assert chi_squared / 119 < 1.5


def test_all_permutations_of_five_come_equally_often_over_epochs():
    order = Shuffle(5, seed=9)
    count = Counter(tuple(order.indices(epoch, 0, 5).tolist()) for epoch in range(20_000))
    expected = 20_000 / 120
    assert len(count) == 120
    assert sum((c - expected) ** 2 / expected for c in count.values()) / 119 < 1.5


@pytest.mark.parametrize(("n", "cells"), [(3, 3), (100, 100), (2**40 + 1, 50), (3 * 2**61, 60)])
def test_random_draws_without_bias(n, cells):
    draws = np.concatenate([Random(n, seed=4).indices(epoch, 0, min(n, 60_000)) for epoch in range(max(1, 60_000 // n))])
    count = np.bincount([int(draw) * cells // n for draw in draws], minlength=cells)
    expected = draws.size / cells
    assert np.sum((count - expected) ** 2 / expected) / (cells - 1) < 2


def test_random_misses_about_a_third_of_the_records():
    ids = Random(100_000, seed=8).indices(0, 0, 100_000)
    assert abs(len(set(ids.tolist())) / 100_000 - (1 - np.exp(-1))) < 0.01


def test_random_draws_of_neighbours_are_independent():
    ids = Random(2**20, seed=8).indices(0, 0, 100_000)
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02


def test_order_of_a_million_millions_needs_no_memory():
    program = """
import numpy as np
from penstock.order import BlockShuffle, Random, Shuffle

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def ask(n):
    orders = [Shuffle(n, seed=1), Random(n, seed=1)] + [BlockShuffle(n, block=1024, lanes=lanes, seed=1) for lanes in (1, 8)]
    return [int(order.indices(7, n // 10 * 9, n // 10 * 9 + 3)[0]) for order in orders]

ask(10**7)  # code and the arrays of numpy are loaded now
before = resident()
ids = ask(10**12)
assert all(0 <= i < 10**12 for i in ids)
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_000_000


def test_id_at_a_far_position_of_a_later_epoch():
    order = Shuffle(10**12, seed=7)
    ids = order.indices(7, 9 * 10**11, 9 * 10**11 + 5)
    assert len(set(ids.tolist())) == 5
    assert order.positions(7, ids).tolist() == list(range(9 * 10**11, 9 * 10**11 + 5))


BAD = [
    (lambda kind: kind(-1, seed=0), ValueError, "n must be in [0, ", "-1"),
    (lambda kind: kind(MOST + 1, seed=0), ValueError, f"{MOST}]", str(MOST + 1)),
    (lambda kind: kind(2.0, seed=0), TypeError, "n must be a whole number", "2.0"),
    (lambda kind: kind(True, seed=0), TypeError, "n must be a whole number", "True"),
    (lambda kind: kind(np.bool_(True), seed=0), TypeError, "n must be a whole number", "True"),
    (lambda kind: kind(float("nan"), seed=0), TypeError, "n must be a whole number", "nan"),
    (lambda kind: kind(None, seed=0), TypeError, "n must be a whole number", "None"),
    (lambda kind: kind([5], seed=0), TypeError, "n must be a whole number", "[5]"),
    (lambda kind: kind(5, seed=-1), ValueError, "seed must be in [0, 18446744073709551615]", "-1"),
    (lambda kind: kind(5, seed=2**64), ValueError, "seed must be in [0, 18446744073709551615]", str(2**64)),
    (lambda kind: kind(5, seed=1.5), TypeError, "seed must be a whole number", "1.5"),
    (lambda kind: kind(5, seed=None), TypeError, "seed must be a whole number", "None"),
    (lambda kind: kind(5, seed=False), TypeError, "seed must be a whole number", "False"),
]


@pytest.mark.parametrize("kind", [Shuffle, Random])
@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(kind, make, error, expected, found):
    with pytest.raises(error) as caught:
        make(kind)
    assert expected in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize("kind", [Shuffle, Random])
def test_seed_is_a_keyword(kind):
    with pytest.raises(TypeError, match="positional"):
        kind(5, 1)
    with pytest.raises(TypeError, match="seed"):
        kind(5)


@pytest.mark.parametrize("kind", [Shuffle, Random])
@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(kind, number):
    order = kind(number(97), seed=number(100))
    assert order == kind(97, seed=100)
    assert hash(order) == hash(kind(97, seed=100))
    assert order.indices(0, 0, 97).tolist() == kind(97, seed=100).indices(0, 0, 97).tolist()
