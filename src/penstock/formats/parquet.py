"""Parquet files: row groups decoded by Arrow, on disk or from byte ranges at URLs.

A column of a row group is pages one after the other. A page is a header, a struct in Thrift's compact protocol, and its bytes::

    PageHeader             1 kind  2 uncompressed_page_size  3 compressed_page_size  5, 7 or 8: one of the following
    5 DataPageHeader       1 num_values  2 encoding
    7 DictionaryPageHeader 1 num_values  2 encoding
    8 DataPageHeaderV2     1 num_values  4 encoding

Numbers of values and sizes of pages bound what Arrow makes of most encodings. In two of them, a few bits can stand for a text of
any length that comes elsewhere in the column.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from penstock.argument import IntArray, byte_size, whole_number
from penstock.errors import BatchTooLargeError, CorruptError, FormatError, SizeOverflowError, TruncatedError
from penstock.formats.arrow import CACHE_BYTES, Decoding, Group, GroupSource
from penstock.formats.arrow_column import ArrowColumn
from penstock.formats.arrow_file import (
    ArrowField,
    Fields,
    choose,
    may_be_null,
    need_agreement,
    plain_fields,
    translated,
    with_nullable,
)
from penstock.formats.files import (
    MAX_BLOCK_BYTES,
    File,
    FileSource,
    LocalFile,
    Names,
    RemoteFile,
    Versions,
    check_block,
    find_files,
)
from penstock.formats.rows_in_files import default_threads
from penstock.process import Recent, need
from penstock.records import Extents, Recipe
from penstock.remote.residency import PAGE
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.row_table import expanded

__all__ = ["ParquetSource", "RangeFile", "RemoteParquetSource", "open_parquet"]

ReadRange = Callable[[int, int], bytes]

MOST_PAGES = 1 << 20
HEADER_BYTES = (1 << 8, 1 << 13, 1 << 24)
"""What is read of a page for its header, until it is whole. Arrow takes no longer ones than the last."""

MOST_DEPTH = 8
DATA, DICTIONARY, DATA_V2 = 5, 7, 8
ENCODING = {DATA: 2, DICTIONARY: 2, DATA_V2: 4}
BY_NUMBER, BY_PREFIX = (2, 8), (7,)
"""Encodings whose values are numbers of values in a dictionary, and those whose values begin like the one before."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Page:
    """What the header of a page says."""

    kind: int
    size: int  # decompressed
    num_values: int
    encoding: int


@dataclass
class Spread:
    """What a column of a row group decodes to."""

    num_values: int = 0
    page_bytes: int = 0  # of all data pages, decompressed
    largest_page: int = 0
    dictionary_bytes: int = 0
    by_number: bool = False  # whether some values are in a dictionary,
    by_prefix: bool = False  # or begin like the one before


def spread_of(where: str, read_range: ReadRange, span: Span, num_values: int) -> Spread:
    """What the pages of a column decode to. ``num_values``: of all of them, as the footer has it."""
    found = Spread()
    for page in _pages(where, read_range, span):
        if min(page.size, page.num_values) < 0:
            raise CorruptError(f"{where}: expected pages of 0 bytes and values or more, found {page.size} and {page.num_values}")
        found.largest_page = max(found.largest_page, page.size)
        if page.kind == DICTIONARY:
            found.dictionary_bytes += page.size
            continue
        found.num_values += page.num_values
        found.page_bytes += page.size
        found.by_number |= page.encoding in BY_NUMBER
        found.by_prefix |= page.encoding in BY_PREFIX
        if found.num_values >= num_values:
            break
    if found.num_values != num_values:
        raise CorruptError(f"{where}: expected pages of {num_values} values, found {found.num_values}")
    return found


