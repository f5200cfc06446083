"""Mixture: several data sets drawn from by weight, with any position computed alone.

The plan of a mixture says how many items of each data set every stretch of the line holds, settled once. The line is cut into
segments of whole periods. Within a segment the shares of the data sets are constant, and at every period's end each has given its
quota to within one item. Where something ends (a data set, a stage) a last short period with counts of its own brings every data
set to the exact point. A plan has a few segments per data set and stage, however long the line is.

Weights by step count the steps of the whole run, so an epoch is laid out by the stages that are left when it begins. Epochs that
are within one stage are alike: a run of any number of epochs has a few plans.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.argument import (
    MAX_LENGTH,
    IntArray,
    as_positions,
    check_positions,
    check_run,
    exact_fraction,
    set_whole,
    whole_number,
)
from penstock.native import _core
from penstock.order.order import Order, Sequential
from penstock.order.permutation import MAX_SEED, Permutation, Purpose, derive_root
from penstock.order.phase import Curriculum, Phase, Weights, copy_weights

__all__ = ["STOP_POLICIES", "Choice", "EpochRun", "Mixture", "MixturePlan", "Segment", "Stage", "make_plan", "make_runs", "share"]

Part = int | Order
StagedWeights = Sequence[tuple[int, Weights]]

STOP_POLICIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever")

ONE = 1 << 63
"""Cumulative weights are whole multiples of 1 / ONE."""


# The plan


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


def make_plan(lengths: Sequence[int], stages: Sequence[Stage], stop: str, period: int, rest: bool) -> MixturePlan:
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
    return MixturePlan(tuple(line.segments), tuple(reached), line.items, line.samples, tuple(line.given), num_reached)


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
        """Items of each data set in a number of whole periods."""
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
        return None  # a data set's turn comes in a later stage
    needs = [need if width > 0 else 0 for need, width in zip(needs, shares.widths, strict=True)]
    time = max(shares.due(k, needs[k]) for k in shares.active)
    whole = int(time) // shares.period
    given = shares.given(whole)
    counts = [max(0, shares.quota(time, k) - n, needs[k] - n) for k, n in enumerate(given)]
    if left is not None and whole * shares.period + sum(counts) > left:
        return None
    return whole, counts


def _to_stage_end(shares: _Shares, left: int, rooms: list[int] | None) -> tuple[int, list[int]]:
    """Whole periods and last counts of exactly ``left`` items, none beyond its room."""
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


# The mixture


class Choice(NamedTuple):
    """For each position: the number of a data set, and the first element of the sample on that data set's own endless line.

    >>> from penstock.order import Mixture
    >>> choice = Mixture([6, 4], seed=5).choose(epoch=0, start=0, stop=5)
    >>> choice.which.tolist(), choice.element.tolist()
    ([0, 1, 0, 1, 0], [5, 0, 1, 2, 4])
    """

    which: npt.NDArray[np.int32]
    element: IntArray


@dataclass(frozen=True)
class Mixture:
    """Samples of several data sets in given proportions, shuffled together period by period.

    ``parts`` are orders, or plain lengths (read in sequence): a dict by name or a list. ``weights`` are given the same way; without
    them every data set counts by its length. They may change during the run: ``[(0, first), (1000, second)]`` changes at step 1000,
    a step being ``batch_size`` positions. Steps are counted over the whole run, so epochs may have different lengths
    (:meth:`length_of`); ``tail`` says what happens to a last, short batch of an epoch, as in :class:`penstock.Loader`. Or weights
    come with the ``phases`` of a curriculum; a sample of phase i then has seq_len elements, and each data set's elements are used
    one after the other across all phases.

    An id is the record's place in all data sets put one after the other; :meth:`choose` gives data set and element instead. Steps
    keep their place: a stage or phase whose data sets have all run out ends the epoch.

    ``stop`` says when an epoch ends:

    * ``first_exhausted``  when the first data set has given its last record; no record comes twice in the first epoch
    * ``all_exhausted``    when the last one has; smaller data sets start over, reshuffled
    * ``all_exhausted_without_replacement``  the same, but a data set that has ended drops out: every record once
    * ``forever``          never

    The next epoch goes on in every data set where this one left it. ``unit="batch"`` draws whole batches of ``batch_size``
    positions from one data set instead of single samples (without replacement, what does not fill such a batch comes at the end of
    the epoch, mixed). At the end of every period (at least ``period`` draws, more if the
    smallest weight needs it) each data set has given its quota to within one draw.

    >>> from penstock.order import Mixture, Shuffle
    >>> mix = Mixture({"web": Shuffle(700, seed=1), "code": 300}, weights={"web": 0.7, "code": 0.3}, seed=5)
    >>> len(mix)
    1000
    """

    parts: Mapping[str, Part] | Sequence[Part]
    _: KW_ONLY
    seed: int
    weights: Weights | StagedWeights | None = None
    stop: str = "first_exhausted"
    batch_size: int = 1
    unit: str = "sample"
    phases: Sequence[Phase] | None = None
    period: int = 1024
    tail: str = field(default="keep", repr=False)
    names: tuple[str, ...] = field(init=False, repr=False)  # compared: the order of the data sets counts
    runs: tuple[EpochRun, ...] = field(init=False, repr=False, compare=False)
    _orders: tuple[Order, ...] = field(init=False, repr=False, compare=False)
    _lines: tuple[_core.MixtureLine | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_whole(self, "seed", most=MAX_SEED)
        set_whole(self, "batch_size", least=1)
        set_whole(self, "period", least=1)
        if self.stop not in STOP_POLICIES:
            raise ValueError(f"stop must be one of {', '.join(STOP_POLICIES)}, got {self.stop!r}")
        if self.unit not in ("sample", "batch"):
            raise ValueError(f"unit must be 'sample' or 'batch', got {self.unit!r}")
        if self.tail not in TAILS:
            raise ValueError(f"tail must be one of {', '.join(TAILS)}, got {self.tail!r}")
        if not isinstance(self.parts, Mapping | Sequence):
            raise TypeError(f"parts must be a dict or a list of orders or lengths, got {self.parts!r}")
        object.__setattr__(self, "parts", dict(self.parts) if isinstance(self.parts, Mapping) else tuple(self.parts))
        object.__setattr__(self, "weights", _copied(self.weights))
        object.__setattr__(self, "phases", None if self.phases is None else tuple(self.phases))
        names = tuple(self.parts) if isinstance(self.parts, Mapping) else tuple(str(k) for k in range(len(self.parts)))
        parts = self.parts.values() if isinstance(self.parts, Mapping) else self.parts
        orders = tuple(part if isinstance(part, Order) else Sequential(whole_number("length", part)) for part in parts)
        if not orders:
            raise ValueError("a mixture needs at least one data set, got none")
        if sum(map(_num_records, orders)) > MAX_LENGTH:
            raise ValueError(f"the data sets together have {sum(map(_num_records, orders))} records, more than {MAX_LENGTH}")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_orders", orders)
        lengths = [len(order) for order in orders]
        stages = self._stages()
        rest = self.stop == "all_exhausted_without_replacement" and self.unit == "batch" and self.phases is None
        if self.phases is not None or self.stop == "forever" or len(stages) == 1:
            plan = make_plan(lengths, stages, self.stop, self.period, rest)
            runs: tuple[EpochRun, ...] = (EpochRun(0, plan, (0,) * len(lengths)),)
        else:
            runs = make_runs(lengths, stages, self.stop, self.period, rest, self._clock)
        if self.tail == "wrap" and self.unit == "batch" and any(run.plan.num_samples % self.batch_size for run in runs):
            raise ValueError(
                "with tail='wrap' the last short batch of an epoch is filled from the next one, so that batches would come from "
                "several data sets: use another tail, or unit='sample'"
            )
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "_lines", tuple(_native_line(run.plan) for run in runs))

    def _clock(self, num_samples: int) -> int:
        """How far an epoch takes the clock of the run on, in samples."""
        if self.tail == "wrap":
            return num_samples
        steps = num_samples // self.batch_size if self.tail == "drop" else -(-num_samples // self.batch_size)
        return steps * self.batch_size

    def __len__(self) -> int:
        return self.runs[0].plan.num_samples

    @property
    def plan(self) -> MixturePlan:
        """How epoch 0 is laid out, and every other one unless weights change by step."""
        return self.runs[0].plan

    def length_of(self, epoch: int) -> int:
        """Positions of an epoch: with weights by step they may differ."""
        return self.runs[self._run_of(epoch)].plan.num_samples

    def given_before(self, epoch: int) -> tuple[int, ...]:
        """Elements that each data set gave in the epochs before this one."""
        run = self.runs[self._run_of(epoch)]
        return tuple(had + (epoch - run.first) * given for had, given in zip(run.before, run.plan.given, strict=True))

    def _run_of(self, epoch: int) -> int:
        return 0 if len(self.runs) == 1 else bisect_right(self.runs, whole_number("epoch", epoch), key=_first_of) - 1

    def __hash__(self) -> int:
        return hash((self.names, self.seed, self.stop, len(self)))

    @property
    def n(self) -> int:
        """Records of all data sets together."""
        return sum(map(_num_records, self._orders))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__ + _KEYWORDS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def choose(self, epoch: int, start: int, stop: int, step: int = 1) -> Choice:
        """Data sets and elements at positions start, start + step, ... below stop."""
        run = check_run(start, stop, step, self.length_of(epoch))
        return self._choose(epoch, as_positions(run))

    def choose_at(self, epoch: int, positions: npt.ArrayLike) -> Choice:
        """Data sets and elements at any positions."""
        return self._choose(epoch, check_positions("positions", positions, self.length_of(epoch)))

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids, over all data sets put one after the other, at positions start, start + step, ... below stop."""
        return self._ids(self.choose(epoch, start, stop, step))

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions; positions in rising order cost least."""
        return self._ids(self.choose_at(epoch, positions))

    def position_of(self, epoch: int, which: int, element: int) -> int | None:
        """The position of the sample that holds an element of a data set's own line; None if it is not in this epoch."""
        epoch, which = whole_number("epoch", epoch), whole_number("which", which, most=len(self.names) - 1)
        plan = self.runs[self._run_of(epoch)].plan
        local = whole_number("element", element) - self.given_before(epoch)[which]
        ends = [*(segment.start for segment in plan.segments[1:]), plan.num_items]
        for segment, end in zip(plan.segments, ends, strict=False):
            item, rest = divmod(local - segment.before[which], segment.unit)
            if segment.counted:
                first, low, high = 0, segment.edges[which], segment.edges[which + 1]
            else:
                periods = (end - segment.start) // segment.period
                number = _period_of(segment.edges, which, segment.period, item, periods)
                first = number * segment.period
                item -= share(segment.edges, which, first)
                low, high = ((first + segment.period) * e // ONE - first * e // ONE for e in segment.edges[which : which + 2])
            if 0 <= item < high - low:
                slots = Permutation(segment.period, key=_core.absorb(self._root(epoch), segment.start + first))
                return _sample_position(plan, segment.start + first + slots.inverse(low + item), rest)
        return None

    def _root(self, epoch: int) -> int:
        return derive_root(self.seed, epoch, Purpose.MIXTURE)

    def _choose(self, epoch: int, positions: IntArray) -> Choice:
        epoch = whole_number("epoch", epoch)
        which = np.empty(positions.size, np.int32)
        element = np.empty(positions.size, np.int64)
        number = self._run_of(epoch)
        run, line = self.runs[number], self._lines[number]
        if positions.size == 0 or line is None:
            return Choice(which, element)
        before: IntArray | None = None
        if epoch > 0:
            given = self.given_before(epoch)
            if max(given) + max(run.plan.given) > MAX_LENGTH:
                raise ValueError(f"epoch {epoch} of this mixture is beyond element {MAX_LENGTH} of a data set")
            before = np.array(given, np.int64)
        items, offsets = _items(run.plan, positions)
        line.at(self._root(epoch), items, which, element, before)
        if offsets is not None:
            element += offsets
        return Choice(which, element)

    def native_line(self, epoch: int) -> tuple[_core.MixtureLine, int, tuple[int, ...]] | None:
        """What native code computes an epoch with: the line, its root, and what each data set gave before; None if positions are
        not single items.
        """
        number = self._run_of(epoch)
        run, line = self.runs[number], self._lines[number]
        if line is None or any(start.stage.group > 1 for start in run.plan.stages):
            return None
        before = self.given_before(epoch)
        return None if max(before) + max(run.plan.given) > MAX_LENGTH else (line, self._root(epoch), before)

    def _ids(self, choice: Choice) -> IntArray:
        ids = np.empty(choice.which.size, np.int64)
        firsts = [0, *accumulate(map(_num_records, self._orders))]
        by_set = np.argsort(choice.which.astype(np.uint16 if len(self.names) < 2**16 else np.int32), kind="stable")
        edges = np.cumsum(np.bincount(choice.which, minlength=len(self.names)))
        for k, mine in enumerate(np.split(by_set, edges[:-1])):
            if mine.size > 0:
                epochs, positions = np.divmod(choice.element[mine], len(self._orders[k]))
                for epoch in [epochs[0]] if epochs.min() == epochs.max() else np.unique(epochs):
                    now = epochs == epoch
                    ids[mine[now]] = self._orders[k].at(int(epoch), positions[now]) + firsts[k]
        return ids

    def _stages(self) -> list[Stage]:
        group = self.batch_size if self.unit == "batch" else 1
        if self.phases is not None:
            if _is_staged(self.weights):
                raise ValueError("weights by step and phases exclude each other: give the weights with the phases")
            curriculum = Curriculum(self.phases, length=sum(map(len, self._orders)))
            return [
                Stage(
                    len(curriculum.steps_of(i)) * phase.batch_size,
                    self._fractions(phase.weights if phase.weights is not None else self.weights),
                    phase.batch_size if self.unit == "batch" else 1,
                    phase.seq_len,
                )
                for i, phase in enumerate(curriculum.phases)
            ]
        if not _is_staged(self.weights):
            return [Stage(None, self._fractions(self.weights), group)]
        staged = cast(StagedWeights, self.weights)
        steps = [whole_number("step", step) for step, _ in staged]
        if steps[0] != 0 or any(low >= high for low, high in pairwise(steps)):
            raise ValueError(f"weights by step must begin at step 0 and rise, got steps {steps}")
        lengths = [(high - low) * self.batch_size for low, high in pairwise(steps)]
        return [Stage(length, self._fractions(w), group) for length, (_, w) in zip([*lengths, None], staged, strict=True)]

    def _fractions(self, weights: Any) -> tuple[Fraction, ...]:
        """The weights of one stage in the order of the data sets, checked."""
        if weights is None:
            weights = [len(order) for order in self._orders]
        elif isinstance(weights, Mapping):
            if set(weights) != set(self.names):
                missing, unknown = sorted(set(self.names) - set(weights)), sorted(set(weights) - set(self.names))
                raise ValueError(f"weights must name the data sets {sorted(self.names)}: missing {missing}, unknown {unknown}")
            weights = [weights[name] for name in self.names]
        elif isinstance(self.parts, Mapping):
            raise TypeError(f"weights must be a dict like the data sets, got {weights!r}")
        elif not isinstance(weights, Sequence):
            raise TypeError(f"weights must be a list or a dict, got {weights!r}")
        if len(weights) != len(self.names):
            raise ValueError(f"expected {len(self.names)} weights, one per data set, got {len(weights)}")
        for name, weight, order in zip(self.names, weights, self._orders, strict=True):
            if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction | np.integer | np.floating):
                raise TypeError(f"the weight of {name!r} must be a number, got {weight!r}")
            if isinstance(weight, int | Fraction) and weight > MAX_LENGTH:
                raise ValueError(f"the weight of {name!r} must be at most {MAX_LENGTH}, got a number of {len(str(weight))} digits")
            if not weight >= 0 or weight == math.inf:
                raise ValueError(f"the weight of {name!r} must be finite and at least 0, got {weight!r}")
            if weight > 0 and len(order) == 0 and self.stop in ("all_exhausted", "forever"):
                raise ValueError(f"data set {name!r} is empty, so it cannot be repeated: give it the weight 0")
        if not any(weights) and any(map(len, self._orders)):
            raise ValueError("at least one weight must be above 0, got only zeros")
        return tuple(exact_fraction(w) for w in weights)


