"""The most the machine can do: records of one size copied from memory into one buffer, by as many threads as the loader has."""

import time

import numpy as np

from penstock import _core
from penstock.order import Shuffle
from penstock.report.machine import available_memory

__all__ = ["Limit"]

MOST_BYTES = 256 << 20
"""Memory to copy from: far more than processors keep in their caches, and little enough to be there in a moment."""


class Limit:
    """A gather of ``records`` records of ``record_bytes`` at random places, as a batch of a loader is, but without order, files,
    checksums and Python objects. For one thread; the memory goes with the object.
    """

    def __init__(self, record_bytes: int, records: int, threads: int, *, data_bytes: int = MOST_BYTES) -> None:
        room = max(1, min(data_bytes, MOST_BYTES, available_memory() // 4))
        rows = max(records, room // record_bytes)
        self._memory = _core.empty(rows, record_bytes)
        self._memory[:] = 1  # pages that were never written are all the same one
        self._out = _core.empty(records, record_bytes)
        self._reader = _core.RowReader.of_memory([self._memory.reshape(-1)], record_bytes)
        self._pool = _core.ThreadPool(max(1, threads))
        order = Shuffle(rows, seed=1)
        whole = rows // records
        self._batches = [order.indices(0, k * records, (k + 1) * records) for k in range(min(whole, 1024))]
        self.batch_bytes, self.num_bytes = records * record_bytes, rows * record_bytes

    def bytes_per_s(self, seconds: float) -> float:
        """Copy batch after batch for about so long."""
        done, number, began = 0, 0, time.perf_counter()
        flat = self._out.reshape(-1)
        while True:
            self._reader.read(self._batches[number % len(self._batches)], 1, flat, self._pool)
            done, number = done + self.batch_bytes, number + 1
            if number % 4 == 0 and time.perf_counter() - began >= seconds:
                return done / (time.perf_counter() - began)

    def check(self) -> bool:
        """Whether the copy is what was copied."""
        return bool(np.all(self._out == 1))
