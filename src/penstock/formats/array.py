"""What is in memory as a source: an array, a dict of arrays, lists and Ragged of one length, and objects that have records by
number (a dataset of torch or Grain, a list, a class of the user's). And .npy files, never unpickled.
"""

import ast
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.algebra import collect, schema_of_record
from penstock.argument import IntArray, as_ids
from penstock.batch import Batch, Outputs, Ragged, check_told, fixed_output, masked
from penstock.errors import (
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsafeDataError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.fingerprint import digest_arrays, fingerprint_arrays, fingerprint_of
from penstock.formats.files import File, Files, Names, find_files, need_size
from penstock.formats.rows_in_files import (
    FileRows,
    Rows,
    RowSource,
    Version,
    default_threads,
    reader_of_files,
    reader_of_memory,
    version_of,
)
from penstock.interrupt import exposed
from penstock.records import Blocks, Recipe, Sampling, Source
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.store.column import as_batch, guess_field, make_column
from penstock.system import file_access

__all__ = ["ArraySource", "Items", "MapStyle", "NpySource", "open_array", "open_npy"]

MAGIC = b"\x93NUMPY"
FIRST_BYTES = 128
"""As long as almost every header is."""

MAX_HEADER = 1 << 16
DESCR = re.compile(r"[<>=|]?[A-Za-z?][0-9]{0,9}(\[[0-9A-Za-z]{1,9}\])?")
"""A plain element type. numpy takes much more, some of which it parses as Python."""

SUFFIXES = (".npy",)


# In memory


def open_array(data: Any, *, field: str = "data", threads: int | None = None) -> "ArraySource":
    """An array as the one field of a source."""
    return ArraySource({field: data}, threads=threads)


class ArraySource(Source):
    """Columns in memory. They are not copied: changing them changes the source."""

    def __init__(self, columns: Mapping[str, Any], *, threads: int | None = None) -> None:
        if not columns:
            raise ValueError("expected at least one field, got none")
        self._threads = default_threads(threads)
        self._schema: dict[str, Field] = {}
        self._columns: dict[str, Any] = {}
        for name, data in columns.items():
            self._schema[name], self._columns[name] = _column(name, data)
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaMismatchError(f"all fields must have the same number of records, got {lengths}")
        self._length = next(iter(lengths.values()))
        self._rows: dict[str, Rows] = {
            name: reader_of_memory([np.asarray(column)], threads=self._threads)
            for name, column in self._columns.items()
            if self._schema[name].is_fixed
        }

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            "arrays",
            [(name, repr(field.with_nullable(False)), _fingerprint(self._columns[name])) for name, field in self._schema.items()],
        )

    def sample_digest(self, sampling: Sampling) -> str:
        share = sampling.shared(len(self._schema))
        fields = [(name, repr(field.with_nullable(False))) for name, field in self._schema.items()]
        return fingerprint_of("arrays", fields, [_digest(self._columns[name], share) for name in self._schema])

    @property
    def blocks(self) -> Blocks:
        """Runs of about 1 MiB: memory has no natural ones."""
        stride = sum(field.stride for field in self._schema.values() if field.is_fixed)
        return Blocks(len(self), max(1, (1 << 20) // max(1, stride)))

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._read_field(name, ids, out) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        field, column = self._schema[name], self._columns[name]
        if not field.is_fixed:
            return column.take(ids)
        array = fixed_output(name, field, ids.size, out)
        self._rows[name].read(ids, array)
        if not isinstance(column, np.ma.MaskedArray):
            return array
        missing = np.ma.getmaskarray(column)[ids].any(axis=tuple(range(1, column.ndim)))
        return masked(array, np.logical_not(missing) if missing.any() else None)

    def lengths(self, field: str, ids: Any) -> IntArray:
        column = self._columns[field]
        if not isinstance(column, Ragged):
            return super().lengths(field, ids)
        wanted = as_ids(ids, len(self))
        found: IntArray = column.offsets[wanted + 1] - column.offsets[wanted]
        return found

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        if field not in self._rows or isinstance(self._columns[field], np.ma.MaskedArray):
            return None
        return self._rows[field].native()

    def _recipe(self) -> Recipe:
        return (_rebuild, (self._columns, self._threads))


def _rebuild(columns: Mapping[str, Any], threads: int) -> ArraySource:
    return ArraySource(columns, threads=threads)


def as_array(name: str, data: Any) -> npt.NDArray[Any]:
    """A tensor, or whatever else numpy can make an array of; on the CPU that needs no copy."""
    try:
        if str(getattr(data, "dtype", "")) == "torch.bfloat16":  # which numpy does not know by itself
            return np.asarray(data.view(sys.modules["torch"].int16)).view(Field("bf16").dtype)
        return np.asarray(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"field {name!r}: this {type(data).__name__} cannot be read as an array: {error}") from error


def _column(name: str, data: Any) -> tuple[Field, Any]:
    """A column and its field. Fixed ones become arrays whose records are contiguous, of the machine's byte order."""
    if hasattr(data, "__array__") and not isinstance(data, np.ndarray):
        data = as_array(name, data)
    if isinstance(data, np.ndarray) and data.dtype.kind not in "OUS":
        if data.ndim == 0:
            raise SchemaMismatchError(f"field {name!r}: expected an array with a record per row, got a single value")
        try:
            field = Field(data.dtype, data.shape[1:], nullable=isinstance(data, np.ma.MaskedArray))
        except TypeError as error:
            raise UnsupportedTypeError(f"field {name!r}: {error}") from error
        if data.dtype != field.dtype or not data.flags.c_contiguous:
            mask = np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None
            plain = np.ascontiguousarray(data, dtype=field.dtype)
            return field, plain if mask is None else np.ma.MaskedArray(plain, mask=mask)
        return field, data
    field = guess_field(name, data)
    column = as_batch(field, make_column(name, field, data))
    check_told(name, column)
    return field, column


def _fingerprint(column: Any) -> str:
    kind, arrays = _arrays(column)
    return fingerprint_arrays(kind, map(np.asarray, arrays))  # with what is under a mask, as version 1 did


def _digest(column: Any, sampling: Sampling) -> str:
    return digest_arrays(*_arrays(column), sampling)


def _arrays(column: Any) -> tuple[str, list[npt.NDArray[Any]]]:
    """What kind of column it is, and the arrays it is made of."""
    if isinstance(column, Ragged):
        parts = [column.values, column.offsets, *(p for p in (column.shapes, column.present) if p is not None)]
        return f"ragged {column.kind}", parts
    return "array", [column, np.ma.getmaskarray(column)] if isinstance(column, np.ma.MaskedArray) else [column]


# In .npy files


def open_npy(
    what: Names,
    *,
    field: str = "data",
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "NpySource":
    """One .npy file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    ``remote`` says how files at URLs are read.
    """
    return NpySource(find_files(what, SUFFIXES), field, default_threads(threads), io, remote)


class NpySource(RowSource):
    """The rows of .npy files, one file after the other, as the one field ``data``."""

    def __init__(self, files: Files, field: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        self._name, self._options = field, (threads, io, remote)
        heads = files.once("heads", lambda: files.each(_npy_head))
        for file, head in zip(files, heads, strict=True):
            if head.dtype != heads[0].dtype or head.shape[1:] != heads[0].shape[1:]:
                raise SchemaMismatchError(
                    f"{file}: expected {heads[0].dtype} records of {heads[0].shape[1:]} as in {files[0]}, "
                    f"found {head.dtype} of {head.shape[1:]}"
                )
        try:
            self._field = Field(heads[0].dtype, heads[0].shape[1:])
        except TypeError as error:
            raise UnsupportedTypeError(f"{files[0]}: {error}") from error
        self._swapped = not heads[0].dtype.isnative
        parts = [FileRows.of(f, head.size, head.offset, head.shape[0], head.version) for f, head in zip(files, heads, strict=True)]
        stride = self._field.stride
        rows = reader_of_files(parts, stride, access=file_access(io, files.local), threads=threads, remote=remote)
        super().__init__(files, [head.shape[0] for head in heads], stride, rows)

    @property
    def schema(self) -> Mapping[str, Field]:
        return {self._name: self._field}

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        array = fixed_output(self._name, self._field, ids.size, out)
        self._rows.read(ids, array)
        if self._swapped:
            array.byteswap(inplace=True)
        return {self._name: array}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        return None if self._swapped else self._rows.native()

    def _identity(self) -> tuple[Any, ...]:
        return "npy", self._name

    def _recipe(self) -> Recipe:
        return (NpySource, (self._files, self._name, *self._options))


@dataclass(frozen=True)
class _NpyHead:
    """What the header of a file says, checked against its size."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int
    version: Version | None


def _npy_head(path: File) -> _NpyHead:
    version = version_of(path)
    text, offset, size = _npy_header(path)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise FormatError(f"{path}: expected the header of a .npy file, found {text[:100]!r}") from error
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise FormatError(f"{path}: expected descr, fortran_order and shape in the header, found {text[:100]!r}")
    shape, dtype = value["shape"], _npy_dtype(path, value["descr"])
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise FormatError(f"{path}: expected a shape of whole numbers, found {str(shape)[:100]}")
    if not shape:
        raise SchemaMismatchError(f"{path}: expected an array with a record per row, found a single value")
    if value["fortran_order"] is not False and len(shape) > 1:
        raise UnsupportedTypeError(f"{path}: the array is in Fortran order, so its records are scattered; save it in C order")
    payload = prod(shape, start=dtype.itemsize)
    if payload >= 2**63:
        raise SizeOverflowError(f"{path}: a {dtype} array of {shape} would have {payload} bytes")
    need_size(path, size, offset + payload, f" for a {dtype} array of {shape}")
    return _NpyHead(dtype, shape, offset, size, version)


def _npy_header(path: File) -> tuple[str, int, int]:
    """The text of the header, where the data begins, and the bytes of the file."""
    start = path.first(FIRST_BYTES)
    size = path.size
    if start[:6] != MAGIC:
        raise FormatError(
            f"{path}: expected a .npy file beginning with {MAGIC!r}, found {start[:6]!r}; if these are tokens without a header, as "
            "OLMo and dolma write them, state their type: dtype='uint16' or 'uint32' (on the command line: --option dtype=uint16)"
        )
    if len(start) < 10:
        raise TruncatedError(f"{path}: expected the header of a .npy file, found only {len(start)} bytes")
    version = (start[6], start[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise UnsupportedVersionError(f"{path}: expected .npy version 1.0, 2.0 or 3.0, found {version[0]}.{version[1]}")
    wide = version[0] > 1
    if wide and len(start) < 12:
        raise TruncatedError(f"{path}: expected the header of a .npy file, found only {len(start)} bytes")
    length = struct.unpack("<I", start[8:12])[0] if wide else struct.unpack("<H", start[8:10])[0]
    if length > MAX_HEADER:
        raise SizeOverflowError(f"{path}: expected a header of at most {MAX_HEADER} bytes, found {length}")
    offset = (12 if wide else 10) + length
    raw = (start if offset <= len(start) else path.read(0, min(offset, size)))[offset - length : offset]
    if len(raw) < length:
        raise TruncatedError(f"{path}: expected a header of {length} bytes, found {len(raw)}")
    try:
        return raw.decode("utf-8" if version[0] == 3 else "latin1"), offset, size
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: the header is not UTF-8") from error


def _npy_dtype(path: File, descr: object) -> np.dtype[Any]:
    if not isinstance(descr, str):
        raise UnsupportedTypeError(f"{path}: expected one element type, found {str(descr)[:100]}: save each column as a file")
    if "O" in descr:
        raise UnsafeDataError(f"{path}: the array holds pickled objects, which would have to be executed to be read")
    if not DESCR.fullmatch(descr):
        raise UnsupportedTypeError(f"{path}: expected one element type such as '<f4', found {descr[:100]!r}")
    try:
        dtype: np.dtype[Any] = np.dtype(descr)
        Field(dtype)
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(f"{path}: {error}") from error
    return dtype


COMPARED = 32
"""Records that a fingerprint looks at."""


class MapStyle(Protocol):
    """What PyTorch calls a map-style dataset, and Grain a random-access data source."""

    def __len__(self) -> int:
        """Records."""

    def __getitem__(self, index: Any, /) -> Any:
        """One of them, always the same."""


class Items(Source):
    """The records of a map-style dataset as a source: shuffled, packed, mixed and resumed. Items are read one by one, in Python.

    Items are dicts; anything else is the field ``value``. ``schema`` is found from the first item if it is left out. The dataset
    must be safe to read in several threads, and picklable where the source is to be.

    >>> import penstock as pen
    >>> data = pen.source.Items([{"x": 3, "name": "a"}, {"x": 4, "name": "b"}])
    >>> next(iter(pen.Loader(data, 2)))["x"]
    array([3, 4])
    """

    def __init__(self, data: MapStyle, *, schema: Mapping[str, Field] | None = None) -> None:
        self._data, self._given = data, None if schema is None else dict(schema)
        if self._given is None and len(data) == 0:
            raise ValueError("there is no record to infer the fields from: pass schema={...}")
        self._schema = self._given if self._given is not None else schema_of_record(self._item(0))

    def _item(self, index: Any) -> Mapping[str, Any]:
        item = self._data[int(index)]
        fields = item if isinstance(item, Mapping) else {"value": item}
        return {name: np.asarray(value) if hasattr(value, "__array__") else value for name, value in fields.items()}

    def __len__(self) -> int:
        return len(self._data)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the fields, the number of records, and some of them."""
        looked_at = np.unique(np.linspace(0, max(0, len(self) - 1), min(COMPARED, len(self))).astype(int))
        shown = [(name, *_shown(value)) for index in looked_at for name, value in self._item(index).items()]
        return fingerprint_of("items", len(self), [(name, repr(field)) for name, field in self._schema.items()], shown)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return collect(self._items(ids), {name: self._schema[name] for name in fields}, out)

    @exposed
    def _items(self, ids: IntArray) -> list[Mapping[str, Any]]:
        return [self._item(index) for index in ids]

    def _recipe(self) -> Recipe:
        return _reopened, (self._data, self._given)


def _shown(value: Any) -> tuple[object, ...]:
    array = np.asarray(value)
    if array.dtype.hasobject:  # whose bytes are addresses
        return ("object", repr(value))
    return array.dtype.str, array.shape, array.tobytes().hex()


def _reopened(data: MapStyle, schema: Mapping[str, Field] | None) -> Items:
    return Items(data, schema=schema)
