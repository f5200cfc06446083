"""Byte ranges of numbered files: sorted, and merged where that saves requests without reading or holding too much."""

from collections.abc import Iterator

import numpy as np

from penstock.interfaces import IntArray

__all__ = ["merge", "slices_of"]


def merge(numbers: IntArray, starts: IntArray, stops: IntArray, gap: int, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """The ranges [start, stop) of files, sorted by file and start, none overlapping another, none larger than ``most`` bytes.

    Ranges of one file are merged where they touch, overlap, or leave a hole of at most ``gap`` bytes. Empty ranges are dropped.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1 byte, got {most}")
    numbers, starts, stops = _sorted(numbers, starts, stops)
    if numbers.size == 0:
        return numbers, starts, stops
    numbers, starts, stops = _unite(numbers, starts, stops, 0)
    if gap > 0:
        numbers, starts, stops = _bridge(numbers, starts, stops, gap, most)
    return _cut(numbers, starts, stops, most)


def _sorted(numbers: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    full = stops > starts
    numbers, starts, stops = numbers[full], starts[full], stops[full]
    order = np.lexsort((starts, numbers))
    return numbers[order], starts[order], stops[order]


def _unite(numbers: IntArray, starts: IntArray, stops: IntArray, gap: int) -> tuple[IntArray, IntArray, IntArray]:
    """Sorted ranges, those united that are at most ``gap`` bytes apart."""
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
        # Every file lifted above the one before it: one running maximum serves them all.
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
