"""The arithmetic of the order, a second time: plain Python, written from the specification, never calling the native code.

Slow and simple on purpose. The only vectorised parts are the controls of the battery, at the end.
"""

import decimal
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, floor, gcd, isqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

WORD = 2**64
HALF_WORD = 2**32
GOLDEN = 0x9E3779B97F4A7C15
TABLE_LIMIT = 65_536
ROUNDS = 8
MULTIPLIER_1 = 0x9E3779B1
MULTIPLIER_2 = 0x85EBCA6B


# --- keys -----------------------------------------------------------------------------------------------------------------------


def finalize(word: int) -> int:
    """The SplitMix64 finalizer."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def absorb(state: int, word: int) -> int:
    """Mix one more word into a hash."""
    return finalize(((state ^ word) + GOLDEN) % WORD)


def derive_root(seed: int, epoch: int, purpose: int) -> int:
    """The key of a family of decisions."""
    return absorb(absorb(absorb(0, seed), epoch), purpose)


def derive_key(seed: int, epoch: int, purpose: int, number: int = 0) -> int:
    """The key of one decision."""
    return absorb(derive_root(seed, epoch, purpose), number)


# --- a permutation of at most 65,536: Fisher-Yates ------------------------------------------------------------------------------


def below(bound: int, bits: int, first: int, redraw_key: int) -> int:
    """Lemire's unbiased integer below bound from a word of so many bits; a refused word is replaced by hashes of the attempt."""
    product, attempt = first * bound, 0
    while product % 2**bits < 2**bits % bound:
        attempt += 1
        product = (absorb(redraw_key, attempt) >> (64 - bits)) * bound
    return product >> bits


