"""Rows of manifests by column: to the eye a tuple of entries."""

import pickle

import numpy as np
import pytest

from penstock.store.entries import Entries, as_rows, column, places_of
from penstock.store.manifest import ChunkEntry, SegmentEntry

CHUNKS = tuple(ChunkEntry(k * 3 % 10_000, f"{k:032x}", k, 2**62 + k, k + 1, 2**32 - 1 - k, k) for k in range(9_999))
ROWS = zip(*([c.number, c.writer, c.serial, c.size, c.rows, c.crc, c.decoded] for c in CHUNKS), strict=True)
COLUMNS = [np.array(values, "S32" if isinstance(values[0], str) else np.int64) for values in ROWS]


def test_entries_are_what_they_were_made_of() -> None:
    entries: Entries[ChunkEntry] = Entries(ChunkEntry, COLUMNS)
    assert len(entries) == 9_999
    assert tuple(entries) == CHUNKS
    assert entries == CHUNKS
    assert entries != CHUNKS[:-1]
    assert entries != (*CHUNKS[:-1], CHUNKS[0])
    assert [entries[k] for k in (0, 1, 4096, 9998, -1, -9999)] == [CHUNKS[k] for k in (0, 1, 4096, 9998, -1, -9999)]
    assert entries[5:9] == CHUNKS[5:9]
    assert entries[::-1] == CHUNKS[::-1]
    assert hash(entries) == hash(CHUNKS)
    assert type(entries[7].size) is int
    assert type(entries[7].writer) is str
    assert CHUNKS[7] in entries
    assert pickle.loads(pickle.dumps(entries)) == CHUNKS
    for outside in (9_999, -10_000):
        with pytest.raises(IndexError):
            entries[outside]


def test_no_entries_are_an_empty_tuple() -> None:
    entries: Entries[SegmentEntry] = Entries(SegmentEntry, [np.empty(0, np.int64)] * 4)
    assert (len(entries), tuple(entries), entries == (), repr(entries)) == (0, (), True, "()")
    assert column(entries, "count").size == 0


def test_columns_are_the_same_of_entries_and_of_tuples() -> None:
    entries: Entries[ChunkEntry] = Entries(ChunkEntry, COLUMNS)
    for name in ("number", "size", "crc"):
        assert column(entries, name).tolist() == column(CHUNKS, name).tolist() == [getattr(chunk, name) for chunk in CHUNKS]
    assert as_rows(column(entries, "serial"), column(entries, "size"))[3].tolist() == [3, 2**62 + 3]


def test_places_of_numbers_that_are_not_there_are_behind_the_last() -> None:
    numbers = np.array([7, 3, 9, 100])
    assert places_of(numbers, np.array([9, 3, 3, 4, 101, 0, 7, 100], np.uint32)).tolist() == [2, 1, 1, 4, 4, 4, 0, 3]
    assert places_of(numbers[:0], np.array([1, 2])).tolist() == [0, 0]
