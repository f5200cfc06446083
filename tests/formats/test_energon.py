"""The index and the split that Energon keeps next to tar archives: used where they say what the archives do, and only there."""

import io
import json
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.energon_files import prepare
from tests.formats.shards import tar
from tests.golden.make_shards import DIRECTORY as GOLDEN
from tests.golden.make_shards import ENERGON

import penstock as pen
from penstock.errors import FormatError, MissingError, UnsafePathError, UnsupportedTypeError
from penstock.formats import webdataset
from penstock.formats.webdataset import spans_of_energon
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

MEMBERS = [
    (f"d/{i:03}.{end}", f"{end} {i}".encode() * (i % 5))
    for i in range(20)
    for end in ("jpg", "TXT", "seg.png")
    if (i + len(end)) % 4
]
FIRST = next(number for number, (name, _) in enumerate(MEMBERS) if name.startswith("d/008"))
"""Of the second archive."""


def write(directory: Path) -> Path:
    directory.mkdir()
    (directory / "a.tar").write_bytes(tar(MEMBERS[:FIRST]))
    (directory / "b.tar").write_bytes(with_times(MEMBERS[FIRST:]))
    prepare(directory, ["b.tar", "a.tar"])
    return directory


def with_times(members: list[tuple[str, bytes]]) -> bytes:
    """An archive with a header of facts before every file, as webdataset.TarWriter writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            one = tarfile.TarInfo(name)
            one.size, one.mtime = len(data), 1234567.25  # type: ignore[assignment]
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


def contents(source: Source) -> list[Record]:
    with source:
        return [source[i] for i in range(len(source))]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the index was used, for every archive that was opened."""
    told: list[bool] = []

    def spans_of(file: Any) -> Any:
        found = spans_of_energon(file)
        told.append(found is not None)
        return found

    monkeypatch.setattr(webdataset, "spans_of_energon", spans_of)
    return told


class TestEnergon(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open(write(directory / "data"))

    def records(self) -> list[Record]:
        keys = list(dict.fromkeys(name.partition(".")[0] for name, _ in MEMBERS))
        found = {key: {"__key__": key, "jpg": None, "txt": None, "seg.png": None} for key in keys}
        for name, data in MEMBERS:
            key, _, part = name.partition(".")
            found[key][part.lower()] = data
        names = [name.partition(".")[2].lower() for name, _ in MEMBERS[:FIRST]]
        order = ["__key__", *dict.fromkeys(names)]
        return [{name: found[key][name] for name in order} for key in keys]


def test_what_energon_wrote_itself_is_used(used: list[bool]):
    """Its index, its split, and archives next to which there are its ``.tar.idx``."""
    place = GOLDEN / "energon"
    with pen.open(place, split="train") as source:
        found = {f"{one['__key__']}.{name}": one[name] for one in (source[i] for i in range(len(source))) for name in one}
        assert {name: data for name, data in found.items() if data is not None and "__key__" not in name} == dict(ENERGON)
        assert source["__key__"][:].to_list() == ["a/0", "a/1", "2", "3"]
    assert used == [True, True]
    for name in ("0.tar", "1.tar"):  # where samples begin, and the end of the last
        table = np.frombuffer((place / f"{name}.idx").read_bytes(), "<u8").tolist()
        with tarfile.open(place / name) as archive:
            starts = {member.name.partition(".")[0]: member.offset for member in reversed(archive.getmembers())}
        assert table[:-1] == sorted(starts.values())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{0..2}.tar", ["0.tar", "1.tar", "2.tar"]),
        ("x/{08..10}-{1,b}.tar", ["x/08-1.tar", "x/08-b.tar", "x/09-1.tar", "x/09-b.tar", "x/10-1.tar", "x/10-b.tar"]),
        ("{2..1}{a,}.tar", ["2a.tar", "2.tar", "1a.tar", "1.tar"]),
    ],
)
def test_patterns_of_names_are_written_out(tmp_path: Path, pattern: str, names: list[str]):
    assert list(webdataset._written_out(tmp_path, pattern)) == names


@pytest.mark.parametrize(
    "pattern", ["{a..c}.tar", "{0..9..2}.tar", "{a}.tar", "{{0..1}}.tar", "{0..99999999}.tar", "{0..9999}{0..9999}"]
)
def test_patterns_that_are_not_known_or_too_large_are_refused(tmp_path: Path, pattern: str):
    with pytest.raises(UnsupportedTypeError):
        list(webdataset._written_out(tmp_path, pattern))


def test_the_index_gives_what_a_scan_gives(tmp_path: Path, used: list[bool]):
    directory = write(tmp_path / "data")
    with pen.open(directory) as source:
        names, prints, records = list(source.schema), source.fingerprint, contents(source)
    assert used == [True, True]
    (directory / ".nv-meta/index.sqlite").unlink()
    with pen.open(directory) as source:
        assert (list(source.schema), source.fingerprint, contents(source)) == (names, prints, records)
    assert used == [True, True, False, False]


