"""Entries: the rows of a manifest, kept by column. A petabyte has half a million chunks, and every rank remembers all of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Entries", "as_rows", "column", "places_of"]

Entry = TypeVar("Entry")

AT_ONCE = 4096
"""Entries are made so many at a time while one goes through them."""


class Entries(Sequence[Entry], Generic[Entry]):
    """Looks like a tuple of entries, each of which is made when it is asked for: 100 bytes or fewer instead of 600. Immutable."""

    __slots__ = ("_columns", "_make", "_names")

    def __init__(self, make: Callable[..., Entry], columns: Sequence[npt.NDArray[Any]]) -> None:
        """``columns``: 64-bit numbers, or identities as S32."""
        self._make, self._names, self._columns = make, tuple(getattr(make, "__slots__", ())), columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, key: int) -> Entry: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, key: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(key, slice):
            return tuple(self._run([values[key] for values in self._columns]))
        return self._make(*(_plain(values[key])[0] for values in self._columns))

    def __iter__(self) -> Iterator[Entry]:
        for low in range(0, len(self), AT_ONCE):
            yield from self._run([values[low : low + AT_ONCE] for values in self._columns])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def column(self, name: str) -> npt.NDArray[Any]:
        """One value of every entry; identities as bytes."""
        return self._columns[self._names.index(name)]

    def _run(self, columns: Sequence[npt.NDArray[Any]]) -> Iterator[Entry]:
        return map(self._make, *(_plain(values) for values in columns))


def column(entries: Sequence[Any], name: str) -> npt.NDArray[Any]:
    """One number of every entry, as an array."""
    if isinstance(entries, Entries):
        return entries.column(name)
    return np.array([getattr(entry, name) for entry in entries], np.int64)


def as_rows(*columns: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Columns as the rows of one table, for the native reader."""
    return np.stack([values.astype(np.uint64) for values in columns], axis=1)


def places_of(numbers: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At which place among different ``numbers`` each of the wanted ones stands; behind the last one if it does not."""
    if numbers.size == 0:
        return np.zeros(wanted.size, np.int64)
    order = np.argsort(numbers)
    found = np.minimum(np.searchsorted(numbers[order], wanted.astype(np.int64)), numbers.size - 1)
    return np.where(numbers[order[found]] == wanted, order[found], numbers.size)


def _plain(values: Any) -> list[Any]:
    """Values, or one of them, as plain Python has them."""
    return list(np.atleast_1d(values.astype("U32") if values.dtype.kind == "S" else values).tolist())
