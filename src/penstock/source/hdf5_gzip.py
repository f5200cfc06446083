"""Chunks of HDF5 compressed with gzip, decoded here by several threads. HDF5 itself decodes one at a time."""

import math
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray

__all__ = ["GzipChunks"]

SHUFFLE, DEFLATE = 2, 1
LEAST_CHUNKS = 4
"""For fewer chunks threads do not pay."""


class GzipChunks:
    """The chunks of one data set, which hold whole rows and passed through gzip, perhaps after the shuffle filter."""

    def __init__(self, data: Any, threads: int) -> None:
        self._id, self._dtype, self._chunks, self._threads = data.id, data.dtype, data.chunks, threads
        self._bytes = math.prod(data.chunks) * data.dtype.itemsize
        self._is_shuffled = _filters(data)[0] == SHUFFLE

    @classmethod
    def of(cls, data: Any, threads: int) -> "GzipChunks | None":
        """None if the data set is of another kind."""
        if data.chunks is None or data.chunks[1:] != data.shape[1:] or data.dtype.hasobject or threads < 2:
            return None
        return cls(data, threads) if _filters(data) in ([DEFLATE], [SHUFFLE, DEFLATE]) else None

    def begin(self, ids: IntArray, places: IntArray, out: npt.NDArray[Any]) -> Callable[[], None] | None:
        """Load the chunks of ``ids``, which are sorted. What is returned decodes them, without h5py, and puts rows to ``places``.

        None if there are too few chunks, or one of them is stored in another way.
        """
        rows = self._chunks[0]
        edges = np.flatnonzero(np.diff(ids // rows, prepend=-1, append=-1)).tolist()
        if len(edges) <= LEAST_CHUNKS:
            return None
        work = []
        for low, high in pairwise(edges):
            first = int(ids[low]) // rows * rows
            try:
                mask, stored = self._id.read_direct_chunk((first, *[0] * (len(self._chunks) - 1)))
            except (OSError, RuntimeError, ValueError):
                return None  # it was never written
            if mask:
                return None
            work.append((stored, ids[low:high] - first, places[low:high]))
        return lambda: self._finish(work, out)

    def _finish(self, work: list[tuple[bytes, IntArray, IntArray]], out: npt.NDArray[Any]) -> None:
        def put(one: tuple[bytes, IntArray, IntArray]) -> None:
            stored, rows, places = one
            out[places] = self._decode(stored)[rows]

        with ThreadPoolExecutor(min(self._threads, len(work)), thread_name_prefix="penstock-hdf5") as pool:
            for _ in pool.map(put, work):
                pass

    def _decode(self, stored: bytes) -> npt.NDArray[Any]:
        try:
            data = zlib.decompressobj().decompress(stored, self._bytes + 1)
        except zlib.error as error:
            raise ValueError(f"a chunk cannot be decoded: {error}") from error
        if len(data) != self._bytes:
            raise ValueError(f"expected a chunk of {self._bytes} bytes, found one of {len(data)}")
        raw = np.frombuffer(data, np.uint8)
        if self._is_shuffled:
            raw = np.ascontiguousarray(raw.reshape(self._dtype.itemsize, -1).T)
        rows: npt.NDArray[Any] = raw.reshape(-1).view(self._dtype).reshape(self._chunks)
        return rows


def _filters(data: Any) -> list[int]:
    recipe = data.id.get_create_plist()
    return [recipe.get_filter(i)[0] for i in range(recipe.get_nfilters())]
