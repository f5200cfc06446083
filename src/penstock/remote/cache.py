"""A bounded directory of byte ranges of objects, shared by all processes of a host.

To add a range, a process reserves its bytes under the lock, writes a file in ``incoming`` and renames it. The figure in the ledger
is never below what is on disk: bytes are reserved before a file is created, and freed by counting all files when the limit is
reached. Readers take no lock: a file that is removed while it is read stays whole for them.
"""

import contextlib
import hashlib
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.argument import whole_number
from penstock.errors import CacheTooSmallError
from penstock.remote.cache_files import (
    Bytes,
    DamagedError,
    Extent,
    Ledger,
    claim,
    entry_bytes,
    entry_extent,
    entry_name,
    exists,
    files,
    folder_files,
    incoming_file,
    locked,
    make_head,
    opened,
    opened_file,
    pieces,
    publish,
    remove,
    sweep,
    write_all,
)

__all__ = ["Cache", "CacheStatistics"]

SETTLED_NS = 100_000_000
"""The times of directories are coarse: a listing is remembered only if the directory has not changed for this long."""
MOST_LISTINGS = 4096
MOST_SPARE_BYTES = 1 << 30
PAUSE_S = 60.0
"""After a timeout of the lock, nothing is added for this long, so that readers do not wait again and again."""


@dataclass(frozen=True)
class CacheStatistics:
    """Counts since this process opened the cache. Every range that was added counts as a miss."""

    hits: int = 0
    misses: int = 0
    served_bytes: int = 0
    kept_bytes: int = 0
    evictions: int = 0
    damaged: int = 0
    not_kept: int = 0


