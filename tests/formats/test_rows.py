"""Row shards: read, written, and what only looks like one."""

import errno
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli import warm
from tests.effort import every
from tests.formats.kill import killed_at
from tests.golden import make_foreign
from tests.golden.make_foreign import DIRECTORY as GOLDEN
from tests.golden.make_foreign import shard

from penstock.errors import (
    EmptyFileError,
    EmptySourceError,
    FormatError,
    MissingError,
    NoMatchError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    StoreError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats.array import ArraySource
from penstock.formats.rows import RowBatches, default_batch_rows, encode_rows, open_rows, write_rows
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

ROWS = np.random.default_rng(0).standard_normal((61, 5)).astype(np.float32)


def write_parts(directory: Path, *cuts: int) -> None:
    """ROWS in several shards."""
    for number, part in enumerate(np.split(ROWS, cuts)):
        (directory / f"s{number}.shard").write_bytes(encode_rows(part))


class TestOneShard(SourceSuite):
    def make(self, directory: Path) -> Source:
        write_rows(ROWS, directory / "a.shard")
        return open_rows(directory / "a.shard")

    def records(self) -> list[Record]:
        return [{"row": row} for row in ROWS]


class TestManyShards(SourceSuite):
    """Some of them without rows, read by pread."""

    def make(self, directory: Path) -> Source:
        write_parts(directory, 0, 20, 20, 23)
        return open_rows(f"{directory}/*.shard", field="x", io="pread", threads=1)

    def records(self) -> list[Record]:
        return [{"x": row} for row in ROWS]


class TestFloat64(SourceSuite):
    def make(self, directory: Path) -> Source:
        write_rows(ROWS, directory / "rows", max_shard_rows=16)
        return open_rows(directory / "rows", dtype="f8")

    def records(self) -> list[Record]:
        return [{"row": row.astype(np.float64)} for row in ROWS]


class TestLinkedShards(SourceSuite):
    """Caches of downloads are full of symbolic links."""

    def make(self, directory: Path) -> Source:
        (directory / "blobs").mkdir()
        write_rows(ROWS, directory / "blobs" / "0a1b.shard")
        (directory / "a.shard").symlink_to("blobs/0a1b.shard")
        return open_rows(directory)

    def records(self) -> list[Record]:
        return [{"row": row} for row in ROWS]


# What there is, and in which order


def test_golden_files_are_what_the_script_makes() -> None:
    found = {str(path.relative_to(GOLDEN)): path.read_bytes() for path in GOLDEN.rglob("*") if path.suffix in (".shard", ".rox")}
    assert found == make_foreign.FILES


def test_check_15_bytes_built_by_hand_are_read_and_written(tmp_path: Path) -> None:
    payloads = [(GOLDEN / "rows" / f"{name}.shard").read_bytes()[32:] for name in "ac"]
    values = np.concatenate([np.array(struct.unpack(f"<{len(p) // 4}f", p), np.float32) for p in payloads]).reshape(-1, 2)
    with open_rows(GOLDEN / "rows") as source:
        assert (source.total_rows, source.width) == (5, 2)
        rows, ids = next(source.batches())
        assert ids.tolist() == [0, 1, 2, 3, 4]
        assert rows.tobytes() == values.tobytes()
    for name, low, high in (("a", 0, 3), ("b", 3, 3), ("c", 3, 5)):
        golden = (GOLDEN / "rows" / f"{name}.shard").read_bytes()
        for dtype in (np.float32, np.float64, np.longdouble, ">f4"):
            assert encode_rows(values[low:high].astype(dtype)) == golden
        assert write_rows(values[low:high], tmp_path / f"{name}.shard") == [tmp_path / f"{name}.shard"]
        assert (tmp_path / f"{name}.shard").read_bytes() == golden


def test_check_20_shards_are_in_the_order_of_their_name_bytes_and_lists_keep_theirs(tmp_path: Path) -> None:
    for number in (2, 10):
        write_rows(np.full((1, 1), number, np.float32), tmp_path / f"s{number}.shard")
    for what in (tmp_path, str(tmp_path), f"{tmp_path}/s*.shard"):
        assert open_rows(what)["row"][:].tolist() == [[10], [2]]
    assert open_rows([tmp_path / "s2.shard", tmp_path / "s10.shard"])["row"][:].tolist() == [[2], [10]]


def test_directories_and_other_files_in_a_directory_are_left_out(tmp_path: Path) -> None:
    write_rows(ROWS, tmp_path / "a.shard")
    (tmp_path / "b.shard").mkdir()
    (tmp_path / "notes.txt").write_text("not a shard")
    assert len(open_rows(tmp_path)) == 61


# Batches


def sizes(batches: RowBatches) -> list[int]:
    return [len(ids) for _, ids in batches]


def test_check_17_batches_follow_one_rule_for_every_backend(tmp_path: Path) -> None:
    write_rows(np.zeros((600, 8192), np.float32), tmp_path / "wide.shard")
    for io in ("map", "pread", "direct"):
        assert sizes(open_rows(tmp_path / "wide.shard", io=io).batches()) == [256, 256, 88]
    write_rows(np.zeros((1500, 3), np.float32), tmp_path / "narrow", max_shard_rows=700)
    narrow = open_rows(tmp_path / "narrow")
    assert sizes(narrow.batches()) == [1024, 476]
    assert sizes(narrow.batches(align=True)) == [700, 700, 100]
    assert sizes(narrow.batches(600, align=True)) == [600, 100, 600, 100, 100]
    cases = [(1, 1, 1), (10**9, 1, 1024), (10**9, 2**28, 1), (500, 8, 500), (10**9, 2048, 1024), (10**9, 2049, 1023)]
    assert [default_batch_rows(rows, width) for rows, width, _ in cases] == [expected for _, _, expected in cases]


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("batch_rows", [1, 7, 20, 1000])
def test_batches_hold_every_row_once_in_order(tmp_path: Path, batch_rows: int, align: bool) -> None:
    write_parts(tmp_path, 20, 20, 23)
    batches = open_rows(tmp_path).batches(batch_rows, align=align)
    assert batches.batch_rows == batch_rows
    first = [(rows.tobytes(), ids.tolist()) for rows, ids in batches]
    assert b"".join(rows for rows, _ in first) == ROWS.tobytes()
    assert [i for _, ids in first for i in ids] == list(range(61))
    if align:
        assert all(not ids[0] < border <= ids[-1] for _, ids in first for border in (20, 23))
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)
    batches.reset()
    assert [(rows.tobytes(), ids.tolist()) for rows, ids in batches] == first


