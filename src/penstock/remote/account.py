"""What was asked of an object store, counted."""

import threading
from dataclasses import dataclass, fields, replace

__all__ = ["Account", "Counts", "LoggedRequest"]

LoggedRequest = tuple[str, str, int | None, int | None]
"""Method, key, and the range [start, stop) that was asked for, if any."""


@dataclass(frozen=True)
class Counts:
    """The counters at one moment."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    errors: int = 0
    cache_hits: int = 0
    cache_bytes: int = 0

    def __sub__(self, earlier: "Counts") -> "Counts":
        """What happened since an earlier moment."""
        return Counts(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))


class Account:
    """Counters that several threads add to.

    ``log``: None, or a list to which every request is appended; set it to a list to switch it on.
    """

    def __init__(self) -> None:
        self.log: list[LoggedRequest] | None = None
        self._counts = Counts()
        self._lock = threading.Lock()

    def add(self, **amounts: int) -> None:
        """Add to counters, by name."""
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in amounts.items()})

    def request(self, method: str, key: str, start: int | None = None, stop: int | None = None) -> None:
        """Count one request."""
        self.add(requests=1)
        if self.log is not None:
            self.log.append((method, key, start, stop))

    def snapshot(self) -> Counts:
        """The counters now."""
        with self._lock:
            return self._counts

    def after_fork(self) -> None:
        """A lock that no thread of the parent holds."""
        self._lock = threading.Lock()