def _pages(where: str, read_range: ReadRange, span: Span) -> Iterator[Page]:
    """The pages, without those of kinds that have no values."""
    start, stop = span
    for _ in range(MOST_PAGES):
        if start >= stop:
            return
        fields, size = _header(where, read_range, start, stop)
        kind = next((one for one in ENCODING if isinstance(fields.get(one), dict)), None)
        stored = fields.get(3)
        if not isinstance(stored, int) or not 0 <= stored <= stop - start - size or not isinstance(fields.get(2), int):
            raise CorruptError(f"{where}: expected a page within [{start}, {stop}), found one of {stored} bytes")
        if kind is not None:
            inner = fields[kind]
            yield Page(kind, fields[2], _whole(inner.get(1)), _whole(inner.get(ENCODING[kind])))
        start += size + stored
    raise CorruptError(f"{where}: expected at most {MOST_PAGES} pages in a column of a row group")


def _header(where: str, read_range: ReadRange, start: int, stop: int) -> tuple[dict[int, Any], int]:
    for most in HEADER_BYTES:
        data = read_range(start, min(stop, start + most))
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < most:
                break
    raise CorruptError(f"{where}: expected the header of a page at {start}, found other bytes")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _struct(data: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct that are numbers or structs, and where it ends. IndexError if it does not."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _zigzag(data, place)
        fields[number], place = _value(data, place, head & 15, depth)
    return fields, place + 1


def _value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # a truth value, which is in the kind
        return kind == 1, place
    if kind in (4, 5, 6):
        return _zigzag(data, place)
    if kind in (3, 7):
        return None, place + (1 if kind == 3 else 8)
    if kind == 8:
        size, place = _varint(data, place)
        return None, place + size
    if kind == 12 and depth < MOST_DEPTH:
        return _struct(data, place, depth + 1)
    raise IndexError(kind)  # headers of pages have no others


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[place]) & 128:
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise IndexError(place)
    return number | byte << shift, place + 1


def _zigzag(data: bytes, place: int) -> tuple[int, int]:
    number, place = _varint(data, place)
    return number >> 1 ^ -(number & 1), place


class RangeFile(io.RawIOBase):
    """A read-only, seekable file of ``size`` bytes. ``read_range(start, stop)`` gives some of them."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size, self._read_range, self._place = size, read_range, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere, counted from the beginning, from here or from the end."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if place < 0:
            raise ValueError(f"expected a place at or after the beginning of the file, got {place}")
        self._place = place
        return place

    def read(self, size: int | None = -1, /) -> bytes:
        """``size`` bytes, fewer only at the end; all of the rest by default."""
        if self.closed:
            raise ValueError("the file is closed")
        stop = self._size if size is None or size < 0 else min(self._size, self._place + size)
        if stop <= self._place:
            return b""
        data = self._read_range(self._place, stop)
        self._place = stop
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the file goes; how many bytes that were."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


MAGIC = b"PAR1"
TAIL_BYTES = 64 << 10
"""What Arrow reads of a file first: most footers are smaller, so of most objects it is the only request."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
MOST_GROUP_RECORDS = 1 << 28
"""Arrow reserves memory for as many records as the footer says. Real row groups are far smaller."""


def read_footer(file: File) -> Any:
    """The footer of a file, checked as far as the number of records goes."""
    local = isinstance(file, LocalFile)
    tail = file.last(len(MAGIC) if local else TAIL_BYTES)
    size = file.size
    whole = tail.endswith(MAGIC) and size >= 2 * len(MAGIC)
    start = file.first(len(MAGIC)) if local or not whole else MAGIC
    if start != MAGIC:
        raise FormatError(f"{file}: expected a Parquet file beginning with {MAGIC!r}, found {start!r}")
    if not whole:
        raise TruncatedError(f"{file}: expected {MAGIC!r} at the end of a Parquet file, found {tail[-4:]!r}: it was cut")

    def read_range(low: int, high: int) -> bytes:
        begin = size - len(tail)
        return tail[low - begin : high - begin] if low >= begin else file.read(low, high)

    with translated(str(file)):
        footer = need("pyarrow.parquet", "arrow").read_metadata(str(file) if local else RangeFile(size, read_range))
        _check_counts(file, footer)
    return footer


