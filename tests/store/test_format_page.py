"""A reader written from docs/reference/format.md alone finds every record; offsets and types come from its tables."""

import ctypes
import hashlib
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.store.chunk import encode_chunk
from penstock.store.column import make_column

PAGE = (Path(__file__).parent.parent.parent / "docs/reference/format.md").read_text()
ROW = re.compile(r"\| (\d+) \| ([^|]+) \| (\w+) \| ([^|]*)\|")
ARRAYS = re.findall(r"^\| ([a-z]+) \| (?:u32|u64|a bit|bytes)[ :]", PAGE, re.MULTILINE)


class Layout:
    """A table of the page: offsets, types and names; ``size`` is where the last one ends."""

    def __init__(self, heading: str) -> None:
        section = PAGE.split(f"# {heading}\n")[1].split("\n#")[0]
        self.format, self.names, self.fixed = "<", [], {}
        for at, kind, name, what in ROW.findall(section):
            assert int(at) == struct.calcsize(self.format), f"{heading}: {name} does not follow what stands before it"
            count = np.prod([int(word) for word in re.findall(r"\b\d+\b", kind)], dtype=int)
            self.format += {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}.get(kind) or f"{count}s"
            self.names.append(name)
            if value := re.match(r"`(\w+)`|(\d+)\s*$", what.strip()):
                self.fixed[name] = value[1].encode() if value[1] else int(value[2])
        self.size = struct.calcsize(self.format)

    def read(self, data: bytes, at: int = 0) -> dict[str, Any]:
        found = dict(zip(self.names, struct.unpack_from(self.format, data, at), strict=True))
        assert {name: found[name] for name in self.fixed} == self.fixed
        return found


HEADER, ENTRY, REFERENCE, TAIL = (Layout(name) for name in ("Header", "Entry", "Array reference", "Tail"))
REDIRECTS, DESCRIPTION, REDIRECT = (Layout(name) for name in ("Redirect file", "Description", "Redirect"))


def remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


REMAINDERS = [remainder(byte) for byte in range(256)]


