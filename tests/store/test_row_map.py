"""The row map.

RowMap against a plain dict: where every field of every record is after any changes, commits and foldings. Redirect tables: bytes
and back, and the later one wins.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.store.chunk import Placement
from penstock.store.row_map import ENTRY, NOWHERE, RowMap, Table, decode_redirects, encode_redirects, merge, places_of

FIELDS = (0, 1, 2)

APPEND = st.tuples(st.just("append"), st.integers(1, 5), st.booleans())
UPDATE = st.tuples(
    st.just("update"), st.lists(st.integers(0, 99), min_size=1, max_size=4), st.sets(st.sampled_from(FIELDS), min_size=1)
)
DELETE = st.tuples(st.just("delete"), st.lists(st.integers(0, 99), min_size=1, max_size=4))
COMMIT = st.tuples(st.just("commit"), st.booleans())
STEPS = st.lists(st.one_of(APPEND, UPDATE, DELETE, COMMIT), max_size=25)


@dataclass
class Model:
    """RowMap next to a list with one dict {field: (chunk, row)} per record."""

    places: RowMap = field(default_factory=lambda: RowMap(0, (), {}))
    tables: dict[int, Table] = field(default_factory=dict)  # as a reader of the last commit has them, with tombstones
    records: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    chunk: int = -1
    row: int = 0

    def place(self, count: int, fresh: bool) -> list[Placement]:
        if fresh or self.chunk < 0:
            self.chunk, self.row = self.chunk + 1, 0
        self.row += count
        return [Placement(self.chunk, self.row - count, count)]

    def append(self, count: int, fresh: bool) -> None:
        first, made = len(self.records), self.place(count, fresh)
        self.records += [dict.fromkeys(FIELDS, (self.chunk, made[0].first_row + i)) for i in range(count)]
        assert self.places.append(made) == range(first, first + count)

    def update(self, ids: list[int], numbers: set[int]) -> None:
        if self.records:
            wanted = [i % len(self.records) for i in ids]
            made = self.place(len(wanted), True)
            for number in numbers:
                for row, record in enumerate(wanted):
                    self.records[record][number] = (self.chunk, row)
            self.places.redirect(numbers, np.array(wanted), made)

    def delete(self, ids: list[int]) -> None:
        if self.records:
            gone = sorted({i % len(self.records) for i in ids})
            end, moves = len(self.records) - len(gone), {}
            movers = [i for i in range(end, len(self.records)) if i not in gone]
            for hole, mover in zip([i for i in gone if i < end], movers, strict=True):
                self.records[hole] = self.records[mover]
                moves[mover] = hole
            del self.records[end:]
            assert self.places.delete(np.array(gone), FIELDS) == moves

    def commit(self, fold: bool) -> None:
        if fold:
            self.tables = self.places.whole_tables()
        else:
            for number, table in self.places.changed_tables().items():
                self.tables[number] = merge(self.tables.get(number, np.empty(0, ENTRY)), table, drop_nowhere=False)
        in_force = {number: table[table["chunk"] != NOWHERE] for number, table in self.tables.items()}
        for table in in_force.values():
            assert np.all(table["id"] < len(self.records))  # nothing points past the end, or a reader would refuse it
        self.places = RowMap(self.places.length, self.places.segments, in_force)

    def check(self) -> None:
        ids = np.arange(len(self.records))
        assert self.places.length == len(self.records)
        for number in FIELDS:
            assert self.places.of(number, ids) == [record[number] for record in self.records]
        next_id = 0
        for segment in self.places.segments:
            assert segment.first_id == next_id
            assert segment.count > 0
            next_id += segment.count
        assert next_id == len(self.records)


@settings(max_examples=2 * settings.default.max_examples)
@given(STEPS)
def test_places_are_those_of_a_dict_after_any_changes(steps: list[Any]) -> None:
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.check()
    model.commit(True)
    model.check()


def test_rows_that_follow_each_other_make_one_segment() -> None:
    places = RowMap(0, (), {})
    places.append([Placement(0, 0, 3)])
    places.append([Placement(0, 3, 2), Placement(1, 0, 1)])
    places.append([Placement(1, 2, 1)])  # row 1 went to something else
    assert [(s.first_id, s.count, s.chunk, s.first_row) for s in places.segments] == [(0, 5, 0, 0), (5, 1, 1, 0), (6, 1, 1, 2)]


def test_redirect_of_a_deleted_record_does_not_come_back_with_a_new_one() -> None:
    base = {0: np.array([(2, 9, 9)], ENTRY)}
    places = RowMap(0, (), {})
    places.append([Placement(0, 0, 3)])
    places = RowMap(3, places.segments, base)
    places.delete(np.array([2]), [0])
    assert places.changed_tables()[0].tolist() == [(2, NOWHERE, 0)]
    places.append([Placement(1, 0, 1)])
    assert places.of(0, np.array([2])) == [(1, 0)]
    assert places.whole_tables() == {}


def test_nothing_changed_makes_no_table() -> None:
    places = RowMap(0, (), {})
    places.append([Placement(0, 0, 3)])
    assert places.changed_tables() == {}
    assert places.whole_tables() == {}
    assert places.of(0, np.empty(0, np.int64)) == []


# Redirect tables

DATASET = "0123456789abcdef" * 2
PLACES = st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 5) | st.just(NOWHERE), st.integers(0, 9)), max_size=10)


def table(places: dict[int, tuple[int, int]]) -> Table:
    return np.array([(i, *places[i]) for i in sorted(places)], ENTRY)


def as_dict(entries: Table) -> dict[int, tuple[int, int]]:
    return {int(i): (int(chunk), int(row)) for i, chunk, row in entries}


@given(st.dictionaries(st.integers(0, 4095), PLACES, max_size=4))
def test_tables_come_back(tables: dict[int, dict[int, tuple[int, int]]]) -> None:
    data = encode_redirects(DATASET, {number: table(places) for number, places in tables.items()})
    assert len(data) == 32 + 16 * len(tables) + 16 * sum(map(len, tables.values()))
    found = decode_redirects(data, DATASET, "here")
    assert {number: as_dict(entries) for number, entries in found.items()} == tables


@given(PLACES, PLACES)
def test_newer_entries_win_and_ids_rise(older: dict[int, tuple[int, int]], newer: dict[int, tuple[int, int]]) -> None:
    both = merge(table(older), table(newer), drop_nowhere=False)
    assert as_dict(both) == older | newer
    assert both["id"].tolist() == sorted(older | newer)
    kept = {i: place for i, place in (older | newer).items() if place[0] != NOWHERE}
    assert as_dict(merge(table(older), table(newer), drop_nowhere=True)) == kept


GOOD = encode_redirects(DATASET, {0: table({1: (2, 3), 5: (0, 0)}), 7: table({2: (NOWHERE, 0)})})


def test_layout_is_the_documented_one() -> None:
    head = b"PENREDIR" + struct.pack("<II", 1, 2) + bytes.fromhex(DATASET) + struct.pack("<IIQIIQ", 0, 0, 2, 7, 0, 1)
    assert head + struct.pack("<QIIQIIQII", 1, 2, 3, 5, 0, 0, 2, NOWHERE, 0) == GOOD


def replaced(offset: int, data: bytes) -> bytes:
    return GOOD[:offset] + data + GOOD[offset + len(data) :]


BAD: dict[str, Any] = {
    "nothing": b"",
    "short header": GOOD[:31],
    "short fields": GOOD[:40],
    "short table": GOOD[:-1],
    "long": GOOD + b"\0",
    "magic": replaced(0, b"X"),
    "version": replaced(8, b"\2"),
    "many fields": replaced(12, b"\xff\xff\xff\xff"),
    "other data set": replaced(16, b"\xff"),
    "field twice": replaced(48, b"\0"),
    "padding": replaced(36, b"\1"),
    "entries beyond the file": replaced(40, struct.pack("<Q", 2**60)),
    "ids equal": replaced(80, struct.pack("<Q", 1)),
    "ids fall": replaced(80, struct.pack("<Q", 0)),
}


@pytest.mark.parametrize("name", BAD)
def test_other_bytes_are_refused_by_name(name: str) -> None:
    assert set(decode_redirects(GOOD, DATASET, "here")) == {0, 7}
    with pytest.raises(CorruptError, match=r"^here: not a redirect table"):
        decode_redirects(BAD[name], DATASET, "here")


def test_places_of_numbers_that_are_not_there_are_behind_the_last() -> None:
    numbers = np.array([7, 3, 9, 100])
    assert places_of(numbers, np.array([9, 3, 3, 4, 101, 0, 7, 100], np.uint32)).tolist() == [2, 1, 1, 4, 4, 4, 0, 3]
    assert places_of(numbers[:0], np.array([1, 2])).tolist() == [0, 0]
