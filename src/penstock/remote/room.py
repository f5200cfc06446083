"""Room: the memory of a window, and who has how much of it. It knows nothing of threads and requests."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from penstock import _core
from penstock.interfaces import IntArray
from penstock.remote.ranges import merge
from penstock.remote.resident import Range, Resident

__all__ = ["NOTHING", "PIECE_BYTES", "Room", "Wanted"]

PIECE_BYTES = 8 << 20
"""The most bytes of one request."""

Wanted = tuple[IntArray, IntArray, IntArray]
"""Byte ranges: files, starts and stops; sorted, none overlapping another."""

NOTHING: Wanted = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


class Room:
    """The ranges in memory, at most ``limit`` bytes of them. What nobody keeps is idle, and goes when others need the room.

    With ``whole_files`` a file goes all at once, after ``on_release(number)`` was told. Not thread-safe.
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
        self._files: dict[int, Resident] = {}
        self._idle: OrderedDict[Range | int, int] = OrderedDict()  # ranges, or files, and their bytes; longest unused first
        self._idle_bytes = 0
        self.used = self.most = 0
        self.under_way = 0
        self.changes = 0
        """Counts whatever may have made room."""

    # What is there

    def over(self, wanted: Wanted) -> list[Range]:
        """What of the wanted ranges is here or on its way."""
        parts = ((self._files.get(number), starts, stops) for number, starts, stops in _by_file(wanted))
        return [one for there, starts, stops in parts if there is not None for one in there.over(starts, stops)]

    def absent(self, wanted: Wanted, gap: int) -> list[Range]:
        """What of the wanted ranges is neither, as new ranges of the size of a request; those up to ``gap`` bytes apart in one."""
        lost = self._missing(wanted)
        if lost and gap > 0:
            lost = self._missing(_merged(lost, gap))
        columns = _merged(lost, 0)
        return [Range(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def _missing(self, wanted: Wanted) -> list[tuple[int, int, int]]:
        nothing = Resident()
        return [
            (number, *part)
            for number, starts, stops in _by_file(wanted)
            for part in self._files.get(number, nothing).missing(starts, stops)
        ]

    def of(self, number: int) -> list[Range]:
        """The ranges of a file."""
        there = self._files.get(number)
        return [] if there is None else list(there.ranges)

    def is_held(self, number: int) -> bool:
        """Whether somebody reads a file."""
        return number in self._files and self._files[number].holds > 0

    def is_whole(self, number: int) -> bool:
        """Whether all bytes of a file are here."""
        return number in self._files and self._files[number].is_whole(self._sizes[number])

    def has(self, one: Range) -> bool:
        """Whether a range is still here."""
        there = self._files.get(one.number)
        return there is not None and there.has(one)

    # Room for more

    def would_fit(self, cost: int) -> bool:
        """Whether there is room for so many bytes, if what is idle goes."""
        return self.used - self._idle_bytes + cost <= self._limit

    def make(self, cost: int) -> bool:
        """Make room by letting go of what is idle, longest unused first; False, and nothing done, if that is not enough."""
        if not self.would_fit(cost):
            return False
        while self.used + cost > self._limit:
            self._let_go(next(iter(self._idle)))
        return True

    def let_go_of_idle(self, ranges: Iterable[Range]) -> bool:
        """Let go of those of the ranges that are idle; whether there were any."""
        found = False
        for one in ranges:
            unit = one.number if self._whole_files else one
            if unit in self._idle:
                self._let_go(unit)
                found = True
        return found

    def _let_go(self, unit: Range | int) -> None:
        if isinstance(unit, int):
            self.drop(unit)
        else:
            self.remove(unit)

    # Changes

    def add(self, ranges: Iterable[Range]) -> None:
        """New ranges, on their way."""
        for one in ranges:
            there = self._files.setdefault(one.number, Resident())
            self._forget_idle(one)
            there.add(one)
            there.kept += 1
            there.cost += one.cost
            self.used += one.cost
            self.under_way += 1
        self.most = max(self.most, self.used)

    def change(self, one: Range, *, holds: int = 0, plans: int = 0, is_ready: bool | None = None) -> None:
        """Somebody keeps a range, or no longer does; or it has come."""
        before, was_ready = one.is_kept, one.is_ready
        one.holds, one.plans = one.holds + holds, one.plans + plans
        one.is_ready = was_ready if is_ready is None else is_ready
        if not self.has(one):
            return
        there = self._files[one.number]
        there.holds += holds
        there.kept += one.is_kept - before
        self.under_way += was_ready - one.is_ready
        self._forget_idle(one)
        if there.kept == 0 or not (one.is_kept or self._whole_files):
            cost = there.cost if self._whole_files else one.cost
            self._idle[one.number if self._whole_files else one] = cost
            self._idle_bytes += cost
            self.changes += 1

    def remove(self, one: Range) -> None:
        """Take a range out, whoever keeps it."""
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
        self.under_way -= not one.is_ready
        self.changes += 1
        if not there.ranges:
            self.drop(one.number)
        elif low < high:
            self._landings[one.number].release(low, min(high, self._sizes[one.number]))

    def drop(self, number: int) -> None:
        """Take all of a file out, and give its memory back."""
        there = self._files.pop(number)
        if (cost := self._idle.pop(number, None)) is not None:
            self._idle_bytes -= cost
        for one in there.ranges:
            if (cost := self._idle.pop(one, None)) is not None:
                self._idle_bytes -= cost
            self.under_way -= not one.is_ready
        self.used -= there.cost
        self.changes += 1
        if self._on_release is not None:
            self._on_release(number)
        self._landings[number].drop()

    def drop_unheld(self) -> None:
        """Take everything out that nobody reads."""
        for number in [number for number, there in self._files.items() if there.holds == 0]:
            self.drop(number)

    def release(self, number: int) -> None:
        """Tell that bytes of a file are going to be replaced."""
        if self._on_release is not None:
            self._on_release(number)

    def _forget_idle(self, one: Range) -> None:
        if (cost := self._idle.pop(one.number if self._whole_files else one, None)) is not None:
            self._idle_bytes -= cost


def _merged(parts: Sequence[tuple[int, int, int]], gap: int) -> Wanted:
    """Parts put together, and cut to the size of a request."""
    table = np.array(parts, np.int64).reshape(-1, 3)
    return merge(table[:, 0], table[:, 1], table[:, 2], gap, PIECE_BYTES)


def _by_file(wanted: Wanted) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The ranges of one file after the other."""
    numbers, starts, stops = wanted
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for low, high in pairwise(edges):
        if low < high:
            yield int(numbers[low]), starts[low:high], stops[low:high]
