"""Stores made by hand: every checksum right, any value wrong. Run as a program, it opens a group of them under a memory limit.

``python -m tests.store.hostile GROUP FOLDER STRIDE [apart]`` prints one JSON line per case and one of the memory used.
"""

import itertools
import json
import os
import shutil
import signal
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.sanitized import limit_address_space, patience_s

import penstock as pen
from penstock import _core
from penstock.errors import BatchTooLargeError, UnsupportedVersionError
from penstock.store import Store, stats

DATASET = "d5" * 16
WRITER = "a7" * 16
ROWS = 4
ARRAYS = ("pages", "ends", "lengths", "dims", "validity", "dictionary")


def crc(data: bytes) -> int:
    return int(_core.crc32c(np.frombuffer(data, np.uint8)))


def u32s(values: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<I", value) for value in values)


def u64s(values: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<Q", value) for value in values)


# Records, packed by hand


def zstd_block(byte: bytes, size: int, *, last: bool = True, kind: int = 1) -> bytes:
    """A block that repeats one byte."""
    return struct.pack("<I", int(last) | kind << 1 | size << 3)[:3] + byte


def zstd_run(
    byte: bytes, size: int, *, content: int | None = None, window_log: int | None = None, dictionary: int | None = None
) -> bytes:
    """One frame of ``size`` times ``byte``, which may claim another ``content`` size, a window or a dictionary."""
    claimed = size if content is None else content
    descriptor = 0xC0 | (0x20 if window_log is None else 0) | (0 if dictionary is None else 3)
    head = b"\x28\xb5\x2f\xfd" + bytes([descriptor])
    head += b"" if window_log is None else bytes([(window_log - 10) << 3])
    head += b"" if dictionary is None else struct.pack("<I", dictionary)
    head += struct.pack("<Q", claimed)
    blocks = b"".join(zstd_block(byte, 1 << 17, last=False) for _ in range(size >> 17))
    return head + blocks + zstd_block(byte, size & ((1 << 17) - 1))


def lz4_run(byte: bytes, size: int, *, offset: int = 1) -> bytes:
    """One literal, a match that repeats it, and the five literals a block must end with."""
    length = size - 1 - 5 - 4 - 15
    return b"\x1f" + byte + struct.pack("<H", offset) + b"\xff" * (length // 255) + bytes([length % 255]) + b"\x50" + byte * 5


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


# Chunks


@dataclass
class Part:
    """One field of a chunk: an entry, its region, and its arrays. ``entry`` and ``reference`` overrule what is written."""

    number: int
    codec: int
    ndim: int = 0
    stride: int = 0
    records: list[bytes] = field(default_factory=list)
    rows_per_page: int = ROWS
    arrays: dict[str, bytes] = field(default_factory=dict)
    entry: dict[str, int] = field(default_factory=dict)
    reference: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return b"".join(self.records)


def build_chunk(parts: list[Part], rows: int, tail: dict[str, int]) -> bytes:
    """The bytes of a chunk whose checksums are right whatever its values are."""
    head = struct.pack("<8sII16s16sII I", b"PENCHUNK", 1, 0, bytes.fromhex(DATASET), bytes.fromhex(WRITER), 0, 0, 0)
    image = bytearray(head + struct.pack("<I", crc(head)))
    offsets = {}
    for part in parts:
        image += bytes(-len(image) % 64)
        offsets[part.number] = len(image)
        image += part.data
    places: dict[tuple[int, str], tuple[int, int, int]] = {}
    for place, part in enumerate(parts):
        pages = part.arrays.get("pages", u32s([crc(part.data)]))
        for name, array in {**part.arrays, "pages": pages}.items():
            image += bytes(-len(image) % 8)
            places[place, name] = (len(image), len(array), crc(array))
            image += array
    image += bytes(-len(image) % 8)
    entries, image_crc = bytearray(), cache(lambda start, stop: crc(bytes(image[start:stop])))  # thousands may share an array
    for place, part in enumerate(parts):
        values = {
            "number": part.number,
            "codec": part.codec,
            "ndim": part.ndim,
            "flags": int("validity" in part.arrays),
            "stride": part.stride,
            "data_offset": offsets[part.number],
            "data_bytes": len(part.data),
            "rows_per_page": part.rows_per_page,
            "zero": 0,
        } | part.entry
        entries += struct.pack("<IBBHQQQII", *values.values())
        for name in ARRAYS:
            offset, size, check = places.get((place, name), (0, 0, 0))
            offset, size = part.reference.get((name, "offset"), offset), part.reference.get((name, "bytes"), size)
            if offset + size <= len(image):
                check = image_crc(offset, offset + size)
            entries += struct.pack("<QQII", offset, size, check, 0)
    values = {
        "rows": rows,
        "entries": len(image),
        "bytes": len(image) + len(entries) + 64,
        "fields": len(parts),
        "version": 1,
    } | tail
    rest = bytes(entries) + struct.pack("<QQQII16sI", *values.values(), bytes.fromhex(DATASET), 0)
    return bytes(image) + rest + struct.pack("<I", crc(rest)) + b"KNUHCNEP"


# Stores


def base_parts() -> list[Part]:
    """Five fields of four records: plain, zstd, lz4 in two dimensions, deflate of a fixed size, and bytes."""
    text = [zstd_run(b"a", 200), zstd_run(b"b", 300), b"short", b""]
    grid = [lz4_run(b"\0", 64), lz4_run(b"\0", 96), b"\0" * 32, b""]
    pose = [deflate(bytes([i]) * 32) for i in range(3)] + [b""]
    blob = [b"one", b"", b"three", b"4"]
    return [
        Part(0, 0, stride=4, records=[bytes([i]) * 4 for i in range(4)]),
        Part(1, 2, records=text, arrays={"ends": ends_of(text), "lengths": u32s([200, 300, 5, 0])}),
        Part(
            2,
            3,
            2,
            records=grid,
            arrays={
                "ends": ends_of(grid),
                "lengths": u32s([64, 96, 32, 0]),
                "dims": u32s([2, 8, 3, 8, 1, 8, 0, 8]),
            },
        ),
        Part(3, 1, stride=32, records=pose, arrays={"ends": ends_of(pose), "validity": b"\x07"}),
        Part(4, 0, records=blob, arrays={"ends": ends_of(blob)}),
    ]


def ends_of(records: list[bytes]) -> bytes:
    return u64s(np.cumsum([len(record) for record in records]).tolist())


FIELDS = [
    {"name": "plain", "number": 0, "kind": "fixed", "codec": {"name": "raw"}, "dtype": "u1", "shape": [4]},
    {"name": "text", "number": 1, "kind": "text", "codec": {"name": "zstd", "level": 3}},
    {"name": "grid", "number": 2, "kind": "ragged", "codec": {"name": "lz4", "level": 1}, "dtype": "f4", "ndim": 2},
    {"name": "pose", "number": 3, "kind": "fixed", "codec": {"name": "deflate", "level": 6}, "dtype": "i4", "shape": [8]},
    {"name": "blob", "number": 4, "kind": "bytes", "codec": {"name": "raw"}},
]

REDIRECTS = {4: [(1, 0, 2)]}


def build_redirects(tables: dict[int, list[tuple[int, int, int]]]) -> bytes:
    """Tables of (id, chunk, row) by field number."""
    head = struct.pack("<8sII16s", b"PENREDIR", 1, len(tables), bytes.fromhex(DATASET))
    head += b"".join(struct.pack("<IIQ", number, 0, len(table)) for number, table in tables.items())
    return head + b"".join(struct.pack("<QII", *entry) for table in tables.values() for entry in table)


@dataclass
class Spec:
    """A store before it is written; a case changes one thing in it."""

    parts: list[Part] = field(default_factory=base_parts)
    rows: int = ROWS
    tail: dict[str, int] = field(default_factory=dict)
    header: dict[int, bytes] = field(default_factory=dict)  # offset -> bytes, before the header's crc is made
    redirects: bytes = field(default_factory=lambda: build_redirects(REDIRECTS))
    document: list[Callable[[dict[str, Any]], object]] = field(default_factory=list)
    line: Callable[[bytes], bytes] = field(default=lambda line: line)
    manifest: Callable[[Path], object] | None = None

    def part(self, number: int) -> Part:
        return next(part for part in self.parts if part.number == number)

    def write(self, root: Path) -> None:
        """Write the store, replacing what is there."""
        shutil.rmtree(root, ignore_errors=True)
        for folder in ("chunk", "redirect", "manifest"):
            (root / folder).mkdir(parents=True)
        chunk = bytearray(build_chunk(self.parts, self.rows, self.tail))
        for offset, value in self.header.items():
            chunk[offset : offset + len(value)] = value
        chunk[60:64] = struct.pack("<I", crc(bytes(chunk[:60])))
        (root / "chunk" / f"{WRITER}-00000000.zr").write_bytes(chunk)
        (root / "redirect" / f"{WRITER}-00000001.rd").write_bytes(self.redirects)
        document: dict[str, Any] = {
            "format": "penstock",
            "version": 1,
            "required": [],
            "optional": [],
            "dataset": DATASET,
            "generation": 1,
            "parent": None,
            "write_id": "b1" * 16,
            "length": ROWS,
            "fields": [dict(one) for one in FIELDS],
            "chunk_bytes": 1 << 26,
            "chunk_records": 1 << 24,
            "next_chunk": 1,
            "chunks": [[0, WRITER, 0, len(chunk), self.rows, struct.unpack("<I", chunk[-12:-8])[0], 1000]],
            "segments": [[0, ROWS, 0, 0]],
            "redirects": [[WRITER, 1, len(self.redirects), crc(self.redirects)]],
        }
        for edit in self.document:
            edit(document)
        file = root / "manifest" / f"{1:020d}.json"
        line = self.line(json.dumps(document, separators=(",", ":")).encode())
        file.write_bytes(line + b"\n%08x\n" % crc(line))
        if self.manifest is not None:
            self.manifest(file)


@dataclass(frozen=True)
class Case:
    """A change of a good store, and what must come of it: an "error", "unsupported", the "right" records, or nothing "unsafe"."""

    name: str
    change: Callable[[Spec], object]
    outcome: str = "error"
    io: str = "map"


# Groups of cases

EDGES = [
    0,
    1,
    3,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**63 + 8,
    2**64 - 64,
    2**64 - 8,
    2**64 - 1,
]
LARGE = 2**31 - 1


def entry_cases() -> Iterator[Case]:
    """Every number of every entry, and of every reference to an array."""
    for number in range(5):
        for name, bits in (("stride", 64), ("data_offset", 64), ("data_bytes", 64), ("rows_per_page", 32), ("number", 32)):
            for value in (edge for edge in EDGES if edge < 2**bits):

                def change(spec: Spec, number: int = number, name: str = name, value: int = value) -> None:
                    spec.part(number).entry[name] = value

                certain = value >= LARGE and (
                    name in ("data_offset", "data_bytes", "number") or (name == "stride" and number in (0, 3))
                )
                yield Case(f"{name} of field {number} = {value}", change, "error" if certain else "safe")
        for array in ARRAYS:
            there = array == "pages" or array in base_parts()[number].arrays
            for what in ("offset", "bytes"):
                for value in EDGES if there else EDGES[1::5]:

                    def change(spec: Spec, number: int = number, key: tuple[str, str] = (array, what), value: int = value) -> None:
                        spec.part(number).reference[key] = value

                    certain = value >= LARGE and there
                    yield Case(f"{what} of {array} of field {number} = {value}", change, "error" if certain else "safe")


def small_entry_cases() -> Iterator[Case]:
    """Codecs, dimensions and flags that do not exist, and the tail and the header."""
    for number in range(5):
        for name, values in (("codec", [4, 5, 127, 255]), ("flags", [2, 3, 0x8000, 0xFFFF]), ("rows_per_page", [0])):
            for value in values:

                def change(spec: Spec, number: int = number, name: str = name, value: int = value) -> None:
                    spec.part(number).entry[name] = value

                yield Case(f"{name} of field {number} = {value}", change)
        for value in (0, 1, 2, 3, 32, 33, 254, 255):

            def change(spec: Spec, number: int = number, value: int = value) -> None:
                spec.part(number).entry["ndim"] = value

            yield Case(f"ndim of field {number} = {value}", change, "safe" if value in (0, 2) else "error")
    for name, bits in (("rows", 64), ("entries", 64), ("bytes", 64), ("fields", 32), ("version", 32)):
        for value in (edge for edge in EDGES if edge < 2**bits):

            def change(spec: Spec, name: str = name, value: int = value) -> None:
                spec.tail[name] = value

            yield Case(f"{name} in the tail = {value}", change, "safe" if (name, value) == ("version", 1) else "error")
    for value in (edge for edge in EDGES if edge < 2**32):

        def change(spec: Spec, value: int = value) -> None:
            spec.rows = value

        yield Case(f"rows everywhere = {value}", change)
    for offset, value in ((0, b"PENCHUNX"), (8, u32s([0])), (8, u32s([2])), (8, u32s([2**32 - 1])), (16, b"\0")):
        yield Case(f"header at {offset} = {value!r}", lambda spec, offset=offset, value=value: spec.header.update({offset: value}))
    yield Case("a field twice", lambda spec: spec.part(1).entry.update(number=0))
    yield Case("no fields at all", lambda spec: spec.parts.clear(), "safe")
    yield Case("rows without bytes", rows_without_bytes, "safe")


def rows_without_bytes(spec: Spec) -> None:
    """Four billion records of no bytes in a file of a few hundred."""
    spec.parts, spec.rows = [Part(0, 0, rows_per_page=2**32 - 1)], 2**32 - 1
    spec.document.append(lambda d: d.update(length=2**32 - 1, segments=[[0, 2**32 - 1, 0, 0]], redirects=[]))
    spec.document.append(lambda d: d["fields"][0].update(shape=[0]))


def index_cases() -> Iterator[Case]:
    """Ends that do not rise or lie outside, lengths that lie, shapes that do not fit, missing values where there are some."""
    for number in (1, 2, 3, 4):
        good = [*struct.unpack("<4Q", base_parts()[number].arrays["ends"])]
        for row in range(ROWS):
            for value in sorted({*EDGES, good[-1] + 1, good[row] - 1}):
                if value != good[row] and value >= 0:

                    def change(
                        spec: Spec, number: int = number, row: int = row, value: int = value, good: list[int] = good
                    ) -> None:
                        spec.part(number).arrays["ends"] = u64s([*good[:row], value, *good[row + 1 :]])

                    # A larger end within the region moves the border between two records, which may decode.
                    yield Case(f"end of row {row} of field {number} = {value}", change, "error" if value > good[-1] else "safe")
    for number in (1, 2):
        good = [*struct.unpack("<4I", base_parts()[number].arrays["lengths"])]
        for row in range(ROWS):
            lies = {0, 1, good[row] - 1, good[row] + 1, 2**20, 2**28, 900_000_000, 2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**32 - 1}
            for value in sorted(lies - {good[row], -1}):

                def change(spec: Spec, number: int = number, row: int = row, value: int = value, good: list[int] = good) -> None:
                    spec.part(number).arrays["lengths"] = u32s([*good[:row], value, *good[row + 1 :]])

                yield Case(f"length of row {row} of field {number} = {value}", change)
    for dims in [
        (2**32 - 1, 2**32 - 1),
        (2**31, 2),
        (2**16, 2**16),
        (2**32 - 1, 1),
        (0, 8),
        (17, 1),
        (2**31, 2**31),
        (16, 2**32 - 1),
    ]:
        yield Case(f"shape {dims}", lambda spec, dims=dims: spec.part(2).arrays.update(dims=u32s([*dims, 3, 8, 1, 8, 0, 8])))
    for dims in [(0, 2**32 - 1), (2**32 - 1, 0), (0, 0), (0, 2**31)]:
        change = lambda spec, dims=dims: spec.part(2).arrays.update(dims=u32s([2, 8, 3, 8, 1, 8, *dims]))  # noqa: E731
        yield Case(f"empty shape {dims}", change, "safe")
    for shape in [
        (0, *[2**32 - 1] * 2),
        (0, *[2**32 - 1] * 31),
        (*[2**32 - 1] * 31, 0),
        (*[2**16] * 4, *[1] * 4),
        (2**32 - 1,) * 32,
    ]:
        yield Case(
            f"{len(shape)} dimensions {shape[0]}, {shape[1]}, {shape[-1]}",
            lambda spec, shape=shape: many_dimensions(spec, shape),
            "safe",
        )
    yield Case("text that is not UTF-8", not_utf8)


def many_dimensions(spec: Spec, shape: tuple[int, ...]) -> None:
    """Empty records of a shape with so many dimensions."""
    part = Part(2, 0, len(shape), records=[b""] * 4, arrays={"ends": u64s([0] * 4), "dims": u32s(shape * 4)})
    spec.parts[2] = part
    spec.document.append(lambda d: d["fields"][2].update(ndim=len(shape), codec={"name": "raw"}))


def not_utf8(spec: Spec) -> None:
    records = [b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc0\xaf", b"\x80"]
    spec.parts[1] = Part(1, 2, records=records, arrays={"ends": ends_of(records), "lengths": u32s(map(len, records))})


BAD_TEXT: dict[str, tuple[bytes, int]] = {
    "two frames": (zstd_run(b"a", 100) + zstd_run(b"a", 100), 200),
    "a frame of the wrong size": (zstd_run(b"a", 199), 200),
    "a frame that gives more than it says": (zstd_run(b"a", 201), 200),
    "a bomb of 100 MB in 200 bytes": (zstd_run(b"a", 200, content=100_000_000), 200),
    "a true bomb of 64 MB": (zstd_run(b"a", 1 << 26), 1 << 20),
    "trailing bytes": (zstd_run(b"a", 200) + b"\0", 200),
    "a skippable frame first": (b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstd_run(b"a", 200), 200),
    "only a skippable frame": (b"\x50\x2a\x4d\x18\x04\0\0\0abcd", 200),
    "a dictionary that is not there": (zstd_run(b"a", 200, dictionary=7), 200),
    "a window of 2 GB": (zstd_run(b"a", 200, window_log=31, content=2**31), 200),
    "a window of 2 TB": (zstd_run(b"a", 200, window_log=41, content=2**41), 200),
    "a content size of 0": (zstd_run(b"a", 200, content=0), 200),
    "a reserved block": (zstd_run(b"a", 200)[:-4] + zstd_block(b"a", 200, kind=3), 200),
    "a compressed block of garbage": (zstd_run(b"a", 200)[:-4] + zstd_block(b"garbage!", 8, kind=2), 200),
    "a cut frame": (zstd_run(b"a", 200)[:-1], 200),
    "no frame": (b"not a frame", 200),
    "an old frame": (b"\x27\xb5\x2f\xfd" + bytes(20), 200),
}
BAD_GRID: dict[str, tuple[bytes, int]] = {
    "a match before the start": (lz4_run(b"a", 64, offset=2), 64),
    "a match far before the start": (lz4_run(b"a", 64, offset=65535), 64),
    "a bomb of 1 MB": (lz4_run(b"a", 1 << 20), 8192),
    "a run too short": (lz4_run(b"a", 60), 64),
    "a run too long": (lz4_run(b"a", 68), 64),
    "trailing bytes": (lz4_run(b"a", 64) + b"\0", 64),
    "a cut block": (lz4_run(b"a", 64)[:-1], 64),
    "endless lengths": (b"\x1fa\x01\0" + b"\xff" * 40, 64),
    "endless literals": (b"\xf0" + b"\xff" * 40, 64),
}
BAD_POSE: dict[str, bytes] = {
    "too short": deflate(bytes(31)),
    "too long": deflate(bytes(33)),
    "a bomb of 1 MB": deflate(bytes(1 << 20))[:31],
    "trailing bytes": deflate(bytes(32)) + b"\0",
    "a cut stream": deflate(bytes(range(30)) + b"\0\0")[:-1][:31],
    "a block of type 3": b"\x07" + bytes(5),
    "a stored block with a wrong complement": b"\x01\x05\0\0\0hello",
    "a distance before the start": b"\x4b\x84\xff\xff\xff",
    "nothing": b"",
}


def codec_cases() -> Iterator[Case]:
    """Stored records that lie, for each codec and each row."""
    for row in range(ROWS):
        for name, (stored, length) in BAD_TEXT.items():
            yield Case(f"zstd, row {row}: {name}", lambda spec, r=row, s=stored, n=length: set_record(spec, 1, r, s, n))
        for name, (stored, length) in BAD_GRID.items():
            yield Case(f"lz4, row {row}: {name}", lambda spec, r=row, s=stored, n=length: set_record(spec, 2, r, s, n))
    for row in range(3):
        for name, stored in BAD_POSE.items():
            yield Case(f"deflate, row {row}: {name}", lambda spec, r=row, s=stored: set_record(spec, 3, r, s, None))
    for codec, number in ((0, 1), (1, 1), (3, 1), (0, 2), (1, 2), (2, 2), (0, 3), (2, 3), (3, 3)):
        yield Case(
            f"field {number} said to be of codec {codec}", lambda spec, n=number, c=codec: spec.part(n).entry.update(codec=c)
        )
    dictionaries = {
        "garbage after the magic": b"\x37\xa4\x30\xec" + b"\x01\0\0\0" + b"garbage" * 20,
        "magic and identity": b"\x37\xa4\x30\xec\x01\0\0\0",
        "zeros after the magic": b"\x37\xa4\x30\xec" + bytes(500),
    }
    for name, words in dictionaries.items():
        yield Case(f"dictionary: {name}", lambda spec, words=words: spec.part(1).arrays.update(dictionary=words))
    yield Case("dictionary: one byte", lambda spec: spec.part(1).arrays.update(dictionary=b"x"), "right")
    yield Case(
        "dictionary: a field that is not zstd has one", lambda spec: spec.part(4).arrays.update(dictionary=b"x" * 99), "safe"
    )


def set_record(spec: Spec, number: int, row: int, stored: bytes, length: int | None) -> None:
    part = spec.part(number)
    part.records[row] = stored
    part.arrays["ends"] = ends_of(part.records)
    if length is not None:
        lengths = [*struct.unpack("<4I", part.arrays["lengths"])]
        lengths[row] = length
        part.arrays["lengths"] = u32s(lengths)
        if "dims" in part.arrays:
            dims = [*struct.unpack("<8I", part.arrays["dims"])]
            dims[2 * row : 2 * row + 2] = [1, length // 4]
            part.arrays["dims"] = u32s(dims)


LARGE_RECORDS = ("large-records",)


def memory_cases() -> Iterator[Case]:
    """Small files that ask for much memory."""
    for io in ("map", "pread", "direct"):
        for array in ("ends", "dims"):
            yield Case(f"{io}: 4096 fields share one array of {array}", lambda spec, a=array: share_array(spec, a), "safe", io)
        yield Case(f"{io}: 4096 fields share one dictionary", lambda spec: share_dictionary(spec, 4096), "safe", io)
    for size in (2**30 + 1, 2**32 - 1):
        yield Case(f"a missing field of {size} bytes", lambda spec, size=size: missing_field(spec, size))
        yield Case(
            f"a missing field of {size} bytes, as the manifest says",
            lambda spec, size=size: missing_field(spec, size, LARGE_RECORDS),
        )
    yield Case("a missing field of 2**32 bytes", lambda spec: missing_field(spec, 2**32, LARGE_RECORDS))
    yield Case("65536 records are one row", lambda spec: alias(spec, 65_536), "right")


def share_array(spec: Spec, array: str) -> None:
    """4096 entries that all refer to the same 256 KiB or more."""
    rows = 32_768
    sizes = {"ends": 8 * rows, "lengths": 4 * rows, "validity": rows // 8, "dims": 4 * rows * 2}
    first = Part(0, 0, records=[b""], rows_per_page=rows, arrays={"ends": bytes(8 * rows), array: bytes(sizes[array])})
    first.ndim = 2 if array == "dims" else 0
    shared_parts(spec, first, rows, ("pages", *first.arrays))


def share_dictionary(spec: Spec, count: int) -> None:
    words = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8).tobytes()
    shared_parts(
        spec,
        Part(0, 0, records=[b""], arrays={"ends": bytes(8 * ROWS), "dictionary": words}),
        ROWS,
        ("pages", "ends", "dictionary"),
    )


def shared_parts(spec: Spec, first: Part, rows: int, shared: tuple[str, ...]) -> None:
    offset, places = 64, {}
    for name, array in {**first.arrays, "pages": u32s([0])}.items():
        offset += -offset % 8
        places[name] = (offset, len(array))
        offset += len(array)
    references = {(n, "offset"): places[n][0] for n in shared} | {(n, "bytes"): places[n][1] for n in shared}
    values = {"data_offset": 0, "data_bytes": 0, "flags": int("validity" in first.arrays)}
    others = [
        Part(i, 0, first.ndim, rows_per_page=first.rows_per_page, entry=values, arrays={"pages": b""}, reference=references)
        for i in range(1, 4096)
    ]
    spec.parts, spec.rows = [first, *others], rows
    spec.document.append(
        lambda d: d.update(length=rows, segments=[[0, rows, 0, 0]], redirects=[], fields=[FIELDS[4] | {"number": 0}])
    )


def missing_field(spec: Spec, size: int, required: Iterable[str] = ()) -> None:
    one = {"name": "huge", "number": 9, "kind": "fixed", "codec": {"name": "raw"}, "dtype": "u1", "shape": [size]}
    spec.document.append(lambda d: (d["fields"].append(one), d.update(required=list(required))))


def alias(spec: Spec, count: int) -> None:
    """Records that are all the rows of one chunk, over and over."""
    segments = [[i * ROWS, ROWS, 0, 0] for i in range(count // ROWS)]
    spec.document.append(lambda d: d.update(length=count, segments=segments))


EVIL: list[Any] = [
    -1,
    2**63,
    2**64,
    10**19,
    10**25,
    True,
    False,
    None,
    "1",
    "",
    "x" * 5000,
    1.5,
    1e308,
    -0.0,
    [],
    [[]],
    {},
    {"a": 1},
    float("nan"),
    float("inf"),
    float("-inf"),
    "\ud800",
    "\x1b[31m",
]


def manifest_value_cases() -> Iterator[Case]:
    """Every value of the manifest replaced by everything a value can be."""
    keys = [
        "format",
        "version",
        "required",
        "dataset",
        "generation",
        "parent",
        "write_id",
        "length",
        "fields",
        "chunk_bytes",
        "chunk_records",
        "next_chunk",
        "chunks",
        "segments",
        "redirects",
    ]
    for key in keys:
        for i, value in enumerate(EVIL):
            if (key, repr(value)) in {("parent", "None"), ("required", "[]")}:
                continue
            # A store without redirects, or with a smaller limit, is a good one.
            fine = (key == "redirects" and value == []) or (key in ("chunk_bytes", "chunk_records") and value == 10**19)
            yield Case(
                f"{key} = {str(value)[:20]} ({i})",
                lambda spec, k=key, v=value: spec.document.append(lambda d: d.update({k: v})),
                "safe" if fine else "error",
            )
        yield Case(f"{key} is not there", lambda spec, k=key: spec.document.append(lambda d: d.pop(k)))
    for table, width in (("chunks", 7), ("segments", 4), ("redirects", 4)):
        for slot in range(width):
            for i, value in enumerate(EVIL):
                yield Case(
                    f"{table}[0][{slot}] = {str(value)[:20]} ({i})",
                    lambda spec, t=table, s=slot, v=value: spec.document.append(lambda d: d[t][0].__setitem__(s, v)),
                )
        yield Case(f"{table}[0] is too short", lambda spec, t=table: spec.document.append(lambda d: d[t][0].pop()))
        yield Case(f"{table}[0] is too long", lambda spec, t=table: spec.document.append(lambda d: d[t][0].append(0)))
        for i, value in enumerate(EVIL):
            yield Case(
                f"{table}[0] = {str(value)[:20]} ({i})",
                lambda spec, t=table, v=value: spec.document.append(lambda d: d[t].__setitem__(0, v)),
            )


def field_cases() -> Iterator[Case]:
    """Every value of a field in the manifest."""
    for number in range(5):
        for key in FIELDS[number]:
            for i, value in enumerate(EVIL):
                fine = key == "name" and value == "1"
                yield Case(
                    f"fields[{number}].{key} = {str(value)[:20]} ({i})",
                    lambda spec, n=number, k=key, v=value: spec.document.append(lambda d: d["fields"][n].update({k: v})),
                    "safe" if fine else "error",
                )
            yield Case(
                f"fields[{number}].{key} is not there",
                lambda spec, n=number, k=key: spec.document.append(lambda d: d["fields"][n].pop(k)),
            )
        yield Case(
            f"fields[{number}] has another key",
            lambda spec, n=number: spec.document.append(lambda d: d["fields"][n].update(more=1)),
        )
    for shape in (
        [2**32],
        [2**31, 2],
        [2**16, 2**16],
        [2**63 - 1],
        [2**63 - 1] * 32,
        [1] * 33,
        [-4],
        [4.0],
        [True] * 4,
        [[4]],
        ["4"],
        [None],
        [5],
    ):
        yield Case(f"shape {str(shape)[:40]}", lambda spec, s=shape: spec.document.append(lambda d: d["fields"][0].update(shape=s)))
    for dtype in (
        "O",
        "object",
        "V8",
        "U4",
        "S4",
        "M8",
        "i4,i4",
        "__import__('os')",
        "u1" * 99,
        "<u1",
        ">i4",
        "float32",
        "(4,)u1",
        "f16",
    ):
        yield Case(f"dtype {dtype[:20]}", lambda spec, v=dtype: spec.document.append(lambda d: d["fields"][0].update(dtype=v)))
    for ndim in (0, 1, 3, 32, 33, 255, 2**32):
        yield Case(
            f"ndim {ndim}",
            lambda spec, v=ndim: spec.document.append(lambda d: d["fields"][2].update(ndim=v)),
            "safe" if ndim == 1 else "error",
        )
    for codec in (
        {"name": "zstd", "level": 23},
        {"name": "zstd", "level": 0},
        {"name": "zstd", "level": 3, "dictionary": "not base64!"},
        {"name": "brotli", "level": 1},
        {"name": "raw", "level": 1},
        {"name": "lz4"},
        {"name": ["raw"]},
        {"name": "pickle"},
    ):
        yield Case(f"codec {codec}", lambda spec, v=codec: spec.document.append(lambda d: d["fields"][1].update(codec=v)))
    yield Case("two fields of one name", lambda spec: spec.document.append(lambda d: d["fields"][1].update(name="plain")))
    yield Case("two fields of one number", lambda spec: spec.document.append(lambda d: d["fields"][1].update(number=0)))
    yield Case(
        "4097 fields",
        lambda spec: spec.document.append(
            lambda d: d.update(fields=[FIELDS[4] | {"name": f"f{i}", "number": i % 4096} for i in range(4097)])
        ),
    )


NAMES = [
    "../x",
    "../../../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "C:\\x",
    "a\0b",
    "a" * 129,
    "a" * 100_000,
    "\u202egnp",
    "\u00e9",
    "a\n",
    "-x",
    " x",
    "%2e%2e",
    "a\\..\\b",
    "\uff0e\uff0e/x",
    "\x1b[31m",
    "~",
    "$HOME",
    "a\u0000",
    "A7" * 16,
]


def name_cases() -> Iterator[Case]:
    """Names that lead elsewhere, wherever a name stands."""
    for i, name in enumerate(NAMES):
        if name != "A7" * 16:
            yield Case(f"field name {i}", lambda spec, v=name: spec.document.append(lambda d: d["fields"][0].update(name=v)))
            yield Case(f"field name {i}, as the manifest says", lambda spec, v=name: unicode_name(spec, v), "safe")
        for key in ("dataset", "write_id", "parent"):
            yield Case(f"{key} {i}", lambda spec, k=key, v=name: spec.document.append(lambda d: d.update({k: v})))
        for key, slot in (("chunks", 1), ("redirects", 0)):
            yield Case(
                f"writer of {key} {i}",
                lambda spec, k=key, s=slot, v=name: spec.document.append(lambda d: d[k][0].__setitem__(s, v)),
            )
    for key, slot in (("chunks", 1), ("redirects", 0)):
        for value in (WRITER + "\n", "../" + WRITER[3:], WRITER[:-1] + "/", WRITER[:-1] + "\0", WRITER[:-1] + "\uff17"):
            yield Case(
                f"{key} {value!r}", lambda spec, k=key, s=slot, v=value: spec.document.append(lambda d: d[k][0].__setitem__(s, v))
            )
    for folder, suffix in (("chunk", "00000000.zr"), ("redirect", "00000001.rd"), ("manifest", None)):
        yield Case(f"a link in {folder}", lambda spec, f=folder, s=suffix: setattr(spec, "manifest", lambda m: link_away(m, f, s)))


def unicode_name(spec: Spec, name: str) -> None:
    spec.document.append(lambda d: (d["fields"][0].update(name=name), d.update(required=["unicode-names"])))


def link_away(manifest: Path, folder: str, suffix: str | None) -> None:
    """Replace a file by a link to the same bytes outside the store."""
    file = manifest if suffix is None else manifest.parent.parent / folder / f"{WRITER}-{suffix}"
    outside = manifest.parent.parent.parent / "outside"
    shutil.move(file, outside)
    file.symlink_to(outside)


def place_cases() -> Iterator[Case]:
    """Segments and redirects that do not fit together."""
    segments: dict[str, list[list[int]]] = {
        "none": [],
        "a gap": [[0, 2, 0, 0], [3, 1, 0, 3]],
        "an overlap": [[0, 3, 0, 0], [2, 2, 0, 2]],
        "too few": [[0, 3, 0, 0]],
        "too many": [[0, 4, 0, 0], [4, 1, 0, 0]],
        "backwards": [[2, 2, 0, 2], [0, 2, 0, 0]],
        "empty": [[0, 0, 0, 0], [0, 4, 0, 0]],
        "empty at the end": [[0, 4, 0, 0], [4, 0, 0, 0]],
        "a row too far": [[0, 4, 0, 1]],
        "far rows": [[0, 4, 0, 2**32 - 1]],
        "rows that wrap": [[0, 4, 0, 2**32 - 4]],
        "a chunk that is not there": [[0, 4, 1, 0]],
        "a far chunk": [[0, 4, 2**32 - 1, 0]],
        "a late start": [[1, 4, 0, 0]],
        "counts that wrap": [[0, 2**63 - 1, 0, 0], [2**63 - 1, 2**63 - 1, 0, 0]],
        "a huge count": [[0, 2**63 - 1, 0, 0]],
    }
    for name, rows in segments.items():
        yield Case(f"segments: {name}", lambda spec, v=rows: spec.document.append(lambda d: d.update(segments=v)))
        yield Case(
            f"segments, as many records: {name}",
            lambda spec, v=rows: spec.document.append(lambda d: d.update(segments=v, length=min(2**63 - 1, sum(s[1] for s in v)))),
            "safe",
        )
    yield Case(
        "segments: in two", lambda spec: spec.document.append(lambda d: d.update(segments=[[0, 1, 0, 0], [1, 3, 0, 1]])), "right"
    )
    for value in (0, 1, 3, 5, 2**31, 2**32, 2**62, 2**63 - 1):
        yield Case(f"length {value}", lambda spec, v=value: spec.document.append(lambda d: d.update(length=v)))
        yield Case(
            f"length and count {value}",
            lambda spec, v=value: spec.document.append(lambda d: d.update(length=v, segments=[[0, v, 0, 0]])),
            "safe" if value in (1, 3) else "error",
        )
    tables: dict[str, dict[int, list[tuple[int, int, int]]]] = {
        "a record that is not there": {4: [(4, 0, 0)]},
        "a far record": {4: [(2**64 - 1, 0, 0)]},
        "a record at 2**63": {4: [(2**63, 0, 0)]},
        "a chunk that is not there": {4: [(0, 1, 0)]},
        "a far chunk": {4: [(0, 2**32 - 2, 0)]},
        "a row that is not there": {4: [(0, 0, 4)]},
        "a far row": {4: [(0, 0, 2**32 - 1)]},
        "ids that fall": {4: [(2, 0, 0), (1, 0, 0)]},
        "an id twice": {4: [(1, 0, 0), (1, 0, 1)]},
    }
    for name, table in tables.items():
        yield Case(f"redirects: {name}", lambda spec, t=table: setattr(spec, "redirects", build_redirects(t)))
    good = build_redirects(REDIRECTS)
    files = {
        "empty": b"",
        "cut": good[:-1],
        "longer": good + b"\0",
        "another magic": b"X" + good[1:],
        "another version": good[:8] + b"\2" + good[9:],
        "another data set": good[:16] + bytes(16) + good[32:],
        "more fields": good[:12] + u32s([2**32 - 1]) + good[16:],
        "5000 fields": good[:12] + u32s([5000]) + good[16:],
        "more entries": good[:40] + u64s([2]) + good[48:],
        "endless entries": good[:40] + u64s([2**64 - 1]) + good[48:],
        "entries that wrap": good[:40] + u64s([2**60 + 1]) + good[48:],
        "a field twice": build_redirects({4: [(1, 0, 2)], 5: []}).replace(b"\x05\0\0\0", b"\x04\0\0\0"),
        "padding": good[:36] + b"\1" + good[37:],
    }
    for name, data in files.items():
        yield Case(f"redirect file: {name}", lambda spec, v=data: setattr(spec, "redirects", v))
    yield Case(
        "redirects: of a field that is not there",
        lambda spec: setattr(spec, "redirects", build_redirects({4095: [(0, 0, 1)], **REDIRECTS})),
        "safe",
    )
    yield Case(
        "redirects: of field 2**32 - 1",
        lambda spec: setattr(spec, "redirects", build_redirects({2**32 - 1: [(0, 0, 1)], **REDIRECTS})),
        "safe",
    )
    yield Case("redirects: taken back", lambda spec: setattr(spec, "redirects", build_redirects({4: [(1, 2**32 - 1, 0)]})), "safe")
    yield Case(
        "redirects: all to one row",
        lambda spec: setattr(spec, "redirects", build_redirects({n: [(i, 0, 0) for i in range(4)] for n in range(5)})),
        "safe",
    )
    yield Case(
        "redirects: the same file 1025 times",
        lambda spec: spec.document.append(lambda d: d.update(redirects=d["redirects"] * 1025)),
    )
    yield Case("chunks: the same number twice", lambda spec: spec.document.append(lambda d: d.update(chunks=d["chunks"] * 2)))
    yield Case("chunks: none", lambda spec: spec.document.append(lambda d: d.update(chunks=[])))
    for slot, value in (
        (2, 1),
        (2, 2**32 - 1),
        (3, 0),
        (3, 1),
        (3, 127),
        (3, 128),
        (3, 2**63 - 1),
        (4, 0),
        (4, 3),
        (4, 5),
        (4, 2**32 - 1),
        (5, 0),
    ):
        yield Case(
            f"chunks[0][{slot}] = {value}",
            lambda spec, s=slot, v=value: spec.document.append(lambda d: d["chunks"][0].__setitem__(s, v)),
        )


def text_cases() -> Iterator[Case]:
    """Manifests that are not JSON, or JSON that nobody should read."""
    lines: dict[str, Callable[[bytes], bytes]] = {
        "nothing": lambda _: b"",
        "null": lambda _: b"null",
        "a list": lambda _: b"[]",
        "a number": lambda _: b"1",
        "an empty object": lambda _: b"{}",
        "depth 100,000": lambda _: b"[" * 100_000,
        "closed depth 100,000": lambda _: b"[" * 100_000 + b"]" * 100_000,
        "depth in a value": lambda line: line.replace(b'"optional":[]', b'"optional":' + b"[" * 50_000 + b"]" * 50_000),
        "objects 50,000 deep": lambda _: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "a million lists": lambda line: line.replace(b'"chunks":[[', b'"chunks":[' + b"[]," * 1_000_000 + b"["),
        "a million keys": lambda line: line.replace(
            b'"chunks":[[', b'"chunks":{%s' % b",".join(b'"%d":1' % i for i in range(10**6)) + b"}" + line[:0]
        ),
        "a key twice": lambda line: line.replace(b'"length":4', b'"length":4,"length":4'),
        "a key twice inside": lambda line: line.replace(b'"kind":"text"', b'"kind":"text","kind":"text"'),
        "a key twice, once escaped": lambda line: line.replace(b'"length":4', b'"length":4,"\\u006cength":4'),
        "10,000 digits": lambda line: line.replace(b'"length":4', b'"length":' + b"4" * 10_000),
        "10,000 digits elsewhere": lambda line: line.replace(b'"optional":[]', b'"optional":' + b"4" * 10_000),
        "a million digits": lambda line: line.replace(b'"length":4', b'"length":' + b"4" * 1_000_000),
        "a negative zero": lambda line: line.replace(b'"first_row":0', b"-0").replace(b'"length":4', b'"length":-4'),
        "an exponent": lambda line: line.replace(b'"length":4', b'"length":4e0'),
        "a fraction": lambda line: line.replace(b'"length":4', b'"length":4.0'),
        "a huge exponent": lambda line: line.replace(b'"length":4', b'"length":1e999999999'),
        "Infinity": lambda line: line.replace(b'"length":4', b'"length":Infinity'),
        "NaN": lambda line: line.replace(b'"optional":[]', b'"optional":NaN'),
        "a byte that is not UTF-8": lambda line: line.replace(b'"plain"', b'"pl\xffin"'),
        "an overlong slash": lambda line: line.replace(b'"plain"', b'"pl\xc0\xafin"'),
        "a coded surrogate": lambda line: line.replace(b'"optional":[]', b'"optional":["\xed\xa0\x80"]'),
        "a byte order mark": lambda line: b"\xef\xbb\xbf" + line,
        "UTF-16": lambda line: line.decode().encode("utf-16"),
        "UTF-32": lambda line: line.decode().encode("utf-32"),
        "a NUL at the end": lambda line: line + b"\0",
        "two documents": lambda line: line + line,
        "a comment": lambda line: line + b"//",
        "a comma": lambda line: line[:-1] + b",}",
        "single quotes": lambda line: line.replace(b'"', b"'"),
        "a carriage return inside a text": lambda line: line.replace(b'"plain"', b'"pl\rin"'),
    }
    for name, change in lines.items():
        yield Case(f"line: {name}", lambda spec, v=change: setattr(spec, "line", v))
    yield Case(
        "line: spaces around", lambda spec: setattr(spec, "line", lambda line: b"  " + line.replace(b",", b" , ") + b"  "), "right"
    )
    files: dict[str, Callable[[Path], object]] = {
        "64 MiB and a byte": lambda file: os.truncate(file, (64 << 20) + 1),
        "a gigabyte": lambda file: os.truncate(file, 1 << 30),
        "an exabyte": lambda file: os.truncate(file, 1 << 52),
        "64 MiB of zeros": lambda file: file.write_bytes(bytes(64 << 20)),
        "no crc": lambda file: file.write_bytes(file.read_bytes()[:-9]),
        "an upper-case crc": lambda file: file.write_bytes(upper_crc(file.read_bytes())),
        "an empty file": lambda file: file.write_bytes(b""),
        "a newline": lambda file: file.write_bytes(b"\n"),
        "another generation": lambda file: file.rename(file.with_name(f"{2:020d}.json")),
        "a generation of twenty nines": lambda file: file.rename(file.with_name("9" * 20 + ".json")),
        "generation 0": lambda file: file.rename(file.with_name("0" * 20 + ".json")),
    }
    for name, edit in files.items():
        yield Case(f"file: {name}", lambda spec, v=edit: setattr(spec, "manifest", v))


def upper_crc(data: bytes) -> bytes:
    return data[:-9] + b"ABCDEF01\n"


def version_cases() -> Iterator[Case]:
    """Versions and features of another time."""
    for value in (0, 2, 3, 999, 2**31, 10**19):
        yield Case(f"version {value}", lambda spec, v=value: spec.document.append(lambda d: d.update(version=v)), "unsupported")
    for value in (["columns"], ["a", "b"], ["x" * 100_000], ["\x1b[31m"]):
        yield Case(
            f"required {str(value)[:20]}", lambda spec, v=value: spec.document.append(lambda d: d.update(required=v)), "unsupported"
        )
    yield Case(
        "version and keys of the future",
        lambda spec: spec.document.append(lambda d: (d.clear(), d.update(format="penstock", version=2, required=[], new={"a": 1}))),
        "unsupported",
    )
    for value in (["columns"], ["a"] * 1000):
        yield Case(
            f"optional {str(value)[:20]}", lambda spec, v=value: spec.document.append(lambda d: d.update(optional=v)), "right"
        )
    yield Case("no optional features", lambda spec: spec.document.append(lambda d: d.pop("optional")), "right")
    yield Case("another key", lambda spec: spec.document.append(lambda d: d.update(remark="of a newer version")), "right")
    yield Case("many other keys", lambda spec: spec.document.append(lambda d: d.update({f"k{i}": i for i in range(1000)})), "right")
    yield Case("as it is", lambda _: None, "right")
    yield Case("as it is, by pread", lambda _: None, "right", "pread")


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "codec": codec_cases,
    "entry": entry_cases,
    "field": field_cases,
    "index": index_cases,
    "manifest_value": manifest_value_cases,
    "memory": memory_cases,
    "name": name_cases,
    "place": place_cases,
    "small_entry": small_entry_cases,
    "text": text_cases,
    "version": version_cases,
}

# What a good store holds.
RECORDS: list[dict[str, Any]] = [
    {"plain": [0] * 4, "text": "a" * 200, "grid": (2, 8), "pose": [0] * 8, "blob": b"one"},
    {"plain": [1] * 4, "text": "b" * 300, "grid": (3, 8), "pose": [0x01010101] * 8, "blob": b"three"},
    {"plain": [2] * 4, "text": "short", "grid": (1, 8), "pose": [0x02020202] * 8, "blob": b"three"},
    {"plain": [3] * 4, "text": "", "grid": (0, 8), "pose": None, "blob": b"4"},
]


def simple(record: dict[str, Any]) -> dict[str, Any]:
    """A record that compares by ==."""
    grid = record.pop("grid")
    made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in record.items()}
    return made | {"grid": None if grid is None else grid.shape}


@dataclass
class Result:
    """What came of a case."""

    case: str
    outcome: str
    wrong: str = ""
    errors: list[str] = field(default_factory=list)


def write(root: Path, case: Case) -> None:
    """Write the store of a case."""
    spec = Spec()
    case.change(spec)
    spec.write(root)


def exercise(root: Path, case: Case) -> Result:
    """Open the store of a case and ask it everything."""
    result, unreadable = Result(case.name, case.outcome), list[str]()

    def attempt(what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except pen.PenstockError as error:
            result.errors.append(type(error).__name__)
            text = str(error)
            if what.startswith(("read", "record")) and not isinstance(error, BatchTooLargeError):
                unreadable.append(f"{what}: {text[:200]}")
            if case.outcome == "unsupported" and not isinstance(error, UnsupportedVersionError):
                result.wrong += f"{what}: expected UnsupportedVersionError, got {text[:200]}; "
            if str(root) not in text or len(text) > 2000 or "\n" in text or not text.isprintable():
                result.wrong += f"{what}: a message that is long or names no file: {text[:200]!r}; "
        except BaseException as error:
            result.wrong += f"{what}: {type(error).__name__}: {str(error)[:200]}; "
        return None

    store = attempt("open", lambda: pen.open(root, threads=1, io=case.io))
    problems = attempt("verify", lambda: pen.verify(root))
    if store is not None:
        records = ask(store, attempt)
        if unreadable and not problems:
            result.wrong += f"verify says nothing of {unreadable[0]}"
        if case.outcome == "right" and records != RECORDS:
            result.wrong += f"wrong records: {str(records)[:300]}"
    if case.outcome in ("error", "unsupported") and not result.errors:
        result.wrong += "no error"
    if case.outcome == "right" and (result.errors or problems):
        result.wrong += f"errors: {result.errors} {problems}"
    return result


def ask(store: Store, attempt: Callable[[str, Callable[[], Any]], Any]) -> list[Any]:
    length = len(store)
    attempt("stats", lambda: stats(store))
    ids = sorted({i for i in (0, 1, 2, 3, length // 2, length - 1) if 0 <= i < length})
    for name, one in list(store.schema.items())[:8]:
        column = attempt(f"read {name}", lambda name=name: store.read(ids, [name])[name])
        if isinstance(column, pen.Ragged):
            attempt(f"items of {name}", column.to_list)
        if one.is_fixed and one.codec.number == 0 and one.stride < 2**20 and ids:
            attempt(f"view {name}", lambda name=name: view_or_missing(store, name))
    first = [attempt(f"record {i}", lambda i=i: simple(store[i]) if "grid" in store.schema else store[i]) for i in ids[:4]]
    if length <= 100_000:
        whole = attempt("all", lambda: store.read(slice(None)))
        attempt("loader", lambda: load(store, whole))
    return first


def load(store: Store, whole: Any) -> None:
    """One batch of everything, by native threads where they can: the same, or an error too."""
    with pen.Loader(store.in_order(), max(1, len(store)), threads=2) as loader:
        for batch in loader:
            assert whole is not None, "a loader read what cannot be read"
            assert {name: seen(column) for name, column in batch.items()} == {name: seen(column) for name, column in whole.items()}


def seen(column: Any) -> list[Any]:
    """What compares by ==."""
    if not isinstance(column, pen.Ragged):
        return [np.ma.getdata(column).tobytes(), np.ma.getmaskarray(column).tobytes()]
    parts = (column.values, column.offsets, column.shapes, column.present)
    return [None if part is None else (part.dtype, part.shape, part.tobytes()) for part in parts]


def view_or_missing(store: Store, name: str) -> object:
    try:
        return store.view(name)[0].sum()
    except ValueError as error:
        if isinstance(error, pen.PenstockError):
            raise
        return None


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def peak_kib() -> int:
    """The most memory this program has held. (getrusage would count what its parent held when it was started.)"""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    """Run groups of cases and print what came of them: one here, several in forks, which do not import anything again."""
    groups, folder, stride = sys.argv[1].split(","), Path(sys.argv[2]), int(sys.argv[3])
    if len(groups) == 1:
        run_group(groups[0], folder, stride, apart=len(sys.argv) > 4)
        return
    for group in groups:
        child = os.fork()
        if child == 0:
            (folder / group).mkdir()
            run_group(group, folder / group, stride, apart=False)
            return
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the group {group} failed")


def run_group(group: str, folder: Path, stride: int, *, apart: bool) -> None:
    """Print what came of the cases of one group."""
    cases = [Case("as it is", lambda _: None, "right"), *itertools.islice(GROUPS[group](), 0, None, stride)]
    # apart: all stores are written before the first is read, each in a folder of its own
    root = [folder / (f"store{i}" if apart else "store") / "a.pen" for i in range(len(cases))]
    warnings.simplefilter("error")
    for i in range(len(cases) if apart else 1):
        write(root[i], cases[i])
    exercise(root[0], cases[0])  # loads what is loaded late
    limit_address_space(512 << 20)
    os.path.exists(folder / "marker")  # for whoever watches: from here on only stores are opened
    for i, case in enumerate(cases[1:], 1):
        say({"begin": case.name})
        if not apart:
            write(root[i], case)
        signal.alarm(patience_s(60))  # a hang ends the program
        result = exercise(root[i], case)
        signal.alarm(0)
        say(result.__dict__)
    say({"peak_kib": peak_kib()})


if __name__ == "__main__":
    main()
