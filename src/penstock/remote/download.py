"""Threads that bring byte ranges into memory: from the disk cache, otherwise from the object store."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock import _core
from penstock.errors import ReadError
from penstock.remote.cache import Cache
from penstock.remote.objects import ObjectInfo
from penstock.remote.residency import PIECE_BYTES, Range
from penstock.remote.url import UrlPath

__all__ = ["CONNECTIONS", "Downloader", "join_all"]

CONNECTIONS = 16
"""The most requests at a time."""

CLOSE_S = 30.0
"""The longest wait for the end of requests when a window is closed."""

Arrived: TypeAlias = Callable[[Range, BaseException | None], None]
"""Called with the lock held when a range was fetched, or with the error when it could not be."""


class Downloader:
    """A queue of ranges and up to CONNECTIONS threads that fetch them into ``landings``; a thread ends when the queue is empty.

    The lock is the owner's, and all methods are called with it held. ``identities`` are the versions of the files for the cache;
    their etags if None.
    """

    def __init__(
        self,
        files: Sequence[tuple[UrlPath, ObjectInfo]],
        landings: Sequence[_core.Landing],
        cache: Cache | None,
        identities: Sequence[str] | None,
    ) -> None:
        if cache is not None:
            cache.need(min(PIECE_BYTES, max((info.size for _, info in files), default=0)))
        self._files, self._landings, self._cache = files, landings, cache
        self._identities = [info.etag for _, info in files] if identities is None else list(identities)
        self.fetched_bytes = self.requests = self.cached_bytes = self.cache_hits = 0
        self._is_stopped = False

    def reset(self, lock: threading.Condition) -> None:
        """Begin with an empty queue, no thread and this lock; in a forked child too, where the old ones are the parent's."""
        self._lock = lock
        self._queue: deque[Range] = deque()
        self._threads: set[threading.Thread] = set()

    def send(self, ranges: Sequence[Range], arrived: Arrived) -> None:
        """Queue ranges. ``arrived`` is the same in every call: only the threads keep it, so that the owner is in no cycle."""
        self._queue.extend(ranges)
        for _ in range(min(len(ranges), CONNECTIONS - len(self._threads))):
            thread = threading.Thread(target=self._serve, args=(arrived,), name="penstock-fetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: those that there are do the work, if there are any
                if not self._threads:
                    raise
                return
            self._threads.add(thread)

    def cancel(self, one: Range) -> None:
        """Take a range out of the queue, if it is there."""
        if one in self._queue:
            self._queue.remove(one)

    def stop(self) -> list[threading.Thread]:
        """Fetch nothing more, and abort what is being fetched; the threads that may take a moment to end."""
        self._is_stopped = True
        self._queue.clear()
        return [thread for thread in self._threads if thread is not threading.current_thread()]

    def _serve(self, arrived: Arrived) -> None:
        while True:
            with self._lock:
                if self._is_stopped or not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                one = self._queue.popleft()
                one.is_begun = True
            error: BaseException | None = None
            try:
                self._fetch(one)
            except BaseException as failure:  # readers that wait for the range are told, whatever it is
                error = failure
            with self._lock:
                arrived(one, error)
                self._lock.notify_all()

    def _fetch(self, one: Range) -> None:
        url, info = self._files[one.number]
        landing = self._landings[one.number]

        def write(offset: int, data: Any) -> None:
            if self._is_stopped:
                raise ReadError(f"{url}: closed while it was read")
            landing.write(offset, data)

        identity = self._identities[one.number]
        if self._cache is not None and self._cache.read_into(str(url), identity, info.size, one.start, one.stop, write):
            with self._lock:
                self.cached_bytes += one.stop - one.start
                self.cache_hits += 1
            return
        url.objects.read_into(info, one.start, one.stop, write)
        with self._lock:
            self.fetched_bytes += one.stop - one.start
            self.requests += 1
        if self._cache is not None:
            self._cache.add(str(url), identity, info.size, one.start, landing.read(one.start, one.stop))

    # The disk cache. These need no lock

    def evict_first(self, ranges: Sequence[Range]) -> None:
        """Mark ranges in the cache as the first to evict."""
        cache = self._cache
        if cache is None:
            return
        for one in ranges:
            url, info = self._files[one.number]
            cache.drop(str(url), self._identities[one.number], info.size, one.start, one.stop)

    def forget(self, one: Range) -> None:
        """Remove the bytes of a range from the cache, because they are wrong."""
        if self._cache is not None:
            url, info = self._files[one.number]
            self._cache.remove(str(url), self._identities[one.number], info.size, one.start, one.stop)


def join_all(threads: Sequence[threading.Thread]) -> None:
    """Wait CLOSE_S at most for the end of stopped threads. Without the lock, which they need to end."""
    until = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
