"""Which byte ranges of numbered files are in memory, and what keeps each of them there. No threads, no requests.

A range is kept while a reader holds it, a plan needs it, or it is being fetched. Every other range is idle: it stays until its
memory is needed, and is then evicted, least recently used first.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock import _core
from penstock.interfaces import IntArray
from penstock.remote.ranges import merge

__all__ = ["GAP_BYTES", "NOTHING", "PAGE", "PIECE_BYTES", "Extents", "Range", "Residency"]

PAGE = 4096

PIECE_BYTES = 8 << 20
"""The most bytes of one request."""

GAP_BYTES = 64 << 10
"""Two ranges with at most this many bytes between them are fetched together."""

FEW = 64
"""Fewer ranges than this are looked up one by one."""

Extents = tuple[IntArray, IntArray, IntArray]
"""Byte ranges: files, starts and stops; sorted, none overlapping another."""

NOTHING: Extents = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(eq=False, slots=True)
class Range:
    """Bytes [start, stop) of a file, in memory or being fetched. ``holds`` and ``plans`` count what keeps it there.

    ``is_begun``: a request for it was sent. ``is_ready``: the request has ended, with an ``error`` or without.
    """

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
        """Whether it must stay: held, planned or still being fetched."""
        return self.holds > 0 or self.plans > 0 or not self.is_ready

    @property
    def is_evictable(self) -> bool:
        """Whether it would leave the memory if no plan needed it."""
        return self.holds == 0 and (self.is_ready or not self.is_begun)


class _FileRanges:
    """The ranges of one file: sorted, none overlapping another. ``kept``, ``holds`` and ``cost`` are sums kept by the owner."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[Range] = []
        self.kept = self.holds = self.cost = 0
        self._arrays: tuple[IntArray, IntArray, IntArray] | None = None

    def add(self, one: Range) -> None:
        place = bisect_left(self.starts, one.start)
        self.starts.insert(place, one.start)
        self.ranges.insert(place, one)
        self._arrays = None

    def remove(self, one: Range) -> None:
        place = bisect_left(self.starts, one.start)
        del self.starts[place], self.ranges[place]
        self._arrays = None

    def has(self, one: Range) -> bool:
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

    def overlapping(self, starts: IntArray, stops: IntArray) -> list[Range]:
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


