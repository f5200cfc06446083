"""tar archives of WebDataset: those of the package, those of Python's tarfile, and those that no program should have written."""

import gzip
import io
import itertools
import os
import pickle
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.shards import tar
from tests.golden.make_shards import DIRECTORY, SAMPLES
from tests.remote.store_kit import memory_url

import penstock as pen
from penstock import _core
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    EmptyFileError,
    FormatError,
    SchemaMismatchError,
    SourceChangedError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats import spans
from penstock.order import Shard
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]
Members = list[tuple[str, bytes]]

GOLDEN = DIRECTORY / "webdataset"
MEMBERS: Members = [
    (f"d/{i:04}.{end}", f"{end} {i} \N{SNOWMAN}".encode() * (i % 7))
    for i in range(50)
    for end in ("jpg", "txt", "seg.png")
    if (i + len(end)) % 5 or end == "txt"
]


def model(members: Members) -> list[Record]:
    """Samples as WebDataset groups members: all of them, with None for what they do not have; the key is first."""
    samples: list[Record] = []
    names: dict[str, None] = {}
    for name, data in members:
        match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
        if match is None or re.match(r"__[^/]*__($|/)", name):
            continue
        key, column = match.group(1), match.group(2).lower()
        if not samples or samples[-1]["__key__"] != key:
            samples.append({"__key__": key})
        if column in samples[-1]:
            raise ValueError("duplicate")
        samples[-1][column] = data
        names[column] = None
    return [{name: sample.get(name) for name in ("__key__", *names)} for sample in samples]


class TestTar(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "data").mkdir()
        for number, part in enumerate((MEMBERS[:31], MEMBERS[31:])):
            (directory / f"data/{number}.tar").write_bytes(tar(part))
        return pen.open(directory / "data")

    def records(self) -> list[Record]:
        first, second = model(MEMBERS[:31]), model(MEMBERS[31:])
        return [{name: record[name] for name in first[0]} for record in first + second]


class TestTextsOfTar(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "a.tar").write_bytes(tar(MEMBERS, tarfile.GNU_FORMAT))
        return pen.open(directory / "a.tar", text=["txt"], fields=["txt", "jpg"], io="pread")

    def records(self) -> list[Record]:
        return [{"txt": record["txt"].decode(), "jpg": record["jpg"]} for record in model(MEMBERS)]


class TestTarOfThePackage(SourceSuite):
    """Next to indices of Energon, which are not needed."""

    def make(self, directory: Path) -> Source:
        shutil.copytree(GOLDEN, directory / "data")
        (directory / "data/.nv-meta").mkdir()
        (directory / "data/shard-000000.tar.idx").write_bytes(bytes(8))
        (directory / "data/README.md").write_text("shards")
        return pen.open(directory / "data")

    def records(self) -> list[Record]:
        names = ("__key__", "cls", "jpg", "json", "seg.png")
        return [{name: sample.get(name) for name in names} for sample in SAMPLES]


def opened(directory: Path, content: bytes, **options: Any) -> Source:
    (directory / "a.tar").write_bytes(content)
    source: Source = pen.open(directory / "a.tar", **options)
    return source


def records_of(source: Source) -> list[Record]:
    with source:
        return [source[i] for i in range(len(source))]


letters = st.text(st.sampled_from("aB0._/-é"), min_size=1, max_size=12)
paths = st.one_of(letters, st.tuples(letters, letters).map(lambda two: two[0] * 12 + "/" + two[1] * 9 + ".x"))


