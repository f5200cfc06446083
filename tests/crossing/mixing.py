"""The line of a mixture, epoch after epoch, counted out from ``docs/reference/order.md``: stages, caps, left-overs, amendments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tests.order.reference import UNCAPPED, Line, Stage, mixture_line

from penstock import _core
from penstock.order import Permutation
from penstock.order.permutation import Purpose, derive_root

LONGEST = 5_000_000
FAR = 400  # positions of an endless mixture that are looked at
ENDLESS = 1 << 60  # samples of an epoch that never ends: more


class AmendmentError(Exception):
    """An amendment that is refused."""


# A line


Period = tuple[int, Stage, list[list[tuple[int, int]]]]
"""The first draw of a period of a line, its stage, and of every slot of it the samples: stream and first element."""


def periods(line: Line, most: int) -> Iterator[Period]:
    """The periods of a line, those of an endless one up to ``most`` samples."""
    ends = [*(segment.start for segment in line.segments[1:]), line.draws]
    samples = 0
    for segment, end in zip(line.segments, ends, strict=False):
        stage = [stage for first, _, stage in line.starts if first <= segment.start][-1]
        if segment.period > LONGEST:
            raise OverflowError(f"a period of {segment.period} draws is not counted out one by one")
        for first in range(segment.start, end, segment.period):
            before = first - segment.start
            low = [0 if segment.counted else before * edge >> 63 for edge in segment.edges]
            edges = [
                edge if segment.counted else ((before + segment.period) * edge >> 63) - below
                for edge, below in zip(segment.edges, low, strict=True)
            ]
            slots = []
            for which in range(len(edges) - 1):
                element = segment.before[which] + (low[which + 1] - low[which]) * segment.unit
                for _ in range(edges[which], edges[which + 1]):
                    slots.append([(which, element + i * stage.seq_len) for i in range(stage.group)])
                    element += segment.unit
            assert len(slots) == segment.period
            yield first, stage, slots
            samples += len(slots) * stage.group
            if samples >= most and end > 1 << 40:
                return


def shuffled(found: Iterable[Period], root: int) -> Iterator[tuple[Stage, list[tuple[int, int]]]]:
    """The samples of every period in the order of an epoch."""
    for first, stage, slots in found:
        order = Permutation(len(slots), key=_core.absorb(root, first)).run(0, len(slots)).tolist()
        yield stage, [sample for slot in order for sample in slots[slot]]


# A run


class Regime(NamedTuple):
    """What holds from a sample of the run on: stages that begin there, and how many elements each stream gives at most in all."""

    start: int
    stages: tuple[Stage, ...]
    caps: tuple[int, ...]


class Rules(NamedTuple):
    """A mixture as its run follows from it. ``size`` and ``tail`` are those of the loader, 0 where nothing depends on them."""

    lengths: tuple[int, ...]
    stop: str
    period: int
    seed: int
    size: int
    tail: str
    has_rests: bool  # whether what fills no batch of its own comes last
    is_single: bool  # whether there is one epoch only: phases
    regimes: tuple[Regime, ...]


Late = list[tuple[int, list[int]]]
"""Of every stream the number from which on elements are late, and those elements."""


class Part(NamedTuple):
    """A part of an epoch: a line with its left-overs, and what is late in it."""

    line: Line
    rests: list[int]
    late: Late


@dataclass
class Epoch:
    """One epoch: its parts (each is cut where the next begins), and what every stream gave before it and gives in it."""

    parts: list[Part]
    length: int
    taken: list[int]
    counts: list[int]
    clock: int
    is_over: bool  # whether every stream that has a weight at its end has reached its cap
    late: Late
    drawn: list[tuple[int, int]]  # what came before the last part

    @property
    def is_endless(self) -> bool:
        return self.length > ENDLESS


class Course:
    """The epochs of a run, each laid out when it is asked for."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._epochs: list[Epoch] = []
        self._lines: dict[int, list[tuple[int, int]]] = {}

    def epoch(self, number: int) -> Epoch:
        """AmendmentError where an amendment does not fit the run."""
        while len(self._epochs) <= number:
            self._epochs.append(self._lay(len(self._epochs)))
        return self._epochs[number]

    def line(self, number: int) -> list[tuple[int, int]]:
        """Stream and element on the stream's endless line at every position; of an endless epoch the first."""
        if number not in self._lines:
            epoch = self.epoch(number)
            found = list(epoch.drawn)
            for _, samples in self._samples(epoch.parts[-1], number):
                found += [(k, self._element(epoch.parts[-1].late, k, epoch.taken[k] + local)) for k, local in samples]
            if not epoch.is_endless:
                assert len(found) == epoch.length
                assert len(set(found)) == len(found)
            self._lines[number] = found
        return self._lines[number]

    def until_alike(self, most: int = 600) -> list[Epoch]:
        """The epochs up to one like which all later ones are: behind the last stage, amendment and cap. Or up to an empty one."""
        last = self.rules.regimes[-1]
        start = last.start + sum((stage.draws or 0) * stage.group for stage in last.stages[:-1])
        found: list[Epoch] = []
        while len(found) < most:
            epoch = self.epoch(len(found))
            found.append(epoch)
            if epoch.length == 0 or epoch.is_endless or self.rules.is_single or self.advance(epoch.length) == 0:
                break
            stage = last.stages[-1]
            unit = 1 if self.rules.has_rests else stage.group
            waiting = (
                weight and taken + unit <= cap < UNCAPPED
                for weight, taken, cap in zip(stage.weights, epoch.taken, last.caps, strict=True)
            )
            if epoch.clock >= start and not any(waiting):
                break
        return found

    def advance(self, length: int) -> int:
        """Samples by which an epoch takes the clock of the run on."""
        size, tail = self.rules.size, self.rules.tail
        if tail == "wrap" or not size or self.rules.is_single:
            return length
        return (length if tail == "drop" else length + size - 1) // size * size

    def _regime(self, clock: int) -> Regime:
        return [regime for regime in self.rules.regimes if regime.start <= clock][-1]

    def _lay(self, number: int) -> Epoch:
        rules, sets = self.rules, range(len(self.rules.lengths))
        taken, clock, late = [0 for _ in sets], 0, [(0, list[int]()) for _ in sets]
        if number:
            before = self._epochs[number - 1]
            taken = [had + own for had, own in zip(before.taken, before.counts, strict=True)]
            clock, late = before.clock + self.advance(before.length), before.late
        found = Epoch([], 0, taken, [], clock, False, late, [])
        given, draws = [0 for _ in sets], 0
        while True:
            begin = len(found.drawn)
            regime = self._regime(clock + begin)
            stages = _left(regime.stages, clock + begin - regime.start)
            caps = tuple(cap if cap == UNCAPPED else max(0, cap - had) for cap, had in zip(regime.caps, taken, strict=True))
            line = _laid(rules.lengths, stages, rules.stop, rules.period, caps, tuple(given), draws, begin)
            part = Part(line, self._rests(line, caps), found.late)
            found.parts.append(part)
            found.length = line.samples + sum(part.rests)
            found.counts = [own + rest for own, rest in zip(line.given, part.rests, strict=True)]
            found.is_over = self._is_capped(part, caps)
            coming = [other for other in rules.regimes if other.start > clock + begin]
            if not coming:
                return found
            if coming[0].start - clock >= self.advance(found.length):
                if rules.is_single or self.advance(found.length) == 0:
                    raise AmendmentError("the run ends")
                return found
            draws += self._cut(found, coming[0], given, number)

    def _cut(self, epoch: Epoch, regime: Regime, given: list[int], number: int) -> int:
        """End the last part of an epoch where another regime begins. ``given`` gets what comes before; the draws of that."""
        part, cut, sets = epoch.parts[-1], regime.start - epoch.clock, range(len(self.rules.lengths))
        draws, whole, missing = 0, list(given), [list[int]() for _ in sets]
        for stage, samples in self._samples(part, number):
            here = samples[: max(0, cut - len(epoch.drawn))]
            if not here:
                break
            if len(here) % stage.group:
                raise AmendmentError("would begin within a batch")
            for place, (k, local) in enumerate(samples):
                elements = [self._element(part.late, k, epoch.taken[k] + local + i) for i in range(stage.seq_len)]
                whole[k] += stage.seq_len
                if place < len(here):
                    epoch.drawn.append((k, elements[0]))
                    given[k] += stage.seq_len
                else:
                    missing[k] += elements
            draws += len(here) // stage.group
        behind = [part.late[k][1][max(0, epoch.taken[k] + whole[k] - part.late[k][0]) :] for k in sets]
        epoch.late = [(epoch.taken[k] + given[k], sorted(missing[k] + behind[k])) for k in sets]
        for unit in {stage.group * stage.seq_len for stage in regime.stages}:
            if any(run % unit for _, elements in epoch.late for run in _runs(elements)):
                raise AmendmentError("leaves pieces")
        return draws

    def _samples(self, part: Part, number: int) -> Iterator[tuple[Stage, list[tuple[int, int]]]]:
        """The samples of a part, period by period, with local elements; the left-overs last."""
        root = derive_root(self.rules.seed, number, Purpose.MIXTURE)
        yield from shuffled(periods(part.line, FAR), root)
        items = [[(k, part.line.given[k] + i)] for k, rest in enumerate(part.rests) for i in range(rest)]
        if items:
            yield from shuffled([(part.line.draws, Stage(None, [], 1, 1), items)], root)

    @staticmethod
    def _element(late: Late, which: int, number: int) -> int:
        first, elements = late[which]
        return elements[number - first] if 0 <= number - first < len(elements) else number

    def _rests(self, line: Line, caps: tuple[int, ...]) -> list[int]:
        """Of every stream that has a weight at the end, what does not fill a batch of its own."""
        if not self.rules.has_rests:
            return [0 for _ in caps]
        last = line.starts[-1][2]
        ends = [min(length, cap) for length, cap in zip(self.rules.lengths, caps, strict=True)]
        rests = [end - given for end, given in zip(ends, line.given, strict=True)]
        return [rest if 0 < rest < last.group and weight else 0 for rest, weight in zip(rests, last.weights, strict=True)]

    def _is_capped(self, part: Part, caps: tuple[int, ...]) -> bool:
        stage = part.line.starts[-1][2]
        unit = 1 if any(part.rests) else stage.group * stage.seq_len
        given = [own + rest for own, rest in zip(part.line.given, part.rests, strict=True)]
        return min(caps) < UNCAPPED and all(
            cap - own < unit for cap, own, weight in zip(caps, given, stage.weights, strict=True) if weight
        )


