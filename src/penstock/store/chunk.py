"""Chunks: records are collected until a chunk is full, encoded, and written, several chunks at a time.

The grammar of a chunk file stands in native/core/chunk.h and in docs/reference/format.md.
"""

import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.native import _core
from penstock.schema import Field, Raw, Zstd
from penstock.store.column import Bytes, Column, join_columns, join_present
from penstock.store.manifest import ChunkEntry, Manifest
from penstock.store.storage import Piece, Storage, chunk_file, new_identity

__all__ = [
    "ENTRY_BYTES",
    "TAIL_BYTES",
    "ChunkBuilder",
    "ChunkWriter",
    "EncodedChunk",
    "Placement",
    "Progress",
    "encode_chunk",
    "parse_fields",
]

_HEADER = struct.Struct("<8sII16s16sIIII")
_ENTRY = struct.Struct("<IBBHQQQII")
_REFERENCE = struct.Struct("<QQII")
_TAIL = struct.Struct("<QQQII16sII8s")
_NUM_ARRAYS = 6
ENTRY_BYTES = _ENTRY.size + _NUM_ARRAYS * _REFERENCE.size
TAIL_BYTES = _TAIL.size
_PAGE_BYTES = 4096
_ALIGNMENT = 64
_LARGE_BYTES = 1 << 20
"""From here on a region begins with a page of the system: so do its own pages, and a direct read of one reads nothing else."""
_NO_REFERENCE = bytes(_REFERENCE.size)

Progress = Callable[[int, int], None]
"""Called with (records done, bytes written) after every chunk."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows first_row, ... (count of them) of a chunk took the next ``count`` records."""

    chunk: int
    first_row: int
    count: int


