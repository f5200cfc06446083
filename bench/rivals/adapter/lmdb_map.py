"""lmdb: all fields of a record in one value, a batch by one ``getmulti``.

No lock, no read-ahead, one long transaction, as its documentation advises for reading at random. The order is a numpy
permutation per epoch. Texts are zstd frames, decoded on two threads.
"""

from collections.abc import Iterator

from rivals.decode import decode
from rivals.workload import Batch, Task, epochs
from store_rival import Lmdb


def prepare(task: Task) -> None:
    path = task.folder / "lmdb"
    (Lmdb.variable(path, *task.frames()) if task.workload.is_text else Lmdb.fixed(path, task.columns())).close()


def batches(task: Task) -> Iterator[Batch]:
    columns = {} if task.workload.is_text else task.columns()
    store = Lmdb(task.folder / "lmdb", [(name, data.dtype, data.shape[1:]) for name, data in columns.items()])
    try:
        for ids in epochs(task):
            yield {"text": decode(store.values(ids))} if task.workload.is_text else store.read(ids)
    finally:
        store.close()
