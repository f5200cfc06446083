"""The window: a bounded number of bytes of remote objects in memory, fetched when they are read or prefetched.

A *hold* keeps byte ranges in memory while they are read. A *plan* (plan.py) keeps them until the last batch that needs them was
read. A range that neither keeps stays until its memory is needed. Sources that were opened together share one window: memory goes
to the source that needs it.

No deadlock: a thread that holds ranges never waits for those of other threads, so the wait graph has no cycle.
"""

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from penstock.argument import IntArray, byte_size
from penstock.errors import ReadError, WindowTooSmallError
from penstock.interrupt import check, patience, shielded
from penstock.native import _core
from penstock.remote.cache import Cache
from penstock.remote.objects import ObjectInfo
from penstock.remote.peers import Peers, Supply
from penstock.remote.residency import (
    CLOSED_FILE,
    GAP_BYTES,
    NOTHING,
    PAGE,
    PAGE_GAP,
    PIECE_BYTES,
    Extents,
    LandedFile,
    Range,
    Residency,
    merge,
    page_bytes,
    slices_of,
)
from penstock.remote.url import UrlPath

__all__ = ["ROOM_S", "Hold", "Prefetcher", "RemoteFiles", "RemoteOptions", "SharedWindow", "Traffic", "Window", "is_changing"]

ROOM_S = 600.0
"""The longest wait of a reader for memory that others hold."""

IDLE_S = 5.0
"""A thread that fetches ends after this long without work, and at once when no plan is left."""

CLOSE_S = 30.0
"""The longest wait for the end of requests when files are closed."""


