"""Mixture: several data sets drawn from by weight, with any position computed alone.

How a line is laid out is in :mod:`penstock.order.layout`. Here are its arguments (weights by samples or tokens, temperature, caps,
phases, amendments) as stages and rules of a layout, and positions computed from it.
"""

import decimal
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Rational, Real
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
from penstock.order.layout import (
    ONE,
    STOP_POLICIES,
    EpochRun,
    MixturePlan,
    Regime,
    Rules,
    Segment,
    Stage,
    is_capped,
    left_out,
    make_runs,
    native_line,
    share,
)
from penstock.order.order import Order, Sequential
from penstock.order.permutation import MAX_SEED, Permutation, Purpose, derive_root
from penstock.order.position import Curriculum, Phase, Weights, copy_weights

__all__ = ["STOP_POLICIES", "Amendment", "Choice", "Mixture", "tempered"]

Part = int | Order
StagedWeights = Sequence[tuple[int, Weights]]


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
class Amendment:
    """A change to a mixture from a step on: data sets that are added, and new weights and caps. The others go on where they were.

    ``weights`` are for all data sets that there are from then on, given like those of the mixture; without them every data set
    counts by its length, as without weights in the mixture. ``max_epochs`` are added to those there were, or replace them.

    >>> from penstock.order import Mixture
    >>> Mixture({"web": 700}, seed=5).amend(100, weights={"web": 0.7, "code": 0.3}, add={"code": 300}).amendments
    (Amendment(100, weights={'code': 0.3, 'web': 0.7}, add={'code': 300}),)
    """

    step: int
    _: KW_ONLY
    weights: Weights | None = None
    add: Mapping[str, Part] | Sequence[Part] = ()
    max_epochs: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        set_whole(self, "step", least=1)
        object.__setattr__(self, "weights", _copied(self.weights))
        if _is_staged(self.weights):
            raise ValueError("the weights of an amendment hold from its step on, got weights by step: amend again for later ones")
        if not isinstance(self.add, Mapping | Sequence) or isinstance(self.add, str):
            raise TypeError(f"add must be a dict or a list of orders or lengths, like the parts of the mixture, got {self.add!r}")
        object.__setattr__(self, "add", dict(self.add) if isinstance(self.add, Mapping) else tuple(self.add))
        object.__setattr__(self, "max_epochs", None if self.max_epochs is None else copied_caps(self.max_epochs))

    def __repr__(self) -> str:
        given = {"weights": self.weights, "add": self.add or None, "max_epochs": self.max_epochs or None}
        return (
            f"Amendment({', '.join([str(self.step), *(f'{key}={value!r}' for key, value in given.items() if value is not None)])})"
        )

    def __hash__(self) -> int:
        return hash((self.step, tuple(self.add)))


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

    * ``tokens``       the mean number of tokens of a sample, for each data set: weights are then shares of tokens
    * ``temperature``  instead of weights: a data set counts by its size to the power 1 / temperature; the size is its number of
      records, or of tokens where ``tokens`` are given
    * ``max_epochs``   caps by name: a data set gives at most as many epochs of its own in the whole run (a fraction is fine). Then
      it drops out, and the others share its weight. If none is left, the run ends
    * ``amendments``   see :class:`Amendment`

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
    tokens: Mapping[str, Any] | Sequence[Any] | None = None
    temperature: float | None = None
    max_epochs: Mapping[str, float] | None = None
    amendments: Sequence[Amendment] = ()
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
        object.__setattr__(self, "max_epochs", None if self.max_epochs is None else copied_caps(self.max_epochs))
        object.__setattr__(self, "amendments", tuple(self.amendments))
        names, orders = self._all_parts()
        if not orders:
            raise ValueError("a mixture needs at least one data set, got none")
        if sum(map(_num_records, orders)) > MAX_LENGTH:
            raise ValueError(f"the data sets together have {sum(map(_num_records, orders))} records, more than {MAX_LENGTH}")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_orders", orders)
        self._check_temperature()
        object.__setattr__(self, "tokens", _by_name("tokens", self.tokens, names, _mean))
        rest = self.stop == "all_exhausted_without_replacement" and self.unit == "batch" and self.phases is None
        rules = Rules(tuple(map(len, orders)), self.stop, self.period, rest)
        runs = make_runs(rules, self._regimes(), self._clock, self._root, is_single=self.phases is not None)
        if self.tail == "wrap" and self.unit == "batch" and any(run.plan.num_samples % self.batch_size for run in runs):
            raise ValueError(
                "with tail='wrap' the last short batch of an epoch is filled from the next one, so that batches would come from "
                "several data sets: use another tail, or unit='sample'"
            )
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "_lines", tuple(native_line(run.plan) for run in runs))

    def _all_parts(self) -> tuple[tuple[str, ...], tuple[Order, ...]]:
        """Names and orders of all data sets, those that are added later at the end."""
        names: list[str] = []
        parts: list[Part] = []
        for amendment in (None, *self.amendments):
            if amendment is not None and not isinstance(amendment, Amendment):
                raise TypeError(f"amendments must be Amendment objects, got {amendment!r}")
            added = self.parts if amendment is None else amendment.add
            if amendment is not None and added and isinstance(added, Mapping) != isinstance(self.parts, Mapping):
                raise TypeError(f"data sets are added like those of the mixture, by name or as a list, got {added!r}")
            new = list(added) if isinstance(added, Mapping) else [str(len(names) + k) for k in range(len(added))]
            again = sorted(set(new) & set(names))
            if again:
                raise ValueError(f"an amendment adds {again}, which the mixture has already: leave them out, and give them weights")
            names += new
            parts += added.values() if isinstance(added, Mapping) else added
        steps = [amendment.step for amendment in self.amendments]
        if any(low >= high for low, high in pairwise(steps)):
            raise ValueError(f"amendments must be at rising steps, got steps {steps}: amend the mixture once for a step")
        orders = tuple(part if isinstance(part, Order) else Sequential(whole_number("length", part)) for part in parts)
        return tuple(names), orders

    def _check_temperature(self) -> None:
        if self.temperature is None:
            return
        number = self.temperature
        if not isinstance(number, Real) or isinstance(number, bool) or not number > 0:
            raise ValueError(f"temperature must be a number above 0, got {number!r}")
        if self.weights is not None:
            raise ValueError("weights and a temperature exclude each other: give the weights, or the temperature")

    def amend(
        self,
        step: int,
        *,
        weights: Weights | None = None,
        add: Mapping[str, Part] | Sequence[Part] = (),
        max_epochs: Mapping[str, float] | None = None,
        tokens: Sequence[Any] = (),
    ) -> "Mixture":
        """The same mixture up to a step, and changed from there on. ``tokens`` are those of the data sets that are added."""
        amendment = Amendment(step, weights=weights, add=add, max_epochs=max_epochs)
        means = None if self.tokens is None else (*cast(Sequence[Any], self.tokens), *tokens)
        return replace(self, amendments=(*self.amendments, amendment), tokens=means)

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in ("parts", *_KEYWORDS)}
        shown = [f"{name}={value!r}" for name, value in given.items() if name != "tail" and (name in _ALWAYS or value)]
        return f"Mixture({', '.join(shown)})"

    def _clock(self, num_samples: int) -> int:
        """How far an epoch takes the clock of the run on, in samples."""
        if self.tail == "wrap" or self.phases is not None:
            return num_samples
        steps = num_samples // self.batch_size if self.tail == "drop" else -(-num_samples // self.batch_size)
        return steps * self.batch_size

    def __len__(self) -> int:
        return self.runs[0].plan.num_samples

    @property
    def endless_epoch(self) -> int | None:
        """The epoch that never ends; None if all do. The first one, unless an amendment follows upon the end of a capped run."""
        run = self.runs[-1]
        return run.first if self.stop == "forever" and self.phases is None and run.plan.num_samples else None

    @property
    def is_endless(self) -> bool:
        """Whether the first epoch never ends."""
        return self.endless_epoch == 0

    @property
    def ends(self) -> bool:
        """Whether the run ends because caps are reached; not where epochs become empty for another reason."""
        run, rules = self.runs[-1], Rules(self.lengths, self.stop, self.period, caps=self._regimes()[-1].caps)
        return run.plan.num_samples == 0 and is_capped(run.plan, rules.capped(run.before))

    @property
    def plan(self) -> MixturePlan:
        """How epoch 0 is laid out, and every other one unless weights change by step."""
        return self.runs[0].plan

    def plan_of(self, epoch: int) -> MixturePlan:
        """How an epoch is laid out."""
        return self.runs[self._run_of(epoch)].plan

    def length_of(self, epoch: int) -> int:
        """Positions of an epoch: with weights by step they may differ."""
        return self.plan_of(epoch).num_samples

    def given_before(self, epoch: int) -> tuple[int, ...]:
        """Elements that each data set gave in the epochs before this one."""
        run = self.runs[self._run_of(epoch)]
        return tuple(had + (epoch - run.first) * given for had, given in zip(run.before, run.plan.given, strict=True))

    def _run_of(self, epoch: int) -> int:
        return 0 if len(self.runs) == 1 else bisect_right(self.runs, whole_number("epoch", epoch), key=lambda run: run.first) - 1

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
        plan, element = self.plan_of(epoch), whole_number("element", element)
        had = self.given_before(epoch)[which]
        ends = [*(segment.start for segment in plan.segments[1:]), plan.num_items]
        for segment, end in zip(plan.segments, ends, strict=False):
            number = element if segment.deferred is None else segment.deferred.number_of(which, element)
            if number is None:
                continue
            item, rest = divmod(number - had - segment.before[which], segment.unit)
            first, low, high, item = _slots_of(segment, end, which, item)
            if 0 <= item < high - low:
                slots = Permutation(segment.period, key=_core.absorb(self._root(epoch), segment.start + first))
                place = segment.start + first + slots.inverse(low + item)
                if place < end:  # else the period was cut off before it
                    return _sample_position(plan, place, rest)
        return None

    def span_of(self, epoch: int, which: int) -> tuple[int, int]:
        """[low, high): the elements of a data set that come in an epoch are among these."""
        plan = self.plan_of(epoch)
        low = had = self.given_before(epoch)[which]
        high = self.given_before(epoch + 1)[which]
        ends = [*(segment.start for segment in plan.segments[1:]), plan.num_items]
        for segment, end in zip(plan.segments, ends, strict=False):
            if (end - segment.start) % segment.period:  # cut off: it gave some of its last elements before others
                high = max(high, had + segment.given(-(-(end - segment.start) // segment.period))[which])
            if segment.deferred is not None:
                first = segment.deferred.first_element(which)
                low, high = low if first is None else min(low, first), max(high, segment.deferred.end(which))
        return low, high

    def num_given(self, epoch: int, position: int) -> tuple[int, ...]:
        """Elements that each data set has given before a position of an epoch, in that epoch."""
        plan = self.plan_of(epoch)
        if position >= plan.num_samples:
            return plan.given
        [item], offset = _items(plan, np.array([position], np.int64))
        number = bisect_right(plan.segments, int(item), key=lambda one: one.start) - 1
        segment = plan.segments[number]
        periods, inside = divmod(int(item) - segment.start, segment.period)
        given = segment.given(periods)
        line = cast(_core.MixtureLine, self._lines[self._run_of(epoch)])
        for low in range(int(item) - inside, int(item), COUNTED):
            items = np.arange(low, min(low + COUNTED, int(item)))
            which = np.empty(items.size, np.int32)
            line.at(self._root(epoch), items, which, np.empty(items.size, np.int64), None)
            counts = np.bincount(which, minlength=len(given)).tolist()
            given = [had + count * segment.unit for had, count in zip(given, counts, strict=True)]
        if offset is not None and offset[0]:
            which_now = int(self.choose_at(epoch, [position]).which[0])
            given[which_now] += int(offset[0])
        return tuple(given)

    def holes(self, epoch: int, position: int) -> list[tuple[int, IntArray]]:
        """For each data set (end, missing): before a position of an epoch all elements below ``end`` have come but the missing
        ones, and no others. Where periods are too long to be looked through, as if elements came in their order.
        """
        run, before = self.runs[self._run_of(epoch)], self.given_before(epoch)
        none = np.empty(0, np.int64)
        if not run.plan.segments:
            return [(had, none) for had in before]
        [item], offset = _items(run.plan, np.array([position], np.int64))
        if position >= run.plan.num_samples:
            item, offset = run.plan.num_items, None
        given, deferred = left_out(run.plan, int(item), before, self._root(epoch))
        if not given or (offset is not None and offset[0]):
            counts = self.num_given(epoch, position)
            return [(had + now, none) for had, now in zip(before, counts, strict=True)]
        if deferred is None:
            return [(number, none) for number in given]
        runs = [deferred.behind(k, number) if deferred.elements[k].size else (none, none) for k, number in enumerate(given)]
        missing = [np.repeat(firsts, sizes) + _within(sizes) for firsts, sizes in runs]
        return [(number + one.size, one) for number, one in zip(given, missing, strict=True)]

    def caps_at(self, step: int) -> tuple[int | None, ...]:
        """Elements that each data set gives at most, as far as is known at a step."""
        return [regime for regime in self._regimes() if regime.step <= step][-1].caps

    def position_of_number(self, epoch: int, which: int, number: int) -> int | None:
        """The position at which a data set gives its element number ``number`` of an epoch, counted as they come; None if it gives
        fewer in it.
        """
        plan = self.plan_of(epoch)
        if not 0 <= number < plan.given[which]:
            return None
        segment = plan.segments[bisect_right(plan.segments, number, key=lambda s: s.before[which]) - 1]
        item, rest = divmod(number - segment.before[which], segment.unit)
        end = next((s.start for s in plan.segments if s.start > segment.start), plan.num_items)
        first, low, high, item = _slots_of(segment, end, which, item)
        slots = Permutation(segment.period, key=_core.absorb(self._root(epoch), segment.start + first))
        return _sample_position(plan, segment.start + first + _smallest(slots, low, high, item), rest)

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

    def _regimes(self) -> list[Regime]:
        """The stages and caps from the beginning and from every amendment on."""
        caps: dict[str, Fraction] = {}
        count = len(self.parts)
        regimes = [Regime(0, 0, self._stages(count), self._caps(caps, self.max_epochs, self.names[:count]))]
        for amendment in self.amendments:
            count += len(amendment.add)
            start, stages = self._amended_stages(amendment, count)
            regimes.append(Regime(amendment.step, start, stages, self._caps(caps, amendment.max_epochs, self.names[:count])))
        return regimes

    def _amended_stages(self, amendment: Amendment, count: int) -> tuple[int, list[Stage]]:
        """The sample at which an amendment begins, and the stages from there on."""
        weights = self._fractions(amendment.weights, count)
        if self.phases is None:
            return amendment.step * self.batch_size, [Stage(None, weights, self.batch_size if self.unit == "batch" else 1)]
        curriculum = self._curriculum()
        if amendment.step >= len(curriculum):
            raise ValueError(f"an amendment is at step {amendment.step}, and the phases have {len(curriculum)} steps")
        place = curriculum.place(amendment.step)
        stages = [replace(stage, weights=weights) for stage in self._stages(len(self.parts))[place.phase :]]
        done = place.step * curriculum.phases[place.phase].batch_size
        return place.sample, [replace(stages[0], num_samples=cast(int, stages[0].num_samples) - done), *stages[1:]]

    def _caps(self, caps: dict[str, Fraction], new: Mapping[str, float] | None, known: Sequence[str]) -> tuple[int | None, ...]:
        """Elements that each data set gives at most; ``new`` is added to ``caps``, in epochs."""
        unknown = sorted(set(new or ()) - set(known))
        if unknown:
            raise ValueError(f"max_epochs must name data sets among {sorted(known)}, got {unknown}")
        caps |= {name: exact_fraction(epochs) for name, epochs in (new or {}).items()}
        return tuple(
            math.floor(caps[name] * len(order)) if name in caps else None
            for name, order in zip(self.names, self._orders, strict=True)
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of an epoch of each data set."""
        return tuple(map(len, self._orders))

    def _curriculum(self) -> Curriculum:
        return Curriculum(cast(Sequence[Phase], self.phases), length=sum(map(len, self._orders[: len(self.parts)])))

    def _stages(self, count: int) -> list[Stage]:
        """The stages without amendments, of the first data sets."""
        group = self.batch_size if self.unit == "batch" else 1
        if self.phases is not None:
            if _is_staged(self.weights):
                raise ValueError("weights by step and phases exclude each other: give the weights with the phases")
            curriculum = self._curriculum()
            return [
                Stage(
                    len(curriculum.steps_of(i)) * phase.batch_size,
                    self._fractions(phase.weights if phase.weights is not None else self.weights, count),
                    phase.batch_size if self.unit == "batch" else 1,
                    phase.seq_len,
                )
                for i, phase in enumerate(curriculum.phases)
            ]
        if not _is_staged(self.weights):
            return [Stage(None, self._fractions(self.weights, count), group)]
        staged = cast(StagedWeights, self.weights)
        steps = [whole_number("step", step) for step, _ in staged]
        if steps[0] != 0 or any(low >= high for low, high in pairwise(steps)):
            raise ValueError(f"weights by step must begin at step 0 and rise, got steps {steps}")
        lengths = [(high - low) * self.batch_size for low, high in pairwise(steps)]
        return [Stage(length, self._fractions(w, count), group) for length, (_, w) in zip([*lengths, None], staged, strict=True)]

    def _fractions(self, weights: Any, count: int) -> tuple[Fraction, ...]:
        """Shares of samples: of the first data sets by their weights, checked; 0 for those that are added later."""
        names, orders = self.names[:count], self._orders[:count]
        if weights is None:
            given: Sequence[Any] = [len(order) for order in orders]
        elif isinstance(weights, Mapping):
            if set(weights) != set(names):
                missing, unknown = sorted(set(names) - set(weights)), sorted(set(weights) - set(names))
                raise ValueError(f"weights must name the data sets {sorted(names)}: missing {missing}, unknown {unknown}")
            given = [weights[name] for name in names]
        elif isinstance(self.parts, Mapping):
            raise TypeError(f"weights must be a dict like the data sets, got {weights!r}")
        elif not isinstance(weights, Sequence):
            raise TypeError(f"weights must be a list or a dict, got {weights!r}")
        else:
            given = weights
        if len(given) != count:
            raise ValueError(f"expected {count} weights, one per data set, got {len(given)}")
        for name, weight, order in zip(names, given, orders, strict=True):
            if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction | np.integer | np.floating):
                raise TypeError(f"the weight of {name!r} must be a number, got {weight!r}")
            if isinstance(weight, int | Fraction) and weight > MAX_LENGTH:
                raise ValueError(f"the weight of {name!r} must be at most {MAX_LENGTH}, got a number of {len(str(weight))} digits")
            if not weight >= 0 or weight == math.inf:
                raise ValueError(f"the weight of {name!r} must be finite and at least 0, got {weight!r}")
            if weight > 0 and len(order) == 0 and self.stop in ("all_exhausted", "forever"):
                raise ValueError(f"data set {name!r} is empty, so it cannot be repeated: give it the weight 0")
        if not any(given) and any(map(len, orders)):
            raise ValueError("at least one weight must be above 0, got only zeros")
        exact = self._by_samples(weights is None, [exact_fraction(weight) for weight in given])
        return (*exact, *[Fraction(0)] * (len(self.names) - count))

    def _by_samples(self, is_by_size: bool, weights: list[Fraction]) -> list[Fraction]:
        """Weights of samples, from lengths or from the weights that were given."""
        means = None if self.tokens is None else list(cast(Sequence[Fraction], self.tokens))[: len(weights)]
        if is_by_size and (self.temperature is None or self.temperature == 1):
            return weights  # by length: the same in samples and in tokens
        if is_by_size:
            sizes = weights if means is None else [weight * mean for weight, mean in zip(weights, means, strict=True)]
            weights = [tempered(size, cast(float, self.temperature)) for size in sizes]
        if means is None:
            return weights
        for name, weight, mean in zip(self.names, weights, means, strict=False):
            if weight > 0 and mean == 0:
                raise ValueError(f"data set {name!r} has no tokens, so it cannot have a share of them: give it the weight 0")
        drawn = [weight / mean if weight else Fraction(0) for weight, mean in zip(weights, means, strict=True)]
        if len({mean for weight, mean in zip(weights, means, strict=True) if weight}) <= 1 or not any(drawn):
            return weights
        # Whole numbers: the denominators of hundreds of means would make the arithmetic of a layout slow.
        return [Fraction(math.ceil(one * ONE / max(drawn))) for one in drawn]


_ALWAYS = ("parts", "seed", "weights", "stop", "batch_size", "unit", "phases", "period")
_KEYWORDS = (*_ALWAYS[1:], "tail", "tokens", "temperature", "max_epochs", "amendments")
TAILS = ("keep", "drop", "pad", "wrap")


COUNTED = 1 << 20
"""Items that are counted at a time."""
PLACES_AT_ONCE = 1 << 20
PLACE_RANGES = 1 << 16
"""Parts of a period in which places are counted."""


def _within(sizes: IntArray) -> IntArray:
    """0, 1, ... in each of several runs."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


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


def _smallest(slots: Permutation, low: int, high: int, number: int) -> int:
    """The ``number``-th of the sorted places of the slots [low, high), in memory that does not grow with them: a tiny weight in a
    mixture makes periods of 10^9 slots. First the places are counted in ranges, then those of the right range are sorted.
    """
    width = -(-len(slots) // PLACE_RANGES)

    def places() -> Iterator[IntArray]:
        for first in range(low, high, PLACES_AT_ONCE):
            yield slots.inverse(np.arange(first, min(first + PLACES_AT_ONCE, high)))

    counts = sum(np.bincount(some // width, minlength=PLACE_RANGES) for some in places())
    ends = np.cumsum(counts)
    chosen = int(np.searchsorted(ends, number, side="right"))
    inside = np.concatenate([some[some // width == chosen] for some in places()])
    return int(np.sort(inside)[number - int(ends[chosen]) + inside.size])


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


def _slots_of(segment: Segment, end: int, which: int, item: int) -> tuple[int, int, int, int]:
    """Where the period begins in which a data set gives an item of a segment that ends at ``end``, the set's slots [low, high) in
    it, and which of them the item is.
    """
    if segment.counted:
        return 0, segment.edges[which], segment.edges[which + 1], item
    periods = -(-(end - segment.start) // segment.period)
    first = _period_of(segment.edges, which, segment.period, item, periods) * segment.period
    low, high = ((first + segment.period) * e // ONE - first * e // ONE for e in segment.edges[which : which + 2])
    return first, low, high, item - share(segment.edges, which, first)


def _period_of(edges: Sequence[int], k: int, period: int, item: int, num_periods: int) -> int:
    """The last period that begins with at most ``item`` items of data set k given."""
    low, high = 0, max(1, num_periods)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(edges, k, middle * period) <= item else (low, middle)
    return low


def copied_caps(caps: Any) -> dict[str, float]:
    """Caps in epochs by name, checked; in one order, so that equal ones look equal."""
    if not isinstance(caps, Mapping):
        raise TypeError(f"max_epochs must be a dict by name, got {caps!r}")
    for name, epochs in caps.items():
        if isinstance(epochs, bool) or not isinstance(epochs, Real) or not 0 <= float(epochs) <= MAX_LENGTH:
            hint = ": leave out what has no cap" if epochs is None or epochs == math.inf else ""
            raise ValueError(f"max_epochs of {name!r} must be a number of at least 0, got {repr(epochs)[:40]}{hint}")
    return {name: caps[name] for name in sorted(caps, key=str)}


def tempered(size: Fraction, temperature: float) -> Fraction:
    """size ** (1 / temperature) to 16 significant digits, the same on every machine."""
    if size == 0 or temperature == math.inf:
        return Fraction(int(size > 0))
    with decimal.localcontext(decimal.Context(prec=60, Emax=10**6, Emin=-(10**6))):
        power = Fraction(exact_fraction(temperature))
        number = decimal.Decimal(size.numerator) / decimal.Decimal(size.denominator)
        try:
            found = (number.ln() * power.denominator / power.numerator).exp()
        except decimal.Overflow:
            raise ValueError(
                f"a temperature of {temperature} makes a weight of a size of {float(size):g} too large: use a higher one"
            ) from None
    with decimal.localcontext(decimal.Context(prec=16, Emax=10**6, Emin=-(10**6))):
        return Fraction(+found)


def _by_name(what: str, values: Any, names: Sequence[str], check: Any) -> tuple[Any, ...] | None:
    """One value for each data set, given by name or as a list."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise ValueError(f"{what} must name the data sets {sorted(names)}, got {sorted(map(str, values))}")
        values = [values[name] for name in names]
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(names):
        raise ValueError(f"expected {len(names)} numbers as {what}, one per data set, got {values!r}")
    return tuple(check(what, name, value) for name, value in zip(names, values, strict=True))


def _mean(what: str, name: str, value: Any) -> Fraction:
    is_number = isinstance(value, Rational | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_LENGTH:
        raise ValueError(f"{what} of {name!r} must be a number of at least 0, got {value!r}")
    return exact_fraction(value)
