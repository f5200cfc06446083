"""How much of files is in memory already: asked of the system, nothing is read."""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["cached_share", "drop_from_cache"]

SPAN = 64 << 20
"""Bytes of a file that are looked at in one piece."""

MOST_SPANS = 64
"""Pieces that are looked at, evenly spread over all files."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_share(paths: Sequence[str | Path]) -> float | None:
    """The share of the bytes of files that is in the page cache, from 0 to 1, of a sample of them where they are large; None if
    the system does not say.
    """
    spans = [(path, start) for path in paths for start in range(0, os.path.getsize(path), SPAN)]
    chosen = [spans[k * len(spans) // MOST_SPANS] for k in range(MOST_SPANS)] if len(spans) > MOST_SPANS else spans
    inside = total = 0
    for path, start in chosen:
        found = _cached_pages(path, start)
        if found is None:
            return None
        inside, total = inside + found[0], total + found[1]
    return inside / total if total else None


def _cached_pages(path: str | Path, start: int) -> tuple[int, int] | None:
    """Pages of a span that are in memory, and pages in all."""
    with open(path, "rb") as file:
        size = min(SPAN, os.fstat(file.fileno()).st_size - start)
        if size <= 0:
            return 0, 0
        if not _may_ask(file.fileno()):
            return _try_reading(file.fileno(), start, size)
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=start) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            failed = _libc.mincore(view.ctypes.data, size, pages.ctypes.data)
            del view
        return None if failed else (int((pages & 1).sum()), pages.size)


def _may_ask(descriptor: int) -> bool:
    """Whether the system tells the truth: of files of others that may not be written it says that all of them is there."""
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def _try_reading(descriptor: int, start: int, size: int) -> tuple[int, int] | None:
    """A few bytes here and there, only if they are there already."""
    places = [start + size * k // 16 for k in range(16)]
    inside, byte = 0, bytearray(1)
    for place in places:
        try:
            inside += os.preadv(descriptor, [byte], place, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return None
    return inside, len(places)


def drop_from_cache(descriptor: int) -> None:
    """Ask the system to forget what it keeps of a file; what was written must be on the disk."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
