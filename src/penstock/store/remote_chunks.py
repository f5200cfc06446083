"""The chunks of a store on an object store: what a read needs is brought into memory first, and then read as from a file."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from penstock import _core
from penstock.codec import Raw, Zstd
from penstock.errors import CorruptError, ObjectChangedError, WindowTooSmallError
from penstock.interfaces import IntArray
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.remote.window import Hold, RemoteFiles, RemoteOptions
from penstock.store.layout import CHUNK_DIRECTORY, chunk_name
from penstock.store.manifest import ChunkEntry, Manifest

__all__ = ["RemoteChunks"]

Result = TypeVar("Result")
Ranges = tuple[IntArray, IntArray, IntArray]

HEADER_BYTES = 64
WHOLE_BYTES = 256 << 10
"""A chunk of at most so many bytes is fetched whole: a second request would take longer."""

READ_TRIES = 3
"""So often are bytes fetched that fail their checks before that is believed."""


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
            with self.hold_indices(chunks):  # let go before more is asked for: who waits for room holds nothing
                ranges += [self._indices(others), *(self._pages(field, ids, others) for field in fields)]
        numbers, starts, stops = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        return self.files.hold(numbers, starts, stops)

    def _pages(self, field: int, ids: IntArray, chunks: IntArray) -> Ranges:
        """The pages of records that lie in some chunks."""
        extents = self._readers[0].page_extents(field, ids).astype(np.int64)
        extents = extents[np.isin(extents[:, 0], chunks)]
        return extents[:, 0], extents[:, 1], extents[:, 2]

    def chunks_of(self, fields: Sequence[int], ids: IntArray) -> IntArray:
        """The chunks in which fields of records lie."""
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
    """A chunk's name is used once and for ever, and its checksums follow from the manifest: no etag is needed."""
    place = url / CHUNK_DIRECTORY / chunk_name(chunk.writer, chunk.serial)
    return place, ObjectInfo(place.key, chunk.size, None, 0.0)