def _check_counts(file: File, footer: Any) -> None:
    sizes = _row_counts(footer)
    if min(sizes, default=0) < 0 or sum(sizes) != footer.num_rows:
        raise CorruptError(f"{file}: expected row groups of {footer.num_rows} records together, found {str(sizes)[:100]}")
    if max(sizes, default=0) > MOST_GROUP_RECORDS:
        raise SizeOverflowError(
            f"{file}: expected row groups of at most {MOST_GROUP_RECORDS} records, found {max(sizes)}; write smaller ones"
        )


def _row_counts(footer: Any) -> list[int]:
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def read_head(file: File, footer: Any, fields: Fields | None) -> tuple[dict[str, ArrowField], list[int]]:
    """The fields of a file, and the records of its row groups."""
    with translated(str(file)):
        schema = footer.schema.to_arrow_schema()
        leaves = choose(schema, fields, str(file))
        open_ones = {name: leaf for name, leaf in leaves.items() if may_be_null(schema, leaf)}
        return with_nullable(leaves, _find_nulls(file, footer, open_ones)), _row_counts(footer)


def _find_nulls(file: File, footer: Any, leaves: Mapping[str, ArrowField]) -> set[str]:
    """The fields with missing values, as the statistics of the file say, or of which they say nothing. A list of no elements counts
    as a null there, so that a field with such lists is taken for one with missing values.
    """
    groups = [number for number, rows in enumerate(_row_counts(footer)) if rows]
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    columns = {name: _columns_of(".".join(leaf.path), paths) for name, leaf in leaves.items()}
    if not groups or not columns:
        return set()
    _check_chunks(file, footer, groups, list(columns.values()))
    return {name for name, some in columns.items() if not some or any(_has_nulls(file, footer, g, c) for g in groups for c in some)}


def _has_nulls(file: File, footer: Any, group: int, column: int) -> bool:
    statistics = _chunk(f"{file}: group {group}", footer, group, column).statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count != 0


def _chunk(where: str, footer: Any, group: int, column: int) -> Any:
    """What the footer says of a column of a row group. Statistics of another type would end the process (seen with pyarrow 26)."""
    chunk, expected = footer.row_group(group).column(column), footer.schema.column(column).physical_type
    if chunk.physical_type != expected:
        raise CorruptError(f"{where}: expected values of {expected} as in the schema, found {chunk.physical_type}")
    return chunk