def change(statement: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        with closing(sqlite3.connect(directory / ".nv-meta/index.sqlite")) as base:
            base.executescript(statement)

    return apply


def rewrite(name: str, content: bytes) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return apply


ONE = "tar_file_id = 1 AND sample_index = 2"


@pytest.mark.parametrize(
    "harm",
    [
        change(f"UPDATE samples SET sample_key = 'd/9' WHERE {ONE}"),
        change(f"UPDATE sample_parts SET part_name = 'other' WHERE {ONE}"),
        change(f"UPDATE sample_parts SET content_byte_offset = content_byte_offset + 512 WHERE {ONE}"),
        change(f"UPDATE sample_parts SET content_byte_offset = 9223372036854775807 WHERE {ONE}"),
        change(f"UPDATE sample_parts SET content_byte_size = content_byte_size + 1 WHERE {ONE}"),
        change(f"UPDATE sample_parts SET content_byte_size = 'x' WHERE {ONE}"),
        change(f"DELETE FROM sample_parts WHERE {ONE}"),
        change("DELETE FROM sample_parts WHERE tar_file_id = 1 AND sample_index > 2"),
        change("DELETE FROM samples WHERE sample_index = 0"),
        change("INSERT INTO sample_parts SELECT * FROM sample_parts WHERE tar_file_id = 1"),
        change("UPDATE sample_parts SET tar_file_id = 1 - tar_file_id; UPDATE samples SET tar_file_id = 1 - tar_file_id"),
        change("DROP TABLE samples"),
        change(
            "ALTER TABLE samples RENAME TO t; CREATE VIEW samples AS "
            "WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r) "
            "SELECT 1 AS tar_file_id, 'a' AS sample_key, i AS sample_index FROM r"
        ),
        rewrite(".nv-meta/index.sqlite", b"SQLite format 3\0" + bytes(200)),
        rewrite(".nv-meta/index.sqlite", b""),
        rewrite(".nv-meta/.info.json", b'{"shard_counts": {"other.tar": 1}}'),
        rewrite(".nv-meta/.info.json", b"[]"),
        rewrite("a.tar", tar([(name.replace("d/00", "e/00"), data) for name, data in MEMBERS[:FIRST]])),
        rewrite("a.tar", tar([*MEMBERS[:FIRST], ("new.jpg", b"1")])),
        rewrite("a.tar", tar(MEMBERS[: FIRST - 1])),
        rewrite("a.tar", tar([("no sample", b"1"), *MEMBERS[:FIRST]])),
    ],
)
def test_an_index_that_says_something_else_is_not_used(tmp_path: Path, used: list[bool], harm: Callable[[Path], None]):
    directory = write(tmp_path / "data")
    harm(directory)
    found = contents(pen.open(directory / "a.tar"))
    assert used == [False]
    for path in (directory / ".nv-meta").iterdir():
        path.unlink()
    assert found == contents(pen.open(directory / "a.tar"))


def test_an_index_with_computed_keys_takes_no_memory(tmp_path: Path, used: list[bool]):
    directory = write(tmp_path / "data")
    change(
        "ALTER TABLE samples RENAME TO t; "
        "CREATE TABLE samples (tar_file_id, sample_index, sample_key GENERATED ALWAYS AS (hex(zeroblob(5000000)))); "
        "INSERT INTO samples SELECT tar_file_id, sample_index FROM t"
    )(directory)
    tracemalloc.start()
    try:
        pen.open(directory / "a.tar").close()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used == [False]
    assert most < 5_000_000


def test_splits(tmp_path: Path):
    directory = write(tmp_path / "data")
    with pen.open(directory, split="train") as source:
        assert source[0]["__key__"] == MEMBERS[FIRST][0].partition(".")[0]
        assert len(source) == len(pen.open(directory))
    with pytest.raises(KeyError, match=r"no part 'test'; there are \['train', 'val'\]"):
        pen.open(directory, split="test")
    with pytest.raises(ValueError, match="at least one archive"):
        pen.open(directory, split="val")
    split = directory / ".nv-meta/split.yaml"
    for words, error in (
        ("{a: [", FormatError),
        ("[]", FormatError),
        ("split_parts: {train: 1}", FormatError),
        ("split_parts: {train: ['../a.tar']}", UnsafePathError),
        ("split_parts: {train: ['{a..b}.tar']}", UnsupportedTypeError),
        ("{split_parts: {train: ['{a,b}.tar']}, exclude: [a.tar/3]}", UnsupportedTypeError),
        ("{split_parts: {train: [a.tar]}, exclude: [a.tar/3]}", UnsupportedTypeError),
        ("{split_parts: {train: [d/a.wds]}, exclude: [d/a.wds/x/3]}", UnsupportedTypeError),
        ("{split_parts: {train: [c.tar]}}", MissingError),
    ):
        split.write_text(words)
        with pytest.raises(error):
            pen.open(directory, split="train")
    split.write_text("{split_parts: {train: [b.tar, a.tar]}, exclude: [b.tar]}")
    with pen.open(directory, split="train") as source:
        assert source[0]["__key__"] == MEMBERS[0][0].partition(".")[0]
    split.unlink()
    with pytest.raises(MissingError, match=r"split\.yaml"):
        pen.open(directory, split="train")
    (directory / ".nv-meta/split.json").write_text(json.dumps({"split_parts": {"train": ["a.tar"]}}))
    with pen.open(directory, split="train") as source:
        assert len(source) < len(MEMBERS)
