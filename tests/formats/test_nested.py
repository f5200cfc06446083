"""Nested columns of Arrow, Parquet and Hugging Face: one JSON text a record."""

import datetime
import decimal
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.arrow_table import Record, write

import penstock as pen
from penstock.errors import CorruptError, PenstockError, SchemaMismatchError, UnsupportedTypeError
from penstock.formats.arrow import MappedArrow
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite

N = 31
CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("score", pa.float64())]))


def messages(i: int) -> list[dict[str, Any]] | None:
    turns = [{"role": "user", "content": f"é{i}\n", "score": i / 2}, {"role": "assistant", "content": None, "score": None}]
    return None if i % 7 == 1 else turns[: i % 3]


def table(low: int = 0, high: int = N) -> pa.Table:
    ids = range(low, high)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "messages": pa.array([messages(i) for i in ids], CHAT),
            "tags": pa.array([["a", "b", None][: i % 4] for i in ids], pa.large_list(pa.string())),
            "text": pa.array([str(i) for i in ids]),
            "meta": pa.array(
                [None if i % 5 == 2 else {"n": i, "boxes": [[i, 1], []]} for i in ids],
                pa.struct([("n", pa.int8()), ("boxes", pa.list_(pa.list_(pa.int32())))]),
            ),
        }
    )


def record(i: int) -> Record:
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    return {
        "id": np.int64(i),
        "messages": None if messages(i) is None else json.dumps(messages(i), **compact),  # type: ignore[arg-type]
        "tags": json.dumps(["a", "b", None][: i % 4], separators=(",", ":")),
        "text": str(i),
        "meta.n": None if i % 5 == 2 else np.int8(i),
        "meta.boxes": None if i % 5 == 2 else f"[[{i},1],[]]",
    }


class Nested(SourceSuite):
    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestTable(Nested):
    """Of several arrays, which begin in the middle of others."""

    def make(self, directory: Path) -> Source:
        padded = pa.concat_tables([table(0, 5), table()]).combine_chunks().slice(5)
        return pen.open(pa.concat_tables([padded.slice(0, 3), padded.slice(3, 0), padded.slice(3, 10), padded.slice(13)]))


class TestMapped(Nested):
    """The other columns are still read straight from the file."""

    def make(self, directory: Path) -> Source:
        write(directory / "a.arrow", table(0, 12), rows=5)
        write(directory / "b.arrow", table(12, N), stream=True, rows=5)
        source = pen.open(str(directory / "*.arrow"))
        assert isinstance(source, MappedArrow)
        assert list(source._columns) == ["id", "text", "meta.n"]
        return source


class TestCompressed(Nested):
    def make(self, directory: Path) -> Source:
        write(directory / "a.arrow", table(), rows=7, compression="zstd")
        return pen.open(directory / "a.arrow")


class TestParquet(Nested):
    def make(self, directory: Path) -> Source:
        pq.write_table(table(0, 12), directory / "a.parquet", row_group_size=5)
        pq.write_table(table(12, N), directory / "b.parquet", row_group_size=5)
        return pen.open(directory)


class TestHuggingFace(Nested):
    def make(self, directory: Path) -> Source:
        import datasets

        return pen.open(datasets.Dataset(table()).select(list(range(N))))


def test_parquet_with_nested_columns_opens_at_a_url(tmp_path: Path) -> None:
    from penstock.remote.url import url_path

    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=5)
    place = url_path("memory://nested/a.parquet")
    place.objects.put(place.key, (tmp_path / "a.parquet").read_bytes())
    with pen.open(str(place)) as source:
        assert [source[i] for i in range(N)] == [record(i) for i in range(N)]


