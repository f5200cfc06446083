"""Which bytes of a file are in memory: ranges in order, none overlapping another."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.interfaces import IntArray

__all__ = ["PAGE", "Range", "Resident"]

PAGE = 4096


@dataclass(eq=False, slots=True)
class Range:
    """Bytes [start, stop) of a file, in memory or on their way."""

    number: int
    start: int
    stop: int
    is_ready: bool = False
    error: BaseException | None = None
    holds: int = 0
    plans: int = 0
    used: int = 0

    @property
    def cost(self) -> int:
        """The memory it takes: whole pages."""
        return -(-self.stop // PAGE) * PAGE - self.start // PAGE * PAGE

    @property
    def is_kept(self) -> bool:
        """Whether somebody needs it, or it is still on its way."""
        return self.holds > 0 or self.plans > 0 or not self.is_ready


class Resident:
    """The ranges of one file, in order, none overlapping another."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[Range] = []
        self._arrays: tuple[IntArray, IntArray, IntArray] | None = None

    def add(self, one: Range) -> None:
        """Put a range in its place."""
        place = bisect_left(self.starts, one.start)
        self.starts.insert(place, one.start)
        self.ranges.insert(place, one)
        self._arrays = None

    def remove(self, one: Range) -> None:
        """Take a range out."""
        place = bisect_left(self.starts, one.start)
        del self.starts[place], self.ranges[place]
        self._arrays = None

    def is_whole(self, size: int) -> bool:
        """Whether all bytes of a file of that size are here."""
        _, stops, reach = self._edges()
        return (
            reach.size > 0
            and self.starts[0] == 0
            and int(reach[0]) == size == int(stops[-1])
            and all(o.is_ready for o in self.ranges)
        )

    def has(self, one: Range) -> bool:
        """Whether a range is still here."""
        place = bisect_left(self.starts, one.start)
        return place < len(self.ranges) and self.ranges[place] is one

    def _edges(self) -> tuple[IntArray, IntArray, IntArray]:
        """Starts and stops of the ranges, and how far bytes go on without a hole from each start."""
        if self._arrays is None:
            starts, stops = np.array(self.starts, np.int64), np.array([one.stop for one in self.ranges], np.int64)
            last = np.append(stops[:-1] < starts[1:], True) if stops.size else np.empty(0, np.bool_)
            ends = np.flatnonzero(last)
            self._arrays = starts, stops, stops[ends[np.searchsorted(ends, np.arange(stops.size))]]
        return self._arrays

    def over(self, starts: IntArray, stops: IntArray) -> list[Range]:
        """The ranges that have bytes of any [start, stop)."""
        own_starts, own_stops, _ = self._edges()
        low, high = np.searchsorted(own_stops, starts, side="right"), np.searchsorted(own_starts, stops, side="left")
        count = np.zeros(len(self.ranges) + 1, np.int64)
        np.add.at(count, low, 1)
        np.add.at(count, np.maximum(low, high), -1)
        return [self.ranges[place] for place in np.flatnonzero(np.cumsum(count)).tolist()]

    def missing(self, starts: IntArray, stops: IntArray) -> list[tuple[int, int]]:
        """The parts of any [start, stop) that no range has."""
        own_starts, _, reach = self._edges()
        place = np.searchsorted(own_starts, starts, side="right") - 1
        there = (place >= 0) & (reach[np.maximum(place, 0)] >= stops) if reach.size else np.zeros(starts.size, np.bool_)
        return [part for at in np.flatnonzero(~there).tolist() for part in self._holes(int(starts[at]), int(stops[at]))]

    def _holes(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        low = bisect_right(self.starts, start) - 1
        low += low < 0 or self.ranges[low].stop <= start
        for one in self.ranges[low : bisect_left(self.starts, stop, lo=max(0, low))]:
            if start < one.start:
                yield start, one.start
            start = one.stop
        if start < stop:
            yield start, stop

    def free_pages(self, one: Range) -> tuple[int, int]:
        """The pages that only this range uses."""
        low, high = one.start // PAGE * PAGE, -(-one.stop // PAGE) * PAGE
        place = bisect_left(self.starts, one.start)
        if place > 0 and self.ranges[place - 1].stop > low:
            low += PAGE
        if place + 1 < len(self.starts) and self.starts[place + 1] < high:
            high -= PAGE
        return low, max(low, high)
