"""Spans: runs of records of about the same size in bytes, read one after the other."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Source
from penstock.store.reader import Store

__all__ = ["Spans", "load", "next_span", "read_spans", "spans_of", "whole_blocks"]

Spans = Generator[tuple[int, int], int, None]
"""Ids [low, high) after each other; the bytes of each are sent in before the next."""

FIRST_RECORDS = 256


def spans_of(source: Source, fields: Sequence[str], ids: range, batch_bytes: int) -> Spans:
    """Runs of records of about ``batch_bytes``: as many as the size of the last run suggests. They end where blocks end if blocks
    are read as a whole. The same runs for the same arguments.
    """
    low, known = ids.start, [source.schema[name] for name in fields]
    is_fixed = all(field.is_fixed for field in known)
    step = max(1, batch_bytes // max(1, sum(field.stride for field in known))) if is_fixed else FIRST_RECORDS
    blocks = whole_blocks(source)
    while low < ids.stop:
        high = min(ids.stop, low + step)
        if blocks is not None:
            high = min(ids.stop, blocks[int(blocks.of(np.array([high - 1]))[0])].stop)
        size = yield low, high
        step = max(1, min(4 * (high - low), int((high - low) * batch_bytes / max(1, size))))
        low = high


def whole_blocks(source: Source) -> Blocks | None:
    """The blocks, if they are read as a whole. Those at URLs, which can be whole files, are not: any range can be fetched."""
    return source.blocks if source.reads_blocks and source.remote is None else None


def next_span(spans: Spans, size: int) -> tuple[int, int] | None:
    """The next run, after one of so many bytes; None at the end."""
    try:
        return spans.send(size)
    except StopIteration:
        return None


def load(source: Source, low: int, high: int, fields: Sequence[str], *, as_columns: bool = True) -> tuple[Any, int]:
    """Records [low, high) and their size in bytes; those of a store as a writer takes them, without a loss."""
    ids = np.arange(low, high)
    if as_columns and isinstance(source, Store):
        columns = source.columns(ids, fields)
        return columns, sum(column.values.nbytes for column in columns.values())
    batch: Batch = source.read(ids, fields)
    return batch, sum(c.values.nbytes if isinstance(c, Ragged) else c.nbytes for c in batch.values())


def read_spans(source: Source, fields: Sequence[str], ids: range, batch_bytes: int, *, as_columns: bool) -> Iterator[Batch]:
    """The records of a run of ids, batch by batch."""
    with closing(spans_of(source, fields, ids, batch_bytes)) as spans:
        span = next(spans, None)
        while span is not None:
            batch, size = load(source, *span, fields, as_columns=as_columns)
            yield batch
            span = next_span(spans, size)
