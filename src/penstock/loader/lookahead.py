"""The look-ahead: which blocks of which leaves the next steps read, from their first use until their last.

One walk along the schedule, two followers. At URLs the windows fetch the blocks, keep and evict them (:class:`Prefetch`); on a disk
the system is told to read them ahead (:class:`DiskAdvice`). The batches are the same without it.

How the bytes of a stream at URLs are planned, in this order of preference:

* *kept*: everything it reads fits into the window. Blocks of the leaves (about 8 MiB, chunks, row groups) are fetched whole at
  their first use, and stay.
* *blocks*: the order reads block after block. A block is fetched at its first use, and released after its last; and with it, where
  there is memory, chunks of which it has a small part, which would be fetched for every batch otherwise.
* *rows*: what each step reads, alone. Of a store nothing is known then: where its records are is in the chunks themselves.
"""

import contextlib
import itertools
import os
import sys
import threading
import weakref
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np

from penstock.argument import IntArray, as_positions
from penstock.errors import PenstockError
from penstock.loader.make_batch import Work
from penstock.loader.schedule import Schedule
from penstock.loader.stats import Network
from penstock.native import _core
from penstock.order import BlockShuffle, Sequential
from penstock.records import Blocks, Extents, Leaf
from penstock.remote.plan import KEPT, Need, Plan
from penstock.remote.residency import GAP_BYTES, PAGE, PIECE_BYTES, merge
from penstock.remote.window import Hold, RemoteFiles, Window
from penstock.row_table import RowTable, expanded
from penstock.stream import PartStream, Stream
from penstock.stream.picks import Picks

__all__ = [
    "DiskAdvice",
    "Forecast",
    "Lookahead",
    "Rows",
    "StreamReads",
    "Walk",
    "disk_extents",
    "disk_uses",
    "forecast",
    "network",
    "windows_of",
]

MOST_STEPS = 64
MIXED_STEPS = 16
"""The most steps that are looked at together; few at first, so that the first requests are soon under way. Of a mixture, whose
samples of a stream come in one step or another, fewer, and only for a disk: no more than read a quarter of what is read ahead.
"""

KEPT_PART = 0.75
"""The part of a window that data may fill to be kept."""

AHEAD_BYTES = 128 << 20
DIRECT_AHEAD_BYTES = 64 << 20
MOST_AHEAD_BYTES = 1 << 30
"""Bytes that a disk reads ahead for all streams together: a whole group of the block shuffle of each if that is more than the first
figure (past the page cache: the second), up to the third.
"""

MOST_AHEAD_STEPS = 4096
"""The most steps that a disk reads ahead: looking ahead takes time too."""

PLANNED_STEPS = 256
"""How many steps before its turn a disk is told what to read past the page cache; it begins when its turn comes, without Python."""

MOST_RUNS = 64
"""Runs of rows in a block on a disk; of a block in more pieces nothing is read ahead."""

MOST_OPEN = 64

NONE: IntArray = np.empty(0, np.int64)

Rows = tuple[Leaf, IntArray, IntArray]
"""A leaf, and runs [start, stop) of its rows."""


def leaf_rows(tables: Sequence[RowTable], starts: IntArray, stops: IntArray) -> Iterator[Rows]:
    """The rows of the leaves that own the bytes of records [start, stop), through functions too."""
    for table in tables:
        for leaf, low, high in table.runs(starts, stops):
            if leaf.behind is None:
                yield leaf, low, high
            else:
                yield from leaf_rows(leaf.behind.tables(), low, high)


def _leaves(tables: Sequence[RowTable]) -> Iterator[Leaf]:
    for table in tables:
        for leaf in table.leaves:
            yield from (leaf,) if leaf.behind is None else _leaves(leaf.behind.tables())


def _spans(tables: Sequence[RowTable], records: range | None) -> Iterator[tuple[Leaf, range | None]]:
    """The leaves that own the bytes of records, through functions too, and their rows there; None if they are not neighbours."""
    for table in tables:
        first, step = table.line or (0, 0)
        rows = None if records is None or step != 1 else range(records.start + first, records.stop + first)
        for leaf in table.leaves:
            yield from ((leaf, rows),) if leaf.behind is None else _spans(leaf.behind.tables(), rows)


def _num_rows(tables: Sequence[RowTable]) -> int:
    """The rows of the leaves that own the bytes, of the table that has the most."""
    counts = ((len(leaf) if leaf.behind is None else _num_rows(leaf.behind.tables()) for leaf in table.leaves) for table in tables)
    return max(map(sum, counts), default=0)


