"""Engines: who makes the batches, and how far ahead. All deliver in the order of the steps."""

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import _core
from penstock.errors import BatchError, WorkerDiedError
from penstock.loader.remote import make_elsewhere, pack
from penstock.loader.schedule import Place
from penstock.loader.stats import Meter
from penstock.loader.work import Work, batch_bytes
from penstock.records import Batch, Source, masked
from penstock.stream import RecordStream
from penstock.stream.picks import RecordPicks

__all__ = ["Engine", "make_engine"]

MOST_AHEAD = 64
"""Never more batches than this are under way."""


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

    def __init__(self, work: Work, places: Iterator[Place], meter: Meter) -> None:
        self._work, self._places, self._meter = work, places, meter

    def take(self) -> tuple[Place, Any]:
        """Make the next batch now."""
        place = next(self._places)
        with self._meter.making():
            batch = self._work.make(place)
        self._meter.made(batch_bytes(batch))
        return place, batch

    def close(self) -> None:
        """Nothing is under way."""


class _Ahead(Engine):
    """Keeps as many batches under way as fit the budget."""

    def __init__(self, places: Iterator[Place], budget: int, threads: int, meter: Meter) -> None:
        self._places, self._budget, self._threads, self._meter = places, budget, threads, meter
        self._under_way: deque[tuple[Place, Any]] = deque()
        self._size = 0  # bytes of a batch, as far as known

    def _depth(self) -> int:
        """How many batches may be under way; before the first is known, as many as there are threads."""
        if self._size == 0:
            return max(2, self._threads)
        return max(1, min(MOST_AHEAD, self._budget // max(1, self._size)))

    def _fill(self) -> None:
        while len(self._under_way) < self._depth():
            place = next(self._places, None)
            if place is None:
                return
            self._under_way.append((place, self._begin(place)))

    @abstractmethod
    def _begin(self, place: Place) -> Any:
        """Set a batch under way."""

    @abstractmethod
    def _wait(self, place: Place, token: Any) -> Any:
        """A batch that was set under way."""

    def take(self) -> tuple[Place, Any]:
        """The next batch, with others kept under way behind it."""
        self._fill()
        if not self._under_way:
            raise StopIteration
        place, token = self._under_way.popleft()
        with self._meter.waiting():
            batch = self._wait(place, token)
        self._size = max(batch_bytes(batch), self._size // 2)
        self._meter.made(self._size)
        self._fill()
        return place, batch


class ThreadEngine(_Ahead):
    """Threads of its own that read and transform."""

    def __init__(self, work: Work, places: Iterator[Place], budget: int, threads: int, meter: Meter) -> None:
        super().__init__(places, budget, threads, meter)
        self._work = work
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Place] | None] = queue.SimpleQueue()
        self._closed = False
        self._crew = [threading.Thread(target=_serve, args=(self._jobs, work, meter), daemon=True) for _ in range(threads)]
        for thread in self._crew:
            thread.start()

    def _begin(self, place: Place) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, place))
        return future

    def _wait(self, place: Place, token: Future[Any]) -> Any:
        return token.result()

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        if self._closed:
            return
        self._closed = True
        for _, future in self._under_way:
            future.cancel()
        self._under_way.clear()
        for _ in self._crew:
            self._jobs.put(None)
        deadline = time.monotonic() + 2
        for thread in self._crew:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _serve(jobs: "queue.SimpleQueue[tuple[Future[Any], Place] | None]", work: Work, meter: Meter) -> None:
    while (job := jobs.get()) is not None:
        future, place = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            with meter.making():
                batch = work.make(place)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(batch)
        del job, future


class ExecutorEngine(_Ahead):
    """An executor of the user's: processes, a cluster."""

    def __init__(self, work: Work, places: Iterator[Place], budget: int, executor: Executor, meter: Meter) -> None:
        super().__init__(places, budget, getattr(executor, "_max_workers", None) or 2, meter)
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
        for _, future in self._under_way:
            future.cancel()
        self._under_way.clear()


class NativeEngine(_Ahead):
    """Records of fixed size, read by native threads while Python does other things."""

    def __init__(
        self, work: Work, fields: list["_NativeField"], places: Iterator[Place], budget: int, threads: int, meter: Meter
    ) -> None:
        super().__init__(places, budget, threads, meter)
        self._work, self._fields, self._process = work, fields, os.getpid()
        self._ring: _core.BatchRing | None = _core.BatchRing([(f.reader, f.number, f.stride) for f in fields], threads)
        self._size = 0

    def _begin(self, place: Place) -> RecordPicks:
        picks = self._work.picks(place)
        assert isinstance(picks, RecordPicks)
        assert self._ring is not None
        self._ring.put(picks.ids)
        return picks

    def _wait(self, place: Place, token: RecordPicks) -> Any:
        assert self._ring is not None
        try:
            values, present = self._ring.take()
        except Exception:
            return self._work.make(place)  # again, by the way that knows what to do about errors
        count = len(token.ids)
        batch: Batch = {
            f.name: masked(value.view(f.dtype).reshape(count, *f.shape), there)
            for f, value, there in zip(self._fields, values, present, strict=True)
        }
        if token.weights is not None:
            batch["weight"] = token.weights
        return self._work.finish(place, token, batch)

    def close(self) -> None:
        """Let the threads end."""
        self._ring = None
        self._under_way.clear()


@dataclass(frozen=True)
class _NativeField:
    """A field that the native ring can read."""

    name: str
    reader: Any
    number: int
    stride: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _native_fields(source: Source) -> list[_NativeField] | None:
    """The fields of a source as the ring reads them; None if it cannot read all of them."""
    fields: list[_NativeField] = []
    for name, field in source.schema.items():
        found = source.native_reader(name)
        if found is None or field.stride == 0:
            return None
        fields.append(_NativeField(name, *found, field.stride, field.dtype, field.shape))
    return fields


def make_engine(
    work: Work, places: Iterator[Place], *, budget: int, threads: int, executor: Executor | None, meter: Meter
) -> Engine:
    """The engine that fits."""
    if executor is not None:
        return ExecutorEngine(work, places, budget, executor, meter)
    if threads == 0:
        return PlainEngine(work, places, meter)
    if work.transform is None and isinstance(work.stream, RecordStream):
        fields = _native_fields(work.stream.source)
        if fields is not None:
            return NativeEngine(work, fields, places, budget, threads, meter)
    return ThreadEngine(work, places, budget, threads, meter)
