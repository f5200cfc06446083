"""The window: byte ranges of remote objects in memory, a bounded number of them, fetched ahead in the order of a plan.

A range is in one of three hands. A *hold* keeps it while it is read. A *plan* keeps it until the last batch that needs it was
read. What neither keeps stays as long as there is room, and goes when there is none.
"""

import atexit
import itertools
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import ReadError, WindowTooSmallError
from penstock.interfaces import IntArray
from penstock.remote.cache import Cache
from penstock.remote.objects import ObjectInfo
from penstock.remote.ranges import merge
from penstock.remote.resident import PAGE, Range, Resident
from penstock.remote.url import UrlPath

if TYPE_CHECKING:
    from penstock.remote.plan import Plan

__all__ = ["CONNECTIONS", "GAP_BYTES", "PIECE_BYTES", "Hold", "RemoteFiles", "RemoteOptions"]

CONNECTIONS = 16
"""So many requests are under way at once."""

PIECE_BYTES = 8 << 20
"""The most bytes of one request."""

GAP_BYTES = 64 << 10
"""Two ranges with no more bytes than this between them are fetched together."""


Wanted = tuple[IntArray, IntArray, IntArray]
"""Byte ranges: files, starts and stops; sorted, none overlapping another."""

NOTHING: Wanted = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class RemoteOptions:
    """How remote data is read: the same options for every source.

    ``window_bytes`` bounds what is in memory, ``cache`` is a directory for at most ``cache_bytes`` of what was fetched.
    """

    window_bytes: int | str = "4GiB"
    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | str = "50GB"

    def open_files(
        self,
        files: Sequence[tuple[UrlPath, ObjectInfo]],
        *,
        whole_files: bool = False,
        on_release: Callable[[int], None] | None = None,
        identities: Sequence[str] | None = None,
    ) -> "RemoteFiles":
        """A window on files."""
        window = byte_size("window_bytes", self.window_bytes, least=PAGE)
        cache = None if self.cache is None else Cache(self.cache, byte_size("cache_bytes", self.cache_bytes, least=1))
        return RemoteFiles(
            files, window_bytes=window, cache=cache, whole_files=whole_files, on_release=on_release, identities=identities
        )


