"""The native engine: batches of records or tokens, of one source or a mixture, read by native threads; and what they can read."""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_positions
from penstock.batch import Batch, Ragged, batch_bytes, masked
from penstock.errors import BatchError, PenstockError, SchemaMismatchError, WindowTooSmallError
from penstock.interrupt import exposed
from penstock.loader.engine import MOST_AHEAD, Engine
from penstock.loader.lookahead import Lookahead, Rows
from penstock.loader.make_batch import Work
from penstock.loader.schedule import Place, Schedule, Span
from penstock.loader.stats import Meter
from penstock.native import _core
from penstock.records import Leaf
from penstock.remote.residency import PAGE
from penstock.row_table import RowTable, find_rows, make_lookup
from penstock.schema import Field
from penstock.stream import PackStream, PartStream, SequenceStream, Stream
from penstock.stream.picks import Picks, RecordPicks, SpanPicks, flatten, ids_of
from penstock.stream.stream import WEIGHT

__all__ = ["PINNED_PART", "NativeEngine", "NativeGroup", "native_groups"]

Which = npt.NDArray[np.int32]


@dataclass(frozen=True)
class FixedField:
    """A field that the native ring can read: rows of ``stride`` bytes, with a reader and the field's number there for each leaf.
    A row is a sample of this ``dtype`` and ``shape``, or a token of one.
    """

    name: str
    readers: list[tuple[Any, int]]
    stride: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_tokens: bool
    nullable: bool
    is_made: bool = False
    """Whether a sample is made of what is read, as a picture is."""

    def shape_for(self, seq_len: int | None) -> tuple[int, ...]:
        """The shape of a sample; a phase may say how long sequences are."""
        return (seq_len,) if self.is_tokens and seq_len is not None else self.shape

    def sample_bytes(self, seq_len: int | None) -> int:
        """Without a mask."""
        return self.dtype.itemsize * math.prod(self.shape_for(seq_len))

    def as_batch(
        self, bytes_read: npt.NDArray[np.uint8], present: npt.NDArray[np.bool_] | None, count: int, seq_len: int | None
    ) -> npt.NDArray[Any]:
        """What a ring read, as the user gets it."""
        if present is not None:
            _check_presence(self, present)
        shape = self.shape if seq_len is None else self.shape_for(seq_len)
        array = bytes_read.view(self.dtype).reshape(count, *shape)
        return masked(array, present, nullable=True) if self.nullable else array


@dataclass(frozen=True)
class VaryingField:
    """A field of texts, byte strings or ragged arrays that the native ring can read, with a reader for each leaf; ``ndim`` is 0
    where shapes follow from lengths.
    """

    name: str
    readers: list[_core.VaryingReader]
    dtype: np.dtype[Any]
    ndim: int
    kind: str
    nullable: bool

    def as_batch(
        self, read: tuple[Any, IntArray, Any], present: npt.NDArray[np.bool_] | None, count: int, seq_len: int | None
    ) -> Ragged:
        """What a ring read, as the user gets it."""
        values, offsets, shapes = read
        if present is None and self.nullable:
            present = np.ones(count, np.bool_)
        _check_presence(self, present)
        return Ragged(values.view(self.dtype), offsets, self.kind, shapes, present)


NativeField = FixedField | VaryingField


def _check_presence(field: NativeField, present: npt.NDArray[np.bool_] | None) -> None:
    if present is not None and not field.nullable:
        raise SchemaMismatchError(f"field {field.name!r}: a value is missing, and the schema says that none can be")


