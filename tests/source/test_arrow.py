"""Arrow tables in memory, IPC files of every kind, and files that claim to be some."""

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.feather
import pytest

from penstock.errors import (
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.records import Source
from penstock.schema import Field
from penstock.source.arrow import CompressedArrow, MappedArrow, open_arrow, open_table
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

Record = dict[str, Any]

N = 31


def column(kind: pa.DataType, value: Any, missing: int = 0) -> pa.Array:
    """``value(i)`` of every record; every ``missing``-th is missing."""
    return pa.array([None if missing and i % missing == 1 else value(i) for i in range(N)], kind)


def tensors() -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.int16(), (2, 3))
    return pa.ExtensionArray.from_storage(kind, column(kind.storage_type, lambda i: list(range(i, i + 6)), 6))


def table() -> pa.Table:
    """Every kind of column that can be a field, most of them with missing values."""
    struct_type = pa.struct({"bytes": pa.binary(), "path": pa.string(), "size": pa.struct({"width": pa.uint8()})})
    return pa.table(
        {
            "label": column(pa.int64(), lambda i: i * i),
            "small": column(pa.uint8(), lambda i: i, 5),
            "half": pa.array(np.arange(N, dtype=np.float16)),
            "flag": column(pa.bool_(), lambda i: i % 3 == 0, 7),
            "vector": column(pa.list_(pa.float32(), 3), lambda i: [i, i + 0.5, -i], 4),
            "grid": column(pa.list_(pa.list_(pa.int32(), 2), 2), lambda i: [[i, 1], [2, 3]]),
            "flags": column(pa.list_(pa.bool_(), 3), lambda i: [i % 2 == 0, True, False], 9),
            "nothing": column(pa.list_(pa.int8(), 0), lambda i: []),
            "tensor": tensors(),
            "digest": column(pa.binary(4), lambda i: bytes([i] * 4), 3),
            "text": column(pa.string(), lambda i: "é" * (i % 4), 5),
            "long": column(pa.large_string(), lambda i: "word " * i),
            "raw": column(pa.large_binary(), lambda i: bytes([i] * (i % 5)), 6),
            "words": column(pa.list_(pa.int32()), lambda i: list(range(i % 6)), 5),
            "reals": column(pa.large_list(pa.float64()), lambda i: [i / 7] * (i % 3)),
            "bits": column(pa.list_(pa.bool_()), lambda i: [True, False, True][: i % 4]),
            "image": column(
                struct_type,
                lambda i: {"bytes": b"x" * (i % 3), "path": None if i % 2 else f"{i}.png", "size": {"width": i} if i % 4 else None},
                5,
            ),
            "name": column(pa.dictionary(pa.int8(), pa.string()), lambda i: ["ant", "bee", "", "éé"][i % 4], 6),
            "code": column(pa.dictionary(pa.uint16(), pa.int32()), lambda i: 1000 + i % 3, 4),
        }
    )


def record(i: int) -> Record:
    def missing(every: int, value: Any) -> Any:
        return None if i % every == 1 else value

    return {
        "label": np.int64(i * i),
        "small": missing(5, np.uint8(i)),
        "half": np.float16(i),
        "flag": missing(7, np.bool_(i % 3 == 0)),
        "vector": missing(4, np.array([i, i + 0.5, -i], np.float32)),
        "grid": np.array([[i, 1], [2, 3]], np.int32),
        "flags": missing(9, np.array([i % 2 == 0, True, False])),
        "nothing": np.empty(0, np.int8),
        "tensor": missing(6, np.arange(i, i + 6, dtype=np.int16).reshape(2, 3)),
        "digest": missing(3, np.full(4, i, np.uint8)),
        "text": missing(5, "é" * (i % 4)),
        "long": "word " * i,
        "raw": missing(6, bytes([i] * (i % 5))),
        "words": missing(5, np.arange(i % 6, dtype=np.int32)),
        "reals": np.full(i % 3, i / 7),
        "bits": np.array([True, False, True][: i % 4], np.bool_),
        "image.bytes": missing(5, b"x" * (i % 3)),
        "image.path": missing(5, None if i % 2 else f"{i}.png"),
        "image.size.width": missing(5, np.uint8(i) if i % 4 else None),
        "name": missing(6, ["ant", "bee", "", "éé"][i % 4]),
        "code": missing(4, np.int32(1000 + i % 3)),
    }


