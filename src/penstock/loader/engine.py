"""Engines in Python: who makes the batches, and how far ahead. All deliver in the order of the steps."""

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.batch import batch_bytes
from penstock.errors import BatchError, WorkerDiedError
from penstock.interrupt import exposed
from penstock.loader.lookahead import Lookahead
from penstock.loader.make_batch import Work, make_elsewhere, pack
from penstock.loader.schedule import Place
from penstock.loader.stats import Meter
from penstock.native import _core

__all__ = ["MOST_AHEAD", "Engine", "ExecutorEngine", "Lent", "PlainEngine", "ThreadEngine"]

T = TypeVar("T")

MOST_AHEAD = 64
"""Never more batches than this are under way."""

TRANSFORM_BYTES = 64_000_000
"""What is read ahead where Python threads or processes transform batches, unless the user says otherwise."""

READ_BYTES = 8_000_000
"""The same where threads only read: more does not make it faster."""


class Engine(ABC):
    """Makes the batches of places, one after the other. For one thread."""

    @abstractmethod
    def take(self) -> tuple[Place, Any]:
        """The next batch. StopIteration when there are no more places."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once; what is under way is thrown away. Idempotent."""


class PlainEngine(Engine):
    """In the caller's thread, when asked."""

    def __init__(self, work: Work, places: Iterator[Place], ahead: Lookahead, meter: Meter) -> None:
        self._work, self._places, self._ahead, self._meter = work, places, ahead, meter

    def take(self) -> tuple[Place, Any]:
        """Make the next batch now."""
        place = next(self._places)
        with self._meter.waiting(), self._meter.making():
            self._ahead.wait(place.step)
            batch = self._work.make(place)
            self._ahead.passed(place.step)
        self._meter.made(batch_bytes(batch))
        return place, batch

    def close(self) -> None:
        """No batch is under way, only what is fetched for them."""
        self._ahead.close()


@exposed
def _wait_for(outcome: "SimpleQueue[T]") -> T:
    """What another thread puts there. The main thread may be interrupted: unlike a Future, a queue leaves no lock behind."""
    return outcome.get()


@dataclass(frozen=True)
class _Failed:
    """A batch that could not even be asked for."""

    error: Exception

    def cancel(self) -> None:
        """It is not under way."""


