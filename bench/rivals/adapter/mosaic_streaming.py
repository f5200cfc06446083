"""MosaicML Streaming: uncompressed MDS shards of 64 MB, shuffle ``naive`` (global), its StreamingDataLoader.

By trial 2 workers are best but for images, and ``predownload`` of all records, as they are local: its background threads then
never wait. Cold it uses ``py1e``, its default, which mixes few shards at a time. A mixture is two streams with proportions.
Resuming loads a state of its documented form.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rivals.decode import decode
from rivals.workload import Batch, Task

# Importing streaming imports torchvision, whose build for other processors lacks these operators and will not load without them.
for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.shuffle.py1e import get_shuffle_py1e  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

WORKERS = {"tokens": 2, "images": 0, "small": 2, "text": 2}


def prepare(task: Task) -> None:
    workload = task.workload
    shape = ",".join(map(str, workload.shape or ()))
    columns = {"x": "bytes" if workload.is_text else f"ndarray:{np.dtype(workload.dtype).name}:{shape}"}
    columns |= {"label": "int32"} if workload.label else {}
    for name, part in task.parts.items():
        with MDSWriter(out=str(task.folder / name), columns=columns, size_limit=task.shard_bytes) as out:
            for x, label in task.records(part):
                value = x if workload.is_text else np.frombuffer(x, workload.dtype).reshape(workload.shape or ())
                out.write({"x": value, "label": np.int32(label)} if workload.label else {"x": value})


def batches(task: Task) -> Iterator[Batch]:
    clean_stale_shared_memory()
    where: dict[str, Any] = {"local": str(task.folder / "all")}
    if task.mixed:
        where = {"streams": [Stream(local=str(task.folder / n), proportion=p) for n, p in (("a", 0.7), ("b", 0.3))]}
    algorithm = "py1e" if task.cold else "naive"
    dataset = StreamingDataset(
        **where,
        shuffle=True,
        shuffle_algo=algorithm,
        shuffle_seed=7,
        batch_size=task.workload.batch,
        predownload=task.workload.num_records,
        num_canonical_nodes=1,
    )
    loader: Any = StreamingDataLoader(
        dataset,
        batch_size=task.workload.batch,
        num_workers=WORKERS[task.workload.name],
        drop_last=True,
        collate_fn=_list if task.workload.is_text else None,
    )
    if task.start:
        state = {"epoch": 0, "sample_in_epoch": task.start * task.workload.batch, "shuffle_seed": 7}
        loader.load_state_dict(state | {"num_canonical_nodes": 1, "initial_physical_nodes": 1})
    while True:
        for batch in loader:
            yield {"text": decode(batch)} if task.workload.is_text else {name: part.numpy() for name, part in batch.items()}


def _list(records: list[dict[str, bytes]]) -> list[bytes]:
    return [record["x"] for record in records]


def order(num_records: int) -> Any:
    """The order of an epoch of one rank, in shards of 32,768 records."""
    sizes = np.full(max(1, num_records // 32_768), 32_768, np.int64)
    return get_shuffle_py1e(sizes, 1, 7, 0, 1 << 18)
