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

from penstock.argument import IntArray
from penstock.native import _core

__all__ = [
    "CLOSED_FILE",
    "GAP_BYTES",
    "NOTHING",
    "PAGE",
    "PAGE_GAP",
    "PIECE_BYTES",
    "Extents",
    "LandedFile",
    "Range",
    "Residency",
    "merge",
    "page_bytes",
    "slices_of",
]

PAGE = 4096

PIECE_BYTES = 8 << 20
"""The most bytes of one request."""

GAP_BYTES = 64 << 10
"""Two ranges with at most this many bytes between them are fetched together."""

PAGE_GAP = PAGE - 1
"""The same where memory is short: no page is between them, so that together they take no more of it."""

FEW = 64
"""Fewer ranges than this are looked up one by one."""

Extents = tuple[IntArray, IntArray, IntArray]
"""Byte ranges: files, starts and stops; sorted, none overlapping another."""

_Pages = tuple[int, int, int]
"""A file, and where pages of it begin and end."""

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
        """Starts and stops of the ranges, and how far the bytes from each start have no hole."""
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


@dataclass(frozen=True)
class LandedFile:
    """The memory of one file. With ``is_whole`` it is evicted as a whole; ``on_release`` is called before bytes go or change."""

    landing: _core.Landing
    size: int
    is_whole: bool = False
    on_release: Callable[[], None] | None = None


CLOSED_FILE = LandedFile(_core.Landing(0), 0)
"""In the place of a file that is not used any more."""


class Residency:
    """The ranges of files in memory, at most ``limit`` bytes of them. Not thread-safe."""

    def __init__(self, limit: int, files: Sequence[LandedFile] = ()) -> None:
        self._limit, self._memory = limit, list(files)
        self._files: dict[int, _FileRanges] = {}
        self._idle: OrderedDict[Range | int, int] = OrderedDict()  # ranges, or files, and their bytes; least recently used first
        self.idle_bytes = 0
        self.used = self.most = 0
        self.fetching = 0
        """Ranges that are not ready yet."""
        self.changes = 0
        """Counts everything that may have freed memory."""

    def register(self, files: Sequence[LandedFile]) -> None:
        """More files; their numbers follow those of the others."""
        self._memory += files

    def forget(self, number: int) -> None:
        """A file of which nothing is in memory is not going to be used any more."""
        self._memory[number] = CLOSED_FILE

    def _unit(self, one: Range) -> Range | int:
        """What is evicted with a range: its file, or the range alone."""
        return one.number if self._memory[one.number].is_whole else one

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
        there = self._files.get(number)
        return [] if there is None else list(there.ranges)

    def is_held(self, number: int) -> bool:
        """Whether a reader holds any range of a file."""
        return number in self._files and self._files[number].holds > 0

    def is_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory."""
        return number in self._files and self._files[number].is_whole(self._memory[number].size)

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
        freed: list[_Pages] = []
        found = False
        for one in ranges:
            unit = self._unit(one)
            if unit in self._idle:
                self._evict(unit, freed)
                found = True
        self._release(freed)
        return found

    def _evict(self, unit: Range | int, freed: list[_Pages] | None = None) -> None:
        if isinstance(unit, int):
            self.drop(unit)
        else:
            self.remove(unit, freed)

    def _release(self, freed: list[_Pages]) -> None:
        """Free pages; those that touch at once, so that a large page under two ranges is reused and not split."""
        freed.sort()
        while freed:
            number, low, high = freed.pop()
            while freed and (freed[-1][0], freed[-1][2]) == (number, low):
                low = freed.pop()[1]
            if number in self._files:  # all memory of a file without ranges was freed
                memory = self._memory[number]
                memory.landing.release(low, min(high, memory.size))

    # Changes

    def add(self, ranges: Sequence[Range]) -> None:
        """Register sorted new ranges, whose fetch is about to begin."""
        for number, start, stop in _runs(ranges):
            self._memory[number].landing.expect(start, stop)
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
        self._note_idle(one)

    def remove(self, one: Range, freed: list[_Pages] | None = None) -> None:
        """Remove a range, kept or not. Its pages are added to ``freed``, if that is given, for the caller to free."""
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
        memory = self._memory[one.number]
        if not there.ranges:
            self.drop(one.number)
        elif low < high:
            if freed is None:
                self._release([(one.number, low, high)])
            else:
                freed.append((one.number, low, high))
        if there.ranges and memory.is_whole:
            self._note_idle(one)  # it may have been the last that kept the others in memory

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
        self._memory[number].landing.drop()

    def drop_unheld(self, numbers: Iterable[int]) -> None:
        """Remove those of the files that no reader holds."""
        for number in [number for number in numbers if number in self._files and self._files[number].holds == 0]:
            self.drop(number)

    def announce_release(self, number: int) -> None:
        """Call ``on_release``: the bytes of a file are going to be freed or replaced."""
        if (on_release := self._memory[number].on_release) is not None:
            on_release()

    def _note_idle(self, one: Range) -> None:
        """What is evicted with a range is idle if nothing keeps it."""
        there, unit = self._files[one.number], self._unit(one)
        is_kept, cost = (there.kept > 0, there.cost) if isinstance(unit, int) else (one.is_kept, one.cost)
        if not is_kept:
            self._idle[unit] = cost
            self.idle_bytes += cost
            self.changes += 1

    def _forget_idle(self, one: Range) -> None:
        if (cost := self._idle.pop(self._unit(one), None)) is not None:
            self.idle_bytes -= cost


def _runs(ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Sorted ranges; those that touch are joined."""
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
    """The ranges, file by file."""
    numbers, starts, stops = wanted
    if numbers.size and numbers[0] == numbers[-1]:
        yield int(numbers[0]), starts, stops
        return
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for low, high in pairwise(edges):
        if low < high:
            yield int(numbers[low]), starts[low:high], stops[low:high]


