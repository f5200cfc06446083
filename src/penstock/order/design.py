"""Design: samples with known inclusion probabilities, for estimates over data too large to read.

Every design is one scheme: records lie in strata, stratum h is to give mu(h) records on average, the strata are put in a random
order, whole numbers of records are dealt out by systematic selection with a random start (so stratum h gives mu(h) rounded up or
down, and mu(h) exactly on average), and the records of a stratum are a prefix of a random permutation of it. The probability of
every record is then exactly mu(h) / size(h), and no regular pattern in the data can meet a regular pattern in the sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_positions, check_positions, check_run, exact_fraction, whole_number
from penstock.errors import FullPassError
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Permutation, Purpose, absorb_all, derive_key

__all__ = [
    "DEFAULT_BUDGET",
    "FULL_PASS_LIMIT",
    "Design",
    "default_budget",
    "designed_sampling_mandatory",
    "fraction_schedule",
    "in_fraction",
]

FULL_PASS_LIMIT = 100_000_000
"""From this many rows on, a full pass used as an estimator must be asked for by name."""

DEFAULT_BUDGET = 2_000_000
"""Rows of a designed sample over data that large, unless a size is given."""

FloatArray = npt.NDArray[np.float64]

_UNIT = 1 << 32  # expected counts of strata are whole multiples of 1 / _UNIT


def designed_sampling_mandatory(n: int) -> bool:
    """Whether a full pass over n rows is refused unless asked for by name.

    >>> from penstock.order import designed_sampling_mandatory
    >>> designed_sampling_mandatory(10**8 - 1), designed_sampling_mandatory(10**8)
    (False, True)
    """
    return whole_number("n", n) >= FULL_PASS_LIMIT


def default_budget(n: int) -> int:
    """The size of a sample when none is given: everything below 10**8 rows, two million rows from there on.

    >>> from penstock.order import default_budget
    >>> default_budget(1000), default_budget(10**9)
    (1000, 2000000)
    """
    return min(n, DEFAULT_BUDGET) if designed_sampling_mandatory(n) else n


def in_fraction(ids: npt.ArrayLike, fraction: float) -> npt.NDArray[np.bool_]:
    """Which ids belong to a fraction of all ids, by a hash of the id alone; smaller fractions lie within larger ones.

    The share is only right on average; :meth:`Design.fraction` has an exact size.

    >>> import numpy as np
    >>> from penstock.order import in_fraction
    >>> tenth, quarter = (in_fraction(np.arange(1000), fraction) for fraction in (0.1, 0.25))
    >>> int(tenth.sum()), bool((quarter | ~tenth).all())
    (101, True)
    """
    _check_fraction(fraction)
    z = absorb_all(0, check_positions("ids", ids, 2**63).astype(np.uint64))
    bound = int(exact_fraction(fraction) * 2**64)
    return np.ones(z.shape, np.bool_) if bound == 2**64 else z < np.uint64(bound)


def fraction_schedule(n: int, steps: int) -> list[float]:
    """Fractions for a fit that starts on little data: a geometric rise to everything, the last two steps on all of it.

    >>> from penstock.order import fraction_schedule
    >>> fraction_schedule(10_000_000, 8)
    [0.015625, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 1.0]
    """
    whole_number("n", n)
    whole_number("steps", steps)
    first = max(1 / 64, min(4096, n) / n) if n > 0 else 1.0
    rise = max(0, steps - 2)
    return [2.0 ** (math.log2(first) * (rise - step) / rise) if step < rise else 1.0 for step in range(steps)]


@dataclass(frozen=True)
class _Blocks:
    """Strata of ``block`` records each (the last may be short), each giving in proportion to its size. No memory per stratum."""

    n: int
    size: int
    block: int
    seed: int

    @cached_property
    def _sequence(self) -> Permutation:
        return Permutation(-(-self.n // self.block), key=derive_key(self.seed, 0, Purpose.DESIGN_SEQUENCE))

    @cached_property
    def _short_place(self) -> int:
        """Where the short stratum stands in the random order of strata."""
        return self._sequence.inverse(len(self._sequence) - 1)

    @cached_property
    def _offset(self) -> int:
        out = np.empty(1, np.int64)
        _core.random_run(self.n, derive_key(self.seed, 0, Purpose.DESIGN_OFFSET), 0, 1, out)
        return int(out[0])

    def strata(self, positions: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """For each position: the number, the first id and the size of a stratum, and the rank within its sample."""
        places = np.empty(positions.size, np.int64)
        _core.systematic(self.n, self.size, self._offset, positions, places)
        missing = len(self._sequence) * self.block - self.n
        short_end = (self._short_place + 1) * self.block - missing
        beyond = (places - short_end) // self.block + self._short_place + 1  # counted from the end of the short one
        turn = np.where(places < short_end, places // self.block, beyond)
        number = self._sequence.forward(turn)
        size = np.where(number == len(self._sequence) - 1, self.block - missing, self.block)
        return number, number * self.block, size, positions - self._given(turn, missing)

    def _given(self, turn: IntArray, missing: int) -> IntArray:
        """How many records the strata before each turn have given: floor((size * start + offset) / n) in exact integers."""
        turns, place = np.unique(turn, return_inverse=True)
        starts = (int(t) * self.block - (missing if self._short_place < t else 0) for t in turns)
        return np.array([(self.size * s + self._offset) // self.n for s in starts], np.int64)[place]

    def weights(self, positions: IntArray) -> FloatArray:
        """One over the probability of each record."""
        return np.full(positions.size, self.n / self.size)


class _Strata:
    """Strata of any sizes with any expected counts, as arrays in the random order of the strata."""

    def __init__(self, sizes: IntArray, expected: FloatArray, size: int, seed: int) -> None:
        if size >= 2**31:
            raise ValueError(f"a design over weighted strata gives at most {2**31 - 1} records, got {size}")
        counts = _whole_counts(expected, sizes, size)
        order = Permutation(sizes.size, key=derive_key(seed, 0, Purpose.DESIGN_SEQUENCE)).run(0, sizes.size)
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._number, self._first, self._size = order, firsts[order], sizes[order]
        self._counts = counts[order]
        self._ends = np.cumsum(self._counts)
        self._offset = derive_key(seed, 0, Purpose.DESIGN_OFFSET) % _UNIT

    def _turns(self, positions: IntArray) -> IntArray:
        return np.searchsorted(self._ends, ((positions + 1) << 32) - self._offset, side="left")

    def strata(self, positions: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        turn = self._turns(positions)
        given = (self._ends[turn] - self._counts[turn] + self._offset) >> 32
        return self._number[turn], self._first[turn], self._size[turn], positions - given

    def weights(self, positions: IntArray) -> FloatArray:
        turn = self._turns(positions)
        return self._size[turn].astype(np.float64) * _UNIT / self._counts[turn]


@dataclass(frozen=True)
class _Recipe:
    """All that a design is made of."""

    kind: str
    n: int
    size: int
    seed: int
    strata: int | tuple[int, ...] | None = None
    masses: tuple[float, ...] | None = None

    def scheme(self) -> "_Blocks | _Strata":
        size = max(1, self.size)  # an empty sample asks for nothing
        if self.masses is not None:
            sizes = np.ones(self.n, np.int64) if self.strata is None else np.array(self.strata, np.int64)
            return _Strata(sizes, _expected_counts(np.array(self.masses), sizes, self.size), self.size, self.seed)
        if isinstance(self.strata, tuple):
            sizes = np.array(self.strata, np.int64)
            return _Strata(sizes, sizes.astype(np.float64) * (self.size / max(1, self.n)), self.size, self.seed)
        block = max(1, self.n) if self.strata is None else min(self.strata, max(1, self.n))
        return _Blocks(self.n, size, block, self.seed)


class Design:
    """A sample of records with a weight of one over the probability of each. An order: the same sample in every epoch.

    Make one with :meth:`simple`, :meth:`fraction`, :meth:`stratified`, :meth:`proportional` or :meth:`full`. A sum over the sample,
    each record times its weight, is an unbiased estimate of the sum over all records.

    >>> from penstock.order import Design
    >>> design = Design.simple(1_000_000, size=1000, seed=3)
    >>> len(design), float(design.weights(0, 1000).sum())
    (1000, 1000000.0)
    """

    __slots__ = ("_recipe", "_scheme")

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe, self._scheme = recipe, recipe.scheme()

    @classmethod
    def full(cls, n: int, *, seed: int = 0, full_pass: bool = False) -> "Design":
        """Every record with weight 1. From 10**8 rows on refused unless ``full_pass=True``."""
        return cls.simple(n, size=n, seed=seed, full_pass=full_pass)

    @classmethod
    def simple(cls, n: int, *, seed: int, size: int | None = None, full_pass: bool = False) -> "Design":
        """``size`` records, every set of that many with equal chance: the prefix of a permutation. A larger size adds records."""
        return cls(_check("simple", n, size, seed, full_pass))

    @classmethod
    def fraction(cls, n: int, fraction: float, *, seed: int, full_pass: bool = False) -> "Design":
        """round(n * fraction) records; the records of a smaller fraction are among those of a larger one with the same seed."""
        _check_fraction(fraction)
        return cls.simple(n, size=round(exact_fraction(fraction) * whole_number("n", n)), seed=seed, full_pass=full_pass)

    @classmethod
    def stratified(
        cls, n: int, *, strata: int | Sequence[int], seed: int, size: int | None = None, full_pass: bool = False
    ) -> "Design":
        """``size`` records spread evenly over strata: blocks of that many records, or shards of the given lengths (sum n)."""
        recipe = _check("stratified", n, size, seed, full_pass)
        if isinstance(strata, Sequence | np.ndarray):
            return cls(replace(recipe, strata=_check_strata(recipe.n, strata)))
        return cls(replace(recipe, strata=whole_number("strata", strata, least=1)))

    @classmethod
    def proportional(
        cls,
        n: int,
        *,
        masses: npt.ArrayLike,
        seed: int,
        strata: Sequence[int] | None = None,
        size: int | None = None,
        full_pass: bool = False,
    ) -> "Design":
        """``size`` records, each with a probability in proportion to its mass, never above 1.

        ``masses`` has one number per record, or, with ``strata`` given, one per stratum, spread evenly over its records. A tenth of
        the mass is spread evenly over all records, so that no probability is 0 and no weight without bound.
        """
        recipe = _check("proportional", n, size, seed, full_pass)
        parts = None if strata is None else _check_strata(recipe.n, strata)
        mass = np.array(masses, np.float64)
        expected = recipe.n if parts is None else len(parts)
        if mass.shape != (expected,):
            raise ValueError(
                f"expected {expected} masses, one per {'record' if parts is None else 'stratum'}, got shape {mass.shape}"
            )
        bad = mass[~(np.isfinite(mass) & (mass >= 0))]
        if bad.size:
            raise ValueError(f"masses must be finite and at least 0, got {bad[0]}")
        return cls(replace(recipe, strata=parts, masses=tuple(mass.tolist())))

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``source.design`` makes this of, in plain types."""
        recipe = self._recipe
        given: dict[str, Any] = {"size": recipe.size, "seed": recipe.seed, "full_pass": True}
        if recipe.strata is not None:
            given["strata"] = list(recipe.strata) if isinstance(recipe.strata, tuple) else recipe.strata
        return given if recipe.masses is None else given | {"masses": list(recipe.masses)}

    @property
    def n(self) -> int:
        """Records the sample is drawn from."""
        return self._recipe.n

    @property
    def size(self) -> int:
        """Records in the sample."""
        return self._recipe.size

    @property
    def seed(self) -> int:
        return self._recipe.seed

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        recipe = self._recipe
        strata = "" if recipe.strata is None else f", strata={_shortened(recipe.strata)}"
        masses = "" if recipe.masses is None else f", masses={_shortened(recipe.masses)}"
        return f"Design.{recipe.kind}({recipe.n}, size={recipe.size}, seed={recipe.seed}{strata}{masses})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Design) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self._recipe)

    def __reduce__(self) -> tuple[object, ...]:
        return (Design, (self._recipe,))

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop; the same in every epoch."""
        whole_number("epoch", epoch)
        return self._ids(as_positions(check_run(start, stop, step, self.size)))

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        whole_number("epoch", epoch)
        wanted, place = np.unique(check_positions("positions", positions, self.size), return_inverse=True)
        return self._ids(wanted)[place]

    def weights(self, start: int, stop: int, step: int = 1) -> FloatArray:
        """One over the probability of the record at each position. Exactly 1.0 if every record is in the sample."""
        return self._scheme.weights(as_positions(check_run(start, stop, step, self.size)))

    def weights_at(self, positions: npt.ArrayLike) -> FloatArray:
        return self._scheme.weights(check_positions("positions", positions, self.size))

    def _ids(self, positions: IntArray) -> IntArray:
        """Ids at rising positions: those of one stratum stand together, so its permutation is made once."""
        ids = np.empty(positions.size, np.int64)
        if positions.size == 0:
            return ids
        number, first, size, rank = self._scheme.strata(positions)
        alone = size == 1
        ids[alone] = first[alone]
        edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), number.size]
        for low, high in pairwise(edges):
            if not alone[low]:
                key = derive_key(self.seed, 0, Purpose.DESIGN, int(number[low]))
                ids[low:high] = first[low] + Permutation(int(size[low]), key=key).forward(rank[low:high])
        return ids


def _shortened(value: int | tuple[float, ...]) -> str:
    return (
        repr(value)
        if isinstance(value, int) or len(value) <= 8
        else f"({', '.join(map(repr, value[:4]))}, ... {len(value)} in all)"
    )


def _check(kind: str, n: int, size: int | None, seed: int, full_pass: bool) -> _Recipe:
    """What all designs share, checked; full passes are refused where they are not asked for by name."""
    n, seed = whole_number("n", n), whole_number("seed", seed, most=MAX_SEED)
    size = default_budget(n) if size is None else min(n, whole_number("size", size))
    if size == n and designed_sampling_mandatory(n) and not full_pass:
        raise FullPassError(
            f"a full pass over {n} rows (the limit is {FULL_PASS_LIMIT}) costs more than it is worth: "
            f"draw a sample, for example size={DEFAULT_BUDGET}, or pass full_pass=True"
        )
    return _Recipe(kind, n, size, seed)


def _check_fraction(fraction: float) -> None:
    if not (isinstance(fraction, Real) and not isinstance(fraction, bool) and 0 <= fraction <= 1):
        raise ValueError(f"fraction must be in [0, 1], got {repr(fraction)[:40]}")


def _check_strata(n: int, strata: Sequence[int] | IntArray) -> tuple[int, ...]:
    sizes = tuple(whole_number("a stratum's size", size) for size in strata)
    if sum(sizes) != n:
        raise ValueError(f"the strata must hold n = {n} records together, got {sum(sizes)}")
    return sizes


def _expected_counts(masses: FloatArray, sizes: IntArray, size: int) -> FloatArray:
    """Expected counts in proportion to the masses, none above its stratum's size, with the given sum (water filling)."""
    even = sizes / max(1, sizes.sum())
    scaled = masses / masses.max() if masses.size and masses.max() > 0 else masses  # so that huge masses have a finite sum
    total = math.fsum(scaled)  # exactly rounded: the same on every machine and with every numpy
    share = 0.9 * scaled / total + 0.1 * even if total > 0 else even
    expected = np.zeros(sizes.size)
    full = np.zeros(sizes.size, np.bool_)
    while True:
        rest = size - sizes[full].sum()
        open_share = math.fsum(share[~full])
        if rest <= 0 or open_share <= 0:
            break
        over = ~full & (share * rest >= sizes * open_share) & (share > 0)
        if not over.any():
            expected[~full] = share[~full] * (rest / open_share)
            break
        full |= over
    expected[full] = sizes[full]
    return expected


def _whole_counts(expected: FloatArray, sizes: IntArray, size: int) -> IntArray:
    """Expected counts as whole multiples of 1 / _UNIT with the exact sum, none above its stratum's size."""
    caps = np.minimum(sizes, size) * _UNIT
    counts: IntArray = np.minimum(np.rint(expected * _UNIT).astype(np.int64), caps)
    counts[(counts == 0) & (expected > 0)] = 1  # rare, but never impossible
    missing = size * _UNIT - int(counts.sum())
    for k in np.argsort(-(caps - counts) if missing > 0 else -counts, kind="stable"):
        if missing == 0:
            break
        step = min(missing, int(caps[k] - counts[k])) if missing > 0 else max(missing, -int(counts[k]))
        counts[k] += step
        missing -= step
    return counts
