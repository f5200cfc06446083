"""The data that is shown: its generations and fields, the chunks of a store, and its order: batches, positions, class mix."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.loader import Loader
from penstock.order import BlockShuffle
from penstock.order.order import Order
from penstock.order.permutation import MAX_SEED
from penstock.records import Source
from penstock.schema import Field
from penstock.store.generation import generations, load_redirects, storage_of
from penstock.store.reader import Store
from penstock.store.row_map import live_rows
from penstock.stream import Stream
from penstock.stream.documents import has_tokens
from penstock.stream.stream import RecordStream
from penstock.view.guard import Query
from penstock.view.records import MOST_NAME, class_names, edges, plain_number, sendable

MOST_OPEN = 4  # generations that are kept open in addition to the first one
MOST_GENERATIONS = 500

Open = Callable[[int | None], Source]  # opens the data, or a generation of it
MOST_CHUNKS = 2000  # chunks that are shown, from the first on
PARAMETERS = ("order", "seed", "batch", "block", "window", "lanes", "samples", "length", "tokens")
MOST = 2**31
MOST_BATCH = 65_536
MOST_LENGTH = 1 << 20  # tokens of a sequence
NUM_POINTS = 12_000
NUM_SAMPLES = 150_000  # positions that are looked at for the heat map
MOST_BINS, LEAST_BINS = 64, 8
NUM_GROUPS = 256  # groups of a block shuffle that are looked at
MIX_BATCHES = 48
MIX_SAMPLES = 128  # samples of a batch whose classes are counted
MIX_CLASSES = 10
SCALE = 65_535  # points are sent as whole numbers from 0 to this


class ShownData:
    """A source and, if it is a store, its other generations. Safe to use from several threads."""

    def __init__(self, opener: Open, words: Sequence[str]) -> None:
        self._open, self.words = opener, tuple(words)
        self._lock = threading.Lock()
        self._others: dict[int, Source] = {}
        self._loaders: dict[tuple[Source, OrderChoice], Loader] = {}
        self._first = opener(None)

    def at(self, generation: int | None) -> Source:
        """The source; of a store, a generation of it."""
        first = self._first
        if generation is None or not isinstance(first, Store) or generation == first.generation:
            return first
        with self._lock:
            if generation not in self._others:
                self._others[generation] = self._open(generation)
            while len(self._others) > MOST_OPEN:  # not closed: another thread may be reading; it goes with its last reader
                self._others.pop(next(iter(self._others)))
            return self._others[generation]

    def loader(self, source: Source, choice: "OrderChoice") -> Loader:
        """The loader of a choice; the last ones are kept, because packs of many documents take a while to plan."""
        with self._lock:
            if (source, choice) not in self._loaders:
                self._loaders[source, choice] = choice.loader(source)
            while len(self._loaders) > MOST_OPEN:
                self._loaders.pop(next(iter(self._loaders)))
            return self._loaders[source, choice]

    def close(self) -> None:
        """Close everything. Idempotent."""
        for source in (self._first, *self._others.values()):
            source.close()


def describe(source: Source) -> dict[str, Any]:
    """Everything about a source that is known without reading records."""
    found: dict[str, Any] = {
        "kind": type(source).__name__,
        "records": len(source),
        "fields": [_describe_field(name, field) for name, field in source.schema.items()],
        "blocks": {"count": len(source.blocks), "records": source.blocks.size, "read_whole": source.reads_blocks},
        "fingerprint": source.fingerprint,
    }
    if isinstance(source, Store):
        found["generation"] = source.generation
        found["generations"] = generations(source.path)[-MOST_GENERATIONS:]
    return found


def _describe_field(name: str, field: Field) -> dict[str, Any]:
    fixed = field.is_fixed
    return {
        "name": name,
        "kind": field.kind,
        "dtype": None if field.kind in ("text", "bytes") else str(field.dtype),
        "shape": list(field.shape) if fixed else None,
        "bytes": field.stride if fixed else None,
        "codec": repr(field.codec),
        "picture": fixed and edges(field.dtype, field.shape) is not None,
    }


def place_of(word: str) -> str:
    """The path or URL that a word of the command line names: PATH, or NAME=PATH."""
    name, equals, place = word.partition("=")
    return place if equals and name.isidentifier() else word


def without_paths(text: str, words: Sequence[str]) -> str:
    """A message without paths of this machine: names of the command line stay, others lose their directories."""
    for word in words:
        place = place_of(word)
        text = text.replace(str(Path(place).absolute()), os.path.basename(place.rstrip("/")) or place)
    return re.sub(r"(?<![\w.:/])/(?:[^\s:'\"/]+/)*([^\s:'\"/]+)", r"\1", text)


def chunk_map(store: Store) -> dict[str, Any]:
    """One entry a chunk. Of fields with records of varying size, live bytes are taken in proportion to rows."""
    manifest = store.manifest
    rows = live_rows(manifest, load_redirects(store.path, manifest))
    shown = manifest.chunks[:MOST_CHUNKS]
    found = []
    for chunk, fields in zip(shown, storage_of(store.path).each(store.chunks.chunk_fields, range(len(shown))), strict=True):
        live = sum(size * rows.get((chunk.number, number), 0) // max(1, chunk.rows) for number, size, _ in fields)
        full = max(chunk.decoded / manifest.chunk_bytes, chunk.rows / manifest.chunk_records)
        stored = sum(size for _, size, _ in fields)
        found.append({"number": chunk.number, "rows": chunk.rows, "stored": stored, "live": live, "full": round(min(1.0, full), 3)})
    return {
        "generation": store.generation,
        "chunks": found,
        "total": len(manifest.chunks),
        "stored": sum(entry["stored"] for entry in found),
        "live": sum(entry["live"] for entry in found),
        "chunk_bytes": manifest.chunk_bytes,
        "redirects": len(manifest.redirects),
    }


@dataclass(frozen=True)
class OrderChoice:
    """An order and a batch size, as for ``penstock explain``."""

    in_order: bool
    seed: int
    batch_size: int
    block: int | None
    window: int | None
    lanes: int
    samples: str = "records"
    length: int = 2048
    tokens: int | None = None
    """The place of the field whose values are documents; None where there is only one."""

    @classmethod
    def of(cls, query: Query) -> "OrderChoice":
        return cls(
            query.choice("order", ("shuffle", "in-order"), "shuffle") == "in-order",
            query.whole("seed", 0, most=MAX_SEED),
            query.whole("batch", 64, least=1, most=MOST_BATCH),
            query.optional("block", least=1, most=MOST),
            query.optional("window", least=1, most=MOST),
            query.whole("lanes", 1, least=1, most=256),
            query.choice("samples", ("records", "packs", "sequences"), "records"),
            query.whole("length", 2048, least=1, most=MOST_LENGTH),
            query.optional("tokens", most=4096),
        )

    def stream(self, source: Source) -> RecordStream:
        if self.in_order:
            return source.in_order()
        return source.shuffle(seed=self.seed, block=self.block, window=self.window, lanes=self.lanes)

    def samples_of(self, source: Source) -> Stream:
        """The stream of records, or of sequences put together from documents."""
        stream, names = self.stream(source), document_fields(source)
        if self.samples == "records":
            return stream
        field = None if self.tokens is None or len(names) < 2 else list(source.schema)[self.tokens]
        return stream.pack(self.length, field=field) if self.samples == "packs" else stream.sequences(self.length, field=field)

    def loader(self, source: Source) -> Loader:
        """The batches; no record is read, but for the lengths of documents that are put together."""
        return Loader(self.samples_of(source), self.batch_size)


def document_fields(source: Source) -> list[str]:
    """Fields whose values may be documents: texts, byte strings, and tokens of varying number."""
    return [name for name, field in source.schema.items() if not field.is_fixed and (field.kind != "ragged" or has_tokens(field))]


def picture_of(source: Source, choice: OrderChoice, epoch: int) -> dict[str, Any]:
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
    """All positions, or ``most``: a random one from each piece of equal length, because a fixed distance could hide a pattern."""
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


def mix_of(source: Source, choice: OrderChoice, epoch: int, field: str) -> dict[str, Any]:
    """The shares of classes in batches that are spread over an epoch; the classes beyond the largest few are the last one."""
    order = choice.stream(source).order
    groups = min(choice.lanes, choice.batch_size)  # that a batch may touch
    steps = _spread(-(-len(order) // choice.batch_size), min(MIX_BATCHES, max(4, 2 * NUM_GROUPS // groups)))
    starts = [int(step) * choice.batch_size for step in steps]
    positions = [start + _spread(min(choice.batch_size, len(order) - start), MIX_SAMPLES) for start in starts]
    if not positions:
        return {"steps": [], "classes": [], "shares": [], "distinct": 0, "in_batch": 0.0, "most": MIX_SAMPLES}
    values = source.read(order.at(epoch, np.concatenate(positions)), [field])[field]
    present, table = _shares(values, [len(part) for part in positions])
    largest = np.sort(np.argsort(-table.sum(axis=0), kind="stable")[:MIX_CLASSES])
    rest = 1 - table[:, largest].sum(axis=1, keepdims=True)
    shares = table[:, largest] if len(largest) == len(present) else np.hstack([table[:, largest], rest])
    return {
        "steps": [int(step) for step in steps],
        "classes": [_class_name(class_names(source, field), value) for value in present[largest]],
        "shares": np.round(shares, 4).tolist(),
        "distinct": len(present),
        "in_batch": float((table > 0).sum(axis=1).mean()),
        "most": MIX_SAMPLES,
    }


def _class_name(names: Sequence[str], value: Any) -> str:
    number = plain_number(value)
    return sendable(names[number][:MOST_NAME]) if isinstance(number, int) and 0 <= number < len(names) else str(number)


def _shares(values: Any, sizes: list[int]) -> tuple[Any, npt.NDArray[np.float64]]:
    """The classes there are, and for every batch the share of each; missing labels do not count."""
    present, codes = np.unique(np.ma.getdata(values), return_inverse=True)
    batch, there = np.repeat(np.arange(len(sizes)), sizes), ~np.ma.getmaskarray(values)
    table = np.zeros((len(sizes), len(present)))
    np.add.at(table, (batch[there], codes.reshape(-1)[there]), 1)
    return present, table / np.maximum(1, table.sum(axis=1, keepdims=True))
