"""Files out of the page cache, and a look whether they are."""

import ctypes
import mmap
import os
from pathlib import Path

__all__ = ["drop"]

_C = ctypes.CDLL(None, use_errno=True)


def drop(folder: Path) -> None:
    """Take all files below a folder out of memory; RuntimeError if the system keeps them, because somebody has them mapped."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    kept, total = sum(map(_resident, files)), sum(path.stat().st_size for path in files)
    if kept > 0.02 * total:
        raise RuntimeError(f"expected {folder.name} out of memory, found {kept} of {total} bytes still there")


def _resident(path: Path) -> int:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        pages = -(-len(view) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        if _C.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(view)), found) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
        return sum(byte & 1 for byte in bytes(found)) * mmap.PAGESIZE
