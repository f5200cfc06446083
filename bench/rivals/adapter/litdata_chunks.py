"""LitData: chunks of 64 MB, mapped in place as it does by itself for local files; for tokens its TokensLoader.

Not a global shuffle: chunks are permuted, then the records inside each. By trial, for fixed records, ``batch_decode="all"`` and
a full shuffle inside chunks are best; texts use its own zstd (256 records a frame) and its default, blocks of 256 records
inside a chunk. Worker processes help for tokens only (WORKERS). A mixture is a CombinedStreamingDataset. Resuming loads the
state of its loader.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader, optimize

from rivals.workload import Array, Batch, Task

WORKERS = {"tokens": 2, "images": 0, "small": 0, "text": 0}
PIECE = 1 << 14


def _items(task: Task, low_high: tuple[int, int]) -> Iterator[Any]:
    workload = task.workload
    if workload.is_text:
        values, offsets = task.texts()
        yield from (values[offsets[i] : offsets[i + 1]].tobytes() for i in range(*low_high))
        return
    for x, label in task.records(range(*low_high)):
        if _is_tokens(task):
            yield torch.frombuffer(bytearray(x), dtype=torch.uint16)
        else:
            value = np.frombuffer(x, workload.dtype).reshape(workload.shape or ())
            yield {"x": value, "label": label} if workload.label else {"x": value}


def _is_tokens(task: Task) -> bool:
    return task.workload.dtype == "u2"


def prepare(task: Task) -> None:
    for name, part in task.parts.items():
        pieces = [(low, min(low + PIECE, part.stop)) for low in range(part.start, part.stop, PIECE)]
        size: dict[str, Any] = {"chunk_bytes": task.shard_bytes}
        if task.workload.is_text:
            size |= {"compression": "zstd:3"}
        if _is_tokens(task):
            size = {"chunk_size": task.shard_bytes // 2048 * 1024, "item_loader": TokensLoader(block_size=1024)}
        optimize(partial(_items, task), pieces, str(task.folder / name), num_workers=2, verbose=False, **size)


def batches(task: Task) -> Iterator[Batch]:
    sets = [_dataset(task, name) for name in task.parts]
    dataset: Any = CombinedStreamingDataset(sets, weights=[0.7, 0.3], iterate_over_all=False, seed=7) if task.mixed else sets[0]
    collate = {"collate_fn": list} if task.workload.is_text else {}
    loader: Any = StreamingDataLoader(
        dataset, batch_size=task.workload.batch, num_workers=WORKERS[task.workload.name], drop_last=True, **collate
    )
    if task.start:
        loader.load_state_dict(_state(loader, task))
    while True:
        for batch in loader:
            yield _plain(batch, task)


def _dataset(task: Task, name: str) -> Any:
    options: dict[str, Any] = {} if task.workload.is_text else {"item_shuffle_window": 0, "batch_decode": "all"}
    options |= {"item_loader": TokensLoader(block_size=1024)} if _is_tokens(task) else {}
    return StreamingDataset(str(task.folder / name), shuffle=True, seed=7, drop_last=True, **options)


def _state(loader: Any, task: Task) -> dict[str, Any]:
    """What the loader would say after ``start`` batches."""
    state: dict[str, Any] = loader.state_dict()
    done = task.start * task.workload.batch
    state["dataset"] |= {"num_samples_yielded": done, "sample_in_epoch": done}
    latest = (task.start - 1) % max(1, WORKERS[task.workload.name])
    return state | {"num_samples_yielded": done, "latest_worker_idx": latest}


def _plain(batch: Any, task: Task) -> Batch:
    if task.workload.is_text:
        return {"text": batch}
    if _is_tokens(task):
        return {"x": batch.numpy()}
    return {name: _array(part) for name, part in batch.items()}


def _array(part: Any) -> Array:
    return part.numpy().astype(np.int32) if part.dtype == torch.int64 else part.numpy()
