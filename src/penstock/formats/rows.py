"""Row shards (.shard): the source and the writer.

::

    file    = header payload
    header  = magic "GAMSAE01" | rows u64 | width u64 | dtype u32 = 0 (float32) | reserved u32 = 0      32 bytes
    payload = rows * width float32, row after row

All numbers are little-endian. ``docs/reference/foreign-formats.md`` has an example.
"""

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size, whole_number
from penstock.batch import Batch, Outputs, empty, fixed_output
from penstock.errors import (
    EmptySourceError,
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats.files import File, Files, Names, find_files, need_size
from penstock.formats.publish import NewFile, Staging, refuse_existing
from penstock.formats.rows_in_files import FileRows, RowSource, Version, default_threads, reader_of_files, version_of
from penstock.progress import Progress
from penstock.records import Recipe, Source
from penstock.remote.window import RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.system import file_access, names_in, status
from penstock.system import is_file as is_regular

__all__ = ["RowBatches", "RowShards", "default_batch_rows", "encode_rows", "open_rows", "write_rows"]

MAGIC = b"GAMSAE01"
HEADER = struct.Struct("<8sQQII")
FLOAT32 = 0
STORED = np.dtype("<f4")
SUFFIX = ".shard"

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20


def open_rows(
    what: Names,
    *,
    field: str = "row",
    dtype: npt.DTypeLike | None = None,
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "RowShards":
    """One .shard file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Rows come as they are stored, as float32; ``dtype="f8"`` makes them float64. ``remote`` says how files at URLs are read.
    """
    delivered = STORED if dtype is None else np.dtype(dtype)
    if delivered not in (STORED, np.dtype("<f8")):
        raise ValueError(f"dtype must be 'f4' or 'f8', got {dtype!r}")
    return RowShards(find_files(what, (SUFFIX,)), field, delivered.str, default_threads(threads), io, remote)


class RowShards(RowSource):
    """The rows of .shard files, one file after the other, as one field. A row keeps its id whatever is read, and how."""

    def __init__(self, files: Files, field: str, dtype: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        self._name, self._dtype, self._options = field, dtype, (threads, io, remote)
        parts, self._width = files.once("rows", lambda: _open_all(files))
        if not parts:
            names = ", ".join(map(str, files[:3]))
            raise EmptySourceError(f"expected at least one row, found none in {len(files)} files ({names})")
        self._stored, self._field = Field(STORED, (self._width,)), Field(dtype, (self._width,))
        stride = self._stored.stride
        rows = reader_of_files(parts, stride, access=file_access(io, files.local), threads=threads, remote=remote)
        super().__init__(files, [int(part.rows) for part in parts], stride, rows)

    @property
    def total_rows(self) -> int:
        return self._length

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._width

    @property
    def schema(self) -> Mapping[str, Field]:
        return {self._name: self._field}

    def batches(self, batch_rows: int | None = None, *, align: bool = False) -> "RowBatches":
        """All rows in order, ``batch_rows`` at a time; see :func:`default_batch_rows`. With ``align`` no batch crosses a shard."""
        ends = np.cumsum(self._counts) if align else np.array([self._length])
        rows = (
            default_batch_rows(self._length, self._width) if batch_rows is None else whole_number("batch_rows", batch_rows, least=1)
        )
        return RowBatches(self, self._name, rows, ends)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        array = fixed_output(self._name, self._field, ids.size, out)
        if self._field == self._stored:
            self._rows.read(ids, array)
        else:
            stored = empty(array.shape, STORED)
            self._rows.read(ids, stored)
            array[...] = stored
        return {self._name: array}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of the files, where rows are delivered as they are stored."""
        return self._rows.native() if self._field == self._stored else None

    def _identity(self) -> tuple[Any, ...]:
        return "rows", self._name, self._dtype

    def _recipe(self) -> Recipe:
        return (RowShards, (self._files, self._name, self._dtype, *self._options))


class RowBatches:
    """An iterator of (rows, row ids) over the rows of a source, in order. Not thread-safe: let every thread have its own."""

    def __init__(self, source: Source, field: str, batch_rows: int, ends: IntArray) -> None:
        self._source, self._field, self._batch_rows, self._ends, self._next = source, field, batch_rows, ends, 0

    @property
    def batch_rows(self) -> int:
        """The most rows of a batch."""
        return self._batch_rows

    def __iter__(self) -> "RowBatches":
        return self

    def __next__(self) -> tuple[npt.NDArray[Any], IntArray]:
        if self._next == len(self._source):
            raise StopIteration
        border = int(self._ends[np.searchsorted(self._ends, self._next, side="right")])
        ids = np.arange(self._next, min(self._next + self._batch_rows, border), dtype=np.int64)
        rows = self._source.read(ids)[self._field]
        self._next += ids.size
        return rows, ids

    def reset(self) -> None:
        """Begin anew with row 0."""
        self._next = 0

    def seek(self, row: int) -> None:
        """Go on with a row; the number of rows is the end."""
        self._next = whole_number("row", row, most=len(self._source))


def default_batch_rows(total_rows: int, width: int) -> int:
    """Rows of a batch unless the user says so, the same wherever the shards are: 1024 rows, but not more than 8 MiB."""
    return max(1, min(BATCH_ROWS, total_rows, BATCH_BYTES // (STORED.itemsize * width)))


def check_header(name: str, header: bytes, size: int) -> tuple[int, int]:
    """Rows and width that a header says, checked against the size of the whole file."""
    if len(header) < HEADER.size:
        raise TruncatedError(f"{name}: expected a header of {HEADER.size} bytes, found a file of {len(header)}")
    magic, rows, width, dtype, reserved = HEADER.unpack(header)
    if magic != MAGIC:
        raise FormatError(f"{name}: expected a row shard beginning with {MAGIC!r}, found {magic!r}")
    if dtype != FLOAT32:
        raise UnsupportedTypeError(f"{name}: expected dtype {FLOAT32} (float32), found {dtype}")
    if reserved != 0:
        raise FormatError(f"{name}: expected 0 in the reserved field, found {reserved}")
    if width == 0:
        raise FormatError(f"{name}: expected rows of at least 1 value, found a width of 0")
    whole = HEADER.size + rows * width * STORED.itemsize
    if whole >= 2**63 or (rows > 0 and width * STORED.itemsize > MAX_RECORD_BYTES):
        raise SizeOverflowError(
            f"{name}: {rows} rows of {width} values are beyond what can be read (a row has at most {MAX_RECORD_BYTES} bytes)"
        )
    need_size(name, size, whole, f" for {rows} rows of {width} values")
    return rows, width


def _open_all(files: Files) -> tuple[list[FileRows], int]:
    """Where the rows are, shards without rows left out, and the width of all of them."""
    if not files:
        raise EmptySourceError("expected at least one .shard file, got an empty list")
    found, first = [], 0
    for file, (version, size, rows, width) in zip(files, files.each(_look), strict=True):
        first = first or width
        if width != first:
            raise SchemaMismatchError(f"{file}: expected rows of {first} values as in {files[0]}, found rows of {width}")
        if rows > 0:
            found.append(FileRows.of(file, size, HEADER.size, rows, version))
    return found, first


def _look(file: File) -> tuple[Version | None, int, int, int]:
    """Version, bytes, rows and width of a shard."""
    version, header = version_of(file), file.first(HEADER.size)
    size = file.size
    return version, size, *check_header(str(file), header, size)


Rows = npt.NDArray[Any]

MOST_SHARDS = 10**6
"""As many as six digits can number."""


def write_rows(
    rows: Rows | Source | Iterable[Rows],
    path: str | os.PathLike[str],
    *,
    max_shard_rows: int | None = None,
    max_shard_bytes: int | str | None = None,
    overwrite: bool = False,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write rows as float32 and return the files: one if ``path`` ends in .shard, otherwise a directory of shard-000000.shard, ...

    ``rows`` is an array with a row per record, a source (its one float field of one dimension; other fields are left out) or an
    iterable of arrays, pieces of the whole. float64 is rounded; a value that would become infinite raises ValueError unless
    ``allow_overflow``. Other types must fit exactly. The files appear under their names when all is written and durable; if
    anything fails there are none. ``overwrite`` replaces a file, or a directory of nothing but shards, in one step.
    """
    target = Path(path).absolute()
    is_file = target.suffix == SUFFIX
    most_rows = None if max_shard_rows is None else whole_number("max_shard_rows", max_shard_rows, least=1)
    most_bytes = None if max_shard_bytes is None else byte_size("max_shard_bytes", max_shard_bytes)
    if is_file and (most_rows or most_bytes):
        raise ValueError(f"{target}: several shards need a directory, so path must not end in {SUFFIX}")
    _check_target(target, is_file, overwrite)
    with Staging(target) as staging:
        shards = _Shards(staging, most_rows, most_bytes, target.name if is_file else None)
        for piece in _checked_pieces(rows, allow_overflow):
            shards.add(piece)
            if progress is not None:
                progress(len(piece), piece.nbytes)
        names = shards.finish()
        if is_file:
            staging.publish([target], overwrite=overwrite)
        else:
            staging.publish_directory(overwrite=overwrite)
    return [target] if is_file else [target / name for name in names]


def encode_rows(rows: npt.ArrayLike, *, allow_overflow: bool = False) -> bytes:
    """The bytes of one shard."""
    payload = np.concatenate(list(_checked_pieces(np.asarray(rows), allow_overflow)))
    return _header(*payload.shape) + payload.tobytes()


def _header(rows: int, width: int) -> bytes:
    return HEADER.pack(MAGIC, rows, width, FLOAT32, 0)


def _check_target(target: Path, is_file: bool, overwrite: bool) -> None:
    """FileExistsError unless there is nothing in the way, or something that may be replaced."""
    if not overwrite:
        refuse_existing(target, "choose another name, or give overwrite=True")
    elif is_file and not is_regular(target):
        refuse_existing(target, f"expected a {SUFFIX} file to replace")
    elif not is_file and not _is_of_shards(target):
        refuse_existing(target, f"expected a directory of nothing but {SUFFIX} files to replace")


def _is_of_shards(target: Path) -> bool:
    """Whether this is a directory, and no link to one, of nothing but shards."""
    found = status(target, follow=False)
    is_directory = found is not None and stat.S_ISDIR(found.st_mode)
    return is_directory and all(name.endswith(SUFFIX) for name in names_in(target))


class _Shards:
    """The shards under way: the header of each is written last, when the number of its rows is known."""

    def __init__(self, staging: Staging, most_rows: int | None, most_bytes: int | None, name: str | None) -> None:
        self._staging, self._most_rows, self._most_bytes, self._name = staging, most_rows, most_bytes, name
        self._names: list[str] = []
        self._file: NewFile | None = None
        self._rows = self._width = 0

    def add(self, piece: Rows) -> None:
        """Write rows, in as many shards as they need."""
        self._width = piece.shape[1]
        limit = self._limit()
        while len(piece) > 0:
            file = self._file or self._begin()
            part = piece[: limit - self._rows]
            file.write(part)
            self._rows += len(part)
            piece = piece[len(part) :]
            if self._rows == limit:
                self._end(file)

    def finish(self) -> list[str]:
        """End the last shard; returns the names of all. No rows at all are one shard of none."""
        if self._file is not None or not self._names:
            self._end(self._file or self._begin())
        return self._names

    def _limit(self) -> int:
        limit = self._most_rows or 2**63
        if self._most_bytes is None:
            return limit
        fitting = (self._most_bytes - HEADER.size) // (self._width * STORED.itemsize)
        if fitting < 1:
            raise ValueError(f"max_shard_bytes must have room for a row of {self._width} values, got {self._most_bytes}")
        return min(limit, fitting)

    def _begin(self) -> NewFile:
        if len(self._names) == MOST_SHARDS:
            raise ValueError(f"expected at most {MOST_SHARDS} shards; let a shard have more rows")
        self._names.append(self._name or f"shard-{len(self._names):06d}{SUFFIX}")
        self._file = self._staging.new_file(self._names[-1])
        self._file.write(bytes(HEADER.size))
        return self._file

    def _end(self, file: NewFile) -> None:
        file.write_at(0, _header(self._rows, self._width))
        file.finish()
        self._file, self._rows = None, 0


def _checked_pieces(rows: Rows | Source | Iterable[Rows], allow_overflow: bool) -> Iterator[Rows]:
    """The rows as they are stored, in pieces of a few megabytes."""
    first = width = 0
    for piece in _pieces(rows):
        if not isinstance(piece, np.ndarray) or isinstance(piece, np.ma.MaskedArray) or piece.ndim != 2 or piece.shape[1] == 0:
            shape = f"{piece.dtype} {piece.shape}" if isinstance(piece, np.ndarray) else ""
            raise ValueError(f"from row {first} on: expected a plain array of (rows, values), got {type(piece).__name__} {shape}")
        width = width or piece.shape[1]
        if piece.shape[1] != width:
            raise ValueError(f"from row {first} on: expected rows of {width} values as before, got {piece.shape[1]}")
        step = max(1, BATCH_BYTES // (width * STORED.itemsize))
        for low in range(0, max(1, len(piece)), step):
            yield _as_stored(piece[low : low + step], first + low, allow_overflow)
        first += len(piece)
    if width == 0:
        raise ValueError("expected at least one array, which gives the width of the rows, got none")


def _pieces(rows: Rows | Source | Iterable[Rows]) -> Iterable[Rows]:
    if isinstance(rows, np.ndarray):
        return [rows]
    return _pieces_of_source(rows) if isinstance(rows, Source) else rows


def _pieces_of_source(source: Source) -> Iterator[Rows]:
    fitting = [n for n, f in source.schema.items() if f.is_fixed and f.ndim == 1 and "float" in f.dtype.name]
    if len(fitting) != 1:
        raise ValueError(f"expected a source with one float field of one dimension, got {len(fitting)} in {dict(source.schema)}")
    width = source.schema[fitting[0]].shape[0]
    step = max(1, BATCH_BYTES // max(1, source.schema[fitting[0]].stride))
    for low in range(0, len(source), step):
        yield source.read(np.arange(low, min(low + step, len(source))), fitting)[fitting[0]]
    if len(source) == 0:
        yield np.empty((0, width), STORED)


def _as_stored(rows: Rows, first: int, allow_overflow: bool) -> Rows:
    """Rows as float32; ValueError with the id of the first row in which a value changes more than by rounding."""
    if np.can_cast(rows.dtype, STORED):
        return np.ascontiguousarray(rows, STORED)
    if rows.dtype.kind not in "fiu":
        raise TypeError(f"from row {first} on: expected float rows, got {rows.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(rows, STORED)
        if rows.dtype.kind == "f":
            changed = np.isinf(stored)
            if changed.any():
                changed &= np.isfinite(rows)
        else:  # the largest whole numbers are rounded up, out of the range of their type
            changed = (stored >= float(np.iinfo(rows.dtype).max)) | (stored.astype(rows.dtype) != rows)
    if changed.any() and not (allow_overflow and rows.dtype.kind == "f"):
        row, column = np.argwhere(changed)[0]
        raise ValueError(f"row {first + row}: {rows[row, column]} of {rows.dtype} does not fit float32; {_remedy(rows.dtype)}")
    return stored


def _remedy(dtype: np.dtype[Any]) -> str:
    return "give allow_overflow=True to make it infinite" if dtype.kind == "f" else "convert the rows to floats to round it"
