"""Row shards: files of float32 rows of one width, read as one source with stable row ids.

::

    file    = header payload
    header  = magic "GAMSAE01" | rows u64 | width u64 | dtype u32 = 0 (float32) | reserved u32 = 0      32 bytes
    payload = rows * width float32, row after row

All numbers are little-endian. ``docs/reference/foreign-formats.md`` has an example.
"""

import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.errors import (
    EmptySourceError,
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.interfaces import IntArray
from penstock.records import Batch, Outputs, Recipe, Sampling, Source, empty, fixed_output
from penstock.remote.window import RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.source.files import File, Files, Names, find_files
from penstock.source.rows_in_files import FileRows, RowSource, Version, default_threads, reader_of_files, use_pread, version_of

__all__ = ["HEADER", "MAGIC", "SUFFIX", "RowBatches", "RowShards", "check_header", "default_batch_rows", "open_rows"]

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
        rows = reader_of_files(parts, stride, pread=use_pread(io, files.local), threads=threads, remote=remote)
        super().__init__(files, [part.rows for part in parts], stride, rows)

    @property
    def total_rows(self) -> int:
        """Rows in all shards."""
        return self._length

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._width

    @property
    def schema(self) -> Mapping[str, Field]:
        """The one field."""
        return {self._name: self._field}

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return self._files.fingerprint("rows", self._name, self._dtype)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return self._files.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of sizes and samples of the files."""
        return self._files.sample_digest(sampling, "rows", self._name, self._dtype)

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
    """Rows of a batch unless the user says so, the same wherever the shards lie: 1024 rows, but not more than 8 MiB."""
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
    if size < whole:
        raise TruncatedError(f"{name}: expected {whole} bytes for {rows} rows of {width} values, found {size}")
    if size > whole:
        raise TrailingBytesError(f"{name}: expected {whole} bytes for {rows} rows of {width} values, found {size}")
    return rows, width


def _open_all(files: Files) -> tuple[list[FileRows], int]:
    """Where the rows lie, shards without rows left out, and the width of all of them."""
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
