"""Threads, locks, queues and time in one real thread: greenlets, and a scheduler that draws which of them goes on.

A thread runs until it waits for a lock, a condition, a queue, a future or the clock; whether it is preempted at a lock that is free
is drawn too. Time is a number. It advances when no thread can run, and now and then before that, as for a thread that the system
leaves waiting. If nothing can run and no time is waited for, or only a time that is too far away, that is a hang.

``installed()`` puts these in place of ``threading``, ``time`` and the rest in all modules of penstock.
"""

import contextlib
import heapq
import itertools
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest import mock

from greenlet import GreenletExit, greenlet

from penstock import interrupt, process
from penstock.remote import fetch, window

MOST_S = 100_000.0
"""No run takes longer: every request, retry and wait of the product is bounded by far less, but for waits that a notification
ends, which take ``FOREVER_S`` here, so that a lost one shows.
"""

FOREVER_S = 1e9
MOST_STEPS = 100_000


class HangError(AssertionError):
    """Nothing can go on, or it never ends."""


class Scheduler:
    """Who goes on, and what time it is. ``current`` is the thread that runs."""

    def __init__(self, draw: random.Random, *, preempt: float = 0.0, late: float = 0.0, say: Callable[[str], None] | None = None):
        self.draw, self.preempt, self.late = draw.random, preempt, late
        self.now = 0.0
        self.steps = 0
        self.digest = 0
        """Of all that happened: who went on, and when."""
        self.threads: list[Thread] = []
        self.current: Thread | None = None
        self.main: Thread | None = None
        self._say = say
        self._runnable: list[Thread] = []
        self._timers: list[tuple[float, int, Thread, int]] = []
        self._order = itertools.count()
        self._hub = greenlet.getcurrent()

    def say(self, words: str) -> None:
        """For those who look at one run."""
        if self._say is not None:
            self._say(f"{self.now:10.3f} s  {'' if self.current is None else self.current.name:18} {words}")

    @property
    def is_told(self) -> bool:
        return self._say is not None

    # For threads

    def block(self, seconds: float | None = None) -> bool:
        """Wait until ``wake``, or for some time: whether it was woken."""
        me = self.current
        assert me is not None, "nothing may wait outside of a simulation"
        me.is_woken, me.is_blocked = False, True
        me.turn += 1
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + seconds, next(self._order), me, me.turn))
        self._hub.switch()
        return me.is_woken

    def wake(self, thread: "Thread") -> None:
        thread.is_woken = True
        if thread.is_blocked:  # otherwise its time was over a moment before
            thread.is_blocked = False
            thread.turn += 1
            self._runnable.append(thread)

    def pause(self) -> None:
        """A place where a thread may be preempted."""
        if self.preempt and self.current is not None and self._runnable and self.draw() < self.preempt:
            self._runnable.append(self.current)
            self._hub.switch()

    def add(self, thread: "Thread") -> None:
        self.threads.append(thread)
        self._runnable.append(thread)

    # For the one who runs it

    def run(self, until: Callable[[], bool]) -> None:
        """Let threads go on until something is so; HangError if it never is."""
        while not until():
            if not self._runnable or (self.late and self._timers and self.draw() < self.late):
                self._advance()
            runnable = self._runnable
            place = int(self.draw() * len(runnable)) if len(runnable) > 1 else 0
            runnable[place], runnable[-1] = runnable[-1], runnable[place]
            thread = self.current = runnable.pop()
            self.steps += 1
            self.digest = hash((self.digest, thread.ident, self.now))
            if self.steps > MOST_STEPS:
                raise HangError(f"no end after {MOST_STEPS} steps\n{self.stacks()}")
            thread.greenlet.switch()
            self.current = None

    def _advance(self) -> None:
        """Go to the next time that a thread waits for."""
        timers = self._timers
        while timers and timers[0][3] != timers[0][2].turn:
            heapq.heappop(timers)
        if self._runnable and (not timers or timers[0][0] > self.now + 60):
            return
        if not timers:
            raise HangError(f"deadlock: no thread can go on\n{self.stacks()}")
        when, _, thread, _ = heapq.heappop(timers)
        if when > MOST_S:
            raise HangError(f"hang: nothing happens any more\n{self.stacks()}")
        self.now = max(self.now, when)
        thread.is_blocked = False
        thread.turn += 1
        self._runnable.append(thread)

    @property
    def is_idle(self) -> bool:
        """Whether no thread can run, now or later."""
        return not self._runnable and not any(turn == thread.turn for _, _, thread, turn in self._timers)

    def alive(self) -> "list[Thread]":
        return [thread for thread in self.threads if thread.is_alive()]

    def stacks(self) -> str:
        """Where every thread is."""
        return "\n".join(f"-- {thread.name}\n{thread.stack()}" for thread in self.alive())

    def end(self) -> None:
        """End all threads, wherever they are."""
        self.preempt = 0.0
        for _ in range(10):
            if not (alive := self.alive()):
                break
            for thread in alive:
                self.current = thread
                with contextlib.suppress(BaseException):
                    thread.greenlet.throw(GreenletExit)
        self.current = None


