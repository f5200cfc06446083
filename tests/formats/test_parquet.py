"""Parquet files: row groups, many files, and files that claim to be some."""

import gc
import io
import os
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli import warm

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
)
from penstock.formats.arrow import Decoding, Group
from penstock.formats.arrow_file import ArrowField
from penstock.formats.parquet import ParquetSource, RangeFile, open_parquet
from penstock.process import Recent
from penstock.records import Source
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

Record = dict[str, Any]

N = 37


def table(low: int = 0, high: int = N) -> pa.Table:
    def column(kind: pa.DataType, value: Any, missing: int = N) -> pa.Array:
        return pa.array([None if i % missing == 1 else value(i) for i in range(low, high)], kind)

    return pa.table(
        {
            "label": column(pa.int64(), lambda i: i, 7),
            "flag": column(pa.bool_(), lambda i: i % 3 == 0, 5),
            "vector": column(pa.list_(pa.float32(), 3), lambda i: [i, i + 0.5, -i]),
            "text": column(pa.string(), lambda i: "é" * (i % 4), 6),
            "raw": column(pa.binary(), lambda i: bytes([i] * (i % 5))),
            "words": column(pa.list_(pa.int32()), lambda i: list(range(i % 6)), 5),
            "image": column(
                pa.struct({"bytes": pa.binary(), "path": pa.string()}),
                lambda i: {"bytes": b"x" * i, "path": None if i % 2 else f"{i}.png"},
                4,
            ),
            "name": column(pa.dictionary(pa.int32(), pa.string()), lambda i: ["ant", "bee", ""][i % 3], 8),
        }
    )


def record(i: int) -> Record:
    def missing(every: int, value: Any) -> Any:
        return None if i % every == 1 else value

    return {
        "label": missing(7, np.int64(i)),
        "flag": missing(5, np.bool_(i % 3 == 0)),
        "vector": missing(N, np.array([i, i + 0.5, -i], np.float32)),
        "text": missing(6, "é" * (i % 4)),
        "raw": missing(N, bytes([i] * (i % 5))),
        "words": missing(5, np.arange(i % 6, dtype=np.int32)),
        "image.bytes": missing(4, b"x" * i),
        "image.path": missing(4, None if i % 2 else f"{i}.png"),
        "name": missing(8, ["ant", "bee", ""][i % 3]),
    }


class All(SourceSuite):
    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestOneFile(All):
    def make(self, directory: Path) -> Source:
        pq.write_table(table(), directory / "a.parquet", row_group_size=9)
        return open_parquet(directory / "a.parquet")


class TestManyFiles(All):
    """Some of them empty, in other encodings, and little is kept."""

    def make(self, directory: Path) -> Source:
        pq.write_table(table(0, 20), directory / "a.parquet", row_group_size=7, compression="zstd", data_page_version="2.0")
        pq.write_table(table(20, 20), directory / "b.parquet")
        pq.write_table(table(20, 23), directory / "c.parquet", compression="none", use_dictionary=False)
        pq.write_table(table(23, N), directory / "d.parquet", row_group_size=11, write_page_checksum=True)
        return open_parquet(f"{directory}/*.parquet", threads=1, cache_bytes=0)


class TestChosenColumns(SourceSuite):
    def make(self, directory: Path) -> Source:
        data = table().append_column("when", pa.array([0] * N, pa.timestamp("s"))).append_column("a.b", pa.array(range(N)))
        pq.write_table(data, directory / "a.parquet", row_group_size=20)
        return open_parquet([directory / "a.parquet"], fields={"path": "image.path", "dotted": "a.b", "label": "label"})

    def records(self) -> list[Record]:
        return [{"path": record(i)["image.path"], "dotted": np.int64(i), "label": record(i)["label"]} for i in range(N)]


class TestNothing(SourceSuite):
    def make(self, directory: Path) -> Source:
        pq.write_table(table(0, 0), directory / "a.parquet")
        return open_parquet(directory)

    def records(self) -> list[Record]:
        return []


