"""What an order costs to read: blocks, seeks and bytes per batch and per epoch, where data is read in blocks.

The model of a reader: a batch asks for each block that it needs once, at the place where it first needs it. A block among the last
``cache`` different ones that were asked for is still there (LRU), any other is read as a whole. With ``cache=0`` nothing is kept
from one batch to the next, and every request is a read. The cache is empty when an epoch begins.

Up to ``EXACT_POSITIONS`` positions every read is counted. Longer epochs are sampled in runs of batches, each with a warm cache.
First reads of a block are rare events that a sample would miss, so they are not sampled: an order that has every record once
reads every block at least once. Only reads of blocks that were there before are estimated.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, whole_number
from penstock.order.order import BlockShuffle, InvertibleOrder, Order
from penstock.order.permutation import Permutation
from penstock.order.position import Shard
from penstock.records import Blocks

__all__ = ["EXACT_POSITIONS", "Locality", "Reads", "measure_locality"]

EXACT_POSITIONS = 1 << 20
"""Epochs of at most this many positions are counted, not sampled."""

RUNS, RUN_POSITIONS, WARM_POSITIONS = 16, 1 << 14, 1 << 14
PROBES = 1 << 18
"""Ids whose positions are looked up, to see which rank reads a block and whether it was read before."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reads:
    """What a batch (on average) or an epoch reads.

    ``block_requests`` is the number of blocks read if nothing is kept between batches, ``block_reads`` that with the cache.
    ``record_seeks`` counts records that are not the next one behind the record before, ``block_seeks`` blocks read that are not the
    next one behind the block read before. ``bytes_used`` are those of the records, ``bytes_requested`` and ``bytes_read`` those
    of whole blocks without and with the cache.
    """

    records: float
    blocks_touched: float
    block_requests: float
    block_reads: float
    record_seeks: float
    block_seeks: float
    bytes_used: float
    bytes_requested: float
    bytes_read: float


@dataclass(frozen=True)
class Locality:
    """What one rank reads in an epoch, and in a batch on average.

    ``requested_per_used`` and ``read_per_used`` are bytes read for a byte used, without and with a cache of ``cache`` blocks.
    ``same_block`` is the share of records from the same block as the record before. ``is_exact`` is False for a sample.
    """

    rank: int
    world: int
    num_blocks: int
    num_batches: int
    cache: int
    is_exact: bool
    batch: Reads
    epoch: Reads
    requested_per_used: float
    read_per_used: float
    same_block: float


def measure_locality(
    order: Order,
    blocks: Blocks,
    *,
    batch_size: int,
    cache: int = 0,
    record_bytes: float | npt.ArrayLike = 1.0,
    shard: Shard | None = None,
    epoch: int = 0,
) -> Locality:
    """Blocks, seeks and bytes of an order over ``blocks`` (``source.blocks``), as the rank ``shard`` of it reads them.

    ``record_bytes`` is the size of all records, or an array with that of each. ``cache`` is the number of blocks that are kept.
    TypeError for an order of more than ``EXACT_POSITIONS`` positions that does not have every record once.

    >>> from penstock.order import BlockShuffle
    >>> from penstock.order.locality import measure_locality
    >>> from penstock.records import Blocks
    >>> blocks = Blocks(100_000, 1000)
    >>> order = BlockShuffle(100_000, block=1000, window=16, seed=7)
    >>> found = measure_locality(order, blocks, batch_size=250, cache=16)
    >>> found.epoch.block_reads, found.read_per_used, found.requested_per_used
    (100.0, 1.0, 62.08)
    """
    shard = Shard() if shard is None else shard
    batch_size = whole_number("batch_size", batch_size, least=1)
    if batch_size % shard.world:
        raise ValueError(f"batch_size must be a multiple of the number of ranks, got {batch_size} and {shard.world} ranks")
    length = len(shard.run(0, len(order)))
    if length == 0:
        raise ValueError(f"expected at least one record for rank {shard.rank}, got an order of {len(order)}")
    reader = _Reader(
        order=order,
        blocks=blocks,
        batch=batch_size // shard.world,
        cache=whole_number("cache", cache),
        shard=shard,
        epoch=epoch,
        length=length,
        sizes=_Sizes.of(record_bytes, blocks),
    )
    if length <= EXACT_POSITIONS:
        return _counted(reader)
    if not isinstance(order, InvertibleOrder) or len(order) != blocks.length:
        raise TypeError(
            f"expected an order of at most {EXACT_POSITIONS} positions, or one that has each of {blocks.length} records once "
            f"(so that a sample is enough), got {order!r}"
        )
    return _sampled(reader, order)