def read_extents(file: File, footer: Any, leaves: Iterable[ArrowField]) -> IntArray:
    """Where the bytes of every field begin and end in the file, for every row group with records: an array of [group, field, 2]."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    columns = [_columns_of(".".join(leaf.path), paths) for leaf in leaves]
    groups = [number for number, rows in enumerate(_row_counts(footer)) if rows]
    with translated(str(file)):
        _check_chunks(file, footer, groups, columns)
        rows = [footer.row_group(number) for number in groups]
        found = [[_span([_chunk_span(row.column(c)) for c in some]) for some in columns] for row in rows]
    extents: IntArray = np.array(found, np.int64).reshape(len(groups), len(columns), 2)
    if ((extents < 0) | (extents > file.size) | (extents[..., :1] > extents[..., 1:])).any():
        raise CorruptError(f"{file}: expected columns within the {file.size} bytes of the file, found others")
    return extents


@dataclass(frozen=True)
class DecodePlan:
    """How a field of a row group is decoded: what its columns say they are."""

    num_bytes: int  # decoded, while texts in dictionaries stay there
    stored_bytes: int
    texts: Mapping[str, Spread]  # the columns of texts and byte strings, by their paths

    def as_dictionary(self, limit: int) -> list[str]:
        """The columns that stay dictionaries and numbers: spread out, they might be larger than the limit."""
        return [
            path for path, spread in self.texts.items() if spread.by_number and spread.num_values * spread.dictionary_bytes > limit
        ]

    def rows_at_once(self, limit: int) -> int:
        """How many records may be decoded without a look at how large they are. All of them, unless texts begin like others."""
        spreads = [spread for spread in self.texts.values() if spread.by_prefix]
        largest = max((spread.largest_page for spread in spreads), default=0)
        fits = all(spread.num_values * largest <= limit for spread in spreads)
        return MOST_GROUP_RECORDS if fits else max(1, limit // (16 * largest))


def make_plan(file: File, footer: Any, group: tuple[int, int], leaf: ArrowField, read_range: ReadRange) -> DecodePlan:
    """The plan for a field of a row group, given by its number and its records. Nothing is decoded."""
    number, rows = group
    columns = _columns_of(".".join(leaf.path), [footer.schema.column(one).path for one in range(footer.num_columns)])
    _check_chunks(file, footer, [number], [columns])
    num_bytes, stored, texts = 0, 0, dict[str, Spread]()
    for one in columns:
        column = footer.schema.column(one)
        where = f"{file}: group {number}, column {column.path!r}"
        chunk = _chunk(where, footer, number, one)
        if chunk.num_values < rows or (chunk.num_values > rows and column.max_repetition_level == 0):
            raise CorruptError(f"{where}: expected {rows} records, found {chunk.num_values} values")
        start, stop = _chunk_span(chunk)
        spread = spread_of(where, read_range, (start, min(stop, file.size)), chunk.num_values)
        num_bytes, stored = num_bytes + _decoded_bytes(column, spread), stored + stop - start
        if column.physical_type == "BYTE_ARRAY":
            texts[column.path] = spread
    return DecodePlan(num_bytes, min(stored, file.size), texts)


def _decoded_bytes(column: Any, spread: Spread) -> int:
    """Values, and with them the levels that say which are null and where lists begin; and the pages they are decoded from."""
    width: int = WIDTHS.get(column.physical_type, 8) if column.length <= 0 else column.length
    width += 2 * (column.max_definition_level > 0) + 6 * (column.max_repetition_level > 0)
    texts = spread.page_bytes if column.physical_type == "BYTE_ARRAY" else 0
    return spread.num_values * width + texts + spread.largest_page + spread.dictionary_bytes


class _AskedError(Exception):
    """Arrow wants to read."""


def _check_chunks(file: File, footer: Any, groups: list[int], columns: list[list[int]]) -> None:
    """An error if one of those columns is described wrongly.

    To look at such a description from Python ends the process (seen with pyarrow 26). Arrow checks them all, safely, before it
    reads the first byte, and the first byte is as far as it gets here.
    """

    def read_range(low: int, high: int) -> bytes:
        raise _AskedError

    if not groups:
        return
    opened, wanted = need("pyarrow.parquet", "arrow").ParquetFile, sorted({c for some in columns for c in some})
    # The reader has no name here: it keeps the exception, that keeps this frame, and the frame must not keep the reader.
    with contextlib.suppress(_AskedError):
        opened(RangeFile(file.size, read_range), metadata=footer, pre_buffer=True).reader.read_row_groups(
            groups, column_indices=wanted, use_threads=False
        )


def _columns_of(name: str, paths: list[str]) -> list[int]:
    """The numbers of the columns that Arrow reads for a name: a list or struct has columns of its own below it."""
    return [number for number, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]


def _chunk_span(chunk: Any) -> tuple[int, int]:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def _span(spans: list[tuple[int, int]]) -> tuple[int, int]:
    return min(start for start, _ in spans), max(stop for _, stop in spans)


SUFFIXES = (".parquet",)
FOOTER_BYTES = 64 << 20
PLAN_BYTES = 8 << 20
GROUPS_AT_ONCE = 16
"""Row groups of remote files that are fetched together."""
TRIES = 3
"""Remote bytes that cannot be decoded are fetched so often: they may have been damaged on their way."""

Head = tuple[dict[str, ArrowField], list[int]]


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


class ParquetSource(FileSource, GroupSource):
    """The rows of Parquet files, one file after the other. No file is held open."""

    def __init__(self, what: Names, fields: Fields | None, decoding: Decoding) -> None:
        self._files, self._fields = find_files(what, SUFFIXES), fields
        self._file_named = {str(file): file for file in self._files}
        self._footers, self._plans = Recent(FOOTER_BYTES), Recent(PLAN_BYTES)
        self._versions = Versions(self._files)
        heads, names = self._look(decoding.threads), [str(file) for file in self._files]
        for name, (leaves, _) in zip(names, heads, strict=True):
            need_agreement(heads[0][0], leaves, (names[0], name), exact=False)
        nullable = {name for leaves, _ in heads for name, leaf in leaves.items() if leaf.field.nullable}
        leaves = with_nullable(heads[0][0], nullable)
        super().__init__(leaves, [(name, sizes) for name, (_, sizes) in zip(names, heads, strict=True)], decoding)

    def _look(self, threads: int) -> list[Head]:
        """At every file: its fields and the records of its row groups."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda file: read_head(file, read_footer(file), self._fields), self._files))

    def _measure(self, group: Group, leaves: Sequence[ArrowField]) -> tuple[int, int]:
        plans = [self._plan(group, leaf) for leaf in leaves]
        return sum(plan.num_bytes for plan in plans), sum(plan.stored_bytes for plan in plans)

    def _plan(self, group: Group, leaf: ArrowField) -> DecodePlan:
        plan: DecodePlan = self._plans.get(((group.path, group.number), leaf.path), lambda: self._make_plan(group, leaf))
        return plan

    def _make_plan(self, group: Group, leaf: ArrowField) -> tuple[DecodePlan, int]:
        file = self._file_named[group.path]
        with self._bytes(group, leaf) as read_range:
            plan = make_plan(file, self._footer(file), (group.number, group.rows), leaf, read_range)
        return plan, PLAN_BYTES >> 13

    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        plan, name, limit = self._plan(group, leaf), ".".join(leaf.path), self._decoding.max_block_bytes
        footer = self._footer(self._file_named[group.path])
        parquet = need("pyarrow.parquet", "arrow")
        how = {"metadata": footer, "page_checksum_verification": True, "read_dictionary": plan.as_dictionary(limit)}
        with self._opened(group, leaf) as source, parquet.ParquetFile(source, **how) as file:
            if (rows := plan.rows_at_once(limit)) < group.rows:
                batches = file.iter_batches(rows, row_groups=[group.number], columns=[name], use_threads=False)
                _check_batches(f"{group.path}: group {group.number}", batches, plan.stored_bytes, limit)
            found = file.read_row_group(group.number, [name], use_threads=False).to_batches()
        self._versions.check(group.path)
        for batch in found:
            batch.validate(full=leaf.is_json)  # of nested columns Arrow itself makes texts, and trusts them
        return [batch.column(leaf.path[0]) for batch in found]

    def _footer(self, file: File) -> Any:
        self._versions.check(str(file))
        return self._footers.get((str(file), None), lambda: _with_size(read_footer(file)))

    @contextmanager
    def _opened(self, group: Group, leaf: ArrowField) -> Iterator[Any]:
        """What Arrow opens to read a column of a group."""
        yield group.path

    @contextmanager
    def _bytes(self, group: Group, leaf: ArrowField) -> Iterator[ReadRange]:
        """Gives ranges of the bytes of a column of a group."""
        with open(group.path, "rb", buffering=0) as file:
            yield lambda low, high: os.pread(file.fileno(), high - low, low)

    def _identity(self) -> tuple[Any, ...]:
        return "parquet", self._fields

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
        return self._window

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where the row groups of records are."""
        some = stops > starts
        first, last = self._blocks.of(starts[some]), self._blocks.of(stops[some] - 1)
        return self._ranges(np.unique(expanded(first, last + 1)), list(self._leaves))

    def close(self) -> None:
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

    def _make(self, number: int, name: str) -> tuple[ArrowColumn, int]:
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
    def _opened(self, group: Group, leaf: ArrowField) -> Iterator[Any]:
        with self._bytes(group, leaf) as read_range:
            yield RangeFile(self._file_named[group.path].size, read_range)

    @contextmanager
    def _bytes(self, group: Group, leaf: ArrowField) -> Iterator[ReadRange]:
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


def _with_size(footer: Any) -> tuple[Any, int]:
    """A footer, and about what it takes in memory, which is more than in the file."""
    return footer, 10 * footer.serialized_size
