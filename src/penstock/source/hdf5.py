"""HDF5 files: data sets of one length as fields. Those that lie in the file as they are, are read by native threads, others by h5py.

The HDF5 library parses the files. It is not made for hostile ones: open only what you trust as much as a program.
"""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import (
    CorruptError,
    FormatError,
    PenstockError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Source, empty, fixed_output
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_files
from penstock.source.optional import need
from penstock.source.paths import expand, file_size
from penstock.source.rows_in_files import FileRows, Rows, default_threads, reader_of_files, use_pread
from penstock.store.column import as_batch, make_column

__all__ = ["Hdf5Source", "open_hdf5"]

SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_LINKS = 16
MAX_FILES = 64
"""Files that h5py holds open."""

CACHE_BYTES = (1 << 20, 1 << 24)
"""The least and the most that HDF5 keeps of the decoded chunks of a data set."""

MAX_BLOCKS = 1 << 22
BLOCK_BYTES = 1 << 20

Fields = Sequence[str] | Mapping[str, str]


def open_hdf5(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
) -> "Hdf5Source":
    """One HDF5 file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Every data set with a row per record is a field, named by its path with dots for slashes. ``fields`` chooses some of them, by
    name, or as a dict from new names to paths. Nothing that leads to other files is followed.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict from names to data sets, got {fields!r}")
    chosen = dict(fields) if isinstance(fields, Mapping) else None if fields is None else list(fields)
    return Hdf5Source([str(path) for path in expand(what, SUFFIXES)], chosen, default_threads(threads), io)


class Hdf5Source(Source):
    """The rows of the data sets of HDF5 files, one file after the other."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, threads: int, io: str) -> None:
        self._paths, self._fields, self._threads, self._io = list(paths), fields, threads, io
        pread = use_pread(io, Path(paths[0]))
        self._sizes = [file_size(Path(path)) for path in paths]
        tables = [_inspect(path, size, fields) for path, size in zip(paths, self._sizes, strict=True)]
        _need_same(self._paths, tables)
        self._parts = {name: [table[name] for table in tables] for name in tables[0]}
        self._schema = {name: part.field for name, part in tables[0].items()}
        self._counts = [next(iter(table.values())).length for table in tables]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        files = list(zip(map(os.path.realpath, paths), self._sizes, strict=True))
        self._plain = {
            name: _PlainRows(files, parts, pread=pread, threads=threads)
            for name, parts in self._parts.items()
            if all(part.places is not None and part.dtype == parts[0].dtype for part in parts)
        }
        chunk_bytes = max(part.chunk_bytes for parts in self._parts.values() for part in parts)
        self._files: _Files | None = _Files(self._paths, self._sizes, min(max(chunk_bytes, CACHE_BYTES[0]), CACHE_BYTES[1]))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def schema(self) -> Mapping[str, Field]:
        """The data sets."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return fingerprint_files("hdf5", self._paths, [(name, parts[0].path) for name, parts in self._parts.items()])

    @property
    def blocks(self) -> Blocks:
        """The chunks of the widest field; the files, or runs of about 1 MiB of one file, where there are no chunks."""
        every = list(self._parts.values())
        costly = [parts for parts in every if parts[0].filtered] or [parts for parts in every if parts[0].rows] or every
        first = max(costly, key=lambda parts: parts[0].field.stride if parts[0].field.is_fixed else BLOCK_BYTES)[0]
        if len(self._counts) == 1:
            return Blocks(len(self), first.rows or max(1, BLOCK_BYTES // max(1, first.field.stride)))
        if not first.rows:
            return Blocks.of_counts(self._counts)
        rows = first.rows * -(-len(self) // (first.rows * MAX_BLOCKS) or 1)
        return Blocks.of_counts(np.concatenate([np.diff(np.append(np.arange(0, count, rows), count)) for count in self._counts]))

    @property
    def reads_blocks(self) -> bool:
        """Whether chunks have to be decoded."""
        return any(part.filtered for parts in self._parts.values() for part in parts)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._read_field(name, ids, out) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        field = self._schema[name]
        if self._files is None:
            raise ValueError("the source is closed")
        if not field.is_fixed:
            dtype = self._parts[name][0].dtype
            items = (
                np.empty(ids.size, dtype) if len({part.dtype for part in self._parts[name]}) == 1 else np.empty(ids.size, object)
            )
            self._fetch(name, ids, items)
            return self._ragged(name, field, items)
        array = fixed_output(name, field, ids.size, out)
        if name in self._plain:
            self._plain[name].read(ids, array)
        elif array.size:
            self._fetch(name, ids, array)
        return array

    def _fetch(self, name: str, ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Through h5py, file by file."""
        assert self._files is not None
        if len(self._counts) == 1:
            self._files.read(0, self._parts[name][0], ids, out)
            return
        numbers = np.searchsorted(self._ends, ids, side="right")
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            part = self._parts[name][number]
            rows = np.empty((places.size, *out.shape[1:]), part.dtype if out.dtype.hasobject else out.dtype)
            self._files.read(number, part, ids[places] - (self._ends[number] - part.length), rows)
            out[places] = rows
