"""Plans: the byte ranges a run is going to need, prefetched and kept in the window until they were read for the last time."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from penstock.errors import WindowTooSmallError
from penstock.interfaces import IntArray
from penstock.remote.ranges import merge
from penstock.remote.residency import Range
from penstock.remote.window import ROOM_S, Hold, RemoteFiles

__all__ = ["Need", "Plan"]

MOST_NEEDS = 64
"""Needs that are reserved at once, before other threads get the lock."""

MOST_AHEAD = 1 << 16
"""The most steps between the last one read and one that is prefetched."""

UNKNOWN = 1 << 62


@dataclass(eq=False)
class Need:
    """Byte ranges that are read from step ``first`` on. Needs come in the order of their first steps. The iterator that yields them
    sets ``last`` when it is known, at the latest before it yields a need of a later step. ``block`` is the key for ``Plan.hold``.
    """

    first: int
    numbers: IntArray
    starts: IntArray
    stops: IntArray
    last: int = UNKNOWN
    block: int = -1


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

    def __init__(self, files: RemoteFiles, needs: Iterator[Need]) -> None:
        self._files, self._needs = files, needs
        self._next: deque[Need] = deque()  # those that were given up, then the next one of the iterator
        self._kept: list[_Kept] = []  # in the order of their first steps; those that are over are removed in bulk
        self._ends: list[tuple[int, int, _Kept]] = []  # a heap, by the last step
        self._unsure: list[_Kept] = []  # with a last step that is not known yet
        self._blocks: dict[int, _Kept] = {}
        self._order = itertools.count()
        self._tried = -1
        self._passed = -1
        with files.lock:
            files.check_open()
            self._look()
            self._passed = self._next[0].first - 1 if self._next else -1
            files.prefetchers.append(self)
            self.prefetch()

    def _look(self) -> None:
        """See what comes next."""
        if not self._next:
            # An error of the order or the source is raised by the batch it belongs to, in its turn.
            try:
                self._next.extend(itertools.islice(self._needs, 1))
            except Exception:
                self._needs = iter(())

    def _is_at(self, step: int) -> bool:
        self._look()
        return not self._next or self._next[0].first > step

    @property
    def whole_files(self) -> bool:
        """Whether the window evicts whole files only."""
        return self._files.whole_files

    def reached(self, step: int) -> bool:
        """Whether everything up to a step is in memory or being fetched."""
        with self._files.lock:
            self._files.check_open()
            while not self._is_at(step):
                if self.prefetch() is not Progress.MOVED:
                    return False
            return True

    def wait(self, step: int) -> None:
        """Wait until that is so. To be called only when all steps before were passed."""
        files = self._files
        with files.lock:
            files.check_open()
            until = time.monotonic() + ROOM_S
            while not self._is_at(step):
                if self.prefetch(urgent=True) is not Progress.MOVED and not files.wait_for_room(until):
                    self._refuse(step)

    def _refuse(self, step: int) -> None:
        kept = sum(one.cost for kept in self._kept if not kept.is_over for one in kept.ranges)
        new = int(np.sum(self._next[0].stops - self._next[0].starts))
        raise WindowTooSmallError(
            f"{self._files.files[0][0]}: step {step} needs at least {kept + new} bytes at once, window_bytes is "
            f"{self._files.window_bytes}: open with a larger window, or shuffle smaller or fewer blocks together"
        )

    def hold(self, blocks: Iterable[int]) -> Hold | None:
        """A hold on all bytes of blocks; None if the plan does not keep one of them now."""
        with self._files.lock:
            kept = [self._blocks.get(block) for block in blocks]
            if any(one is None for one in kept):
                return None
            return self._files.hold_kept([part for one in kept if one is not None for part in one.ranges])

    def passed(self, step: int) -> None:
        """All steps up to this one were read."""
        with self._files.lock:
            self._passed = step
            for kept in [kept for kept in self._unsure if kept.need.last < UNKNOWN]:
                self._unsure.remove(kept)
                heapq.heappush(self._ends, (kept.need.last, next(self._order), kept))
            over: list[Range] = []
            while self._ends and self._ends[0][0] <= step:
                kept = heapq.heappop(self._ends)[2]
                over += () if kept.is_over else kept.ranges
                self._end(kept)
            if over:
                self._files.lock.notify_all()
            self._files.prefetch()
        self._files.spent(over)

    def close(self) -> None:
        """Release everything. Idempotent."""
        files = self._files
        with files.lock:
            if self in files.prefetchers:
                files.prefetchers.remove(self)
                self._next.clear()
                self._needs = iter(())
                for kept in self._kept:
                    self._end(kept)
                files.lock.notify_all()

    # With the window's lock held

    def prefetch(self, *, urgent: bool = False) -> Progress:
        """Reserve the next needs, as long as there is memory and they are not too far ahead."""
        files = self._files
        if not urgent and (self._tried == files.changes or files.num_waiting):
            return Progress.FULL
        moved = Progress.DONE
        for _ in range(MOST_NEEDS):
            self._look()
            if not self._next or files.is_closed or self._next[0].first > self._passed + MOST_AHEAD:
                return moved
            need = self._next[0]
            if need.numbers.size:
                wanted = merge(need.numbers, need.starts, need.stops, 0, 1 << 62)
                ranges = files.admit(wanted, plans=1, spare=self, urgent=urgent)
                if ranges is None:
                    self._tried = files.changes
                    return Progress.FULL if moved is Progress.DONE else moved
                self._keep(need, ranges)
            self._next.popleft()
            moved = Progress.MOVED
        return moved

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

    def _end(self, kept: _Kept) -> None:
        if kept.is_over:
            return
        kept.is_over = True
        if self._blocks.get(kept.need.block) is kept:
            del self._blocks[kept.need.block]
        for one in kept.ranges:
            self._files.give_back(one)

    def give_up(self) -> bool:
        """Release what is needed last of that which can be evicted now: a reader needs the memory. It is fetched again in time."""
        for place in range(len(self._kept) - 1, -1, -1):
            kept = self._kept[place]
            if not kept.is_over and any(one.is_evictable for one in kept.ranges):
                del self._kept[place]
                self._unsure = [one for one in self._unsure if one is not kept]
                self._end(kept)
                later = [need for need in self._next if need.first < kept.need.first]
                self._next = deque([*later, kept.need, *(need for need in self._next if need.first >= kept.need.first)])
                return True
        return False
