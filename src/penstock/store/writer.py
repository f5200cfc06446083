"""Writer: append, update and delete in transactions. Nothing is visible before a commit, and everything at once after it.

A commit is the exclusive creation of the next manifest::

    1  write the new chunk files (new names, never replaced), fsync each
    2  write the new redirect file, if any, fsync it
    3  fsync chunk/ and redirect/            names are durable before anything points at them
    4  write manifest/.tmp-<write id>, fsync it
    5  link it to manifest/<G + 1>           fails if somebody was first: ConflictError
    6  fsync manifest/                       only now is the commit acknowledged
    7  remove the temporary name
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import whole_number
from penstock.errors import ConflictError, DurabilityError, StoreError
from penstock.index import as_ids
from penstock.store.builder import ChunkBuilder, Placement
from penstock.store.chunk import encode_chunk
from penstock.store.column import Column, make_column, missing_column
from penstock.store.filesystem import Filesystem
from penstock.store.generation import load_redirects, newest_generation
from penstock.store.layout import (
    CHUNK_DIRECTORY,
    MANIFEST_DIRECTORY,
    MAX_MANIFEST_BYTES,
    REDIRECT_DIRECTORY,
    chunk_name,
    manifest_name,
    new_identity,
    redirect_name,
    temporary_name,
)
from penstock.store.lock import Lock
from penstock.store.manifest import ChunkEntry, Manifest, RedirectEntry, decode_manifest, encode_manifest
from penstock.store.places import Places
from penstock.store.redirect import encode_redirects

__all__ = ["Progress", "Writer"]

Progress = Callable[[int, int], None]
"""Called with (records done, bytes written) after every chunk."""

MAX_REDIRECT_FILES = 8


class Writer:
    """The one writer of a store. Not thread-safe; use it in a ``with`` block: leaving it commits, an exception publishes nothing.

    ``threads`` chunks are encoded and written at a time; ids and files are the same for any number of them.
    """

    def __init__(
        self, path: Path, base: Manifest, lock: Lock, *, threads: int, progress: Progress | None = None, is_new: bool = False
    ) -> None:
        self._path, self._base, self._lock = path, base, lock
        self._files = Filesystem()
        self._threads = whole_number("threads", threads, least=1, most=256)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-write")
        self._progress = progress
        self._is_new = is_new
        self._poison: str | None = None
        self._closed = False
        self._writer, self._serial = new_identity(), 0
        self._redirects = load_redirects(path, base)
        self._free: list[npt.NDArray[np.uint8]] = []  # buffers of chunks that are written
        self._begin()

    # What the user calls

    def __len__(self) -> int:
        return self._places.length

    def __bool__(self) -> bool:
        return True  # an empty store has a writer too

    @property
    def generation(self) -> int:
        """The generation committed last; 0 before the first commit of a new store."""
        return 0 if self._is_new else self._base.generation

    def extend(self, batch: Mapping[str, Any]) -> range:
        """Append records: a dict with a column per field. Fields left out are missing. Returns the new ids."""
        self._check()
        columns = self._columns(batch)
        return self._append(columns)

    def extend_columns(self, columns: Mapping[str, Column]) -> range:
        """Append records as :meth:`Store.columns` gives them."""
        self._check()
        return self._append({self._base.numbers[name]: column for name, column in columns.items()})

    def _append(self, columns: dict[int, Column]) -> range:
        rows = next(iter(columns.values())).rows
        for name, number in self._base.numbers.items():
            if number not in columns:
                columns[number] = missing_column(self._base.fields[name], rows)
        return self._places.append(self._place(dict(sorted(columns.items()))))

    def append(self, record: Mapping[str, Any]) -> int:
        """Append one record; a field left out or None is missing. Returns its id."""
        return self.extend({name: _one(value) for name, value in record.items()})[0]

    def update(self, ids: npt.ArrayLike, batch: Mapping[str, Any]) -> None:
        """Replace the given fields of records; other fields and all ids stay. The last of several values for one id wins."""
        self._check()
        wanted = as_ids(ids, len(self))
        columns = self._columns(batch)
        rows = next(iter(columns.values())).rows
        if rows != wanted.size:
            raise ValueError(f"expected {wanted.size} records, one per id, got {rows}")
        if rows:
            self._places.redirect(columns, wanted, self._place(dict(sorted(columns.items()))))
            self._changed = True

    def delete(self, ids: npt.ArrayLike) -> dict[int, int]:
        """Remove records. The last records take the free ids, so that ids stay dense: returns {old id: new id} of those."""
        self._check()
        gone = as_ids(ids, len(self))
        if gone.size == 0:
            return {}
        self._changed = True
        return self._places.delete(gone, sorted(self._base.numbers.values()))

    def commit(self) -> int:
        """Publish everything since the last commit, durably; returns the generation. Does nothing if nothing changed."""
        self._check()
        with self._or_discard():
            self._seal_all()
            if self._changed or self._is_new:
                self._publish()
        return self._base.generation

    def abort(self) -> None:
        """Forget everything since the last commit."""
        self._check()
        self._discard()

    def close(self) -> None:
        """Forget what is not committed, and let the next writer in. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._poison is None and self._is_own_process():
                self._discard()
        finally:
            self._pool.shutdown(wait=self._is_own_process())
            self._lock.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._closed:
                self.commit()
        finally:
            self.close()

    # A transaction

    def _begin(self) -> None:
        """A new transaction on the last commit. No I/O: what was committed stays committed whatever happens here."""
        self._places = Places(self._base.length, self._base.segments, self._redirects)
        self._builders: dict[tuple[int, ...], ChunkBuilder] = {}
        self._entries: dict[int, ChunkEntry] = {}
        self._jobs: list[Future[None]] = []
        self._made: list[Path] = []
        self._next_chunk = self._base.next_chunk
        self._changed = False
        self._rewrites = False

    def _start_over(self) -> None:
        """Begin a transaction that replaces all records (rebalance)."""
        self._places = Places(0, (), {})
        self._rewrites = self._changed = True

    @contextlib.contextmanager
    def _or_discard(self) -> Iterator[None]:
        """What fails inside ends the transaction; a disk that does not confirm ends the writer."""
        try:
            yield
        except DurabilityError as error:
            self._poison = str(error)
            raise
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """Back to the last commit; files of the transaction are removed where that is possible."""
        for job in self._jobs:
            job.cancel()
        for job in self._jobs:
            if not job.cancelled():
                job.exception()
        for path in self._made:
            with contextlib.suppress(StoreError):
                self._files.remove(path)
        self._begin()

    def _check(self) -> None:
        self._lock.check_process()
        if self._closed:
            raise ValueError("the writer is closed")
        if self._poison is not None:
            raise DurabilityError(
                0, f"this writer failed before and cannot be trusted: {self._poison}; reopen the store", str(self._path)
            )

    def _is_own_process(self) -> bool:
        try:
            self._lock.check_process()
        except StoreError:
            return False
        return True

    # Records into chunks

    def _columns(self, batch: Mapping[str, Any]) -> dict[int, Column]:
        if not isinstance(batch, Mapping) or not batch:
            raise TypeError(
                f"expected a dict of fields, got {type(batch).__name__}" if not isinstance(batch, Mapping) else "got no fields"
            )
        unknown = [name for name in batch if name not in self._base.fields]
        if unknown:
            raise ValueError(f"unknown fields {unknown}; the store has {list(self._base.fields)}")
        columns = {self._base.numbers[name]: make_column(name, self._base.fields[name], data) for name, data in batch.items()}
        lengths = {name: columns[self._base.numbers[name]].rows for name in batch}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all fields must have the same number of records, got {lengths}")
        return columns

    def _place(self, columns: Mapping[int, Column]) -> list[Placement]:
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
        self._changed |= rows > 0
        self._wait_for_borrowed()
        return placements

    def _open_chunk(self, key: tuple[int, ...]) -> ChunkBuilder:
        builder = ChunkBuilder(self._next_chunk, self._base.chunk_bytes, self._base.chunk_records, self._free)
        self._next_chunk += 1
        self._builders[key] = builder
        return builder

    def _seal(self, builder: ChunkBuilder) -> None:
        """Send a chunk to be encoded and written. No more than ``threads`` are under way at a time."""
        builder.own_if_small()
        if len(self._jobs) >= self._threads:
            self._finish(self._jobs[0])
        serial, self._serial = self._serial, self._serial + 1
        path = self._path / CHUNK_DIRECTORY / chunk_name(self._writer, serial)
        self._made.append(path)
        job = self._pool.submit(self._write_chunk, builder, serial, path)
        job.borrows = builder.borrows  # type: ignore[attr-defined]
        self._jobs.append(job)

    def _write_chunk(self, builder: ChunkBuilder, serial: int, path: Path) -> None:
        fields = {number: self._base.fields[name] for name, number in self._base.numbers.items()}
        chunk = encode_chunk(self._base.dataset, self._writer, serial, fields, builder.columns())
        self._files.write_new(path, chunk.pieces)
        builder.release()
        self._entries[builder.chunk] = ChunkEntry(
            builder.chunk, self._writer, serial, chunk.size, chunk.rows, chunk.crc, builder.size
        )
        if self._progress is not None:
            self._progress(chunk.rows, chunk.size)

    def _wait_for_borrowed(self) -> None:
        """Chunks that refer to the caller's memory are written before the caller gets it back; failures surface here."""
        for job in [job for job in self._jobs if job.borrows or job.done()]:  # type: ignore[attr-defined]
            self._finish(job)

    def _finish(self, job: Future[None]) -> None:
        """Wait for a chunk; if it failed, so has the transaction."""
        with self._or_discard():
            job.result()
        self._jobs.remove(job)

    def _seal_all(self) -> None:
        for key in sorted(self._builders):
            self._seal(self._builders.pop(key))
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    # A commit

    def _publish(self) -> None:
        redirects = self._write_redirects()
        self._files.sync_directory(self._path / CHUNK_DIRECTORY)
        self._files.sync_directory(self._path / REDIRECT_DIRECTORY)
        generation = 1 if self._is_new else self._base.generation + 1
        if self._is_new:
            self._files.sync_directory(self._path)
            self._files.sync_directory(self._path.parent)
        if newest_generation(self._path) != generation - 1:
            raise ConflictError(f"{self._path}: another writer committed generation {newest_generation(self._path)} meanwhile")
        manifest = Manifest(
            dataset=self._base.dataset,
            generation=generation,
            parent=None if self._is_new else self._base.digest,
            write_id=new_identity(),
            length=self._places.length,
            fields=self._base.fields,
            numbers=self._base.numbers,
            chunk_bytes=self._base.chunk_bytes,
            chunk_records=self._base.chunk_records,
            next_chunk=self._next_chunk,
            chunks=self._named_chunks(),
            segments=tuple(self._places.segments),
            redirects=redirects,
        )
        draft = write_draft(self._files, self._path, manifest)
        in_force = self._places.whole_tables()
        # From here on the manifest may exist, whatever interrupts us: what it names is no longer ours to remove.
        made, self._made = self._made, []
        try:
            self._base = publish_draft(self._files, draft)
        except ConflictError:
            self._made = made
            raise
        self._is_new = False
        self._redirects = in_force
        self._begin()

    def _write_redirects(self) -> tuple[RedirectEntry, ...]:
        changed = self._places.changed_tables()
        kept = () if self._rewrites else self._base.redirects
        if not changed:
            return kept
        if len(kept) >= MAX_REDIRECT_FILES:
            changed, kept = self._places.whole_tables(), ()
            if not changed:
                return ()
        data = encode_redirects(self._base.dataset, changed)
        serial, self._serial = self._serial, self._serial + 1
        path = self._path / REDIRECT_DIRECTORY / redirect_name(self._writer, serial)
        self._made.append(path)
        self._files.write_new(path, [(0, data)])
        return (*kept, RedirectEntry(self._writer, serial, len(data), _core.crc32c(np.frombuffer(data, np.uint8))))

    def _named_chunks(self) -> tuple[ChunkEntry, ...]:
        """The chunks this generation still refers to."""
        tables = self._places.whole_tables()
        used = {segment.chunk for segment in self._places.segments}.union(
            *(set(np.unique(t["chunk"]).tolist()) for t in tables.values())
        )
        older = {entry.number: entry for entry in self._base.chunks}
        return tuple(entry for number, entry in sorted({**older, **self._entries}.items()) if number in used)


