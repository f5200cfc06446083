"""Tasks on an executor: as many at a time as are good for it, results as they come, and nothing lost of what was finished."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import TypeVar

__all__ = ["AT_ONCE", "Call", "run_tasks"]

AT_ONCE = 1024
"""So many tasks are given to an executor before the first is done: more than the workers of a large cluster, few to remember."""

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
            while not failed and len(running) < at_once and (call := next(waiting, None)) is not None:
                running[executor.submit(call[0], call[1])] = call[1]
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                error = None if future.cancelled() else future.exception()
                if error is not None:
                    error.add_note(f"in {task}")
                    failed.append(error)
                    running = {other: task for other, task in running.items() if not other.cancel()}
                elif not future.cancelled():
                    yield task, future.result()
    finally:
        for future in running:
            future.cancel()
    if failed:
        raise failed[0]