@dataclass
class ChunkBuilder:
    """The open chunk of one set of fields. Not thread-safe: it belongs to its writer."""

    chunk: int
    max_bytes: int
    max_rows: int
    free: list[Bytes]  # buffers to use again, shared by the chunks of a writer: fresh memory costs more than the copy into it
    rows: int = 0
    size: int = 0
    _parts: list[Mapping[int, Column]] = field(default_factory=list)
    _borrowed: int = 0  # parts from here on are in the caller's memory
    _buffers: dict[int, Bytes] = field(default_factory=dict)  # records of one size, copied together, by field
    _filled: dict[int, int] = field(default_factory=dict)

    def fit(self, columns: Mapping[int, Column], low: int) -> int:
        """How many of the records from ``low`` on still fit (of varying ones, it looks at 65,536); at least one if it is empty."""
        first = next(iter(columns.values()))
        room, fits = self.max_bytes - self.size, min(first.rows - low, self.max_rows - self.rows)
        if any(column.offsets is not None for column in columns.values()):
            fits = min(fits, 65_536)
        sizes = [column.sizes(low, low + fits) for column in columns.values()]
        constant = sum(size for size in sizes if isinstance(size, int))
        varying = [size for size in sizes if not isinstance(size, int)]
        if varying:
            ends = np.cumsum(np.sum(varying, axis=0) + constant)
            fits = int(np.searchsorted(ends, room, side="right"))
        elif constant > 0:
            fits = min(fits, max(0, room) // constant)
        return max(fits, 1) if self.rows == 0 else max(fits, 0)

    def add(self, columns: Mapping[int, Column], low: int, high: int) -> Placement:
        """Take records [low, high), without copying them."""
        part = {number: column.part(low, high) for number, column in columns.items()}
        placement = Placement(self.chunk, self.rows, high - low)
        self._parts.append(part)
        self.rows += high - low
        self.size += sum(column.values.size for column in part.values())
        return placement

    @property
    def borrows(self) -> bool:
        """Whether it refers to memory of the caller."""
        return self._borrowed < len(self._parts)

    def own(self) -> None:
        """Copy what is in the caller's memory, so that the caller may change it."""
        for i in range(self._borrowed, len(self._parts)):
            self._parts[i] = {number: self._copy(number, column) for number, column in self._parts[i].items()}
        self._borrowed = len(self._parts)

    def own_if_small(self) -> None:
        """Copy the caller's part of a full chunk unless it is most of it: cheaper than to let the caller wait for the disk."""
        borrowed = sum(column.values.size for part in self._parts[self._borrowed :] for column in part.values())
        if 2 * borrowed <= self.size:
            self.own()

    def _copy(self, number: int, column: Column) -> Column:
        if column.offsets is not None:
            return column.copy()
        end = self._filled.get(number, 0) + column.values.size
        buffer = self._buffers.get(number)
        if buffer is None or end > buffer.size:
            if buffer is not None or end > self.max_bytes:  # a record larger than a chunk
                return column.copy()
            buffer = self._buffers[number] = self.free.pop() if self.free else np.empty(self.max_bytes, np.uint8)
        place = buffer[end - column.values.size : end]
        place[:] = column.values
        self._filled[number] = end
        present = None if column.present is None else column.present.copy()
        return Column(column.rows, place, None, present, None)

    def columns(self) -> dict[int, Column]:
        return {number: self._joined(number, [part[number] for part in self._parts]) for number in self._parts[0]}

    def _joined(self, number: int, parts: list[Column]) -> Column:
        filled = self._filled.get(number, 0)
        if filled == 0 or filled != sum(part.values.size for part in parts):
            return join_columns(parts)
        together = self._buffers[number][:filled]  # the parts are there already, one after the other
        return Column(sum(part.rows for part in parts), together, None, join_present(parts), None)

    def release(self) -> None:
        """Give the buffers back once the chunk is written."""
        self.free.extend(self._buffers.values())
        self._buffers.clear()
        self._parts.clear()


# The bytes of a chunk


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk ready to be written: its pieces, its size, its rows and the crc of its tail."""

    pieces: list[Piece]
    size: int
    rows: int
    crc: int


@dataclass(frozen=True)
class _Region:
    """A field's stored bytes and index arrays (in the order of the entry's references)."""

    data: Bytes
    stride: int
    rows_per_page: int
    ndim: int
    has_validity: bool
    arrays: tuple[Bytes, ...]


def encode_chunk(
    dataset: str, writer: str, serial: int, fields: Mapping[int, Field], columns: Mapping[int, Column]
) -> EncodedChunk:
    """Lay out and checksum a chunk. ``fields`` and ``columns`` go by field number; all columns have the same rows."""
    rows = next(iter(columns.values())).rows
    head = _HEADER.pack(b"PENCHUNK", 1, 0, bytes.fromhex(dataset), bytes.fromhex(writer), serial, 0, 0, 0)[:60]
    pieces: list[Piece] = [(0, head + struct.pack("<I", _crc(head)))]
    regions = {number: _encode_region(fields[number], column) for number, column in columns.items()}
    end = 64
    offsets = {}
    for number, region in regions.items():
        unit = _ALIGNMENT if region.data.size < _LARGE_BYTES else _PAGE_BYTES
        offsets[number] = end = -(-end // unit) * unit
        pieces.append((end, region.data))
        end += region.data.size
    entries = b""
    for number, region in regions.items():
        field = fields[number]
        entries += _ENTRY.pack(
            number, field.codec.number, region.ndim, int(region.has_validity), region.stride, offsets[number], region.data.size,
            region.rows_per_page, 0,
        )  # fmt: skip
        for array in region.arrays:
            end = -(-end // 8) * 8
            entries += _REFERENCE.pack(end, array.size, _crc(array), 0) if array.size else _NO_REFERENCE
            pieces.append((end, array))
            end += array.size
    end = -(-end // 8) * 8
    size = end + len(entries) + _TAIL.size
    tail = _TAIL.pack(rows, end, size, len(regions), 1, bytes.fromhex(dataset), 0, 0, b"KNUHCNEP")
    crc = _crc(entries + tail[:52])
    pieces.append((end, entries + tail[:52] + struct.pack("<I", crc) + tail[56:]))
    return EncodedChunk([(offset, data) for offset, data in pieces if len(data) > 0], size, rows, crc)


def parse_fields(end: bytes, size: int, crc: int, dataset: str) -> dict[int, bool]:
    """The numbers of the fields of a chunk, each with whether it has a validity array, from the last bytes of the file.

    CorruptError unless they have the crc that the manifest names. A few bytes too many do no harm.
    """
    if len(end) < TAIL_BYTES:
        raise CorruptError("a chunk is too short")
    _, offset, file_size, count, version, owner, _, found, magic = _TAIL.unpack(end[-TAIL_BYTES:])
    is_ours = (file_size, version, owner, magic) == (size, 1, bytes.fromhex(dataset), b"KNUHCNEP")
    footer = end[-(TAIL_BYTES + count * ENTRY_BYTES) :]
    if not is_ours or len(footer) != TAIL_BYTES + count * ENTRY_BYTES or offset != size - len(footer):
        raise CorruptError("a chunk has no valid tail")
    if found != crc or _crc(footer[:-12]) != crc:
        raise CorruptError("the crc of the entries of a chunk does not match")
    entries = (_ENTRY.unpack_from(footer, place * ENTRY_BYTES) for place in range(count))
    return {entry[0]: bool(entry[3] & 1) for entry in entries}


def _crc(data: bytes | Bytes) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data)


def _encode_region(field: Field, column: Column) -> _Region:
    codec = field.codec
    plain = isinstance(codec, Raw) and column.offsets is None
    lengths = ends = np.empty(0, np.uint8)
    data = column.values
    if not plain:
        offsets = column.offsets
        if offsets is None:
            offsets = np.arange(column.rows + 1, dtype=np.int64) * field.stride
        if column.present is not None and column.offsets is None:  # a missing record of a compressed field takes no room
            sizes = np.where(column.present, field.stride, 0)
            data = data.reshape(column.rows, field.stride)[column.present].reshape(-1) if field.stride else data
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        dictionary = codec.dictionary if isinstance(codec, Zstd) else None
        if isinstance(codec, Raw):
            stored_ends = offsets[1:].astype(np.uint64)
        else:
            stored_ends = np.empty(column.rows, np.uint64)
            stored = _core.encode_records(
                codec.number, codec.level, dictionary or b"", np.ascontiguousarray(data), offsets, stored_ends
            )
            if column.offsets is not None:
                lengths = np.diff(offsets).astype(np.uint32).view(np.uint8)
            data = stored
        ends = stored_ends.view(np.uint8)
    rows_per_page = _rows_per_page(field.stride if plain else data.size / max(1, column.rows), column.rows)
    page_ends = _page_ends(column.rows, rows_per_page, field.stride if plain else stored_ends)
    pages = np.empty(page_ends.size, np.uint32)
    data = np.ascontiguousarray(data)
    _core.crc32c_spans(data, page_ends, pages)
    dims = np.empty(0, np.uint8) if column.shapes is None else np.ascontiguousarray(column.shapes).reshape(-1).view(np.uint8)
    validity = np.empty(0, np.uint8) if column.present is None else np.packbits(column.present, bitorder="little")
    dictionary_bytes = np.frombuffer(codec.dictionary or b"", np.uint8) if isinstance(codec, Zstd) else np.empty(0, np.uint8)
    return _Region(
        data,
        field.stride if field.is_fixed else 0,
        rows_per_page,
        0 if column.shapes is None else field.ndim,
        column.present is not None,
        (pages.view(np.uint8), ends, lengths, dims, validity, dictionary_bytes),  # _NUM_ARRAYS of them
    )


def _rows_per_page(mean_bytes: float, rows: int) -> int:
    """The least number of records that make a page of 4 KiB on average."""
    if mean_bytes <= 0:
        return max(1, rows)
    return max(1, min(rows, int(-(-_PAGE_BYTES // max(1.0, mean_bytes)))))


def _page_ends(rows: int, rows_per_page: int, ends: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Where each page ends in the region."""
    last = np.minimum(np.arange(rows_per_page, rows + rows_per_page, rows_per_page), rows).astype(np.uint64)
    return last * np.uint64(ends) if isinstance(ends, int) else ends[(last - np.uint64(1)).astype(np.int64)]


