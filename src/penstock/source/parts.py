"""Parts: many sources of which only a few are open at a time."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.records import Source

__all__ = ["MOST_OPEN", "MOST_OPEN_REMOTE", "Parts"]

MOST_OPEN = 64
"""So many parts are open at a time, unless they were given open."""

MOST_OPEN_REMOTE = 8
"""The same of parts at URLs, which share the memory that they are given together."""


class Parts:
    """Sources opened when they are used and closed when others were used more recently. Safe to use from several threads and after
    fork: a child opens its own.
    """

    def __init__(self, openers: list[Callable[[], Source]], most_open: int) -> None:
        self._openers, self._most_open = openers, most_open
        self._begin()

    def _begin(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[int, Source] = OrderedDict()
        self._users: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._openers)

    @contextmanager
    def use(self, number: int) -> Iterator[Source]:
        """A part, open at least until the block is left."""
        if self._process != os.getpid():
            self._begin()  # what the parent had open is the parent's
        with self._lock:
            if number not in self._open:
                self._open[number] = self._openers[number]()
            self._open.move_to_end(number)
            self._users[number] = self._users.get(number, 0) + 1
            source = self._open[number]
            idle = [n for n in self._open if n not in self._users]
            closing = [self._open.pop(n) for n in idle[: max(0, len(self._open) - self._most_open)]]
        for one in closing:
            one.close()
        try:
            yield source
        finally:
            with self._lock:
                self._users[number] -= 1
                if self._users[number] == 0:
                    del self._users[number]

    def close(self) -> None:
        """Close what is open. Idempotent."""
        if self._process == os.getpid():
            with self._lock:
                closing, self._open = list(self._open.values()), OrderedDict()
            for one in closing:
                one.close()
