"""Schedule: which positions of which epoch are in the batch of a step. Pure arithmetic, the same on every rank."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from penstock.argument import whole_number
from penstock.errors import StateError, StateMismatchError
from penstock.order import Curriculum, Phase, Shard
from penstock.order.mixture import TAILS
from penstock.stream import Stream

__all__ = ["TAILS", "EpochSchedule", "PhaseSchedule", "Place", "Schedule", "Span", "WholeBatch", "make_schedule"]


class Span(NamedTuple):
    """Positions of one epoch at which samples begin."""

    epoch: int
    run: range


class WholeBatch(NamedTuple):
    """The samples of a batch on all ranks together, without those that only fill it up, and how many there may be."""

    spans: tuple[Span, ...]
    batch_size: int


class Place(NamedTuple):
    """The batch of a step: it begins at ``position`` of ``epoch``; ``spans`` are this rank's samples, of which the last ``padding``
    are there only to fill the batch up. After it, the run stands at (``next_epoch``, ``next_position``).
    ``seq_len`` is set where a phase says how long samples are. ``whole`` is set where samples are dealt by what they cost: this
    rank has as many as ``spans`` says, but :meth:`Work.own` says which.
    """

    step: int
    epoch: int
    position: int
    seq_len: int | None
    spans: tuple[Span, ...]
    padding: int
    next_epoch: int
    next_position: int
    whole: WholeBatch | None = None

    @property
    def num_samples(self) -> int:
        """Samples of this rank, with those that only fill the batch up."""
        return len(self.spans[0].run) if len(self.spans) == 1 else sum(len(span.run) for span in self.spans)


class _Epochs:
    """An amount (of steps, of positions) that each epoch has, added up over epochs. Few stretches of epochs differ in it."""

    def __init__(self, firsts: Sequence[int], each: Sequence[int]) -> None:
        self._firsts, self._each = firsts, each
        self._starts = [0]
        for first, after, amount in zip(firsts, firsts[1:], each, strict=False):
            self._starts.append(self._starts[-1] + (after - first) * amount)

    @property
    def last(self) -> int:
        """What an epoch has once they are all alike."""
        return self._each[-1]

    @property
    def start_of_last(self) -> int:
        """What all epochs before those have together."""
        return self._starts[-1]

    def end(self) -> tuple[int, int]:
        """Where a run stands for which nothing is left."""
        return self._firsts[-1], 0

    def of(self, epoch: int) -> int:
        """What an epoch has."""
        return self._each[0 if len(self._each) == 1 else bisect_right(self._firsts, epoch) - 1]

    def before(self, epoch: int) -> int:
        """What all epochs before one have together."""
        number = 0 if len(self._each) == 1 else bisect_right(self._firsts, epoch) - 1
        return self._starts[number] + (epoch - self._firsts[number]) * self._each[number]

    def find(self, amount: int) -> tuple[int, int]:
        """The epoch in which an amount is reached, and how much of it is in that epoch."""
        number = 0 if len(self._each) == 1 else bisect_right(self._starts, amount) - 1
        if self._each[number] == 0:
            raise IndexError("epochs have nothing from here on")
        epochs, rest = divmod(amount - self._starts[number], self._each[number])
        return self._firsts[number] + epochs, rest


@dataclass(frozen=True)
class EpochSchedule:
    """Batches of one shape, epoch after epoch. ``start`` is the step at which the run stood at ``position`` of ``epoch``: there a
    run with another batch size may have ended, and the batches of this one begin.
    """

    stream: Stream
    batch_size: int
    tail: str
    shard: Shard
    start: int = 0
    epoch: int = 0
    position: int = 0
    is_dealt: bool = False  # whether samples are dealt by what they cost

    @property
    def shapes(self) -> list[tuple[int, int | None]]:
        """Samples of the batches, and the length of each where a phase says it."""
        return [(self.batch_size, None)]

    @cached_property
    def _width(self) -> int:
        """Positions of a global batch."""
        return self.batch_size * self.stream.stride

    def _steps(self, positions: int) -> int:
        """Batches in a number of positions of one epoch."""
        samples = positions // self.stream.stride
        return samples // self.batch_size if self.tail == "drop" else -(-samples // self.batch_size)

    @cached_property
    def _axes(self) -> _Epochs:
        """Positions of epochs."""
        firsts, axes = zip(*self.stream.axes, strict=True)
        return _Epochs(firsts, axes)

    @cached_property
    def _counts(self) -> _Epochs:
        """Batches of whole epochs, where an epoch's last batch does not go on in the next one."""
        firsts, axes = zip(*self.stream.axes, strict=True)
        return _Epochs(firsts, [self._steps(axis) for axis in axes])

    @cached_property
    def _first_steps(self) -> int:
        """Batches of the epoch in which this schedule starts."""
        return self._steps(self._axes.of(self.epoch) - self.position)

    @cached_property
    def _line(self) -> int:
        """Where this schedule starts on the line of all epochs."""
        return self._axes.before(self.epoch) + self.position

    def axis_of(self, epoch: int) -> int:
        """Positions of an epoch."""
        return self._axes.of(epoch)

    def first_step(self, epoch: int) -> int:
        """The step with which an epoch begins (the one at which this schedule starts, for the epoch in which it does)."""
        if epoch <= self.epoch:
            return self.start
        if self.tail == "wrap":
            step = self.start + -(-(self._axes.before(epoch) - self._line) // self._width)
            return step if self.total is None else min(step, self.total)  # what does not fill a batch at the end of all is left
        return self.start + self._first_steps + self._counts.before(epoch) - self._counts.before(self.epoch + 1)

    def epoch_at(self, step: int, epoch: int) -> int:
        """The epoch of the batch of a step, where the run stands in ``epoch``: a later one, if no batch is left of that."""
        is_over = self.total is not None and step >= self.total
        if is_over or (self.tail != "wrap" and step < self.first_step(epoch + 1)):
            return epoch
        try:
            return self.place(step).epoch
        except IndexError:  # there is no data
            return epoch

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.first_step(epoch + 1) - self.first_step(epoch)

    def step_of(self, epoch: int, position: int) -> int | None:
        """The step whose batch holds a position; None if no batch does, or one before this schedule starts."""
        if (epoch, position) < (self.epoch, self.position):
            return None
        if self.tail == "wrap":
            step = self.start + (self._axes.before(epoch) + position - self._line) // self._width
            return step if self.total is None or step < self.total else None
        begin = self.position if epoch == self.epoch else 0
        number = (position - begin) // self._width
        return self.first_step(epoch) + number if number < self.steps_in(epoch) else None

    def samples_in(self, epoch: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, position, step) of every sample of this schedule that has some of the positions [low, high) of an epoch."""
        stride = self.stream.stride
        if self.tail == "wrap":
            before = self._axes.before(epoch) - self._line
            first, last = max(0, (before + low) // stride), (before + high - 1) // stride + 1
            if self.total is not None:  # what does not fill a batch at the end of all is left out
                last = min(last, (self.total - self.start) * self.batch_size)
            for number in range(first, last):
                yield (*self._axes.find(self._line + number * stride), self.start + number // self.batch_size)
        elif epoch >= self.epoch:
            begin = self.position if epoch == self.epoch else 0
            count = min((self._axes.of(epoch) - begin) // stride, self.steps_in(epoch) * self.batch_size)
            for number in range(max(0, (low - begin) // stride), min(count, (high - 1 - begin) // stride + 1)):
                yield epoch, begin + number * stride, self.first_step(epoch) + number // self.batch_size

    @property
    def is_endless(self) -> bool:
        """Whether there is always a next batch: not if an epoch has none."""
        return (self._axes if self.tail == "wrap" else self._counts).last > 0

    @property
    def total(self) -> int | None:
        """Steps of the whole run; None if it does not end."""
        if self.is_endless:
            return None
        if self.tail == "wrap":
            return self.start + max(0, self._axes.start_of_last - self._line) // self._width
        return self.start + self._first_steps + max(0, self._counts.start_of_last - self._counts.before(self.epoch + 1))

    def stretch(self, step: int) -> int:
        """How many batches from a step on are whole, of one epoch, and not the last of it. They come one after the other."""
        if self.tail == "wrap":
            epoch, position = self._axes.find(self._line + (step - self.start) * self._width)
            return max(0, self._axes.of(epoch) - position - 1) // self._width
        ahead, here = step - self.start, self._first_steps
        if ahead < here:
            return here - ahead - 1
        epoch, number = self._counts.find(ahead - here + self._counts.before(self.epoch + 1))
        return self._counts.of(epoch) - number - 1

    def end(self, step: int) -> tuple[int, int]:
        """Where the run is after the batch before a step."""
        return self.place(step - 1)[6:8] if step else (0, 0)

    def place(self, step: int) -> Place:
        """The batch of a step from ``start`` on."""
        if step < self.start:
            raise IndexError(f"this run begins at step {self.start}, where the batch size changed; got step {step}")
        if self.tail == "wrap":
            return self._place_on_line(step)
        ahead, here = step - self.start, self._first_steps
        if ahead < here:
            epoch, position, last = self.epoch, self.position + ahead * self._width, ahead == here - 1
        else:
            try:
                epoch, number = self._counts.find(ahead - here + self._counts.before(self.epoch + 1))
            except IndexError:
                raise IndexError(f"an epoch has no batch, so there is no step {step}") from None
            position, last = number * self._width, number == self._counts.of(epoch) - 1
        stride = self.stream.stride
        begin = self.position if epoch == self.epoch else 0
        stop = min(position + self._width, begin + (self._axes.of(epoch) - begin) // stride * stride)
        spans, padding = self._mine(epoch, position, stop)
        after = (epoch + 1, 0) if last else (epoch, stop)
        whole = WholeBatch((Span(epoch, range(position, stop, stride)),), self.batch_size) if self.is_dealt else None
        return Place(step, epoch, position, None, spans, padding, *after, whole)

    def resumed(self, step: int | None, epoch: int, position: int) -> "tuple[EpochSchedule, int]":
        """The schedule of a run that goes on at a position, and the step it is at there; ``step`` is the one that a state has."""
        axis = self.axis_of(epoch)
        if position and self.stream.needs_steps and self._is_over(axis, position):  # an amendment ends the epoch just here
            epoch, position, axis = epoch + 1, 0, self.axis_of(epoch + 1)
        if position > axis or (position and position == axis):
            if self.stream.needs_steps:  # with another batch size an amendment may end the epoch before
                raise self._no_batch_there(step, epoch, position)
            raise StateError(f"damaged state: position {position} of an epoch of {axis}")
        expected = self.first_step(epoch) + -(-position // max(1, self._width))
        for candidate in (expected, expected - 1):
            if candidate >= 0 and (step is None or candidate == step) and self._begins_at(candidate, epoch, position):
                return self, candidate
        anchor = expected if step is None else step
        at_a_start = position == 0 and anchor == self.first_step(epoch) and self.tail != "wrap"  # behind epochs without a batch
        if self.stream.needs_steps and not at_a_start:
            raise self._no_batch_there(step, epoch, position)
        return replace(self, start=anchor, epoch=epoch, position=position), anchor

    def _no_batch_there(self, step: int | None, epoch: int, position: int) -> StateMismatchError:
        return StateMismatchError(
            f"the state was saved at step {step}, position {position} of epoch {epoch}, where no batch of {self.batch_size} "
            "begins at that step: weights by step, amendments and whole batches need the batch size and tail of the run"
        )

    def _is_over(self, axis: int, position: int) -> bool:
        """Whether no batch of an epoch is left where one would begin."""
        left = axis - position
        return left == 0 or (left > 0 and position % self._width == 0 and self._steps(left) == 0)

    def _begins_at(self, step: int, epoch: int, position: int) -> bool:
        """Whether the batch of a step begins there."""
        if step == self.total:  # behind the last batch of a run that ends
            return self.end(step) == (epoch, position)
        try:
            place = self.place(step)
        except IndexError:
            return False
        return (place.epoch, place.position) == (epoch, position)

    def _mine(self, epoch: int, position: int, stop: int) -> tuple[tuple[Span, ...], int]:
        """This rank's samples of positions [position, stop) and, if batches are padded, what fills its part of the batch up."""
        stride, world = self.stream.stride, self.shard.world
        samples = self.shard.run(0, (stop - position) // stride)
        spans = [Span(epoch, range(position + samples.start * stride, max(position, stop - stride + 1), world * stride))]
        missing = self.batch_size // world - len(spans[0].run) if self.tail == "pad" else 0
        if missing:
            again = self.shard.run((stop - position) // stride, self.batch_size)
            number = self._axes.of(epoch) // stride
            spans += [Span(epoch, range(p % number * stride, p % number * stride + 1, stride)) for p in again]
        return tuple(spans), missing

    def _place_on_line(self, step: int) -> Place:
        begin = self._line + (step - self.start) * self._width
        end = begin + self._width
        try:
            is_last = self._axes.last == 0 and end == self._axes.start_of_last
            here, after = self._axes.find(begin), self._axes.end() if is_last else self._axes.find(end)
            spans = self._spans_on_line(begin, end, self.shard)
            whole = WholeBatch(self._spans_on_line(begin, end, Shard()), self.batch_size) if self.is_dealt else None
        except IndexError:
            raise IndexError(f"the data is empty, so there is no step {step}") from None
        return Place(step, *here, None, spans, 0, *after, whole)

    def _spans_on_line(self, begin: int, end: int, shard: Shard) -> tuple[Span, ...]:
        stride, world = self.stream.stride, shard.world
        spans: list[Span] = []
        at = begin + shard.run(0, self.batch_size).start * stride
        while at < end:
            epoch, position = self._axes.find(at)
            axis = self._axes.of(epoch)
            count = min(-(-(axis - position) // (stride * world)), -(-(end - at) // (stride * world)))
            spans.append(Span(epoch, range(position, min(position + count * stride * world, axis), stride * world)))
            at += count * stride * world
        return tuple(spans)


@dataclass(frozen=True)
class PhaseSchedule:
    """Batches whose shape changes from phase to phase, on one continuous line; the run ends with the last phase."""

    stream: Stream
    curriculum: Curriculum
    shard: Shard
    is_dealt: bool = False

    @classmethod
    def of(cls, stream: Stream, phases: Sequence[Phase], shard: Shard) -> "PhaseSchedule":
        """A schedule for phases; a mixture draws by their weights."""
        curriculum = Curriculum(phases, length=stream.elements)
        if not curriculum.phases:
            raise ValueError("a curriculum needs at least one phase, got none")
        phased = stream.with_phases(curriculum.phases)
        for phase in curriculum.phases:
            phased.sized(phase.seq_len)  # refuses lengths that it cannot have
            if phase.weights is not None and not stream.is_mixture:
                raise ValueError("a phase has weights, and the stream is not a mixture: leave them out")
        if stream.elements == 0 and len(curriculum) > 0:
            raise ValueError(f"the data is empty, so there is nothing for the {len(curriculum)} steps of the phases")
        for phase in curriculum.phases:
            if phase.batch_size % shard.world:
                raise ValueError(f"a batch of {phase.batch_size} cannot be divided among {shard.world} ranks")
        return cls(phased, curriculum, shard)

    @property
    def shapes(self) -> list[tuple[int, int | None]]:
        """Samples of the batches, and the length of each."""
        return [(phase.batch_size, phase.seq_len) for phase in self.curriculum.phases]

    @property
    def is_endless(self) -> bool:
        """A curriculum ends."""
        return False

    @cached_property
    def total(self) -> int:
        """Steps of all phases; fewer if the data of a mixture ends before them."""
        low, high = 0, len(self.curriculum)
        if not self.stream.counts_samples or self.curriculum.num_samples <= self.stream.axis:
            return high
        while low < high:  # the first step that needs a sample behind the last
            middle = (low + high) // 2
            place = self.curriculum.place(middle)
            inside = place.sample + self.curriculum.phases[place.phase].batch_size <= self.stream.axis
            low, high = (middle + 1, high) if inside else (low, middle)
        return low

    def first_step(self, epoch: int) -> int:
        """All phases are one epoch."""
        return 0 if epoch == 0 else self.total

    def epoch_at(self, step: int, epoch: int) -> int:
        """The epoch of the data."""
        return epoch

    def steps_in(self, epoch: int) -> int:
        """All phases are one epoch."""
        return self.total if epoch == 0 else 0

    def resumed(self, step: int | None, epoch: int, position: int) -> "tuple[PhaseSchedule, int]":
        """This schedule, and the step at a position; StateMismatchError if ``step``, that of a state, is at another."""
        step = self._step_at(epoch, position) if step is None else step
        if step > self.total:
            raise StateError(f"damaged state: step {step} of a curriculum of {self.total}")
        if (here := self.end(step) if step == self.total else self.place(step)[1:3]) != (epoch, position):
            raise StateMismatchError(f"step {step} of these phases stands at {here}, the state at {(epoch, position)}")
        return self, step

    def _step_at(self, epoch: int, position: int) -> int:
        axis = 0 if self.stream.counts_samples else self.stream.axis
        low, high = 0, self.total
        while low < high:
            middle = (low + high) // 2
            place = self.place(middle)
            is_before = place.epoch * axis + place.position < epoch * axis + position
            low, high = (middle + 1, high) if is_before else (low, middle)
        return low

    def end(self, step: int) -> tuple[int, int]:
        """Where the run is after the batch before a step."""
        return self.place(step - 1)[6:8] if step else (0, 0)

    def stretch(self, step: int) -> int:
        """Batches are looked at one by one."""
        return 0

    def step_of(self, epoch: int, position: int) -> int | None:
        """Not told: a position may come in several phases."""
        return None

    def samples_in(self, epoch: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Not told either."""
        return iter(())

    def place(self, step: int) -> Place:
        """The batch of a step."""
        found = self.curriculum.place(step)
        phase = self.curriculum.phases[found.phase]
        counts_samples = self.stream.counts_samples
        first, scale = (found.sample, 1) if counts_samples else (found.element, phase.seq_len)
        axis = max(1, self.stream.axis)
        end = first + phase.batch_size * scale
        line = range(first, end, scale)
        spans = self._spans(line, self.shard)
        whole = WholeBatch(self._spans(line, Shard()), phase.batch_size) if self.is_dealt else None
        here, after = ((0, first), (0, end)) if counts_samples else (divmod(first, axis), divmod(end, axis))
        return Place(step, *here, phase.seq_len, spans, 0, *after, whole)

    def _spans(self, line: range, shard: Shard) -> tuple[Span, ...]:
        """A rank's part of the samples that begin at places on the line of all epochs."""
        axis, counts_samples = max(1, self.stream.axis), self.stream.counts_samples
        at, by = line.start + shard.rank * line.step, line.step * shard.world
        spans: list[Span] = []
        while at < line.stop:  # rarely more than once: only where an epoch ends
            epoch, position = (0, at) if counts_samples else divmod(at, axis)
            left = line.stop - at if counts_samples else min(line.stop - at, axis - position)
            count = -(-left // by)
            spans.append(Span(epoch, range(position, position + (count - 1) * by + 1, by)))
            at += count * by
        return tuple(spans)


Schedule = EpochSchedule | PhaseSchedule


def make_schedule(stream: Stream, batch_size: int | None, phases: Sequence[Phase] | None, tail: str, shard: Shard) -> Schedule:
    """The schedule of a loader; ValueError if there would be nothing to load."""
    if (batch_size is None) == (phases is None):
        raise ValueError("a loader needs either a batch_size or phases")
    if phases is not None:
        return PhaseSchedule.of(stream, phases, shard)
    size = whole_number("batch_size", batch_size, least=1)  # type: ignore[arg-type]
    if size % shard.world:
        raise ValueError(f"batch_size is the global batch size: {size} cannot be divided among {shard.world} ranks")
    schedule = EpochSchedule(stream.for_batches(size, tail), size, tail, shard)
    first, axis = schedule.stream.axes[-1]
    if axis == 0 and first > 0 and not schedule.stream.is_finite:
        raise ValueError(
            f"from epoch {first} on an epoch has no samples, because an empty stream of the mixture has a weight then: give it 0"
        )
    if first > 0 and not schedule.is_endless and not schedule.stream.is_finite:
        raise ValueError(
            f"from epoch {first} on tail='drop' drops every epoch whole: it has {axis} samples, a batch {size}: "
            "use a smaller batch_size, other weights, or another tail"
        )
    if schedule.stream.axis > 0 and schedule.total == 0:
        if schedule.stream.num_samples > 0 and tail == "wrap":
            raise ValueError(
                f"the whole run has fewer samples than a batch of {size}, because of its caps: use a smaller batch_size"
            )
        if schedule.stream.num_samples > 0:
            raise ValueError(
                f"tail='drop' drops every epoch whole: it has {schedule.stream.num_samples} samples, a batch {size}: "
                "use a smaller batch_size, or another tail"
            )
        raise ValueError(
            f"an epoch has {schedule.stream.axis} tokens, fewer than the {schedule.stream.stride} of a sequence: "
            "use shorter sequences, or tail='wrap'"
        )
    return schedule
