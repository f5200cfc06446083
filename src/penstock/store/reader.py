"""Store: one generation of a data set, open for reading. It sees that generation for its whole life.

Chunks are read natively, from files; on an object store what a read needs is fetched into memory first, then read as a file is.
"""

import contextlib
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_ids, byte_size
from penstock.batch import Batch, Outputs, fixed_output, masked
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    SnapshotExpiredError,
    WindowTooSmallError,
)
from penstock.native import _core
from penstock.records import Blocks, Extents, Recipe, Source
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.remote.window import Hold, RemoteFiles, RemoteOptions
from penstock.row_table import expanded
from penstock.schema import Field, Raw, Zstd
from penstock.store.column import Column, as_batch, join_columns
from penstock.store.generation import generations, load_manifest, load_redirects, nullable_fields, nullable_numbers, storage_of
from penstock.store.manifest import ChunkEntry, Manifest, decode_metadata, values_of
from penstock.store.row_map import as_rows, places_of
from penstock.store.storage import Location, as_location
from penstock.system import file_access, file_versions

__all__ = ["ChunkReader", "FixedRecords", "Reading", "RemoteChunks", "Store", "ZeroCopy", "open_store"]

Result = TypeVar("Result")
Ranges = tuple[IntArray, IntArray, IntArray]

HEADER_BYTES = 64
WHOLE_BYTES = 256 << 10
"""A chunk of at most this size is fetched whole: a second request would take longer."""

READ_TRIES = 3
"""How often bytes that fail their checks are fetched before that is believed."""


@dataclass(frozen=True)
class Reading:
    """How a store is read."""

    threads: int
    io: str
    verify: bool
    max_batch_bytes: int
    remote: RemoteOptions
    max_record_bytes: int = 1 << 30


class FixedRecords(NamedTuple):
    """Records of a fixed field, and which are present if not all are."""

    array: npt.NDArray[Any]
    present: npt.NDArray[np.uint8] | None

    def column(self) -> Column:
        """The same as a writer takes it."""
        present = None if self.present is None else self.present.astype(np.bool_)
        return Column(len(self.array), self.array.reshape(-1).view(np.uint8), None, present, None)


def _join(parts: "Sequence[FixedRecords | Column]", array: npt.NDArray[Any] | None) -> "FixedRecords | Column":
    """Runs of records one after the other; fixed ones already are, in ``array``."""
    if array is None:
        return join_columns([part for part in parts if isinstance(part, Column)])
    fixed = [part for part in parts if isinstance(part, FixedRecords)]
    if all(part.present is None for part in fixed):
        return FixedRecords(array, None)
    present = [np.ones(len(part.array), np.uint8) if part.present is None else part.present for part in fixed]
    return FixedRecords(array, np.concatenate(present))


