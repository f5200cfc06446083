"""What the permutation battery runs on: lengths and numbers of seeds for each test."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["CI_PLAN", "SMALL_PLAN", "Plan", "Size"]


@dataclass(frozen=True, slots=True)
class Size:
    """A length and the number of seeds to try it with."""

    n: int
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What each test runs on. An empty tuple leaves a test out."""

    bijection: tuple[int, ...]  # P1
    bijection_seeds: int
    inverse: tuple[int, ...]  # P2
    inverse_positions: int
    orders: tuple[Size, ...]  # P3
    places: tuple[Size, ...]  # P4
    steps: tuple[Size, ...]  # P5
    ranks: tuple[Size, ...]  # P6
    lags: tuple[Size, ...]  # P7
    descents: tuple[Size, ...]  # P8
    coincidences: tuple[Size, ...]  # P9
    avalanche_bits: int  # P10: n = 2**bits
    avalanche_seed_bits: tuple[int, ...]
    avalanche_positions: int  # for the seed bits; the input bits use all pairs
    tables: tuple[Size, ...]  # P11
    walks: tuple[int, ...]  # P12
    separation: tuple[int, ...]  # P13


def _around_powers(exponents: Iterable[int]) -> tuple[int, ...]:
    """2**k - 1, 2**k and 2**k + 1; powers of 4 are among them."""
    return tuple(2**k + shift for k in exponents for shift in (-1, 0, 1))


CI_PLAN = Plan(
    bijection=(*range(2101), *_around_powers(range(12, 23))),
    bijection_seeds=3,
    inverse=(1, 2, 1000, 65_536, 65_537, 10**6, *_around_powers((20, 31, 32, 40, 48, 62)), 2**63 - 1),
    inverse_positions=100_000,
    orders=tuple(Size(n, min(400 * math.factorial(n), 400_000)) for n in range(2, 8)),
    places=(Size(16, 20_000), Size(52, 20_000), Size(100, 20_000), Size(256, 8_000)),
    steps=(Size(100, 2_000), Size(1_000, 1_000), Size(4_096, 500), Size(10_007, 500), Size(65_537, 100)),
    ranks=(Size(4_096, 2_000), Size(65_537, 3_000), Size(10**6, 100)),
    lags=tuple(Size(n, 20) for n in (1_000, 4_096, 65_536, 65_537, 10**6, 2**20, 2**20 + 1)),
    descents=(Size(4_096, 2_000), Size(65_537, 1_000), Size(10**6, 100)),
    coincidences=(Size(1_000, 20_000), Size(65_537, 1_000)),
    avalanche_bits=20,
    avalanche_seed_bits=tuple(range(0, 60, 3)),
    avalanche_positions=2**19,
    tables=(*(Size(n, 100) for n in (1_000, 4_096, 65_536)), Size(65_537, 300), *(Size(n, 60) for n in (10**6, 2**20, 2**20 + 1))),
    walks=tuple(2**k + 1 for k in (*range(16, 25), 32, 40, 48)),
    separation=(1_000, 10**6),
)
"""Everything, for implementations of some nanoseconds per index: half a minute at 10 ns.

65,537 is in most lists, with many seeds, because it is the shortest order that penstock computes with its network: there the
network is weakest, and one of 4 or 5 rounds would be caught.
"""

SMALL_PLAN = Plan(
    bijection=(*range(1, 65), 1_000, *_around_powers(range(8, 17, 2)), 2**18),
    bijection_seeds=1,
    inverse=(1_000, 65_537, 2**40),
    inverse_positions=10_000,
    orders=(Size(3, 600), Size(4, 2_400), Size(5, 12_000)),
    places=(Size(52, 4_000), Size(256, 1_000)),
    steps=(Size(1_000, 200), Size(10_007, 50)),
    ranks=(Size(4_096, 500), Size(65_537, 50)),
    lags=tuple(Size(n, 1) for n in (1_000, 4_096, 65_536, 10**6, 2**20, 2**20 + 1)),
    descents=(Size(4_096, 500),),
    coincidences=(Size(100, 4_000),),
    avalanche_bits=20,
    avalanche_seed_bits=tuple(range(20)),
    avalanche_positions=2**15,
    tables=(Size(4_096, 20), Size(65_536, 5), Size(10**6, 1), Size(2**20, 1)),
    walks=(2**16 + 1, 2**20 + 1),
    separation=(1_000, 10**6),
)
"""17 million indices: for implementations of some microseconds per index."""