@given(
    st.lists(st.tuples(paths, st.binary(max_size=700)), max_size=12),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.integers(0, 1024),
)
def test_scans_find_what_tarfile_finds(members: Members, form: int, cut: int):
    try:
        content = tar(members, form)
    except ValueError:  # a name that the oldest format cannot have
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = [(one.name, one.offset_data, one.size) for one in archive if one.isreg()]
        end = archive.offset
    content = content[: end + cut]  # the end may be missing
    scanner = _core.TarScanner("a.tar", len(content))
    data = np.frombuffer(content, np.uint8)
    try:
        expected = model([(name, content[start : start + size]) for name, start, size in found])
        if any("" in sample or "__key__." in str(sample) for sample in expected):
            raise ValueError("no field")
    except ValueError:
        with pytest.raises(CorruptError, match=r"a\.tar, byte \d+: expected"):
            feed(scanner, data, 512)
        return
    for step in (512, 1 << 20):
        scanner = _core.TarScanner("a.tar", len(content))
        feed(scanner, data, step)
        columns, words, memory, in_file, has_crcs = scanner.take()
        assert (columns[-1], in_file, has_crcs) == ("__key__", len(columns) - 1, False)
        table = words.reshape(-1, len(columns), 2).tolist()
        made = [
            {
                name: None
                if size < 0
                else bytes(memory[start : start + size]).decode()
                if name == "__key__"
                else content[start:][:size]
                for name, (start, size) in zip(columns, row, strict=True)
            }
            for row in table
        ]
        assert made == expected


def feed(scanner: _core.SpanScanner, data: np.ndarray, step: int) -> None:
    while not scanner.is_done:
        scanner.feed(data[scanner.next : scanner.next + max(step, scanner.need)])


def test_a_loader_reads_natively_in_two_ranks_and_goes_on_where_it_was(tmp_path: Path):
    expected = model(MEMBERS)
    with opened(tmp_path, tar(MEMBERS)) as data:
        ids: list[int] = []
        for rank in range(2):
            with pen.Loader(data.shuffle(seed=5), 4, shard=Shard(rank, 2), threads=2, ids="id") as loader:
                batches = iter(loader)
                first = [next(batches) for _ in range(3)]
                state = loader.state_dict()
                rest = list(batches)
                assert loader.engine == "native"
            with pen.Loader(data.shuffle(seed=5), 4, shard=Shard(rank, 2), threads=2, ids="id") as again:
                again.load_state_dict(state)
                resumed = list(again)
            assert [batch["id"].tolist() for batch in resumed] == [batch["id"].tolist() for batch in rest]
            for batch in first + rest + resumed:
                for name in data.schema:
                    assert batch[name].to_list() == [expected[i][name] for i in batch["id"]]
            ids += [i for batch in first + rest for i in batch["id"].tolist()]
        assert sorted(ids) == list(range(50))


def test_patterns_lists_and_names_without_suffix_open(tmp_path: Path):
    (tmp_path / "b.tar").write_bytes(tar(MEMBERS[:6]))
    (tmp_path / "a.tar").write_bytes(tar(MEMBERS[6:]))
    shutil.copy(tmp_path / "b.tar", tmp_path / "plain")
    for what, members in (
        (f"{tmp_path}/*.tar", MEMBERS[6:] + MEMBERS[:6]),
        ([tmp_path / "b.tar", tmp_path / "a.tar"], MEMBERS),
        (tmp_path / "plain", MEMBERS[:6]),
    ):
        with pen.open(what) as data:
            assert data["__key__"][:].to_list() == [record["__key__"] for record in model(members)]


def test_splits_are_opened_one_by_one(tmp_path: Path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "0.tar").write_bytes(tar(MEMBERS[:6]))
    with pytest.raises(FormatError, match=r"found directories of it \(test, tar files\): open .*test"):
        pen.open(tmp_path)
    with pen.open(tmp_path, suffixes=[".tar"]) as files:
        assert len(files) == 2


def raw(name: str, data: bytes = b"", kind: bytes = b"0", **changes: bytes) -> bytes:
    """A member of the format of Posix, whose fields may be changed."""
    fields: dict[str, bytes] = {
        "name": name.encode(),
        "size": b"%011o" % len(data),
        "type": kind,
        "magic": b"ustar\x0000",
        "prefix": b"",
    } | changes
    header = bytearray(512)
    for field, place in (("name", 0), ("size", 124), ("type", 156), ("magic", 257), ("prefix", 345)):
        header[place : place + len(fields[field])] = fields[field]
    header[148:156] = b" " * 8
    header[148:156] = changes.get("checksum", b"%06o\0 " % sum(header))
    return bytes(header) + data + bytes(-len(data) % 512)


