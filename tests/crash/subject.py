"""The store a plan is run on: its fields, how records go in and how they come out."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.crash.plan import NAMES, Record, State, record

import penstock as pen

FIELDS = {
    "number": pen.Field("i4"),
    "image": pen.Field("u1", (6,)),
    "caption": pen.Field.text(codec=pen.Deflate()),
    "track": pen.Field.ragged("f4", 1),
}


def batch(records: Iterable[Record], names: Sequence[str] = NAMES) -> dict[str, Any]:
    """Records as the columns a writer takes."""
    rows = list(records)
    return {name: [_given(row[name]) for row in rows] for name in names}


def _given(value: Any) -> Any:
    return np.array(value, np.float32) if isinstance(value, list) and (not value or isinstance(value[0], float)) else value


def made(first: int, count: int, names: Sequence[str] = NAMES) -> dict[str, Any]:
    """A batch of the records with serials from ``first`` on."""
    return batch((record(first + i) for i in range(count)), names)


def contents(store: Any) -> State:
    """All records, as :func:`tests.crash.plan.record` makes them."""
    columns = store.read(slice(None))
    values = {name: _plain(column) for name, column in columns.items()}
    return [{name: values[name][i] for name in values} for i in range(len(store))]


def _plain(column: Any) -> list[Any]:
    if isinstance(column, np.ma.MaskedArray):
        rows = column.filled(0).tolist()
        gone = np.ma.getmaskarray(column).all(axis=tuple(range(1, column.ndim))).tolist()
        return [None if missing else row for row, missing in zip(rows, gone, strict=True)]
    if isinstance(column, np.ndarray):
        return list(column.tolist())
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in column]


def read(path: Path, generation: int | None = None) -> tuple[int, State]:
    """The generation found, and its records."""
    store = pen.open(path, generation=generation, threads=1)
    try:
        return store.generation, contents(store)
    finally:
        store.close()
