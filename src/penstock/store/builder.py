"""ChunkBuilder: collects columns until a chunk is full, and splits what does not fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.store.column import Column, join_columns

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
    rows: int = 0
    size: int = 0
    _parts: list[Mapping[int, Column]] = field(default_factory=list)
    _borrowed: int = 0  # parts from here on lie in the caller's memory

    def fit(self, columns: Mapping[int, Column], low: int) -> int:
        """How many of the records from ``low`` on still fit; at least one if the chunk is empty."""
        rows = next(iter(columns.values())).rows - low
        room, fits = self.max_bytes - self.size, min(rows, self.max_rows - self.rows)
        sizes = [column.sizes() for column in columns.values()]
        constant = sum(size for size in sizes if isinstance(size, int))
        varying = [size[low : low + fits] for size in sizes if not isinstance(size, int)]
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
            self._parts[i] = {number: column.copy() for number, column in self._parts[i].items()}
        self._borrowed = len(self._parts)

    def columns(self) -> dict[int, Column]:
        """All records, one column per field."""
        return {number: join_columns([part[number] for part in self._parts]) for number in self._parts[0]}
