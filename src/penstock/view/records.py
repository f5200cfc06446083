"""Records of a source as rows of cells. One that cannot be read is a cell that says so; the others are shown."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.interfaces import IntArray
from penstock.records import Source
from penstock.view.answer import RefusedError
from penstock.view.cell import Cell, Limits, cell_of
from penstock.view.picture import MOST_BYTES, edges

__all__ = ["MOST_FIELDS", "read_value", "rows"]

MOST_FIELDS = 64
"""So many fields of a record are shown."""
PAGE_BYTES = 64 << 20
"""About so many bytes are read for a page, and of a field at most that."""


Words = Callable[[Exception], str]
"""What a page may say about an error."""


def rows(source: Source, ids: IntArray, limits: Limits, words: Words = str) -> list[dict[str, Any]]:
    """The first fields of records, in the order of ``ids``."""
    columns = [_column(source, name, ids, limits, words) for name in list(source.schema)[:MOST_FIELDS]]
    return [{"id": int(ids[place]), "cells": [column[place] for column in columns]} for place in range(len(ids))]


def _column(source: Source, name: str, ids: IntArray, limits: Limits, words: Words) -> list[Cell]:
    field = source.schema[name]
    if field.is_fixed and edges(field.dtype, field.shape) is not None and field.stride <= MOST_BYTES:
        return [{"kind": "image", "shape": list(field.shape), "dtype": str(field.dtype)} for _ in ids]  # read when it is looked at
    try:
        sizes = _sizes(source, name, ids)
    except PenstockError as error:
        return [{"kind": "error", "text": words(error)} for _ in ids]
    readable = np.cumsum(sizes) <= PAGE_BYTES
    cells = iter(_read(source, name, ids[readable], limits, words))
    return [next(cells) if fits else {"kind": "large", "bytes": size} for fits, size in zip(readable, sizes.tolist(), strict=True)]


def _sizes(source: Source, name: str, ids: IntArray) -> IntArray:
    """Bytes of a field of records."""
    field = source.schema[name]
    if field.is_fixed:
        return np.full(len(ids), field.stride, np.int64)
    return np.asarray(source.lengths(name, ids) * field.dtype.itemsize, np.int64)


def _read(source: Source, name: str, ids: IntArray, limits: Limits, words: Words) -> list[Cell]:
    """All at once; one by one if that fails."""
    try:
        column = source.read(ids, [name])[name]
        return [cell_of(_item(column, place), limits) for place in range(len(ids))]
    except (PenstockError, UnicodeDecodeError) as error:
        if len(ids) == 1:
            return [{"kind": "error", "text": words(error)}]
        return [cell for place in range(len(ids)) for cell in _read(source, name, ids[place : place + 1], limits, words)]


def _item(column: Any, place: int) -> Any:
    """One value of a batch; None if it is missing."""
    if not isinstance(column, np.ma.MaskedArray):
        return column[place]
    mask = np.ma.getmaskarray(column)[place]
    return None if mask.all() else column.data[place]


def read_value(source: Source, name: str, record: int, most: int) -> Any:
    """One field of one record; None if it is missing. RefusedError if it has more than ``most`` bytes."""
    ids = np.array([record], np.int64)
    size = int(_sizes(source, name, ids)[0])
    if size > most:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"the value has {size} bytes, more than the {most} that are shown")
    return _item(source.read(ids, [name])[name], 0)
