"""The permutation battery P1-P13: does a family of permutations, one per (n, seed, epoch), look like uniform random ones?

    P1  bijection               P6  rank correlation        P10  avalanche of input and seed bits
    P2  inverse                 P7  autocorrelation         P11  bits of position against bits of image
    P3  all n! orders           P8  descents                P12  cycle-walk length
    P4  position against item   P9  fixed points, epochs    P13  separation of seeds and epochs
    P5  steps between neighbours

It judges any implementation::

    verdicts = run_battery(ShuffleCandidate(), CI_PLAN)
    failures = [verdict for verdict in verdicts if not verdict.passed]

Seeds are consecutive from 0, as users choose them, so a run is deterministic. P4 to P9 and P11 look at whole permutations of many
seeds; the variance over seeds (P6, P8) finds weak networks whose means are right. Needs scipy.

Every null distribution is that of a permutation, not of independent draws: where fixing every item to occur once shifts the mean of
a statistic, it is scaled back to the exact mean, and the docstring gives the factor. All p-values are two-sided, because an order
that is too even is no more random than one that is too lumpy.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.order.order import Shuffle

__all__ = [
    "CI_PLAN",
    "SMALL_PLAN",
    "TESTS",
    "BatteryPlan",
    "Candidate",
    "Invertible",
    "ShuffleCandidate",
    "Size",
    "Verdict",
    "Walking",
    "run_battery",
]
FOLDS = (4, 3, 2, 1)  # bits of position and image that :func:`contingency` compares
LEVEL = 1e-6  # the smallest p-value that passes
MAX_Z = 6.4  # P7: the bound on standard scores, of which there are some thousands
BIAS_PAIRS = 2**19
MAX_MEAN_WALK, MAX_WALK = 1.05, 16  # P12: bounds on the cycle walk


@dataclass(frozen=True, slots=True)
class Size:
    """A length and the number of seeds to try it with."""

    n: int
    seeds: int


@dataclass(frozen=True, kw_only=True)
class BatteryPlan:
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


CI_PLAN = BatteryPlan(
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

SMALL_PLAN = BatteryPlan(
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


FloatArray = npt.NDArray[np.float64]


def _special() -> Any:
    """scipy.special, imported only when a p-value is asked for."""
    try:
        import scipy.special
    except ImportError as error:
        raise ImportError("the permutation battery needs scipy: pip install penstock[testing]") from error
    return scipy.special


def chi_square(statistic: float, df: int) -> float:
    """The two-sided p-value of a chi-square statistic."""
    special = _special()
    return min(1.0, 2 * min(float(special.chdtr(df, statistic)), float(special.chdtrc(df, statistic))))


def _dot(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """The inner product without BLAS, whose threads would make the result depend on the machine."""
    return float(np.einsum("i,i->", x, y))


def rank_z(order: IntArray) -> float:
    """Spearman's correlation of position and image, over its standard deviation 1 / sqrt(n - 1)."""
    n = order.size
    middle = (n - 1) / 2
    product = _dot(np.arange(n) - middle, order - middle)
    return product / (n * (n * n - 1) / 12) * math.sqrt(n - 1)


def descent_z(order: IntArray) -> float:
    """The number of descents, less its mean (n - 1) / 2, over its standard deviation sqrt((n + 1) / 12)."""
    n = order.size
    return (int(np.count_nonzero(order[:-1] > order[1:])) - (n - 1) / 2) / math.sqrt((n + 1) / 12)