class NativeGroup:
    """Fields that are in the same rows, so that one ring reads them. ``tables`` say in which: of every field, for every stream that
    is mixed. The rows of all fields have the same numbers, and may be of different leaves, as in a dict.
    """

    def __init__(self, fields: list[NativeField], tables: Sequence[Sequence[RowTable]]) -> None:
        self.fixed = [field for field in fields if isinstance(field, FixedField)]
        self.varying = [field for field in fields if isinstance(field, VaryingField)]
        self.fields: list[NativeField] = [*self.fixed, *self.varying]
        """In the order in which the ring gives them."""
        self._tables = tables[0]
        self._are_own = all(table.line == (0, 1) for table in self._tables)
        self._lookup = None if self._are_own else make_lookup(self._tables)
        self._bases = np.cumsum([0, *(len(table.leaves) for table in self._tables)], dtype=np.int32)
        columns = [[leaf for table in own for leaf in table.leaves] for own in tables]
        most = [[getattr(leaf, "max_batch_bytes", None) for leaf in leaves] for leaves in columns]  # that a leaf gives at once
        limits = [min((limit for limit in column if limit is not None), default=math.inf) for column in most]
        by_name = {field.name: limit for field, limit in zip(fields, limits, strict=True)}
        self._is_direct = any(leaf.is_direct for leaves in columns for leaf in leaves)
        self._limits = [(field, by_name[field.name]) for field in self.fixed if not field.is_made]
        self._leaves: list[list[Leaf]] = [
            list({id(leaf): leaf for leaf in leaves if leaf.remote is not None}.values()) for leaves in zip(*columns, strict=True)
        ]
        """Of each number of a leaf: those at URLs, of all fields."""
        self.pins_of_row = max(map(len, self._leaves), default=0)
        """The leaves at URLs of a row, each of which has a page pinned at least. The rows must be in memory while a ring reads."""
        windows = [leaf.remote.window for leaves in self._leaves for leaf in leaves if leaf.remote is not None]
        self.window_bytes = min((window.limit for window in windows), default=math.inf)
        """The smallest window that rows are pinned in."""

    def allows(self, num_samples: int, seq_len: int | None) -> bool:
        """Whether the sources give batches of that size: a read that is refused tells why."""
        return all(num_samples * field.sample_bytes(seq_len) <= limit for field, limit in self._limits)

    def remote_rows(self, which: Which | None, starts: IntArray, stops: IntArray) -> Iterator[tuple[Leaf, IntArray, IntArray]]:
        """Those of the runs [start, stop) of rows that are at URLs, leaf by leaf."""
        for number in (0,) if which is None else np.unique(which).tolist():
            here = slice(None) if which is None else which == number
            for leaf in self._leaves[number] if starts.size else ():
                held = getattr(leaf, "held_rows", None)  # of tokens in documents: the rows of these
                yield from ((leaf, starts[here], stops[here]),) if held is None else held(starts[here], stops[here])

    def make_ring(self, threads: int, room: tuple[int, int]) -> _core.BatchRing:
        """A ring that reads them; ``room`` is for the batches of varying fields: how many at least, and how many bytes."""
        varying = [(field.readers, field.dtype.itemsize, field.ndim) for field in self.varying]
        fixed = [(field.readers, field.stride) for field in self.fixed]
        if not self._is_direct:
            return _core.BatchRing(fixed, threads, varying, *room)
        return _core.BatchRing(fixed, threads + DIRECT_THREADS, varying, *room, DIRECT_PIECE_BYTES)

    def find(self, ids: IntArray, streams: Which | None) -> tuple[Which | None, IntArray]:
        """The leaf and the row of records, each of the stream of that number."""
        if self._are_own:
            return streams, ids
        if streams is None:
            return self._tables[0].find(ids)
        if self._lookup is not None:
            return find_rows(self._lookup, ids, streams)
        which, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
        for number, table in enumerate(self._tables):
            here = np.flatnonzero(streams == number)
            if here.size:
                own, rows[here] = table.find(ids[here])
                which[here] = self._bases[number] + (0 if own is None else own)
        return which, rows


def native_groups(stream: Stream) -> list[NativeGroup] | None:
    """The fields of a stream as rings read them; None if they cannot read all of them."""
    leaves = native_leaves(stream)
    if not leaves:
        return None
    try:
        tables = [leaf.field_tables() for leaf in leaves]
        groups: dict[tuple[object, ...], list[NativeField]] = {}
        for name in leaves[0].read_schema:
            field = _native_field(name, leaves, tables)
            if field is None:
                return None
            groups.setdefault(tuple(_rows_key(own[name][0]) for own in tables), []).append(field)
    except Exception:  # a source is closed, or a part of it is gone: said by the batch that needs it
        return None
    made = (NativeGroup(fields, [[own[field.name][0] for own in tables] for field in fields]) for fields in groups.values())
    return list(made) or None


def _rows_key(table: RowTable) -> object:
    """Equal for tables that find the same rows."""
    return table.line if table.line is not None and len(table.leaves) == 1 else id(table)


