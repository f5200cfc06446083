"""Row tables: the records of a source as rows of the sources that own their bytes.

Selections and concatenations only rename records. A table composes all of them into one lookup, so that readers, the disk and the
network see leaves and rows, and nesting costs nothing. All but a selection by a list of ids is a table of *runs*: records that are
evenly spaced rows of one leaf.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.native import _core

__all__ = ["ChosenRows", "JoinedRows", "OwnRows", "RowTable", "expanded", "find_rows", "make_lookup", "runs_of"]

Which = npt.NDArray[np.int32]

Run = tuple[int, int, int, int]
"""(end, base, step, leaf): record i, from the end of the run before up to ``end``, is row base + i * step of that leaf."""


class RowTable(ABC):
    """Which row of which leaf each record is."""

    leaves: tuple[Any, ...]
    """The sources that own the bytes; this module is below them and knows nothing of theirs."""

    @property
    @abstractmethod
    def table(self) -> Sequence[Run] | None:
        """All records, as runs; None if they are no such runs."""

    @cached_property
    def _lookup(self) -> _core.RowLookup:
        lookup = make_lookup([self])
        assert lookup is not None
        return lookup

    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The leaf of each record (None: all are of the first) and its row there."""
        line = self.line
        if line is not None:
            return None, ids if line == (0, 1) else ids * line[1] + line[0]
        return find_rows(self._lookup, ids, None)

    @cached_property
    def line(self) -> tuple[int, int] | None:
        """(first row, step) if record i is row first + i * step of the only leaf; None if it is not that simple."""
        table = self.table
        return None if table is None or len(table) != 1 or len(self.leaves) != 1 else table[0][1:3]

    def runs(self, starts: IntArray, stops: IntArray) -> Iterator[tuple[Any, IntArray, IntArray]]:
        """The rows of records [start, stop) as runs [start, stop) of rows, leaf by leaf."""
        if self.line is not None and self.line[1] == 1:
            yield self.leaves[0], starts + self.line[0], stops + self.line[0]
            return
        if self._plain_runs is not None:
            yield from self._cut(starts, stops, *self._plain_runs)
            return
        which, rows = self.find(expanded(starts, stops))
        if which is None:
            yield self.leaves[0], *runs_of(rows)
            return
        for number in _each(which):
            yield self.leaves[number], *runs_of(rows[which == number])

    @cached_property
    def _plain_runs(self) -> tuple[IntArray, IntArray, IntArray] | None:
        """Ends, bases and leaves of the runs of all records, if the rows of each follow one another; None otherwise."""
        table = self.table
        if table is None or any(step != 1 for _, _, step, _ in table):
            return None
        ends, bases, _, leaves = np.array(table, np.int64).reshape(-1, 4).T.copy()
        return ends, bases, leaves

    def _cut(
        self, starts: IntArray, stops: IntArray, ends: IntArray, bases: IntArray, leaves: IntArray
    ) -> Iterator[tuple[Any, IntArray, IntArray]]:
        """Records [start, stop), cut where the runs of the table end: without a look at every record."""
        some = starts < stops
        starts, stops = starts[some], stops[some]
        first, last = np.searchsorted(ends, starts, side="right"), np.searchsorted(ends, stops, side="left")
        pieces = last - first + 1
        runs = expanded(first, last + 1)
        lows = np.maximum(np.repeat(starts, pieces), np.concatenate([[0], ends[:-1]])[runs]) + bases[runs]
        highs = np.minimum(np.repeat(stops, pieces), ends[runs]) + bases[runs]
        which = leaves[runs]
        for number in _each(which):
            here = which == number
            yield self.leaves[number], lows[here], highs[here]


def _each(which: npt.NDArray[Any]) -> list[int]:
    """The numbers that are there, in their order."""
    return [int(number) for number in np.flatnonzero(np.bincount(which))]


def make_lookup(tables: Sequence[RowTable]) -> _core.RowLookup | None:
    """The tables of several streams as one, with the leaves of each behind those of the one before; None if one is not of runs."""
    found, base = [], 0
    for table in tables:
        runs = table.table
        if runs is None:
            return None
        found.append(np.array(runs, np.int64).reshape(-1, 4) + np.array([0, 0, 0, base]))
        base += len(table.leaves)
    return _core.RowLookup(found)