class ChunkReader:
    """The records of one generation. Safe to use from several threads.

    ``remote`` are the chunks of a store at a URL, None on a disk.
    """

    def __init__(self, location: Location, manifest: Manifest, how: Reading) -> None:
        self.location, self.manifest, self.how = location, manifest, how
        redirects = load_redirects(location, manifest)
        self.remote = RemoteChunks(location, manifest, how.remote) if isinstance(location, UrlPath) else None
        chunks, segments, numbers = manifest.chunks, manifest.segments, values_of(manifest.chunks, "number")
        directory = f"{location}/"
        self._reader: _core.StoreReader | None = _core.StoreReader(
            str(location),
            manifest.length,
            [directory + chunk.file for chunk in chunks],
            as_rows(values_of(chunks, "size"), values_of(chunks, "rows"), values_of(chunks, "crc")),
            as_rows(
                values_of(segments, "first_id"),
                values_of(segments, "count"),
                places_of(numbers, values_of(segments, "chunk")),
                values_of(segments, "first_row"),
            ),
            bytes.fromhex(manifest.dataset),
            how.io,
            how.verify,
            how.max_batch_bytes,
            None if self.remote is None else self.remote.files.landings,
            how.max_record_bytes,
            [(number, name) for name, number in manifest.numbers.items()],
        )
        if self.remote is not None:
            self.remote.serve(self._reader)
        for number, table in redirects.items():
            if table.size:
                self._reader.set_redirects(number, as_rows(table["id"], places_of(numbers, table["chunk"]), table["row"]))
        self._pool = _core.ThreadPool(how.threads)

    def native(self) -> _core.StoreReader:
        """The native reader; ValueError if it is closed."""
        if self._reader is None:
            raise ValueError("the store is closed")
        return self._reader

    def span(self, field: int, first: IntArray, last: IntArray) -> IntArray:
        """Chunk, start and stop of the pages of a field from each first record to each last one, where one chunk has both."""
        low, high = (self.native().page_extents(field, ids).astype(np.int64) for ids in (first, last))
        found: IntArray = np.stack([low[:, 0], low[:, 1], high[:, 2]], axis=1)
        inside = (low[:, 0] == high[:, 0]) & (low[:, 1] < high[:, 2])
        kept: IntArray = found[inside]
        return kept

    def close(self) -> None:
        """Close the files. Arrays already given out stay valid. Idempotent."""
        if self.remote is not None:
            self.remote.files.close()
        self._reader = None

    # Records

    def read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> dict[str, "FixedRecords | Column"]:
        """Fields of records as they were written."""
        outputs = {name: self._output(name, ids, out) for name in fields if self.manifest.fields[name].is_fixed}

        def load(part: slice) -> dict[str, FixedRecords | Column]:
            return {
                name: self._read_fixed(name, ids[part], outputs[name][part])
                if name in outputs
                else self._read_variable(name, ids[part])
                for name in fields
            }

        try:
            if self.remote is None:
                return load(slice(0, ids.size))
            parts = self.remote.read([self.manifest.numbers[name] for name in fields], ids, load)
        except MissingError as error:
            raise self.expired(error) from error
        return parts[0] if len(parts) == 1 else {name: _join([part[name] for part in parts], outputs.get(name)) for name in fields}

    def read_field(self, name: str, ids: IntArray, out: Outputs) -> "FixedRecords | Column":
        """One field of records; on an object store their chunks must be held."""
        if self.manifest.fields[name].is_fixed:
            return self._read_fixed(name, ids, self._output(name, ids, out))
        return self._read_variable(name, ids)

    def _output(self, name: str, ids: IntArray, out: Outputs) -> npt.NDArray[Any]:
        field, count = self.manifest.fields[name], ids.size
        if count * field.stride > self.how.max_batch_bytes:
            raise BatchTooLargeError(
                f"{self.location}: {count} records of {field.stride} bytes are more than the limit for a batch, "
                f"{self.how.max_batch_bytes} bytes"
            )
        if field.stride > self.how.max_record_bytes and name not in out and count:
            self._check_claim(name, ids)
        return fixed_output(name, field, count, out)

    def _check_claim(self, name: str, ids: IntArray) -> None:
        """BatchTooLargeError unless one of 64 large records is there: missing ones take memory too, and nothing in the files."""
        if 64 * np.count_nonzero(self.sizes(name, ids) >= 0) < ids.size:
            raise BatchTooLargeError(
                f"{self.location}: field {name!r}: almost all of {ids.size} records of {self.manifest.fields[name].stride} bytes "
                "are missing, and would take memory: if the store can be trusted, open it with a larger max_record_bytes"
            )

    def _read_fixed(self, name: str, ids: IntArray, array: npt.NDArray[Any]) -> "FixedRecords":
        number, stride = self.manifest.numbers[name], self.manifest.fields[name].stride
        present = np.empty(ids.size, np.uint8)
        missing = self.native().read_fixed(number, stride, ids, array.reshape(-1).view(np.uint8), present, self._pool)
        return FixedRecords(array, present if missing else None)

    def _read_variable(self, name: str, ids: IntArray) -> Column:
        field, number = self.manifest.fields[name], self.manifest.numbers[name]
        ndim = field.ndim if field.kind == "ragged" and field.ndim > 1 else 0
        values, offsets, present, dims = self.native().read_variable(number, ndim, field.kind == "text", ids, self._pool)
        itemsize = field.dtype.itemsize
        if itemsize > 1 and np.any(offsets % itemsize):
            raise self._misfit(name, ids[np.diff(offsets) % itemsize != 0], "its size is not a multiple of its element's")
        shapes = dims.reshape(-1, ndim) if ndim else None
        if shapes is not None and not (fit := _shapes_fit(shapes, np.diff(offsets) // itemsize)).all():
            raise self._misfit(name, ids[~fit], "its shape does not fit its size")
        return Column(ids.size, values, offsets, present, shapes)

    def _misfit(self, name: str, ids: IntArray, what: str) -> CorruptError:
        return CorruptError(f"{self.location}: field {name!r}, record {ids[0] if ids.size else '?'}: {what}")

    # Indices

    def sizes(self, name: str, ids: IntArray) -> IntArray:
        """Decoded bytes of a field of records, -1 where it is missing, from the indices alone."""
        chunks = np.empty(0, np.int64) if self.remote is None else self.remote.chunks_of([self.manifest.numbers[name]], ids)
        return self._with_indices(chunks, lambda: self.measure(name, ids))

    def measure(self, name: str, ids: IntArray) -> IntArray:
        """The same; on an object store the indices must be held."""
        sizes = np.empty(ids.size, np.int64)
        self.native().measure(self.manifest.numbers[name], ids, sizes, self._pool)
        return sizes

    def chunks_of(self, name: str, ids: IntArray) -> npt.NDArray[np.uint64]:
        """The place of the chunk that holds a field of each record."""
        return self.native().places(self.manifest.numbers[name], ids)[:, 0]

    def _with_indices(self, chunks: IntArray, work: Callable[[], Result]) -> Result:
        """Do something while the indices of chunks are in memory."""
        fetched = self.remote
        return work() if fetched is None else fetched.tried(chunks, lambda: _held(fetched.hold_indices(chunks), work))

    # Single chunks

    def chunk_fields(self, place: int) -> list[tuple[int, int, bool]]:
        """Number and stored bytes of each field of a chunk, and whether it says which records are missing."""
        return self._with_indices(np.array([place], np.int64), lambda: self.native().chunk_fields(place))

    def hold_chunk(self, place: int) -> AbstractContextManager[object]:
        """Keeps a chunk in memory, where it must be to be read."""
        return nullcontext() if self.remote is None else self.remote.hold_whole(place)

    def verify_chunk(self, place: int) -> list[tuple[int, str]]:
        """What is wrong with the pages of a chunk, by the number of the field."""
        if self.remote is None:
            return self.native().verify_chunk(place)
        return self.remote.verify(place)

    def expired(self, error: MissingError) -> MissingError:
        """Tells a file that gc removed, because this generation is too old, from one that is missing."""
        generation = self.manifest.generation
        if generation in generations(self.location):
            return error
        return SnapshotExpiredError(
            f"{self.location}: generation {generation} was collected meanwhile: refresh(), or let gc keep more ({error})"
        )


def _shapes_fit(shapes: npt.NDArray[np.uint32], lengths: IntArray) -> npt.NDArray[np.bool_]:
    """Which shapes have as many elements as their records, and no dimension beyond what an array can have."""
    with np.errstate(all="ignore"):
        elements = np.prod(shapes.astype(np.float64), axis=1)
        largest = np.prod(np.maximum(shapes, 1).astype(np.float64), axis=1)
    return np.asarray((elements == lengths) & (largest < 2.0**62))


class RemoteChunks:
    """The window on the chunks of one generation. Safe to use from several threads."""

    def __init__(self, url: UrlPath, manifest: Manifest, options: RemoteOptions) -> None:
        self._manifest, chunks = manifest, tuple(manifest.chunks)
        readers: list[_core.StoreReader] = []
        self._readers = readers  # the reader, once there is one; not through self, which would make a circle
        self.files: RemoteFiles = options.open_files(
            [_object(url, chunk) for chunk in chunks],
            whole_files=True,
            on_release=lambda number: readers[0].forget(number) if readers else None,
            identities=[f"{chunk.crc:08x}" for chunk in chunks],
        )
        self._sizes = np.array([chunk.size for chunk in chunks], np.int64)
        self._rows = np.array([chunk.rows for chunk in chunks], np.int64)
        self._starts = np.array([self._guess(chunk) for chunk in chunks], np.int64)  # of the indices
        self._is_known = np.zeros(len(chunks), np.bool_)  # whether an index begins no earlier
        place = {chunk.number: place for place, chunk in enumerate(chunks)}
        self._segment_ends = np.array([s.first_id + s.count for s in manifest.segments], np.int64)
        self._segment_chunks = np.array([place.get(s.chunk, 0) for s in manifest.segments], np.int64)

    def serve(self, reader: _core.StoreReader) -> None:
        """Tell the reader which chunks leave the memory, from now on."""
        self._readers.append(reader)

    def _guess(self, chunk: ChunkEntry) -> int:
        """Where the index of a chunk begins at the earliest, if it is laid out as the writer here does it."""
        if chunk.size <= WHOLE_BYTES:
            return 0
        size = 256 + chunk.size // 4096 * 4
        for field in self._manifest.fields.values():
            per_row = 0 if field.is_fixed else 4 * (1 + field.ndim)
            per_row += 0 if field.is_fixed and isinstance(field.codec, Raw) else 8
            dictionary = field.codec.dictionary or b"" if isinstance(field.codec, Zstd) else b""
            size += 256 + per_row * chunk.rows + chunk.rows // 8 + len(dictionary)
        return max(0, chunk.size - size)

    # What to hold

    def extents(self, starts: IntArray, stops: IntArray) -> Ranges:
        """The chunks of which records [start, stop) are more than half, whole; nothing of others. Needs no network."""
        return self._whole(np.flatnonzero(2 * self._rows_in(starts, stops) > self._rows))

    def edges(self, starts: IntArray, stops: IntArray) -> Ranges:
        """Of the other chunks that have any of the records: all if the records are at least half of the rows of all of them,
        otherwise small ones, which are fetched whole anyway.
        """
        rows = self._rows_in(starts, stops)
        is_dense = 2 * rows.sum() >= self._rows[rows > 0].sum()
        return self._whole(np.flatnonzero((rows > 0) & (2 * rows <= self._rows) & (is_dense | (self._sizes <= WHOLE_BYTES))))

    def _rows_in(self, starts: IntArray, stops: IntArray) -> IntArray:
        """How many of records [start, stop) each chunk has."""
        segments = np.searchsorted(self._segment_ends, expanded(starts, stops), side="right")
        return np.bincount(self._segment_chunks[segments], minlength=len(self._rows))

    def hold_whole(self, chunk: int) -> Hold:
        return self.files.hold(*self._whole(np.array([chunk], np.int64)))

    def hold_indices(self, chunks: IntArray) -> Hold:
        self._learn(chunks)
        return self.files.hold(*self._indices(chunks))

    def hold(self, fields: Sequence[int], ids: IntArray) -> Hold:
        """Everything that reading fields of records needs: indices, and pages."""
        return self.tried(chunks := self.chunks_of(fields, ids), lambda: self._hold(chunks, fields, ids))

    def _hold(self, chunks: IntArray, fields: Sequence[int], ids: IntArray) -> Hold:
        is_here = np.array([self.files.holds_whole(chunk) for chunk in chunks.tolist()], np.bool_)
        ranges, others = [self._whole(chunks[is_here])], chunks[~is_here]
        if others.size:
            with self.hold_indices(chunks):  # released before more is held: a thread that waits for eviction holds nothing
                ranges += [self._indices(others), *(self._pages(field, ids, others) for field in fields)]
        numbers, starts, stops = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        return self.files.hold(numbers, starts, stops)

    def _pages(self, field: int, ids: IntArray, chunks: IntArray) -> Ranges:
        """The pages of records that are in some chunks."""
        extents = self._readers[0].page_extents(field, ids).astype(np.int64)
        extents = extents[np.isin(extents[:, 0], chunks)]
        return extents[:, 0], extents[:, 1], extents[:, 2]

    def chunks_of(self, fields: Sequence[int], ids: IntArray) -> IntArray:
        found = [np.unique(self._readers[0].places(field, ids)[:, 0]) for field in fields]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found])).astype(np.int64)

    def _whole(self, chunks: IntArray) -> Ranges:
        return chunks, np.zeros(len(chunks), np.int64), self._sizes[chunks]

    def _indices(self, chunks: IntArray) -> Ranges:
        """Headers and, as far as known, indices."""
        sizes, zeros = self._sizes[chunks], np.zeros(len(chunks), np.int64)
        return (
            np.concatenate([chunks, chunks]),
            np.concatenate([zeros, self._starts[chunks]]),
            np.concatenate([np.minimum(HEADER_BYTES, sizes), sizes]),
        )

    def _learn(self, chunks: IntArray) -> None:
        while (unknown := chunks[~self._is_known[chunks]]).size:
            with self.files.hold(*self._indices(unknown)):
                for chunk in unknown.tolist():
                    start, size = int(self._starts[chunk]), int(self._sizes[chunk])
                    last = self.files.landings[chunk].read(start, size)
                    found = _core.chunk_index_start(last, size, str(self.files.files[chunk][0]))
                    self._starts[chunk], self._is_known[chunk] = min(start, found), found >= start

    # Reading

    def read(self, fields: Sequence[int], ids: IntArray, work: Callable[[slice], Result]) -> list[Result]:
        """What ``work`` gives for runs of ids, while everything it reads is in memory: one run, or as many as the window needs."""
        done: list[Result] = []
        left = [slice(0, ids.size)]
        while left:
            part = left.pop()
            try:
                done.append(self._read_part(fields, ids[part], partial(work, part)))
            except WindowTooSmallError:
                if part.stop - part.start < 2:
                    raise
                middle = (part.start + part.stop) // 2
                left += [slice(middle, part.stop), slice(part.start, middle)]
        return done

    def _read_part(self, fields: Sequence[int], ids: IntArray, work: Callable[[], Result]) -> Result:
        chunks = self.chunks_of(fields, ids)
        return self.tried(chunks, lambda: _held(self._hold(chunks, fields, ids), work))

    def verify(self, chunk: int) -> list[tuple[int, str]]:
        """What is wrong with the pages of a chunk, by the number of the field; anything is fetched again before it is believed."""
        chunks = np.array([chunk], np.int64)
        check = partial(self._readers[0].verify_chunk, chunk)
        for _ in range(READ_TRIES - 1):
            if not self.tried(chunks, lambda: _held(self.hold_whole(chunk), check)):
                return []
            self.files.refetch(chunk)
        return self.tried(chunks, lambda: _held(self.hold_whole(chunk), check))

    def tried(self, chunks: IntArray, attempt: Callable[[], Result]) -> Result:
        """What an attempt to read chunks gives; bytes that fail their checks are fetched again before that is believed."""
        try:
            for _ in range(READ_TRIES - 1):
                try:
                    return attempt()
                except CorruptError:
                    for chunk in chunks.tolist():
                        self.files.refetch(chunk)
            return attempt()
        except ObjectChangedError as error:  # a chunk never changes: it is not the one that the manifest names
            raise CorruptError(f"{error}; expected what the manifest says") from error


