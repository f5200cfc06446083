"""Reading chunks: native, from files; on an object store what a read needs is fetched into memory first, then read as a file is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.codec import Raw, Zstd
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    SnapshotExpiredError,
    WindowTooSmallError,
)
from penstock.interfaces import IntArray
from penstock.records import Outputs, fixed_output
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.remote.window import Hold, RemoteFiles, RemoteOptions
from penstock.store.column import Column, join_columns
from penstock.store.format import Location
from penstock.store.generation import generations, load_redirects
from penstock.store.manifest import ChunkEntry, Manifest, values_of
from penstock.store.row_map import as_rows, places_of

__all__ = ["ChunkReader", "FixedRecords", "Reading", "RemoteChunks"]

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
            how.io == "pread",
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
        if fetched is None:
            return work()

        def attempt() -> Result:
            with fetched.hold_indices(chunks):
                return work()

        return fetched.tried(chunks, attempt)

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

    def byte_ranges(self, ids: IntArray) -> Ranges:
        """The chunks of which records are more than half, whole; nothing of others. Needs no network."""
        segments = np.searchsorted(self._segment_ends, ids, side="right")
        rows = np.bincount(self._segment_chunks[segments], minlength=len(self._rows))
        return self._whole(np.flatnonzero(2 * rows > self._rows))

    def hold_whole(self, chunk: int) -> Hold:
        """All of a chunk."""
        return self.files.hold(*self._whole(np.array([chunk], np.int64)))

    def hold_indices(self, chunks: IntArray) -> Hold:
        """The headers and indices of chunks."""
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
        """The chunks that hold fields of records."""
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
        """Find out where indices begin."""
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
                done.append(self._read_part(fields, ids[part], lambda part=part: work(part)))  # type: ignore[misc]
            except WindowTooSmallError:
                if part.stop - part.start < 2:
                    raise
                middle = (part.start + part.stop) // 2
                left += [slice(middle, part.stop), slice(part.start, middle)]
        return done

    def _read_part(self, fields: Sequence[int], ids: IntArray, work: Callable[[], Result]) -> Result:
        chunks = self.chunks_of(fields, ids)

        def attempt() -> Result:
            with self._hold(chunks, fields, ids):
                return work()

        return self.tried(chunks, attempt)

    def verify(self, chunk: int) -> list[tuple[int, str]]:
        """What is wrong with the pages of a chunk, by the number of the field; anything is fetched again before it is believed."""
        chunks = np.array([chunk], np.int64)

        def attempt() -> list[tuple[int, str]]:
            with self.hold_whole(chunk):
                return self._readers[0].verify_chunk(chunk)

        for _ in range(READ_TRIES - 1):
            if not self.tried(chunks, attempt):
                return []
            self.files.refetch(chunk)
        return self.tried(chunks, attempt)

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


def _object(url: UrlPath, chunk: ChunkEntry) -> tuple[UrlPath, ObjectInfo]:
    """A chunk's name is never used again, and its checksums follow from the manifest: no etag is needed."""
    place = url / chunk.file
    return place, ObjectInfo(place.key, chunk.size, None, 0.0)
