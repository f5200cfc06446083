"""The bytes of Arrow buffers, in files or in memory, addressed as one long run and read by native threads."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray
from penstock.records import empty
from penstock.source.limit import MAX_BLOCK_BYTES
from penstock.source.rows_in_files import FileRows, Rows, reader_of_files, reader_of_memory, use_pread

__all__ = ["BufferMemory", "Bytes", "FileMemory", "Memory", "NotInFileError", "gather_spans", "ranges"]

Bytes = npt.NDArray[np.uint8]


class NotInFileError(Exception):
    """A buffer that is not in the file as it is, because it was decompressed or converted."""


class Memory(ABC):
    """Place buffers first, then ``seal``, then read. Sealed memory is safe to use from several threads and after fork."""

    _rows: Rows
    max_block_bytes = MAX_BLOCK_BYTES
    """What a batch of nested records may take."""

    @abstractmethod
    def place(self, buffer: Any) -> int:
        """The address of the first byte of an Arrow buffer."""

    @abstractmethod
    def seal(self) -> None:
        """No more buffers will come."""

    def read(self, addresses: IntArray, size: int) -> Bytes:
        """``size`` bytes from every address on, a row for each."""
        out = empty((addresses.size, size), np.dtype(np.uint8))
        self._rows.read(addresses, out, size)
        return out

    def fill(self, addresses: IntArray, out: npt.NDArray[Any], size: int) -> None:
        """``size`` bytes from every address on, one after the other in ``out``."""
        self._rows.read(addresses, out, size)

    def bits(self, places: IntArray) -> npt.NDArray[np.bool_]:
        """Bits by their number from the first bit of the memory on."""
        found = self.read(places >> 3, 1).reshape(-1) >> (places & 7).astype(np.uint8)
        return (found & 1).astype(np.bool_)

    def null_bits(self, array: Any) -> int:
        """Place the bits that say which elements of an array are there: the number of the first, or -1 if no element is null."""
        bitmap = array.buffers()[0] if array.null_count else None
        return -1 if bitmap is None else 8 * self.place(bitmap) + int(array.offset)

    def spans(self, addresses: IntArray, sizes: IntArray) -> Bytes:
        """So many bytes from every address on, one after the other."""
        return gather_spans(self._rows, addresses, sizes)

    def close(self) -> None:
        """Nothing can be read any more. Idempotent."""
        self._rows.close()


class BufferMemory(Memory):
    """Buffers that lie in memory. They are kept alive, not copied."""

    def __init__(self, threads: int) -> None:
        self._threads, self._end = threads, 0
        self._places: dict[tuple[int, int], int] = {}
        self._arrays: list[Bytes] = []

    def place(self, buffer: Any) -> int:
        """The address of a buffer; one that comes again has the address it had."""
        key = (buffer.address, buffer.size)
        if key not in self._places:
            self._places[key] = self._end
            if buffer.size:
                self._arrays.append(np.frombuffer(buffer, np.uint8))
                self._end += buffer.size
        return self._places[key]

    def seal(self) -> None:
        """Read from what was placed."""
        self._rows = reader_of_memory(self._arrays or [np.empty(0, np.uint8)], threads=self._threads)
        self._places, self._arrays = {}, []


class FileMemory(Memory):
    """Buffers that lie in files as they are. The files are opened again when they are read, never through Arrow."""

    def __init__(self, threads: int) -> None:
        self._threads, self._end = threads, 0
        self._files: list[FileRows] = []

    def add_file(self, path: str, whole: Any) -> None:
        """Buffers placed from now on lie in this file, which may be a link; ``whole`` is the buffer of all its bytes."""
        self._start, self._base, self._size = whole.address, self._end, whole.size
        self._files.append(FileRows(Path(os.path.realpath(path)), whole.size, 0, whole.size))
        self._end += whole.size

    def place(self, buffer: Any) -> int:
        """The address of a buffer. NotInFileError if it is not part of the file."""
        offset: int = buffer.address - self._start
        if buffer.size == 0:
            return self._base
        if offset < 0 or offset + buffer.size > self._size:
            raise NotInFileError
        return self._base + offset

    def seal(self) -> None:
        """Read from the files that were added."""
        self._rows = reader_of_files(self._files, 1, pread=use_pread("auto", self._files[0].path), threads=self._threads)


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """start, start + 1, ... of every start, one after the other."""
    ends = np.cumsum(lengths)
    places: IntArray = np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def gather_spans(rows: Rows, addresses: IntArray, sizes: IntArray) -> Bytes:
    """Runs of different sizes, one after the other. ``rows`` has rows of one byte."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = empty((int(offsets[-1]),), np.dtype(np.uint8))
    rows.read_spans(addresses, offsets, out)
    return out
