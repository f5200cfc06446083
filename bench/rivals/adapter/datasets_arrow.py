"""Hugging Face datasets: a memory-mapped Arrow dataset, ``shuffle`` (global, by a table of indices), batches by ``iter``.

Fixed records are fixed-size binary, which becomes one array per batch without a Python object per number. Cold it uses
an iterable dataset of 64 shards with a buffer of 5,000. A mixture is
``interleave_datasets``. Resuming skips.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, interleave_datasets

from rivals.arrow import fixed_of, table_of
from rivals.decode import decode
from rivals.workload import Batch, Task

CHUNK = 4096


def prepare(task: Task) -> None:
    for name, part in task.parts.items():
        (task.folder / name).mkdir(exist_ok=True)
        _write(task, task.folder / name / "data.arrow", part)


def _write(task: Task, path: Path, part: range) -> None:
    with pa.OSFile(str(path), "wb") as file:
        writer = None
        for low in range(part.start, part.stop, CHUNK):
            table = table_of(task, low, min(low + CHUNK, part.stop))
            writer = writer or pa.ipc.new_stream(file, table.schema)
            writer.write(table)
        assert writer is not None
        writer.close()


def batches(task: Task) -> Iterator[Batch]:
    sets = [Dataset.from_file(str(task.folder / name / "data.arrow")) for name in task.parts]
    size, epoch, start = task.workload.batch, 0, task.start
    while True:
        if task.cold:
            dataset: Any = sets[0].to_iterable_dataset(num_shards=64).shuffle(seed=7 + epoch, buffer_size=5000)
        elif task.mixed:
            mixed = [one.shuffle(seed=7 + epoch, keep_in_memory=True) for one in sets]
            dataset = interleave_datasets(mixed, probabilities=[0.7, 0.3], seed=5 + epoch)
        else:
            dataset = sets[0].shuffle(seed=7 + epoch, keep_in_memory=True)
        if start:
            dataset = dataset.skip(start * size)
        for table in dataset.with_format("arrow").iter(size, drop_last_batch=True):
            yield _plain(table, task)
        epoch, start = epoch + 1, 0


def _plain(table: Any, task: Task) -> Batch:
    column = table["x"].combine_chunks()
    if task.workload.is_text:
        return {"text": decode(column.to_pylist())}
    made = {"x": fixed_of(column, task)}
    return made | ({"label": table["label"].to_numpy()} if task.workload.label else {})


def order(num_records: int) -> Any:
    """The table of indices of a shuffled dataset; the records themselves are one byte each."""
    rows = Dataset(pa.table({"x": pa.array(np.zeros(num_records, np.int8))}))  # type: ignore[arg-type]
    return rows.shuffle(seed=7, keep_in_memory=True)
