"""Chunk files: what the grammar promises holds for every chunk that is written."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import Field, _core
from penstock.store.chunk import ChunkBuilder, encode_chunk
from penstock.store.column import Column, make_column

DATASET, WRITER = "ab" * 16, "cd" * 16
CODECS = [pen.Raw(), pen.Deflate(1), pen.Zstd(1), pen.LZ4()]
LISTS = st.lists(st.none() | st.lists(st.integers(0, 3), max_size=400), min_size=1, max_size=30)


@dataclass(frozen=True)
class Entry:
    """One field of a chunk as the grammar in native/core/chunk.h has it, read here once more from the bytes alone."""

    number: int
    codec: int
    ndim: int
    flags: int
    stride: int
    offset: int
    size: int
    rows_per_page: int
    references: tuple[tuple[int, int, int], ...]

    @classmethod
    def parse(cls, data: bytes) -> "Entry":
        *numbers, zero = struct.unpack_from("<IBBHQQQII", data)
        references = [struct.unpack_from("<QQII", data, 40 + 24 * i) for i in range(6)]
        assert zero == 0
        assert all(reference[3] == 0 for reference in references)
        return cls(*numbers, tuple(reference[:3] for reference in references))


def crc(data: bytes) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))


def assemble(pieces: Any, size: int) -> bytes:
    data, end = bytearray(size), 0
    for offset, piece in pieces:
        assert offset >= end  # pieces lie one after the other and never overlap
        data[offset : offset + len(piece)] = bytes(piece)
        end = offset + len(piece)
    assert end == size
    return bytes(data)


def parse(data: bytes) -> tuple[int, list[Entry]]:
    """Rows and entries; every structural promise is checked on the way."""
    assert data[:8] == b"PENCHUNK"
    version, zero, dataset, writer, _, zeros = struct.unpack_from("<II16s16sI8s", data, 8)
    assert (version, zero, dataset.hex(), writer.hex(), zeros) == (1, 0, DATASET, WRITER, bytes(8))
    assert struct.unpack_from("<I", data, 60)[0] == crc(data[:60])
    rows, entries_at, size, count, version, dataset, zero, tail_crc, magic = struct.unpack_from(
        "<QQQII16sII8s", data, len(data) - 64
    )
    assert (size, version, dataset.hex(), zero, magic) == (len(data), 1, DATASET, 0, b"KNUHCNEP")
    assert tail_crc == crc(data[entries_at : len(data) - 12])
    assert entries_at + 184 * count + 64 == len(data)
    return rows, [Entry.parse(data[entries_at + 184 * i :]) for i in range(count)]


@settings(max_examples=settings.default.max_examples // 2)
@given(LISTS, st.sampled_from(CODECS), st.sampled_from(CODECS))
def test_layout_keeps_its_promises(records: list[list[int] | None], one: Any, other: Any) -> None:
    fixed = [None if r is None else [len(r), 1, 2] for r in records]
    fields = {3: Field.ragged("i2", codec=one), 5: Field("i4", (3,), codec=other), 9: Field.ragged("u1", 2, codec=other)}
    images = [None if r is None else np.array([r], np.uint8) for r in records]
    columns = {
        3: make_column("a", fields[3], records),
        5: make_column("b", fields[5], fixed),
        9: make_column("c", fields[9], images),
    }
    chunk = encode_chunk(DATASET, WRITER, 7, fields, columns)
    data = assemble(chunk.pieces, chunk.size)
    rows, entries = parse(data)
    assert rows == chunk.rows == len(records)
    assert [entry.number for entry in entries] == [3, 5, 9]
    assert struct.unpack_from("<I", data, len(data) - 12)[0] == chunk.crc
    for entry in entries:
        check_field(data, rows, entry, fields[entry.number], columns[entry.number])


def check_field(data: bytes, rows: int, entry: Entry, field: Field, column: Column) -> None:
    assert entry.offset % 64 == 0
    assert entry.codec == field.codec.number
    assert entry.stride == (field.stride if field.is_fixed else 0)
    for at, size, expected in entry.references:
        assert at % 8 == 0
        assert not size or crc(data[at : at + size]) == expected
    pages, ends, lengths, dims, validity, dictionary = (data[at : at + size] for at, size, _ in entry.references)
    is_plain = field.is_fixed and field.codec == pen.Raw()
    assert len(ends) == (0 if is_plain else 8 * rows)
    assert len(lengths) == (4 * rows if not field.is_fixed and field.codec != pen.Raw() else 0)
    assert len(dims) == (4 * rows * entry.ndim)
    assert entry.ndim == (2 if field.ndim == 2 else 0)
    assert dictionary == b""
    assert (entry.flags == 1) == (column.present is not None) == (len(validity) > 0)
    if column.present is not None:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=rows, bitorder="little")
        assert bits.astype(bool).tolist() == column.present.tolist()
    stops = np.arange(1, rows + 1) * entry.stride if is_plain else np.frombuffer(ends, np.uint64).astype(np.int64)
    assert np.all(np.diff(np.concatenate([[0], stops])) >= 0)
    assert stops[-1] == entry.size
    check_pages(data[entry.offset : entry.offset + entry.size], np.frombuffer(pages, np.uint32), stops, entry.rows_per_page)


def check_pages(region: bytes, pages: Any, stops: Any, rows_per_page: int) -> None:
    assert 1 <= rows_per_page <= len(stops)
    start, found = 0, []
    for last in range(rows_per_page - 1, len(stops) + rows_per_page - 1, rows_per_page):
        end = int(stops[min(last, len(stops) - 1)])
        found.append(crc(region[start:end]))
        start = end
    assert pages.tolist() == found


@pytest.mark.parametrize(("stride", "expected"), [(1, 4096), (100, 41), (4095, 2), (4096, 1), (4097, 1), (150_000, 1)])
def test_page_is_the_fewest_records_of_4_kib(stride: int, expected: int) -> None:
    field = Field("u1", (stride,))
    rows = expected + 3
    chunk = encode_chunk(DATASET, WRITER, 0, {0: field}, {0: make_column("x", field, np.zeros((rows, stride), np.uint8))})
    assert parse(assemble(chunk.pieces, chunk.size))[1][0].rows_per_page == expected


def test_plain_field_is_a_plain_array_in_the_file() -> None:
    array = np.arange(1000, dtype=np.int32)
    chunk = encode_chunk(DATASET, WRITER, 0, {0: Field("i4")}, {0: make_column("x", Field("i4"), array)})
    data = assemble(chunk.pieces, chunk.size)
    assert data[64 : 64 + array.nbytes] == array.tobytes()
    assert chunk.size - array.nbytes <= 64 + 184 + 64 + 8  # header, one entry, tail, one page checksum


def test_large_regions_begin_with_a_page_of_the_disk() -> None:
    small, large = Field("u1", (100,)), Field("u1", (1024,))
    columns = {
        number: make_column("x", field, np.ones((1024, *field.shape), np.uint8)) for number, field in enumerate((small, large))
    }
    chunk = encode_chunk(DATASET, WRITER, 0, {0: small, 1: large}, columns)
    data = assemble(chunk.pieces, chunk.size)
    first, second = parse(data)[1]
    assert (first.offset, second.offset) == (64, -(-(64 + first.size) // 4096) * 4096)
    assert not any(data[64 + first.size : second.offset])
    assert data[second.offset : second.offset + second.size] == bytes([1]) * 2**20


def test_missing_records_of_a_compressed_fixed_field_take_no_room() -> None:
    field = Field("f8", (100,), codec=pen.Zstd())
    noise = [np.random.default_rng(1).random(100), *[None] * 50]
    chunk = encode_chunk(DATASET, WRITER, 0, {0: field}, {0: make_column("x", field, noise)})
    assert parse(assemble(chunk.pieces, chunk.size))[1][0].size <= 800


@given(st.lists(st.lists(st.integers(0, 50), max_size=5), min_size=1, max_size=6), st.integers(1, 100), st.integers(1, 8))
def test_builder_never_goes_beyond_its_limits_but_for_one_large_record(batches: list[list[int]], most: int, max_rows: int) -> None:
    builder = ChunkBuilder(0, most, max_rows, [])
    for batch in batches:
        columns = {0: make_column("x", Field.bytes(), [bytes(size) for size in batch])}
        if not batch:
            continue
        before, fits = builder.rows, builder.fit(columns, 0)
        assert fits <= len(batch)
        if fits:
            placement = builder.add(columns, 0, fits)
            assert (placement.chunk, placement.first_row, placement.count) == (0, before, fits)
        assert builder.rows <= max_rows
        assert builder.size <= most or builder.rows == 1
        if fits < len(batch):  # what did not fit would have broken a limit
            assert builder.rows == max_rows or builder.size + batch[fits] > most
