"""How well an order mixes, for the user's batches: six measures beside a perfect shuffle, in plain words, and two pictures."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.argument import as_positions, whole_number
from penstock.interfaces import IntArray, InvertibleOrder
from penstock.order import BlockShuffle, Permutation, Shard, Shuffle
from penstock.order.locality import Locality, measure_locality
from penstock.order.quality import Measure, Setting, measure
from penstock.records import Blocks
from penstock.report.class_mix import Batches, class_mix, distinct_labels, rank_p_value, sample_batches, spread_runs
from penstock.report.labels import Labels, sorted_labels
from penstock.report.section import Section
from penstock.report.verdict import Verdict, judge

__all__ = ["Mixing", "Suggestion", "measure_order"]

CELLS = 64
"""Rows and columns of the heat map."""

CELL_SAMPLES = 64
"""Records that are looked at for each cell of it, on average."""

CELL_RUNS = 8
"""Runs of positions from which they come, for each column."""

SHOWN_BATCHES = 48
"""Batches whose classes are shown."""

DEFAULT_CACHE = 16
"""Blocks that are kept, unless the order mixes blocks."""

SHOWN_CLASSES = 6
"""Into so many groups classes are put for the picture."""


@dataclass(frozen=True)
class Suggestion:
    """The smallest window that reaches a share ``target`` of the class mix of a perfect shuffle, and the bytes in flight that it
    takes (None if the size of a record is not known). ``window`` is None if that takes a global shuffle.
    """

    target: float
    block: int
    window: int | None
    class_mix: float
    records: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Mixing:
    """What was found about an order. ``class_mix`` is the number of classes that a batch is worth (the exponential of the entropy
    of its labels), ``ideal_class_mix`` that of a perfect shuffle. ``heat`` counts records by place in the epoch (rows) and id
    (columns), relative to an even spread; ``classes`` has the share of groups of classes in batches spread over the epoch.
    ``locality`` is what rank 0 reads; its bytes are records if the size of records is not known. ``reads_blocks`` says whether
    the data is read in whole blocks, None if that is not known.
    """

    order: str
    records: int
    batch_size: int
    world: int
    labels: str
    verdicts: tuple[Verdict, ...]
    class_mix: float
    ideal_class_mix: float
    suggestion: Suggestion
    locality: Locality
    reads_blocks: bool | None
    heat: tuple[tuple[float, ...], ...]
    ideal_heat: tuple[tuple[float, ...], ...]
    classes: tuple[tuple[float, ...], ...]
    ideal_classes: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> float:
        """The class mix as a share of that of a perfect shuffle."""
        return self.class_mix / self.ideal_class_mix

    def section(self) -> Section:
        """As a page shows it."""
        from penstock.report.mixing_section import mixing_section

        return mixing_section(self)


def measure_order(
    order: InvertibleOrder,
    *,
    batch_size: int = 256,
    block: int | None = None,
    world: int = 1,
    num_labels: int = 1000,
    labels: Labels | None = None,
    record_bytes: float | None = None,
    target: float = 0.95,
    epoch: int = 0,
    blocks: Blocks | None = None,
    reads_blocks: bool | None = None,
    cache: int | None = None,
) -> Mixing:
    """Judge an order. ``block`` is the run of neighbouring records that files hold together (that of the order, or 1,024, unless
    given); ``labels`` gives the class of records, ``num_labels`` sorted classes unless given. ``blocks`` are what is read at a
    time (runs of ``block`` records unless given), ``cache`` the number of them that are kept: those that a block shuffle mixes,
    or 16, unless given.
    """
    n, batch_size = len(order), whole_number("batch_size", batch_size, least=2)
    if not isinstance(order, InvertibleOrder):
        raise TypeError(f"expected an order that has every record once, such as Shuffle(n, seed=7), got {order!r}")
    if n < 2 * batch_size:
        raise ValueError(f"expected at least two batches of {batch_size}, got {n} records: give a smaller batch size")
    if not 0 < target <= 1:
        raise ValueError(f"target must be above 0 and at most 1, got {target}")
    seed = int(getattr(order, "seed", 0))
    block = whole_number("block", getattr(order, "block", min(1024, n)) if block is None else block, least=1)
    trial = BlockShuffle(n, block=min(block, n), lanes=getattr(order, "lanes", 1), seed=seed)
    perfect = Shuffle(n, seed=seed ^ 0x5EED)
    classes = sorted_labels(n, num_labels) if labels is None else labels
    mine, ideal = (sample_batches(one, batch_size, epoch, classes) for one in (order, perfect))
    found = measure(order, Setting(batch_size, block, num_labels=max(2, num_labels), world=world), epoch=epoch)
    if labels is not None:
        found = _with_labels(found, order, mine, ideal, world, epoch, classes)
    return Mixing(
        order=repr(order),
        records=n,
        batch_size=batch_size,
        world=world,
        labels=f"{num_labels:,} sorted classes (the worst case)" if labels is None else f"{mine.num_labels:,} classes of the data",
        verdicts=tuple(judge(one, n=n, batch_size=batch_size, world=world) for one in found),
        class_mix=class_mix(mine),
        ideal_class_mix=class_mix(ideal),
        locality=measure_locality(
            order,
            Blocks(n, block) if blocks is None else blocks,
            batch_size=batch_size,
            cache=_kept_blocks(order) if cache is None else cache,
            record_bytes=1.0 if record_bytes is None else record_bytes,
            shard=Shard(0, world if batch_size % world == 0 else 1),
            epoch=epoch,
        ),
        reads_blocks=reads_blocks,
        suggestion=_suggest(trial, batch_size, classes, class_mix(ideal), target, record_bytes),
        heat=_heat(order, epoch),
        ideal_heat=_heat(perfect, epoch),
        classes=_shares(order, batch_size, epoch, classes, n),
        ideal_classes=_shares(perfect, batch_size, epoch, classes, n),
    )


def _kept_blocks(order: InvertibleOrder) -> int:
    if not isinstance(order, BlockShuffle):
        return DEFAULT_CACHE
    return min(order.num_blocks, (order.window or order.num_blocks) * order.lanes)


def _with_labels(
    found: list[Measure], order: InvertibleOrder, mine: Batches, ideal: Batches, world: int, epoch: int, labels: Labels
) -> list[Measure]:
    """The measures in which the true classes count, anew."""
    even = rank_p_value(order, world, epoch, labels)
    own = [
        Measure("S3", distinct_labels(mine), distinct_labels(ideal), "labels seen in one batch"),
        Measure("S6", even, 0.5, "p-value of the ranks' labels (uneven ranks: below 1e-6)"),
    ]
    anew = {one.name: one for one in own}
    return [anew.get(one.name, one) for one in found]


def _suggest(
    trial: BlockShuffle, batch_size: int, labels: Labels, ideal: float, target: float, record_bytes: float | None
) -> Suggestion:
    """Windows twice as large until one is enough, then the smallest of those between."""
    n, block, blocks = trial.n, trial.block, trial.num_blocks

    def mix(window: int) -> float:
        return class_mix(sample_batches(replace(trial, window=window), batch_size, 0, labels)) / ideal

    high = 1
    while high < blocks and mix(high) < target:
        high *= 2
    low, high = high // 2 + 1, min(high, blocks)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if mix(middle) >= target else (middle + 1, high)
    window, reached = (high, mix(high)) if high < blocks else (None, 1.0)
    records = min(n, high * block * trial.lanes)
    return Suggestion(target, block, window, reached, records, None if record_bytes is None else int(records * record_bytes))


def _heat(order: InvertibleOrder, epoch: int) -> tuple[tuple[float, ...], ...]:
    """Records by place in the epoch and id, relative to an even spread: from everywhere, or from runs that are spread evenly."""
    n = len(order)
    cells = min(CELLS, n)
    runs = spread_runs(n, cells * CELL_RUNS, cells * cells * CELL_SAMPLES)
    positions = np.concatenate([as_positions(run) for run in runs])
    ids = np.concatenate([order.indices(epoch, run.start, run.stop) for run in runs])
    rows, columns = (np.minimum((values / n * cells).astype(np.int64), cells - 1) for values in (positions, ids))
    counts = np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)
    return _plain(counts / (positions.size / cells**2))


def _shares(order: InvertibleOrder, batch_size: int, epoch: int, labels: Labels, n: int) -> tuple[tuple[float, ...], ...]:
    """The share of each group of classes in batches spread over the epoch: a row per batch."""
    total = n // batch_size
    number = min(SHOWN_BATCHES, total)
    starts = [k * total // number * batch_size for k in range(number)]
    ids = np.concatenate([order.indices(epoch, start, start + batch_size) for start in starts])
    groups = _groups(labels, n)
    which = groups[labels(ids)].reshape(number, batch_size)
    return _plain(np.stack([np.bincount(row, minlength=int(groups.max()) + 1) / batch_size for row in which]))


def _groups(labels: Labels, n: int) -> IntArray:
    """A group for each class, so that groups have about the same number of records; classes stay in their order."""
    sample = labels(Permutation(n, key=1).run(0, min(n, 65536)) if n > 65536 else np.arange(n))
    counts = np.bincount(sample)
    before = np.cumsum(counts) - counts
    found: IntArray = np.minimum(before * SHOWN_CLASSES // max(1, int(counts.sum())), SHOWN_CLASSES - 1).astype(np.int64)
    return np.concatenate([found, np.full(1 << 16, found[-1])])  # a class that was not in the sample


def _plain(table: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(value, 4) for value in row) for row in table.tolist())
