"""RaggedLine: the texts or ragged arrays of a source as one line of tokens."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray
from penstock.records import Source
from penstock.schema import Field
from penstock.source.tokens import as_elements

__all__ = ["RaggedLine"]

MARK = 1024
"""The place of every so manieth record is remembered; those between are added up when they are needed."""

PAGE_BYTES = 64 << 10


class RaggedLine:
    """The records of one field one after the other, each followed by the separator if there is one."""

    def __init__(self, source: Source, field: str | None, separator: Any) -> None:
        self._source, self._name = source, _choose(source, field)
        self._dtype = source.schema[self._name].dtype
        self._separator = as_elements("separator", [] if separator is None else separator, self._dtype)
        sums = [0]
        for low in range(0, len(source), MARK):
            sums.append(sums[-1] + int(self._lengths(low, min(low + MARK, len(source))).sum()))
        self._marks = np.array(sums, np.int64)

    @property
    def num_tokens(self) -> int:
        """How many there are."""
        return int(self._marks[-1])

    @property
    def block_size(self) -> int:
        """Pages of about 64 KiB."""
        return max(1, PAGE_BYTES // self._dtype.itemsize)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens; bytes for texts."""
        return self._dtype

    def _lengths(self, low: int, high: int) -> IntArray:
        """Tokens of records [low, high), separators included."""
        return self._source.lengths(self._name, np.arange(low, high)) + self._separator.size

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        flat = out.reshape(-1)
        for number, start in enumerate(starts.tolist()):
            low, high = int(offsets[number]), int(offsets[number + 1])
            if high > low:
                flat[low:high] = self._read(start, start + high - low)

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        first = (int(np.searchsorted(self._marks, start, side="right")) - 1) * MARK
        last = min(len(self._source), int(np.searchsorted(self._marks, stop, side="left")) * MARK)
        ends = self._marks[first // MARK] + np.cumsum(self._lengths(first, last))
        low = first + int(np.searchsorted(ends, start, side="right"))
        high = first + int(np.searchsorted(ends, stop, side="left")) + 1
        begin = int(ends[low - first - 1]) if low > first else int(self._marks[first // MARK])
        column = self._source.read(np.arange(low, high), [self._name])[self._name]
        pieces: list[npt.NDArray[Any]] = []
        for i in range(high - low):
            pieces += [column.values[column.offsets[i] : column.offsets[i + 1]], self._separator]
        return np.concatenate(pieces)[start - begin : stop - begin]


def _choose(source: Source, field: str | None) -> str:
    schema = source.schema
    fitting = [name for name, one in schema.items() if _fits(one)]
    if field is None:
        if len(fitting) != 1:
            raise ValueError(
                f"sequences need one field of texts, bytes or ragged arrays: choose field= among {fitting} of {list(schema)}"
            )
        return fitting[0]
    if field not in schema:
        raise KeyError(f"unknown field {field!r}; there are {list(schema)}")
    if field not in fitting:
        raise ValueError(f"field {field!r} is {schema[field]!r}; sequences need texts, bytes or ragged arrays of one dimension")
    return field


def _fits(field: Field) -> bool:
    return not field.is_fixed and field.ndim == 1
