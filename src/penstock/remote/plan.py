"""Plans: the byte ranges a run is going to need, prefetched and kept in the window until they were read for the last time."""

import heapq
import itertools
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from penstock.argument import IntArray
from penstock.errors import WindowTooSmallError
from penstock.remote.residency import Extents, Range, merge
from penstock.remote.window import ROOM_S, Hold, Window

__all__ = ["KEPT", "Need", "Plan"]

MOST_NEEDS = 64
"""Needs that are reserved at once, before other threads get the lock."""

MOST_AHEAD = 1 << 16
"""The most steps between the last one read and one that is prefetched."""

MOST_EMPTY = 128
"""The most needs of nothing, one after the other, that are looked at ahead: where all is in memory, looking is for nothing."""

KEPT = 1 << 61
"""The last step of what stays as long as there is memory for it."""

UNKNOWN = 1 << 62


@dataclass(eq=False)
class Need:
    """Byte ranges that are read from step ``first`` on. Needs come in the order of their first steps. The iterator that yields them
    sets ``last`` when it is known, at the latest before it yields a need of a later step. ``block`` is the key for ``Plan.hold``.
    One that is ``KEPT`` and had to be evicted ``is_given_up``: the iterator yields another at its next use. One that
    ``is_optional`` is read as it comes where there is no memory to keep it.
    """

    first: int
    numbers: IntArray
    starts: IntArray
    stops: IntArray
    last: int = UNKNOWN
    block: Hashable = None
    is_given_up: bool = False
    is_optional: bool = False

    def extents(self) -> Extents:
        """The ranges, sorted, none overlapping another."""
        return merge(self.numbers, self.starts, self.stops, 0, 1 << 62)


@dataclass(eq=False)
class _Kept:
    """A need whose ranges are in the window."""

    need: Need
    ranges: list[Range]
    is_over: bool = False


class Progress(Enum):
    """The outcome of a prefetch."""

    MOVED = 1
    FULL = 2
    DONE = 3