def test_batches_go_on_from_any_row(tmp_path: Path) -> None:
    write_parts(tmp_path, 20)
    batches = open_rows(tmp_path).batches(8)
    for row in (37, 0, 60):
        batches.seek(row)
        rows, ids = next(batches)
        assert ids.tolist() == list(range(row, min(row + 8, 61)))
        assert rows.tobytes() == ROWS[row : row + 8].tobytes()
    batches.seek(61)
    assert list(batches) == []
    for bad in (62, -1):
        with pytest.raises(ValueError, match="row must be in"):
            batches.seek(bad)
    with pytest.raises(ValueError, match="batch_rows"):
        open_rows(tmp_path).batches(0)


# Files that are none


def header(rows: int = 3, width: int = 2, dtype: int = 0, reserved: int = 0, magic: bytes = b"GAMSAE01") -> bytes:
    return magic + struct.pack("<QQII", rows, width, dtype, reserved)


GOOD = header() + bytes(24)

BAD: list[tuple[bytes, type[PenstockError], str]] = [
    (b"", EmptyFileError, "empty file"),
    (GOOD[:31], TruncatedError, "expected a header of 32 bytes"),
    (b"x", TruncatedError, "expected a header of 32 bytes"),
    (bytes(64), FormatError, "GAMSAE01"),
    (header(magic=b"GAMSAE02") + bytes(24), FormatError, "GAMSAE02"),
    (header(dtype=1) + bytes(24), UnsupportedTypeError, "found 1"),
    (header(dtype=2**32 - 1) + bytes(24), UnsupportedTypeError, "4294967295"),
    (header(reserved=77) + bytes(24), FormatError, "reserved field, found 77"),
    (header(width=0), FormatError, "a width of 0"),
    (header(2**62 - 1, 1) + bytes(24), SizeOverflowError, "beyond"),
    (GOOD[:-1], TruncatedError, "expected 56 bytes for 3 rows of 2 values, found 55"),
    (GOOD + bytes(1), TrailingBytesError, "expected 56 bytes for 3 rows of 2 values, found 57"),
    (GOOD + bytes(100), TrailingBytesError, "found 156"),
    # What is wrong first is said first.
    (header(dtype=1, magic=b"GAMSAE02"), FormatError, "GAMSAE02"),
    (header(2**62 - 1, 1, dtype=1, reserved=7), UnsupportedTypeError, "dtype"),
    (header(2**62 - 1, 0, reserved=7), FormatError, "reserved"),
]


