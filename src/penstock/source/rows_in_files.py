"""Rows of one size that lie in files as they are, or in memory: read by native threads, straight into the batch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.interfaces import IntArray

__all__ = ["FileRows", "Rows", "default_threads", "reader_of_files", "reader_of_memory", "use_pread"]


@dataclass(frozen=True)
class FileRows:
    """Where the rows of one file lie."""

    path: Path
    size: int
    offset: int
    rows: int


def default_threads(threads: int | None) -> int:
    """How many threads read, unless the user says so."""
    return threads or min(8, os.cpu_count() or 1)


def use_pread(io: str, path: Path) -> bool:
    """Whether files are read by pread, as ``io`` says or, for "auto", where maps are unsafe."""
    if io not in ("auto", "map", "pread"):
        raise ValueError(f"io must be 'auto', 'map' or 'pread', got {io!r}")
    return io == "pread" or (io == "auto" and _core.is_network_filesystem(str(path)))


class Rows:
    """A native reader of rows, and the threads that read with it. Rows of no bytes need no reader."""

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

    def close(self) -> None:
        """Let go of the files. Idempotent."""
        self._reader, self._closed = None, True


def reader_of_files(files: Sequence[FileRows], stride: int, *, pread: bool, threads: int) -> Rows:
    """Rows in files, one after the other. Nothing is opened before the first read."""
    facts = np.array([[one.size, one.offset, one.rows] for one in files], np.uint64).reshape(-1, 3)
    reader = _core.RowReader([str(one.path) for one in files], facts, stride, pread) if stride else None
    return Rows(reader, threads)


def reader_of_memory(arrays: Sequence[npt.NDArray[np.generic]], *, threads: int) -> Rows:
    """Rows in arrays whose records are contiguous."""
    stride = arrays[0][:1].nbytes if len(arrays[0]) else int(np.prod(arrays[0].shape[1:])) * arrays[0].itemsize
    flat = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return Rows(_core.RowReader.of_memory(flat, stride) if stride else None, threads)
