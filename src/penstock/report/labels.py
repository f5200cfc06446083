"""Labels of records: sorted ones, the worst case for a shuffle that reads blocks; or those of a field of the data."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.argument import whole_number
from penstock.interfaces import IntArray
from penstock.records import Source

__all__ = ["Labels", "field_labels", "sorted_labels"]

Labels = Callable[[IntArray], IntArray]
"""Record ids -> a whole number for each, equal where the records are of one class."""

READ_WHOLE = 1 << 22
"""Of up to so many records all labels are read at once."""


def sorted_labels(n: int, num_labels: int) -> Labels:
    """``num_labels`` classes of one size, one after the other."""
    number = min(whole_number("num_labels", num_labels, least=1), max(1, n))

    def labels(ids: IntArray) -> IntArray:
        if n * number < 2**63:
            return ids * number // n
        return np.minimum((ids.astype(np.float64) * (number / n)).astype(np.int64), number - 1)

    return labels


def field_labels(source: Source, field: str) -> Labels:
    """The values of a field that has one number or text per record."""
    if field not in source.schema:
        raise KeyError(f"unknown field {field!r}; there are {list(source.schema)}")
    one = source.schema[field]
    if one.is_fixed and one.shape not in ((), (1,)):
        raise ValueError(f"field {field!r}: expected one value per record as a label, found the shape {one.shape}")
    known: dict[Any, int] = {}

    def number(column: Any) -> IntArray:
        if isinstance(column, np.ma.MaskedArray) or not isinstance(column, np.ndarray):
            values = [_hashable(column[k]) for k in range(len(column))]
            return np.array([known.setdefault(value, len(known)) for value in values], np.int64)
        found, places = np.unique(column.reshape(-1), return_inverse=True)
        return np.array([known.setdefault(value, len(known)) for value in found.tolist()], np.int64)[places.reshape(-1)]

    def read(ids: IntArray) -> IntArray:
        parts = [number(source.read(part, [field])[field]) for part in np.array_split(ids, max(1, len(ids) // 65536))]
        return np.concatenate(parts)

    if len(source) > READ_WHOLE:
        return read
    whole = read(np.arange(len(source)))
    return lambda ids: whole[ids]


def _hashable(value: Any) -> Any:
    if value is np.ma.masked or value is None:
        return None
    return value.tobytes() if isinstance(value, np.ndarray) else value
