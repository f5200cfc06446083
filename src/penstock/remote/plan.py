"""Plans: what a run is going to need, fetched ahead and kept in the window until it was read for the last time."""

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
from penstock.remote.hold import ROOM_S, Hold
from penstock.remote.ranges import merge
from penstock.remote.resident import Range
from penstock.remote.window import RemoteFiles

__all__ = ["Need", "Plan"]

MOST_NEEDS = 64
"""So many needs are looked at together."""

MOST_AHEAD = 1 << 16
"""Nothing is fetched more than so many steps ahead."""

UNKNOWN = 1 << 62


@dataclass(eq=False)
class Need:
    """Byte ranges that are read from step ``first`` on. Needs come in the order of their first steps. Whoever gives them out sets
    ``last`` when it is known, at the latest before giving out a need of a later step. ``block`` is the number by which it is found.
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


class Pumped(Enum):
    """What came of an attempt to go further."""

    MOVED = 1
    FULL = 2
    DONE = 3


class Plan:
    """What a run is going to need, kept in the window from before its first use until after its last. For one thread."""

    def __init__(self, files: RemoteFiles, needs: Iterator[Need]) -> None:
        self._files, self._needs = files, needs
        self._next: deque[Need] = deque()  # the next one, behind those that were given up
        self._kept: list[_Kept] = []  # in the order of their first steps; those that are over go now and then
        self._ends: list[tuple[int, int, _Kept]] = []  # a heap, by the last step
        self._unsure: list[_Kept] = []  # whose last step is not known yet
        self._blocks: dict[int, _Kept] = {}
        self._order = itertools.count()
        self._tried = -1
        self._passed = -1
        with files._change:
            files._check()
            self._look()
            self._passed = self._next[0].first - 1 if self._next else -1
            files._plans.append(self)
            self.pump()

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
        """Whether the window lets go of whole files only."""
        return self._files.whole_files

    def reached(self, step: int) -> bool:
        """Whether everything up to a step is here or on its way."""
        with self._files._change:
            self._files._check()
            while not self._is_at(step):
                if self.pump() is not Pumped.MOVED:
                    return False
            return True

    def wait(self, step: int) -> None:
        """Wait until that is so. To be called only when all steps before were passed."""
        files = self._files
        with files._change:
            files._check()
            until = time.monotonic() + ROOM_S
            while not self._is_at(step):
                if self.pump(urgent=True) is Pumped.MOVED:
                    continue
                if not files._is_waiting_useful() or time.monotonic() > until:
                    self._refuse(step)
                files._wait()

    def _refuse(self, step: int) -> None:
        kept = sum(one.cost for kept in self._kept if not kept.is_over for one in kept.ranges)
        new = int(np.sum(self._next[0].stops - self._next[0].starts))
        raise WindowTooSmallError(
            f"{self._files.files[0][0]}: step {step} needs at least {kept + new} bytes at once, window_bytes is "
            f"{self._files.window_bytes}: open with a larger window, or shuffle smaller or fewer blocks together"
        )

    def hold(self, blocks: Iterable[int]) -> Hold | None:
        """A hold on all bytes of blocks; None if the plan does not keep one of them now."""
        with self._files._change:
            kept = [self._blocks.get(block) for block in blocks]
            if any(one is None for one in kept):
                return None
            return Hold.on(self._files, [part for one in kept if one is not None for part in one.ranges])

    def passed(self, step: int) -> None:
        """All steps up to this one were read."""
        with self._files._change:
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
                self._files._change.notify_all()
            self._files._pump()
        self._files.spent(over)

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        files = self._files
        with files._change:
            if self in files._plans:
                files._plans.remove(self)
                self._next.clear()
                self._needs = iter(())
                for kept in self._kept:
                    self._end(kept)
                files._change.notify_all()

    # With the window's lock held

    def pump(self, *, urgent: bool = False) -> Pumped:
        """Set some needs on their way, as long as there is room and they are not too far ahead."""
        files = self._files
        if not urgent and (self._tried == files._room.changes or files._waiting):
            return Pumped.FULL
        moved = Pumped.DONE
        for _ in range(MOST_NEEDS):
            self._look()
            if not self._next or files._closed or self._next[0].first > self._passed + MOST_AHEAD:
                return moved
            need = self._next[0]
            if need.numbers.size:
                wanted = merge(need.numbers, need.starts, need.stops, 0, 1 << 62)
                ranges = files._admit(wanted, plans=1, spare=self, urgent=urgent)
                if ranges is None:
                    self._tried = files._room.changes
                    return Pumped.FULL if moved is Pumped.DONE else moved
                self._keep(need, ranges)
            self._next.popleft()
            moved = Pumped.MOVED
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
            self._files._give_back(one)

    def give_up(self) -> bool:
        """Give up what is needed last of that which can go now, because somebody needs the room. It is fetched again in time."""
        for place in range(len(self._kept) - 1, -1, -1):
            kept = self._kept[place]
            if not kept.is_over and any(_can_go(one) for one in kept.ranges):
                del self._kept[place]
                self._unsure = [one for one in self._unsure if one is not kept]
                self._end(kept)
                later = [need for need in self._next if need.first < kept.need.first]
                self._next = deque([*later, kept.need, *(need for need in self._next if need.first >= kept.need.first)])
                return True
        return False


def _can_go(one: Range) -> bool:
    """Whether a range would leave the window if no plan needed it."""
    return one.holds == 0 and (one.is_ready or not one.is_begun)
