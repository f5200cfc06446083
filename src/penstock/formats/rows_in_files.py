"""Rows of one size that are in files as they are, or in memory: read by native threads, straight into the batch.

:class:`RowSource` is what sources of such files share.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.formats.files import File, Files, FileSource, RemoteFile, need_file
from penstock.native import _core
from penstock.records import NOWHERE, Blocks, Extents, joined_extents
from penstock.remote.window import RemoteFiles, RemoteOptions

__all__ = [
    "BLOCK_BYTES",
    "FileRows",
    "RowSource",
    "Rows",
    "Version",
    "cut_runs",
    "default_threads",
    "reader_of_files",
    "reader_of_memory",
    "version_of",
    "window_on",
]

BLOCK_BYTES = 8 << 20
"""Bytes of a run of rows that is best read together: one request, where files are at a URL."""

Version = tuple[int, int, int]
"""Which file a name stands for, and when it was written last: device, inode, nanoseconds."""


def version_of(file: File | Path) -> Version | None:
    """The version of a file on disk, to be asked before its bytes are looked at. Objects at URLs have versions of their own."""
    if isinstance(file, RemoteFile):
        return None
    info = need_file(file if isinstance(file, Path) else file.path)
    return info.st_dev, info.st_ino, info.st_mtime_ns


@dataclass(frozen=True, slots=True)
class FileRows:
    """Where the rows of one file are: from ``offset`` on, or in pieces if there are several offsets. Only the version that was
    looked at is read, if it is known.
    """

    path: Path | RemoteFile
    size: int
    offset: int | IntArray
    rows: int | IntArray
    version: Version | None = None

    @classmethod
    def of(cls, file: File, size: int, offset: int, rows: int, version: Version | None) -> "FileRows":
        """Of a file that was looked at; links are followed, once and for all."""
        path = file if isinstance(file, RemoteFile) else Path(os.path.realpath(file.path))
        return cls(path, size, offset, rows, version)

    @classmethod
    def whole(cls, file: File) -> "FileRows":
        """All bytes of a file, which may have none, as rows of one."""
        if isinstance(file, RemoteFile):
            return cls(file, file.info.size, 0, file.info.size)
        info = need_file(file.path)
        return cls.of(file, info.st_size, 0, info.st_size, (info.st_dev, info.st_ino, info.st_mtime_ns))


def default_threads(threads: int | None) -> int:
    """How many threads read, unless the user says so."""
    return threads or min(8, os.cpu_count() or 1)


class Rows:
    """A native reader of rows, and the threads that read with it. Rows of no bytes need no reader."""

    remote: RemoteFiles | None = None
    is_direct = False
    """Whether they are read past the page cache."""

    def __init__(
        self,
        reader: _core.RowReader | None,
        threads: int,
        places: "_Places | None" = None,
        widen: Callable[[int], _core.RowReader] | None = None,
    ) -> None:
        """``widen`` gives a reader whose rows are N of these, where no file ends within one."""
        self._reader, self._pool, self._closed = reader, _core.ThreadPool(threads), False
        self._places, self._widen = places, widen
        self._wide: dict[int, _core.RowReader] = {}

    def read(self, starts: IntArray, out: npt.NDArray[np.generic], run: int = 1) -> None:
        """Fill ``out`` with ``run`` rows from every start on."""
        pool = self.pool
        if self._reader is not None:
            self._reader.read(starts, run, out.reshape(-1).view(np.uint8), pool)

    def native(self, run: int = 1) -> tuple[_core.RowReader, int] | None:
        """The native reader of rows, or of every ``run`` of them as one, as :meth:`penstock.Source.native_reader` gives it."""
        if self._reader is None or run == 1:
            return None if self._reader is None else (self._reader, -1)
        if self._widen is None:
            return None
        if run not in self._wide:
            self._wide[run] = self._widen(run)
        return self._wide[run], -1

    def native_runs(self, bounds: IntArray, batch_bytes: int) -> tuple[_core.VaryingReader, int] | None:
        """The native reader of records that are runs of rows, [bounds[i], bounds[i + 1])."""
        return None if self._reader is None else (self._reader.runs(bounds, batch_bytes), -1)

    @property
    def pool(self) -> _core.ThreadPool:
        """The threads. ValueError if the source is closed."""
        if self._closed:
            raise ValueError("the source is closed")
        return self._pool

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with rows [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        pool = self.pool
        if self._reader is not None:
            self._reader.read_spans(starts, offsets, out.reshape(-1).view(np.uint8), pool)

    @property
    def paths(self) -> Sequence[str]:
        """The files on a disk of this machine."""
        return () if self._places is None or self.remote is not None else self._places.names

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where rows [start, stop) are: numbers of files, and bytes from and to in them."""
        return NOWHERE if self._places is None else self._places.ranges(starts, stops)

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._reader, self._closed, self._wide = None, True, {}


