"""What a batch costs, part by part: one batch at a time, nothing ahead, so that the parts add up."""

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise

from penstock.loader import Loader

__all__ = ["Split", "split_batches"]


@dataclass(frozen=True)
class Split:
    """Seconds of one batch, made alone (medians): computing which records are in it, reading them into it (decompressing
    and collating are part of that: records are put where they belong when they are read), and the transform.
    """

    order_s: float
    read_s: float
    transform_s: float
    batches: int


def split_batches(loader: Loader, steps: range, *, most_s: float) -> Split | None:
    """Make the batches of steps again, one by one, and time the parts. The loader's cursor stays; None if there are none."""
    found: list[tuple[float, float, float]] = []
    began = time.perf_counter()
    for step in steps:
        if found and time.perf_counter() - began > most_s:
            break
        found.append(_split(loader, step))
    if not found:
        return None
    order_s, read_s, transform_s = (statistics.median(part) for part in zip(*found, strict=True))
    return Split(order_s, read_s, transform_s, len(found))


def _split(loader: Loader, step: int) -> tuple[float, float, float]:
    work, place = loader._work, loader._schedule.place(step)
    clock = [time.perf_counter()]
    picks = work.picks(place)
    clock.append(time.perf_counter())
    stream = work.stream_for(place)
    batch = stream.fetch(picks)
    clock.append(time.perf_counter())
    work.finish(place, picks, batch)
    clock.append(time.perf_counter())
    order_s, read_s, transform_s = (after - before for before, after in pairwise(clock))
    return order_s, read_s, transform_s
