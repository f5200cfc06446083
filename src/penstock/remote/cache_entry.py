"""The file of one cached range: which bytes of which object, and a checksum of every page, so that parts can be read and checked.

A header (magic, digest of the object, start and stop of the range, crc32c of the header and the table), a table with the crc32c of
every page of the range, and the bytes of the range. All numbers are little-endian.
"""

import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock import _core

__all__ = ["Bytes", "DamagedError", "entry_bytes", "make_head", "pieces", "write_all"]

Bytes = npt.NDArray[np.uint8]

MAGIC = b"PENRANGE"
FIXED = struct.Struct("<8s32sQQ")
CRC = struct.Struct("<I")
PAGE_BYTES = 1 << 16
PIECE_BYTES = 16 * PAGE_BYTES


class DamagedError(Exception):
    """A file that is not, or no longer, what its name says. Never leaves the cache."""


def entry_bytes(length: int) -> int:
    """Bytes on disk of a range of so many bytes."""
    return FIXED.size + CRC.size * (1 + _num_pages(length)) + length


def make_head(identity: bytes, start: int, data: Bytes) -> bytes:
    """What stands before the bytes of a range."""
    fixed, table = FIXED.pack(MAGIC, identity, start, start + data.size), _page_crcs(data).tobytes()
    return fixed + _crc_of(fixed + table) + table


def write_all(descriptor: int, parts: Sequence[bytes | Bytes]) -> None:
    """Write parts one after the other, however little the system takes at a time."""
    for part in parts:
        view = memoryview(part) if isinstance(part, bytes) else part.data
        while len(view) > 0:
            view = view[os.write(descriptor, view) :]


def pieces(descriptor: int, identity: bytes, entry: tuple[int, int], low: int, high: int) -> Iterator[tuple[int, memoryview]]:
    """The bytes [low, high) of an object out of the file of the range ``entry``: offsets and checked bytes, valid until the next.

    DamagedError if the file does not hold exactly that range of that object, or the bytes are not those that were kept.
    """
    start, stop = entry
    table = _read_table(descriptor, identity, start, stop)
    begin = entry_bytes(stop - start) - (stop - start)
    first, last = (low - start) // PAGE_BYTES * PAGE_BYTES, min(stop - start, _num_pages(high - start) * PAGE_BYTES)
    buffer = np.empty(min(PIECE_BYTES, last - first), np.uint8)
    for place in range(first, last, PIECE_BYTES):
        piece = buffer[: min(PIECE_BYTES, last - place)]
        _read_exactly(descriptor, piece, begin + place)
        page = place // PAGE_BYTES
        found = _page_crcs(piece)
        if not np.array_equal(found, table[page : page + found.size]):
            raise DamagedError(f"bytes {start + place} to {start + place + piece.size} changed on the disk")
        skip = max(0, low - start - place)
        yield start + place + skip, piece[skip : high - start - place].data


def _read_table(descriptor: int, identity: bytes, start: int, stop: int) -> npt.NDArray[np.uint32]:
    size = os.fstat(descriptor).st_size
    if size != entry_bytes(stop - start):
        raise DamagedError(f"expected {entry_bytes(stop - start)} bytes, found {size}")
    head = np.empty(size - (stop - start), np.uint8)
    _read_exactly(descriptor, head, 0)
    fixed, crc, table = np.split(head, [FIXED.size, FIXED.size + CRC.size])
    if fixed.tobytes() != FIXED.pack(MAGIC, identity, start, stop) or crc.tobytes() != _crc_of(fixed.tobytes() + table.tobytes()):
        raise DamagedError("expected another object or range")
    return table.view("<u4")


def _read_exactly(descriptor: int, into: Bytes, offset: int) -> None:
    view = into.data
    while len(view) > 0:
        try:
            count = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise DamagedError(f"the disk does not give it back: {error.strerror}") from error
        if count == 0:
            raise DamagedError("the file was cut")
        view, offset = view[count:], offset + count


def _num_pages(length: int) -> int:
    return -(-length // PAGE_BYTES)


def _page_crcs(data: Bytes) -> npt.NDArray[np.uint32]:
    ends = np.minimum(np.arange(1, _num_pages(data.size) + 1, dtype=np.uint64) * np.uint64(PAGE_BYTES), np.uint64(data.size))
    crcs = np.empty(ends.size, np.uint32)
    _core.crc32c_spans(data, ends, crcs)
    return crcs.astype("<u4", copy=False)


def _crc_of(data: bytes) -> bytes:
    return CRC.pack(_core.crc32c(np.frombuffer(data, np.uint8)))