END = bytes(1024)


def test_forms_of_headers(tmp_path: Path):
    big = b"\x80" + (5).to_bytes(11, "big")
    content = b"".join(
        [
            raw("dir/", kind=b"5", size=b"%011o" % 77),  # a size that means nothing
            raw("a.x", b"first"),
            raw("link.x", kind=b"2"),
            raw("old/", kind=b"\0"),
            raw("a.y", b"12345", size=big, kind=b"7"),
            raw("", kind=b"V", data=b"a volume"),
            raw("name.x", b"in parts", prefix=b"some/dir"),
            raw("name.x", b"of gnu", prefix=b"some/dir", magic=b"ustar  \0"),
            raw("q", b"so.long/name.x\0", b"L") + raw("q", b"link\0", b"K") + raw("cut", b"long"),
            raw("q", b"12 path=p.x\n\0\0", b"x") + raw("cut", b"pax"),
            raw("q", b"9 size=3\n", b"x") + raw("s.x", b"abc", size=b"%011o" % 9),
            raw("q", b"19 comment=nothing\n", b"g") + raw("old.x", b"v7", kind=b"\0", magic=b"", size=b"  2 \0"),
            raw("__meta__/x.json", b"{}") + raw("__index__", b"") + raw("nothing", b"") + raw("x/.hidden", b""),
            END,
        ]
    )
    found = records_of(opened(tmp_path, content))
    assert [(one["__key__"], one["x"]) for one in found] == [
        ("a", b"first"),
        ("some/dir/name", b"in parts"),
        ("name", b"of gnu"),
        ("so.long/name", b"long"),
        ("p", b"pax"),
        ("s", b"abc"),
        ("old", b"v7"),
        ("x/", None),
    ]
    assert [one["y"] for one in found] == [b"12345", *[None] * 7]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"no archive" * 100, FormatError, "expected a tar archive"),
        (
            raw("a.x", b"ab") + raw("b.x", b"", checksum=b"0000000\0") + END,
            CorruptError,
            "byte 1024: expected the header of a member",
        ),
        (raw("a.x", b"ab", size=b"%011o" % 5000), TruncatedError, "expected member 'a.x' of 5000 bytes"),
        (raw("a.x", b"", size=b"\x80" + b"\xff" * 11), CorruptError, "expected the size of a member"),
        (raw("a.x", b"", size=b"\xff" * 12), CorruptError, "expected the size of a member"),
        (raw("a.x", b"", size=b"0000000999\0"), CorruptError, "expected the size of a member"),
        (raw("a.x", b"ab")[:513], TruncatedError, "expected member"),
        (raw("a.x", b"ab") + raw("b.x")[:100], TruncatedError, "expected a member, found 100 bytes"),
        (
            raw("a.x", b"1") + raw("a.X", b"2") + END,
            CorruptError,
            "expected one member of a name in sample 'a', found a second 'x'",
        ),
        (raw("a.", b"1") + END, CorruptError, "expected a name with an extension"),
        (raw("a.__key__", b"1") + END, CorruptError, "expected a name with an extension"),
        (raw("a.x", b"1", b"S") + END, CorruptError, "GNU sparse"),
        (raw("q", b"22 GNU.sparse.major=1\n", b"x") + raw("a.x") + END, CorruptError, "GNU sparse"),
        (raw("q", b"13 path=all.x\n", b"g") + raw("a.x") + END, CorruptError, "pax"),
        (raw("q", b"99 path=x\n", b"x") + raw("a.x") + END, CorruptError, "expected extended headers"),
        (raw("q", b"path=x\n", b"x") + raw("a.x") + END, CorruptError, "expected extended headers"),
        (raw("q", b"10 size=-1\n", b"x") + raw("a.x") + END, CorruptError, "expected"),
        (raw("q", b"x" * 512, b"L", size=b"%011o" % (2 << 20)) + END, CorruptError, "expected a header of at most 1 MiB"),
        (raw("q", b"name.x\0", b"L"), TruncatedError, "expected the member that a header has named"),
        (raw("a.x", b"1") + END + raw("b.x", b"2") + END, CorruptError, "found a member behind the end of the archive"),
    ],
)
def test_archives_that_cannot_be_read_whole_are_refused(tmp_path: Path, content: bytes, error: type[Exception], words: str):
    with pytest.raises(error, match=rf"a\.tar.*{words}"):
        opened(tmp_path, content)


