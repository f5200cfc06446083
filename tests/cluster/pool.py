"""Two other processes to run tasks in."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker

from tests.effort import is_campaign


def new_pool() -> ProcessPoolExecutor:
    """Two processes, started when they are needed: forks, in a campaign interpreters."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn" if is_campaign() else "fork"))


@contextmanager
def running_pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that run: what they open here is open before the first test."""
    resource_tracker.ensure_running()  # multiprocessing keeps it as long as this process lasts
    with new_pool() as pool:
        for job in [pool.submit(os.getpid) for _ in range(4)]:
            job.result(timeout=600)
        yield pool
