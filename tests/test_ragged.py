"""Ragged: items of different lengths in one buffer."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Ragged

ARRAYS = st.lists(st.none() | st.lists(st.integers(-100, 100), max_size=5), max_size=8)


def as_lists(items: list[Any]) -> list[Any]:
    return [None if item is None else item.tolist() for item in items]


@given(ARRAYS)
def test_items_come_back(items: list[list[int] | None]) -> None:
    ragged = Ragged.from_items(items, dtype="i2")
    assert len(ragged) == len(items)
    assert as_lists(ragged.to_list()) == items
    assert as_lists(list(ragged)) == items
    assert as_lists([ragged[i - len(items)] for i in range(len(items))]) == items
    assert ragged.lengths.tolist() == [len(item or []) for item in items]
    assert (ragged.present is None) == (None not in items)


@given(ARRAYS, st.none() | st.integers(0, 7), st.integers(-9, 9))
def test_pad_fills_up_and_cuts(items: list[list[int] | None], length: int | None, value: int) -> None:
    padded = Ragged.from_items(items, dtype="i2").pad(length, value=value)
    width = max([len(item or []) for item in items], default=0) if length is None else length
    assert padded.dtype == np.int16
    assert padded.shape == (len(items), width)
    assert padded.tolist() == [((item or []) + [value] * width)[:width] for item in items]


def test_pad_of_a_slice_of_a_longer_buffer_takes_only_its_items() -> None:
    ragged = Ragged(np.arange(10), np.array([4, 6, 9]))
    assert ragged.pad().tolist() == [[4, 5, 0], [6, 7, 8]]
    assert as_lists(ragged.to_list()) == [[4, 5], [6, 7, 8]]


def test_items_of_two_dimensions_keep_their_shapes() -> None:
    items = [np.zeros((2, 3)), np.empty((0, 4)), None, np.ones((3, 0)), np.arange(2.0).reshape(1, 2)]
    ragged = Ragged.from_items(items, dtype="f8", ndim=2)
    assert [None if item is None else item.shape for item in ragged] == [(2, 3), (0, 4), None, (3, 0), (1, 2)]
    with pytest.raises(ValueError, match="one dimension"):
        ragged.pad()


@given(st.lists(st.none() | st.text(max_size=6), max_size=6))
def test_texts_come_back(items: list[str | None]) -> None:
    assert Ragged.from_items(items, dtype="u1", kind="text").to_list() == items


@given(st.lists(st.none() | st.binary(max_size=6), max_size=6))
def test_bytes_come_back(items: list[bytes | None]) -> None:
    assert Ragged.from_items(items, dtype="u1", kind="bytes").to_list() == items


@pytest.mark.parametrize("index", [3, -4, 10**20])
def test_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"index must be in \[-3, 3\)"):
        Ragged.from_items([[1], [2], [3]], dtype="i4")[index]


def test_items_of_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="must have 1 dimensions"):
        Ragged.from_items([[[1]]], dtype="i4")
    with pytest.raises(ValueError, match="must have 2 dimensions"):
        Ragged.from_items([[1]], dtype="i4", ndim=2)
