"""Fingerprints of data that has no digest of its own, equal on every host that has the same bytes.

There are two, and :func:`penstock.records.is_same_data` says which one is compared when:

* the *fingerprint*: names, sizes, and three pages of each file. States, pickles and collections of version 1 carry it; it is cheap
  enough for data at URLs, and for opening many files
* the *sample digests* (:class:`~penstock.records.Sampling`): sizes, and pages spread over all files; no names
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.records import Sampling
from penstock.system import SIZE, file_version, is_settled, reading

__all__ = [
    "SAMPLE_BYTES",
    "digest_arrays",
    "digest_files",
    "digest_sampled",
    "fingerprint_arrays",
    "fingerprint_files",
    "fingerprint_of",
    "fingerprint_samples",
    "page_ranges",
    "sample_ranges",
    "shares_of",
    "spread",
]

SAMPLE_BYTES = 4096
"""Bytes of a page."""

WHOLE_BYTES = 1 << 16

FEW_PAGES = 3
"""The least that is looked at of a file: at its beginning, in its middle and at its end."""


def fingerprint_of(*parts: object) -> str:
    """The digest of texts and numbers; neither can be mistaken for the other."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# Fingerprints: names, sizes, three pages


def fingerprint_files(kind: str, paths: Iterable[str | Path], *more: object) -> str:
    """The digest of files: names, sizes and samples of their bytes. Directories and times do not count, so copies are equal."""
    return fingerprint_samples(kind, map(_read_samples, paths), *more)


def fingerprint_samples(kind: str, files: Iterable[tuple[str, int, Iterable[bytes]]], *more: object) -> str:
    """The same for files that another reader has read: names, sizes, and the bytes at the :func:`sample_ranges` of that size."""
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
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        return Path(path).name, size, [os.pread(descriptor, stop - start, start) for start, stop in sample_ranges(size)]


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    with reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def fingerprint_arrays(kind: str, arrays: Iterable[npt.NDArray[np.generic]], *more: object) -> str:
    """The digest of arrays: types, shapes and samples of their bytes."""
    digest = hashlib.sha256(repr((kind, more)).encode())
    for array in arrays:
        digest.update(repr((array.dtype.str, array.dtype.name, array.shape)).encode())
        rows = max(1, WHOLE_BYTES // max(1, array.nbytes // max(1, len(array))))
        for offset in sorted({0, max(0, len(array) // 2 - rows // 2), max(0, len(array) - rows)}):
            digest.update(np.ascontiguousarray(array[offset : offset + rows]).tobytes())
    return digest.hexdigest()


# Sample digests: sizes, and pages spread over all files


def spread(count: int, places: int) -> list[int]:
    """Up to ``places`` of ``count`` things: the first, the last, and one of each of as many equal runs between them.

    The place within a run changes from run to run, by fixed arithmetic, so that no period in the data can hide between them.
    """
    if count <= places:
        return list(range(count))
    inner, runs = count - 2, places - 2
    edges = [1 + inner * run // runs for run in range(runs + 1)]
    between = [low + ((run * 0x9E3779B1 % 2**32) * (edges[run + 1] - low) >> 32) for run, low in enumerate(edges[:-1])]
    return [0, *between, count - 1]


def page_ranges(size: int, pages: int) -> list[tuple[int, int]]:
    """What a sample digest looks at of a file: from byte, to byte."""
    if pages <= FEW_PAGES:
        return sample_ranges(size)
    count = -(-size // SAMPLE_BYTES)
    if count <= pages:
        return [(0, size)]
    return [(page * SAMPLE_BYTES, min(size, (page + 1) * SAMPLE_BYTES)) for page in spread(count, pages)]


def shares_of(sizes: Sequence[int], pages: int) -> list[int]:
    """How many pages each file gives: in proportion to its size, and at least three."""
    total = max(1, sum(sizes))
    return [max(FEW_PAGES, pages * size // total) for size in sizes]


def digest_files(kind: str, paths: Sequence[str | Path], sampling: Sampling, *more: object) -> str:
    """The sample digest of files. Names and times do not count; the order of the files does.

    That of a file is remembered in this process until its size, times or inode change.
    """
    stamps = [file_version(path) for path in paths]
    sizes = [stamp[SIZE] for stamp in stamps]
    shares = shares_of(sizes, sampling.pages)
    found = [_digest_of(path, stamp, pages) for path, stamp, pages in zip(paths, stamps, shares, strict=True)]
    return digest_sampled(kind, zip(sizes, found, strict=True), *more)


def digest_sampled(kind: str, files: Iterable[tuple[int, str]], *more: object) -> str:
    """The same for files that another reader has read: sizes, and digests of the bytes at their :func:`page_ranges`."""
    return fingerprint_of(kind, more, list(files))


def _digest_of(path: str | Path, stamp: tuple[int, ...], pages: int) -> str:
    return _remembered(os.path.abspath(path), stamp, pages) if is_settled(stamp) else _digest_file(path, stamp[SIZE], pages)


@lru_cache(maxsize=1 << 14)
def _remembered(path: str, stamp: tuple[int, ...], pages: int) -> str:
    return _digest_file(path, stamp[SIZE], pages)


def _digest_file(path: str | Path, size: int, pages: int) -> str:
    digest = hashlib.sha256()
    with _opened(path) as descriptor:
        for start, stop in page_ranges(size, pages):
            digest.update(os.pread(descriptor, stop - start, start))
    return digest.hexdigest()


def digest_arrays(kind: str, arrays: Sequence[npt.NDArray[np.generic]], sampling: Sampling, *more: object) -> str:
    """The sample digest of arrays: types, shapes, and pages spread over all of them. Masked elements count as 0."""
    shares = shares_of([array.nbytes for array in arrays], sampling.pages)
    found = [(array.dtype.str, array.shape, _digest_array(array, pages)) for array, pages in zip(arrays, shares, strict=True)]
    return fingerprint_of(kind, more, found)


def _digest_array(array: npt.NDArray[np.generic], pages: int) -> str:
    digest = hashlib.sha256()
    if array.nbytes:
        content, mask = np.ascontiguousarray(array).reshape(-1).view(np.uint8), np.ma.getmask(array)
        for start, stop in page_ranges(array.nbytes, pages):
            page = content[start:stop]
            if mask is not np.ma.nomask:
                page = np.where(mask.reshape(-1)[np.arange(start, stop) // array.itemsize], np.uint8(0), page)
            digest.update(page.data)
    return digest.hexdigest()
