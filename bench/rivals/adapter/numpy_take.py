"""numpy: ``take`` from a memory-mapped .npy file into a buffer that is kept, on one thread, as numpy has no other.

``mode="clip"`` is what makes ``out=`` direct: any other mode goes by way of a second buffer. The order is a permutation per
epoch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rivals.workload import Batch, Task, epochs


def prepare(task: Task) -> None:
    """The plain files are .npy already."""


def batches(task: Task) -> Iterator[Batch]:
    columns = {name: np.asarray(data) for name, data in task.columns().items()}
    out = {name: np.empty((task.workload.batch, *data.shape[1:]), data.dtype) for name, data in columns.items()}
    for ids in epochs(task):
        for name, data in columns.items():
            np.take(data, ids, axis=0, out=out[name], mode="clip")
        yield out


def order(num_records: int) -> Any:
    return np.random.default_rng(7).permutation(num_records)