def _runs(elements: list[int]) -> list[int]:
    """How many neighbours there are each time."""
    ends = [i + 1 for i, (one, other) in enumerate(pairwise(elements)) if other != one + 1]
    return [high - low for low, high in pairwise([0, *ends, len(elements)])] if elements else []


def _left(stages: tuple[Stage, ...], passed: int) -> tuple[Stage, ...]:
    """What is left of stages after a number of samples."""
    left = list(stages)
    while left[0].draws is not None and left[0].draws * left[0].group <= passed and len(left) > 1:
        passed -= left[0].draws * left[0].group
        left.pop(0)
    if left[0].draws is not None:
        left[0] = left[0]._replace(draws=max(0, left[0].draws - passed // left[0].group))
    return tuple(left)


def _laid(*given: Any) -> Line:
    lengths, stages, *rest = given
    return _line(lengths, tuple(stage._replace(weights=tuple(stage.weights)) for stage in stages), *rest)


@lru_cache(256)
def _line(
    lengths: tuple[int, ...],
    stages: tuple[Stage, ...],
    stop: str,
    period: int,
    caps: tuple[int, ...],
    given: tuple[int, ...],
    draws: int,
    samples: int,
) -> Line:
    return mixture_line(lengths, stages, stop, period, caps, Line(list(given), draws=draws, samples=samples))
