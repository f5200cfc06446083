"""Parquet files: row groups are decoded when they are touched, and kept for a while."""

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from penstock.argument import byte_size, whole_number
from penstock.errors import BatchTooLargeError, CorruptError, SourceChangedError
from penstock.interfaces import IntArray
from penstock.records import Recipe, Sampling
from penstock.remote.residency import PAGE
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.source.arrow_column import Column
from penstock.source.arrow_group import CACHE_BYTES, Decoding, Group, GroupSource, Recent
from penstock.source.arrow_type import Fields, Leaf, need_agreement, plain_fields, with_nullable
from penstock.source.files import File, LocalFile, Names, RemoteFile, find_files
from penstock.source.limit import MAX_BLOCK_BYTES, check_block
from penstock.source.optional import need
from penstock.source.parquet_file import Plan, make_plan, read_extents, read_footer, read_head
from penstock.source.parquet_page import ReadRange
from penstock.source.range_file import RangeFile
from penstock.source.rows_in_files import default_threads
from penstock.system import WRITTEN, file_version

__all__ = ["ParquetSource", "RemoteParquetSource", "open_parquet"]

SUFFIXES = (".parquet",)
FOOTER_BYTES = 64 << 20
PLAN_BYTES = 8 << 20
GROUPS_AT_ONCE = 16
"""So many row groups of remote files are fetched together."""
TRIES = 3
"""Remote bytes that cannot be decoded are fetched so often: they may have been damaged on their way."""

Head = tuple[dict[str, Leaf], list[int]]


