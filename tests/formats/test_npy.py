"""One and many .npy files, and files that claim to be some."""

import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm
from tests.effort import count

from penstock.errors import (
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    TrailingBytesError,
    TruncatedError,
    UnsafeDataError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.array import open_npy
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

ROWS = np.random.default_rng(0).random((61, 5), np.float32)


class TestOneFile(SourceSuite):
    def make(self, directory: Path) -> Source:
        np.save(directory / "a.npy", ROWS)
        return open_npy(directory / "a.npy")

    def records(self) -> list[Record]:
        return [{"data": row} for row in ROWS]


class TestManyFiles(SourceSuite):
    """Some of them empty, read by pread."""

    def make(self, directory: Path) -> Source:
        for name, low, high in (("a", 0, 20), ("b", 20, 20), ("c", 20, 23), ("d", 23, 61)):
            np.save(directory / f"{name}.npy", ROWS[low:high])
        return open_npy(f"{directory}/*.npy", field="row", io="pread", threads=1)

    def records(self) -> list[Record]:
        return [{"row": row} for row in ROWS]


class TestOtherByteOrder(SourceSuite):
    def make(self, directory: Path) -> Source:
        np.save(directory / "a.npy", ROWS.astype(">f4"))
        return open_npy([directory / "a.npy"])

    def records(self) -> list[Record]:
        return [{"data": row} for row in ROWS]


class TestScalarsAndEmptyRecords(SourceSuite):
    def make(self, directory: Path) -> Source:
        np.save(directory / "a.npy", np.empty((7, 0, 3), np.int16))
        return open_npy(directory)

    def records(self) -> list[Record]:
        return [{"data": np.empty((0, 3), np.int16)}] * 7


def test_files_are_in_the_order_of_their_names_and_lists_keep_theirs(tmp_path: Path) -> None:
    for number in (2, 10):
        np.save(tmp_path / f"s{number}.npy", np.array([number]))
    assert open_npy(tmp_path)["data"][:].tolist() == [10, 2]
    assert open_npy([tmp_path / "s2.npy", tmp_path / "s10.npy"])["data"][:].tolist() == [2, 10]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, ROWS, version=version)
    assert np.array_equal(open_npy(tmp_path / "a.npy")["data"][:], ROWS)


def npy(header: str, payload: bytes = b"", *, magic: bytes = b"\x93NUMPY\x01\x00", length: int | None = None) -> bytes:
    raw = header.encode()
    return magic + struct.pack("<H", len(raw) if length is None else length) + raw + payload


def head(descr: str = "'<f4'", shape: str = "(3,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


BAD: list[tuple[bytes, type[PenstockError]]] = [
    (b"", EmptyFileError),
    (b"\0" * 64, FormatError),
    (b"\x93NUMPY\x01", TruncatedError),
    (npy(head(), b"\0" * 12)[:30], TruncatedError),
    (npy(head(), b"\0" * 11), TruncatedError),
    (npy(head(), b"\0" * 13), TrailingBytesError),
    (npy(head(), b"\0" * 12, magic=b"\x93NUMPY\x09\x00"), UnsupportedVersionError),
    (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31), SizeOverflowError),
    (npy(head("'|O'"), b"\x80\x04N."), UnsafeDataError),
    (npy(head("[('a', '|O')]"), b"\x80\x04N."), UnsupportedTypeError),
    (npy(head("'<M8[s]'"), b"\0" * 24), UnsupportedTypeError),
    (npy(head("'no such type'"), b"\0" * 24), UnsupportedTypeError),
    (npy(head(shape="(2**62, 4)"), b""), FormatError),
    (npy(head(shape=f"({2**62}, 4)"), b""), SizeOverflowError),
    (npy(head(shape=f"({2**63 // 4 - 1},)"), b""), TruncatedError),
    (npy(head(shape="(-1,)"), b""), FormatError),
    (npy(head(shape="(True,)"), b"\0" * 4), FormatError),
    (npy(head(shape="()"), b"\0" * 4), SchemaMismatchError),
    (npy(head(shape="(2, 2)", order="True"), b"\0" * 16), UnsupportedTypeError),
    (npy("{'descr': '<f4', 'shape': (3,)}", b"\0" * 12), FormatError),
    *(
        (npy(head(repr(descr)), b"\0" * 12), UnsupportedTypeError)  # numpy parses some of these as Python
        for descr in ("(<f4", "(f4", "((1,),)f4", "f4,(", "(3,)f4", "f4,f4", "(9999999999,)f4", "{}", "", "f" * 9000)
    ),
    (npy("__import__('os').system('false')"), FormatError),
    (npy("(" * 5000), FormatError),
    (b"\x93NUMPY\x03\x00" + struct.pack("<I", 2) + b"\xff\xfe", FormatError),
]


@pytest.mark.parametrize(("content", "error"), BAD)
def test_bad_files_are_refused_by_name_and_nothing_stays_open(tmp_path: Path, content: bytes, error: type[PenstockError]) -> None:
    np.save(tmp_path / "good.npy", np.zeros(3, np.float32))
    (tmp_path / "zbad.npy").write_bytes(content)
    with pytest.raises(error, match=r"zbad\.npy") as caught:
        open_npy(tmp_path)
    assert type(caught.value) is error


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    for other in (np.zeros((3, 4), np.float32), np.zeros((3, 2), np.float64), np.zeros(3, np.float32), np.zeros((3, 2), ">f4")):
        np.save(tmp_path / "b.npy", other)
        with pytest.raises(SchemaMismatchError, match=r"b\.npy: expected float32 records of \(2,\)"):
            open_npy(tmp_path)


def test_missing_files_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file") as caught:
        open_npy(tmp_path / "a.npy")
    assert type(caught.value) is MissingError
    for what in (f"{tmp_path}/*.npy", tmp_path):
        with pytest.raises(NoMatchError):
            open_npy(what)
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(FormatError, match="directory"):
        open_npy(f"{tmp_path}/*.npy")


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100_000))
    source = open_npy(tmp_path / "a.npy")
    assert source[99_999]["data"] == 99_999
    os.truncate(tmp_path / "a.npy", 5000)
    for place in (99_999, 50_000, 624):
        with pytest.raises(TruncatedError, match=r"a\.npy"):
            source[place]


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    files = count(600, 10_000)
    for i in range(files):
        np.save(tmp_path / f"{i:05d}.npy", np.arange(2 * i, 2 * i + 2))
    code = """
import resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from penstock.formats.array import open_npy
size = int(sys.argv[2])
ids = np.random.default_rng(0).permutation(size)
for io in ("map", "pread"):
    assert np.array_equal(open_npy(sys.argv[1], io=io)["data"][ids], ids)
import penstock as pen
for threads in (2, 4):  # which read at the same time
    loader = pen.Loader(open_npy(sys.argv[1], io="pread").shuffle(seed=1), 500, threads=threads)
    assert np.array_equal(np.sort(np.concatenate([batch["data"] for batch in loader])), np.arange(size))
"""
    warm.run([sys.executable, "-c", code, str(tmp_path), str(2 * files)], check=True, timeout=600)