def fisher_yates(n: int, key: int) -> list[int]:
    """Swap place i with a place at most i, for i = n - 1 down to 1; draws 2h and 2h + 1 are the low and high half of word h."""
    table = list(range(n))
    for i in range(n - 1, 0, -1):
        word = finalize((key + (i // 2 + 1) * GOLDEN) % WORD)
        draw = word % HALF_WORD if i % 2 == 0 else word // HALF_WORD
        j = below(i + 1, 32, draw, absorb(key, i))
        table[i], table[j] = table[j], table[i]
    return table


# --- a permutation of more: Feistel on Z_a x Z_b --------------------------------------------------------------------------------


def feistel_sides(n: int) -> tuple[int, int]:
    """a = ceil(sqrt(n)) and b = ceil(n / a), in exact integers."""
    a = isqrt(n - 1) + 1
    return a, -(-n // a)


def round_value(half: int, key: int, number: int, modulus: int) -> int:
    """The round function, scaled to [0, modulus)."""
    word = absorb(key, number)
    z = (half ^ (word % HALF_WORD)) * MULTIPLIER_1 % HALF_WORD
    z ^= z >> 16
    z = (z ^ (word // HALF_WORD)) * MULTIPLIER_2 % HALF_WORD
    return z * modulus // HALF_WORD


def feistel_forward(n: int, key: int, position: int, rounds: int = ROUNDS) -> int:
    """The image of one position."""
    a, b = feistel_sides(n)
    while True:
        left, right = divmod(position, b)
        for number in range(rounds):
            if number % 2 == 0:
                right = (right + round_value(left, key, number, b)) % b
            else:
                left = (left + round_value(right, key, number, a)) % a
        position = left * b + right
        if position < n:
            return position


def feistel_inverse(n: int, key: int, index: int, rounds: int = ROUNDS) -> int:
    """The position of one image."""
    a, b = feistel_sides(n)
    while True:
        left, right = divmod(index, b)
        for number in reversed(range(rounds)):
            if number % 2 == 0:
                right = (right - round_value(left, key, number, b)) % b
            else:
                left = (left - round_value(right, key, number, a)) % a
        index = left * b + right
        if index < n:
            return index


_table = lru_cache(16)(fisher_yates)  # mixtures ask for one place of the same table after the other


def permutation(n: int, key: int, positions: Sequence[int] | None = None) -> list[int]:
    """The images of some positions, or of all."""
    wanted = range(n) if positions is None else positions
    if n <= TABLE_LIMIT:
        table = _table(n, key)
        return [table[position] for position in wanted]
    return [feistel_forward(n, key, position) for position in wanted]


def permutation_inverse(n: int, key: int, image: int) -> int:
    """The position of one image."""
    return _table(n, key).index(image) if n <= TABLE_LIMIT else feistel_inverse(n, key, image)


# --- the orders -----------------------------------------------------------------------------------------------------------------


class Geometry(NamedTuple):
    """The shape of a block shuffle."""

    n: int
    block: int
    window: int
    lanes: int


def block_shuffle(geometry: Geometry, sequence_key: int, group_root: int) -> list[int]:
    """All ids of an epoch, laid out literally: blocks dealt to lanes, groups permuted, lanes read in turn, then the tail."""
    n, block, window, lanes = geometry
    blocks = [list(range(first, min(first + block, n))) for first in range(0, n, block)]
    sequence = permutation(len(blocks), sequence_key)
    lane_records = []
    for lane in range(lanes):
        numbers = sequence[lane::lanes]
        records = []
        for group, first in enumerate(range(0, len(numbers), window)):
            members = [blocks[number] for number in numbers[first : first + window]]
            short = min(range(len(members)), key=lambda q: len(members[q]))
            if len(members[short]) < block:  # the short block changes places with the last of its group
                members[short], members[-1] = members[-1], members[short]
            together = [record for member in members for record in member]
            order = permutation(len(together), absorb(group_root, group * lanes + lane))
            records += [together[item] for item in order]
        lane_records.append(records)
    even = min(len(records) for records in lane_records)
    tail = [record for records in lane_records for record in records[even:]]
    return _in_turn([records[:even] for records in lane_records]) + _in_turn(_cut_evenly(tail, lanes))


def _cut_evenly(items: list[int], parts: int) -> list[list[int]]:
    """Runs of equal length; where that does not come out, the first runs have one more."""
    length, longer = divmod(len(items), parts)
    ends = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[low:high] for low, high in pairwise(ends)]


def _in_turn(runs: list[list[int]]) -> list[int]:
    """One item of each run, then the next of each; runs that have ended are passed over."""
    return [run[row] for row in range(max(map(len, runs))) for run in runs if row < len(run)]


class Packing(NamedTuple):
    """How documents are packed; ``window`` in blocks, ``seed`` -1 for none."""

    length: int
    seed: int
    block: int
    window: int
    split: str = "fit"
    extra: int = 0
    multiple: int = 1
    drops: bool = False


Piece = tuple[int, int, int]
"""Document, offset in it, tokens."""


def pack_epoch(lengths: Sequence[int], packing: Packing, epoch: int) -> list[list[Piece]]:
    """All sequences of an epoch, each with its pieces, laid out literally."""
    length, seed, block, window, split, extra, multiple, _ = packing
    if sum(lengths) + extra * len(lengths) == 0:
        return []
    documents = [(number, tokens + extra) for number, tokens in enumerate(lengths)]
    blocks = [documents[first : first + block] for first in range(0, len(documents), block)]
    if seed >= 0:
        order = permutation(len(blocks), derive_key(seed, 0 if split == "never" else epoch, 3))
        blocks = [blocks[number] for number in order]
    groups = [[one for each in blocks[first : first + window] for one in each] for first in range(0, len(blocks), window)]
    made: list[list[list[Piece]]] = []
    before = 0
    for group in groups:
        size = sum(_room_of(tokens, multiple) for _, tokens in group)
        most = ceil(Fraction(before + size, length)) - ceil(Fraction(before, length)) + 1
        before += size
        made.append(pack_group(group, packing, most))
    numbers = list(range(len(groups)))
    if seed >= 0:
        made = [[plan[b] for b in permutation(len(plan), derive_key(seed, epoch, 11, g))] for g, plan in enumerate(made)]
        if split == "never":
            numbers = permutation(len(groups), derive_key(seed, epoch, 12))
    return [sequence for number in numbers for sequence in made[number]]


def pack_group(group: Sequence[tuple[int, int]], packing: Packing, most: int) -> list[list[Piece]]:
    """The plan of a group of (document, tokens)."""
    if packing.split == "always":
        return _chunk_group(group, packing, most)
    length, multiple = packing.length, packing.multiple
    pieces: list[Piece] = []
    for number, tokens in group:
        if packing.split == "never" and tokens > length:
            pieces += [] if packing.drops else [(number, 0, length)]
        else:
            pieces += [(number, offset, min(length, tokens - offset)) for offset in range(0, tokens, length)]
    pieces.sort(key=lambda piece: -_room_of(piece[2], multiple))  # stable
    placed: list[tuple[int, Piece]] = []
    room: list[int] = []
    since: list[int] = []  # when each sequence got the room that it has

    def place(sequence: int, piece: Piece) -> None:
        room[sequence] -= _room_of(piece[2], multiple)
        since[sequence] = len(placed)
        placed.append((sequence, piece))

    left = []
    for piece in pieces:
        fitting = [b for b in range(len(room)) if room[b] >= _room_of(piece[2], multiple)]
        if fitting:
            place(min(fitting, key=lambda b: (room[b], -since[b])), piece)
        elif packing.split == "never" or len(room) < most:
            room.append(length)
            since.append(0)
            place(len(room) - 1, piece)
        else:
            left.append(piece)
    for number, offset, count in left:
        while count > 0:
            largest = max(range(len(room)), key=lambda b: (room[b], since[b]))
            part = min(room[largest], count)
            place(largest, (number, offset, part))
            offset, count = offset + part, count - part
    wanted = len(room) if packing.split == "never" else most
    return _filled(placed, len(room), wanted)


def _filled(placed: list[tuple[int, Piece]], opened: int, most: int) -> list[list[Piece]]:
    """Sequences that stayed empty take pieces that were placed last."""
    held = [sum(1 for b, _ in placed if b == sequence) for sequence in range(opened)]
    for number in reversed(range(len(placed))):
        sequence, piece = placed[number]
        if opened < most and held[sequence] > 1:
            held[sequence] -= 1
            placed[number] = (opened, piece)
            opened += 1
    return [[piece for b, piece in placed if b == sequence] for sequence in range(most)]


def _chunk_group(group: Sequence[tuple[int, int]], packing: Packing, most: int) -> list[list[Piece]]:
    """One after the other, cut where sequences end."""
    sequences: list[list[Piece]] = [[] for _ in range(most)]
    end = 0
    for number, tokens in group:
        offset = 0
        while offset < tokens:
            count = min(tokens - offset, packing.length - end % packing.length)
            sequences[end // packing.length].append((number, offset, count))
            end += _room_of(count, packing.multiple)
            offset += count
    return sequences


def _room_of(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def random_draw(n: int, key: int, position: int) -> int:
    """A draw with replacement: Lemire's method on 64-bit words."""
    return below(n, 64, finalize((key + (position + 1) * GOLDEN) % WORD), absorb(key, position))


def sliding(n: int, window: int, stride: int, epoch: int, position: int) -> int:
    """The id at a position of windows that slide over a circle."""
    windows = -(-n // stride)
    return ((epoch * windows + position // window) * stride + position % window) % n


def systematic(n: int, size: int, offset: int, place: int) -> int:
    """The systematic sample's element at a place."""
    return -((offset - n * (place + 1)) // size) - 1


@dataclass(frozen=True)
class Segment:
    """A stretch of a mixture's line, as in native/core/mixture.h."""

    start: int
    period: int
    unit: int
    counted: bool
    edges: tuple[int, ...]
    before: tuple[int, ...]


def mixture_at(segments: Sequence[Segment], root: int, position: int) -> tuple[int, int]:
    """The data set and the element at one position of a mixture's line."""
    segment = max((s for s in segments if s.start <= position), key=lambda s: s.start)
    from_ = (position - segment.start) // segment.period * segment.period
    first = segment.start + from_
    if segment.counted:
        edges, given = list(segment.edges), [0] * len(segment.before)
    else:
        starts = [from_ * edge // 2**63 for edge in segment.edges]
        edges = [(from_ + segment.period) * edge // 2**63 - start for edge, start in zip(segment.edges, starts, strict=True)]
        given = [high - low for low, high in pairwise(starts)]
    [slot] = permutation(segment.period, absorb(root, first), [position - first])
    [which] = [k for k in range(len(given)) if edges[k] <= slot < edges[k + 1]]
    return which, segment.before[which] + (given[which] + slot - edges[which]) * segment.unit


# --- the plan of a mixture ------------------------------------------------------------------------------------------------------

MOST = 2**63 - 1


class Shape(NamedTuple):
    """A phase: batches of one shape."""

    steps: int
    batch_size: int
    seq_len: int
    weights: Sequence[float] | None = None


class Stage(NamedTuple):
    """A stretch with constant weights: so many draws (None: without end) of ``group`` samples of ``seq_len`` elements."""

    draws: int | None
    weights: list[Fraction]
    group: int
    seq_len: int


@dataclass
class Line:
    """The line of a mixture: its segments, (first draw, first sample, stage) of every stage reached, and what it has come to."""

    given: list[int]
    segments: list[Segment] = field(default_factory=list)
    starts: list[tuple[int, int, Stage]] = field(default_factory=list)
    draws: int = 0
    samples: int = 0

    def add(self, stage: Stage, period: int, edges: list[int], counts: list[int], counted: bool) -> None:
        """One more segment, unless it is empty."""
        if sum(counts) > 0:
            unit = stage.group * stage.seq_len
            self.segments.append(Segment(self.draws, period, unit, counted, tuple(edges), tuple(self.given)))
            self.given = [given + unit * count for given, count in zip(self.given, counts, strict=True)]
            self.draws += sum(counts)
            self.samples += sum(counts) * stage.group


def exact(weights: Sequence[float]) -> list[Fraction]:
    """Numbers as the decimals they are written as."""
    return [Fraction(str(weight)) for weight in weights]


def stages_by_step(pairs: Sequence[tuple[int, Sequence[float]]], batch_size: int, group: int) -> list[Stage]:
    """The stages of weights by step."""
    ends = [step for step, _ in pairs[1:]]
    draws = [(high - low) * batch_size // group for (low, _), high in zip(pairs, ends, strict=False)]
    return [Stage(n, exact(weights), group, 1) for n, (_, weights) in zip([*draws, None], pairs, strict=True)]


def stages_by_phase(phases: Sequence[Shape], weights: Sequence[float], by_batch: bool) -> list[Stage]:
    """The stages of phases; ``weights`` are for phases that have none."""
    stages = []
    for steps, batch_size, seq_len, own in phases:
        group = batch_size if by_batch else 1
        stages.append(Stage(steps * batch_size // group, exact(weights if own is None else own), group, seq_len))
    return stages


def mixture_line(
    lengths: Sequence[int],
    stages: Sequence[Stage],
    stop: str,
    period: int,
    caps: Sequence[int] | None = None,
    line: Line | None = None,
) -> Line:
    """The whole line, laid out as the specification says; or the rest of one. ``caps`` are those of this epoch."""
    line = line or Line([0] * len(lengths))
    caps = caps or [UNCAPPED] * len(lengths)
    for number, stage in enumerate(stages):
        line.starts.append((line.draws, line.samples, stage))
        later = {k for after in stages[number + 1 :] for k, weight in enumerate(after.weights) if weight > 0}
        if _lay_stage(line, lengths, stage, later, stop, period, caps):
            break
    return line


UNCAPPED = 2**90
"""The cap of a data set that has none."""


def _lay_stage(
    line: Line, lengths: Sequence[int], stage: Stage, later: set[int], stop: str, period: int, caps: Sequence[int]
) -> bool:
    """Lay one stage; True if the line ends there."""
    sets, unit, left = range(len(lengths)), stage.group * stage.seq_len, stage.draws
    while left is None or left > 0:
        rest = [max(0, lengths[k] - line.given[k]) for k in sets]
        room, need = [r // unit for r in rest], [-(-r // unit) for r in rest]
        free = [max(0, caps[k] - line.given[k]) // unit for k in sets]
        weights = [stage.weights[k] if free[k] > 0 else Fraction(0) for k in sets]
        if stop == "all_exhausted_without_replacement":
            weights = [weights[k] if room[k] > 0 else Fraction(0) for k in sets]
        if sum(weights) == 0:
            return True
        piece = _Piece([weight / sum(weights) for weight in weights], period)
        w, active = piece.w, piece.active
        is_capped = any(caps[k] < UNCAPPED for k in active)
        if stop == "forever":
            bound = min((MOST - line.samples) // stage.group, (MOST - max(line.given)) // unit)
            most = bound if left is None else min(left, bound)
            if is_capped and piece.to_first(free, most):
                draws = piece.lay(line, stage)
                left = None if left is None else left - draws
                continue
            piece.to_the_end(most, free if is_capped else None)
            piece.lay(line, stage)
            return left is None or bound < left
        room, need = [min(r, f) for r, f in zip(room, free, strict=True)], [min(n, f) for n, f in zip(need, free, strict=True)]
        if stop == "all_exhausted":
            time = max(need[k] / w[k] for k in active)
            piece.whole = floor(time) // piece.period
            q = piece.given()
            piece.counts = [max(0, floor(time * w[k]) - q[k], need[k] - q[k] if k in active else 0) for k in sets]
            stage_first = any(need[k] > 0 for k in later if k not in active)
        else:
            time = min(room[k] / w[k] for k in active)
            piece.whole = piece.fit(room)
            q = piece.given()
            piece.counts = [min(room[k] - q[k], max(0, floor(time * w[k]) - q[k])) for k in sets]
            stage_first = left is not None and time >= left
        draws = piece.whole * piece.period + sum(piece.counts)
        is_late = left is not None and (stage_first or draws > left)
        if stop == "all_exhausted" and is_capped and (is_late or min(free[k] / w[k] for k in active) < time):
            is_late = not piece.to_first(free, left)
            goes_on = True
        else:
            goes_on = stop == "all_exhausted_without_replacement"
        if is_late:
            piece.to_the_end(left, room if stop != "all_exhausted" else free if is_capped else None)
            piece.lay(line, stage)
            return False
        draws = piece.lay(line, stage)
        if stop == "first_exhausted" and is_capped:
            goes_on = all(lengths[k] - line.given[k] >= unit for k in active)
        if not goes_on:
            return True
        left = None if left is None else left - draws
    return False


class _Piece:
    """Whole periods with the shares w, and then one with counts of its own."""

    def __init__(self, w: list[Fraction], period: int) -> None:
        self.w, self.active = w, [k for k, share in enumerate(w) if share > 0]
        sums = list(accumulate(w, initial=Fraction(0)))
        self.edges = [ceil(part * 2**63) for part in sums]
        self.period = max(period, ceil(1 / min(w[k] for k in self.active)))
        uneven = any((self.period * part).denominator != 1 for part in sums)
        if uneven and any(self.period * (self.edges[k + 1] - self.edges[k]) < 2**63 for k in self.active):
            self.period += 1
        self.whole = 0
        self.counts = [0] * len(w)

    def quota(self, k: int, periods: int) -> int:
        t = periods * self.period
        return t * self.edges[k + 1] // 2**63 - t * self.edges[k] // 2**63

    def given(self) -> list[int]:
        return [self.quota(k, self.whole) for k in range(len(self.w))]

    def fit(self, room: list[int]) -> int:
        """The most periods in which nobody exceeds its room: the quotas never fall, so it may be searched for."""
        many = 2**62
        return min(bisect_right(range(many), room[k], hi=many, key=lambda n, k=k: self.quota(k, n)) - 1 for k in self.active)

    def to_the_end(self, left: int, room: list[int] | None) -> None:
        """Exactly ``left`` draws: by largest remainder."""
        sets = range(len(self.w))
        self.whole = left // self.period if room is None else min(left // self.period, self.fit(room))
        q = self.given()
        limit = [left if room is None else room[k] - q[k] for k in sets]
        target = [left * self.w[k] - q[k] for k in sets]
        self.counts = counts = [min(limit[k], max(0, floor(target[k]))) for k in sets]
        wanted = left - self.whole * self.period
        turn = sorted(self.active, key=lambda k: (counts[k] - target[k], k))
        while sum(counts) < wanted:
            for k in turn:
                counts[k] += sum(counts) < wanted and counts[k] < limit[k]
        while sum(counts) > wanted:
            for k in reversed(turn):
                counts[k] -= sum(counts) > wanted and counts[k] > 0

    def to_first(self, room: list[int], left: int | None) -> bool:
        """Up to the point where the first data set has given what it may; False if ``left`` draws end before."""
        time = min(room[k] / self.w[k] for k in self.active)
        self.whole = self.fit(room)
        q = self.given()
        self.counts = [min(room[k] - q[k], max(0, floor(time * self.w[k]) - q[k])) for k in range(len(q))]
        return left is None or (time < left and self.whole * self.period + sum(self.counts) <= left)

    def lay(self, line: Line, stage: Stage) -> int:
        before = line.draws
        line.add(stage, self.period, self.edges, self.given(), False)
        line.add(stage, sum(self.counts), [0, *accumulate(self.counts)], self.counts, True)
        return line.draws - before


def lay_rest(line: Line, lengths: Sequence[int]) -> None:
    """Whole batches without replacement: what fills no batch of its own comes last, one by one."""
    last = line.starts[-1][2]
    rests = [length - given if weight else 0 for length, given, weight in zip(lengths, line.given, last.weights, strict=True)]
    counts = [rest if rest < last.group else 0 for rest in rests]
    if sum(counts) > 0:
        stage = Stage(None, last.weights, 1, 1)
        line.starts.append((line.draws, line.samples, stage))
        line.add(stage, sum(counts), [0, *accumulate(counts)], counts, True)


def mixture_epoch(
    lengths: Sequence[int], stages: Sequence[Stage], stop: str, period: int, *, epoch: int, batch_size: int, tail: str
) -> tuple[Line, list[int]]:
    """The line of one epoch, and what each data set gave before it. Stages are measured by the steps of the whole run: epoch by
    epoch, the stages that are left when it begins.
    """
    before, left = [0] * len(lengths), list(stages)
    for number in range(epoch + 1):
        line = mixture_line(lengths, left, stop, period)
        if stop == "all_exhausted_without_replacement" and stages[0].group > 1 and stages[0].seq_len == 1:
            lay_rest(line, lengths)
        if number == epoch:
            return line, before
        before = [had + given for had, given in zip(before, line.given, strict=True)]
        steps = {"wrap": Fraction(line.samples, batch_size), "drop": Fraction(line.samples // batch_size)}
        passed = steps.get(tail, Fraction(-(-line.samples // batch_size))) * batch_size
        while left[0].draws is not None and left[0].draws * left[0].group <= passed:
            passed -= left[0].draws * left[0].group
            left = left[1:]
        if left[0].draws is not None:
            left = [left[0]._replace(draws=left[0].draws - int(passed) // left[0].group), *left[1:]]
    raise AssertionError


class Change(NamedTuple):
    """An amendment: a step, and the weights from there on."""

    step: int
    weights: Sequence[float]


class Run(NamedTuple):
    """A mixture of single samples over several epochs; ``caps`` are those of the whole run."""

    lengths: Sequence[int]
    weights: Sequence[float]
    stop: str
    period: int
    batch_size: int
    tail: str
    seed: int
    caps: Sequence[int]
    changes: Sequence[Change] = ()


def amended_run(run: Run, num_epochs: int, most: int) -> list[list[tuple[int, int]]]:
    """Data set and element of every sample of some epochs (of at most so many samples), counted out one by one."""
    sets = range(len(run.lengths))
    stages, changes = [Stage(None, exact(run.weights), 1, 1)], list(run.changes)
    before, clock, found = [0 for _ in sets], 0, []
    late: list[list[int]] = [[] for _ in sets]  # elements that were not given in their turn
    for epoch in range(num_epochs):
        begin, line, drawn = 0, None, []
        while True:
            if changes and changes[0].step * run.batch_size == clock + begin:
                stages = [Stage(None, exact(changes.pop(0).weights), 1, 1)]
            caps = [run.caps[k] if run.caps[k] == UNCAPPED else max(0, run.caps[k] - before[k]) for k in sets]
            given = [sum(which == k for which, _ in drawn) for k in sets]
            line = mixture_line(run.lengths, stages, run.stop, run.period, caps, Line(given, draws=begin, samples=begin))
            passed = line.samples
            if run.tail != "wrap":
                passed = (passed if run.tail == "drop" else passed + run.batch_size - 1) // run.batch_size * run.batch_size
            cut = changes[0].step * run.batch_size - clock if changes else None
            is_cut = cut is not None and cut < passed
            end = min(line.samples, most) if not is_cut else cut
            queues = [list(one) for one in late]
            first = [before[k] + given[k] for k in sets]
            root = derive_root(run.seed, epoch, 5)

            def element(position: int) -> tuple[int, int]:
                which, local = mixture_at(line.segments, root, position)  # noqa: B023
                number = before[which] + local - first[which]  # noqa: B023
                return which, queues[which][number] if number < len(queues[which]) else before[which] + local  # noqa: B023

            drawn += [element(position) for position in range(begin, end)]
            if not is_cut:
                break
            segment = max((s for s in line.segments if s.start <= cut), key=lambda s: s.start)
            offset = (cut - segment.start) % segment.period
            stop = cut - offset + segment.period if offset else cut
            given = [sum(which == k for which, _ in drawn) for k in sets]
            seen = {*drawn, *(one for earlier in found for one in earlier)}
            whole = [max([*queues[k], -1]) for k in sets]
            for which, one in (element(position) for position in range(cut, stop)):
                whole[which] = max(whole[which], one)
            whole = [max([whole[k], *(one for which, one in drawn if which == k)]) for k in sets]
            late = [[one for one in range(whole[k] + 1) if (k, one) not in seen] for k in sets]
            begin = cut
        found.append(drawn)
        if len(drawn) >= most:
            break
        clock += passed
        ends = [sum(which == k for which, _ in drawn) for k in sets]
        for k in sets:
            rest = {one for which, one in drawn if which == k}
            late[k] = [one for one in late[k] if one not in rest]
        before = [had + count for had, count in zip(before, ends, strict=True)]
    return found


def mixture_choice(line: Line, seed: int, epoch: int, position: int, before: Sequence[int] | None = None) -> tuple[int, int]:
    """The data set and the element at one position of an epoch."""
    first_draw, first_sample, stage = [start for start in line.starts if start[1] <= position][-1]
    draw, sample = divmod(position - first_sample, stage.group)
    which, element = mixture_at(line.segments, derive_root(seed, epoch, 5), first_draw + draw)
    return which, element + sample * stage.seq_len + (epoch * line.given[which] if before is None else before[which])


def curriculum_place(phases: Sequence[Shape], step: int) -> tuple[int, int, int, int]:
    """Phase, step of the phase, first sample and first element of a step."""
    sample = element = 0
    for number, phase in enumerate(phases):
        steps = min(step, phase.steps)
        sample += steps * phase.batch_size
        element += steps * phase.batch_size * phase.seq_len
        if step < phase.steps:
            return number, step, sample, element
        step -= phase.steps
    raise IndexError(step)


def steps_of_epochs(epochs: float, length: int, batch_size: int, seq_len: int) -> int:
    """The steps of a phase given in epochs."""
    return floor(Fraction(str(epochs)) * length / (batch_size * seq_len))


# --- weights by tokens, and by temperature --------------------------------------------------------------------------------------


def sample_weights(
    given: Sequence[float] | None, lengths: Sequence[int], means: Sequence[Fraction] | None, temperature: float | None
) -> list[Fraction]:
    """The weights of samples, as given or by size. ``means`` are the tokens of a sample, where weights are shares of those."""
    if given is None and temperature in (None, 1):
        return [Fraction(length) for length in lengths]
    if given is None:
        sizes = [Fraction(length) * (1 if means is None else means[k]) for k, length in enumerate(lengths)]
        weights = [_tempered(size, temperature) for size in sizes]
    else:
        weights = exact(given)
    if means is None or len({means[k] for k, weight in enumerate(weights) if weight}) <= 1:
        return weights
    drawn = [weight / means[k] if weight else Fraction(0) for k, weight in enumerate(weights)]
    return [Fraction(ceil(2**63 * one / max(drawn))) for one in drawn]


def _tempered(size: Fraction, temperature: float | None) -> Fraction:
    """size ^ (1 / temperature), rounded half to even to 16 digits."""
    if size == 0 or temperature == math.inf:
        return Fraction(1 if size else 0)
    with decimal.localcontext(decimal.Context(prec=80)):
        number = decimal.Decimal(size.numerator) / decimal.Decimal(size.denominator)
        power = number ** (1 / decimal.Decimal(str(temperature)))
    return Fraction(decimal.Context(prec=16, rounding=decimal.ROUND_HALF_EVEN).create_decimal(power))


# --- batches of similar lengths, and batches dealt by cost ----------------------------------------------------------------------


def bucketed(ids: list[int], lengths: Sequence[int], seed: int, epoch: int, batch_size: int, window: int) -> list[int]:
    """An epoch of buckets from that of the other order: windows of whole batches, each sorted by length and cut again, its batches
    permuted; then what is left over.
    """
    full = len(ids) // batch_size
    found: list[int] = []
    for number, low in enumerate(range(0, full, window)):
        own = sorted(ids[low * batch_size : min(low + window, full) * batch_size], key=lambda one: lengths[one])
        for place in permutation(len(own) // batch_size, derive_key(seed, epoch, 16, number)):
            found += own[place * batch_size : (place + 1) * batch_size]
    return found + ids[full * batch_size :]


def deal(costs: Sequence[float], size: int, world: int, micro: int) -> list[list[list[int]]]:
    """The samples of every rank and micro-batch: the most expensive first, each to the slot that has the least and has room."""
    whole = whole_costs(costs)
    each = size // (world * micro)
    room = [[0] * micro for _ in range(world)]
    for number in range(len(whole)):
        mine = room[number % world]
        mine[sum(mine) // each] += 1
    falling = sorted(range(len(whole)), key=lambda number: (-whole[number], number))
    per_micro = _deal(falling, whole, [sum(mine[m] for mine in room) for m in range(micro)], list(range(micro)))
    slots: list[list[list[int]]] = [[] for _ in range(world)]
    for m in range(micro):
        spent = [sum(whole[number] for done in mine for number in done) for mine in slots]
        turns = sorted(range(world), key=lambda rank: (spent[rank], rank))
        for rank, found in enumerate(_deal(per_micro[m], whole, [mine[m] for mine in room], turns)):
            slots[rank].append(sorted(found))
    return slots


def whole_costs(costs: Sequence[float]) -> list[int]:
    """Costs of at most 2^40."""
    if any(isinstance(one, float) for one in costs):
        return [round(one / max(costs) * 2**40) if max(costs) else 0 for one in costs]
    bits = max(0, (int(max(costs, default=0)) - 1).bit_length() - 40)
    return [int(one) >> bits for one in costs]


def _deal(falling: list[int], costs: list[int], room: list[int], turns: list[int]) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in room]
    for number in falling:
        open_groups = [group for group in turns if len(groups[group]) < room[group]]
        groups[min(open_groups, key=lambda group: sum(costs[one] for one in groups[group]))].append(number)
    return groups


# --- designs --------------------------------------------------------------------------------------------------------------------


def design_equal(n: int, size: int, block: int, seed: int, positions: Sequence[int]) -> list[int]:
    """Ids of a design over blocks; one block of all records is a simple sample."""
    block = min(block, n)
    number, key = -(-n // block), derive_key(seed, 0, 7)
    short, short_turn = number * block - n, permutation_inverse(number, key, number - 1)
    offset = random_draw(n, derive_key(seed, 0, 8), 0)

    def given_before(turn: int) -> int:
        return (size * (turn * block - (short if short_turn < turn else 0)) + offset) // n

    ids = []
    for position in positions:
        turn = bisect_right(range(number + 1), position, key=given_before) - 1
        [stratum] = permutation(number, key, [turn])
        records = block - short if stratum == number - 1 else block
        [record] = permutation(records, derive_key(seed, 0, 6, stratum), [position - given_before(turn)])
        ids.append(stratum * block + record)
    return ids


def design_weighted(counts: list[int], sizes: Sequence[int], seed: int, positions: Sequence[int]) -> tuple[list[int], list[float]]:
    """Ids and weights of a design over strata with expected counts in units of 2**-32."""
    order = permutation(len(sizes), derive_key(seed, 0, 7))
    offset = derive_key(seed, 0, 8) % 2**32
    given = [units >> 32 for units in accumulate((counts[h] for h in order), initial=offset)]
    firsts = list(accumulate(sizes, initial=0))
    ids, weights = [], []
    for position in positions:
        turn = bisect_right(given, position) - 1
        stratum = order[turn]
        [record] = permutation(sizes[stratum], derive_key(seed, 0, 6, stratum), [position - given[turn]])
        ids.append(firsts[stratum] + record)
        weights.append(float(sizes[stratum]) * 2.0**32 / float(counts[stratum]))
    return ids, weights


def expected_by_size(sizes: Sequence[int], size: int) -> list[float]:
    """Expected counts in proportion to the sizes of the strata."""
    return [float(records) * (size / max(1, sum(sizes))) for records in sizes]


def expected_by_mass(masses: Sequence[float], sizes: Sequence[int], size: int) -> list[float]:
    """Expected counts in proportion to masses, a tenth of them spread evenly, none above its stratum's size."""
    strata, even = range(len(sizes)), [float(records) / float(max(1, sum(sizes))) for records in sizes]
    share = even
    if max(masses, default=0.0) > 0:
        scaled = [mass / max(masses) for mass in masses]
        total = math.fsum(scaled)
        share = [0.9 * scaled[h] / total + 0.1 * even[h] for h in strata]
    full: set[int] = set()
    expected = [0.0] * len(sizes)
    while True:
        rest = size - sum(sizes[h] for h in full)
        open_share = math.fsum([share[h] for h in strata if h not in full])
        if rest <= 0 or open_share <= 0:
            break
        over = {h for h in strata if h not in full and share[h] > 0 and share[h] * float(rest) >= float(sizes[h]) * open_share}
        if not over:
            expected = [share[h] * (rest / open_share) for h in strata]
            break
        full |= over
    return [float(sizes[h]) if h in full else expected[h] for h in strata]


def whole_counts(expected: Sequence[float], sizes: Sequence[int], size: int) -> list[int]:
    """Expected counts in whole units of 2**-32, with the sum size * 2**32."""
    limits = [min(records, size) * 2**32 for records in sizes]
    counts = [min(round(x * 2.0**32), limit) for x, limit in zip(expected, limits, strict=True)]
    counts = [1 if count == 0 and x > 0 else count for x, count in zip(expected, counts, strict=True)]
    missing = size * 2**32 - sum(counts)
    for h in sorted(range(len(sizes)), key=lambda h: counts[h] - limits[h] if missing > 0 else -counts[h]):
        step = min(missing, limits[h] - counts[h]) if missing > 0 else max(missing, -counts[h])
        counts[h] += step
        missing -= step
    return counts


def in_fraction(number: int, fraction: float) -> bool:
    """Whether an id belongs to a fraction of all ids."""
    return absorb(0, number) < floor(Fraction(str(fraction)) * 2**64)


# --- weighted draws: an alias table ---------------------------------------------------------------------------------------------


def alias_shares(weights: Sequence[float]) -> list[int]:
    """What each record has of n columns of 2^32 units."""
    n, greatest = len(weights), max(weights)
    shift = 53 - math.frexp(greatest)[1]
    whole = [0 if w == 0 else max(1, floor(Fraction(w) * Fraction(2) ** shift)) for w in weights]
    least = ceil(Fraction(sum(whole), n * (HALF_WORD - 1)))
    raised = [max(w, least) if w else 0 for w in whole]
    ends = [total * n * HALF_WORD // sum(raised) for total in accumulate(raised)]
    return [end - start for start, end in pairwise([0, *ends])]


def alias_table(weights: Sequence[float]) -> list[tuple[int, int]]:
    """(bound, other record) of every column."""
    shares = alias_shares(weights)
    table = [(HALF_WORD - 1, i) for i in range(len(shares))]
    less = iter([i for i, share in enumerate(shares) if share < HALF_WORD])
    more = iter([i for i, share in enumerate(shares) if share > HALF_WORD])
    current = next(more, None)
    left = 0 if current is None else shares[current]
    while current is not None:
        if left > HALF_WORD:
            column = next(less)
            table[column] = (shares[column], current)
            left -= HALF_WORD - shares[column]
        else:
            after = next(more, None)
            if after is not None:
                if left < HALF_WORD:
                    table[current] = (left, after)
                left = shares[after] - (HALF_WORD - left)
            current = after
    return table


def alias_choice(table: Sequence[tuple[int, int]], column: int, word: int) -> int:
    """The record that a column gives for a word."""
    bound, other = table[column]
    return column if word >> 32 < bound else other


def weighted_draw(table: Sequence[tuple[int, int]], key: int, position: int) -> int:
    """The record at a position."""
    return alias_choice(table, random_draw(len(table), key, position), absorb(absorb(key, position), 0))


# --- parts by a hash ------------------------------------------------------------------------------------------------------------


def split_hash(seed: int, value: int | bytes) -> int:
    """The hash of an id or a whole number, or of a byte string: its length, and its words of 8 bytes."""
    state = derive_root(seed, 0, 13)
    if isinstance(value, int):
        return absorb(state, value % WORD)
    state = absorb(state, len(value))
    for start in range(0, len(value), 8):
        state = absorb(state, int.from_bytes(value[start : start + 8], "little"))
    return state


def split_part(word: int, fractions: Sequence[float | Fraction]) -> int | None:
    """The number of the part that a hash belongs to; None if it belongs to none."""
    ends = accumulate(Fraction(str(fraction)) for fraction in fractions)
    return next((number for number, end in enumerate(ends) if word < floor(end * WORD)), None)


# --- controls: vectorised, any number of rounds, no table -----------------------------------------------------------------------


def feistel_array(n: int, key: int, positions: IntArray, rounds: int = ROUNDS) -> tuple[IntArray, IntArray]:
    """The images of positions under the network alone, and how many times each went through it (its walk length)."""
    a, b = feistel_sides(n)
    image = positions.astype(np.uint64)
    walks = np.ones(positions.size, np.int64)
    image = _feistel_pass(image, a, b, key, rounds)
    while (outside := np.flatnonzero(image >= np.uint64(n))).size > 0:
        image[outside] = _feistel_pass(image[outside], a, b, key, rounds)
        walks[outside] += 1
    return image.astype(np.int64), walks


def _feistel_pass(points: WordArray, a: int, b: int, key: int, rounds: int) -> WordArray:
    left, right = np.divmod(points, np.uint64(b))
    for number in range(rounds):
        if number % 2 == 0:
            right = (right + _round_array(left, key, number, b)) % np.uint64(b)
        else:
            left = (left + _round_array(right, key, number, a)) % np.uint64(a)
    return left * np.uint64(b) + right


def _round_array(half: WordArray, key: int, number: int, modulus: int) -> WordArray:
    mask, shift = np.uint64(HALF_WORD - 1), np.uint64(32)
    word = absorb(key, number)
    z = (half ^ np.uint64(word % HALF_WORD)) * np.uint64(MULTIPLIER_1) & mask
    z ^= z >> np.uint64(16)
    z = (z ^ np.uint64(word // HALF_WORD)) * np.uint64(MULTIPLIER_2) & mask
    return z * np.uint64(modulus) >> shift


def affine(n: int, key: int, positions: IntArray) -> IntArray:
    """The linear congruential map i -> (a i + c) mod n with a coprime to n, for n below 2**31: a bijection, and no shuffle."""
    a = key % n
    while gcd(a, n) != 1:
        a = (a + 1) % n
    return (positions * a + finalize(key) % n) % n
