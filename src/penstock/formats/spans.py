"""SpanSource: records whose fields are spans of bytes in files: members of archives, samples of shards.

What such formats share. A format has a function that says where the records of one file are (:class:`FileSpans`). It is called for
every file, in several threads; what it found in large files is kept in a sidecar for each of them, so that the next process maps
it. Native threads read the tables where they are, and check every page of a sidecar when they first need it. ::

    def scan(file: ScannedFile) -> FileSpans: ...

    class ShardSource(SpanSource):
        def __init__(self, files: Files, how: SpanOptions) -> None:
            index = SpanIndex("shards", files, scan, how)
            super().__init__(index, {"image": SpanField(Field.bytes()), "label": SpanField(Field("i8"))})
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_ids
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output, masked
from penstock.errors import CorruptError, SchemaMismatchError
from penstock.formats.files import MAX_BATCH_BYTES, Files, check_batch
from penstock.formats.rows_in_files import FileRows, Rows, RowSource, reader_of_files
from penstock.formats.sidecar import PAGE_BYTES, Sidecar, SidecarWriter, Subject, obtain_each
from penstock.native import _core
from penstock.progress import Progress, reporting
from penstock.records import NOWHERE, Extents, Sampling, Source, joined_extents
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.system import file_access

__all__ = ["FileSpans", "ParsedSpans", "ScannedFile", "SpanField", "SpanIndex", "SpanOptions", "SpanSource"]

KEPT_BYTES = 256 << 10
"""The table of files of at least this many bytes is kept in a sidecar; smaller ones are scanned as fast."""

EDGES = Sampling("edges", 3, 3, at_urls=True)
"""What the sidecar of one of many files is compared with: its first page, its last one, and one in the middle."""

SMALL_BYTES = 64 << 10
"""Arrays of a sidecar up to this size are checked when it is opened, so that thousands are open at once."""

REMOTE_SCANS = 8
"""Objects that are scanned at a time."""

LEAST_PIECE, MOST_PIECE = 256 << 10, 4 << 20
"""Bytes of a request of a scan at a URL. A gap of more than the second is not read: a request takes as long."""

SLOW_S = 2.0
"""Scans that take longer show a progress bar."""


@dataclass(frozen=True, eq=False)
class FileSpans:
    """Where the records of one file are.

    ``table`` has a row of int64 for every record: of every column the first byte and the number of bytes, -1 if it is missing; and
    then, if it ``has_crcs``, the crc32c of each column that is in the file. The first ``in_file`` columns are in the file (all,
    unless given), the others in ``memory``.
    """

    columns: Sequence[str]
    table: IntArray
    memory: npt.NDArray[np.uint8] | None = None
    in_file: int | None = None
    has_crcs: bool = False

    @classmethod
    def of(cls, columns: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> "FileSpans":
        """Of the first bytes and the sizes of every column."""
        words = [np.asarray(numbers, np.int64) for pair in columns.values() for numbers in pair]
        return cls(list(columns), np.stack(words, axis=1) if words else np.empty((0, 0), np.int64))

    @classmethod
    def taken(cls, scanner: _core.SpanScanner) -> "FileSpans":
        """What a native scanner has found."""
        columns, table, memory, in_file, has_crcs = scanner.take()
        words = 2 * len(columns) + (in_file if has_crcs else 0)
        return cls(columns, table.reshape(-1, words), memory, in_file, has_crcs)

    def write(self, writer: SidecarWriter) -> None:
        """Add the arrays to a sidecar."""
        table, count = self.table, len(self.columns)
        in_file = count if self.in_file is None else self.in_file
        if table.dtype != np.int64 or table.shape[1:] != (2 * count + (in_file if self.has_crcs else 0),) or count == 0:
            raise ValueError(f"expected int64 spans of {count} columns, got {table.dtype} of {table.shape}")
        sizes = table[:, 1 : 2 * count : 2]
        there = sizes >= 0
        facts = [
            (~there).sum(axis=0),
            np.where(there, sizes, 0).sum(axis=0),
            np.where(there, sizes, 2**62).min(axis=0, initial=2**62),
            sizes.max(axis=0, initial=-1),
        ]
        head = np.array([len(table), table.shape[1], in_file, self.has_crcs], np.int64)
        writer.add("facts", np.int64, [head, np.stack(facts, axis=1).reshape(-1).astype(np.int64)])
        writer.add("names", np.uint8, [np.frombuffer("\n".join(self.columns).encode(), np.uint8)])
        writer.add("spans", np.int64, [np.ascontiguousarray(table).reshape(-1)])
        writer.add("memory", np.uint8, [] if self.memory is None else [self.memory])


class ScannedFile:
    """One file while it is scanned: its bytes, on disk or through the window of its URL."""

    def __init__(self, part: FileRows, base: int, rows: Rows) -> None:
        self._part, self._base, self._rows = part, base, rows

    @property
    def size(self) -> int:
        return self._part.size

    @property
    def path(self) -> Path | None:
        """Of a file on disk."""
        return self._part.path if isinstance(self._part.path, Path) else None

    def __str__(self) -> str:
        return str(self._part.path)

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes [start, stop), which are there."""
        return self.gather(np.array([start], np.int64), np.array([stop - start], np.int64))

    def gather(self, starts: IntArray, sizes: IntArray, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """Spans, which are there, one after the other; at the beginning of ``out`` if that is given."""
        if np.any((starts < 0) | (sizes < 0) | (sizes > self.size - starts)):
            raise ValueError(f"{self}: expected spans within {self.size} bytes")
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        total = int(offsets[-1])
        data = np.empty(total, np.uint8) if out is None else out[:total]
        self._rows.read_spans(starts + self._base, offsets, data)
        return data

    def scan(self, scanner: _core.SpanScanner) -> FileSpans:
        """What a native scanner of this file finds. At a URL it gets large pieces, and leaves out what is between the records where
        that is larger than them.
        """
        path, window = self._part.path, self._rows.remote
        if window is None:
            scanner.scan(str(path), *(word % 2**64 for word in self._part.version or (0, 0, 0)))
        else:
            least = max(1, min(LEAST_PIECE, window.window_bytes // 4))
            most = max(least, min(MOST_PIECE, window.window_bytes // (4 * REMOTE_SCANS)))
            piece = least
            while not scanner.is_done:
                start = scanner.next
                stop = min(self.size, start + max(piece, scanner.need))
                scanner.feed(self.read(start, stop))
                piece = least if scanner.next > stop + MOST_PIECE else min(2 * piece, most)
        return FileSpans.taken(scanner)


Scan = Callable[[ScannedFile], FileSpans]


@dataclass(frozen=True)
class SpanOptions:
    """How the files are read: by how many threads, by which means, and where they are at URLs, through which window."""

    threads: int
    io: str = "auto"
    remote: RemoteOptions | None = None


@dataclass(frozen=True, eq=False)
class _FileTable:
    """The sidecar of one file: how many records it has, how many words each, and of every column the word of its span and of its
    crc (-1: none), whether it is in the file, how many are missing, all bytes, the smallest and the largest size.
    """

    sidecar: Sidecar
    records: int
    words: int
    columns: Mapping[str, tuple[int, int, bool, int, int, int, int]]

    @classmethod
    def of(cls, where: object, sidecar: Sidecar) -> "_FileTable":
        """CorruptError if the arrays do not fit together."""
        kinds = {"facts": np.int64, "names": np.uint8, "spans": np.int64, "memory": np.uint8}
        if all(name in sidecar and sidecar[name].dtype == kind for name, kind in kinds.items()) and sidecar["facts"].size >= 8:
            for name in ("facts", "names"):
                sidecar.need(name, np.zeros(1, np.int64), np.array([sidecar[name].size], np.int64))
            facts, names = sidecar["facts"], bytes(sidecar["names"])
            (records, words, in_file, has_crcs), rest = facts[:4].tolist(), facts[4:]
            columns = names.decode("utf-8", "replace").split("\n")
            crcs = in_file if has_crcs else 0
            fits = (
                rest.size == 4 * len(columns)
                and len(set(columns)) == len(columns)
                and words == 2 * len(columns) + crcs
                and 0 <= in_file <= len(columns)
                and records * words == sidecar["spans"].size
            )
            if fits:
                of = {
                    name: (2 * n, 2 * len(columns) + n if n < crcs else -1, n < in_file, *numbers)
                    for n, (name, numbers) in enumerate(zip(columns, rest.reshape(-1, 4).tolist(), strict=True))
                }
                return cls(sidecar, records, words, of)
        raise CorruptError(f"{sidecar.path}: expected where the records of {where} are: remove the file, and it is rebuilt")


class SpanIndex:
    """Where the records of all files are, and the reader of their bytes.

    ``kind`` (at most 16 letters) and ``options`` say what ``scan`` looks for: together with the file they name its sidecar.
    """

    def __init__(self, kind: str, files: Files, scan: Scan, how: SpanOptions, options: tuple[object, ...] = ()) -> None:
        self.files, self._kind, self._options, self._threads = files, kind, options, how.threads
        self.parts: list[FileRows] = files.once("whole files", lambda: files.each(FileRows.whole))
        access = file_access(how.io, files.local)
        self.rows = reader_of_files(self.parts, 1, access=access, threads=how.threads, remote=how.remote)
        try:
            sidecars = self._sidecars(scan)
            self._tables = [_FileTable.of(part.path, one) for part, one in zip(self.parts, sidecars, strict=True)]
            self.table = _core.SpanTable(
                [self._native_part(part, one) for part, one in zip(self.parts, self._tables, strict=True)], PAGE_BYTES
            )
        except BaseException:
            self.rows.close()
            raise
        self.counts = [table.records for table in self._tables]
        self.columns = list(dict.fromkeys(name for table in self._tables for name in table.columns))
        """All of them, in the order in which they come."""

    @staticmethod
    def _native_part(part: FileRows, table: _FileTable) -> tuple[Any, ...]:
        spans, memory = table.sidecar.pages("spans"), table.sidecar.pages("memory")
        return str(part.path), part.size, table.words, spans, memory, str(table.sidecar.path or "")

    # Sidecars

    def _sidecars(self, scan: Scan) -> list[Sidecar]:
        bases = np.cumsum([0, *(part.size for part in self.parts)]).tolist()

        def build(number: int, writer: SidecarWriter) -> None:
            scan(ScannedFile(self.parts[number], bases[number], self.rows)).write(writer)

        subjects = [Subject(self._kind, [part], self._options, EDGES) if part.size >= KEPT_BYTES else None for part in self.parts]
        return obtain_each(subjects, build, self._scan_each, checked_bytes=SMALL_BYTES)

    def _scan_each(self, work: Callable[[int], None], numbers: Sequence[int]) -> None:
        """In threads, with a progress bar if it takes long."""
        threads = REMOTE_SCANS if self.rows.remote is not None else self._threads
        if len(numbers) < 2:
            for number in numbers:
                work(number)
            return
        start = time.monotonic()
        with ExitStack() as stack:
            pool = ThreadPoolExecutor(min(threads, len(numbers)), thread_name_prefix="penstock-scan")
            stack.callback(pool.shutdown, cancel_futures=True)
            coming = {pool.submit(work, number): number for number in numbers}
            advance: Progress | None = None
            for count, done in enumerate(as_completed(coming), 1):
                done.result()
                if advance is not None:
                    advance(1, self.parts[coming[done]].size)
                elif time.monotonic() - start > SLOW_S:
                    advance = stack.enter_context(reporting(True, "index", len(numbers), done=count))

    # What is known of a column

    def places(self, column: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], bool]:
        """The words of its spans and of its crcs in every file (-1: it is not there), and whether it is in memory."""
        found = [table.columns.get(column, (-1, -1, None)) for table in self._tables]
        kinds = {one[2] for one in found} - {None}
        if len(kinds) > 1:
            raise CorruptError(f"{self.files[0]}: expected column {column!r} in all files or in no file")
        words, crcs = (np.array([one[n] for one in found], np.int32) for n in range(2))
        return words, crcs, kinds == {False}

    def missing(self, column: str) -> int:
        """Records that do not have it."""
        return sum(table.columns[column][3] if column in table.columns else table.records for table in self._tables)

    def num_bytes(self, column: str) -> int:
        """Bytes of all of its records."""
        return sum(self._numbers(column, 4))

    def sizes(self, column: str) -> tuple[int, int] | None:
        """The smallest and the largest record; None if there is no record."""
        least, most = min(self._numbers(column, 5), default=2**62), max(self._numbers(column, 6), default=-1)
        return None if most < 0 else (least, most)

    def _numbers(self, column: str, which: int) -> Iterable[int]:
        return (int(table.columns[column][which]) for table in self._tables if column in table.columns)

    @property
    def memories(self) -> list[npt.NDArray[np.uint8]]:
        """The bytes that are in no file."""
        return [table.sidecar["memory"] for table in self._tables]


@dataclass(frozen=True)
class SpanField:
    """A field of records and the column that has it, unless that has the field's name: bytes, text, ragged arrays of one dimension,
    or a fixed field, whose records then must have exactly its bytes. It is nullable if one of the records is missing.
    """

    field: Field
    column: str | None = None


@dataclass(frozen=True, eq=False)
class _Column:
    """A field as it is read."""

    field: Field
    words: npt.NDArray[np.int32]
    in_memory: bool
    readers: list[_core.SpanReader]
    """One, or none if the source is closed."""

    @property
    def reader(self) -> _core.SpanReader:
        """ValueError if the source is closed."""
        if not self.readers:
            raise ValueError("the source is closed")
        return self.readers[0]

    def sizes(self, ids: IntArray) -> IntArray:
        """Bytes of records; -1 for missing ones."""
        sizes = np.empty(ids.size, np.int64)
        self.reader.sizes(ids, sizes)
        return sizes


class SpanSource(RowSource):
    """Records whose fields are spans of bytes in files. A subclass gives ``_identity`` and ``_recipe``."""

    def __init__(self, index: SpanIndex, fields: Mapping[str, SpanField]) -> None:
        try:
            self._index, self._table = index, index.table
            made = {name: self._column(name, one.field, one.column or name) for name, one in fields.items()}
        except BaseException:
            index.rows.close()
            raise
        self._columns: dict[str, _Column] = made
        total = sum(index.num_bytes(one.column or name) for name, one in fields.items())
        super().__init__(index.files, index.counts, -(-total // max(1, sum(index.counts))), index.rows)
        self._words = self._words_of(made.values())

    def _column(self, name: str, field: Field, column: str) -> _Column:
        if field.kind == "ragged" and field.ndim != 1:
            raise ValueError(f"field {name!r}: expected ragged arrays of one dimension, got {field!r}")
        field = field.with_nullable(field.nullable or self._index.missing(column) > 0)
        sizes = self._index.sizes(column)
        if field.is_fixed and sizes is not None and sizes != (field.stride, field.stride):
            raise SchemaMismatchError(
                f"{self._index.files[0]}: field {name!r}: expected {field.stride} bytes in every record, found {sizes[0]} to "
                f"{sizes[1]}"
            )
        words, crcs, in_memory = self._index.places(column)
        line = self._index.rows.native()
        assert line is not None  # rows of one byte have a reader
        rows = _core.RowReader.of_memory(self._index.memories, 1) if in_memory else line[0]
        reader = self._table.column(rows, words, crcs, in_memory, MAX_BATCH_BYTES, field.dtype.itemsize, field.kind == "text")
        return _Column(field, words, in_memory, [reader])

    def _words_of(self, columns: Iterable[_Column]) -> npt.NDArray[np.int32]:
        """Where the table of each file has the columns that are in the files."""
        words = [column.words for column in columns if not column.in_memory]
        return np.stack(words, axis=1).reshape(-1) if words else np.empty(0, np.int32)

    @property
    def schema(self) -> Mapping[str, Field]:
        return {name: column.field for name, column in self._columns.items()}

    def _where(self, record: int) -> str:
        """A record in a message: its file, and its number there."""
        return self._table.name(record)

    @property
    def max_batch_bytes(self) -> int | None:
        return None if all(column.field.is_fixed for column in self._columns.values()) else MAX_BATCH_BYTES

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """From the first byte of a record to the last one of another."""
        return self._table.extents(starts, stops, self._words) if self._words.size else NOWHERE

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        column = self._columns[field]
        return (column.reader if column.field.is_fixed else column.reader.varying), -1

    def lengths(self, field: str, ids: Any) -> IntArray:
        column = self._columns[field]
        if column.field.is_fixed:
            return super().lengths(field, ids)
        found: IntArray = np.maximum(column.sizes(as_ids(ids, len(self))), 0) // column.field.dtype.itemsize
        return found

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        ids = np.ascontiguousarray(ids)
        jobs = {name: self._job(name, ids, out) for name in fields}
        for part in self._slices(ids, list(jobs.values())):
            columns = [self._columns[name] for name in fields]
            with self._held(ids[part], columns):
                for job in jobs.values():
                    job.read(ids, part, self._rows.pool)
        return {name: job.result() for name, job in jobs.items()}

    def _job(self, name: str, ids: IntArray, out: Outputs) -> "_FixedJob | _VaryingJob":
        column = self._columns[name]
        if column.field.is_fixed:
            return _FixedJob(column, fixed_output(name, column.field, ids.size, out), np.ones(ids.size, np.bool_))
        sizes = column.sizes(ids)
        offsets = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))]).astype(np.int64)
        check_batch(str(self._files[0]), int(offsets[-1]))
        return _VaryingJob(column, empty((int(offsets[-1]),), np.dtype(np.uint8)), offsets, sizes)

    def _slices(self, ids: IntArray, jobs: "Sequence[_FixedJob | _VaryingJob]") -> Iterable[slice]:
        """Records that are read together: at URLs as many as half of the window holds."""
        if self.remote is None:
            return [slice(0, ids.size)]
        costs = np.zeros(ids.size, np.int64)
        for job in jobs:
            costs += job.costs
        return self.remote.slices(np.zeros_like(costs), costs)

    def _held(self, ids: IntArray, columns: Sequence[_Column]) -> Any:
        """Keeps the bytes of records at URLs in memory; only those of these columns."""
        if self.remote is None:
            return nullcontext()
        words = [column.words for column in columns if not column.in_memory]
        found = [self._table.extents(ids, ids + 1, one) for one in words]
        numbers, low, high = joined_extents(found)
        return self.remote.hold(numbers, low, high) if numbers.size else nullcontext()

    def close(self) -> None:
        super().close()
        for column in self._columns.values():
            column.readers.clear()


class ParsedSpans(SpanSource):
    """A span source whose fields are parsed from the bytes: none is copied as it is, and only reading tells how long a value is."""

    def native_reader(self, field: str) -> None:
        """There is none."""

    def lengths(self, field: str, ids: Any) -> IntArray:
        return Source.lengths(self, field, ids)


PAGE_COST = 8192
"""What a record takes of a window in addition to its bytes: the rest of its first page, and of its last one."""


@dataclass(frozen=True, eq=False)
class _FixedJob:
    """A fixed field of a batch that is being read."""

    column: _Column
    array: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]

    @property
    def costs(self) -> IntArray:
        return np.full(len(self.present), self.column.field.stride + PAGE_COST, np.int64)

    def read(self, ids: IntArray, part: slice, pool: _core.ThreadPool) -> None:
        stride = self.column.field.stride
        flat = self.array.reshape(-1).view(np.uint8)[part.start * stride : part.stop * stride]
        self.column.reader.read_fixed(ids[part], stride, flat, self.present[part], pool)

    def result(self) -> npt.NDArray[Any]:
        return masked(self.array, None if self.present.all() else self.present)


@dataclass(frozen=True, eq=False)
class _VaryingJob:
    """A field of varying length of a batch that is being read."""

    column: _Column
    values: npt.NDArray[np.uint8]
    offsets: IntArray
    sizes: IntArray

    @property
    def costs(self) -> IntArray:
        return np.maximum(self.sizes, 0) + PAGE_COST

    def read(self, ids: IntArray, part: slice, pool: _core.ThreadPool) -> None:
        self.column.reader.read(ids[part], self.offsets[:-1][part], self.sizes[part], self.values, pool)

    def result(self) -> Ragged:
        field, present = self.column.field, self.sizes >= 0
        kind, item = "array" if field.kind == "ragged" else field.kind, field.dtype.itemsize
        offsets = self.offsets if item == 1 else self.offsets // item
        return Ragged(self.values.view(field.dtype), offsets, kind, None, None if present.all() else present)
