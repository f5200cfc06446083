"""Redirect tables: fields of records that live elsewhere than their segment says.

::

    file    = header | table of the first field | table of the second | ...          little-endian
    header  = magic "PENREDIR" | version u32 | fields u32 | data set 16 | (field u32, 0 u32, entries u64) x fields
    table   = (id u64 | chunk u32 | row u32) x entries, ids rising
    chunk 0xFFFFFFFF takes an older redirect back: the segment counts again

The manifest has the size of the file and the crc32c of all its bytes. Of several files the later one wins.
"""

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError

__all__ = ["ENTRY", "NOWHERE", "Table", "decode_redirects", "encode_redirects", "merge"]

ENTRY = np.dtype([("id", "<u8"), ("chunk", "<u4"), ("row", "<u4")])
NOWHERE = 0xFFFFFFFF

Table = npt.NDArray[np.void]
"""An array of ENTRY, ids strictly rising."""

_HEADER = struct.Struct("<8sII16s")
_FIELD = struct.Struct("<IIQ")


def encode_redirects(dataset: str, tables: Mapping[int, Table]) -> bytes:
    """The bytes of a file with one table per field number."""
    head = _HEADER.pack(b"PENREDIR", 1, len(tables), bytes.fromhex(dataset))
    head += b"".join(_FIELD.pack(number, 0, len(table)) for number, table in tables.items())
    return head + b"".join(table.tobytes() for table in tables.values())


def decode_redirects(data: bytes, dataset: str, where: str) -> dict[int, Table]:
    """The tables of a file whose size and crc were already checked."""
    try:
        magic, version, count, owner = _HEADER.unpack_from(data)
        if (magic, version) != (b"PENREDIR", 1) or owner.hex() != dataset or count > 4096:
            raise ValueError("the header is not one of this data set and version")
        tables, offset = {}, _HEADER.size + count * _FIELD.size
        for i in range(count):
            number, zero, entries = _FIELD.unpack_from(data, _HEADER.size + i * _FIELD.size)
            if zero != 0 or number in tables or entries > (len(data) - offset) // ENTRY.itemsize:
                raise ValueError("a table stands twice or lies outside the file")
            tables[number] = np.frombuffer(data, ENTRY, entries, offset)
            offset += entries * ENTRY.itemsize
            ids = tables[number]["id"]
            if np.any(ids[1:] <= ids[:-1]):
                raise ValueError("ids do not rise")
        if offset != len(data):
            raise ValueError(f"expected {offset} bytes, found {len(data)}")
    except (struct.error, ValueError) as error:
        raise CorruptError(f"{where}: not a redirect table: {error}") from error
    return tables


def merge(older: Table, newer: Table, *, drop_nowhere: bool) -> Table:
    """One table in which the newer one wins."""
    kept = older[~np.isin(older["id"], newer["id"])]
    both = np.concatenate([kept, newer])
    both = both[np.argsort(both["id"], kind="stable")]
    return both[both["chunk"] != NOWHERE] if drop_nowhere else both
