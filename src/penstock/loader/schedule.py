"""Schedule: which positions of which epoch are in the batch of a step. Pure arithmetic, the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from penstock.order import Curriculum, Phase, Shard
from penstock.stream import Stream

__all__ = ["TAILS", "EpochSchedule", "PhaseSchedule", "Place", "Schedule", "Span"]

TAILS = ("keep", "drop", "pad", "wrap")


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

    @property
    def _width(self) -> int:
        """Positions of a global batch."""
        return self.batch_size * self.stream.stride

    def _steps(self, positions: int) -> int:
        """Batches in so many positions of one epoch."""
        samples = positions // self.stream.stride
        return samples // self.batch_size if self.tail == "drop" else -(-samples // self.batch_size)

    @property
    def _axis(self) -> int:
        """Positions of an epoch that are used: what does not fill a sample is not, unless the next epoch goes on with it."""
        return self.stream.axis if self.tail == "wrap" else len(self.stream) * self.stream.stride

    @property
    def _first_steps(self) -> int:
        """Batches of the epoch in which this schedule starts."""
        return self._steps(self.stream.axis - self.position)

    def first_step(self, epoch: int) -> int:
        """The step with which an epoch begins (the one at which this schedule starts, for the epoch in which it does)."""
        ahead = epoch - self.epoch
        if self.tail == "wrap":
            return self.start + max(0, -(-(ahead * self._axis - self.position) // self._width)) if self._axis else self.start
        if ahead <= 0:
            return self.start
        return self.start + self._first_steps + (ahead - 1) * self._steps(self._axis)

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.first_step(epoch + 1) - self.first_step(epoch)

    def step_of(self, epoch: int, position: int) -> int | None:
        """The step whose batch holds a position; None if no batch does, or one before this schedule starts."""
        if (epoch, position) < (self.epoch, self.position):
            return None
        if self.tail == "wrap":
            line = (epoch - self.epoch) * self._axis + position - self.position
            return self.start + line // self._width
        begin = self.position if epoch == self.epoch else 0
        number = (position - begin) // self._width
        return self.first_step(epoch) + number if number < self.steps_in(epoch) else None

    @property
    def is_endless(self) -> bool:
        """Whether there is always a next batch: not if an epoch has none."""
        return self._steps(self._axis) > 0 or (self.tail == "wrap" and self._axis > 0)

    @property
    def total(self) -> int | None:
        """Steps of the whole run; None if it does not end."""
        return None if self.is_endless else self.start + self._first_steps

    def stretch(self, step: int) -> int:
        """How many batches from a step on are whole, of one epoch, and not the last of it. They lie one after the other."""
        if self.tail == "wrap":
            position = (self.epoch * self._axis + self.position + (step - self.start) * self._width) % max(1, self._axis)
            return max(0, self._axis - position - 1) // self._width
        ahead, here = step - self.start, self._first_steps
        if ahead < here:
            return here - ahead - 1
        each = self._steps(self._axis)
        return each - (ahead - here) % each - 1 if each else 0

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
            each = self._steps(self._axis)
            if each == 0:
                raise IndexError(f"an epoch has no batch, so there is no step {step}")
            turn, number = divmod(ahead - here, each)
            epoch, position, last = self.epoch + 1 + turn, number * self._width, number == each - 1
        stride = self.stream.stride
        begin = self.position if epoch == self.epoch else 0
        stop = min(position + self._width, begin + (self.stream.axis - begin) // stride * stride)
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
            number = len(self.stream)
            spans += [Span(epoch, range(p % number * stride, p % number * stride + 1, stride)) for p in again]
        return tuple(spans), missing

    def _place_on_line(self, step: int) -> Place:
        stride, axis = self.stream.stride, self._axis
        if axis == 0:
            raise IndexError(f"the data is empty, so there is no step {step}")
        begin = self.epoch * axis + self.position + (step - self.start) * self._width
        samples = self.shard.run(0, self.batch_size)
        spans: list[Span] = []
        at = begin + samples.start * stride
        end = begin + self._width
        while at < end:
            epoch, position = divmod(at, axis)
            count = min(-(-(axis - position) // (stride * self.shard.world)), -(-(end - at) // (stride * self.shard.world)))
            jump = count * stride * self.shard.world
            spans.append(Span(epoch, range(position, min(position + jump, axis), stride * self.shard.world)))
            at += jump
        after = divmod(end, axis)
        return Place(step, begin // axis, begin % axis, None, tuple(spans), 0, *after)


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
        if stream.elements == 0 and len(curriculum) > 0:
            raise ValueError(f"the data is empty, so there is nothing for the {len(curriculum)} steps of the phases")
        for phase in curriculum.phases:
            if phase.batch_size % shard.world:
                raise ValueError(f"a batch of {phase.batch_size} cannot be divided among {shard.world} ranks")
        return cls(stream.with_phases(curriculum.phases), curriculum, shard)

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
