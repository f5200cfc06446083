"""One field of a source as an array, and item after item."""

from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.formats.array import ArraySource


class Counted(ArraySource):
    """Counts how often it is read."""

    reads = 0

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        self.reads += 1
        return super()._read(ids, fields, out)


N = 3000
ROWS = np.arange(N * 2, dtype=np.float32).reshape(N, 2)


@pytest.fixture
def data() -> Counted:
    missing = np.ma.MaskedArray(np.arange(N), mask=np.arange(N) == 0)
    return Counted({"x": ROWS, "n": np.arange(N), "t": [str(i) for i in range(N)], "m": missing})


def test_a_field_becomes_an_array_in_one_read(data: Counted) -> None:
    assert np.array_equal(np.asarray(data["x"]), ROWS)
    assert data.reads == 1
    assert np.asarray(data["x"]).dtype == np.float32
    assert np.asarray(data["n"], np.float64).dtype == np.float64
    assert np.array(data["n"], copy=True).tolist() == list(range(N))
    assert np.add(data["n"], 1).tolist() == list(range(1, N + 1))
    assert pen.open({"y": data["x"]})[5]["y"].tolist() == [10, 11]


def test_what_is_no_array_is_refused_with_a_remedy(data: Counted) -> None:
    with pytest.raises(TypeError, match=r"field 't' is Field.text\(\), which is no array: read it with \[:\]"):
        np.asarray(data["t"])
    with pytest.raises(ValueError, match="field 'm' has missing values: read it with"):
        np.asarray(data["m"])
    with pytest.raises(ValueError, match="without a copy"):
        np.array(data["x"], copy=False)
    assert np.asarray(data.select(slice(1, None))["m"]).tolist() == list(range(1, N))


@pytest.mark.parametrize("name", ["x", "n", "t", "m"])
def test_a_field_is_iterated_in_blocks_and_gives_what_indexing_gives(data: Counted, name: str) -> None:
    found = list(data[name])
    assert data.reads <= 12
    assert len(found) == N
    for i in (0, 1, 255, 256, 1023, 1024, N - 1):
        one = data[name][i]
        assert type(found[i]) is type(one)
        assert np.array_equal(found[i], one)
