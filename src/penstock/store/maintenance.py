"""What keeps a store in shape: stats (how full it is), gc, rebalance (live records into full chunks), one more field, verify."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice, pairwise, starmap
from typing import Any

import numpy as np

from penstock.argument import IntArray, shown, whole_number
from penstock.errors import ConflictError, ReadError
from penstock.records import FieldView, Source
from penstock.remote.url import UrlPath
from penstock.schema import Field
from penstock.store.column import Column, make_column
from penstock.store.fragment import Receipt, Target, commit_fragments, discarding, run_tasks, write_fragment
from penstock.store.generation import generations, load_manifest, load_redirects, storage_of
from penstock.store.reader import Store, open_store
from penstock.store.row_map import Residents, live_rows, residents_of
from penstock.store.storage import (
    CHUNK_DIRECTORY,
    MANIFEST_DIRECTORY,
    REDIRECT_DIRECTORY,
    Found,
    Storage,
    as_location,
    generation_of,
    is_data_name,
    is_temporary_name,
)
from penstock.store.writer import Progress, Writer, append_to, grow_store

__all__ = ["Collected", "Problem", "Rebalanced", "StoreStats", "add_field", "gc", "rebalance", "stats", "verify"]


@dataclass(frozen=True)
class StoreStats:
    """How full a store is. ``utilisation`` is live_bytes / stored_bytes; far below 1, a rebalance frees the rest.

    ``field_bytes`` are the stored bytes by field.
    """

    records: int
    generation: int
    chunks: int
    unfull_chunks: int
    redirects: int
    live_bytes: int
    stored_bytes: int
    row_utilisation: float
    field_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def utilisation(self) -> float:
        """Live bytes over stored bytes; 1.0 for an empty store."""
        return self.live_bytes / self.stored_bytes if self.stored_bytes else 1.0


def stats(store: Store) -> StoreStats:
    """Figures of one generation. Of fields with records of varying size, live bytes are taken in proportion to rows."""
    manifest = store.manifest
    redirects = load_redirects(store.path, manifest)
    live = live_rows(manifest, redirects)
    live_bytes = full = 0
    by_number = dict.fromkeys(manifest.numbers.values(), 0)
    fields = storage_of(store.path).each(store.chunks.chunk_fields, range(len(manifest.chunks)))
    for chunk, stored_fields in zip(manifest.chunks, fields, strict=True):
        for number, data_bytes, _ in stored_fields:
            by_number[number] = by_number.get(number, 0) + data_bytes
            live_bytes += data_bytes * live.get((chunk.number, number), 0) // max(1, chunk.rows)
        full += chunk.decoded >= 0.9 * manifest.chunk_bytes or chunk.rows >= 0.9 * manifest.chunk_records
    capacity = sum(chunk.rows for chunk in manifest.chunks)
    return StoreStats(
        manifest.length,
        manifest.generation,
        len(manifest.chunks),
        len(manifest.chunks) - full,
        sum(len(table) for table in redirects.values()),
        live_bytes,
        sum(by_number.values()),
        manifest.length / capacity if capacity else 1.0,
        {name: by_number[number] for name, number in manifest.numbers.items()},
    )


@dataclass(frozen=True)
class Collected:
    """What gc removed (or, in a dry run, would remove): files and their bytes; and the generations that stay."""

    files: tuple[str, ...]
    freed_bytes: int
    kept_generations: tuple[int, ...]


def gc(
    path: str | os.PathLike[str] | UrlPath,
    *,
    keep: int = 10,
    keep_hours: float | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Collected:
    """Remove old generations, and files that no remaining generation names: leftovers of crashed writers among them.

    The newest ``keep`` generations stay, and every one from the oldest on that is younger than ``keep_hours``: 24 on a disk, 168 on
    an object store. A reader on this machine keeps what it has opened; others may find an older generation gone. Other files, too,
    stay until they have been there that long: they may belong to a commit of another host or to a copy under way, neither of
    which may take longer. ``keep_hours=0`` is for a store that no other process writes to or copies.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path)
    >>> pen.gc(path, keep=1).kept_generations
    (1,)
    """
    whole_number("keep", keep, least=1)
    location = as_location(path, storage_options)
    storage = storage_of(location)
    if not generations(storage):
        load_manifest(storage)  # raises, and says why
    claim = storage.claim(single_writer=True)
    try:
        return _collect(storage, keep, 3600 * (storage.keep_hours if keep_hours is None else keep_hours), dry_run)
    finally:
        claim.close()


def _collect(storage: Storage, keep: int, keep_s: float, dry_run: bool) -> Collected:
    now = time.time()
    # Before the manifests: what another writer commits from now on is not in this list.
    data = [file for place in (CHUNK_DIRECTORY, REDIRECT_DIRECTORY) for file in storage.listing(place)]
    manifests = {_last(file): file for file in storage.listing(MANIFEST_DIRECTORY)}
    there = {number: file for name, file in manifests.items() if (number := generation_of(name)) is not None}
    unlisted = storage.unlisted(sorted(there))
    if not there and not unlisted:
        raise ConflictError(f"{storage.location}: all generations that were there are gone: another gc is running; try again")
    young = {number for number, file in there.items() if now - file.modified < keep_s}
    # Without a gap: as long as a generation is there, no later one was collected.
    oldest = min({*sorted(there)[-keep:], *young, *unlisted})
    kept = sorted({number for number in there if number >= oldest} | unlisted)
    named = _named(storage, kept)

    def is_left_over(file: Found) -> bool:
        return now - file.arrived >= keep_s

    old = [file for number, file in there.items() if number < oldest]
    old += [file for name, file in manifests.items() if is_temporary_name(name) and is_left_over(file)]
    loose = [file for file in data if is_data_name(_last(file)) and file.name not in named and is_left_over(file)]
    if not dry_run:
        # The newest name may not be durable yet: its writer may have been killed before it could see to that.
        storage.settle((MANIFEST_DIRECTORY,), is_new=False)
        for file in old:
            storage.remove(file.name)
        storage.settle((MANIFEST_DIRECTORY,), is_new=False)  # manifests are gone for good before what they name goes
        named = _named(storage, [number for number in generations(storage) if number > kept[-1]])  # committed meanwhile
        loose = [file for file in loose if file.name not in named]
        storage.each(lambda file: storage.remove(file.name), loose)
    gone = [*old, *loose]
    return Collected(tuple(storage.full(file.name) for file in gone), sum(file.size for file in gone), tuple(kept))


def _named(storage: Storage, kept: list[int]) -> set[str]:
    named = set()
    for manifest in storage.each(lambda generation: load_manifest(storage, generation), kept):
        named |= {c.file for c in manifest.chunks}
        named |= {r.file for r in manifest.redirects}
    return named


def _last(file: Found) -> str:
    return file.name.rpartition("/")[2]


READ_BYTES = 16 << 20
"""Bytes that are read at a time while a store is rewritten, about."""
LOOK_RECORDS = 1 << 20
"""Records whose sizes are looked at at a time."""


@dataclass(frozen=True)
class Rebalanced:
    """A store before and after it was rewritten."""

    before: StoreStats
    after: StoreStats


def rebalance(
    path: str | os.PathLike[str] | UrlPath,
    *,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    executor: Executor | None = None,
) -> Rebalanced:
    """Rewrite the live records in id order into full chunks, as one new generation.

    Older generations, and their readers, stay as they are; :func:`gc` removes their files later. With an ``executor``, any
    ``concurrent.futures.Executor``, the new chunks are written in its threads, processes or machines: the same ones, in one commit.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path)
    >>> pen.rebalance(path).after.utilisation
    1.0
    """
    location = as_location(path, storage_options)
    with append_to(location, threads=threads, progress=progress, single_writer=single_writer) as writer:
        with open_store(location, generation=writer.generation) as store:
            before = stats(store)
            writer.start_over()
            if executor is not None:
                _rewrite_in_tasks(store, writer, executor, progress)
            else:
                rows = max(1, int(READ_BYTES / max(1, before.live_bytes / max(1, len(store)))))
                for columns in _columns(store, range(len(store)), rows):
                    writer.extend_columns(columns)
        done = writer.commit()
    with open_store(location, generation=done) as store:
        return Rebalanced(before, stats(store))


# Adding a field

FIRST_RECORDS = 1024
"""Records of a field of varying length that are taken at a time."""


def add_field(
    path: str | os.PathLike[str] | UrlPath,
    name: str,
    field: Field,
    values: Any = None,
    *,
    fields: Sequence[str] | None = None,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> int:
    """Add a field to a store, as one new generation, whose number is returned. Other fields are not written again.

    ``values`` has the value of every record: an array, a list, a Ragged, a field of a source (``other["x"]``) or a source of one
    field. Or it is a function, called with one batch of records after another, of the ``fields`` named (all if left out), that
    gives a column of as many values. Without ``values`` all records so far miss the field.

    Older generations, and their readers, stay as they are; a failure publishes nothing. The values are in chunks of their own, and
    the store needs 16 bytes more for each record to find them, until :func:`rebalance` puts them into the chunks of the others.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(5)}, path)
    >>> pen.add_field(path, "square", pen.Field("i8"), lambda batch: batch["x"] ** 2)
    2
    >>> pen.open(path)[3]
    {'x': np.int64(3), 'square': np.int64(9)}
    """
    location = as_location(path, storage_options)
    if not isinstance(field, Field):
        raise TypeError(f"expected a Field, got {shown(field)}")
    if fields is not None and not callable(values):
        raise TypeError("fields= names what a function of records gets, and values is none")
    writer = grow_store(location, {name: field}, threads=threads, progress=progress, single_writer=single_writer)
    with writer, open_store(location, generation=writer.generation) as store:
        writer.fill(name, None if values is None else _values(store, name, field, values, fields))
        return writer.commit()


def _values(store: Store, name: str, field: Field, values: Any, fields: Sequence[str] | None) -> Iterator[Column]:
    """The values of all records, some at a time."""
    rows = max(1, READ_BYTES // max(1, field.stride)) if field.is_fixed else FIRST_RECORDS
    names = list(store.schema) if fields is None else list(fields)
    given = _one_field(values) if isinstance(values, Source) else values
    if callable(values):
        read = sum(stats(store).field_bytes.get(one, 0) for one in names)
        rows = min(rows, max(1, READ_BYTES * len(store) // max(1, read)))
    elif not hasattr(given, "__len__") or isinstance(given, str | bytes | Mapping) or len(given) != len(store):
        what = f"{len(given)} of them" if isinstance(given, Sized) else type(given).__name__
        raise ValueError(f"expected {len(store)} values, one per record, got {what}")
    for low in range(0, len(store), rows):
        high = min(len(store), low + rows)
        some = values(store.read(np.arange(low, high), names)) if callable(values) else given[low:high]
        column = make_column(name, field, some)
        if column.rows != high - low:
            raise ValueError(f"field {name!r}: expected {high - low} values for records {low} to {high - 1}, got {column.rows}")
        yield column


def _one_field(source: Source) -> FieldView:
    if len(source.schema) != 1:
        raise ValueError(f"expected a source of one field, got {list(source.schema)}: pass source[field]")
    return FieldView(source, next(iter(source.schema)))


def _columns(store: Store, ids: range, rows: int) -> Iterator[dict[str, Column]]:
    """Records, ``rows`` at a time."""
    for low in range(ids.start, ids.stop, rows):
        yield store.columns(slice(low, min(ids.stop, low + rows)), list(store.schema))


def _rewrite_in_tasks(store: Store, writer: Writer, executor: Executor, progress: Progress | None) -> None:
    """A task per new chunk, so that the chunks are those of one writer."""
    target = Target.of(writer)
    runs = list(enumerate(starmap(range, pairwise([0, *_chunk_ends(store)]))))
    rewrite = _Rewrite(store, target, len(runs))
    with discarding(target) as receipts:
        for _, receipt in run_tasks(((rewrite, run) for run in runs), executor):
            receipts.append(receipt)
            if progress is not None:
                progress(receipt["rows"], receipt["bytes"])
    commit_fragments(writer, receipts)


@dataclass(frozen=True)
class _Rewrite:
    """What is called in the workers: it is pickled, and opens the store there."""

    store: Store
    target: Target
    tasks: int

    def __call__(self, task: tuple[int, range]) -> Receipt:
        number, ids = task
        pieces = -(-self.target.form.chunk_bytes // READ_BYTES)
        batches = _columns(self.store, ids, max(1, -(-len(ids) // pieces)))
        return write_fragment(self.target, batches, task=number, tasks=self.tasks)


def _chunk_ends(store: Store) -> list[int]:
    """The ids at which one writer would begin a new chunk, and the last one: chunks are as full as they can be."""
    most_bytes, most_rows = store.manifest.chunk_bytes, store.manifest.chunk_records
    ends, first = list[int](), 0
    left = np.empty(0, np.int64)  # sizes of the records from ``first`` on that were looked at
    for low in range(0, len(store), LOOK_RECORDS):
        high = min(len(store), low + LOOK_RECORDS)
        left = np.concatenate([left, _sizes(store, low, high)])
        filled = np.cumsum(left)
        start = 0
        while start < left.size:
            before = int(filled[start - 1]) if start else 0
            fits = max(1, min(int(np.searchsorted(filled, before + most_bytes, side="right")) - start, most_rows))
            if start + fits >= left.size and high < len(store):
                break  # the next records may fit too
            start += fits
            ends.append(first + start)
        left, first = left[start:], first + start
    return ends


def _sizes(store: Store, low: int, high: int) -> IntArray:
    """The decoded bytes of records [low, high), as a writer counts them."""
    schema = store.schema
    sizes = np.full(high - low, sum(one.stride for one in schema.values() if one.is_fixed), np.int64)
    for name, one in schema.items():
        if not one.is_fixed:
            sizes += store.lengths(name, np.arange(low, high)) * one.dtype.itemsize
    return sizes


MOST_CHUNKS = 16
"""Chunks of a task on an executor, at most: worth opening the store for."""
FEWEST_TASKS = 32
MOST_RECORDS = 1 << 16
"""Records of a field that are decoded at a time, at most,"""
MOST_BYTES = 64 << 20
"""and their bytes."""
MOST_PROBLEMS = 100
"""Records of a chunk that are named because they do not decode, at most: a hostile store may have any number of them."""


@dataclass(frozen=True)
class Problem:
    """Something wrong in a store: where, and what."""

    file: str
    what: str


def verify(
    path: str | os.PathLike[str] | UrlPath,
    *,
    generation: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    decode: bool = True,
) -> list[Problem]:
    """Check every index and page of a generation and decode every record; returns what is wrong, naming file, field and record (or
    the rows of a page), or an empty list: then every record can be read as :func:`~penstock.open` reads it unless told otherwise.

    Right checksums say that bytes are as they were written, not that a writer, or a stranger, wrote what can be read. Where it is
    known who wrote the store, ``decode=False`` stops there. A chunk needs 64 MiB
    of memory, or as much as its largest record. With an ``executor``, any ``concurrent.futures.Executor``, runs of chunks are
    checked in its threads, processes or machines.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path)
    >>> pen.verify(path)
    []
    """
    location = as_location(path, storage_options)
    try:
        store = open_store(location, generation=generation)
    except ReadError as error:
        return [Problem(str(location), str(error))]
    with store:
        chunks = store.manifest.chunks
        most = 1 if executor is None else max(1, min(MOST_CHUNKS, len(chunks) // FEWEST_TASKS))
        runs = [range(low, min(len(chunks), low + most)) for low in range(0, len(chunks), most)]
        try:
            lives = residents_of(store.manifest, load_redirects(location, store.manifest), runs) if decode else [{} for _ in runs]
        except ReadError as error:
            return [Problem(str(location), str(error))]
        found: dict[int, list[Problem]] = {}
        for run, problems in run_tasks(((_Check(store, here), run) for here, run in zip(lives, runs, strict=True)), executor):
            found[run.start] = problems
            if progress is not None:
                for place in run:
                    progress(chunks[place].rows, chunks[place].size)
        return [problem for low in sorted(found) for problem in found[low]]


@dataclass(frozen=True)
class _Check:
    """What is called in the workers: it is pickled, and opens the store there. Chunks without residents are not decoded."""

    store: Store
    lives: Mapping[int, Residents]

    def __call__(self, places: range) -> list[Problem]:
        return [problem for place in places for problem in _check_chunk(self.store, place, self.lives.get(place, Residents()))]


def _check_chunk(store: Store, place: int, lives: Residents) -> list[Problem]:
    chunk = store.manifest.chunks[place]
    file = f"{store.path}/{chunk.file}"
    try:
        bad = store.chunks.verify_chunk(place)
        found = [what for _, what in bad]
        damaged = {number for number, _ in bad}  # their records are not tried: whatever is wrong with them comes of that
        with store.chunks.hold_chunk(place):
            wrong = list(islice(_wrong_records(store, place, lives, damaged), MOST_PROBLEMS + 1))
        found += wrong[:MOST_PROBLEMS] + ["more records cannot be read"] * (len(wrong) > MOST_PROBLEMS)
    except ReadError as error:
        found = [str(error)]
    return [Problem(file, what.removeprefix(f"{file}: ")) for what in found]


def _wrong_records(store: Store, place: int, lives: Residents, damaged: set[int]) -> Iterator[str]:
    """What is wrong with records whose pages are right."""
    several = _told_apart(store, place)
    for name, number in store.manifest.numbers.items():
        if number not in damaged:
            for ids in lives.ids(number, MOST_RECORDS):
                here = ids[store.chunks.chunks_of(name, ids) == place]
                yield from _wrong_among(store, name, here if number in several else here[:1])
                if here.size and number not in several:
                    break


def _told_apart(store: Store, place: int) -> set[int]:
    """The fields of a chunk, which must be held, whose records may differ: they have bytes in the file. One record of any other
    field tells of all, of which a file of a few hundred bytes may claim to have four billion.
    """
    chunk = store.manifest.chunks[place]
    has_room = chunk.size >= 4 * chunk.rows  # for ends or shapes, which are 4 bytes a row or more
    fields = store.chunks.native().chunk_fields(place)
    return {number for number, stored_bytes, has_validity in fields if stored_bytes or has_validity or has_room}


def _wrong_among(store: Store, name: str, ids: IntArray) -> Iterator[str]:
    """What is wrong with each of these records of a field that cannot be read; found by halves."""
    left = [ids]
    while left:
        part = left.pop()
        try:
            for some in _parts(store, name, part):
                store.chunks.read_field(name, some, {})
        except ReadError as error:
            if part.size > 1:
                left += [part[part.size // 2 :], part[: part.size // 2]]
            else:
                yield _in_words(error, name, int(part[0]))


def _parts(store: Store, name: str, ids: IntArray) -> Iterator[IntArray]:
    """Ids, as many at a time as fit into the memory that there is for them."""
    field = store.manifest.fields[name]
    sizes = np.full(ids.size, field.stride if field.is_fixed else 0, np.int64)
    if not field.is_fixed and ids.size:
        sizes = store.chunks.measure(name, ids)
    ends = np.cumsum(np.maximum(sizes, 0))
    low = 0
    while low < ids.size:
        before = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + MOST_BYTES, side="right")))
        yield ids[low:high]
        low = high


def _in_words(error: ReadError, name: str, record: int) -> str:
    text = str(error)
    return text if f"record {record}" in text else f"field {name!r}, record {record}: {text}"
