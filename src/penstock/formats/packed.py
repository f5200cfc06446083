"""PackedSource: records in files that begin with a table of them, whose columns are packed one behind the other.

::

    file   = records u32 | offsets in the file u32 x (records + 1) | ... | the records
    record = bytes u32 of every column that has no fixed size | the columns

What MDS shards and LitData chunks share. Native threads compute where a column of a record is when they read it, so that opening
reads no record, and nothing is kept of them. Files that are compressed as a whole are decompressed when one of their records is
read: each is a block (:class:`PackedBlocks`).
"""

import bz2
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_ids
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output, scatter
from penstock.errors import (
    CorruptError,
    FormatError,
    ReadError,
    SchemaMismatchError,
    TruncatedError,
    UnsafeDataError,
    UnsupportedTypeError,
)
from penstock.formats.arrow_file import Fields, renamed
from penstock.formats.files import MAX_BATCH_BYTES, File, Files, check_batch, check_block, one_line
from penstock.formats.rows_in_files import (
    BLOCK_BYTES,
    FileRows,
    RowSource,
    Version,
    cut_runs,
    reader_of_files,
    reader_of_memory,
)
from penstock.native import _core
from penstock.process import Recent, map_at_once, need
from penstock.records import NOWHERE, Blocks, Extents, Recipe, by_number
from penstock.remote.window import RemoteOptions
from penstock.schema import Field, Schema
from penstock.system import file_access

__all__ = [
    "CODECS",
    "KEPT_BYTES",
    "ArrayForm",
    "BlockReader",
    "Decompression",
    "PackedBlocks",
    "PackedColumn",
    "PackedFile",
    "PackedLayout",
    "PackedOrigin",
    "PackedSource",
    "choose",
    "first_values",
    "with_types",
]

OFFSET = np.dtype("<u4")
TABLE = 4
"""Where the table of a file begins."""

WHOLE_BYTES = 128 << 20
"""Files of up to this many bytes are blocks."""

PICKLED = ("pkl", "pickle", "graph")
"""Encodings that are pickles, or have pickles in them: LitData's graphs have one that says which tensor is what."""

KEPT_BYTES = 2 << 30
"""Of decompressed files, unless the user says so: a shuffle of blocks reads 16 of them together."""


class ArrayForm:
    """What is before the values of an array, as ``_core`` numbers it."""

    PLAIN, MDS, MDS_TYPED, WORDS = range(4)


@dataclass(frozen=True)
class PackedColumn:
    """One column: how values are encoded, the bytes of each (-1: they vary), whether records say them, what it becomes (None: it is
    not read), and of arrays of varying shape what is before their values, and the number of their type.
    """

    name: str
    encoding: str
    value_bytes: int
    is_told: bool
    field: Field | None
    form: int = ArrayForm.PLAIN
    code: int = 0

    def refusal(self, where: object) -> ReadError:
        """Why it is not read."""
        text = f"column {ascii(self.name)[:100]} is encoded as {ascii(self.encoding)[:100]}"
        others = "choose the others: fields=[...]"
        if self.encoding.split(":")[0] in PICKLED:
            return UnsafeDataError(f"{where}: {text}, which would have to be executed to be read; {others}")
        return UnsupportedTypeError(f"{where}: {text}, which is not read; {others}")


@dataclass(frozen=True)
class PackedFile:
    """One file: its bytes, its version and its records. A compressed one has ``stored_bytes``, and decompresses to ``size``."""

    file: File
    size: int
    version: Version | None
    records: int
    stored_bytes: int = 0

    def check(self, head: bytes) -> None:
        """FormatError unless the file can begin with these bytes, the first eight."""
        least = TABLE + OFFSET.itemsize * (self.records + 1)
        if self.size < least:
            raise FormatError(
                f"{self.file}: expected at least {least} bytes for a table of {self.records} records, found {self.size}"
            )
        count, first = np.frombuffer(head, OFFSET, 2).tolist() if len(head) >= TABLE + OFFSET.itemsize else (-1, -1)
        if count != self.records or not least <= first <= self.size:
            raise FormatError(
                f"{self.file}: expected {self.records} records behind their table of {least} bytes, as the index says, found "
                f"{count} from byte {first} on"
            )

    @property
    def last_offset(self) -> tuple[int, int]:
        """The bytes that say where the last record ends."""
        return TABLE + OFFSET.itemsize * self.records, TABLE + OFFSET.itemsize * (self.records + 1)

    def check_end(self, last: bytes) -> None:
        """FormatError unless the last record ends with the file, as these bytes of the table must say."""
        found = int.from_bytes(last, "little")
        if found != self.size:
            raise FormatError(f"{self.file}: expected the last record to end with the file, at byte {self.size}, found {found}")


