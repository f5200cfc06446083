"""How fast a loader is, on the user's data: beside what memory can do, with what it costs to start, and where the time goes."""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.loader import Loader
from penstock.loader.stats import Network
from penstock.report.advice import advise
from penstock.report.limit import Limit
from penstock.report.machine import Memory, Others, allowed_cores, resident
from penstock.report.runner import Runner, Turn, core_of
from penstock.report.section import Section
from penstock.report.split import Split, split_batches
from penstock.stream import RecordStream

__all__ = ["Speed", "measure_loader"]

ROUNDS = 5
"""Turns of loader and limit, one after the other, so that both meet the same weather."""

MOST_BUCKETS = 60
"""Points of the line of samples per second."""


@dataclass(frozen=True)
class Spread:
    """Repeated measurements: the middle one counts, the others say how sure it is."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Trainer:
    """A pretended trainer that was busy for ``work_s`` with every batch: what it got, and the share of time it waited."""

    work_s: float
    samples_per_s: float
    waited: float


@dataclass(frozen=True)
class Waits:
    """How long a trainer that does nothing else waits for a batch: percentiles, and counts between ``edges`` (all in seconds)."""

    p50_s: float
    p90_s: float
    p99_s: float
    most_s: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Speed:
    """What was measured of a loader.

    ``samples_per_s`` and ``bytes_per_s`` are without a trainer: the most it gives. ``limit_bytes_per_s`` is a gather of records of
    the same size and number in memory by as many threads, ``ratio`` the share of it that the loader reaches (the median of the
    turns). ``timeline`` has pairs of seconds and samples per second. ``disk_bytes`` came from storage meanwhile (None if the system
    does not say); ``others`` is the share of the cores that other programs took.
    """

    data: str
    samples: int
    batches: int
    batch_samples: int
    batch_bytes: float
    threads: int
    cores: float
    samples_per_s: Spread
    bytes_per_s: Spread
    limit_bytes_per_s: Spread
    ratio: float
    waits: Waits
    timeline: tuple[tuple[float, float], ...]
    split: Split | None
    trainer: Trainer | None
    open_s: float
    first_batch_s: float
    resume_s: float | None
    memory: Memory
    disk_bytes: int | None
    network: Network | None
    others: float
    advice: tuple[str, ...]

    def section(self) -> Section:
        """As a page shows it."""
        from penstock.report.speed_section import speed_section

        return speed_section(self)


def measure_loader(
    make_loader: Callable[[], Any],
    *,
    seconds: float = 5.0,
    work_s: float = 0.0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Speed:
    """Run a loader for about so many seconds, in turns with the limit of the machine, and say what was found.

    ``make_loader()`` gives a fresh loader, of the same configuration every time. ``work_s`` adds a trainer that sleeps so long with
    every batch. ``threads`` are those of the limit (the loader's unless given). ``progress`` is called with the percent
    and the bytes done since the last call.
    """
    if not seconds > 0 or work_s < 0:
        raise ValueError(f"expected seconds above 0 and work_s of at least 0, got {seconds} and {work_s}")
    told = progress or (lambda percent, size: None)
    runner, others = Runner(make_loader), Others()
    runner.take_first()
    state = runner.state()
    told(2, 0)
    probe = runner.turn(min(0.3, seconds / 10))
    limit = _make_limit(runner, probe, threads)
    told(8, int(probe.bytes))
    turns, limits, own = [], [], []
    share = 0.35 if work_s else 0.65
    for _ in range(ROUNDS):
        turns.append(runner.turn(seconds * share / ROUNDS))
        limits.append(limit.bytes_per_s(seconds * 0.15 / ROUNDS))
        own.append(resident())
        told(10 if work_s else 14, int(turns[-1].bytes))
    busy = runner.turn(seconds * 0.3, work_s) if work_s else None
    told(20 if work_s else 2, 0)
    split = _split(runner.core, seconds * 0.1)
    resumed = _resume_times(make_loader, runner.state() or state)
    runner.close()
    told(100 - 10 - (70 if work_s else 72), 0)
    memory = max(own, key=lambda one: one.own_bytes)
    return _speed(
        runner, turns, limits, busy, split, resumed, Memory(max(0, memory.own_bytes - limit.num_bytes), memory.mapped_bytes), others
    )


def _make_limit(runner: Runner, probe: Turn, threads: int | None) -> Limit:
    core = runner.core
    records = max(1, math.ceil(probe.samples / probe.batches))  # the last batch of an epoch may be short
    record_bytes = max(1, round(probe.bytes / max(1, probe.samples)))
    data_bytes = {} if core is None else {"data_bytes": record_bytes * max(1, len(core.stream))}
    return Limit(record_bytes, records, runner.threads if threads is None else threads, **data_bytes)


def _split(core: Loader | None, most_s: float) -> Split | None:
    if core is None:
        return None
    steps = core.remaining()[:200] or range(len(core))[:200]
    return split_batches(core, steps, most_s=most_s)


def _resume_times(make_loader: Callable[[], Any], state: Any) -> list[float]:
    """From nothing to the first batch of a saved run, three times; none where the loader has no state."""
    if state is None:
        return []
    saved, found = json.loads(json.dumps(state)), []
    for _ in range(3):
        began = time.perf_counter()
        fresh = Runner(make_loader)
        fresh.load(saved)
        fresh.take_first()
        found.append(time.perf_counter() - began)
        fresh.close()
    return found


def _speed(
    runner: Runner,
    turns: list[Turn],
    limits: list[float],
    busy: Turn | None,
    split: Split | None,
    resumed: list[float],
    memory: Memory,
    others: Others,
) -> Speed:
    core = core_of(runner.loader)
    samples, batches = sum(turn.samples for turn in turns), sum(turn.batches for turn in turns)
    rates = [turn.bytes / turn.elapsed_s for turn in turns]
    stats = None if core is None else core.stats()
    speed = Speed(
        data=type(runner.loader).__name__ if core is None else _described(core),
        samples=samples,
        batches=batches,
        batch_samples=math.ceil(samples / batches),
        batch_bytes=sum(turn.bytes for turn in turns) / batches,
        threads=runner.threads,
        cores=allowed_cores(),
        samples_per_s=Spread.of([turn.samples / turn.elapsed_s for turn in turns]),
        bytes_per_s=Spread.of(rates),
        limit_bytes_per_s=Spread.of(limits),
        ratio=statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True)),
        waits=_waits(np.concatenate([turn.waits for turn in turns])),
        timeline=_timeline(turns),
        split=split,
        trainer=None if busy is None else _trainer(busy),
        open_s=runner.open_s,
        first_batch_s=runner.first_s,
        resume_s=statistics.median(resumed) if resumed else None,
        memory=memory,
        disk_bytes=_sum_or_none([turn.disk_bytes for turn in turns]),
        network=None if stats is None or stats.network.requests + stats.network.cache_hits == 0 else stats.network,
        others=others.share(),
        advice=(),
    )
    return advise(speed, core)


def _sum_or_none(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _described(core: Loader) -> str:
    """The data in a line: its length, fields and order."""
    stream = core.stream
    fields = [f"{name} {field!r}" for name, field in list(stream.schema.items())[:8]]
    order = [repr(stream.order)] if isinstance(stream, RecordStream) else []
    return "; ".join([f"{len(stream):,} samples an epoch", ", ".join(fields), *order])


def _trainer(turn: Turn) -> Trainer:
    return Trainer(turn.work_s, turn.samples / turn.elapsed_s, min(1.0, float(turn.waits.sum()) / turn.elapsed_s))


def _waits(waits: Any) -> Waits:
    p50, p90, p99 = np.quantile(waits, [0.5, 0.9, 0.99]).tolist()
    low, high = max(1e-7, float(waits.min())), max(2e-7, float(waits.max()))
    edges = np.geomspace(low * 0.999, high * 1.001, 41)
    counts, _ = np.histogram(np.maximum(waits, low), edges)
    return Waits(p50, p90, p99, high, tuple(edges.tolist()), tuple(counts.tolist()))


def _timeline(turns: Sequence[Turn]) -> tuple[tuple[float, float], ...]:
    """Samples per second over the time in which the loader ran."""
    starts = np.cumsum([0.0, *(turn.elapsed_s for turn in turns)])
    ends = np.concatenate([start + turn.ends for start, turn in zip(starts[:-1], turns, strict=True)])
    each = np.concatenate([np.full(turn.batches, turn.samples / turn.batches) for turn in turns])
    buckets = max(1, min(MOST_BUCKETS, len(ends) // 4))
    edges = np.linspace(0, float(starts[-1]), buckets + 1)
    sums, _ = np.histogram(np.minimum(ends, edges[-1]), edges, weights=each)
    middle = (edges[:-1] + edges[1:]) / 2
    return tuple(zip(middle.tolist(), (sums / np.diff(edges)).tolist(), strict=True))
