"""Arrow: files, tables and Hugging Face data sets; and GroupSource, for records that are decoded a group at a time."""

import hashlib
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from penstock.argument import IntArray, as_ids, byte_size
from penstock.batch import Batch, Outputs, Ragged, fixed_output
from penstock.errors import CorruptError, SizeOverflowError
from penstock.fingerprint import (
    SAMPLE_BYTES,
    WHOLE_BYTES,
    fingerprint_arrays,
    fingerprint_of,
    spread,
)
from penstock.formats.arrow_column import (
    ArrowColumn,
    BufferMemory,
    FileMemory,
    Memory,
    NotInFileError,
    OffsetColumn,
    gather_spans,
    make_column,
)
from penstock.formats.arrow_file import (
    SUFFIXES,
    ArrowField,
    Fields,
    choose,
    expansion,
    files_of,
    find_nulls,
    is_compressed,
    is_stream,
    is_view,
    mapped_bytes,
    measure_batches,
    need_agreement,
    plain_fields,
    read_batch,
    read_batches,
    read_row_counts,
    read_schema,
    refitted,
    translated,
    with_nullable,
)
from penstock.formats.files import MAX_BLOCK_BYTES, Files, FileSource, Versions, check_block
from penstock.formats.rows_in_files import default_threads, reader_of_memory
from penstock.process import Recent, need
from penstock.records import Blocks, Extents, Recipe, Sampling, Source, by_number, joined_extents
from penstock.schema import Field

__all__ = [
    "CACHE_BYTES",
    "CompressedArrow",
    "Decoding",
    "Group",
    "GroupSource",
    "MappedArrow",
    "open_arrow",
    "open_huggingface",
    "open_table",
    "sealed_column",
]

CACHE_BYTES = 256 << 20
MOST_RECORDS = 1 << 62


def blocks_of(counts: Sequence[int], where: str) -> Blocks:
    """Blocks of ``counts`` records; SizeOverflowError if there are too many."""
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

    def __init__(self, leaves: Mapping[str, ArrowField], counts: Sequence[tuple[str, Sequence[int]]], decoding: "Decoding") -> None:
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
        return {name: leaf.field for name, leaf in self._leaves.items()}

    @property
    def blocks(self) -> Blocks:
        return self._blocks

    @property
    def reads_blocks(self) -> bool:
        return True

    @abstractmethod
    def _measure(self, group: Group, leaves: Sequence[ArrowField]) -> tuple[int, int]:
        """How many bytes columns of a group decode to at most, as far as the file says, and how many they have in it."""

    @abstractmethod
    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        """The Arrow arrays of the column of a field, structs above it included. Called from several threads, also after fork."""

    def close(self) -> None:
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
        places = dict(by_number(self._blocks.of(ids)))
        if not places:
            return {name: sealed_column(name, self._leaves[name], [], str, 0).read(ids, arrays) for name in fields}
        if len(places) == 1:  # no detour: the group writes into the arrays of the batch
            groups = list(places)
            local = ids - self._groups[groups[0]].first
            self._fetch(groups, fields)
            self._bounded(groups, fields)
            return {name: column.read(local, arrays) for (_, name), column in self._columns(groups, fields).items()}
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

    def _columns(self, groups: Sequence[int], fields: Sequence[str]) -> dict[tuple[int, str], ArrowColumn]:
        wanted = list(product(groups, fields))
        if self._threads == 1 or sum(key not in self._recent for key in wanted) <= 1:
            return {key: self._column(*key) for key in wanted}
        with ThreadPoolExecutor(self._threads) as pool:
            return dict(zip(wanted, pool.map(lambda key: self._column(*key), wanted), strict=True))

    def _column(self, number: int, name: str) -> ArrowColumn:
        column: ArrowColumn = self._recent.get((number, name), lambda: self._make(number, name))
        return column

    def _make(self, number: int, name: str) -> tuple[ArrowColumn, int]:
        group, leaf = self._groups[number], self._leaves[name]
        with translated(group.path):
            arrays = self._decode(group, leaf)
            fitting = refitted(leaf, arrays[0].type, group.path) if arrays else leaf
            for array in arrays:
                check_block(f"{group.path}: group {group.number}", *expansion(leaf, array), self._decoding.max_block_bytes)
            describe = lambda record: f"{group.path}: record {group.first + record}"  # noqa: E731
            column = sealed_column(name, fitting, arrays, describe, self._decoding.max_block_bytes)
        if len(column) != group.rows:
            raise CorruptError(
                f"{group.path}: expected {group.rows} records in group {group.number}, found {len(column)} of {name!r}"
            )
        if column.has_nulls and not leaf.field.nullable:
            raise CorruptError(f"{group.path}: expected no missing values of {name!r}, found some in group {group.number}")
        return column, sum(array.get_total_buffer_size() for array in arrays)


