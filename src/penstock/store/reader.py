"""Store: one generation of a data set, open for reading. It sees that generation for its whole life."""

import contextlib
import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import MissingError
from penstock.index import as_ids
from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Source, masked
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.schema import Field
from penstock.store.chunk_reader import ChunkReader, FixedRecords, Reading
from penstock.store.column import Column, as_batch
from penstock.store.format import Location, as_location
from penstock.store.generation import generations, load_manifest, nullable_fields, nullable_numbers, storage_of
from penstock.store.manifest import Manifest, values_of
from penstock.store.manifest_json import decode_metadata
from penstock.system import file_versions

__all__ = ["Store", "ZeroCopy", "open_store"]


class Store(Source):
    """One generation of a record store; see :class:`~penstock.Source` for how it is read.

    ``manifest`` and ``chunks`` are for maintenance: what the generation is made of, and its chunks one by one.
    """

    def __init__(self, path: Location, manifest: Manifest, how: Reading, found_nullable: frozenset[int] | None = None) -> None:
        """``found_nullable``: the numbers of fields with missing values, if they are known and the manifest does not say them."""
        self._path, self.manifest = path, manifest
        self._given_nullable = found_nullable
        self.chunks = ChunkReader(path, manifest, how)

    # What there is

    def __len__(self) -> int:
        return self.manifest.length

    def __repr__(self) -> str:
        return (
            f"<penstock store {str(self._path)!r}: {len(self)} records, generation {self.generation}, fields {dict(self.schema)}>"
        )

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields by name. Of a store of version 1, the end of every chunk is looked at first, to learn which are nullable."""
        return dict(self._schema)

    @cached_property
    def _schema(self) -> dict[str, Field]:
        nullable = nullable_fields(self.manifest, self._found_nullable)
        return {name: field.with_nullable(name in nullable) for name, field in self.manifest.fields.items()}

    @cached_property
    def _found_nullable(self) -> frozenset[int]:
        """The numbers of the fields in which values are missing."""
        return nullable_numbers(self._path, self.manifest) if self._given_nullable is None else self._given_nullable

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the writer said of the data; see :func:`~penstock.create`."""
        return self._metadata

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        return MappingProxyType(decode_metadata(self.manifest.metadata))

    @property
    def generation(self) -> int:
        """The generation this reader sees."""
        return self.manifest.generation

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest: it names this generation of this data set, and no other."""
        return self.manifest.digest

    def file_versions(self) -> Hashable | None:
        """Of the chunks; objects of a store at a URL never change."""
        if isinstance(self._path, UrlPath):
            return self.fingerprint
        versions = file_versions([f"{self._path}/{chunk.file}" for chunk in self.manifest.chunks])
        return None if versions is None else (self.fingerprint, versions)

    @property
    def path(self) -> Location:
        """Where the store is: a directory, or a place under a URL."""
        return self._path

    def generations(self) -> list[int]:
        """The generations that can be opened."""
        return generations(self._path)

    def refresh(self) -> "Store":
        """A reader of the newest generation; this one stays as it is."""
        return _open(self._path, None, self.chunks.how)

    @property
    def blocks(self) -> Blocks:
        """The runs of records that are in one chunk."""
        return Blocks.of_counts(values_of(self.manifest.segments, "count"))

    @property
    def reads_blocks(self) -> bool:
        """Whether it is at a URL, where a record takes about as long as its chunk."""
        return self.chunks.remote is not None

    # Reading

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self.chunks.remote is None:
            try:
                return {name: self._as_user_has_it(name, self.chunks.read_field(name, ids, out)) for name in fields}
            except MissingError as error:
                raise self.chunks.expired(error) from error
        return {name: self._as_user_has_it(name, loaded) for name, loaded in self.chunks.read(ids, fields, out).items()}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of this generation."""
        one = self.manifest.fields[field]  # what is larger is looked at before memory is reserved for it
        is_native = one.is_fixed and one.stride <= self.chunks.how.max_record_bytes
        return (self.chunks.native(), self.manifest.numbers[field]) if is_native else None

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Elements of records of a field of varying length, from the index alone."""
        if field not in self.manifest.fields or self.manifest.fields[field].is_fixed:
            return super().lengths(field, ids)
        return np.maximum(self.chunks.sizes(field, as_ids(ids, len(self))), 0) // self.manifest.fields[field].dtype.itemsize

    def columns(self, ids: Any, fields: Sequence[str]) -> dict[str, Column]:
        """Records as a writer takes them, to be written to another store: nothing is lost on the way."""
        loaded = self.chunks.read(as_ids(ids, len(self)), fields, {})
        return {name: column if isinstance(column, Column) else column.column() for name, column in loaded.items()}

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """The pages of all fields of records, run by run of those that are next to each other. Fields that were changed later, and
        are in other chunks, are left out. Reads the indices of their chunks.
        """
        if self.chunks.remote is not None:
            return []
        firsts = values_of(self.manifest.segments, "first_id")
        inner = firsts[np.searchsorted(firsts, ids.start, side="right") : np.searchsorted(firsts, ids.stop, side="left")]
        starts = np.concatenate([[ids.start], inner]).astype(np.int64)
        ends = np.concatenate([inner, [ids.stop]]).astype(np.int64)
        found = []
        for number in self.manifest.numbers.values():
            low, high = self.chunks.native().page_extents(number, starts), self.chunks.native().page_extents(number, ends - 1)
            for (chunk, start, _), (same, _, stop) in zip(low.tolist(), high.tolist(), strict=True):
                if chunk == same and start < stop:
                    found.append((chunk, start, stop))
        files = {chunk: f"{self._path}/{self.manifest.chunks[chunk].file}" for chunk in {chunk for chunk, _, _ in found}}
        return [(files[chunk], start, stop) for chunk, start, stop in found]

    # A store at a URL

    @property
    def remote(self) -> RemoteFiles | None:
        """The chunks of a store at a URL."""
        return None if self.chunks.remote is None else self.chunks.remote.files

    def byte_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The chunks of which records are more than half; where others are is found when they are read."""
        return super().byte_ranges(ids) if self.chunks.remote is None else self.chunks.remote.byte_ranges(ids)

    def hold(self, ids: IntArray) -> AbstractContextManager[object]:
        """Keeps all fields of records in memory while it is entered."""
        return nullcontext() if self.chunks.remote is None else self.chunks.remote.hold(list(self.manifest.numbers.values()), ids)

    def _as_user_has_it(self, name: str, loaded: "FixedRecords | Column") -> Any:
        """One field of a batch: an array, masked where records are missing, or a Ragged."""
        return as_batch(self.manifest.fields[name], loaded) if isinstance(loaded, Column) else masked(loaded.array, loaded.present)

    def view(self, field: str) -> "ZeroCopy":
        """A fixed, uncompressed field without copying: ``view("image")[7]`` is a read-only array on the file itself."""
        return ZeroCopy(self, field)

    # Life

    def close(self) -> None:
        """Close the files. Arrays already given out stay valid. Idempotent."""
        self.chunks.close()

    def _recipe(self) -> Recipe:
        path = self._path.absolute() if isinstance(self._path, Path) else self._path
        known = None if self.manifest.found_nullable is not None else self._found_nullable
        return (_open, (path, self.generation, self.chunks.how, known))


