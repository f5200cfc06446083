"""Engines: who makes the batches, and how far ahead. All deliver in the order of the steps."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import _core
from penstock.argument import MAX_LENGTH
from penstock.errors import BatchError, WindowTooSmallError, WorkerDiedError
from penstock.interfaces import IntArray
from penstock.loader.elsewhere import make_elsewhere, pack
from penstock.loader.needs import Ahead
from penstock.loader.schedule import EpochSchedule, Place, Schedule, Span
from penstock.loader.stats import Meter
from penstock.loader.work import Work, batch_bytes
from penstock.order import Design
from penstock.records import Batch, Source, masked
from penstock.stream import RecordStream
from penstock.stream.picks import RecordPicks
from penstock.stream.stream import WEIGHT

__all__ = ["Engine", "make_engine"]

MOST_AHEAD = 64
"""Never more batches than this are under way."""

CACHE_BYTES = 8_000_000
"""What is read ahead natively unless the user says otherwise: enough to be ahead, and little enough to stay in the cache of the
processor, where the memory of a batch that is gone is filled again. (256 records of 2 KiB: 64 MB ahead is a fifth slower.)
"""

TRANSFORM_BYTES = 64_000_000
"""What is read ahead where Python threads or processes make the batches, unless the user says otherwise."""


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
    """Keeps as many batches under way as fit the budget."""

    def __init__(self, places: Iterator[Place], budget: int | None, threads: int, ahead: Ahead, meter: Meter) -> None:
        self._places, self._budget, self._threads, self._ahead, self._meter = places, budget, threads, ahead, meter
        self._under_way: deque[tuple[Place, Any]] = deque()
        self._waiting: Place | None = None  # the next place, whose bytes have no room yet
        self._size = 0  # bytes of a batch, as far as known

    def _depth(self) -> int:
        """How many batches may be under way. Before the size of one is known: one for each thread, or one if memory is bounded."""
        if self._budget is None:
            return max(self._threads + 1, min(MOST_AHEAD, TRANSFORM_BYTES // max(1, self._size))) if self._size else self._threads
        return max(1, min(MOST_AHEAD, self._budget // self._size)) if self._size else 1

    def _fill(self) -> None:
        while len(self._under_way) < self._depth():
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
        if not self._under_way:
            raise StopIteration
        place, token = self._under_way.popleft()
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


class ThreadEngine(_Ahead):
    """Threads of its own that read and transform."""

    def __init__(self, work: Work, places: Iterator[Place], budget: int | None, threads: int, ahead: Ahead, meter: Meter) -> None:
        super().__init__(places, budget, threads, ahead, meter)
        self._work, self._most = work, len(work.out) - 1 if work.out else MOST_AHEAD
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Place] | None] = queue.SimpleQueue()
        self._closed = False
        self._crew = [threading.Thread(target=_serve, args=(self._jobs, work, meter), daemon=True) for _ in range(threads)]
        for thread in self._crew:
            thread.start()

    def _depth(self) -> int:
        """No more batches than there is memory of the user's, one of which is in use."""
        return min(super()._depth(), self._most)

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
        self._ahead.close()
        for _, future in self._under_way:
            if isinstance(future, Future):
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
        for _, future in self._under_way:
            if isinstance(future, Future):
                future.cancel()
        self._under_way.clear()


