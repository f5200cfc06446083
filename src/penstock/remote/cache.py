"""A bounded directory of byte ranges of objects, shared by all processes of a host::

    penstock-cache-1         marks the directory as a cache; its lock, and the bytes in use
    claims                   empty; a lock on bytes of it says that a thread fetches a range
    incoming/<random>        ranges that are being written; each is locked by its writer
    <object>/<start>-<stop>  a range of an object; <object> is a digest of address, version and size

The file of a range is a header (magic, digest of the object, start and stop of the range, crc32c of the header and the table), a
table with the crc32c of every page of the range, so that parts can be read and checked, and the bytes of the range. All numbers are
little-endian. Every name is opened relative to a directory that is open already, and links are never followed: nothing outside of
the cache is touched.

To add a range, a process reserves its bytes under the lock, writes a file in ``incoming`` and renames it. The figure in the ledger
is never below what is on disk: bytes are reserved before a file is created, and freed by counting all files when the limit is
reached. Readers take no lock: a file that is removed while it is read stays whole for them.

A thread that is going to fetch a range claims it first, so that no two processes fetch the same bytes. A claim is a lock on bytes
of one file, at an offset that follows from the object and the range: the system knows which ranges overlap, and ends the claims of
a process that was killed. If two objects have the same offset, or a claim is held for too long, a thread waits without need or a
range is fetched twice; no other harm is possible.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import struct
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.errors import CacheTooSmallError
from penstock.native import _core

__all__ = ["Cache", "CacheStatistics", "Extent", "object_digest"]

Bytes = npt.NDArray[np.uint8]

Extent = tuple[int, int]
"""The bytes [start, stop) of an object."""

MARK = "penstock-cache-1"
CLAIMS = "claims"
INCOMING = "incoming"
INCOMING_NAME = re.compile(r"[0-9a-f]{32}")
OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
ENTRY_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")

MAGIC = b"PENRANGE"
FIXED = struct.Struct("<8s32sQQ")
CRC = struct.Struct("<I")
PAGE_BYTES = 1 << 16
PIECE_BYTES = 16 * PAGE_BYTES

LOCK_WAIT_S = 2.0
"""A process that was stopped while it held the lock must not block the others: they continue without the cache."""

CLAIM_WAIT_S = 20.0
"""The longest wait for a range that another thread or process fetches: it may have been stopped. Then it is fetched again."""

OBJECT_BITS = 40
"""Every object has 2**40 bytes of the file of claims, in one of 2**22 slots; and as many for the second kind of claims."""


@dataclass(frozen=True)
class File:
    """The file of a range."""

    folder: str
    name: str
    size: int
    order: tuple[int, int]
    """The order of eviction: dropped files, the latest first (its next use is furthest away); then least recently used."""


def claim(directory: str) -> None:
    """Make a directory a cache; ValueError if it has other files in it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    mark = os.path.join(directory, MARK)
    if os.listdir(directory) and not os.path.lexists(mark):  # in this order: another process may be making it a cache
        raise ValueError(f"{directory}: expected an empty directory or a cache, found other files; give the cache one of its own")
    if not os.path.lexists(mark):
        os.close(os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    if not stat.S_ISREG(os.lstat(mark).st_mode):
        raise ValueError(f"{mark}: expected a regular file, found something else; give the cache a directory of its own")
    with contextlib.suppress(FileExistsError, PermissionError):
        os.mkdir(os.path.join(directory, INCOMING), 0o700)


@contextlib.contextmanager
def opened(name: str, flags: int, within: int | None = None) -> Iterator[int]:
    """A descriptor of a file or directory, never through a link."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_file(name: str, folder: int) -> Iterator[int]:
    """A descriptor of a regular file for reading; OSError if it is anything else."""
    with opened(name, os.O_RDONLY | os.O_NONBLOCK, folder) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(f"{name}: not a regular file")
        yield descriptor


# The lock and what it guards


class Ledger:
    """The bytes in use, a figure in the first file. It is read and written under the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def used(self) -> int | None:
        """None if the files were not counted yet."""
        text = os.pread(self._descriptor, 21, 0)
        return int(text) if re.fullmatch(rb"[0-9]{20}\n", text) else None

    @used.setter
    def used(self, value: int) -> None:
        os.pwrite(self._descriptor, b"%020d\n" % value, 0)


@contextlib.contextmanager
def locked(root: int) -> Iterator[Ledger]:
    """The lock of the cache; TimeoutError after LOCK_WAIT_S."""
    with opened(MARK, os.O_RDWR, root) as descriptor:
        _lock(descriptor)
        try:
            yield Ledger(descriptor)
        finally:
            # Not left to close: a child that was forked meanwhile has a copy of the descriptor, and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int) -> None:
    _poll(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), LOCK_WAIT_S, lambda: None)


