"""ChunkWriter: records into chunks, and chunks into the storage, several at a time."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.store.builder import ChunkBuilder, Placement
from penstock.store.chunk import encode_chunk
from penstock.store.column import Column
from penstock.store.format import chunk_file, new_identity
from penstock.store.manifest import ChunkEntry, Manifest
from penstock.store.storage import Storage

__all__ = ["ChunkWriter", "Progress"]

Progress = Callable[[int, int], None]
"""Called with (records done, bytes written) after every chunk."""


class ChunkWriter:
    """The chunks of one transaction after another. Not thread-safe: it belongs to its writer.

    * identity: the writer's part of every file name
    * entries: the chunks that are written, by number
    * fresh: those of them that were not asked for yet
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
        self._jobs: list[Future[None]] = []
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
        """End the threads."""
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
            self._finish(self._jobs[0])
        serial = self.next_serial()
        name = chunk_file(self.identity, serial)
        self.made.append(name)
        job = self._pool.submit(self._write, builder, serial, name)
        job.borrows = builder.borrows  # type: ignore[attr-defined]
        self._jobs.append(job)

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
        for job in [job for job in self._jobs if job.borrows or job.done()]:  # type: ignore[attr-defined]
            self._finish(job)

    def _finish(self, job: Future[None]) -> None:
        job.result()
        self._jobs.remove(job)
