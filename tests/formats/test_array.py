"""Arrays in memory and in .npy files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.batch import Ragged
from penstock.errors import SchemaMismatchError, UnsupportedTypeError
from penstock.formats.array import ArraySource
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

N = 57
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 4, 3), np.uint8)
LABELS = np.arange(N, dtype=np.int32) * 7
TEXTS = [None if i % 5 == 3 else "é" * (i % 4) for i in range(N)]
MAYBE = np.ma.MaskedArray(np.arange(N, dtype=np.float32), mask=np.arange(N) % 4 == 1)
WORDS = [np.arange(i % 6, dtype=np.int16) for i in range(N)]
GRIDS = [np.full((i % 3, 2), i, np.float64) for i in range(N)]


class TestArrays(SourceSuite):
    def make(self, directory: Path) -> Source:
        return ArraySource(
            {
                "image": IMAGES,
                "label": LABELS,
                "text": TEXTS,
                "maybe": MAYBE,
                "words": WORDS,
                "grid": GRIDS,
                "raw": [b"x" * i for i in range(N)],
            }
        )

    def records(self) -> list[Record]:
        return [
            {
                "image": IMAGES[i],
                "label": LABELS[i],
                "text": TEXTS[i],
                "maybe": None if i % 4 == 1 else np.float32(i),
                "words": WORDS[i],
                "grid": GRIDS[i],
                "raw": b"x" * i,
            }
            for i in range(N)
        ]


class TestAwkwardArrays(SourceSuite):
    """Another byte order, not contiguous, records of no bytes."""

    def make(self, directory: Path) -> Source:
        return ArraySource(
            {
                "swapped": np.arange(N, dtype=">i4"),
                "turned": np.asfortranarray(np.arange(N * 6, dtype=np.int64).reshape(N, 6)),
                "every other": np.arange(2 * N, dtype=np.int8)[::2],
                "nothing": np.empty((N, 0), np.float32),
            }
        )

    def records(self) -> list[Record]:
        return [
            {
                "swapped": np.int32(i),
                "turned": np.arange(6 * i, 6 * i + 6),
                "every other": np.int8(2 * i),
                "nothing": np.empty(0, np.float32),
            }
            for i in range(N)
        ]


class TestNothing(SourceSuite):
    def make(self, directory: Path) -> Source:
        return ArraySource({"x": np.empty((0, 3), np.float32), "t": Ragged.from_items([], dtype=np.uint8, kind="text")})

    def records(self) -> list[Record]:
        return []


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'a': 3, 'b': 4"):
        ArraySource({"a": np.arange(3), "b": np.arange(4)})


@pytest.mark.parametrize("bad", [np.array(3), np.zeros(3, "datetime64[s]"), np.zeros(3, np.longdouble), np.zeros(2, "V4")])
def test_arrays_that_cannot_be_records_are_refused(bad: np.ndarray) -> None:
    with pytest.raises((SchemaMismatchError, UnsupportedTypeError), match="field 'x'"):
        ArraySource({"x": bad})


def test_no_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one field"):
        ArraySource({})


def test_arrays_are_not_copied() -> None:
    array = np.arange(10)
    source = ArraySource({"x": array})
    array[3] = 100
    assert source[3]["x"] == 100


def test_lengths_of_ragged_arrays_come_from_their_offsets() -> None:
    present = np.array([True, False, True, True])
    source = ArraySource({"x": Ragged(np.arange(6), np.array([0, 2, 2, 5, 6]), present=present), "text": ["ab", "", "c", "ä"]})
    for field in source.schema:
        for ids in (np.arange(4), [3, 0, 0], [-1], slice(1, 3), []):
            assert source.lengths(field, ids).tolist() == source.read(ids)[field].lengths.tolist()
