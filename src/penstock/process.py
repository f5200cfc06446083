"""What a process holds: a few open things, an LRU of values, threads for blocking calls. After a fork, a child starts with none.

And :func:`need`, which imports a library that may be missing.
"""

import importlib
import math
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar, cast

from penstock.interrupt import HEARD_S, check, exposed, shielded

__all__ = [
    "FewOpen",
    "ForkAware",
    "Recent",
    "end_threads",
    "first_of",
    "in_thread",
    "interruptible",
    "map_at_once",
    "need",
    "need_unforked",
]

AT_ONCE = 32
PACKAGES = {"PIL": "pillow", "lance": "pylance"}
"""Modules that come in packages of other names."""

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
T = TypeVar("T")
Key = tuple[Hashable, Hashable]
_Job: TypeAlias = Callable[[], None]
_Jobs: TypeAlias = SimpleQueue[_Job | None]


class ForkAware:
    """State that a forked child does not share with its parent: the lock may be held by a thread that the child does not have.

    ``_begin`` makes the state; methods that use it call ``_here`` first.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _here(self) -> threading.Lock:
        """The lock of the state. A child starts with a new state."""
        if self._process != os.getpid():
            self._start()
        return self._lock

    @property
    def _is_own(self) -> bool:
        """Whether the state was made in this process."""
        return self._process == os.getpid()


class FewOpen(ForkAware, Generic[K, T]):
    """Things opened by key when they are used, at most ``most`` of them; the least recently used are closed first.

    Safe to use from several threads. After a fork a child opens its own, and what the parent had open stays the parent's.
    """

    def __init__(self, opener: Callable[[K], T], most: int, *, close: Callable[[T], object] = methodcaller("close")) -> None:
        self._opener, self._close, self._most = opener, close, most
        super().__init__()

    def _begin(self) -> None:
        self._open: OrderedDict[K, T] = OrderedDict()
        self._users: dict[K, int] = {}

    def add(self, opened: Mapping[K, T]) -> None:
        """Things that are open already, no more than ``most``; one that another thread has opened meanwhile is closed."""
        with self._here():
            extra = [thing for key, thing in opened.items() if self._open.setdefault(key, thing) is not thing]
        for one in extra:
            self._close(one)

    def missing(self, keys: Iterable[K]) -> list[K]:
        """Those of the keys whose things are not open."""
        with self._here():
            return [key for key in keys if key not in self._open]

    @contextmanager
    def use(self, key: K) -> Iterator[T]:
        """The thing of a key, open at least until the block is left."""
        with self._here():
            if key not in self._open:
                self._open[key] = self._opener(key)
            self._open.move_to_end(key)
            self._users[key] = self._users.get(key, 0) + 1
            found = self._open[key]
            idle = [other for other in self._open if other not in self._users]
            closing = [self._open.pop(other) for other in idle[: max(0, len(self._open) - self._most)]]
        for one in closing:
            self._close(one)
        try:
            yield found
        finally:
            with self._lock:
                self._users[key] -= 1
                if self._users[key] == 0:
                    del self._users[key]

    def close(self) -> None:
        """Close what is open. Idempotent; what is used afterwards is opened again."""
        if self._is_own:
            with self._lock:
                closing, self._open = list(self._open.values()), OrderedDict()
            for one in closing:
                self._close(one)


class Recent(ForkAware):
    """Values that are costly to make: an LRU cache of at most ``most_bytes``. Each is made by one thread; the others wait for it.

    Keys are pairs. Values whose keys have the same first half as the latest value are kept even if they are larger than the limit:
    a large group that is read in small batches is not decoded for every batch. After a fork a child starts with none.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        super().__init__()

    def _begin(self) -> None:
        self._bytes = 0
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._coming: dict[Key, Future[Any]] = {}

    def clear(self) -> None:
        self._start()

    def __contains__(self, key: Key) -> bool:
        return key in self._kept and self._is_own

    def get(self, key: Key, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key; ``make`` gives it and its size in bytes if it is not there."""
        with self._here():
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            coming = self._coming.get(key)
            if coming is None:
                mine = self._coming[key] = Future()
        if coming is not None:
            return coming.result()
        try:
            value, size = make()
        except BaseException as error:
            with self._lock:
                self._coming.pop(key, None)
            mine.set_exception(error)
            raise
        self._keep(key, value, size)
        mine.set_result(value)
        return value

    def _keep(self, key: Key, value: Any, size: int) -> None:
        with self._lock:
            self._coming.pop(key, None)
            self._kept[key] = (value, size)
            self._bytes += size
            others = [other for other in self._kept if other[0] != key[0]] if self._bytes > self._most_bytes else []
            for other in others:
                if self._bytes > self._most_bytes:
                    self._bytes -= self._kept.pop(other)[1]


def map_at_once(
    function: Callable[[S], T], things: Sequence[S], *, are_remote: bool, unused: Callable[[T], object] = lambda result: None
) -> Generator[T]:
    """``map(function, things)``; in up to 32 threads where the function waits for answers from the network. ``unused`` gets the
    results that are not taken, if the generator is closed or a function fails.
    """
    if not are_remote or len(things) < 2:
        yield from map(function, things)
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(things)), thread_name_prefix="penstock-look")
    coming: deque[Future[T]] = deque()
    try:
        coming.extend(pool.submit(function, thing) for thing in things)
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        for one in coming:
            if not one.cancelled() and one.exception() is None:
                unused(one.result())


# Blocking calls that an interrupt can abandon. obstore handles no signals while it waits for a server. So the main thread lets a
# daemon thread call it, and waits for that thread. An interrupt ends the wait and abandons the thread, which the interpreter does
# not join when it ends.


class _Crew:
    """The threads of ``in_thread``, each with its queue of jobs, and the queues of those that are idle."""

    def __init__(self) -> None:
        self.threads: list[tuple[threading.Thread, _Jobs]] = []
        self.idle: list[_Jobs] = []


_crew, _lock = _Crew(), threading.RLock()  # a signal handler may come while it is held


def _after_fork() -> None:
    global _crew, _lock
    _crew, _lock = _Crew(), threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@exposed
def interruptible(action: Callable[[], T]) -> T:
    """Call ``action``. In the main thread, an interrupt ends the wait for it at once."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or sys.is_finalizing():  # other threads do not run any more then
        return action()
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()  # unlike a Future, it takes an interrupt at any point
    _hand_over(lambda: done.put(_outcome(action)))
    while True:
        with suppress(Empty):
            result, error = done.get(timeout=HEARD_S)
            break
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        del error  # it has this frame, and this frame would have it


def in_thread(action: Callable[[], T]) -> "Future[T]":
    """Call ``action`` in a thread that can be abandoned; in this one if no more threads can be started."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    _hand_over(lambda: _finish(done, *_outcome(action)))
    return done


@shielded
def _hand_over(job: _Job) -> None:
    with _lock:
        jobs = None if sys.is_finalizing() else _idle_thread(_crew)
        if jobs is not None:
            jobs.put(job)
            return
    job()


def first_of(
    pending: "set[Future[T]]", meanwhile: Callable[[], object], seconds: float = math.inf
) -> "tuple[set[Future[T]], set[Future[T]]]":
    """Those of several calls that are done, as soon as one is or the time is over, and the others.

    An interrupt ends the wait, and so does an exception of ``meanwhile``, which is called every HEARD_S seconds.
    """
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        done, others = wait(pending, timeout=max(0.0, min(HEARD_S, left)), return_when=FIRST_COMPLETED)
        if done or left <= HEARD_S:
            return done, others
        check()
        meanwhile()


def end_threads() -> None:
    """End the threads of ``in_thread`` when they are done; the next call starts new ones."""
    global _crew
    with _lock:
        crew, _crew = _crew, _Crew()
        for _, jobs in crew.threads:
            jobs.put(None)
    for thread, _ in crew.threads:
        thread.join()


def _idle_thread(crew: _Crew) -> _Jobs | None:
    """The queue of an idle thread, started if there is none; None if no more threads can be started."""
    if crew.idle:
        return crew.idle.pop()
    jobs: _Jobs = SimpleQueue()
    thread = threading.Thread(target=_serve, args=(jobs, crew), name="penstock-fetch", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    crew.threads.append((thread, jobs))
    return jobs


def _serve(jobs: _Jobs, crew: _Crew) -> None:
    while (job := jobs.get()) is not None:
        job()
        crew.idle.append(jobs)
        del job  # an idle thread keeps nothing alive


def _outcome(action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return action(), None
    except BaseException as error:
        return None, error


def _finish(done: "Future[Any]", result: object, error: BaseException | None) -> None:
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def need(module: str, extra: str) -> Any:
    """The module, or an ImportError that says how to install it."""
    found = sys.modules.get(module)
    if found is not None and not getattr(
        getattr(found, "__spec__", None), "_initializing", False
    ):  # 20 times quicker than to import it again
        return found
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {PACKAGES.get(package, package)}: pip install 'penstock[{extra}]'") from error


_users: dict[str, int] = {}
"""The process that uses a library whose threads do not come along when it forks."""


def need_unforked(module: str, extra: str, name: str, why: str) -> Any:
    """The same of a library that cannot be used in a child of the process that uses it: RuntimeError there, with the remedy."""
    if _users.setdefault(module, os.getpid()) != os.getpid():
        raise RuntimeError(
            f"{name} cannot be read in a forked process after its parent has read {name}, {why}: start processes with the method "
            "'spawn' (multiprocessing_context='spawn' of a torch DataLoader), or read in threads"
        )
    return need(module, extra)
