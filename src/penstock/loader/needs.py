"""What a run is going to read of data at URLs, and until when: for the windows that fetch it ahead."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.argument import as_positions
from penstock.interfaces import IntArray, Order
from penstock.loader.schedule import EpochSchedule, Schedule
from penstock.loader.stats import Network
from penstock.loader.work import Work
from penstock.order import BlockShuffle, Sequential
from penstock.records import Blocks, Source
from penstock.remote.plan import Need, Plan
from penstock.remote.ranges import merge
from penstock.remote.residency import GAP_BYTES, PIECE_BYTES
from penstock.remote.window import RemoteFiles
from penstock.stream import DocumentStream, MixedStream, RecordStream, Stream
from penstock.stream.picks import RecordPicks, SpanPicks
from penstock.stream.sequence import SequenceStream

__all__ = ["MOST_STEPS", "Ahead", "Forecast", "Leaf", "forecast", "leaves_of", "network", "reads_blocks", "stretch_of"]

MOST_STEPS = 64
"""So many steps are looked at together."""

NONE: IntArray = np.empty(0, np.int64)

Ranges = tuple[IntArray, IntArray, IntArray]
StepOf = Callable[[int, int], int | None]
Uses = dict[tuple[int, Order], "_BlockUse"]
Leaf = RecordStream | SequenceStream


class Follower(Protocol):
    """Something that goes on as batches are made."""

    def passed(self, step: int) -> None:
        """Batches up to a step were made."""

    def close(self) -> None:
        """No more are going to be made."""


class Ahead:
    """What an engine has fetched ahead of its batches, in all windows it reads from, and from the ``disk``. For one thread."""

    def __init__(self, work: Work, schedule: Schedule, steps: range, disk: Follower | None = None) -> None:
        self._disk = disk
        foreseen = [leaf for leaf in leaves_of(work.stream) if _is_foreseen(leaf)]
        windows = {id(leaf.source.remote): leaf.source.remote for leaf in foreseen if leaf.source.remote is not None}.values()
        self._uses: Uses = {}
        self._plans: list[Plan] = []
        try:
            for window in windows if steps else ():
                self._plans.append(Plan(window, _needs(work, schedule, steps, window, self._uses)))
        except BaseException:
            self.close()
            raise

    def reached(self, step: int) -> bool:
        """Whether what the batch of a step needs is in memory or on its way."""
        return all(plan.reached(step) for plan in self._plans)

    def wait(self, step: int) -> None:
        """Wait until that is so; to be called when no batch is under way."""
        for plan in self._plans:
            plan.wait(step)

    def passed(self, step: int) -> None:
        """Batches up to a step were made."""
        for plan in self._plans:
            plan.passed(step)
        if self._disk is not None:
            self._disk.passed(step)

    def hold(self, stream: RecordStream, ids: IntArray) -> AbstractContextManager[object]:
        """Keeps the bytes of records in memory while it is entered. Where a plan keeps their blocks, it need not look for them."""
        use = self._uses.get(_key(stream)) if self._plans and not self._plans[0].whole_files else None
        held = None if use is None else self._plans[0].hold(np.unique(use.blocks.of(ids)).tolist())
        return stream.source.hold(ids) if held is None else held

    def close(self) -> None:
        """Fetch no further. Idempotent."""
        for plan in self._plans:
            plan.close()
        if self._disk is not None:
            self._disk.close()


@dataclass(frozen=True)
class Forecast:
    """What the rest of an epoch takes from object stores: bytes and requests, if nothing is in the cache, and the most bytes that
    are in memory at a time. Records that are read one by one, rather than in blocks, are not foreseen where a store holds them.
    """

    bytes: int
    requests: int
    peak_bytes: int


def forecast(work: Work, schedule: Schedule, steps: range) -> Forecast:
    """Go through steps without fetching anything."""
    size = requests = peak = 0
    for window in _windows(work.stream):
        live: list[tuple[Need, int]] = []
        most = 0
        for need in _needs(work, schedule, steps, window, {}):
            pieces = merge(need.numbers, need.starts, need.stops, GAP_BYTES, PIECE_BYTES)
            bytes_here = int(np.sum(pieces[2] - pieces[1]))
            size, requests = size + bytes_here, requests + len(pieces[0])
            live = [(one, cost) for one, cost in live if one.last >= need.first]
            live.append((need, bytes_here))
            most = max(most, sum(cost for _, cost in live))
        peak += most
    return Forecast(size, requests, peak)


def network(stream: Stream) -> Network:
    """What was read of a stream's data at URLs."""
    windows = _windows(stream)
    return Network(
        sum(window.fetched_bytes for window in windows),
        sum(window.requests for window in windows),
        sum(window.cached_bytes for window in windows),
        sum(window.cache_hits for window in windows),
        sum(window.most_bytes for window in windows),
    )


