"""The window: a bounded number of bytes of remote objects in memory, fetched when they are read or prefetched.

A *hold* keeps byte ranges in memory while they are read. A *plan* (plan.py) keeps them until the last batch that needs them was
read. A range that neither keeps stays until its memory is needed.

No deadlock: a thread that holds ranges never waits for memory, so the wait graph has no cycle.
"""

import atexit
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import WindowTooSmallError
from penstock.interfaces import IntArray
from penstock.interrupt import check, patience, shielded
from penstock.remote.cache import Cache
from penstock.remote.download import Downloader, join_all
from penstock.remote.objects import ObjectInfo
from penstock.remote.ranges import merge, slices_of
from penstock.remote.residency import GAP_BYTES, NOTHING, PAGE, Extents, Range, Residency
from penstock.remote.url import UrlPath

__all__ = ["ROOM_S", "Hold", "Prefetcher", "RemoteFiles", "RemoteOptions", "is_changing"]

ROOM_S = 600.0
"""The longest wait of a reader for memory that others hold."""


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


class Prefetcher(Protocol):
    """What reserves ranges before they are read. The window calls it with its lock held."""

    def prefetch(self) -> object:
        """Reserve more, if there is memory for it."""

    def give_up(self) -> bool:
        """Release what is needed last of that which can be evicted now; False if there is nothing."""