def _poll(take: Callable[[], object], seconds: float, ask: Callable[[], None]) -> None:
    """Take a lock; TimeoutError if others have it for so long. ``ask`` is called meanwhile, and ends the wait if it raises."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while True:
        try:
            take()
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a lock of the cache was held for {seconds} seconds") from None
        ask()
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


@contextlib.contextmanager
def locked_bytes(root: int, start: int, stop: int, ask: Callable[[], None]) -> Iterator[None]:
    """A lock on bytes of the file of claims; TimeoutError after CLAIM_WAIT_S."""
    with opened(CLAIMS, os.O_RDWR | os.O_CREAT, root) as descriptor:
        # A lock of the open file, not of the process: threads exclude each other, and no close of another descriptor ends it.
        _poll(lambda: _set_lock(descriptor, fcntl.F_WRLCK, start, stop), CLAIM_WAIT_S, ask)
        try:
            yield
        finally:
            _set_lock(descriptor, fcntl.F_UNLCK, start, stop)  # as above: a forked child may have a copy of the descriptor


def _set_lock(descriptor: int, kind: int, start: int, stop: int) -> None:
    if sys.platform != "linux":
        raise OSError("no locks of open files on this system")
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, stop - start, 0))


# Creating and removing: under the lock


@contextlib.contextmanager
def incoming_file(root: int, size: int) -> Iterator[tuple[str, int]]:
    """A new file of that size to write to: its name and a descriptor. At the end it is removed if it was not published.

    The lock is needed at the beginning only.
    """
    name = os.urandom(16).hex()
    with opened(INCOMING, os.O_DIRECTORY, root) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer is alive
            os.truncate(descriptor, size)  # so that it is counted in full
            yield name, descriptor
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.close(descriptor)


def publish(root: int, incoming: str, folder: str, name: str) -> None:
    """Rename a complete file to its name, unless that exists."""
    if exists(root, folder, name):
        return
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700, dir_fd=root)
    with opened(INCOMING, os.O_DIRECTORY, root) as source, opened(folder, os.O_DIRECTORY, root) as target:
        os.rename(incoming, name, src_dir_fd=source, dst_dir_fd=target)


def remove(root: int, folder: str, name: str) -> bool:
    """Remove a range, and its folder if that was the last one; whether it is gone now. The lock is not needed."""
    try:
        with opened(folder, os.O_DIRECTORY, root) as descriptor:
            os.unlink(name, dir_fd=descriptor)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.rmdir(folder, dir_fd=root)
    return True


def sweep(root: int) -> None:
    """Remove incomplete files of writers that have ended."""
    with opened(INCOMING, os.O_DIRECTORY, root) as folder:
        for file in _regular_files(folder, INCOMING, INCOMING_NAME):
            with contextlib.suppress(OSError), opened_file(file.name, folder) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name, dir_fd=folder)


# Listing


def files(root: int) -> tuple[list[File], int]:
    """All ranges in the cache, and the bytes of those that are being written."""
    kept: list[File] = []
    coming = 0
    for folder in os.listdir(root):
        with contextlib.suppress(OSError):
            if folder == INCOMING:
                with opened(folder, os.O_DIRECTORY, root) as descriptor:
                    coming += sum(file.size for file in _regular_files(descriptor, folder, INCOMING_NAME))
            elif OBJECT_NAME.fullmatch(folder):
                kept.extend(folder_files(root, folder))
    return kept, coming


def folder_files(root: int, folder: str) -> list[File]:
    """The ranges of one object; OSError if there is no folder for it."""
    with opened(folder, os.O_DIRECTORY, root) as descriptor:
        return list(_regular_files(descriptor, folder, ENTRY_NAME))


def _regular_files(descriptor: int, folder: str, pattern: re.Pattern[str]) -> Iterator[File]:
    for name in os.listdir(descriptor):
        if pattern.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    used = status.st_mtime_ns  # 0 for those that were dropped, at the time of access
                    order = (used, status.st_atime_ns) if used else (0, -status.st_atime_ns)
                    yield File(folder, name, status.st_size, order)


def exists(root: int, folder: str, name: str) -> bool:
    """Whether the name exists, even as a broken link."""
    try:
        os.stat(f"{folder}/{name}", dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def entry_name(entry: Extent) -> str:
    """The name of the file of a range."""
    return f"{entry[0]}-{entry[1]}"


def entry_extent(name: str) -> Extent | None:
    """The range of a file, by its name; None if it is not the name of one."""
    match = ENTRY_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match and int(match[1]) < int(match[2]) else None


# The file of a range


class DamagedError(Exception):
    """A file does not hold the bytes that its name says. Never leaves the cache."""


def entry_bytes(length: int) -> int:
    """Bytes on disk of a range of ``length`` bytes."""
    return FIXED.size + CRC.size * (1 + _num_pages(length)) + length


def make_head(identity: bytes, start: int, data: Bytes) -> bytes:
    """The header and the table of a range."""
    fixed, table = FIXED.pack(MAGIC, identity, start, start + data.size), _page_crcs(data).tobytes()
    return fixed + _crc_of(fixed + table) + table


def write_all(descriptor: int, parts: Sequence[bytes | Bytes]) -> None:
    """Write parts one after the other, across short writes."""
    for part in parts:
        view = memoryview(part) if isinstance(part, bytes) else part.data
        while len(view) > 0:
            view = view[os.write(descriptor, view) :]


def pieces(descriptor: int, identity: bytes, entry: Extent, low: int, high: int) -> Iterator[tuple[int, memoryview]]:
    """The bytes [low, high) of an object out of the file of the range ``entry``: offsets and checked bytes, valid until the next.

    DamagedError if the file does not hold exactly that range of that object, or the bytes are not those that were written.
    """
    start, stop = entry
    table = _read_table(descriptor, identity, start, stop)
    begin = entry_bytes(stop - start) - (stop - start)
    first, last = (low - start) // PAGE_BYTES * PAGE_BYTES, min(stop - start, _num_pages(high - start) * PAGE_BYTES)
    buffer = np.empty(min(PIECE_BYTES, last - first), np.uint8)
    for place in range(first, last, PIECE_BYTES):
        piece = buffer[: min(PIECE_BYTES, last - place)]
        _read_exactly(descriptor, piece, begin + place)
        page = place // PAGE_BYTES
        found = _page_crcs(piece)
        if not np.array_equal(found, table[page : page + found.size]):
            raise DamagedError(f"bytes {start + place} to {start + place + piece.size} changed on the disk")
        skip = max(0, low - start - place)
        yield start + place + skip, piece[skip : high - start - place].data


def _read_table(descriptor: int, identity: bytes, start: int, stop: int) -> npt.NDArray[np.uint32]:
    size = os.fstat(descriptor).st_size
    if size != entry_bytes(stop - start):
        raise DamagedError(f"expected {entry_bytes(stop - start)} bytes, found {size}")
    head = np.empty(size - (stop - start), np.uint8)
    _read_exactly(descriptor, head, 0)
    fixed, crc, table = np.split(head, [FIXED.size, FIXED.size + CRC.size])
    if fixed.tobytes() != FIXED.pack(MAGIC, identity, start, stop) or crc.tobytes() != _crc_of(fixed.tobytes() + table.tobytes()):
        raise DamagedError("expected another object or range")
    return table.view("<u4")


def _read_exactly(descriptor: int, into: Bytes, offset: int) -> None:
    view = into.data
    while len(view) > 0:
        try:
            count = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise DamagedError(f"the disk does not give it back: {error.strerror}") from error
        if count == 0:
            raise DamagedError("the file was cut")
        view, offset = view[count:], offset + count


def _num_pages(length: int) -> int:
    return -(-length // PAGE_BYTES)


def _page_crcs(data: Bytes) -> npt.NDArray[np.uint32]:
    ends = np.minimum(np.arange(1, _num_pages(data.size) + 1, dtype=np.uint64) * np.uint64(PAGE_BYTES), np.uint64(data.size))
    crcs = np.empty(ends.size, np.uint32)
    _core.crc32c_spans(data, ends, crcs)
    return crcs.astype("<u4", copy=False)


def _crc_of(data: bytes) -> bytes:
    return CRC.pack(_core.crc32c(np.frombuffer(data, np.uint8)))


SETTLED_NS = 100_000_000
"""The times of directories are coarse: a listing is remembered only if the directory has not changed for this long."""
MOST_LISTINGS = 4096
MOST_SPARE_BYTES = 1 << 30
PAUSE_S = 60.0
"""After a timeout of the lock, nothing is added for this long, so that readers do not wait again and again; and after a range that
could not be kept, nothing is claimed, unless another one is kept before.
"""


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
        entries, found = self._entries(object_digest(url, etag, size)), list[Extent]()
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
        identity, position = object_digest(url, etag, size), start
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

    @contextlib.contextmanager
    def claimed(
        self, url: str, etag: str | None, size: int, start: int, stop: int, ask: Callable[[], None], kind: int = 0
    ) -> Iterator[list[Extent]]:
        """Claim [start, stop), so that no other thread or process fetches it meanwhile, and give the parts in the cache.

        Waits while others have claims on some of it, at most CLAIM_WAIT_S; ``ask`` is called meanwhile, and ends the wait if it
        raises. Where nothing can be kept, there are no claims. Claims of different ``kind`` (0 or 1) do not exclude each other.
        """
        identity = object_digest(url, etag, size)
        slot = kind * 2**22 + int.from_bytes(identity[:4], "little") % 2**22
        first, here = slot * 2**OBJECT_BITS + start % 2**OBJECT_BITS, self._here()
        with contextlib.ExitStack() as stack:
            if etag is not None and time.monotonic() >= max(here.paused_until, here.unclaimed_until):
                with contextlib.suppress(OSError):  # a timeout among them
                    root = stack.enter_context(opened(self._directory, os.O_DIRECTORY))
                    stack.enter_context(locked_bytes(root, first, first + stop - start, ask))
            ask()  # what it raises may be an OSError, which is suppressed above
            yield self.covered(url, etag, size, start, stop)

    def add(self, url: str, etag: str | None, size: int, start: int, data: bytes | bytearray | memoryview | Bytes) -> None:
        """Keep the bytes of an object from ``start`` on; others may be evicted for them.

        Never raises for a full disk, a directory that cannot be written or a timeout of the lock: then they are not kept.
        """
        array, here = np.frombuffer(data, np.uint8), self._here()
        kept = False
        if etag is not None and array.size > 0 and time.monotonic() >= here.paused_until:
            try:
                kept = self._keep(object_digest(url, etag, size), start, array)
            except TimeoutError:
                here.paused_until = time.monotonic() + PAUSE_S
            except OSError:
                pass
            # Threads that wait for a claim on what is not kept would fetch it one after the other.
            here.unclaimed_until = 0.0 if kept else time.monotonic() + PAUSE_S
        here.count(misses=1, kept_bytes=array.size * kept, not_kept=not kept)

    def drop(self, url: str, etag: str | None, size: int, start: int, stop: int) -> None:
        """Files within [start, stop) are not needed any more: they are the first to be evicted."""
        identity = object_digest(url, etag, size)
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
        identity = object_digest(url, etag, size)
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
        self.paused_until = self.unclaimed_until = 0.0
        self._lock = threading.Lock()

    def count(self, **more: int) -> None:
        with self._lock:
            self.statistics = replace(
                self.statistics, **{name: getattr(self.statistics, name) + value for name, value in more.items()}
            )


def object_digest(url: str, etag: str | None, size: int) -> bytes:
    """A digest that says which version of which object."""
    return hashlib.sha256(repr((url, etag, size)).encode()).digest()