class RemoteRows(Rows):
    """Rows in files at URLs: the bytes of a read are held in memory while the native reader takes rows from there."""

    def __init__(self, files: Sequence[FileRows], stride: int, remote: RemoteFiles, threads: int) -> None:
        self._owners = np.repeat(np.arange(len(files)), [_num_pieces(one) for one in files])  # the file of each piece
        landings = [remote.landings[number] for number in self._owners.tolist()]

        def widen(run: int) -> _core.RowReader:
            return _core.RowReader.of_landings(landings, _facts(files, run)[:, 1:3].copy(), run * stride)

        super().__init__(widen(1), threads, _Places.of(files, stride), widen)
        self.remote: RemoteFiles = remote
        self._stride = stride

    def read(self, starts: IntArray, out: npt.NDArray[np.generic], run: int = 1) -> None:
        rows = out.reshape(-1).view(np.uint8).reshape(starts.size, run * self._stride)
        for part in self.remote.slices(starts * self._stride, (starts + run) * self._stride):
            with self.remote.hold(*self.extents(starts[part], starts[part] + run)):
                super().read(starts[part], rows[part], run)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[np.generic]) -> None:
        flat, stops = out.reshape(-1).view(np.uint8), starts + np.diff(offsets)
        for part in self.remote.slices(starts * self._stride, stops * self._stride):
            edges = offsets[part.start : part.stop + 1]
            with self.remote.hold(*self.extents(starts[part], stops[part])):
                inside = flat[edges[0] * self._stride : edges[-1] * self._stride]
                super().read_spans(starts[part], edges - edges[0], inside)

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        pieces, low, high = super().extents(starts, stops)
        return self._owners[pieces], low, high

    def close(self) -> None:
        super().close()
        self.remote.close()