class StreamReads:
    """What one stream of a single source reads: rows of leaves, in an order of units (records, documents, pages of tokens)."""

    def __init__(self, stream: PartStream) -> None:
        self.stream, self.unit = stream, stream.rows_per_unit
        self.order: Any = stream.order
        self.tables: Sequence[RowTable] = stream.row_tables()
        self.leaves = list({id(one): one for one in _leaves(self.tables)}.values())
        self.length = int(getattr(self.order, "n", len(self.order)))
        self.block, self.group = _blocks_of(self.order)
        """Units of a block, and of the blocks that are shuffled together; 0 if the order does not read blocks."""

    @property
    def is_direct(self) -> bool:
        """Whether any of its files is read past the page cache."""
        return any(leaf.is_direct for leaf in self.leaves)

    @property
    def is_blockwise(self) -> bool:
        """Whether the order reads block after block, and not records from all over the data."""
        return self.block > 0 and self.group < self.length

    @cached_property
    def _spans(self) -> list[tuple[Leaf, range | None]]:
        """The leaves, and the rows of each that an epoch reads if they are neighbours. And what is behind the last whole unit."""
        return list(_spans(self.tables, range((self.length + 1) * self.unit)))

    @cached_property
    def coverage(self) -> float:
        """The part of the leaves' rows that an epoch reads, about; 1 for a run of neighbours."""
        share = min(1.0, len(self.order) / max(1, self.length))
        if all(rows is not None for _, rows in self._spans):
            return share
        return share * self.length * self.unit / max(1, _num_rows(self.tables))

    def rows_in(self, leaf: Leaf) -> range:
        """The rows of a leaf that an epoch may read."""
        found = [rows for one, rows in self._spans if one is leaf]
        spans = [rows for rows in found if rows is not None]
        if len(spans) < len(found):
            return range(len(leaf))
        return range(min(rows.start for rows in spans), min(len(leaf), max(rows.stop for rows in spans)))

    @cached_property
    def unit_bytes(self) -> float:
        """Bytes of a unit on a disk, about."""
        some = range(0, min(1024, self.length))
        return max(1.0, sum(high - low for _, low, high in disk_extents(self, some)) / len(some))

    def units(self, epoch: int, positions: IntArray, picks: Picks) -> tuple[IntArray, int]:
        """The units of samples, and the first position of one in the order."""
        units = self.stream.units_of(picks)
        units = units[units < self.length]
        if self.stream.counts_units:
            return units, int(positions.min()) // self.unit
        return units, int(self.order.positions(epoch, units).min()) if units.size else 0

    def last_position(self, epoch: int, units: range) -> int:
        """The last position in the order at which one of the units comes."""
        if self.group == self.block:  # in sequence
            return units.stop - 1
        return int(self.order.positions(epoch, np.arange(units.start, units.stop, dtype=np.int64)).max())

    def rows_of(self, units: range) -> Iterator[Rows]:
        starts, stops = (np.array([edge * self.unit], np.int64) for edge in (units.start, units.stop))
        return leaf_rows(self.tables, starts, stops)

    def rows_read(self, picks: Picks) -> Iterator[Rows]:
        """The rows of samples."""
        return leaf_rows(self.tables, *self.stream.rows_of(picks))


def _blocks_of(order: Any) -> tuple[int, int]:
    """Units of a block of an order, and of a group of blocks; (0, 0) for one that goes all over the data, 1 for one in sequence."""
    if isinstance(order, BlockShuffle):
        return order.block, order.n if order.window is None else min(order.n, order.window * order.lanes * order.block)
    if window := getattr(order, "window_size", 0):  # buckets: a window of the other order comes in any order
        block, group = _blocks_of(order.order)
        if block == group > 0:
            return window, 2 * window
        return block, min(order.n, group + 2 * window) if block else 0
    return (1, 1) if isinstance(order, Sequential) else (0, 0)


class Walk:
    """The schedule, stretch by stretch: which samples of which streams. Many steps at once where they are alike."""

    def __init__(self, work: Work, schedule: Schedule, steps: range) -> None:
        self._work, self.schedule, self.steps = work, schedule, steps
        self._reads: dict[tuple[int, int], StreamReads] = {}
        for part in work.stream.parts:
            self.reads_of(part)

    @property
    def reads(self) -> list[StreamReads]:
        """What the streams read, each source in each order once."""
        return list(self._reads.values())

    def reads_of(self, stream: PartStream) -> StreamReads:
        """What a stream reads; the lengths of sequences make no difference."""
        key = id(stream.source), id(stream.order)
        found = self._reads.get(key)
        if found is None:  # of a phase: equal orders are one
            same = [one for one in self._reads.values() if one.stream.source is stream.source and one.order == stream.order]
            found = self._reads[key] = same[0] if same else StreamReads(stream)
        return found

    def stretches(self, mixed: Callable[[], int] = lambda: 1) -> "Iterator[tuple[range, list[_Part]]]":
        """Steps, and what they read; ``mixed`` tells the most steps of a mixture that are looked at together next. Samples that
        only fill a batch up are left out, and read as they come.
        """
        step, most = self.steps.start, 1
        while step < self.steps.stop:
            count, parts = self._stretch(step, most, mixed())
            yield range(step, step + count), parts
            step, most = step + count, min(MOST_STEPS, 2 * most)

    def _stretch(self, step: int, most: int, mixed: int) -> "tuple[int, list[_Part]]":
        place = self.schedule.place(step)
        stream = self._work.stream_for(place)
        if stream.parts != (stream,):
            most = min(most, mixed)
        elif not stream.parts[0].counts_units:
            most = MOST_STEPS  # a few at first only where it is known from the beginning when a block is needed last
        count = min(most, self.steps.stop - step, self.schedule.stretch(step))
        if count > 1 and place.whole is None and len(place.spans) == 1:
            run = place.spans[0].run
            run = range(run.start, run.start + (count * len(run) - 1) * run.step + 1, run.step)
            runs = [(place.spans[0].epoch, as_positions(run))]
        elif place.whole is None:
            count, spans = 1, place.spans[:1] if place.padding else place.spans
            runs = [(span.epoch, as_positions(span.run)) for span in spans]
        else:
            epochs, positions = (cells[: place.num_samples - place.padding] for cells in self._work.own(place))
            count, runs = 1, [(epoch, positions[epochs == epoch]) for epoch in np.unique(epochs).tolist()]
        found = (leaf for epoch, positions in runs for leaf in stream.leaves(epoch, positions))
        return count, [_Part(self.reads_of(leaf), leaf, epoch, positions) for leaf, epoch, positions in found]


