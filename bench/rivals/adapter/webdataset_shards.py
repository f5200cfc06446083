"""WebDataset: tar shards of 64 MB, read from front to back; shards in random order, then a shuffle buffer of 5,000 records.

Not a global shuffle, by design. By trial 2 worker processes help for tokens and small records (WORKERS). Batches are joined
from bytes in ``collation_fn``. A mixture is ``RandomMix``. There is no state: resuming reads everything up to the step again.
"""

import io
import itertools
import tarfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import webdataset as wds

from rivals.decode import decode
from rivals.workload import Batch, Task, Workload

WORKERS = {"tokens": 2, "images": 0, "small": 2, "text": 0}
BUFFER = 5000


def prepare(task: Task) -> None:
    """Plain tar archives; ``wds.ShardWriter`` writes the same members three times slower."""
    for name, part in task.parts.items():
        (task.folder / name).mkdir(exist_ok=True)
        _write(task, name, part)


def _write(task: Task, name: str, part: range) -> None:
    records = enumerate(task.records(part))
    for number in itertools.count():
        size = 0
        path = task.folder / name / f"{number:05}.tar"
        with path.open("wb") as file:
            for key, (x, label) in records:
                size += _member(file, f"{key:08}.x", x)
                if task.workload.label:
                    size += _member(file, f"{key:08}.y", label.to_bytes(4, "little"))
                if size >= task.shard_bytes:
                    break
            file.write(bytes(1024))
        if size < task.shard_bytes:
            return


def _member(file: io.BufferedWriter, name: str, data: bytes) -> int:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    file.write(info.tobuf(tarfile.USTAR_FORMAT))
    file.write(data)
    file.write(bytes(-len(data) % 512))
    return 512 + len(data)


def _join(workload: Workload, records: list[dict[str, Any]]) -> Any:
    values = [record["x"] for record in records]
    if workload.is_text:
        return values
    x = np.frombuffer(bytearray(b"".join(values)), workload.dtype).reshape(len(values), *(workload.shape or ()))
    return (x, np.frombuffer(b"".join(record["y"] for record in records), np.int32)) if workload.label else (x,)


def batches(task: Task) -> Iterator[Batch]:
    sets = [_shuffled(task, name) for name in task.parts]
    dataset: Any = wds.DataPipeline(wds.RandomMix(sets, [0.7, 0.3])) if task.mixed else sets[0]
    dataset = dataset.compose(wds.batched(task.workload.batch, collation_fn=partial(_join, task.workload), partial=False))
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS[task.workload.name])
    while True:
        for batch in itertools.islice(loader, task.start, None):
            yield (
                {"text": decode(batch)}
                if task.workload.is_text
                else dict(zip(("x", "label"), map(np.asarray, batch), strict=False))
            )


def _shuffled(task: Task, name: str) -> Any:
    shards = sorted(str(path) for path in (task.folder / name).glob("*.tar"))
    return wds.WebDataset(shards, shardshuffle=len(shards), seed=7, nodesplitter=None).shuffle(BUFFER)