def sealed_column(
    name: str, leaf: ArrowField, arrays: Sequence[Any], describe: Callable[[int], str], max_block_bytes: int
) -> ArrowColumn:
    """The column of arrays, ready to be read."""
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


SAMPLED_RECORDS = 16
"""What the fingerprint of a table looks at of a field of varying length, at the beginning, in the middle and at the end."""

SAMPLED_BYTES = 8 << 20
"""What the sample digest of a table looks at of a field of varying length, about."""

READ_IN_TURNS = 32
"""Its records are read in as many turns, each spread over all of the table."""

BLOCK_BYTES = 1 << 20


def open_arrow(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> Source:
    """Arrow IPC files (.arrow, .feather), in the file or the stream format, one or many as one source.

    A list keeps its order, a pattern or a directory gives that of the name bytes. ``fields`` are the wanted columns, or a dict of
    new names and columns. Files that are not compressed are mapped; of others, record batches are decoded when they are touched.
    One that claims to be more than ``max_block_bytes`` is refused, unless it is stored in a 64th of its bytes or more.
    """
    need("pyarrow", "arrow")
    decoding = Decoding(default_threads(threads), CACHE_BYTES, byte_size("max_block_bytes", max_block_bytes))
    return _open_files(files_of(what, SUFFIXES), plain_fields(fields), decoding)


def open_table(table: Any, *, fields: Fields | None = None, threads: int | None = None) -> "ArrowTable":
    """A ``pyarrow.Table`` or ``RecordBatch`` as a source. It is not copied; a pickle of the source has the data in it."""
    pa = need("pyarrow", "arrow")
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    if not isinstance(whole, pa.Table):
        raise TypeError(f"expected a pyarrow.Table or RecordBatch, got {type(table).__name__}")
    return ArrowTable(whole, plain_fields(fields), default_threads(threads))


def open_huggingface(dataset: Any, *, fields: Fields | None = None, threads: int | None = None) -> Source:
    """A Hugging Face ``datasets.Dataset`` as a source, in the order it was shuffled or selected into.

    Features are taken as they are stored: an image is the fields ``image.bytes`` and ``image.path``. Formats and transforms of the
    data set do not apply. A pickle of the source has a pickle of the data set in it, which names its files.
    """
    if not hasattr(dataset, "_indices") or not hasattr(dataset, "data"):
        raise TypeError(f"expected a datasets.Dataset, got {type(dataset).__name__}: choose a split, and do not stream")
    source = _open_data(dataset.data, plain_fields(fields), default_threads(threads))
    if dataset._indices is None:
        return source
    return source.select(dataset._indices.table.column(0).to_numpy().astype(np.int64))


class ArrowSource(Source):
    """Columns whose records are read by native threads, straight from the buffers, wherever these are."""

    def __init__(self, columns: Mapping[str, ArrowColumn], memory: Memory, blocks: Blocks) -> None:
        for column in columns.values():
            column.seal()
            column.field = column.field.with_nullable(column.has_nulls)
        memory.seal()
        self._columns, self._memory, self._blocks = dict(columns), memory, blocks
        self._native: dict[str, tuple[Any, int] | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return self._blocks.length

    @property
    def schema(self) -> Mapping[str, Field]:
        return {name: column.field for name, column in self._columns.items()}

    @property
    def blocks(self) -> Blocks:
        """The record batches of files; runs of about 1 MiB in memory."""
        return self._blocks

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._columns[name].read(ids, out) for name in fields}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """Of numbers, lists of them, texts and byte strings; not of bits, dictionaries and nested values."""
        if self._closed or field not in self._columns:
            return None
        if field not in self._native:
            self._native[field] = self._columns[field].native()
        return self._native[field]

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Of texts, byte strings and lists without a look at their values."""
        column = self._columns.get(field)
        return column.lengths(as_ids(ids, len(self))) if isinstance(column, OffsetColumn) else super().lengths(field, ids)

    @property
    def paths(self) -> Sequence[str]:
        return () if self._closed else self._memory.paths

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Of the columns that are in the files as they are; where texts and lists are in a record batch, about."""
        return joined_extents(self._memory.extents(column.places(starts, stops)) for column in self._columns.values())

    def close(self) -> None:
        self._memory.close()
        self._closed, self._native = True, {}


class ArrowTable(ArrowSource):
    """A table in memory, or mapped by its owner. ``data`` is an object with the table that is pickled instead of it."""

    def __init__(self, table: Any, fields: Fields | None, threads: int, data: Any = None) -> None:
        self._table, self._fields, self._threads, self._data = table, fields, threads, data
        with translated("the table"):
            table.validate()
            memory = BufferMemory(threads)
            columns: dict[str, ArrowColumn] = {}
            for name, leaf in choose(table.schema, fields, "the table").items():
                columns[name] = make_column(name, leaf, memory, lambda record: f"the table: record {record}")
                for array in table.column(leaf.path[0]).chunks:
                    columns[name].add(array)
        row_bytes = table.nbytes // max(1, len(table))
        super().__init__(columns, memory, Blocks(len(table), max(1, BLOCK_BYTES // max(1, row_bytes))))

    @cached_property
    def fingerprint(self) -> str:
        parts = [(name, repr(field.with_nullable(False)), self._sample(name, field)) for name, field in self.schema.items()]
        return fingerprint_of("arrow table", len(self), parts)

    def sample_digest(self, sampling: Sampling) -> str:
        share = sampling.shared(len(self.schema)).pages
        parts = [(name, repr(field.with_nullable(False)), self._digest(name, field, share)) for name, field in self.schema.items()]
        return fingerprint_of("arrow table", len(self), parts)

    def _digest(self, name: str, field: Field, pages: int) -> str:
        """Of runs of records of a page each, or of single records of varying length, until enough bytes of them were seen."""
        run = max(1, SAMPLE_BYTES // max(1, field.stride)) if field.is_fixed else 1
        starts = np.array(spread(-(-len(self) // run), pages), np.int64) * run
        digest, seen = hashlib.sha256(), 0
        for turn in range(READ_IN_TURNS):
            ids = (starts[turn::READ_IN_TURNS, None] + np.arange(run)).reshape(-1)
            content = _bytes_of(self._read(ids[ids < len(self)], [name], {})[name])
            digest.update(content)
            seen += len(content)
            if seen > SAMPLED_BYTES:
                break
        return digest.hexdigest()

    def _sample(self, name: str, field: Field) -> str:
        count = min(len(self), max(1, WHOLE_BYTES // max(1, field.stride)) if field.is_fixed else SAMPLED_RECORDS)
        starts = np.array([0, (len(self) - count) // 2, len(self) - count])
        column = self._read(np.unique(starts[:, None] + np.arange(count)), [name], {})[name]
        if isinstance(column, Ragged):
            parts = [column.values, column.offsets, *([] if column.present is None else [column.present])]
        else:
            parts = [np.ma.getdata(column), np.ma.getmaskarray(column)]
        return fingerprint_arrays("column", parts)

    def _recipe(self) -> Recipe:
        if self._data is not None:
            return (_open_data, (self._data, self._fields, self._threads))
        pa = need("pyarrow", "arrow")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return (_open_bytes, (sink.getvalue().to_pybytes(), self._fields, self._threads))


class MappedArrow(FileSource, ArrowSource):
    """Files that are not compressed. Nothing is held open but by the native reader."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> None:
        self._paths, self._fields, self._decoding = list(paths), fields, decoding
        self._files = Files.on_disk(paths)
        self._file_ends: list[int] = []
        memory = FileMemory(decoding.threads)
        columns: dict[str, ArrowColumn] = {}
        first: dict[str, ArrowField] = {}
        counts: list[int] = []
        num_records = 0
        nested: dict[str, str] = {}
        for path in paths:
            stream = is_stream(path)
            with translated(path), mapped_bytes(path) as whole:
                leaves = choose(read_schema(stream, whole), fields, path)
                first = first or leaves
                need_agreement(first, leaves, (paths[0], path), exact=True)
                nested = {name: ".".join(leaf.path) for name, leaf in leaves.items() if leaf.is_json}
                leaves = {name: leaf for name, leaf in leaves.items() if name not in nested}
                if not leaves or any(is_view(leaf.type) for leaf in leaves.values()):
                    raise NotInFileError
                columns = columns or {name: make_column(name, leaf, memory, self._describe) for name, leaf in leaves.items()}
                if is_compressed(stream, whole):
                    raise NotInFileError
                memory.add_file(path, whole)
                for batch in read_batches(stream, whole):
                    counts.append(batch.num_rows)
                    num_records += batch.num_rows
                    for name, leaf in leaves.items():
                        columns[name].add(batch.column(leaf.path[0]))
            self._file_ends.append(num_records)
        super().__init__(columns, memory, blocks_of(counts, paths[0]))
        self._names = list(first)
        self._nested = CompressedArrow(paths, nested, decoding) if nested else None  # which are not in the file as they are read

    @property
    def schema(self) -> Mapping[str, Field]:
        found = {**super().schema, **({} if self._nested is None else self._nested.schema)}
        return {name: found[name] for name in self._names}

    @property
    def reads_blocks(self) -> bool:
        """Record batches are decoded as a whole where fields are nested."""
        return self._nested is not None

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._nested is None:
            return super()._read(ids, fields, out)
        found = self._nested.read(ids, [name for name in fields if name in self._nested.schema])
        found |= super()._read(ids, [name for name in fields if name not in found], out)
        return {name: found[name] for name in fields}

    def close(self) -> None:
        super().close()
        if self._nested is not None:
            self._nested.close()

    def _describe(self, record: int) -> str:
        return f"{self._paths[bisect_right(self._file_ends, record)]}: record {record}"

    def _identity(self) -> tuple[Any, ...]:
        return "arrow", self._fields

    def _recipe(self) -> Recipe:
        return (_open_files, (self._paths, self._fields, self._decoding))


class CompressedArrow(FileSource, GroupSource):
    """Files that have to be decoded. A group is a record batch of a file, or a whole stream."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> None:
        self._paths, self._fields = list(paths), fields
        self._files = Files.on_disk(paths)
        self._versions = Versions(self._files)
        self._streams: dict[str, bool] = {}
        first: dict[str, ArrowField] = {}
        nullable: set[str] = set()
        counts: list[tuple[str, list[int]]] = []
        for path in paths:
            stream = self._streams[path] = is_stream(path)
            with translated(path), mapped_bytes(path) as whole:
                leaves = choose(read_schema(stream, whole), fields, path)
                first = first or leaves
                need_agreement(first, leaves, (paths[0], path), exact=False)
                sizes = read_row_counts(stream, whole)
                nullable |= find_nulls(stream, whole, leaves)
                counts.append((path, [sum(sizes)] if stream else sizes))
        super().__init__(with_nullable(first, nullable), counts, decoding)

    def _measure(self, group: Group, leaves: Sequence[ArrowField]) -> tuple[int, int]:
        self._versions.check(group.path)
        return measure_batches(group.path, None if self._streams[group.path] else group.number)

    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        name = leaf.path[0]
        with need("pyarrow", "arrow").OSFile(group.path) as file:
            if self._streams[group.path]:
                found = [batch.column(name) for batch in read_batches(True, file, [name])]
            else:
                found = [read_batch(file, group.number, [name]).column(name)]
        self._versions.check(group.path)
        for array in found if leaf.is_json else []:
            array.validate(full=True)  # Arrow itself reads it, and trusts it
        return found

    def _identity(self) -> tuple[Any, ...]:
        return "arrow", self._fields

    def _recipe(self) -> Recipe:
        return (_open_files, (self._paths, self._fields, self._decoding))


def _bytes_of(column: Any) -> bytes:
    """A column as bytes: values, lengths and what is missing."""
    if isinstance(column, Ragged):
        present = np.ones(len(column), np.bool_) if column.present is None else column.present
        shapes = b"" if column.shapes is None else column.shapes.tobytes()
        return b"".join([column.values.tobytes(), column.lengths.tobytes(), shapes, present.tobytes()])
    missing = np.ma.getmaskarray(column)
    plain = np.ma.getdata(column)
    return b"".join([np.where(missing, np.zeros((), plain.dtype), plain).tobytes(), missing.tobytes()])


def _open_files(paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> Source:
    try:
        return MappedArrow(paths, fields, decoding)
    except NotInFileError:
        return CompressedArrow(paths, fields, decoding)


def _open_bytes(data: bytes, fields: Fields | None, threads: int) -> ArrowTable:
    return ArrowTable(need("pyarrow", "arrow").ipc.open_stream(data).read_all(), fields, threads)


def _open_data(data: Any, fields: Fields | None, threads: int) -> ArrowTable:
    return ArrowTable(data.table, fields, threads, data)
