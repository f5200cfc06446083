"""The native engine: batches of plain records or tokens, of one source or a mixture, read ahead by native threads."""

import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from penstock import _core
from penstock.errors import WindowTooSmallError
from penstock.interrupt import exposed
from penstock.loader.engine import MOST_AHEAD, Engine
from penstock.loader.native_field import NativeField, NativeGroup, flatten, native_leaves
from penstock.loader.needs import Ahead
from penstock.loader.schedule import EpochSchedule, Place, Schedule, Span
from penstock.loader.stats import Meter
from penstock.loader.work import Work
from penstock.order import Design
from penstock.records import Batch, masked
from penstock.stream import RecordStream, SequenceStream
from penstock.stream.picks import Picks, RecordPicks, SpanPicks, ids_of
from penstock.stream.stream import WEIGHT

__all__ = ["NativeEngine"]

CACHE_BYTES = 8_000_000
"""What is read ahead natively unless the user says otherwise: enough to be ahead, and little enough to stay in the cache of the
processor, where the memory of a batch that is gone is filled again. (256 records of 2 KiB: 64 MB ahead is a fifth slower.)
"""


class NativeEngine(Engine):
    """Records of fixed size, read by native threads while Python does other things. It only says which, many batches at once."""

    def __init__(
        self,
        work: Work,
        groups: list[NativeGroup],
        schedule: Schedule,
        steps: range,
        budget: int | None,
        threads: int,
        ahead: Ahead,
        meter: Meter,
    ) -> None:
        self._work, self._groups, self._schedule, self._steps = work, groups, schedule, steps
        fields = self._fields = [field for group in groups for field in group.fields]
        self._order = list(native_leaves(work.stream)[0].read_schema)  # of the fields of a batch
        self._ahead, self._meter = ahead, meter
        self._threads = threads
        self._turn, self._taking, self._closed = threading.RLock(), False, False  # a signal handler may close
        self._rings = self._make_rings()
        fits = (CACHE_BYTES if budget is None else budget) // max(1, _most_bytes(fields, schedule))
        self._depth = max(2 if budget is None else 1, min(MOST_AHEAD, fits))
        self._asked = steps.start
        self._stretches: deque[_Stretch] = deque()
        self._stream, self._leaves = work.stream, native_leaves(work.stream)
        self._adds = work.ids is not None or work.pads or any(isinstance(leaf.order, Design) for leaf in self._leaves)
        self._epochs = schedule if isinstance(schedule, EpochSchedule) else None
        bans = [leaf for leaf in self._leaves if leaf.bans]
        self._has_nullable = any(field.nullable for field in fields)
        self._is_plain = not bans and not any(isinstance(leaf.order, Design) for leaf in self._leaves)

    def _make_rings(self) -> list[_core.BatchRing]:
        threads = -(-self._threads // len(self._groups))
        return [_core.BatchRing([(f.readers, f.stride) for f in group.fields], threads) for group in self._groups]

    def _start_over(self, step: int) -> None:
        """Forget all that is under way, and go on with a step."""
        self._rings = []  # their threads end before any bytes may be released
        self._let_go()
        self._rings, self._asked = self._make_rings(), step

    def _let_go(self) -> None:
        for stretch in self._stretches:
            stretch.hold.close()
        self._stretches.clear()

    def _ask(self, most: int) -> bool:
        """Ask for batches: a run of whole ones together, others one by one. False if there is no room for their bytes now."""
        schedule, first = self._epochs, self._schedule.place(self._asked)
        count = min(most, schedule.stretch(self._asked)) if schedule is not None and self._is_plain else 0
        while count > 1 and not self._ahead.reached(self._asked + count - 1):
            count //= 2
        if count <= 1 or schedule is None:
            return self._ask_one(first)
        run = first.spans[0].run
        size = schedule.batch_size // schedule.shard.world
        try:
            picks = self._stream.locate(first.epoch, range(run.start, run.start + (count * size - 1) * run.step + 1, run.step))
            hold = self._hold(picks)
        except Exception:
            return self._ask_one(first)  # which knows what to do about errors
        flat = self._put(picks, size)
        self._stretches.append(_Stretch(first, count, flat, hold, schedule.batch_size * schedule.stream.stride))
        self._asked += count
        return True

    def _ask_one(self, place: Place) -> bool:
        try:
            picks = self._work.picks(place)
            hold = self._hold(picks)
        except Exception as error:
            if isinstance(error, WindowTooSmallError) and self._stretches:
                return False  # batches under way fill the window
            nothing = RecordPicks(np.empty(0, np.int64))
            self._stretches.append(_Stretch(place, 1, nothing, ExitStack(), is_good=False))
            for ring in self._rings:
                ring.put(nothing.ids, 0)
        else:
            flat = self._put(picks, len(picks))
            self._stretches.append(_Stretch(place, 1, flat, hold))
        self._asked += 1
        return True

    def _put(self, picks: Picks, size: int) -> RecordPicks:
        """Ask the rings for batches of ``size`` of those samples; the record, or first token, of each in its own source."""
        flat, streams = flatten(picks)
        if isinstance(flat, RecordPicks) or len(flat) == 0:
            plain = replace(flat, sources=streams) if isinstance(flat, RecordPicks) else RecordPicks(ids_of(flat))
            for ring, group in zip(self._rings, self._groups, strict=True):
                which, rows = group.find(plain.ids, streams)
                ring.put(rows, size, which)
            return plain
        offsets, cuts = np.concatenate([[0], np.cumsum(flat.counts)]), np.ascontiguousarray(flat.first[::size])
        of_runs = None if streams is None else np.repeat(streams, np.diff(flat.first))
        self._rings[0].put_runs(flat.starts, offsets, cuts, of_runs)  # tokens are one field
        return RecordPicks(ids_of(flat), sources=streams)

    def _hold(self, picks: Picks) -> ExitStack:
        """Keeps the bytes of records in memory until it is closed, where they are not in files of this machine."""
        stack = ExitStack()
        leaf = self._leaves[0]
        if isinstance(picks, RecordPicks) and isinstance(leaf, RecordStream):  # all else is in files of this machine
            stack.enter_context(self._ahead.hold(leaf, picks.ids))
        return stack

    def _may_ask(self) -> bool:
        """Whether the next batch can be asked for: not while its bytes have no room, unless that will not change by itself."""
        if self._stretches and not self._stretches[-1].is_good:
            return False  # it is going to be made in another way, which needs the room
        if self._ahead.reached(self._asked):
            return True
        if self._stretches:
            return False
        self._ahead.wait(self._asked)
        return True

    def take(self) -> tuple[Place, Any]:
        """The next batch; when half of what may be under way is, more is asked for."""
        try:
            with self._turn:
                if self._closed:
                    raise StopIteration
                self._taking = True
            return self._take()
        finally:
            with self._turn:
                self._taking = False
                if self._closed:
                    self._end()

    def _take(self) -> tuple[Place, Any]:
        if (ready := self._rings[0].size) <= self._depth // 2:
            while ready < self._depth and self._asked < self._steps.stop and self._may_ask():
                if not self._ask(self._depth - ready):
                    break
                ready = self._rings[0].size
        if not self._stretches:
            raise StopIteration
        stretch = self._stretches[0]
        place = stretch.next()
        began, has_failed = time.perf_counter(), False
        try:
            values, present = _wait_for_batch(self._rings)
        except Exception:
            stretch.is_good, has_failed = False, True
        finally:
            if stretch.taken == stretch.count:
                self._stretches.popleft()
                stretch.hold.close()
                self._ahead.passed(place.step)
        if not stretch.is_good:
            # Bytes that are held must be fetched again; and a ring whose batch was not taken is a step behind the others.
            if has_failed or self._leaves[0].source.remote is not None:
                self._start_over(place.step + 1)
            return place, self._work.make(place)  # again, by the way that knows what to do about errors
        self._meter.wait_s += time.perf_counter() - began
        count, length = place.num_samples, place.seq_len
        self._meter.made(sum(value.nbytes for value in values) + (0 if self._work.ids is None else 8 * count))
        batch: Batch = {
            f.name: value.view(f.dtype).reshape(count, *f.shape_for(length)) for f, value in zip(self._fields, values, strict=True)
        }
        if self._has_nullable or present.count(None) < len(present):
            for f, there in zip(self._fields, present, strict=True):
                batch[f.name] = masked(batch[f.name], there, nullable=f.nullable)
        if len(self._groups) > 1:
            batch = {name: batch[name] for name in self._order}
        if isinstance(self._stream, SequenceStream) and self._stream.completes:
            sized = cast(SequenceStream, self._work.stream_for(place))
            is_plain = all(sized.is_within_pages(span.run) for span in place.spans)
            batch = sized.complete(batch, None if is_plain else cast(SpanPicks, self._work.picks(place)))
        if not self._adds:
            return place, batch
        picks = stretch.picks_of(place)
        if picks.weights is not None:
            batch[WEIGHT] = picks.weights
        return place, self._work.finish(place, picks, batch)

    def close(self) -> None:
        """Let the threads end; if another thread is taking a batch, when it has it."""
        with self._turn:
            self._closed = True
            if not self._taking:
                self._end()

    def _end(self) -> None:
        self._rings = []  # their threads end before any bytes may be released
        self._let_go()
        self._ahead.close()


@exposed
def _wait_for_batch(rings: list[_core.BatchRing]) -> tuple[list[Any], list[Any]]:
    """The oldest batch of every ring; if one fails, those of the others are taken all the same."""
    values: list[Any] = []
    present: list[Any] = []
    failure: Exception | None = None
    for ring in rings:
        try:
            some, there = ring.take()
        except Exception as error:
            failure = error
        else:
            values += some
            present += there or [None] * len(some)
    if failure is not None:
        raise failure
    return values, present


@dataclass
class _Stretch:
    """Batches that were asked for together: ``count`` from that of ``first`` on, ``width`` positions apart."""

    first: Place
    count: int
    picks: RecordPicks
    hold: ExitStack
    width: int = 0
    taken: int = 0
    is_good: bool = True

    def next(self) -> Place:
        """The place of the next batch."""
        number, self.taken = self.taken, self.taken + 1
        first = self.first
        if self.count == 1:
            return first
        width = self.width
        position, run = first.position + number * width, first.spans[0].run
        begin = run.start + number * width
        spans = (Span(first.epoch, range(begin, begin + run.stop - run.start, run.step)),)
        return Place(first.step + number, first.epoch, position, None, spans, 0, first.epoch, position + width)

    def picks_of(self, place: Place) -> RecordPicks:
        """What is in the batch of a place."""
        if self.count == 1:
            return self.picks
        size, number = len(self.picks.ids) // self.count, place.step - self.first.step
        here = slice(number * size, (number + 1) * size)
        return RecordPicks(self.picks.ids[here], sources=None if self.picks.sources is None else self.picks.sources[here])


def _most_bytes(fields: list[NativeField], schedule: Schedule) -> int:
    """Bytes of the largest batch of a rank."""
    if isinstance(schedule, EpochSchedule):
        shapes: list[tuple[int, int | None]] = [(schedule.batch_size, None)]
    else:
        shapes = [(phase.batch_size, phase.seq_len) for phase in schedule.curriculum.phases]
    sizes = [count // schedule.shard.world * sum(f.sample_bytes(length) for f in fields) for count, length in shapes]
    return max(sizes, default=0)
