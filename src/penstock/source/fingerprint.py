"""Fingerprints of data that has no digest of its own: equal on every host that has the same bytes, and cheap."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import MissingError

__all__ = ["SAMPLE_BYTES", "fingerprint_arrays", "fingerprint_files", "fingerprint_of"]

SAMPLE_BYTES = 4096
"""What is looked at of a large file: so many bytes at its beginning, in its middle and at its end."""

WHOLE_BYTES = 1 << 16


def fingerprint_of(*parts: object) -> str:
    """The digest of texts and numbers; neither can be mistaken for the other."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def fingerprint_files(kind: str, paths: Iterable[str | Path], *more: object) -> str:
    """The digest of files: names, sizes and samples of their bytes. Directories and times do not count, so copies are equal."""
    digest = hashlib.sha256(repr((kind, more)).encode())
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise MissingError(error.errno, error.strerror, str(path)) from error
        try:
            size = os.fstat(descriptor).st_size
            digest.update(repr((Path(path).name, size)).encode())
            for offset, count in _samples(size):
                digest.update(os.pread(descriptor, count, offset))
        finally:
            os.close(descriptor)
    return digest.hexdigest()


def fingerprint_arrays(kind: str, arrays: Iterable[npt.NDArray[np.generic]], *more: object) -> str:
    """The digest of arrays: types, shapes and samples of their bytes."""
    digest = hashlib.sha256(repr((kind, more)).encode())
    for array in arrays:
        digest.update(repr((array.dtype.str, array.dtype.name, array.shape)).encode())
        rows = max(1, WHOLE_BYTES // max(1, array.nbytes // max(1, len(array))))
        for offset in sorted({0, max(0, len(array) // 2 - rows // 2), max(0, len(array) - rows)}):
            digest.update(np.ascontiguousarray(array[offset : offset + rows]).tobytes())
    return digest.hexdigest()


def _samples(size: int) -> list[tuple[int, int]]:
    if size <= WHOLE_BYTES:
        return [(0, size)]
    return [(0, SAMPLE_BYTES), (size // 2, SAMPLE_BYTES), (size - SAMPLE_BYTES, SAMPLE_BYTES)]