class Residency:
    """The ranges in memory, at most ``limit`` bytes of them. Not thread-safe.

    With ``whole_files`` a file is evicted as a whole. ``on_release(number)`` is called before the bytes of a file go or change.
    """

    def __init__(
        self,
        landings: Sequence[_core.Landing],
        sizes: Sequence[int],
        limit: int,
        whole_files: bool,
        on_release: Callable[[int], None] | None,
    ) -> None:
        self._landings, self._sizes, self._limit = landings, sizes, limit
        self._whole_files, self._on_release = whole_files, on_release
        self._files: dict[int, _FileRanges] = {}
        self._idle: OrderedDict[Range | int, int] = OrderedDict()  # ranges, or files, and their bytes; least recently used first
        self.idle_bytes = 0
        self.used = self.most = 0
        self.fetching = 0
        """Ranges that are not ready yet."""
        self.changes = 0
        """Counts everything that may have freed memory."""

    # What is in memory

    def overlapping(self, wanted: Extents) -> list[Range]:
        """The ranges, in memory or being fetched, that have bytes of the wanted ones."""
        parts = ((self._files.get(number), starts, stops) for number, starts, stops in _by_file(wanted))
        return [one for there, starts, stops in parts if there is not None for one in there.overlapping(starts, stops)]

    def missing(self, wanted: Extents, gap: int) -> list[Range]:
        """The rest of the wanted bytes as new ranges, each of the size of a request; holes of up to ``gap`` bytes are included."""
        lost = self._missing(wanted)
        if lost and gap > 0:
            lost = self._missing(_merged(lost, gap))
        columns = _merged(lost, 0)
        return [Range(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def _missing(self, wanted: Extents) -> list[tuple[int, int, int]]:
        nothing = _FileRanges()
        return [
            (number, *part)
            for number, starts, stops in _by_file(wanted)
            for part in self._files.get(number, nothing).missing(starts, stops)
        ]

    def ranges_of(self, number: int) -> list[Range]:
        """The ranges of a file."""
        there = self._files.get(number)
        return [] if there is None else list(there.ranges)

    def is_held(self, number: int) -> bool:
        """Whether a reader holds any range of a file."""
        return number in self._files and self._files[number].holds > 0

    def is_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory."""
        return number in self._files and self._files[number].is_whole(self._sizes[number])

    def has(self, one: Range) -> bool:
        """Whether a range was not evicted."""
        there = self._files.get(one.number)
        return there is not None and there.has(one)

    # Eviction

    def would_fit(self, cost: int) -> bool:
        """Whether ``cost`` more bytes fit after all idle ranges are evicted."""
        return self.used - self.idle_bytes + cost <= self._limit

    def make_room(self, cost: int) -> bool:
        """Evict idle ranges until ``cost`` more bytes fit; False, and nothing evicted, if they cannot."""
        if not self.would_fit(cost):
            return False
        while self.used + cost > self._limit:
            self._evict(next(iter(self._idle)))
        return True

    def evict_idle(self, ranges: Iterable[Range]) -> bool:
        """Evict those of the ranges that are idle; whether there were any."""
        found = False
        for one in ranges:
            unit = one.number if self._whole_files else one
            if unit in self._idle:
                self._evict(unit)
                found = True
        return found

    def _evict(self, unit: Range | int) -> None:
        if isinstance(unit, int):
            self.drop(unit)
        else:
            self.remove(unit)

    # Changes

    def add(self, ranges: Sequence[Range]) -> None:
        """Sorted new ranges, that are going to be fetched."""
        for number, start, stop in _runs(ranges):
            self._landings[number].expect(start, stop)
        for one in ranges:
            there = self._files.setdefault(one.number, _FileRanges())
            self._forget_idle(one)
            there.add(one)
            there.kept += 1
            there.cost += one.cost
            self.used += one.cost
            self.fetching += 1
        self.most = max(self.most, self.used)

    def change(self, one: Range, *, holds: int = 0, plans: int = 0, is_ready: bool | None = None) -> None:
        """Add to the holds and plans of a range, or set whether it is ready."""
        before, was_ready = one.is_kept, one.is_ready
        one.holds, one.plans = one.holds + holds, one.plans + plans
        one.is_ready = was_ready if is_ready is None else is_ready
        if not self.has(one):
            return
        there = self._files[one.number]
        there.holds += holds
        there.kept += one.is_kept - before
        self.fetching += was_ready - one.is_ready
        self._forget_idle(one)
        if there.kept == 0 or not (one.is_kept or self._whole_files):
            cost = there.cost if self._whole_files else one.cost
            self._idle[one.number if self._whole_files else one] = cost
            self.idle_bytes += cost
            self.changes += 1

    def remove(self, one: Range) -> None:
        """Remove a range, kept or not."""
        if not self.has(one):
            return
        there = self._files[one.number]
        self._forget_idle(one)
        low, high = there.free_pages(one)
        there.remove(one)
        there.kept -= one.is_kept
        there.holds -= one.holds
        there.cost -= one.cost
        self.used -= one.cost
        self.fetching -= not one.is_ready
        self.changes += 1
        if not there.ranges:
            self.drop(one.number)
        elif low < high:
            self._landings[one.number].release(low, min(high, self._sizes[one.number]))

    def drop(self, number: int) -> None:
        """Remove all ranges of a file, and free its memory."""
        there = self._files.pop(number)
        if (cost := self._idle.pop(number, None)) is not None:
            self.idle_bytes -= cost
        for one in there.ranges:
            if (cost := self._idle.pop(one, None)) is not None:
                self.idle_bytes -= cost
            self.fetching -= not one.is_ready
        self.used -= there.cost
        self.changes += 1
        self.announce_release(number)
        self._landings[number].drop()

    def drop_unheld(self) -> None:
        """Remove every file that no reader holds."""
        for number in [number for number, there in self._files.items() if there.holds == 0]:
            self.drop(number)

    def announce_release(self, number: int) -> None:
        """Call ``on_release``: the bytes of a file are going to be freed or replaced."""
        if self._on_release is not None:
            self._on_release(number)

    def _forget_idle(self, one: Range) -> None:
        if (cost := self._idle.pop(one.number if self._whole_files else one, None)) is not None:
            self.idle_bytes -= cost


def _runs(ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Sorted ranges, those that touch put together."""
    runs: list[tuple[int, int, int]] = []
    for one in ranges:
        if runs and (runs[-1][0], runs[-1][2]) == (one.number, one.start):
            runs[-1] = one.number, runs[-1][1], one.stop
        else:
            runs.append((one.number, one.start, one.stop))
    return runs


def _merged(parts: Sequence[tuple[int, int, int]], gap: int) -> Extents:
    """Parts, coalesced, and cut to the size of a request."""
    table = np.array(parts, np.int64).reshape(-1, 3)
    return merge(table[:, 0], table[:, 1], table[:, 2], gap, PIECE_BYTES)


def _by_file(wanted: Extents) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The ranges of one file after the other."""
    numbers, starts, stops = wanted
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for low, high in pairwise(edges):
        if low < high:
            yield int(numbers[low]), starts[low:high], stops[low:high]
