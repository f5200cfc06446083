"""The statistics of the permutation battery: numbers of arrays, and the p-value of a number under a uniform permutation.

Every null distribution here is that of a permutation, not of independent draws: where fixing every item to occur once shifts the
mean of a statistic, it is scaled back to the exact mean, and the docstring gives the factor. All p-values are two-sided, because
an order that is too even is no more random than one that is too lumpy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray

__all__ = [
    "Spread",
    "chi_square",
    "contingency",
    "descent_z",
    "flip_bias",
    "judge_spread",
    "lag_z",
    "lags_of",
    "poisson_fit",
    "rank_z",
]

FloatArray = npt.NDArray[np.float64]

FOLDS = (4, 3, 2, 1)
"""Bits of position and image that :func:`contingency` compares."""


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


@dataclass(frozen=True, slots=True)
class Spread:
    """Whether numbers look standard normal in the mean and in the variance. The second finds what the first averages away."""

    mean: float
    variance: float
    mean_p: float
    variance_p: float


def judge_spread(z: FloatArray) -> Spread:
    """Judge numbers of mean 0 and variance 1 under the null: the scaled sum as normal, the sum of squares as chi-square."""
    mean_p = 2 * float(_special().ndtr(-abs(z.sum()) / math.sqrt(z.size)))
    return Spread(float(z.mean()), float((z * z).mean()), mean_p, chi_square(float((z * z).sum()), z.size))


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