# Sizes


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Bytes of records and blocks. ``before[i]`` is the size of all records before record i, None if all have ``each`` bytes."""

    blocks: Blocks
    each: float
    before: FloatArray | None

    @classmethod
    def of(cls, record_bytes: float | npt.ArrayLike, blocks: Blocks) -> "_Sizes":
        given = np.asarray(record_bytes, np.float64)
        if not np.all(given >= 0) or given.ndim > 1:
            raise ValueError("record_bytes must be a size, or one for each record, and not negative")
        if given.ndim == 0:
            return cls(blocks, float(given), None)
        if given.size != blocks.length:
            raise ValueError(f"record_bytes must have a size for each of {blocks.length} records, got {given.size}")
        return cls(blocks, float(given.mean()) if given.size else 0.0, np.concatenate([[0.0], np.cumsum(given)]))

    def of_records(self, ids: IntArray) -> float:
        return self.each * ids.size if self.before is None else float((self.before[ids + 1] - self.before[ids]).sum())

    def of_blocks(self, numbers: IntArray) -> FloatArray:
        low, high = self.bounds(numbers)
        found: FloatArray = (
            (high - low).astype(np.float64) * self.each if self.before is None else self.before[high] - self.before[low]
        )
        return found

    def of_all(self) -> float:
        return self.each * self.blocks.length

    def bounds(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """The first record of each block, and the one behind its last."""
        ends = self.blocks.ends
        if ends is None:
            low = numbers * self.blocks.size
            return low, low + np.minimum(self.blocks.size, self.blocks.length - low)
        return np.where(numbers > 0, ends[numbers - 1], 0), ends[numbers]


# Counting


@dataclass(frozen=True, eq=False)
class _Tally:
    """What a run of positions reads. ``missed`` are the blocks read with the cache, ``missed_at`` the positions, in the order of
    reading; ``block_seeks`` is how many of them are seeks.
    """

    ids: IntArray
    in_blocks: IntArray
    requested: IntArray
    missed: IntArray
    missed_at: IntArray
    block_seeks: int
    record_seeks: int
    same_block: int


@dataclass(frozen=True, eq=False)
class _Reader:
    """One rank. Positions are its own, 0 to ``length``, in batches of ``batch``."""

    order: Order
    blocks: Blocks
    batch: int
    cache: int
    shard: Shard
    epoch: int
    length: int
    sizes: _Sizes

    @property
    def num_batches(self) -> int:
        return -(-self.length // self.batch)

    def ids(self, start: int, stop: int) -> IntArray:
        rank, world = self.shard.rank, self.shard.world
        return self.order.indices(self.epoch, rank + start * world, rank + (stop - 1) * world + 1, world)

    def tally(self, start: int, stop: int, *, warm: int) -> _Tally:
        """Count positions [start, stop), after reading [warm, start). ``warm`` and ``start`` begin batches."""
        ids = self.ids(warm, stop)
        in_blocks = self.blocks.of(ids)
        counted = slice(start - warm, None)
        codes, code = np.unique(in_blocks, return_inverse=True)
        asked = np.sort(np.unique(np.arange(ids.size) // self.batch * codes.size + code, return_index=True)[1])
        places = asked[_misses(code[asked].tolist(), self.cache)]
        reads = in_blocks[places]
        is_seek = np.concatenate([[True], reads[1:] != reads[:-1] + 1])
        is_jump = np.concatenate([[True], ids[1:] != ids[:-1] + 1])
        is_same = np.concatenate([[False], in_blocks[1:] == in_blocks[:-1]])
        return _Tally(
            ids=ids[counted],
            in_blocks=in_blocks[counted],
            requested=in_blocks[asked[asked >= start - warm]],
            missed=reads[places >= start - warm],
            missed_at=places[places >= start - warm] + warm,
            block_seeks=int(is_seek[places >= start - warm].sum()),
            record_seeks=int(is_jump[counted].sum()),
            same_block=int(is_same[counted].sum()),
        )


def _misses(asked: Iterable[int], cache: int) -> IntArray:
    """The places of requests for blocks that an LRU cache of ``cache`` blocks does not have."""
    held: OrderedDict[int, None] = OrderedDict()
    missed = []
    for place, block in enumerate(asked):
        if block in held:
            held.move_to_end(block)
            continue
        missed.append(place)
        held[block] = None
        if len(held) > cache:
            held.popitem(last=False)
    return np.array(missed, np.int64)


def _counted(reader: _Reader) -> Locality:
    found = reader.tally(0, reader.length, warm=0)
    touched = np.unique(found.in_blocks)
    epoch = Reads(
        records=float(reader.length),
        blocks_touched=float(touched.size),
        block_requests=float(found.requested.size),
        block_reads=float(found.missed.size),
        record_seeks=float(found.record_seeks),
        block_seeks=float(found.block_seeks),
        bytes_used=reader.sizes.of_records(found.ids),
        bytes_requested=float(reader.sizes.of_blocks(found.requested).sum()),
        bytes_read=float(reader.sizes.of_blocks(found.missed).sum()),
    )
    return _locality(reader, epoch, found.same_block / max(1, reader.length - 1), is_exact=True)


def _locality(reader: _Reader, epoch: Reads, same_block: float, *, is_exact: bool) -> Locality:
    number = reader.num_batches
    touched = replace(epoch, blocks_touched=epoch.block_requests)  # a batch asks once for each block that it touches
    batch = Reads(*(figure / number for figure in astuple(touched)))
    used = epoch.bytes_used or 1.0
    return Locality(
        rank=reader.shard.rank,
        world=reader.shard.world,
        num_blocks=len(reader.blocks),
        num_batches=number,
        cache=reader.cache,
        is_exact=is_exact,
        batch=batch,
        epoch=epoch,
        requested_per_used=epoch.bytes_requested / used,
        read_per_used=epoch.bytes_read / used,
        same_block=same_block,
    )


# Sampling


def _sampled(reader: _Reader, order: InvertibleOrder) -> Locality:
    tallies = [reader.tally(start, stop, warm=warm) for warm, start, stop in _runs(reader)]
    scale = reader.length / sum(one.ids.size for one in tallies)
    requested, missed, missed_at, ids = (
        np.concatenate([getattr(one, name) for one in tallies]) for name in ("requested", "missed", "missed_at", "ids")
    )
    touched, touched_bytes = _touched(reader, order, ids)
    requests, requested_bytes = requested.size * scale, float(reader.sizes.of_blocks(requested).sum()) * scale
    reads, read_bytes = requests, requested_bytes
    if reader.cache:
        share = _share_read_before(reader, order, missed, missed_at) if reader.cache < len(reader.blocks) else 0.0
        reads = min(requests, touched + share * missed.size * scale)
        read_bytes = min(requested_bytes, touched_bytes + share * float(reader.sizes.of_blocks(missed).sum()) * scale)
    jumps = sum(one.block_seeks for one in tallies) / missed.size if missed.size else _share_of_jumps(reader, order)
    epoch = Reads(
        records=float(reader.length),
        blocks_touched=touched,
        block_requests=requests,
        block_reads=reads,
        record_seeks=sum(one.record_seeks for one in tallies) * scale,
        block_seeks=jumps * reads,
        bytes_used=reader.sizes.of_records(ids) * scale if reader.shard.world > 1 else reader.sizes.of_all(),
        bytes_requested=requested_bytes,
        bytes_read=read_bytes,
    )
    return _locality(reader, epoch, sum(one.same_block for one in tallies) / ids.size, is_exact=False)


def _runs(reader: _Reader) -> list[tuple[int, int, int]]:
    """Runs of batches spread over the epoch without a pattern: where to begin to fill the cache, and what to count."""
    length, batch = _run_length(reader), reader.batch
    warm = -(-max(WARM_POSITIONS, 8 * reader.cache) // batch) * batch
    whole = max(1, reader.length // length)
    number = max(1, min(RUNS, whole, EXACT_POSITIONS // (length + warm)))
    chosen = Permutation(whole, key=reader.epoch).run(0, number).tolist()
    starts = [k * length // batch * batch for k in chosen]
    stops = [min(max((k + 1) * length // batch, 1) * batch, reader.length) for k in chosen]
    return [(max(0, start - warm), start, stop) for start, stop in zip(starts, stops, strict=True)]


def _run_length(reader: _Reader) -> int:
    """Positions of a run: whole groups of a block shuffle, because it reads its blocks where a group begins."""
    order, least = reader.order, max(RUN_POSITIONS, reader.batch)
    group = (
        order.block * (order.window or order.num_blocks) * order.lanes // reader.shard.world
        if isinstance(order, BlockShuffle)
        else 1
    )
    group = group if 1 <= group <= EXACT_POSITIONS else 1
    return min(-(-least // group) * group, reader.length)


def _touched(reader: _Reader, order: InvertibleOrder, ids: IntArray) -> tuple[float, float]:
    """Blocks that the rank touches in the epoch, and their bytes: a sum over its records of 1 / (its records in the same block)."""
    if reader.shard.world == 1:
        return float(len(reader.blocks)), reader.sizes.of_all()
    most = min(reader.blocks.size, 8192)
    chosen = ids[:: max(1, ids.size * most // (4 * PROBES))]  # small blocks are few among records, and count most
    numbers = reader.blocks.of(chosen)
    positions, counts = _probe(reader, order, numbers, most)
    mine = (positions % reader.shard.world == reader.shard.rank).mean(axis=1) * counts
    each = 1 / np.maximum(mine, 1)
    scale = reader.length / chosen.size
    return float(each.sum()) * scale, float((each * reader.sizes.of_blocks(numbers)).sum()) * scale


def _probe(reader: _Reader, order: InvertibleOrder, numbers: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """The positions of records of each block, ``most`` of them evenly spread, and the number of its records."""
    low, high = reader.sizes.bounds(numbers)
    counts = high - low
    steps = np.maximum(1, counts // most)
    ids = low[:, None] + np.arange(most)[None, :] * steps[:, None] % counts[:, None]
    return order.positions(reader.epoch, ids.ravel()).reshape(ids.shape), counts


def _share_read_before(reader: _Reader, order: InvertibleOrder, missed: IntArray, missed_at: IntArray) -> float:
    """The share of reads of blocks that the rank has read before in the epoch."""
    if missed.size == 0:
        return 0.0
    rank, world = reader.shard.rank, reader.shard.world
    most = min(reader.blocks.size, 64 * world, 4096)
    step = max(1, missed.size * most // PROBES)
    positions, _ = _probe(reader, order, missed[::step], most)
    before = (positions % world == rank) & (positions < (rank + missed_at[::step] * world)[:, None])
    return float(before.any(axis=1).mean())


def _share_of_jumps(reader: _Reader, order: InvertibleOrder) -> float:
    """For blocks so large that a sample reads none: how often the next read behind a block is not in the next block."""
    numbers = Permutation(len(reader.blocks), key=reader.epoch).run(0, min(len(reader.blocks), 256))
    numbers = numbers[numbers < len(reader.blocks) - 1]
    last = order.positions(reader.epoch, reader.sizes.bounds(numbers)[1] - 1)
    inside = last + reader.shard.world < len(order)
    follows = reader.blocks.of(order.at(reader.epoch, last[inside] + reader.shard.world)) == numbers[inside] + 1
    return 1.0 - float(follows.mean()) if follows.size else 1.0
