"""The generations of a store: which there are, what each holds, and how the next one is published. Never repairs.

Which fields may miss values stands in the manifest, except in those of version 1 of penstock. A chunk says it in its entries: a
field with missing values has a validity array, and one that is not there misses all. So the last bytes of every chunk are enough.
"""

import contextlib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from penstock.errors import (
    CorruptError,
    MissingError,
    NotPublishedError,
    ObjectChangedError,
    ReadError,
    SnapshotExpiredError,
    StoreError,
)
from penstock.native import _core
from penstock.remote.url import UrlPath
from penstock.store.bucket import ObjectStorage
from penstock.store.chunk import ENTRY_BYTES, TAIL_BYTES, parse_fields
from penstock.store.local import LocalStorage
from penstock.store.manifest import ChunkEntry, Manifest, RedirectEntry, decode_manifest, encode_manifest, values_of
from penstock.store.row_map import ENTRY, NOWHERE, Table, decode_redirects, merge
from penstock.store.storage import (
    MANIFEST_DIRECTORY,
    MAX_MANIFEST_BYTES,
    Location,
    Storage,
    generation_of,
    manifest_file,
    temporary_name,
)

__all__ = [
    "Draft",
    "generations",
    "load_manifest",
    "load_redirects",
    "nullable_fields",
    "nullable_numbers",
    "publish_draft",
    "storage_of",
    "write_draft",
]

Loaded = TypeVar("Loaded")


def storage_of(location: Location | Storage) -> Storage:
    """The files of the store at a place; a storage is its own."""
    if isinstance(location, Storage):
        return location
    return ObjectStorage(location) if isinstance(location, UrlPath) else LocalStorage(location)


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
        raise _absent(path, None, there)
    try:
        return _load(path, there[-1])
    except CorruptError as error:
        older = f"; generation {there[-2]} can be opened by name" if len(there) > 1 else ""
        raise CorruptError(f"{error}{older}") from error


def _load(path: Location | Storage, generation: int) -> Manifest:
    storage, name = storage_of(path), manifest_file(generation)

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


def _absent(path: Location | Storage, generation: int | None, there: list[int]) -> MissingError:
    if generation is None or not there:
        return NotPublishedError(
            f"{storage_of(path).location}: nothing was ever committed here; a writer may still be active, or was stopped before "
            "its first commit"
        )
    file = storage_of(path).full(manifest_file(generation))
    return SnapshotExpiredError(f"{file}: generation {generation} does not exist (any more); there are {there[0]} to {there[-1]}")


def load_redirects(path: Location | Storage, manifest: Manifest) -> dict[int, Table]:
    """The redirects in force, one table per field number."""
    merged: dict[int, Table] = {}
    storage = storage_of(path)
    for tables in storage.each(partial(_load_tables, storage, manifest.dataset), manifest.redirects):
        for number, table in tables.items():
            merged[number] = merge(merged.get(number, np.empty(0, ENTRY)), table, drop_nowhere=False)
    live = set(values_of(manifest.chunks, "number").tolist()) if merged else set()
    for number, table in merged.items():
        kept = table[table["chunk"] != NOWHERE]
        if kept.size and (int(kept["id"][-1]) >= manifest.length or not live.issuperset(np.unique(kept["chunk"]).tolist())):
            raise CorruptError(
                f"{storage.location}: a redirect names a record or a chunk that generation {manifest.generation} does not have"
            )
        merged[number] = kept
    return merged


def _load_tables(storage: Storage, dataset: str, entry: RedirectEntry) -> dict[int, Table]:
    name = entry.file

    def load() -> dict[int, Table]:
        data = storage.read(name, entry.size)
        if len(data) != entry.size or _core.crc32c(np.frombuffer(data, np.uint8)) != entry.crc:
            raise CorruptError(
                f"{storage.full(name)}: expected {entry.size} bytes with crc {entry.crc:08x}, found {len(data)} or others"
            )
        return decode_redirects(data, dataset, storage.full(name))

    return _tried(storage, load)


def nullable_numbers(location: Location | Storage, manifest: Manifest) -> frozenset[int]:
    """The numbers of the fields of which a value is missing, or was; as the manifest says, or else as the chunks do."""
    if manifest.found_nullable is not None:
        return manifest.found_nullable
    storage, numbers = storage_of(location), frozenset(manifest.numbers.values())
    whole = set(values_of(manifest.segments, "chunk").tolist())
    found: set[int] = set()
    fields = storage.each(partial(_chunk_fields, storage, len(numbers), manifest.dataset), manifest.chunks)
    for chunk, entries in zip(manifest.chunks, fields, strict=True):
        if entries is not None:
            found |= {number for number, has_validity in entries.items() if has_validity}
            found |= numbers - set(entries) if chunk.number in whole else set()
    return frozenset(found & numbers)


def nullable_fields(manifest: Manifest, found: Set[int]) -> frozenset[str]:
    """The names of all nullable fields, given what was found."""
    return frozenset(name for name, number in manifest.numbers.items() if number in manifest.declared_nullable or number in found)


def _chunk_fields(storage: Storage, num_fields: int, dataset: str, chunk: ChunkEntry) -> dict[int, bool] | None:
    """Whether the fields of a chunk have validity arrays. None for a chunk that is damaged or gone: its records cannot be read, so
    that they do not matter here; reading them says why.
    """
    name = chunk.file
    for _ in range(storage.read_tries):
        try:
            count = min(chunk.size, TAIL_BYTES + num_fields * ENTRY_BYTES)
            return parse_fields(storage.read_end(name, chunk.size, count), chunk.size, chunk.crc, dataset)
        except CorruptError:
            continue
        except (MissingError, ObjectChangedError):
            return None
    return None


@dataclass(frozen=True)
class Draft:
    """A manifest before it has its name."""

    temporary: str
    final: str
    data: bytes
    manifest: Manifest


def write_draft(files: Storage, manifest: Manifest) -> Draft:
    """Step 4 of a commit. What no reader would take, such as a counter beyond its limit, is refused here."""
    data = encode_manifest(manifest)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest would have {len(data)} bytes, more than {MAX_MANIFEST_BYTES}: use larger chunks, or rebalance"
        )
    temporary = f"{MANIFEST_DIRECTORY}/{temporary_name(manifest.write_id)}"
    final = manifest_file(manifest.generation)
    try:
        decoded = decode_manifest(data, files.full(final))
    except ReadError as error:
        raise StoreError(f"{error}; nothing was published: convert the store into a new one") from error
    files.draft(temporary, data)
    return Draft(temporary, final, data, decoded)


def publish_draft(files: Storage, draft: Draft, needs: Mapping[str, int]) -> None:
    """Steps 5 to 7; ConflictError if the generation exists, or a file that it needs does not."""
    files.publish(draft.temporary, draft.final, draft.data, needs)
