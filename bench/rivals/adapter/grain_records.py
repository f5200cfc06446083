"""Grain over 256 ArrayRecord files, written with ``group_size:1`` as its documentation asks for random access.

A MapDataset: source, shuffle (global, by formula), batch. A batch of bytes is joined and viewed as one array, which is faster
than an array a record. By trial: finding a record takes longer the more of them are in a file, so there are many files; worker
processes help where records are small (WORKERS), else a thread that reads ahead is best. Mixtures are ``MapDataset.mix``.
Resuming sets the state of the iterator.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from grain.experimental import index_shuffle

from rivals.decode import decode
from rivals.workload import Array, Batch, Task, Workload

FILES = 256
WORKERS = {"tokens": 2, "images": 0, "small": 2, "text": 0}
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


def prepare(task: Task) -> None:
    for name, part in task.parts.items():
        (task.folder / name).mkdir(exist_ok=True)
        for number in range(FILES):
            low, high = (part.start + len(part) * k // FILES for k in (number, number + 1))
            writer = ArrayRecordWriter(str(task.folder / name / f"{number:02}.array_record"), "group_size:1,uncompressed")
            for x, label in task.records(range(low, high)):
                writer.write(x + label.to_bytes(4, "little") if task.workload.label else x)
            writer.close()


def _join(workload: Workload, records: Sequence[bytes]) -> Batch:
    if workload.is_text:
        return {"text": list(records)}
    table = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
    return {"x": _values(workload, table)} | ({"label": _labels(table)} if workload.label else {})


def _values(workload: Workload, table: Array) -> Array:
    values = np.ascontiguousarray(table[:, :-4]) if workload.label else table
    return values.view(workload.dtype).reshape(len(table), *(workload.shape or ()))


def _labels(table: Array) -> Array:
    return np.ascontiguousarray(table[:, -4:]).view(np.int32)[:, 0]


def batches(task: Task) -> Iterator[Batch]:
    sets = [_shuffled(task, name) for name in task.parts]
    dataset: Any = grain.MapDataset.mix(sets, [0.7, 0.3]) if task.mixed else sets[0]
    dataset = dataset.batch(task.workload.batch, drop_remainder=True, batch_fn=partial(_join, task.workload)).repeat()
    dataset = dataset.to_iter_dataset(READ)
    if WORKERS[task.workload.name]:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(WORKERS[task.workload.name], per_worker_buffer_size=4))
    rows = iter(dataset)
    if task.start:
        rows.set_state(_state(rows.get_state(), task))
    try:
        for batch in rows:
            yield {"text": decode(batch["text"])} if task.workload.is_text else batch
    finally:
        rows.close()


def _state(state: dict[str, Any], task: Task) -> dict[str, Any]:
    """What the iterator would say after ``start`` batches; worker processes take turns and have a state each."""
    workers = WORKERS[task.workload.name]
    if not workers:
        return {"next_index": task.start}
    each = [{"next_index": len(range(k, task.start, workers))} for k in range(workers)]
    return state | {"iterators_in_use_states": each, "next_index_in_cycle": task.start % workers}


def _shuffled(task: Task, name: str) -> Any:
    files = sorted(str(path) for path in (task.folder / name).glob("*.array_record"))
    return grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).shuffle(seed=7)


def order(num_records: int) -> Any:
    """Nothing is made; the ids of a batch are asked for one by one."""
    return [index_shuffle(k, max_index=num_records - 1, seed=7, rounds=4) for k in range(256)]
