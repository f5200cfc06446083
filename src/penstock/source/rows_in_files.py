"""Rows of one size that lie in files as they are, or in memory: read by native threads, straight into the batch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.interfaces import IntArray
from penstock.records import Blocks
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.source.files import File, RemoteFile

__all__ = [
    "FileRows",
    "RemoteRows",
    "Rows",
    "blocks_of_files",
    "default_threads",
    "reader_of_files",
    "reader_of_memory",
    "use_pread",
]


@dataclass(frozen=True)
class FileRows:
    """Where the rows of one file lie."""

    path: Path | RemoteFile
    size: int
    offset: int
    rows: int

    @classmethod
    def of(cls, file: File, size: int, offset: int, rows: int) -> "FileRows":
        """Of a file that was looked at; links are followed, once and for all."""
        return cls(file if isinstance(file, RemoteFile) else Path(os.path.realpath(file.path)), size, offset, rows)


def default_threads(threads: int | None) -> int:
    """How many threads read, unless the user says so."""
    return threads or min(8, os.cpu_count() or 1)


def use_pread(io: str, path: Path | RemoteFile | None) -> bool:
    """Whether files are read by pread, as ``io`` says or, for "auto", where maps are unsafe. It says nothing of files at URLs."""
    if io not in ("auto", "map", "pread"):
        raise ValueError(f"io must be 'auto', 'map' or 'pread', got {io!r}")
    return io == "pread" or (io == "auto" and isinstance(path, Path) and _core.is_network_filesystem(str(path)))


def blocks_of_files(counts: Sequence[int], stride: int) -> Blocks:
    """Rows that are best read together: files of at most 64 MiB, where there are several, or else runs of about 8 MiB."""
    if len(counts) > 1 and max(counts) * stride <= 64 << 20:
        return Blocks.of_counts(counts)
    return Blocks(sum(counts), max(1, (8 << 20) // max(1, stride)))


class Rows:
    """A native reader of rows, and the threads that read with it. Rows of no bytes need no reader."""

    remote: RemoteFiles | None = None

    def __init__(self, reader: _core.RowReader | None, threads: int) -> None:
        self._reader, self._pool, self._closed = reader, _core.ThreadPool(threads), False

    def read(self, starts: IntArray, out: npt.NDArray[np.generic], run: int = 1) -> None:
        """Fill ``out`` with ``run`` rows from every start on."""
        if self._closed:
            raise ValueError("the source is closed")
        if self._reader is not None:
            self._reader.read(starts, run, out.reshape(-1).view(np.uint8), self._pool)

    def native(self) -> tuple[_core.RowReader, int] | None:
        """The native reader, as :meth:`penstock.Source.native_reader` gives it."""
        return None if self._reader is None else (self._reader, -1)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with rows [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        if self._closed:
            raise ValueError("the source is closed")
        if self._reader is not None:
            self._reader.read_spans(starts, offsets, out.reshape(-1).view(np.uint8), self._pool)

    def byte_ranges(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where rows [start, stop) lie: numbers of files, and bytes from and to in them."""
        raise TypeError("rows on this machine are not read by byte ranges")

    def close(self) -> None:
        """Let go of the files. Idempotent."""
        self._reader, self._closed = None, True


class RemoteRows(Rows):
    """Rows in files at URLs: the bytes of a read are held in memory while the native reader takes rows from there."""

    def __init__(self, files: Sequence[FileRows], stride: int, remote: RemoteFiles, threads: int) -> None:
        facts = _facts(files)[:, 1:]
        super().__init__(_core.RowReader.of_landings(remote.landings, facts.copy(), stride), threads)
        self.remote: RemoteFiles | None = remote
        self._stride, self._offsets = stride, facts[:, 0].astype(np.int64)
        self._ends = np.cumsum(facts[:, 1].astype(np.int64))

    def byte_ranges(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where rows [start, stop) lie: numbers of files, and bytes from and to in them."""
        starts, stops = _joined(starts, stops)
        first, last = np.searchsorted(self._ends, starts, side="right"), np.searchsorted(self._ends, stops - 1, side="right")
        pieces = last - first + 1  # of every run, one in each file
        run = np.repeat(np.arange(starts.size), pieces)
        number = np.arange(run.size) - np.repeat(np.cumsum(pieces) - pieces - first, pieces)
        begin = np.concatenate([[0], self._ends[:-1]])[number]
        low, high = np.maximum(starts[run], begin) - begin, np.minimum(stops[run], self._ends[number]) - begin
        some = high > low  # a run may pass files without rows
        number, low, high = number[some], low[some], high[some]
        return number, self._offsets[number] + low * self._stride, self._offsets[number] + high * self._stride

    def read(self, starts: IntArray, out: npt.NDArray[np.generic], run: int = 1) -> None:
        """Fill ``out`` with ``run`` rows from every start on."""
        rows = out.reshape(-1).view(np.uint8).reshape(starts.size, run * self._stride)
        for part in self._window().slices(starts * self._stride, (starts + run) * self._stride):
            with self._window().hold(*self.byte_ranges(starts[part], starts[part] + run)):
                super().read(starts[part], rows[part], run)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with rows [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        flat, stops = out.reshape(-1).view(np.uint8), starts + np.diff(offsets)
        for part in self._window().slices(starts * self._stride, stops * self._stride):
            edges = offsets[part.start : part.stop + 1]
            with self._window().hold(*self.byte_ranges(starts[part], stops[part])):
                inside = flat[edges[0] * self._stride : edges[-1] * self._stride]
                super().read_spans(starts[part], edges - edges[0], inside)

    def _window(self) -> RemoteFiles:
        if self.remote is None:
            raise ValueError("the source is closed")
        return self.remote

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        super().close()
        if self.remote is not None:
            self.remote.close()


def _joined(starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """Runs of rows, those that follow one another as one, and those of nothing left out."""
    some = stops > starts
    starts, stops = starts[some], stops[some]
    heads = np.flatnonzero(np.concatenate([np.ones(min(1, starts.size), np.bool_), starts[1:] != stops[:-1]]))
    return starts[heads], stops[np.concatenate([heads[1:], [starts.size]]) - 1] if starts.size else stops


def _facts(files: Sequence[FileRows]) -> npt.NDArray[np.uint64]:
    return np.array([[one.size, one.offset, one.rows] for one in files], np.uint64).reshape(-1, 3)


def reader_of_files(
    files: Sequence[FileRows], stride: int, *, pread: bool, threads: int, remote: RemoteOptions | None = None
) -> Rows:
    """Rows in files, one after the other. Nothing is opened before the first read. ``remote`` says how files at URLs are read."""
    if stride == 0:
        return Rows(None, threads)
    objects = [(one.path.path, one.path.info) for one in files if isinstance(one.path, RemoteFile)]
    if objects:
        return RemoteRows(files, stride, (remote or RemoteOptions()).open_files(objects), threads)
    return Rows(_core.RowReader([str(one.path) for one in files], _facts(files), stride, pread), threads)


def reader_of_memory(arrays: Sequence[npt.NDArray[np.generic]], *, threads: int) -> Rows:
    """Rows in arrays whose records are contiguous."""
    stride = arrays[0][:1].nbytes if len(arrays[0]) else int(np.prod(arrays[0].shape[1:])) * arrays[0].itemsize
    flat = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return Rows(_core.RowReader.of_memory(flat, stride) if stride else None, threads)