@dataclass(frozen=True)
class _Places:
    """Where rows are in files."""

    names: Sequence[str]
    offsets: IntArray
    ends: IntArray
    stride: int

    @classmethod
    def of(cls, files: Sequence[FileRows], stride: int) -> "_Places":
        """Of the rows of files, one after the other."""
        facts = _facts(files)[:, :3].astype(np.int64)
        names = [name for one in files for name in [str(one.path)] * _num_pieces(one)]
        return cls(names, facts[:, 1], np.cumsum(facts[:, 2]), stride)

    def ranges(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Of rows [start, stop): numbers of files, and bytes from and to in them."""
        number, low, high = cut_runs(*_joined(starts, stops), self.ends)
        begin = np.concatenate([[0], self.ends[:-1]])[number]
        low, high = low - begin, high - begin
        return number, self.offsets[number] + low * self.stride, self.offsets[number] + high * self.stride


def cut_runs(starts: IntArray, stops: IntArray, ends: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs of rows in pieces, one in each file: its number, and the rows from and to. ``ends``: the row behind the last of each."""
    first, last = np.searchsorted(ends, starts, side="right"), np.searchsorted(ends, stops - 1, side="right")
    pieces = last - first + 1
    run = np.repeat(np.arange(starts.size), pieces)
    number = np.arange(run.size) - np.repeat(np.cumsum(pieces) - pieces - first, pieces)
    begin = np.concatenate([[0], ends[:-1]])[number]
    low, high = np.maximum(starts[run], begin), np.minimum(stops[run], ends[number])
    some = high > low  # a run may pass files without rows
    return number[some], low[some], high[some]


def _joined(starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """Runs of rows, those that follow one another as one, and those of nothing left out."""
    some = stops > starts
    starts, stops = starts[some], stops[some]
    heads = np.flatnonzero(np.concatenate([np.ones(min(1, starts.size), np.bool_), starts[1:] != stops[:-1]]))
    return starts[heads], stops[np.concatenate([heads[1:], [starts.size]]) - 1] if starts.size else stops


def _num_pieces(file: FileRows) -> int:
    return 1 if isinstance(file.rows, int) else int(np.size(file.rows))


def _facts(files: Sequence[FileRows], run: int = 1) -> npt.NDArray[np.uint64]:
    """Size, offset, rows (each ``run`` of them as one) and version of every piece; a version that is not known is zeros."""
    facts = np.empty((sum(_num_pieces(one) for one in files), 6), np.uint64)
    is_plain = all(isinstance(one.rows, int) and isinstance(one.offset, int) for one in files)
    if is_plain:  # of a million files in a tenth of the time
        facts[:, :3] = [(one.size, one.offset, one.rows) for one in files]
        facts[:, 3:] = [[word % 2**64 for word in one.version] if one.version else (0, 0, 0) for one in files]
    low = 0
    for one in () if is_plain else files:
        piece = facts[low : low + _num_pieces(one)]
        piece[:, 0], piece[:, 1], piece[:, 2] = one.size, one.offset, one.rows
        piece[:, 3:] = [word % 2**64 for word in one.version or (0, 0, 0)]
        low += len(piece)
    if run > 1:
        if np.any(facts[:, 2] % run):
            raise ValueError(f"expected files of a multiple of {run} rows")
        facts[:, 2] //= run
    return facts


def window_on(files: Sequence[File], remote: RemoteOptions | None) -> RemoteFiles | None:
    """Files at URLs in one window, for several readers of them; None if they are on disk."""
    objects = [file for file in files if isinstance(file, RemoteFile)]
    return _open_window(objects, remote) if objects else None


def _open_window(objects: Sequence[RemoteFile], remote: RemoteOptions | None) -> RemoteFiles:
    return (remote or RemoteOptions()).open_files([(one.path, one.info) for one in objects])


def reader_of_files(
    files: Sequence[FileRows], stride: int, *, access: str, threads: int, remote: RemoteOptions | RemoteFiles | None = None
) -> Rows:
    """Rows in files, one after the other. Nothing is opened before the first read. ``remote`` says how files at URLs are read, or
    is a window on these files, one for each of ``files``, which is closed with the rows.
    """
    if stride == 0:
        return Rows(None, threads)
    objects = [one.path for one in files if isinstance(one.path, RemoteFile)]
    if objects:
        return RemoteRows(files, stride, remote if isinstance(remote, RemoteFiles) else _open_window(objects, remote), threads)
    files = [
        one if one.version or isinstance(one.path, RemoteFile) else replace(one, version=version_of(one.path)) for one in files
    ]
    places = _Places.of(files, stride)

    def widen(run: int) -> _core.RowReader:
        return _core.RowReader(places.names, _facts(files, run), run * stride, access)

    rows = Rows(widen(1), threads, places, widen)
    rows.is_direct = access == "direct"
    return rows


def reader_of_memory(arrays: Sequence[npt.NDArray[np.generic]], *, threads: int) -> Rows:
    """Rows in arrays whose records are contiguous."""
    stride = arrays[0][:1].nbytes if len(arrays[0]) else int(np.prod(arrays[0].shape[1:])) * arrays[0].itemsize
    flat = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return Rows(_core.RowReader.of_memory(flat, stride) if stride else None, threads)


def extents_of_all(fields: Sequence[Rows], starts: IntArray, stops: IntArray) -> Extents:
    """Where rows of several fields are, each in files of its own: the files are those of the first field, then of the next."""
    bases = np.cumsum([0, *(len(rows.paths) for rows in fields)])
    found = [rows.extents(starts, stops) for rows in fields]
    return joined_extents((numbers + base, low, high) for base, (numbers, low, high) in zip(bases.tolist(), found, strict=False))


class RowSource(FileSource):
    """A source whose records are in files, one file after the other: ``counts`` of them, of about ``record_bytes``, which is the
    most if they have one size.
    """

    def __init__(self, files: Files, counts: Sequence[int], record_bytes: int, rows: Rows) -> None:
        self._files, self._counts, self._record_bytes, self._rows = files, counts, record_bytes, rows
        self._length = sum(counts)

    def __len__(self) -> int:
        return self._length

    @property
    def blocks(self) -> Blocks:
        """The files, where there are several of at most 64 MiB; runs of about 8 MiB otherwise."""
        if len(self._counts) > 1 and max(self._counts) * self._record_bytes <= 64 << 20:
            return Blocks.of_counts(self._counts)
        return Blocks(self._length, max(1, BLOCK_BYTES // max(1, self._record_bytes)))

    @property
    def reads_blocks(self) -> bool:
        """At a URL, where a record costs a request."""
        return self._files.is_remote

    @property
    def remote(self) -> RemoteFiles | None:
        return self._rows.remote

    @property
    def paths(self) -> Sequence[str]:
        return self._rows.paths

    @property
    def is_direct(self) -> bool:
        return self._rows.is_direct

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        return self._rows.extents(starts, stops)

    def close(self) -> None:
        self._rows.close()