@dataclass(frozen=True, eq=False)
class _Part:
    """Samples of one stream that steps read."""

    reads: StreamReads
    stream: PartStream
    epoch: int
    positions: IntArray

    def picks(self, step: int) -> Picks:
        return self.stream.locate_at(self.epoch, self.positions, step)

    def of_step(self, number: int, count: int) -> "_Part":
        """The samples of one of ``count`` steps."""
        each = -(-len(self.positions) // count)
        return _Part(self.reads, self.stream, self.epoch, self.positions[number * each : (number + 1) * each])


# At URLs


@dataclass
class _Use:
    """The blocks that one stream reads through windows."""

    reads: StreamReads
    blocks: Blocks
    live: dict[int, tuple[int, int, list[Need]]] = field(default_factory=dict)  # epoch, last position and needs of blocks
    is_live: Any = None

    def __post_init__(self) -> None:
        self.is_live = np.zeros(len(self.blocks), np.bool_)


class _Planner:
    """What steps read at URLs, as needs of windows. For one thread at a time."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        reads = [one for one in walk.reads if any(leaf.remote is not None for leaf in one.leaves)]
        self._kept = _kept(reads)
        self._uses: dict[int, _Use] = {}
        whole = [one for one in reads if all(leaf.remote is None or id(leaf) in self._kept for leaf in one.leaves)]
        self._modes = {id(one): "kept" if one in whole else "blocks" if one.is_blockwise else "rows" for one in reads}
        self.windows = list({id(w): w for one in reads if self._is_foreseen(one) for w in _windows_of(one)}.values())

    def _is_foreseen(self, reads: StreamReads) -> bool:
        """Whether anything is known of the bytes that a stream reads: not of single records of a store."""
        return self._modes[id(reads)] != "rows" or any(leaf.remote and not leaf.remote.whole_files for leaf in reads.leaves)

    def needs(self) -> Iterator[tuple[range, list[tuple[Window, Need]]]]:
        """Steps, and what of windows begins to be needed in them, in the order of the first uses."""
        for steps, parts in self._walk.stretches():
            found: list[tuple[Window, Need]] = []
            for part in parts:
                mode = self._modes.get(id(part.reads)) if part.positions.size else None
                if mode == "kept":
                    found += self._keep(part, steps)
                elif mode == "blocks":
                    found += self._read_blocks(part, steps)
                elif mode == "rows":
                    found += self._read_rows(part, steps)
            yield steps, sorted(found, key=lambda one: one[1].first)

    def _keep(self, part: _Part, steps: range) -> Iterator[tuple[Window, Need]]:
        """Blocks of leaves that come for the first time, or were given up."""
        for leaf, low, high in part.reads.rows_read(part.picks(steps.start)):
            if leaf.remote is None:
                continue
            kept = self._kept[id(leaf)]
            touched, place = np.unique(kept.blocks_of(low, high), return_index=True)
            for number in touched[np.argsort(place)].tolist():
                known = kept.needs.get(number)
                if known is not None and not known.is_given_up:
                    continue
                rows = kept.rows_of(number)
                extents = leaf.extents(np.array([rows.start]), np.array([rows.stop]))
                window, need = _need(leaf.remote, steps.start, extents, last=KEPT, block=(id(leaf), number))
                kept.needs[number] = need
                if extents[0].size:
                    yield window, need

    def _read_blocks(self, part: _Part, steps: range) -> Iterator[tuple[Window, Need]]:
        """The blocks of the order that begin to be needed; before, the end of those that are no longer needed is noted."""
        reads, epoch = part.reads, part.epoch
        if (use := self._uses.get(id(reads))) is None:
            use = self._uses[id(reads)] = _Use(reads, _order_blocks(reads))
        units, frontier = reads.units(epoch, part.positions, part.picks(steps.start))
        _end_those_before(use, epoch, frontier, steps.start)
        numbers = use.blocks.of(units)
        fresh = np.flatnonzero(~use.is_live[numbers])
        if fresh.size == 0:
            return
        blocks, first = np.unique(numbers[fresh], return_index=True)
        per_step = len(numbers) / len(steps)
        for place in np.argsort(first).tolist():
            number, step = int(blocks[place]), steps.start + int(fresh[first[place]] / per_step)
            yield from self._begin(use, number, epoch, step)

    def _begin(self, use: _Use, number: int, epoch: int, step: int) -> Iterator[tuple[Window, Need]]:
        reads, block = use.reads, use.blocks[number]
        position = reads.last_position(epoch, block)
        is_alone = reads.stream is self._walk.schedule.stream and reads.stream.counts_units
        last = self._walk.schedule.step_of(epoch, (position + 1) * reads.unit - 1) if is_alone else None
        rows = [(leaf.remote, leaf, low, high) for leaf, low, high in reads.rows_of(block) if leaf.remote is not None]
        found = [*_block_needs(step, [(files, leaf.extents(low, high)) for files, leaf, low, high in rows], (id(reads), number))]
        for window, need in _block_needs(step, [(files, leaf.edges(low, high)) for files, leaf, low, high in rows]):
            need.is_optional = True
            found.append((window, need))
        for _, need in found:
            need.last = need.last if last is None else last
        use.live[number] = epoch, position, [need for _, need in found]
        use.is_live[number] = True
        yield from found

    def _read_rows(self, part: _Part, steps: range) -> Iterator[tuple[Window, Need]]:
        for number, step in enumerate(steps):
            own = part.of_step(number, len(steps))
            if own.positions.size == 0:
                continue
            for leaf, low, high in part.reads.rows_read(own.picks(step)):
                if leaf.remote is not None and not leaf.remote.whole_files:
                    extents = leaf.extents(low, high)
                    if extents[0].size:
                        yield _need(leaf.remote, step, extents, last=step)

    def hold(self, plans: Mapping[int, Plan], rows: Rows, ids: IntArray | None) -> Hold | None:
        """A hold on blocks that a plan keeps, which is quicker than a look at every row; None if it does not keep all of them.
        ``ids`` are units of the order, if there is only one stream and every row is one.
        """
        leaf, starts, stops = rows
        assert leaf.remote is not None
        if leaf.remote.whole_files or (plan := plans.get(id(leaf.remote.window))) is None:
            return None
        if (kept := self._kept.get(id(leaf))) is not None:
            if starts.size and not (kept.rows.start <= starts.min() and stops.max() <= kept.rows.stop):
                return None
            return plan.hold([(id(leaf), number) for number in np.unique(kept.blocks_of(starts, stops)).tolist()])
        if ids is not None and len(self._uses) == 1 and len(plans) == 1:
            ((key, use),) = self._uses.items()
            if use.reads.leaves == [leaf]:
                return plan.hold([(key, number) for number in np.unique(use.blocks.of(ids)).tolist()])
        return None


def _need(files: RemoteFiles, step: int, extents: Extents, *, last: int, block: Any = None) -> tuple[Window, Need]:
    return files.window, Need(step, extents[0] + files.first, extents[1], extents[2], last=last, block=block)


def _block_needs(step: int, parts: Sequence[tuple[RemoteFiles, Extents]], block: Any = None) -> Iterator[tuple[Window, Need]]:
    """Extents of files, as one need of each window."""
    for window in {id(files.window): files.window for files, _ in parts}.values():
        own = [(numbers + files.first, low, high) for files, (numbers, low, high) in parts if files.window is window]
        numbers, low, high = map(np.concatenate, zip(*own, strict=True))
        if numbers.size:
            yield window, Need(step, numbers, low, high, block=block)


def _end_those_before(use: _Use, epoch: int, frontier: int, step: int) -> None:
    for number, (own_epoch, last_position, needs) in list(use.live.items()):
        if own_epoch < epoch or last_position < frontier:
            for need in needs:
                need.last = min(need.last, step - 1)
            del use.live[number]
            use.is_live[number] = False


def _windows_of(reads: StreamReads) -> list[Window]:
    return [leaf.remote.window for leaf in reads.leaves if leaf.remote is not None]


class _KeptLeaf:
    """A leaf whose blocks stay in the window once they are read; of files that are fetched in parts, only ``rows``."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf, self._blocks = leaf, leaf.blocks
        are_alone = not getattr(leaf, "reads_blocks", True)
        if are_alone and leaf.remote is not None and len(leaf.remote.files) >= len(leaf):
            # Records are objects of their own, which no request joins.
            self._blocks = Blocks(len(leaf), 1)
        self._spans: set[range] = set()
        self.needs: dict[int, Need] = {}

    def add(self, span: range) -> None:
        """More rows that are read."""
        self._spans.add(span)

    @cached_property
    def rows(self) -> range:
        """All that is between rows that are read."""
        return range(min(one.start for one in self._spans), max(one.stop for one in self._spans))

    def rows_of(self, number: int) -> range:
        """The rows of a block, as they are fetched."""
        block = self._blocks[number]
        if self._leaf.remote is not None and self._leaf.remote.whole_files:
            return block
        return range(max(block.start, self.rows.start), min(block.stop, self.rows.stop))

    def blocks_of(self, starts: IntArray, stops: IntArray) -> IntArray:
        """The blocks of rows."""
        return expanded(self._blocks.of(starts), self._blocks.of(np.maximum(stops - 1, starts)) + 1)

    def cost(self) -> int:
        """The memory that they take, about: blocks begin in the middle of pages, and so do the parts of long ones."""
        return sum(map(self._cost, self._spans))

    def _cost(self, span: range) -> int:
        if not span:
            return 0
        assert self._leaf.remote is not None
        first, last = self._blocks.of(np.array([span.start, span.stop - 1])).tolist()
        rows = range(self.rows_of(first).start, self.rows_of(last).stop)
        if len(rows) == len(self._leaf) or self._leaf.remote.whole_files:
            sizes = np.array([info.size for _, info in self._leaf.remote.files], np.int64)
            share = len(rows) / len(self._leaf)
        else:
            extents = self._leaf.extents(np.array([rows.start]), np.array([rows.stop]))
            sizes, share = extents[2] - extents[1] + PAGE, 1.0
        pages = np.sum(-(-sizes // PAGE)) * share + np.sum(sizes) * share // PIECE_BYTES + last - first
        return int(pages + 1) * PAGE


def _kept(reads: Sequence[StreamReads]) -> dict[int, _KeptLeaf]:
    """The leaves at URLs of windows into which all that is read through them fits, by id."""
    found: dict[int, dict[int, _KeptLeaf]] = {}
    limits: dict[int, float] = {}
    for one in reads:
        for leaf in one.leaves:
            if leaf.remote is not None:
                window, is_dense = leaf.remote.window, one.coverage >= 0.5
                limits[id(window)] = min(limits.get(id(window), KEPT_PART * window.limit), np.inf if is_dense else 0)
                leaves = found.setdefault(id(window), {})
                leaves.setdefault(id(leaf), _KeptLeaf(leaf)).add(one.rows_in(leaf))
    kept: dict[int, _KeptLeaf] = {}
    for window_id, leaves in found.items():
        if sum(leaf.cost() for leaf in leaves.values()) <= limits[window_id]:
            kept |= leaves
    return kept


def _order_blocks(reads: StreamReads) -> Blocks:
    """The blocks of the order; in sequence, those of a store, or what one request fetches, at most a quarter of the window."""
    if reads.block > 1 or reads.group != reads.block:
        return Blocks(reads.length, reads.block)
    files = [leaf.remote for leaf in reads.leaves if leaf.remote is not None]
    if len(reads.leaves) == 1 and reads.unit == 1 and files[0].whole_files and reads.length == len(reads.leaves[0]):
        return reads.leaves[0].blocks
    bytes_each = reads.unit * sum(map(_bytes_of_row, reads.tables))
    most = min(PIECE_BYTES, *(one.window_bytes / 4 for one in files))
    return Blocks(reads.length, max(1, int(most / max(1.0, bytes_each))))


def _bytes_of_row(table: RowTable) -> float:
    """The memory that a row takes on average where it is at a URL."""
    inner = [leaf for leaf in table.leaves if leaf.behind is not None]
    files = [leaf.remote for leaf in table.leaves if leaf.behind is None and leaf.remote is not None]
    pages = sum(-(-info.size // PAGE) for one in files for _, info in one.files)
    behind = sum(len(leaf) * sum(map(_bytes_of_row, leaf.behind.tables())) for leaf in inner)
    return float(pages * PAGE + behind) / max(1, sum(map(len, table.leaves)))


class _Queues:
    """The needs of one walk, shared out to the windows. Each window takes its own, at its own pace, from any thread."""

    def __init__(self, planner: _Planner) -> None:
        self._lock = threading.Lock()
        self._found = planner.needs()
        self._queues: dict[int, deque[Need]] = {id(window): deque() for window in planner.windows}

    def needs(self, window: Window) -> Iterator[Need]:
        """What a window needs; an empty need now and then where steps read nothing new through it."""
        queue = self._queues[id(window)]
        while True:
            with self._lock:
                if not queue and not self._advance():
                    return
                need = queue.popleft()
            yield need

    def _advance(self) -> bool:
        for steps, found in self._found:
            for window, need in found:
                self._queues[id(window)].append(need)
            for queue in self._queues.values():
                nothing = Need(steps.stop - 1, NONE, NONE, NONE, last=steps.stop - 1)
                if queue and queue[-1].numbers.size == 0:
                    queue[-1] = nothing
                else:
                    queue.append(nothing)
            return True
        return False


class Lookahead:
    """What an engine has prefetched for its batches: in all windows that it reads through, and from a disk. For one thread."""

    def __init__(self, work: Work, schedule: Schedule, steps: range, *, disk: bool = True, part: float = 1.0) -> None:
        """``part`` of a window is what batches under way may take in addition to the next one."""
        self._disk: DiskAdvice | None = None
        self._part = part
        self._plans: list[Plan] = []
        self._by_window: dict[int, Plan] = {}
        self._planner: _Planner | None = None
        if not steps:
            return
        try:
            walk = Walk(work, schedule, steps)
            if disk and any(_is_on_disk(reads) for reads in walk.reads):
                self._disk = DiskAdvice(work, schedule, steps)
        except (PenstockError, OSError, ValueError):  # found again, and told, when a batch needs it
            return
        try:
            if any(leaf.remote is not None for reads in walk.reads for leaf in reads.leaves):
                self._planner = _Planner(walk)
                queues = _Queues(self._planner)
                for window in self._planner.windows:
                    self._plans.append(Plan(window, queues.needs(window)))
                    self._by_window[id(window)] = self._plans[-1]
        except BaseException:
            self.close()
            raise

    def reached(self, step: int) -> bool:
        """Whether what the batch of a step needs is in memory or being fetched."""
        return all(plan.reached(step, self._part) for plan in self._plans)

    def wait(self, step: int) -> None:
        """Wait until that is so; to be called when no batch is being made."""
        for plan in self._plans:
            plan.wait(step)

    def passed(self, step: int) -> None:
        """Batches up to a step were made."""
        for plan in self._plans:
            plan.passed(step)
        if self._disk is not None:
            self._disk.passed(step)

    def hold(self, rows: Sequence[Rows], ids: IntArray | None = None) -> ExitStack:
        """Keeps rows of leaves at URLs in memory until it is closed; waits for them. Windows are entered in one order, so that no
        two threads wait for each other. ``ids`` are the records, if all are of one stream and every row is a record.
        """
        held = ExitStack()
        try:
            for leaf, starts, stops in sorted(rows, key=_window_number):
                kept = None if self._planner is None else self._planner.hold(self._by_window, (leaf, starts, stops), ids)
                held.enter_context(leaf.hold(starts, stops) if kept is None else kept)
        except BaseException:
            held.close()
            raise
        return held

    def close(self) -> None:
        """Fetch no further. Idempotent."""
        for plan in self._plans:
            plan.close()
        if self._disk is not None:
            self._disk.close()


def _window_number(rows: Rows) -> int:
    assert rows[0].remote is not None
    return rows[0].remote.window.number


@dataclass(frozen=True)
class Forecast:
    """What the rest of an epoch takes from object stores: bytes and requests, if nothing is in memory or in the cache, and the most
    bytes that are in memory at a time. Single records of a store, read one by one, and samples that only fill a batch up are not
    foreseen.
    """

    bytes: int
    requests: int
    peak_bytes: int


def forecast(work: Work, schedule: Schedule, steps: range) -> Forecast:
    """Walk along steps without fetching anything. What several blocks need at a time is fetched once."""
    planner = _Planner(Walk(work, schedule, steps))
    size = requests = peak = 0
    live: list[tuple[Need, _Keys, int]] = []
    shared: Counter[tuple[int, ...]] = Counter()  # extents of blocks that are live
    for _, found in planner.needs():
        for window, need in found:
            for keys in (keys for one, keys, _ in live if one.last < need.first):
                shared.subtract(keys)
            live = [one for one in live if one[0].last >= need.first]
            keys = _keys(window, need)
            is_new = np.array([not shared[key] for key in keys] or np.ones(need.numbers.size), np.bool_)
            shared.update(keys)
            pieces = merge(need.numbers[is_new], need.starts[is_new], need.stops[is_new], GAP_BYTES, PIECE_BYTES)
            bytes_here = int(np.sum(pieces[2] - pieces[1]))
            size, requests = size + bytes_here, requests + len(pieces[0])
            live.append((need, keys, 0 if need.is_optional else bytes_here))
            peak = max(peak, sum(cost for _, _, cost in live))
    return Forecast(size, requests, peak)


_Keys = list[tuple[int, ...]]


def _keys(window: Window, need: Need) -> _Keys:
    """The extents of a block of the order, each with its window; nothing of other needs, which share none."""
    if need.last == KEPT or (need.block is None and not need.is_optional):
        return []
    return [(window.number, *one) for one in zip(need.numbers.tolist(), need.starts.tolist(), need.stops.tolist(), strict=True)]


def windows_of(stream: Stream) -> list[Window]:
    """The windows that a stream is read through, each once."""
    leaves = (leaf for part in stream.parts for leaf in StreamReads(part).leaves)
    return list({id(leaf.remote.window): leaf.remote.window for leaf in leaves if leaf.remote is not None}.values())


def network(windows: Sequence[Window]) -> Network:
    """What was read through windows."""
    traffic = [window.traffic for window in windows]
    return Network(
        sum(one.fetched_bytes for one in traffic),
        sum(one.requests for one in traffic),
        sum(one.cached_bytes for one in traffic),
        sum(one.cache_hits for one in traffic),
        sum(window.residency.most for window in windows),
        sum(one.peer_bytes for one in traffic),
    )


# On a disk


def _is_on_disk(reads: StreamReads) -> bool:
    """Whether a stream reads from a disk of this machine."""
    if not reads.length:
        return False
    return any(leaf.paths and leaf.extents(low, high)[0].size for leaf, low, high in reads.rows_of(range(0, 1)))


class DiskAdvice:
    """A thread that tells the system which bytes are going to be read, a bounded number of bytes ahead of the batches. It ends when
    it is told to, or when this is gone. (Block shuffle of 2 KiB records from a cold disk: about 20 times faster.)
    """

    def __init__(self, work: Work, schedule: Schedule, steps: range, files: Any = None) -> None:
        self._passed = _Passed(steps.start - 1)
        walk = Walk(work, schedule, steps)
        self._files = files = AdvisedFiles(lambda: direct_room(walk)) if files is None else files
        uses = disk_uses(walk)
        lead = PLANNED_STEPS if any(reads.is_direct for reads in walk.reads) else 0
        if lead:
            # What the first batches read is asked for here: a thread might come too late.
            files.passed(steps.start - 1)
            for use in uses:
                if use[0] >= steps.start:
                    uses = itertools.chain([use], uses)
                    break
                _ask_for(use, self._passed, files)
        arguments = uses, lead, self._passed, files, weakref.ref(self, self._passed.told.put)
        self._thread = threading.Thread(target=_advise, args=arguments, name="penstock-disk-advice", daemon=True)
        self._thread.start()

    def passed(self, step: int) -> None:
        """Batches up to a step were made."""
        self._files.passed(step)
        self._passed.told.put(step)

    def close(self) -> None:
        """Read nothing more ahead. Idempotent."""
        self._passed.close()
        if self._thread is not threading.current_thread():
            self._thread.join(2)


class _Passed:
    """How far the batches are. Told through a queue, which needs no lock: a fork or an interrupt would leave it locked."""

    def __init__(self, step: int) -> None:
        self.told: SimpleQueue[Any] = SimpleQueue()  # steps; all else is the end
        self.is_closed = False
        self._step = step

    def close(self) -> None:
        self.is_closed = True
        self.told.put(None)

    def wait_for(self, step: int) -> bool:
        """Wait until batches up to a step were made; False if no more are wanted."""
        while not self.is_closed and self._step < step:
            told = self.told.get()
            if isinstance(told, int):
                self._step = max(self._step, told)
            else:
                self.is_closed = True
        return not self.is_closed


def _advise(uses: "Iterator[DiskUse]", lead: int, passed: _Passed, files: Any, owner: "weakref.ref[DiskAdvice]") -> None:
    # What cannot be read is found again, and told, when the batch is made.
    with contextlib.suppress(PenstockError, OSError, ValueError), contextlib.closing(files):
        for use in uses:
            step, reads, _ = use
            if not passed.wait_for(step - (lead if reads is None or reads.is_direct else 0)):
                return
            _ask_for(use, passed, files)
        passed.wait_for(sys.maxsize)  # what was read is needed until the end


def _ask_for(use: "DiskUse", passed: _Passed, files: Any) -> None:
    step, reads, units = use
    for leaf, path, start, stop in () if reads is None else _extents_on_disk(reads, units):
        for low in range(start, stop, PIECE_BYTES):
            if passed.is_closed:
                return
            high = min(stop, low + PIECE_BYTES)
            files.fetch(path, low, high, step) if leaf.is_direct else files.advise(path, low, high)


def disk_extents(reads: StreamReads, units: range) -> Iterator[tuple[str, int, int]]:
    """Files, and the bytes from and to in them, of units on a disk."""
    return ((path, low, high) for _, path, low, high in _extents_on_disk(reads, units))


def _extents_on_disk(reads: StreamReads, units: range) -> Iterator[tuple[Leaf, str, int, int]]:
    for leaf, starts, stops in reads.rows_of(units):
        if not leaf.paths:
            continue
        if starts.size > MOST_RUNS:  # one run, if it is not mostly holes
            low, high = int(starts.min()), int(stops.max())
            if high - low > 2 * int(np.sum(stops - starts)):
                continue
            starts, stops = np.array([low]), np.array([high])
        names = leaf.paths
        for number, low, high in zip(*(column.tolist() for column in leaf.extents(starts, stops)), strict=True):
            yield leaf, names[number], low, high


DiskUse = tuple[int, "StreamReads | None", range]
"""After which step to advise, and what: units of a stream."""


def disk_uses(walk: Walk) -> Iterator[DiskUse]:
    """The blocks on a disk that steps read, each once an epoch. Now and then nothing, with the step to wait for before looking
    further: there may never be anything. First the whole of what is read all over, as far as that is little.
    """
    begin, left = walk.steps.start - 1, float(MOST_AHEAD_BYTES)
    on_disk = [reads for reads in walk.reads if _is_on_disk(reads)]
    for reads in (one for one in on_disk if not one.is_blockwise and not one.is_direct):
        left -= reads.unit_bytes * reads.length
        if left >= 0:
            pieces = Blocks(reads.length, max(1, int(PIECE_BYTES / reads.unit_bytes)))
            yield from ((begin, reads, pieces[number]) for number in range(len(pieces)))
    if any(reads.is_blockwise for reads in on_disk):
        yield from _blocks_of_steps(walk)


def _blocks_of_steps(walk: "Walk") -> Iterator[DiskUse]:
    uses: dict[int, _DiskUse | None] = {}
    distance = _Distance(walk.steps.start)
    for steps, parts in walk.stretches(distance.next_steps):
        yield distance.back(steps.start) - 1 - MOST_STEPS, None, range(0)
        found: list[tuple[int, StreamReads, range]] = []
        read_bytes = 0.0
        for part in parts:
            reads = part.reads
            if id(reads) not in uses:
                uses[id(reads)] = _DiskUse(reads) if reads.is_blockwise and _is_on_disk(reads) else None
                distance.most = _ahead_bytes([use.reads for use in uses.values() if use is not None])
            use = uses[id(reads)]
            if use is not None and part.positions.size:
                read_bytes += reads.unit_bytes * use.units(part)
                found += ((step, reads, units) for step, units in use.fresh(part, steps))
        distance.add(steps.stop, read_bytes)
        for step, reads, units in sorted(found, key=lambda one: one[0]):
            yield distance.back(step) - 1, reads, units


def _ahead_bytes(streams: Sequence[StreamReads]) -> float:
    """What is read ahead for streams together: a group of a block shuffle begins with all of its blocks at once."""
    if not streams:
        return 0.0
    groups = sum(reads.group * reads.unit_bytes for reads in streams if reads.group != reads.block)
    return min(max(DIRECT_AHEAD_BYTES if any(reads.is_direct for reads in streams) else AHEAD_BYTES, groups), MOST_AHEAD_BYTES)


def direct_room(walk: Walk) -> int:
    """The most bytes that may be in memory past the page cache: what is read ahead, and as much again for groups that are under
    way, twice, because files are read in pieces. What is more was read in vain: fields that no batch has, holes between records.
    """
    on_disk = [reads for reads in walk.reads if reads.is_blockwise and _is_on_disk(reads)]  # nearly all may be read directly
    return int(min(4 * _ahead_bytes(on_disk), 2 * MOST_AHEAD_BYTES))


class _Distance:
    """How many bytes of a disk are between steps, of all streams together: the disk has to read them one after the other."""

    def __init__(self, step: int) -> None:
        self._steps, self._totals = [step], [0.0]  # bytes that are read before these steps; between two, evenly
        self.most = 0.0
        """Bytes that are read ahead."""

    def add(self, stop: int, read_bytes: float) -> None:
        """What is read from the last step on, up to ``stop``."""
        self._steps.append(stop)
        self._totals.append(self._totals[-1] + read_bytes)
        if len(self._steps) > 4 * MOST_AHEAD_STEPS:
            del self._steps[: 2 * MOST_AHEAD_STEPS], self._totals[: 2 * MOST_AHEAD_STEPS]

    def next_steps(self) -> int:
        """The steps, at most ``MIXED_STEPS``, that read a quarter of ``most`` if they go on like the last ones."""
        if len(self._steps) == 1:
            return 1
        count, read_bytes = self._steps[-1] - self._steps[-2], self._totals[-1] - self._totals[-2]
        return max(1, int(min(MIXED_STEPS, self.most / 4 * count / max(1.0, read_bytes))))

    def back(self, step: int) -> int:
        """The first step, at most ``MOST_AHEAD_STEPS`` before ``step``, from which on at most ``most`` bytes are before it."""
        first = _between(_between(step, self._steps, self._totals) - self.most, self._totals, self._steps)
        return max(step - MOST_AHEAD_STEPS, int(first))


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear interpolation; behind the ends what is there."""
    number = bisect_left(xs, x)
    if number in (0, len(xs)):
        return ys[min(number, len(xs) - 1)]
    return ys[number - 1] + (x - xs[number - 1]) / (xs[number] - xs[number - 1]) * (ys[number] - ys[number - 1])


class _DiskUse:
    """Which blocks of a stream were advised."""

    def __init__(self, reads: StreamReads) -> None:
        self.reads = reads
        self.blocks = Blocks(
            reads.length, reads.block if reads.group != reads.block else max(1, int(PIECE_BYTES / reads.unit_bytes))
        )
        self._epochs = np.zeros(min(1 << 26, len(self.blocks)), np.int32)  # in which each block was advised last, plus 1

    def units(self, part: _Part) -> float:
        """The units that samples have, about."""
        stream = self.reads.stream
        return part.positions.size * (stream.stride / self.reads.unit if stream.counts_units else 1)

    def fresh(self, part: _Part, steps: range) -> Iterator[tuple[int, range]]:
        """The blocks that are read for the first time in an epoch, and the steps of that, as if all took as many samples."""
        epoch = (part.epoch + 1) % (1 << 31)
        units = self.reads.stream.units_of(part.picks(steps.start))
        numbers = np.minimum(self.blocks.of(units), len(self._epochs) - 1)
        first_seen = np.flatnonzero(self._epochs[numbers] != epoch)
        if first_seen.size == 0:
            return
        found, first = np.unique(numbers[first_seen], return_index=True)
        self._epochs[found] = epoch
        per_step = len(numbers) / len(steps)
        for place in np.argsort(first).tolist():
            yield steps.start + int(first_seen[first[place]] / per_step), self.blocks[int(found[place])]


class AdvisedFiles:
    """A few open files whose bytes the system is told to read; bytes that are read past the page cache are fetched. For one
    thread.
    """

    def __init__(self, room: Callable[[], int] = lambda: 2 * MOST_AHEAD_BYTES) -> None:
        self._room = room
        self._open: OrderedDict[str, int] = OrderedDict()
        self._ahead: _core.ReadAhead | None = None
        self._step: int | None = None

    def fetch(self, path: str, start: int, stop: int, step: int) -> None:
        """Read bytes into memory of ours when a step was passed, until they were used."""
        if self._ahead is None:
            self._ahead = _core.ReadAhead(self._room())
            if self._step is not None:
                self._ahead.passed(self._step)
        self._ahead.fetch(path, start, stop, step)

    def passed(self, step: int) -> None:
        """Batches up to a step were made. From another thread."""
        self._step = step
        if self._ahead is not None:
            self._ahead.passed(step)

    def advise(self, path: str, start: int, stop: int) -> None:
        """Tell the system that bytes are going to be read, unless it seems to have them."""
        file = self._file(path)
        if not _core.is_in_memory(file, start, stop):
            os.posix_fadvise(file, start, stop - start, os.POSIX_FADV_WILLNEED)

    def _file(self, path: str) -> int:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return file

    def close(self) -> None:
        """Close all files. Idempotent."""
        if self._ahead is not None:
            self._ahead.close()
        while self._open:
            os.close(self._open.popitem()[1])
