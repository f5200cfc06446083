"""Arrow tables in memory and IPC files of every kind."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.cli import warm
from tests.formats.arrow_table import N, Record, record, table, write

import penstock as pen
from penstock.errors import SourceChangedError
from penstock.formats.arrow import CompressedArrow, MappedArrow, open_arrow, open_table
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch


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
    schema = {name: field.with_nullable(False) for name, field in open_table(table()).schema.items()}
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_file_that_was_replaced_is_refused(tmp_path: Path, stream: bool) -> None:
    write(tmp_path / "a.arrow", table(), stream=stream, compression="zstd")
    with open_arrow(tmp_path / "a.arrow") as source:
        write(tmp_path / "b.arrow", table().slice(1), stream=stream, compression="zstd")
        (tmp_path / "b.arrow").replace(tmp_path / "a.arrow")
        with pytest.raises(SourceChangedError, match=r"a\.arrow"):
            source[0]


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


def test_fields_are_nullable_only_where_something_is_missing(tmp_path: Path) -> None:
    data = pa.table(
        {
            "x": pa.array([None, 5, 6]),
            "whole": pa.array([1, 2, 3]),
            "s": pa.array([{"a": 1, "b": "u"}, None, {"a": 2, "b": "v"}]),
            "inner": pa.array([{"a": 1, "b": None}, {"a": 1, "b": "v"}, {"a": 2, "b": "v"}]),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
            "full": pa.array(["a", "b", "a"]).dictionary_encode(),
            "values": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
            "list": pa.array([[1], [2, 3], [4]]),
        }
    )
    pq.write_table(data.drop_columns(["values"]), tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(data.select(["x", "whole"]), tmp_path / "blind.parquet", write_statistics=False)
    write(tmp_path / "plain.arrow", data)
    with pa.ipc.new_file(tmp_path / "packed.arrow", data.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_table(data, max_chunksize=2)
    expected = {"x", "s.a", "s.b", "inner.b", "d", "values"}
    for source in (open_table(data), open_arrow(tmp_path / "plain.arrow")):
        assert {name for name, field in source.schema.items() if field.nullable} == expected
    packed = open_arrow(tmp_path / "packed.arrow").schema  # some dictionary has a null in it: of which column is not known
    assert {name for name, field in packed.items() if field.nullable} == {*expected, "full"}
    parquet = pen.open(tmp_path / "a.parquet").schema
    assert {name for name, field in parquet.items() if field.nullable} == expected - {"values"}
    assert all(field.nullable for field in pen.open(tmp_path / "blind.parquet").schema.values())


def test_types_of_batches_do_not_depend_on_what_is_missing() -> None:
    source = open_table(pa.table({"x": pa.array([None, 5, 6]), "t": ["a", None, "b"]}))
    assert type(source.read([1, 2])["x"]) is np.ma.MaskedArray
    assert source.read([0, 2])["t"].present.tolist() == [True, True]
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
from penstock.formats.arrow import open_arrow
ids = np.random.default_rng(0).permutation(400)
batch = open_arrow(sys.argv[1])[ids]
assert np.array_equal(batch["x"], ids)
assert batch["t"].to_list() == [None if i % 2 else str(i // 2) for i in ids]
assert np.array_equal(open_arrow(sys.argv[1] + "/packed")["x"][ids[ids < 200]], ids[ids < 200])
"""
    warm.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)