class RemoteFiles:
    """The files of one source and the window on them. Safe to use from several threads; a forked child begins with an empty one.

    With ``whole_files`` the memory of a file is freed as a whole; ``on_release(number)`` is called before. ``identities`` are the
    versions of the files for the cache; their etags unless given.
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
        self.files, self.window_bytes = list(files), window_bytes
        self.whole_files, self._on_release = whole_files, on_release
        self.landings = [_core.Landing(info.size) for _, info in files]
        self._downloader = Downloader(self.files, self.landings, cache, identities)
        self.is_closed = False
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self.lock = threading.Condition()
        """Guards everything that changes; notified when memory or bytes may have come."""
        sizes = [info.size for _, info in self.files]
        self._residency = Residency(self.landings, sizes, self.window_bytes, self.whole_files, self._on_release)
        self._downloader.reset(self.lock)
        self.prefetchers: list[Prefetcher] = []
        """The plans, that prefetch when memory may be free."""
        self.num_waiting = 0
        """Threads that wait for memory: nothing is prefetched meanwhile."""
        self._holders: Counter[int] = Counter()  # holds by thread
        self._bad: set[int] = set()  # files that are about to be fetched again: no new hold on them

    def begin_anew(self) -> None:
        """In a forked child: the threads are the parent's, and locks may be held by them."""
        self._begin()
        for number, landing in enumerate(self.landings):
            if self._on_release is not None and landing.is_mapped:
                self._on_release(number)
            landing.drop()

    # For readers

    def hold(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> "Hold":
        """A hold on byte ranges of files, in any order."""
        return Hold(self, merge(numbers, starts, stops, 0, 1 << 62))

    def holds_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory at this moment."""
        with self.lock:
            return self._residency.is_whole(number)

    def slices(self, starts: IntArray, stops: IntArray) -> Iterator[slice]:
        """Runs of byte ranges, in the order given, of which each can be held at once."""
        return slices_of(stops - starts + 2 * PAGE, max(1, self.window_bytes // 2))

    def refetch(self, number: int) -> None:
        """Fetch all bytes of a file again, because they are wrong; those in the cache are removed.

        To be called by a thread that holds nothing. Waits until other threads have read what they hold of the file.
        """
        with self.lock:
            self.check_open()
            self._bad.add(number)
            try:
                until = time.monotonic() + ROOM_S
                while self._residency.is_held(number) and not self._is_holder() and time.monotonic() < until:
                    self._wait()
                ranges = self._residency.ranges_of(number)
                if not self._residency.is_held(number) and all(one.is_ready for one in ranges):
                    self._fetch_again(number, ranges)
            finally:
                self._bad.discard(number)
                self.lock.notify_all()

    def _fetch_again(self, number: int, ranges: Sequence[Range]) -> None:
        self._residency.announce_release(number)
        for one in ranges:
            self._residency.change(one, is_ready=False)
            one.is_begun = False
            self._downloader.forget(one)
        self._downloader.send(ranges, self._arrived)

    @property
    def used_bytes(self) -> int:
        """Bytes in memory or being fetched."""
        return self._residency.used

    @property
    def most_bytes(self) -> int:
        """The maximum of ``used_bytes`` so far."""
        return self._residency.most

    @property
    def fetched_bytes(self) -> int:
        """Bytes that came from the object store."""
        return self._downloader.fetched_bytes

    @property
    def requests(self) -> int:
        """Ranges that came from the object store."""
        return self._downloader.requests

    @property
    def cached_bytes(self) -> int:
        """Bytes that came from the disk cache."""
        return self._downloader.cached_bytes

    @property
    def cache_hits(self) -> int:
        """Ranges that came from the disk cache."""
        return self._downloader.cache_hits

    def close(self) -> None:
        """Free all memory that is not being read, and the rest when that ends. Requests under way are abandoned. Idempotent."""
        with self.lock:
            self.is_closed = True
            threads = self._downloader.stop()
            self.lock.notify_all()
        join_all(threads)
        with self.lock:
            self._residency.drop_unheld()

    # For holds and plans, with the lock held

    def check_open(self) -> None:
        """ValueError if the window is closed."""
        if self.is_closed:
            raise ValueError("the source is closed")

    def admit(
        self, wanted: Extents, *, holds: int = 0, plans: int = 0, spare: Prefetcher | None = None, urgent: bool = False
    ) -> list[Range] | None:
        """Keep the wanted ranges, and fetch those that are missing; None, and nothing done, if there is no memory.

        If it is urgent, plans other than ``spare`` give up what they need last.
        """
        residency = self._residency
        there = residency.overlapping(wanted)
        self._keep(there, holds, plans)
        new = None
        try:
            new = self._new(wanted, spare, urgent)
            if new is not None:
                self._begin_fetch(new)
        finally:
            if new is None or not all(map(residency.has, new)):
                self._keep(there, -holds, -plans)
        if new is not None:
            self._keep(new, holds, plans)
            return [*there, *new]
        # A small part of a large idle range may be wanted: better fetched again than kept whole.
        if urgent and residency.evict_idle(there):
            return self.admit(wanted, holds=holds, plans=plans, spare=spare, urgent=urgent)
        return None

    def wait_for_room(self, until: float) -> bool:
        """Wait for a change; False, without waiting, if none can free memory or it is later than ``until``.

        Memory comes from other threads that hold something, or from a request that ends. A thread that holds something never waits.
        """
        can_come = not self._is_holder() and (bool(self._holders.total()) or self._residency.fetching > 0)
        if not can_come or time.monotonic() > until:
            return False
        self._wait()
        return True

    # For holds, with the lock held

    def acquire(self, wanted: Extents) -> list[Range]:
        """Keep the wanted ranges until ``release``; waits only for memory, and fails if none can come."""
        until = time.monotonic() + ROOM_S
        while self._must_wait_for_refetch(wanted) and time.monotonic() < until:
            self._wait()
        while (held := self.admit(wanted, holds=1, urgent=True)) is None:
            if not self.wait_for_room(until):
                size = int(np.sum(wanted[2] - wanted[1]))
                raise WindowTooSmallError(
                    f"{self.files[0][0]}: {size} bytes are needed at once, more than window_bytes={self.window_bytes} can "
                    "hold beside what is being read; read fewer records at a time, or open with a larger window"
                )
        self._holders[threading.get_ident()] += 1
        return held

    def release(self, held: Sequence[Range], thread: int) -> None:
        """What a thread held was read."""
        self._holders[thread] -= 1
        self._holders += Counter()  # drops threads without holds
        self._keep(held, -1, 0)
        if self.is_closed:
            self._residency.drop_unheld()
        self.prefetch()
        self.lock.notify_all()

    # For plans, with the lock held; ``spent`` without it

    @property
    def changes(self) -> int:
        """A count that grows whenever memory may have been freed."""
        return self._residency.changes

    def give_back(self, one: Range) -> None:
        """A plan does not need a range any more: it is evicted, or its fetch canceled if not begun, unless others keep it."""
        self._residency.change(one, plans=-1)
        if one.holds or one.plans:
            return
        if one.is_ready:
            self._residency.evict_idle([one])
        elif not one.is_begun and self._residency.has(one):
            self._cancel([one])

    def hold_kept(self, ranges: Sequence[Range]) -> "Hold":
        """A hold on ranges that a plan keeps, begun."""
        self._keep(ranges, 1, 0)
        self._holders[threading.get_ident()] += 1
        return Hold(self, NOTHING, ranges)

    def prefetch(self) -> None:
        """Let plans use the memory that may be free."""
        if not self.is_closed and not self.num_waiting:
            for prefetcher in self.prefetchers:
                prefetcher.prefetch()

    def spent(self, ranges: Sequence[Range]) -> None:
        """Tell the cache which ranges a plan is done with: their next use is furthest away."""
        self._downloader.evict_first(ranges)

    # With the lock held

    def _is_holder(self) -> bool:
        return self._holders[threading.get_ident()] > 0

    def _must_wait_for_refetch(self, wanted: Extents) -> bool:
        """Whether one of the files is about to be fetched again; not if that may wait for this thread."""
        return bool(self._bad) and not self._is_holder() and not self._bad.isdisjoint(wanted[0].tolist())

    def _wait(self) -> None:
        """Wait until something changes; nothing is prefetched meanwhile."""
        self.num_waiting += 1
        try:
            self.lock.wait(patience())
            check()
        finally:
            self.num_waiting -= 1
        self.check_open()

    def _keep(self, ranges: Sequence[Range], holds: int, plans: int) -> None:
        for one in ranges:
            self._residency.change(one, holds=holds, plans=plans)

    def _new(self, wanted: Extents, spare: Prefetcher | None, urgent: bool) -> list[Range] | None:
        """The ranges that are missing, if there is memory for them now."""
        cost = 0
        for gap in (GAP_BYTES, 0):
            new = self._residency.missing(wanted, gap)
            cost = sum(one.cost for one in new)
            if self._residency.make_room(cost):
                return new
        for prefetcher in self.prefetchers if urgent else ():
            while prefetcher is not spare and not self._residency.would_fit(cost) and prefetcher.give_up():
                pass
        return self._residency.missing(wanted, 0) if self._residency.make_room(cost) else None

    def _begin_fetch(self, new: Sequence[Range]) -> None:
        """Send new ranges to be fetched; if that fails, nothing has changed."""
        self._residency.add(new)
        try:
            self._downloader.send(new, self._arrived)
        except BaseException:
            self._cancel(new)
            raise

    def _cancel(self, ranges: Sequence[Range]) -> None:
        """Remove ranges whose fetch has not begun."""
        for one in ranges:
            self._downloader.cancel(one)
            self._residency.remove(one)

    def _arrived(self, one: Range, error: BaseException | None) -> None:
        """A range that could not be fetched is removed; its readers find the error."""
        if error is not None:
            self._residency.remove(one)
        self._residency.change(one, is_ready=True)
        one.error = error
        self.prefetch()


class Hold:
    """Byte ranges that are in memory, and stay there, while the hold is entered."""

    def __init__(self, files: RemoteFiles, wanted: Extents, held: Sequence[Range] | None = None) -> None:
        self._files, self._wanted = files, wanted
        self._held = list(held or ())
        self._thread = None if held is None else threading.get_ident()

    def begin(self) -> None:
        """Begin to fetch what is missing; waits only for memory."""
        files = self._files
        with files.lock:
            files.check_open()
            if self._thread is None:
                self._held = files.acquire(self._wanted)
                self._thread = threading.get_ident()

    def wait(self) -> None:
        """Wait for what is being fetched; the first failure is raised."""
        files = self._files
        with files.lock:
            while not all(one.is_ready for one in self._held):
                files.lock.wait(patience())
                check()
                files.check_open()
        failed = next((one.error for one in self._held if one.error is not None), None)
        if failed is not None:
            raise failed

    def end(self) -> None:
        """Keep nothing any more. Idempotent."""
        with self._files.lock:
            thread, held = self._thread, self._held
            if thread is not None:
                self._thread, self._held = None, []
                self._files.release(held, thread)

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


def is_changing() -> bool:
    """Whether this thread is in the middle of a change of a window, as only a finalizer may find it."""
    return any(_has(files.lock) for files in list(_open))


def _has(lock: threading.Condition) -> bool:
    """Whether this thread has a lock."""
    try:
        lock.notify(0)
    except RuntimeError:
        return False
    return True


@atexit.register
@shielded
def _close_all() -> None:
    """No thread may be in a request when the interpreter ends."""
    for files in list(_open):
        files.close()


def _after_fork() -> None:
    for files in list(_open):
        files.begin_anew()


os.register_at_fork(after_in_child=_after_fork)
