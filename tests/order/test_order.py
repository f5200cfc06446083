"""Sequential and Sliding against a list that is walked around by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import Sequential, Sliding
from penstock.testing import OrderSuite

MOST = 2**63 - 1


class TestSequential(OrderSuite):
    def make(self):
        return [Sequential(n) for n in (0, 1, 2, 97, 1024, 10**12, MOST)]


class TestSequentialWrapped(OrderSuite):
    is_bounded = False

    def make(self):
        return [Sequential(n, wrap=True) for n in (1, 2, 97, 10**12)]


class TestSliding(OrderSuite):
    is_permutation = False

    def make(self):
        shapes = [(0, 4, None), (1, 1, None), (1, 5, 3), (10, 4, None), (10, 4, 1), (10, 3, 7), (97, 100, 13), (10**12, 1000, 500)]
        return [Sliding(n, window=window, stride=stride) for n, window, stride in shapes]


def circle(n, window, stride, epoch):
    """The model: windows laid one after the other around a circle, epoch after epoch."""
    windows = -(-n // stride)
    firsts = [(epoch * windows + k) * stride for k in range(windows)]
    return [(first + offset) % n for first in firsts for offset in range(window)]


def test_sequential_is_the_identity():
    assert Sequential(5).indices(3, 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert Sequential(5).positions(3, [4, 0]).tolist() == [4, 0]


@given(n=st.integers(1, 50), start=st.integers(0, 10**6), count=st.integers(0, 100), step=st.integers(1, 9))
def test_wrapped_sequence_starts_over(n, start, count, step):
    expected = [p % n for p in range(start, start + count, step)]
    order = Sequential(n, wrap=True)
    assert order.indices(0, start, start + count, step).tolist() == expected
    assert order.at(0, np.arange(start, start + count, step)).tolist() == expected


def test_wrapped_sequence_reaches_the_last_position():
    assert Sequential(10, wrap=True).indices(0, MOST - 3, MOST).tolist() == [(MOST - 3 + k) % 10 for k in range(3)]


def test_wrapped_sequence_of_nothing_is_empty():
    order = Sequential(0, wrap=True)
    assert order.indices(0, 0, 0).tolist() == []
    with pytest.raises(IndexError, match="stop=1"):
        order.indices(0, 0, 1)


def test_sliding_walks_the_circle_as_specified():
    order = Sliding(10, window=4)
    assert order.indices(0, 0, 12).reshape(3, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert order.indices(1, 0, 4).tolist() == [2, 3, 4, 5]


@given(n=st.integers(1, 40), window=st.integers(1, 50), stride=st.none() | st.integers(1, 50), epoch=st.integers(0, 10**6))
def test_sliding_equals_the_model(n, window, stride, epoch):
    order = Sliding(n, window=window, stride=stride)
    expected = circle(n, window, stride or window, epoch)
    assert len(order) == len(expected)
    assert order.indices(epoch, 0, len(order)).tolist() == expected


def test_sliding_next_epoch_goes_on_where_the_last_ended():
    order = Sliding(7, window=3, stride=2)
    starts = [int(order.indices(epoch, p, p + 1)[0]) for epoch in range(5) for p in range(0, len(order), 3)]
    assert starts == [k * 2 % 7 for k in range(len(starts))]


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int8])
@pytest.mark.parametrize("epoch", [0, 2**62])
def test_sliding_is_exact_for_numbers_of_numpy(kind, epoch):
    order = Sliding(kind(100), window=kind(60), stride=kind(59))
    plain = Sliding(100, window=60, stride=59)
    assert len(order) == len(plain) == 120
    assert order.indices(np.int64(epoch), 0, 120).tolist() == plain.indices(epoch, 0, 120).tolist() == circle(100, 60, 59, epoch)


def test_sliding_is_exact_at_the_largest_sizes():
    order = Sliding(MOST, window=5, stride=MOST - 1)
    assert len(order) == 10
    assert order.indices(2, 0, 10).tolist() == circle(MOST, 5, MOST - 1, 2)
    big = Sliding(MOST, window=1)
    assert big.indices(3, MOST - 2, MOST).tolist() == [MOST - 2, MOST - 1]


BAD = [
    (lambda: Sequential(-1), ValueError, "n", "-1"),
    (lambda: Sequential(MOST + 1), ValueError, "n", str(MOST + 1)),
    (lambda: Sequential(1.0), TypeError, "n must be a whole number", "1.0"),
    (lambda: Sequential(True), TypeError, "n must be a whole number", "True"),
    (lambda: Sequential(float("nan")), TypeError, "n must be a whole number", "nan"),
    (lambda: Sequential("5"), TypeError, "n must be a whole number", "'5'"),
    (lambda: Sequential(None), TypeError, "n must be a whole number", "None"),
    (lambda: Sliding(-1, window=1), ValueError, "n", "-1"),
    (lambda: Sliding(2.5, window=1), TypeError, "n must be a whole number", "2.5"),
    (lambda: Sliding(5, window=0), ValueError, "window must be in [1, ", "0"),
    (lambda: Sliding(5, window=-2), ValueError, "window must be in [1, ", "-2"),
    (lambda: Sliding(5, window=2.0), TypeError, "window must be a whole number", "2.0"),
    (lambda: Sliding(5, window=None), TypeError, "window must be a whole number", "None"),
    (lambda: Sliding(5, window=2, stride=0), ValueError, "stride must be in [1, ", "0"),
    (lambda: Sliding(5, window=2, stride=1.5), TypeError, "stride must be a whole number", "1.5"),
    (lambda: Sliding(MOST, window=2, stride=1), ValueError, str(MOST), f"{MOST} windows of 2"),
]


@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(make, error, expected, found):
    with pytest.raises(error) as caught:
        make()
    assert expected in str(caught.value)
    assert found in str(caught.value)
