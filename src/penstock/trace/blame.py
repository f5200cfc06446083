"""Blame: steps at which the loss jumped, and the records that had a part in it.

All statistics are robust (medians, and deviations from them), because what is looked for would move means. Losses are compared
with the level of the loss around their step, which is the running median of the means of steps: what is left is the *excess* of a
loss. The z of an excess is its distance from the median of a group in standard deviations, as the median absolute deviation tells
them:

* against all losses around its step, for the first choice of suspects among all losses
* against records of the same stream and, of documents, of about the same length: short documents have losses that vary more
* against the other visits of the same record: near 0 for a record that is always hard, large for one that was hard only once

The score of a record adds the z of its visits up, divided by the square root of their number.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import StateMismatchError
from penstock.trace.loss_log import Losses
from penstock.trace.loss_table import LossTable, is_missing
from penstock.trace.run import WHOSE, RecordKey, Run, Visits

__all__ = ["Blame", "Level", "SourceBlame", "Spike", "StepBlame", "Suspect", "Visit", "blame_run", "blame_step", "find_spikes"]

FloatArray = npt.NDArray[np.float64]

WINDOW = 101
"""Steps of which the median is the level of the loss."""

SPIKE_Z = 6.0
"""From this z on, the mean of a step is a spike."""

SUSPECT_Z = 6.0
"""From this z on, a loss makes its record a suspect."""

TO_SIGMA = 1.4826
"""Median absolute deviations of a normal distribution in a standard deviation."""

TAIL = 0.98
TAIL_SIGMAS = 2.0537
"""The part of a group's losses that is below its tail, and where that is in a normal distribution."""
TAIL_LOSSES = 200

SAMPLED_STEPS = 256
"""Steps whose records are looked at to learn what losses of a stream and length are usual."""

SAMPLED_LOSSES = 1 << 18
MOST_SUSPECT_STEPS = 512
LARGEST_Z = 1e6
"""What stands for the z of a loss that is not a number."""


@dataclass(frozen=True)
class Spike:
    """A step whose mean loss is far above the level around it. ``z`` is infinite where losses are not finite."""

    step: int
    mean: float
    level: float
    z: float
    not_finite: int = 0


@dataclass(frozen=True)
class Visit:
    """A record at a step: its loss, how far that is above the level, z against its stream, and against its other visits if there
    are at least three. ``share`` is its part of the excess of the whole step.
    """

    step: int
    sample: int
    loss: float
    excess: float
    z: float
    z_visits: float | None = None
    share: float = 0.0
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Suspect:
    """A record and its visits, the worst one first. ``times`` is at how many of them its loss was out of the ordinary."""

    source: str
    id: int
    score: float
    visits: tuple[Visit, ...]
    key: RecordKey = field(repr=False)

    @property
    def times(self) -> int:
        return sum(visit.z >= SUSPECT_Z for visit in self.visits)


@dataclass(frozen=True)
class SourceBlame:
    """A stream: its share of samples and of the excess, over the steps that were looked at."""

    source: str
    records: int
    share_of_records: float
    share_of_excess: float


@dataclass(frozen=True)
class StepBlame:
    """A step: what its excess consists of, by record and by stream, the largest shares first."""

    spike: Spike
    visits: tuple[tuple[Suspect, Visit], ...]
    sources: tuple[SourceBlame, ...]


@dataclass(frozen=True)
class Blame:
    """A run: spikes, suspects in the order of their scores, and streams. ``skipped`` are steps whose losses do not fit the
    order.
    """

    steps: int
    losses: int
    spikes: tuple[Spike, ...]
    suspects: tuple[Suspect, ...]
    sources: tuple[SourceBlame, ...]
    skipped: tuple[int, ...] = ()


# The level of the loss