@dataclass(frozen=True)
class PackedLayout:
    """Which columns there are, and the fields that are read: new names, and numbers of columns."""

    columns: Sequence[PackedColumn]
    chosen: Mapping[str, int]

    @property
    def schema(self) -> dict[str, Field]:
        found = ((name, self.columns[number].field) for name, number in self.chosen.items())
        return {name: one for name, one in found if one is not None}


@dataclass(frozen=True)
class PackedOrigin:
    """How a source was opened: threads, means of reading, options of URLs; its name in fingerprints; how to open it again."""

    options: tuple[int, str, RemoteOptions | None]
    identity: tuple[Any, ...]
    recipe: Recipe


@dataclass(eq=False)
class PackedReader:
    """Reads fields of records on a line of bytes."""

    records: _core.PackedRecords
    layout: PackedLayout
    where: str
    _fields: dict[str, _core.SpanReader] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: _core.RowReader, files: Sequence[PackedFile], layout: PackedLayout, offsets: Sequence[Any]) -> "PackedReader":
        """Of files that are on the line one after the other. ``offsets`` are their tables, or nothing."""
        sizes = np.array([one.size for one in files], np.uint64)
        facts = np.zeros((len(files), 4), np.uint64)
        facts[:, 0], facts[:, 1] = np.cumsum(sizes) - sizes, sizes
        facts[:, 2], facts[:, 3] = [one.records for one in files], TABLE
        columns = np.array([(one.value_bytes, one.is_told) for one in layout.columns], np.int64)
        names = [str(one.file) for one in files]
        return cls(_core.PackedRecords(rows, names, facts, list(offsets), columns), layout, names[0])

    def field(self, name: str) -> _core.SpanReader:
        """The native reader of a field."""
        if name not in self._fields:
            column = self.layout.columns[self.layout.chosen[name]]
            one = self.layout.schema[name]
            ndim = 0 if column.form == ArrayForm.PLAIN or one.is_fixed else one.ndim
            item = one.dtype.itemsize if one.kind == "ragged" or column.form != ArrayForm.PLAIN else 1
            self._fields[name] = self.records.field(
                self.layout.chosen[name], column.form, column.code, ndim, item, one.kind == "text", MAX_BATCH_BYTES
            )
        return self._fields[name]

    def find(self, ids: IntArray) -> IntArray:
        """Where records begin on the line, and their bytes: a row each."""
        out = np.empty((ids.size, 2), np.int64)
        self.records.find(ids, out)
        return out

    def read(self, ids: IntArray, fields: Sequence[str], out: Outputs, pool: _core.ThreadPool) -> Batch:
        return {name: self._read_field(name, ids, out, pool) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs, pool: _core.ThreadPool) -> Any:
        reader, one = self.field(name), self.layout.schema[name]
        if one.is_fixed:
            array = fixed_output(name, one, ids.size, out)
            present = np.empty(ids.size, np.bool_)
            reader.read_fixed(ids, one.stride, array.reshape(-1).view(np.uint8), present, pool)
            return array
        sizes = np.empty(ids.size, np.int64)
        shapes = np.empty((ids.size, one.ndim), np.uint32) if one.ndim > 1 else None
        reader.sizes(ids, sizes, shapes)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        check_batch(self.where, int(ends[-1]))
        values = empty((int(ends[-1]) // one.dtype.itemsize,), one.dtype)
        reader.read(ids, ends[:-1], sizes, values.view(np.uint8), pool)
        return Ragged(values, ends // one.dtype.itemsize, "array" if one.kind == "ragged" else one.kind, shapes)

    def lengths(self, name: str, ids: IntArray) -> IntArray:
        """Elements of records of a field of varying length."""
        one, sizes = self.layout.schema[name], np.empty(ids.size, np.int64)
        shapes = np.empty((ids.size, one.ndim), np.uint32) if one.ndim > 1 else None
        self.field(name).sizes(ids, sizes, shapes)
        return sizes // one.dtype.itemsize


class _PackedRows(RowSource):
    """What plain and compressed files share."""

    def __init__(
        self, files: Files, parts: Sequence[PackedFile], sizes: Sequence[int], layout: PackedLayout, origin: PackedOrigin
    ) -> None:
        """``files`` are those that say whether the data is the same; ``parts`` those with records, of ``sizes`` bytes as stored."""
        threads, io, remote = origin.options
        self._parts, self._layout, self._schema, self._origin = list(parts), layout, layout.schema, origin
        self._bases = np.cumsum([0, *sizes])
        pieces = [FileRows.of(one.file, size, 0, size, one.version) for one, size in zip(parts, sizes, strict=True)]
        rows = reader_of_files(pieces, 1, access=file_access(io, files.local), threads=threads, remote=remote)
        counts = [one.records for one in parts]
        super().__init__(files, counts, -(-sum(sizes) // max(1, sum(counts))), rows)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def max_batch_bytes(self) -> int | None:
        return None if all(one.is_fixed for one in self._schema.values()) else MAX_BATCH_BYTES

    def _scattered(self, parts: Sequence[tuple[IntArray, Batch]], fields: Sequence[str], count: int, out: Outputs) -> Batch:
        """A batch of parts of it, each with its places."""
        return {name: scatter(name, self._schema[name], [(at, one[name]) for at, one in parts], count, out) for name in fields}

    def _identity(self) -> tuple[Any, ...]:
        return self._origin.identity

    def _recipe(self) -> Recipe:
        return self._origin.recipe


class PackedSource(_PackedRows):
    """The records of packed files, one file after the other."""

    def __init__(self, files: Files, parts: Sequence[PackedFile], layout: PackedLayout, origin: PackedOrigin) -> None:
        super().__init__(files, parts, [one.size for one in parts], layout, origin)

    @property
    def blocks(self) -> Blocks:
        """The files, where there are several of at most 128 MiB; runs of about 8 MiB otherwise."""
        if len(self._parts) > 1 and max(one.size for one in self._parts) <= WHOLE_BYTES:
            return Blocks.of_counts(self._counts)
        return Blocks(self._length, max(1, BLOCK_BYTES // max(1, self._record_bytes)))

    @cached_property
    def _reader(self) -> PackedReader:
        """At URLs the tables of all files are fetched for it, 4 bytes a record; on disk they are read where they are."""
        self._rows.pool  # noqa: B018 - ValueError if the source is closed
        found = self._rows.native()
        assert found is not None  # rows of one byte have a reader
        offsets = list(map_at_once(_offsets, self._parts, are_remote=True)) if self._files.is_remote else []
        return PackedReader.of(found[0], self._parts, self._layout, offsets)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        pool = self._rows.pool
        if self.remote is None:
            return self._reader.read(ids, fields, out, pool)
        runs = self._reader.find(ids)
        parts: list[tuple[IntArray, Batch]] = []
        for part in self.remote.slices(runs[:, 0], runs[:, 0] + runs[:, 1]):
            with self.hold(ids[part], ids[part] + 1):
                parts.append((np.arange(part.start, part.stop), self._reader.read(ids[part], fields, {}, pool)))
        return self._scattered(parts, fields, ids.size, out)

    def lengths(self, field: str, ids: Any) -> IntArray:
        wanted = as_ids(ids, self._length)
        if self.remote is not None or self._schema[field].is_fixed:
            return super().lengths(field, wanted)
        return self._reader.lengths(field, wanted)

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        reader = self._reader.field(field)
        return (reader if self._schema[field].is_fixed else reader.varying), -1

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where records, which follow one another, are in the files."""
        some = stops > starts
        starts, stops = starts[some], stops[some]
        if starts.size == 0:
            return NOWHERE
        number, low, high = cut_runs(starts, stops, np.cumsum(self._counts))
        below, above = self._reader.find(low)[:, 0], self._reader.find(high - 1).sum(axis=1)
        there = above > below  # tables on disk may have records in any order: those say nothing
        number = number[there]
        return number, below[there] - self._bases[number], above[there] - self._bases[number]

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_reader", None)  # it has the files


def _offsets(part: PackedFile) -> npt.NDArray[np.uint32]:
    """The table of a file at a URL. It rises, so that the bytes of records that follow one another do, too."""
    raw = part.file.read(TABLE, TABLE + OFFSET.itemsize * (part.records + 1))
    if len(raw) < OFFSET.itemsize * (part.records + 1):
        raise TruncatedError(f"{part.file}: the file was cut while it was read; open it again")
    part.check_end(raw[-OFFSET.itemsize :])
    offsets = np.frombuffer(raw, OFFSET).astype(np.uint32)
    if falling := np.flatnonzero(offsets[1:] < offsets[:-1]).tolist():
        raise FormatError(
            f"{part.file}, record {falling[0]}: expected it to end behind byte {offsets[falling[0]]}, where it begins, found "
            f"{offsets[falling[0] + 1]}"
        )
    return offsets


# Compressed files


class BlockReader(Protocol):
    """Reads fields of the records of one decompressed file."""

    def read(self, ids: IntArray, fields: Sequence[str], out: Outputs, pool: _core.ThreadPool) -> Batch: ...


class PackedBlocks(_PackedRows):
    """The records of packed files that are compressed as a whole: one that is read is decompressed, and kept for a while."""

    def __init__(
        self,
        files: Files,
        parts: Sequence[PackedFile],
        layout: PackedLayout,
        origin: PackedOrigin,
        decompression: "Decompression",
    ) -> None:
        self._decompression = decompression
        self._threads, self._recent = origin.options[0], Recent(decompression.kept_bytes)
        super().__init__(files, parts, [one.stored_bytes for one in parts], layout, origin)
        self._blocks = Blocks.of_counts(self._counts)
        some = [number for number, one in enumerate(parts) if one.records]
        self._numbers = np.array(some, np.int64)  # of the files with records, which are the blocks
        self._firsts = np.cumsum([0, *self._counts])

    @property
    def blocks(self) -> Blocks:
        return self._blocks

    @property
    def reads_blocks(self) -> bool:
        return True

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """The whole files in which records are."""
        found = np.zeros(len(self._parts) + 1, np.int64)
        some = stops > starts
        first, last = (self._numbers[self._blocks.of(ids[some])] for ids in (starts, stops - 1))
        np.add.at(found, first, 1)
        np.add.at(found, last + 1, -1)
        numbers = np.flatnonzero(np.cumsum(found[:-1]))
        return numbers, np.zeros(numbers.size, np.int64), np.diff(self._bases)[numbers]

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        pool = self._rows.pool
        if not fields:
            return {}
        groups = by_number(self._numbers[self._blocks.of(ids)])
        groups.sort(key=lambda group: (group[0], 0) not in self._recent)  # before others push them out
        parts: list[tuple[IntArray, Batch]] = []
        for low in range(0, len(groups), self._threads):
            some = groups[low : low + self._threads]
            readers = map_at_once(lambda group: self._reader(group[0]), some, are_remote=self._threads > 1)
            for (number, places), reader in zip(some, readers, strict=True):
                parts.append((places, reader.read(ids[places] - self._firsts[number], fields, {}, pool)))
        return self._scattered(parts, fields, ids.size, out)

    def _reader(self, number: int) -> BlockReader:
        found: BlockReader = self._recent.get((number, 0), lambda: self._make(number))
        return found

    def _make(self, number: int) -> tuple[BlockReader, int]:
        """A file, decompressed."""
        part = self._parts[number]
        stored = np.empty(part.stored_bytes, np.uint8)
        self._rows.read_spans(self._bases[number : number + 1], np.array([0, part.stored_bytes]), stored)
        return self._decoded(number, stored)

    def _decoded(self, number: int, stored: npt.NDArray[np.uint8]) -> tuple[BlockReader, int]:
        """What reads the records of a file, and the bytes that it holds."""
        part = self._parts[number]
        raw = self._decompression.decompress_file(part, stored)
        found = reader_of_memory([raw], threads=1).native()
        assert found is not None  # rows of one byte have a reader
        return PackedReader.of(found[0], [replace(part, size=raw.nbytes)], self._layout, []), raw.nbytes

    def close(self) -> None:
        super().close()
        self._recent.clear()


@dataclass(frozen=True)
class Decompression:
    """How files are decompressed: by which codec, how large one may be, and how many bytes are kept."""

    codec: str
    max_block_bytes: int
    kept_bytes: int

    def decompress(self, where: str, stored: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
        """The bytes of a file, ``size`` of them. CorruptError if it has others."""
        raw = np.empty(size, np.uint8)
        try:
            is_good = CODECS[self.codec](stored, raw)
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise CorruptError(f"{where}: {one_line(error, 200)}") from error
        if not is_good:
            raise CorruptError(f"{where}: expected {size} bytes compressed with {self.codec}, found something else")
        return raw

    def decompress_file(self, part: PackedFile, stored: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The bytes of a file. BatchTooLargeError if it claims too many."""
        check_block(str(part.file), part.size, part.stored_bytes, self.max_block_bytes)
        raw = self.decompress(str(part.file), stored, part.size)
        part.check(raw[: TABLE + OFFSET.itemsize].tobytes())
        part.check_end(raw[slice(*part.last_offset)].tobytes())
        return raw

    def first_bytes(self, part: PackedFile) -> Callable[[int, int], bytes]:
        """What reads bytes of a file that is compressed."""
        stored = np.frombuffer(part.file.read(0, part.stored_bytes), np.uint8)
        raw = self.decompress_file(part, stored)
        return lambda start, stop: raw[start:stop].tobytes()


def _unpack(decompressor: Any, stored: npt.NDArray[np.uint8], raw: npt.NDArray[np.uint8]) -> bool:
    """Whether a stream has these bytes and nothing behind them."""
    content = decompressor.decompress(stored.tobytes(), raw.nbytes + 1)
    if len(content) != raw.nbytes or not decompressor.eof or decompressor.unused_data:
        return False
    raw[:] = np.frombuffer(content, np.uint8)
    return True


def _by_arrow(name: str, stored: npt.NDArray[np.uint8], raw: npt.NDArray[np.uint8]) -> bool:
    pa = need("pyarrow", "arrow")
    content = pa.Codec(name).decompress(pa.py_buffer(stored), decompressed_size=raw.nbytes)
    if content.size != raw.nbytes:
        return False
    raw[:] = np.frombuffer(content, np.uint8)
    return True


CODECS: Mapping[str, Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint8]], bool]] = {
    "zstd": _core.decompress_zstd,
    "gz": lambda stored, raw: _unpack(zlib.decompressobj(wbits=31), stored, raw),
    "bz2": lambda stored, raw: _unpack(bz2.BZ2Decompressor(), stored, raw),
    "br": partial(_by_arrow, "brotli"),
    "snappy": partial(_by_arrow, "snappy"),
}
"""Fill an array with what bytes decompress to; False if they are not as many."""


# What the first record has


def first_values(
    parts: Sequence[PackedFile], columns: Sequence[PackedColumn], count: int, decompression: Decompression | None
) -> dict[str, bytes]:
    """The first bytes, at most ``count``, of every column of arrays in the first record; nothing if there is no record."""
    part = next((one for one in parts if one.records), None)
    if part is None:
        return {}
    read = part.file.read if decompression is None else decompression.first_bytes(part)

    def need_bytes(start: int, stop: int, limit: int) -> bytes:
        raw = read(start, stop) if stop <= limit else b""
        if len(raw) < stop - start:
            raise FormatError(f"{part.file}, record 0: expected bytes {start} to {stop} of it, found its end at {limit}")
        return raw

    begin, end = np.frombuffer(need_bytes(TABLE, TABLE + 2 * OFFSET.itemsize, part.size), OFFSET).tolist()
    told = [number for number, column in enumerate(columns) if column.is_told]
    at = begin + OFFSET.itemsize * len(told)
    sizes = [column.value_bytes for column in columns]
    head = need_bytes(begin, at, min(end, part.size))
    for number, size in zip(told, np.frombuffer(head, OFFSET).tolist(), strict=True):
        sizes[number] = size
    found = {}
    for column, size in zip(columns, sizes, strict=True):
        if column.form != ArrayForm.PLAIN:
            found[column.name] = need_bytes(at, at + min(count, size), min(end, part.size))
        at += size
    return found


# Choosing fields


def with_types(
    files: Files,
    columns: Sequence[PackedColumn],
    fields: Fields | None,
    first: Callable[[], dict[str, bytes]],
    find: Callable[[File, PackedColumn, bytes | None], PackedColumn],
) -> list[PackedColumn]:
    """The columns, those of arrays that are wanted with the type that ``find`` sees in the ``first`` bytes of the first record."""
    arrays = {column.name for column in columns if column.form != ArrayForm.PLAIN}
    unknown = arrays if fields is None else arrays & {*(fields.values() if isinstance(fields, Mapping) else fields)}
    heads = files.once("arrays", first) if unknown else {}
    return [find(files[0], column, heads.get(column.name)) if column.name in unknown else column for column in columns]


def choose(where: object, columns: Sequence[PackedColumn], fields: Fields | None) -> PackedLayout:
    """The wanted columns by the names of their fields. UnsupportedTypeError for one that is not read."""
    there = {column.name: number for number, column in enumerate(columns)}
    chosen = {new: there[old] for new, old in renamed(where, there, fields, "column").items()}
    if not chosen:
        raise SchemaMismatchError(f"{where}: expected at least one column, found none")
    for new, number in chosen.items():
        column = columns[number]
        if column.field is None:
            raise column.refusal(where)
        try:
            Schema.make({new: column.field})
        except ValueError as error:
            raise SchemaMismatchError(
                f"{where}: {error}; rename the column: fields={{'new_name': {ascii(column.name)[:100]}, ...}}"
            ) from error
    return PackedLayout(columns, chosen)
