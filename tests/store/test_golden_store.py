"""The stores that earlier versions wrote read as they always did. tests/golden/make_store.py says how they were made."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.make_store import DICTIONARY, FIELDS, FIRST_METADATA, SECOND_FIELDS, SECOND_METADATA, SECOND_STORE, STORE
from tests.store.records import digest, files, items

import penstock as pen
from penstock import Field
from penstock.store import stats
from penstock.testing.source_suite import assert_typed

# Generation 1, field by field. Ragged records of several dimensions are (shape, values); short floats are written as plain ones.
FIRST: dict[str, list[Any]] = {
    "bool": [False, True, False, True, False, True, False],
    "i1": [0, None, -2, -3, None, -5, -6],
    "i2": [[0, 0], [1, -1], [2, -2], [3, -3], [4, -4], [5, -5], [6, -6]],
    "i4": [0, None, -2000, -3000, None, -5000, -6000],
    "i8": [0, 1000000000000, 2000000000000, 3000000000000, 4000000000000, 5000000000000, 6000000000000],
    "u1": [[[0, 1], [2, 255]], None, [[2, 3], [4, 253]], [[3, 4], [5, 252]], None, [[5, 6], [7, 250]], [[6, 7], [8, 249]]],
    "u2": [0, 1000, 2000, 3000, 4000, 5000, 6000],
    "u4": [0, None, 200000000, 300000000, None, 500000000, 600000000],
    "u8": [
        18446744073709551615,
        18446744073709551614,
        18446744073709551613,
        18446744073709551612,
        18446744073709551611,
        18446744073709551610,
        18446744073709551609,
    ],
    "f2": [0.0, None, 1.0, 1.5, None, 2.5, 3.0],
    "f4": [
        [0.0, 0.0, 0.0],
        [1.0, 0.25, -1.0],
        [2.0, 0.5, -2.0],
        [3.0, 0.75, -3.0],
        [4.0, 1.0, -4.0],
        [5.0, 1.25, -5.0],
        [6.0, 1.5, -6.0],
    ],
    "f8": [0.0, None, 0.2, 0.3, None, 0.5, 0.6],
    "c8": [0j, (1 - 1j), (2 - 2j), (3 - 3j), (4 - 4j), (5 - 5j), (6 - 6j)],
    "c16": [0j, None, (0.25 + 2j), (0.375 + 3j), None, (0.625 + 5j), (0.75 + 6j)],
    "bf16": [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0],
    "f8e4m3fn": [0.0, None, 1.0, 1.5, None, 2.5, 3.0],
    "f8e4m3b11fnuz": [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5],
    "f8e5m2": [0.0, None, 4.0, 6.0, None, 10.0, 12.0],
    "nothing": [[], [], [], [], [], [], []],
    "ragged": [[], None, [0, 1], [0, 1, 2], None, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]],
    "ragged-2": [
        ((0, 2), []),
        ((1, 3), [1, 1, 1]),
        ((2, 3), [2, 2, 2, 2, 2, 2]),
        ((0, 2), []),
        ((1, 3), [4, 4, 4]),
        ((2, 3), [5, 5, 5, 5, 5, 5]),
        ((0, 2), []),
    ],
    "ragged.3": [((1, 0, 2), []), None, ((1, 0, 2), []), ((1, 1, 2), [3.0, 3.0]), None, ((1, 1, 2), [5.0, 5.0]), ((1, 0, 2), [])],
    "bytes": [
        b"",
        b"\x00",
        b"\x00\x01",
        b"\x00\x01\x02",
        b"\x00\x01\x02\x03",
        b"\x00\x01\x02\x03\x04",
        b"\x00\x01\x02\x03\x04\x05",
    ],
    "bytes_deflate": [
        b"",
        None,
        b"abababababababababababababababababababab",
        b"abababababababababababababababababababababababababababababab",
        None,
        b"abababababababababababababababababababababababababababababababababababababababababababababababababab",
        b"abababababababababababababababababababababababababababababababababababababababababababababababababababababababababababab",
    ],
    "text": ["Größe 0", "Größe 1", "", "Größe 3", "Größe 4", "Größe 5", "Größe 6"],
    "text_zstd": [
        "",
        None,
        "again 2 again 2 ",
        "again 3 again 3 again 3 ",
        None,
        "again 5 again 5 again 5 again 5 again 5 ",
        "again 6 again 6 again 6 again 6 again 6 again 6 ",
    ],
    "text_dictionary": [
        '{"name": "0", "colour": "green", "size": 0}',
        '{"name": "1", "colour": "green", "size": 1}',
        '{"name": "2", "colour": "green", "size": 2}',
        '{"name": "3", "colour": "green", "size": 3}',
        '{"name": "4", "colour": "green", "size": 4}',
        '{"name": "5", "colour": "green", "size": 5}',
        '{"name": "6", "colour": "green", "size": 6}',
    ],
}

# Generation 2: records 0 and 5 were updated, 1 and 6 deleted so that 5 took the id 1, and one was appended.
ORIGIN = [0, 5, 2, 3, 4]
UPDATED: dict[str, list[Any]] = {"i4": [77, None], "text_zstd": [None, "updated"]}
APPENDED: dict[str, Any] = {
    "bool": True, "i1": None, "i2": [7, -7], "i4": None, "i8": 7_000_000_000_000, "u1": None, "u2": 7000, "u4": None,
    "u8": 18446744073709551608, "f2": None, "f4": [7.0, 1.75, -7.0], "f8": None, "c8": 7 - 7j, "c16": None, "bf16": 14.0,
    "f8e4m3fn": None, "f8e4m3b11fnuz": 1.75, "f8e5m2": None, "nothing": [], "ragged": None, "ragged-2": ((1, 3), [7, 7, 7]),
    "ragged.3": None, "bytes": b"\x00\x01\x02\x03\x04\x05\x06", "bytes_deflate": None, "text": "Größe 7", "text_zstd": None,
    "text_dictionary": '{"name": "7", "colour": "green", "size": 7}',
}  # fmt: skip


def second() -> dict[str, list[Any]]:
    made = {name: [values[i] for i in ORIGIN] + [APPENDED[name]] for name, values in FIRST.items()}
    for name, values in UPDATED.items():
        made[name][:2] = values
    return made


def plain(value: Any, field: Field) -> Any:
    if value is None or isinstance(value, str | bytes):
        return value
    array = np.asarray(value)
    assert array.dtype == field.dtype
    if array.dtype.kind == "V":
        array = array.astype(np.float64)
    return (array.shape, array.ravel().tolist()) if field.kind == "ragged" and field.ndim > 1 else array.tolist()


EXPECTED = {1: FIRST, 2: second()}


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
@pytest.mark.parametrize("generation", [1, 2])
def test_every_value_is_what_it_was(generation: int, io: str) -> None:
    with pen.open(STORE, generation=generation, io=io) as store:
        assert len(store) == {1: 7, 2: 6}[generation]
        assert {name: field.with_nullable(False) for name, field in store.schema.items()} == FIELDS
        nullable = {name for name, values in FIRST.items() if None in values}
        assert {name for name, field in store.schema.items() if field.nullable} == nullable
        assert store.metadata == {}
        for name, field in FIELDS.items():
            assert [plain(value, field) for value in items(store[name][:])] == EXPECTED[generation][name], name
            assert [plain(store[i][name], field) for i in range(len(store))] == EXPECTED[generation][name], name


def test_store_is_whole_small_and_has_redirects() -> None:
    assert pen.verify(STORE) == pen.verify(STORE, generation=1) == []
    assert pen.open(STORE).generations() == [1, 2]
    assert stats(pen.open(STORE)).redirects == len(FIELDS) + 2
    assert sum(files(STORE).values()) < 40_000
    assert {field.codec.name for field in FIELDS.values()} == {"raw", "deflate", "zstd", "lz4"}
    assert FIELDS["text_dictionary"].codec == pen.Zstd(3, DICTIONARY)


def test_files_are_those_of_the_documented_format() -> None:
    for name in files(STORE):
        data = (STORE / name).read_bytes()
        if name.startswith("manifest"):
            document = json.loads(data.split(b"\n")[0])
            assert (document["format"], document["version"], document["required"]) == ("penstock", 1, [])
        elif name.startswith("chunk"):
            assert (data[:8], data[8:12], data[-8:]) == (b"PENCHUNK", b"\1\0\0\0", b"KNUHCNEP")
        else:
            assert (data[:8], data[8:12]) == (b"PENREDIR", b"\1\0\0\0")


def test_todays_writer_goes_on_with_it(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "copy.pen")
    before = digest(pen.open(STORE))
    with pen.open(tmp_path / "copy.pen", mode="a") as out:
        out.extend({"i4": range(5), "text_dictionary": ["new"] * 5})
        out.delete(range(6, 11))
    assert digest(pen.open(tmp_path / "copy.pen")) == before
    pen.rebalance(tmp_path / "copy.pen")
    pen.gc(tmp_path / "copy.pen", keep=1, keep_hours=0)
    assert digest(pen.open(tmp_path / "copy.pen")) == before


SECOND: dict[str, list[Any]] = {
    "größe in mm": [[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [3.0, 1.5], [4.0, 2.0]],
    "画像": [b"", b"\x00", b"\x00\x01", b"\x00\x01\x02", b"\x00\x01\x02\x03"],
    "caption": ["Bild 0", "Bild 1", "Bild 2", "Bild 3", None],
    "label": [0, None, 0, 1, 0],
}


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_the_store_with_metadata_and_nullable_fields_is_what_it_was(io: str) -> None:
    first, second = (pen.open(SECOND_STORE, generation=generation, io=io) for generation in (1, 2))
    assert first.schema == SECOND_FIELDS
    assert second.schema == {**SECOND_FIELDS, "label": Field("i4", nullable=True)}
    assert (first.metadata, second.metadata) == (FIRST_METADATA, SECOND_METADATA)
    assert {name: [plain(value, second.schema[name]) for value in items(second[name][:])] for name in SECOND} == SECOND
    assert first["label"][:].tolist() == [0, 1, 0, 1]
    for store in (first, second):
        assert_typed(store[[0]], store)
    assert pen.verify(SECOND_STORE) == []
