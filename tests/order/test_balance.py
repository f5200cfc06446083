"""Dealing by cost: beside plain lists, by hand, over worlds; and what is refused."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import every
from tests.order.reference import deal as deal_lists

from penstock.order import Balance
from penstock.order.balance import deal, room_of_slots, scaled


def slots_of(costs, size, world, micro):
    """The samples of every rank and micro-batch, as the native code deals them."""
    room = room_of_slots(len(costs), size, world, micro)
    order = deal(np.asarray(costs, np.uint64), room, micro)
    parts = [part.tolist() for part in np.split(order, np.cumsum(room)[:-1])]
    return [parts[rank * micro : (rank + 1) * micro] for rank in range(world)]


@given(st.data(), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_dealing_is_that_of_plain_lists(data, world, micro, each):
    size = world * micro * each
    count = data.draw(st.integers(1, size))
    largest = data.draw(st.sampled_from([1, 3, 100, 2**40, 2**63]))
    costs = data.draw(st.lists(st.integers(0, largest), min_size=count, max_size=count))
    assert slots_of(costs, size, world, micro) == deal_lists(costs, size, world, micro)


@given(st.lists(st.floats(0, 1e300, allow_nan=False), min_size=4, max_size=4))
def test_dealing_by_numbers_is_that_of_plain_lists(costs):
    order = deal(np.array(costs), room_of_slots(4, 4, 2, 1), 1)
    assert [order[:2].tolist(), order[2:].tolist()] == [mine[0] for mine in deal_lists(costs, 4, 2, 1)]


@pytest.mark.parametrize("costs", every(7, list(product(range(3), repeat=6))))
def test_every_small_batch_is_dealt_as_plain_lists_do(costs):
    for world, micro in ((1, 1), (2, 1), (3, 1), (6, 1), (1, 2), (1, 3), (3, 2), (2, 3)):
        assert slots_of(costs, 6, world, micro) == deal_lists(list(costs), 6, world, micro)


def test_no_rank_has_much_more_than_another():
    costs = np.random.default_rng(3).lognormal(6, 1, 1024).astype(np.int64)
    room = room_of_slots(1024, 1024, 32, 1)
    loads = [costs[part].sum() for part in np.split(deal(costs, room, 1), np.cumsum(room)[:-1])]
    plain = [costs[rank::32].sum() for rank in range(32)]
    assert max(loads) / np.mean(loads) < 1.01 < 1.1 < max(plain) / np.mean(plain)


def test_ranks_and_micro_batches_have_as_many_samples_as_without_balance():
    assert room_of_slots(12, 12, 3, 2).tolist() == [2, 2, 2, 2, 2, 2]
    assert room_of_slots(7, 12, 3, 2).tolist() == [2, 1, 2, 0, 2, 0]
    assert room_of_slots(2, 12, 3, 2).tolist() == [1, 0, 1, 0, 0, 0]
    assert room_of_slots(0, 4, 2, 1).tolist() == [0, 0]


def test_costs_of_documents_follow_from_their_lengths():
    lengths = [0, 1, 10, 8192]
    assert Balance("attention", width=2).cost(lengths).tolist() == [n * (24 + n) for n in lengths]
    assert Balance("tokens").cost(lengths).tolist() == lengths
    assert Balance("attention").cost([2**62]).tolist() == [2**63]  # no overflow


def test_costs_are_scaled_to_forty_bits():
    assert scaled(np.array([2**40, 7], np.uint64)).tolist() == [2**40, 7]
    assert scaled(np.array([2**41, 8], np.uint64)).tolist() == [2**40, 4]
    assert scaled(np.array([0.5, 0.25, 0.0])).tolist() == [2**40, 2**39, 0]
    assert scaled(np.array([0.0, 0.0])).tolist() == [0, 0]
    assert scaled(np.array([True, False])).tolist() == [1, 0]
    assert scaled(np.array([], np.float64)).tolist() == []
    for bad in ([-1.0], [float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="at least 0"):
            scaled(np.array(bad))
    with pytest.raises(ValueError, match="found -3"):
        scaled(np.array([5, -3]))


def test_what_cannot_be_balanced_is_refused():
    with pytest.raises(TypeError, match="name of a field"):
        Balance("")
    with pytest.raises(TypeError, match="name of a field"):
        Balance(7)
    with pytest.raises(ValueError, match="width"):
        Balance("tokens", width=0)
    with pytest.raises(ValueError, match="micro_batches"):
        Balance("tokens", micro_batches=0)
    with pytest.raises(ValueError, match="field= is for"):
        Balance("cost", field="ids")
