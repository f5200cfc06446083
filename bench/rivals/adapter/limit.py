"""LIMIT: the most the machine can do.

Two threads of C copy the same records into one buffer that is used again and again; for text the bare zstd library decodes the
same frames on two threads. Cold, it reads the plain file from front to back in large pieces.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from rivals.workload import Batch, Task, epochs
from store_limit import Crew, address

PIECE = 8 << 20


@contextmanager
def _crew() -> Iterator[Crew]:
    crew = Crew(2, spins=20_000)
    try:
        yield crew
    finally:
        crew.close()


def prepare(task: Task) -> None:
    """Everything is read from the plain files."""


def batches(task: Task) -> Iterator[Batch]:
    if task.cold:
        yield from _sequential(task)
        return
    with _crew() as crew:
        yield from _decode(task, crew) if task.workload.is_text else _gather(task, crew)


def _gather(task: Task, crew: Crew) -> Iterator[Batch]:
    gather = crew.gather({name: np.asarray(data) for name, data in task.columns().items()}, task.workload.batch, ahead=False)
    for ids in _given(task):
        yield gather(ids)


def _decode(task: Task, crew: Crew) -> Iterator[Batch]:
    values, cuts = task.frames()
    frames = crew.encode(3, *task.texts())
    frames.take(np.asarray(values), cuts[1:].astype(np.uint64))
    decode = frames.decoder(task.workload.batch)
    for ids in _given(task):
        yield {"text": decode(ids)}


def _given(task: Task) -> Iterator[int]:
    """Where the ids of every batch lie; all epochs have one order, made before."""
    made = list(itertools.islice(epochs(task), task.num_steps - task.start))
    yield from itertools.cycle([address(ids) for ids in made])


def _sequential(task: Task) -> Iterator[Batch]:
    """Whole batches from front to back, by reads of 8 MiB."""
    shape, size = (-1, *(task.workload.shape or ())), task.workload.batch * task.workload.record_bytes
    room = np.zeros(PIECE // size * size, np.uint8)
    with (task.source / "x.npy").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        file.seek(np.lib.format.MAGIC_LEN + 120)
        for _ in iter(partial(file.readinto, room), 0):
            for low in range(0, room.size, size):
                yield {"x": room[low : low + size].view(task.workload.dtype).reshape(shape)}