@pytest.mark.parametrize(("content", "error", "message"), BAD)
def test_check_16_bad_files_are_refused_by_name(tmp_path: Path, content: bytes, error: type[PenstockError], message: str) -> None:
    (tmp_path / "good.shard").write_bytes(GOOD)
    (tmp_path / "zbad.shard").write_bytes(content)
    with pytest.raises(error, match=rf"zbad\.shard.*{message}") as caught:
        open_rows(tmp_path)
    assert type(caught.value) is error


def test_check_16_sets_that_do_not_fit_together_or_are_empty_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.shard").write_bytes(header(0, 2))
    (tmp_path / "b.shard").write_bytes(header(0, 2))
    for what in (tmp_path, []):
        with pytest.raises(EmptySourceError):
            open_rows(what)
    for rows in (0, 1):
        (tmp_path / "b.shard").write_bytes(header(rows, 3) + bytes(12 * rows))
        with pytest.raises(SchemaMismatchError, match=r"b\.shard: expected rows of 2 values as in .*a\.shard, found rows of 3"):
            open_rows(tmp_path)


def test_missing_files_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file"):
        open_rows(tmp_path / "a.shard")
    for what in (f"{tmp_path}/*.shard", tmp_path):
        with pytest.raises(NoMatchError):
            open_rows(what)
    with pytest.raises(ValueError, match="'f4' or 'f8'"):
        open_rows(GOLDEN / "rows", dtype="i4")


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    write_rows(np.arange(100_000, dtype=np.float32).reshape(-1, 1), tmp_path / "a.shard")
    source = open_rows(tmp_path / "a.shard")
    assert source[99_999]["row"] == 99_999
    os.truncate(tmp_path / "a.shard", 5000)
    with pytest.raises(TruncatedError, match=r"a\.shard"):
        source[99_999]


