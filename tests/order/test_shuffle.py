"""Shuffle, Random and BlockShuffle: bijections and draws, seeds and epochs, huge orders, blocks in flight, and lanes."""

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import effort
from tests.cli import warm

from penstock.order import BlockShuffle, Random, Shard, Shuffle
from penstock.testing import OrderSuite
from penstock.testing.strategies import block_shuffles, seeds

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


DRAWS = effort.count(6_000, 20_000)


def test_all_permutations_of_five_come_equally_often():
    count = Counter(tuple(Shuffle(5, seed=seed).indices(0, 0, 5).tolist()) for seed in range(DRAWS))
    expected = DRAWS / 120
    chi_squared = sum((count[p] - expected) ** 2 / expected for p in count) + (120 - len(count)) * expected
    assert chi_squared / 119 < 1.5


def test_all_permutations_of_five_come_equally_often_over_epochs():
    order = Shuffle(5, seed=9)
    count = Counter(tuple(order.indices(epoch, 0, 5).tolist()) for epoch in range(DRAWS))
    expected = DRAWS / 120
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
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
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


class TestBlockShuffle(OrderSuite):
    changes_with_epoch = True

    def make(self):
        shapes = [  # n, block, window, lanes
            (0, 4, 2, 1),
            (0, 4, None, 3),
            (1, 4, 2, 1),
            (1, 1, 1, 5),
            (97, 10, 1, 1),
            (97, 10, 3, 1),
            (97, 10, None, 1),
            (97, 10, 4, 8),
            (97, 100, 2, 2),
            (97, 1, 16, 3),
            (1024, 64, 4, 4),
            (2999, 7, 5, 6),
            (2999, 128, None, 6),
            (10**12, 1024, 16, 8),
            (10**12 + 1, 1000, None, 1),
            (MOST, 2**40, 2**10, 3),
        ]
        return [BlockShuffle(n, block=block, window=window, lanes=lanes, seed=n % 1009) for n, block, window, lanes in shapes]


@given(order=block_shuffles(400), epoch=st.integers(0, MOST))
def test_any_shape_is_a_bijection_with_an_inverse(order, epoch):
    n = len(order)
    ids = order.indices(epoch, 0, n)
    assert sorted(ids.tolist()) == list(range(n))
    assert order.positions(epoch, ids).tolist() == list(range(n))
    assert order.at(epoch, np.arange(n)).tolist() == ids.tolist()


@given(order=block_shuffles(400), data=st.data())
def test_any_run_of_any_shape_is_a_slice_of_the_whole(order, data):
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    step = data.draw(st.integers(1, 30))
    assert order.indices(2, start, stop, step).tolist() == order.indices(2, 0, len(order))[start:stop:step].tolist()


