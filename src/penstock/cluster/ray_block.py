"""Blocks of Ray Data: Arrow tables in which arrays of one shape are tensors. Batches of penstock, both ways."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ray.data.block import BlockAccessor

from penstock.ragged import Ragged
from penstock.records import Batch
from penstock.schema import Field
from penstock.source.registry import open_source

__all__ = ["as_batch", "as_block"]


def as_block(batch: Batch, schema: Mapping[str, Field]) -> pa.Table:
    """A batch as a block: arrays are tensors, what varies is a list, a text or bytes; what is missing is null."""
    columns = {name: _column(name, schema[name], batch[name]) for name in schema}
    return pa.table(columns)


def _column(name: str, field: Field, column: Any) -> Any:
    if isinstance(column, Ragged):
        return _ragged(name, field, column)
    if field.shape == ():
        mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
        return pa.array(np.asarray(column), mask=mask)
    if isinstance(column, np.ma.MaskedArray):
        raise _no_missing(name)
    return _tensors(np.asarray(column))


def _ragged(name: str, field: Field, column: Ragged) -> Any:
    if column.shapes is not None:
        if column.present is not None and not column.present.all():
            raise _no_missing(name)
        items = np.empty(len(column), object)
        items[:] = column.to_list()
        return _tensors(items)
    if field.kind == "ragged":
        mask = None if column.present is None else pa.array(~column.present)
        return pa.LargeListArray.from_arrays(column.offsets.astype(np.int64), pa.array(column.values), mask=mask)
    kind = pa.large_utf8() if field.kind == "text" else pa.large_binary()
    present = None if column.present is None else pa.py_buffer(np.packbits(column.present, bitorder="little"))
    buffers = [present, pa.py_buffer(column.offsets.astype(np.int64)), pa.py_buffer(np.ascontiguousarray(column.values))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _tensors(array: npt.NDArray[Any]) -> Any:
    return BlockAccessor.batch_to_block({"x": array}).column("x")


def _no_missing(name: str) -> ValueError:
    return ValueError(
        f"field {name!r}: expected every record, found missing ones; Ray's tensors cannot be missing, select the others"
    )


def as_batch(block: Any) -> Batch:
    """A block as a batch."""
    accessor = BlockAccessor.for_block(block)
    table = accessor.to_arrow()
    tensors = [field.name for field in table.schema if isinstance(field.type, pa.BaseExtensionType)]
    others = [name for name in table.column_names if name not in tensors]
    batch: Batch = {}
    if others:
        with open_source(table.select(others)) as source:
            batch = source.read(np.arange(len(source)))
    for name in tensors:
        array: Any = BlockAccessor.for_block(table.select([name])).to_numpy(name)
        batch[name] = list(array) if array.dtype == object else array
    return {name: batch[name] for name in table.column_names}