def test_an_archive_may_end_without_its_end(tmp_path: Path):
    whole = raw("a.x", b"1") + raw("b.x", b"2")
    for content in (whole, whole[:-100], whole + bytes(100), whole + bytes(512), whole + END + b"other bytes" * 100):
        assert [one["x"] for one in records_of(opened(tmp_path, content))] == [b"1", b"2"]
    assert records_of(opened(tmp_path, bytes(10240))) == []
    with pytest.raises(EmptyFileError):
        opened(tmp_path, b"")


def test_keys_that_come_again_are_samples_of_their_own(tmp_path: Path):
    members = [("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3")]
    assert [(one["__key__"], one["x"]) for one in records_of(opened(tmp_path, tar(members)))] == [
        ("a", b"1"),
        ("b", b"2"),
        ("a", b"3"),
    ]


def compressed(content: bytes, suffix: str) -> bytes:
    if suffix != ".tar.zst":
        return gzip.compress(content, mtime=0)
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def write_compressed(directory: Path, suffix: str) -> Path:
    directory.mkdir()
    for number, part in enumerate((MEMBERS[:31], MEMBERS[31:])):
        (directory / f"{number}{suffix}").write_bytes(compressed(tar(part), suffix))
    return directory


class TestCompressedTar(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(write_compressed(directory / "data", ".tgz"))

    def records(self) -> list[Record]:
        return TestTar().records()


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_other_names_of_compressed_archives(tmp_path: Path, suffix: str):
    assert records_of(pen.open(write_compressed(tmp_path / "data", suffix))) == TestTar().records()


def test_compressed_archives_have_options_and_limits(tmp_path: Path):
    path = tmp_path / "a.tgz"
    parts = [gzip.compress(one) for one in (tar(MEMBERS)[:2000], tar(MEMBERS)[2000:])]
    path.write_bytes(b"".join(parts))  # of two members, as bgzip writes them
    with pen.open(path, text=["txt"], fields=["txt", "jpg"], kept_bytes=1) as source:
        assert [source[i] for i in range(len(source))] == TestTextsOfTar().records()
    path.write_bytes(gzip.compress(tar([("a.x", bytes(4 << 20))])))
    with pytest.raises(BatchTooLargeError, match=r"a\.tgz.*max_block_bytes"):
        pen.open(path, max_block_bytes="1MB")
    path.write_bytes(gzip.compress(tar(MEMBERS))[:-40])
    with pytest.raises(CorruptError, match=r"a\.tgz"):
        pen.open(path)
    path.write_bytes(b"")
    with pytest.raises(EmptyFileError):
        pen.open(path)
    path.write_bytes(gzip.compress(tar([("a.x", b"\xff")])))
    with pen.open(path, text=["x"]) as source, pytest.raises(CorruptError, match=r"a\.tgz.*UTF-8"):
        source[0]


def test_compressed_archives_that_change_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spans, "KEPT_BYTES", 0)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar(MEMBERS)))
    os.utime(path, ns=(0, 0))
    source = pen.open(path)
    path.write_bytes(gzip.compress(tar(MEMBERS[:-1])))
    with source, pytest.raises((SourceChangedError, TruncatedError)):
        source[0]
    with pen.open(path) as source:
        assert len(source) == len(model(MEMBERS[:-1]))


