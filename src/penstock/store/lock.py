"""The writer's lock: one writer at a time on a host, released by the kernel when the process ends, however it ends."""

import contextlib
import fcntl
import os
import socket
import weakref
from pathlib import Path

from penstock.errors import ForkedWriterError, LockedError
from penstock.store.filesystem import translated

__all__ = ["Lock"]


class Lock:
    """Holds the lock from construction to :meth:`close`. The lock is for a friendly message; commits are safe without it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        with translated(path, "opening the lock"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._process = os.getpid()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip() or "somebody"
            os.close(self._descriptor)
            raise LockedError(f"{path}: another writer is at work ({holder}); wait for it or open the store for reading") from error
        _held.add(self)
        note = f"process {self._process} on {socket.gethostname()}".ljust(120) + "\n"
        with contextlib.suppress(OSError):  # only a note for others; a full disk must not stop anybody here
            os.pwrite(self._descriptor, note.encode(), 0)

    def check_process(self) -> None:
        """ForkedWriterError in a child: the writer belongs to the process that opened it."""
        if os.getpid() != self._process:
            raise ForkedWriterError(f"{self._path}: this writer belongs to process {self._process}; open another one here")

    def close(self) -> None:
        """Let go. In a forked child only the child's copy of the descriptor is closed: the parent keeps the lock."""
        if self._descriptor >= 0:
            if os.getpid() == self._process:  # a child that lives on would keep the lock through its copy of the descriptor
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1
        _held.discard(self)


_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child that outlives its parent must not keep the parent's locks."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
