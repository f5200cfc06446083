"""Which fields of a generation may have missing values, found out from its chunks where the manifest does not say it.

Manifests of version 1 of penstock do not say it. A chunk does, in its entries: a field with missing values has a validity array,
and one that is not there misses all. So the last bytes of every chunk are enough.
"""

from collections.abc import Set
from functools import partial

from penstock.errors import CorruptError, MissingError, ObjectChangedError
from penstock.store.chunk import ENTRY_BYTES, TAIL_BYTES, parse_fields
from penstock.store.entries import column
from penstock.store.layout import CHUNK_DIRECTORY, chunk_name
from penstock.store.location import storage_of
from penstock.store.manifest import ChunkEntry, Manifest
from penstock.store.storage import Location, Storage

__all__ = ["nullable_fields", "nullable_numbers"]


def nullable_numbers(location: Location | Storage, manifest: Manifest) -> frozenset[int]:
    """The numbers of the fields of which a value is missing, or was; as the manifest says, or else as the chunks do."""
    if manifest.found_nullable is not None:
        return manifest.found_nullable
    storage, numbers = storage_of(location), frozenset(manifest.numbers.values())
    whole = set(column(manifest.segments, "chunk").tolist())
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
    that they do not matter here; whoever reads them is told why.
    """
    name = f"{CHUNK_DIRECTORY}/{chunk_name(chunk.writer, chunk.serial)}"
    for _ in range(storage.read_tries):
        try:
            count = min(chunk.size, TAIL_BYTES + num_fields * ENTRY_BYTES)
            return parse_fields(storage.read_end(name, chunk.size, count), chunk.size, chunk.crc, dataset)
        except CorruptError:
            continue
        except (MissingError, ObjectChangedError):
            return None
    return None
