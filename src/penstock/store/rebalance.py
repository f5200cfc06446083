"""rebalance: the live records of a store, in the order of their ids, in full chunks again."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np

from penstock.interfaces import IntArray
from penstock.remote.url import UrlPath
from penstock.store.column import Column
from penstock.store.create import append_to
from penstock.store.format import as_location
from penstock.store.fragment import Receipt, Target, commit_fragments, discarding, run_tasks, write_fragment
from penstock.store.maintenance import Stats, stats
from penstock.store.reader import Store, open_store
from penstock.store.writer import Progress, Writer

__all__ = ["Rebalanced", "rebalance"]

READ_BYTES = 16 << 20
"""Bytes that are read at a time while a store is rewritten, about."""
LOOK_RECORDS = 1 << 20
"""Records whose sizes are looked at at a time."""


@dataclass(frozen=True)
class Rebalanced:
    """A store before and after it was rewritten."""

    before: Stats
    after: Stats


def rebalance(
    path: str | os.PathLike[str] | UrlPath,
    *,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    executor: Executor | None = None,
) -> Rebalanced:
    """Rewrite the live records in id order into full chunks, as one new generation.

    Older generations, and their readers, stay as they are; :func:`gc` removes their files later. With an ``executor``, any
    ``concurrent.futures.Executor``, the new chunks are written in its threads, processes or machines: the same ones, in one commit.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path)
    >>> pen.rebalance(path).after.utilisation
    1.0
    """
    location = as_location(path, storage_options)
    with append_to(location, threads=threads, progress=progress, single_writer=single_writer) as writer:
        with open_store(location, generation=writer.generation) as store:
            before = stats(store)
            writer.start_over()
            if executor is not None:
                _rewrite_in_tasks(store, writer, executor, progress)
            else:
                rows = max(1, int(READ_BYTES / max(1, before.live_bytes / max(1, len(store)))))
                for columns in _columns(store, range(len(store)), rows):
                    writer.extend_columns(columns)
        done = writer.commit()
    with open_store(location, generation=done) as store:
        return Rebalanced(before, stats(store))


def _columns(store: Store, ids: range, rows: int) -> Iterator[dict[str, Column]]:
    """Records, ``rows`` at a time."""
    for low in range(ids.start, ids.stop, rows):
        yield store.columns(slice(low, min(ids.stop, low + rows)), list(store.schema))


def _rewrite_in_tasks(store: Store, writer: Writer, executor: Executor, progress: Progress | None) -> None:
    """A task per new chunk, so that the chunks are those of one writer."""
    target = Target.of(writer)
    runs = list(enumerate(starmap(range, pairwise([0, *_chunk_ends(store)]))))
    rewrite = _Rewrite(store, target, len(runs))
    with discarding(target) as receipts:
        for _, receipt in run_tasks(((rewrite, run) for run in runs), executor):
            receipts.append(receipt)
            if progress is not None:
                progress(receipt["rows"], receipt["bytes"])
    commit_fragments(writer, receipts)


@dataclass(frozen=True)
class _Rewrite:
    """What is called in the workers: it is pickled, and opens the store there."""

    store: Store
    target: Target
    tasks: int

    def __call__(self, task: tuple[int, range]) -> Receipt:
        number, ids = task
        pieces = -(-self.target.form.chunk_bytes // READ_BYTES)
        batches = _columns(self.store, ids, max(1, -(-len(ids) // pieces)))
        return write_fragment(self.target, batches, task=number, tasks=self.tasks)


def _chunk_ends(store: Store) -> list[int]:
    """The ids at which one writer would begin a new chunk, and the last one: chunks are as full as they can be."""
    most_bytes, most_rows = store.manifest.chunk_bytes, store.manifest.chunk_records
    ends, first = list[int](), 0
    left = np.empty(0, np.int64)  # sizes of the records from ``first`` on that were looked at
    for low in range(0, len(store), LOOK_RECORDS):
        high = min(len(store), low + LOOK_RECORDS)
        left = np.concatenate([left, _sizes(store, low, high)])
        filled = np.cumsum(left)
        start = 0
        while start < left.size:
            before = int(filled[start - 1]) if start else 0
            fits = max(1, min(int(np.searchsorted(filled, before + most_bytes, side="right")) - start, most_rows))
            if start + fits >= left.size and high < len(store):
                break  # the next records may fit too
            start += fits
            ends.append(first + start)
        left, first = left[start:], first + start
    return ends


def _sizes(store: Store, low: int, high: int) -> IntArray:
    """The decoded bytes of records [low, high), as a writer counts them."""
    schema = store.schema
    sizes = np.full(high - low, sum(field.stride for field in schema.values() if field.is_fixed), np.int64)
    for name, field in schema.items():
        if not field.is_fixed:
            sizes += store.lengths(name, np.arange(low, high)) * field.dtype.itemsize
    return sizes
