"""NumPy files: one or many .npy as one source, mapped, never unpickled."""

import ast
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
from penstock.records import Batch, Blocks, Outputs, Recipe, Source, fixed_output
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_files
from penstock.source.paths import expand, file_size
from penstock.source.rows_in_files import FileRows, default_threads, reader_of_files, use_pread

__all__ = ["NpySource", "open_npy"]

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16
SUFFIXES = (".npy",)


def open_npy(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    field: str = "data",
    threads: int | None = None,
    io: str = "auto",
) -> "NpySource":
    """One .npy file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes."""
    return NpySource([str(path) for path in expand(what, SUFFIXES)], field, default_threads(threads), io)


class NpySource(Source):
    """The rows of .npy files, one file after the other, as the one field ``data``."""

    def __init__(self, paths: Sequence[str], field: str, threads: int, io: str) -> None:
        self._paths, self._name, self._threads, self._io = list(paths), field, threads, io
        heads = [_head(Path(path)) for path in paths]
        for path, head in zip(paths, heads, strict=True):
            if head.dtype != heads[0].dtype or head.shape[1:] != heads[0].shape[1:]:
                raise SchemaMismatchError(
                    f"{path}: expected {heads[0].dtype} records of {heads[0].shape[1:]} as in {paths[0]}, "
                    f"found {head.dtype} of {head.shape[1:]}"
                )
        try:
            self._field = Field(heads[0].dtype, heads[0].shape[1:])
        except TypeError as error:
            raise UnsupportedTypeError(f"{paths[0]}: {error}") from error
        self._swapped = not heads[0].dtype.isnative
        self._counts = [head.shape[0] for head in heads]
        files = [
            FileRows(Path(path).resolve(), head.size, head.offset, head.shape[0]) for path, head in zip(paths, heads, strict=True)
        ]
        self._length = sum(self._counts)
        self._rows = reader_of_files(files, self._field.stride, pread=use_pread(io, Path(paths[0])), threads=threads)

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        """The one field."""
        return {self._name: self._field}

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return fingerprint_files("npy", self._paths, self._name)

    @property
    def blocks(self) -> Blocks:
        """The files, where there are several; runs of about 1 MiB in a single one."""
        if len(self._counts) > 1:
            return Blocks.of_counts(self._counts)
        return Blocks(len(self), max(1, (1 << 20) // max(1, self._field.stride)))

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
        return (NpySource, (self._paths, self._name, self._threads, self._io))

    def close(self) -> None:
        """Let go of the files: nothing can be read any more."""
        self._rows.close()


@dataclass(frozen=True)
class _Head:
    """What the header of a file says, checked against its size."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int


def _head(path: Path) -> _Head:
    size = file_size(path)
    with path.open("rb") as file:
        text, offset = _header_text(path, file)
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
    return _Head(dtype, shape, offset, size)


def _header_text(path: Path, file: BinaryIO) -> tuple[str, int]:
    start = file.read(12)
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
    file.seek(offset - length)
    raw = file.read(length)
    if len(raw) < length:
        raise TruncatedError(f"{path}: expected a header of {length} bytes, found {len(raw)}")
    try:
        return raw.decode("utf-8" if version[0] == 3 else "latin1"), offset
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: the header is not UTF-8") from error


def _dtype(path: Path, descr: object) -> np.dtype[Any]:
    if not isinstance(descr, str):
        raise UnsupportedTypeError(f"{path}: expected one element type, found {str(descr)[:100]}: save each column as a file")
    if "O" in descr:
        raise UnsafeDataError(f"{path}: the array holds pickled objects, which would have to be executed to be read")
    try:
        dtype: np.dtype[Any] = np.dtype(descr)
        Field(dtype)
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(f"{path}: {error}") from error
    return dtype