def test_compressed_archives_next_to_plain_ones_and_of_other_codecs_are_refused(tmp_path: Path):
    with pytest.raises(UnsupportedTypeError, match=r"compressed as a whole \(gzip\)"):
        opened(tmp_path, gzip.compress(tar(MEMBERS)))
    with pytest.raises(UnsupportedTypeError, match=r"compressed as a whole \(gzip\)"):  # of less than a header
        opened(tmp_path, gzip.compress(tar([("a.txt", b"")])))
    (tmp_path / "a.tar").write_bytes(tar(MEMBERS))
    (tmp_path / "b.tgz").write_bytes(gzip.compress(tar(MEMBERS)))
    with pytest.raises(SchemaMismatchError, match="all compressed or all plain"):
        pen.open(tmp_path)
    for name in ("a.tar.bz2", "a.tar.xz", "a.tar.lz4"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UnsupportedTypeError, match="decompress it"):
            pen.open(tmp_path / name)
    assert len(opened(tmp_path, tar([("BZh.txt", b"no bzip2")]))) == 1


@pytest.mark.parametrize("suffix", [".tar", ".tgz"])
def test_names_that_are_not_utf_8_are_refused(tmp_path: Path, suffix: str):
    path = tmp_path / f"a{suffix}"
    for name, words in ((b"a.\xff", "extension that can be a field"), (b"\xff.x", "UTF-8")):
        head = bytearray(raw("q.x", b"1"))
        head[: len(name) + 1] = name + b"\0"
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head[:512])
        content = bytes(head) + END
        path.write_bytes(content if suffix == ".tar" else gzip.compress(content))
        with pytest.raises(CorruptError, match=words), pen.open(path) as source:
            source[0]


def test_more_extensions_than_a_table_can_have_are_refused(tmp_path: Path):
    content = b"".join(raw(f"a{number}.x{number}") for number in range(4097)) + END
    with pytest.raises(CorruptError, match="expected at most 4096 extensions"):
        opened(tmp_path, content)


def test_bad_arguments_are_refused(tmp_path: Path):
    for options, error in (
        ({"fields": "x"}, TypeError),
        ({"text": "x"}, TypeError),
        ({"fields": ["nothing"]}, KeyError),
        ({"text": ["nothing"]}, KeyError),
        ({"fields": ["txt", "txt"]}, ValueError),
        ({"fields": []}, ValueError),
    ):
        with pytest.raises(error):
            opened(tmp_path, tar(MEMBERS), **options)


def test_a_second_open_does_not_read_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.system.SETTLED_NS", -(10**9))
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    expected = records_of(opened(tmp_path, tar(MEMBERS)))
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".penstock-index")]) == 1
    monkeypatch.setattr("penstock.formats.webdataset._scan", None)
    assert records_of(pen.open(tmp_path / "a.tar")) == expected


def test_large_members_at_a_url_are_not_fetched_to_find_the_others():
    place = memory_url("a.tar")
    members = [(f"{i}.{end}", bytes([i]) * size) for i in range(3) for end, size in (("big", 12 << 20), ("txt", 10))]
    place.objects.put(place.key, tar(members))
    with pen.open(place) as data:
        assert data.remote is not None
        assert data.remote.fetched_bytes < 4 << 20
        assert data["txt"][:].to_list() == [bytes([i]) * 10 for i in range(3)]
        assert data.remote.fetched_bytes < 4 << 20
    with pen.open(place, fields=["txt"]) as texts, pen.Loader(texts.in_order(), 3, threads=1) as loader:
        assert next(iter(loader))["txt"].to_list() == [bytes([i]) * 10 for i in range(3)]
        assert texts.remote is not None
        assert texts.remote.fetched_bytes < 4 << 20


def test_archives_are_scanned_and_read_in_a_window_of_a_few_pages():
    place = memory_url("data")
    for number in range(3):
        place.objects.put(f"{place.key}/{number}.tar", tar(MEMBERS[number::3]))
    with pen.open(place, window_bytes="64KiB") as data:
        expected = [record for number in range(3) for record in model(MEMBERS[number::3])]
        assert data["txt"][:].to_list() == [record.get("txt") for record in expected]
        assert data.remote is not None
        assert data.remote.most_bytes <= 64 << 10


def test_pickles_carry_no_tables(tmp_path: Path):
    members = list(itertools.chain.from_iterable([(f"{i}.a", b""), (f"{i}.b", b"")] for i in range(2000)))
    with opened(tmp_path, tar(members)) as data:
        assert len(pickle.dumps(data)) < 4000
