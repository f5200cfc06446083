"""Which bytes of a file are in memory: ranges in order, none overlapping another."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

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

    def add(self, one: Range) -> None:
        """Put a range in its place."""
        place = bisect_left(self.starts, one.start)
        self.starts.insert(place, one.start)
        self.ranges.insert(place, one)

    def remove(self, one: Range) -> None:
        """Take a range out."""
        place = bisect_left(self.starts, one.start)
        del self.starts[place], self.ranges[place]

    def over(self, start: int, stop: int) -> list[Range]:
        """The ranges that have bytes of [start, stop)."""
        low = bisect_right(self.starts, start) - 1
        low += low < 0 or self.ranges[low].stop <= start
        return self.ranges[low : bisect_left(self.starts, stop, lo=max(0, low))]

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that no range has."""
        for one in self.over(start, stop):
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