class Cache:
    """Byte ranges of objects in a directory of at most ``limit`` bytes. Safe in threads and processes, after fork and pickled.

    The directory is made if needed; one with anything else in it is refused. Ranges of an object without an etag are not kept:
    nothing would tell when it is another one.
    """

    def __init__(self, directory: str | os.PathLike[str], limit: int) -> None:
        self._directory = os.path.realpath(directory)
        self._limit = whole_number("cache_bytes", limit, least=1)
        claim(self._directory)
        self._state = _State()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._directory, self._limit)

    def __repr__(self) -> str:
        return f"Cache({self._directory!r}, {self._limit})"

    @property
    def limit(self) -> int:
        """The most bytes on disk."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes on disk now, of all processes, half-written ranges included."""
        try:
            with opened(self._directory, os.O_DIRECTORY) as root:
                kept, coming = files(root)
                return coming + sum(file.size for file in kept)
        except FileNotFoundError:
            return 0

    @property
    def statistics(self) -> CacheStatistics:
        return self._here().statistics

    def need(self, largest: int) -> None:
        """CacheTooSmallError unless a range of ``largest`` bytes can be kept."""
        if entry_bytes(largest) > self._limit:
            raise CacheTooSmallError(
                f"{self._directory}: a range of {largest} bytes takes {entry_bytes(largest)} bytes on disk, and the cache may have "
                f"{self._limit}; open with a larger cache_bytes, or without a cache"
            )

    # Reading

    def covered(self, url: str, etag: str | None, size: int, start: int, stop: int) -> list[Extent]:
        """The parts of [start, stop) in the cache: disjoint, in order. They may be evicted a moment later."""
        entries, found = self._entries(_identity(url, etag, size)), list[Extent]()
        first = bisect_right(entries, start, key=lambda entry: entry[1])
        last = bisect_left(entries, stop, key=lambda entry: entry[0])
        for low, high in entries[first:last] if start < stop else []:
            begin = found.pop()[0] if found and low <= found[-1][1] else max(low, start)
            found.append((begin, min(high, stop)))
        return found

    def read_into(
        self, url: str, etag: str | None, size: int, start: int, stop: int, write: Callable[[int, memoryview], None]
    ) -> bool:
        """Give all of [start, stop) to ``write``, piece by piece: offset in the object, and bytes that are valid during the call.

        False if something is missing or damaged; the pieces before that were right. A damaged file is removed.
        """
        identity, position = _identity(url, etag, size), start
        while position < stop:
            entries = self._entries(identity)
            place = bisect_right(entries, position, key=lambda entry: entry[0]) - 1
            if place < 0 or entries[place][1] <= position:
                return False
            end = min(stop, entries[place][1])
            if not self._serve(identity, entries[place], position, end, write):
                return False
            position = end
        self._here().count(hits=1, served_bytes=stop - start)
        return True

    def _serve(self, identity: bytes, entry: Extent, low: int, high: int, write: Callable[[int, memoryview], None]) -> bool:
        with contextlib.ExitStack() as stack:
            try:
                root = stack.enter_context(opened(self._directory, os.O_DIRECTORY))
                folder = stack.enter_context(opened(identity.hex(), os.O_DIRECTORY, root))
                file = stack.enter_context(opened_file(entry_name(entry), folder))
            except OSError:  # removed by another process, or not made by one
                self._here().listings.pop(identity, None)
                return False
            try:
                for offset, piece in pieces(file, identity, entry, low, high):
                    write(offset, piece)
            except DamagedError:
                self._here().count(damaged=1)
                self._here().listings.pop(identity, None)
                with contextlib.suppress(OSError):
                    os.unlink(entry_name(entry), dir_fd=folder)
                return False
            with contextlib.suppress(OSError):  # a directory that can only be read
                os.utime(file)
        return True

    def _entries(self, identity: bytes) -> list[Extent]:
        """The ranges of an object, rising; those within others are left out, so that the stops rise as well."""
        listings = self._here().listings
        path = os.path.join(self._directory, identity.hex())
        try:
            changed = os.stat(path, follow_symlinks=False).st_mtime_ns
            if (known := listings.get(identity)) is not None and known[0] == changed:
                return known[1]
            with opened(path, os.O_DIRECTORY) as folder:
                names = os.listdir(folder)
        except OSError:
            return []
        found = sorted((entry for name in names if (entry := entry_extent(name))), key=lambda entry: (entry[0], -entry[1]))
        entries: list[Extent] = []
        for entry in found:
            if not entries or entry[1] > entries[-1][1]:
                entries.append(entry)
        if time.time_ns() - changed > SETTLED_NS:
            if len(listings) >= MOST_LISTINGS:
                listings.clear()
            listings[identity] = (changed, entries)
        return entries

    # Keeping

    def add(self, url: str, etag: str | None, size: int, start: int, data: bytes | bytearray | memoryview | Bytes) -> None:
        """Keep the bytes of an object from ``start`` on; others may be evicted for them.

        Never raises for a full disk, a directory that cannot be written or a timeout of the lock: then they are not kept.
        """
        array, here = np.frombuffer(data, np.uint8), self._here()
        kept = False
        if etag is not None and array.size > 0 and time.monotonic() >= here.paused_until:
            try:
                kept = self._keep(_identity(url, etag, size), start, array)
            except TimeoutError:
                here.paused_until = time.monotonic() + PAUSE_S
            except OSError:
                pass
        here.count(misses=1, kept_bytes=array.size * kept, not_kept=not kept)

    def drop(self, url: str, etag: str | None, size: int, start: int, stop: int) -> None:
        """Files within [start, stop) are not needed any more: they are the first to be evicted."""
        identity = _identity(url, etag, size)
        within = [entry for entry in self._entries(identity) if start <= entry[0] and entry[1] <= stop]
        with (
            contextlib.suppress(OSError),
            opened(self._directory, os.O_DIRECTORY) as root,
            opened(identity.hex(), os.O_DIRECTORY, root) as folder,
        ):
            for entry in within:
                with contextlib.suppress(OSError):
                    os.utime(entry_name(entry), ns=(time.time_ns(), 0), dir_fd=folder, follow_symlinks=False)

    def remove(self, url: str, etag: str | None, size: int, start: int, stop: int) -> None:
        """Files that overlap [start, stop) turned out to be wrong: they are removed at once."""
        identity = _identity(url, etag, size)
        with contextlib.suppress(OSError), opened(self._directory, os.O_DIRECTORY) as root:
            for file in folder_files(root, identity.hex()):
                entry = entry_extent(file.name)
                if entry is not None and entry[0] < stop and start < entry[1]:
                    remove(root, file.folder, file.name)
        self._here().listings.pop(identity, None)

    def _keep(self, identity: bytes, start: int, data: Bytes) -> bool:
        """Whether the range is in the cache now."""
        total, folder, name = entry_bytes(data.size), identity.hex(), entry_name((start, start + data.size))
        if total > self._limit:
            return False
        head = make_head(identity, start, data)
        with opened(self._directory, os.O_DIRECTORY) as root, contextlib.ExitStack() as stack:
            with locked(root) as ledger:
                if exists(root, folder, name):
                    return True
                if not self._reserve(root, ledger, total):
                    return False
                incoming, descriptor = stack.enter_context(incoming_file(root, total))
            write_all(descriptor, [head, data])
            with locked(root):
                publish(root, incoming, folder, name)
        return True

    def _reserve(self, root: int, ledger: Ledger, total: int) -> bool:
        """Whether ``total`` bytes could be reserved, after eviction if necessary. Under the lock."""
        here, used = self._here(), ledger.used
        if used is None or not here.counted or used + total > self._limit:
            # Once in every process also below the limit: after a power cut the figure may be too low.
            used = self._make_room(root, total)
            here.counted = True
        if used + total > self._limit:
            return False
        ledger.used = used + total
        return True

    def _make_room(self, root: int, total: int) -> int:
        """Evict until ``total`` bytes fit: dropped files, then least recently used; the bytes that remain."""
        sweep(root)
        kept, coming = files(root)
        used = coming + sum(file.size for file in kept)
        if used + total > self._limit:
            spare = min(self._limit // 16, MOST_SPARE_BYTES)  # so that not every addition counts all files
            for file in sorted(kept, key=lambda file: file.order):
                if used + total + spare <= self._limit:
                    break
                if remove(root, file.folder, file.name):
                    used -= file.size
                    self._here().count(evictions=1)
        return used

    def _here(self) -> "_State":
        """The state of this process. A forked child has a new one: a thread of the parent may have held the lock."""
        if self._state.process != os.getpid():
            self._state = _State()
        return self._state


class _State:
    """The state of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.statistics = CacheStatistics()
        self.listings: dict[bytes, tuple[int, list[Extent]]] = {}
        self.counted = False
        self.paused_until = 0.0
        self._lock = threading.Lock()

    def count(self, **more: int) -> None:
        with self._lock:
            self.statistics = replace(
                self.statistics, **{name: getattr(self.statistics, name) + value for name, value in more.items()}
            )


def _identity(url: str, etag: str | None, size: int) -> bytes:
    """A digest that says which version of which object."""
    return hashlib.sha256(repr((url, etag, size)).encode()).digest()