# Ranges: sorted, and merged where that saves requests without reading or holding too much


def merge(numbers: IntArray, starts: IntArray, stops: IntArray, gap: int, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """The ranges [start, stop) of files, sorted by file and start, none overlapping another, none larger than ``most`` bytes.

    Ranges of one file are merged where they touch, overlap, or leave a hole of at most ``gap`` bytes. Empty ranges are dropped.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1 byte, got {most}")
    numbers, starts, stops = _sorted(numbers, starts, stops)
    if numbers.size == 0:
        return numbers, starts, stops
    if numbers.size > 1:  # a single range, which most reads are, has nothing to be merged with
        numbers, starts, stops = _unite(numbers, starts, stops, 0)
        if gap > 0:
            numbers, starts, stops = _bridge(numbers, starts, stops, gap, most)
    return _cut(numbers, starts, stops, most)


def page_bytes(wanted: Extents) -> int:
    """The memory that ranges take at least: all pages that have bytes of them."""
    _, starts, stops = merge(*wanted, PAGE_GAP, 1 << 62)
    return int(np.sum(-(-stops // PAGE) - starts // PAGE)) * PAGE


def _sorted(numbers: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    full = stops > starts
    numbers, starts, stops = numbers[full], starts[full], stops[full]
    order = np.lexsort((starts, numbers))
    return numbers[order], starts[order], stops[order]


def _unite(numbers: IntArray, starts: IntArray, stops: IntArray, gap: int) -> tuple[IntArray, IntArray, IntArray]:
    """Sorted ranges; those at most ``gap`` bytes apart are merged."""
    reach = _reach(numbers, stops)
    first = np.ones(numbers.size, np.bool_)
    first[1:] = (numbers[1:] != numbers[:-1]) | (starts[1:] - reach[:-1] > gap)
    begins = np.flatnonzero(first)
    ends = np.append(begins[1:], numbers.size) - 1
    return numbers[begins], starts[begins], reach[ends]


def _reach(numbers: IntArray, stops: IntArray) -> IntArray:
    """How far the ranges of a file reach, up to and with each one: the running maximum of ``stops``, file by file."""
    new_file = np.append(False, numbers[1:] != numbers[:-1])
    rank: IntArray = np.cumsum(new_file, dtype=np.int64)
    span = int(stops.max()) + 1
    if (int(rank[-1]) + 1) * span < 2**63:
        # Each file is shifted above the one before it, so that one running maximum is enough.
        lifted: IntArray = np.maximum.accumulate(rank * span + stops)
        return lifted - rank * span
    return np.concatenate([np.maximum.accumulate(part) for part in np.split(stops, np.flatnonzero(new_file))])


def _bridge(numbers: IntArray, starts: IntArray, stops: IntArray, gap: int, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """Disjoint sorted ranges, merged over small holes, from the left, as long as the result has at most ``most`` bytes."""
    near = np.append(False, (numbers[1:] == numbers[:-1]) & (starts[1:] - stops[:-1] <= gap))
    begins = np.flatnonzero(~near)
    ends = np.append(begins[1:], numbers.size)
    too_large = (stops[ends - 1] - starts[begins] > most) & (ends - begins > 1)
    whole = numbers[begins], starts[begins], stops[ends - 1]
    if not np.any(too_large):
        return whole
    pieces = [
        (numbers[begin], *piece)
        for begin, end in zip(begins[too_large].tolist(), ends[too_large].tolist(), strict=True)
        for piece in _filled(starts[begin:end], stops[begin:end], most)
    ]
    columns = np.array(pieces, np.int64).T
    found = [np.concatenate([column[~too_large], more]) for column, more in zip(whole, columns, strict=True)]
    return _sorted(found[0], found[1], found[2])


def _filled(starts: IntArray, stops: IntArray, most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring ranges of one file as few pieces of at most ``most`` bytes; a piece never begins or ends in a hole."""
    at = int(starts[0])
    while True:
        last = int(np.searchsorted(starts, at + most)) - 1
        stop = min(at + most, int(stops[last]))
        yield at, stop
        if stop < stops[last]:
            at = stop
        elif last + 1 < starts.size:
            at = int(starts[last + 1])
        else:
            return


def _cut(numbers: IntArray, starts: IntArray, stops: IntArray, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """Ranges cut into pieces of at most ``most`` bytes."""
    counts = -(-(stops - starts) // most)
    if np.all(counts == 1):
        return numbers, starts, stops
    nth = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.repeat(starts, counts) + nth * most
    return np.repeat(numbers, counts), begins, np.minimum(begins + most, np.repeat(stops, counts))


def slices_of(sizes: IntArray, most: int) -> Iterator[slice]:
    """Consecutive slices of at most ``most`` bytes each, or of one item where that is larger."""
    ends = np.cumsum(sizes)
    low = 0
    while low < len(sizes):
        before = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(low, high)
        low = high
