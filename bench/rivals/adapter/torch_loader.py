"""torch's DataLoader over memory-mapped .npy files, in two rows.

``plain`` is how most write it: ``__getitem__`` of one record, collated by torch, shuffled by its RandomSampler. ``getitems``
fetches a batch by one fancy index in ``__getitems__``. Both run with 0 workers: a batch that comes from another
process is copied through shared memory, which costs more than reading it. Resuming skips in the sampler, without reading.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from rivals.workload import Array, Batch, Task

Record = dict[str, Any]


class Plain(Dataset[Record]):
    """One record at a time."""

    def __init__(self, columns: dict[str, Array]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["x"])

    def __getitem__(self, index: int) -> Record:
        return {name: torch.from_numpy(data[index]) if data.ndim > 1 else int(data[index]) for name, data in self._columns.items()}


class Whole(Plain):
    """A batch at a time."""

    def __getitems__(self, ids: list[int]) -> Record:
        rows = np.asarray(ids)
        return {name: torch.from_numpy(data[rows]) for name, data in self._columns.items()}


class Rest(BatchSampler):
    """Batches of a RandomSampler from some step of its first epoch on."""

    def __init__(self, sampler: RandomSampler, batch: int, start: int) -> None:
        super().__init__(sampler, batch, drop_last=True)
        self._start = start

    def __iter__(self) -> Iterator[list[int]]:
        start, self._start = self._start, 0
        return itertools.islice(super().__iter__(), start, None)


def prepare(task: Task) -> None:
    """The plain files are .npy already."""


def batches(task: Task) -> Iterator[Batch]:
    torch.set_num_threads(2)
    # A copy-on-write map, because torch warns about memory that cannot be written; nothing is ever written.
    columns = {name: np.load(task.source / f"{name}.npy", mmap_mode="c")[: task.workload.num_records] for name in task.columns()}
    dataset = Whole(columns) if task.variant == "getitems" else Plain(columns)
    collate = {"collate_fn": _same} if task.variant == "getitems" else {}
    sampler = Rest(RandomSampler(dataset, generator=torch.Generator().manual_seed(7)), task.workload.batch, task.start)
    loader: Any = DataLoader(dataset, batch_sampler=sampler, num_workers=0, **collate)
    while True:
        for batch in loader:
            yield {name: _array(values, columns[name].dtype) for name, values in batch.items()}


def _same(batch: Record) -> Record:
    return batch


def _array(values: torch.Tensor, dtype: Any) -> Array:
    return values.numpy() if values.dtype != torch.int64 else values.to(torch.int32).numpy()


def order(num_records: int) -> Any:
    """What RandomSampler keeps while an epoch lasts."""
    kept = iter(RandomSampler(range(num_records), generator=torch.Generator().manual_seed(7)))
    next(kept)
    return kept