class Level:
    """The level of the loss at every step of a table, and how far losses are from it."""

    def __init__(self, table: LossTable) -> None:
        self.table = table
        self.at: FloatArray = running_median(table.mean, WINDOW)
        self._spread = _spread(np.where(np.isfinite(table.mean), table.mean - self.at, np.nan))

    @cached_property
    def step_z(self) -> FloatArray:
        """The z of the mean of every step; infinite where losses are not finite."""
        excess = self.table.mean - self.at
        z = np.where(np.isfinite(excess), (excess - self._spread[0]) / self._spread[1], 0.0)
        return np.where(self.table.not_finite > 0, np.inf, z)

    @cached_property
    def usual(self) -> tuple[FloatArray, FloatArray]:
        """Of every step, the median and the deviation of what single losses exceed the level by, from a sample of all of them."""
        stride = max(1, int(self.table.num_losses.sum()) // SAMPLED_LOSSES)
        found: list[FloatArray] = []
        where: list[IntArray] = []
        begin = 0
        for _, places, counts, losses in self.table.blocks():
            chosen = np.arange(begin % stride, losses.size, stride)
            ends = np.cumsum(counts)
            place = places[np.searchsorted(ends, chosen, side="right")]
            found.append(losses[chosen] - self.at[place])
            where.append(place)
            begin = (begin - losses.size) % stride
        return _by_window(np.concatenate(where), np.concatenate(found), len(self.table))

    def suspicious(self, most: int) -> list[tuple[float, int]]:
        """(z, step) of the losses that are furthest above what is usual, the largest first, one entry for each such loss."""
        median, deviation = self.usual
        kept_z, kept_place = np.empty(0), np.empty(0, np.int64)
        least = SUSPECT_Z
        for _, places, counts, losses in self.table.blocks():
            limit = (self.at + median + least * deviation)[places].astype(np.float32)
            is_high = ~(losses <= np.repeat(limit, counts))  # what is not a number is not below it
            chosen = np.flatnonzero(is_high)
            if chosen.size == 0:
                continue
            chosen = chosen[~is_missing(losses[chosen])]
            place = places[np.searchsorted(np.cumsum(counts), chosen, side="right")]
            z = (losses[chosen] - self.at[place] - median[place]) / deviation[place]
            kept_z = np.concatenate([kept_z, np.where(np.isfinite(z), z, LARGEST_Z)])
            kept_place = np.concatenate([kept_place, place])
            if kept_z.size > 4 * most:
                best = np.argpartition(-kept_z, most)[:most]
                kept_z, kept_place = kept_z[best], kept_place[best]
                least = max(SUSPECT_Z, float(min(kept_z.min(), LARGEST_Z / 2)))
        order = np.argsort(-kept_z, kind="stable")[:most]
        return list(zip(kept_z[order].tolist(), self.table.steps[kept_place[order]].tolist(), strict=True))


def running_median(values: FloatArray, window: int) -> FloatArray:
    """The median of the values around each, without those that are not finite. At the ends, of as many before it as behind it: a
    loss that falls steeply has its level there, too.
    """
    count = len(values)
    half = window // 2
    stride = max(1, count // 20_000)  # between them, by straight lines
    centers = np.unique(np.append(np.arange(0, count, stride), count - 1)) if count else np.empty(0, np.int64)
    padded = np.concatenate([np.full(half, np.nan), np.where(np.isfinite(values), values, np.nan), np.full(half, np.nan)])
    found = np.empty(len(centers))
    for begin in range(0, len(centers), 4096):
        some = centers[begin : begin + 4096]
        around = np.arange(-half, half + 1)
        rows = padded[some[:, None] + half + around]
        rows[np.abs(around) > np.minimum(some, count - 1 - some)[:, None]] = np.nan
        found[begin : begin + len(some)] = _nan_median(rows)
    is_known = np.isfinite(found)
    if not is_known.any():
        return np.zeros(count)
    level: FloatArray = np.interp(np.arange(count), centers[is_known], found[is_known])
    return level


def _nan_median(rows: FloatArray) -> FloatArray:
    """The median of every row, NaN where nothing is known; without a warning."""
    known = np.isfinite(rows).sum(axis=1)
    ordered = np.sort(rows, axis=1)  # NaN come last
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    row = np.arange(len(rows))
    return np.where(known > 0, (ordered[row, low] + ordered[row, np.minimum(high, rows.shape[1] - 1)]) / 2, np.nan)


def _single_spread(values: FloatArray) -> tuple[float, float]:
    """That of single losses, whose distribution has a long upper tail even in a clean run: the deviation is at least what the tail
    tells (TAIL), so that only what is far above the tail itself has a large z. Clean exponential losses had 6 suspects in 1,000
    without it.
    """
    median, deviation = _spread(values)
    known = values[np.isfinite(values)]
    if known.size < TAIL_LOSSES:
        return median, deviation
    return median, max(deviation, (float(np.quantile(known, TAIL)) - median) / TAIL_SIGMAS)


def _spread(values: FloatArray) -> tuple[float, float]:
    """The median, and the deviation from it, never 0; of values that are finite."""
    known = values[np.isfinite(values)]
    if known.size == 0:
        return 0.0, 1.0
    median = float(np.median(known))
    deviation = TO_SIGMA * float(np.median(np.abs(known - median)))
    least = 1e-6 * max(1.0, float(np.abs(known).max()))
    if deviation <= least:  # more than half are equal: the mean deviation, which is not 0 as long as one differs
        deviation = float(np.mean(np.abs(known - median)))
    return median, max(deviation, least)


def _by_window(place: IntArray, excess: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
    """Median and deviation of excesses in up to 64 windows of steps, by straight lines between their centers."""
    windows = min(64, max(1, len(excess) // 512), max(1, steps))
    edges = np.linspace(0, steps, windows + 1)
    number = np.minimum(np.searchsorted(edges, place, side="right") - 1, windows - 1)
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(windows + 1))
    found = [_single_spread(excess[order[low:high]]) if high > low else None for low, high in pairwise(ends.tolist())]
    centers = np.array([(edges[k] + edges[k + 1]) / 2 for k, one in enumerate(found) if one is not None])
    pairs = np.array([one for one in found if one is not None])
    at = np.arange(steps)
    return np.interp(at, centers, pairs[:, 0]), np.interp(at, centers, pairs[:, 1])


def find_spikes(table: LossTable, *, most: int = 20, z: float = SPIKE_Z, level: Level | None = None) -> list[Spike]:
    """The steps whose mean is furthest above the level, the largest z first; of those that are not finite the earliest first. Of
    neighbouring spikes, which may have one cause, all are told.
    """
    level = Level(table) if level is None else level
    high = np.flatnonzero(level.step_z >= z)
    order = high[np.lexsort((high, -level.step_z[high]))][:most]
    return [_spike(level, place) for place in order.tolist()]


def _spike(level: Level, place: int) -> Spike:
    table = level.table
    numbers = float(table.mean[place]), float(level.at[place]), float(level.step_z[place])
    return Spike(int(table.steps[place]), *numbers, int(table.not_finite[place]))


# Records


def _length_class(visits: Visits) -> IntArray:
    """Documents of about the same length: by powers of two."""
    size = np.maximum(visits.high - visits.low, 0)
    return np.where(size > 0, np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64) + 1, 0)


class _Usual:
    """What excesses are usual for a stream, and for documents of a length, from a sample of steps."""

    def __init__(self, run: Run, level: Level, steps: Iterable[int]) -> None:
        self.skipped: list[int] = []
        self.records: dict[int, int] = {}
        groups: dict[tuple[int, int], list[FloatArray]] = {}
        for step in steps:
            visits = self.visits(run, step)
            if visits is None:
                continue
            excess, classes = _excess(level, visits), _length_class(visits)
            known = np.isfinite(excess)
            for source in np.unique(visits.source).tolist():
                mine = visits.source == source
                self.records[source] = self.records.get(source, 0) + int(mine.sum())
                for one in np.unique(classes[mine]).tolist():
                    groups.setdefault((source, one), []).append(excess[mine & known & (classes == one)])
        joined = {key: np.concatenate(parts) for key, parts in groups.items()}
        self._groups = {key: _single_spread(values) for key, values in joined.items() if values.size >= 30}
        every = [_single_spread(np.concatenate([v for (s, _), v in joined.items() if s == one])) for one in self.records]
        self._sources = dict(zip(self.records, every, strict=True))
        self._all = _single_spread(np.concatenate([np.empty(0), *joined.values()]))

    def visits(self, run: Run, step: int) -> Visits | None:
        """The visits of a step; None, and a note, if its losses do not fit the order."""
        try:
            return run.visits(step)
        except StateMismatchError as error:
            if not str(error).endswith(WHOSE):
                raise
            self.skipped.append(step)
            return None

    def z(self, level: Level, visits: Visits) -> FloatArray:
        """The z of every visit; NaN where the loss is not known."""
        excess, classes = _excess(level, visits), _length_class(visits)
        z = np.empty(len(visits))
        for source, one in set(zip(visits.source.tolist(), classes.tolist(), strict=True)):
            mine = (visits.source == source) & (classes == one)
            usual = self._groups.get((source, one)) or self._sources.get(source) or self._all
            z[mine] = (excess[mine] - usual[0]) / usual[1]
        lost = ~np.isfinite(z) & ~is_missing(visits.loss)
        return np.where(lost, LARGEST_Z, z)


def _excess(level: Level, visits: Visits) -> FloatArray:
    excess: FloatArray = visits.loss.astype(np.float64) - level.at[level.table.place(visits.step)]
    return excess


def _shares(excess: FloatArray, loss: Losses) -> FloatArray:
    """The part of each in what is above the level. Losses that are not finite share all of it."""
    lost = ~np.isfinite(loss) & ~is_missing(loss)
    above = lost.astype(np.float64) if lost.any() else np.where(np.isfinite(excess), np.maximum(excess, 0), 0)
    total = float(above.sum())
    return above / total if total > 0 else above


def blame_step(run: Run, step: int, *, most: int = 20, level: Level | None = None) -> StepBlame:
    """What the loss of a step consists of. IndexError if the step was not logged."""
    level = Level(run.table) if level is None else level
    place = run.table.place(step)
    usual = _Usual(run, level, _spread_steps(run.table, SAMPLED_STEPS))
    visits = run.visits(step)
    z, excess = usual.z(level, visits), _excess(level, visits)
    share = _shares(excess, visits.loss)
    order = np.lexsort((-np.where(np.isnan(z), -LARGEST_Z, z), -share))[:most]
    found = []
    for number in order.tolist():
        suspect = _suspect(run, level, usual, visits.record(number), [visits])
        piece = step, int(visits.sample[number]), int(visits.low[number])  # a sample may have several pieces of a document
        here = next(one for one in suspect.visits if (one.step, one.sample, one.low) == piece)
        found.append((suspect, here))
    return StepBlame(_spike(level, place), tuple(found), _by_source(run, usual, [visits], level))


def blame_run(run: Run, *, most: int = 20, most_spikes: int = 20) -> Blame:
    """The spikes of a run, and the records with the highest losses in all of it, whether they made a spike or not."""
    table, level = run.table, Level(run.table)
    spikes = find_spikes(table, most=most_spikes, level=level)
    usual = _Usual(run, level, _spread_steps(table, SAMPLED_STEPS))
    steps = dict.fromkeys(spike.step for spike in spikes)
    steps |= dict.fromkeys(step for _, step in level.suspicious(8 * MOST_SUSPECT_STEPS))
    looked = [visits for step in list(steps)[:MOST_SUSPECT_STEPS] if (visits := usual.visits(run, step)) is not None]
    best: dict[RecordKey, float] = {}
    for visits in looked:
        z = usual.z(level, visits)
        for number in np.flatnonzero(z >= SUSPECT_Z).tolist():
            record = visits.record(number)
            best[record] = max(best.get(record, 0.0), float(z[number]))
    chosen = sorted(best, key=lambda record: -best[record])[: max(4 * most, 100)]
    by_step = {visits.step: visits for visits in looked}
    suspects = [_suspect(run, level, usual, record, by_step.values()) for record in chosen]
    suspects.sort(key=lambda suspect: -suspect.score)
    at_spikes = [by_step[spike.step] for spike in spikes if spike.step in by_step]
    return Blame(
        len(table),
        int(table.num_losses.sum()),
        tuple(spikes),
        tuple(suspects[:most]),
        _by_source(run, usual, at_spikes or looked, level),
        tuple(sorted(set(usual.skipped))),
    )


def _spread_steps(table: LossTable, most: int) -> list[int]:
    """Steps spread over all of them."""
    places = np.unique(np.linspace(0, len(table) - 1, min(most, len(table))).astype(np.int64))
    return [int(step) for step in table.steps[places]]


def _suspect(run: Run, level: Level, usual: _Usual, record: RecordKey, known: Iterable[Visits]) -> Suspect:
    """A record with all its visits that can be found."""
    by_step = {visits.step: visits for visits in known}
    for step in run.steps_with(record):
        if step not in by_step and (visits := usual.visits(run, step)) is not None:
            by_step[step] = visits
    found: list[Visit] = []
    for visits in by_step.values():
        mine = np.flatnonzero((visits.source == record.source) & (visits.id == record.id))
        if mine.size:
            found += _visits(level, usual, visits, mine)
    z = np.array([visit.z for visit in found if not math.isnan(visit.z)])
    score = float(z.sum() / math.sqrt(z.size)) if z.size else 0.0
    found = _against_each_other(found)
    found.sort(key=lambda visit: -visit.z if not math.isnan(visit.z) else math.inf)
    return Suspect(run.sources[record.source], record.id, score, tuple(found), record)


def _visits(level: Level, usual: _Usual, visits: Visits, mine: IntArray) -> list[Visit]:
    z, excess = usual.z(level, visits), _excess(level, visits)
    share = _shares(excess, visits.loss)
    return [
        Visit(
            visits.step,
            int(visits.sample[n]),
            float(visits.loss[n]),
            float(excess[n]),
            float(z[n]),
            None,
            float(share[n]),
            int(visits.low[n]),
            int(visits.high[n]),
        )
        for n in mine.tolist()
    ]


def _against_each_other(visits: Sequence[Visit]) -> list[Visit]:
    """The z of every visit against the others, where there are enough."""
    z = np.array([visit.z for visit in visits])
    made: list[Visit] = []
    for number, visit in enumerate(visits):
        others = np.delete(z, number)
        others = others[np.isfinite(others)]
        against = None
        if others.size >= 3 and math.isfinite(visit.z):
            against = float((visit.z - np.median(others)) / max(1.0, TO_SIGMA * np.median(np.abs(others - np.median(others)))))
        made.append(replace(visit, z_visits=against))
    return made


def _by_source(run: Run, usual: _Usual, looked: Sequence[Visits], level: Level) -> tuple[SourceBlame, ...]:
    excess, count = np.zeros(len(run.sources)), np.zeros(len(run.sources), np.int64)
    for visits in looked:
        share = _shares(_excess(level, visits), visits.loss)
        np.add.at(excess, visits.source, share)
        np.add.at(count, visits.source, 1)
    total, records = max(float(excess.sum()), 1e-300), max(int(count.sum()), 1)
    made = [
        SourceBlame(name, int(count[number]), float(count[number]) / records, float(excess[number]) / total)
        for number, name in enumerate(run.sources)
    ]
    return tuple(sorted(made, key=lambda one: -one.share_of_excess))