def _held(hold: Hold, work: Callable[[], Result]) -> Result:
    with hold:
        return work()


def _object(url: UrlPath, chunk: ChunkEntry) -> tuple[UrlPath, ObjectInfo]:
    """A chunk's name is never used again, and its checksums follow from the manifest: no etag is needed."""
    place = url / chunk.file
    return place, ObjectInfo(place.key, chunk.size, None, 0.0)


class Store(Source):
    """One generation of a record store; see :class:`~penstock.Source` for how it is read.

    ``manifest`` and ``chunks`` are for maintenance: what the generation is made of, and its chunks one by one.
    """

    def __init__(self, path: Location, manifest: Manifest, how: Reading, found_nullable: frozenset[int] | None = None) -> None:
        """``found_nullable``: the numbers of fields with missing values, if they are known and the manifest does not say them."""
        self._path, self.manifest = path, manifest
        self._given_nullable = found_nullable
        self.chunks = ChunkReader(path, manifest, how)

    # What there is

    def __len__(self) -> int:
        return self.manifest.length

    def __repr__(self) -> str:
        return (
            f"<penstock store {str(self._path)!r}: {len(self)} records, generation {self.generation}, fields {dict(self.schema)}>"
        )

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields, by name. Of a store of version 1, the end of every chunk is looked at first, to learn which are nullable."""
        return dict(self._schema)

    @cached_property
    def _schema(self) -> dict[str, Field]:
        nullable = nullable_fields(self.manifest, self._found_nullable)
        return {name: field.with_nullable(name in nullable) for name, field in self.manifest.fields.items()}

    @cached_property
    def _found_nullable(self) -> frozenset[int]:
        """The numbers of the fields in which values are missing."""
        return nullable_numbers(self._path, self.manifest) if self._given_nullable is None else self._given_nullable

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the writer said of the data; see :func:`~penstock.create`."""
        return self._metadata

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        return MappingProxyType(decode_metadata(self.manifest.metadata))

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest: it names this generation of this data set, and no other."""
        return self.manifest.digest

    def file_versions(self) -> Hashable | None:
        """Of the chunks; objects of a store at a URL never change."""
        if isinstance(self._path, UrlPath):
            return self.fingerprint
        versions = file_versions([f"{self._path}/{chunk.file}" for chunk in self.manifest.chunks])
        return None if versions is None else (self.fingerprint, versions)

    @property
    def path(self) -> Location:
        """Where the store is: a directory, or a place under a URL."""
        return self._path

    def generations(self) -> list[int]:
        return generations(self._path)

    def refresh(self) -> "Store":
        """A reader of the newest generation; this one stays as it is."""
        return _open(self._path, None, self.chunks.how)

    @property
    def blocks(self) -> Blocks:
        """The runs of records that are in one chunk."""
        return Blocks.of_counts(values_of(self.manifest.segments, "count"))

    @property
    def reads_blocks(self) -> bool:
        """Whether it is at a URL, where a record takes about as long as its chunk."""
        return self.chunks.remote is not None

    # Reading

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self.chunks.remote is None:
            try:
                return {name: self._as_user_has_it(name, self.chunks.read_field(name, ids, out)) for name in fields}
            except MissingError as error:
                raise self.chunks.expired(error) from error
        return {name: self._as_user_has_it(name, loaded) for name, loaded in self.chunks.read(ids, fields, out).items()}

    @property
    def max_batch_bytes(self) -> int:
        """As it was opened."""
        return self.chunks.how.max_batch_bytes

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        one, number, reader = self.manifest.fields[field], self.manifest.numbers[field], self.chunks.native()
        if not one.is_fixed:
            return reader.varying(number, one.kind == "text"), -1
        # What is larger is looked at before memory is reserved for it.
        return (reader, number) if one.stride <= self.chunks.how.max_record_bytes else None

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Elements of records of a field of varying length, from the index alone."""
        if field not in self.manifest.fields or self.manifest.fields[field].is_fixed:
            return super().lengths(field, ids)
        return np.maximum(self.chunks.sizes(field, as_ids(ids, len(self))), 0) // self.manifest.fields[field].dtype.itemsize

    def columns(self, ids: Any, fields: Sequence[str]) -> dict[str, Column]:
        """Records as a writer takes them, to be written to another store: nothing is lost on the way."""
        loaded = self.chunks.read(as_ids(ids, len(self)), fields, {})
        return {name: column if isinstance(column, Column) else column.column() for name, column in loaded.items()}

    # A store at a URL

    @property
    def remote(self) -> RemoteFiles | None:
        return None if self.chunks.remote is None else self.chunks.remote.files

    @cached_property
    def paths(self) -> Sequence[str]:
        return () if self.chunks.remote is not None else [f"{self._path}/{chunk.file}" for chunk in self.manifest.chunks]

    @property
    def is_direct(self) -> bool:
        return self.chunks.how.io == "direct"

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """On a disk the pages of all fields of records; the indices of their chunks are read. (Fields that were changed later, and
        are in other chunks, are left out.) At a URL the chunks of which records are more than half, whole.
        """
        if self.chunks.remote is not None:
            return self.chunks.remote.extents(starts, stops)
        firsts = values_of(self.manifest.segments, "first_id")
        low, high = np.searchsorted(firsts, starts, side="right"), np.searchsorted(firsts, stops, side="left")
        edges = [np.concatenate([[a], firsts[i:j], [b]]) for a, b, i, j in zip(starts, stops, low, high, strict=True) if b > a]
        first = np.concatenate([np.empty(0, np.int64), *(edge[:-1] for edge in edges)]).astype(np.int64)
        last = np.concatenate([np.empty(0, np.int64), *(edge[1:] for edge in edges)]).astype(np.int64) - 1
        found = [self.chunks.span(number, first, last) for number in self.manifest.numbers.values()]
        columns = np.concatenate([np.empty((0, 3), np.int64), *found])
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def edges(self, starts: IntArray, stops: IntArray) -> Extents:
        return super().edges(starts, stops) if self.chunks.remote is None else self.chunks.remote.edges(starts, stops)

    def hold(self, starts: IntArray, stops: IntArray) -> AbstractContextManager[object]:
        """Keeps all fields of records in memory while it is entered."""
        if self.chunks.remote is None:
            return nullcontext()
        return self.chunks.remote.hold(list(self.manifest.numbers.values()), expanded(starts, stops))

    def _as_user_has_it(self, name: str, loaded: "FixedRecords | Column") -> Any:
        """One field of a batch: an array, masked where records are missing, or a Ragged."""
        return as_batch(self.manifest.fields[name], loaded) if isinstance(loaded, Column) else masked(loaded.array, loaded.present)

    def view(self, field: str) -> "ZeroCopy":
        """A fixed, uncompressed field without copying: ``view("image")[7]`` is a read-only array on the file itself."""
        return ZeroCopy(self, field)

    # Life

    def close(self) -> None:
        """Close the files. Arrays already given out stay valid. Idempotent."""
        self.chunks.close()

    def _recipe(self) -> Recipe:
        path = self._path.absolute() if isinstance(self._path, Path) else self._path
        known = None if self.manifest.found_nullable is not None else self._found_nullable
        return (_open, (path, self.generation, self.chunks.how, known))


