"""Holds: byte ranges that stay in the window while they are read."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import WindowTooSmallError
from penstock.interrupt import check, patience
from penstock.remote.resident import Range
from penstock.remote.room import NOTHING, Wanted

if TYPE_CHECKING:
    from penstock.remote.window import RemoteFiles

__all__ = ["ROOM_S", "Hold"]

ROOM_S = 600.0
"""So long a reader waits for others to let go of what they read."""


class Hold:
    """Byte ranges that are in memory, and stay there, while the hold is entered."""

    def __init__(self, files: "RemoteFiles", wanted: Wanted) -> None:
        self._files, self._wanted = files, wanted
        self._held: list[Range] = []
        self._thread: int | None = None

    @classmethod
    def on(cls, files: "RemoteFiles", ranges: Sequence[Range]) -> "Hold":
        """A hold on ranges that somebody keeps; with the window's lock held."""
        hold = cls(files, NOTHING)
        files._keep(ranges, 1, 0)
        hold._begun(ranges)
        return hold

    def begin(self) -> None:
        """Set everything on its way; waits only for room."""
        files = self._files
        with files._change:
            files._check()
            if self._thread is not None:
                return
            until = time.monotonic() + ROOM_S
            while self._is_bad() and time.monotonic() < until:
                files._wait()
            while (held := files._admit(self._wanted, holds=1, urgent=True)) is None:
                if not files._is_waiting_useful() or time.monotonic() > until:
                    size = int(np.sum(self._wanted[2] - self._wanted[1]))
                    raise WindowTooSmallError(
                        f"{files.files[0][0]}: {size} bytes are needed at once, more than window_bytes={files.window_bytes} can "
                        "hold beside what is being read; read fewer records at a time, or open with a larger window"
                    )
                files._wait()
            self._begun(held)

    def _is_bad(self) -> bool:
        """Whether one of the files is going to be fetched again, and this thread is not one of those that this waits for."""
        bad = self._files._bad
        return bool(bad) and not self._files._holders[threading.get_ident()] and not bad.isdisjoint(self._wanted[0].tolist())

    def _begun(self, held: Sequence[Range]) -> None:
        self._held, self._thread = list(held), threading.get_ident()
        self._files._holders[self._thread] += 1

    def wait(self) -> None:
        """Wait for what is on its way; the first failure is raised."""
        files = self._files
        with files._change:
            while not all(one.is_ready for one in self._held):
                files._change.wait(patience())
                check()
                files._check()
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
            files._keep(self._held, -1, 0)
            self._held = []
            if files._closed:
                files._room.drop_unheld()
            files._pump()
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