_scheduler: Scheduler = Scheduler(random.Random(0))


def begin(scheduler: Scheduler) -> None:
    """Locks and threads belong to this one from now on."""
    global _scheduler
    _scheduler = scheduler


def now() -> Scheduler:
    """The one that is running."""
    return _scheduler


# As in the module threading


class Thread:
    """In place of ``threading.Thread``."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._scheduler = _scheduler
        self._target, self._arguments, self._named = target, args, kwargs or {}
        self.ident = len(_scheduler.threads)
        self.name, self.daemon = name or "thread", daemon
        self.turn, self.is_woken, self.is_blocked = 0, False, False
        self.error: BaseException | None = None
        self._joining: list[Thread] = []
        self._is_done = False
        self.greenlet = greenlet(self._run, _scheduler._hub)

    def start(self) -> None:
        self.ident = len(self._scheduler.threads)
        self.name = f"{self.name}-{self.ident}"
        self._scheduler.add(self)
        self._scheduler.pause()

    def _run(self) -> None:
        try:
            assert self._target is not None
            self._target(*self._arguments, **self._named)
        except BaseException as error:
            self.error = error
        finally:
            self._is_done = True
            self._target, self._arguments = None, ()
            for thread in self._joining:
                self._scheduler.wake(thread)

    def is_alive(self) -> bool:
        return not self._is_done and self in self._scheduler.threads

    def join(self, timeout: float | None = None) -> None:
        if not self._is_done:
            me = self._scheduler.current
            assert me is not None
            self._joining.append(me)
            if not self._scheduler.block(timeout):
                self._joining.remove(me)

    def stack(self) -> str:
        frame = self.greenlet.gr_frame
        return "" if frame is None else "".join(traceback.format_stack(frame)[-14:])


_outside = SimpleNamespace(name="outside", ident=-1)


def current_thread() -> Any:
    return _scheduler.current or _outside


def main_thread() -> Any:
    """The thread that takes batches, if it is to be the main one."""
    return _scheduler.main or _outside


class Lock:
    """In place of ``threading.Lock``. Who wakes up has to compete again, as with a real one."""

    __slots__ = ("_owner", "_waiting")

    def __init__(self) -> None:
        self._owner: Any = None
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = _scheduler
        if scheduler.preempt:
            scheduler.pause()
        if self._owner is None:
            self._owner = scheduler.current or _outside
            return True
        until = scheduler.now + timeout
        while self._owner is not None:
            if not blocking:
                return False
            me = scheduler.current
            assert me is not None, "a lock is held by a thread that is gone"
            self._waiting.append(me)
            if not scheduler.block(None if timeout < 0 else max(0.0, until - scheduler.now)):
                self._waiting.remove(me)
                return False
        self._owner = scheduler.current or _outside
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        waiting = self._waiting
        if waiting:
            place = int(_scheduler.draw() * len(waiting)) if len(waiting) > 1 else 0
            _scheduler.wake(waiting.pop(place))

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """In place of ``threading.RLock``."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def is_owned(self) -> bool:
        return self._owner is (_scheduler.current or _outside)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not (_scheduler.current or _outside) and not Lock.acquire(self, blocking, timeout):
            return False
        self._count += 1
        return True

    def release(self) -> None:
        if self._owner is not (_scheduler.current or _outside):
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count == 0:
            Lock.release(self)

    def release_all(self) -> int:
        count, self._count = self._count, 1
        self.release()
        return count

    def acquire_again(self, count: int) -> None:
        self.acquire()
        self._count = count


class Condition:
    """In place of ``threading.Condition``."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: deque[Thread] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self.acquire())

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._lock.is_owned() if isinstance(self._lock, RLock) else self._lock.locked()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        me = _scheduler.current
        assert me is not None
        self._waiting.append(me)
        count = self._lock.release_all() if isinstance(self._lock, RLock) else self._lock.release()
        try:
            is_woken = _scheduler.block(timeout)
            if not is_woken:
                self._waiting.remove(me)
        finally:
            if isinstance(self._lock, RLock):
                self._lock.acquire_again(count)
            else:
                self._lock.acquire()
        return is_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else _scheduler.now + timeout
        while not (found := predicate()) and (until is None or _scheduler.now < until):
            self.wait(None if until is None else until - _scheduler.now)
        return found

    def notify(self, n: int = 1) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        for _ in range(min(n, len(self._waiting))):
            _scheduler.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """In place of ``threading.Event``."""

    def __init__(self) -> None:
        self._changed, self._is_set = Condition(), False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._is_set, timeout))


class Queue:
    """In place of ``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[Thread] = deque()

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            _scheduler.wake(self._waiting.popleft())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        _scheduler.pause()
        until = None if timeout is None else _scheduler.now + timeout
        while not self._items:
            me = _scheduler.current
            if not block or me is None or (until is not None and _scheduler.now >= until):
                raise Empty
            self._waiting.append(me)
            if not _scheduler.block(None if until is None else until - _scheduler.now):
                self._waiting.remove(me)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


