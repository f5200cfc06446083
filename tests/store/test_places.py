"""Places against a plain dict: where every field of every record lies after any changes, commits and foldings."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.builder import Placement
from penstock.store.places import Places
from penstock.store.redirect import ENTRY, NOWHERE, Table, merge

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
    """Places beside a list with one dict {field: (chunk, row)} per record."""

    places: Places = field(default_factory=lambda: Places(0, (), {}))
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
        self.places = Places(self.places.length, self.places.segments, in_force)

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
    places = Places(0, (), {})
    places.append([Placement(0, 0, 3)])
    places.append([Placement(0, 3, 2), Placement(1, 0, 1)])
    places.append([Placement(1, 2, 1)])  # row 1 went to something else
    assert [(s.first_id, s.count, s.chunk, s.first_row) for s in places.segments] == [(0, 5, 0, 0), (5, 1, 1, 0), (6, 1, 1, 2)]


def test_redirect_of_a_deleted_record_does_not_come_back_with_a_new_one() -> None:
    base = {0: np.array([(2, 9, 9)], ENTRY)}
    places = Places(0, (), {})
    places.append([Placement(0, 0, 3)])
    places = Places(3, places.segments, base)
    places.delete(np.array([2]), [0])
    assert places.changed_tables()[0].tolist() == [(2, NOWHERE, 0)]
    places.append([Placement(1, 0, 1)])
    assert places.of(0, np.array([2])) == [(1, 0)]
    assert places.whole_tables() == {}


def test_nothing_changed_makes_no_table() -> None:
    places = Places(0, (), {})
    places.append([Placement(0, 0, 3)])
    assert places.changed_tables() == {}
    assert places.whole_tables() == {}
    assert places.of(0, np.empty(0, np.int64)) == []
