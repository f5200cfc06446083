"""Store: one generation of a data set, open for reading. It sees that generation for its whole life."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.errors import CorruptError, MissingError, SnapshotExpiredError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.store.column import Column
from penstock.store.generation import generations, load_manifest, load_redirects, newest_generation
from penstock.store.index import as_ids, is_single
from penstock.store.layout import CHUNK_DIRECTORY, chunk_name
from penstock.store.manifest import Manifest
from penstock.store.schema import Field

__all__ = ["FieldView", "Store"]

Batch = dict[str, Any]


class Store:
    """Records [0, len) with named fields. Safe to use from several threads; may be pickled and used after fork.

    ``data[7]`` is a record (a dict), ``data[[7, 1, 1]]``, ``data[10:20]`` and ``data[mask]`` are batches (a dict of arrays, fields
    of varying length as :class:`~penstock.Ragged`), ``data["label"]`` is one field. Ids may come in any order, several times, and
    negative, as in numpy. A missing value is None in a record; in a batch the array is masked there.
    """

    def __init__(self, path: Path, manifest: Manifest, *, threads: int, io: str, verify: bool) -> None:
        self._path, self._manifest = path, manifest
        self._threads, self._io, self._verify = threads, io, verify
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
            io == "pread",
            verify,
        )
        for number, table in load_redirects(path, manifest).items():
            if table.size:
                places = np.array([index[c] for c in table["chunk"].tolist()], np.uint64)
                self._reader.set_redirects(number, np.stack([table["id"], places, table["row"].astype(np.uint64)], axis=1))
        self._pool = _core.ThreadPool(threads)
        self._plans = {
            name: (manifest.numbers[name], f.dtype, f.shape, f.stride) for name, f in manifest.fields.items() if f.is_fixed
        }

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
        return open_store(self._path, threads=self._threads, io=self._io, verify=self._verify)

    # Reading

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return FieldView(self, key)
        if is_single(key):
            batch = self.read(as_ids(key, len(self)))
            return {name: _only(column) for name, column in batch.items()}
        return self.read(as_ids(key, len(self)))

    def read(self, ids: Any, fields: Sequence[str] | None = None, out: Mapping[str, npt.NDArray[Any]] | None = None) -> Batch:
        """A batch of records in the order of ``ids``. Arrays in ``out``, for fixed fields, are filled instead of new ones."""
        wanted = as_ids(ids, len(self))
        names = list(self._manifest.fields) if fields is None else list(fields)
        unknown = [name for name in [*names, *(out or {})] if name not in self._manifest.fields]
        if unknown:
            raise KeyError(f"unknown fields {unknown}; the store has {list(self._manifest.fields)}")
        unwanted = [name for name in out or {} if name not in names]
        if unwanted:
            raise ValueError(f"out has fields that are not read: {unwanted}")
        try:
            return {name: self._read(name, wanted, None if out is None else out.get(name)) for name in names}
        except MissingError as error:
            raise self._expired(error) from error

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

    def _read(self, name: str, ids: IntArray, out: npt.NDArray[Any] | None) -> Any:
        """One field as the user gets it: an array, masked where records are missing, or a Ragged."""
        field = self._manifest.fields[name]
        if field.is_fixed:
            array, present = self._read_fixed(name, ids, out)
            if present is None:
                return array
            mask = np.broadcast_to((present == 0).reshape(-1, *([1] * len(field.shape))), array.shape)
            return np.ma.MaskedArray(array, mask=mask.copy())
        if out is not None:
            raise ValueError(f"field {name!r} has records of varying length; out takes fixed fields only")
        column = self._read_variable(name, ids)
        offsets = column.offsets
        assert offsets is not None
        kind = field.kind if field.kind in ("text", "bytes") else "array"
        return Ragged(column.values.view(field.dtype), offsets // field.dtype.itemsize, kind, column.shapes, column.present)

    def _column(self, name: str, ids: IntArray) -> Column:
        if not self._manifest.fields[name].is_fixed:
            return self._read_variable(name, ids)
        array, present = self._read_fixed(name, ids, None)
        return Column(ids.size, array.reshape(-1).view(np.uint8), None, None if present is None else present.astype(np.bool_), None)

    def _read_fixed(
        self, name: str, ids: IntArray, out: npt.NDArray[Any] | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
        """Records, and which are present if not all are."""
        number, dtype, shape, stride = self._plans[name]
        whole = (ids.size, *shape)
        array = np.empty(whole, dtype) if out is None else out
        if array.shape != whole or array.dtype != dtype or not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(
                f"out[{name!r}] must be a writable, contiguous {dtype} array of {whole}, got {array.dtype} {array.shape}"
            )
        present = np.empty(ids.size, np.uint8)
        missing = self._native().read_fixed(number, stride, ids, array.reshape(-1).view(np.uint8), present, self._pool)
        return array, present if missing else None

    def _read_variable(self, name: str, ids: IntArray) -> Column:
        field, number = self._manifest.fields[name], self._manifest.numbers[name]
        sizes = np.empty(ids.size, np.int64)
        ndim = field.ndim if field.kind == "ragged" and field.ndim > 1 else 0
        dims = np.empty(ids.size * ndim, np.uint32)
        missing = self._native().measure(number, ndim, ids, sizes, dims, self._pool)
        present = sizes >= 0 if missing else None
        offsets = np.zeros(ids.size + 1, np.int64)
        np.cumsum(np.maximum(sizes, 0) if missing else sizes, out=offsets[1:])
        values = np.empty(int(offsets[-1]), np.uint8)
        self._native().read_variable(number, field.kind == "text", ids, offsets, values, self._pool)
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

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (str(self._path.absolute()), self.generation, self.fingerprint, self._threads, self._io, self._verify))


class FieldView:
    """One field of a store, indexed like an array."""

    def __init__(self, store: Store, name: str) -> None:
        if name not in store.schema:
            raise KeyError(f"unknown field {name!r}; the store has {list(store.schema)}")
        self._store, self._name = store, name

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, key: Any) -> Any:
        column = self._store.read(as_ids(key, len(self)), [self._name])[self._name]
        return _only(column) if is_single(key) else column

    def __repr__(self) -> str:
        return f"<field {self._name!r} of {self._store!r}>"


class ZeroCopy:
    """Read-only arrays that lie in the mapped file. A file cut by another program while such an array is read ends the process."""

    def __init__(self, store: Store, name: str) -> None:
        field = store.schema[name]
        if not field.is_fixed or field.codec.number != 0 or store._io == "pread":
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


def open_store(
    path: Path, *, generation: int | None = None, threads: int | None = None, io: str = "auto", verify: bool = True
) -> Store:
    """Open a generation for reading, the newest unless given."""
    if io not in ("auto", "map", "pread"):
        raise ValueError(f"io must be 'auto', 'map' or 'pread', got {io!r}")
    if io == "auto":
        io = "pread" if _core.is_network_filesystem(str(path)) else "map"
    for _ in range(3):  # a writer may commit and collect between our listing and our reading
        wanted = newest_generation(path) if generation is None else generation
        try:
            return Store(
                path, load_manifest(path, generation), threads=threads or min(8, os.cpu_count() or 1), io=io, verify=verify
            )
        except MissingError:
            if generation is not None or newest_generation(path) == wanted:
                raise
    return Store(path, load_manifest(path, generation), threads=threads or min(8, os.cpu_count() or 1), io=io, verify=verify)


def _reopen(path: str, generation: int, fingerprint: str, threads: int, io: str, verify: bool) -> Store:
    store = open_store(Path(path), generation=generation, threads=threads, io=io, verify=verify)
    if store.fingerprint != fingerprint:
        raise SnapshotExpiredError(f"{path}: generation {generation} is not the one that was pickled")
    return store


def _shapes_fit(shapes: npt.NDArray[np.uint32], lengths: IntArray) -> bool:
    """Whether every shape has as many elements as its record, and no dimension beyond what an array can have."""
    with np.errstate(all="ignore"):
        elements = np.prod(shapes.astype(np.float64), axis=1)
        largest = np.prod(np.maximum(shapes, 1).astype(np.float64), axis=1)
    return bool(np.array_equal(elements, lengths) and np.all(largest < 2.0**62))


def _only(column: Any) -> Any:
    if isinstance(column, Ragged):
        return column[0]
    if isinstance(column, np.ma.MaskedArray):
        return None
    item = column[0]
    return item if isinstance(item, np.ndarray) else item[()]
