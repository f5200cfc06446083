"""The checks that every order shares."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.argument import MAX_LENGTH, check_positions, check_run, whole_number


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
