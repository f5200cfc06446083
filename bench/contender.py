"""Who takes part in bench/shuffle.py: penstock's orders, and the ways to make a whole permutation in memory."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from measure import seconds
from penstock.argument import IntArray
from penstock.order import BlockShuffle, Mixture, Order, Random, Shuffle

__all__ = ["BATCH", "ORDERS", "WHOLES", "OrderTrial", "WholeTrial", "make_whole"]

BATCH = 65_536
"""Positions per call of ``indices``, at most."""

STRETCH = 1 << 20
"""Positions checked at each end of an order too long to check whole."""

WHOLE_CHECK = 10**8
"""The largest order of which every position is checked."""


def _mixture(n: int) -> Mixture:
    third = n // 3
    parts = [Shuffle(third, seed=1), Shuffle(third, seed=2), Shuffle(n - 2 * third, seed=3)]
    # Every record once, so that it can be checked like a shuffle.
    return Mixture(parts, seed=7, stop="all_exhausted_without_replacement")


ORDERS: dict[str, Callable[[int], Order]] = {
    "Shuffle": lambda n: Shuffle(n, seed=7),
    "BlockShuffle w=16 lanes=1": lambda n: BlockShuffle(n, block=1024, window=16, lanes=1, seed=7),
    "BlockShuffle w=16 lanes=8": lambda n: BlockShuffle(n, block=1024, window=16, lanes=8, seed=7),
    "BlockShuffle w=None": lambda n: BlockShuffle(n, block=1024, window=None, seed=7),
    "Random": lambda n: Random(n, seed=7),
    "Mixture of 3 Shuffles": _mixture,
}
"""penstock's orders by name, each made for n records."""

WHOLES = ("numpy.random.permutation", "numpy default_rng().permutation", "torch.randperm")
"""Rivals that make all n indices before the first can be used."""


def make_whole(name: str) -> Callable[[int], Any]:
    """The function of a rival: n -> array of all indices. Imports what it needs."""
    if name == "numpy.random.permutation":
        np.random.seed(7)
        return np.random.permutation
    if name == "numpy default_rng().permutation":
        return np.random.default_rng(7).permutation
    import torch  # here, because a child that measures memory must not hold torch unless it is the one measured

    torch.set_num_threads(1)  # its idle threads spin, which would be counted against whoever comes next
    generator = torch.Generator().manual_seed(7)
    return lambda n: torch.randperm(n, generator=generator)


@dataclass(frozen=True)
class Batch:
    """One call of ``indices``."""

    epoch: int
    start: int
    stop: int