def crc(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ REMAINDERS[(register ^ byte) & 255]
    return register ^ 0xFFFFFFFF


def decode(codec: int, stored: bytes, length: int, dictionary: bytes) -> bytes:
    if len(stored) == length:
        return stored
    if codec == 1:
        return zlib.decompress(stored, -15)
    out = ctypes.create_string_buffer(length)
    if codec == 2:
        library = ctypes.CDLL("libzstd.so.1")
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        context = ctypes.c_void_p(library.ZSTD_createDCtx())
        words = (dictionary, ctypes.c_size_t(len(dictionary)))
        library.ZSTD_decompress_usingDict(context, out, ctypes.c_size_t(length), stored, ctypes.c_size_t(len(stored)), *words)
        library.ZSTD_freeDCtx(context)
    else:
        assert codec == 3
        ctypes.CDLL("liblz4.so.1").LZ4_decompress_safe(stored, out, len(stored), length)
    return out.raw


class Column:
    """One field of a chunk."""

    def __init__(self, file: bytes, entry: dict[str, Any], rows: int) -> None:
        self.entry, self.rows = entry, rows
        self.region = file[entry["data_offset"] : entry["data_offset"] + entry["data_bytes"]]
        references = [REFERENCE.read(entry["arrays"], at) for at in range(0, len(entry["arrays"]), REFERENCE.size)]
        self.array = {}
        for name, reference in zip(ARRAYS, references, strict=True):
            self.array[name] = file[reference["offset"] : reference["offset"] + reference["bytes"]]
            assert crc(self.array[name]) == reference["crc"] or not self.array[name]
            assert reference["offset"] % 8 == 0
        assert entry["data_offset"] % 64 == 0
        pages = np.frombuffer(self.array["pages"], "<u4").tolist()
        per_page = entry["rows_per_page"]
        assert len(pages) == -(-rows // per_page)
        for page, expected in enumerate(pages):
            end = self.span(min(rows, (page + 1) * per_page) - 1)[1]
            assert crc(self.region[self.span(page * per_page)[0] : end]) == expected

    def span(self, row: int) -> tuple[int, int]:
        ends = np.frombuffer(self.array["ends"], "<u8")
        if not ends.size:
            return row * self.entry["stride"], (row + 1) * self.entry["stride"]
        return int(ends[row - 1]) if row else 0, int(ends[row])

    def record(self, row: int) -> tuple[bytes, tuple[int, ...]] | None:
        """Decoded bytes and the shape, () where there is none; None if the record is missing."""
        if self.entry["flags"] & 1 and not self.array["validity"][row // 8] >> row % 8 & 1:
            return None
        start, end = self.span(row)
        lengths = np.frombuffer(self.array["lengths"], "<u4")
        plain = end - start if self.entry["codec"] == 0 else self.entry["stride"]
        data = decode(
            self.entry["codec"], self.region[start:end], int(lengths[row]) if lengths.size else plain, self.array["dictionary"]
        )
        ndim = self.entry["ndim"]
        return data, tuple(np.frombuffer(self.array["dims"], "<u4")[row * ndim : (row + 1) * ndim].tolist())


def parse_chunk(file: bytes, dataset: bytes) -> tuple[dict[int, Column], dict[str, Any]]:
    header, tail = HEADER.read(file), TAIL.read(file, len(file) - TAIL.size)
    entries = file[tail["entries_offset"] : -TAIL.size]
    assert header["crc"] == crc(file[:60])
    assert tail["crc"] == crc(entries + file[-TAIL.size :][:52])
    assert header["dataset"] == tail["dataset"] == dataset
    assert (tail["file_bytes"], tail["fields"] * ENTRY.size) == (len(file), len(entries))
    found = [ENTRY.read(entries, at) for at in range(0, len(entries), ENTRY.size)]
    return {entry["field"]: Column(file, entry, tail["rows"]) for entry in found}, {**tail, "header": header}


class Reader:
    """The newest generation of a store."""

    def __init__(self, path: Path) -> None:
        self.path, newest = path, max((path / "manifest").glob("[0-9]" * 20 + ".json"))
        line, check = newest.read_bytes().split(b"\n")[:2]
        self.manifest, self.digest = json.loads(line), hashlib.sha256(newest.read_bytes()).hexdigest()
        assert b"%08x" % crc(line) == check
        assert self.manifest["generation"] == int(newest.stem)
        self.dataset = bytes.fromhex(self.manifest["dataset"])
        self.chunks = {}
        for number, writer, serial, size, rows, tail_crc, _ in self.manifest["chunks"]:
            file = (path / f"chunk/{writer}-{serial:08x}.zr").read_bytes()
            self.chunks[number], facts = parse_chunk(file, self.dataset)
            assert (len(file), facts["rows"], facts["crc"]) == (size, rows, tail_crc)
            assert (facts["header"]["writer"].hex(), facts["header"]["serial"]) == (writer, serial)
        self.moved: dict[tuple[int, int], tuple[int, int]] = {}
        for writer, serial, size, file_crc in self.manifest["redirects"]:
            file = (path / f"redirect/{writer}-{serial:08x}.rd").read_bytes()
            assert (len(file), crc(file)) == (size, file_crc)
            self._redirects(file)

    def _redirects(self, file: bytes) -> None:
        header, at = REDIRECTS.read(file), REDIRECTS.size
        assert header["dataset"] == self.dataset
        tables = [DESCRIPTION.read(file, at + i * DESCRIPTION.size) for i in range(header["fields"])]
        at += len(tables) * DESCRIPTION.size
        for table in tables:
            for _ in range(table["entries"]):
                one = REDIRECT.read(file, at)
                self.moved[table["field"], one["id"]] = (one["chunk"], one["row"])
                at += REDIRECT.size
        assert at == len(file)

    def record(self, field: int, record: int) -> tuple[bytes, tuple[int, ...]] | None:
        segments = [s for s in self.manifest["segments"] if s[0] <= record < s[0] + s[1]]
        ((first_id, _, chunk, first_row),) = segments
        row = first_row + record - first_id
        if self.moved.get((field, record), (0xFFFFFFFF, 0))[0] != 0xFFFFFFFF:
            chunk, row = self.moved[field, record]
        return self.chunks[chunk][field].record(row) if field in self.chunks[chunk] else None


def expected(field: pen.Field, value: Any) -> tuple[bytes, tuple[int, ...]] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value, ()
    array = np.asarray(value)
    return array.tobytes(), array.shape if field.kind == "ragged" and field.ndim > 1 else ()


WORDS = [f"record {i} of a few words that repeat, repeat and repeat" * (i % 3) for i in range(40)]
FIELDS = {
    "fixed": pen.Field("i4", (2,)),
    "half": pen.Field("f2", (300,), codec=pen.Deflate(6)),
    "ragged": pen.Field.ragged("u2", 2, codec=pen.LZ4()),
    "list": pen.Field.ragged("f8"),
    "text": pen.Field.text(codec=pen.Zstd(3)),
    "dictionary": pen.Field.bytes(
        codec=pen.Zstd(3, pen.train_dictionary([f"{w}{i}" for w in WORDS for i in range(50)], size=1024))
    ),
}


def rows(first: int, count: int) -> dict[str, list[Any]]:
    """Records with something missing, something empty and something of zeros in every field."""
    ids = range(first, first + count)
    return {
        "fixed": [None if i % 7 == 3 else np.array([i, -i], "i4") for i in ids],
        "half": [None if i % 5 == 1 else np.full(300, i % 4, "f2") for i in ids],
        "ragged": [None if i % 6 == 5 else np.arange(i % 4 * 3, dtype="u2").reshape(i % 4, 3) for i in ids],
        "list": [None if i % 4 == 2 else np.arange(i % 5, dtype="f8") for i in ids],
        "text": [None if i % 9 == 4 else WORDS[i % 40] for i in ids],
        "dictionary": [None if i % 8 == 6 else WORDS[i % 40].encode() for i in ids],
    }


def columns(count: int) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for batch in [rows(0, count)] for values in zip(*batch.values(), strict=True)]


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store with several chunks and redirect files, one of which takes redirects back, and the records it must have."""
    path, records = tmp_path / "train.pen", columns(50)
    with pen.create(path, FIELDS, chunk_bytes=4096, chunk_records=16, metadata={"origin": "here"}) as out:
        out.extend(rows(0, 50))
        out.commit()
        out.update([0, 9, 49], {"text": ["new", None, "last"], "fixed": [[7, 7], [8, 8], [9, 9]]})
        out.commit()
        for record, text, fixed in ((0, "new", [7, 7]), (9, None, [8, 8]), (49, "last", [9, 9])):
            records[record] = {**records[record], "text": text, "fixed": np.array(fixed, "i4")}
        moves = out.delete([3, 4, 48])
        assert moves == {47: 3, 49: 4} or moves == {49: 3, 47: 4}
        out.commit()
        for old, new in moves.items():
            records[new] = records[old]
        del records[47:]
        out.append({"list": [1.0, 2.0]})
        records.append({**dict.fromkeys(FIELDS), "list": np.array([1.0, 2.0])})
    return path, records


def test_reader_written_from_the_page_finds_every_record(store: tuple[Path, list[dict[str, Any]]]) -> None:
    path, records = store
    reader = Reader(path)
    assert reader.manifest["length"] == len(records)
    assert len(reader.manifest["chunks"]) > 3
    assert len(reader.manifest["redirects"]) > 1
    for field in reader.manifest["fields"]:
        for record, values in enumerate(records):
            name = field["name"]
            found = reader.record(field["number"], record)
            assert found == expected(FIELDS[name], values[name]), f"{name} of record {record}"


def test_reader_written_from_the_page_agrees_with_penstock(store: tuple[Path, list[dict[str, Any]]]) -> None:
    path, _ = store
    reader, data = Reader(path), pen.open(path)
    assert (len(data), data.generation, data.fingerprint) == (
        reader.manifest["length"],
        reader.manifest["generation"],
        reader.digest,
    )
    for number, (name, field) in enumerate(data.schema.items()):
        for record in range(len(data)):
            assert reader.record(number, record) == expected(field, data[record][name]), f"{name} of record {record}"


def test_some_redirect_is_taken_back(store: tuple[Path, list[dict[str, Any]]]) -> None:
    path, records = store
    taken_back = [key for key, (chunk, _) in Reader(path).moved.items() if chunk == 0xFFFFFFFF]
    assert taken_back
    assert max(record for _, record in taken_back) >= len(records) - 1


def test_every_key_of_the_manifest_stands_on_the_page(store: tuple[Path, list[dict[str, Any]]]) -> None:
    section = PAGE.split("## Manifest\n")[1].split("\n## ")[0]
    manifest = Reader(store[0]).manifest
    assert set(manifest) == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+)\|", section, re.MULTILINE))))
    example = json.loads(section.split("```text\n")[1].split("\n```")[0].rpartition("\n")[0].replace("\n", ""))
    assert list(example) == list(manifest)


def test_dump_on_the_page_is_the_chunk_it_says() -> None:
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ){7,15}[0-9a-f]{2})", PAGE, re.MULTILINE)
    dump = b"".join(map(bytes.fromhex, lines))
    field = pen.Field.text()
    chunk = encode_chunk("0f" * 16, "1e" * 16, 0, {0: field}, {0: make_column("t", field, ["hi", None, ""])})
    file = bytearray(chunk.size)
    for offset, data in chunk.pieces:
        file[offset : offset + len(data)] = bytes(data)
    assert dump == bytes(file)
    fields, tail = parse_chunk(dump, b"\x0f" * 16)
    assert tail["crc"] == chunk.crc
    assert [fields[0].record(row) for row in range(3)] == [(b"hi", ()), None, (b"", ())]


@pytest.mark.parametrize(
    ("heading", "size"), [("Header", 64), ("Entry", 184), ("Array reference", 24), ("Tail", 64), ("Redirect", 16)]
)
def test_table_has_the_size_the_page_gives(heading: str, size: int) -> None:
    assert Layout(heading).size == size
    assert ARRAYS == ["pages", "ends", "lengths", "dims", "validity", "dictionary"]
