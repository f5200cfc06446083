"""The window: byte ranges of remote objects in memory, a bounded number of them, fetched when they are read or ahead of that.

A range is in one of three hands. A *hold* keeps it while it is read. A *plan* keeps it until the last batch that needs it was
read. What neither keeps stays as long as there is room, and goes when there is none.

Nobody waits for ever: a thread that holds something never waits for room, so whoever waits is waited for by nobody.
"""

import atexit
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import ReadError
from penstock.interfaces import IntArray
from penstock.interrupt import check, patience, shielded
from penstock.remote.cache import Cache
from penstock.remote.hold import ROOM_S, Hold
from penstock.remote.objects import ObjectInfo
from penstock.remote.ranges import merge
from penstock.remote.resident import PAGE, Range
from penstock.remote.room import PIECE_BYTES, Room, Wanted
from penstock.remote.url import UrlPath

if TYPE_CHECKING:
    from penstock.remote.plan import Plan

__all__ = ["CONNECTIONS", "GAP_BYTES", "PIECE_BYTES", "RemoteFiles", "RemoteOptions", "is_changing"]

CONNECTIONS = 16
"""So many requests are under way at once."""

GAP_BYTES = 64 << 10
"""Two ranges with no more bytes than this between them are fetched together."""

CLOSE_S = 30.0
"""So long the end of requests that are under way is waited for."""


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
        self.fetched_bytes = self.requests = self.cached_bytes = self.cache_hits = 0
        self._closed = False
        if cache is not None:
            cache.need(min(PIECE_BYTES, max((info.size for _, info in files), default=0)))
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self._change = threading.Condition()
        sizes = [info.size for _, info in self.files]
        self._room = Room(self.landings, sizes, self.window_bytes, self.whole_files, self._on_release)
        self._queue: deque[Range] = deque()
        self._threads: set[threading.Thread] = set()
        self._plans: list[Plan] = []
        self._holders: Counter[int] = Counter()  # threads that hold something
        self._waiting = 0  # threads that wait for room: plans stand back
        self._bad: set[int] = set()  # files whose bytes are wrong: nobody begins to read them

    @property
    def _is_changing(self) -> bool:
        """Whether this thread has the lock."""
        try:
            self._change.notify(0)
        except RuntimeError:
            return False
        return True

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the source is closed")

    # What readers do

    def hold(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> Hold:
        """A hold on byte ranges of files, in any order."""
        return Hold(self, merge(numbers, starts, stops, 0, 1 << 62))

    def holds_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory at this moment."""
        with self._change:
            return self._room.is_whole(number)

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
        """Fetch all bytes of a file once more, because they are not what they should be; those on disk are removed.

        To be called by a thread that holds nothing. Waits until others have ended reading the file.
        """
        with self._change:
            self._check()
            self._bad.add(number)
            try:
                until = time.monotonic() + ROOM_S
                while self._room.is_held(number) and not self._holders[threading.get_ident()] and time.monotonic() < until:
                    self._wait()
                ranges = self._room.of(number)
                if not self._room.is_held(number) and all(one.is_ready for one in ranges):
                    self._fetch_again(number, ranges)
            finally:
                self._bad.discard(number)
                self._change.notify_all()

    def _fetch_again(self, number: int, ranges: Sequence[Range]) -> None:
        url, info = self.files[number]
        self._room.release(number)
        for one in ranges:
            self._room.change(one, is_ready=False)
            one.is_begun = False
            if self.cache is not None:
                self.cache.remove(str(url), self._identities[number], info.size, one.start, one.stop)
        self._send(ranges)

    @property
    def used_bytes(self) -> int:
        """Bytes in memory or on their way."""
        return self._room.used

    @property
    def most_bytes(self) -> int:
        """The most bytes that ever were."""
        return self._room.most

    def close(self) -> None:
        """Let go of all memory that nobody reads, and of the rest when that ends. What is on its way is given up. Idempotent."""
        with self._change:
            self._closed = True
            self._queue.clear()
            self._change.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        until = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._change:
            self._room.drop_unheld()

    def spent(self, ranges: Sequence[Range]) -> None:
        """Tell the cache which ranges a plan has no more use for: in an order that comes again, they are needed last."""
        cache = self.cache
        if cache is None:
            return
        for one in ranges:
            url, info = self.files[one.number]
            cache.drop(str(url), self._identities[one.number], info.size, one.start, one.stop)

    # Room. All with the lock held

    def _wait(self) -> None:
        """Wait until something changes; plans stand back meanwhile."""
        self._waiting += 1
        try:
            self._change.wait(patience())
            check()
        finally:
            self._waiting -= 1
        self._check()

    def _is_waiting_useful(self) -> bool:
        """Whether room may come: from another thread, or from a request that is under way. Who holds something never waits."""
        if self._holders[threading.get_ident()]:
            return False
        return bool(self._holders.total()) or self._room.under_way > 0

    def _admit(
        self, wanted: Wanted, *, holds: int = 0, plans: int = 0, spare: "Plan | None" = None, urgent: bool = False
    ) -> list[Range] | None:
        """Have the wanted ranges kept, and those that are absent set on their way; None, and nothing done, if there is no room.

        If it is urgent, plans other than ``spare`` give up what they need last.
        """
        room = self._room
        there = room.over(wanted)
        self._keep(there, holds, plans)
        new = None
        try:
            new = self._new(wanted, spare, urgent)
            if new is not None:
                self._begin_fetch(new)
        finally:
            if new is None or not all(map(room.has, new)):
                self._keep(there, -holds, -plans)
        if new is not None:
            self._keep(new, holds, plans)
            return [*there, *new]
        # A small part of a large idle range may be wanted: better fetched again than kept whole.
        if urgent and room.let_go_of_idle(there):
            return self._admit(wanted, holds=holds, plans=plans, spare=spare, urgent=urgent)
        return None

    def _keep(self, ranges: Sequence[Range], holds: int, plans: int) -> None:
        for one in ranges:
            self._room.change(one, holds=holds, plans=plans)

    def _new(self, wanted: Wanted, spare: "Plan | None", urgent: bool) -> list[Range] | None:
        """The ranges that are absent, for which there is room now."""
        cost = 0
        for gap in (GAP_BYTES, 0):
            new = self._room.absent(wanted, gap)
            cost = sum(one.cost for one in new)
            if self._room.make(cost):
                return new
        for plan in self._plans if urgent else ():
            while plan is not spare and not self._room.would_fit(cost) and plan.give_up():
                pass
        return self._room.absent(wanted, 0) if self._room.make(cost) else None

    def _begin_fetch(self, new: Sequence[Range]) -> None:
        """Set new ranges on their way; if that fails, they are as if they had never been."""
        for number, start, stop in _runs(new):
            self.landings[number].expect(start, stop)
        self._room.add(new)
        try:
            self._send(new)
        except BaseException:
            self._cancel(new)
            raise

    def _cancel(self, ranges: Sequence[Range]) -> None:
        """Take ranges out that nobody has begun to fetch."""
        for one in ranges:
            if one in self._queue:
                self._queue.remove(one)
            self._room.remove(one)

    def _give_back(self, one: Range) -> None:
        """A plan no longer needs a range: it leaves the window, unless others keep it; if it was not begun, it is not fetched."""
        self._room.change(one, plans=-1)
        if one.holds or one.plans:
            return
        if one.is_ready:
            self._room.let_go_of_idle([one])
        elif not one.is_begun and self._room.has(one):
            self._cancel([one])

    # Fetching, in threads that live as long as there is something to do

    def _send(self, ranges: Sequence[Range]) -> None:
        """Let ranges be fetched."""
        self._queue.extend(ranges)
        for _ in range(min(len(ranges), CONNECTIONS - len(self._threads))):
            thread = threading.Thread(target=self._serve, name="penstock-fetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: those that there are do the work, if there are any
                if not self._threads:
                    raise
                return
            self._threads.add(thread)

    def _serve(self) -> None:
        while True:
            with self._change:
                if self._closed or not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                one = self._queue.popleft()
                one.is_begun = True
            error: BaseException | None = None
            try:
                self._fetch(one)
            except BaseException as failure:  # whoever waits for the range is told, whatever it is
                error = failure
            with self._change:
                self._arrived(one, error)
                self._change.notify_all()

    def _arrived(self, one: Range, error: BaseException | None) -> None:
        """A range that could not be fetched is as if it had never been asked for; those who wait for it are told."""
        if error is not None:
            self._room.remove(one)
        self._room.change(one, is_ready=True)
        one.error = error
        self._pump()

    def _pump(self) -> None:
        """Let plans use the room that there may be."""
        if not self._closed and not self._waiting:
            for plan in self._plans:
                plan.pump()

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
                self.cache_hits += 1
            return
        url.objects.read_into(info, one.start, one.stop, write)
        with self._change:
            self.fetched_bytes += one.stop - one.start
            self.requests += 1
        if self.cache is not None:
            self.cache.add(str(url), kind, info.size, one.start, landing.read(one.start, one.stop))


def _runs(ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Sorted ranges, those that touch put together."""
    runs: list[tuple[int, int, int]] = []
    for one in ranges:
        if runs and (runs[-1][0], runs[-1][2]) == (one.number, one.start):
            runs[-1] = one.number, runs[-1][1], one.stop
        else:
            runs.append((one.number, one.start, one.stop))
    return runs


_open: "weakref.WeakSet[RemoteFiles]" = weakref.WeakSet()


def is_changing() -> bool:
    """Whether this thread is in the middle of a change of a window, as only a finalizer may find it."""
    return any(files._is_changing for files in list(_open))


@atexit.register
@shielded
def _close_all() -> None:
    """No thread may be in a request when the interpreter goes."""
    for files in list(_open):
        files.close()


def _begin_anew() -> None:
    """In a forked child: the threads are the parent's, and locks may be held for ever."""
    for files in list(_open):
        files._begin()
        for number, landing in enumerate(files.landings):
            if files._on_release is not None and landing.is_mapped:
                files._on_release(number)
            landing.drop()


os.register_at_fork(after_in_child=_begin_anew)
