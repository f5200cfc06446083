"""Row tables: every nesting of slices, lists of ids and concatenations finds the rows that plain Python finds."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.row_table import ChosenRows, JoinedRows, OwnRows, RowTable, find_rows, make_lookup

Place = tuple[str, int]


class Leaf(str):
    """A name and a number of rows, such as "a:3"."""

    __slots__ = ()

    def __len__(self) -> int:
        return int(self.split(":")[1])


@st.composite
def nested(draw: st.DrawFn, depth: int = 3) -> tuple[RowTable, list[Place]]:
    """A table, and the leaf and row of each of its records."""
    kind = draw(st.sampled_from(["own", "slice", "ids", "join"] if depth else ["own"]))
    if kind == "own":
        leaf = Leaf(f"{draw(st.sampled_from('abcd'))}:{draw(st.integers(0, 6))}")
        return OwnRows(leaf), [(leaf, row) for row in range(len(leaf))]
    if kind == "join":
        parts = draw(st.lists(nested(depth - 1), min_size=1, max_size=4))
        return JoinedRows([table for table, _ in parts], [len(rows) for _, rows in parts]), [
            row for _, rows in parts for row in rows
        ]
    table, rows = draw(nested(depth - 1))
    if kind == "slice":
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        edges = st.integers(-8, 8) | st.none()
        chosen = range(len(rows))[draw(edges) : draw(edges) : step]
        return ChosenRows(table, chosen), [rows[i] for i in chosen]
    ids = draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    return ChosenRows(table, np.array(ids, np.int64)), [rows[i] for i in ids]


def found_in(table: RowTable, ids: Sequence[int]) -> list[Place]:
    which, rows = table.find(np.array(ids, np.int64))
    leaves = [0] * len(ids) if which is None else which.tolist()
    return [(table.leaves[leaf], row) for leaf, row in zip(leaves, rows.tolist(), strict=True)]


@given(case=nested(), backwards=st.booleans())
def test_every_nesting_finds_the_rows_of_plain_python(case: tuple[RowTable, list[Place]], backwards: bool) -> None:
    table, rows = case
    ids = list(range(len(rows)))[:: -1 if backwards else 1]
    assert found_in(table, ids) == [rows[i] for i in ids]


@given(case=nested())
def test_runs_are_the_rows_of_a_range_of_records(case: tuple[RowTable, list[Place]]) -> None:
    table, rows = case
    for start in range(len(rows)):
        runs = table.runs(np.array([start]), np.array([len(rows)]))
        found = [
            (leaf, row) for leaf, low, high in runs for a, b in zip(low.tolist(), high.tolist(), strict=True) for row in range(a, b)
        ]
        assert sorted(found) == sorted(rows[start:])


@given(case=nested(), edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5))
def test_runs_of_several_ranges_are_the_rows_of_each(case: tuple[RowTable, list[Place]], edges: list[tuple[int, int]]) -> None:
    table, rows = case
    ranges = [sorted((a % (len(rows) + 1), b % (len(rows) + 1))) for a, b in edges]
    runs = table.runs(np.array([low for low, _ in ranges], np.int64), np.array([high for _, high in ranges], np.int64))
    found = [
        (leaf, row) for leaf, *ends in runs for a, b in zip(*(each.tolist() for each in ends), strict=True) for row in range(a, b)
    ]
    assert sorted(found) == sorted(row for low, high in ranges for row in rows[low:high])


@given(cases=st.lists(nested(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_the_tables_of_several_streams_are_one_lookup(cases: list[tuple[RowTable, list[Place]]], seed: int) -> None:
    lookup = make_lookup([table for table, _ in cases])
    if lookup is None:  # one of them is a list of ids
        return
    leaves = [leaf for table, _ in cases for leaf in table.leaves]
    every = [(stream, i) for stream, (_, rows) in enumerate(cases) for i in range(len(rows))]
    np.random.default_rng(seed).shuffle(every)
    streams, ids = np.array([s for s, _ in every], np.int32), np.array([i for _, i in every], np.int64)
    which, rows = find_rows(lookup, ids, streams)
    assert [(leaves[w], row) for w, row in zip(which.tolist(), rows.tolist(), strict=True)] == [cases[s][1][i] for s, i in every]


def test_slices_of_concatenations_of_slices_are_few_runs() -> None:
    a, b = OwnRows(Leaf("a:10")), OwnRows(Leaf("b:10"))
    joined = JoinedRows([ChosenRows(a, range(2, 8)), b], [6, 10])
    assert ChosenRows(joined, range(4, 9)).table == [(2, 6, 1, 0), (5, -2, 1, 1)]
    assert ChosenRows(a, range(9, -1, -3)).line == (9, -3)
    assert joined.line is None


def test_records_that_do_not_exist_are_index_errors() -> None:
    lookup = make_lookup([OwnRows(Leaf("a:3")), OwnRows(Leaf("b:0"))])
    assert lookup is not None
    for stream, record in ((0, 3), (0, -1), (1, 0), (2, 0)):
        with pytest.raises(IndexError, match="does not exist"):
            find_rows(lookup, np.array([record]), np.array([stream], np.int32))
