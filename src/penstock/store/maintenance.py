"""The figures that say how full a store is, and gc, which removes what no generation needs."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.argument import whole_number
from penstock.errors import ConflictError
from penstock.remote.url import UrlPath
from penstock.store.format import (
    CHUNK_DIRECTORY,
    MANIFEST_DIRECTORY,
    REDIRECT_DIRECTORY,
    as_location,
    generation_of,
    is_data_name,
    is_temporary_name,
)
from penstock.store.generation import generations, load_manifest, load_redirects, storage_of
from penstock.store.reader import Store
from penstock.store.row_map import live_rows
from penstock.store.storage import Found, Storage

__all__ = ["Collected", "Stats", "gc", "stats"]


@dataclass(frozen=True)
class Stats:
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


def stats(store: Store) -> Stats:
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
    return Stats(
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
    stay until they have been there for so long: they may belong to a commit of another host or to a copy under way, neither of
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
        raise ConflictError(f"{storage.location}: all generations that were there are gone: another gc is at work; try again")
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
    """The files that generations need."""
    named = set()
    for manifest in storage.each(lambda generation: load_manifest(storage, generation), kept):
        named |= {c.file for c in manifest.chunks}
        named |= {r.file for r in manifest.redirects}
    return named


def _last(file: Found) -> str:
    return file.name.rpartition("/")[2]
