"""GroupSource: records that have to be decoded a group at a time, and the cache of what was decoded lately."""

import os
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from penstock.errors import CorruptError, SizeOverflowError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Source, fixed_output
from penstock.schema import Field
from penstock.source.arrow_column import Column, make_column
from penstock.source.arrow_file import translated
from penstock.source.arrow_memory import BufferMemory, gather_spans
from penstock.source.arrow_type import Leaf, expansion, refitted
from penstock.source.limit import check_block
from penstock.source.rows_in_files import reader_of_memory

__all__ = ["CACHE_BYTES", "Decoding", "Group", "GroupSource", "Recent", "blocks_of"]

CACHE_BYTES = 256 << 20
MOST_RECORDS = 1 << 62

Key = tuple[Hashable, Hashable]


class Recent:
    """Values that are costly to make, kept until others were used more recently. Each is made by one thread; the others wait.

    Keys are pairs. Values whose keys have the same first half as the latest value are kept even if they are larger than the limit:
    whoever reads a large group in small batches shall not decode it for every batch. A child begins with none after fork.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._process, self._lock, self._bytes = os.getpid(), threading.Lock(), 0
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._coming: dict[Key, Future[Any]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._kept and self._process == os.getpid()

    def get(self, key: Key, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key; ``make`` gives it and its size in bytes if it is not there."""
        if self._process != os.getpid():
            self.clear()  # the lock may have been held by a thread that is not here
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            coming = self._coming.get(key)
            if coming is None:
                mine = self._coming[key] = Future()
        if coming is not None:
            return coming.result()
        try:
            value, size = make()
        except BaseException as error:
            with self._lock:
                self._coming.pop(key, None)
            mine.set_exception(error)
            raise
        self._keep(key, value, size)
        mine.set_result(value)
        return value

    def _keep(self, key: Key, value: Any, size: int) -> None:
        with self._lock:
            self._coming.pop(key, None)
            self._kept[key] = (value, size)
            self._bytes += size
            others = [other for other in self._kept if other[0] != key[0]] if self._bytes > self._most_bytes else []
            for other in others:
                if self._bytes > self._most_bytes:
                    self._bytes -= self._kept.pop(other)[1]


def blocks_of(counts: Sequence[int], where: str) -> Blocks:
    """Blocks of so many records each, if that many can be."""
    if sum(counts) >= MOST_RECORDS:
        raise SizeOverflowError(f"{where}: expected fewer than {MOST_RECORDS} records, found {sum(counts)}")
    return Blocks.of_counts(counts)


@dataclass(frozen=True)
class Decoding:
    """How groups are decoded: by how many threads, how much is kept, and how much one may have."""

    threads: int
    cache_bytes: int
    max_block_bytes: int


@dataclass(frozen=True)
class Group:
    """A run of records of one file that are decoded together."""

    path: str
    number: int
    first: int
    rows: int