# Writing chunks


class ChunkWriter:
    """The chunks of one transaction after another. Not thread-safe: it belongs to its writer.

    * identity: the writer's part of every file name
    * entries: the chunks that are written, by number
    * fresh: those of them that ``Writer.keep_chunks`` has not returned yet
    * made: the files of the transaction, written or on their way
    * next_chunk: a number above that of every chunk
    """

    def __init__(self, files: Storage, base: Manifest, *, threads: int, progress: Progress | None) -> None:
        self._files, self._base, self._threads, self._progress = files, base, threads, progress
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-write")
        self._free: list[npt.NDArray[np.uint8]] = []  # buffers of chunks that are written
        self.identity, self._serial = new_identity(), 0
        self.begin(base.next_chunk)

    def begin(self, next_chunk: int) -> None:
        """A new transaction; what is left of the last one is forgotten."""
        self._builders: dict[tuple[int, ...], ChunkBuilder] = {}
        self._jobs: dict[Future[None], bool] = {}  # chunks under way, and whether they refer to the caller's memory
        self.entries: dict[int, ChunkEntry] = {}
        self.fresh: list[ChunkEntry] = []
        self.made: list[str] = []
        self.next_chunk = next_chunk

    def next_serial(self) -> int:
        """A number that no file of this writer has."""
        serial, self._serial = self._serial, self._serial + 1
        return serial

    def place(self, columns: Mapping[int, Column]) -> list[Placement]:
        """Put records into the open chunk of their fields, and into further ones as they fill up."""
        key, rows, placements, low = tuple(columns), next(iter(columns.values())).rows, [], 0
        while low < rows:
            builder = self._builders.get(key) or self._open_chunk(key)
            fits = builder.fit(columns, low)
            if fits > 0:
                placements.append(builder.add(columns, low, low + fits))
                low += fits
            if fits == 0 or builder.rows >= builder.max_rows or builder.size >= builder.max_bytes:
                self._seal(self._builders.pop(key))
        if key in self._builders:
            self._builders[key].own()
        self._wait_for_borrowed()
        return placements

    def seal_all(self) -> None:
        """Write what is left, and wait for all chunks."""
        for key in sorted(self._builders):
            self._seal(self._builders.pop(key))
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    def renumber(self, shift: int) -> None:
        """Give the chunks of the transaction, all of which are written, higher numbers."""
        self.entries = {number + shift: replace(entry, number=number + shift) for number, entry in self.entries.items()}
        self.next_chunk += shift

    def stop(self) -> None:
        """Wait until nothing of the transaction is being written any more."""
        for job in self._jobs:
            job.cancel()
        for job in self._jobs:
            if not job.cancelled():
                job.exception()

    def close(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait)

    def _open_chunk(self, key: tuple[int, ...]) -> ChunkBuilder:
        builder = ChunkBuilder(self.next_chunk, self._base.chunk_bytes, self._base.chunk_records, self._free)
        self.next_chunk += 1
        self._builders[key] = builder
        return builder

    def _seal(self, builder: ChunkBuilder) -> None:
        """Send a chunk to be encoded and written. No more than ``threads`` are under way at a time."""
        builder.own_if_small()
        if len(self._jobs) >= self._threads:
            self._finish(next(iter(self._jobs)))
        serial = self.next_serial()
        name = chunk_file(self.identity, serial)
        self.made.append(name)
        job = self._pool.submit(self._write, builder, serial, name)
        self._jobs[job] = builder.borrows

    def _write(self, builder: ChunkBuilder, serial: int, name: str) -> None:
        fields = {number: self._base.fields[name] for name, number in self._base.numbers.items()}
        chunk = encode_chunk(self._base.dataset, self.identity, serial, fields, builder.columns())
        self._files.write_new(name, chunk.pieces)
        builder.release()
        entry = ChunkEntry(builder.chunk, self.identity, serial, chunk.size, chunk.rows, chunk.crc, builder.size)
        self.entries[builder.chunk] = entry
        self.fresh.append(entry)
        if self._progress is not None:
            self._progress(chunk.rows, chunk.size)

    def _wait_for_borrowed(self) -> None:
        """Chunks that refer to the caller's memory are written before the caller gets it back; failures surface here."""
        for job in [job for job, borrows in self._jobs.items() if borrows or job.done()]:
            self._finish(job)

    def _finish(self, job: Future[None]) -> None:
        job.result()
        del self._jobs[job]
