"""Orders that a visitor chooses: what is in a batch, and the order as a picture of a bounded number of points."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray, Order
from penstock.loader import Loader
from penstock.order import BlockShuffle
from penstock.order.seed import MAX_SEED
from penstock.records import Source
from penstock.stream.stream import RecordStream
from penstock.view.cell import plain_number
from penstock.view.query import Query

__all__ = ["PARAMETERS", "Choice", "batch_of", "label_fields", "mix_of", "picture_of", "places_of"]

PARAMETERS = ("order", "seed", "batch", "block", "window", "lanes")
MOST = 2**31
MOST_BATCH = 65_536
NUM_POINTS = 12_000
NUM_SAMPLES = 150_000
"""Positions that are looked at for the heat map."""
MOST_BINS, LEAST_BINS = 64, 8
NUM_GROUPS = 256
"""Groups of a block shuffle that are looked at."""
MIX_BATCHES = 48
MIX_SAMPLES = 128
"""So many samples of a batch are looked at for its classes."""
MIX_CLASSES = 10
SCALE = 65_535
"""Points are sent as whole numbers from 0 to this."""


@dataclass(frozen=True)
class Choice:
    """An order and a batch size, as for ``penstock explain``."""

    in_order: bool
    seed: int
    batch_size: int
    block: int | None
    window: int | None
    lanes: int

    @classmethod
    def of(cls, query: Query) -> "Choice":
        """What the parameters say."""
        return cls(
            query.choice("order", ("shuffle", "in-order"), "shuffle") == "in-order",
            query.whole("seed", 0, most=MAX_SEED),
            query.whole("batch", 64, least=1, most=MOST_BATCH),
            query.optional("block", least=1, most=MOST),
            query.optional("window", least=1, most=MOST),
            query.whole("lanes", 1, least=1, most=256),
        )

    def stream(self, source: Source) -> RecordStream:
        """The records in that order."""
        if self.in_order:
            return source.in_order()
        return source.shuffle(seed=self.seed, block=self.block, window=self.window, lanes=self.lanes)

    def loader(self, source: Source) -> Loader:
        """The batches; nothing is read."""
        return Loader(self.stream(source), self.batch_size)


def batch_of(source: Source, choice: Choice, step: int) -> tuple[dict[str, Any], IntArray]:
    """Where the batch of a step stands, and the ids of its records."""
    loader = choice.loader(source)
    found = loader.explain(step)
    about = {name: found[name] for name in ("step", "epoch", "position")}
    return {**about, "samples": len(found["ids"]), "steps": len(loader), "text": repr(choice.stream(source).order)}, found["ids"]


def places_of(source: Source, choice: Choice, record: int, epoch: int) -> list[dict[str, int]]:
    """When a record comes in an epoch."""
    return choice.loader(source).where(record, epochs=range(epoch, epoch + 1))


def picture_of(source: Source, choice: Choice, epoch: int) -> dict[str, Any]:
    """Positions of an epoch (x) and the records at them (y): some points, and how many there are in each square of a grid."""
    order, length = choice.stream(source).order, len(source)
    positions = _sampled(order, NUM_SAMPLES)
    ids = order.at(epoch, positions)
    bins = int(np.clip((len(positions) / 6) ** 0.5, LEAST_BINS, MOST_BINS))
    counts, _, _ = np.histogram2d(ids / max(1, length), positions / max(1, len(order)), bins=bins, range=[[0, 1], [0, 1]])
    few = positions[_spread(len(positions), NUM_POINTS)]
    return {
        "text": repr(order),
        "length": length,
        "steps": -(-len(order) // choice.batch_size),
        "x": _scaled(few, len(order)),
        "y": _scaled(ids[_spread(len(ids), NUM_POINTS)], length),
        "bins": bins,
        "counts": counts.astype(np.int64).reshape(-1).tolist(),
        "points": len(few),
        "samples": len(positions),
    }


def _scaled(values: IntArray, length: int) -> list[int]:
    scaled: list[int] = ((values + 0.5) * (SCALE / max(1, length))).astype(np.int64).tolist()
    return scaled


def _sampled(order: Order, most: int) -> IntArray:
    """Positions all over an epoch. Every group of a block shuffle that is touched costs up to a millisecond, and memory, so of many
    groups only some are looked at, with a run of positions in each.
    """
    if not isinstance(order, BlockShuffle) or order.num_blocks <= NUM_GROUPS * (order.window or order.num_blocks):
        return _spread(len(order), most)
    runs = max(4, NUM_GROUPS // order.lanes)
    starts = _spread(len(order) - most // runs, runs)
    return np.unique(starts[:, None] + np.arange(most // runs))


def _spread(length: int, most: int) -> IntArray:
    """All positions, or so many: one from each of as many pieces, at random, because a fixed distance could hide a pattern."""
    if length <= most:
        return np.arange(length, dtype=np.int64)
    whole, rest = divmod(length, most)
    places = np.arange(most + 1, dtype=np.int64)
    edges = places * whole + places * rest // most
    return np.random.default_rng(0).integers(edges[:-1], edges[1:])


def label_fields(source: Source) -> list[str]:
    """Fields that may be classes: whole numbers, one a record; those that are called so come first."""
    names = [name for name, field in source.schema.items() if field.is_fixed and not field.shape and field.dtype.kind in "biu"]
    return sorted(names, key=lambda name: ("label" not in name.lower() and "class" not in name.lower(), names.index(name)))


def mix_of(source: Source, choice: Choice, epoch: int, field: str) -> dict[str, Any]:
    """The shares of classes in batches that are spread over an epoch; the classes beyond the largest few are the last one."""
    order = choice.stream(source).order
    groups = min(choice.lanes, choice.batch_size)  # that a batch may touch
    steps = _spread(-(-len(order) // choice.batch_size), min(MIX_BATCHES, max(4, 2 * NUM_GROUPS // groups)))
    positions = [_samples(int(step) * choice.batch_size, choice.batch_size, len(order)) for step in steps]
    if not positions:
        return {"steps": [], "classes": [], "shares": [], "distinct": 0, "in_batch": 0.0, "most": MIX_SAMPLES}
    values = source.read(order.at(epoch, np.concatenate(positions)), [field])[field]
    present, table = _shares(values, [len(part) for part in positions])
    largest = np.sort(np.argsort(-table.sum(axis=0), kind="stable")[:MIX_CLASSES])
    rest = 1 - table[:, largest].sum(axis=1, keepdims=True)
    shares = table[:, largest] if len(largest) == len(present) else np.hstack([table[:, largest], rest])
    return {
        "steps": [int(step) for step in steps],
        "classes": [str(plain_number(value)) for value in present[largest]],
        "shares": np.round(shares, 4).tolist(),
        "distinct": len(present),
        "in_batch": float((table > 0).sum(axis=1).mean()),
        "most": MIX_SAMPLES,
    }


def _shares(values: Any, sizes: list[int]) -> tuple[Any, npt.NDArray[np.float64]]:
    """The classes there are, and for every batch the share of each; missing labels do not count."""
    present, codes = np.unique(np.ma.getdata(values), return_inverse=True)
    batch, there = np.repeat(np.arange(len(sizes)), sizes), ~np.ma.getmaskarray(values)
    table = np.zeros((len(sizes), len(present)))
    np.add.at(table, (batch[there], codes.reshape(-1)[there]), 1)
    return present, table / np.maximum(1, table.sum(axis=1, keepdims=True))


def _samples(start: int, batch_size: int, end: int) -> IntArray:
    return start + _spread(min(batch_size, end - start), MIX_SAMPLES)
