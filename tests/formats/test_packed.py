"""MDS shards and LitData chunks: those that the packages wrote, and others that are wrong."""

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.packed_files import mds_shard, packed, record, write_items, write_mds
from tests.golden.make_packed_files import FEW, N, item, nested, row, sample
from tests.golden.make_token_files import DIRECTORY as GOLDEN

import penstock as pen
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    EmptySourceError,
    FormatError,
    MissingError,
    PenstockError,
    SchemaMismatchError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsafeDataError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.litdata import nested_value
from penstock.loader.native_engine import native_groups
from penstock.records import Source
from penstock.remote.url import url_path
from penstock.schema import Field
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

Record = dict[str, Any]


def copied(name: str, directory: Path) -> Path:
    """A golden directory, somewhere else."""
    return Path(shutil.copytree(GOLDEN / name, directory / "data"))


class TestMds(SourceSuite):
    """All encodings, in several shards."""

    def make(self, directory: Path) -> Source:
        return pen.open(copied("mds/plain", directory))

    def records(self) -> list[Record]:
        return [sample(i) for i in range(N)]


class TestCompressedMds(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(copied("mds/zstd", directory), threads=2)

    def records(self) -> list[Record]:
        return [sample(i) for i in range(FEW)]


class TestFixedMds(SourceSuite):
    """Columns of one size, so that samples have no sizes in them."""

    def make(self, directory: Path) -> Source:
        return pen.open(copied("mds/fixed", directory), io="pread")

    def records(self) -> list[Record]:
        return [{"x": np.int64(i), "y": np.arange(4, dtype=np.int16) + np.int16(i)} for i in range(N)]


class TestItems(SourceSuite):
    """Nested items of LitData with leaves of all kinds, in several chunks."""

    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/plain", directory))

    def records(self) -> list[Record]:
        return [item(i) for i in range(N)]


class TestCompressedItems(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/zstd", directory))

    def records(self) -> list[Record]:
        return [item(i) for i in range(N)]


class TestNestedLeaves(SourceSuite):
    """A leaf of lists and dicts of every form, next to others."""

    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/nested", directory))

    def records(self) -> list[Record]:
        return [nested(i) for i in range(N)]


def test_leaves_next_to_nested_ones_are_read_natively() -> None:
    with pen.open(GOLDEN / "items/nested") as data:
        assert data.schema == {"n": Field("i8"), "x": Field.ragged("f4"), "chat": Field.text()}
        for fields, engine in ((["n", "x"], "native"), (["n", "chat"], "threads")):
            with pen.Loader(data.pick(*fields).in_order(), 5, tail="keep", threads=2) as loader:
                assert loader.engine == engine
                low = 0
                for batch in loader:
                    some = range(low, min(N, low + 5))
                    assert_batch(batch, [{name: nested(i)[name] for name in fields} for i in some])
                    low += 5


def test_nested_leaves_are_written_anew_where_utf8_has_no_place_for_them() -> None:
    assert nested_value("x", b'["\\ud800"]') == ["\ud800"]
    assert nested_value("x", b"\0\2\0\0\0[]") == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"\0\3\0\0\0[]",
        b"\0\2\0\0\0[}",
        b"\1\xff\xff\xff\xff",
        b"\1\1\0\0\0\1\0\0\0\xff",
        b"\2\2\0\0\0" + bytes(8),
        b"\5\1\0\0\0\0\0\0\0",
        b"\5\1\0\0\0\1\0\0\0a" * 3000,  # deeper than Python counts
        b"\6\xff\xff\xff\xff\0\0\0\0",  # dicts without keys take no bytes
        b"\6\1\0\0\0\1\0\0\0\1\0\0\0a\x15",
        b"\x08\0\0",
        b"\x0b\0",
        b"\x0c",
        b"\x20",
    ],
)
def test_damaged_nested_leaves_are_errors_with_their_place(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^here: expected a nested value"):
        nested_value("here", data)


def test_keys_that_are_repeated_without_end_are_refused() -> None:
    rows = 100_000
    data = b"\6" + struct.pack("<III", rows, 1, 100_000) + b"k" * 100_000 + b"\x10" * rows
    with pytest.raises(BatchTooLargeError, match="here"):
        nested_value("here", data)


def test_graphs_are_refused_because_there_is_a_pickle_in_them() -> None:
    with pytest.raises(UnsafeDataError, match=r"column 'graph' is encoded as 'graph', which would have to be executed.* fields=\["):
        pen.open(GOLDEN / "items/graph")
    with pen.open(GOLDEN / "items/graph", fields=["n"]) as data:
        assert data["n"][:].tolist() == [0, 1, 2]


class TestSingleLeaves(SourceSuite):
    """Items that are texts, and no more."""

    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/texts", directory))

    def records(self) -> list[Record]:
        return [{"data": f"text {i}"} for i in range(FEW)]


@pytest.mark.parametrize("codec", ["gz", "bz2", "br", "snappy"])
def test_shards_of_every_compression_are_read(codec: str) -> None:
    with pen.open(GOLDEN / "mds" / codec, fields=["text", "array", "i4"]) as data:
        assert data.reads_blocks
        assert len(data.blocks) > 1
        assert_batch(data[::-1], [{name: sample(i)[name] for name in ("text", "array", "i4")} for i in reversed(range(FEW))])


def test_shards_that_were_decompressed_before_are_read_as_they_are(tmp_path: Path) -> None:
    data = copied("mds/gz", tmp_path)
    import gzip

    for path in data.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    with pen.open(data) as source:
        assert not source.reads_blocks
        assert_batch(source[:], [sample(i) for i in range(FEW)])


@pytest.mark.parametrize(("name", "make"), [("mds/plain", sample), ("items/plain", item)])
def test_all_fields_are_read_natively(name: str, make: Callable[[int], Record]) -> None:
    with pen.open(GOLDEN / name) as source:
        stream = source.shuffle(seed=3)
        assert native_groups(stream) is not None
        seen: list[int] = []
        with pen.Loader(stream, 5, tail="keep", threads=2, ids="id") as loader:
            for batch in loader:
                ids = batch.pop("id").tolist()
                assert_batch(batch, [make(i) for i in ids])
                seen += ids
            assert loader.engine == "native"
        assert sorted(seen) == list(range(N))


def test_columns_become_fields_and_can_be_chosen_and_renamed() -> None:
    with pen.open(GOLDEN / "mds/plain", fields={"x": "array", "label": "u1", "words": "json"}) as data:
        assert data.schema == {"x": Field.ragged("i4", 2), "label": Field("u1"), "words": Field.text()}
        assert data[3]["words"] == '{"i": 3, "list": [3, null]}'
        assert data.lengths("x", [0, 1]).tolist() == [300, 600]
    for wrong, error in ((["no"], KeyError), (["u1", "u1"], ValueError), ("u1", TypeError), ([], SchemaMismatchError)):
        with pytest.raises(error):
            pen.open(GOLDEN / "mds/plain", fields=wrong)


@pytest.mark.parametrize("name", ["mds/pickle", "items/pickle"])
def test_pickles_are_refused_by_name_and_the_other_columns_are_read(name: str) -> None:
    with pytest.raises(UnsafeDataError, match=r"column 'y' is encoded as '(pkl|pickle)', .* fields=\["):
        pen.open(GOLDEN / name)
    with pen.open(GOLDEN / name, fields=["x"]) as data:
        assert data["x"][:].tolist() == [0, 1, 2]


def test_merged_directories_have_shards_below_them(tmp_path: Path) -> None:
    columns = {"x": ("int", 8)}
    listed = []
    for part in ("a", "b"):
        write_mds(tmp_path / part, columns, [[(np.int64(7).tobytes(),)] * 3])
        index = json.loads((tmp_path / part / "index.json").read_text())
        for shard in index["shards"]:
            shard["raw_data"]["basename"] = f"{part}/{shard['raw_data']['basename']}"
            listed.append(shard)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    assert pen.open(tmp_path)["x"][:].tolist() == [7] * 6


def test_shards_of_more_types_than_one_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    values = [bytes([33, 1 << 2, 2]) + np.arange(2, dtype="<i4").tobytes(), bytes([34, 1 << 2, 2]) + bytes(8)]
    write_mds(tmp_path, {"x": ("ndarray", None)}, [[(value,) for value in values]])
    with pen.open(tmp_path) as data:
        assert data[0]["x"].tolist() == [0, 1]
        with pytest.raises(CorruptError, match=r"shard.00000.mds, record 1: expected an array of type 33 .* found type 34"):
            data[1]


COLUMNS: dict[str, tuple[str, int | None]] = {"a": ("ndarray:int16", None), "s": ("str", None), "x": ("int32", 4)}


def good(directory: Path) -> Path:
    """Two shards of three columns."""
    rows = [
        (bytes([2 << 2, 2, i % 3]) + np.arange(2 * (i % 3), dtype="<i2").tobytes(), b"t" * i, np.int32(i).tobytes())
        for i in range(7)
    ]
    return write_mds(directory, COLUMNS, [rows[:4], rows[4:]])


def change_index(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((directory / "index.json").read_text())
    change(content)
    (directory / "index.json").write_text(json.dumps(content))


def of_first(**values: Any) -> Callable[[Path], None]:
    """What is said of the first shard instead."""
    return lambda directory: change_index(directory, lambda content: content["shards"][0].update(values))


def of_both(**values: Any) -> Callable[[Path], None]:
    return lambda directory: change_index(directory, lambda content: [shard.update(values) for shard in content["shards"]])


def poke(name: str, at: int, value: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        raw = bytearray((directory / name).read_bytes())
        raw[at : at + len(value)] = value
        (directory / name).write_bytes(raw)

    return change


# What is done to good shards, the error of opening them, and what it says.
BAD: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "format": (of_first(format="arrow"), UnsupportedTypeError, "'mds', as the first one is, .* found 'arrow'"),
    "version": (of_first(version=3), UnsupportedVersionError, "version 2, found 3"),
    "names": (of_first(column_names=["a", "s"]), FormatError, "names, encodings and sizes"),
    "doubled": (of_both(column_names=["a", "a", "x"]), FormatError, "names, encodings and sizes"),
    "other columns": (
        of_first(column_encodings=["ndarray:int16", "bytes", "int32"]),
        SchemaMismatchError,
        "found others in number 1",
    ),
    "size": (of_both(column_sizes=[None, None, 8]), FormatError, "expected 4 as the size of column 'x' of int32, found 8"),
    "no size": (of_both(column_sizes=[None, None, None]), FormatError, "expected 4 as the size of column 'x' of int32, found None"),
    "encoding": (
        of_both(column_encodings=["ndarray:int16", "mystery", "int32"]),
        UnsupportedTypeError,
        "'s' is encoded as 'mystery'",
    ),
    "shape": (
        of_both(column_encodings=["ndarray:int16:0,2", "str", "int32"]),
        FormatError,
        "type and shape of arrays in column 'a'",
    ),
    "element": (of_both(column_encodings=["ndarray:object", "str", "int32"]), UnsupportedTypeError, "'ndarray:object'"),
    "samples": (of_first(samples=5), FormatError, "expected 5 records"),
    "negative": (of_first(samples=-1), FormatError, "samples and compression"),
    "bytes": (of_first(raw_data={"basename": "shard.00000.mds", "bytes": 5}), TrailingBytesError, "expected 5 bytes"),
    "more bytes": (of_first(raw_data={"basename": "shard.00000.mds", "bytes": 5000}), TruncatedError, "expected 5000 bytes"),
    "outside": (of_first(raw_data={"basename": "../shard.00000.mds", "bytes": 5}), UnsafePathError, "below it"),
    "absolute": (of_first(raw_data={"basename": "/etc/passwd", "bytes": 5}), UnsafePathError, "below it"),
    "no file": (of_first(raw_data=None), FormatError, "basename and bytes"),
    "missing": (lambda directory: (directory / "shard.00001.mds").unlink(), MissingError, "shard.00001.mds"),
    "compressed": (of_first(compression="zstd"), FormatError, "zip_data"),
    "no shards": (
        lambda directory: change_index(directory, lambda content: content.update(shards=[])),
        EmptySourceError,
        "one shard",
    ),
    "count": (poke("shard.00001.mds", 0, b"\4"), FormatError, "expected 3 records .* found 4"),
    "table": (poke("shard.00001.mds", 4, b"\0\0\0\0"), FormatError, "from byte 0 on"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shards_are_refused_when_they_are_opened(tmp_path: Path, name: str) -> None:
    change, kind, words = BAD[name]
    change(good(tmp_path))
    with pytest.raises(kind, match=words) as caught:
        pen.open(tmp_path)
    assert type(caught.value) is kind
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).isprintable()


def test_bad_samples_are_refused_when_they_are_read(tmp_path: Path) -> None:
    raw = (good(tmp_path) / "shard.00000.mds").read_bytes()
    offsets = np.frombuffer(raw, "<u4", 5, 4)
    cases = {
        "behind the table": (4 + 4 * 2, np.uint32(8).tobytes()),
        "found it in bytes": (4 + 4 * 2, np.uint32(len(raw) + 1).tobytes()),
        "for its columns": (int(offsets[1]), np.uint32(1000).tobytes()),
        "with 2 dimensions": (int(offsets[1]) + 8, bytes([3 << 2])),
        "as its shape has": (int(offsets[1]) + 9, bytes([200])),
    }
    for words, (at, value) in cases.items():
        good(tmp_path)
        poke("shard.00000.mds", at, value)(tmp_path)
        with pen.open(tmp_path) as data:
            assert data[0]["s"] == ""
            with pytest.raises(CorruptError, match=rf"shard.00000.mds, record [12]: .*{words}"):
                data[[1, 2]]
            with pytest.raises(Exception, match="record"), pen.Loader(data.in_order(), 4) as loader:
                next(iter(loader))


def test_texts_that_are_not_utf8_are_noticed(tmp_path: Path) -> None:
    write_mds(tmp_path, {"s": ("str", None)}, [[(b"\xff",)]])
    with pen.open(tmp_path) as data, pytest.raises(CorruptError, match=r"record 0: the text is not UTF-8"):
        data[0]


def test_a_shard_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    data = copied("mds/zstd", tmp_path)
    change_index(data, lambda content: content["shards"][0]["raw_data"].update(bytes=1 << 40))
    with pytest.raises(BatchTooLargeError, match="max_block_bytes"):
        pen.open(data, fields=["array"])
    with pen.open(data, fields=["int"]) as source, pytest.raises(BatchTooLargeError, match="max_block_bytes"):
        source[0]


def test_damaged_compressed_shards_are_noticed(tmp_path: Path) -> None:
    data = copied("mds/zstd", tmp_path)
    path = data / json.loads((data / "index.json").read_text())["shards"][0]["zip_data"]["basename"]
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    with pen.open(data, fields=["int"]) as source, pytest.raises(CorruptError, match=path.name):
        source[0]
    change_index(data, lambda content: [shard.update(compression="lzma") for shard in content["shards"]])
    with pytest.raises(UnsupportedTypeError, match="compressed with 'lzma', which is not read; write them with one of zstd"):
        pen.open(data)


LEAVES = {"a": "numpy", "i": "int", "s": "str"}


def rows_of_items() -> list[tuple[bytes, ...]]:
    head = np.array([2, 2, 1, 3], "<u4").tobytes()
    return [(head + np.arange(3, dtype="<i4").tobytes(), np.int64(i).tobytes(), b"s" * i) for i in range(5)]


BAD_ITEMS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "encryption": ({"encryption": {"algorithm": "fernet"}}, UnsupportedTypeError, "encryption"),
    "compression": ({"compression": "lz4"}, UnsupportedTypeError, "found 'lz4'"),
    "loader": ({"item_loader": "ParquetLoader"}, UnsupportedTypeError, "'ParquetLoader'"),
    "formats": ({"data_format": ["numpy", 3, "str"]}, FormatError, "serializers of leaves"),
    "few formats": ({"data_format": ["numpy", "int"]}, FormatError, "a tree of 2 leaves"),
    "tree": ({"data_spec": "[1, {}]"}, FormatError, "a tree of 3 leaves"),
    "no tree": ({"data_spec": None}, FormatError, "a tree of 3 leaves"),
    "graph": ({"data_format": ["graph", "int", "str"]}, UnsafeDataError, "'a' is encoded as 'graph'"),
    "type": ({"data_format": ["no_header_numpy:99", "int", "str"]}, UnsupportedTypeError, "'a' is encoded as 'no_header_numpy:99'"),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_bad_indices_of_items_are_refused(tmp_path: Path, name: str) -> None:
    config, kind, words = BAD_ITEMS[name]
    write_items(tmp_path, LEAVES, [rows_of_items()], **config)
    with pytest.raises(kind, match=words) as caught:
        pen.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


class TestItemsInBatches(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/batches-of-3", directory), kept_bytes=1)

    def records(self) -> list[Record]:
        return [item(i) for i in range(N)]


class TestRowsOfItems(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(copied("items/rows", directory))

    def records(self) -> list[Record]:
        return [{"text": "x" * i, "id": np.int64(i)} for i in range(FEW)]


@pytest.mark.parametrize("name", ["batches", "samples"])
def test_items_that_are_compressed_in_other_ways_are_read(name: str) -> None:
    with pen.open(GOLDEN / "items" / name) as source:
        assert len(source) == FEW
        for i in range(FEW):
            found, expected = source[i], item(i)
            assert list(found) == list(expected)
            assert all(np.array_equal(found[field], expected[field]) for field in expected)


def test_nested_rows_are_read() -> None:
    with pen.open(GOLDEN / "items/nested-rows") as source:
        assert list(source.schema) == ["id", "chat.role", "chat.scores", "label"]
        for i in [599, 0, 3, 255, 256, 300]:
            made, found = row(i), source[i]
            assert found["id"] == made["id"]
            assert found["chat.role"] == made["chat"]["role"]
            assert found["chat.scores"].tolist() == made["chat"]["scores"]
            assert found["label"] == made["label"]


def test_rows_at_a_url_are_copied_to_the_cache(tmp_path: Path) -> None:
    place = url_path("memory://litdata-rows/data")
    for path in sorted((GOLDEN / "items/nested-rows").iterdir()):
        place.objects.put(f"data/{path.name}", path.read_bytes())
    with pytest.raises(ValueError, match="rows is read by a package that needs files: pass cache="):
        pen.open(str(place))
    with pen.open(str(place), cache=tmp_path / "cache") as source, pen.open(GOLDEN / "items/nested-rows") as local:
        assert (source.schema, source.fingerprint) == (local.schema, local.fingerprint)
        assert source[300]["chat.role"] == local[300]["chat.role"]


def test_rows_of_a_chunk_that_was_replaced_are_refused(tmp_path: Path) -> None:
    directory = copied("items/nested-rows", tmp_path)
    with pen.open(directory) as source:
        shutil.copy(directory / "chunk-0-0.bin", tmp_path / "new")
        (tmp_path / "new").replace(directory / "chunk-0-0.bin")
        with pytest.raises(SourceChangedError, match=r"chunk-0-0\.bin"):
            source[0]
        assert source[599]["id"] == 599


@pytest.mark.parametrize("name", ["batches", "samples", "rows"])
def test_damaged_chunks_of_compressed_items_and_rows_are_noticed(tmp_path: Path, name: str) -> None:
    directory = copied(f"items/{name}", tmp_path)
    chunk = directory / "chunk-0-0.bin"
    good = chunk.read_bytes()
    for at in range(0, len(good), 11):
        chunk.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        with suppress(PenstockError), pen.open(directory) as source:  # what has no checksum may be other data
            assert len(source) == FEW
            source.read(np.arange(len(source)))
    chunk.write_bytes(good[:-5])
    with pytest.raises(PenstockError), pen.open(directory) as source:
        source.read(np.arange(len(source)))


def test_leaves_in_lists_are_numbered(tmp_path: Path) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    pair = {"type": "builtins.list", "context": "null", "children_spec": [leaf, leaf]}
    spec = [1, {"type": "builtins.dict", "context": '["a", "b"]', "children_spec": [leaf, pair]}]
    write_items(tmp_path, {"a": "int", "b": "str", "c": "str"}, [[(bytes(8), b"x", b"y")]], data_spec=json.dumps(spec))
    assert pen.open(tmp_path)[0] == {"a": 0, "b.0": "x", "b.1": "y"}


def test_items_with_heads_of_either_byte_order_are_read(tmp_path: Path) -> None:
    for order in "<>":
        head = np.array([17, 2, 1, 3], f"{order}u4").tobytes()
        write_items(tmp_path, {"x": "tensor"}, [[(head + np.arange(3, dtype="<i8").tobytes(),)]])
        assert pen.open(tmp_path)[0]["x"].tolist() == [[0, 1, 2]]


def test_bad_items_are_refused_when_they_are_read(tmp_path: Path) -> None:
    rows = rows_of_items()
    raw = packed([record(row, [True] * 3) for row in rows])
    write_items(tmp_path, LEAVES, [rows])
    first = int(np.frombuffer(raw, "<u4", 1, 8)[0])
    for words, at, value in (("found 9", first + 4, 9), ("for its columns", first, 99), ("type", first + 12, 9)):
        changed = bytearray(raw)
        changed[at : at + 4] = np.uint32(value).tobytes()
        (tmp_path / "chunk-0-0.bin").write_bytes(changed)
        with pen.open(tmp_path) as data, pytest.raises(CorruptError, match=rf"chunk-0-0.bin, record 1: .*{words}"):
            data[1]


def test_what_mds_shard_builds_is_what_the_package_writes() -> None:
    content = json.loads((GOLDEN / "mds/fixed/index.json").read_text())["shards"][0]
    rows = [(np.int64(i).tobytes(), (np.arange(4, dtype=np.int16) + np.int16(i)).tobytes()) for i in range(N)]
    raw, about = mds_shard({"x": ("int", 8), "y": ("ndarray:int16:4", 8)}, rows, content["raw_data"]["basename"])
    assert raw == (GOLDEN / "mds/fixed" / content["raw_data"]["basename"]).read_bytes()
    assert about == content