class RemoteFiles:
    """The files of one source and the window on them. Safe to use from several threads; a forked child begins with an empty one.

    With ``whole_files`` the memory of a file goes all at once, after ``on_release(number)`` was told. ``identities`` say for the
    cache which version of a file it is; their etags unless given.
    """

    def __init__(
        self,
        files: Sequence[tuple[UrlPath, ObjectInfo]],
        *,
        window_bytes: int,
        cache: Cache | None = None,
        whole_files: bool = False,
        on_release: Callable[[int], None] | None = None,
        identities: Sequence[str] | None = None,
    ) -> None:
        self.files, self.window_bytes, self.cache = list(files), window_bytes, cache
        self.whole_files, self._on_release = whole_files, on_release
        self._identities = [info.etag for _, info in files] if identities is None else list(identities)
        self.landings = [_core.Landing(info.size) for _, info in files]
        self.fetched_bytes = self.requests = self.cached_bytes = self.most_bytes = 0
        if cache is not None:
            cache.need(min(PIECE_BYTES, max((info.size for _, info in files), default=0)))
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self._change = threading.Condition()
        self._ranges: dict[int, Resident] = {}
        self._queue: deque[Range] = deque()
        self._threads: set[threading.Thread] = set()
        self._plans: list[Plan] = []
        self._holders: Counter[int] = Counter()  # threads that hold something
        self._clock = itertools.count()
        self._used = 0
        self._changes = 0  # counts whatever may have made room
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the source is closed")

    # What readers do

    def hold(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> "Hold":
        """A hold on byte ranges of files, in any order."""
        return Hold(self, *merge(numbers, starts, stops, 0, 1 << 62))

    def holds_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory at this moment."""
        there = self._ranges.get(number)
        return there is not None and there.is_whole(self.files[number][1].size)

    def slices(self, starts: IntArray, stops: IntArray) -> Iterator[slice]:
        """Runs of byte ranges, in the order given, of which each can be held at once."""
        sizes = stops - starts + 2 * PAGE
        most = max(1, self.window_bytes // 2)
        ends = np.cumsum(sizes)
        low = 0
        while low < len(sizes):
            before = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield slice(low, high)
            low = high

    def refetch(self, number: int) -> None:
        """Fetch all bytes of a file once more, because they are not what they should be; those on disk are removed. Does nothing
        while others read the file.
        """
        with self._change:
            self._check()
            there = self._ranges.get(number)
            if there is None or any(one.holds for one in there.ranges):
                return
            if self._on_release is not None:
                self._on_release(number)
            url, info = self.files[number]
            again = [one for one in there.ranges if one.is_ready]
            for one in again:
                one.is_ready = False
                if self.cache is not None:
                    self.cache.remove(str(url), self._identities[number], info.size, one.start, one.stop)
            self._send(again)

    @property
    def used_bytes(self) -> int:
        """Bytes in memory or on their way."""
        return self._used

    def close(self) -> None:
        """Let go of all memory; what is on its way is given up. Idempotent."""
        with self._change:
            self._closed = True
            self._queue.clear()
            self._change.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(30)
        with self._change:
            for number in list(self._ranges):
                self._drop_file(number)
            self._used = 0

    # Room. All with the lock held

    def _there(self, wanted: "Wanted") -> list[Range]:
        """What of the wanted ranges is here or on its way."""
        parts = ((self._ranges.get(number), starts, stops) for number, starts, stops in _by_file(wanted))
        return [one for there, starts, stops in parts if there is not None for one in there.over(starts, stops)]

    def _absent(self, wanted: "Wanted", gap: int) -> list[Range]:
        """What of the wanted ranges is neither here nor on its way, as requests; those up to ``gap`` bytes apart in one."""
        lost = self._missing(wanted)
        if lost and gap > 0:
            table = np.array(lost, np.int64)
            lost = self._missing(merge(table[:, 0], table[:, 1], table[:, 2], gap, PIECE_BYTES))
        if not lost:
            return []
        table = np.array(lost, np.int64)
        columns = merge(table[:, 0], table[:, 1], table[:, 2], 0, PIECE_BYTES)
        return [Range(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def _missing(self, wanted: "Wanted") -> list[tuple[int, int, int]]:
        nothing = Resident()
        return [
            (number, *part)
            for number, starts, stops in _by_file(wanted)
            for part in self._ranges.get(number, nothing).missing(starts, stops)
        ]

    def _admit(self, wanted: "Wanted", keep: Callable[[Range, int], None], spare: "Plan | None", *, urgent: bool) -> bool:
        """Have the wanted ranges kept, and those that are absent set on their way; False, and nothing done, if there is no room.

        ``keep(range, 1)`` counts the one who keeps it, and ``keep(range, -1)`` takes that back.
        """
        there = self._there(wanted)
        for one in there:
            keep(one, 1)
        new = self._absent(wanted, GAP_BYTES)
        cost = sum(one.cost for one in new)
        if not self._make_room(cost, spare, urgent=False):
            new = self._absent(wanted, 0)
            cost = sum(one.cost for one in new)
        if not self._make_room(cost, spare, urgent):
            for one in there:
                keep(one, -1)
            before = self._used
            for one in there if urgent else ():  # a small part of a large range may be wanted: better fetched again than kept whole
                if not one.is_kept and one.number in self._ranges:
                    self._free(one)
            return self._used < before and self._admit(wanted, keep, spare, urgent=urgent)
        self._used += cost
        self.most_bytes = max(self.most_bytes, self._used)
        for one in new:
            self._ranges.setdefault(one.number, Resident()).add(one)
            keep(one, 1)
        for number, start, stop in _runs(new):
            self.landings[number].expect(start, stop)
        self._send(new)
        return True

    def _send(self, ranges: Sequence[Range]) -> None:
        """Let ranges be fetched."""
        self._queue.extend(ranges)
        for _ in range(min(len(ranges), CONNECTIONS - len(self._threads))):
            thread = threading.Thread(target=self._serve, name="penstock-fetch", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _make_room(self, cost: int, spare: "Plan | None", urgent: bool) -> bool:
        """Let go of what nobody keeps, longest unused first; if it is urgent, also of what other plans will need last."""
        if self._used + cost <= self.window_bytes:
            return True
        idle = sorted(self._idle(), key=lambda one: one.used)
        for one in idle:
            if self._used + cost <= self.window_bytes:
                return True
            self._free(one)
        if urgent:
            for plan in self._plans:
                while plan is not spare and self._used + cost > self.window_bytes and plan._give_up_last():
                    pass
        return self._used + cost <= self.window_bytes

    def _is_waiting_useful(self) -> bool:
        """Whether somebody may let go of something: another thread, or a request that is under way."""
        others = any(thread != threading.get_ident() for thread in self._holders)
        return others or any(not one.is_ready for there in self._ranges.values() for one in there.ranges)

    def _idle(self) -> list[Range]:
        files = self._ranges.values()
        if self.whole_files:
            return [there.ranges[0] for there in files if there.ranges and not any(one.is_kept for one in there.ranges)]
        return [one for there in files for one in there.ranges if not one.is_kept]

    def _free(self, one: Range) -> None:
        """Give the memory of a range back, or of its whole file, if nobody keeps it."""
        self._changes += 1
        there = self._ranges[one.number]
        if self.whole_files:
            if not any(other.is_kept for other in there.ranges):
                self._used -= sum(other.cost for other in there.ranges)
                self._drop_file(one.number)
            return
        low, high = there.free_pages(one)
        there.remove(one)
        self._used -= one.cost
        if not there.ranges:
            self._drop_file(one.number)
        elif low < high:
            self.landings[one.number].release(low, min(high, self.files[one.number][1].size))

    def _drop_file(self, number: int) -> None:
        if self._on_release is not None:
            self._on_release(number)
        self.landings[number].drop()
        del self._ranges[number]

    # Fetching, in threads that live as long as there is something to do

    def _serve(self) -> None:
        while True:
            with self._change:
                if self._closed or not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                one = self._queue.popleft()
            try:
                self._fetch(one)
                error = None
            except BaseException as failure:  # whoever waits for the range is told, whatever it is
                error = failure
            with self._change:
                one.is_ready, one.error = True, error
                if error is not None:
                    self._fail(one)
                self._changes += not one.is_kept
                for plan in self._plans:
                    plan._pump()
                self._change.notify_all()

    def _fail(self, one: Range) -> None:
        """A range that could not be fetched is as if it had never been asked for; those who wait for it are told."""
        there = self._ranges[one.number]
        there.remove(one)
        self._used -= one.cost
        if not there.ranges:
            self._drop_file(one.number)

    def _fetch(self, one: Range) -> None:
        url, info = self.files[one.number]
        landing = self.landings[one.number]

        def write(offset: int, data: Any) -> None:
            if self._closed:
                raise ReadError(f"{url}: closed while it was read")
            landing.write(offset, data)

        kind = self._identities[one.number]
        if self.cache is not None and self.cache.read_into(str(url), kind, info.size, one.start, one.stop, write):
            with self._change:
                self.cached_bytes += one.stop - one.start
            return
        url.objects.read_into(info, one.start, one.stop, write)
        with self._change:
            self.fetched_bytes += one.stop - one.start
            self.requests += 1
        if self.cache is not None:
            self.cache.add(str(url), kind, info.size, one.start, landing.read(one.start, one.stop))


def _by_file(wanted: Wanted) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The ranges of one file after the other."""
    numbers, starts, stops = wanted
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for low, high in pairwise(edges):
        if low < high:
            yield int(numbers[low]), starts[low:high], stops[low:high]


def _runs(ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Sorted ranges, those that touch put together."""
    runs: list[tuple[int, int, int]] = []
    for one in ranges:
        if runs and (runs[-1][0], runs[-1][2]) == (one.number, one.start):
            runs[-1] = one.number, runs[-1][1], one.stop
        else:
            runs.append((one.number, one.start, one.stop))
    return runs


class Hold:
    """Byte ranges that are in memory, and stay there, while the hold is entered."""

    def __init__(self, files: RemoteFiles, numbers: IntArray, starts: IntArray, stops: IntArray) -> None:
        self._files = files
        self._wanted: Wanted = (numbers, starts, stops)
        self._held: list[Range] = []
        self._thread: int | None = None

    @classmethod
    def on(cls, files: RemoteFiles, ranges: Sequence[Range]) -> "Hold":
        """A hold on ranges that somebody keeps, with the window's lock held."""
        hold = cls(files, *NOTHING)
        for one in ranges:
            hold._keep(one, 1)
        hold._begun()
        return hold

    def begin(self) -> None:
        """Set everything on its way; waits only for room."""
        files = self._files
        with files._change:
            if self._thread is not None:
                return
            files._check()
            while not files._admit(self._wanted, self._keep, None, urgent=True):
                if not files._is_waiting_useful():
                    size = int(np.sum(self._wanted[2] - self._wanted[1]))
                    raise WindowTooSmallError(
                        f"{files.files[0][0]}: {size} bytes are needed at once, more than window_bytes={files.window_bytes} can "
                        "hold; read fewer records at a time, or open with a larger window"
                    )
                files._change.wait(60)
                files._check()
            self._begun()

    def _begun(self) -> None:
        self._thread = threading.get_ident()
        self._files._holders[self._thread] += 1

    def _keep(self, one: Range, count: int) -> None:
        one.holds += count
        one.used = next(self._files._clock)
        if count > 0:
            self._held.append(one)
        else:
            self._held.remove(one)

    def ready(self) -> bool:
        """Whether nothing is on its way any more."""
        return all(one.is_ready for one in self._held)

    def wait(self) -> None:
        """Wait for what is on its way; the first failure is raised."""
        files = self._files
        with files._change:
            while not all(one.is_ready for one in self._held):
                files._change.wait(60)
                if files._closed:
                    raise ValueError("the source is closed")
        failed = next((one.error for one in self._held if one.error is not None), None)
        if failed is not None:
            raise failed

    def end(self) -> None:
        """Let go. Idempotent."""
        files = self._files
        with files._change:
            if self._thread is None:
                return
            files._holders[self._thread] -= 1
            files._holders += Counter()  # drops those who hold nothing
            self._thread = None
            for one in self._held:
                one.holds -= 1
                files._changes += not one.is_kept
            self._held.clear()
            for plan in files._plans:
                plan._pump()
            files._change.notify_all()

    def __enter__(self) -> "Hold":
        self.begin()
        try:
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


_open: "weakref.WeakSet[RemoteFiles]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread may be in a request when the interpreter goes."""
    for files in list(_open):
        files.close()


def _begin_anew() -> None:
    """In a forked child: the threads are the parent's, and locks may be held for ever."""
    for files in list(_open):
        numbers = list(files._ranges)
        files._begin()
        for number in numbers:
            files._ranges[number] = Resident()
            files._drop_file(number)


os.register_at_fork(after_in_child=_begin_anew)
