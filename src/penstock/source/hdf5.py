"""HDF5 files: data sets of one length as fields. Native threads read those that lie in the file as they are, h5py the others.

The HDF5 library parses the files. It is not made for hostile ones: open only what you trust.
"""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, SourceChangedError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Sampling, Source, empty, fixed_output
from penstock.schema import Field
from penstock.source.fingerprint import digest_files, fingerprint_files
from penstock.source.hdf5_gzip import GzipChunks
from penstock.source.hdf5_layout import LEAST_CACHE_BYTES, Fields, Part, inspect, naming, need_same, open_file
from penstock.source.optional import need
from penstock.source.paths import expand, file_size
from penstock.source.rows_in_files import FileRows, default_threads, reader_of_files, use_pread

__all__ = ["Hdf5Source", "open_hdf5"]

SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_FILES = 64
"""Files that h5py holds open."""

MOST_CACHE_BYTES = 1 << 24
"""What HDF5 keeps at most of the decoded chunks of a data set."""

MAX_BLOCKS = 1 << 22
BLOCK_BYTES = 1 << 20
SMALL_BYTES = 1 << 16


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
        tables = [inspect(path, size, fields) for path, size in zip(paths, self._sizes, strict=True)]
        need_same(self._paths, tables)
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
        cache_bytes = min(max(chunk_bytes, LEAST_CACHE_BYTES), MOST_CACHE_BYTES)
        self._files: _Files | None = _Files(self._paths, self._sizes, cache_bytes, threads)

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
        if self._files is None:
            raise ValueError("the source is closed")
        field, parts = self._schema[name], self._parts[name]
        if not field.is_fixed:
            items = np.empty(ids.size, parts[0].dtype if len(parts) == 1 else object)
            self._fetch(self._files, parts, ids, items)
            return self._ragged(name, ids, items.tolist())
        array = fixed_output(name, field, ids.size, out)
        if name in self._plain:
            self._plain[name].read(ids, array)
        elif array.size:
            self._fetch(self._files, parts, ids, array)
        return array

    def _fetch(self, files: "_Files", parts: Sequence[Part], ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Through h5py, file by file."""
        if len(parts) == 1:
            return files.read(0, parts[0], ids, out)
        numbers = self._file_of(ids)
        for number in np.unique(numbers).tolist():
            part, places = parts[number], np.flatnonzero(numbers == number)
            rows = np.empty((places.size, *out.shape[1:]), part.dtype if out.dtype == object else out.dtype)
            files.read(number, part, ids[places] - (self._ends[number] - part.length), rows)
            out[places] = rows
        return None

    def _file_of(self, ids: IntArray) -> IntArray:
        return np.searchsorted(self._ends, ids, side="right")

    def _ragged(self, name: str, ids: IntArray, items: list[Any]) -> Ragged:
        field, offsets = self._schema[name], np.zeros(ids.size + 1, np.int64)
        np.cumsum(np.fromiter(map(len, items), np.int64, ids.size), out=offsets[1:])
        if field.kind == "ragged":
            return Ragged(np.concatenate([np.empty(0, field.dtype), *items]), offsets)
        joined = b"".join(items)
        if field.kind == "text" and not joined.isascii():
            for number, item in zip(self._file_of(ids).tolist(), items, strict=True):
                _check_text(f"{self._paths[number]}: field {name!r}", item)
        return Ragged(np.frombuffer(joined, np.uint8), offsets, field.kind)

    def close(self) -> None:
        """Let go of the files: nothing can be read any more."""
        for rows in self._plain.values():
            rows.close()
        if self._files is not None:
            self._files.close()
            self._files = None

    def _recipe(self) -> Recipe:
        return (Hdf5Source, (self._paths, self._fields, self._threads, self._io))


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


class _Files:
    """The files that h5py holds open: those used last, each process its own. One thread reads at a time, as h5py wants it."""

    def __init__(self, paths: Sequence[str], sizes: Sequence[int], cache_bytes: int, threads: int) -> None:
        self._paths, self._sizes, self._cache_bytes, self._threads = paths, sizes, cache_bytes, threads
        self._inherited: list[Any] = []
        self._start()

    def _start(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[int, tuple[Any, dict[str, _DataSet]]] = OrderedDict()

    def read(self, number: int, part: Part, ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows of one data set of one file."""
        if self._process != os.getpid():
            self._inherited.append(self._open)  # to close them would unlock the files of the parent
            self._start()
        if ids.size:
            with naming(self._paths[number]):
                with self._lock:
                    rest = self._data_set(number, part).fill(ids, out)
                if rest is not None:
                    rest()

    def _data_set(self, number: int, part: Part) -> "_DataSet":
        if number not in self._open:
            path, found = self._paths[number], file_size(Path(self._paths[number]))
            if found != self._sizes[number]:
                raise SourceChangedError(f"{path}: expected {self._sizes[number]} bytes as at opening, found {found}; open it anew")
            self._open[number] = (open_file(path, self._cache_bytes), {})
            while len(self._open) > MAX_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(number)
        file, known = self._open[number]
        if part.path not in known:
            known[part.path] = _DataSet(file[part.path], part, self._threads)
        return known[part.path]

    def close(self) -> None:
        """Close the files of this process."""
        if self._process == os.getpid():
            with self._lock:
                for file, _ in self._open.values():
                    file.close()
                self._open.clear()


class _DataSet:
    """A data set of an open file, with what every read of it needs."""

    def __init__(self, data: Any, part: Part, threads: int) -> None:
        h5py = need("h5py", "hdf5")
        self._gzip = GzipChunks.of(data, threads) if part.filtered and part.field.is_fixed else None
        self._id, self._space, self._create = data.id, data.id.get_space(), h5py.h5s.create_simple
        self._shape: tuple[int, ...] | None = None
        self._memory: Any = None
        self._type = h5py.h5t.py_create(part.field.dtype if part.field.is_fixed else part.dtype)
        self._chunk_rows = part.rows or 1

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Callable[[], None] | None:
        """Rows in the order of ``ids``. Every chunk is read once. What is returned is still to be done, without the lock."""
        if _is_run(ids):
            self._read_run(int(ids[0]), out)
            return None
        order = np.argsort(ids, kind="stable")
        if self._gzip is not None and (rest := self._gzip.begin(ids[order], order, out)) is not None:
            return rest
        self._read_points(ids[order], order, out) if out.ndim == 1 else self._read_chunks(ids[order], order, out)
        return None

    def _read_points(self, ids: IntArray, places: IntArray, out: npt.NDArray[Any]) -> None:
        """Single elements, which HDF5 itself collects chunk by chunk."""
        rows = np.empty(out.shape, out.dtype)
        self._space.select_elements(ids.astype(np.uint64).reshape(-1, 1))
        self._read(rows)
        out[places] = rows

    def _read_chunks(self, ids: IntArray, places: IntArray, out: npt.NDArray[Any]) -> None:
        """What is wanted of a chunk, and all between it, at once."""
        edges = np.flatnonzero(np.diff(ids // self._chunk_rows, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(edges):
            if high - low == 1:
                self._read_run(int(ids[low]), out[places[low] : places[low] + 1])
                continue
            rows = empty((int(ids[high - 1] - ids[low]) + 1, *out.shape[1:]), out.dtype)
            self._read_run(int(ids[low]), rows)
            out[places[low:high]] = rows[ids[low:high] - ids[low]]

    def _read_run(self, start: int, out: npt.NDArray[Any]) -> None:
        self._space.select_hyperslab((start, *[0] * (out.ndim - 1)), out.shape)
        self._read(out)

    def _read(self, out: npt.NDArray[Any]) -> None:
        if out.shape != self._shape:
            self._shape, self._memory = out.shape, self._create(out.shape)
        self._id.read(self._memory, self._space, out, self._type)


def _is_run(places: IntArray, step: int = 1) -> bool:
    """Whether places follow each other."""
    return bool(places[-1] - places[0] == (places.size - 1) * step and (places[1:] - places[:-1] == step).all())


def _joined(starts: IntArray, counts: IntArray, run: int) -> tuple[IntArray, IntArray]:
    """Chunks that lie behind each other as one."""
    heads = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + counts[:-1] * run))[: starts.size]
    return starts[heads], np.add.reduceat(counts, heads) if heads.size else counts


def _check_text(where: str, item: bytes) -> None:
    try:
        item.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{where}: expected UTF-8, found {item[:80]!r}") from error