def batches(n: int, first_epoch: int) -> Iterator[Batch]:
    """An endless run of batches, equally long within an epoch, so that threads that take turns get equal work."""
    count = max(1, math.ceil(n / BATCH))
    for epoch in itertools.count(first_epoch):
        for number in range(count):
            yield Batch(epoch, n * number // count, n * (number + 1) // count)


class OrderTrial:
    """One order read by some threads in turn. Every repetition reads epochs never seen before, so nothing is warm but the code."""

    def __init__(self, order: Order, *, threads: int, pass_s: float) -> None:
        self._order = order
        self._n = len(order)
        self._threads = threads
        self._epochs = itertools.count(0, 100_000)
        self._pool = ThreadPoolExecutor(threads)
        probe = min(seconds(lambda: self._read(self._take(4 * threads))) for _ in range(3)) / (4 * threads)
        self._num_batches = threads * max(2, min(4096, round(pass_s / max(probe, 1e-9) / threads)))

    def __call__(self) -> float:
        """Nanoseconds per index of one repetition: processor time of one thread, or wall time of several, over all indices."""
        work = self._take(self._num_batches)
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        return seconds(lambda: self._read(work), clock) / sum(batch.stop - batch.start for batch in work) * 1e9

    def _take(self, count: int) -> list[Batch]:
        return list(itertools.islice(batches(self._n, next(self._epochs)), count))

    def _read(self, work: list[Batch]) -> None:
        if self._threads == 1:
            self._indices(work)
        else:
            list(self._pool.map(self._indices, (work[k :: self._threads] for k in range(self._threads))))

    def _indices(self, work: list[Batch]) -> None:
        for batch in work:
            self._order.indices(batch.epoch, batch.start, batch.stop)

    def verify(self) -> str:
        """What was checked of what the order delivers; AssertionError if it is wrong."""
        if self._threads > 1:
            return self._same_by_threads()
        if isinstance(self._order, Random):
            return _check_draws(self._order.indices(0, 0, min(self._n, STRETCH)), self._n)
        if self._n <= WHOLE_CHECK:
            count = math.ceil(self._n / BATCH)
            return _check_bijection((self._ids(b) for b in itertools.islice(batches(self._n, 3), count)), self._n)
        ends = ((0, STRETCH), (self._n - STRETCH, self._n))
        return _check_prefix(np.concatenate([self._order.indices(3, *end) for end in ends]), self._n)

    def _ids(self, batch: Batch) -> IntArray:
        return self._order.indices(batch.epoch, batch.start, batch.stop)

    def _same_by_threads(self) -> str:
        work = self._take(16)
        for ours, theirs in zip(map(self._ids, work), self._pool.map(self._ids, work), strict=True):
            assert np.array_equal(ours, theirs), "threads changed what the order delivers"
        return "16 batches as with 1 thread"

    def close(self) -> None:
        self._pool.shutdown()


class WholeTrial:
    """One rival that makes all n indices; small ones are made many times per repetition."""

    def __init__(self, name: str, n: int, *, pass_s: float) -> None:
        self._make = make_whole(name)
        self._n = n
        self._made: Any = None
        probe = min(seconds(lambda: self._make(n)) for _ in range(3)) if n <= 10**6 else pass_s
        self._times = max(1, min(4096, round(pass_s / probe)))

    def __call__(self) -> float:
        """Nanoseconds per index: the processor time to make the whole order over its length."""
        self._made = None  # the last one is given back before the clock starts
        return seconds(self._run, time.thread_time) / (self._times * self._n) * 1e9

    def _run(self) -> None:
        for _ in range(self._times):
            self._made = self._make(self._n)

    def verify(self) -> str:
        """What was checked of the last order made; AssertionError if it is wrong."""
        return _check_bijection(iter([np.asarray(self._made)]), self._n)

    def close(self) -> None:
        self._made = None


def _check_bijection(parts: Iterator[IntArray], n: int) -> str:
    seen = np.zeros(n, np.bool_)
    count = 0
    for ids in parts:
        assert ids.min() >= 0, f"id {ids.min()} below 0"
        seen[ids] = True  # IndexError if an id is too large
        count += ids.size
    assert count == n, f"{count} ids for {n} records"
    assert seen.all(), f"{n - np.count_nonzero(seen)} of {n} records never delivered"
    return "every id once"


def _check_prefix(ids: IntArray, n: int) -> str:
    assert 0 <= ids.min() <= ids.max() < n, f"ids from {ids.min()} to {ids.max()} for {n} records"
    assert _num_distinct(ids) == ids.size, "an id came twice"
    return "both ends distinct and in range"


def _check_draws(ids: IntArray, n: int) -> str:
    assert 0 <= ids.min() <= ids.max() < n, f"ids from {ids.min()} to {ids.max()} for {n} records"
    expected = -n * math.expm1(-ids.size / n)  # distinct records among so many draws with replacement
    found = _num_distinct(ids)
    assert abs(found - expected) <= 6 * math.sqrt(ids.size) + 1, f"{found} distinct ids, expected about {expected:.0f}"
    return "in range, as many distinct as by chance"


def _num_distinct(ids: IntArray) -> int:
    return 1 + int(np.count_nonzero(np.diff(np.sort(ids))))  # numpy's unique hashes, which is ten times slower on millions
