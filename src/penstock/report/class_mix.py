"""The classes in batches of an order: how many a batch is worth, how many there are in it, whether ranks see the same."""

from dataclasses import dataclass

import numpy as np

from penstock.interfaces import IntArray, InvertibleOrder
from penstock.order import Permutation, Shard
from penstock.order.quality import chi2_survival
from penstock.report.labels import Labels

__all__ = ["Batches", "class_mix", "distinct_labels", "rank_p_value", "sample_batches", "spread_runs"]

NUM_BATCHES = 128
"""Batches that are looked at, spread over the epoch."""

RANK_SAMPLES = 32768
"""Records of each rank that are looked at."""


@dataclass(frozen=True)
class Batches:
    """Labels of batches, a row each."""

    labels: IntArray

    @property
    def num_labels(self) -> int:
        """Different labels in all of them."""
        return int(np.unique(self.labels).size)


def sample_batches(order: InvertibleOrder, batch_size: int, epoch: int, labels: Labels) -> Batches:
    """The labels of batches spread over an epoch without a pattern."""
    total = len(order) // batch_size
    chosen = Permutation(total, key=epoch).run(0, min(total, NUM_BATCHES))
    ids = np.concatenate([order.indices(epoch, int(b) * batch_size, (int(b) + 1) * batch_size) for b in chosen])
    return Batches(labels(ids).reshape(len(chosen), batch_size))


def _counts(batches: Batches) -> list[IntArray]:
    return [np.unique(row, return_counts=True)[1] for row in batches.labels]


def class_mix(batches: Batches) -> float:
    """How many classes of one size a batch is worth: the exponential of the entropy of its labels, averaged over the batches."""

    def worth(counts: IntArray) -> float:
        p = counts / counts.sum()
        return float(np.exp(-(p * np.log(p)).sum()))

    return float(np.mean([worth(counts) for counts in _counts(batches)]))


def distinct_labels(batches: Batches) -> float:
    """Labels in a batch, averaged over the batches."""
    return float(np.mean([counts.size for counts in _counts(batches)]))


def rank_p_value(order: InvertibleOrder, world: int, epoch: int, labels: Labels) -> float:
    """The chance that ranks which see the same mix of labels differ as much as these: a chi-squared test of their counts.
    Labels that are too rare for the test count as one.
    """
    if world == 1:
        return 1.0
    seen = [_labels_of_rank(order, Shard(rank, world), epoch, labels) for rank in range(world)]
    table = np.stack([np.bincount(one, minlength=max(int(s.max()) for s in seen) + 1) for one in seen]).astype(np.float64)
    rare = table.sum(axis=0) < 5 * world
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    freedom = (world - 1) * (table.shape[1] - 1)
    return 1.0 if freedom == 0 else chi2_survival(float(((table - expected) ** 2 / expected).sum()), freedom)


def _labels_of_rank(order: InvertibleOrder, shard: Shard, epoch: int, labels: Labels) -> IntArray:
    """Of records in runs spread over all of the epoch: its end has other blocks than its beginning."""
    parts = [shard.run(run.start, run.stop) for run in spread_runs(len(order), NUM_BATCHES, RANK_SAMPLES * shard.world)]
    return labels(np.concatenate([order.indices(epoch, part.start, part.stop, part.step) for part in parts]))


def spread_runs(n: int, number: int, total: int) -> list[range]:
    """Runs of positions, evenly spread over [0, n), ``total`` positions in all; everything if there are no more. Orders that
    work in groups of records do so once for each run, not for each position.
    """
    if n <= total:
        return [range(n)]
    length = total // number
    return [range(start, start + length) for start in (k * (n - length) // (number - 1) for k in range(number))]