def _windows(stream: Stream) -> list[RemoteFiles]:
    """The windows that a stream is read through, each once."""
    found = [leaf.source.remote for leaf in leaves_of(stream)]
    return list({id(window): window for window in found if window is not None}.values())


def leaves_of(stream: Stream) -> list[Leaf]:
    """The streams that read from a source themselves."""
    if isinstance(stream, MixedStream):
        return [leaf for part in stream.streams for leaf in leaves_of(part)]
    return [stream] if isinstance(stream, RecordStream | SequenceStream) else []


def _needs(work: Work, schedule: Schedule, steps: range, window: RemoteFiles, uses: Uses) -> Iterator[Need]:
    """What steps read through one window, in their order; an empty need now and then where they read nothing new."""
    step = steps.start
    while step < steps.stop:
        count, parts = stretch_of(work, schedule, step, steps.stop)
        nothing = True
        for leaf, epoch, positions in parts:
            if leaf.source.remote is not window or positions.size == 0:
                continue
            step_of = schedule.step_of if leaf is work.stream and isinstance(schedule, EpochSchedule) else None
            for need in _needs_of(leaf, uses, range(step, step + count), epoch, positions, step_of):
                nothing = False
                yield need
        step += count
        if nothing:
            yield Need(step - 1, NONE, NONE, NONE, last=step - 1)