def open_parquet(
    what: Names,
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    cache_bytes: int = CACHE_BYTES,
    remote: RemoteOptions | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> "ParquetSource":
    """Parquet files, one or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    ``fields`` are the wanted columns, or a dict of new names and columns. Decoded row groups are kept up to ``cache_bytes``, the
    latest one in any case. ``remote`` says how files at URLs are read. A row group that claims to be more than ``max_block_bytes``
    is refused, unless it is stored in a 64th of its bytes or more.
    """
    need("pyarrow", "arrow")
    files, wanted = find_files(what, SUFFIXES), plain_fields(fields)
    largest = byte_size("max_block_bytes", max_block_bytes)
    decoding = Decoding(default_threads(threads), whole_number("cache_bytes", cache_bytes), largest)
    if files.is_remote:
        return RemoteParquetSource(files, wanted, decoding, remote or RemoteOptions())
    return ParquetSource(files, wanted, decoding)


class ParquetSource(GroupSource):
    """The rows of Parquet files, one file after the other. No file is held open."""

    def __init__(self, what: Names, fields: Fields | None, decoding: Decoding) -> None:
        self._files, self._fields = find_files(what, SUFFIXES), fields
        self._file_named = {str(file): file for file in self._files}
        self._footers, self._plans = Recent(FOOTER_BYTES), Recent(PLAN_BYTES)
        self._versions = {str(file): _version_of(file) for file in self._files}
        heads, names = self._look(decoding.threads), [str(file) for file in self._files]
        for name, (leaves, _) in zip(names, heads, strict=True):
            need_agreement(heads[0][0], leaves, (names[0], name), exact=False)
        nullable = {name for leaves, _ in heads for name, leaf in leaves.items() if leaf.field.nullable}
        leaves = with_nullable(heads[0][0], nullable)
        super().__init__(leaves, [(name, sizes) for name, (_, sizes) in zip(names, heads, strict=True)], decoding)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return self._files.fingerprint("parquet", self._fields)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return self._files.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of sizes and samples of the files."""
        return self._files.sample_digest(sampling, "parquet", self._fields)

    def _look(self, threads: int) -> list[Head]:
        """At every file: its fields and the records of its row groups."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda file: read_head(file, read_footer(file), self._fields), self._files))

    def _measure(self, group: Group, leaves: Sequence[Leaf]) -> tuple[int, int]:
        plans = [self._plan(group, leaf) for leaf in leaves]
        return sum(plan.num_bytes for plan in plans), sum(plan.stored_bytes for plan in plans)

    def _plan(self, group: Group, leaf: Leaf) -> Plan:
        plan: Plan = self._plans.get(((group.path, group.number), leaf.path), lambda: self._make_plan(group, leaf))
        return plan

    def _make_plan(self, group: Group, leaf: Leaf) -> tuple[Plan, int]:
        file = self._file_named[group.path]
        with self._bytes(group, leaf) as read_range:
            plan = make_plan(file, self._footer(file), (group.number, group.rows), leaf, read_range)
        return plan, PLAN_BYTES >> 13

    def _decode(self, group: Group, leaf: Leaf) -> list[Any]:
        plan, name, limit = self._plan(group, leaf), ".".join(leaf.path), self._decoding.max_block_bytes
        footer = self._footer(self._file_named[group.path])
        parquet = need("pyarrow.parquet", "arrow")
        how = {"metadata": footer, "page_checksum_verification": True, "read_dictionary": plan.as_dictionary(limit)}
        with self._opened(group, leaf) as source, parquet.ParquetFile(source, **how) as file:
            if (rows := plan.rows_at_once(limit)) < group.rows:
                batches = file.iter_batches(rows, row_groups=[group.number], columns=[name], use_threads=False)
                _check_batches(f"{group.path}: group {group.number}", batches, plan.stored_bytes, limit)
            found = file.read_row_group(group.number, [name], use_threads=False).to_batches()
        self._need_unchanged(self._file_named[group.path])
        for batch in found:
            batch.validate(full=leaf.is_json)  # of nested columns Arrow itself makes texts, and trusts them
        return [batch.column(leaf.path[0]) for batch in found]

    def _need_unchanged(self, file: File) -> None:
        if _version_of(file) != self._versions[str(file)]:
            raise SourceChangedError(f"{file}: the file was written to or replaced since it was opened; open the data again")

    def _footer(self, file: File) -> Any:
        self._need_unchanged(file)
        return self._footers.get((str(file), None), lambda: _with_size(read_footer(file)))

    @contextmanager
    def _opened(self, group: Group, leaf: Leaf) -> Iterator[Any]:
        """What Arrow opens to read a column of a group."""
        yield group.path

    @contextmanager
    def _bytes(self, group: Group, leaf: Leaf) -> Iterator[ReadRange]:
        """Gives ranges of the bytes of a column of a group."""
        with open(group.path, "rb", buffering=0) as file:
            yield lambda low, high: os.pread(file.fileno(), high - low, low)

    def _recipe(self) -> Recipe:
        return (ParquetSource, (self._files, self._fields, self._decoding))


class RemoteParquetSource(ParquetSource):
    """The same of files at URLs: the bytes of row groups come through a window, several at a time."""

    def __init__(self, what: Names, fields: Fields | None, decoding: Decoding, options: RemoteOptions) -> None:
        self._options = options
        super().__init__(what, fields, decoding)
        self._window = options.open_files([(file.path, file.info) for file in self._files if isinstance(file, RemoteFile)])

    @property
    def remote(self) -> RemoteFiles:
        """The files and the window on them."""
        return self._window

    def byte_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where the row groups of records lie."""
        return self._ranges(np.unique(self._blocks.of(ids)), list(self._leaves))

    def close(self) -> None:
        """Forget what was decoded and fetched: nothing can be read any more."""
        super().close()
        self._window.close()

    def _look(self, threads: int) -> list[Head]:
        found = self._files.each(self._look_at)
        self._extents = np.concatenate([extents for _, extents in found])
        self._file_of = np.repeat(np.arange(len(found)), [len(extents) for _, extents in found])
        return [head for head, _ in found]

    def _look_at(self, file: File) -> tuple[Head, IntArray]:
        footer = self._footer(file)
        leaves, rows = read_head(file, footer, self._fields)
        return (leaves, rows), read_extents(file, footer, leaves.values())

    def _ranges(self, groups: IntArray, fields: Sequence[str]) -> tuple[IntArray, IntArray, IntArray]:
        """File, start and stop of every field of groups."""
        names = list(self._leaves)
        extents = self._extents[groups][:, [names.index(field) for field in fields]]
        numbers: IntArray = np.repeat(self._file_of[groups], len(fields))
        return numbers, extents[..., 0].ravel(), extents[..., 1].ravel()

    def _windows(self, groups: list[int], fields: Sequence[str]) -> list[list[int]]:
        """More at a time than there are threads, for bytes come side by side, but no more than the window can hold."""
        ordered = list(chain.from_iterable(super()._windows(groups, fields)))
        _, starts, stops = self._ranges(np.array(ordered), fields)
        sizes = (stops - starts + 2 * PAGE).reshape(len(ordered), -1).sum(axis=1)
        return [
            ordered[low : min(low + GROUPS_AT_ONCE, part.stop)]
            for part in self._window.slices(np.zeros_like(sizes), sizes)
            for low in range(part.start, part.stop, GROUPS_AT_ONCE)
        ]

    def _fetch(self, groups: Sequence[int], fields: Sequence[str]) -> None:
        absent = [group for group in groups if any((group, name) not in self._recent for name in fields)]
        if absent:  # all on their way at once; each is waited for where it is decoded
            hold = self._window.hold(*self._ranges(np.array(absent), fields))
            hold.begin()
            hold.end()

    def _make(self, number: int, name: str) -> tuple[Column, int]:
        for _ in range(TRIES - 1):
            try:
                return super()._make(number, name)
            except CorruptError:
                self._refetch(number)
        return super()._make(number, name)

    def _size(self, number: int, fields: Sequence[str]) -> int:
        for _ in range(TRIES - 1):
            try:
                return super()._size(number, fields)
            except (CorruptError, BatchTooLargeError):
                self._refetch(number)
        return super()._size(number, fields)

    def _refetch(self, number: int) -> None:
        """Forget the bytes of a group's file, and what was made of them."""
        self._window.refetch(int(self._file_of[number]))
        self._plans.clear()

    @contextmanager
    def _opened(self, group: Group, leaf: Leaf) -> Iterator[Any]:
        with self._bytes(group, leaf) as read_range:
            yield RangeFile(self._file_named[group.path].size, read_range)

    @contextmanager
    def _bytes(self, group: Group, leaf: Leaf) -> Iterator[ReadRange]:
        place = self._blocks.of(np.array([group.first]))
        start, stop = self._extents[place[0], list(self._leaves.values()).index(leaf)].tolist()
        number = int(self._file_of[place[0]])
        file, landing = self._files[number], self._window.landings[number]

        def read_range(low: int, high: int) -> bytes:
            """Arrow reads a little more of files of very old writers, which is not in the window."""
            return landing.read(low, high) if start <= low and high <= stop else file.read(low, high)

        with self._window.hold(self._file_of[place], np.array([start]), np.array([stop])):
            yield read_range

    def _recipe(self) -> Recipe:
        return (RemoteParquetSource, (self._files, self._fields, self._decoding, self._options))


def _check_batches(where: str, batches: Iterable[Any], stored: int, limit: int) -> None:
    """BatchTooLargeError if batches are too large together. None of them is kept."""
    total = 0
    for batch in batches:
        total += batch.get_total_buffer_size()
        check_block(where, total, stored, limit)


def _version_of(file: File) -> tuple[int, ...]:
    """Inode, size and time of a file on disk, which is opened anew for every group; an object at a URL is known by its version."""
    return file_version(file.path)[:WRITTEN] if isinstance(file, LocalFile) else ()


def _with_size(footer: Any) -> tuple[Any, int]:
    """A footer, and about what it takes in memory, which is more than in the file."""
    return footer, 10 * footer.serialized_size