class ZeroCopy:
    """Read-only arrays in the mapped file. A file cut by another program while such an array is read ends the process."""

    def __init__(self, store: Store, name: str) -> None:
        field = store.schema[name]
        if not field.is_fixed or field.codec.number != 0 or store.chunks.how.io != "map" or store.remote is not None:
            raise ValueError(f"field {name!r} ({field!r}) cannot be viewed: only fixed, uncompressed fields of mapped files can")
        self._store, self._field, self._number = store, field, store.manifest.numbers[name]

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        record = int(as_ids(index, len(self))[0])
        data = self._store.chunks.native().view(self._number, self._field.stride, record)
        if data is None:
            raise ValueError(f"record {record} misses this field")
        return np.asarray(data).view(self._field.dtype).reshape(self._field.shape)


def open_store(
    path: str | os.PathLike[str] | UrlPath,
    *,
    generation: int | None = None,
    threads: int | None = None,
    io: str = "auto",
    verify: bool = True,
    max_batch_bytes: int | str = "16GiB",
    remote: RemoteOptions | None = None,
    max_record_bytes: int | str = "1GiB",
) -> Store:
    """Open a store for reading, at its newest ``generation`` unless one is given.

    ``io`` is "map" (memory-mapped, for local disks), "pread" (for network filesystems), "direct" (past the page cache, for data
    that does not fit into memory) or "auto". ``verify=False`` skips the
    checksum of each page when it is first touched. A batch that would need more than ``max_batch_bytes`` is refused before it is
    read: in a store from a stranger, a few bytes can stand for very many. For the same reason a compressed record of more than
    ``max_record_bytes`` is refused, unless it is stored in a 64th of its bytes or more. ``remote`` says how a store at a URL is
    read.
    """
    location = as_location(path)
    io = file_access(io, location)
    most = byte_size("max_batch_bytes", max_batch_bytes)
    largest = byte_size("max_record_bytes", max_record_bytes)
    how = Reading(threads or min(8, os.cpu_count() or 1), io, verify, most, remote or RemoteOptions(), largest)
    return _open(location, generation, how)


def _open(path: Location, generation: int | None, how: Reading, found_nullable: frozenset[int] | None = None) -> Store:
    storage_of(path).check_directories()
    if generation is None:
        for _ in range(2):  # another process may commit and collect between our listing and our reading
            with contextlib.suppress(MissingError):
                return Store(path, load_manifest(path), how)
    return Store(path, load_manifest(path, generation), how, found_nullable)