_KEYWORDS = ("seed", "weights", "stop", "batch_size", "unit", "phases", "period", "tail")
TAILS = ("keep", "drop", "pad", "wrap")


def _first_of(run: EpochRun) -> int:
    return run.first


def _items(plan: MixturePlan, positions: IntArray) -> tuple[IntArray, IntArray | None]:
    """The item that holds each sample, and the sample's offset in the item, in elements; None where items are samples."""
    starts = plan.stages
    if all(start.stage.group == 1 for start in starts):
        return positions, None
    stage = np.searchsorted(np.array([s.sample for s in starts], np.int64), positions, side="right") - 1
    first_sample, first_item, group, size = (
        np.array(column, np.int64)[stage]
        for column in zip(*((s.sample, s.item, s.stage.group, s.stage.size) for s in starts), strict=True)
    )
    items, within = np.divmod(positions - first_sample, group)
    return items + first_item, within * size


def _sample_position(plan: MixturePlan, item: int, rest: int) -> int:
    """The position of the sample that is ``rest`` elements into an item."""
    start = next(s for s in reversed(plan.stages) if s.item <= item)
    return start.sample + (item - start.item) * start.stage.group + rest // start.stage.size


def _num_records(order: Order) -> int:
    """Ids of an order lie below this: its ``n``, or for an order without one its length."""
    return int(getattr(order, "n", len(order)))


