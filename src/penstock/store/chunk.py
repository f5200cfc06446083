"""Chunk files: columns in, bytes out. The grammar stands in native/core/chunk.h and in docs/reference/format.md."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.codec import Raw, Zstd
from penstock.errors import CorruptError
from penstock.schema import Field
from penstock.store.column import Column
from penstock.store.filesystem import Piece

__all__ = ["ENTRY_BYTES", "TAIL_BYTES", "EncodedChunk", "encode_chunk", "parse_fields"]

_HEADER = struct.Struct("<8sII16s16sIIII")
_ENTRY = struct.Struct("<IBBHQQQII")
_REFERENCE = struct.Struct("<QQII")
_TAIL = struct.Struct("<QQQII16sII8s")
_NUM_ARRAYS = 6
ENTRY_BYTES = _ENTRY.size + _NUM_ARRAYS * _REFERENCE.size
TAIL_BYTES = _TAIL.size
_PAGE_BYTES = 4096
_ALIGNMENT = 64
_NO_REFERENCE = bytes(_REFERENCE.size)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk ready to be written: its pieces, its size, its rows and the crc of its tail."""

    pieces: list[Piece]
    size: int
    rows: int
    crc: int


@dataclass(frozen=True)
class _Region:
    """A field's stored bytes and index arrays (in the order of the entry's references)."""

    data: Bytes
    stride: int
    rows_per_page: int
    ndim: int
    has_validity: bool
    arrays: tuple[Bytes, ...]


def encode_chunk(
    dataset: str, writer: str, serial: int, fields: Mapping[int, Field], columns: Mapping[int, Column]
) -> EncodedChunk:
    """Lay out and checksum a chunk. ``fields`` and ``columns`` go by field number; all columns have the same rows."""
    rows = next(iter(columns.values())).rows
    head = _HEADER.pack(b"PENCHUNK", 1, 0, bytes.fromhex(dataset), bytes.fromhex(writer), serial, 0, 0, 0)[:60]
    pieces: list[Piece] = [(0, head + struct.pack("<I", _crc(head)))]
    regions = {number: _encode_region(fields[number], column) for number, column in columns.items()}
    end = 64
    offsets = {}
    for number, region in regions.items():
        offsets[number] = end = -(-end // _ALIGNMENT) * _ALIGNMENT
        pieces.append((end, region.data))
        end += region.data.size
    entries = b""
    for number, region in regions.items():
        field = fields[number]
        entries += _ENTRY.pack(
            number, field.codec.number, region.ndim, int(region.has_validity), region.stride, offsets[number], region.data.size,
            region.rows_per_page, 0,
        )  # fmt: skip
        for array in region.arrays:
            end = -(-end // 8) * 8
            entries += _REFERENCE.pack(end, array.size, _crc(array), 0) if array.size else _NO_REFERENCE
            pieces.append((end, array))
            end += array.size
    end = -(-end // 8) * 8
    size = end + len(entries) + _TAIL.size
    tail = _TAIL.pack(rows, end, size, len(regions), 1, bytes.fromhex(dataset), 0, 0, b"KNUHCNEP")
    crc = _crc(entries + tail[:52])
    pieces.append((end, entries + tail[:52] + struct.pack("<I", crc) + tail[56:]))
    return EncodedChunk([(offset, data) for offset, data in pieces if len(data) > 0], size, rows, crc)


def parse_fields(end: bytes, size: int, crc: int, dataset: str) -> dict[int, bool]:
    """The numbers of the fields of a chunk, each with whether it has a validity array, from the last bytes of the file.

    CorruptError unless they have the crc that the manifest names. A few bytes too many do no harm.
    """
    if len(end) < TAIL_BYTES:
        raise CorruptError("a chunk is too short")
    _, offset, file_size, count, version, owner, _, found, magic = _TAIL.unpack(end[-TAIL_BYTES:])
    is_ours = (file_size, version, owner, magic) == (size, 1, bytes.fromhex(dataset), b"KNUHCNEP")
    footer = end[-(TAIL_BYTES + count * ENTRY_BYTES) :]
    if not is_ours or len(footer) != TAIL_BYTES + count * ENTRY_BYTES or offset != size - len(footer):
        raise CorruptError("a chunk has no valid tail")
    if found != crc or _crc(footer[:-12]) != crc:
        raise CorruptError("the crc of the entries of a chunk does not match")
    entries = (_ENTRY.unpack_from(footer, place * ENTRY_BYTES) for place in range(count))
    return {entry[0]: bool(entry[3] & 1) for entry in entries}


def _crc(data: bytes | Bytes) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data)


def _encode_region(field: Field, column: Column) -> _Region:
    codec = field.codec
    plain = isinstance(codec, Raw) and column.offsets is None
    lengths = ends = np.empty(0, np.uint8)
    data = column.values
    if not plain:
        offsets = column.offsets
        if offsets is None:
            offsets = np.arange(column.rows + 1, dtype=np.int64) * field.stride
        if column.present is not None and column.offsets is None:  # a missing record of a compressed field takes no room
            sizes = np.where(column.present, field.stride, 0)
            data = data.reshape(column.rows, field.stride)[column.present].reshape(-1) if field.stride else data
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        dictionary = codec.dictionary if isinstance(codec, Zstd) else None
        if isinstance(codec, Raw):
            stored_ends = offsets[1:].astype(np.uint64)
        else:
            stored_ends = np.empty(column.rows, np.uint64)
            stored = _core.encode_records(
                codec.number, codec.level, dictionary or b"", np.ascontiguousarray(data), offsets, stored_ends
            )
            if column.offsets is not None:
                lengths = np.diff(offsets).astype(np.uint32).view(np.uint8)
            data = stored
        ends = stored_ends.view(np.uint8)
    rows_per_page = _rows_per_page(field.stride if plain else data.size / max(1, column.rows), column.rows)
    page_ends = _page_ends(column.rows, rows_per_page, field.stride if plain else stored_ends)
    pages = np.empty(page_ends.size, np.uint32)
    data = np.ascontiguousarray(data)
    _core.crc32c_spans(data, page_ends, pages)
    dims = np.empty(0, np.uint8) if column.shapes is None else np.ascontiguousarray(column.shapes).reshape(-1).view(np.uint8)
    validity = np.empty(0, np.uint8) if column.present is None else np.packbits(column.present, bitorder="little")
    dictionary_bytes = np.frombuffer(codec.dictionary or b"", np.uint8) if isinstance(codec, Zstd) else np.empty(0, np.uint8)
    return _Region(
        data,
        field.stride if field.is_fixed else 0,
        rows_per_page,
        0 if column.shapes is None else field.ndim,
        column.present is not None,
        (pages.view(np.uint8), ends, lengths, dims, validity, dictionary_bytes),  # _NUM_ARRAYS of them
    )


def _rows_per_page(mean_bytes: float, rows: int) -> int:
    """The least number of records that make a page of 4 KiB on average."""
    if mean_bytes <= 0:
        return max(1, rows)
    return max(1, min(rows, int(-(-_PAGE_BYTES // max(1.0, mean_bytes)))))


def _page_ends(rows: int, rows_per_page: int, ends: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Where each page ends in the region."""
    last = np.minimum(np.arange(rows_per_page, rows + rows_per_page, rows_per_page), rows).astype(np.uint64)
    return last * np.uint64(ends) if isinstance(ends, int) else ends[(last - np.uint64(1)).astype(np.int64)]
