"""Schedule: which positions of which epoch are in the batch of a step. Pure arithmetic, the same on every rank."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from penstock.order import Curriculum, Phase, Shard
from penstock.order.mixture import TAILS
from penstock.stream import Stream

__all__ = ["TAILS", "EpochSchedule", "PhaseSchedule", "Place", "Schedule", "Span"]


class Span(NamedTuple):
    """Positions of one epoch at which samples begin."""

    epoch: int
    run: range


class Place(NamedTuple):
    """The batch of a step: it begins at ``position`` of ``epoch``; ``spans`` are this rank's samples, of which the last ``padding``
    are there only to fill the batch up. After it, the run stands at (``next_epoch``, ``next_position``).
    ``seq_len`` is set where a phase says how long samples are.
    """

    step: int
    epoch: int
    position: int
    seq_len: int | None
    spans: tuple[Span, ...]
    padding: int
    next_epoch: int
    next_position: int

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
            return self.start + -(-(self._axes.before(epoch) - self._line) // self._width)
        return self.start + self._first_steps + self._counts.before(epoch) - self._counts.before(self.epoch + 1)

    def epoch_at(self, step: int, epoch: int) -> int:
        """The epoch of the batch of a step, where the run stands in ``epoch``: the next one, if too little is left of that."""
        is_over = step == self.start and epoch == self.epoch and self._first_steps == 0 and self.tail != "wrap"
        return epoch + 1 if is_over and self.is_endless else epoch

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.first_step(epoch + 1) - self.first_step(epoch)

    def step_of(self, epoch: int, position: int) -> int | None:
        """The step whose batch holds a position; None if no batch does, or one before this schedule starts."""
        if (epoch, position) < (self.epoch, self.position):
            return None
        if self.tail == "wrap":
            return self.start + (self._axes.before(epoch) + position - self._line) // self._width
        begin = self.position if epoch == self.epoch else 0
        number = (position - begin) // self._width
        return self.first_step(epoch) + number if number < self.steps_in(epoch) else None

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
        return Place(step, epoch, position, None, spans, padding, *after)

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
        stride, world = self.stream.stride, self.shard.world
        begin = self._line + (step - self.start) * self._width
        samples = self.shard.run(0, self.batch_size)
        spans: list[Span] = []
        at = begin + samples.start * stride
        end = begin + self._width
        try:
            here, after = self._axes.find(begin), self._axes.find(end)
            while at < end:
                epoch, position = self._axes.find(at)
                axis = self._axes.of(epoch)
                count = min(-(-(axis - position) // (stride * world)), -(-(end - at) // (stride * world)))
                spans.append(Span(epoch, range(position, min(position + count * stride * world, axis), stride * world)))
                at += count * stride * world
        except IndexError:
            raise IndexError(f"the data is empty, so there is no step {step}") from None
        return Place(step, *here, None, tuple(spans), 0, *after)


@dataclass(frozen=True)
class PhaseSchedule:
    """Batches whose shape changes from phase to phase, on one continuous line; the run ends with the last phase."""

    stream: Stream
    curriculum: Curriculum
    shard: Shard

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
                raise ValueError("a phase has weights, and the stream is no mixture: leave them out")
        if stream.elements == 0 and len(curriculum) > 0:
            raise ValueError(f"the data is empty, so there is nothing for the {len(curriculum)} steps of the phases")
        for phase in curriculum.phases:
            if phase.batch_size % shard.world:
                raise ValueError(f"a batch of {phase.batch_size} cannot be divided among {shard.world} ranks")
        return cls(phased, curriculum, shard)

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

    def place(self, step: int) -> Place:
        """The batch of a step."""
        found = self.curriculum.place(step)
        phase = self.curriculum.phases[found.phase]
        counts_samples = self.stream.counts_samples
        first, scale = (found.sample, 1) if counts_samples else (found.element, phase.seq_len)
        axis = max(1, self.stream.axis)
        end, by = first + phase.batch_size * scale, scale * self.shard.world
        at = first + self.shard.run(0, phase.batch_size).start * scale
        spans: list[Span] = []
        while at < end:  # rarely more than once: only where an epoch ends
            epoch, position = (0, at) if counts_samples else divmod(at, axis)
            left = end - at if counts_samples else min(end - at, axis - position)
            count = -(-left // by)
            spans.append(Span(epoch, range(position, position + (count - 1) * by + 1, by)))
            at += count * by
        here, after = ((0, first), (0, end)) if counts_samples else (divmod(first, axis), divmod(end, axis))
        return Place(step, *here, phase.seq_len, tuple(spans), 0, *after)


Schedule = EpochSchedule | PhaseSchedule
