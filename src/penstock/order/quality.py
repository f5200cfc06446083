"""How random is an order, for training? Six measures, each next to its value for a perfect shuffle.

Records are grouped in blocks (runs of neighbouring ids, as files and chunks hold them), and labels are taken to be sorted, the
worst case: record i has label i * num_labels // n. The measures look at ``num_batches`` batches spread over an epoch, so an order
of 10**12 records is judged as quickly as one of 10**6.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from penstock.argument import IntArray, set_whole
from penstock.order.order import InvertibleOrder
from penstock.order.permutation import Permutation
from penstock.order.position import Shard

__all__ = ["Measure", "Setting", "chi2_survival", "measure"]


@dataclass(frozen=True)
class Measure:
    """One figure, what a perfect shuffle scores, and in words what it says."""

    name: str
    value: float
    ideal: float
    meaning: str


@dataclass(frozen=True)
class Setting:
    """Batches of ``batch_size`` over blocks of ``block`` records, ``num_labels`` sorted labels, ``world`` ranks."""

    batch_size: int
    block: int
    num_labels: int = 1000
    world: int = 8
    num_batches: int = 256

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 2), ("block", 1), ("num_labels", 2), ("world", 1), ("num_batches", 1)):
            set_whole(self, name, least=least)


def measure(order: InvertibleOrder, setting: Setting, *, epoch: int = 0) -> list[Measure]:
    """The six measures of a permutation order with at least two batches."""
    if len(order) < 2 * setting.batch_size:
        raise ValueError(f"expected an order of at least two batches of {setting.batch_size}, got {len(order)} records")
    n = len(order)
    setting = replace(setting, num_labels=min(setting.num_labels, n), world=min(setting.world, n))
    batches = _sample_batches(order, setting, epoch)
    return [
        Measure("S1", _same_block_pairs(batches, n, setting.block), 1.0, "pairs of a batch from one block, relative to chance"),
        Measure(
            "S2",
            _block_entropy(batches, setting.block),
            _ideal_entropy(n, setting),
            "bits of surprise about the block of a record",
        ),
        Measure(
            "S3",
            _distinct_labels(batches, n, setting),
            _ideal_labels(n, setting),
            "labels seen in one batch of label-sorted data",
        ),
        Measure(
            "S4", _reunited_pairs(order, batches, epoch), 1.0, "pairs of a batch together again next epoch, relative to chance"
        ),
        Measure("S5", _same_block_neighbours(order, setting, epoch), 1.0, "neighbours in time from one block, relative to chance"),
        Measure(
            "S6", _rank_label_p_value(order, setting, epoch), 0.5, "least p-value of a rank's labels (uneven ranks: below 1e-6)"
        ),
    ]


def _sample_batches(order: InvertibleOrder, setting: Setting, epoch: int) -> IntArray:
    """Ids of batches spread over the epoch without a pattern: shape (batches, batch size)."""
    total = len(order) // setting.batch_size
    chosen = Permutation(total, key=epoch).run(0, min(total, setting.num_batches))
    return np.stack([order.indices(epoch, int(b) * setting.batch_size, (int(b) + 1) * setting.batch_size) for b in chosen])


def _counts_per_row(groups: IntArray) -> list[IntArray]:
    return [np.unique(row, return_counts=True)[1] for row in groups]


def _same_block_pairs(batches: IntArray, n: int, block: int) -> float:
    size = batches.shape[1]
    pairs = np.mean([float((counts * (counts - 1)).sum()) for counts in _counts_per_row(batches // block)])
    return float(pairs / (size * (size - 1)) / _same_block_chance(n, block))


def _same_block_chance(n: int, block: int) -> float:
    """The probability that two different records lie in one block."""
    whole, rest = divmod(n, block)
    same = whole * block * (block - 1) + rest * (rest - 1)
    return same / (n * (n - 1)) if same else 1 / n  # blocks of one record: nothing to compare with


def _block_entropy(batches: IntArray, block: int) -> float:
    def bits(counts: IntArray) -> float:
        p = counts / counts.sum()
        return float(-(p * np.log2(p)).sum())

    return float(np.mean([bits(counts) for counts in _counts_per_row(batches // block)]))


def _ideal_entropy(n: int, setting: Setting) -> float:
    """The expected entropy if a batch were drawn from all records: hypergeometric counts per block, in closed form."""
    b = setting.batch_size
    whole, rest = divmod(n, setting.block)
    total = 0.0
    for size, number in ((setting.block, whole), (rest, 1)):
        for count in range(1, min(b, size) + 1):
            p = math.exp(_log_choose(size, count) + _log_choose(n - size, b - count) - _log_choose(n, b))
            total -= number * p * count / b * math.log2(count / b)
    return total


def _log_choose(n: int, k: int) -> float:
    """The logarithm of n over k; by products for small k, where differences of lgamma at huge n would lose every digit."""
    if k < 0 or k > n:
        return -math.inf
    if k < 4096:
        i = np.arange(k, dtype=np.float64)
        return float((np.log(float(n) - i) - np.log(i + 1)).sum())
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _labels(ids: IntArray, n: int, num_labels: int) -> IntArray:
    if n * num_labels < 2**63:
        return ids * num_labels // n
    return np.minimum((ids.astype(np.float64) * (num_labels / n)).astype(np.int64), num_labels - 1)


def _label_sizes(n: int, num_labels: int) -> list[int]:
    edges = [-(-k * n // num_labels) for k in range(num_labels + 1)]
    return [high - low for low, high in pairwise(edges)]


def _distinct_labels(batches: IntArray, n: int, setting: Setting) -> float:
    return float(np.mean([counts.size for counts in _counts_per_row(_labels(batches, n, setting.num_labels))]))


def _ideal_labels(n: int, setting: Setting) -> float:
    all_batches = _log_choose(n, setting.batch_size)
    sizes = Counter(_label_sizes(n, setting.num_labels))
    return sum(number * (1 - math.exp(_log_choose(n - size, setting.batch_size) - all_batches)) for size, number in sizes.items())


def _reunited_pairs(order: InvertibleOrder, batches: IntArray, epoch: int) -> float:
    size = batches.shape[1]
    together = 0.0
    for row in batches:
        _, counts = np.unique(order.positions(epoch + 1, row) // size, return_counts=True)
        together += float((counts * (counts - 1)).sum())
    return float(together / (batches.shape[0] * size * (size - 1)) / ((size - 1) / (len(order) - 1)))


def _same_block_neighbours(order: InvertibleOrder, setting: Setting, epoch: int) -> float:
    blocks = [ids // setting.block for ids in _sample_batches(order, setting, epoch)]
    same = float(np.mean([np.mean(row[1:] == row[:-1]) for row in blocks]))
    return same / _same_block_chance(len(order), setting.block)


def _rank_label_p_value(order: InvertibleOrder, setting: Setting, epoch: int) -> float:
    """The least of the ranks' chi-squared p-values, labels against the whole, corrected for the number of ranks."""
    n, per_rank = len(order), setting.num_batches * setting.batch_size
    labels = min(setting.num_labels, max(2, per_rank // 10))
    worst = 1.0
    for rank in range(setting.world):
        run = Shard(rank, setting.world).run(0, n)
        ids = order.indices(epoch, run.start, run.stop, max(1, -(-len(run) // per_rank)) * setting.world)
        counts = np.bincount(_labels(ids, n, labels), minlength=labels)
        if ids.size == n:
            continue  # one rank sees everything, and so every label in its share
        expected = np.array(_label_sizes(n, labels)) * (ids.size / n)
        # Without replacement the counts spread less than multinomial ones, by the share that was not looked at.
        spread = (n - ids.size) / (n - 1)
        worst = min(worst, chi2_survival(float(((counts - expected) ** 2 / expected).sum() / spread), labels - 1))
    return min(1.0, worst * setting.world)


def chi2_survival(x: float, df: int) -> float:
    """The probability that a chi-squared variable with ``df`` degrees of freedom exceeds x."""
    a, z = df / 2, x / 2
    if z <= 0:
        return 1.0
    scale = math.exp(a * math.log(z) - z - math.lgamma(a))
    return 1 - scale * _gamma_series(a, z) if z < a + 1 else scale * _gamma_fraction(a, z)


def _gamma_series(a: float, z: float) -> float:
    """Lower incomplete gamma without its scale: sum of z^k / (a (a+1) ... (a+k))."""
    term = total = 1 / a
    while term > total * 1e-16:
        a += 1
        term *= z / a
        total += term
    return total


def _gamma_fraction(a: float, z: float) -> float:
    """Upper incomplete gamma without its scale: a continued fraction, evaluated from the tail."""
    value = 0.0
    for k in range(int(200 + 10 * math.sqrt(a)), 0, -1):
        value = k * (k - a) / (z + 2 * k + 1 - a - value)
    return 1 / (z + 1 - a - value)
