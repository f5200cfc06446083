"""Writer: append, update and delete in transactions. Nothing is visible before a commit, and everything at once after it.

A commit is the exclusive creation of the next manifest::

    1  write the new chunk files (new names, never replaced), fsync each
    2  write the new redirect file, if any, fsync it
    3  fsync chunk/ and redirect/            names are durable before anything points at them
    4  write manifest/.tmp-<write id>, fsync it
    5  see that the new files are all there; link it to manifest/<G + 1>
                                             fails if another writer was first: ConflictError
    6  fsync manifest/                       only now is the commit acknowledged
    7  remove the temporary name

On an object store steps 3, 4, 6 and 7 are not needed, and step 5 is a put-if-absent; see bucket.py.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import as_ids, byte_size, set_whole, whole_number
from penstock.errors import ConflictError, DurabilityError, MissingError, StoreError
from penstock.native import _core
from penstock.remote.url import UrlPath
from penstock.schema import Field, Schema
from penstock.store.chunk import ChunkWriter, Placement, Progress
from penstock.store.column import Column, make_column, missing_column
from penstock.store.generation import (
    generations,
    load_manifest,
    load_redirects,
    nullable_numbers,
    publish_draft,
    storage_of,
    write_draft,
)
from penstock.store.manifest import ChunkEntry, Manifest, RedirectEntry, decode_metadata, encode_metadata
from penstock.store.row_map import RowMap, encode_redirects
from penstock.store.storage import (
    CHUNK_DIRECTORY,
    MANIFEST_DIRECTORY,
    REDIRECT_DIRECTORY,
    Claim,
    Location,
    Storage,
    as_location,
    new_identity,
    redirect_file,
)

__all__ = ["ChunkLimits", "Progress", "Writer", "append_to", "begin_store", "create", "grow_store"]

MAX_REDIRECT_FILES = 8
MAX_REBASES = 100
MAX_FIELDS = 4096


class Writer:
    """A writer of a store. Not thread-safe; use it in a ``with`` block: leaving it commits, an exception publishes nothing.

    ``threads`` chunks are encoded and written at a time; ids and files are the same for any number of them.

    On a disk there is one writer at a time. On an object store there may be several: if another one commits first, a transaction
    that only appends goes behind its records, with other ids than ``extend`` gave (see ``last_range``); any other transaction
    raises ConflictError.
    """

    def __init__(
        self,
        files: Storage,
        base: Manifest,
        claim: Claim,
        *,
        threads: int,
        progress: Progress | None = None,
        is_new: bool = False,
        added: frozenset[int] = frozenset(),
    ) -> None:
        """``added`` are the numbers of fields of ``base`` that no generation has yet."""
        self._files, self._base, self._claim, self._added = files, base, claim, added
        whole_number("threads", threads, least=1, most=256)
        self._chunks = ChunkWriter(files, base, threads=threads, progress=progress)
        self._is_new = is_new
        self._poison: str | None = None
        self._closed = False
        self._redirects = load_redirects(files, base)
        self._last_range: range | None = None
        self._begin()

    # What the user calls

    def __len__(self) -> int:
        return self._row_map.length

    def __bool__(self) -> bool:
        return True  # an empty store has a writer too

    @property
    def generation(self) -> int:
        """The generation committed last; 0 before the first commit of a new store."""
        return 0 if self._is_new else self._base.generation

    @property
    def location(self) -> Location:
        return self._files.location

    @property
    def base(self) -> Manifest:
        """The generation that this transaction changes."""
        return self._base

    @property
    def identity(self) -> str:
        """The writer's part of the names of its files."""
        return self._chunks.identity

    @property
    def last_range(self) -> range | None:
        """The ids that the last commit gave to the records it appended; None if it also changed or removed records."""
        return self._last_range

    @property
    def metadata(self) -> Any:
        """The metadata of the next commit: a dict of JSON values, to be changed as you like. ``abort`` takes changes back."""
        return self._metadata

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        self._check()
        self._metadata = decode_metadata(encode_metadata(value))

    def extend(self, batch: Mapping[str, Any]) -> range:
        """Append records: a dict with a column per field. Fields left out are missing. Returns the new ids.

        On an object store the ids are those the records get if no other writer commits first.
        """
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
        return self._row_map.append(self._place(dict(sorted(columns.items()))))

    def append(self, record: Mapping[str, Any]) -> int:
        """Append one record; a field left out or None is missing. Returns its id."""
        return self.extend({name: [value] for name, value in record.items()})[0]

    def update(self, ids: npt.ArrayLike, batch: Mapping[str, Any]) -> None:
        """Replace the given fields of records; other fields and all ids stay. The last of several values for one id wins."""
        self._check()
        wanted = as_ids(ids, len(self))
        columns = self._columns(batch)
        rows = next(iter(columns.values())).rows
        if rows != wanted.size:
            raise ValueError(f"expected {wanted.size} records, one per id, got {rows}")
        if rows:
            self._row_map.redirect(columns, wanted, self._place(dict(sorted(columns.items()))))
            self._changed, self._only_appends = True, False

    def fill(self, name: str, columns: Iterable[Column] | None) -> None:
        """Give all records their values of a field that was added, in the order of their ids; None: all of them miss it."""
        self._check()
        number, placements = self._base.numbers[name], list[Placement]()
        for column in columns or ():
            placements += self._place({number: _without_needless_presence(column)})
        if columns is None:
            self._missing |= {number} if len(self) else set()
        else:
            self._row_map.fill(number, placements)
        self._changed, self._only_appends = True, False

    def delete(self, ids: npt.ArrayLike) -> dict[int, int]:
        """Remove records. The last records take the free ids, so that ids stay dense: returns {old id: new id} of those."""
        self._check()
        gone = as_ids(ids, len(self))
        if gone.size == 0:
            return {}
        self._changed, self._only_appends = True, False
        return self._row_map.delete(gone, sorted(self._base.numbers.values()))

    def commit(self) -> int:
        """Publish everything since the last commit, durably; returns the generation. Does nothing if nothing changed."""
        self._check()
        text = self._metadata_text()  # before anything is written, so that a mistake can be mended
        with self._or_discard():
            self._chunks.seal_all()
            if text != self._base.metadata:
                self._changed, self._only_appends = True, False
            if self._changed or self._is_new:
                self._publish_or_rebase()
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
            self._chunks.close(wait=self._is_own_process())
            self._claim.close()

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
        self._row_map = RowMap(self._base.length, self._base.segments, self._redirects)
        self._chunks.begin(self._base.next_chunk)
        self._missing: set[int] = set()  # fields of which a record of this transaction misses the value
        self._metadata = decode_metadata(self._base.metadata)
        self._changed = False
        self._rewrites = False
        self._only_appends = True

    def start_over(self) -> None:
        """Begin a transaction that replaces all records (rebalance)."""
        self._row_map = RowMap(0, (), {})
        self._rewrites = self._changed = True
        self._only_appends = False

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
        self._chunks.stop()
        self._files.discard(self._chunks.made)
        self._begin()

    def _check(self) -> None:
        self._claim.check_process()
        if self._closed:
            raise ValueError("the writer is closed")
        if self._poison is not None:
            raise DurabilityError(
                0, f"this writer failed before and cannot be trusted: {self._poison}; reopen the store", str(self._files.location)
            )

    def _is_own_process(self) -> bool:
        try:
            self._claim.check_process()
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
        made = {name: make_column(name, self._base.fields[name], data) for name, data in batch.items()}
        columns = {self._base.numbers[name]: _without_needless_presence(column) for name, column in made.items()}
        lengths = {name: columns[self._base.numbers[name]].rows for name in batch}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all fields must have the same number of records, got {lengths}")
        return columns

    def _place(self, columns: Mapping[int, Column]) -> list[Placement]:
        with self._or_discard():
            placements = self._chunks.place(columns)
        self._missing |= {n for n, column in columns.items() if column.present is not None and not column.present.all()}
        self._changed |= bool(placements)
        return placements

    # Chunks that one writer writes and another one commits; see fragment.py

    def release_chunks(self) -> tuple[ChunkEntry, ...]:
        """Write what was appended and give its chunks away, in order: they are no longer this writer's to remove."""
        self._check()
        with self._or_discard():
            self._chunks.seal_all()
            self._files.settle((CHUNK_DIRECTORY,), is_new=False)
        given = tuple(entry for _, entry in sorted(self._chunks.entries.items()))
        self._begin()
        return given

    def keep_chunks(self) -> list[ChunkEntry]:
        """The chunks of this transaction that were written since the last call. They stay even if it ends without a commit."""
        kept: list[ChunkEntry] = []
        while self._chunks.fresh:  # threads add to it
            kept.append(self._chunks.fresh.pop(0))
            self._chunks.made.remove(kept[-1].file)
        return kept

    def adopt_chunks(self, chunks: Sequence[ChunkEntry], missing: Iterable[int]) -> range:
        """Append the records of chunks of this data set that others have written; values are missing in those fields."""
        self._check()
        self._missing |= set(missing)
        numbered = {number: replace(chunk, number=number) for number, chunk in enumerate(chunks, self._chunks.next_chunk)}
        self._chunks.entries |= numbered
        self._chunks.next_chunk += len(numbered)
        self._changed |= bool(numbered)
        return self._row_map.append(Placement(number, 0, chunk.rows) for number, chunk in numbered.items())

    # A commit

    def _publish_or_rebase(self) -> None:
        """Publish; a transaction that only appends is put behind what another writer committed first."""
        for tries in range(MAX_REBASES):
            try:
                return self._publish()
            except ConflictError:
                if not self._files.many_writers or not self._only_appends or self._is_new:
                    raise
            self._files.pause(tries)
            self._rebase()
        self._publish()

    def _rebase(self) -> None:
        """Put the records of this transaction behind the newest generation: other ids, the same chunks under other numbers."""
        location, base = self._files.location, self._base
        try:
            newest = load_manifest(self._files, self._files.newest_generation(base.generation))
        except MissingError as error:
            raise ConflictError(f"{location}: generation {base.generation} is gone; reopen the store") from error
        if (newest.dataset, newest.fields, newest.numbers) != (base.dataset, base.fields, base.numbers):
            what = "another data set is here now" if newest.dataset != base.dataset else "another writer added a field"
            raise ConflictError(f"{location}: {what}; reopen the store, and write these records again")
        redirects = self._redirects if newest.redirects == base.redirects else load_redirects(self._files, newest)
        shift = newest.next_chunk - base.next_chunk
        own = self._row_map.segments[len(base.segments) :]
        self._row_map = RowMap(newest.length, newest.segments, redirects)
        self._row_map.append(Placement(segment.chunk + shift, segment.first_row, segment.count) for segment in own)
        self._chunks.renumber(shift)
        self._base, self._redirects = newest, redirects
        self._metadata = decode_metadata(newest.metadata)

    def _publish(self) -> None:
        redirects = self._write_redirects()
        self._files.settle((CHUNK_DIRECTORY, REDIRECT_DIRECTORY), is_new=self._is_new)
        if not self._files.is_current(self.generation, self._base.digest):
            raise ConflictError(f"{self._files.location}: another writer committed generation {self.generation + 1} meanwhile")
        before = frozenset[int]() if self._rewrites else nullable_numbers(self._files, self._base) - self._added
        manifest = Manifest(
            dataset=self._base.dataset,
            generation=self.generation + 1,
            parent=None if self._is_new else self._base.digest,
            write_id=new_identity(),
            length=self._row_map.length,
            fields=self._base.fields,
            numbers=self._base.numbers,
            chunk_bytes=self._base.chunk_bytes,
            chunk_records=self._base.chunk_records,
            next_chunk=self._chunks.next_chunk,
            chunks=self._named_chunks(),
            segments=tuple(self._row_map.segments),
            redirects=redirects,
            declared_nullable=self._base.declared_nullable,
            found_nullable=before | self._missing,
            metadata=self._metadata_text(),
        )
        draft = write_draft(self._files, manifest)
        in_force = self._row_map.whole_tables()
        # From here on the manifest may exist, whatever interrupts us: what it names is no longer ours to remove.
        made, self._chunks.made = self._chunks.made, []
        appended = self._base.length
        try:
            publish_draft(self._files, draft, self._needs(manifest))
        except ConflictError:
            self._chunks.made = made
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # a request may have been left behind, and may still be obeyed
                self._poison = f"{type(error).__name__} came while a commit was under way"
            raise
        self._base = draft.manifest
        self._last_range = range(appended, self._base.length) if self._only_appends else None
        self._is_new, self._added = False, frozenset()
        self._redirects = in_force
        self._begin()

    def _needs(self, manifest: Manifest) -> dict[str, int]:
        """The files that only this generation names, with their sizes."""
        chunks = (chunk for chunk in manifest.chunks if chunk.number in self._chunks.entries)
        redirects = (entry for entry in manifest.redirects if entry not in self._base.redirects)
        return {chunk.file: chunk.size for chunk in chunks} | {entry.file: entry.size for entry in redirects}

    def _metadata_text(self) -> str:
        """The metadata as JSON, to the letter what it was if nothing was changed."""
        text = encode_metadata(self._metadata)
        return self._base.metadata if text == encode_metadata(decode_metadata(self._base.metadata)) else text

    def _write_redirects(self) -> tuple[RedirectEntry, ...]:
        changed = self._row_map.changed_tables()
        kept = () if self._rewrites else self._base.redirects
        if not changed:
            return kept
        if len(kept) >= MAX_REDIRECT_FILES:
            changed, kept = self._row_map.whole_tables(), ()
            if not changed:
                return ()
        data = encode_redirects(self._base.dataset, changed)
        writer, serial = self._chunks.identity, self._chunks.next_serial()
        name = redirect_file(writer, serial)
        self._chunks.made.append(name)
        self._files.write_new(name, [(0, data)])
        return (*kept, RedirectEntry(writer, serial, len(data), _core.crc32c(np.frombuffer(data, np.uint8))))

    def _named_chunks(self) -> tuple[ChunkEntry, ...]:
        """The chunks this generation still refers to."""
        tables = self._row_map.whole_tables()
        used = {segment.chunk for segment in self._row_map.segments}.union(
            *(set(np.unique(t["chunk"]).tolist()) for t in tables.values())
        )
        older = {entry.number: entry for entry in self._base.chunks}
        return tuple(entry for number, entry in sorted({**older, **self._chunks.entries}.items()) if number in used)


