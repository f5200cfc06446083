"""Shard: ranks that never talk share an epoch without overlap, also when their number changes on the way."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.interfaces import Order
from penstock.order import BlockShuffle, Mixture, Shard, Shuffle
from penstock.testing.strategies import orders

WORLDS = (1, 2, 3, 4, 8)


@given(world=st.integers(1, 20), start=st.integers(0, 10**6), count=st.integers(0, 100))
def test_ranks_hold_every_position_once(world, start, count):
    runs = [Shard(rank, world).run(start, start + count) for rank in range(world)]
    assert sorted(p for run in runs for p in run) == list(range(start, start + count))
    for rank, run in enumerate(runs):
        assert list(run) == [p for p in range(start, start + count) if p % world == rank]
        assert start <= run.start <= run.stop <= start + count  # what order.indices accepts


@given(world=st.integers(1, 20), start=st.integers(0, 1000), batches=st.integers(1, 9), local=st.integers(1, 9))
def test_ranks_get_equal_parts_if_the_batch_divides(world, start, batches, local):
    for batch in range(batches):
        first = start + batch * local * world
        assert {len(Shard(rank, world).run(first, first + local * world)) for rank in range(world)} == {local}


def test_l12_ranks_of_an_uneven_end_have_the_same_number_of_steps():
    n, batch, world = 100, 12, 3
    for rank in range(world):
        runs = [Shard(rank, world).run(low, min(n, low + batch)) for low in range(0, n, batch)]
        assert len(runs) == 9
        assert [len(run) for run in runs[:-1]] == [4] * 8
    assert sorted(len(Shard(rank, world).run(96, 100)) for rank in range(world)) == [1, 1, 2]


def epoch_by_ranks(order: Order, batch: int, world: int, start: int, stop: int) -> list[int]:
    """Global batches from start on, each put together from what its ranks compute alone."""
    found = []
    for low in range(start, stop, batch):
        high = min(stop, low + batch)
        part = [-1] * (high - low)
        for rank in range(world):
            run = Shard(rank, world).run(low, high)
            part[run.start - low : run.stop - low : run.step] = order.indices(0, run.start, run.stop, run.step).tolist()
        found += part
    return found


@pytest.mark.parametrize(("before", "after"), list(product(WORLDS, WORLDS)))
def test_l8_resume_on_another_world_repeats_and_loses_nothing(before, after):
    n = 97
    for order in (Shuffle(n, seed=3), BlockShuffle(n, block=5, window=2, lanes=8, seed=3)):
        whole = order.indices(0, 0, n).tolist()
        for cut in range(n + 1):
            assert epoch_by_ranks(order, 8, before, 0, cut) + epoch_by_ranks(order, 24, after, cut, n) == whole


@given(order=orders(200), data=st.data())
def test_any_order_survives_any_changes_of_world_and_batch(order, data):
    n, low, found = len(order), 0, []
    stop = min(n, 200)
    while low < stop:
        high = data.draw(st.integers(low + 1, stop))
        found += epoch_by_ranks(order, data.draw(st.integers(1, 64)), data.draw(st.integers(1, 9)), low, high)
        low = high
    assert found == order.indices(0, 0, stop).tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("world", [1, 8])
def test_l13_less_data_than_ranks_or_batch_is_shared_all_the_same(n, world):
    for order in (Shuffle(n, seed=1), Mixture([n, n], weights=[1, 1], seed=1)):
        assert epoch_by_ranks(order, 64, world, 0, len(order)) == order.indices(0, 0, len(order)).tolist()


def test_far_positions_are_exact():
    start = 2**63 - 1000
    assert list(Shard(5, 7).run(start, start + 50)) == [p for p in range(start, start + 50) if p % 7 == 5]


def test_shard_is_a_value():
    shard = Shard(2, 4)
    assert shard == Shard(rank=2, world=4) == eval(repr(shard)) == pickle.loads(pickle.dumps(shard)) == copy.copy(shard)
    assert hash(shard) == hash(Shard(2, 4))
    assert shard != Shard(2, 5)
    assert Shard() == Shard(0, 1)


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(number):
    assert list(Shard(number(1), number(3)).run(2, 12)) == [4, 7, 10]
    assert list(Shard(1, 3).run(number(2), number(12))) == [4, 7, 10]


BAD = [
    ((3, 3), ValueError, "rank must be in [0, 3)", "3"),
    ((9, 3), ValueError, "rank must be in [0, 3)", "9"),
    ((-1, 3), ValueError, "rank must be in [0, ", "-1"),
    ((0, 0), ValueError, "world must be in [1, ", "0"),
    ((0, -2), ValueError, "world must be in [1, ", "-2"),
    ((0.0, 2), TypeError, "rank must be a whole number", "0.0"),
    ((True, 2), TypeError, "rank must be a whole number", "True"),
    ((0, 2.0), TypeError, "world must be a whole number", "2.0"),
    ((0, float("nan")), TypeError, "world must be a whole number", "nan"),
    ((None, 2), TypeError, "rank must be a whole number", "None"),
    ((0, "2"), TypeError, "world must be a whole number", "'2'"),
]


@pytest.mark.parametrize(("arguments", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(arguments, error, expected, found):
    with pytest.raises(error) as caught:
        Shard(*arguments)
    assert expected in str(caught.value)
    assert found in str(caught.value)
