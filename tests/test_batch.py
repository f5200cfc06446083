"""Batches: Ragged items in one buffer, and parts scattered into one batch."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Field, Ragged
from penstock.batch import masked, only, scatter

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


def test_items_of_two_dimensions_are_padded_to_the_largest_shape_or_a_given_one() -> None:
    items = [np.array([[1, 2, 3], [4, 5, 6]]), np.empty((0, 4)), None, np.ones((3, 0)), np.array([[7], [8]])]
    ragged = Ragged.from_items(items, dtype="i4", ndim=2)
    padded = ragged.pad(value=-1)
    assert (padded.dtype, padded.shape) == (np.int32, (5, 3, 4))
    assert padded[0].tolist() == [[1, 2, 3, -1], [4, 5, 6, -1], [-1] * 4]
    assert padded[4].tolist() == [[7, -1, -1, -1], [8, -1, -1, -1], [-1] * 4]
    assert (padded[1:4] == -1).all()
    assert ragged.pad((1, 2))[[0, 4]].tolist() == [[[1, 2]], [[7, 0]]]
    assert Ragged.from_items([], dtype="i4", ndim=2).pad().shape == (0, 0, 0)
    assert Ragged.from_items(["ab", "c"], dtype="u1", kind="text").pad((1,)).tolist() == [[97], [99]]
    for length in (3, (1, 2, 3), ()):
        with pytest.raises(ValueError, match="length must have 2 numbers"):
            ragged.pad(length)
    with pytest.raises(ValueError, match="length must be in"):
        ragged.pad((1, -1))


PLACES = [slice(2, 5), slice(None), slice(-2, None), slice(4, 1), slice(None, None, -2), [3, 1, 1, -1], [], np.array([0, 5])]


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_slices_masks_and_lists_of_places_give_a_ragged(places: Any) -> None:
    items = [[1, 2], [], None, [3], [4, 5, 6], [7]]
    ragged = Ragged(np.arange(-3, 9), np.array([4, 6, 6, 6, 7, 10, 11]), present=np.array([1, 1, 0, 1, 1, 1], np.bool_))
    assert as_lists(ragged.to_list()) == items
    wanted = [items[i] for i in np.arange(6)[places].tolist()] if not isinstance(places, list) else [items[i] for i in places]
    assert isinstance(ragged[places], Ragged)
    assert as_lists(ragged[places].to_list()) == wanted
    assert ragged[places].offsets[0] == 0
    assert ragged[places].values.tolist() == [value for item in wanted for value in item or []]
    texts = Ragged.from_items(list("abcdef"), dtype="u1", kind="text")[places].to_list()
    assert texts == ["abcdef"[i] for i in np.arange(6)[places if not isinstance(places, list) else np.array(places, int)]]


def test_masks_choose_items_and_keep_their_shapes() -> None:
    ragged = Ragged.from_items([np.full((i, 2), i) for i in range(5)], dtype="i4", ndim=2)
    for places in (np.arange(5) % 2 == 1, slice(1, 5, 2), [True, False] * 2 + [False]):
        assert [item.tolist() for item in ragged[places]] == (
            [[[1, 1]], [[3, 3]] * 3] if not isinstance(places, list) else [[], [[2, 2]] * 2]
        )
    assert [item.shape for item in ragged[1:3]] == [(1, 2), (2, 2)]
    assert ragged[np.int64(2)].tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("places", [[6], "a", [0.5], (1, 2), [[1]], np.ones(4, np.bool_), True], ids=str)
def test_other_places_are_refused(places: Any) -> None:
    with pytest.raises(IndexError):
        Ragged.from_items([[1]] * 6, dtype="i4")[places]


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


def test_scatter_puts_every_part_in_its_rows_with_what_is_missing() -> None:
    one = masked(np.array([10, 11, 12]), np.array([True, False, True]))
    two = np.array([20, 21])
    found = scatter("x", Field("i8", nullable=True), [(np.array([4, 0, 2]), one), (np.array([1, 3]), two)], 5, {})
    assert found.tolist() == [None, 20, 12, 21, 10]


def test_scatter_fills_the_array_that_is_given_and_has_no_mask_where_nothing_is_missing() -> None:
    out = {"x": np.zeros(3, np.int64)}
    found = scatter("x", Field("i8"), [(np.array([2]), np.array([7])), (np.array([1, 0]), np.array([8, 9]))], 3, out)
    assert found is out["x"]
    assert found.tolist() == [9, 8, 7]


def test_scatter_of_ragged_parts_keeps_missing_items() -> None:
    parts = [
        (np.array([3, 0]), Ragged.from_items(["d", None], dtype=np.uint8, kind="text")),
        (np.array([1, 2]), Ragged.from_items(["b", ""], dtype=np.uint8, kind="text")),
    ]
    assert scatter("t", Field.text(nullable=True), parts, 4, {}).to_list() == [None, "b", "", "d"]


@pytest.mark.parametrize(
    ("field", "kind"), [(Field.text(), "text"), (Field.bytes(), "bytes"), (Field.ragged("i2", 2), "array"), (Field("f4"), "")]
)
def test_scatter_of_no_parts_is_empty_and_of_the_type_of_the_field(field: Field, kind: str) -> None:
    found = scatter("x", field, [], 0, {})
    assert len(found) == 0
    assert (found.values.dtype if isinstance(found, Ragged) else found.dtype) == field.dtype
    assert not isinstance(found, Ragged) or found.kind == kind


def test_scatter_keeps_that_a_record_without_elements_is_missing() -> None:
    missing = masked(np.empty((1, 0), np.float32), np.array([False]))
    found = scatter("x", Field("f4", (0,), nullable=True), [(np.array([0]), missing)], 1, {})
    assert only(found) is None


@given(st.data(), st.integers(1, 3), st.integers(0, 5))
def test_pad_of_any_number_of_dimensions_is_that_of_loops(data, ndim, count):
    shapes = [tuple(data.draw(st.integers(0, 4)) for _ in range(ndim)) for _ in range(count)]
    items = [None if data.draw(st.booleans()) else np.arange(1, 1 + math.prod(shape)).reshape(shape) for shape in shapes]
    ragged = Ragged.from_items(items, dtype="i8", ndim=ndim)
    multiples = [data.draw(st.integers(1, 4)) for _ in range(ndim)]
    largest = [max((item.shape[d] for item in items if item is not None), default=0) for d in range(ndim)]
    for size, options in (
        ([-(-n // m) * m for n, m in zip(largest, multiples, strict=True)], {"multiple_of": multiples}),
        ([3] * ndim, {"length": [3] * ndim}),
        (largest, {}),
    ):
        expected = np.full((count, *size), -7, np.int64)
        for row, item in zip(expected, items, strict=True):
            if item is not None:
                part = item[tuple(map(slice, size))]
                row[tuple(map(slice, part.shape))] = part
        found = ragged.pad(**options, value=-7)
        assert found.dtype == np.int64
        assert np.array_equal(found, expected)


def test_pad_says_what_it_cannot_do():
    ragged = Ragged.from_items([[1, 2], [3]], dtype="i4")
    assert ragged.pad(multiple_of=4).tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    with pytest.raises(ValueError, match="not both"):
        ragged.pad(3, multiple_of=2)
    with pytest.raises(ValueError, match="multiple_of must have 1 numbers"):
        ragged.pad(multiple_of=[2, 2])
    with pytest.raises(ValueError, match="multiple_of"):
        ragged.pad(multiple_of=0)