EDGES = [
    1,
    2,
    4,
    2**30,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**61,
    2**62 - 1,
    2**62,
    2**62 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def hostile() -> Iterator[tuple[bytes, str]]:
    """Headers with huge numbers, among them products that are small when cut to 64 bits, with what they must raise."""
    for rows in EDGES:
        for width in EDGES:
            payload = 4 * rows * width
            if payload >= 2**63 - 32 or 4 * width > 2**30:
                expected = "SizeOverflowError"
            else:
                expected = "TrailingBytesError" if payload < 16 else "TruncatedError" if payload > 16 else "RowShards"
            yield header(rows, width) + bytes(16), expected
    for width in EDGES:
        yield header(0, width), "EmptySourceError"
        yield header(0, width) + bytes(16), "TrailingBytesError"


def test_hostile_headers_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    expected = []
    for number, (content, error) in enumerate(hostile()):
        (tmp_path / f"{number}.shard").write_bytes(content)
        expected.append(error)
    assert len(expected) > 60
    code = """
import json, resource, sys
from penstock.errors import PenstockError
from penstock.formats.rows import open_rows
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
found = []
for number in range(int(sys.argv[2])):
    try:
        found.append(type(open_rows(f"{sys.argv[1]}/{number}.shard", threads=1)).__name__)
    except PenstockError as error:
        assert f"{number}.shard" in str(error), error
        found.append(type(error).__name__)
print(json.dumps(found))
"""
    command = [sys.executable, "-c", code, str(tmp_path), str(len(expected))]
    done = warm.run(command, check=True, timeout=600, capture_output=True)
    assert json.loads(done.stdout) == expected


# Writing


@st.composite
def pieces(draw: st.DrawFn) -> list[np.ndarray]:
    width = draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))
    dtype = draw(st.sampled_from(["f2", "f4", "f8", ">f4", "i1", "u2"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return [
        (rng.standard_normal((count, width)) * 50).astype(np.int8 if dtype[-2] in "iu" else dtype).astype(dtype) for count in counts
    ]


@given(pieces(), st.none() | st.integers(1, 30), st.none() | st.integers(52, 500))
def test_what_is_written_is_read(parts: list[np.ndarray], max_rows: int | None, max_bytes: int | None) -> None:
    whole = np.concatenate(parts).astype(np.float32)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        done: list[tuple[int, int]] = []
        paths = write_rows(
            iter(parts),
            Path(directory) / "x",
            max_shard_rows=max_rows,
            max_shard_bytes=max_bytes,
            progress=lambda *n: done.append(n),
        )
        contents = [path.read_bytes() for path in paths]
        assert paths == sorted((Path(directory) / "x").iterdir())
        assert os.listdir(directory) == ["x"]
        if len(whole):
            assert open_rows(Path(directory) / "x")["row"][:].tobytes() == whole.tobytes()
    assert b"".join(content[32:] for content in contents) == whole.tobytes()
    counts = [struct.unpack("<Q", content[8:16])[0] for content in contents]
    limit = min(max_rows or 10**9, 10**9 if max_bytes is None else (max_bytes - 32) // (4 * whole.shape[1]))
    assert counts[:-1] == [limit] * (len(counts) - 1)
    assert counts[-1] <= limit
    assert (counts[-1] > 0) == (len(whole) > 0)
    assert np.sum(done, axis=0).tolist() == [len(whole), whole.nbytes]
    assert encode_rows(np.concatenate(parts)) == shard(whole.tolist(), whole.shape[1])


def test_values_that_become_infinite_are_reported_by_row(tmp_path: Path) -> None:
    rows = np.zeros((2000, 3000))
    rows[1234, 7] = 1e300
    for data in (rows, [rows[:1000], rows[1000:]]):
        with pytest.raises(ValueError, match=r"row 1234: 1e\+300 of float64 does not fit float32"):
            write_rows(data, tmp_path / "a.shard")
    assert os.listdir(tmp_path) == []
    write_rows(rows, tmp_path / "a.shard", allow_overflow=True)
    assert open_rows(tmp_path)[1234]["row"][7] == np.inf
    passing = np.array([[np.nan, np.inf, -np.inf, 1e-320]])
    assert np.array_equal(
        open_rows(write_rows(passing, tmp_path / "b.shard"))["row"][:], passing.astype(np.float32), equal_nan=True
    )


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (np.array([[1], [2**24 + 1]]), ValueError),
        (np.array([[1], [2**63 - 1]]), ValueError),
        (np.array([[1], [2**64 - 1]], np.uint64), ValueError),
        (np.array([[1], [-(2**31) + 1]], np.int32), ValueError),
        (np.array([[1j]]), TypeError),
        (np.array([["a"]]), TypeError),
        (np.zeros(3), ValueError),
        (np.zeros((3, 0)), ValueError),
        (np.zeros((2, 2, 2)), ValueError),
        ([np.zeros((2, 2)), np.zeros((2, 3))], ValueError),
        ([[1.0, 2.0]], ValueError),
        ([], ValueError),
        (np.ma.MaskedArray(np.zeros((2, 2)), mask=[[0, 0], [1, 1]]), ValueError),
        ({"x": np.ma.MaskedArray(np.zeros((2, 2)), mask=[[0, 0], [1, 1]])}, ValueError),
        ({"x": np.zeros((2, 2)), "y": np.zeros((2, 2))}, ValueError),
        ({"x": np.zeros((2, 2), np.int32), "y": np.zeros(2)}, ValueError),
    ],
)
def test_rows_that_cannot_be_stored_are_refused(tmp_path: Path, rows: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        write_rows(ArraySource(rows) if isinstance(rows, dict) else rows, tmp_path / "a.shard")
    assert os.listdir(tmp_path) == []


def test_whole_numbers_that_fit_are_stored(tmp_path: Path) -> None:
    rows = np.array([[2**24, -(2**31)], [2**62, 3]])
    assert np.array_equal(open_rows(write_rows(rows, tmp_path / "a.shard"))["row"][:], rows)


def test_sources_are_written(tmp_path: Path) -> None:
    source = ArraySource({"label": np.arange(61), "x": ROWS, "image": np.zeros((61, 2, 2), np.float32)})
    write_rows(source, tmp_path / "a.shard")
    write_rows(open_rows(tmp_path / "a.shard"), tmp_path / "b", max_shard_rows=30)
    assert open_rows(tmp_path / "b", dtype="f8")["row"][:].tolist() == ROWS.tolist()
    write_rows(source.select([]), tmp_path / "c.shard")
    assert (tmp_path / "c.shard").read_bytes() == encode_rows(ROWS[:0])


def test_nothing_is_replaced_unless_asked_for(tmp_path: Path) -> None:
    write_rows(ROWS, tmp_path / "a.shard")
    write_rows(ROWS, tmp_path / "d", max_shard_rows=7)
    for name in ("a.shard", "d"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            write_rows(ROWS[:2], tmp_path / name)
        assert len(open_rows(tmp_path / name)) == 61
        write_rows(ROWS[:2], tmp_path / name, overwrite=True)
        assert len(open_rows(tmp_path / name)) == 2
    write_rows(ROWS, tmp_path / "new", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.shard", "d", "new"]


def test_directories_of_other_things_and_other_kinds_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.txt").write_text("years of work")
    (tmp_path / "f").write_text("a file")
    (tmp_path / "e.shard").mkdir()
    (tmp_path / "l").symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    for name in ("d", "f", "e.shard", "l"):
        for overwrite in (False, True):
            with pytest.raises(FileExistsError):
                write_rows(ROWS, tmp_path / name, overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == ["d", "e.shard", "empty", "f", "l"]
    assert os.listdir(tmp_path / "d") == ["thesis.txt"]


def test_bad_limits_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="room for a row of 5 values"):
        write_rows(ROWS, tmp_path / "d", max_shard_bytes=51)
    with pytest.raises(ValueError, match="several shards need a directory"):
        write_rows(ROWS, tmp_path / "a.shard", max_shard_rows=5)
    with pytest.raises(StoreError, match="No such file"):
        write_rows(ROWS, tmp_path / "no" / "such" / "directory.shard")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.shard", "d"])
def test_an_exception_at_any_piece_leaves_nothing(tmp_path: Path, name: str) -> None:
    for failing in range(6):

        def broken(failing: int = failing) -> Iterator[np.ndarray]:
            for number in range(6):
                if number == failing:
                    raise KeyboardInterrupt
                yield ROWS[10 * number : 10 * number + 10]

        with pytest.raises(KeyboardInterrupt):
            write_rows(broken(), tmp_path / name, max_shard_rows=None if name == "a.shard" else 15)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.shard", "d"])
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, name: str) -> None:
    code = """
import resource, sys
import numpy as np
from penstock.errors import StoreError
from penstock.formats.rows import write_rows
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_rows((np.zeros((10, 4), "f4") for _ in range(10)), sys.argv[1])
except StoreError as error:
    print(type(error).__name__, error.errno, error.filename)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / name)], check=True, timeout=600, capture_output=True, text=True
    )
    assert re.fullmatch(rf"StoreError {errno.EFBIG} {tmp_path}/\S+\.shard\n", done.stdout)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.shard", "d"])
def test_a_process_killed_while_it_replaces_leaves_the_old_rows_or_the_new(tmp_path: Path, name: str) -> None:
    limit = None if name == "a.shard" else 40
    old, new = ROWS.tobytes(), (ROWS + 1).tobytes()
    write_rows(ROWS, tmp_path / name, max_shard_rows=limit)
    seen = set()
    for call in ("mkdir", "flock", "pwrite64", "fsync", "?rename,?renameat,renameat2", "?unlink,unlinkat,?rmdir"):
        for when in every(2, range(1, 20)):
            killed = killed_at(call, when, lambda: write_rows(ROWS + 1, tmp_path / name, max_shard_rows=limit, overwrite=True))
            found = open_rows(tmp_path / name)["row"][:].tobytes()
            assert found in (old, new)
            assert killed or found == new
            seen.add((killed, found == new))
            write_rows(ROWS, tmp_path / name, max_shard_rows=limit, overwrite=True)
            assert os.listdir(tmp_path) == [name]
            if not killed:
                break
    assert seen == {(True, False), (True, True), (False, True)}
