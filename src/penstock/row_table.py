"""Row tables: the records of a source as rows of the sources that own their bytes.

Selections and concatenations only rename records. A table composes all of them into one lookup, so that readers, the disk and the
network see leaves and rows, and nesting costs nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray

__all__ = ["ChosenRows", "JoinedRows", "OwnRows", "RowTable"]

Which = npt.NDArray[np.int32]


class RowTable(ABC):
    """Which row of which leaf each record is."""

    leaves: tuple[Any, ...]
    """The sources that own the bytes; this module is below them and knows nothing of theirs."""

    @abstractmethod
    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The leaf of each record (None: all are of the first) and its row there."""

    @property
    def line(self) -> tuple[int, int] | None:
        """(first row, step) if record i is row first + i * step of the only leaf; None if it is not that simple."""
        return None


class OwnRows(RowTable):
    """Of a leaf itself: every record is the row of that number."""

    def __init__(self, leaf: Any) -> None:
        self.leaves = (leaf,)

    def find(self, ids: IntArray) -> tuple[None, IntArray]:
        """The rows of those numbers."""
        return None, ids

    @property
    def line(self) -> tuple[int, int]:
        """All rows."""
        return 0, 1


class ChosenRows(RowTable):
    """Of a selection: record i is record ``chosen[i]`` of another table."""

    def __init__(self, table: RowTable, chosen: range | IntArray) -> None:
        self._table, self._chosen = table, chosen
        self.leaves = table.leaves

    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The rows of the records that were chosen."""
        chosen = self._chosen
        return self._table.find(ids * chosen.step + chosen.start if isinstance(chosen, range) else chosen[ids])

    @property
    def line(self) -> tuple[int, int] | None:
        """A slice of one leaf is simple."""
        inner, chosen = self._table.line, self._chosen
        if inner is None or not isinstance(chosen, range):
            return None
        return inner[0] + chosen.start * inner[1], chosen.step * inner[1]


class JoinedRows(RowTable):
    """Of a concatenation: the records of tables, one after the other, ``lengths`` of each."""

    def __init__(self, tables: Sequence[RowTable], lengths: Sequence[int]) -> None:
        self._tables = list(tables)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._starts = self._ends - np.array(lengths, np.int64)
        self._bases = np.cumsum([0, *(len(table.leaves) for table in tables)], dtype=np.int32)[:-1]
        self.leaves = tuple(leaf for table in tables for leaf in table.leaves)
        lines = [table.line for table in tables]
        self._lines = None if None in lines else np.array(lines, np.int64).reshape(-1, 2)

    def find(self, ids: IntArray) -> tuple[Which | None, IntArray]:
        """The rows in the tables that have the records."""
        parts = np.searchsorted(self._ends, ids, side="right")
        inside = ids - self._starts[parts]
        if self._lines is not None:
            return self._bases[parts], self._lines[parts, 0] + inside * self._lines[parts, 1]
        which, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            own, rows[here] = self._tables[part].find(inside[here])
            which[here] = self._bases[part] + (0 if own is None else own)
        return which, rows
