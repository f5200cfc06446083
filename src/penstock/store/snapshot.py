"""Store: one generation of a data set, open for reading. It sees that generation for its whole life."""

import contextlib
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import BatchTooLargeError, CorruptError, MissingError, SnapshotExpiredError
from penstock.index import as_ids
from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Source, fixed_output, masked
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.schema import Field
from penstock.store.column import Column, as_batch, join_columns
from penstock.store.disk import disk_ranges
from penstock.store.format import Location, as_location
from penstock.store.generation import generations, load_manifest, load_redirects, nullable_fields, nullable_numbers, storage_of
from penstock.store.manifest import Manifest, values_of
from penstock.store.manifest_json import decode_metadata
from penstock.store.remote_chunks import RemoteChunks
from penstock.store.row_map import as_rows, places_of
from penstock.system import file_versions

__all__ = ["Store", "ZeroCopy", "open_store"]

Result = TypeVar("Result")


class Store(Source):
    """One generation of a record store; see :class:`~penstock.Source` for how it is read."""

    def __init__(self, path: Location, manifest: Manifest, how: "Reading", found_nullable: frozenset[int] | None = None) -> None:
        """``found_nullable``: the numbers of fields with missing values, if they are known and the manifest does not say them."""
        self._path, self._manifest, self._how = path, manifest, how
        self._given_nullable = found_nullable
        redirects = load_redirects(path, manifest)
        self._chunks = RemoteChunks(path, manifest, how.remote) if isinstance(path, UrlPath) else None
        chunks, segments, numbers = manifest.chunks, manifest.segments, values_of(manifest.chunks, "number")
        directory = f"{path}/"
        self._reader: _core.StoreReader | None = _core.StoreReader(
            str(path),
            manifest.length,
            [directory + chunk.file for chunk in chunks],
            as_rows(values_of(chunks, "size"), values_of(chunks, "rows"), values_of(chunks, "crc")),
            as_rows(
                values_of(segments, "first_id"),
                values_of(segments, "count"),
                places_of(numbers, values_of(segments, "chunk")),
                values_of(segments, "first_row"),
            ),
            bytes.fromhex(manifest.dataset),
            how.io == "pread",
            how.verify,
            how.max_batch_bytes,
            None if self._chunks is None else self._chunks.files.landings,
            how.max_record_bytes,
            [(number, name) for name, number in manifest.numbers.items()],
        )
        if self._chunks is not None:
            self._chunks.serve(self._reader)
        for number, table in redirects.items():
            if table.size:
                self._reader.set_redirects(number, as_rows(table["id"], places_of(numbers, table["chunk"]), table["row"]))
        self._pool = _core.ThreadPool(how.threads)

    # What there is

    def __len__(self) -> int:
        return self._manifest.length

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
        nullable = nullable_fields(self._manifest, self._found_nullable)
        return {name: field.with_nullable(name in nullable) for name, field in self._manifest.fields.items()}

    @cached_property
    def _found_nullable(self) -> frozenset[int]:
        """The numbers of the fields in which values are missing."""
        return nullable_numbers(self._path, self._manifest) if self._given_nullable is None else self._given_nullable

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the writer said of the data; see :func:`~penstock.create`."""
        return self._metadata

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        return MappingProxyType(decode_metadata(self._manifest.metadata))

    @property
    def generation(self) -> int:
        """The generation this reader sees."""
        return self._manifest.generation

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest: it names this generation of this data set, and no other."""
        return self._manifest.digest

    def file_versions(self) -> Hashable | None:
        """Of the chunks; objects of a store at a URL never change."""
        if isinstance(self._path, UrlPath):
            return self.fingerprint
        versions = file_versions([f"{self._path}/{chunk.file}" for chunk in self._manifest.chunks])
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
        return _open(self._path, None, self._how)

    @property
    def blocks(self) -> Blocks:
        """The runs of records that lie in one chunk."""
        return Blocks.of_counts(values_of(self._manifest.segments, "count"))

    @property
    def reads_blocks(self) -> bool:
        """Whether it is at a URL, where a record takes about as long as its chunk."""
        return self._chunks is not None

    # Reading

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._chunks is None:
            try:
                return {name: self._as_user_has_it(name, self._read_field(name, ids, out)) for name in fields}
            except MissingError as error:
                raise self._expired(error) from error
        return {name: self._as_user_has_it(name, loaded) for name, loaded in self._load(ids, fields, out).items()}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of this generation."""
        one = self._manifest.fields[field]  # what is larger is looked at before memory is reserved for it
        is_native = one.is_fixed and one.stride <= self._how.max_record_bytes
        return (self._native(), self._manifest.numbers[field]) if is_native else None

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Elements of records of a field of varying length, from the index alone."""
        if field not in self._manifest.fields or self._manifest.fields[field].is_fixed:
            return super().lengths(field, ids)
        sizes = np.empty(len(wanted := as_ids(ids, len(self))), np.int64)
        number = self._manifest.numbers[field]
        chunks = np.empty(0, np.int64) if self._chunks is None else self._chunks.chunks_of([number], wanted)
        self._with_indices(chunks, lambda: self._native().measure(number, wanted, sizes, self._pool))
        return np.maximum(sizes, 0) // self._manifest.fields[field].dtype.itemsize

    def columns(self, ids: Any, fields: Sequence[str]) -> dict[str, Column]:
        """Records as a writer takes them, to be written to another store: nothing is lost on the way."""
        loaded = self._load(as_ids(ids, len(self)), fields, {})
        return {name: column if isinstance(column, Column) else column.column() for name, column in loaded.items()}

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """The pages of records that lie where they were written. Reads the indices of their chunks."""
        return [] if self._chunks is not None else disk_ranges(self._native(), self._manifest, str(self._path), ids)

    # A store at a URL

    @property
    def remote(self) -> RemoteFiles | None:
        """The chunks of a store at a URL."""
        return None if self._chunks is None else self._chunks.files

    def byte_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The chunks of which records are more than half; where others lie is found when they are read."""
        return super().byte_ranges(ids) if self._chunks is None else self._chunks.byte_ranges(ids)

    def hold(self, ids: IntArray) -> AbstractContextManager[object]:
        """Keeps all fields of records in memory while it is entered."""
        return nullcontext() if self._chunks is None else self._chunks.hold(list(self._manifest.numbers.values()), ids)

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> "_Fixed | Column":
        if self._manifest.fields[name].is_fixed:
            return self._read_fixed(name, ids, self._output(name, ids, out))
        return self._read_variable(name, ids)

    def _load(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> dict[str, "_Fixed | Column"]:
        """Fields of records as they were written."""
        outputs = {name: self._output(name, ids, out) for name in fields if self._manifest.fields[name].is_fixed}

        def load(part: slice) -> dict[str, _Fixed | Column]:
            return {
                name: self._read_fixed(name, ids[part], outputs[name][part])
                if name in outputs
                else self._read_variable(name, ids[part])
                for name in fields
            }

        try:
            if self._chunks is None:
                return load(slice(0, ids.size))
            parts = self._chunks.read([self._manifest.numbers[name] for name in fields], ids, load)
        except MissingError as error:
            raise self._expired(error) from error
        return parts[0] if len(parts) == 1 else {name: _join([part[name] for part in parts], outputs.get(name)) for name in fields}

    def _with_indices(self, chunks: IntArray, work: Callable[[], Result]) -> Result:
        """Do something while the indices of chunks are in memory."""
        fetched = self._chunks
        if fetched is None:
            return work()

        def attempt() -> Result:
            with fetched.hold_indices(chunks):
                return work()

        return fetched.tried(chunks, attempt)

    def _chunk_fields(self, place: int) -> list[tuple[int, int, bool]]:
        """Number and stored bytes of each field of a chunk, and whether it says which records are missing."""
        return self._with_indices(np.array([place], np.int64), lambda: self._native().chunk_fields(place))

    def _holding(self, place: int) -> AbstractContextManager[object]:
        """Keeps a chunk in memory, where it must be to be read."""
        return nullcontext() if self._chunks is None else self._chunks.hold_whole(place)

    def _verify_chunk(self, place: int) -> list[tuple[int, str]]:
        """What is wrong with the pages of a chunk, by the number of the field."""
        if self._chunks is None:
            return self._native().verify_chunk(place)
        return self._chunks.verify(place)

    def _expired(self, error: MissingError) -> MissingError:
        """Tells a file that gc removed, because this generation is too old, from one that is missing."""
        if self.generation in generations(self._path):
            return error
        return SnapshotExpiredError(
            f"{self._path}: generation {self.generation} was collected meanwhile: refresh(), or let gc keep more ({error})"
        )

    def _native(self) -> _core.StoreReader:
        if self._reader is None:
            raise ValueError("the store is closed")
        return self._reader

    def _as_user_has_it(self, name: str, loaded: "_Fixed | Column") -> Any:
        """One field of a batch: an array, masked where records are missing, or a Ragged."""
        return as_batch(self._manifest.fields[name], loaded) if isinstance(loaded, Column) else masked(loaded.array, loaded.present)

    def _output(self, name: str, ids: IntArray, out: Outputs) -> npt.NDArray[Any]:
        field, count = self._manifest.fields[name], ids.size
        if count * field.stride > self._how.max_batch_bytes:
            raise BatchTooLargeError(
                f"{self._path}: {count} records of {field.stride} bytes are more than the limit for a batch, "
                f"{self._how.max_batch_bytes} bytes"
            )
        if field.stride > self._how.max_record_bytes and name not in out and count:
            self._check_claim(name, ids)
        return fixed_output(name, field, count, out)

    def _check_claim(self, name: str, ids: IntArray) -> None:
        """BatchTooLargeError unless one of 64 large records is there: missing ones take memory too, and nothing in the files."""
        number, sizes = self._manifest.numbers[name], np.empty(ids.size, np.int64)
        chunks = np.empty(0, np.int64) if self._chunks is None else self._chunks.chunks_of([number], ids)
        self._with_indices(chunks, lambda: self._native().measure(number, ids, sizes, self._pool))
        if 64 * np.count_nonzero(sizes >= 0) < ids.size:
            raise BatchTooLargeError(
                f"{self._path}: field {name!r}: almost all of {ids.size} records of {self._manifest.fields[name].stride} bytes are "
                "missing, and would take memory: if the store can be trusted, open it with a larger max_record_bytes"
            )

    def _read_fixed(self, name: str, ids: IntArray, array: npt.NDArray[Any]) -> "_Fixed":
        number, stride = self._manifest.numbers[name], self._manifest.fields[name].stride
        present = np.empty(ids.size, np.uint8)
        missing = self._native().read_fixed(number, stride, ids, array.reshape(-1).view(np.uint8), present, self._pool)
        return _Fixed(array, present if missing else None)

    def _read_variable(self, name: str, ids: IntArray) -> Column:
        field, number = self._manifest.fields[name], self._manifest.numbers[name]
        ndim = field.ndim if field.kind == "ragged" and field.ndim > 1 else 0
        values, offsets, present, dims = self._native().read_variable(number, ndim, field.kind == "text", ids, self._pool)
        itemsize = field.dtype.itemsize
        if itemsize > 1 and np.any(offsets % itemsize):
            raise self._misfit(name, ids[np.diff(offsets) % itemsize != 0], "its size is not a multiple of its element's")
        shapes = dims.reshape(-1, ndim) if ndim else None
        if shapes is not None and not (fit := _shapes_fit(shapes, np.diff(offsets) // itemsize)).all():
            raise self._misfit(name, ids[~fit], "its shape does not fit its size")
        return Column(ids.size, values, offsets, present, shapes)

    def _misfit(self, name: str, ids: IntArray, what: str) -> CorruptError:
        return CorruptError(f"{self._path}: field {name!r}, record {ids[0] if ids.size else '?'}: {what}")

    def view(self, field: str) -> "ZeroCopy":
        """A fixed, uncompressed field without copying: ``view("image")[7]`` is a read-only array on the file itself."""
        return ZeroCopy(self, field)

    # Life

    def close(self) -> None:
        """Let go of the files. Arrays already given out stay valid. Idempotent."""
        if self._chunks is not None:
            self._chunks.files.close()
        self._reader = None

    def _recipe(self) -> Recipe:
        path = self._path.absolute() if isinstance(self._path, Path) else self._path
        known = None if self._manifest.found_nullable is not None else self._found_nullable
        return (_open, (path, self.generation, self._how, known))


class _Fixed(NamedTuple):
    """Records of a fixed field, and which are present if not all are."""

    array: npt.NDArray[Any]
    present: npt.NDArray[np.uint8] | None

    def column(self) -> Column:
        """The same as a writer takes it."""
        present = None if self.present is None else self.present.astype(np.bool_)
        return Column(len(self.array), self.array.reshape(-1).view(np.uint8), None, present, None)


def _join(parts: "Sequence[_Fixed | Column]", array: npt.NDArray[Any] | None) -> "_Fixed | Column":
    """Runs of records one after the other; fixed ones already are, in ``array``."""
    if array is None:
        return join_columns([part for part in parts if isinstance(part, Column)])
    fixed = [part for part in parts if isinstance(part, _Fixed)]
    if all(part.present is None for part in fixed):
        return _Fixed(array, None)
    present = [np.ones(len(part.array), np.uint8) if part.present is None else part.present for part in fixed]
    return _Fixed(array, np.concatenate(present))


class ZeroCopy:
    """Read-only arrays that lie in the mapped file. A file cut by another program while such an array is read ends the process."""

    def __init__(self, store: Store, name: str) -> None:
        field = store.schema[name]
        if not field.is_fixed or field.codec.number != 0 or store._how.io == "pread" or store.remote is not None:
            raise ValueError(f"field {name!r} ({field!r}) cannot be viewed: only fixed, uncompressed fields of mapped files can")
        self._store, self._field, self._number = store, field, store._manifest.numbers[name]

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        record = int(as_ids(index, len(self))[0])
        data = self._store._native().view(self._number, self._field.stride, record)
        if data is None:
            raise ValueError(f"record {record} misses this field")
        return np.asarray(data).view(self._field.dtype).reshape(self._field.shape)


@dataclass(frozen=True)
class Reading:
    """How a store is read."""

    threads: int
    io: str
    verify: bool
    max_batch_bytes: int
    remote: RemoteOptions
    max_record_bytes: int = 1 << 30


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
        for _ in range(2):  # somebody may commit and collect between our listing and our reading
            with contextlib.suppress(MissingError):
                return Store(path, load_manifest(path), how)
    return Store(path, load_manifest(path, generation), how, found_nullable)


def _shapes_fit(shapes: npt.NDArray[np.uint32], lengths: IntArray) -> npt.NDArray[np.bool_]:
    """Which shapes have as many elements as their records, and no dimension beyond what an array can have."""
    with np.errstate(all="ignore"):
        elements = np.prod(shapes.astype(np.float64), axis=1)
        largest = np.prod(np.maximum(shapes, 1).astype(np.float64), axis=1)
    return np.asarray((elements == lengths) & (largest < 2.0**62))