def _native_field(
    name: str, streams: Sequence[PartStream], tables: Sequence[Mapping[str, tuple[RowTable, str]]]
) -> NativeField | None:
    """A field as a ring reads it; None if that cannot."""
    fields: list[Field] = [stream.read_schema[name] for stream in streams]
    first = fields[0]
    if any((field.dtype, field.kind) != (first.dtype, first.kind) for field in fields) or (first.is_fixed and first.stride == 0):
        return None
    readers: list[tuple[Any, int]] = []
    for stream, own in zip(streams, tables, strict=True):
        if name not in own:
            return None
        table, inner = own[name]
        for leaf in table.leaves:
            reader = stream.native_reader(leaf, name, inner)
            if reader is None:
                return None
            readers.append(reader)
    nullable = any(field.nullable for field in fields)
    if first.is_fixed:
        is_tokens = streams[0].has_sequences
        stride = first.dtype.itemsize if is_tokens else first.stride
        is_made = streams[0].makes(name)
        return FixedField(name, readers, stride, first.dtype, first.shape, is_tokens, nullable, is_made)
    if any(field.ndim != first.ndim for field in fields):
        return None
    kind = "array" if first.kind == "ragged" else first.kind
    return VaryingField(name, [reader for reader, _ in readers], first.dtype, first.ndim if first.ndim > 1 else 0, kind, nullable)


def native_leaves(stream: Stream) -> tuple[PartStream, ...]:
    """The streams whose samples a ring may read: the stream itself, or those of a mixture, also in mixtures; none if it cannot."""
    parts = stream.parts
    if not stream.is_mixture:
        return parts
    made = {part.completion if part.completes else () for part in parts}  # each may have something of its own to add
    if any(part.has_weights for part in parts) or len({type(part) for part in parts}) > 1 or None in made or len(made) > 1:
        return ()
    return parts


# Reading

CACHE_BYTES = 8_000_000
"""What is read ahead natively unless the user says otherwise: enough to be ahead, and little enough to stay in the cache of the
processor, where the memory of a batch that is gone is filled again. (256 records of 2 KiB: 64 MB ahead is a fifth slower.)
"""


DIRECT_PIECE_BYTES = 4 << 20
DIRECT_THREADS = 1
"""Where files are read directly: what a thread reads at a time, so that a disk has many requests to work on; and how many threads
there are in addition to those that the user wants, as they mostly wait.
"""

FOUND_SAMPLES = 1 << 12
"""Samples that are located together, at most: a call of numpy takes as long for a few as for hundreds."""

MIXED_SAMPLES = 1 << 14
"""The same of a mixture that is worked out natively: the periods at both ends are worked out once more. (A mixture in a mixture,
batches of 256: 0.98 of the speed of a plain store; with 4,096 0.97.)
"""

PINNED_PART = 0.25
"""The part of a window that batches under way may pin in addition to the next one: the rest is for others that read through it, in
the same thread too, where they could not wait for the memory.
"""


