"""Where the time of a loader goes."""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Meter", "Network", "Stats"]


@dataclass(frozen=True)
class Network:
    """What was read of data at URLs, by all readers, since its sources were opened: bytes from the network and in how many
    requests, bytes from the cache on disk and how often it had a range, the most bytes that were in memory at a time, and bytes
    from peers.
    """

    bytes: int = 0
    requests: int = 0
    cached_bytes: int = 0
    cache_hits: int = 0
    peak_bytes: int = 0
    peer_bytes: int = 0


@dataclass(frozen=True)
class Stats:
    """Figures since the loader was made, and what to do about them.

    ``wait_s`` is the time the trainer waited for batches, ``busy_s`` the time it did something else, ``make_s`` the time that
    threads spent on making batches (not known where they are read natively), ``skipped`` the records that could not be read and
    were replaced (not known where an executor makes the batches). ``network`` is what was read of data at URLs. ``longest_wait_s``
    is the longest wait for a batch after the first one, which also waits for files to be opened and threads to start.
    """

    batches: int
    samples: int
    bytes: int
    wait_s: float
    busy_s: float
    make_s: float
    skipped: int
    advice: str
    network: Network = Network()
    longest_wait_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples delivered per second of running time."""
        total = self.wait_s + self.busy_s
        return self.samples / total if total > 0 else 0.0


class Meter:
    """Adds up times; cheap, and safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches = self.samples = self.bytes = 0
        self.wait_s = self.busy_s = self.make_s = self.longest_wait_s = 0.0
        self._left: float | None = None
        _meters.add(self)

    def unlock(self) -> None:
        """In a forked child: a thread that held the lock is not there to release it."""
        self._lock = threading.Lock()

    @contextmanager
    def making(self) -> Iterator[None]:
        """Time spent on making a batch."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.make_s += time.perf_counter() - began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time the trainer waits."""
        began = time.perf_counter()
        yield
        self.waited(time.perf_counter() - began)

    def waited(self, seconds: float) -> None:
        """The trainer waited for a batch."""
        self.wait_s += seconds
        if self.batches and seconds > self.longest_wait_s:
            self.longest_wait_s = seconds

    def made(self, size: int) -> None:
        """A batch is about to be given out."""
        self.batches += 1
        self.bytes += size

    def enter(self) -> None:
        """The trainer is back."""
        if self._left is not None:
            self.busy_s += time.perf_counter() - self._left
            self._left = None

    def leave(self, samples: int) -> None:
        """The trainer goes on with a batch of ``samples``."""
        self.samples += samples
        self._left = time.perf_counter()

    def read(self, threads: int, skipped: int, network: Network) -> Stats:
        """The figures so far."""
        advice = self._advice(threads)
        spent = self.wait_s, self.busy_s, self.make_s
        return Stats(self.batches, self.samples, self.bytes, *spent, skipped, advice, network, self.longest_wait_s)

    def _advice(self, threads: int) -> str:
        total = self.wait_s + self.busy_s
        if self.batches < 2 or total == 0:
            return "Too little has happened for advice."
        share = self.wait_s / total
        if share < 0.05:
            return f"The trainer waits {share:.0%} of the time: the loader is fast enough."
        if threads == 0:
            return f"The trainer waits {share:.0%} of the time: let threads read ahead (threads=2 or more)."
        if self.make_s > 0.7 * threads * total:
            more = "use more threads, or an executor for slow transforms"
            return f"The trainer waits {share:.0%} of the time and all {threads} threads are busy: {more}."
        return f"The trainer waits {share:.0%} of the time although threads are idle: raise prefetch, or look at the disk."


_meters: "weakref.WeakSet[Meter]" = weakref.WeakSet()


def _unlock_all() -> None:
    for meter in list(_meters):
        meter.unlock()


os.register_at_fork(after_in_child=_unlock_all)