class SharedWindow:
    """The window of sources that are opened together, made when the first of them is opened. A pickle carries none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._window: Window | None = None

    def get(self, limit: int) -> "Window":
        with self._lock:
            if self._window is None:
                self._window = Window(limit)
            return self._window

    def __reduce__(self) -> tuple[type["SharedWindow"], tuple[()]]:
        return SharedWindow, ()


@dataclass(frozen=True)
class RemoteOptions:
    """How remote data is read: the same options for every source.

    ``window_bytes`` bounds what is in memory, ``cache`` is a directory for at most ``cache_bytes`` of what was fetched.
    """

    window_bytes: int | str = "4GiB"
    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | str = "50GB"
    peers: Peers | None = field(default=None, compare=False)
    """The processes that fetch together; needs a cache."""
    shared: SharedWindow | None = field(default=None, compare=False, repr=False)
    """The window of sources that are opened together."""

    def open_files(
        self,
        files: Sequence[tuple[UrlPath, ObjectInfo]],
        *,
        whole_files: bool = False,
        on_release: Callable[[int], None] | None = None,
        identities: Sequence[str] | None = None,
    ) -> "RemoteFiles":
        limit = byte_size("window_bytes", self.window_bytes, least=PAGE)
        self._check_peers(files)
        cache = None if self.cache is None else Cache(self.cache, byte_size("cache_bytes", self.cache_bytes, least=1))
        window = None if self.shared is None else self.shared.get(limit)
        return RemoteFiles(
            files,
            window_bytes=limit,
            cache=cache,
            whole_files=whole_files,
            on_release=on_release,
            identities=identities,
            window=window,
            peers=self.peers,
        )

    def _check_peers(self, files: Sequence[tuple[UrlPath, ObjectInfo]]) -> None:
        if self.peers is None:
            return
        if not isinstance(self.peers, Peers):
            raise TypeError(f"expected peers to be penstock.Peers, got {type(self.peers).__name__}")
        if self.cache is None:
            raise ValueError("peers= needs cache=, a directory: what a process fetches for its peers is kept there")
        local = next((str(url) for url, _ in files if url.objects.scheme == "memory"), None)
        if local is not None:
            raise ValueError(f"{local}: objects in memory are this process's own; open them without peers=")


class Prefetcher(Protocol):
    """What reserves ranges before they are read. The window calls it with its lock held."""

    def prefetch(self) -> object:
        """Reserve more, if there is memory for it."""

    def give_up(self) -> bool:
        """Release what is needed last of that which can be evicted now; False if there is nothing."""


@dataclass
class Traffic:
    """What was read of files: from the object store, from the disk cache, and from peers."""

    fetched_bytes: int = 0
    requests: int = 0
    cached_bytes: int = 0
    cache_hits: int = 0
    peer_bytes: int = 0

    def add(self, kind: str, num_bytes: int) -> None:
        """A range came; see ``peers.Count``."""
        if kind == "fetched":
            self.fetched_bytes += num_bytes
            self.requests += 1
        elif kind == "cached":
            self.cached_bytes += num_bytes
            self.cache_hits += 1
        else:
            self.peer_bytes += num_bytes


@dataclass(eq=False, slots=True)
class _Download:
    """Where a file comes from and goes to."""

    supply: Supply
    landing: _core.Landing
    traffic: tuple[Traffic, ...]
    is_stopped: bool = False

    @property
    def url(self) -> UrlPath:
        return self.supply.url

    def fetch(self, one: Range, lock: threading.Condition) -> None:
        """Bring a range into memory."""

        def count(kind: str, num_bytes: int) -> None:
            with lock:
                for traffic in self.traffic:
                    traffic.add(kind, num_bytes)

        self.supply.bring(one.start, one.stop, self, count, self._ask)

    def write(self, offset: int, data: Any) -> None:
        if self.is_stopped:
            raise ReadError(f"{self.url}: closed while it was read")
        self.landing.write(offset, data)

    def receive(self, socket: int, start: int, stop: int, seconds: float) -> tuple[int, bool]:
        """From a socket straight into memory; see ``fetch.Receive``."""
        self._ask()
        return self.landing.receive(socket, start, stop, seconds)

    def read(self, start: int, stop: int) -> bytes:
        return self.landing.read(start, stop)

    def _ask(self) -> None:
        self.write(0, b"")


class Window:
    """The memory of files that are numbered in the order in which they come: at most ``limit`` bytes.

    Safe to use from several threads; a forked child begins with an empty one. Methods that say so need ``lock`` held.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.number, self.traffic = limit, next(_numbers), Traffic()
        """``number``: windows are entered in the order of their numbers. ``traffic``: of all files that were ever in the window."""
        self._num_open = 0
        self._downloads: list[_Download | None] = []  # None: closed, and nothing of it is in memory
        self._memory: list[LandedFile] = []
        self._begin()
        _open[self.number] = self

    def _begin(self) -> None:
        guard = threading.RLock()
        self.lock = threading.Condition(guard)
        """Guards everything that changes; notified when memory or bytes may have come."""
        self._work = threading.Condition(guard)  # the same lock; notified when there are ranges to fetch
        self.residency = Residency(self.limit, self._memory)
        self._queue: deque[Range] = deque()
        self._num_idle = 0
        self._threads: dict[threading.Thread, int] = {}  # and the number of the file that each fetches, or -1
        self.prefetchers: list[Prefetcher] = []
        """The plans, that prefetch when memory may be free."""
        self.num_waiting = 0
        """Threads that wait for memory: nothing is prefetched meanwhile."""
        self.turns: list[Prefetcher] = []
        """The plans that wait for a step, in the order in which they came. None takes memory from an earlier one: otherwise two
        steps that do not fit together evict each other's ranges without end."""
        self._holders: Counter[threading.Thread] = Counter()  # holds by thread, whose ident another may get when it has ended
        self._bad: set[int] = set()  # files that are about to be fetched again: no new hold on them
        self._failed: set[int] = set()  # files whose last range could not be fetched

    def begin_anew(self) -> None:
        """In a forked child: the threads are the parent's, and locks may be held by them."""
        self._begin()
        for memory in self._memory:
            if memory.on_release is not None and memory.landing.is_mapped:
                memory.on_release()
            memory.landing.drop()

    def register(self, downloads: Sequence[_Download], memory: Sequence[LandedFile]) -> range:
        """More files, and the numbers that they get."""
        with self.lock:
            first = len(self._downloads)
            self._downloads += downloads
            self._num_open += len(downloads)
            self._memory += memory
            self.residency.register(memory)
            return range(first, first + len(downloads))

    def close(self, numbers: range | None = None) -> None:
        """Free all memory of files that is not being read, and the rest when that ends. Requests under way are abandoned."""
        with self.lock:
            numbers = range(len(self._downloads)) if numbers is None else numbers
            for download in self._downloads[numbers.start : numbers.stop]:
                if download is not None:
                    self._num_open -= not download.is_stopped
                    download.is_stopped = True
            for one in [one for one in self._queue if one.number in numbers]:
                self._cancel([one])
                one.is_ready, one.error = True, ValueError("the source is closed")
            self.lock.notify_all()
            self._work.notify_all()
            self._join(numbers, time.monotonic() + CLOSE_S)
            threads = list(self._threads) if self.is_closed else []
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)
        with self.lock:
            self._drop_closed(numbers)

    def _drop_closed(self, numbers: range) -> None:
        """Free the memory of files that are closed, and that no thread reads or writes. Of such a file only the number is left."""
        busy = set(self._threads.values())
        still = [number for number in numbers if number not in busy]
        self.residency.drop_unheld(still)
        for number in still:
            if not self.residency.ranges_of(number):
                self._downloads[number], self._memory[number] = None, CLOSED_FILE
                self.residency.forget(number)

    def _join(self, numbers: range, until: float) -> None:
        me = threading.current_thread()
        while any(busy in numbers for thread, busy in self._threads.items() if thread is not me) and time.monotonic() < until:
            self.lock.wait(0.1)

    # With the lock held

    @property
    def is_closed(self) -> bool:
        """Whether all files are closed."""
        return bool(self._downloads) and self._num_open == 0

    def is_open(self, numbers: IntArray) -> bool:
        """Whether none of the files is closed."""
        return not any(map(self._is_stopped, set(numbers.tolist())))

    def may_prefetch(self, numbers: IntArray) -> bool:
        """Whether plans may ask for files: not for closed ones, nor for those that just failed, of which a batch says why."""
        return self.is_open(numbers) and self._failed.isdisjoint(numbers.tolist())

    def _is_stopped(self, number: int) -> bool:
        download = self._downloads[number]
        return download is None or download.is_stopped

    def check_open(self) -> None:
        """ValueError if all files are closed."""
        if self.is_closed:
            raise ValueError("the source is closed")

    def admit(
        self, wanted: Extents, *, holds: int = 0, plans: int = 0, spare: Prefetcher | None = None, urgent: bool = False
    ) -> list[Range] | None:
        """Keep the wanted ranges, and fetch those that are missing; None, and nothing done, if there is no memory.

        If it is urgent, plans other than ``spare``, and those whose turn is before its, give up what they need last.
        """
        residency = self.residency
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

    def missing_bytes(self, wanted: Extents) -> int:
        """The memory that is needed for the part of the wanted ranges that is not there."""
        return sum(one.cost for one in self.residency.missing(wanted, PAGE_GAP))

    def wait_for_room(self, wanted: Extents, until: float, plan: Prefetcher | None = None) -> bool:
        """Wait for a change; False, without waiting, if none can free memory for the ranges or it is later than ``until``.

        Memory comes from a request that ends, which it does by itself, or from other threads: those that hold something, and those
        whose turn is before that of ``plan``. A thread that holds something never waits for others, unless all of it is in windows
        that are entered before this one.
        """
        may_wait = not any(window.is_holder() for window in _windows() if window.number >= self.number)
        can_come = self.residency.fetching > 0 or (may_wait and bool(self._holders.total() or self._earlier(plan)))
        if not can_come or time.monotonic() > until or page_bytes(wanted) > self.limit:
            self.lock.notify_all()  # plans may have given up in vain what other threads wait for
            return False
        self._wait()
        return True

    # For holds, with the lock held

    def acquire(self, wanted: Extents) -> list[Range]:
        """Keep the wanted ranges until ``release``; waits only for memory, and fails if none can come."""
        until = time.monotonic() + ROOM_S
        self._check_wanted(wanted)
        while self._must_wait_for_refetch(wanted) and time.monotonic() < until:
            self._wait()
            self._check_wanted(wanted)
        while (held := self.admit(wanted, holds=1, urgent=True)) is None:
            if self.wait_for_room(wanted, until):
                self._check_wanted(wanted)
            elif not self._free_more(wanted):
                size = self.missing_bytes(wanted)
                raise WindowTooSmallError(
                    f"{self.name_of(wanted)}: {size} bytes are needed at once, more than window_bytes={self.limit} can hold "
                    "in addition to what is being read; read fewer records at a time, or open with a larger window"
                )
        self._holders[threading.current_thread()] += 1
        return held

    def _check_wanted(self, wanted: Extents) -> None:
        """ValueError if a file is closed: also after a wait, for others of a shared window may be open."""
        if not self.is_open(wanted[0]):
            raise ValueError("the source is closed")

    def _free_more(self, wanted: Extents) -> bool:
        """Free what makes the wanted ranges take more memory than they have to; whether there was anything.

        Idle ranges in holes between them cut them in pieces. A plan may keep more than the part that is wanted.
        """
        if page_bytes(wanted) > self.limit:
            return False
        near = [one for number in set(wanted[0].tolist()) for one in self.residency.ranges_of(number)]
        return self.residency.evict_idle(near) or any(prefetcher.give_up() for prefetcher in self.prefetchers)

    def name_of(self, wanted: Extents) -> str:
        """A file to name in a message."""
        download = self._downloads[int(wanted[0][0]) if wanted[0].size else 0]
        return "a closed file" if download is None else str(download.url)

    def release(self, held: Sequence[Range], thread: threading.Thread) -> None:
        """What a thread held was read."""
        self._holders[thread] -= 1
        self._holders += Counter()  # drops threads without holds
        self._keep(held, -1, 0)
        for number in {one.number for one in held if self._is_stopped(one.number)}:
            self._drop_closed(range(number, number + 1))
        self.prefetch()
        self.lock.notify_all()

    def refetch(self, number: int) -> None:
        """Fetch all bytes of a file again, because they are wrong. Waits until other threads have read what they hold of it."""
        residency = self.residency
        self._bad.add(number)
        try:
            until = time.monotonic() + ROOM_S
            while residency.is_held(number) and not self.is_holder() and time.monotonic() < until:
                self._wait()
            ranges, download = residency.ranges_of(number), self._downloads[number]
            if download is not None and not residency.is_held(number) and all(one.is_ready for one in ranges):
                residency.announce_release(number)
                download.supply = replace(download.supply, peers=None)  # if a peer was wrong, it would be again
                for one in ranges:
                    residency.change(one, is_ready=False)
                    one.is_begun = False
                    download.supply.forget(one.start, one.stop)
                self._send(ranges)
        finally:
            self._bad.discard(number)
            self.lock.notify_all()

    # For plans, with the lock held; ``spent`` without it

    def give_back(self, ranges: Sequence[Range], *, evict: bool) -> None:
        """A plan does not need ranges any more: their fetch is canceled if not begun, unless others keep them."""
        unused = []
        for one in ranges:
            self.residency.change(one, plans=-1)
            if one.holds or one.plans:
                continue
            if one.is_ready:
                unused.append(one)
            elif not one.is_begun and self.residency.has(one):
                self._cancel([one])
        self.residency.evict_idle(unused if evict else [])

    def hold_kept(self, ranges: Sequence[Range]) -> "Hold":
        """A hold on ranges that a plan keeps, begun."""
        self._keep(ranges, 1, 0)
        self._holders[threading.current_thread()] += 1
        return Hold(self, NOTHING, ranges)

    def remove_prefetcher(self, one: Prefetcher) -> None:
        """A plan is over: nothing more is fetched for it."""
        self.prefetchers.remove(one)
        self._work.notify_all()

    def prefetch(self) -> None:
        """Let plans use the memory that may be free."""
        if not self.num_waiting and not self.is_closed:
            for prefetcher in self.prefetchers:
                prefetcher.prefetch()

    def spent(self, ranges: Sequence[Range]) -> None:
        """Tell the cache which ranges a plan is done with: their next use is furthest away."""
        for one in ranges:
            if (download := self._downloads[one.number]) is not None:
                download.supply.drop(one.start, one.stop)

    # With the lock held

    def is_holder(self) -> bool:
        return self._holders[threading.current_thread()] > 0

    def _must_wait_for_refetch(self, wanted: Extents) -> bool:
        """Whether one of the files is about to be fetched again; not if that may wait for this thread."""
        return bool(self._bad) and not self.is_holder() and not self._bad.isdisjoint(wanted[0].tolist())

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
            self.residency.change(one, holds=holds, plans=plans)

    def _new(self, wanted: Extents, spare: Prefetcher | None, urgent: bool) -> list[Range] | None:
        """The ranges that are missing, if there is memory for them now."""
        cost = 0
        for gap in (GAP_BYTES, PAGE_GAP):
            new = self.residency.missing(wanted, gap)
            cost = sum(one.cost for one in new)
            if self.residency.make_room(cost):
                return new
        earlier = self._earlier(spare)
        for prefetcher in self.prefetchers if urgent else ():
            while prefetcher not in (*earlier, spare) and not self.residency.would_fit(cost) and prefetcher.give_up():
                pass
        cost = self.missing_bytes(wanted)  # less than before, if what a plan gave up was in a hole
        return self.residency.missing(wanted, PAGE_GAP) if self.residency.make_room(cost) else None

    def _earlier(self, one: Prefetcher | None) -> list[Prefetcher]:
        """The plans whose turn is before that of one which has a turn."""
        return self.turns[: self.turns.index(one)] if one in self.turns else []

    def _begin_fetch(self, new: Sequence[Range]) -> None:
        """Send new ranges to be fetched; if that fails, nothing has changed."""
        self.residency.add(new)
        try:
            self._send(new)
        except BaseException:
            self._cancel(new)
            raise

    def _cancel(self, ranges: Sequence[Range]) -> None:
        """Remove ranges whose fetch has not begun."""
        for one in ranges:
            if one in self._queue:
                self._queue.remove(one)
            self.residency.remove(one)

    # The threads that fetch. They last as long as there is a plan: it is going to need more

    def _send(self, ranges: Sequence[Range]) -> None:
        self._queue.extend(ranges)
        self._work.notify(len(ranges))
        self._start_threads()

    def _limit(self) -> int:
        """The most requests at a time."""
        found = (self._downloads[one.number] for one in itertools.islice(self._queue, 1))
        return max((one.url.objects.pace.limit for one in found if one is not None), default=0)

    def _start_threads(self) -> None:
        for _ in range(min(len(self._queue) - self._num_idle, self._limit() - len(self._threads))):
            thread = threading.Thread(target=self._serve, name="penstock-fetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: those that there are do the work, if there are any
                if not self._threads:
                    raise
                return
            self._threads[thread] = -1

    def _next_range(self) -> Range | None:
        """What a thread fetches next; None if it is to end."""
        while not self._queue:
            if not self.prefetchers or self.is_closed:
                return None
            self._num_idle += 1
            try:
                if not self._work.wait(IDLE_S) and not self._queue:
                    return None
            finally:
                self._num_idle -= 1
        return None if len(self._threads) > self._limit() else self._queue.popleft()

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            with self.lock:
                one = self._next_range()
                if one is None:
                    self._threads.pop(me, None)
                    return
                one.is_begun = True
                self._threads[me] = one.number
                download = self._downloads[one.number]
                assert download is not None  # ranges that wait are removed when their file is closed
            error: BaseException | None = None
            try:
                download.fetch(one, self.lock)
            except BaseException as failure:  # any error is passed on to the readers that wait for the range
                error = failure
            with self.lock:
                self._threads[me] = -1
                if error is None:
                    download.url.objects.pace.done(one.stop - one.start, others_wait=len(self._queue) > 0)
                self._start_threads()  # the limit may have grown
                self._arrived(one, error)
                self.lock.notify_all()
            del one, error, download

    def _arrived(self, one: Range, error: BaseException | None) -> None:
        """A range that could not be fetched is removed; its readers find the error."""
        if error is None:
            self._failed.discard(one.number)
        else:
            self._failed.add(one.number)
            self.residency.remove(one)
        self.residency.change(one, is_ready=True)
        one.error = error
        if self._is_stopped(one.number):  # closed meanwhile, when its memory was still written to
            self._drop_closed(range(one.number, one.number + 1))
        self.prefetch()


class RemoteFiles:
    """The files of one source, in a window of ``window_bytes`` of their own or in one that they share. Safe for several threads.

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
        window: Window | None = None,
        peers: Peers | None = None,
    ) -> None:
        if cache is not None:
            cache.need(min(PIECE_BYTES, max((info.size for _, info in files), default=0)))
        self.files, self.whole_files = list(files), whole_files
        self.window = Window(window_bytes) if window is None else window
        self.landings = [_core.Landing(info.size) for _, info in files]
        self._traffic = Traffic()
        names = [info.etag for _, info in files] if identities is None else identities
        supplies = [Supply(url, info, cache, name, peers) for (url, info), name in zip(files, names, strict=True)]
        if peers is not None:
            peers.add(supplies)
        traffic = self._traffic, self.window.traffic
        downloads = [_Download(supply, landing, traffic) for supply, landing in zip(supplies, self.landings, strict=True)]
        memory = [
            LandedFile(landing, info.size, whole_files, None if on_release is None else partial(on_release, number))
            for number, ((_, info), landing) in enumerate(zip(files, self.landings, strict=True))
        ]
        self._numbers = self.window.register(downloads, memory)

    @property
    def window_bytes(self) -> int:
        return self.window.limit

    @property
    def first(self) -> int:
        """The number of the first file in the window."""
        return self._numbers.start

    def hold(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> "Hold":
        """A hold on byte ranges of files, in any order."""
        return Hold(self.window, merge(numbers + self.first, starts, stops, 0, 1 << 62))

    def holds_whole(self, number: int) -> bool:
        """Whether all bytes of a file are in memory at this moment."""
        with self.window.lock:
            return self.window.residency.is_whole(self.first + number)

    def slices(self, starts: IntArray, stops: IntArray) -> Iterator[slice]:
        """Runs of byte ranges, in the order given, of which each can be held at once."""
        return slices_of(stops - starts + 2 * PAGE, max(1, self.window_bytes // 2))

    def refetch(self, number: int) -> None:
        """Fetch all bytes of a file again, because they are wrong; those in the cache are removed.

        To be called by a thread that holds nothing.
        """
        with self.window.lock:
            self.window.check_open()
            self.window.refetch(self.first + number)

    @property
    def used_bytes(self) -> int:
        """Bytes of the window in memory or being fetched."""
        return self.window.residency.used

    @property
    def most_bytes(self) -> int:
        """The maximum of ``used_bytes`` so far."""
        return self.window.residency.most

    @property
    def fetched_bytes(self) -> int:
        """Bytes that came from the object store."""
        return self._traffic.fetched_bytes

    @property
    def requests(self) -> int:
        """Ranges that came from the object store."""
        return self._traffic.requests

    @property
    def peer_bytes(self) -> int:
        """Bytes that came from peers."""
        return self._traffic.peer_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes that came from the disk cache."""
        return self._traffic.cached_bytes

    @property
    def cache_hits(self) -> int:
        """Ranges that came from the disk cache."""
        return self._traffic.cache_hits

    def close(self) -> None:
        """Free the memory of these files that is not being read, and the rest when that ends. Idempotent."""
        self.window.close(self._numbers)


class Hold:
    """Byte ranges that are in memory, and stay there, while the hold is entered."""

    def __init__(self, window: Window, wanted: Extents, held: Sequence[Range] | None = None) -> None:
        self._window, self._wanted = window, wanted
        self._held = list(held or ())
        self._thread = None if held is None else threading.current_thread()

    def begin(self) -> None:
        """Begin to fetch what is missing; waits only for memory."""
        window = self._window
        with window.lock:
            window.check_open()
            if self._thread is None:
                self._held = window.acquire(self._wanted)
                self._thread = threading.current_thread()

    def wait(self) -> None:
        """Wait for what is being fetched; the first failure is raised."""
        window = self._window
        with window.lock:
            while not all(one.is_ready for one in self._held):
                window.lock.wait(patience())
                check()
                window.check_open()
        failed = next((one.error for one in self._held if one.error is not None), None)
        if failed is not None:
            raise failed

    def end(self) -> None:
        """Keep nothing any more. Idempotent."""
        with self._window.lock:
            thread, held = self._thread, self._held
            if thread is not None:
                self._thread, self._held = None, []
                self._window.release(held, thread)

    def __enter__(self) -> "Hold":
        try:
            self.begin()  # which fails if the window was closed; the hold may have been begun before
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


_open: "weakref.WeakValueDictionary[int, Window]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _windows() -> list[Window]:
    """All windows. (Other threads may add one meanwhile, which an iteration would not survive.)"""
    return [window for one in _open.valuerefs() if (window := one()) is not None]


def is_changing() -> bool:
    """Whether this thread is in the middle of a change of a window, as only a finalizer may find it."""
    return any(_has(window.lock) for window in _windows())


def _has(lock: threading.Condition) -> bool:
    """Whether this thread holds a lock."""
    try:
        lock.notify(0)
    except RuntimeError:
        return False
    return True


@atexit.register
@shielded
def _close_all() -> None:
    """No thread may be in a request when the interpreter ends."""
    for window in _windows():
        window.close()


def _after_fork() -> None:
    for window in _windows():
        window.begin_anew()


os.register_at_fork(after_in_child=_after_fork)
