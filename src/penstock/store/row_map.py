"""The row map: which row of which chunk holds each field of each record. id -> redirect? -> segment -> (chunk, row).

A redirect table moves fields of records away from where their segment says they are::

    file    = header | table of the first field | table of the second | ...          little-endian
    header  = magic "PENREDIR" | version u32 | fields u32 | data set 16 | (field u32, 0 u32, entries u64) x fields
    table   = (id u64 | chunk u32 | row u32) x entries, ids rising
    chunk 0xFFFFFFFF takes an older redirect back: the segment counts again

The manifest has the size of the file and the crc32c of all its bytes. Of several files the later one wins.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import CorruptError
from penstock.store.chunk import Placement
from penstock.store.manifest import Manifest, SegmentEntry, values_of

__all__ = [
    "ENTRY",
    "NOWHERE",
    "Residents",
    "RowMap",
    "Table",
    "as_rows",
    "decode_redirects",
    "encode_redirects",
    "live_rows",
    "merge",
    "places_of",
    "residents_of",
]

ENTRY = np.dtype([("id", "<u8"), ("chunk", "<u4"), ("row", "<u4")])
NOWHERE = 0xFFFFFFFF

Table = npt.NDArray[np.void]
"""An array of ENTRY, ids strictly rising."""

_EMPTY = np.empty(0, ENTRY)
_HEADER = struct.Struct("<8sII16s")
_FIELD = struct.Struct("<IIQ")


def encode_redirects(dataset: str, tables: Mapping[int, Table]) -> bytes:
    """The bytes of a file with one table per field number."""
    head = _HEADER.pack(b"PENREDIR", 1, len(tables), bytes.fromhex(dataset))
    head += b"".join(_FIELD.pack(number, 0, len(table)) for number, table in tables.items())
    return head + b"".join(table.tobytes() for table in tables.values())


def decode_redirects(data: bytes, dataset: str, where: str) -> dict[int, Table]:
    """The tables of a file whose size and crc were already checked."""
    try:
        magic, version, count, owner = _HEADER.unpack_from(data)
        if (magic, version) != (b"PENREDIR", 1) or owner.hex() != dataset or count > 4096:
            raise ValueError("the header is not one of this data set and version")
        tables, offset = {}, _HEADER.size + count * _FIELD.size
        for i in range(count):
            number, zero, entries = _FIELD.unpack_from(data, _HEADER.size + i * _FIELD.size)
            if zero != 0 or number in tables or entries > (len(data) - offset) // ENTRY.itemsize:
                raise ValueError("a table occurs twice or is outside the file")
            tables[number] = np.frombuffer(data, ENTRY, entries, offset)
            offset += entries * ENTRY.itemsize
            ids = tables[number]["id"]
            if np.any(ids[1:] <= ids[:-1]):
                raise ValueError("ids do not rise")
        if offset != len(data):
            raise ValueError(f"expected {offset} bytes, found {len(data)}")
    except (struct.error, ValueError) as error:
        raise CorruptError(f"{where}: not a redirect table: {error}") from error
    return tables


def merge(older: Table, newer: Table, *, drop_nowhere: bool) -> Table:
    """One table in which the newer one wins."""
    if not older.size or not newer.size:  # as of a field of all records: nothing to sort
        either = newer if newer.size else older
        return either[either["chunk"] != NOWHERE] if drop_nowhere else either
    kept = older[~np.isin(older["id"], newer["id"])]
    both = np.concatenate([kept, newer])
    both = both[np.argsort(both["id"], kind="stable")]
    return both[both["chunk"] != NOWHERE] if drop_nowhere else both


class RowMap:
    """The segments and redirects of a generation and the changes on top of them. Not thread-safe: it belongs to its writer."""

    def __init__(self, length: int, segments: Iterable[SegmentEntry], redirects: Mapping[int, Table]) -> None:
        self.length = length
        self.segments = list(segments)
        self._base = dict(redirects)
        self.changes: dict[int, dict[int, tuple[int, int]]] = {}
        self._filled: set[int] = set()
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

    def fill(self, number: int, placements: Iterable[Placement]) -> None:
        """Let a field of all records, which has no redirects yet, point to freshly placed rows, in the order of the ids."""
        runs = [(np.full(p.count, p.chunk, np.uint32), np.arange(p.first_row, p.first_row + p.count)) for p in placements]
        table = np.empty(self.length, ENTRY)
        table["id"] = np.arange(self.length)
        table["chunk"] = np.concatenate([np.empty(0, np.uint32), *(chunks for chunks, _ in runs)])
        table["row"] = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in runs)])
        self._base[number] = table
        self._filled.add(number)

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
        changed = {number: _table_of(changes) for number, changes in self.changes.items() if changes}
        filled = {number: merge(self._base[number], changed.get(number, _EMPTY), drop_nowhere=True) for number in self._filled}
        return {number: table for number, table in sorted((changed | filled).items()) if table.size}

    def whole_tables(self) -> dict[int, Table]:
        """Base and changes together, for a redirect file that replaces all before it."""
        changed = self.changed_tables()
        numbers = sorted({*self._base, *changed})
        older = {n: _EMPTY if n in self._filled else self._base.get(n, _EMPTY) for n in numbers}
        tables = {n: merge(older[n], changed.get(n, _EMPTY), drop_nowhere=True) for n in numbers}
        return {number: table for number, table in tables.items() if table.size}

    def _cut(self, length: int) -> None:
        while self.segments and self.segments[-1].first_id >= length:
            self.segments.pop()
        if self.segments:
            last = self.segments[-1]
            self.segments[-1] = SegmentEntry(last.first_id, min(last.count, length - last.first_id), last.chunk, last.first_row)
        self.length = length
        self._arrays = None


def _table_of(changes: Mapping[int, tuple[int, int]]) -> npt.NDArray[np.void]:
    table = np.empty(len(changes), ENTRY)
    ids = np.fromiter(changes, np.uint64, len(changes))
    order = np.argsort(ids)
    places = np.array(list(changes.values()), np.uint32).reshape(-1, 2)
    table["id"], table["chunk"], table["row"] = ids[order], places[order, 0], places[order, 1]
    return table


# Which records a chunk holds


def live_rows(manifest: Manifest, redirects: Mapping[int, Table]) -> dict[tuple[int, int], int]:
    """How many rows of each (chunk, field) a record still refers to."""
    live: dict[tuple[int, int], int] = {}
    firsts = np.array([segment.first_id for segment in manifest.segments], np.int64)
    for number in manifest.numbers.values():
        table = redirects.get(number)
        moved = np.zeros(len(manifest.segments), np.int64)
        if table is not None and table.size:
            moved = np.bincount(np.searchsorted(firsts, table["id"].astype(np.int64), side="right") - 1, minlength=len(firsts))
            for chunk, count in zip(*np.unique(table["chunk"], return_counts=True), strict=True):
                live[int(chunk), number] = live.get((int(chunk), number), 0) + int(count)
        for segment, gone in zip(manifest.segments, moved.tolist(), strict=True):
            live[segment.chunk, number] = live.get((segment.chunk, number), 0) + segment.count - gone
    return live


_ByChunk = tuple[IntArray, IntArray, IntArray]
"""Places of chunks in rising order, and two numbers for each."""


@dataclass(frozen=True)
class Residents:
    """The records in one chunk: runs of ids that a segment puts there, some of whose fields may be in other chunks; and ids by
    field that are here instead of in their segment's chunk.
    """

    runs: list[range] = field(default_factory=list)
    moved: dict[int, IntArray] = field(default_factory=dict)

    def ids(self, number: int, most: int) -> Iterator[IntArray]:
        """The ids that may have a field here, at most ``most`` at a time; those of small runs come together."""
        together, size = list[IntArray](), 0
        for part in self._parts(number, most):
            if size + part.size > most:
                yield np.concatenate(together)
                together, size = [], 0
            together.append(part)
            size += part.size
        if together:
            yield np.concatenate(together)

    def _parts(self, number: int, most: int) -> Iterator[IntArray]:
        for run in self.runs:
            for low in range(run.start, run.stop, most):
                yield np.arange(low, min(run.stop, low + most), dtype=np.int64)
        moved = self.moved.get(number, np.empty(0, np.int64))
        for low in range(0, moved.size, most):
            yield moved[low : low + most]


def residents_of(manifest: Manifest, redirects: Mapping[int, Table], runs: list[range]) -> list[dict[int, Residents]]:
    """The residents of runs of chunks, by the place of the chunk."""
    numbers = values_of(manifest.chunks, "number")
    chunks = places_of(numbers, values_of(manifest.segments, "chunk"))
    segments = _sorted(chunks, values_of(manifest.segments, "first_id"), values_of(manifest.segments, "count"))
    moved = {
        number: _sorted(places_of(numbers, table["chunk"]), table["id"].astype(np.int64), table["row"].astype(np.int64))
        for number, table in redirects.items()
    }
    return [{place: _residents(place, segments, moved) for place in run} for run in runs]


def _sorted(places: IntArray, one: IntArray, other: IntArray) -> _ByChunk:
    order = np.argsort(places, kind="stable")
    return places[order], one[order], other[order]


def _residents(place: int, segments: _ByChunk, moved: dict[int, _ByChunk]) -> Residents:
    firsts, counts = _of(place, segments)
    runs = [range(first, first + count) for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)]
    others = {number: _outside(_of(place, table)[0], firsts, firsts + counts) for number, table in moved.items()}
    return Residents(runs, {number: ids for number, ids in others.items() if ids.size})


def _outside(ids: IntArray, starts: IntArray, stops: IntArray) -> IntArray:
    """The ids that are in none of these ranges, which are in rising order."""
    before = np.searchsorted(starts, ids, side="right")
    return ids[ids >= np.concatenate([[0], stops])[before]]


def _of(place: int, table: _ByChunk) -> tuple[IntArray, IntArray]:
    low, high = np.searchsorted(table[0], [place, place + 1]).tolist()
    return table[1][low:high], table[2][low:high]


# Tables for the native reader


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