@dataclass(frozen=True)
class Draft:
    """A manifest on disk under a temporary name."""

    temporary: Path
    final: Path
    data: bytes


def write_draft(files: Filesystem, path: Path, manifest: Manifest) -> Draft:
    """Step 4 of a commit."""
    data = encode_manifest(manifest)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest would have {len(data)} bytes, more than {MAX_MANIFEST_BYTES}: use larger chunks, or rebalance"
        )
    directory = path / MANIFEST_DIRECTORY
    draft = Draft(directory / temporary_name(manifest.write_id), directory / manifest_name(manifest.generation), data)
    try:
        files.write_new(draft.temporary, [(0, data)])
    except BaseException:
        _remove(files, draft.temporary)
        raise
    return draft


def publish_draft(files: Filesystem, draft: Draft) -> Manifest:
    """Steps 5 to 7; ConflictError if the generation exists."""
    try:
        try:
            files.publish(draft.temporary, draft.final)
        except FileExistsError as error:
            raise ConflictError(f"{draft.final}: another writer committed this generation first") from error
    finally:
        _remove(files, draft.temporary)
    return decode_manifest(draft.data, str(draft.final))


def _remove(files: Filesystem, path: Path) -> None:
    with contextlib.suppress(StoreError):
        files.remove(path)


def _one(value: Any) -> Any:
    return [value]
