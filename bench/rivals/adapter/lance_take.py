"""Lance: one dataset, a batch by one ``take`` of sorted ids; rows are put back in the order of the shuffle.

The order is a numpy permutation per epoch. Fixed records are fixed-size binary; texts are large binary, zstd frames decoded on
two threads.
"""

from collections.abc import Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from rivals.arrow import fixed_of, table_of
from rivals.decode import decode
from rivals.workload import Batch, Task, epochs

CHUNK = 4096


def prepare(task: Task) -> None:
    size = task.workload.num_records
    first = table_of(task, 0, 1)
    rows = (table_of(task, low, min(low + CHUNK, size)) for low in range(0, size, CHUNK))
    lance.write_dataset(pa.RecordBatchReader.from_batches(first.schema, rows), str(task.folder / "data.lance"))


def batches(task: Task) -> Iterator[Batch]:
    dataset = lance.dataset(str(task.folder / "data.lance"))
    for ids in epochs(task):
        order = np.argsort(ids)
        table = dataset.take(ids[order])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        yield _plain(table, back, task)


def _plain(table: Any, back: Any, task: Task) -> Batch:
    column = table["x"].combine_chunks()
    if task.workload.is_text:
        found = decode(column.to_pylist())
        return {"text": [found[k] for k in back.tolist()]}
    made = {"x": fixed_of(column, task)[back]}
    return made | ({"label": table["label"].to_numpy()[back]} if task.workload.label else {})
