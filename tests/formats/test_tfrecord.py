"""TFRecord files: those of the package of that name, those that the tests write, and those that no program should have written."""

import gzip
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.shards import entry, example, feature, field, masked_crc, tfrecord, varint
from tests.golden.make_shards import DIRECTORY, EXAMPLES

import penstock as pen
from penstock import Field
from penstock.errors import BatchError, CorruptError, FormatError, SchemaMismatchError, TruncatedError, UnsupportedTypeError
from penstock.formats.tfrecord import has_length
from penstock.order import Shard
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

RECORDS = [bytes(range(i % 50)) * (i % 4) for i in range(60)]
GOLDEN = DIRECTORY / "tfrecord"
MIXED = [
    {
        "id": np.int64(-i * 10**15),
        "name": f"Bild \N{SNOWMAN} {i}".encode() if i % 3 else None,
        "box": np.array([i, 0.5, -i], np.float32),
        "codes": np.arange(i % 5, dtype=np.int64) - 2,
        "score": np.array([i / 7], np.float32) if i % 4 else None,
    }
    for i in range(30)
]
SCHEMA = {
    "id": Field("i8"),
    "name": Field.text(nullable=True),
    "box": Field("f4", (3,)),
    "codes": Field.ragged("i8"),
    "score": Field("f4", nullable=True),
}


def write(directory: Path) -> Path:
    directory.mkdir()
    for number, part in enumerate((RECORDS[:25], [], RECORDS[25:])):
        (directory / f"{number}.tfrecord").write_bytes(tfrecord(part))
    return directory