def _without_needless_presence(column: Column) -> Column:
    """Batches of nullable fields say what is present even if everything is; a chunk need not."""
    return replace(column, present=None) if column.present is not None and column.present.all() else column


DEFAULT_CHUNK_BYTES = "64MiB"
DEFAULT_CHUNK_RECORDS = 2**24


def create(
    path: str | os.PathLike[str] | UrlPath,
    fields: Mapping[str, Field],
    *,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Writer:
    """Create a new store and return its writer. Nothing is published before the first commit.

    Fields with ``nullable=True`` may miss values; any other field becomes nullable with the first commit in which one is missing.
    ``metadata`` is a small JSON object about the data (class names, tokenizer, origin), which ``open(path).metadata`` gives back.

    ``path`` may be the URL of an object store; ``storage_options`` are then credentials, region and endpoint. A server that
    cannot create an object only if it is absent is refused, unless ``single_writer`` promises that there is no other writer.

    >>> import tempfile, penstock as pen
    >>> path = tempfile.mkdtemp() + "/train.pen"
    >>> with pen.create(path, {"x": pen.Field("f4", (3,)), "caption": pen.Field.text()}) as out:
    ...     out.extend({"x": [[1, 2, 3], [4, 5, 6]], "caption": ["one", "two"]})
    range(0, 2)
    >>> pen.open(path)[1]["caption"]
    'two'
    """
    layout = ChunkLimits(chunk_bytes, chunk_records)
    return begin_store(
        as_location(path, storage_options),
        fields,
        layout,
        dataset=new_identity(),
        threads=threads,
        progress=progress,
        single_writer=single_writer,
        metadata=metadata,
    )


@dataclass(frozen=True)
class ChunkLimits:
    """When a chunk is full: its decoded bytes, or its records, whichever comes first."""

    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES
    chunk_records: int = DEFAULT_CHUNK_RECORDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_bytes", byte_size("chunk_bytes", self.chunk_bytes, least=4096))
        set_whole(self, "chunk_records", least=1, most=2**32 - 1)

    @property
    def size(self) -> int:
        return int(self.chunk_bytes)


def begin_store(
    location: Location,
    fields: Mapping[str, Field],
    layout: ChunkLimits,
    *,
    dataset: str,
    threads: int = 2,
    progress: Progress | None = None,
    single_writer: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Writer:
    """The writer of a new store with an identity that is known already: chunks of it may have been written before."""
    schema, text = Schema.make(fields), encode_metadata(metadata or {})
    whole_number("threads", threads, least=1, most=256)
    storage = storage_of(location)
    storage.prepare()
    claim = storage.claim(single_writer=single_writer)
    try:
        if generations(storage):
            raise StoreError(f"{location}: a store exists already; open it with mode='a', or remove it")
        base = Manifest(
            dataset=dataset,
            generation=0,
            parent=None,
            write_id=new_identity(),
            length=0,
            fields={name: field.with_nullable(False) for name, field in schema.fields.items()},
            numbers=dict(schema.numbers),
            chunk_bytes=layout.size,
            chunk_records=layout.chunk_records,
            next_chunk=0,
            chunks=(),
            segments=(),
            redirects=(),
            declared_nullable=frozenset(schema.numbers[name] for name, field in schema.fields.items() if field.nullable),
            found_nullable=frozenset(),
            metadata=text,
        )
        return Writer(storage, base, claim, threads=threads, progress=progress, is_new=True)
    except BaseException:
        claim.close()
        raise


def append_to(
    path: str | os.PathLike[str] | UrlPath,
    *,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> Writer:
    """A writer on the newest generation of a store; ``storage_options`` and ``single_writer`` are those of :func:`create`."""
    return grow_store(as_location(path, storage_options), {}, threads=threads, progress=progress, single_writer=single_writer)


def grow_store(
    location: Location,
    fields: Mapping[str, Field],
    *,
    threads: int = 2,
    progress: Progress | None = None,
    single_writer: bool = False,
) -> Writer:
    """A writer on the newest generation of a store, to which its next commit adds fields, if it changes anything."""
    storage = storage_of(location)
    storage.names(MANIFEST_DIRECTORY)  # raises where there is no store, before a lock is made there
    claim = storage.claim(single_writer=single_writer)
    try:
        base, added = _with_fields(location, load_manifest(storage), fields)
        return Writer(storage, base, claim, threads=threads, progress=progress, added=added)
    except BaseException:
        claim.close()
        raise


def _with_fields(location: Location, base: Manifest, fields: Mapping[str, Field]) -> tuple[Manifest, frozenset[int]]:
    """A generation as if it had more fields, and the numbers of those. Its chunks have none of them."""
    if not fields:
        return base, frozenset()
    there = [name for name in fields if name in base.fields]
    if there:
        raise ValueError(f"{location}: there is a field {there[0]!r} already; open(path, 'a') and update() changes values")
    Schema.make({**base.fields, **fields})
    first = max(base.numbers.values()) + 1
    numbers = {name: number for number, name in enumerate(fields, first)}
    if first + len(fields) > MAX_FIELDS:
        raise ValueError(f"{location}: fields have numbers below {MAX_FIELDS}, and the last one has {first - 1}: convert the store")
    declared = frozenset(numbers[name] for name, field in fields.items() if field.nullable)
    plain = {name: field.with_nullable(False) for name, field in fields.items()}
    grown = replace(
        base, fields=base.fields | plain, numbers=base.numbers | numbers, declared_nullable=base.declared_nullable | declared
    )
    return grown, frozenset(numbers.values())
