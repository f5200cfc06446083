"""The directory of a cache: its names, its lock, and the only places where something in it is made or removed.

Every name is opened relative to a directory that is open already, and links are never followed: whatever lies about, nothing
outside of the cache is touched.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "File",
    "Ledger",
    "Range",
    "claim",
    "entry_name",
    "entry_range",
    "exists",
    "files",
    "folder_files",
    "incoming_file",
    "locked",
    "opened",
    "opened_file",
    "publish",
    "remove",
    "sweep",
]

Range = tuple[int, int]

MARK = "penstock-cache-1"
INCOMING = "incoming"
INCOMING_NAME = re.compile(r"[0-9a-f]{32}")
OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
ENTRY_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")

LOCK_WAIT_S = 2.0
"""A process that was stopped while it held the lock must not stop the others: they go on without keeping anything."""


@dataclass(frozen=True)
class File:
    """A range that is kept."""

    folder: str
    name: str
    size: int
    order: tuple[int, int]
    """Files go in this order: dropped ones, the last one of them first, because it comes again last; then by their last use."""


def claim(directory: str) -> None:
    """Make a directory a cache; ValueError if it has other things in it and is none."""
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
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
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
    """The bytes that are taken, as the first file says. It is read and written under the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def used(self) -> int | None:
        """None if nobody has counted yet."""
        text = os.pread(self._descriptor, 21, 0)
        return int(text) if re.fullmatch(rb"[0-9]{20}\n", text) else None

    @used.setter
    def used(self, value: int) -> None:
        os.pwrite(self._descriptor, b"%020d\n" % value, 0)


@contextlib.contextmanager
def locked(root: int) -> Iterator[Ledger]:
    """The lock of the cache; TimeoutError if it cannot be had for long."""
    with opened(MARK, os.O_RDWR, root) as descriptor:
        _lock(descriptor)
        try:
            yield Ledger(descriptor)
        finally:
            # Not left to close: a child that was forked meanwhile has a copy of the descriptor, and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int) -> None:
    deadline, pause = time.monotonic() + LOCK_WAIT_S, 0.0005
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the lock of the cache was held for {LOCK_WAIT_S} seconds") from None
            time.sleep(pause)
            pause = min(2 * pause, 0.02)


# Making and removing: under the lock


@contextlib.contextmanager
def incoming_file(root: int, size: int) -> Iterator[tuple[str, int]]:
    """A new file of that size to write into: its name and a descriptor. At the end it is removed if it was not published.

    The lock is needed at the beginning only.
    """
    name = os.urandom(16).hex()
    with opened(INCOMING, os.O_DIRECTORY, root) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # says that its writer lives
            os.truncate(descriptor, size)  # whoever counts sees what is taken
            yield name, descriptor
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.close(descriptor)


def publish(root: int, incoming: str, folder: str, name: str) -> None:
    """Give a file that was written its place, unless there is something already."""
    if exists(root, folder, name):
        return
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700, dir_fd=root)
    with opened(INCOMING, os.O_DIRECTORY, root) as source, opened(folder, os.O_DIRECTORY, root) as target:
        os.rename(incoming, name, src_dir_fd=source, dst_dir_fd=target)


def remove(root: int, folder: str, name: str) -> bool:
    """Remove a range, and its folder if that was the last one; whether it is gone now. This may also be done without the lock."""
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
    """Remove what writers that are no more left half-written."""
    with opened(INCOMING, os.O_DIRECTORY, root) as folder:
        for file in _regular_files(folder, INCOMING, INCOMING_NAME):
            with contextlib.suppress(OSError), opened_file(file.name, folder) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name, dir_fd=folder)


# Looking


def files(root: int) -> tuple[list[File], int]:
    """All ranges that are kept, and the bytes of those that are being written."""
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
    """The ranges of one object that are kept; OSError if there is no folder for it."""
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
    """Whether there is something of that name, be it a link that leads nowhere."""
    try:
        os.stat(f"{folder}/{name}", dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def entry_name(entry: Range) -> str:
    """The name of the file of a range."""
    return f"{entry[0]}-{entry[1]}"


def entry_range(name: str) -> Range | None:
    """The range that a name stands for, if it does."""
    match = ENTRY_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match and int(match[1]) < int(match[2]) else None
