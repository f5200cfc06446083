"""limit.c from Python: what the machine can do, to measure against."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Crew", "Decoder", "Frames", "Gather", "address", "page_of"]

SOURCE = Path(__file__).with_name("limit.c")
_Address = ctypes.c_void_p
_Size = ctypes.c_size_t


def address(array: npt.NDArray[Any]) -> int:
    """Where an array lies."""
    return array.ctypes.data


def page_of(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros that begin where a page of memory does.

    Large arrays of numpy begin 16 bytes later, and a processor may copy from the start of one page to 16 bytes after that of
    another at half its speed (`rep movsb` on Zen 3: 1,040 instead of 470 us for 64 records of 150 KB).
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 4096, np.uint8)
    start = -address(room) % 4096
    return room[start : start + size].view(dtype).reshape(shape)


class _Column(ctypes.Structure):
    _fields_ = (("stride", _Size), ("from_", _Address), ("to", _Address))


class Crew:
    """Threads that gather, decode and encode; between calls they stay awake for ``spins`` looks at the next job.

    The library is compiled into a temporary directory and loaded from there.
    """

    def __init__(self, threads: int, *, spins: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory) / "limit.so"
            compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
            command = [compiler, "-std=c11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*command, str(SOURCE), "-o", str(library), "-lzstd"], check=True)
            self._c = ctypes.CDLL(str(library))
        self._c.crew_start.restype = _Address
        self._c.crew_stop.argtypes = (_Address,)
        self._c.crew_gather.argtypes = (_Address, _Address, _Size, _Address, _Size, ctypes.c_int)
        self._c.crew_decode.argtypes = (_Address, _Address, _Size, *[_Address] * 5)
        self._c.crew_encode_room.argtypes, self._c.crew_encode_room.restype = (_Address, _Size), _Size
        self._c.crew_encode.argtypes = (_Address, ctypes.c_int, _Address, _Address, _Size, _Address, _Address)
        self._c.close_gaps.argtypes, self._c.close_gaps.restype = (_Address, _Size, _Address, _Address), _Size
        self.threads = threads
        self._handle = self._c.crew_start(threads, spins)
        assert self._handle, "the threads did not start"

    def close(self) -> None:
        if self._handle:
            self._c.crew_stop(self._handle)
        self._handle = None

    def gather(self, columns: Mapping[str, npt.NDArray[Any]], batch: int, *, ahead: bool) -> "Gather":
        """A gather from rows of arrays into arrays of its own, ``batch`` at a time."""
        return Gather(self._c, self._handle, columns, batch, ahead=ahead)

    def encode(self, level: int, values: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> "Frames":
        """A zstd frame per record."""
        return Frames(self._c, self._handle, level, values, offsets)


class Gather:
    """Call it with the address of the ids; the records are in ``out``."""

    def __init__(self, c: ctypes.CDLL, handle: int, columns: Mapping[str, npt.NDArray[Any]], batch: int, *, ahead: bool) -> None:
        self.out = {name: page_of((batch, *data.shape[1:]), data.dtype) for name, data in columns.items()}
        pairs = [(data.strides[0], address(data), address(self.out[name])) for name, data in columns.items()]
        self._columns = (_Column * len(pairs))(*pairs)
        self._call, self._fixed = c.crew_gather, (batch, ctypes.addressof(self._columns), len(pairs), int(ahead))
        self._handle, self._sources = handle, columns

    def __call__(self, ids: int) -> Mapping[str, npt.NDArray[Any]]:
        self._call(self._handle, ids, *self._fixed)
        return self.out


class Frames:
    """Records compressed one by one, and their decoding. ``encode`` may be called again, to be timed."""

    def __init__(
        self, c: ctypes.CDLL, handle: int, level: int, values: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> None:
        self._c, self._handle, self._level, self._values, self._offsets = c, handle, level, values, offsets
        self._count = offsets.size - 1
        self._slots = np.zeros(c.crew_encode_room(address(offsets), self._count), np.uint8)
        self.ends = np.zeros(self._count, np.uint64)
        self.lengths = np.diff(offsets).astype(np.uint32)
        self.frames = np.empty(0, np.uint8)

    def encode(self) -> None:
        """Compress all records."""
        where = (address(self._values), address(self._offsets), self._count, address(self._slots), address(self.ends))
        self._c.crew_encode(self._handle, self._level, *where)

    def keep(self, path: Path) -> None:
        """The frames of the last ``encode`` in a mapped file, one after the other."""
        size = self._c.close_gaps(address(self._offsets), self._count, address(self._slots), address(self.ends))
        assert size > 0, "zstd failed"
        self._slots[:size].tofile(path)
        self.take(np.memmap(path, np.uint8, mode="r"), self.ends)

    def take(self, frames: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint64]) -> None:
        """Decode these frames from now on, one after the other; ``ends`` says where each ends."""
        self.frames, self.ends = frames, ends
        self._slots = np.empty(0, np.uint8)

    def decoder(self, batch: int) -> "Decoder":
        """A decoding of ``batch`` records at a time into memory of its own."""
        return Decoder(self._c, self._handle, self, batch)


class Decoder:
    """Call it with the address of the ids; bytes and offsets are in ``values`` and ``offsets``."""

    def __init__(self, c: ctypes.CDLL, handle: int, frames: Frames, batch: int) -> None:
        self._frames, self._handle, self._call = frames, handle, c.crew_decode
        self.values = np.zeros(int(np.sort(frames.lengths)[-batch:].sum()), np.uint8)
        self.offsets = np.zeros(batch + 1, np.int64)
        where = (frames.frames, frames.ends, frames.lengths, self.values, self.offsets)
        self._fixed = (batch, *(address(array) for array in where))

    def __call__(self, ids: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        if self._call(self._handle, ids, *self._fixed) != 0:
            raise RuntimeError("zstd failed")
        return self.values[: self.offsets[-1]], self.offsets
