"""Store: one generation of a data set, open for reading. It sees that generation for its whole life."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import byte_size
from penstock.errors import BatchTooLargeError, CorruptError, MissingError, SnapshotExpiredError
from penstock.index import as_ids
from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, Outputs, Recipe, Source, fixed_output, masked
from penstock.schema import Field
from penstock.store.column import Column, as_batch
from penstock.store.generation import generations, load_manifest, load_redirects, newest_generation
from penstock.store.layout import CHUNK_DIRECTORY, chunk_name
from penstock.store.manifest import Manifest

__all__ = ["Store", "ZeroCopy", "open_store"]


class Store(Source):
    """One generation of a record store; see :class:`~penstock.Source` for how it is read."""

    def __init__(self, path: Path, manifest: Manifest, how: "Reading") -> None:
        self._path, self._manifest, self._how = path, manifest, how
        index = {chunk.number: place for place, chunk in enumerate(manifest.chunks)}
        self._reader: _core.StoreReader | None = _core.StoreReader(
            str(path),
            manifest.length,
            [f"{path}/{CHUNK_DIRECTORY}/{chunk_name(c.writer, c.serial)}" for c in manifest.chunks],
            np.array([[c.size, c.rows, c.crc] for c in manifest.chunks], np.uint64).reshape(-1, 3),
            np.array(
                [[s.first_id, s.count, index.get(s.chunk, len(index)), s.first_row] for s in manifest.segments], np.uint64
            ).reshape(-1, 4),
            bytes.fromhex(manifest.dataset),
            how.io == "pread",
            how.verify,
            how.max_batch_bytes,
        )
        for number, table in load_redirects(path, manifest).items():
            if table.size:
                places = np.array([index[c] for c in table["chunk"].tolist()], np.uint64)
                self._reader.set_redirects(number, np.stack([table["id"], places, table["row"].astype(np.uint64)], axis=1))
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
        """The fields by name."""
        return dict(self._manifest.fields)

    @property
    def generation(self) -> int:
        """The generation this reader sees."""
        return self._manifest.generation

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest: it names this generation of this data set, and no other."""
        return self._manifest.digest

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self._path

    def generations(self) -> list[int]:
        """The generations on disk."""
        return generations(self._path)

    def refresh(self) -> "Store":
        """A reader of the newest generation; this one stays as it is."""
        return _open(self._path, None, self._how)

    @property
    def blocks(self) -> Blocks:
        """The runs of records that lie in one chunk."""
        return Blocks.of_counts([segment.count for segment in self._manifest.segments])

    # Reading

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        try:
            return {name: self._read_field(name, ids, out) for name in fields}
        except MissingError as error:
            raise self._expired(error) from error

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of this generation."""
        return (self._native(), self._manifest.numbers[field]) if self._manifest.fields[field].is_fixed else None

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Elements of records of a field of varying length, from the index alone."""
        if field not in self._manifest.fields or self._manifest.fields[field].is_fixed:
            return super().lengths(field, ids)
        sizes = np.empty(len(wanted := as_ids(ids, len(self))), np.int64)
        self._native().measure(self._manifest.numbers[field], wanted, sizes, self._pool)
        return np.maximum(sizes, 0) // self._manifest.fields[field].dtype.itemsize

    def columns(self, ids: Any, fields: Sequence[str]) -> dict[str, Column]:
        """Records as a writer takes them, to be written to another store: nothing is lost on the way."""
        wanted = as_ids(ids, len(self))
        try:
            return {name: self._column(name, wanted) for name in fields}
        except MissingError as error:
            raise self._expired(error) from error

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

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        """One field as the user gets it: an array, masked where records are missing, or a Ragged."""
        if self._manifest.fields[name].is_fixed:
            return masked(*self._read_fixed(name, ids, out))
        return as_batch(self._manifest.fields[name], self._read_variable(name, ids))

    def _column(self, name: str, ids: IntArray) -> Column:
        if not self._manifest.fields[name].is_fixed:
            return self._read_variable(name, ids)
        array, present = self._read_fixed(name, ids, {})
        return Column(ids.size, array.reshape(-1).view(np.uint8), None, None if present is None else present.astype(np.bool_), None)

    def _read_fixed(self, name: str, ids: IntArray, out: Outputs) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
        """Records, and which are present if not all are."""
        number, field = self._manifest.numbers[name], self._manifest.fields[name]
        if ids.size * field.stride > self._how.max_batch_bytes:
            raise BatchTooLargeError(
                f"{self._path}: {ids.size} records of {field.stride} bytes are more than the limit for a batch, "
                f"{self._how.max_batch_bytes} bytes"
            )
        array, present = fixed_output(name, field, ids.size, out), np.empty(ids.size, np.uint8)
        missing = self._native().read_fixed(number, field.stride, ids, array.reshape(-1).view(np.uint8), present, self._pool)
        return array, present if missing else None

    def _read_variable(self, name: str, ids: IntArray) -> Column:
        field, number = self._manifest.fields[name], self._manifest.numbers[name]
        ndim = field.ndim if field.kind == "ragged" and field.ndim > 1 else 0
        values, offsets, present, dims = self._native().read_variable(number, ndim, field.kind == "text", ids, self._pool)
        itemsize = field.dtype.itemsize
        if itemsize > 1 and np.any(offsets % itemsize):
            raise CorruptError(f"{self._path}: the size of a record of field {name!r} is not a multiple of its element's")
        shapes = dims.reshape(-1, ndim) if ndim else None
        if shapes is not None and not _shapes_fit(shapes, np.diff(offsets) // itemsize):
            raise CorruptError(f"{self._path}: the shape of a record of field {name!r} does not fit its size")
        return Column(ids.size, values, offsets, present, shapes)

    def view(self, field: str) -> "ZeroCopy":
        """A fixed, uncompressed field without copying: ``view("image")[7]`` is a read-only array on the file itself."""
        return ZeroCopy(self, field)

    # Life

    def close(self) -> None:
        """Let go of the files. Arrays already given out stay valid. Idempotent."""
        self._reader = None

    def _recipe(self) -> Recipe:
        return (_open, (self._path.absolute(), self.generation, self._how))


class ZeroCopy:
    """Read-only arrays that lie in the mapped file. A file cut by another program while such an array is read ends the process."""

    def __init__(self, store: Store, name: str) -> None:
        field = store.schema[name]
        if not field.is_fixed or field.codec.number != 0 or store._how.io == "pread":
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


def open_store(
    path: str | os.PathLike[str],
    *,
    generation: int | None = None,
    threads: int | None = None,
    io: str = "auto",
    verify: bool = True,
    max_batch_bytes: int | str = "16GiB",
) -> Store:
    """Open a store for reading, at its newest ``generation`` unless one is given.

    ``io`` is "map" (memory-mapped, for local disks), "pread" (for network filesystems) or "auto". ``verify=False`` skips the
    checksum of each page when it is first touched. A batch that would need more than ``max_batch_bytes`` is refused before it is
    read: in a store from a stranger, a few bytes can stand for very many.
    """
    if io not in ("auto", "map", "pread"):
        raise ValueError(f"io must be 'auto', 'map' or 'pread', got {io!r}")
    if io == "auto":
        io = "pread" if _core.is_network_filesystem(os.fspath(path)) else "map"
    most = byte_size("max_batch_bytes", max_batch_bytes)
    return _open(Path(path), generation, Reading(threads or min(8, os.cpu_count() or 1), io, verify, most))


def _open(path: Path, generation: int | None, how: Reading) -> Store:
    for _ in range(3):  # a writer may commit and collect between our listing and our reading
        wanted = newest_generation(path) if generation is None else generation
        try:
            return Store(path, load_manifest(path, generation), how)
        except MissingError:
            if generation is not None or newest_generation(path) == wanted:
                raise
    return Store(path, load_manifest(path, generation), how)


def _shapes_fit(shapes: npt.NDArray[np.uint32], lengths: IntArray) -> bool:
    """Whether every shape has as many elements as its record, and no dimension beyond what an array can have."""
    with np.errstate(all="ignore"):
        elements = np.prod(shapes.astype(np.float64), axis=1)
        largest = np.prod(np.maximum(shapes, 1).astype(np.float64), axis=1)
    return bool(np.array_equal(elements, lengths) and np.all(largest < 2.0**62))
