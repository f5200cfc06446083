"""The checks that every order shares."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.records import without_addresses

import penstock as pen
from penstock.argument import MAX_LENGTH, as_ids, check_positions, check_run, is_single, whole_number


class Seven:
    def __index__(self):
        return 7


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.int64(7), Seven()])
def test_anything_that_is_a_whole_number_becomes_an_int(value):
    assert type(whole_number("x", value)) is int
    assert whole_number("x", value) == 7


@pytest.mark.parametrize(
    "value", [7.0, np.float32(7), float("nan"), float("inf"), "7", b"7", None, True, np.True_, Fraction(7), [7], 7j]
)
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TypeError) as caught:
        whole_number("x", value)
    assert str(caught.value) == f"x must be a whole number, got {value!r}"


@pytest.mark.parametrize(
    ("value", "least", "most"), [(-1, 0, MAX_LENGTH), (2**63, 0, MAX_LENGTH), (0, 1, 5), (6, 1, 5), (2**64, 0, 2**64 - 1)]
)
def test_numbers_out_of_range_are_refused_with_the_range(value, least, most):
    with pytest.raises(ValueError, match=rf"x must be in \[{least}, {most}\], got {value}"):
        whole_number("x", value, least=least, most=most)


@given(length=st.integers(0, 60), start=st.integers(-5, 70), stop=st.integers(-5, 70), step=st.integers(1, 9))
def test_run_counts_its_positions_or_refuses_them(length, start, stop, step):
    if 0 <= start <= stop <= length:
        assert check_run(start, stop, step, length) == range(start, stop, step)
    else:
        with pytest.raises(IndexError, match=rf"<= {length}, got start={start}, stop={stop}"):
            check_run(start, stop, step, length)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int64, np.uint64])
def test_run_of_numpy_numbers_is_counted_alike(kind):
    run = check_run(kind(3), kind(100), kind(7), 127)
    assert run == range(3, 100, 7)
    assert {type(n) for n in (run.start, run.stop, run.step)} == {int}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ((), []),
        ([3, 1, 3], [3, 1, 3]),
        (range(3), [0, 1, 2]),
        (np.array([3, 1], np.uint8), [3, 1]),
        (np.arange(10)[::-3], [9, 6, 3, 0]),
        (np.array([1, 2], ">i4"), [1, 2]),
    ],
)
def test_positions_become_a_contiguous_int64_array(values, expected):
    found = check_positions("x", values, 10)
    assert found.dtype == np.int64
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("values", "error", "found"),
    [
        ([-1], IndexError, "-1"),
        ([0, 10], IndexError, "10"),
        ([2**63], IndexError, str(2**63)),
        ([1.0], TypeError, "float64"),
        (["1"], TypeError, "<U1"),
        ([True], TypeError, "bool"),
        ([None], TypeError, "object"),
        ([2**70], TypeError, "object"),
        (5, ValueError, "()"),
        ([[1]], ValueError, "(1, 1)"),
    ],
)
def test_bad_positions_are_refused_with_what_was_found(values, error, found):
    with pytest.raises(error) as caught:
        check_positions("x", values, 10)
    assert str(caught.value).startswith("x must be ")
    assert str(caught.value).endswith(found)


LENGTHS = st.integers(0, 12)
NUMBERS = st.integers(-15, 15)
SLICES = st.builds(slice, st.none() | NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS)
TYPES = ["i1", "i2", "i4", "i8", ">i4"]
KEYS = st.one_of(
    SLICES,
    st.lists(NUMBERS, max_size=6),
    st.lists(st.booleans(), max_size=12),
    st.builds(np.array, st.lists(st.booleans(), max_size=12), st.just(bool)),
    st.builds(np.array, st.lists(NUMBERS, max_size=6), st.sampled_from(TYPES)),
    st.builds(np.array, st.lists(st.integers(0, 15), max_size=6), st.sampled_from(["u1", "u8"])),
    st.builds(lambda values: np.array(values, np.int64)[::-2], st.lists(NUMBERS, max_size=6)),
)


@given(LENGTHS, KEYS)
def test_keys_of_a_batch_select_what_numpy_selects(length: int, key: Any) -> None:
    mask = np.asarray(key).dtype == bool and not isinstance(key, slice)
    if mask and len(key) != length:  # numpy lets an empty mask pass on any length; here it is refused like all others
        with pytest.raises(IndexError, match="a mask must have one value per record"):
            as_ids(key, length)
        return
    if isinstance(key, list) and not key:
        expected: Any = np.empty(0, np.int64)
    else:
        try:
            expected = np.arange(length)[key]
        except (IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                as_ids(key, length)
            return
    found = as_ids(key, length)
    assert found.dtype == np.int64
    assert found.flags.c_contiguous
    assert found.tolist() == expected.tolist()


@given(st.integers(1, 12), NUMBERS, st.sampled_from([int, np.int8, np.int64]))
def test_single_keys_select_what_numpy_selects(length: int, number: int, kind: type) -> None:
    key = kind(number)
    assert is_single(key)
    try:
        expected = int(np.arange(length)[key])
    except IndexError:
        with pytest.raises(IndexError, match="ids must be in"):
            as_ids(key, length)
        return
    assert as_ids(key, length).tolist() == [expected]


@pytest.mark.parametrize(
    "key",
    [1.0, [1.0], np.array([0.0]), "a", ["a"], None, [None], ..., object(), [[0, 1]], np.zeros((2, 2), int), np.zeros((5, 1), bool),
     1j, 10**30, [10**30], -(10**30), np.uint64(2**64 - 1), np.array([2**64 - 1], np.uint64), -(2**63), [True, False]],
    ids=without_addresses,
)  # fmt: skip
def test_other_keys_are_index_errors(key: Any) -> None:
    with pytest.raises(IndexError):
        as_ids(key, 5)


def test_booleans_are_no_single_keys() -> None:
    assert not is_single(True)
    assert not is_single(np.True_)


def test_zero_step_is_a_value_error_as_in_numpy() -> None:
    with pytest.raises(ValueError, match="step"):
        as_ids(slice(0, 5, 0), 5)


@pytest.fixture
def store(tmp_path: Path) -> pen.store.Store:
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("i8")}, chunk_records=3) as out:
        out.extend({"x": np.arange(10) * 10})
    return pen.open(tmp_path / "a.pen")


KEY_TABLE: list[tuple[Any, Any]] = [
    (0, 0), (-1, 90), (np.int32(3), 30), (np.array(3), 30), (slice(2, 5), [20, 30, 40]), (slice(None, None, -3), [90, 60, 30, 0]),
    (slice(8, 99), [80, 90]), (slice(5, 5), []), ([], []), ([9, 0, 9], [90, 0, 90]), (np.arange(10) % 4 == 1, [10, 50, 90]),
    (np.array([-10, 9]), [0, 90]), (range(3, 6), [30, 40, 50]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "expected"), KEY_TABLE, ids=lambda value: repr(value)[:40])
def test_store_and_field_take_the_same_keys(store: pen.store.Store, key: Any, expected: Any) -> None:
    assert np.asarray(store["x"][key]).tolist() == expected
    assert np.asarray(store[key]["x"]).tolist() == expected
    if isinstance(expected, list):
        assert store.read(key)["x"].tolist() == expected


def test_two_keys_at_once_are_refused(store: pen.store.Store) -> None:
    with pytest.raises(IndexError):
        store[1, 2]