@given(
    n=st.integers(1, MOST),
    block=st.integers(1, MOST),
    window=st.none() | st.integers(1, MOST),
    lanes=st.integers(1, MOST),
    seed=seeds(),
    data=st.data(),
)
def test_any_size_whatever_can_be_undone(n, block, window, lanes, seed, data):
    block = max(block, n // 2**40)  # a group's permutation is a table; keep those of this test small
    order = BlockShuffle(n, block=block, window=window, lanes=lanes, seed=seed)
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    ids = order.at(3, positions)
    assert np.all((ids >= 0) & (ids < n))
    assert order.positions(3, ids).tolist() == positions
    assert order.at(3, order.positions(3, positions)).tolist() == positions


def blocks_in_flight(ids, block):
    """For each position, how many blocks have been begun and not finished (the one just read included)."""
    blocks = ids // block
    count = int(blocks.max()) + 1
    first, last = np.full(count, ids.size), np.zeros(count, np.int64)
    np.minimum.at(first, blocks, np.arange(ids.size))
    np.maximum.at(last, blocks, np.arange(ids.size))
    change = np.zeros(ids.size + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.cumsum(change)[:-1]


@given(n=st.integers(1, 3000), block=st.integers(1, 60), window=st.integers(1, 12), seed=seeds())
def test_no_more_than_a_window_of_blocks_is_in_flight(n, block, window, seed):
    order = BlockShuffle(n, block=block, window=window, seed=seed)
    for epoch in (0, 1):
        assert blocks_in_flight(order.indices(epoch, 0, n), block).max() <= window


@given(n=st.integers(1, 3000), block=st.integers(1, 40), window=st.integers(1, 6), lanes=st.integers(1, 9), seed=seeds())
def test_each_lane_has_no_more_than_a_window_of_blocks_in_flight(n, block, window, lanes, seed):
    order = BlockShuffle(n, block=block, window=window, lanes=lanes, seed=seed)
    whole_lanes = order.num_blocks // lanes * lanes == order.num_blocks and n % block == 0
    ids = order.indices(1, 0, n)
    for lane in range(lanes if whole_lanes else 0):
        assert blocks_in_flight(ids[lane::lanes], block).max() <= window
    even = max(0, order.num_blocks // lanes * block - (block if n % block else 0)) * lanes  # the lanes run side by side up to here
    for lane in range(lanes):
        mine = ids[:even][lane::lanes]
        if mine.size > 0:
            assert blocks_in_flight(mine, block).max() <= window


@pytest.mark.parametrize(("n", "block", "window"), [(96, 8, 3), (97, 8, 3), (103, 8, 4), (1000, 7, 1)])
def test_each_block_is_read_in_one_stretch_of_one_group(n, block, window):
    order = BlockShuffle(n, block=block, window=window, seed=5)
    ids = order.indices(0, 0, n)
    edges, seen = [0], set()
    while edges[-1] < n:  # a group is the shortest run that begins where the last ended and holds whole blocks, `window` of them
        group, stop = set(), edges[-1]
        while stop < n and len(group | {ids[stop] // block}) <= window:
            group.add(ids[stop] // block)
            stop += 1
        assert not group & seen
        assert sorted(ids[edges[-1] : stop]) == [r for b in sorted(group) for r in range(b * block, min(n, (b + 1) * block))]
        seen |= group
        edges.append(stop)
    assert len(edges) - 1 == -(-order.num_blocks // window)


def mean_classes(order, classes=10, batch=64, epochs=6):
    """Distinct classes per batch of data sorted by class, over some epochs."""
    means = []
    for epoch in range(epochs):
        labels = order.indices(epoch, 0, len(order)) * classes // len(order)
        batches = labels[: labels.size // batch * batch].reshape(-1, batch)
        seen = np.zeros((batches.shape[0], classes), np.bool_)
        seen[np.arange(batches.shape[0])[:, None], batches] = True
        means.append(seen.sum(1).mean())
    return np.mean(means)


# Blocks are drawn without replacement: 10 * (1 - C(900, w) / C(1000, w)) classes a group; a batch misses 0.05 of them at w = 16.
@pytest.mark.parametrize(("window", "expected", "within"), [(1, 1.0, 0.01), (4, 3.44, 0.1), (16, 8.12, 0.15), (None, 9.99, 0.01)])
def test_sorted_data_shows_as_many_classes_per_batch_as_promised(window, expected, within):
    order = BlockShuffle(1000 * 1024, block=1024, window=window, seed=3)
    assert mean_classes(order) == pytest.approx(expected, abs=within)


def test_lanes_mix_blocks_of_sorted_data_as_a_window_does():
    order = BlockShuffle(1000 * 1024, block=1024, window=2, lanes=8, seed=3)
    assert mean_classes(order) == pytest.approx(8.12, abs=0.15)


def test_window_of_everything_is_a_global_shuffle():
    n, block, batch = 2**17, 1024, 256
    pairs = []
    for order in (BlockShuffle(n, block=block, window=None, seed=3), BlockShuffle(n, block=block, window=10**9, seed=3)):
        blocks = np.sort(order.indices(0, 0, n).reshape(-1, batch) // block, axis=1)
        pairs.append(np.mean(blocks[:, 1:] == blocks[:, :-1]))
    ideal = np.sort(Shuffle(n, seed=1).indices(0, 0, n).reshape(-1, batch) // block, axis=1)
    assert pairs[0] == pytest.approx(np.mean(ideal[:, 1:] == ideal[:, :-1]), rel=0.02)
    assert pairs[1] == pairs[0]


@pytest.mark.parametrize("blocks", [8, 64, 1000])
@pytest.mark.parametrize("window", [1, 3, 16, None])
def test_ranks_of_a_world_that_divides_the_lanes_share_no_block(blocks, window):
    order = BlockShuffle(blocks * 16, block=16, window=window, lanes=8, seed=2)
    whole = order.indices(1, 0, len(order))
    for world in (1, 2, 4, 8):
        runs = [Shard(rank, world).run(0, len(order)) for rank in range(world)]
        ids = [order.indices(1, run.start, run.stop, run.step) for run in runs]
        touched = [set((mine // 16).tolist()) for mine in ids]
        assert sum(map(len, touched)) == len(set.union(*touched)) == blocks
        assert np.array_equal(np.stack(ids, axis=1).ravel(), whole)


@given(n=st.integers(1, 4000), block=st.integers(1, 64), window=st.integers(1, 6), seed=seeds())
def test_ranks_share_only_blocks_of_the_uneven_end(n, block, window, seed):
    lanes = 4
    order = BlockShuffle(n, block=block, window=window, lanes=lanes, seed=seed)
    even = max(0, order.num_blocks // lanes * block - (block if n % block else 0)) * lanes
    ids = order.indices(0, 0, even)
    touched = [set((ids[rank::lanes] // block).tolist()) for rank in range(lanes)]
    assert sum(map(len, touched)) == len(set.union(*touched))


def test_global_order_does_not_depend_on_the_world():
    order = BlockShuffle(5000, block=16, window=4, lanes=8, seed=2)
    whole = order.indices(0, 0, 5000).tolist()
    for world in (1, 2, 3, 5, 8, 16):
        found = [None] * 5000
        for rank in range(world):
            run = Shard(rank, world).run(0, 5000)
            found[run.start : run.stop : run.step] = order.indices(0, run.start, run.stop, run.step).tolist()
        assert found == whole


def test_groups_are_drawn_anew_in_every_epoch():
    order = BlockShuffle(64 * 100, block=64, window=4, seed=1)
    partners = []
    for epoch in (0, 1):
        blocks = order.indices(epoch, 0, len(order)).reshape(-1, 256) // 64
        partners.append({frozenset(group.tolist()) for group in blocks})
    assert len(partners[0]) == len(partners[1]) == 25
    assert len(partners[0] & partners[1]) <= 1


def test_l16_next_epoch_of_a_block_shuffle_is_not_the_next_seed():
    for window, lanes in ((1, 1), (4, 1), (4, 4), (None, 1)):
        found = {
            tuple(BlockShuffle(200, block=5, window=window, lanes=lanes, seed=seed).indices(epoch, 0, 200))
            for seed in range(8)
            for epoch in range(8)
        }
        assert len(found) == 64


def test_num_blocks_counts_the_short_one():
    assert [BlockShuffle(n, block=4, seed=0).num_blocks for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


BAD_BLOCKS = [
    ({"n": -1}, ValueError, "n must be in [0, ", "-1"),
    ({"n": 2**63}, ValueError, f"{MOST}]", str(2**63)),
    ({"n": 5.0}, TypeError, "n must be a whole number", "5.0"),
    ({"n": True}, TypeError, "n must be a whole number", "True"),
    ({"block": 0}, ValueError, "block must be in [1, ", "0"),
    ({"block": -4}, ValueError, "block must be in [1, ", "-4"),
    ({"block": 1.5}, TypeError, "block must be a whole number", "1.5"),
    ({"block": None}, TypeError, "block must be a whole number", "None"),
    ({"window": 0}, ValueError, "window must be in [1, ", "0"),
    ({"window": -1}, ValueError, "window must be in [1, ", "-1"),
    ({"window": float("nan")}, TypeError, "window must be a whole number", "nan"),
    ({"lanes": 0}, ValueError, "lanes must be in [1, ", "0"),
    ({"lanes": "2"}, TypeError, "lanes must be a whole number", "'2'"),
    ({"lanes": None}, TypeError, "lanes must be a whole number", "None"),
    ({"seed": -1}, ValueError, "seed must be in [0, ", "-1"),
    ({"seed": 2**64}, ValueError, "18446744073709551615]", str(2**64)),
    ({"seed": 0.0}, TypeError, "seed must be a whole number", "0.0"),
]


@pytest.mark.parametrize(("change", "error", "expected", "found"), BAD_BLOCKS)
def test_bad_block_shuffles_are_refused_with_expected_and_found(change, error, expected, found):
    arguments = {"n": 100, "block": 10, "window": 2, "lanes": 1, "seed": 0} | change
    with pytest.raises(error) as caught:
        BlockShuffle(arguments.pop("n"), **arguments)
    assert expected in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers_of_a_block_shuffle(number):
    order = BlockShuffle(number(97), block=number(10), window=number(2), lanes=number(3), seed=number(7))
    plain = BlockShuffle(97, block=10, window=2, lanes=3, seed=7)
    assert order == plain
    assert order.num_blocks == plain.num_blocks == 10
    assert order.indices(0, 0, 97).tolist() == plain.indices(0, 0, 97).tolist()
