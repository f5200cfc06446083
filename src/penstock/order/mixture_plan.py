"""The plan of a mixture: how many items of each data set every stretch of the line holds, settled once.

The line is cut into segments of whole periods. Within a segment the shares of the data sets are constant, and at every period's end
each has given its quota to within one item. Where something ends (a data set, a stage) a last short period with counts of its own
brings everybody to the exact point. A plan has a few segments per data set and stage, however long the line is.

Weights by step count the steps of the whole run, so an epoch is laid out by the stages that are left when it begins. Epochs that
lie within one stage are alike: a run of any number of epochs has a few plans.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

from penstock.argument import MAX_LENGTH

__all__ = ["STOP_POLICIES", "EpochRun", "Plan", "Segment", "Stage", "make_plan", "make_runs", "share"]

STOP_POLICIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever")

ONE = 1 << 63
"""Cumulative weights are whole multiples of 1 / ONE."""


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
class Segment:
    """Whole periods with constant shares, or one period with counts of its own (``counted``)."""

    start: int  # in items
    period: int
    unit: int
    counted: bool
    edges: tuple[int, ...]  # cumulative weights in units of 1 / ONE, or cumulative counts
    before: tuple[int, ...]  # elements given before the segment


@dataclass(frozen=True, slots=True)
class StageStart:
    """Where a stage begins, in items and in samples."""

    item: int
    sample: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class Plan:
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
    plan: Plan
    before: tuple[int, ...]


def share(edges: Sequence[int], k: int, items: int) -> int:
    """How many of the first ``items`` of a segment are from data set k (exact at period ends)."""
    return (items * edges[k + 1] >> 63) - (items * edges[k] >> 63)


def make_runs(
    lengths: Sequence[int], stages: Sequence[Stage], stop: str, period: int, rest: bool, advance: Callable[[int], int]
) -> tuple[EpochRun, ...]:
    """The plans of all epochs. Stages are measured by a clock, in samples; ``advance`` says how far an epoch takes it on."""
    runs: list[EpochRun] = []
    epoch, before, left = 0, [0] * len(lengths), list(stages)
    while True:
        plan = make_plan(lengths, left, stop, period, rest)
        runs.append(EpochRun(epoch, plan, tuple(before)))
        each, here = advance(plan.num_samples), left[0].num_samples
        if len(left) == 1 or each == 0 or here is None:
            return tuple(runs)
        count = 1
        if plan.num_reached == 1:  # it ended in its first stage; the next ones do too, as long as there is room for rounding
            room = here - plan.num_samples - (len(lengths) + 2) * left[0].group
            count = max(1, room // each + 1)
        epoch += count
        before = [had + count * given for had, given in zip(before, plan.given, strict=True)]
        left = _after(left, count * each)


def _after(stages: list[Stage], samples: int) -> list[Stage]:
    """What is left of stages when the clock has gone on by a number of samples."""
    for number, stage in enumerate(stages):
        if stage.num_samples is None or stage.num_samples > samples:
            rest = stage if stage.num_samples is None else replace(stage, num_samples=stage.num_samples - samples)
            return [rest, *stages[number + 1 :]]
        samples -= stage.num_samples
    return [replace(stages[-1], num_samples=None)]  # behind the last step of all: not reached, as the last stage has no end


def make_plan(lengths: Sequence[int], stages: Sequence[Stage], stop: str, period: int, rest: bool) -> Plan:
    """Lay out the whole line: ``lengths`` are the elements per epoch of each data set. With ``rest``, what does not fill an
    item comes last.
    """
    line = _Line([0] * len(lengths))
    reached = []
    for number, stage in enumerate(stages):
        reached.append(StageStart(line.items, line.samples, stage))
        later = [any(s.weights[k] > 0 for s in stages[number + 1 :]) for k in range(len(lengths))]
        if _lay_stage(line, lengths, stage, later, stop, period):
            break
    num_reached = len(reached)
    if rest:
        _lay_rest(line, lengths, reached)
    if line.samples > MAX_LENGTH or max(line.given, default=0) > MAX_LENGTH:
        raise ValueError(
            f"the mixture would have {line.samples} positions, more than {MAX_LENGTH}: use larger weights or another stop"
        )
    return Plan(tuple(line.segments), tuple(reached), line.items, line.samples, tuple(line.given), num_reached)


class _Line:
    """The line as far as it is laid."""

    def __init__(self, given: list[int]) -> None:
        self.given = given
        self.segments: list[Segment] = []
        self.items = 0
        self.samples = 0

    def append(self, stage: Stage, shares: "_Shares", whole: int, counts: list[int]) -> int:
        """Add whole periods and then one with the given counts; return the number of items."""
        if whole > 0:
            self._add(stage, shares.period, False, shares.edges, shares.given(whole), whole * shares.period)
        rest = sum(counts)
        if rest > 0:
            edges = [0]
            for count in counts:
                edges.append(edges[-1] + count)
            self._add(stage, rest, True, edges, counts, rest)
        return whole * shares.period + rest

    def _add(self, stage: Stage, period: int, counted: bool, edges: Sequence[int], counts: Sequence[int], items: int) -> None:
        self.segments.append(Segment(self.items, period, stage.unit, counted, tuple(edges), tuple(self.given)))
        self.given = [g + n * stage.unit for g, n in zip(self.given, counts, strict=True)]
        self.items += items
        self.samples += items * stage.group


class _Shares:
    """Constant shares: exact, and as cumulative fixed-point weights; and a period in which each data set has at least one item."""

    def __init__(self, weights: Sequence[Fraction], period: int) -> None:
        total = sum(weights, Fraction(0))
        self.parts = [weight / total for weight in weights]
        running = Fraction(0)
        self.edges = [0]
        for part in self.parts:
            running += part
            self.edges.append(math.ceil(running * ONE))  # up, so that a quota that is a whole number is met exactly
        self.widths = [high - low for low, high in zip(self.edges, self.edges[1:], strict=False)]
        self.active = [k for k, weight in enumerate(weights) if weight > 0]
        least = min(self.widths[k] for k in self.active)
        if least < 2:
            raise ValueError("the smallest weight is below 2**-62 of the sum: use 0 or a larger weight")
        self.period = max(period, math.ceil(1 / min(self.parts[k] for k in self.active)))
        # Where every quota of a period is a whole number, rounding cannot reach it. Else each width must be a whole slot or more.
        if any((running * self.period).denominator > 1 for running in accumulate(self.parts)) and least * self.period < ONE:
            self.period += 1

    def given(self, whole: int) -> list[int]:
        """Items of each data set in so many whole periods."""
        return [share(self.edges, k, whole * self.period) for k in range(len(self.widths))]

    def periods_within(self, k: int, room: int) -> int:
        """The largest number of periods in which data set k gives at most ``room`` items."""
        periods = (room + 1) * ONE // (self.widths[k] * self.period) + 1
        while periods > 0 and share(self.edges, k, periods * self.period) > room:
            periods -= 1
        return periods

    def quota(self, time: Fraction, k: int) -> int:
        """Whole items of data set k due at ``time``, counted in items of the segment."""
        return int(time * self.parts[k])

    def due(self, k: int, room: int) -> Fraction:
        """The time at which data set k will have given ``room`` items."""
        return room / self.parts[k]


def _lay_stage(line: _Line, lengths: Sequence[int], stage: Stage, later: list[bool], stop: str, period: int) -> bool:
    """Lay one stage; True if the line ends in it."""
    left = None if stage.num_samples is None else stage.num_samples // stage.group
    while left is None or left > 0:
        rooms = [max(0, length - given) // stage.unit for length, given in zip(lengths, line.given, strict=True)]
        weights = stage.weights
        if stop == "all_exhausted_without_replacement":
            weights = tuple(w if room > 0 else Fraction(0) for w, room in zip(weights, rooms, strict=True))
        if not any(weights):  # nothing is left for this stage, and a later one may not begin before its step
            return True
        shares = _Shares(weights, period)
        if stop == "forever":
            bound = min((MAX_LENGTH - line.samples) // stage.group, (MAX_LENGTH - max(line.given)) // stage.unit)
            items = bound if left is None else min(left, bound)
            line.append(stage, shares, *_to_stage_end(shares, items, None))
            return left is None or bound < left
        if stop == "all_exhausted":
            needs = [-(-max(0, length - given) // stage.unit) for length, given in zip(lengths, line.given, strict=True)]
            piece = _to_last_exhaustion(shares, left, needs, later)
        else:
            piece = _to_first_exhaustion(shares, left, rooms)
        if piece is None:
            assert left is not None
            line.append(stage, shares, *_to_stage_end(shares, left, None if stop == "all_exhausted" else rooms))
            return False
        items = line.append(stage, shares, *piece)
        if stop != "all_exhausted_without_replacement":
            return True
        left = None if left is None else left - items
    return False


def _lay_rest(line: _Line, lengths: Sequence[int], reached: list[StageStart]) -> None:
    """What does not fill a batch of its own, sample by sample, at the end of the line."""
    group, weights = reached[-1].stage.group, reached[-1].stage.weights
    rooms = [length - given if weight else 0 for length, given, weight in zip(lengths, line.given, weights, strict=True)]
    counts = [room if 0 < room < group else 0 for room in rooms]
    if any(counts):
        stage = replace(reached[-1].stage, num_samples=None, group=1)
        reached.append(StageStart(line.items, line.samples, stage))
        line.append(stage, _Shares([Fraction(1)] * len(lengths), 1), 0, counts)


def _to_first_exhaustion(shares: _Shares, left: int | None, rooms: list[int]) -> tuple[int, list[int]] | None:
    """Whole periods and last counts up to the point where the first data set ends; None if the stage ends before."""
    time = min(shares.due(k, rooms[k]) for k in shares.active)
    if left is not None and time >= left:
        return None
    whole = min(shares.periods_within(k, rooms[k]) for k in shares.active)
    given = shares.given(whole)
    counts = [
        min(room, max(0, shares.quota(time, k) - n)) for k, (room, n) in enumerate(zip(_minus(rooms, given), given, strict=True))
    ]
    if left is not None and whole * shares.period + sum(counts) > left:
        return None
    return whole, counts


def _to_last_exhaustion(shares: _Shares, left: int | None, needs: list[int], later: list[bool]) -> tuple[int, list[int]] | None:
    """Whole periods and last counts up to the point where the last data set ends; None if the stage ends before."""
    if any(need > 0 and width == 0 and wanted for need, width, wanted in zip(needs, shares.widths, later, strict=True)):
        return None  # somebody's turn comes in a later stage
    needs = [need if width > 0 else 0 for need, width in zip(needs, shares.widths, strict=True)]
    time = max(shares.due(k, needs[k]) for k in shares.active)
    whole = int(time) // shares.period
    given = shares.given(whole)
    counts = [max(0, shares.quota(time, k) - n, needs[k] - n) for k, n in enumerate(given)]
    if left is not None and whole * shares.period + sum(counts) > left:
        return None
    return whole, counts


def _to_stage_end(shares: _Shares, left: int, rooms: list[int] | None) -> tuple[int, list[int]]:
    """Whole periods and last counts of exactly ``left`` items, nobody beyond its room."""
    whole = left // shares.period
    if rooms is not None:
        whole = min(whole, *(shares.periods_within(k, rooms[k]) for k in shares.active))
    given = shares.given(whole)
    caps = [left] * len(given) if rooms is None else _minus(rooms, given)
    return whole, _apportion(shares, left, left - whole * shares.period, given, caps)


def _apportion(shares: _Shares, time: int, items: int, given: list[int], caps: list[int]) -> list[int]:
    """Whole counts with the given sum, nearest to the quotas at ``time`` (largest remainders first, ties to the lower number)."""
    targets = [time * part - n for part, n in zip(shares.parts, given, strict=True)]
    counts = [min(cap, max(0, math.floor(target))) for target, cap in zip(targets, caps, strict=True)]
    missing = items - sum(counts)
    by_remainder = sorted(shares.active, key=lambda k: counts[k] - targets[k])
    while missing > 0:
        for k in by_remainder:
            if missing > 0 and counts[k] < caps[k]:
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
