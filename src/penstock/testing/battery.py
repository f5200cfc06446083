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
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from penstock.interfaces import IntArray
from penstock.order.shuffle import Shuffle
from penstock.testing import battery_statistics as statistics
from penstock.testing.battery_plan import CI_PLAN, SMALL_PLAN, Plan, Size

__all__ = [
    "CI_PLAN",
    "SMALL_PLAN",
    "TESTS",
    "Candidate",
    "Invertible",
    "Plan",
    "ShuffleCandidate",
    "Size",
    "Verdict",
    "Walking",
    "run_battery",
]

LEVEL = 1e-6
"""The smallest p-value that passes."""
MAX_Z = 6.4
"""P7: the bound on standard scores, of which there are some thousands."""
MAX_BIAS = 0.0042
"""P10: the bound on the bias of a bit over BIAS_PAIRS pairs, 6.1 standard deviations; it widens when fewer pairs are given."""
BIAS_PAIRS = 2**19
MAX_MEAN_WALK, MAX_WALK = 1.05, 16
"""P12: bounds on the cycle walk."""


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
        """The order of an epoch."""
        return Shuffle(n, seed=seed).indices(epoch, 0, n)

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        """Parts of the order of an epoch."""
        return Shuffle(n, seed=seed).at(epoch, positions)

    def inverse(self, n: int, seed: int, indices: IntArray, epoch: int = 0) -> IntArray:
        """Where ids stand in the order of an epoch."""
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
    return _over_seeds("P6", candidate, size, statistics.rank_z)


def p7_autocorrelation(candidate: Candidate, size: Size) -> Verdict:
    """No serial correlation at short lags and around powers of two, where networks of bits show theirs."""
    lags = statistics.lags_of(size.n)
    scores = np.abs([statistics.lag_z(candidate.whole(size.n, seed), lags) for seed in range(size.seeds)])
    worst = float(scores.max())
    lag = lags[int(scores.max(axis=0).argmax())]
    return Verdict("P7", size.n, worst, None, worst < MAX_Z, f"max |z| of {scores.size}, at lag {lag}")


def p8_descents(candidate: Candidate, size: Size) -> Verdict:
    """The number of descents has mean (n - 1) / 2 and variance (n + 1) / 12 over seeds."""
    return _over_seeds("P8", candidate, size, statistics.descent_z)


def p9_coincidences(candidate: Candidate, size: Size) -> Verdict:
    """Fixed points of an epoch, and agreements of two epochs in a row, are Poisson(1)."""
    identity = np.arange(size.n)
    fixed, agreed = np.empty((2, size.seeds), np.int64)
    for seed in range(size.seeds):
        order = candidate.whole(size.n, seed)
        fixed[seed] = np.count_nonzero(order == identity)
        agreed[seed] = np.count_nonzero(order == candidate.whole(size.n, seed, 1))
    fixed_p, agreed_p = statistics.poisson_fit(fixed), statistics.poisson_fit(agreed)
    p = min(fixed_p, agreed_p)
    means = f"mean {fixed.mean():.3f} fixed points (p {fixed_p:.2g}), {agreed.mean():.3f} agreements (p {agreed_p:.2g})"
    return Verdict("P9", size.n, float(fixed.mean() if fixed_p < agreed_p else agreed.mean()), p, p >= LEVEL, means)


def p10_input_avalanche(candidate: Candidate, bits: int) -> Verdict:
    """Flipping a bit of the position flips each bit of the image half of the time, n = 2**bits, over all pairs."""
    order = candidate.whole(2**bits, 0)
    pairs = (order.reshape(-1, 2, 1 << bit) for bit in range(bits))
    biases = [statistics.flip_bias(pair[:, 0].ravel(), pair[:, 1].ravel(), bits) for pair in pairs]
    return _bias("input", bits, biases, list(range(bits)), 2 ** (bits - 1))


def p10_seed_avalanche(candidate: Candidate, bits: int, seed_bits: tuple[int, ...], count: int) -> Verdict:
    """Flipping a bit of the seed flips each bit of an image half of the time, n = 2**bits, over ``count`` positions."""
    positions = np.arange(count, dtype=np.int64) * (2**bits // count)
    images = candidate.at(2**bits, 0, positions)
    biases = [statistics.flip_bias(images, candidate.at(2**bits, 1 << bit, positions), bits) for bit in seed_bits]
    return _bias("seed", bits, biases, list(seed_bits), count)


def p11_tables(candidate: Candidate, size: Size) -> Verdict:
    """Low and high bits of the position say nothing about those of the image: chi-square of each table, summed over seeds."""
    sums: dict[str, tuple[float, int]] = {}
    for seed in range(size.seeds):
        for name, value, df in statistics.contingency(candidate.whole(size.n, seed)):
            total, total_df = sums.get(name, (0.0, 0))
            sums[name] = (total + value, total_df + df)
    p, name = min((statistics.chi_square(*pair), name) for name, pair in sums.items())
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
    p = statistics.chi_square(statistic, df)
    return Verdict(test, n, statistic, p, p >= LEVEL, f"chi-square, df {df}")


def _over_seeds(test: str, candidate: Candidate, size: Size, score: Callable[[IntArray], float]) -> Verdict:
    spread = statistics.judge_spread(np.array([score(candidate.whole(size.n, seed)) for seed in range(size.seeds)]))
    p = min(spread.mean_p, spread.variance_p)
    detail = f"mean {spread.mean:.3f} (p {spread.mean_p:.2g}), variance ratio {spread.variance:.3f} (p {spread.variance_p:.2g})"
    return Verdict(test, size.n, spread.variance, p, p >= LEVEL, detail)


def _bias(what: str, bits: int, biases: list[float], flipped: list[int], pairs: int) -> Verdict:
    bound = MAX_BIAS * max(1.0, math.sqrt(BIAS_PAIRS / pairs))
    worst = int(np.argmax(biases))
    detail = f"largest bias when {what} bit {flipped[worst]} flips, bound {bound:.4f}"
    return Verdict("P10", 2**bits, biases[worst], None, biases[worst] <= bound, detail)


def _avalanche(candidate: Candidate, plan: Plan) -> list[Verdict]:
    if plan.avalanche_bits == 0:
        return []
    by_seed = p10_seed_avalanche(candidate, plan.avalanche_bits, plan.avalanche_seed_bits, plan.avalanche_positions)
    return [p10_input_avalanche(candidate, plan.avalanche_bits), by_seed]


TESTS: dict[str, Callable[[Candidate, Plan], list[Verdict]]] = {
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


def run_battery(candidate: Candidate, plan: Plan, *, tests: Iterable[str] | None = None) -> list[Verdict]:
    """Run all tests, or those named. P2 runs only on an :class:`Invertible`, P12 only on a :class:`Walking` candidate."""
    return [verdict for test in (TESTS if tests is None else tests) for verdict in TESTS[test](candidate, plan)]
