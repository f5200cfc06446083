"""The arithmetic of the order, a second time: plain Python, written from the specification, never calling the native code.

Slow and simple on purpose. The only vectorised parts are the controls of the battery, at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, isqrt
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


def permutation(n: int, key: int, positions: Sequence[int] | None = None) -> list[int]:
    """The images of some positions, or of all."""
    wanted = range(n) if positions is None else positions
    if n <= TABLE_LIMIT:
        table = fisher_yates(n, key)
        return [table[position] for position in wanted]
    return [feistel_forward(n, key, position) for position in wanted]


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


def random_draw(n: int, key: int, position: int) -> int:
    """A draw with replacement: Lemire's method on 64-bit words."""
    return below(n, 64, finalize((key + (position + 1) * GOLDEN) % WORD), absorb(key, position))


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
