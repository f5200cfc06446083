"""Blocks, seeks and bytes of an order against a count of every single read."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest

from penstock.order import BlockShuffle, Random, Sequential, Shard, Shuffle, locality
from penstock.order.locality import measure_locality
from penstock.records import Blocks


def naive(order, blocks, *, batch_size, cache=0, record_bytes=1.0, shard=None, epoch=0):
    """A reader that does what the figures say, one record after the other; lists, and no arithmetic."""
    shard = shard or Shard()
    sizes = np.broadcast_to(np.asarray(record_bytes, float), blocks.length)
    members = [list(blocks[k]) for k in range(len(blocks))]
    block_of = {i: k for k, ids in enumerate(members) for i in ids}
    kept, touched = [], set()  # kept: least recently used first
    last_id = last_block = last_read = None
    figures = dict.fromkeys(("record_seeks", "block_seeks", "block_requests", "block_reads", "same"), 0)
    used = requested = read = records = batches = 0
    for step in range(0, len(order), batch_size):
        positions = [p for p in range(step, min(step + batch_size, len(order))) if p % shard.world == shard.rank]
        batches += bool(positions)
        seen = set()
        for i in order.at(epoch, positions).tolist():
            block = block_of[i]
            records += 1
            used += sizes[i]
            figures["record_seeks"] += last_id is None or i != last_id + 1
            figures["same"] += block == last_block
            last_id, last_block = i, block
            touched.add(block)
            if block in seen:
                continue
            seen.add(block)
            figures["block_requests"] += 1
            requested += sum(sizes[j] for j in members[block])
            if block in kept:
                kept.remove(block)
            else:
                figures["block_reads"] += 1
                read += sum(sizes[j] for j in members[block])
                figures["block_seeks"] += last_read is None or block != last_read + 1
                last_read = block
            kept = [*kept, block][-cache:] if cache else []
    figures |= {"bytes_used": used, "bytes_requested": requested, "bytes_read": read}
    return figures | {"records": records, "blocks_touched": len(touched), "num_batches": batches}


def check(order, blocks, **options):
    found, wanted = measure_locality(order, blocks, **options), naive(order, blocks, **options)
    assert found.is_exact
    assert (found.num_blocks, found.num_batches) == (len(blocks), wanted["num_batches"])
    for name, value in asdict(found.epoch).items():
        assert value == pytest.approx(wanted[name]), name
    for name, value in asdict(found.batch).items():
        total = wanted["block_requests" if name == "blocks_touched" else name]
        assert value == pytest.approx(total / wanted["num_batches"]), name
    assert found.same_block == pytest.approx(wanted["same"] / max(1, wanted["records"] - 1))
    if wanted["bytes_used"]:
        assert found.read_per_used == pytest.approx(wanted["bytes_read"] / wanted["bytes_used"])
        assert found.requested_per_used == pytest.approx(wanted["bytes_requested"] / wanted["bytes_used"])


BLOCKS = [Blocks(12, 1), Blocks(12, 5), Blocks(12, 4), Blocks(12, 100), Blocks.of_counts([3, 1, 6, 2])]


class Listed:
    """An order given as a list of ids."""

    def __init__(self, ids):
        self.ids = np.asarray(ids, np.int64)

    def __len__(self):
        return self.ids.size

    def indices(self, epoch, start, stop, step=1):
        return self.ids[start:stop:step]

    def at(self, epoch, positions):
        return self.ids[np.asarray(positions, np.int64)]


# Every read counted


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize(
    "order", [Sequential(12), Shuffle(12, seed=1), BlockShuffle(12, block=4, window=2, seed=2), Random(12, seed=3)], ids=repr
)
@pytest.mark.sampled(3)
def test_figures_equal_a_count_of_every_read(order, blocks):
    sizes = np.arange(12) ** 2
    for batch_size, cache, record_bytes, epoch in itertools.product((1, 4, 5, 12, 50), (0, 1, 2, 3, 50), (7.0, sizes), (0, 1)):
        check(order, blocks, batch_size=batch_size, cache=cache, record_bytes=record_bytes, epoch=epoch)


def test_figures_of_every_order_of_five_records_equal_a_count():
    blocks = Blocks.of_counts([2, 1, 2])
    for ids, cache in itertools.product(itertools.permutations(range(5)), (0, 1, 2)):
        check(Listed(ids), blocks, batch_size=2, cache=cache)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("n", [12, 13, 14])
def test_every_rank_counts_its_own_reads(n, world):
    for rank, order in itertools.product(range(world), (Shuffle(n, seed=5), BlockShuffle(n, block=2, window=2, lanes=2, seed=5))):
        check(order, Blocks(n, 3), batch_size=6, cache=2, shard=Shard(rank, world))


def test_larger_data_equals_a_count():
    order = BlockShuffle(5000, block=64, window=4, lanes=2, seed=3)
    for cache in (0, 4, 8):
        check(order, Blocks(5000, 64), batch_size=100, cache=cache, shard=Shard(1, 4))
        check(order, Blocks.of_counts(np.random.default_rng(1).multinomial(5000, [0.05] * 20)), batch_size=100, cache=cache)


# Orders whose figures are known


def test_reading_in_order_reads_every_block_once_and_never_jumps():
    found = measure_locality(Sequential(1000), Blocks(1000, 100), batch_size=50, cache=1, record_bytes=3)
    assert (found.epoch.block_reads, found.epoch.block_seeks, found.epoch.record_seeks) == (10, 1, 1)
    assert (found.read_per_used, found.epoch.bytes_used, found.batch.blocks_touched) == (1, 3000, 1)
    assert found.same_block == pytest.approx(990 / 999)
    assert found.requested_per_used == 2  # without a cache, both batches of a block read it


@pytest.mark.parametrize(("n", "lanes"), [(4096, 1), (4000, 1), (4096, 2)])  # lanes of different lengths change groups apart
def test_a_cache_of_the_window_reads_every_block_of_a_block_shuffle_once(n, lanes):
    order = BlockShuffle(n, block=64, window=8, lanes=lanes, seed=1)
    found = measure_locality(order, Blocks(n, 64), batch_size=32, cache=8 * lanes)
    assert found.epoch.block_reads == found.epoch.blocks_touched == found.num_blocks
    assert found.read_per_used == 1
    assert measure_locality(order, Blocks(n, 64), batch_size=32, cache=4 * lanes).read_per_used > 5


def test_lanes_keep_the_blocks_of_ranks_apart():
    for lanes, share in ((1, 1.0), (4, 0.25)):
        order = BlockShuffle(8192, block=32, window=4, lanes=lanes, seed=1)
        found = measure_locality(order, Blocks(8192, 32), batch_size=64, cache=16, shard=Shard(2, 4))
        assert found.epoch.blocks_touched == share * 256
        assert found.read_per_used == pytest.approx(4 * share)


# Samples


def exactly(monkeypatch, order, blocks, **options):
    with monkeypatch.context() as patch:
        patch.setattr(locality, "EXACT_POSITIONS", len(order))
        return measure_locality(order, blocks, **options)


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("cache", [0, 4, 32])
@pytest.mark.parametrize(
    "order",
    [
        Sequential(200_000),
        Shuffle(200_000, seed=1),
        BlockShuffle(200_000, block=1000, window=4, seed=1),
        BlockShuffle(200_000, block=500, window=8, lanes=4, seed=1),
    ],
    ids=repr,
)
@pytest.mark.sampled(5)
def test_a_sample_is_close_to_the_count(monkeypatch, order, cache, world):
    blocks, options = Blocks(200_000, 1000), {"batch_size": 64, "cache": cache, "shard": Shard(1 % world, world)}
    wanted = exactly(monkeypatch, order, blocks, **options)
    monkeypatch.setattr(locality, "EXACT_POSITIONS", 45_000)
    monkeypatch.setattr(locality, "RUN_POSITIONS", 2000)
    monkeypatch.setattr(locality, "WARM_POSITIONS", 2000)
    found = measure_locality(order, blocks, **options)
    assert not found.is_exact
    assert wanted.is_exact
    for name, value in asdict(wanted.epoch).items():
        assert asdict(found.epoch)[name] == pytest.approx(value, rel=0.15, abs=8), name
    assert found.same_block == pytest.approx(wanted.same_block, abs=0.02)
    assert found.batch.blocks_touched == pytest.approx(wanted.batch.blocks_touched, rel=0.1)


def test_blocks_of_different_sizes_are_sampled_with_their_bytes(monkeypatch):
    rng = np.random.default_rng(3)
    blocks = Blocks.of_counts(rng.integers(1, 2000, 200))
    order, sizes = Shuffle(blocks.length, seed=1), rng.integers(0, 100, blocks.length)
    options = {"batch_size": 64, "cache": 20, "record_bytes": sizes, "shard": Shard(0, 2)}
    wanted = exactly(monkeypatch, order, blocks, **options)
    monkeypatch.setattr(locality, "EXACT_POSITIONS", 50_000)
    found = measure_locality(order, blocks, **options)
    assert not found.is_exact
    assert found.read_per_used == pytest.approx(wanted.read_per_used, rel=0.1)
    assert found.epoch.blocks_touched == pytest.approx(wanted.epoch.blocks_touched, rel=0.1)


@pytest.mark.parametrize("n", [10**12, 2**62])
def test_orders_of_any_length_are_measured(n):
    order = BlockShuffle(n, block=8192, window=16, seed=7)
    found = measure_locality(order, Blocks(n, 8192), batch_size=256, cache=16, record_bytes=100)
    assert found.read_per_used == pytest.approx(1)
    assert found.batch.blocks_touched == pytest.approx(16, abs=0.1)
    assert found.epoch.block_reads == pytest.approx(n / 8192)
    rank = measure_locality(Shuffle(n, seed=1), Blocks(n, 1024), batch_size=256, cache=16, shard=Shard(3, 8))
    assert rank.epoch.block_reads == pytest.approx(n / 8, rel=0.01)
    assert rank.read_per_used == pytest.approx(1024, rel=0.01)


def test_blocks_larger_than_a_sample_are_measured():
    n = 10**12
    for order, seeks in ((Sequential(n), 0.0), (BlockShuffle(n, block=10**8, window=2, seed=1), 1.0)):
        found = measure_locality(order, Blocks(n, 10**8), batch_size=256, cache=2)
        assert found.epoch.block_reads == 10**4
        assert found.epoch.block_seeks == pytest.approx(seeks * 10**4, abs=500)


def test_a_batch_larger_than_the_epoch_is_measured():
    n = (1 << 20) + 7
    found = measure_locality(Shuffle(n, seed=1), Blocks(n, 1000), batch_size=2 * n)
    assert (found.num_batches, found.batch.blocks_touched, found.epoch.blocks_touched) == (1, 1049, 1049)


def test_measuring_again_gives_the_same():
    order, blocks = Shuffle(3_000_000, seed=1), Blocks(3_000_000, 1000)
    options = {"batch_size": 100, "cache": 10, "epoch": 3, "shard": Shard(0, 2)}
    assert measure_locality(order, blocks, **options) == measure_locality(order, blocks, **options)


# What cannot be measured


@pytest.mark.parametrize(
    ("order", "options", "told"),
    [
        (Shuffle(12, seed=1), {"batch_size": 0}, "batch_size must be in"),
        (Shuffle(12, seed=1), {"batch_size": 4, "cache": -1}, "cache must be in"),
        (Shuffle(12, seed=1), {"batch_size": 5, "shard": Shard(0, 2)}, "batch_size must be a multiple of the number of ranks"),
        (Shuffle(12, seed=1), {"batch_size": 4, "record_bytes": [1, 2]}, "a size for each of 12 records, got 2"),
        (Shuffle(12, seed=1), {"batch_size": 4, "record_bytes": -1}, "not negative"),
        (Shuffle(12, seed=1), {"batch_size": 4, "record_bytes": math.nan}, "not negative"),
        (Shuffle(1, seed=1), {"batch_size": 2, "shard": Shard(1, 2)}, "at least one record for rank 1"),
        (Random(2**21, seed=1), {"batch_size": 4}, "or one that has each of 12 records once"),
    ],
)
def test_what_cannot_be_measured_is_refused(order, options, told):
    with pytest.raises((ValueError, TypeError), match=told):
        measure_locality(order, Blocks(12, 4), **options)
