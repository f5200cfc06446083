"""loaderx: dense and ragged stores, its cyclic sampler (a global shuffle by formula, no state but the step), its Loader.

One worker. Texts use its own zstd codec; fixed records its raw one.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from loaderx import Allocator, Loader
from loaderx.sampler import Sampler
from loaderx.zrecord import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter

from rivals.workload import Batch, Task

WORKERS = 1


def prepare(task: Task) -> None:
    if not task.workload.is_text:
        for name, data in task.columns().items():
            with DenseWriter(str(task.folder / name), data.dtype, data.shape[1:], codec="raw") as out:
                out.append(np.ascontiguousarray(data))
        return
    values, offsets = task.texts()
    with RaggedWriter(str(task.folder / "text"), np.dtype("u1"), ndim=1, codec="zstd") as out:
        for low in range(0, offsets.size - 1, 4096):
            cuts = offsets[low : low + 4097]
            lengths = np.diff(cuts).astype(np.uint32).reshape(-1, 1)
            out.append(RaggedBatch(np.array(values[cuts[0] : cuts[-1]]), (cuts - cuts[0]).astype(np.int32), lengths))


def batches(task: Task) -> Iterator[Batch]:
    names = ["text"] if task.workload.is_text else list(task.columns())
    kind: Any = RaggedStore if task.workload.is_text else DenseStore
    with ExitStack() as stack:
        allocator = stack.enter_context(Allocator("cpu"))
        streams = {name: [stack.enter_context(kind(str(task.folder / name))).bind(allocator)] for name in names}
        sampler = Sampler(task.workload.num_records, task.workload.batch, Sampler.Mode.CYCLIC, seed=7)
        sampler.seek(task.start)
        loader = stack.enter_context(Loader(streams, sampler, workers=WORKERS))
        for shards in loader:
            yield {name: _plain(part) for name, part in shards[0].items()}


def _plain(part: Any) -> Any:
    if isinstance(part, RaggedBatch):
        return np.from_dlpack(part.values), np.from_dlpack(part.cu_seqlens)
    return np.from_dlpack(part)


def order(num_records: int) -> Any:
    sampler = Sampler(num_records, 256, Sampler.Mode.CYCLIC, seed=7)
    sampler.seek(num_records // 512)
    return sampler, sampler.next()
