"""The plans of a mixture: how many items of each data set every stretch of its line holds, settled once.

The line is cut into segments of whole periods. Within a segment the shares of the data sets are constant, and at every period's end
each has given its quota to within one item. Where something ends (a data set, a cap, a stage) a last short period with counts of
its own brings every data set to the exact point. A plan has a few segments per data set and stage, however long the line is.

Weights by step count the steps of the whole run, so an epoch is laid out by the stages that are left when it begins. Epochs that
are within one stage, and in which no cap is reached, are alike: a run of any number of epochs has a few plans.

An amendment cuts the line at a sample, also within a period. What the period had not given by then is deferred: each data set gives
it before anything else.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from penstock.argument import MAX_LENGTH, IntArray
from penstock.native import _core

__all__ = [
    "ONE",
    "STOP_POLICIES",
    "Deferred",
    "EpochRun",
    "MixturePlan",
    "Regime",
    "Rules",
    "Segment",
    "Stage",
    "is_capped",
    "left_out",
    "make_plan",
    "make_runs",
    "native_line",
    "share",
]

STOP_POLICIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever")

ONE = 1 << 63
"""Cumulative weights are whole multiples of 1 / ONE."""

UNBOUNDED = 1 << 80
"""Items of a data set that has no cap: more than any line has."""

LONGEST_CUT = 1 << 22
"""Items of a period that an amendment may cut: what is left of it is kept in memory."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the line with constant weights and shapes. An item is ``group`` samples of ``size`` elements, drawn together."""

    num_samples: int | None  # None: to the end of the line
    weights: tuple[Fraction, ...]
    group: int = 1
    size: int = 1

    @property
    def unit(self) -> int:
        """Elements in an item."""
        return self.group * self.size


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in all epochs. ``lengths`` are the elements per epoch of each data set; with ``rest``, what does not fill an item
    comes last. ``caps`` are the elements that each gives at most in all epochs together; None: without end. ``had`` is the most
    that one gave in earlier epochs.
    """

    lengths: tuple[int, ...]
    stop: str
    period: int
    rest: bool = False
    caps: tuple[int | None, ...] = ()
    had: int = 0

    def capped(self, before: Sequence[int]) -> "Rules":
        """The same for an epoch before which each data set has given as much."""
        most = max(before, default=0)
        if all(cap is None for cap in self.caps):
            return replace(self, caps=(), had=most)
        caps = tuple(None if cap is None else max(0, cap - had) for cap, had in zip(self.caps, before, strict=True))
        return replace(self, caps=caps, had=most)


@dataclass(frozen=True, eq=False)
class Deferred:
    """The elements that come later than their number says, run by run, of each data set: ``numbers`` are the first of each run and
    the one behind the last, ``elements`` the first of each run, rising. All numbers behind the runs are their own elements.
    """

    numbers: tuple[IntArray, ...]
    elements: tuple[IntArray, ...]

    def end(self, which: int) -> int:
        """The number from which on all are their own elements."""
        return int(self.numbers[which][-1]) if self.numbers[which].size else 0

    def first_element(self, which: int) -> int | None:
        return int(self.elements[which][0]) if self.elements[which].size else None

    def number_of(self, which: int, element: int) -> int | None:
        """The number of an element; None if it was given before."""
        if element >= self.end(which):
            return element
        numbers, elements = self.numbers[which], self.elements[which]
        run = int(np.searchsorted(elements, element, side="right")) - 1
        if run < 0 or element - int(elements[run]) >= int(numbers[run + 1] - numbers[run]):
            return None
        return int(numbers[run]) + element - int(elements[run])

    def behind(self, which: int, number: int) -> tuple[IntArray, IntArray]:
        """First elements and lengths of the runs from a number on."""
        numbers, elements = self.numbers[which], self.elements[which]
        skipped = np.clip(number - numbers[:-1], 0, np.diff(numbers))
        is_left = skipped < np.diff(numbers)
        return (elements + skipped)[is_left], (np.diff(numbers) - skipped)[is_left]

    @classmethod
    def of(cls, firsts: Sequence[int], runs: Sequence[tuple[IntArray, IntArray]]) -> "Deferred | None":
        """Runs, as first elements and lengths, of each data set, whose numbers begin at ``firsts``; None if there are none."""
        numbers, elements = [], []
        for first, (starts, lengths) in zip(firsts, runs, strict=True):
            if starts.size == 0:
                numbers.append(starts)
                elements.append(starts)
                continue
            order = np.argsort(starts)
            starts, lengths = starts[order], lengths[order]
            begins = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + lengths[:-1]))
            numbers.append(first + np.append(np.cumsum(lengths) - lengths, lengths.sum())[np.append(begins, starts.size)])
            elements.append(starts[begins])
        return cls(tuple(numbers), tuple(elements)) if any(part.size for part in elements) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """Whole periods with constant shares, or one period with counts of its own (``counted``)."""

    start: int  # in items
    period: int
    unit: int
    counted: bool
    edges: tuple[int, ...]  # cumulative weights in units of 1 / ONE, or cumulative counts
    before: tuple[int, ...]  # elements given before the segment
    deferred: Deferred | None = None

    def given(self, periods: int) -> list[int]:
        """Elements of each data set before the segment and in a number of its periods."""
        sets = range(len(self.before))
        if self.counted:
            counts = [self.edges[k + 1] - self.edges[k] if periods else 0 for k in sets]
        else:
            counts = [share(self.edges, k, periods * self.period) for k in sets]
        return [had + count * self.unit for had, count in zip(self.before, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class StageStart:
    """Where a stage begins, in items and in samples."""

    item: int
    sample: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """Segments in order, the stages that were reached, the length in samples, and the elements each data set gives in all."""

    segments: tuple[Segment, ...]
    stages: tuple[StageStart, ...]
    num_items: int
    num_samples: int
    given: tuple[int, ...]
    num_reached: int  # stages, the last short one of single samples apart


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Epochs from ``first`` on that are laid out alike. ``before`` are the elements that each data set gave in earlier epochs."""

    first: int
    plan: MixturePlan
    before: tuple[int, ...]


