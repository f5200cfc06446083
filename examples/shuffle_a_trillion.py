"""Shuffles a trillion records that do not exist, jumps into the middle of epoch 7, and resumes there from 24 bytes."""

import resource
import time

import numpy as np

from penstock.order import BlockShuffle, Cursor, Mixture, Shard, Shuffle
from penstock.order.quality import Setting, measure

RECORDS = 10**12
MIDDLE = 9 * RECORDS // 10
BATCH = 4096


def resident_mb() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def jump() -> None:
    """The first ids of a far position, from a cold start."""
    before = resident_mb()
    begin = time.perf_counter()
    ids = Shuffle(RECORDS, seed=7).indices(7, MIDDLE, MIDDLE + 6)
    took = time.perf_counter() - begin
    print(f"\n  {RECORDS:,} records, epoch 7, position {MIDDLE:,}:")
    print("   ", " ".join(f"{i:,}" for i in ids))
    print(f"    found in {took * 1e6:.0f} us; memory grew by {resident_mb() - before:.1f} MB")


def speed() -> None:
    """Nanoseconds per id beside numpy's shuffle of far fewer records, in one run."""
    numpy_records = 10_000_000
    begin = time.perf_counter()
    np.random.default_rng(7).permutation(numpy_records)
    numpy_ns = (time.perf_counter() - begin) / numpy_records * 1e9
    print(f"\n  {'order':<46}{'ns per id':>10}{'ratio':>8}")
    print(f"    {f'numpy permutation of {numpy_records:,}':<44}{numpy_ns:>10.2f}{1:>8.1f}")
    orders = {
        f"Shuffle({RECORDS:,})": Shuffle(RECORDS, seed=7),
        "BlockShuffle(..., block=1024, window=16)": BlockShuffle(RECORDS, block=1024, window=16, seed=7),
    }
    for name, order in orders.items():
        times = []
        for start in range(0, 64 * 65536, 65536):
            begin = time.perf_counter()
            order.indices(7, start, start + 65536)
            times.append((time.perf_counter() - begin) / 65536 * 1e9)
        ns = float(np.median(times))
        print(f"    {name:<44}{ns:>10.2f}{numpy_ns / ns:>8.1f}")


def quality() -> None:
    """How much of a real shuffle is left when whole blocks are read."""
    n, block = 2**20, 1024
    orders = {
        "Shuffle": Shuffle(n, seed=7),
        "window=1": BlockShuffle(n, block=block, window=1, seed=7),
        "window=16": BlockShuffle(n, block=block, window=16, seed=7),
        "window=256": BlockShuffle(n, block=block, window=256, seed=7),
    }
    results = {name: measure(order, Setting(batch_size=256, block=block)) for name, order in orders.items()}
    print(f"\n  shuffle quality, {n:,} records in blocks of {block}, batches of 256")
    print("    " + f"{'':<64}{'ideal':>8}" + "".join(f"{name:>12}" for name in results))
    for rows in zip(*results.values(), strict=True):
        print(f"    {rows[0].name} {rows[0].meaning:<61}{rows[0].ideal:>8.3g}" + "".join(f"{row.value:>12.3g}" for row in rows))


def resume() -> None:
    """Two ranks stop in the middle; three go on from 24 bytes, and together see what one uninterrupted run sees."""
    order = Mixture(
        {"web": Shuffle(7 * 10**11, seed=1), "code": Shuffle(3 * 10**11, seed=2)}, weights={"web": 0.7, "code": 0.3}, seed=5
    )
    start = 10**9
    straight = order.indices(0, start, start + 9 * BATCH)
    cursor, parts = Cursor(seed=5, position=start), []
    for world, batches in ((2, 4), (3, 5)):
        for _ in range(batches):
            stop = cursor.position + BATCH
            batch = np.empty(BATCH, np.int64)
            for rank in range(world):
                run = Shard(rank, world).run(cursor.position, stop)
                batch[run.start - cursor.position :: world] = order.indices(0, run.start, run.stop, run.step)
            parts.append(batch)
            cursor = cursor.advance(BATCH, length=len(order))
        saved = bytes(cursor)
        cursor = Cursor.from_bytes(saved)
    same = np.array_equal(np.concatenate(parts), straight)
    print(f"\n  a mixture of two data sets, stopped on 2 ranks, resumed on 3 from {len(saved)} bytes: {saved.hex()}")
    print(f"    {straight.size:,} ids {'match' if same else 'DIFFER FROM'} an uninterrupted run")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    print("penstock: the order of a training run as a pure function of (seed, epoch, position)")
    jump()
    speed()
    quality()
    resume()
