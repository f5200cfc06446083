"""Which bytes of a file are in memory: ranges in order, none overlapping another."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.interfaces import IntArray

__all__ = ["PAGE", "Range", "Resident"]

PAGE = 4096

FEW = 64
"""So many ranges are looked for one by one."""


@dataclass(eq=False, slots=True)
class Range:
    """Bytes [start, stop) of a file, in memory or on their way. ``holds`` and ``plans`` say how many keep it there."""

    number: int
    start: int
    stop: int
    is_begun: bool = False
    is_ready: bool = False
    error: BaseException | None = None
    holds: int = 0
    plans: int = 0

    @property
    def cost(self) -> int:
        """The memory it takes: whole pages."""
        return -(-self.stop // PAGE) * PAGE - self.start // PAGE * PAGE

    @property
    def is_kept(self) -> bool:
        """Whether somebody needs it, or it is still on its way."""
        return self.holds > 0 or self.plans > 0 or not self.is_ready


class Resident:
    """The ranges of one file. ``kept``, ``holds`` and ``cost`` are sums over them, which their owner keeps."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[Range] = []
        self.kept = self.holds = self.cost = 0
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

    def has(self, one: Range) -> bool:
        """Whether a range is here."""
        place = bisect_left(self.starts, one.start)
        return place < len(self.ranges) and self.ranges[place] is one

    def is_whole(self, size: int) -> bool:
        """Whether all bytes of a file of that size are here."""
        end = 0
        for one in self.ranges:
            if one.start != end or not one.is_ready:
                return False
            end = one.stop
        return end == size

    def over(self, starts: IntArray, stops: IntArray) -> list[Range]:
        """The ranges that have bytes of any [start, stop); those are sorted and do not overlap."""
        if len(starts) < FEW:
            found: dict[Range, None] = {}
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                found |= dict.fromkeys(self.ranges[slice(*self._span(start, stop))])
            return list(found)
        own_starts, own_stops, _ = self._edges()
        low, high = np.searchsorted(own_stops, starts, side="right"), np.searchsorted(own_starts, stops, side="left")
        count = np.zeros(len(self.ranges) + 1, np.int64)
        np.add.at(count, low, 1)
        np.add.at(count, np.maximum(low, high), -1)
        return [self.ranges[place] for place in np.flatnonzero(np.cumsum(count)).tolist()]

    def missing(self, starts: IntArray, stops: IntArray) -> list[tuple[int, int]]:
        """The parts of any [start, stop) that no range has."""
        if len(starts) >= FEW and self.ranges:
            own_starts, _, reach = self._edges()
            place = np.searchsorted(own_starts, starts, side="right") - 1
            lacking = (place < 0) | (reach[np.maximum(place, 0)] < stops)
            starts, stops = starts[lacking], stops[lacking]
        return [part for start, stop in zip(starts.tolist(), stops.tolist(), strict=True) for part in self._holes(start, stop)]

    def free_pages(self, one: Range) -> tuple[int, int]:
        """The pages that only this range uses."""
        low, high = one.start // PAGE * PAGE, -(-one.stop // PAGE) * PAGE
        place = bisect_left(self.starts, one.start)
        if place > 0 and self.ranges[place - 1].stop > low:
            low += PAGE
        if place + 1 < len(self.starts) and self.starts[place + 1] < high:
            high -= PAGE
        return low, max(low, high)

    def _edges(self) -> tuple[IntArray, IntArray, IntArray]:
        """Starts and stops of the ranges, and how far bytes go on without a hole from each start."""
        if self._arrays is None:
            starts, stops = np.array(self.starts, np.int64), np.array([one.stop for one in self.ranges], np.int64)
            last = np.append(stops[:-1] < starts[1:], True) if stops.size else np.empty(0, np.bool_)
            ends = np.flatnonzero(last)
            self._arrays = starts, stops, stops[ends[np.searchsorted(ends, np.arange(stops.size))]]
        return self._arrays

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Which ranges have bytes of [start, stop)."""
        low = bisect_right(self.starts, start) - 1
        low += low < 0 or self.ranges[low].stop <= start
        return low, bisect_left(self.starts, stop, lo=max(0, low))

    def _holes(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for one in self.ranges[slice(*self._span(start, stop))]:
            if start < one.start:
                yield start, one.start
            start = one.stop
        if start < stop:
            yield start, stop