class ZeroCopy:
    """Read-only arrays in the mapped file. A file cut by another program while such an array is read ends the process."""

    def __init__(self, store: Store, name: str) -> None:
        field = store.schema[name]
        if not field.is_fixed or field.codec.number != 0 or store.chunks.how.io == "pread" or store.remote is not None:
            raise ValueError(f"field {name!r} ({field!r}) cannot be viewed: only fixed, uncompressed fields of mapped files can")
        self._store, self._field, self._number = store, field, store.manifest.numbers[name]

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        record = int(as_ids(index, len(self))[0])
        data = self._store.chunks.native().view(self._number, self._field.stride, record)
        if data is None:
            raise ValueError(f"record {record} misses this field")
        return np.asarray(data).view(self._field.dtype).reshape(self._field.shape)


def open_store(
    path: str | os.PathLike[str] | UrlPath,
    *,
    generation: int | None = None,
    threads: int | None = None,
    io: str = "auto",
    verify: bool = True,
    max_batch_bytes: int | str = "16GiB",
    remote: RemoteOptions | None = None,
    max_record_bytes: int | str = "1GiB",
) -> Store:
    """Open a store for reading, at its newest ``generation`` unless one is given.

    ``io`` is "map" (memory-mapped, for local disks), "pread" (for network filesystems) or "auto". ``verify=False`` skips the
    checksum of each page when it is first touched. A batch that would need more than ``max_batch_bytes`` is refused before it is
    read: in a store from a stranger, a few bytes can stand for very many. For the same reason a compressed record of more than
    ``max_record_bytes`` is refused, unless it is stored in a 64th of its bytes or more. ``remote`` says how a store at a URL is
    read.
    """
    if io not in ("auto", "map", "pread"):
        raise ValueError(f"io must be 'auto', 'map' or 'pread', got {io!r}")
    location = as_location(path)
    if io == "auto":
        io = "pread" if isinstance(location, Path) and _core.is_network_filesystem(str(location)) else "map"
    most = byte_size("max_batch_bytes", max_batch_bytes)
    largest = byte_size("max_record_bytes", max_record_bytes)
    how = Reading(threads or min(8, os.cpu_count() or 1), io, verify, most, remote or RemoteOptions(), largest)
    return _open(location, generation, how)


def _open(path: Location, generation: int | None, how: Reading, found_nullable: frozenset[int] | None = None) -> Store:
    storage_of(path).check_directories()
    if generation is None:
        for _ in range(2):  # another process may commit and collect between our listing and our reading
            with contextlib.suppress(MissingError):
                return Store(path, load_manifest(path), how)
    return Store(path, load_manifest(path, generation), how, found_nullable)
