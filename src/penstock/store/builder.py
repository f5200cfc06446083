"""ChunkBuilder: collects columns until a chunk is full, and splits what does not fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.store.column import Bytes, Column, join_columns, join_present

__all__ = ["ChunkBuilder", "Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows first_row, ... (count of them) of a chunk took the next ``count`` records."""

    chunk: int
    first_row: int
    count: int


@dataclass
class ChunkBuilder:
    """The open chunk of one set of fields. Not thread-safe: it belongs to its writer."""

    chunk: int
    max_bytes: int
    max_rows: int
    free: list[Bytes]  # buffers to use again, shared by the chunks of a writer: fresh memory costs more than the copy into it
    rows: int = 0
    size: int = 0
    _parts: list[Mapping[int, Column]] = field(default_factory=list)
    _borrowed: int = 0  # parts from here on lie in the caller's memory
    _buffers: dict[int, Bytes] = field(default_factory=dict)  # records of one size, copied together, by field
    _filled: dict[int, int] = field(default_factory=dict)

    def fit(self, columns: Mapping[int, Column], low: int) -> int:
        """How many of the records from ``low`` on still fit (of varying ones, it looks at so many); at least one if it is empty."""
        first = next(iter(columns.values()))
        room, fits = self.max_bytes - self.size, min(first.rows - low, self.max_rows - self.rows)
        if any(column.offsets is not None for column in columns.values()):
            fits = min(fits, 65_536)
        sizes = [column.sizes(low, low + fits) for column in columns.values()]
        constant = sum(size for size in sizes if isinstance(size, int))
        varying = [size for size in sizes if not isinstance(size, int)]
        if varying:
            ends = np.cumsum(np.sum(varying, axis=0) + constant)
            fits = int(np.searchsorted(ends, room, side="right"))
        elif constant > 0:
            fits = min(fits, max(0, room) // constant)
        return max(fits, 1) if self.rows == 0 else max(fits, 0)

    def add(self, columns: Mapping[int, Column], low: int, high: int) -> Placement:
        """Take records [low, high), without copying them."""
        part = {number: column.part(low, high) for number, column in columns.items()}
        placement = Placement(self.chunk, self.rows, high - low)
        self._parts.append(part)
        self.rows += high - low
        self.size += sum(column.values.size for column in part.values())
        return placement

    @property
    def borrows(self) -> bool:
        """Whether it refers to memory of the caller."""
        return self._borrowed < len(self._parts)

    def own(self) -> None:
        """Copy what lies in the caller's memory, so that the caller may change it."""
        for i in range(self._borrowed, len(self._parts)):
            self._parts[i] = {number: self._copy(number, column) for number, column in self._parts[i].items()}
        self._borrowed = len(self._parts)

    def own_if_small(self) -> None:
        """Copy the caller's part of a full chunk unless it is most of it: cheaper than to let the caller wait for the disk."""
        borrowed = sum(column.values.size for part in self._parts[self._borrowed :] for column in part.values())
        if 2 * borrowed <= self.size:
            self.own()

    def _copy(self, number: int, column: Column) -> Column:
        if column.offsets is not None:
            return column.copy()
        end = self._filled.get(number, 0) + column.values.size
        buffer = self._buffers.get(number)
        if buffer is None or end > buffer.size:
            if buffer is not None or end > self.max_bytes:  # a record larger than a chunk
                return column.copy()
            buffer = self._buffers[number] = self.free.pop() if self.free else np.empty(self.max_bytes, np.uint8)
        place = buffer[end - column.values.size : end]
        place[:] = column.values
        self._filled[number] = end
        present = None if column.present is None else column.present.copy()
        return Column(column.rows, place, None, present, None)

    def columns(self) -> dict[int, Column]:
        """All records, one column per field."""
        return {number: self._joined(number, [part[number] for part in self._parts]) for number in self._parts[0]}

    def _joined(self, number: int, parts: list[Column]) -> Column:
        filled = self._filled.get(number, 0)
        if filled == 0 or filled != sum(part.values.size for part in parts):
            return join_columns(parts)
        together = self._buffers[number][:filled]  # the parts already lie there one after the other
        return Column(sum(part.rows for part in parts), together, None, join_present(parts), None)

    def release(self) -> None:
        """Give the buffers back once the chunk is written."""
        self.free.extend(self._buffers.values())
        self._buffers.clear()
        self._parts.clear()