class _Ahead(Engine):
    """Keeps as many batches under way as fit the budget. Another thread may close it at any time."""

    def __init__(self, places: Iterator[Place], budget: int | None, threads: int, ahead: Lookahead, meter: Meter) -> None:
        self._places, self._budget, self._threads, self._ahead, self._meter = places, budget, threads, ahead, meter
        self._under_way: deque[tuple[Place, Any]] = deque()
        self._waiting: Place | None = None  # the next place, whose bytes have no room yet
        self._size, self._useful = 0, TRANSFORM_BYTES  # bytes of a batch, as far as known; and of those under way
        self._closed = False

    def _depth(self) -> int:
        """How many batches may be under way. Before the size of one is known: one for each thread, or one if memory is bounded."""
        if self._budget is None:
            return max(self._threads + 1, min(MOST_AHEAD, self._useful // max(1, self._size))) if self._size else self._threads
        return max(1, min(MOST_AHEAD, self._budget // self._size)) if self._size else 1

    def _fill(self) -> None:
        while not self._closed and len(self._under_way) < self._depth():
            place, self._waiting = self._waiting or next(self._places, None), None
            if place is None:
                return
            if self._under_way and not self._ahead.reached(place.step):
                self._waiting = place
                return
            try:
                self._ahead.wait(place.step)
                token = self._begin(place)
            except Exception as error:  # raised when its turn comes, behind the good batches before it
                token = _Failed(error)
            self._under_way.append((place, token))

    @abstractmethod
    def _begin(self, place: Place) -> Any:
        """Set a batch under way."""

    @abstractmethod
    def _wait(self, place: Place, token: Any) -> Any:
        """A batch that was set under way."""

    def take(self) -> tuple[Place, Any]:
        """The next batch, with others kept under way behind it."""
        self._fill()
        try:
            place, token = self._under_way.popleft()
        except IndexError:  # no more places, or closed
            raise StopIteration from None
        if isinstance(token, _Failed):
            raise token.error
        with self._meter.waiting():
            batch = self._wait(place, token)
        self._ahead.passed(place.step)
        size = batch_bytes(batch)
        self._size = max(size, self._size // 2)
        self._meter.made(size)
        self._fill()
        return place, batch

    def _give_up(self) -> None:
        """Cancel what has not begun; what another thread sets under way meanwhile too."""
        self._closed = True
        with suppress(IndexError):
            while True:
                _, token = self._under_way.popleft()
                token.cancel()


class _Job:
    """A batch for a thread to make. What comes of it is put into a queue: (batch, None) or (None, error)."""

    def __init__(self, place: Place) -> None:
        self.place, self.is_cancelled = place, False
        self.outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def cancel(self) -> None:
        """Let no thread begin with it; for a thread that waits for it, that is the end."""
        self.is_cancelled = True
        self.outcome.put((None, StopIteration()))

    def run(self, work: Work, meter: Meter) -> None:
        """Make the batch."""
        try:
            with meter.making():
                self.outcome.put((work.make(self.place), None))  # a name for the batch would keep it until the next one is made
        except BaseException as error:
            self.outcome.put((None, error))


_Jobs = SimpleQueue[Any]  # of jobs; all else is the end


class _Crew:
    """Threads that do jobs, one after the other. They end when they are told to, or when their crew is gone: also if an error came
    while they were being started, or the engine was lost without being closed. No ``__del__`` does that, which would lose an
    interrupt, but a weak reference that puts itself into their queue.
    """

    def __init__(self, threads: int, work: Work, meter: Meter) -> None:
        self.jobs: _Jobs = SimpleQueue()
        arguments = self.jobs, work, meter, threads > 1, weakref.ref(self, self.jobs.put)
        self._threads = [threading.Thread(target=_serve, args=arguments, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def dismiss(self) -> None:
        """Let the threads end behind the jobs that they have. Idempotent."""
        self.jobs.put(None)

    def join(self, seconds: float) -> None:
        """Wait for their end, until a deadline in seconds."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _serve(jobs: _Jobs, work: Work, meter: Meter, has_peers: bool, crew: "weakref.ref[_Crew]") -> None:
    if has_peers:  # the threads of a source would only get in the way of theirs (texts: two thirds of the speed)
        _core.ThreadPool.work_alone()
    while isinstance(job := jobs.get(), _Job):
        if not job.is_cancelled:
            job.run(work, meter)
        del job
    jobs.put(None)  # for the next one


class ThreadEngine(_Ahead):
    """Threads of its own that read and transform."""

    def __init__(
        self, work: Work, places: Iterator[Place], budget: int | None, threads: int, ahead: Lookahead, meter: Meter
    ) -> None:
        super().__init__(places, budget, threads, ahead, meter)
        self._most = len(work.out) - 1 if work.out else MOST_AHEAD
        self._useful = READ_BYTES if work.transform is None else TRANSFORM_BYTES
        self._crew = _Crew(threads, work, meter)

    def _depth(self) -> int:
        """No more batches than there is memory of the user's, one of which is in use."""
        return min(super()._depth(), self._most)

    def _begin(self, place: Place) -> _Job:
        job = _Job(place)
        self._crew.jobs.put(job)
        if self._closed:  # meanwhile: the threads may have ended, and none would do it
            job.cancel()
        return job

    def _wait(self, place: Place, token: _Job) -> Any:
        batch, error = _wait_for(token.outcome)
        try:
            if error is not None:
                raise error
            return batch
        finally:
            del error  # it has this frame, and this frame would have it

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        if self._closed:
            return
        self._give_up()
        self._ahead.close()
        self._crew.dismiss()
        self._crew.join(2)


@dataclass(frozen=True)
class Lent:
    """An executor of the user's, and the process in which the loader got it: no fork of that has its threads and pipes."""

    executor: Executor
    process: int = field(default_factory=os.getpid)

    def get(self) -> Executor:
        """The executor, in that process; in others a call of it would wait without end."""
        if os.getpid() != self.process:
            raise WorkerDiedError(
                f"the loader got its executor in process {self.process}, this is process {os.getpid()}, forked from it, where the "
                "executor has no workers: make the executor, and a loader with it, in the process that uses them"
            )
        return self.executor


class _Asked:
    """A batch that an executor makes."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future
        self._done: SimpleQueue[object] = SimpleQueue()
        future.add_done_callback(self._done.put)

    def cancel(self) -> None:
        """Make it no more, unless it has begun."""
        self._future.cancel()

    def result(self) -> Any:
        """The batch, when it is there."""
        _wait_for(self._done)
        return self._future.result()


class ExecutorEngine(_Ahead):
    """An executor of the user's: processes, a cluster. They fetch for themselves what they need."""

    def __init__(self, work: Work, places: Iterator[Place], budget: int | None, lent: Lent, ahead: Lookahead, meter: Meter) -> None:
        self._executor = lent.get()
        super().__init__(places, budget, getattr(self._executor, "_max_workers", None) or 2, ahead, meter)
        self._packed = pack(work)

    def _begin(self, place: Place) -> _Asked:
        try:
            return _Asked(self._executor.submit(make_elsewhere, self._packed, place))
        except RuntimeError as error:  # an executor whose workers died takes no more work
            raise WorkerDiedError(f"step {place.step}: the executor takes no more work: {error}") from error

    def _wait(self, place: Place, token: _Asked) -> Any:
        try:
            return token.result()
        except (BatchError, KeyboardInterrupt):
            raise
        except CancelledError as error:
            raise WorkerDiedError(f"step {place.step}: the executor was shut down") from error
        except RuntimeError as error:
            if "terminated" in str(error) or type(error).__name__.startswith("Broken"):
                raise WorkerDiedError(f"step {place.step}: a worker of the executor died: {error}") from error
            raise

    def close(self) -> None:
        """Cancel what has not begun. The executor is its owner's."""
        self._give_up()