def write(path: Path | io.BytesIO, data: pa.Table, *, stream: bool = False, rows: int = 10, compression: str | None = None) -> None:
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    target = path if isinstance(path, io.BytesIO) else str(path)
    with opener(target, data.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(data, max_chunksize=rows)


class All(SourceSuite):
    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestTable(All):
    """Arrays that begin in the middle of a byte, several of them, some empty."""

    def make(self, directory: Path) -> Source:
        padded = pa.concat_tables([table().slice(0, 5), table()]).combine_chunks().slice(5)
        return open_table(pa.concat_tables([padded.slice(0, 3), padded.slice(3, 0), padded.slice(3, 10), padded.slice(13)]))


class TestFile(All):
    def make(self, directory: Path) -> Source:
        write(directory / "a.arrow", table())
        return open_arrow(directory / "a.arrow")


class TestManyStreams(All):
    """Some of them empty, and with dictionaries of their own."""

    def make(self, directory: Path) -> Source:
        for name, low, high in (("a", 0, 12), ("b", 12, 12), ("c", 12, 15), ("d", 15, N)):
            write(directory / f"{name}.arrow", table().slice(low, high - low), stream=True, rows=7)
        return open_arrow(f"{directory}/*.arrow", threads=1)


class TestCompressed(All):
    """Files and streams, and one that is not compressed among them."""

    def make(self, directory: Path) -> Source:
        write(directory / "a.feather", table().slice(0, 15), compression="lz4")
        write(directory / "b.arrow", table().slice(15, 10), stream=True, rows=4, compression="zstd")
        write(directory / "c.arrow", table().slice(25))
        return open_arrow(directory, threads=2)


class TestChosenColumns(SourceSuite):
    """Renamed, in another order, beside columns that cannot be read; and texts as other programs write them."""

    def make(self, directory: Path) -> Source:
        data = table()
        more = {
            "when": pa.array([0] * N, pa.timestamp("s")),
            "strings": pa.array([["a"]] * N),
            "odd name": pa.array(range(N)),
            "view": data["text"].combine_chunks().cast(pa.string_view()),
            "raw view": data["raw"].combine_chunks().cast(pa.binary_view()),
        }
        for name, values in more.items():
            data = data.append_column(name, values)
        write(directory / "a.arrow", data)
        fields = {"id": "odd name", "photo": "image", "text": "view", "raw": "raw view", "width": "image.size.width"}
        return open_arrow(directory / "a.arrow", fields=fields)

    def records(self) -> list[Record]:
        whole = [record(i) for i in range(N)]
        return [
            {
                "id": np.int64(i),
                "photo.bytes": one["image.bytes"],
                "photo.path": one["image.path"],
                "photo.size.width": one["image.size.width"],
                "text": one["text"],
                "raw": one["raw"],
                "width": one["image.size.width"],
            }
            for i, one in enumerate(whole)
        ]


class TestNothing(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "a.arrow", table().slice(0, 0))
        return open_arrow(directory)

    def records(self) -> list[Record]:
        return []


def test_types_become_fields() -> None:
    schema = open_table(table()).schema
    assert schema["tensor"] == Field("i2", (2, 3))
    assert schema["grid"] == Field("i4", (2, 2))
    assert schema["digest"] == Field("u1", (4,))
    assert schema["reals"] == Field.ragged("f8")
    assert schema["name"] == Field.text()
    assert schema["image.bytes"] == Field.bytes()


@pytest.mark.parametrize(
    ("compression", "stream", "kind", "num_blocks"),
    [
        (None, False, MappedArrow, 4),
        (None, True, MappedArrow, 4),
        ("lz4", False, CompressedArrow, 4),
        ("lz4", True, CompressedArrow, 1),
    ],
)
def test_blocks_are_what_is_read_at_once(
    tmp_path: Path, compression: str | None, stream: bool, kind: type[Source], num_blocks: int
) -> None:
    write(tmp_path / "a.arrow", table(), compression=compression, stream=stream)
    source = open_arrow(tmp_path)
    assert type(source) is kind
    assert len(source.blocks) == num_blocks
    assert source.reads_blocks == (kind is CompressedArrow)


@pytest.mark.parametrize("compression", ["lz4", "uncompressed"])
def test_feather_files_are_read(tmp_path: Path, compression: str) -> None:
    pyarrow.feather.write_feather(table().select(["label", "text"]), str(tmp_path / "a.feather"), compression=compression)
    assert_batch(open_arrow(tmp_path)[:], [{name: record(i)[name] for name in ("label", "text")} for i in range(N)])


def test_record_batches_are_tables() -> None:
    batch = table().combine_chunks().to_batches()[0]
    assert_batch(open_table(batch)[:], [record(i) for i in range(N)])


def test_bitmaps_without_a_null_mask_nothing() -> None:
    array = pa.Array.from_buffers(pa.int32(), 3, [pa.py_buffer(b"\xff"), pa.py_buffer(np.arange(3, dtype=np.int32))])
    assert type(open_table(pa.table({"x": array}))["x"][:]) is np.ndarray


def test_batches_are_masked_only_where_something_is_missing() -> None:
    source = open_table(pa.table({"x": pa.array([None, 5, 6]), "t": ["a", None, "b"]}))
    assert type(source.read([1, 2])["x"]) is np.ndarray
    assert source.read([0, 2])["t"].present is None
    assert source["x"][[0, 1]].mask.tolist() == [True, False]
    assert source["x"][[0, 1]].data.tolist() == [0, 5]


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    write(tmp_path / "blob", table())
    (tmp_path / "a.arrow").symlink_to(tmp_path / "blob")
    assert_batch(open_arrow(tmp_path / "a.arrow")[:], [record(i) for i in range(N)])


def test_the_dictionary_may_change_within_a_stream(tmp_path: Path) -> None:
    batches = [pa.record_batch({"x": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", None, "a"], ["d"])]
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert open_arrow(tmp_path)["x"][::-1].to_list() == ["d", "a", None, "c", "b", "a"]


def test_values_of_a_dictionary_may_be_missing() -> None:
    codes, values = pa.array([0, 1, None, 1], pa.int8()), pa.array(["a", None])
    source = open_table(pa.table({"x": pa.DictionaryArray.from_arrays(codes, values)}))
    assert source["x"][:].to_list() == ["a", None, None, None]
    numbers = open_table(pa.table({"x": pa.DictionaryArray.from_arrays(codes, pa.array([7, None]))}))
    assert numbers["x"][:].tolist() == [7, None, None, None]


# What cannot be read


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(), pa.time64("us"), pa.timestamp("ms"), pa.duration("s"), pa.decimal128(9, 2), pa.null(),
        pa.map_(pa.string(), pa.int8()), pa.list_(pa.string()), pa.list_(pa.list_(pa.int8())), pa.list_(pa.string(), 2),
        pa.list_(pa.date32()), pa.dense_union([pa.field("a", pa.int8())]), pa.run_end_encoded(pa.int32(), pa.int8()),
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


@pytest.mark.parametrize("name", ["odd name", "", ".x", "a/b", "x" * 129])
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
    for _ in range(60):
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
    for compression in (None, "lz4"):
        write(tmp_path / "a.arrow", data, rows=10_000, compression=compression)
        source = open_arrow(tmp_path / "a.arrow")
        assert source[3]["x"] == 3
        os.truncate(tmp_path / "a.arrow", 5000)
        with pytest.raises(CorruptError, match=r"a\.arrow"):
            source[99_999]


def test_children_read_although_the_threads_of_arrow_are_gone(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", table(), compression="lz4")
    pa.ipc.open_file(str(tmp_path / "a.arrow")).read_all()
    pyarrow.feather.read_table(str(tmp_path / "a.arrow"), use_threads=True)
    source = open_arrow(tmp_path, threads=2)
    TestCompressed().test_forked_children_read(source, [record(i) for i in range(N)])


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    for i in range(200):
        write(tmp_path / f"{i:03d}.arrow", pa.table({"x": [2 * i, 2 * i + 1], "t": [str(i), None]}), stream=i % 2 == 0)
    (tmp_path / "packed").mkdir()
    for i in range(100):
        write(tmp_path / "packed" / f"{i:03d}.arrow", pa.table({"x": [2 * i, 2 * i + 1]}), compression="lz4")
    code = """
import resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from penstock.source.arrow import open_arrow
ids = np.random.default_rng(0).permutation(400)
batch = open_arrow(sys.argv[1])[ids]
assert np.array_equal(batch["x"], ids)
assert batch["t"].to_list() == [None if i % 2 else str(i // 2) for i in ids]
assert np.array_equal(open_arrow(sys.argv[1] + "/packed")["x"][ids[ids < 200]], ids[ids < 200])
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
