"""The generations of a store: which there are, and reading their manifests and redirect tables. Never writes, never repairs."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from penstock import _core
from penstock.errors import CorruptError, MissingError, NotPublishedError, SnapshotExpiredError
from penstock.store.entries import column
from penstock.store.layout import (
    MANIFEST_DIRECTORY,
    MAX_MANIFEST_BYTES,
    REDIRECT_DIRECTORY,
    generation_of,
    manifest_name,
    redirect_name,
)
from penstock.store.location import storage_of
from penstock.store.manifest import Manifest, RedirectEntry, decode_manifest
from penstock.store.redirect import ENTRY, NOWHERE, Table, decode_redirects, merge
from penstock.store.storage import Location, Storage

__all__ = ["generations", "load_manifest", "load_redirects"]

Loaded = TypeVar("Loaded")


def generations(path: Location | Storage) -> list[int]:
    """The generations that can be opened, oldest first."""
    names = storage_of(path).names(MANIFEST_DIRECTORY)
    return sorted(number for number in map(generation_of, names) if number is not None)


def load_manifest(path: Location | Storage, generation: int | None = None) -> Manifest:
    """The manifest of a generation, the newest unless given. A bad one raises; an older one is never taken in its place."""
    if generation is not None:
        try:
            return _load(path, generation)
        except MissingError:
            there = generations(path)
            if generation in there:
                raise
            raise _absent(path, generation, there) from None
    there = generations(path)
    if not there:
        raise _not_published(path)
    try:
        return _load(path, there[-1])
    except CorruptError as error:
        older = f"; generation {there[-2]} can be opened by name" if len(there) > 1 else ""
        raise CorruptError(f"{error}{older}") from error


def _load(path: Location | Storage, generation: int) -> Manifest:
    storage, name = storage_of(path), f"{MANIFEST_DIRECTORY}/{manifest_name(generation)}"

    def load() -> Manifest:
        manifest = decode_manifest(storage.read(name, MAX_MANIFEST_BYTES), storage.full(name))
        if manifest.generation != generation:
            raise CorruptError(f"{storage.full(name)}: expected generation {generation}, found {manifest.generation}")
        return manifest

    return _tried(storage, load)


def _tried(storage: Storage, load: Callable[[], Loaded]) -> Loaded:
    """What is loaded; it is loaded again where bytes may be damaged on their way."""
    for _ in range(storage.read_tries - 1):
        with contextlib.suppress(CorruptError):
            return load()
    return load()


def _absent(path: Location | Storage, generation: int, there: list[int]) -> MissingError:
    if not there:
        return _not_published(path)
    file = storage_of(path).full(f"{MANIFEST_DIRECTORY}/{manifest_name(generation)}")
    return SnapshotExpiredError(f"{file}: generation {generation} is not there (any more); there are {there[0]} to {there[-1]}")


def _not_published(path: Location | Storage) -> NotPublishedError:
    return NotPublishedError(
        f"{storage_of(path).location}: nothing was ever committed here; a writer may still be at work, or was stopped before its "
        "first commit"
    )


def load_redirects(path: Location | Storage, manifest: Manifest) -> dict[int, Table]:
    """The redirects in force, one table per field number."""
    merged: dict[int, Table] = {}
    storage = storage_of(path)
    for tables in storage.each(partial(_load_tables, storage, manifest.dataset), manifest.redirects):
        for number, table in tables.items():
            merged[number] = merge(merged.get(number, np.empty(0, ENTRY)), table, drop_nowhere=False)
    live = set(column(manifest.chunks, "number").tolist()) if merged else set()
    for number, table in merged.items():
        kept = table[table["chunk"] != NOWHERE]
        if kept.size and (int(kept["id"][-1]) >= manifest.length or not live.issuperset(np.unique(kept["chunk"]).tolist())):
            raise CorruptError(
                f"{storage.location}: a redirect names a record or a chunk that generation {manifest.generation} does not have"
            )
        merged[number] = kept
    return merged


def _load_tables(storage: Storage, dataset: str, entry: RedirectEntry) -> dict[int, Table]:
    name = f"{REDIRECT_DIRECTORY}/{redirect_name(entry.writer, entry.serial)}"

    def load() -> dict[int, Table]:
        data = storage.read(name, entry.size)
        if len(data) != entry.size or _core.crc32c(np.frombuffer(data, np.uint8)) != entry.crc:
            raise CorruptError(
                f"{storage.full(name)}: expected {entry.size} bytes with crc {entry.crc:08x}, found {len(data)} or others"
            )
        return decode_redirects(data, dataset, storage.full(name))

    return _tried(storage, load)
