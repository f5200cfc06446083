"""HDF5 files: data sets of one length as fields.

The HDF5 library is never called in this process: another one says where rows are, and reads those that it alone can read. Native
threads read rows that are in the file as they are, and threads decode those in chunks of gzip.
"""

import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import byte_size
from penstock.errors import CorruptError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Sampling, Source, fixed_output
from penstock.schema import Field
from penstock.source.arrow_memory import ranges
from penstock.source.fingerprint import digest_files, fingerprint_files
from penstock.source.hdf5_gzip import GzipRows
from penstock.source.hdf5_layout import Fields, Part, inspect, need_same, shared_process
from penstock.source.limit import MAX_BLOCK_BYTES
from penstock.source.paths import expand, file_size
from penstock.source.rows_in_files import FileRows, default_threads, reader_of_files, use_pread
from penstock.system import file_versions

__all__ = ["Hdf5Source", "open_hdf5"]

SUFFIXES = (".h5", ".hdf5", ".he5")
CACHE_BYTES = 1 << 24
"""What is kept at most of decoded chunks."""

MAX_BLOCKS = 1 << 22
BLOCK_BYTES = 1 << 20
SMALL_BYTES = 1 << 16


def open_hdf5(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> "Hdf5Source":
    """One HDF5 file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Every data set with a row per record is a field, named by its path with dots for slashes. ``fields`` chooses some of them, by
    name, or as a dict from new names to paths. Nothing that leads to other files is followed. Compressed data sets with chunks of
    more than ``max_block_bytes`` are refused.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict from names to data sets, got {fields!r}")
    chosen = dict(fields) if isinstance(fields, Mapping) else None if fields is None else list(fields)
    largest = byte_size("max_block_bytes", max_block_bytes)
    return Hdf5Source([str(path) for path in expand(what, SUFFIXES)], chosen, default_threads(threads), io, largest)


class Hdf5Source(Source):
    """The rows of the data sets of HDF5 files, one file after the other."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, threads: int, io: str, max_block_bytes: int) -> None:
        self._paths, self._fields, self._threads, self._io = list(paths), fields, threads, io
        self._max_block_bytes, self._closed = max_block_bytes, False
        pread = use_pread(io, Path(paths[0]))
        self._sizes = [file_size(Path(path)) for path in paths]
        tables = [inspect(path, size, fields, max_block_bytes) for path, size in zip(paths, self._sizes, strict=True)]
        need_same(self._paths, tables)
        self._parts = {name: [table[name] for table in tables] for name in tables[0]}
        self._schema = {name: part.field for name, part in tables[0].items()}
        self._counts = [next(iter(table.values())).length for table in tables]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        files = list(zip(map(os.path.realpath, paths), self._sizes, strict=True))
        self._plain = {
            name: _PlainRows(files, parts, pread=pread, threads=threads)
            for name, parts in self._parts.items()
            if all(part.layout == "plain" and part.dtype == parts[0].dtype for part in parts)
        }
        self._gzip = GzipRows(threads, CACHE_BYTES)

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

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return file_versions(self._paths)

    def sample_digest(self, sampling: Sampling) -> str:
        """Of sizes and samples of the files."""
        return digest_files("hdf5", self._paths, sampling, [(name, parts[0].path) for name, parts in self._parts.items()])

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
        rows = first.rows * max(1, len(self) // (first.rows * MAX_BLOCKS))  # a table of blocks must fit into memory
        return Blocks.of_counts(np.concatenate([np.diff(np.append(np.arange(0, count, rows), count)) for count in self._counts]))

    @property
    def reads_blocks(self) -> bool:
        """Whether chunks have to be decoded."""
        return any(part.filtered for parts in self._parts.values() for part in parts)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._read_field(name, ids, out) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        if self._closed:
            raise ValueError("the source is closed")
        field = self._schema[name]
        if not field.is_fixed:
            return self._ragged(name, ids)
        array = fixed_output(name, field, ids.size, out)
        if name in self._plain:
            self._plain[name].read(ids, array)
        elif array.size:
            for number, places, local in self._by_file(ids):
                self._fill(number, self._parts[name][number], local, places, array)
        return array

    def _by_file(self, ids: IntArray) -> list[tuple[int, IntArray, IntArray]]:
        """Every file that has some of the records: its number, their places among the ids, and their rows in the file."""
        numbers = self._file_of(ids)
        found = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]
        return [(number, places, ids[places] - (self._ends[number] - self._counts[number])) for number, places in found]

    def _fill(self, number: int, part: Part, ids: IntArray, places: IntArray, out: npt.NDArray[Any]) -> None:
        if part.layout in ("gzip", "shuffled gzip"):
            rows = np.empty((ids.size, *out.shape[1:]), out.dtype)
            self._gzip.read((self._paths[number], self._sizes[number]), part, ids, rows)
        else:
            rows = self._ask(number, part, ids)
        out[places] = rows

    def _ask(self, number: int, part: Part, ids: IntArray) -> Any:
        """Rows that the HDF5 library itself has to read."""
        request = {"size": self._sizes[number], "max_block_bytes": self._max_block_bytes}
        return shared_process().read(self._paths[number], part, ids, request)

    def _file_of(self, ids: IntArray) -> IntArray:
        return np.searchsorted(self._ends, ids, side="right")

    def _ragged(self, name: str, ids: IntArray) -> Ragged:
        field, parts = self._schema[name], self._by_file(ids)
        lengths, starts, values, end = np.zeros(ids.size, np.int64), np.zeros(ids.size, np.int64), [np.empty(0, field.dtype)], 0
        for number, places, local in parts:
            found, sizes = self._ask(number, self._parts[name][number], local)
            lengths[places], starts[places] = sizes, end + np.cumsum(sizes) - sizes
            values, end = [*values, found], end + found.size
            if field.kind == "text":
                _check_texts(f"{self._paths[number]}: field {name!r}", found, sizes)
        joined = np.concatenate(values)
        if len(parts) > 1:
            joined = joined[ranges(starts, lengths)]
        return Ragged(joined, np.concatenate([[0], np.cumsum(lengths)]), "array" if field.kind == "ragged" else field.kind)

    def close(self) -> None:
        """Close the files: nothing can be read any more."""
        for rows in self._plain.values():
            rows.close()
        self._gzip.close()
        self._closed = True

    def _recipe(self) -> Recipe:
        return (Hdf5Source, (self._paths, self._fields, self._threads, self._io, self._max_block_bytes))


class _PlainRows:
    """Rows that lie in files as they are, in chunks or as a whole.

    A file is one row of units, so that thousands of chunks need one map. The unit is the row itself where the places of the chunks
    allow it, and the largest part of it that all of them are multiples of otherwise.
    """

    def __init__(self, files: Sequence[tuple[str, int]], parts: Sequence[Part], *, pread: bool, threads: int) -> None:
        field, found = parts[0].field, [np.asarray(part.places) for part in parts]
        unit = math.gcd(field.stride, *(int(np.gcd.reduce(places - places[0])) for places in found if places.size))
        bases = [int(places[0]) % unit if places.size else 0 for places in found]
        rows = [FileRows(Path(path), size, base, (size - base) // unit) for (path, size), base in zip(files, bases, strict=True)]
        firsts = np.cumsum([0, *(one.rows for one in rows)])
        starts = [first + (places - base) // unit for first, places, base in zip(firsts, found, bases, strict=False)]
        self._run, self._swapped = field.stride // unit, not parts[0].dtype.isnative
        runs, counts = _joined(np.concatenate(starts), np.concatenate([part.counts for part in parts]), self._run)
        self._runs, self._shifts = Blocks.of_counts(counts), runs - (np.cumsum(counts) - counts) * self._run
        self._rows = reader_of_files(rows, unit, pread=pread, threads=threads)

    def read(self, ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows."""
        places, run = ids * self._run + self._shifts_of(ids), self._run
        if ids.size > 1 and out.nbytes < SMALL_BYTES and _is_run(places, run):
            places, run = places[:1], run * ids.size  # one copy, where threads do not pay
        self._rows.read(places, out, run)
        if self._swapped:
            out.byteswap(inplace=True)

    def _shifts_of(self, ids: IntArray) -> Any:
        return self._shifts[0] if self._shifts.size == 1 else self._shifts[self._runs.of(ids)]

    def close(self) -> None:
        """Let go of the files."""
        self._rows.close()


def _is_run(places: IntArray, step: int = 1) -> bool:
    """Whether places follow each other."""
    return bool(places[-1] - places[0] == (places.size - 1) * step and (places[1:] - places[:-1] == step).all())


def _joined(starts: IntArray, counts: IntArray, run: int) -> tuple[IntArray, IntArray]:
    """Chunks that lie behind each other as one."""
    heads = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + counts[:-1] * run))[: starts.size]
    return starts[heads], np.add.reduceat(counts, heads) if heads.size else counts


def _check_texts(where: str, values: npt.NDArray[Any], lengths: IntArray) -> None:
    joined = values.tobytes()
    if joined.isascii():
        return
    for start, length in zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True):
        item = joined[start : start + length]
        try:
            item.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"{where}: expected UTF-8, found {item[:80]!r}") from error
