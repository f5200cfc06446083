"""--engine and --workers: where the parts of long work are done."""

import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from penstock.source.optional import need

__all__ = ["Engine", "EngineName", "Workers", "running"]


class Engine(StrEnum):
    """Where work is done."""

    threads = "threads"
    processes = "processes"
    ray = "ray"


EngineName = Annotated[
    Engine, typer.Option("--engine", help="Where records are read, mapped and written.", rich_help_panel="Scale")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Workers of the engine; one for each processor unless given.", show_default=False, rich_help_panel="Scale"
    ),
]


@contextmanager
def running(engine: Engine, workers: int | None) -> Iterator[Executor | None]:
    """The executor of an engine; None for the threads that the work has anyway."""
    if engine is Engine.threads and workers is None:
        yield None
        return
    with _executor(engine, workers) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _executor(engine: Engine, workers: int | None) -> Iterator[Executor]:
    count = workers or os.cpu_count() or 1
    if engine is Engine.threads:
        with ThreadPoolExecutor(count, thread_name_prefix="penstock-work") as threads:
            yield threads
    elif engine is Engine.processes:
        # Spawned: a forked child would have the locks of threads that it does not have.
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent) as processes:
            yield processes
    else:
        with _ray(workers) as tasks:
            yield tasks


@contextmanager
def _ray(workers: int | None) -> Iterator[Executor]:
    """Tasks of the Ray that RAY_ADDRESS names, or of one of our own."""
    need("ray", "ray")
    import ray

    from penstock.cluster.ray import RayExecutor

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a conversion reports to nobody
    own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