class NativeEngine(Engine):
    """Records of fixed size, read by native threads while Python does other things. It only says which, many batches at once."""

    def __init__(
        self,
        work: Work,
        fields: list["_NativeField"],
        schedule: EpochSchedule,
        steps: range,
        budget: int | None,
        threads: int,
        ahead: Ahead,
        meter: Meter,
    ) -> None:
        self._work, self._fields, self._schedule, self._steps = work, fields, schedule, steps
        self._ahead, self._meter = ahead, meter
        self._threads = threads
        self._turn, self._taking, self._closed = threading.RLock(), False, False  # a signal handler may close
        self._ring: _core.BatchRing | None = self._make_ring()
        self._record_bytes = sum(f.stride for f in fields) + (0 if work.ids is None else 8)
        fits = (CACHE_BYTES if budget is None else budget) // (self._record_bytes * schedule.batch_size // schedule.shard.world)
        self._depth = max(2 if budget is None else 1, min(MOST_AHEAD, fits))
        self._asked = steps.start
        self._stretches: deque[_Stretch] = deque()
        stream = work.stream
        assert isinstance(stream, RecordStream)
        self._stream = stream
        self._is_plain = not stream.bans and not isinstance(stream.order, Design)

    def _make_ring(self) -> _core.BatchRing:
        return _core.BatchRing([(f.reader, f.number, f.stride) for f in self._fields], self._threads)

    def _start_over(self, step: int) -> None:
        """Forget all that is under way, and go on with a step."""
        self._ring = None  # its threads end before anything is let go
        self._let_go()
        self._ring, self._asked = self._make_ring(), step

    def _let_go(self) -> None:
        for stretch in self._stretches:
            stretch.hold.close()
        self._stretches.clear()

    def _ask(self, most: int) -> bool:
        """Ask for batches: a run of whole ones together, others one by one. False if there is no room for their bytes now."""
        assert self._ring is not None
        schedule, first = self._schedule, self._schedule.place(self._asked)
        count = min(most, schedule.stretch(self._asked)) if self._is_plain else 0
        while count > 1 and not self._ahead.reached(self._asked + count - 1):
            count //= 2
        if count <= 1:
            return self._ask_one(first)
        run = first.spans[0].run
        size = schedule.batch_size // schedule.shard.world
        ids = self._stream.order.indices(first.epoch, run.start, run.start + (count * size - 1) * run.step + 1, run.step)
        try:
            hold = self._hold(ids)
        except Exception:
            return self._ask_one(first)  # which knows what to do about errors
        self._ring.put(ids, size)
        self._stretches.append(_Stretch(first, count, RecordPicks(ids), hold))
        self._asked += count
        return True

    def _ask_one(self, place: Place) -> bool:
        assert self._ring is not None
        try:
            picks = self._work.picks(place)
            assert isinstance(picks, RecordPicks)
            hold = self._hold(picks.ids)
        except Exception as error:
            if isinstance(error, WindowTooSmallError) and self._stretches:
                return False  # batches under way fill the window
            nothing = RecordPicks(np.empty(0, np.int64))
            self._stretches.append(_Stretch(place, 1, nothing, ExitStack(), is_good=False))
            self._ring.put(nothing.ids, 0)
        else:
            self._ring.put(picks.ids, len(picks.ids))
            self._stretches.append(_Stretch(place, 1, picks, hold))
        self._asked += 1
        return True

    def _hold(self, ids: IntArray) -> ExitStack:
        """Keeps the bytes of records in memory until it is closed, where they are not in files of this machine."""
        stack = ExitStack()
        stack.enter_context(self._ahead.hold(self._stream, ids))
        return stack

    def _may_ask(self) -> bool:
        """Whether the next batch can be asked for: not while its bytes have no room, unless that will not change by itself."""
        if self._stretches and not self._stretches[-1].is_good:
            return False  # it is going to be made in another way, which needs the room
        if self._ahead.reached(self._asked):
            return True
        if self._stretches:
            return False
        self._ahead.wait(self._asked)
        return True

    def take(self) -> tuple[Place, Any]:
        """The next batch; when half of what may be under way is, more is asked for."""
        with self._turn:
            if self._closed:
                raise StopIteration
            self._taking = True
        try:
            return self._take()
        finally:
            with self._turn:
                self._taking = False
                if self._closed:
                    self._end()

    def _take(self) -> tuple[Place, Any]:
        assert self._ring is not None
        if (ready := self._ring.size) <= self._depth // 2:
            while ready < self._depth and self._asked < self._steps.stop and self._may_ask():
                if not self._ask(self._depth - ready):
                    break
                ready = self._ring.size
        if not self._stretches:
            raise StopIteration
        stretch = self._stretches[0]
        place, picks = stretch.next(self._schedule)
        began = time.perf_counter()
        try:
            values, present = self._ring.take()
        except Exception:
            stretch.is_good = False
        finally:
            if stretch.taken == stretch.count:
                self._stretches.popleft()
                stretch.hold.close()
                self._ahead.passed(place.step)
        if not stretch.is_good:
            if self._stream.source.remote is not None:
                self._start_over(place.step + 1)  # so that bytes that are held can be fetched again
            return place, self._work.make(place)  # again, by the way that knows what to do about errors
        self._meter.wait_s += time.perf_counter() - began
        count = len(picks.ids)
        self._meter.made(count * self._record_bytes)
        batch: Batch = {f.name: value.view(f.dtype).reshape(count, *f.shape) for f, value in zip(self._fields, values, strict=True)}
        for f, there in zip(self._fields, present, strict=False):
            batch[f.name] = masked(batch[f.name], there)
        if picks.weights is not None:
            batch[WEIGHT] = picks.weights
        return place, self._work.finish(place, picks, batch)

    def close(self) -> None:
        """Let the threads end; if another thread is taking a batch, when it has it."""
        with self._turn:
            self._closed = True
            if not self._taking:
                self._end()

    def _end(self) -> None:
        self._ring = None  # its threads end before anything is let go
        self._let_go()
        self._ahead.close()


@dataclass
class _Stretch:
    """Batches that were asked for together: ``count`` from that of ``first`` on."""

    first: Place
    count: int
    picks: RecordPicks
    hold: ExitStack
    taken: int = 0
    is_good: bool = True

    def next(self, schedule: EpochSchedule) -> tuple[Place, RecordPicks]:
        """The place of the next batch, and what is in it."""
        number, self.taken = self.taken, self.taken + 1
        first = self.first
        if self.count == 1:
            return first, self.picks
        width = schedule.batch_size * schedule.stream.stride
        position, size = first.position + number * width, len(self.picks.ids) // self.count
        begin, by = first.spans[0].run.start + number * width, first.spans[0].run.step
        spans = (Span(first.epoch, range(begin, begin + (size - 1) * by + 1, by)),)
        place = Place(first.step + number, first.epoch, position, None, spans, 0, first.epoch, position + width)
        return place, RecordPicks(self.picks.ids[number * size : (number + 1) * size])


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
    work: Work,
    schedule: Schedule,
    first: int,
    end: int | None,
    *,
    budget: int | None,
    threads: int,
    executor: Executor | None,
    meter: Meter,
) -> Engine:
    """The engine that fits, for steps from ``first`` on; until ``end``, if there is one."""
    steps = range(first, MAX_LENGTH if end is None else end)
    places = map(schedule.place, steps)
    if executor is not None:
        return ExecutorEngine(work, places, budget, executor, Ahead(work, schedule, range(0)), meter)
    ahead = Ahead(work, schedule, steps)
    if threads == 0 or len(work.out) == 1:
        return PlainEngine(work, places, ahead, meter)
    if work.transform is None and not work.out and isinstance(work.stream, RecordStream) and isinstance(schedule, EpochSchedule):
        fields = _native_fields(work.stream.source)
        if fields is not None:
            return NativeEngine(work, fields, schedule, steps, budget, threads, ahead, meter)
    return ThreadEngine(work, places, budget, threads, ahead, meter)