class TestTFRecord(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(write(directory / "data"))

    def records(self) -> list[Record]:
        return [{"data": record} for record in RECORDS]


class TestExamples(SourceSuite):
    def make(self, directory: Path) -> Source:
        for number, part in enumerate((MIXED[:13], MIXED[13:])):
            messages = [example(one, packed=bool(i % 2)) for i, one in enumerate(part)]
            (directory / f"{number}.tfrecords").write_bytes(tfrecord(messages))
        return pen.open(f"{directory}/*.tfrecords", decode="example", schema=SCHEMA)

    def records(self) -> list[Record]:
        return [
            {
                **one,
                "name": None if one["name"] is None else one["name"].decode(),
                "score": None if one["score"] is None else one["score"][0],
            }
            for one in MIXED
        ]


class TestExamplesOfThePackage(SourceSuite):
    """Fields are found out."""

    def make(self, directory: Path) -> Source:
        shutil.copytree(GOLDEN, directory / "data")
        return pen.open(directory / "data", decode="example")

    def records(self) -> list[Record]:
        return [dict(sorted(one.items())) for one in EXAMPLES]


class TestDecoded(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(write(directory / "data"), decode=len, schema={"data": Field("i8")})

    def records(self) -> list[Record]:
        return [{"data": np.int64(len(record))} for record in RECORDS]


def test_names_with_numbers_are_known(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"train.tfrecord-0000{number}-of-00003").write_bytes(tfrecord(RECORDS[number::3]))
    (tmp_path / "features.json").write_text("{}")
    expected = [record for number in range(3) for record in RECORDS[number::3]]
    for what in (tmp_path, f"{tmp_path}/train.tfrecord-*", [f"{tmp_path}/train.tfrecord-0000{n}-of-00003" for n in range(3)]):
        with pen.open(what) as data:
            assert data["data"][:].to_list() == expected
    (tmp_path / "anything").write_bytes(tfrecord(RECORDS))
    with pen.open(tmp_path / "anything", field="x") as data:
        assert data["x"][:].to_list() == RECORDS


def test_the_first_length_has_its_checksum():
    assert has_length(tfrecord([b"abc"]))
    assert not has_length(tfrecord([b"abc"])[:11])
    assert not has_length(b"\1" + tfrecord([b"abc"])[1:])


@pytest.mark.parametrize("threads", [0, 2])
def test_two_ranks_read_everything_once_and_go_on_where_they_were(tmp_path: Path, threads: int):
    with pen.open(write(tmp_path / "data")) as data:
        ids: list[int] = []
        for rank in range(2):
            loader = pen.Loader(data.shuffle(seed=5), 4, shard=Shard(rank, 2), threads=threads, ids="id")
            with loader:
                batches = iter(loader)
                first = [next(batches) for _ in range(3)]
                state = loader.state_dict()
                rest = list(batches)
                assert loader.engine == ("native" if threads else "caller")
            with pen.Loader(data.shuffle(seed=5), 4, shard=Shard(rank, 2), threads=threads, ids="id") as again:
                again.load_state_dict(state)
                resumed = list(again)
            assert [batch["data"].to_list() for batch in resumed] == [batch["data"].to_list() for batch in rest]
            for batch in first + rest:
                assert batch["data"].to_list() == [RECORDS[i] for i in batch["id"]]
                ids += batch["id"].tolist()
        assert sorted(ids) == list(range(60))


def damaged(path: Path, records: list[bytes], place: int) -> Path:
    content = bytearray(tfrecord(records))
    content[place] ^= 1
    path.write_bytes(content)
    return path


def test_damaged_data_is_found_when_it_is_read(tmp_path: Path):
    path = damaged(tmp_path / "a.tfrecord", [b"good", b"bad!"], 20 + 13)
    with pen.open(path) as data:
        assert data[0]["data"] == b"good"
        with pytest.raises(CorruptError, match=r"a\.tfrecord, record 1: the checksum"):
            data[1]
        with pen.Loader(data, 2) as loader, pytest.raises(BatchError, match="record 1: the checksum"):
            next(iter(loader))


def test_damaged_lengths_are_refused(tmp_path: Path):
    with pytest.raises(FormatError, match="expected a TFRecord file"):
        pen.open(damaged(tmp_path / "a.tfrecord", [b"good", b"more"], 0))
    with pytest.raises(CorruptError, match="byte 20: expected record 1, found a length whose checksum is another"):
        pen.open(damaged(tmp_path / "b.tfrecord", [b"good", b"more"], 21))


def test_cut_files_are_refused(tmp_path: Path):
    content = tfrecord([b"good", b"more"])
    for size in [*range(1, 20), *range(21, len(content))]:
        path = tmp_path / f"{size}.tfrecord"
        path.write_bytes(content[:size])
        with pytest.raises(TruncatedError, match=f"{size}.tfrecord, byte"):
            pen.open(path)
    (tmp_path / "a.tfrecord").write_bytes(content[:20])
    assert len(pen.open(tmp_path / "a.tfrecord")) == 1


def test_lengths_beyond_the_file_are_refused(tmp_path: Path):
    for size in (5, 2**40, 2**63, 2**64 - 1, 2**64 - 16):
        length = struct.pack("<Q", size)
        (tmp_path / "a.tfrecord").write_bytes(length + struct.pack("<I", masked_crc(length)) + bytes(8))
        with pytest.raises(TruncatedError, match=f"expected record 0 of {size} bytes"):
            pen.open(tmp_path / "a.tfrecord")


def test_compressed_files_are_refused_with_a_remedy(tmp_path: Path):
    for name, content in (("a", gzip.compress(tfrecord(RECORDS))), ("b", zlib.compress(tfrecord(RECORDS)))):
        (tmp_path / f"{name}.tfrecord").write_bytes(content)
        with pytest.raises(UnsupportedTypeError, match=r"compressed as a whole .* decompress it"):
            pen.open(tmp_path / f"{name}.tfrecord")


# tf.Example


def open_examples(directory: Path, messages: list[bytes], **options: Any) -> Source:
    (directory / "a.tfrecord").write_bytes(tfrecord(messages))
    source: Source = pen.open(directory / "a.tfrecord", decode="example", **options)
    return source


def test_fields_are_found_out(tmp_path: Path):
    with open_examples(tmp_path, [example(one) for one in MIXED]) as data:
        assert data.schema == dict(sorted({**SCHEMA, "name": Field.bytes(nullable=True)}.items()))


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([{"x": [b"a", b"b"]}], "expected one byte string in a record, found 2"),
        ([{"x": np.int64(1)}, {"x": np.float32(1)}], "lists of several types"),
    ],
)
def test_features_that_no_field_can_be_are_refused(tmp_path: Path, features: list[Record], words: str):
    with pytest.raises(SchemaMismatchError, match=words):
        open_examples(tmp_path, [example(one) for one in features])
    with open_examples(tmp_path, [example({**one, "y": np.int64(3)}) for one in features], schema={"y": Field("i8")}) as data:
        assert data[0] == {"y": 3}


