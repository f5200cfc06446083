"""Sources and transforms that fail, wait or die where a test wants them to. Importable by other processes."""

import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.formats.array import ArraySource
from penstock.records import Recipe


class FaultySource(ArraySource):
    """Some records cannot be read."""

    def __init__(self, n: int, bad: set[int]) -> None:
        super().__init__({"x": np.arange(n, dtype=np.int64) * 10}, threads=1)
        self.bad = frozenset(bad)

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """None: the loader calls ``read``."""
        return None

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        found = sorted(self.bad & set(ids.tolist()))
        if found:
            raise OSError(f"record {found[0]} lies on a bad sector")
        return super()._read(ids, fields, out)

    def _recipe(self) -> Recipe:
        return (FaultySource, (len(self), set(self.bad)))


def add_random(batch: Batch, info: Any) -> Batch:
    """Values that depend on nothing but the seeds of the samples."""
    batch["noise"] = (info.seeds >> np.uint64(11)) * 2.0**-53
    batch["step"] = np.full(len(info.ids), info.step)
    batch["epoch"] = np.full(len(info.ids), info.epoch)
    return batch


def dawdle(batch: Batch, info: Any) -> Batch:
    """A random delay, so that threads finish in any order."""
    time.sleep(random.random() * 0.004)
    return add_random(batch, info)


def double(batch: Batch) -> Batch:
    """A transform that another process can import."""
    return {"x": batch["x"] * 2, "id": batch["id"]}


def fail_on_40(batch: Batch) -> Batch:
    """Fail on the batch that has record 4."""
    if 40 in batch["x"].tolist():
        raise RuntimeError("forty is too much")
    return batch


def die_on_40(batch: Batch) -> Batch:
    """End this process the hard way."""
    if 40 in batch["x"].tolist():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch
