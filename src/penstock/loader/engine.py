"""Engines in Python: who makes the batches, and how far ahead. All deliver in the order of the steps."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock.errors import BatchError, WorkerDiedError
from penstock.loader.elsewhere import make_elsewhere, pack
from penstock.loader.needs import Ahead
from penstock.loader.schedule import Place
from penstock.loader.stats import Meter
from penstock.loader.work import Work, batch_bytes

__all__ = ["MOST_AHEAD", "Engine", "ExecutorEngine", "PlainEngine", "ThreadEngine"]

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

    def __init__(self, work: Work, places: Iterator[Place], ahead: Ahead, meter: Meter) -> None:
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


@dataclass(frozen=True)
class _Failed:
    """A batch that could not even be asked for."""

    error: Exception


class _Ahead(Engine):
    """Keeps as many batches under way as fit the budget. Another thread may close it at any time."""

    def __init__(self, places: Iterator[Place], budget: int | None, threads: int, ahead: Ahead, meter: Meter) -> None:
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
                if isinstance(token, Future):
                    token.cancel()


class ThreadEngine(_Ahead):
    """Threads of its own that read and transform."""

    def __init__(self, work: Work, places: Iterator[Place], budget: int | None, threads: int, ahead: Ahead, meter: Meter) -> None:
        super().__init__(places, budget, threads, ahead, meter)
        self._work, self._most = work, len(work.out) - 1 if work.out else MOST_AHEAD
        self._useful = READ_BYTES if work.transform is None else TRANSFORM_BYTES
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Place] | None] = queue.SimpleQueue()
        arguments = self._jobs, work, meter, threads > 1
        self._crew = [threading.Thread(target=_serve, args=arguments, daemon=True) for _ in range(threads)]
        for thread in self._crew:
            thread.start()

    def _depth(self) -> int:
        """No more batches than there is memory of the user's, one of which is in use."""
        return min(super()._depth(), self._most)

    def _begin(self, place: Place) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, place))
        if self._closed:  # meanwhile: the threads may have ended, and nobody would do it
            future.cancel()
        return future

    def _wait(self, place: Place, token: Future[Any]) -> Any:
        try:
            return token.result()
        except CancelledError:
            raise StopIteration from None

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        if self._closed:
            return
        self._give_up()
        self._ahead.close()
        for _ in self._crew:
            self._jobs.put(None)
        deadline = time.monotonic() + 2
        for thread in self._crew:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _serve(jobs: "queue.SimpleQueue[tuple[Future[Any], Place] | None]", work: Work, meter: Meter, has_peers: bool) -> None:
    if has_peers:  # the threads of a source would only get in the way of theirs (texts: two thirds of the speed)
        _core.ThreadPool.work_alone()
    while (job := jobs.get()) is not None:
        future, place = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            with meter.making():
                future.set_result(work.make(place))  # in one line: a name for the batch would keep it until the next one is made
        except BaseException as error:
            future.set_exception(error)
        del job, future


class ExecutorEngine(_Ahead):
    """An executor of the user's: processes, a cluster. They fetch for themselves what they need."""

    def __init__(
        self, work: Work, places: Iterator[Place], budget: int | None, executor: Executor, ahead: Ahead, meter: Meter
    ) -> None:
        super().__init__(places, budget, getattr(executor, "_max_workers", None) or 2, ahead, meter)
        self._executor, self._packed = executor, pack(work)

    def _begin(self, place: Place) -> Future[Any]:
        try:
            return self._executor.submit(make_elsewhere, self._packed, place)
        except RuntimeError as error:  # an executor whose workers died takes no more work
            raise WorkerDiedError(f"step {place.step}: the executor takes no more work: {error}") from error

    def _wait(self, place: Place, token: Future[Any]) -> Any:
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
