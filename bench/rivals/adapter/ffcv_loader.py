"""FFCV: one .beton file of numpy fields, its Loader with ``OrderOption.RANDOM`` (global) on two threads, mapped by the system's
cache.

Records have one size: there is no text. Cold it uses QUASI_RANDOM, its block shuffle, without the system's cache. It has no
state.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

from rivals.workload import Batch, Task


class Rows:
    """What its writer reads from."""

    def __init__(self, task: Task) -> None:
        self._columns = task.columns()

    def __len__(self) -> int:
        return len(self._columns["x"])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x = np.array(self._columns["x"][index])
        return (x, int(self._columns["label"][index])) if "label" in self._columns else (x,)


def prepare(task: Task) -> None:
    fields: dict[str, Any] = {"x": NDArrayField(np.dtype(task.workload.dtype), task.workload.shape)}
    fields |= {"label": IntField()} if task.workload.label else {}
    DatasetWriter(str(task.folder / "data.beton"), fields, num_workers=2).from_indexed_dataset(Rows(task))


def batches(task: Task) -> Iterator[Batch]:
    names = ("x", "label") if task.workload.label else ("x",)
    loader = Loader(
        str(task.folder / "data.beton"),
        task.workload.batch,
        num_workers=2,
        os_cache=not task.cold,
        order=OrderOption.QUASI_RANDOM if task.cold else OrderOption.RANDOM,
        seed=7,
        drop_last=True,
        batches_ahead=3,
    )
    while True:
        for batch in loader:
            yield dict(zip(names, (_array(part) for part in batch), strict=True))


def _array(part: Any) -> Any:
    values = part.numpy() if hasattr(part, "numpy") else part
    return values[:, 0].astype(np.int32) if values.dtype == np.int64 else values