class Regime(NamedTuple):
    """Stages that hold from a step on, which is a sample of the run; the first of them begins there. And the caps."""

    step: int
    start: int
    stages: Sequence[Stage]
    caps: tuple[int | None, ...]


def share(edges: Sequence[int], k: int, items: int) -> int:
    """How many of the first ``items`` of a segment are from data set k (exact at period ends)."""
    return (items * edges[k + 1] >> 63) - (items * edges[k] >> 63)


def make_runs(
    rules: Rules, regimes: Sequence[Regime], advance: Callable[[int], int], root: Callable[[int], int], *, is_single: bool = False
) -> tuple[EpochRun, ...]:
    """The plans of all epochs, or of the only one. Stages are measured by a clock, in samples; ``advance`` says how far an epoch
    takes it on. A run that ends has an epoch without samples as its last.

    Every regime but the first is an amendment; ``root(epoch)`` is that of the permutations, which decide what an amendment defers.
    """
    runs: list[EpochRun] = []
    epoch, clock, before = 0, 0, [0] * len(rules.lengths)
    coming = list(regimes[1:])
    now, left = replace(rules, caps=regimes[0].caps), list(regimes[0].stages)
    deferred: Deferred | None = None
    while True:
        while coming and coming[0].start == clock:
            now, left = replace(now, caps=coming[0].caps), list(coming.pop(0).stages)
        plan = make_plan(now, left, before)
        if deferred is not None:
            plan = replace(plan, segments=tuple(replace(segment, deferred=deferred) for segment in plan.segments))
        each, is_cut = advance(plan.num_samples), False
        while coming and coming[0].start < clock + each:
            regime = coming.pop(0)
            now, left, is_cut = replace(now, caps=regime.caps), list(regime.stages), True
            plan, deferred = _amended(plan, regime.start - clock, now, left, before, root(epoch))
            each = advance(plan.num_samples)
        runs.append(EpochRun(epoch, plan, tuple(before)))
        is_over = is_capped(plan, now.capped(before))
        is_last = is_single or (each == 0 and not (is_over and plan.num_samples)) or (now.stop == "forever" and not is_over)
        if coming and (is_last or each == 0):
            raise ValueError(f"the run ends after {clock + each} samples, before the amendment at step {coming[0].step}")
        count = 1 if is_cut else _num_alike(plan, each, now.capped(before), left)
        if coming:
            whole = (coming[0].start - clock) // each
            count = whole if count is None else min(count, whole)
        if count is None or is_last:
            return tuple(runs)
        epoch += count
        clock += count * each
        before = [had + count * given for had, given in zip(before, plan.given, strict=True)]
        if deferred is not None and all(had >= deferred.end(k) for k, had in enumerate(before)):
            deferred = None
        if not is_cut:
            left = _after(left, count * each)