def _needs_of(
    leaf: Leaf,
    uses: Uses,
    steps: range,
    epoch: int,
    positions: IntArray,
    step_of: StepOf | None,
) -> Iterator[Need]:
    if reads_blocks(leaf):
        if (use := uses.get(_key(leaf))) is None:
            use = uses[_key(leaf)] = _BlockUse(leaf, step_of)
        yield from use.at(leaf, steps, epoch, positions)
        return
    per_step = -(-len(positions) // len(steps))
    for number, step in enumerate(steps):
        ranges = _ranges(leaf, epoch, positions[number * per_step : (number + 1) * per_step], step)
        if ranges[0].size:
            yield Need(step, *ranges, last=step)


def stretch_of(work: Work, schedule: Schedule, step: int, stop: int) -> tuple[int, list[tuple[Leaf, int, IntArray]]]:
    """A number of steps, and which samples of which streams they read. Many steps at once where they are alike. Samples that only
    fill a batch up are left out, and read as they come.
    """
    place = schedule.place(step)
    stream = work.stream_for(place)
    count = min(MOST_STEPS, stop - step, schedule.stretch(step)) if isinstance(schedule, EpochSchedule) else 0
    if count > 1 and isinstance(stream, RecordStream | SequenceStream) and len(place.spans) == 1:
        span = place.spans[0]
        run = range(span.run.start, span.run.start + (count * len(span.run) - 1) * span.run.step + 1, span.run.step)
        return count, [(stream, span.epoch, as_positions(run))]
    parts: list[tuple[Leaf, int, IntArray]] = []
    for span in place.spans[:1] if place.padding else place.spans:
        for leaf, epoch, positions in stream.leaves(span.epoch, as_positions(span.run)):
            assert isinstance(leaf, RecordStream | SequenceStream)
            parts.append((leaf, epoch, positions))
    return 1, parts


def _key(leaf: Leaf) -> tuple[int, Order]:
    """What tells the uses of a source apart; the lengths of sequences do not."""
    return id(leaf.source), leaf.order


def reads_blocks(leaf: Leaf) -> bool:
    """Whether the stream reads block after block, and not records from all over the data."""
    order = leaf.order
    if isinstance(leaf, DocumentStream):
        return False  # where the bytes of a text are is not known before they are read
    if isinstance(order, BlockShuffle):
        return order.window is not None and order.window * order.lanes < order.num_blocks
    return isinstance(order, Sequential)


def _is_foreseen(leaf: Leaf) -> bool:
    """Whether anything is known of the bytes that a stream reads: not of single records of a store, whose index lies with them."""
    return reads_blocks(leaf) or (leaf.source.remote is not None and not leaf.source.remote.whole_files)


def _ranges(leaf: Leaf, epoch: int, positions: IntArray, step: int) -> Ranges:
    """The bytes of a batch."""
    picks = leaf.locate_at(epoch, positions, step)
    if isinstance(picks, RecordPicks):
        return leaf.source.byte_ranges(picks.ids)
    return _span_ranges(leaf.source, picks.starts, picks.counts)


def _span_ranges(source: Source, starts: IntArray, counts: IntArray) -> Ranges:
    """The bytes of runs of tokens; nothing is known of those in the texts of a store before they are read."""
    ranges = getattr(source, "span_ranges", None)
    found: Ranges = (NONE, NONE, NONE) if ranges is None else ranges(starts, counts)
    return found


class _BlockUse:
    """The blocks that a stream reads: each is needed from its first record on until the last position at which one comes."""

    def __init__(self, leaf: Leaf, step_of: StepOf | None) -> None:
        self._order, self._step_of = leaf.order, step_of
        self._page = leaf.page if isinstance(leaf, SequenceStream) else 1
        self._length = leaf.order.n if isinstance(leaf.order, BlockShuffle | Sequential) else 0
        self.blocks = _blocks(leaf, self._length)
        self._live: dict[int, tuple[int, int, Need]] = {}  # epoch, last position and need of blocks
        self._is_live = np.zeros(len(self.blocks), np.bool_)

    def at(self, leaf: Leaf, steps: range, epoch: int, positions: IntArray) -> Iterator[Need]:
        """The blocks that begin to be needed in steps; before, the end of those that are no longer needed is noted."""
        self._end_those_before(epoch, int(positions.min()), steps.start)
        numbers = self.blocks.of(self._units(leaf, epoch, positions, steps.start))
        fresh = np.flatnonzero(~self._is_live[numbers])
        if fresh.size == 0:
            return
        blocks, first = np.unique(numbers[fresh], return_index=True)
        per_step = len(numbers) / len(steps)
        for place in np.argsort(first).tolist():
            number, step = int(blocks[place]), steps.start + int(fresh[first[place]] / per_step)
            need, last_position = Need(step, *self._bytes_of(leaf, number), block=number), self._last_position(epoch, number)
            last = None if self._step_of is None else self._step_of(epoch, last_position)
            need.last = need.last if last is None else last
            self._live[number] = epoch, last_position, need
            self._is_live[number] = True
            if need.numbers.size:
                yield need

    def _end_those_before(self, epoch: int, position: int, step: int) -> None:
        for number, (own_epoch, last_position, need) in list(self._live.items()):
            if own_epoch < epoch or last_position < position:
                need.last = min(need.last, step - 1)
                del self._live[number]
                self._is_live[number] = False

    def _units(self, leaf: Leaf, epoch: int, positions: IntArray, step: int) -> IntArray:
        """The records, or full pages of tokens, of a batch."""
        picks = leaf.locate_at(epoch, positions, step)
        units = picks.starts // self._page if isinstance(picks, SpanPicks) else picks.ids
        return units[units < self._length]

    def _bytes_of(self, leaf: Leaf, number: int) -> Ranges:
        block = self.blocks[number]
        if isinstance(leaf, RecordStream):
            return leaf.source.byte_ranges(np.arange(block.start, block.stop, dtype=np.int64))
        return _span_ranges(leaf.source, np.array([block.start * self._page]), np.array([len(block) * self._page]))

    def _last_position(self, epoch: int, number: int) -> int:
        block = self.blocks[number]
        if isinstance(self._order, Sequential):
            return block.stop * self._page - 1
        assert isinstance(self._order, BlockShuffle)
        places = self._order.positions(epoch, np.arange(block.start, block.stop, dtype=np.int64))
        return (int(places.max()) + 1) * self._page - 1


def _blocks(leaf: Leaf, length: int) -> Blocks:
    """The blocks of the order; in order, those of a store, and otherwise what one request fetches, or a quarter of the window."""
    if isinstance(leaf.order, BlockShuffle):
        return Blocks(length, leaf.order.block)
    window = leaf.source.remote
    assert window is not None
    if window.whole_files and isinstance(leaf, RecordStream):
        return leaf.source.blocks
    bytes_each = sum(info.size for _, info in window.files) / max(1, length)
    return Blocks(length, max(1, int(min(PIECE_BYTES, window.window_bytes / 4) / max(1.0, bytes_each))))
