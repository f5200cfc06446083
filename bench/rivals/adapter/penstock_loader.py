"""penstock: one Loader, two threads, global shuffle, checksums on. Two rows: the record store, and the .npy files as they are.

Resuming loads a state_dict that went through JSON. By trial: texts are as fast with 8 MB read ahead as with more.
"""

import json
from collections.abc import Iterator
from typing import Any

import penstock as pen
from rivals.workload import Batch, Task

BLOCK = 1 << 20
"""Bytes of a block, where reading single records is dear."""


def prepare(task: Task) -> None:
    """Write stores; the .npy files are there already. The state at ``start`` is made later, by whoever stops there."""
    if task.variant == "npy":
        return
    for name, part in task.parts.items():
        if task.workload.is_text:
            values, offsets = task.texts()
            with pen.create(task.folder / name, {"text": pen.Field.text(codec=pen.Zstd(3))}) as out:
                for low in range(part.start, part.stop, 4096):
                    out.extend({"text": pen.Ragged(values, offsets[low : min(low + 4096, part.stop) + 1], "text")})
        else:
            columns = {key: data[part.start : part.stop] for key, data in task.columns().items()}
            pen.convert(columns, task.folder / name)


def _source(task: Task, name: str) -> pen.Source:
    if task.variant != "npy":
        return pen.open(task.folder / name, threads=1)  # the threads of the loader are enough
    files = {"x": str(task.source / "x.npy")} | ({"label": str(task.source / "label.npy")} if task.workload.label else {})
    return pen.open(files)


def _stream(task: Task) -> Any:
    blocks = {"block": max(1, BLOCK // task.workload.record_bytes), "window": 16} if task.cold else {}
    streams = {name: _source(task, name).shuffle(seed=7, **blocks) for name in task.parts}
    return pen.mix(streams, weights={"a": 0.7, "b": 0.3}, seed=5, stop="forever") if task.mixed else streams["all"]


def _loader(task: Task) -> pen.Loader:
    ahead = "8MB" if task.workload.is_text else None
    return pen.Loader(_stream(task), task.workload.batch, tail="drop", threads=2, prefetch=ahead)


def stop(task: Task) -> None:
    """Leave the state of a run that has reached ``start``."""
    with _loader(task) as loader:
        loader.seek(task.start)
        (task.folder / "state.json").write_text(json.dumps(loader.state_dict()))


def batches(task: Task) -> Iterator[Batch]:
    with _loader(task) as loader:
        if task.start:
            loader.load_state_dict(json.loads((task.folder / "state.json").read_text()))
        found = loader.forever()
        if not task.workload.is_text:
            yield from found
        for batch in found:
            text = batch["text"]
            yield {"text": (text.values, text.offsets)}


def order(num_records: int) -> Any:
    """What a run keeps of its order, and one batch of it."""
    shuffle = pen.order.Shuffle(num_records, seed=7)
    return shuffle, shuffle.indices(0, num_records // 2, num_records // 2 + 256 if num_records > 512 else num_records)