def is_capped(plan: MixturePlan, rules: Rules) -> bool:
    """Whether a line ended because every data set that is drawn at its end has reached its cap."""
    if not rules.caps or not plan.stages:
        return False
    stage = plan.stages[-1].stage
    return all(
        cap is not None and cap - given < stage.unit
        for cap, given, weight in zip(rules.caps, plan.given, stage.weights, strict=True)
        if weight > 0
    )


def _num_alike(plan: MixturePlan, each: int, rules: Rules, left: Sequence[Stage]) -> int | None:
    """How many epochs from this one on have the same plan, or fewer; None if all have. ``each`` is what one takes the clock on."""
    counts: list[int] = []
    slack = len(rules.lengths) + 2  # items: what rounding may add up to, in as many pieces as there are data sets
    here = left[0].num_samples if len(left) > 1 else None
    if here is not None and each > 0:
        # It ended in its first stage; the next ones do too, as long as there is room for rounding.
        room = here - plan.num_samples - slack * left[0].group
        counts.append(max(1, room // each + 1) if plan.num_reached == 1 else 1)
    unit = max((stage.unit for stage in left), default=1)
    for cap, given in zip(rules.caps, plan.given, strict=bool(rules.caps)):
        if cap is not None and given > 0:
            counts.append(max(1, (cap - slack * unit) // given))
    return min(counts, default=None)


def _after(stages: list[Stage], samples: int) -> list[Stage]:
    """What is left of stages when the clock has gone on by a number of samples."""
    for number, stage in enumerate(stages):
        if stage.num_samples is None or stage.num_samples > samples:
            rest = stage if stage.num_samples is None else replace(stage, num_samples=stage.num_samples - samples)
            return [rest, *stages[number + 1 :]]
        samples -= stage.num_samples
    return [replace(stages[-1], num_samples=None)]  # behind the last step of all: not reached, as the last stage has no end


def make_plan(rules: Rules, stages: Sequence[Stage], before: Sequence[int] | None = None) -> MixturePlan:
    """Lay out the line of an epoch before which each data set has given as much."""
    count = len(rules.lengths)
    return _laid(_Line([0] * count), [], rules.capped([0] * count if before is None else before), stages)


def _laid(line: "_Line", reached: list[StageStart], rules: Rules, stages: Sequence[Stage]) -> MixturePlan:
    """Go on with a line to its end."""
    for number, stage in enumerate(stages):
        reached.append(StageStart(line.items, line.samples, stage))
        later = [any(s.weights[k] > 0 for s in stages[number + 1 :]) for k in range(len(rules.lengths))]
        if _lay_stage(line, rules, stage, later):
            break
    num_reached = len(reached)
    if rules.rest:
        _lay_rest(line, rules, reached)
    if line.samples > MAX_LENGTH or max(line.given, default=0) > MAX_LENGTH:
        raise ValueError(
            f"the mixture would have {line.samples} positions, more than {MAX_LENGTH}: use larger weights or another stop"
        )
    return MixturePlan(tuple(line.segments), tuple(reached), line.items, line.samples, tuple(line.given), num_reached)


# Amendments


def _amended(
    plan: MixturePlan, position: int, rules: Rules, stages: Sequence[Stage], before: Sequence[int], root: int
) -> tuple[MixturePlan, Deferred | None]:
    """The plan up to a position, and from there on the given stages."""
    start = [one for one in plan.stages if one.sample <= position][-1]
    items, within = divmod(position - start.sample, start.stage.group)
    if within:  # only where an epoch begins within a batch
        raise ValueError(
            "with tail='wrap' the last short batch of an epoch is filled from the next one, so that an amendment would begin "
            "within a batch of one data set: use another tail, or unit='sample'"
        )
    item = start.item + items
    number = bisect_right([segment.start for segment in plan.segments], item) - 1
    segment = plan.segments[number]
    periods, offset = divmod(item - segment.start, segment.period)
    kept = list(plan.segments[: number + (periods > 0 or offset > 0)])
    given, deferred = _cut(plan, segment, item, before, root)
    if deferred is not None:
        _check_units(deferred, stages)
    line = _Line(given, list(kept), item, position)
    reached = [one for one in plan.stages if one.sample < position]
    laid = _laid(line, reached, rules.capped(before), stages)
    after = tuple(replace(one, deferred=deferred) for one in laid.segments[len(kept) :])
    return replace(laid, segments=(*kept, *after)), deferred


def _cut(plan: MixturePlan, segment: Segment, item: int, before: Sequence[int], root: int) -> tuple[list[int], Deferred | None]:
    """What each data set has given before an item of a segment, and what is deferred there."""
    periods, offset = divmod(item - segment.start, segment.period)
    end = segment.start + (periods + 1) * segment.period if offset else item
    given = segment.given(periods + 1 if offset else periods)
    if end - item > LONGEST_CUT:
        raise ValueError(
            f"the mixture has periods of {segment.period} draws, because of its smallest weight; an amendment may cut periods of "
            f"{LONGEST_CUT}: use 0 or a larger weight"
        )
    which, element = np.empty(end - item, np.int32), np.empty(end - item, np.int64)
    line = native_line(plan)
    if line is not None and end > item:
        line.at(root, np.arange(item, end), which, element, np.array(before, np.int64))
    element = element[np.argsort(which, kind="stable")]
    edges = [0, *np.cumsum(np.bincount(which, minlength=len(before))).tolist()]
    runs: list[tuple[IntArray, IntArray]] = []
    for k, (had, (low, high)) in enumerate(zip(before, pairwise(edges), strict=True)):
        mine = element[low:high]
        old = (mine[:0], mine[:0]) if segment.deferred is None else segment.deferred.behind(k, had + given[k])
        given[k] -= mine.size * segment.unit
        runs.append((np.concatenate([mine, old[0]]), np.concatenate([np.full(mine.size, segment.unit), old[1]])))
    return given, Deferred.of([had + now for had, now in zip(before, given, strict=True)], runs)


def left_out(plan: MixturePlan, item: int, before: Sequence[int], root: int) -> tuple[list[int], Deferred | None]:
    """The elements that each data set has given before an item of an epoch, all epochs together: their number, and those among the
    first ones that have not come yet. None where a period is too long for that: about as many as their number says.
    """
    segment = plan.segments[bisect_right([segment.start for segment in plan.segments], item) - 1]
    if segment.period > LONGEST_CUT:
        return [], None
    given, deferred = _cut(plan, segment, item, before, root)
    return [had + now for had, now in zip(before, given, strict=True)], deferred


def _check_units(deferred: Deferred, stages: Sequence[Stage]) -> None:
    """What is drawn together must be together in the data."""
    for unit in {stage.unit for stage in stages}:
        if any((np.diff(numbers) % unit).any() for numbers in deferred.numbers):
            raise ValueError(
                f"an amendment at this step leaves pieces of sequences or batches that do not fill the {unit} elements drawn "
                "together later: amend at the first step of a phase or of an epoch"
            )


def native_line(plan: MixturePlan) -> _core.MixtureLine | None:
    if not plan.segments:
        return None
    rows = plan.segments
    levels = list({id(s.deferred): s.deferred for s in rows if s.deferred is not None}.values())
    return _core.MixtureLine(
        np.array([s.start for s in rows], np.uint64),
        np.array([s.period for s in rows], np.uint64),
        np.array([s.unit for s in rows], np.uint64),
        np.array([s.counted for s in rows], np.uint64),
        np.array([s.edges for s in rows], np.uint64),
        np.array([s.before for s in rows], np.int64),
        [0 if s.deferred is None else 1 + [s.deferred is level for level in levels].index(True) for s in rows] if levels else [],
        [list(zip(level.numbers, level.elements, strict=True)) for level in levels],
    )


# Laying out


class _Line:
    """The line as far as it is laid."""

    def __init__(self, given: list[int], segments: list[Segment] | None = None, items: int = 0, samples: int = 0) -> None:
        self.given = given
        self.segments = [] if segments is None else segments
        self.items = items
        self.samples = samples

    def append(self, stage: Stage, shares: "_Shares", whole: int, counts: list[int]) -> int:
        """Add whole periods and then one with the given counts; return the number of items."""
        if whole > 0:
            self._add(stage, shares.period, False, shares.edges, shares.given(whole), whole * shares.period)
        rest = sum(counts)
        if rest > 0:
            self._add(stage, rest, True, list(accumulate(counts, initial=0)), counts, rest)
        return whole * shares.period + rest

    def _add(self, stage: Stage, period: int, counted: bool, edges: Sequence[int], counts: Sequence[int], items: int) -> None:
        self.segments.append(Segment(self.items, period, stage.unit, counted, tuple(edges), tuple(self.given)))
        self.given = [g + n * stage.unit for g, n in zip(self.given, counts, strict=True)]
        self.items += items
        self.samples += items * stage.group


class _Shares:
    """Constant shares: exact, and as cumulative fixed-point weights; and a period in which each data set has at least one item.

    ``weights`` are whole numbers: with hundreds of data sets, fractions would cost most of the time of a layout.
    """

    def __init__(self, weights: Sequence[int], period: int) -> None:
        self.weights, self.total = weights, sum(weights)
        sums = list(accumulate(weights, initial=0))
        self.edges = [-(-running * ONE // self.total) for running in sums]  # up, so that a whole quota is met exactly
        self.widths = [high - low for low, high in pairwise(self.edges)]
        self.active = [k for k, weight in enumerate(weights) if weight > 0]
        least = min(self.widths[k] for k in self.active)
        if least < 2:
            raise ValueError("the smallest weight is below 2**-62 of the sum: use 0 or a larger weight")
        self.period = max(period, -(-self.total // min(weights[k] for k in self.active)))
        # Where every quota of a period is a whole number, rounding cannot reach it. Else each width must be a whole slot or more.
        if any(running * self.period % self.total for running in sums) and least * self.period < ONE:
            self.period += 1

    def given(self, whole: int) -> list[int]:
        """Items of each data set in a number of whole periods."""
        shares = [whole * self.period * edge >> 63 for edge in self.edges]
        return [high - low for low, high in pairwise(shares)]

    def periods_within(self, k: int, room: int) -> int:
        """The largest number of periods in which data set k gives at most ``room`` items."""
        periods = (room + 1) * ONE // (self.widths[k] * self.period) + 1
        while periods > 0 and share(self.edges, k, periods * self.period) > room:
            periods -= 1
        return periods

    def first_due(self, rooms: Sequence[int]) -> tuple[int, int]:
        """The data set that is the first to have given as many items as ``rooms`` says, and that number."""
        first = self.active[0]
        for k in self.active[1:]:
            if rooms[k] * self.weights[first] < rooms[first] * self.weights[k]:
                first = k
        return first, rooms[first]

    def last_due(self, rooms: Sequence[int]) -> tuple[int, int]:
        """The data set that is the last to."""
        last = self.active[0]
        for k in self.active[1:]:
            if rooms[k] * self.weights[last] > rooms[last] * self.weights[k]:
                last = k
        return last, rooms[last]

    def quota(self, due: tuple[int, int], k: int) -> int:
        """Whole items of data set k due when another one has given its number."""
        return due[1] * self.weights[k] // self.weights[due[0]]

    def time(self, due: tuple[int, int]) -> Fraction:
        """That time, counted in items of the segment."""
        return Fraction(due[1] * self.total, self.weights[due[0]])


def _whole(weights: Sequence[Fraction]) -> list[int]:
    """Whole numbers in the same proportions."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    return [weight.numerator * (scale // weight.denominator) for weight in weights]


def _lay_stage(line: _Line, rules: Rules, stage: Stage, later: list[bool]) -> bool:
    """Lay one stage; True if the line ends in it."""
    left = None if stage.num_samples is None else stage.num_samples // stage.group
    stop, all_weights = rules.stop, _whole(stage.weights)
    while left is None or left > 0:
        rests = [max(0, length - given) for length, given in zip(rules.lengths, line.given, strict=True)]
        rooms = [rest // stage.unit for rest in rests]
        free = _free(line, rules, stage)
        weights = [weight if room > 0 else 0 for weight, room in zip(all_weights, free, strict=True)]
        if stop == "all_exhausted_without_replacement":
            weights = [weight if room > 0 else 0 for weight, room in zip(weights, rooms, strict=True)]
        if not any(weights):  # nothing is left for this stage, and a later one may not begin before its step
            return True
        shares = _Shares(weights, rules.period)
        is_capped = any(free[k] < UNBOUNDED for k in shares.active)
        if stop == "forever":
            bound = min((MAX_LENGTH - line.samples) // stage.group, (MAX_LENGTH - rules.had - max(line.given)) // stage.unit)
            items = bound if left is None else min(left, bound)
            piece = _to_first_exhaustion(shares, items, free) if is_capped else None
            if piece is None:
                line.append(stage, shares, *_to_stage_end(shares, items, free if is_capped else None))
                return left is None or bound < left
            is_over = False
        elif stop == "all_exhausted":
            needs = [min(room, -(-rest // stage.unit)) for rest, room in zip(rests, free, strict=True)]
            piece = _to_last_exhaustion(shares, left, needs, later)
            is_over = True
            if is_capped and (piece is None or shares.time(shares.first_due(free)) < shares.time(shares.last_due(needs))):
                piece, is_over = _to_first_exhaustion(shares, left, free), False
            limits = free if is_capped else None
        else:
            limits = [min(pair) for pair in zip(rooms, free, strict=True)]
            piece = _to_first_exhaustion(shares, left, limits)
            is_over = stop == "first_exhausted"
        if piece is None:
            assert left is not None
            line.append(stage, shares, *_to_stage_end(shares, left, limits))
            return False
        items = line.append(stage, shares, *piece)
        if is_over and not (is_capped and stop == "first_exhausted" and not _is_used_up(line, rules, stage, shares)):
            return True
        left = None if left is None else left - items
    return False


def _free(line: _Line, rules: Rules, stage: Stage) -> list[int]:
    """Items that each data set may still give before its cap."""
    if not rules.caps:
        return [UNBOUNDED] * len(rules.lengths)
    return [
        UNBOUNDED if cap is None else max(0, cap - given) // stage.unit for cap, given in zip(rules.caps, line.given, strict=True)
    ]


def _is_used_up(line: _Line, rules: Rules, stage: Stage, shares: _Shares) -> bool:
    """Whether a data set that is drawn has no item left in this epoch."""
    return any(rules.lengths[k] - line.given[k] < stage.unit for k in shares.active)


def _lay_rest(line: _Line, rules: Rules, reached: list[StageStart]) -> None:
    """What does not fill a batch of its own, sample by sample, at the end of the line."""
    group, weights = reached[-1].stage.group, reached[-1].stage.weights
    ends = rules.lengths
    if rules.caps:
        ends = tuple(length if cap is None else min(length, cap) for length, cap in zip(ends, rules.caps, strict=True))
    rooms = [end - given if weight else 0 for end, given, weight in zip(ends, line.given, weights, strict=True)]
    counts = [room if 0 < room < group else 0 for room in rooms]
    if any(counts):
        stage = replace(reached[-1].stage, num_samples=None, group=1)
        reached.append(StageStart(line.items, line.samples, stage))
        line.append(stage, _Shares([1] * len(ends), 1), 0, counts)


def _to_first_exhaustion(shares: _Shares, left: int | None, rooms: list[int]) -> tuple[int, list[int]] | None:
    """Whole periods and last counts up to the point where the first data set ends; None if the stage ends before."""
    due = shares.first_due(rooms)
    if left is not None and due[1] * shares.total >= left * shares.weights[due[0]]:
        return None
    whole = min(shares.periods_within(k, rooms[k]) for k in shares.active)
    given = shares.given(whole)
    counts = [
        min(room, max(0, shares.quota(due, k) - n)) for k, (room, n) in enumerate(zip(_minus(rooms, given), given, strict=True))
    ]
    if left is not None and whole * shares.period + sum(counts) > left:
        return None
    return whole, counts


def _to_last_exhaustion(shares: _Shares, left: int | None, needs: list[int], later: list[bool]) -> tuple[int, list[int]] | None:
    """Whole periods and last counts up to the point where the last data set ends; None if the stage ends before."""
    if any(need > 0 and width == 0 and wanted for need, width, wanted in zip(needs, shares.widths, later, strict=True)):
        return None  # a data set's turn comes in a later stage
    needs = [need if width > 0 else 0 for need, width in zip(needs, shares.widths, strict=True)]
    due = shares.last_due(needs)
    whole = int(shares.time(due)) // shares.period
    given = shares.given(whole)
    counts = [max(0, shares.quota(due, k) - n, needs[k] - n) for k, n in enumerate(given)]
    if left is not None and whole * shares.period + sum(counts) > left:
        return None
    return whole, counts


def _to_stage_end(shares: _Shares, left: int, rooms: list[int] | None) -> tuple[int, list[int]]:
    """Whole periods and last counts of exactly ``left`` items, none beyond its room."""
    whole = left // shares.period
    if rooms is not None:
        whole = min(whole, *(shares.periods_within(k, rooms[k]) for k in shares.active))
    given = shares.given(whole)
    limits = [left] * len(given) if rooms is None else _minus(rooms, given)
    return whole, _apportion(shares, left, left - whole * shares.period, given, limits)


def _apportion(shares: _Shares, time: int, items: int, given: list[int], limits: list[int]) -> list[int]:
    """Whole counts with the given sum, nearest to the quotas at ``time`` (largest remainders first, ties to the lower number)."""
    targets = [time * weight - n * shares.total for weight, n in zip(shares.weights, given, strict=True)]  # times the total
    counts = [min(limit, max(0, target // shares.total)) for target, limit in zip(targets, limits, strict=True)]
    missing = items - sum(counts)
    by_remainder = sorted(shares.active, key=lambda k: counts[k] * shares.total - targets[k])
    while missing > 0:
        for k in by_remainder:
            if missing > 0 and counts[k] < limits[k]:
                counts[k] += 1
                missing -= 1
    while missing < 0:
        for k in reversed(by_remainder):
            if missing < 0 and counts[k] > 0:
                counts[k] -= 1
                missing += 1
    return counts


def _minus(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [x - y for x, y in zip(left, right, strict=True)]