def test_all_columns_may_be_nested(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", table().select(["tags"]))
    data = pen.open(tmp_path / "a.arrow")
    assert data["tags"][3] == '["a","b",null]'
    assert pickle.loads(pickle.dumps(data))["tags"][2] == '["a","b"]'


def test_nested_columns_can_be_chosen_renamed_mapped_and_converted(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=5)
    data = pen.open(tmp_path / "a.parquet", fields={"chat": "messages", "id": "id"})
    assert data.schema["chat"].kind == "text"
    turns = data.map(lambda one: {"turns": len(json.loads(one["chat"] or "[]"))}, schema={"turns": Field("i4")})
    assert turns["turns"][:].tolist() == [len(messages(i) or []) for i in range(N)]
    pen.convert(data, tmp_path / "a.pen")
    assert pen.open(tmp_path / "a.pen")["chat"][:].to_list() == [record(i)["messages"] for i in range(N)]


VALUES: list[tuple[pa.DataType, Any, str]] = [
    (pa.list_(pa.string(), 2), ["a", "b"], '["a","b"]'),
    (pa.list_(pa.null()), [None], "[null]"),
    (pa.list_(pa.list_(pa.float32())), [[0.5, float("nan")], None], "[[0.5,NaN],null]"),
    (pa.list_(pa.list_(pa.float16())), [[np.float16(0.1)]], "[[0.0999755859375]]"),
    (pa.list_(pa.list_(pa.bool_())), [[True]], "[[true]]"),
    (pa.list_(pa.list_(pa.uint64())), [[2**64 - 1]], "[[18446744073709551615]]"),
    (pa.map_(pa.string(), pa.int32()), [("b", 1), ("a", None)], '[["b",1],["a",null]]'),
    (pa.list_(pa.struct([("b", pa.int8()), ("a", pa.int8())])), [{"a": 1, "b": 2}], '[{"b":2,"a":1}]'),
    (pa.list_(pa.decimal128(5, 2)), [decimal.Decimal("1.50")], '["1.50"]'),
    (pa.list_(pa.date32()), [datetime.date(2020, 2, 29), None], '["2020-02-29",null]'),
    (pa.list_(pa.time32("s")), [datetime.time(1, 2, 3)], '["01:02:03"]'),
    (pa.list_(pa.timestamp("ns")), [1], '["1970-01-01 00:00:00.000000001"]'),
    (
        pa.large_list(pa.struct([("t", pa.timestamp("us", "UTC"))])),
        [{"t": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)}],
        '[{"t":"2020-01-02 00:00:00.000000Z"}]',
    ),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", "a"], '["a","a"]'),
    (pa.list_(pa.string_view()), ["a" * 20], f'["{"a" * 20}"]'),
    (pa.list_view(pa.string()), ["x"], '["x"]'),
]


@pytest.mark.parametrize(("kind", "value", "text"), VALUES, ids=lambda value: str(value)[:30])
def test_every_kind_of_value_has_one_form(kind: pa.DataType, value: Any, text: str) -> None:
    data = pen.open(pa.table({"x": pa.array([value, None, value], kind)}))
    assert data["x"][:].to_list() == [text, None, text]
    assert data.schema["x"].kind == "text"


def test_bytes_inside_lists_are_refused_by_the_name_of_the_column() -> None:
    data = pa.table({"x": [1], "images": pa.array([[{"bytes": b"a"}]])})
    with pytest.raises(UnsupportedTypeError, match=r"of what JSON has in column 'images', found list<.*binary.*fields=\["):
        pen.open(data)
    assert pen.open(data, fields=["x"])["x"][:].tolist() == [1]


def test_texts_and_json_are_not_taken_for_one_another(tmp_path: Path) -> None:
    for name, values in (("a", ["x"]), ("b", [["x"]])):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
        write(tmp_path / f"{name}.arrow", pa.table({"x": values}))
    for suffix in ("parquet", "arrow"):
        with pytest.raises(SchemaMismatchError, match=r"expected string in column 'x'"):
            pen.open(str(tmp_path / f"*.{suffix}"))


def test_files_whose_nested_types_differ_a_little_fit_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([[]], pa.list_(pa.null()))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [["b"]]}), tmp_path / "b.parquet")
    assert pen.open(tmp_path)["x"][:].to_list() == ["[]", '["b"]']


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_corrupt_nested_columns_are_errors(tmp_path: Path, compression: str | None) -> None:
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ab", b"\xff\xfe"]).buffers())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts)
    write(tmp_path / "a.arrow", pa.table({"x": lists}), compression=compression)
    with pen.open(tmp_path / "a.arrow") as source, pytest.raises(CorruptError, match=r"a\.arrow"):
        source[:]
    whole = pa.table({"x": lists})
    with pen.open(whole) as source, pytest.raises(CorruptError, match="record 1: field 'x' has a text that is not UTF-8"):
        source[1]
    offsets = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["ab", "cd"]))
    write(tmp_path / "b.arrow", pa.table({"x": offsets}), compression=None)
    content = (tmp_path / "b.arrow").read_bytes()
    good, bad = (np.array(ends, "<i4").tobytes() for ends in ((0, 1, 2), (0, 1, 2_000_000)))
    assert content.count(good) == 1
    (tmp_path / "b.arrow").write_bytes(content.replace(good, bad))
    with pytest.raises(PenstockError, match=r"b\.arrow"):
        pen.open(tmp_path / "b.arrow")[:]
