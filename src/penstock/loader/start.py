"""Which engine makes the batches of a loader."""

from penstock.argument import MAX_LENGTH
from penstock.loader.engine import Engine, ExecutorEngine, Lent, PlainEngine, ThreadEngine
from penstock.loader.native_engine import NativeEngine
from penstock.loader.native_field import native_groups
from penstock.loader.needs import Ahead
from penstock.loader.read_ahead import make_read_ahead
from penstock.loader.schedule import Schedule
from penstock.loader.stats import Meter
from penstock.loader.work import Work

__all__ = ["make_engine"]


def make_engine(
    work: Work,
    schedule: Schedule,
    first: int,
    end: int | None,
    *,
    budget: int | None,
    threads: int,
    executor: Lent | None,
    meter: Meter,
) -> Engine:
    """The engine that fits, for steps from ``first`` on; until ``end``, if there is one."""
    steps = range(first, MAX_LENGTH if end is None else end)
    places = map(schedule.place, steps)
    if executor is not None:
        return ExecutorEngine(work, places, budget, executor, Ahead(work, schedule, range(0)), meter)
    if threads == 0 or len(work.out) == 1:
        return PlainEngine(work, places, Ahead(work, schedule, steps), meter)
    ahead = Ahead(work, schedule, steps, make_read_ahead(work, schedule, steps))
    try:
        if work.transform is None and not work.out:
            groups = native_groups(work.stream)
            if groups is not None:
                return NativeEngine(work, groups, schedule, steps, budget, threads, ahead, meter)
        return ThreadEngine(work, places, budget, threads, ahead, meter)
    except BaseException:  # such as no more threads
        ahead.close()
        raise
