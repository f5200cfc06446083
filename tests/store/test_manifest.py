"""Manifests: bytes and back; rows kept by column that look like a tuple of entries. Hostile ones are among the hostile tests."""

import dataclasses
import hashlib
import json
import pickle
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.test_schema import ANY_FIELD

from penstock import Field, _core
from penstock.errors import CorruptError, UnsupportedVersionError
from penstock.store.manifest import (
    ChunkEntry,
    Entries,
    Manifest,
    RedirectEntry,
    SegmentEntry,
    decode_manifest,
    encode_manifest,
    values_of,
)
from penstock.store.row_map import as_rows
from penstock.store.storage import manifest_file

HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
U32 = st.integers(0, 2**32 - 1)
FOUR_U32 = st.lists(U32, min_size=4, max_size=4)
BIG = st.integers(0, 2**63 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    fields = draw(st.dictionaries(NAMES, ANY_FIELD, min_size=1, max_size=4))
    numbers = draw(st.lists(st.integers(0, 4095), min_size=len(fields), max_size=len(fields), unique=True))
    next_chunk = draw(st.integers(1, 2**32 - 1))
    counts = draw(st.lists(st.integers(1, 2**60), max_size=4))
    chunk_numbers = draw(st.lists(st.integers(0, next_chunk - 1), unique=True, max_size=4))
    return Manifest(
        dataset=draw(HEX),
        generation=draw(st.integers(1, 2**63 - 1)),
        parent=draw(st.none() | HEX.map(lambda text: text * 2)),
        write_id=draw(HEX),
        length=draw(BIG),
        fields=fields,
        numbers=dict(zip(fields, numbers, strict=True)),
        chunk_bytes=draw(st.integers(4096, 2**63 - 1)),
        chunk_records=draw(st.integers(1, 2**32 - 1)),
        next_chunk=next_chunk,
        chunks=tuple(ChunkEntry(n, draw(HEX), draw(U32), draw(BIG), draw(U32), draw(U32), draw(BIG)) for n in chunk_numbers),
        segments=tuple(map(SegmentEntry, accumulate(counts, initial=0), counts, draw(FOUR_U32), draw(FOUR_U32))),
        redirects=tuple(draw(st.lists(st.builds(RedirectEntry, HEX, U32, BIG, U32), max_size=4))),
    )


@given(manifests())
def test_manifest_comes_back_with_the_digest_of_its_bytes(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, "here") == dataclasses.replace(manifest, digest=hashlib.sha256(data).hexdigest())


SMALL = Manifest(
    dataset="0" * 32,
    generation=3,
    parent="1" * 64,
    write_id="2" * 32,
    length=5,
    fields={"x": Field("i4")},
    numbers={"x": 0},
    chunk_bytes=4096,
    chunk_records=10,
    next_chunk=1,
    chunks=(ChunkEntry(0, "3" * 32, 0, 500, 5, 7, 20),),
    segments=(SegmentEntry(0, 5, 0, 0),),
    redirects=(),
)


def sealed(document: Any) -> bytes:
    line = json.dumps(document, separators=(",", ":")).encode()
    return line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8))


def test_file_is_one_line_of_json_and_its_crc() -> None:
    lines = encode_manifest(SMALL).split(b"\n")
    assert [len(line) > 0 for line in lines] == [True, True, False]
    document = json.loads(lines[0])
    assert sealed(document) == encode_manifest(SMALL)
    assert document["chunks"] == [[0, "3" * 32, 0, 500, 5, 7, 20]]
    assert document["segments"] == [[0, 5, 0, 0]]
    assert manifest_file(SMALL.generation) == "manifest/00000000000000000003.json"


def test_optional_features_are_ignored_and_required_ones_refused() -> None:
    document = json.loads(encode_manifest(SMALL).split(b"\n")[0])
    assert decode_manifest(sealed(document | {"optional": ["colour"]}), "here").length == 5
    assert decode_manifest(sealed(document | {"later": {"a": 1}}), "here").length == 5
    for change in ({"required": ["colour"]}, {"version": 2}, {"version": "1"}, {"required": None}):
        with pytest.raises(UnsupportedVersionError, match=r"^here: .*use a newer penstock"):
            decode_manifest(sealed(document | change), "here")


@pytest.mark.parametrize("key", sorted(json.loads(encode_manifest(SMALL).split(b"\n")[0]).keys() - {"optional"}))
def test_manifest_without_a_key_is_refused(key: str) -> None:
    document = json.loads(encode_manifest(SMALL).split(b"\n")[0])
    del document[key]
    with pytest.raises((CorruptError, UnsupportedVersionError), match=r"^here: "):
        decode_manifest(sealed(document), "here")


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_with_the_files_name(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^here: not a manifest"):
        decode_manifest(data, "here")
    with pytest.raises((CorruptError, UnsupportedVersionError), match=r"^here: "):
        decode_manifest(data + b"\n%08x\n" % _core.crc32c(np.frombuffer(data, np.uint8)), "here")


# Rows by column

CHUNKS = tuple(ChunkEntry(k * 3 % 10_000, f"{k:032x}", k, 2**62 + k, k + 1, 2**32 - 1 - k, k) for k in range(9_999))
ROWS = zip(*([c.number, c.writer, c.serial, c.size, c.rows, c.crc, c.decoded] for c in CHUNKS), strict=True)
COLUMNS = [np.array(values, "S32" if isinstance(values[0], str) else np.int64) for values in ROWS]


def test_entries_are_what_they_were_made_of() -> None:
    entries: Entries[ChunkEntry] = Entries(ChunkEntry, COLUMNS)
    assert len(entries) == 9_999
    assert tuple(entries) == CHUNKS
    assert entries == CHUNKS
    assert entries != CHUNKS[:-1]
    assert entries != (*CHUNKS[:-1], CHUNKS[0])
    assert [entries[k] for k in (0, 1, 4096, 9998, -1, -9999)] == [CHUNKS[k] for k in (0, 1, 4096, 9998, -1, -9999)]
    assert entries[5:9] == CHUNKS[5:9]
    assert entries[::-1] == CHUNKS[::-1]
    assert hash(entries) == hash(CHUNKS)
    assert type(entries[7].size) is int
    assert type(entries[7].writer) is str
    assert CHUNKS[7] in entries
    assert pickle.loads(pickle.dumps(entries)) == CHUNKS
    for outside in (9_999, -10_000):
        with pytest.raises(IndexError):
            entries[outside]


def test_no_entries_are_an_empty_tuple() -> None:
    entries: Entries[SegmentEntry] = Entries(SegmentEntry, [np.empty(0, np.int64)] * 4)
    assert (len(entries), tuple(entries), entries == (), repr(entries)) == (0, (), True, "()")
    assert values_of(entries, "count").size == 0


def test_columns_are_the_same_of_entries_and_of_tuples() -> None:
    entries: Entries[ChunkEntry] = Entries(ChunkEntry, COLUMNS)
    for name in ("number", "size", "crc"):
        assert values_of(entries, name).tolist() == values_of(CHUNKS, name).tolist() == [getattr(chunk, name) for chunk in CHUNKS]
    assert as_rows(values_of(entries, "serial"), values_of(entries, "size"))[3].tolist() == [3, 2**62 + 3]
