"""Columns that cannot be fields, and files that claim to be Arrow."""

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.effort import count
from tests.formats.arrow_table import table, write

from penstock.errors import (
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.arrow import open_arrow, open_table


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(), pa.time64("us"), pa.timestamp("ms"), pa.duration("s"), pa.decimal128(9, 2), pa.null(),
        pa.map_(pa.string(), pa.binary()), pa.list_(pa.binary()), pa.list_(pa.list_(pa.binary(3))), pa.list_(pa.duration("s"), 2),
        pa.list_(pa.struct([("a", pa.int8()), ("a", pa.int8())])), pa.list_(pa.dense_union([pa.field("a", pa.int8())])),
        pa.dense_union([pa.field("a", pa.int8())]), pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.fixed_shape_tensor(pa.int16(), (2, 3), permutation=[1, 0]),
    ],
)  # fmt: skip
def test_types_that_records_cannot_have_are_refused_only_if_wanted(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("x", pa.int8()), ("bad", pa.struct({"er": kind}))])
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), schema):
        pass
    with pytest.raises(UnsupportedTypeError, match=r"a\.arrow.*'bad\.er', found .*fields=\["):
        open_arrow(tmp_path)
    assert list(open_arrow(tmp_path, fields=["x"]).schema) == ["x"]


def test_records_of_more_bytes_than_there_can_be_are_refused() -> None:
    with pytest.raises(SizeOverflowError, match="'x'"):
        open_table(pa.schema({"x": pa.list_(pa.int64(), 2**30)}).empty_table())


@pytest.mark.parametrize("name", ["odd\tname", "", " x", "a\x1b", "x" * 129])
def test_names_that_fields_cannot_have_are_refused(name: str) -> None:
    data = pa.table({name: [1, 2]})
    with pytest.raises(SchemaMismatchError, match=r"rename the column: fields=\{"):
        open_table(data)
    assert open_table(data, fields={"good": name})["good"][:].tolist() == [1, 2]


