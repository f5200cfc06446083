"""The writer's lock: one writer at a time on a host, released by the kernel when the process ends, however it ends."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import weakref
from pathlib import Path

from penstock.errors import ForkedWriterError, LockedError, UnsupportedFilesystemError
from penstock.store.filesystem import translated

__all__ = ["Lock"]

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """Holds the lock from construction to :meth:`close`. The lock is for a friendly message; commits are safe without it.

    ``held`` are descriptors of directories, closed and forgotten together with it; "" is that of the lock. Where files cannot be
    locked: UnsupportedFilesystemError if it ``is_needed``.
    """

    def __init__(self, path: Path, held: dict[str, int], *, is_needed: bool) -> None:
        self._path, self._held, self._process = path, held, os.getpid()
        with translated(path, "opening the lock"):
            self._descriptor = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=held[""])
        try:
            with translated(path, "locking"):
                self._take(is_needed=is_needed)
        except BaseException:
            self._close()
            raise
        _open_locks.add(self)
        with contextlib.suppress(OSError):  # only a note for others; a full disk must not stop anybody here
            self._write_note()

    def _write_note(self) -> None:
        info = os.fstat(self._descriptor)
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:  # a second name would be somebody's file
            note = f"process {self._process} on {socket.gethostname()}".ljust(120) + "\n"
            os.pwrite(self._descriptor, note.encode(), 0)

    def _take(self, *, is_needed: bool) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            raise LockedError(
                f"{self._path}: another writer is at work ({holder or 'unknown'}); wait for it or open the store for reading"
            ) from error
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            if is_needed:
                raise UnsupportedFilesystemError(
                    error.errno,
                    f"this filesystem cannot lock files, so that nothing keeps a second writer out: {error.strerror}; mount it "
                    "with locks, write on a local disk and copy, or open with single_writer=True if there is never more than one",
                    str(self._path),
                ) from error

    def check_process(self) -> None:
        """ForkedWriterError in a child: the writer belongs to the process that opened it."""
        if os.getpid() != self._process:
            raise ForkedWriterError(f"{self._path}: this writer belongs to process {self._process}; open another one here")

    def close(self) -> None:
        """Release the lock. In a forked child only the child's copy of the descriptor is closed: the parent keeps the lock."""
        if self._descriptor >= 0 and os.getpid() == self._process:
            # A child that lives on would keep the lock through its copy of the descriptor. If this fails, closing does the same.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()
        for descriptor in self._held.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._held.clear()
        _open_locks.discard(self)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


_open_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child that outlives its parent must not keep the parent's locks."""
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
