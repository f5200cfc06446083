"""NumPy files: one or many .npy as one source, mapped, never unpickled."""

import ast
import re
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import (
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    TrailingBytesError,
    TruncatedError,
    UnsafeDataError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.interfaces import IntArray
from penstock.records import Batch, Outputs, Recipe, Sampling, fixed_output
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.source.files import File, Files, Names, find_files
from penstock.source.rows_in_files import FileRows, RowSource, Version, default_threads, reader_of_files, use_pread, version_of

__all__ = ["NpySource", "open_npy"]

MAGIC = b"\x93NUMPY"
FIRST_BYTES = 128
"""As long as almost every header is."""

MAX_HEADER = 1 << 16
DESCR = re.compile(r"[<>=|]?[A-Za-z?][0-9]{0,9}(\[[0-9A-Za-z]{1,9}\])?")
"""A plain element type. numpy takes much more, some of which it parses as Python."""

SUFFIXES = (".npy",)


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
        heads = files.once("heads", lambda: files.each(_head))
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
        rows = reader_of_files(parts, stride, pread=use_pread(io, files.local), threads=threads, remote=remote)
        super().__init__(files, [head.shape[0] for head in heads], stride, rows)

    @property
    def schema(self) -> Mapping[str, Field]:
        """The one field."""
        return {self._name: self._field}

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return self._files.fingerprint("npy", self._name)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return self._files.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of sizes and samples of the files."""
        return self._files.sample_digest(sampling, "npy", self._name)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        array = fixed_output(self._name, self._field, ids.size, out)
        self._rows.read(ids, array)
        if self._swapped:
            array.byteswap(inplace=True)
        return {self._name: array}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of the files."""
        return None if self._swapped else self._rows.native()

    def _recipe(self) -> Recipe:
        return (NpySource, (self._files, self._name, *self._options))


@dataclass(frozen=True)
class _Head:
    """What the header of a file says, checked against its size."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int
    version: Version | None


def _head(path: File) -> _Head:
    version = version_of(path)
    text, offset, size = _header_text(path)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise FormatError(f"{path}: expected the header of a .npy file, found {text[:100]!r}") from error
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise FormatError(f"{path}: expected descr, fortran_order and shape in the header, found {text[:100]!r}")
    shape, dtype = value["shape"], _dtype(path, value["descr"])
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise FormatError(f"{path}: expected a shape of whole numbers, found {str(shape)[:100]}")
    if not shape:
        raise SchemaMismatchError(f"{path}: expected an array with a record per row, found a single value")
    if value["fortran_order"] is not False and len(shape) > 1:
        raise UnsupportedTypeError(f"{path}: the array is in Fortran order, so its records are scattered; save it in C order")
    payload = dtype.itemsize
    for length in shape:
        payload *= length
    if payload >= 2**63:
        raise SizeOverflowError(f"{path}: a {dtype} array of {shape} would have {payload} bytes")
    if offset + payload > size:
        raise TruncatedError(f"{path}: expected {offset + payload} bytes for a {dtype} array of {shape}, found {size}")
    if offset + payload < size:
        raise TrailingBytesError(f"{path}: expected {offset + payload} bytes for a {dtype} array of {shape}, found {size}")
    return _Head(dtype, shape, offset, size, version)


def _header_text(path: File) -> tuple[str, int, int]:
    """The text of the header, where the data begins, and the bytes of the file."""
    start = path.first(FIRST_BYTES)
    size = path.size
    if start[:6] != MAGIC:
        raise FormatError(f"{path}: expected a .npy file beginning with {MAGIC!r}, found {start[:6]!r}")
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


def _dtype(path: File, descr: object) -> np.dtype[Any]:
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