def test_choices_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    data = pa.table([[1], [2], [3]], names=["a", "b", "b"])
    with pytest.raises(SchemaMismatchError, match="'b', found several"):
        open_table(data)
    assert open_table(data, fields=["a"])[0] == {"a": 1}
    with pytest.raises(KeyError, match="no column 'c'"):
        open_table(data, fields=["c"])
    with pytest.raises(TypeError, match="list of names"):
        open_table(data, fields="a")
    with pytest.raises(ValueError, match="'a' twice"):
        open_table(data, fields=["a", "a"])
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        open_table(data, fields=[])
    with pytest.raises(TypeError, match="or RecordBatch, got list"):
        open_table([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one file"):
        open_arrow([])


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.list_(pa.int32()), [1, 2], [1, None]),
        (pa.list_(pa.int32(), 2), [1, 2], [1, None]),
        (pa.list_(pa.list_(pa.int8(), 1), 2), [[1], [2]], [[1], None]),
        (pa.large_list(pa.bool_()), [True], [None]),
    ],
)
def test_nulls_inside_lists_are_refused_with_the_record(
    tmp_path: Path, compression: str | None, kind: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    write(
        tmp_path / "a.arrow", pa.table({"x": pa.array([good] * 15 + [None])}).cast(pa.schema({"x": kind})), compression=compression
    )
    write(tmp_path / "b.arrow", pa.table({"x": pa.array([None, good, bad], kind)}), compression=compression)
    source = open_arrow(tmp_path)
    assert source[[17, 16, 15]]["x"] is not None
    with pytest.raises(UnsupportedTypeError, match=r"b\.arrow: record 18: field 'x' has a list with a null"):
        source[[17, 18]]


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", pa.table({"x": [1], "y": ["a"]}))
    for other, difference in (
        (pa.table({"x": [1.5], "y": ["a"]}), r"expected int64 in column 'x' as in .*a\.arrow, found double"),
        (pa.table({"x": [1]}), r"expected the fields \['x', 'y'\] as in .*a\.arrow, found \['x'\]"),
    ):
        for compression in (None, "lz4"):
            write(tmp_path / "b.arrow", other, compression=compression)
            with pytest.raises(SchemaMismatchError, match=rf"b\.arrow: {difference}"):
                open_arrow(tmp_path)
    assert open_arrow(tmp_path, fields=["x"])["x"][:].tolist() == [1, 1]


def test_missing_files_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file"):
        open_arrow(tmp_path / "a.arrow")
    for what in (f"{tmp_path}/*.arrow", tmp_path):
        with pytest.raises(NoMatchError):
            open_arrow(what)


def good(*, stream: bool = False, compression: str | None = None) -> bytes:
    raw = io.BytesIO()
    write(raw, table(), stream=stream, compression=compression)
    return raw.getvalue()


def bad_files() -> list[tuple[bytes, type[PenstockError]]]:
    file, stream = good(), good(stream=True)
    footer = struct.unpack("<i", file[-10:-6])[0]
    return [
        (b"", EmptyFileError),
        (b"\0" * 64, FormatError),
        (b"PAR1" + b"\0" * 64, FormatError),
        (b"FEA1" + b"\0" * 64, UnsupportedVersionError),
        (b"ARROW1", TruncatedError),
        (b"ARROW1\0\0ARROW1", TruncatedError),
        (file[:-1], TruncatedError),
        (file[: len(file) // 2], TruncatedError),
        (file[:8] + file[-footer - 10 :], CorruptError),
        (file[:-10] + struct.pack("<i", 2**31 - 1) + b"ARROW1", CorruptError),
        (file[:-10] + struct.pack("<i", -5) + b"ARROW1", CorruptError),
        (file[: -footer - 10] + b"\xff" * footer + file[-10:], CorruptError),
        (stream[: len(stream) // 2], TruncatedError),
        (stream[:-8], TruncatedError),
        (stream[: len(stream) // 2] + stream[-8:], TruncatedError),
        (b"\xff" * 64, TruncatedError),
        (b"\xff" * 64 + stream[-8:], CorruptError),
        (stream[:4] + struct.pack("<i", 2**31 - 8) + stream[8:], TruncatedError),
    ]


@pytest.mark.parametrize(("content", "error"), bad_files())
def test_bad_files_are_refused_by_name_and_nothing_stays_open(tmp_path: Path, content: bytes, error: type[PenstockError]) -> None:
    (tmp_path / "good.arrow").write_bytes(good())
    (tmp_path / "zbad.arrow").write_bytes(content)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=r"zbad\.arrow") as caught:
        open_arrow(tmp_path)
    assert type(caught.value) is error
    assert set(os.listdir("/proc/self/fd")) <= before


def replaced(raw: bytes, old: bytes, new: bytes) -> bytes:
    assert raw.count(old) == 1
    return raw.replace(old, new)


CODES = pa.DictionaryArray.from_arrays(pa.array([5, 3, 1, 4], pa.int32()), list("abcdef"))


@pytest.mark.parametrize(
    ("data", "old", "new", "message"),
    [
        (pa.array(["ab", "cdefg", "h"]), "<4i", (0, 2, 700, 8), r"record 1: field 'x': expected offsets .* found 2 and 700"),
        (pa.array(["ab", "cdefg", "h"]), "<4i", (0, 2, -7, 8), r"record 1: .* found 2 and -7"),
        (pa.array([[1, 2], [3], []]), "<4i", (0, 3, 2, 3), r"record 1: .* found 3 and 2"),
        (pa.array(["ab", "cdefg", "h"], pa.large_string()), "<4q", (0, 2, 2**60, 8), r"record 1: .* found 2 and "),
        (CODES, "<4i", (5, 6, 1, 4), r"record 1: .* below 6, the size of its dictionary, found 6"),
        (CODES, "<4i", (5, -1, 1, 4), r"record 1: .* found -1"),
    ],
)
def test_offsets_that_lead_astray_are_refused(tmp_path: Path, data: pa.Array, old: str, new: tuple[int, ...], message: str) -> None:
    raw = io.BytesIO()
    write(raw, pa.table({"x": data}))
    found = next(b for b in data.buffers() if b is not None and b.size >= struct.calcsize(old))
    honest = found.to_pybytes()[: struct.calcsize(old)]
    (tmp_path / "a.arrow").write_bytes(replaced(raw.getvalue(), honest, struct.pack(old, *new)))
    source = open_arrow(tmp_path)
    assert source[0]["x"] is not None
    with pytest.raises(CorruptError, match=rf"a\.arrow: {message}"):
        source[:]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_texts_that_are_not_utf8_are_refused(tmp_path: Path, compression: str | None) -> None:
    split = pa.array([b"ab", "\u00e9".encode()[:1], "\u00e9".encode()[1:]])
    for data, first in ((split, 1), (pa.array([b"a", b"b", b"\xff\xfe"]), 2)):
        texts = pa.Array.from_buffers(pa.string(), 3, data.buffers())
        write(tmp_path / "a.arrow", pa.table({"x": texts}), compression=compression)
        source = open_arrow(tmp_path)
        assert source[0]["x"]
        with pytest.raises(CorruptError, match=rf"a\.arrow: record {first}: field 'x' is not UTF-8"):
            source[:]


def test_dictionaries_that_are_corrupt_are_refused_with_a_record(tmp_path: Path) -> None:
    raw = io.BytesIO()
    write(raw, pa.table({"x": pa.array(["ab", "cdefg", "h"]).dictionary_encode()}))
    (tmp_path / "a.arrow").write_bytes(replaced(raw.getvalue(), struct.pack("<4i", 0, 2, 7, 8), struct.pack("<4i", 0, 2, 700, 8)))
    with pytest.raises(CorruptError, match=r"a\.arrow: record 0, value 1 of the dictionaries"):
        open_arrow(tmp_path)[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_flipped_bytes_give_data_or_an_error_that_names_the_file(tmp_path: Path, stream: bool, compression: str | None) -> None:
    raw, rng = good(stream=stream, compression=compression), np.random.default_rng(7)
    for _ in range(count(10, 60)):
        content = bytearray(raw)
        for place in rng.integers(0, len(raw), 2):
            content[place] = rng.integers(256)
        (tmp_path / "a.arrow").write_bytes(content)
        messages = []
        try:
            source = open_arrow(tmp_path / "a.arrow", threads=1)
            source[[0, len(source) - 1] if len(source) else []]
        except PenstockError as error:
            messages.append(str(error))
        assert all("a.arrow" in message for message in messages)


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    data = pa.table({"x": np.arange(100_000), "t": ["text"] * 100_000})
    for compression, kind in ((None, CorruptError), ("lz4", SourceChangedError)):  # mapped; opened anew for every group
        write(tmp_path / "a.arrow", data, rows=10_000, compression=compression)
        source = open_arrow(tmp_path / "a.arrow")
        assert source[3]["x"] == 3
        os.truncate(tmp_path / "a.arrow", 5000)
        with pytest.raises(kind, match=r"a\.arrow"):
            source[99_999]
