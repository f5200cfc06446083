"""How fast a loader is on the user's data, relative to a plain copy in memory, where the time goes, and what to change."""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.loader import Loader
from penstock.loader.stats import Network
from penstock.native import _core
from penstock.order import Shuffle
from penstock.report.doctor import Others, ProcessMemory, allowed_cores, available_memory, resident
from penstock.report.formatting import counted, duration, percent, size
from penstock.report.page import Section
from penstock.report.trainer import Runner, Turn
from penstock.schema import Raw
from penstock.stream import ImageStream, RecordStream

MOST_BYTES = 256 << 20  # memory to copy from: far larger than caches of processors, and quickly allocated
ROUNDS = 5  # turns of loader and limit alternate, so that both see the same load of the machine
MOST_BUCKETS = 60  # points of the line of samples per second
SMALL_BATCH = 64_000  # bytes; below this, the fixed cost of a batch dominates


class Limit:
    """A gather of ``records`` records of ``record_bytes`` at random places, as a batch of a loader is, but without order, files,
    checksums and Python objects. For one thread; the memory goes with the object.
    """

    def __init__(self, record_bytes: int, records: int, threads: int, *, data_bytes: int = MOST_BYTES) -> None:
        room = max(1, min(data_bytes, MOST_BYTES, available_memory() // 4))
        rows = max(records, room // record_bytes)
        self._memory = _core.empty(rows, record_bytes)
        self._memory[:] = 1  # pages that were never written are all the same one
        self._out = _core.empty(records, record_bytes)
        self._reader = _core.RowReader.of_memory([self._memory.reshape(-1)], record_bytes)
        self._pool = _core.ThreadPool(max(1, threads))
        order = Shuffle(rows, seed=1)
        whole = rows // records
        self._batches = [order.indices(0, k * records, (k + 1) * records) for k in range(min(whole, 1024))]
        self.batch_bytes, self.num_bytes = records * record_bytes, rows * record_bytes

    def bytes_per_s(self, seconds: float) -> float:
        """Copy batch after batch for about ``seconds``."""
        done, number, began = 0, 0, time.perf_counter()
        flat = self._out.reshape(-1)
        while True:
            self._reader.read(self._batches[number % len(self._batches)], 1, flat, self._pool)
            done, number = done + self.batch_bytes, number + 1
            if number % 4 == 0 and time.perf_counter() - began >= seconds:
                return done / (time.perf_counter() - began)

    def check(self) -> bool:
        """Whether the copy is what was copied."""
        return bool(np.all(self._out == 1))


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
        found.append(_time_parts(loader, step))
    if not found:
        return None
    order_s, read_s, transform_s = (statistics.median(part) for part in zip(*found, strict=True))
    return Split(order_s, read_s, transform_s, len(found))


def _time_parts(loader: Loader, step: int) -> tuple[float, float, float]:
    work, place = loader.work, loader.schedule.place(step)
    began = time.perf_counter()
    picks = work.picks(place)
    ordered = time.perf_counter()
    batch = work.stream_for(place).fetch(picks)
    read = time.perf_counter()
    work.finish(place, picks, batch)
    return ordered - began, read - ordered, time.perf_counter() - read


@dataclass(frozen=True)
class Repeats:
    """Repeated measurements: the middle one counts, the others say how sure it is."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Repeats":
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
    samples_per_s: Repeats
    bytes_per_s: Repeats
    limit_bytes_per_s: Repeats
    ratio: float
    waits: Waits
    timeline: tuple[tuple[float, float], ...]
    split: Split | None
    trainer: Trainer | None
    open_s: float
    first_batch_s: float
    resume_s: float | None
    memory: ProcessMemory
    disk_bytes: int | None
    network: Network | None
    others: float
    advice: tuple[str, ...]

    def section(self) -> Section:
        from penstock.report.sections import speed_section

        return speed_section(self)


def measure_loader(
    make_loader: Callable[[], Any],
    *,
    seconds: float = 5.0,
    work_s: float = 0.0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Speed:
    """Run a loader for about ``seconds`` seconds, in turns with a plain copy in memory (the limit of the machine).

    ``make_loader()`` returns a fresh loader of the same configuration every time. ``work_s`` adds a trainer that sleeps this long
    with every batch. ``threads`` are those of the limit (the loader's unless given). ``progress`` is called with the percent
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
    core, largest = runner.core, max(own, key=lambda one: one.own_bytes)
    split = None if core is None else split_batches(core, core.remaining()[:200] or range(len(core))[:200], most_s=seconds * 0.1)
    resumed = _resume_times(make_loader, runner.state() or state)
    runner.close()
    told(100 - 10 - (70 if work_s else 72), 0)
    samples, batches = sum(turn.samples for turn in turns), sum(turn.batches for turn in turns)
    rates = [turn.bytes / turn.elapsed_s for turn in turns]
    read = [turn.disk_bytes for turn in turns if turn.disk_bytes is not None]
    network = None if core is None else core.stats().network
    speed = Speed(
        data=type(runner.loader).__name__ if core is None else _described(core),
        samples=samples,
        batches=batches,
        batch_samples=math.ceil(samples / batches),
        batch_bytes=sum(turn.bytes for turn in turns) / batches,
        threads=runner.threads,
        cores=allowed_cores(),
        samples_per_s=Repeats.of([turn.samples / turn.elapsed_s for turn in turns]),
        bytes_per_s=Repeats.of(rates),
        limit_bytes_per_s=Repeats.of(limits),
        ratio=statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True)),
        waits=_waits(np.concatenate([turn.waits for turn in turns])),
        timeline=_timeline(turns),
        split=split,
        trainer=None if busy is None else Trainer(work_s, busy.samples / busy.elapsed_s, busy.waiting),
        open_s=runner.open_s,
        first_batch_s=runner.first_s,
        resume_s=statistics.median(resumed) if resumed else None,
        memory=ProcessMemory(max(0, largest.own_bytes - limit.num_bytes), largest.mapped_bytes),
        disk_bytes=sum(read) if len(read) == len(turns) else None,
        network=None if network is None or network.requests + network.cache_hits == 0 else network,
        others=others.share(),
        advice=(),
    )
    return advise(speed, core)


def _make_limit(runner: Runner, probe: Turn, threads: int | None) -> Limit:
    core = runner.core
    records = max(1, math.ceil(probe.samples / probe.batches))  # the last batch of an epoch may be short
    record_bytes = max(1, round(probe.bytes / max(1, probe.samples)))
    data_bytes = {} if core is None else {"data_bytes": record_bytes * max(1, len(core.stream))}
    return Limit(record_bytes, records, runner.threads if threads is None else threads, **data_bytes)


def _resume_times(make_loader: Callable[[], Any], state: Any) -> list[float]:
    """From nothing to the first batch of a saved run, three times; none where the loader has no state."""
    if state is None:
        return []
    saved, found = json.loads(json.dumps(state)), []
    for _ in range(3):
        began = time.perf_counter()
        fresh = Runner(make_loader)
        fresh.loader.load_state_dict(saved)
        fresh.take_first()
        found.append(time.perf_counter() - began)
        fresh.close()
    return found


def _described(core: Loader) -> str:
    """The data in a line: its length, fields and order."""
    stream = core.stream
    fields = [f"{name} {field!r}" for name, field in list(stream.schema.items())[:8]]
    order = [repr(stream.order)] if isinstance(stream, ImageStream | RecordStream) else []
    return "; ".join([f"{len(stream):,} samples an epoch", ", ".join(fields), *order])


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


# Advice


def advise(speed: Speed, core: Loader | None) -> Speed:
    return replace(speed, advice=tuple(line for line in (_about_trainer(speed), *_advice(speed, core)) if line))


def _about_trainer(speed: Speed) -> str:
    batch_s = speed.samples / speed.batches / speed.samples_per_s.median
    if speed.trainer is None:
        return f"A trainer that takes longer than {duration(batch_s)} per batch does not wait for this loader."
    reason = "this loader is fast enough" if speed.trainer.waited < 0.05 else f"the loader needs {duration(batch_s)} for a batch"
    if speed.trainer.waited >= 0.05 and batch_s < speed.trainer.work_s:
        reason += ", but some come late"
    told = f"A trainer that is busy for {duration(speed.trainer.work_s)} per batch"
    return f"{told} waits {percent(speed.trainer.waited)} of the time: {reason}."


def _advice(speed: Speed, core: Loader | None) -> Iterator[str]:
    at_limit, split = speed.ratio >= 0.8, speed.split
    if at_limit:
        yield f"It runs at {percent(speed.ratio)} of what memory can do: only smaller records would be faster."
    share = 0.0 if split is None else split.transform_s / (split.order_s + split.read_s + split.transform_s)
    if share >= 0.5:
        remedy = "make it cheaper, or give the loader an executor if it holds the interpreter"
        yield f"The transform takes {percent(share)} of the work: {remedy}."
    fields = {} if core is None else core.stream.schema
    packed = [name for name, field in fields.items() if not isinstance(field.codec, Raw)]
    if packed and not at_limit:
        named = ", ".join(packed[:5]) + (" and others" if len(packed) > 5 else "")
        remedy = "LZ4 is faster to read than Zstd or Deflate, Raw is fastest where the disk has room"
        yield f"Compressed fields ({named}) are decompressed record by record: {remedy}."
    yield _about_disk(speed, core)
    if speed.batch_bytes < SMALL_BATCH and not at_limit:
        yield f"Batches are small ({size(speed.batch_bytes)}): larger ones would cost less per sample."
    has = f"The loader has {counted(speed.threads, 'thread')}"
    if speed.threads == 0:
        yield "Nothing is read ahead (threads=0): with threads the trainer need not wait while a batch is made."
    elif speed.threads < speed.cores and not at_limit:
        yield f"{has} and the machine {speed.cores:g} cores: try more threads."
    elif speed.threads > 2 * speed.cores:
        yield f"{has} for {speed.cores:g} cores: fewer would do."
    if speed.others > 0.15:
        yield f"Other programs took {percent(speed.others)} of the cores meanwhile: on a quiet machine it is faster."


def _about_disk(speed: Speed, core: Loader | None) -> str:
    delivered = speed.batches * speed.batch_bytes
    if not speed.disk_bytes or speed.disk_bytes < 0.2 * delivered:
        return ""
    ratio = speed.disk_bytes / delivered
    told = f"{size(speed.disk_bytes)} came from the disk, {ratio:.1f} bytes for each one delivered: the data was not in memory."
    stream = None if core is None else core.stream
    if ratio > 1.2 and isinstance(stream, ImageStream | RecordStream) and isinstance(stream.order, Shuffle):
        return f"{told} A block shuffle (--block, --window) reads runs of records instead of single ones."
    return f"{told} A second run may be faster."
