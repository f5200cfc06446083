"""Places: where every field of every record lies, as a writer changes it. id -> redirect? -> segment -> (chunk, row)."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray
from penstock.store.builder import Placement
from penstock.store.manifest import SegmentEntry
from penstock.store.redirect import ENTRY, NOWHERE, Table, merge

__all__ = ["Places"]

_EMPTY = np.empty(0, ENTRY)


class Places:
    """The segments and redirects of a generation and the changes on top of them. Not thread-safe: it belongs to its writer."""

    def __init__(self, length: int, segments: Iterable[SegmentEntry], redirects: Mapping[int, Table]) -> None:
        self.length = length
        self.segments = list(segments)
        self._base = dict(redirects)
        self.changes: dict[int, dict[int, tuple[int, int]]] = {}
        self._arrays: tuple[IntArray, IntArray, IntArray] | None = None

    def append(self, placements: Iterable[Placement]) -> range:
        """Give the next ids to freshly placed rows."""
        first = self.length
        for placement in placements:
            last = self.segments[-1] if self.segments else None
            if last is not None and last.chunk == placement.chunk and last.first_row + last.count == placement.first_row:
                self.segments[-1] = SegmentEntry(last.first_id, last.count + placement.count, last.chunk, last.first_row)
            else:
                self.segments.append(SegmentEntry(self.length, placement.count, placement.chunk, placement.first_row))
            self.length += placement.count
        self._arrays = None
        return range(first, self.length)

    def redirect(self, numbers: Iterable[int], ids: IntArray, placements: Iterable[Placement]) -> None:
        """Let some fields of records point to freshly placed rows; the last of several for one id wins."""
        rows = [(p.chunk, p.first_row + i) for p in placements for i in range(p.count)]
        for number in numbers:
            self.changes.setdefault(number, {}).update(zip(ids.tolist(), rows, strict=True))

    def delete(self, ids: IntArray, numbers: Iterable[int]) -> dict[int, int]:
        """Remove records; the last ones take their ids. Returns {old id: new id} of the records that moved."""
        gone = np.unique(ids)
        end = self.length - gone.size
        holes = gone[gone < end]
        movers = np.setdiff1d(np.arange(end, self.length, dtype=np.int64), gone, assume_unique=True)
        for number in numbers:
            places = self.of(number, movers)
            changes = self.changes.setdefault(number, {})
            changes.update(zip(holes.tolist(), places, strict=True))
            stale = self._base.get(number, _EMPTY)
            for past in range(end, self.length) if self.length - end < len(changes) else [i for i in changes if i >= end]:
                changes.pop(past, None)
            for past in stale["id"][np.searchsorted(stale["id"], end) :].tolist():
                changes[past] = (NOWHERE, 0)
        self._cut(end)
        return dict(zip(movers.tolist(), holes.tolist(), strict=True))

    def of(self, number: int, ids: IntArray) -> list[tuple[int, int]]:
        """Chunk and row of one field of records."""
        if ids.size == 0:
            return []
        if self._arrays is None:
            columns = zip(*((s.first_id, s.chunk, s.first_row) for s in self.segments), strict=True)
            first, chunk, row = (np.array(column, np.int64) for column in columns)
            self._arrays = (first, chunk, row)
        first, chunk, row = self._arrays
        segment = np.searchsorted(first, ids, side="right") - 1
        chunks, rows = chunk[segment], row[segment] + ids - first[segment]
        plain = list(zip(chunks.tolist(), rows.tolist(), strict=True))
        table = self._base.get(number, _EMPTY)
        if table.size:
            at = np.minimum(np.searchsorted(table["id"], ids), table.size - 1)
            hit = table["id"][at] == ids
            chunks[hit], rows[hit] = table["chunk"][at[hit]], table["row"][at[hit]]
        places = zip(chunks.tolist(), rows.tolist(), strict=True)
        changes = self.changes.get(number, {})
        changed = [changes.get(i, place) for i, place in zip(ids.tolist(), places, strict=True)]
        return [segment if place[0] == NOWHERE else place for segment, place in zip(plain, changed, strict=True)]

    def changed_tables(self) -> dict[int, Table]:
        """The changes as tables, for a redirect file of their own."""
        return {number: _table(changes) for number, changes in sorted(self.changes.items()) if changes}

    def whole_tables(self) -> dict[int, Table]:
        """Base and changes together, for a redirect file that replaces all before it."""
        changed = self.changed_tables()
        numbers = sorted({*self._base, *changed})
        tables = {n: merge(self._base.get(n, _EMPTY), changed.get(n, _EMPTY), drop_nowhere=True) for n in numbers}
        return {number: table for number, table in tables.items() if table.size}

    def _cut(self, length: int) -> None:
        while self.segments and self.segments[-1].first_id >= length:
            self.segments.pop()
        if self.segments:
            last = self.segments[-1]
            self.segments[-1] = SegmentEntry(last.first_id, min(last.count, length - last.first_id), last.chunk, last.first_row)
        self.length = length
        self._arrays = None


def _table(changes: Mapping[int, tuple[int, int]]) -> npt.NDArray[np.void]:
    table = np.empty(len(changes), ENTRY)
    ids = np.fromiter(changes, np.uint64, len(changes))
    order = np.argsort(ids)
    places = np.array(list(changes.values()), np.uint32).reshape(-1, 2)
    table["id"], table["chunk"], table["row"] = ids[order], places[order, 0], places[order, 1]
    return table