class NativeEngine(Engine):
    """Records read by native threads while Python does other things. It only says which, many batches at once."""

    def __init__(
        self,
        work: Work,
        groups: list[NativeGroup],
        schedule: Schedule,
        steps: range,
        budget: int | None,
        threads: int,
        ahead: Lookahead,
        meter: Meter,
    ) -> None:
        self._work, self._groups, self._schedule, self._steps = work, groups, schedule, steps
        self._fields = [field for group in groups for field in group.fields]
        self._stream, self._leaves = work.stream, native_leaves(work.stream)
        self._order = list(self._leaves[0].read_schema)  # of the fields of a batch
        self._ahead, self._meter = ahead, meter
        self._threads = threads
        self._turn, self._taking, self._closed = threading.RLock(), False, False  # a signal handler may close
        self._budget, self._least = (CACHE_BYTES, 2) if budget is None else (budget, 1)
        self._fixed_bytes = _most_bytes([field for group in groups for field in group.fixed], schedule)
        self._varying_bytes = 0  # of the fields of varying length of a batch, as far as known
        self._has_varying = any(group.varying for group in groups)
        self._most_pinned = PINNED_PART * min(group.window_bytes for group in groups)
        most_rows = max(count for count, _ in schedule.shapes) // schedule.shard.world
        pins_of_row = sum(group.pins_of_row for group in groups)
        self._is_remote, self._page_bytes = pins_of_row > 0, PAGE * most_rows * pins_of_row
        self._plain_depth = 0 if self._has_varying else self._depth()
        self._rings = self._make_rings()
        self._asked = steps.start
        self._found: _Found | None = None  # where the next samples are
        self._tree: tuple[int, _core.OrderNode] | None = None  # an epoch of a mixture
        self._stretches: deque[_Stretch] = deque()
        self._adds = work.finishes or any(leaf.has_weights for leaf in self._leaves)
        self._completes = self._leaves[0].completes
        self._is_plain = work.dealing is None and not any(leaf.has_bans or leaf.has_weights for leaf in self._leaves)

    def _make_rings(self) -> list[_core.BatchRing]:
        threads = -(-self._threads // len(self._groups))
        room = self._least, self._budget // len(self._groups)
        return [group.make_ring(threads, room) for group in self._groups]

    def _depth(self) -> int:
        """How many batches may be under way; a row at a URL takes a page there at least. How large those of varying length are is
        known when one was read; until then they are as many as there are threads, or one if memory is bounded.
        """
        if self._has_varying and self._varying_bytes == 0:
            return self._threads if self._least > 1 else 1
        size = max(1, self._fixed_bytes + self._varying_bytes)
        return int(max(self._least, min(MOST_AHEAD, self._budget // size, self._most_pinned / (size + self._page_bytes))))

    def _start_over(self, step: int) -> None:
        """Forget all that is under way, and go on with a step."""
        self._close_rings()
        self._let_go()
        self._rings, self._asked = self._make_rings(), step

    def _close_rings(self) -> None:
        """Their threads end before any bytes may be released. (A traceback may keep the rings themselves.)"""
        while self._rings:
            self._rings[-1].close()
            self._rings.pop()

    def _let_go(self) -> None:
        for stretch in self._stretches:
            stretch.hold.close()
        self._stretches.clear()

    def _ask(self, most: int) -> bool:
        """Ask for batches: a run of whole ones together, others one by one. False if there is no room for their bytes now."""
        first = self._schedule.place(self._asked)
        count = min(most, self._schedule.stretch(self._asked)) if self._is_plain else 0
        while count > 1 and not self._ahead.reached(self._asked + count - 1):
            count //= 2
        if count <= 1:
            return self._ask_one(first)
        try:
            asked, hold = self._plan(first, count)
        except Exception:
            return self._ask_one(first)  # which knows what to do about errors
        self._put(asked, len(first.spans[0].run))
        self._stretches.append(_Stretch(first, count, asked.picks, hold, first.next_position - first.position, runs=asked.runs))
        self._asked += count
        return True

    def _plan(self, first: Place, count: int) -> "tuple[_Asked, ExitStack]":
        """:meth:`_found_and_held`. An error of the data comes again, and is raised at its step; one that does not was raised by a
        signal handler of the user's, and is raised now. Errors of files and object stores may have passed.
        """
        try:
            return self._found_and_held(first, count)
        except BatchError as error:
            stray = error.__cause__ or error
        except (PenstockError, OSError):
            raise
        except Exception as error:
            stray = error
        with self._found_and_held(first, count)[1]:
            raise _Stray(stray)

    def _found_and_held(self, first: Place, count: int) -> "tuple[_Asked, ExitStack]":
        """Where the samples of the next batches are, and a hold on their bytes."""
        asked = self._next_found(first, count) if count > 1 else self._find(self._work.picks(first))
        return asked, self._hold(asked)

    def _next_found(self, first: Place, count: int) -> "_Asked":
        """Where the samples of the next batches are; those of more batches than are asked for now are located, and kept."""
        run, found = first.spans[0].run, self._found
        size = len(run)
        low = self._asked - found.step if found is not None else 0
        if found is None or low < 0 or low + count > found.count:
            before = 0 if found is None else found.count
            most = (FOUND_SAMPLES if self._tree is None else MIXED_SAMPLES) // size
            whole = min(self._schedule.stretch(self._asked), max(count, min(2 * before, most)))
            picks = self._locate(first.epoch, range(run.start, run.start + (whole * size - 1) * run.step + 1, run.step))
            found = self._found = _Found(self._asked, whole, self._find(picks))
            low = 0
        return found.asked if count == found.count else found.asked.part(low * size, (low + count) * size)

    def _locate(self, epoch: int, run: range) -> Picks:
        """What is at positions. Mixtures are worked out natively if they can be: by the tree of orders of the last time, or by a
        new one where a stream has begun another epoch.
        """
        if not self._stream.is_mixture:
            return self._stream.locate(epoch, run)
        leaves, ids = np.empty(len(run), np.int32), np.empty(len(run), np.int64)
        if self._tree is None or self._tree[0] != epoch or not _work_out(self._tree[1], run, leaves, ids):
            self._tree, order = None, self._stream.native_order(epoch, run.start, 0)
            if order is None or not _work_out(order, run, leaves, ids):
                return self._stream.locate(epoch, run)
            self._tree = epoch, order
        return RecordPicks(ids, sources=leaves)

    def _ask_one(self, place: Place) -> bool:
        try:
            asked, hold = self._plan(place, 1)
        except WindowTooSmallError:
            if self._stretches:
                return False  # batches under way fill the window
            self._put_nothing(place)
        except Exception:
            self._put_nothing(place)
        else:
            self._put(asked, len(asked.picks))
            self._stretches.append(_Stretch(place, 1, asked.picks, hold, runs=asked.runs))
        self._asked += 1
        return True

    def _put_nothing(self, place: Place) -> None:
        """A batch that is going to be made in another way."""
        nothing = RecordPicks(np.empty(0, np.int64))
        self._stretches.append(_Stretch(place, 1, nothing, ExitStack(), is_good=False))
        for ring in self._rings:
            ring.put(nothing.ids, 0)

    def _find(self, picks: Picks) -> "_Asked":
        """Where samples are: rows of leaves, for every group of fields."""
        flat, streams = flatten(picks)
        if isinstance(flat, RecordPicks):
            found = replace(flat, sources=streams)
        else:
            found = RecordPicks(ids_of(flat), sources=streams)
            if len(flat):
                return _Asked(found, [], flat)
        return _Asked(found, [group.find(found.ids, streams) for group in self._groups])

    def _put(self, asked: "_Asked", size: int) -> None:
        """Ask the rings for batches of ``size`` of those samples."""
        for ring, (which, rows) in zip(self._rings, asked.rows, strict=False):
            ring.put(rows, size, which, asked.picks.seeds)
        if (runs := asked.runs) is not None:
            offsets, cuts = np.concatenate([[0], np.cumsum(runs.counts)]), np.ascontiguousarray(runs.first[::size])
            self._rings[0].put_runs(runs.starts, offsets, cuts, asked.streams_of_runs)  # tokens are one field

    def _hold(self, asked: "_Asked") -> ExitStack:
        """Keeps the bytes of samples in memory until it is closed, where they are not in files of this machine."""
        if not self._is_remote:
            return ExitStack()
        found: list[Rows] = []
        if (runs := asked.runs) is not None:
            which, is_read = asked.streams_of_runs, runs.starts >= 0
            starts = runs.starts[is_read]
            found += self._groups[0].remote_rows(None if which is None else which[is_read], starts, starts + runs.counts[is_read])
        for group, (which, rows) in zip(self._groups, asked.rows, strict=False):
            found += group.remote_rows(which, rows, rows + 1)
        is_one = len(self._leaves) == 1 and asked.runs is None
        return self._ahead.hold(found, asked.picks.ids if is_one else None)

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
        except _Stray as stray:
            raise stray.error from None
        finally:
            with self._turn:
                self._taking = False
                if self._closed:
                    self._end()

    def _take(self) -> tuple[Place, Any]:
        if (ready := self._rings[0].size) <= (depth := self._plain_depth or self._depth()) // 2:
            while ready < depth and self._asked < self._steps.stop and self._may_ask():
                if not self._ask(depth - ready):
                    break
                ready = self._rings[0].size
        if not self._stretches:
            raise StopIteration
        stretch = self._stretches[0]
        place = stretch.next()
        began = time.perf_counter()
        batch: Batch = {}
        count, length = place.num_samples, place.seq_len
        try:
            read, present, has_failed = _wait_for_batch(self._rings)
        except BaseException:  # an interrupt: the batch is still being read, and the engine is closed next
            self._close_rings()
            raise
        if stretch.taken == stretch.count:
            self._stretches.popleft()
            stretch.hold.close()
            self._ahead.passed(place.step)
        if stretch.is_good and not has_failed:
            try:
                for field, one, there in zip(self._fields, read, present, strict=True):
                    batch[field.name] = field.as_batch(one, there, count, length)
            except SchemaMismatchError:
                has_failed = True
        stretch.is_good = stretch.is_good and not has_failed
        if not stretch.is_good:
            # Bytes that are held must be fetched again; and a ring whose batch was not taken is a step behind the others.
            if has_failed or self._is_remote:
                self._start_over(place.step + 1)
            return place, self._work.make(place)  # again, by the way that knows what to do about errors
        self._meter.waited(time.perf_counter() - began)
        if self._has_varying:
            size = batch_bytes(batch)
            self._varying_bytes = max(size - self._fixed_bytes, self._varying_bytes // 2, 1)
        else:
            size = 0
            for one in read:
                size += one.nbytes
        self._meter.made(size + (0 if self._work.ids is None else 8 * count))
        if self._has_varying or len(self._groups) > 1:
            batch = {name: batch[name] for name in self._order}
        if self._completes:
            sized = cast(SequenceStream | PackStream, self._work.stream_for(place).parts[0])
            is_plain = all(sized.is_within_pages(span.run) for span in place.spans)
            batch = sized.complete(batch, None if is_plain else stretch.runs_of(place))
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
        self._close_rings()
        self._let_go()
        self._ahead.close()


class _Stray(BaseException):
    """Takes what a signal handler raised past everything that handles errors of the data."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _work_out(order: _core.OrderNode, run: range, leaves: Which, ids: IntArray) -> bool:
    """Fill in the stream and the record at each position; False if the order does not have them."""
    return order.run(run.start, leaves, ids) if run.step == 1 else order.at(as_positions(run), leaves, ids)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Samples: for every group of fields the leaf and row of each, or the runs of tokens."""

    picks: RecordPicks
    rows: list[tuple[Which | None, IntArray]]
    runs: SpanPicks | None = None

    def part(self, low: int, high: int) -> "_Asked":
        """Samples [low, high)."""
        rows = [(None if which is None else which[low:high], rows[low:high]) for which, rows in self.rows]
        return _Asked(self.picks.part(low, high), rows, None if self.runs is None else self.runs.part(low, high))

    @property
    def streams_of_runs(self) -> Which | None:
        """The number of the stream of each run."""
        if self.picks.sources is None or self.runs is None:
            return None
        return np.repeat(self.picks.sources, np.diff(self.runs.first))


@dataclass(frozen=True, eq=False)
class _Found:
    """The samples of ``count`` batches from a step on."""

    step: int
    count: int
    asked: _Asked


@exposed
def _wait_for_batch(rings: list[_core.BatchRing]) -> tuple[list[Any], list[Any], bool]:
    """The oldest batch of every ring, and whether one failed: those of the others are taken all the same."""
    values: list[Any] = []
    present: list[Any] = []
    has_failed = False
    for ring in rings:
        try:
            some, there = ring.take()
        except Exception as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # by code in Python, which only a signal handler has here
            has_failed = True
        else:
            values += some
            present += there or [None] * len(some)
    return values, present, has_failed


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
    runs: SpanPicks | None = None

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

    def runs_of(self, place: Place) -> SpanPicks | None:
        """The runs of tokens in the batch of a place."""
        if self.count == 1 or self.runs is None:
            return self.runs
        size, number = len(self.runs) // self.count, place.step - self.first.step
        return self.runs.part(number * size, (number + 1) * size)

    def picks_of(self, place: Place) -> RecordPicks:
        """What is in the batch of a place."""
        if self.count == 1:
            return self.picks
        size, number = len(self.picks.ids) // self.count, place.step - self.first.step
        here = slice(number * size, (number + 1) * size)
        return RecordPicks(self.picks.ids[here], sources=None if self.picks.sources is None else self.picks.sources[here])


def _most_bytes(fields: list[FixedField], schedule: Schedule) -> int:
    """Bytes of the largest batch of a rank."""
    sizes = [count // schedule.shard.world * sum(f.sample_bytes(length) for f in fields) for count, length in schedule.shapes]
    return max(sizes, default=0)
