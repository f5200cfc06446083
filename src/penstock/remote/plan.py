"""Plans: what a run is going to need, fetched ahead and kept in the window until it was read for the last time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.errors import WindowTooSmallError
from penstock.interfaces import IntArray
from penstock.remote.ranges import merge
from penstock.remote.resident import Range
from penstock.remote.window import Hold, RemoteFiles

__all__ = ["Need", "Plan"]

MOST_NEEDS = 64
"""So many needs are looked at together."""

MOST_AHEAD = 1 << 16
"""Nothing is fetched more than so many steps ahead."""


@dataclass(eq=False)
class Need:
    """Byte ranges that are read from step ``first`` on. Needs come in the order of their first steps. Whoever gives them out sets
    ``last`` when it is known, at the latest before giving out a need of a later step. ``block`` is the number by which it is found.
    """

    first: int
    numbers: IntArray
    starts: IntArray
    stops: IntArray
    last: int = 1 << 62
    block: int = -1


class Plan:
    """What a run is going to need, kept in the window from before its first use until after its last. For one thread."""

    def __init__(self, files: RemoteFiles, needs: Iterator[Need]) -> None:
        self._files, self._needs = files, needs
        self._error: Exception | None = None
        self._kept: list[tuple[Need, list[Range]]] = []
        self._tried = -1
        self._advance()
        self._passed = -1 if self._next is None else self._next.first - 1
        with files._change:
            files._check()
            files._plans.append(self)
            self._pump()

    def _advance(self) -> None:
        """To the next need."""
        try:
            self._next = next(self._needs, None)
            if (need := self._next) is not None:
                self._wanted = merge(need.numbers, need.starts, need.stops, 0, 1 << 62)
        except Exception as error:  # raised when its turn comes
            self._next, self._error = None, error

    @property
    def whole_files(self) -> bool:
        """Whether the window lets go of whole files only."""
        return self._files.whole_files

    def _is_at(self, step: int) -> bool:
        return self._next is None or self._next.first > step

    def reached(self, step: int) -> bool:
        """Whether everything up to a step is here or on its way."""
        with self._files._change:
            while not self._is_at(step):
                if not self._pump():
                    return False
            return True

    def wait(self, step: int) -> None:
        """Wait until that is so. To be called only when all steps before were passed."""
        files = self._files
        with files._change:
            while not self._is_at(step):
                if self._pump(urgent=True):
                    continue
                if not files._is_waiting_useful():
                    self._refuse(step)
                files._change.wait(60)
                files._check()
            if self._error is not None:
                raise self._error

    def _refuse(self, step: int) -> None:
        assert self._next is not None
        kept = sum(one.cost for _, ranges in self._kept for one in ranges)
        new = int(np.sum(self._next.stops - self._next.starts))
        raise WindowTooSmallError(
            f"{self._files.files[0][0]}: step {step} needs at least {kept + new} bytes at once, window_bytes is "
            f"{self._files.window_bytes}: open with a larger window, or shuffle smaller or fewer blocks together"
        )

    def passed(self, step: int) -> None:
        """All steps up to this one were read."""
        with self._files._change:
            self._passed = step
            done = [ranges for need, ranges in self._kept if need.last <= step]
            if done:
                self._kept = [kept for kept in self._kept if kept[0].last > step]
                for ranges in done:
                    self._let_go(ranges)
                self._files._change.notify_all()
            self._pump()

    def hold(self, blocks: Iterable[int]) -> Hold | None:
        """A hold on all bytes of blocks; None if the plan does not keep one of them now."""
        with self._files._change:
            kept = {need.block: ranges for need, ranges in self._kept}
            if any(block not in kept for block in blocks):
                return None
            return Hold.on(self._files, [one for block in blocks for one in kept[block]])

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        files = self._files
        with files._change:
            if self in files._plans:
                files._plans.remove(self)
                self._next = None
                for _, ranges in self._kept:
                    self._let_go(ranges)
                self._kept.clear()
                files._change.notify_all()

    def _pump(self, *, urgent: bool = False) -> bool:
        """Set some needs on their way, as long as there is room and they are not too far ahead; False if there is no room."""
        files = self._files
        if self._tried == files._changes and not urgent:
            return False  # there was no room, and nothing has happened since
        for _ in range(MOST_NEEDS):
            need = self._next
            if need is None or files._closed or need.first > self._passed + MOST_AHEAD:
                break
            if self._wanted[0].size:
                if not files._admit(self._wanted, self._keep, self, urgent=urgent):
                    self._tried = files._changes
                    return False
                self._kept.append((need, files._there(self._wanted)))
            self._advance()
        return True

    def _keep(self, one: Range, count: int) -> None:
        one.plans += count
        one.used = next(self._files._clock)

    def _let_go(self, ranges: Iterable[Range]) -> None:
        """What no plan and no hold keeps any more leaves the window."""
        for one in ranges:
            one.plans -= 1
            there = self._files._ranges.get(one.number)
            if not one.is_kept and there is not None and there.has(one):
                self._files._free(one)

    def _give_up_last(self) -> bool:
        """Give up what is needed last, because somebody needs the room now. It is fetched again when it is read."""
        if not self._kept:
            return False
        self._let_go(self._kept.pop()[1])
        return True