def find_rows(lookup: _core.RowLookup, ids: IntArray, streams: Which | None) -> tuple[Which, IntArray]:
    """The leaf and row of each record, which is of the stream of that number (None: of the first)."""
    which, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
    lookup.find(np.ascontiguousarray(ids), streams, which, rows)
    return which, rows


def expanded(starts: IntArray, stops: IntArray) -> IntArray:
    """start, start + 1, ..., stop - 1 of every run, one after the other."""
    if starts.size == 1:
        return np.arange(starts[0], stops[0], dtype=np.int64)
    counts = stops - starts
    ends = np.cumsum(counts)
    every: IntArray = np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    every += np.repeat(starts - (ends - counts), counts)
    return every


def runs_of(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Rows as runs [start, stop) of those that follow one another."""
    if rows.size == 0:
        return rows, rows
    heads = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1] + 1]))
    return rows[heads], rows[np.append(heads[1:], rows.size) - 1] + 1


class OwnRows(RowTable):
    """Of a leaf itself: every record is the row of that number."""

    def __init__(self, leaf: Any) -> None:
        self.leaves = (leaf,)

    @property
    def table(self) -> Sequence[Run]:
        """All rows."""
        length = len(self.leaves[0])
        return [(length, 0, 1, 0)] if length else []

    @property
    def line(self) -> tuple[int, int]:
        """All rows; those of an empty leaf too."""
        return 0, 1


class ChosenRows(RowTable):
    """Of a selection: record i is record ``chosen[i]`` of another table."""

    def __init__(self, table: RowTable, chosen: range | IntArray) -> None:
        self._inner, self._chosen = table, chosen
        self.leaves = table.leaves

    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The rows of the records that were chosen."""
        chosen = self._chosen
        if self.table is not None:
            return super().find(ids)
        return self._inner.find(ids * chosen.step + chosen.start if isinstance(chosen, range) else chosen.take(ids))

    @cached_property
    def table(self) -> Sequence[Run] | None:
        """The runs of a slice."""
        inner, chosen = self._inner.table, self._chosen
        if inner is None or not isinstance(chosen, range):
            return None
        found, low = list[Run](), 0
        for end, base, step, leaf in inner:
            # The records whose ids are in [low, end): where they begin and end among those that were chosen.
            first, last = sorted((_records_below(chosen, low), _records_below(chosen, end)))
            if first < last:
                found.append((last, base + chosen.start * step, chosen.step * step, leaf))
            low = end
        return sorted(found)


def _records_below(chosen: range, edge: int) -> int:
    """Among the records of a range, the place where their ids pass an edge: those before it are below, or not below if the range
    goes down.
    """
    distance = edge - chosen.start if chosen.step > 0 else chosen.start - edge + 1
    return min(len(chosen), max(0, -(-distance // abs(chosen.step))))


class JoinedRows(RowTable):
    """Of a concatenation: the records of tables, one after the other, ``lengths`` of each."""

    def __init__(self, tables: Sequence[RowTable], lengths: Sequence[int]) -> None:
        self._tables = list(tables)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._starts = self._ends - np.array(lengths, np.int64)
        self._bases = np.cumsum([0, *(len(table.leaves) for table in tables)], dtype=np.int32)[:-1]
        self.leaves = tuple(leaf for table in tables for leaf in table.leaves)

    @cached_property
    def table(self) -> Sequence[Run] | None:
        """The runs of all tables, one after the other."""
        found = list[Run]()
        for table, start, first in zip(self._tables, self._starts.tolist(), self._bases.tolist(), strict=True):
            runs = table.table
            if runs is None:
                return None
            found += [(start + end, base - start * step, step, first + leaf) for end, base, step, leaf in runs]
        return found

    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The rows in the tables that have the records."""
        if self.table is not None:
            return super().find(ids)
        parts = np.searchsorted(self._ends, ids, side="right")
        inside = ids - self._starts[parts]
        which, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            own, rows[here] = self._tables[part].find(inside[here])
            which[here] = self._bases[part] + (0 if own is None else own)
        return which, rows