def test_records_that_do_not_fit_the_schema_are_errors_with_their_name(tmp_path: Path):
    messages = [example({"x": np.int64(1), "t": b"ok"})] * 3
    for bad, schema, words in (
        (example({"t": b"ok"}), {"x": Field("i8")}, "expected feature 'x', found none"),
        (example({"x": np.array([1, 2])}), {"x": Field("i8")}, "expected 1 values, found 2"),
        (example({"x": np.float32(1)}), {"x": Field("i8")}, "expected whole numbers, found floats"),
        (example({"t": b"\xff"}), {"t": Field.text()}, "the text is not UTF-8"),
        (example({"t": [b"a", b"b"]}), {"t": Field.bytes()}, "expected one byte string, found 2"),
        (b"\xff\xff", {"t": Field.bytes()}, "expected a tf.Example, found a message that is cut"),
    ):
        with open_examples(tmp_path, [*messages, bad], schema=schema) as data:
            data[:3]
            with pytest.raises((SchemaMismatchError, CorruptError), match=rf"a\.tfrecord, record 3: .*{words}"):
                data[[0, 3]]


def test_texts_that_are_cut_within_a_letter_are_found(tmp_path: Path):
    """Together they would be UTF-8."""
    messages = [example({"t": b"\xc3"}), example({"t": b"\xa9"})]
    data = open_examples(tmp_path, messages, schema={"t": Field.text()})
    with data, pytest.raises(CorruptError, match="record 0: feature 't': the text is not UTF-8"):
        data[:]


def test_what_messages_may_have_besides_is_left_out(tmp_path: Path):
    extra = varint(9 << 3) + varint(5) + varint(10 << 3 | 1) + bytes(8) + varint(11 << 3 | 5) + bytes(4) + field(12, b"more")
    twice = entry("x", feature(np.int64(1))) + entry("x", feature(np.int64(2)))  # the last one counts
    message = extra + field(1, extra + twice) + extra + field(1, entry("y", extra + feature(np.array([7, 8]))))
    with open_examples(tmp_path, [message]) as data:
        assert data[0]["x"] == 2
        assert data[0]["y"].tolist() == [7, 8]


@pytest.mark.parametrize(
    "message",
    [
        varint(0) + varint(1),
        varint(1 << 3 | 3),
        varint(1 << 3 | 2) + varint(2**40),
        varint(1 << 3 | 2) + b"\xff" * 10,
        varint(1 << 3) + varint(1),
        field(1, field(1, field(2, field(3, field(1, b"\xff"))))),
        field(1, field(1, field(2, field(3, field(1, b"\xff" * 9 + b"\x02"))))),
        field(1, field(1, field(2, field(2, field(1, b"abc"))))),
        field(1, field(1, field(2, field(2, varint(1 << 3) + varint(1))))),
        field(1, field(1, field(2, field(3, field(1, b"\1")) + field(2, b"")))),
        field(1, field(1, field(2, b"") + field(2, b""))),
    ],
)
def test_messages_that_cannot_be_are_errors(tmp_path: Path, message: bytes):
    with pytest.raises(CorruptError, match=r"record 0.*expected a tf\.Example, found"):
        open_examples(tmp_path, [message])


def test_bad_arguments_are_refused(tmp_path: Path):
    path = write(tmp_path / "data")
    with pytest.raises(ValueError, match="decode must be 'example' or a function"):
        pen.open(path, decode="image")
    with pytest.raises(ValueError, match="schema says what decode gives"):
        pen.open(path, schema={"x": Field("i8")})
    with pytest.raises(TypeError, match="features are i8, f4, bytes or text"):
        pen.open(path, decode="example", schema={"x": Field("i4")})
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match="no record to infer the fields from"):
        pen.open(tmp_path / "empty.tfrecord", decode="example")