class GroupSource(Source):
    """Records in groups. A batch decodes every group it touches once, a few at a time, and only the wanted columns.

    Subclasses say how a column of a group is decoded.
    """

    def __init__(self, leaves: Mapping[str, Leaf], counts: Sequence[tuple[str, Sequence[int]]], decoding: "Decoding") -> None:
        """``counts``: every path, and the records of each of its groups."""
        self._leaves, self._decoding, self._threads, self._closed = dict(leaves), decoding, decoding.threads, False
        self._groups: list[Group] = []
        self._length = 0
        for path, sizes in counts:
            for number, rows in enumerate(sizes):
                if rows:
                    self._groups.append(Group(path, number, self._length, rows))
                    self._length += rows
        self._blocks = blocks_of([group.rows for group in self._groups], counts[0][0])
        self._recent = Recent(decoding.cache_bytes)

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields by name."""
        return {name: leaf.field for name, leaf in self._leaves.items()}

    @property
    def blocks(self) -> Blocks:
        """The groups."""
        return self._blocks

    @property
    def reads_blocks(self) -> bool:
        """A group is decoded as a whole."""
        return True

    @abstractmethod
    def _measure(self, group: Group, leaves: Sequence[Leaf]) -> tuple[int, int]:
        """How many bytes columns of a group decode to at most, as far as the file says, and how many they have in it."""

    @abstractmethod
    def _decode(self, group: Group, leaf: Leaf) -> list[Any]:
        """The Arrow arrays of the column of a field, structs above it included. Called from several threads, also after fork."""

    def close(self) -> None:
        """Forget what was decoded: nothing can be read any more."""
        self._closed = True
        self._recent.clear()

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._closed:
            raise ValueError("the source is closed")
        arrays = {
            name: fixed_output(name, self._leaves[name].field, ids.size, out)
            for name in fields
            if self._leaves[name].field.is_fixed
        }
        touched = self._blocks.of(ids)
        numbers = np.unique(touched)
        if numbers.size == 0:
            return {name: _sealed(name, self._leaves[name], [], str, 0).read(ids, arrays) for name in fields}
        if numbers.size == 1:  # no detour: the group writes into the arrays of the batch
            local, groups = ids - self._groups[numbers[0]].first, numbers.tolist()
            self._fetch(groups, fields)
            self._bounded(groups, fields)
            return {name: column.read(local, arrays) for (_, name), column in self._columns(groups, fields).items()}
        order = np.argsort(touched, kind="stable")
        edges = np.searchsorted(touched[order], numbers, side="right")
        places = dict(zip(numbers.tolist(), np.split(order, edges[:-1]), strict=True))
        parts: dict[str, list[tuple[IntArray, Any]]] = {name: [] for name in fields}
        for window in self._windows(list(places), fields):
            self._fetch(window, fields)
            for some in self._bounded(window, fields):
                columns = self._columns(some, fields)
                for group, name in product(some, fields):
                    part = columns[group, name].read(ids[places[group]] - self._groups[group].first, {})
                    parts[name].append((places[group], part))
        return {name: _join(parts[name], ids.size, arrays.get(name)) for name in fields}

    def _windows(self, groups: list[int], fields: Sequence[str]) -> list[list[int]]:
        """A few groups at a time, so that the memory for them is bounded; those at hand first, before others push them out."""
        groups.sort(key=lambda group: not all((group, name) in self._recent for name in fields))
        return [groups[low : low + self._threads] for low in range(0, len(groups), self._threads)]

    def _fetch(self, groups: Sequence[int], fields: Sequence[str]) -> None:
        """Begin to load what will be decoded, where that takes time."""

    def _bounded(self, groups: Sequence[int], fields: Sequence[str]) -> list[list[int]]:
        """The groups in runs that together decode to no more than one block may. BatchTooLargeError if one is too large itself."""
        runs: list[list[int]] = [[]]
        total = 0
        for group in groups:
            size = self._size(group, fields)
            if runs[-1] and total + size > self._decoding.max_block_bytes:
                runs.append([])
                total = 0
            runs[-1].append(group)
            total += size
        return runs

    def _size(self, number: int, fields: Sequence[str]) -> int:
        """What a group decodes to, without what is at hand."""
        leaves = [self._leaves[name] for name in fields if (number, name) not in self._recent]
        if not leaves:
            return 0
        group = self._groups[number]
        with translated(group.path):
            size, stored = self._measure(group, leaves)
            check_block(f"{group.path}: group {group.number}", size, stored, self._decoding.max_block_bytes)
        return size

    def _columns(self, groups: Sequence[int], fields: Sequence[str]) -> dict[tuple[int, str], Column]:
        wanted = list(product(groups, fields))
        if self._threads == 1 or sum(key not in self._recent for key in wanted) <= 1:
            return {key: self._column(*key) for key in wanted}
        with ThreadPoolExecutor(self._threads) as pool:
            return dict(zip(wanted, pool.map(lambda key: self._column(*key), wanted), strict=True))

    def _column(self, number: int, name: str) -> Column:
        column: Column = self._recent.get((number, name), lambda: self._make(number, name))
        return column

    def _make(self, number: int, name: str) -> tuple[Column, int]:
        group, leaf = self._groups[number], self._leaves[name]
        with translated(group.path):
            arrays = self._decode(group, leaf)
            fitting = refitted(leaf, arrays[0].type, group.path) if arrays else leaf
            for array in arrays:
                check_block(f"{group.path}: group {group.number}", *expansion(leaf, array), self._decoding.max_block_bytes)
            describe = lambda record: f"{group.path}: record {group.first + record}"  # noqa: E731
            column = _sealed(name, fitting, arrays, describe, self._decoding.max_block_bytes)
        if len(column) != group.rows:
            raise CorruptError(
                f"{group.path}: expected {group.rows} records in group {group.number}, found {len(column)} of {name!r}"
            )
        if column.has_nulls and not leaf.field.nullable:
            raise CorruptError(f"{group.path}: expected no missing values of {name!r}, found some in group {group.number}")
        return column, sum(array.get_total_buffer_size() for array in arrays)


def _sealed(name: str, leaf: Leaf, arrays: Sequence[Any], describe: Callable[[int], str], max_block_bytes: int) -> Column:
    memory = BufferMemory(1)
    memory.max_block_bytes = max_block_bytes
    column = make_column(name, leaf, memory, describe)
    for array in arrays:
        column.add(array)
    column.seal()
    memory.seal()
    return column


def _join(parts: Sequence[tuple[IntArray, Any]], count: int, array: Any) -> Any:
    """Parts of a batch, each with its places, as one."""
    if array is None:
        return _join_ragged(parts, count)
    mask = None
    for places, part in parts:
        array[places] = np.ma.getdata(part)
        if isinstance(part, np.ma.MaskedArray):
            mask = np.zeros(array.shape, np.bool_) if mask is None else mask
            mask[places] = np.ma.getmaskarray(part)
    return array if mask is None else np.ma.MaskedArray(array, mask=mask)


def _join_ragged(parts: Sequence[tuple[IntArray, Ragged]], count: int) -> Ragged:
    dtype, kind = parts[0][1].values.dtype, parts[0][1].kind
    starts, lengths, present = np.empty(count, np.int64), np.empty(count, np.int64), np.ones(count, np.bool_)
    end = 0
    for places, part in parts:
        starts[places], lengths[places] = end + part.offsets[:-1], part.lengths
        if part.present is not None:
            present[places] = part.present
        end += part.values.size
    rows = reader_of_memory([part.values.view(np.uint8) for _, part in parts], threads=1)
    values = gather_spans(rows, starts * dtype.itemsize, lengths * dtype.itemsize).view(dtype)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]), kind, None, None if present.all() else present)
