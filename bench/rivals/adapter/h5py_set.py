"""h5py: a contiguous data set per field, a batch by one selection.

Selections take rising ids only, so a batch is sorted and put back. The order is a numpy permutation per epoch. Texts are zstd
frames in a data set of variable length, decoded on two threads.
"""

from collections.abc import Iterator

from rivals.decode import decode
from rivals.workload import Batch, Task, epochs
from store_rival import H5py


def prepare(task: Task) -> None:
    path = task.folder / "records.h5"
    (H5py.variable(path, *task.frames()) if task.workload.is_text else H5py.fixed(path, task.columns())).close()


def batches(task: Task) -> Iterator[Batch]:
    store = H5py(task.folder / "records.h5", ["text"] if task.workload.is_text else list(task.columns()))
    try:
        for ids in epochs(task):
            yield {"text": decode(list(store.pick("text", ids)))} if task.workload.is_text else store.read(ids)
    finally:
        store.close()
