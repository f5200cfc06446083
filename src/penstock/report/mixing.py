"""How well an order mixes the user's batches: six measures compared with a perfect shuffle, in plain words, and two pictures."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.argument import IntArray, as_positions, whole_number
from penstock.order import BlockShuffle, InvertibleOrder, Permutation, Shard, Shuffle
from penstock.order.locality import Locality, measure_locality
from penstock.order.quality import Measure, Setting, chi2_survival, measure
from penstock.records import Blocks, Source
from penstock.report.formatting import count, percent
from penstock.report.page import Section

Labels = Callable[[IntArray], IntArray]  # record ids -> a whole number for each, equal where the records are of one class
READ_WHOLE = 1 << 22  # up to this number of records, all labels are read at once
NUM_BATCHES = 128  # sampled batches, spread over the epoch
RANK_SAMPLES = 32768  # sampled records of each rank
CELLS = 64  # rows and columns of the heat map
CELL_SAMPLES = 64  # sampled records per cell, on average
CELL_RUNS = 8  # runs of positions they come from, per column
SHOWN_BATCHES = 48  # batches whose classes are shown
SHOWN_CLASSES = 6  # groups of classes in the picture
DEFAULT_CACHE = 16  # blocks that a reader keeps, unless the order mixes blocks


def sorted_labels(n: int, num_labels: int) -> Labels:
    """``num_labels`` classes of one size, one after the other."""
    number = min(whole_number("num_labels", num_labels, least=1), max(1, n))

    def labels(ids: IntArray) -> IntArray:
        if n * number < 2**63:
            return ids * number // n
        return np.minimum((ids.astype(np.float64) * (number / n)).astype(np.int64), number - 1)

    return labels


def field_labels(source: Source, field: str) -> Labels:
    """The values of a field that has one number or text per record."""
    if field not in source.schema:
        raise KeyError(f"unknown field {field!r}; there are {list(source.schema)}")
    one = source.schema[field]
    if one.is_fixed and one.shape not in ((), (1,)):
        raise ValueError(f"field {field!r}: expected one value per record as a label, found the shape {one.shape}")
    known: dict[Any, int] = {}

    def number(column: Any) -> IntArray:
        if isinstance(column, np.ma.MaskedArray) or not isinstance(column, np.ndarray):
            values = [_hashable(column[k]) for k in range(len(column))]
            return np.array([known.setdefault(value, len(known)) for value in values], np.int64)
        found, places = np.unique(column.reshape(-1), return_inverse=True)
        return np.array([known.setdefault(value, len(known)) for value in found.tolist()], np.int64)[places.reshape(-1)]

    def read(ids: IntArray) -> IntArray:
        parts = [number(source.read(part, [field])[field]) for part in np.array_split(ids, max(1, len(ids) // 65536))]
        return np.concatenate(parts)

    if len(source) > READ_WHOLE:
        return read
    whole = read(np.arange(len(source)))
    return lambda ids: whole[ids]


def _hashable(value: Any) -> Any:
    if value is np.ma.masked or value is None:
        return None
    return value.tobytes() if isinstance(value, np.ndarray) else value


def sample_batches(order: InvertibleOrder, batch_size: int, epoch: int, labels: Labels) -> IntArray:
    """The labels of batches spread over an epoch without a pattern, a row each."""
    total = len(order) // batch_size
    chosen = Permutation(total, key=epoch).run(0, min(total, NUM_BATCHES))
    ids = np.concatenate([order.indices(epoch, int(b) * batch_size, (int(b) + 1) * batch_size) for b in chosen])
    return labels(ids).reshape(len(chosen), batch_size)


def _counts(batches: IntArray) -> list[IntArray]:
    return [np.unique(row, return_counts=True)[1] for row in batches]


def class_mix(batches: IntArray) -> float:
    """How many classes of one size a batch is worth: the exponential of the entropy of its labels, averaged over the batches."""

    def worth(counts: IntArray) -> float:
        p = counts / counts.sum()
        return float(np.exp(-(p * np.log(p)).sum()))

    return float(np.mean([worth(counts) for counts in _counts(batches)]))


def distinct_labels(batches: IntArray) -> float:
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


@dataclass(frozen=True)
class Judgement:
    """A measure and its value for a perfect shuffle: ``word`` is good, fair or poor, ``told`` says what it means here."""

    name: str
    meaning: str
    value: float
    ideal: float
    word: str
    told: str


_MEANINGS = {
    "S1": ("records of one block meet in a batch as rarely as by chance", "records of one block meet in a batch {often}"),
    "S2": ("the records of a batch come from as many blocks as by chance", "a batch is worth {blocks}"),
    "S3": ("a batch shows as many labels as that of a perfect shuffle", "a batch shows {labels} in a perfect shuffle"),
    "S4": ("records of one batch meet again in the next epoch only by chance", "records of one batch meet again {often}"),
    "S5": ("neighbours in time come from one block as rarely as by chance", "neighbours in time come from one block {often}"),
}  # what a measure means if it is good, and otherwise


def _judge(measure: Measure, *, n: int, batch_size: int, world: int) -> Judgement:
    word, told = _judge_ranks(measure, world) if measure.name == "S6" else _judge_batches(measure, n, batch_size)
    return Judgement(measure.name, measure.meaning, measure.value, measure.ideal, word, told)


def _judge_batches(measure: Measure, n: int, batch_size: int) -> tuple[str, str]:
    value, ideal = measure.value, measure.ideal
    if measure.name == "S4":
        expected = min(256, n // batch_size) * batch_size * (batch_size - 1) / 2 * (batch_size - 1) / (n - 1)
        if expected < 20 and value < 20:
            return "good", "so few pairs meet again by chance that there is nothing to judge"
    share = value / ideal if ideal > 0 else 1.0
    figure, fair, poor = (1 - share, 0.03, 0.2) if measure.name in ("S2", "S3") else (value, 1.5, 8)
    good, otherwise = _MEANINGS[measure.name]
    if figure <= fair:
        return "good", good
    blocks = f"{count(2**value)} blocks, that of a perfect shuffle {count(2**ideal)}" if measure.name == "S2" else ""
    labels = f"{percent(share)} of the labels that it would show"
    told = otherwise.format(often=f"{count(value)} times as often as by chance", blocks=blocks, labels=labels)
    return "fair" if figure <= poor else "poor", told


def _judge_ranks(measure: Measure, world: int) -> tuple[str, str]:
    if world == 1:
        return "good", "there is one rank, and it sees everything"
    if measure.value >= 1e-3:
        return "good", f"{world} ranks see the same mix of labels"
    if measure.value >= 1e-6:
        return "fair", f"{world} ranks may see different mixes of labels"
    return "poor", f"{world} ranks see different mixes of labels within an epoch; the next epoch deals them differently"


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
    verdicts: tuple[Judgement, ...]
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
        from penstock.report.sections import mixing_section

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
    told = f"{num_labels:,} sorted classes (the worst case)"
    if labels is not None:
        told = f"{np.unique(mine).size:,} classes of the data"
        found = _with_labels(found, order, mine, ideal, world, epoch, classes)
    return Mixing(
        order=repr(order),
        records=n,
        batch_size=batch_size,
        world=world,
        labels=told,
        verdicts=tuple(_judge(one, n=n, batch_size=batch_size, world=world) for one in found),
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
    found: list[Measure], order: InvertibleOrder, mine: IntArray, ideal: IntArray, world: int, epoch: int, labels: Labels
) -> list[Measure]:
    """The measures, with those that depend on classes computed from the true ones."""
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
