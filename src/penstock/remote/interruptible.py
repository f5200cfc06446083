"""Blocking calls that an interrupt can abandon.

obstore handles no signals while it waits for a server. So the main thread lets a daemon thread call it, and waits for that thread.
An interrupt ends the wait and abandons the thread, which the interpreter does not join when it ends.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar, cast

from penstock.interrupt import HEARD_S, check, exposed, shielded

__all__ = ["end_threads", "first_of", "in_thread", "interruptible", "is_main_thread"]

T = TypeVar("T")

_Job: TypeAlias = Callable[[], None]
_Jobs: TypeAlias = SimpleQueue[_Job | None]


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


def is_main_thread() -> bool:
    """Whether this is the thread in which signal handlers run."""
    return threading.current_thread() is threading.main_thread()


@exposed
def interruptible(action: Callable[[], T]) -> T:
    """Call ``action``. In the main thread, an interrupt ends the wait for it at once."""
    if not is_main_thread() or sys.is_finalizing():  # other threads do not run any more then
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
