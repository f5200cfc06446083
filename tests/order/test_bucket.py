"""Bucketed: against plain lists, as an order, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.reference import bucketed

from penstock.order import BlockShuffle, Bucketed, Random, Sequential, Shuffle
from penstock.testing import OrderSuite
from penstock.testing.strategies import seeds


def lengths_of(n):
    return (np.arange(n) * 7919 % 97).astype(np.int64)


class TestBucketed(OrderSuite):
    changes_with_epoch = True
    repr_evaluates = False

    def make(self):
        shuffled = [Bucketed(Shuffle(n, seed=n), lengths_of(n), batch_size=4, window=3) for n in (0, 1, 2, 3, 4, 5, 97, 1025)]
        return [*shuffled, Bucketed(BlockShuffle(500, block=9, window=3, seed=5), lengths_of(500), batch_size=16)]


@given(st.data(), st.integers(0, 60), seeds(), st.integers(0, 3), st.integers(1, 9), st.integers(1, 5))
def test_buckets_are_those_of_plain_lists(data, n, seed, epoch, batch_size, window):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    inner = data.draw(st.sampled_from([Shuffle(n, seed=seed), BlockShuffle(n, block=4, window=2, seed=seed), Sequential(n)]))
    order = Bucketed(inner, np.array(lengths, np.int64), batch_size=batch_size, window=window)
    expected = bucketed(inner.indices(epoch, 0, n).tolist(), lengths, getattr(inner, "seed", 0), epoch, batch_size, window)
    assert order.indices(epoch, 0, n).tolist() == expected
    assert order.positions(epoch, expected).tolist() == list(range(n))
    step = data.draw(st.integers(1, 7))
    assert order.indices(epoch, 0, n, step).tolist() == expected[::step]


def test_the_last_short_batch_is_not_the_longest_records():
    n, last = 1003, []
    order = Bucketed(Shuffle(n, seed=3), np.arange(n), batch_size=100, window=10)
    for epoch in range(40):
        last += order.indices(epoch, 1000, n).tolist()
    assert 350 < np.mean(last) < 650


def test_lengths_may_be_a_function_that_is_called_once():
    calls = []
    order = Bucketed(Shuffle(10, seed=1), lambda: calls.append(1) or lengths_of(10), batch_size=2)
    assert calls == []
    for epoch in range(3):
        assert sorted(order.indices(epoch, 0, 10).tolist()) == list(range(10))
    assert calls == [1]


def test_what_has_no_buckets_is_refused():
    with pytest.raises(TypeError, match="every record once"):
        Bucketed(Random(5, seed=1), lengths_of(5), batch_size=2)
    inner = Bucketed(Shuffle(5, seed=1), lengths_of(5), batch_size=2)
    with pytest.raises(TypeError, match="every record once"):
        Bucketed(inner, lengths_of(5), batch_size=2)
    with pytest.raises(ValueError, match="expected 5 lengths"):
        Bucketed(Shuffle(5, seed=1), lengths_of(4), batch_size=2)
    with pytest.raises(ValueError, match="whole numbers"):
        Bucketed(Shuffle(2, seed=1), [0.5, 1.0], batch_size=2)
    with pytest.raises(ValueError, match="batch_size"):
        Bucketed(Shuffle(5, seed=1), lengths_of(5), batch_size=0)
    with pytest.raises(ValueError, match="window"):
        Bucketed(Shuffle(5, seed=1), lengths_of(5), batch_size=2, window=0)