def lags_of(n: int) -> list[int]:
    """Lags 1 to 32, and 2**k and 2**k - 1, up to n / 2."""
    powers = [2**k for k in range(1, n.bit_length())]
    return sorted(lag for lag in {*range(1, 33), *powers, *(p - 1 for p in powers)} if lag <= n // 2)


def lag_z(order: IntArray, lags: list[int]) -> FloatArray:
    """Serial correlation at each lag, less its mean -1 / (n - 1) per term, over its standard deviation."""
    n = order.size
    x = order - (n - 1) / 2
    variance = (n * n - 1) / 12
    sums = np.array([_dot(x[:-lag], x[lag:]) for lag in lags])
    terms = n - np.array(lags)
    return np.asarray((sums / variance + terms / (n - 1)) / np.sqrt(terms))


def poisson_fit(counts: IntArray) -> float:
    """The p-value of numbers of coincidences (fixed points) against Poisson(1), in the cells 0, 1, 2, 3, 4 and more."""
    chance = np.array([math.exp(-1) / math.factorial(k) for k in range(5)])
    expected = np.append(chance, 1 - chance.sum()) * counts.size
    observed = np.bincount(np.minimum(counts, 5), minlength=6)
    return chi_square(float(((observed - expected) ** 2 / expected).sum()), 5)


def contingency(order: IntArray) -> Iterator[tuple[str, float, int]]:
    """Chi-square of the tables (low or high k bits of i) x (low or high k bits of its image), k = 4 to 1: name, statistic, df.

    High bits of a number below n are floor(number * 2**k / n). Both margins of the table are fixed, so the mean of the plain
    statistic is df * n / (n - 1); the factor is taken out.
    """
    n = order.size
    place = np.arange(n)
    sides = {"low": (place & 15, order & 15), "high": (place * 16 // n, order * 16 // n)}
    for row_side, (rows, _) in sides.items():
        for column_side, (_, columns) in sides.items():
            table = np.bincount(rows * 16 + columns, minlength=256).reshape(16, 16)
            for k in FOLDS:
                folded = _fold(_fold(table, row_side, k).T, column_side, k).T
                yield f"{row_side}-{column_side} k={k}", _table_statistic(folded) * (n - 1) / n, (2**k - 1) ** 2


def _fold(table: npt.NDArray[Any], side: str, k: int) -> npt.NDArray[Any]:
    """The table by 2**k rows instead of 16: low bits fold modulo 2**k, high bits join neighbours."""
    cells = 2**k
    shape = (16 // cells, cells, -1) if side == "low" else (cells, 16 // cells, -1)
    return np.asarray(table.reshape(shape).sum(axis=0 if side == "low" else 1))


def _table_statistic(table: npt.NDArray[Any]) -> float:
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


def flip_bias(one: IntArray, other: IntArray, bits: int) -> float:
    """The largest distance of p from 1/2 over the low bits, p being how often a bit differs between two arrays."""
    changed = one ^ other
    flips = [int(np.count_nonzero(changed & (1 << bit))) for bit in range(bits)]
    return max(abs(count / changed.size - 0.5) for count in flips)


MAX_BIAS = 0.0042
"""P10: the bound on the bias of a bit over BIAS_PAIRS pairs, 6.1 standard deviations; it widens when fewer pairs are given."""


class Candidate(Protocol):
    """A family of permutations of [0, n). Subclass it to get ``at`` from ``whole``."""

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        """The images of 0 ... n - 1, as int64."""

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        """The images of some positions."""
        return self.whole(n, seed, epoch)[positions]


@runtime_checkable
class Invertible(Protocol):
    """A candidate that P2 can judge."""

    def inverse(self, n: int, seed: int, indices: IntArray, epoch: int = 0) -> IntArray:
        """The positions of some images."""


@runtime_checkable
class Walking(Protocol):
    """A candidate that P12 can judge."""

    def walk_lengths(self, n: int, seed: int, positions: IntArray) -> IntArray:
        """How often each position passes through the cipher before it lands below n."""


class ShuffleCandidate(Candidate):
    """penstock's own :class:`~penstock.order.Shuffle`."""

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return Shuffle(n, seed=seed).indices(epoch, 0, n)

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        return Shuffle(n, seed=seed).at(epoch, positions)

    def inverse(self, n: int, seed: int, indices: IntArray, epoch: int = 0) -> IntArray:
        return Shuffle(n, seed=seed).positions(epoch, indices)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one test at one length."""

    test: str
    n: int
    statistic: float
    p_value: float | None  # None where the test is exact or has a bound of its own
    passed: bool
    detail: str


def p1_bijection(candidate: Candidate, lengths: Iterable[int], seeds: int) -> Verdict:
    """Every image below n occurs once, for several lengths; the verdict names the first that fails."""
    n = tried = 0
    for n in lengths:
        for seed in range(seeds):
            order = candidate.whole(n, seed)
            if not _is_bijection(order, n):
                return Verdict("P1", n, float(np.unique(order).size), None, False, f"not a bijection at seed {seed}")
            tried += 1
    return Verdict("P1", n, float(tried), None, True, f"{tried} permutations exhausted")


def _is_bijection(order: IntArray, n: int) -> bool:
    if order.shape != (n,) or (n > 0 and (order.min() < 0 or order.max() >= n)):
        return False
    seen = np.zeros(n, np.bool_)
    seen[order] = True
    return bool(seen.all())


def p2_inverse(candidate: Candidate, n: int, count: int) -> Verdict:
    """inverse(image(i)) = i, images distinct and below n, for ``count`` positions spread over [0, n)."""
    assert isinstance(candidate, Invertible)
    positions = np.arange(min(n, count), dtype=np.int64) * max(1, n // count)
    positions[-1:] = n - 1
    images = candidate.at(n, 1, positions, 1)
    outside = int(np.count_nonzero((images < 0) | (images >= n)))
    repeated = images.size - np.unique(images).size
    wrong = outside or int(np.count_nonzero(candidate.inverse(n, 1, images, 1) != positions))
    detail = f"{wrong} wrong, {repeated} repeated of {images.size}"
    return Verdict("P2", n, float(wrong + repeated), None, wrong + repeated == 0, detail)


def p3_orders(candidate: Candidate, size: Size) -> Verdict:
    """Each of the n! orders occurs equally often over the seeds."""
    codes = _gather(candidate, size) @ size.n ** np.arange(size.n)
    counts = np.unique(codes, return_counts=True)[1]
    cells = math.factorial(size.n)
    return _chi_square("P3", size.n, float((counts**2).sum()) * cells / size.seeds - size.seeds, cells - 1)


def p4_places(candidate: Candidate, size: Size) -> Verdict:
    """Each item is equally often at each position. For permutations the plain statistic is chi-square times n / (n - 1)."""
    n = size.n
    cells = (np.arange(n) * n + _gather(candidate, size)).ravel()
    expected = size.seeds / n
    plain = float(((np.bincount(cells, minlength=n * n) - expected) ** 2).sum()) / expected
    return _chi_square("P4", n, plain * (n - 1) / n, (n - 1) ** 2)


def p5_steps(candidate: Candidate, size: Size) -> Verdict:
    """Steps from an image to the next, modulo n, are uniform on 1 ... n - 1. A count's variance is its mean, as for Poisson."""
    n = size.n
    counts = np.zeros(n, np.int64)
    for seed in range(size.seeds):
        counts += np.bincount(np.diff(candidate.whole(n, seed)) % n, minlength=n)
    plain = float(((counts[1:] - size.seeds) ** 2).sum()) / size.seeds
    return _chi_square("P5", n, plain * (n - 2) / (n - 1), n - 2)


def p6_rank_correlation(candidate: Candidate, size: Size) -> Verdict:
    """The rank correlation of position and image has mean 0 and variance 1 / (n - 1) over seeds."""
    return _over_seeds("P6", candidate, size, rank_z)


def p7_autocorrelation(candidate: Candidate, size: Size) -> Verdict:
    """No serial correlation at short lags and around powers of two, where networks of bits show theirs."""
    lags = lags_of(size.n)
    scores = np.abs([lag_z(candidate.whole(size.n, seed), lags) for seed in range(size.seeds)])
    worst = float(scores.max())
    lag = lags[int(scores.max(axis=0).argmax())]
    return Verdict("P7", size.n, worst, None, worst < MAX_Z, f"max |z| of {scores.size}, at lag {lag}")


def p8_descents(candidate: Candidate, size: Size) -> Verdict:
    """The number of descents has mean (n - 1) / 2 and variance (n + 1) / 12 over seeds."""
    return _over_seeds("P8", candidate, size, descent_z)


def p9_coincidences(candidate: Candidate, size: Size) -> Verdict:
    """Fixed points of an epoch, and agreements of two epochs in a row, are Poisson(1)."""
    identity = np.arange(size.n)
    fixed, agreed = np.empty((2, size.seeds), np.int64)
    for seed in range(size.seeds):
        order = candidate.whole(size.n, seed)
        fixed[seed] = np.count_nonzero(order == identity)
        agreed[seed] = np.count_nonzero(order == candidate.whole(size.n, seed, 1))
    fixed_p, agreed_p = poisson_fit(fixed), poisson_fit(agreed)
    p = min(fixed_p, agreed_p)
    means = f"mean {fixed.mean():.3f} fixed points (p {fixed_p:.2g}), {agreed.mean():.3f} agreements (p {agreed_p:.2g})"
    return Verdict("P9", size.n, float(fixed.mean() if fixed_p < agreed_p else agreed.mean()), p, p >= LEVEL, means)


def p10_input_avalanche(candidate: Candidate, bits: int) -> Verdict:
    """Flipping a bit of the position flips each bit of the image half of the time, n = 2**bits, over all pairs."""
    order = candidate.whole(2**bits, 0)
    pairs = (order.reshape(-1, 2, 1 << bit) for bit in range(bits))
    biases = [flip_bias(pair[:, 0].ravel(), pair[:, 1].ravel(), bits) for pair in pairs]
    return _bias("input", bits, biases, list(range(bits)), 2 ** (bits - 1))


def p10_seed_avalanche(candidate: Candidate, bits: int, seed_bits: tuple[int, ...], count: int) -> Verdict:
    """Flipping a bit of the seed flips each bit of an image half of the time, n = 2**bits, over ``count`` positions."""
    positions = np.arange(count, dtype=np.int64) * (2**bits // count)
    images = candidate.at(2**bits, 0, positions)
    biases = [flip_bias(images, candidate.at(2**bits, 1 << bit, positions), bits) for bit in seed_bits]
    return _bias("seed", bits, biases, list(seed_bits), count)


def p11_tables(candidate: Candidate, size: Size) -> Verdict:
    """Low and high bits of the position say nothing about those of the image: chi-square of each table, summed over seeds."""
    sums: dict[str, tuple[float, int]] = {}
    for seed in range(size.seeds):
        for name, value, df in contingency(candidate.whole(size.n, seed)):
            total, total_df = sums.get(name, (0.0, 0))
            sums[name] = (total + value, total_df + df)
    p, name = min((chi_square(*pair), name) for name, pair in sums.items())
    detail = f"chi-square / df of the worst of {len(sums)} tables, {name}"
    return Verdict("P11", size.n, sums[name][0] / sums[name][1], p, p >= LEVEL, detail)


def p12_walk(candidate: Candidate, n: int) -> Verdict:
    """Cycle walking is short: bounds on mean and maximum over 100,000 positions."""
    assert isinstance(candidate, Walking)
    walks = candidate.walk_lengths(n, 0, np.arange(min(n, 100_000), dtype=np.int64) * max(1, n // 100_000))
    mean, most = float(walks.mean()), int(walks.max())
    return Verdict("P12", n, mean, None, mean <= MAX_MEAN_WALK and most <= MAX_WALK, f"mean {mean:.4f}, max {most}")


def p13_separation(candidate: Candidate, n: int) -> Verdict:
    """Seeds and epochs 0 ... 31 give 1,024 different beginnings."""
    prefix = np.arange(16, dtype=np.int64)
    seen = {candidate.at(n, seed, prefix, epoch).tobytes() for seed in range(32) for epoch in range(32)}
    return Verdict("P13", n, float(len(seen)), None, len(seen) == 1024, f"{len(seen)} distinct prefixes of 1024")


def _gather(candidate: Candidate, size: Size) -> IntArray:
    orders = np.empty((size.seeds, size.n), np.int64)
    for seed in range(size.seeds):
        orders[seed] = candidate.whole(size.n, seed)
    return orders


def _chi_square(test: str, n: int, statistic: float, df: int) -> Verdict:
    p = chi_square(statistic, df)
    return Verdict(test, n, statistic, p, p >= LEVEL, f"chi-square, df {df}")


def _over_seeds(test: str, candidate: Candidate, size: Size, score: Callable[[IntArray], float]) -> Verdict:
    """Whether scores of mean 0 and variance 1 under the null look standard normal: their scaled sum as normal, their sum of squares
    as chi-square. The second finds what the first averages away.
    """
    z = np.array([score(candidate.whole(size.n, seed)) for seed in range(size.seeds)])
    mean_p = 2 * float(_special().ndtr(-abs(z.sum()) / math.sqrt(z.size)))
    variance, variance_p = float((z * z).mean()), chi_square(float((z * z).sum()), z.size)
    p = min(mean_p, variance_p)
    detail = f"mean {z.mean():.3f} (p {mean_p:.2g}), variance ratio {variance:.3f} (p {variance_p:.2g})"
    return Verdict(test, size.n, variance, p, p >= LEVEL, detail)


def _bias(what: str, bits: int, biases: list[float], flipped: list[int], pairs: int) -> Verdict:
    bound = MAX_BIAS * max(1.0, math.sqrt(BIAS_PAIRS / pairs))
    worst = int(np.argmax(biases))
    detail = f"largest bias when {what} bit {flipped[worst]} flips, bound {bound:.4f}"
    return Verdict("P10", 2**bits, biases[worst], None, biases[worst] <= bound, detail)


def _avalanche(candidate: Candidate, plan: BatteryPlan) -> list[Verdict]:
    if plan.avalanche_bits == 0:
        return []
    by_seed = p10_seed_avalanche(candidate, plan.avalanche_bits, plan.avalanche_seed_bits, plan.avalanche_positions)
    return [p10_input_avalanche(candidate, plan.avalanche_bits), by_seed]


TESTS: dict[str, Callable[[Candidate, BatteryPlan], list[Verdict]]] = {
    "P1": lambda c, plan: [p1_bijection(c, plan.bijection, plan.bijection_seeds)] if plan.bijection else [],
    "P2": lambda c, plan: [p2_inverse(c, n, plan.inverse_positions) for n in plan.inverse if isinstance(c, Invertible)],
    "P3": lambda c, plan: [p3_orders(c, size) for size in plan.orders],
    "P4": lambda c, plan: [p4_places(c, size) for size in plan.places],
    "P5": lambda c, plan: [p5_steps(c, size) for size in plan.steps],
    "P6": lambda c, plan: [p6_rank_correlation(c, size) for size in plan.ranks],
    "P7": lambda c, plan: [p7_autocorrelation(c, size) for size in plan.lags],
    "P8": lambda c, plan: [p8_descents(c, size) for size in plan.descents],
    "P9": lambda c, plan: [p9_coincidences(c, size) for size in plan.coincidences],
    "P10": _avalanche,
    "P11": lambda c, plan: [p11_tables(c, size) for size in plan.tables],
    "P12": lambda c, plan: [p12_walk(c, n) for n in plan.walks if isinstance(c, Walking)],
    "P13": lambda c, plan: [p13_separation(c, n) for n in plan.separation],
}
"""Each test as a function of a candidate and a plan."""


def run_battery(candidate: Candidate, plan: BatteryPlan, *, tests: Iterable[str] | None = None) -> list[Verdict]:
    """Run all tests, or those named. P2 runs only on an :class:`Invertible`, P12 only on a :class:`Walking` candidate."""
    return [verdict for test in (TESTS if tests is None else tests) for verdict in TESTS[test](candidate, plan)]