# As in the module concurrent.futures


class Future:
    """In place of ``concurrent.futures.Future``; sets of them are in the same order in every run."""

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __init__(self) -> None:
        self._number = next(_scheduler._order)
        self._result: Any = None
        self._error: BaseException | None = None
        self._state = "waiting"
        self._waiting: list[Thread] = []
        self._callbacks: list[Callable[[Future], object]] = []

    def __hash__(self) -> int:
        return self._number

    def set_running_or_notify_cancel(self) -> bool:
        self._state = "running"
        return True

    def cancel(self) -> bool:
        if self._state == "waiting":
            self._end("cancelled")
        return self._state == "cancelled"

    def cancelled(self) -> bool:
        return self._state == "cancelled"

    def done(self) -> bool:
        return self._state in ("cancelled", "done")

    def set_result(self, result: Any) -> None:
        self._result = result
        self._end("done")

    def set_exception(self, error: BaseException | None) -> None:
        self._error = error
        self._end("done")

    def _end(self, state: str) -> None:
        self._state = state
        for thread in self._waiting:
            _scheduler.wake(thread)
        for callback in self._callbacks:
            callback(self)

    def add_done_callback(self, callback: "Callable[[Future], object]") -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        wait_for_first({self}, timeout)
        if not self.done():
            raise TimeoutError
        if self._state == "cancelled":
            raise futures.CancelledError
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error


def wait_for_first(pending: set[Future], timeout: float | None = None, return_when: Any = None) -> tuple[set[Future], set[Future]]:
    """In place of ``concurrent.futures.wait``, until the first is done."""
    _scheduler.pause()
    if not any(one.done() for one in pending):
        me = _scheduler.current
        assert me is not None
        for one in pending:
            one._waiting.append(me)
        _scheduler.block(timeout)
        for one in pending:
            one._waiting.remove(me)
    done = {one for one in pending if one.done()}
    return done, pending - done


class Executor:
    """In place of ``concurrent.futures.ThreadPoolExecutor``."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "executor", **_: object) -> None:
        self._jobs: deque[tuple[Future, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._threads: list[Thread] = []
        self._most, self._name = max_workers, thread_name_prefix

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future = Future()
        self._jobs.append((future, function, arguments))
        if len(self._threads) < self._most:
            self._threads.append(Thread(target=self._serve, name=self._name))
            self._threads[-1].start()
        return future

    def map(self, function: Callable[..., Any], *things: Any) -> Iterator[Any]:
        coming = [self.submit(function, *one) for one in zip(*things, strict=False)]
        return (one.result() for one in coming)

    def _serve(self) -> None:
        while self._jobs:
            future, function, arguments = self._jobs.popleft()
            if future.cancelled():
                continue
            future.set_running_or_notify_cancel()
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
        self._threads.remove(current_thread())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for future, _, _ in self._jobs:
                future.cancel()
        for thread in list(self._threads) if wait else ():
            thread.join()


# Time


def _sleep(seconds: float) -> None:
    _scheduler.block(max(0.0, seconds))


def _time() -> float:
    return _scheduler.now


def _patience() -> float:
    """A wait that a notification ends takes as long as it takes."""
    return FOREVER_S


class VirtualClock(fetch.Clock):
    """The clock of retries, and its jitter."""

    def __init__(self) -> None:
        pass

    def now(self) -> float:
        return _scheduler.now

    def sleep(self, seconds: float) -> None:
        _sleep(seconds)

    def jitter(self) -> float:
        return _scheduler.draw()


# In place of the real ones

_THREADING = SimpleNamespace(
    Thread=Thread,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    current_thread=current_thread,
    main_thread=main_thread,
    get_ident=lambda: current_thread().ident,
    local=threading.local,
)
_TIME = SimpleNamespace(
    monotonic=_time, perf_counter=_time, time=_time, sleep=_sleep, process_time=time.process_time, time_ns=time.time_ns
)
_REPLACED = [
    (threading, _THREADING),
    (time, _TIME),
    (SimpleQueue, Queue),
    (futures.Future, Future),
    (futures.wait, wait_for_first),
    (futures.ThreadPoolExecutor, Executor),
]
_LOCKS = {type(threading.Lock()): Lock, type(threading.RLock()): RLock}


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside, the code of penstock runs in the threads of a scheduler. (Signals are not simulated, and neither is their module.)"""
    with contextlib.ExitStack() as stack:
        for module in [one for name, one in sys.modules.items() if name.startswith("penstock.") and one is not interrupt]:
            for name, value in list(vars(module).items()):
                other = next((new for old, new in _REPLACED if value is old), None)
                if other is None and type(value) in _LOCKS:
                    other = _LOCKS[type(value)]()
                if other is not None:
                    stack.enter_context(mock.patch.object(module, name, other))
        stack.enter_context(mock.patch.object(window, "patience", _patience))
        stack.enter_context(mock.patch.object(process, "_crew", process._Crew()))
        yield
