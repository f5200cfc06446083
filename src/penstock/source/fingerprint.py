"""Fingerprints of data that has no digest of its own: equal on every host that has the same bytes, and cheap."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.source.paths import reading

__all__ = ["SAMPLE_BYTES", "fingerprint_arrays", "fingerprint_files", "fingerprint_of", "fingerprint_samples", "sample_ranges"]

SAMPLE_BYTES = 4096
"""What is looked at of a large file: so many bytes at its beginning, in its middle and at its end."""

WHOLE_BYTES = 1 << 16


def fingerprint_of(*parts: object) -> str:
    """The digest of texts and numbers; neither can be mistaken for the other."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def fingerprint_files(kind: str, paths: Iterable[str | Path], *more: object) -> str:
    """The digest of files: names, sizes and samples of their bytes. Directories and times do not count, so copies are equal."""
    return fingerprint_samples(kind, map(_read_samples, paths), *more)


def fingerprint_samples(kind: str, files: Iterable[tuple[str, int, Iterable[bytes]]], *more: object) -> str:
    """The same of files that were read elsewhere: names, sizes, and the bytes at the :func:`sample_ranges` of that size."""
    digest = hashlib.sha256(repr((kind, more)).encode())
    for name, size, samples in files:
        digest.update(repr((name, size)).encode())
        for sample in samples:
            digest.update(sample)
    return digest.hexdigest()


def sample_ranges(size: int) -> list[tuple[int, int]]:
    """What is looked at of a file: from byte, to byte."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    return [(start, start + SAMPLE_BYTES) for start in (0, size // 2, size - SAMPLE_BYTES)]


def _read_samples(path: str | Path) -> tuple[str, int, list[bytes]]:
    with reading(path), open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        samples = [os.pread(file.fileno(), stop - start, start) for start, stop in sample_ranges(size)]
        return Path(path).name, size, samples


def fingerprint_arrays(kind: str, arrays: Iterable[npt.NDArray[np.generic]], *more: object) -> str:
    """The digest of arrays: types, shapes and samples of their bytes."""
    digest = hashlib.sha256(repr((kind, more)).encode())
    for array in arrays:
        digest.update(repr((array.dtype.str, array.dtype.name, array.shape)).encode())
        rows = max(1, WHOLE_BYTES // max(1, array.nbytes // max(1, len(array))))
        for offset in sorted({0, max(0, len(array) // 2 - rows // 2), max(0, len(array) - rows)}):
            digest.update(np.ascontiguousarray(array[offset : offset + rows]).tobytes())
    return digest.hexdigest()
