"""Records as Arrow columns, for rivals that store those.

Fixed records are fixed-size binary, texts are zstd frames in large binary.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from rivals.workload import Array, Task

__all__ = ["fixed_of", "table_of"]


def table_of(task: Task, low: int, high: int) -> Any:
    """Some records as one record batch."""
    if task.workload.is_text:
        frames, cuts = task.frames()
        cuts = cuts[low : high + 1]
        values = pa.py_buffer(frames[cuts[0] : cuts[-1]].tobytes())
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), high - low, [None, pa.py_buffer(cuts - cuts[0]), values])
        return pa.record_batch({"x": array})
    columns = task.columns()
    width = task.workload.record_bytes - 4 * task.workload.label
    values = pa.py_buffer(np.ascontiguousarray(columns["x"][low:high]).tobytes())
    made = {"x": pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), high - low, [None, values])}
    return pa.record_batch(made | ({"label": pa.array(columns["label"][low:high])} if task.workload.label else {}))


def fixed_of(column: Any, task: Task) -> Array:
    """A column of fixed-size binary as an array, without a copy."""
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    width = task.workload.record_bytes - 4 * task.workload.label
    raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    return raw.view(task.workload.dtype).reshape(len(column), *(task.workload.shape or ()))