def _copied(weights: Any) -> Any:
    """A copy that the caller cannot change; weights by step as (step, weights) pairs, also where they came from JSON as lists."""
    if weights is None or isinstance(weights, Mapping):
        return copy_weights(weights)
    if not isinstance(weights, Sequence | np.ndarray):
        raise TypeError(f"weights must be a list or a dict, got {weights!r}")
    if len(weights) and isinstance(weights[0], list | tuple):
        if any(not isinstance(stage, list | tuple) or len(stage) != 2 for stage in weights):
            raise ValueError(f"weights by step must be (step, weights) pairs, got {weights!r}")
        return tuple((step, copy_weights(stage)) for step, stage in weights)
    return tuple(weights.tolist() if isinstance(weights, np.ndarray) else weights)


def _is_staged(weights: Any) -> bool:
    return isinstance(weights, tuple) and len(weights) > 0 and isinstance(weights[0], tuple)


def _period_of(edges: Sequence[int], k: int, period: int, item: int, num_periods: int) -> int:
    """The last period that begins with at most ``item`` items of data set k given."""
    low, high = 0, max(1, num_periods)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(edges, k, middle * period) <= item else (low, middle)
    return low


def _native_line(plan: MixturePlan) -> _core.MixtureLine | None:
    if not plan.segments:
        return None
    rows = plan.segments
    return _core.MixtureLine(
        np.array([s.start for s in rows], np.uint64),
        np.array([s.period for s in rows], np.uint64),
        np.array([s.unit for s in rows], np.uint64),
        np.array([s.counted for s in rows], np.uint64),
        np.array([s.edges for s in rows], np.uint64),
        np.array([s.before for s in rows], np.int64),
    )
