"""Merged ranges, against a model that marks every byte."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remote.residency import merge

RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), max_size=12)


def arrays(ranges: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array([(number, start, start + length) for number, start, length in ranges], np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def covered(ranges: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(number, byte) for number, start, stop in ranges for byte in range(start, stop)}


def merged(columns: tuple[np.ndarray, np.ndarray, np.ndarray], gap: int, most: int) -> list[tuple[int, int, int]]:
    found = merge(*columns, gap, most)
    assert all(column.dtype == np.int64 for column in found)
    return list(zip(*(column.tolist() for column in found), strict=True))


@given(RANGES, st.integers(1, 40))
def test_without_a_gap_exactly_the_asked_bytes_are_covered_once(ranges: list[tuple[int, int, int]], most: int) -> None:
    columns = arrays(ranges)
    found = merged(columns, 0, most)
    assert found == sorted(found)
    assert all(0 < stop - start <= most for _, start, stop in found)
    assert sum(stop - start for _, start, stop in found) == len(covered(found))  # no byte twice
    assert covered(found) == covered(list(zip(*(c.tolist() for c in columns), strict=True)))


@given(RANGES, st.integers(0, 15), st.integers(1, 60))
def test_with_a_gap_only_small_holes_are_added(ranges: list[tuple[int, int, int]], gap: int, most: int) -> None:
    columns = arrays(ranges)
    asked = covered(list(zip(*(c.tolist() for c in columns), strict=True)))
    found = merged(columns, gap, most)
    got = covered(found)
    assert asked <= got
    assert all(0 < stop - start <= most for _, start, stop in found)
    assert sum(stop - start for _, start, stop in found) == len(got)
    # Every byte that nobody asked for lies in a hole of at most ``gap`` bytes between two that somebody asked for.
    for number, byte in got - asked:
        hole = [byte]
        for step in (-1, 1):
            at = byte + step
            while (number, at) not in asked:
                assert (number, at) in got or abs(at - byte) <= gap
                hole.append(at)
                at += step
        assert max(hole) - min(hole) + 1 <= gap
    # A range begins and ends with a byte that was asked for, unless it was cut.
    for number, start, stop in found:
        assert (number, start) in asked or (number, start - 1) in got
        assert (number, stop - 1) in asked or (number, stop) in got


@given(RANGES, st.integers(0, 15), st.integers(1, 60))
def test_two_neighbours_that_fit_together_are_one(ranges: list[tuple[int, int, int]], gap: int, most: int) -> None:
    found = merged(arrays(ranges), gap, 1 << 40)
    for (number, _, stop), (other, start, _) in pairwise(found):
        assert number != other or start - stop > gap
    # With a cap: no two neighbours fit into one.
    cut = merged(arrays(ranges), gap, most)
    for (n0, start, stop0), (n1, start1, stop1) in pairwise(cut):
        if n0 == n1 and 0 < start1 - stop0 <= gap:
            assert stop1 - start > most


def test_large_offsets_of_many_files_do_not_overflow() -> None:
    numbers = np.array([0, 1, 1, 2], np.int64)
    starts = np.array([2**62, 5, 0, 2**62], np.int64)
    assert merged((numbers, starts, starts + 10), 0, 1 << 62) == [(0, 2**62, 2**62 + 10), (1, 0, 15), (2, 2**62, 2**62 + 10)]


def test_a_range_within_another_does_not_end_it() -> None:
    assert merged(arrays([(0, 0, 50), (0, 10, 5), (0, 52, 3), (1, 0, 1)]), 2, 1000) == [(0, 0, 55), (1, 0, 1)]
    assert merged(arrays([(0, 0, 50), (0, 10, 5), (0, 50, 3)]), 0, 20) == [(0, 0, 20), (0, 20, 40), (0, 40, 53)]


def test_the_rest_of_a_range_that_was_cut_is_merged_with_the_next() -> None:
    assert merged(arrays([(1, 44, 13), (1, 58, 1)]), 1, 3) == [(1, 44, 47), (1, 47, 50), (1, 50, 53), (1, 53, 56), (1, 56, 59)]


def test_nothing_and_nonsense() -> None:
    assert merged(arrays([]), 5, 5) == []
    assert merged(arrays([(3, 7, 0)]), 5, 5) == []
    with pytest.raises(ValueError, match="at least 1 byte"):
        merge(*arrays([]), 0, 0)