class Plan:
    """What a run is going to need, kept in the window from before its first use until after its last. For one thread.

    The window calls ``prefetch`` and ``give_up`` (its Prefetcher), from any thread, with its lock held.
    """

    def __init__(self, window: Window, needs: Iterator[Need]) -> None:
        self._window, self._needs = window, needs
        self._next: deque[Need] = deque()  # those that were given up, then the next one of the iterator
        self._kept: list[_Kept] = []  # in the order of their first steps; those that are over are removed in bulk
        self._ends: list[tuple[int, int, _Kept]] = []  # a heap, by the last step
        self._unsure: list[_Kept] = []  # with a last step that is not known yet
        self._blocks: dict[Hashable, _Kept] = {}
        self._order = itertools.count()
        self._over: list[Range] = []  # read for the last time, which the cache is told
        self._empty: deque[int] = deque()  # steps ahead that need nothing, since the last that does
        self._tried = -1
        self._passed = -1
        with window.lock:
            window.check_open()
            self._look()
            self._passed = self._next[0].first - 1 if self._next else -1
            window.prefetchers.append(self)
        for _ in range(MOST_NEEDS):  # one by one, so that the first is requested while the next are looked at
            with window.lock:
                if self.prefetch(most=1) is not Progress.MOVED:
                    break

    def _look(self) -> None:
        """Peek at the next need."""
        if not self._next:
            # An error of the order or the source is raised by the batch it belongs to, in its turn.
            try:
                self._next.extend(itertools.islice(self._needs, 1))
            except Exception:
                self._needs = iter(())

    def _is_at(self, step: int) -> bool:
        self._look()
        return not self._next or self._next[0].first > step

    def reached(self, step: int, part: float = 1.0) -> bool:
        """Whether everything up to a step is in memory or being fetched, and what begins to be needed after the first step that
        was not passed is at most a ``part`` of the window.
        """
        with self._window.lock:
            self._window.check_open()
            while not self._is_at(step):
                if self.prefetch() is not Progress.MOVED:
                    return False
            return part >= 1 or self._is_within(step, part * self._window.limit)

    def _is_within(self, step: int, most: float) -> bool:
        low, high = (bisect_right(self._kept, last, key=lambda kept: kept.need.first) for last in (self._passed + 1, step))
        for kept in self._kept[low:high]:
            most -= 0 if kept.is_over else sum(one.cost for one in kept.ranges)
        return most >= 0

    def wait(self, step: int) -> None:
        """Wait until everything up to a step is in memory or being fetched. All steps before must have been passed."""
        window = self._window
        with window.lock:
            window.check_open()
            window.turns.append(self)
            try:
                self._wait(step, time.monotonic() + ROOM_S)
            finally:
                window.turns.remove(self)
                if window.turns:
                    window.lock.notify_all()

    def _wait(self, step: int, until: float) -> None:
        while not self._is_at(step):
            has_moved = self.prefetch(urgent=True, most=1) is Progress.MOVED or self._skip_optional()
            has_moved = has_moved or self._give_up_kept() or self._skip_kept()
            if not (has_moved or self._window.wait_for_room(self._next[0].extents(), until, self) or self._skip_single()):
                self._refuse(step)

    def _refuse(self, step: int) -> None:
        window, wanted = self._window, self._next[0].extents()
        kept = sum(one.cost for one in {one for kept in self._kept if not kept.is_over for one in kept.ranges})
        others = window.residency.used - window.residency.idle_bytes - kept
        raise WindowTooSmallError(
            f"{window.name_of(wanted)}: step {step} needs at least {kept + window.missing_bytes(wanted)} bytes at once, "
            f"{f'others hold {others}, ' if others else ''}window_bytes is {window.limit}: "
            "open with a larger window, or shuffle smaller or fewer blocks together"
        )

    def hold(self, blocks: Iterable[Hashable]) -> Hold | None:
        """A hold on all bytes of blocks; None if they are not all in memory now, or being fetched."""
        with self._window.lock:
            ranges: list[Range] = []
            for block in blocks:
                if (kept := self._blocks.get(block)) is None:
                    return None
                ranges += kept.ranges
            # Ranges that could not be fetched, or whose file was closed, are not there any more.
            return self._window.hold_kept(ranges) if all(map(self._window.residency.has, ranges)) else None

    def passed(self, step: int) -> None:
        """All steps up to this one were read."""
        with self._window.lock:
            self._passed = step
            if self._end_passed():
                self._window.lock.notify_all()
            self._window.prefetch()
            over, self._over = self._over, []
        self._window.spent(over)

    def close(self) -> None:
        """Release everything. Idempotent."""
        window = self._window
        with window.lock:
            if self in window.prefetchers:
                window.remove_prefetcher(self)
                self._next.clear()
                self._needs = iter(())
                for kept in self._kept:
                    self._end(kept)
                window.lock.notify_all()

    # With the window's lock held

    def prefetch(self, *, urgent: bool = False, most: int = MOST_NEEDS) -> Progress:
        """Reserve the next needs, as long as there is memory and they are not too far ahead."""
        window = self._window
        if not urgent and (self._tried == window.residency.changes or window.num_waiting):
            return Progress.FULL
        moved = Progress.DONE
        for _ in range(most):
            self._look()
            if not self._next or window.is_closed or self._next[0].first > self._passed + MOST_AHEAD:
                return moved
            need = self._next[0]
            if not self._is_worth_looking(need):
                return moved
            # What is closed or failed fails the batch that reads it; what was given up may not be needed any more.
            if need.numbers.size and need.last > self._passed and window.may_prefetch(need.numbers):
                wanted = need.extents()
                ranges = window.admit(wanted, plans=1, spare=self, urgent=urgent)
                if ranges is None and self._end_passed():  # only the look at what comes next told the last step of some
                    ranges = window.admit(wanted, plans=1, spare=self, urgent=urgent)
                if ranges is None:
                    self._tried = window.residency.changes
                    return Progress.FULL if moved is Progress.DONE else moved
                self._keep(need, ranges)
            self._next.popleft()
            moved = Progress.MOVED
        return moved

    def _is_worth_looking(self, need: Need) -> bool:
        if need.numbers.size:
            self._empty.clear()
            return True
        while self._empty and self._empty[0] <= self._passed:
            self._empty.popleft()
        if len(self._empty) >= MOST_EMPTY:
            return False
        self._empty.append(need.first)
        return True

    def _keep(self, need: Need, ranges: list[Range]) -> None:
        kept = _Kept(need, ranges)
        self._kept.append(kept)
        self._blocks[need.block] = kept
        if need.last < UNKNOWN:
            heapq.heappush(self._ends, (need.last, next(self._order), kept))
        else:
            self._unsure.append(kept)
        if len(self._kept) > 64 and len(self._kept) > 2 * (len(self._ends) + len(self._unsure)):
            self._kept = [one for one in self._kept if not one.is_over]

    def _end_passed(self) -> bool:
        """Release what was read for the last time; whether there was anything."""
        for kept in [kept for kept in self._unsure if kept.need.last < UNKNOWN]:
            self._unsure.remove(kept)
            heapq.heappush(self._ends, (kept.need.last, next(self._order), kept))
        found = False
        while self._ends and self._ends[0][0] <= self._passed:
            kept = heapq.heappop(self._ends)[2]
            if not kept.is_over:
                found = True
                self._over += kept.ranges
                self._end(kept)
        return found

    def _end(self, kept: _Kept) -> None:
        if kept.is_over:
            return
        kept.is_over = True
        if self._blocks.get(kept.need.block) is kept:
            del self._blocks[kept.need.block]
        self._window.give_back(kept.ranges, evict=kept.need.last != KEPT)

    def give_up(self) -> bool:
        """Release what is needed last of that which can be evicted now: a reader needs the memory. It is fetched again in time."""
        return any(map(self._give_up, range(len(self._kept) - 1, -1, -1)))

    def _give_up_kept(self) -> bool:
        """The same of what need not be kept, in the order in which it came: a step needs the memory."""
        needs = [kept.need for kept in self._kept]
        return any((need.last == KEPT or need.is_optional) and self._give_up(place) for place, need in enumerate(needs))

    def _skip_optional(self) -> bool:
        if not self._next[0].is_optional:
            return False
        self._next.popleft()
        return True

    def _skip_kept(self) -> bool:
        """What need not be kept is read as it comes, if there is no memory to keep it."""
        if self._next[0].last != KEPT:
            return False
        self._next.popleft().is_given_up = True
        return True

    def _skip_single(self) -> bool:
        """What a single step reads is left to that step, which reads it in slices, if there is no memory for all of it."""
        if self._next[0].first != self._next[0].last:
            return False
        self._next.popleft()
        return True

    def _give_up(self, place: int) -> bool:
        kept = self._kept[place]
        if kept.is_over or not any(one.is_evictable for one in kept.ranges):
            return False
        del self._kept[place]
        self._unsure = [one for one in self._unsure if one is not kept]
        self._end(kept)
        if kept.need.last == KEPT or kept.need.is_optional:
            kept.need.is_given_up = True
        else:
            later = [need for need in self._next if need.first < kept.need.first]
            self._next = deque([*later, kept.need, *(need for need in self._next if need.first >= kept.need.first)])
        return True
