"""Tasks on an executor: as many at a time as are good for it, results as they come, and nothing lost of what was finished."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from typing import TypeVar

__all__ = ["AT_ONCE", "Call", "run_tasks"]

AT_ONCE = 1024
"""So many tasks are given to an executor before the first is done: more than the workers of a large cluster, few to remember."""

LOOK_S = 1.0
"""So often is looked for tasks that were cancelled without a word."""

Task = TypeVar("Task")
Result = TypeVar("Result")
Call = tuple[Callable[[Task], Result], Task]
"""What to call, and with what. Both are pickled by executors that run in other processes."""


def run_tasks(
    calls: "Iterable[Call[Task, Result]]", executor: Executor | None, *, at_once: int = AT_ONCE
) -> Iterator[tuple[Task, Result]]:
    """Tasks and their results in the order in which they are done; without an executor, one after the other here.

    After a failure nothing new is begun. What is running is waited for and yielded, then the failure is raised, with a note that
    names the task. A caller that stops early waits for nothing.
    """
    if executor is None:
        yield from ((task, work(task)) for work, task in calls)
        return
    waiting, running, failed = iter(calls), dict[Future[Result], Task](), list[BaseException]()
    try:
        while True:
            _submit(waiting, running, failed, executor, at_once)
            if not running:
                break
            wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in [one for one in running if one.done()]:  # also those that an executor cancelled, and told nobody
                if future not in running:
                    continue  # cancelled below
                task = running.pop(future)
                error = _error_of(future, task)
                if error is None:
                    yield task, future.result()
                    continue
                failed.append(error)
                for other in [other for other in running if other.cancel()]:
                    del running[other]
    finally:
        for future in running:
            future.cancel()
    if failed:
        raise failed[0]


def _submit(
    waiting: "Iterator[Call[Task, Result]]",
    running: "dict[Future[Result], Task]",
    failed: list[BaseException],
    executor: Executor,
    at_once: int,
) -> None:
    """Give tasks to the executor, as many as it may have; what fails here counts as a failure of its task."""
    try:
        while not failed and len(running) < at_once and (call := next(waiting, None)) is not None:
            running[executor.submit(call[0], call[1])] = call[1]
    except Exception as error:
        failed.append(error)


def _error_of(future: "Future[Result]", task: Task) -> BaseException | None:
    """Why a task was not done; None if it was."""
    if future.cancelled():
        return CancelledError(f"{task} was not done: the executor was shut down, or cancelled it")
    error = future.exception()
    if error is not None:
        error.add_note(f"in {task}")
    return error
