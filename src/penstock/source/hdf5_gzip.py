"""Chunks of HDF5 compressed with gzip, decoded here by several threads, with the HDF5 library out of the way."""

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, SourceChangedError
from penstock.interfaces import IntArray
from penstock.source.arrow_group import Recent
from penstock.source.hdf5_layout import Part

__all__ = ["GzipRows"]

LEAST_CHUNKS = 4
"""For fewer chunks threads do not pay."""


class GzipRows:
    """The rows of data sets whose chunks hold whole rows and passed through gzip, perhaps after the shuffle filter. The chunks that
    were decoded last are kept. Safe to use from several threads, and after fork.
    """

    def __init__(self, threads: int, cache_bytes: int) -> None:
        self._threads, self._recent = threads, Recent(cache_bytes)

    def read(self, file: tuple[str, int], part: Part, ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows of a data set of one file, given by its path and size."""
        order = np.argsort(ids, kind="stable")
        ids, path = ids[order], file[0]
        edges = np.flatnonzero(np.diff(ids // part.rows, prepend=-1, append=-1)).tolist()
        with open(path, "rb", buffering=0) as opened:
            found = os.fstat(opened.fileno()).st_size
            if found != file[1]:
                raise SourceChangedError(f"{path}: expected {file[1]} bytes as at opening, found {found}; open it anew")

            def put(run: tuple[int, int]) -> None:
                low, high = run
                chunk = int(ids[low]) // part.rows
                rows = self._recent.get(((path, chunk), part.path), lambda: _load(opened.fileno(), path, part, chunk))
                out[order[low:high]] = rows[ids[low:high] - chunk * part.rows]

            self._each(put, list(pairwise(edges)))

    def _each(self, put: Callable[[tuple[int, int]], None], runs: list[tuple[int, int]]) -> None:
        if self._threads < 2 or len(runs) < LEAST_CHUNKS:
            for run in runs:
                put(run)
            return
        with ThreadPoolExecutor(min(self._threads, len(runs)), thread_name_prefix="penstock-hdf5") as pool:
            for _ in pool.map(put, runs):
                pass

    def close(self) -> None:
        """Forget what was decoded."""
        self._recent.clear()


def _load(descriptor: int, path: str, part: Part, chunk: int) -> tuple[npt.NDArray[Any], int]:
    where = f"{path}: data set {part.path!r}, chunk {chunk}"
    stored = os.pread(descriptor, int(part.sizes[chunk]), int(part.places[chunk]))
    try:
        data = zlib.decompressobj().decompress(stored, part.chunk_bytes + 1)
    except zlib.error as error:
        raise CorruptError(f"{where} cannot be decoded: {error}") from error
    if len(data) != part.chunk_bytes:
        raise CorruptError(f"{where}: expected {part.chunk_bytes} bytes, found {len(data)}")
    raw = np.frombuffer(data, np.uint8)
    if part.layout == "shuffled gzip":
        raw = np.ascontiguousarray(raw.reshape(part.dtype.itemsize, -1).T)
    rows: npt.NDArray[Any] = raw.reshape(-1).view(part.dtype).reshape(part.rows, *part.field.shape)
    return rows, rows.nbytes