def test_row_groups_are_the_blocks(tmp_path: Path) -> None:
    pq.write_table(table(0, 30), tmp_path / "a.parquet", row_group_size=12)
    pq.write_table(table(30, N), tmp_path / "b.parquet", row_group_size=5)
    source = open_parquet(tmp_path)
    assert source.reads_blocks
    assert [len(source.blocks[i]) for i in range(len(source.blocks))] == [12, 12, 6, 5, 2]


class Counting(ParquetSource):
    """Remembers what it decodes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.decoded: list[tuple[int, str]] = []

    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        self.decoded.append((group.number, ".".join(leaf.path)))
        return super()._decode(group, leaf)


def test_a_batch_decodes_what_it_touches_once(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=10)
    source = Counting([str(tmp_path / "a.parquet")], None, Decoding(2, 1 << 20, 1 << 30))
    ids = np.array([31, 3, 12, 34, 3, 19, 30, 1])
    source.read(ids, ["text", "image.path"])
    assert sorted(source.decoded) == sorted((group, name) for group in (0, 1, 3) for name in ("text", "image.path"))
    source.decoded.clear()
    source.read(ids[::-1].copy(), ["text"])
    assert source.decoded == []
    source.read(ids, ["label"])
    assert sorted(source.decoded) == [(0, "label"), (1, "label"), (3, "label")]
    source.decoded.clear()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source[0]


def test_a_cache_of_no_bytes_keeps_the_latest_group_only(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=10)
    source = Counting([str(tmp_path / "a.parquet")], ["label", "text"], Decoding(1, 0, 1 << 30))
    for record_id in (0, 9, 10, 0):
        source[record_id]
    assert source.decoded == [(group, name) for group in (0, 1, 0) for name in ("label", "text")]


def test_threads_that_want_the_same_group_wait_for_one_of_them(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    source = Counting([str(tmp_path / "a.parquet")], ["text", "label"], Decoding(1, 1 << 20, 1 << 30))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: source[i], range(N)))
    assert sorted(source.decoded) == [(0, "label"), (0, "text")]


def test_recent_values_are_kept_up_to_their_bytes() -> None:
    recent = Recent(100)

    def use(*keys: tuple[str, int], size: int = 40) -> None:
        for key in keys:
            assert recent.get(key, lambda key=key: (key, size)) == key

    a, b, c, d, large = (("a", 0), ("b", 0), ("c", 0), ("d", 0), ("d", 1))
    use(a, b, c)
    assert [key in recent for key in (a, b, c)] == [False, True, True]
    recent.get(b, lambda: pytest.fail("it was kept"))
    use(d)
    assert [key in recent for key in (b, c, d)] == [True, False, True]
    use(large, size=1000)
    assert [key in recent for key in (b, d, large)] == [False, True, True]
    use(a)
    assert [key in recent for key in (a, d, large)] == [True, False, False]


def test_a_value_that_could_not_be_made_is_made_again() -> None:
    recent, begun, go = Recent(100), threading.Event(), threading.Event()

    def fail() -> tuple[str, int]:
        begun.set()
        go.wait(300)
        raise CorruptError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recent.get, ("a", 0), fail)
        assert begun.wait(300)
        second = pool.submit(recent.get, ("a", 0), fail)
        go.set()
        for one in (first, second):
            with pytest.raises(CorruptError, match="no"):
                one.result(300)
    assert recent.get(("a", 0), lambda: ("good", 1)) == "good"


def test_the_arrow_types_of_files_may_differ_where_the_fields_do_not(tmp_path: Path) -> None:
    words = ["ant", None, "bee"]
    for name, kind in (("a", pa.string()), ("b", pa.large_string()), ("c", pa.dictionary(pa.int8(), pa.string()))):
        pq.write_table(pa.table({"x": pa.array(words, pa.string()).cast(kind)}), tmp_path / f"{name}.parquet")
    assert open_parquet(tmp_path)["x"][:].to_list() == words * 3


def test_children_read_although_the_threads_of_arrow_are_gone(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=9)
    pq.read_table(tmp_path / "a.parquet", use_threads=True)
    TestOneFile().test_forked_children_read(open_parquet(tmp_path, threads=2), [record(i) for i in range(N)])


def test_a_hundred_files_need_few_descriptors(tmp_path: Path) -> None:
    for i in range(100):
        pq.write_table(pa.table({"x": [2 * i, 2 * i + 1], "t": [str(i), None]}), tmp_path / f"{i:03d}.parquet")
    code = """
import resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from penstock.formats.parquet import open_parquet
ids = np.random.default_rng(0).permutation(200)
batch = open_parquet(sys.argv[1], threads=4)[ids]
assert np.array_equal(batch["x"], ids)
assert batch["t"].to_list() == [None if i % 2 else str(i // 2) for i in ids]
"""
    warm.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)


# What cannot be read


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "a.parquet")
    for other, difference in (
        (pa.table({"x": [1.5], "y": ["a"]}), r"expected int64 in column 'x' as in .*a\.parquet, found double"),
        (pa.table({"y": ["a"]}), r"expected the fields \['x', 'y'\] as in .*a\.parquet, found \['y'\]"),
    ):
        pq.write_table(other, tmp_path / "b.parquet")
        with pytest.raises(SchemaMismatchError, match=rf"b\.parquet: {difference}"):
            open_parquet(tmp_path)
    assert open_parquet(tmp_path, fields=["y"])["y"][:].to_list() == ["a", "a"]


def test_types_that_records_cannot_have_are_refused_only_if_wanted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "when": pa.array([1], pa.timestamp("us"))}), tmp_path / "a.parquet")
    with pytest.raises(UnsupportedTypeError, match=r"a\.parquet.*'when', found timestamp\[us\]"):
        open_parquet(tmp_path)
    assert open_parquet(tmp_path, fields=["x"])[0] == {"x": 1}


def test_nulls_inside_lists_are_refused_with_the_record(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1]] * 12 + [[1, None]] + [[2]]}), tmp_path / "a.parquet", row_group_size=5)
    source = open_parquet(tmp_path)
    assert source[13]["x"].tolist() == [2]
    with pytest.raises(UnsupportedTypeError, match=r"a\.parquet: record 12: field 'x' has a list with a null"):
        source[:]


def test_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff\xfe"]).buffers())
    pq.write_table(pa.table({"x": texts}), tmp_path / "a.parquet")
    source = open_parquet(tmp_path)
    assert source[0] == {"x": "a"}
    with pytest.raises(CorruptError, match=r"a\.parquet: record 1: field 'x' is not UTF-8"):
        source[1]


def test_missing_files_and_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file"):
        open_parquet(tmp_path / "a.parquet")
    with pytest.raises(NoMatchError):
        open_parquet(tmp_path)
    with pytest.raises(ValueError, match="at least one file"):
        open_parquet([])
    pq.write_table(table(), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="cache_bytes"):
        open_parquet(tmp_path, cache_bytes=-1)
    with pytest.raises(KeyError, match="no column 'x'"):
        open_parquet(tmp_path, fields=["x"])


def good(data: pa.Table) -> bytes:
    raw = io.BytesIO()
    pq.write_table(data, raw, row_group_size=max(20, len(data) // 2), write_page_checksum=True)
    return raw.getvalue()


def bad_files() -> list[tuple[bytes, type[PenstockError]]]:
    raw = good(table())
    footer = struct.unpack("<I", raw[-8:-4])[0]
    return [
        (b"", EmptyFileError),
        (b"\0" * 64, FormatError),
        (b"ARROW1\0\0" + b"\0" * 64, FormatError),
        (b"PAR1", TruncatedError),
        (raw[:-1], TruncatedError),
        (raw[: len(raw) // 2], TruncatedError),
        (raw[:4] + raw[-8:], CorruptError),
        (raw[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1", CorruptError),
        (raw[:-8] + struct.pack("<I", 0) + b"PAR1", CorruptError),
        (raw[: -footer - 8] + b"\xff" * footer + raw[-8:], CorruptError),
        (raw[: -footer - 8] + b"\0" * footer + raw[-8:], CorruptError),
    ]


@pytest.mark.parametrize(("content", "error"), bad_files())
def test_bad_files_are_refused_by_name_and_nothing_stays_open(tmp_path: Path, content: bytes, error: type[PenstockError]) -> None:
    (tmp_path / "good.parquet").write_bytes(good(table()))
    (tmp_path / "zbad.parquet").write_bytes(content)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=r"zbad\.parquet") as caught:
        open_parquet(tmp_path)
    assert type(caught.value) is error
    assert set(os.listdir("/proc/self/fd")) <= before


def varint(number: int) -> bytes:
    """As the footer has whole numbers."""
    number *= 2
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("rows", [1001, 2**20, 2**28 + 1, 2**40, 2**61])
@pytest.mark.parametrize("column", [np.arange(1000), ["a"] * 1000, [[1]] * 1000, [True] * 1000])
def test_a_footer_that_lies_about_its_records_is_found_out(tmp_path: Path, rows: int, column: Any) -> None:
    """Before memory is taken for them."""
    raw = io.BytesIO()
    pq.write_table(pa.table({"x": column}), raw)
    content = raw.getvalue()
    size = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-size - 8 : -8].replace(varint(1000), varint(rows))
    (tmp_path / "a.parquet").write_bytes(content[: -size - 8] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    if rows > 2**28:
        with pytest.raises(SizeOverflowError, match=r"a\.parquet: expected row groups of at most"):
            open_parquet(tmp_path)
    else:
        source = open_parquet(tmp_path)
        assert len(source) == rows
        with pytest.raises(CorruptError, match=rf"a\.parquet: .*expected pages of {rows} values, found 1000"):
            source[0]


def test_a_footer_whose_row_groups_do_not_add_up_is_refused(tmp_path: Path) -> None:
    raw = io.BytesIO()
    pq.write_table(pa.table({"x": np.arange(1000)}), raw)
    content = raw.getvalue()
    first = content.index(varint(1000), len(content) - struct.unpack("<I", content[-8:-4])[0] - 8)
    (tmp_path / "a.parquet").write_bytes(content[:first] + varint(999) + content[first + 2 :])
    with pytest.raises(CorruptError, match=r"a\.parquet: expected row groups of 999 records together, found \[1000\]"):
        open_parquet(tmp_path)


def test_flipped_bytes_give_data_or_an_error_that_names_the_file(tmp_path: Path) -> None:
    raw, rng = good(table()), np.random.default_rng(7)
    for _ in range(80):
        content = bytearray(raw)
        for place in rng.integers(0, len(raw), 2):
            content[place] = rng.integers(256)
        (tmp_path / "a.parquet").write_bytes(content)
        messages = []
        try:
            source = open_parquet(tmp_path / "a.parquet", threads=1)
            source[[0, len(source) - 1] if len(source) else []]
        except PenstockError as error:
            messages.append(str(error))
        assert all("a.parquet" in message for message in messages)


def test_a_file_cut_or_gone_while_open_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100_000)}), tmp_path / "a.parquet", row_group_size=10_000)
    source = open_parquet(tmp_path / "a.parquet")
    assert_batch(source[[3]], [{"x": np.int64(3)}])
    os.truncate(tmp_path / "a.parquet", 100_000)
    with pytest.raises(SourceChangedError, match=r"a\.parquet"):
        source[99_999]
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(MissingError, match=r"a\.parquet"):
        source[99_999]


def test_reading_leaves_no_reader_of_arrow_behind(tmp_path: Path) -> None:
    """Every look at a row group left a reader, an exception and the frames of the whole call behind, without end."""
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=5)

    def readers() -> int:
        gc.collect()
        return sum(type(thing) is RangeFile for thing in gc.get_objects())  # some things answer isinstance with a warning

    before = readers()
    for _ in range(3):
        with open_parquet(tmp_path / "a.parquet", cache_bytes=0) as source:
            source[:]
    assert readers() == before
