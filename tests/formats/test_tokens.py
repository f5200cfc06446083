"""Token blocks: read, written, appended to, and what only looks like some."""

import contextlib
import importlib
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli import warm
from tests.effort import count
from tests.formats.kill import killed_at
from tests.golden.make_foreign import DIRECTORY as GOLDEN
from tests.golden.make_foreign import rox

from penstock.errors import (
    ConflictError,
    EmptyFileError,
    EmptySourceError,
    FormatError,
    LockedError,
    MissingError,
    NoMatchError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats import token_line, tokens
from penstock.formats.tokens import open_tokens
from penstock.formats.tokens_writer import write_tokens
from penstock.records import Source
from penstock.testing import SourceSuite

writer = importlib.import_module("penstock.formats.tokens_writer")

Record = dict[str, Any]

LINE = np.random.default_rng(0).integers(0, 2**16, 1000).astype(np.uint16)


def block_lists(line: np.ndarray, *shards: Sequence[int]) -> list[list[np.ndarray]]:
    """A line of tokens as the blocks of shards, whose sizes are given."""
    edges = np.cumsum([0, *(size for sizes in shards for size in sizes)])
    blocks = iter([line[low:high] for low, high in pairwise(edges)])
    return [[next(blocks) for _ in sizes] for sizes in shards]


def write_blocks(directory: Path, line: np.ndarray, *shards: Sequence[int], name: str = "x") -> None:
    for number, blocks in enumerate(block_lists(line, *shards)):
        content = rox([block.tobytes() for block in blocks], str(line.dtype).encode())
        (directory / f"{name}_{number:04d}.rox").write_bytes(content)


class TokenSuite(SourceSuite):
    """Blocks of these sizes in these shards."""

    line = LINE
    shards: tuple[Sequence[int], ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012

    def make(self, directory: Path) -> Source:
        write_blocks(directory, self.line, *self.shards)
        return open_tokens(directory, **self.options)

    def records(self) -> list[Record]:
        blocks = [block for shard in block_lists(self.line, *self.shards) for block in shard]
        return [{"tokens": block.astype(block.dtype.newbyteorder("="))} for block in blocks]


class TestOneFile(TokenSuite):
    shards = ([20] * 40,)


class TestShardsOfEvenBlocks(TokenSuite):
    shards = ([20] * 20, [], [20] * 5, [20] * 12)
    options = {"io": "pread", "threads": 1}  # noqa: RUF012


class TestShortLastBlocks(TokenSuite):
    shards = ([20] * 10 + [7], [20] * 10 + [1], [13])
    line = LINE.astype(np.float64) / 3


class TestShortLastBlocksByPread(TestShortLastBlocks):
    options = {"io": "pread"}  # noqa: RUF012
    line = LINE.astype(">i4")


class TestBlocksOfAnySize(TokenSuite):
    """Empty ones too: no writer makes them, but the format allows them."""

    shards = (list(range(30)), [0, 0, 5, 0], list(range(20, 0, -1)))
    line = LINE.astype(ml_dtypes.bfloat16)


class TestEmptyBlocks(TokenSuite):
    shards = ([0] * 5,)


class TestNoBlocks(TokenSuite):
    shards = ([], [])


class TestWritten(SourceSuite):
    """Of the other byte order, by the writer."""

    def make(self, directory: Path) -> Source:
        write_tokens([LINE[:100], LINE[100:101], LINE[101:]], directory / "x.rox", dtype=">u4", block_size=30, max_shard_bytes=900)
        return open_tokens(directory / "x", field="text")

    def records(self) -> list[Record]:
        return [{"text": LINE[low : low + 30].astype(np.uint32)} for low in range(0, 1000, 30)]


# What there is, and in which order


def test_check_18_the_file_built_by_hand_is_read() -> None:
    with open_tokens(GOLDEN / "abc.rox") as source:
        assert [bytes(block) for block in source["tokens"][:]] == [b"abc|", b"de||"]
        assert (source.num_tokens, source.block_size, source.dtype, len(source)) == (8, 4, np.uint8, 2)
        assert source.schema["tokens"].shape == (4,)
    int32 = [1, 2, 3, 4, 5, 6, -7, 2**31 - 1, -(2**31), 8, 0]
    assert np.concatenate(open_tokens(GOLDEN / "int32")[:]["tokens"].to_list()).tolist() == int32
    swapped = open_tokens(GOLDEN / "swapped.rox")
    assert swapped["tokens"][:].tolist() == [[1, 2], [3, -4]]
    assert swapped.dtype == np.dtype("=i4")
    floats = open_tokens(GOLDEN / "bfloat16.rox")
    assert floats.read_tokens([0], 3).astype(np.float32).tolist() == [[1, -2, np.inf]]


def test_golden_files_are_what_the_writer_makes(tmp_path: Path) -> None:
    int32 = np.array([1, 2, 3, 4, 5, 6, -7, 2**31 - 1, -(2**31), 8, 0], np.int32)
    write_tokens([b"abc", b"de", b""], tmp_path / "abc.rox", separator=b"|", block_size=4)
    write_tokens([int32[:6]], tmp_path / "int32.rox", block_size=3, append=True)
    write_tokens([int32[6:]], tmp_path / "int32.rox", block_size=3, append=True)
    write_tokens([[1, 2, 3, -4]], tmp_path / "swapped.rox", dtype=">i4", block_size=2)
    write_tokens([[1.0, -2.0, float("inf")]], tmp_path / "bfloat16.rox", dtype="bfloat16", block_size=2)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in GOLDEN.glob("*.rox")}


def test_check_19_directories_patterns_prefixes_and_lists_give_the_same_sequence(tmp_path: Path) -> None:
    write_blocks(tmp_path, LINE, [20] * 10, [20] * 3)
    shards = [tmp_path / "x_0000.rox", tmp_path / "x_0001.rox"]
    for what in (tmp_path, f"{tmp_path}/*.rox", f"{tmp_path}/x_000?.rox", tmp_path / "x", str(tmp_path / "x.rox"), shards):
        assert open_tokens(what)["tokens"][:].reshape(-1).tolist() == LINE[:260].tolist()
    assert open_tokens(shards[::-1])["tokens"][:3].reshape(-1).tolist() == LINE[200:260].tolist()


def test_prefixes_take_only_their_numbered_shards_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    for number, name in enumerate(["x_9999", "x_10000", "x_1", "x_base", "x_2_3", "xy_5", "x_-4", "x"]):
        (tmp_path / f"{name}.rox").write_bytes(rox([bytes([number])], b"uint8"))
    assert open_tokens(tmp_path / "x.rox")["tokens"][:].tolist() == [[7]]
    (tmp_path / "x.rox").unlink()
    assert open_tokens(tmp_path / "x.rox")["tokens"][:].tolist() == [[2], [0], [1]]


def test_check_20_shards_are_in_the_order_of_their_name_bytes(tmp_path: Path) -> None:
    for number in (2, 10):
        (tmp_path / f"s{number}.rox").write_bytes(rox([bytes([number])], b"uint8"))
    for what in (tmp_path, f"{tmp_path}/s*.rox"):
        assert open_tokens(what)["tokens"][:].tolist() == [[10], [2]]


def test_an_index_longer_than_a_piece_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [3] * 9 + [2] * 3 + [3] * 8 + [1]
    write_blocks(tmp_path, LINE, sizes)
    for piece in (1, 2, 7, 20, 100):
        monkeypatch.setattr(tokens, "INDEX_PIECE", piece)
        assert open_tokens(tmp_path)["tokens"][:].lengths.tolist() == sizes


# The line of tokens


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_runs_of_tokens_cross_blocks_and_shards(tmp_path: Path, io: str) -> None:
    write_blocks(tmp_path, LINE, [20] * 10 + [7], [], [20] * 10 + [1], [13])
    source = open_tokens(tmp_path, io=io)
    assert source.num_tokens == 421
    for length in (1, 5, 20, 333, 421):
        starts = np.random.default_rng(length).integers(0, 421 - length + 1, 50)
        expected = np.stack([LINE[start : start + length] for start in starts])
        assert np.array_equal(source.read_tokens(starts, length), expected)
        out = np.zeros((50, length), np.uint16)
        assert source.read_tokens(starts.tolist(), length, out) is out
        assert np.array_equal(out, expected)
    assert source.read_tokens([], 421).shape == (0, 421)
    assert source.read_tokens([5], 0).shape == (1, 0)


def test_runs_beyond_the_line_and_wrong_outputs_are_refused(tmp_path: Path) -> None:
    write_blocks(tmp_path, LINE, [20])
    source = open_tokens(tmp_path)
    for starts, length in (([16], 5), ([-1], 5), ([0], 21), ([2**62], 1)):
        with pytest.raises(IndexError):
            source.read_tokens(starts, length)
    with pytest.raises(ValueError, match="writable, contiguous uint16"):
        source.read_tokens([0], 5, np.zeros((1, 5), np.int32))
    with pytest.raises(ValueError, match="length"):
        source.read_tokens([0], -1)
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.read_tokens([0], 1)


def test_steps_are_counted_in_tokens(tmp_path: Path) -> None:
    write_blocks(tmp_path, LINE, [20] * 4 + [7])
    source = open_tokens(tmp_path)
    assert [source.steps_per_epoch(2, 5), source.steps_per_epoch(29, 3), source.steps_per_epoch(88, 1)] == [8, 1, 0]
    with pytest.raises(ValueError, match="batch_size"):
        source.steps_per_epoch(0, 5)


def parts_of(line: bytes, separator: bytes) -> list[bytes]:
    parts = line.split(separator)
    return parts[:-1] if parts[-1] == b"" else parts


@given(
    st.text("ab|", max_size=60), st.sampled_from(["|", "||", "a|", "aa", "aba", "abcabc"]), st.integers(1, 9), st.integers(8, 40)
)
def test_documents_are_found_wherever_blocks_shards_and_pieces_end(line: str, separator: str, block: int, scan: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_line, "SCAN_BYTES", scan)
        write_tokens(
            [np.frombuffer(line.encode(), np.uint8).astype(np.int32)], f"{directory}/x.rox", block_size=block, max_shard_bytes=70
        )
        expected = parts_of(line.encode(), separator.encode())
        if not line:
            assert os.listdir(directory) == []
            return
        ranges = open_tokens(f"{directory}/x.rox").documents(list(separator.encode()))
    assert [line.encode()[start:stop] for start, stop in ranges.tolist()] == expected


def test_documents_may_be_separated_by_one_element_of_any_type(tmp_path: Path) -> None:
    floats = np.array([1, np.nan, -0.0, np.nan, np.nan, 2])
    write_tokens([floats], tmp_path / "f.rox")
    write_tokens(["über", "", "x"], tmp_path / "t.rox", separator="\n")
    write_tokens([], tmp_path / "none.rox")
    assert open_tokens(tmp_path / "f.rox").documents(np.nan).tolist() == [[0, 1], [2, 3], [4, 4], [5, 6]]
    assert open_tokens(tmp_path / "f.rox").documents(0.0).tolist() == [[0, 6]]
    assert open_tokens(tmp_path / "t.rox").documents("\n").tolist() == [[0, 5], [6, 6], [7, 8]]
    assert open_tokens(tmp_path / "t.rox").documents("no such separator in here").tolist() == [[0, 9]]
    write_blocks(tmp_path, LINE, [])
    assert open_tokens(tmp_path / "x").documents(0).tolist() == []
    with pytest.raises(ValueError, match="at least one element"):
        open_tokens(tmp_path / "t.rox").documents(b"")
    with pytest.raises(TypeError, match="separator: expected elements of float64"):
        open_tokens(tmp_path / "f.rox").documents("x")
    with pytest.raises(ValueError, match="do not fit uint8: for example 256"):
        open_tokens(tmp_path / "t.rox").documents(256)


# Files that are none


def footer(blocks: int = 2, data: int = 8, dtype: bytes = b"uint16", magic: bytes = b"ROXXEL02") -> bytes:
    return struct.pack("<qq8s8s", blocks, data, dtype, magic)


def index(*ends: int) -> bytes:
    return struct.pack(f"<{len(ends)}q", *ends)


DATA = bytes(8)
GOOD = DATA + index(4, 8) + footer()

BAD: list[tuple[bytes, type[PenstockError], str]] = [
    (b"", EmptyFileError, "empty file"),
    (GOOD[-31:], TruncatedError, "footer of 32 bytes, found a file of 31"),
    (GOOD[:-1], FormatError, "ROXXEL02"),
    (bytes(64), FormatError, "ROXXEL02"),
    (DATA + index(4, 8) + footer(magic=b"ROXXEL01"), FormatError, "ROXXEL01"),
    (GOOD[1:], TruncatedError, "expected 56 bytes for 2 blocks and 8 bytes of data, found 55"),
    (b"x" + GOOD, TrailingBytesError, "expected 56 bytes for 2 blocks and 8 bytes of data, found 57"),
    (DATA + index(4, 8) + footer(-1), FormatError, "found -1 and 8"),
    (DATA + index(4, 8) + footer(2, -8), FormatError, "found 2 and -8"),
    (DATA + index(4, 8) + footer(2**63 - 1, 2**63 - 1), SizeOverflowError, "beyond"),
    (DATA + index(4, 8) + footer(dtype=b"complex6"), UnsupportedTypeError, "complex6"),
    (DATA + index(4, 8) + footer(dtype=b"float8_e"), UnsupportedTypeError, "float8_e"),
    (DATA + index(4, 8) + footer(dtype=b"object"), UnsupportedTypeError, "object"),
    (DATA + index(4, 8) + footer(dtype=b"O"), UnsupportedTypeError, "'O"),
    (DATA + index(4, 8) + footer(dtype=b"i4,i4"), UnsupportedTypeError, "i4,i4"),
    (DATA + index(4, 8) + footer(dtype=b"float128"), UnsupportedTypeError, "float128"),
    (DATA + index(4, 8) + footer(dtype=b""), UnsupportedTypeError, "found b"),
    (DATA + index(4, 8) + footer(dtype=b"\xff\xfeuint8"), UnsupportedTypeError, "xff"),
    (DATA + index(4, 8) + footer(dtype=b"uint8\0x"), UnsupportedTypeError, "uint8"),
    (DATA + index(4, 6) + footer(), FormatError, "last block to end at 8, found 6"),
    (DATA + index(4, 10) + footer(), FormatError, "block 1 must end between 4 and 8"),
    (DATA + index(8, 4) + footer(), FormatError, "block 1 must end between 8 and 8"),
    (DATA + index(3, 8) + footer(), FormatError, "block 0 must end .* behind a whole uint16, found 3"),
    (DATA + index(-2, 8) + footer(), FormatError, "block 0 must end"),
    (DATA + index(2**63 - 1, 8) + footer(), FormatError, "block 0 must end"),
    (DATA + index(-(2**63), 8) + footer(), FormatError, "block 0 must end"),
    (DATA + footer(0), FormatError, "last block to end at 8, found 0"),
    (bytes(7) + index(4, 7) + footer(2, 7), FormatError, "block 1 must end .* found 7"),
]


@pytest.mark.parametrize(("content", "error", "message"), BAD)
def test_check_19_bad_files_are_refused_by_name(tmp_path: Path, content: bytes, error: type[PenstockError], message: str) -> None:
    (tmp_path / "good.rox").write_bytes(GOOD)
    (tmp_path / "zbad.rox").write_bytes(content)
    with pytest.raises(error, match=rf"zbad\.rox.*{message}") as caught:
        open_tokens(tmp_path)
    assert type(caught.value) is error


def test_shards_of_different_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rox").write_bytes(GOOD)
    for dtype in (b"int16", b">u2", b"uint8"):
        (tmp_path / "b.rox").write_bytes(DATA + index(4, 8) + footer(dtype=dtype))
        with pytest.raises(SchemaMismatchError, match=r"b\.rox: expected uint16 elements as in .*a\.rox, found"):
            open_tokens(tmp_path)
    (tmp_path / "b.rox").write_bytes(DATA + index(4, 8) + footer(dtype=b"<u2"))
    assert len(open_tokens(tmp_path)) == 4


def test_missing_files_prefixes_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    (tmp_path / "xy_0000.rox").write_bytes(GOOD)
    for what in (tmp_path / "x", tmp_path / "x.rox", f"{tmp_path}/z*.rox", tmp_path / "no" / "x.rox"):
        with pytest.raises(NoMatchError):
            open_tokens(what)
    with pytest.raises(MissingError):
        open_tokens([tmp_path / "xy_0000.rox", tmp_path / "gone.rox"])
    with pytest.raises(EmptySourceError):
        open_tokens([])


EDGES = [
    0,
    1,
    2,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 1,
    2**60,
    2**60 + 1,
    2**61,
    2**62,
    2**63 - 33,
    2**63 - 32,
    2**63 - 1,
    -1,
    -(2**63),
]


def hostile() -> Iterator[tuple[bytes, str]]:
    """Footers with huge numbers, among them sums that are small when cut to 64 bits, with what they must raise."""
    for blocks in EDGES:
        for data in EDGES:
            whole = data + 8 * blocks + 32
            if blocks < 0 or data < 0:
                expected = "FormatError"
            elif whole >= 2**63:
                expected = "SizeOverflowError"
            else:
                expected = "TrailingBytesError" if whole < 48 else "TruncatedError" if whole > 48 else "TokenBlocks"
            yield bytes(16) + footer(blocks, data), expected
    for end in EDGES[1:]:
        yield bytes(2) + index(end) + footer(1, 2), "TokenBlocks" if end == 2 else "FormatError"
    # As many blocks as there is room for, all of them empty, or all of one byte where elements have two.
    yield index(*[0] * 100_000) + footer(100_000, 0), "TokenBlocks"
    yield bytes(1000) + index(*range(1, 1001)) + footer(1000, 1000), "FormatError"


def test_hostile_footers_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    expected = []
    for number, (content, error) in enumerate(hostile()):
        (tmp_path / f"{number}.rox").write_bytes(content)
        expected.append(error)
    assert len(expected) > 60
    code = """
import json, resource, sys
from penstock.errors import PenstockError
from penstock.formats.tokens import open_tokens
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
found = []
for number in range(int(sys.argv[2])):
    try:
        found.append(type(open_tokens(f"{sys.argv[1]}/{number}.rox", threads=1)).__name__)
    except PenstockError as error:
        assert f"{number}.rox" in str(error), error
        found.append(type(error).__name__)
print(json.dumps(found))
"""
    command = [sys.executable, "-c", code, str(tmp_path), str(len(expected))]
    done = warm.run(command, check=True, timeout=600, capture_output=True)
    assert json.loads(done.stdout) == expected


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    write_tokens([np.arange(100_000)], tmp_path / "a.rox", block_size=100)
    source = open_tokens(tmp_path / "a.rox")
    assert source[999]["tokens"][99] == 99_999
    os.truncate(tmp_path / "a.rox", 5000)
    with pytest.raises(TruncatedError, match=r"a\.rox"):
        source[999]


# Writing


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[Any], Any, np.dtype[Any], list[np.ndarray]]:
    """Documents as a user gives them, a separator, the type, and the elements of every document with its separator."""
    if draw(st.booleans()):
        documents: list[Any] = draw(
            st.lists(st.text(max_size=12) | st.binary(max_size=12) | st.binary(max_size=3).map(bytearray), max_size=8)
        )
        separator: Any = draw(st.none() | st.sampled_from(["|", "<é>", b"\0", b"ab", 7, [1, 2], b""]))
        dtype = np.dtype(np.uint8)
        raw = [d.encode() if isinstance(d, str) else bytes(d) for d in documents]
        elements = [np.frombuffer(d, np.uint8) for d in raw]
    else:
        dtype = np.dtype(draw(st.sampled_from(["u1", "i2", "u2", "i4", ">i4", "u8", "f4", "f8", "?"])))
        numbers = st.integers(0, 1) if dtype.kind == "b" else st.integers(0, 127)
        lists = draw(st.lists(st.lists(numbers, max_size=12), max_size=8))
        documents = [np.array(d, dtype) if draw(st.booleans()) else d for d in lists]
        separator = draw(st.none() | numbers | st.lists(numbers, max_size=3) | st.lists(numbers, max_size=3).map(np.array))
        elements = [np.array(d, dtype) for d in lists]
    if separator is None:
        behind: Any = []
    elif isinstance(separator, str | bytes):
        behind = np.frombuffer(separator.encode() if isinstance(separator, str) else separator, np.uint8)
    else:
        behind = np.atleast_1d(separator)
    return documents, separator, dtype, [np.concatenate([e, np.asarray(behind).astype(dtype)]).astype(dtype) for e in elements]


def shards_of(line: np.ndarray, block_size: int, max_bytes: int | None) -> list[bytes]:
    """The files, block by block: the next one begins where a block would make data, index and footer longer than allowed."""
    raw, size = line.tobytes(), block_size * line.itemsize
    shards: list[list[bytes]] = []
    for block in [raw[at : at + size] for at in range(0, len(raw), size)]:
        whole = sum(map(len, shards[-1])) + len(block) + 8 * (len(shards[-1]) + 1) + 32 if shards else 0
        if not shards or (max_bytes is not None and whole > max_bytes):
            shards.append([])
        shards[-1].append(block)
    return [rox(blocks, str(line.dtype).encode()) for blocks in shards]


@given(corpora(), st.integers(1, 20), st.none() | st.integers(1, 400), st.integers(0, 8), st.integers(1, 64))
def test_check_35_the_line_is_the_documents_joined_without_padding(
    corpus: Any, block_size: int, max_bytes: int | None, cut: int, flush: int
) -> None:
    documents, separator, dtype, elements = corpus
    options = {"dtype": dtype, "separator": separator, "block_size": block_size, "max_shard_bytes": max_bytes}
    line = np.concatenate([np.empty(0, dtype), *elements]).astype(dtype)  # numpy joins in the byte order of the machine
    native = line.astype(dtype.newbyteorder("="))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "FLUSH_BYTES", flush)
        done: list[tuple[int, int]] = []
        paths = write_tokens(iter(documents), f"{directory}/x.rox", progress=lambda *n: done.append(n), **options)
        assert paths == sorted(Path(directory).iterdir())
        assert [path.read_bytes() for path in paths] == shards_of(line, block_size, max_bytes)
        assert np.sum([(0, 0), *done], axis=0).tolist() == [len(documents), line.nbytes]
        # In two goes it is the same line, the second behind the shards of the first.
        for part in (documents[:cut], documents[cut:]):
            write_tokens(part, f"{directory}/y.rox", append=True, **options)
        if line.size:
            for name in "xy":
                source = open_tokens(f"{directory}/{name}.rox")
                assert source.num_tokens == line.size
                assert source.read_tokens([0], line.size)[0].tobytes() == native.tobytes()


def test_shards_end_where_the_rule_of_the_format_says(tmp_path: Path) -> None:
    paths = write_tokens([bytes(5 * 64)], tmp_path / "x.rox", block_size=64, max_shard_bytes=180)
    assert [path.name for path in paths] == ["x_000000.rox", "x_000001.rox", "x_000002.rox"]
    assert [path.stat().st_size for path in paths] == [176, 176, 104]


@pytest.mark.parametrize(
    ("documents", "options", "error", "message"),
    [
        ([np.arange(3), np.arange(3, dtype=np.int32)], {}, TypeError, "document 1: expected int64 as before, got int32"),
        ([b"a", np.arange(3)], {}, TypeError, "document 1: expected a text or byte string as before, got ndarray"),
        (
            [np.arange(3, dtype=np.uint8), "a"],
            {},
            TypeError,
            "document 1: expected an array or a list of numbers as before, got str",
        ),
        ([b"a", np.zeros(3, np.uint8)], {}, TypeError, "document 1"),
        ([b"a"], {"dtype": "uint16"}, TypeError, "texts are uint8"),
        ([[1, 2]], {}, TypeError, "document 0: lists of numbers need dtype="),
        ([np.array([1, 300])], {"dtype": "u1"}, ValueError, "document 0: .*int64 do not fit uint8: for example 300"),
        ([[1], [2, -3]], {"dtype": "u2"}, ValueError, "document 1: .*do not fit uint16: for example -3"),
        ([[2**40]], {"dtype": "i4"}, ValueError, "document 0: .*for example 1099511627776"),
        ([[2**64]], {"dtype": "u8"}, ValueError, "document 0: .*for example 18446744073709551616"),
        ([[2**63]], {"dtype": "i8"}, ValueError, "document 0: .*for example 9223372036854775808"),
        ([[0.5]], {"dtype": "i4"}, ValueError, "document 0: .*float64 do not fit int32: for example 0.5"),
        ([np.array([1e300])], {"dtype": "f4"}, ValueError, r"document 0: .*for example 1e\+300"),
        ([np.array([2**24 + 1])], {"dtype": "f4"}, ValueError, "document 0: .*for example 16777217"),
        ([[None]], {"dtype": "u2"}, TypeError, "document 0"),
        ([[[1], [2, 3]]], {"dtype": "u2"}, ValueError, "document 0"),
        ([np.zeros((2, 2), np.uint8)], {}, TypeError, r"document 0: .*shape \(2, 2\)"),
        ([np.ma.MaskedArray([1, 2], mask=[0, 1])], {"dtype": "u1"}, TypeError, "document 0: .*MaskedArray"),
        ([3], {}, TypeError, "document 0: expected a text, a byte string or numbers, got int"),
        (["a", None], {}, TypeError, "document 1: .*got NoneType"),
        (["\ud800"], {}, ValueError, "document 0: .*Unicode"),
        ("one text", {}, TypeError, r"write \[document\]"),
        ([np.arange(3)], {"separator": b"\n"}, TypeError, "separator: expected elements of int64, got a bytes"),
        ([np.arange(3)], {"separator": "\n"}, TypeError, "separator: expected elements of int64"),
        ([np.arange(3, dtype=np.uint16)], {"separator": 65536}, ValueError, "separator: .*for example 65536"),
        ([np.arange(3, dtype=np.uint16)], {"separator": 0.5}, ValueError, "separator: .*for example 0.5"),
        ([b"a"], {"separator": [256]}, ValueError, "separator: .*for example 256"),
        ([np.zeros(3, np.complex64)], {}, TypeError, "room for 8 bytes of its name, and it has 9"),
        ([np.zeros(3, ml_dtypes.float8_e5m2)], {}, TypeError, "float8_e5m2"),
        ([np.zeros(3, "M8[s]")], {}, TypeError, "datetime64"),
        ([np.zeros(3, np.longdouble)], {}, TypeError, "float128"),
        ([np.array(["a"])], {}, TypeError, "<U1"),
        ([b"a"], {"block_size": 0}, ValueError, "block_size"),
        ([[1]], {"dtype": "i8", "block_size": 2**40}, ValueError, r"block_size must be at most \d+ for int64"),
        ([b"a"], {"max_shard_bytes": 0}, ValueError, "max_shard_bytes"),
    ],
)
def test_check_36_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, documents: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        write_tokens(documents, tmp_path / "x.rox", **options)
    assert type(caught.value) is error
    assert os.listdir(tmp_path) == []


def test_values_that_fit_are_converted(tmp_path: Path) -> None:
    given = [np.array([0, 65535]), [1, 2], (3,), np.array([4.0]), np.array([5], ">i8"), np.arange(10, dtype=np.uint8)[::3], []]
    write_tokens(given, tmp_path / "x.rox", dtype="uint16", separator=9)
    line = [0, 65535, 9, 1, 2, 9, 3, 9, 4, 9, 5, 9, 0, 3, 6, 9, 9, 9]
    assert open_tokens(tmp_path / "x.rox").read_tokens([0], 18).tolist() == [line]


def test_paths_must_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in \.rox"):
        write_tokens([b"a"], tmp_path / "x")


# Appending


def test_no_tokens_are_no_files(tmp_path: Path) -> None:
    for documents in ([], [b""], iter(["", b""])):
        assert write_tokens(documents, tmp_path / "x.rox") == []
        assert write_tokens(documents, tmp_path / "x.rox", append=True) == []
    assert os.listdir(tmp_path) == []


def test_nothing_is_replaced(tmp_path: Path) -> None:
    write_tokens([b"one"], tmp_path / "x.rox")
    write_tokens([b"one"], tmp_path / "y.rox", append=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name, options in (("x", {}), ("x", {"max_shard_bytes": 100}), ("y", {}), ("y", {"max_shard_bytes": 100})):
        with pytest.raises(FileExistsError, match="choose another name"):
            write_tokens([b"two"], tmp_path / f"{name}.rox", **options)
    with pytest.raises(FileExistsError, match=r"leave out max_shard_bytes .*, or rename it to x_000000\.rox to append shards"):
        write_tokens([b"two"], tmp_path / "x.rox", append=True, max_shard_bytes=100)
    (tmp_path / "y.rox").write_bytes(GOOD)
    with pytest.raises(FileExistsError, match=r"there are shards too, such as y_000000\.rox"):
        write_tokens([b"two"], tmp_path / "y.rox", append=True)
    (tmp_path / "y.rox").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_shards_are_added_behind_the_last_in_its_style(tmp_path: Path) -> None:
    for name in ("x_0000", "x_0007"):
        (tmp_path / f"{name}.rox").write_bytes(GOOD)
    ids = np.arange(2, dtype=np.uint16)
    assert write_tokens([ids], tmp_path / "x.rox", block_size=2, append=True) == [tmp_path / "x_0008.rox"]
    (tmp_path / "x_9999.rox").write_bytes(GOOD)
    with pytest.raises(ValueError, match="no shard number 10000 with 4 digits"):
        write_tokens([ids], tmp_path / "x.rox", block_size=2, append=True)
    assert open_tokens(tmp_path / "x").read_tokens([8], 2).tolist() == [[0, 1]]
    assert len(os.listdir(tmp_path)) == 4


def test_what_is_added_must_fit_what_is_there(tmp_path: Path) -> None:
    write_tokens([np.arange(10, dtype=np.int32)], tmp_path / "x.rox", block_size=4, append=True)
    write_tokens([[10]], tmp_path / "x.rox", block_size=4, append=True)
    for options in ({"block_size": 8}, {"block_size": 2}, {"block_size": 4, "dtype": "i8"}, {"block_size": 4, "dtype": ">i4"}):
        with pytest.raises(SchemaMismatchError, match=r"x_00000\d\.rox: expected"):
            write_tokens([[11]], tmp_path / "x.rox", append=True, **options)
    with pytest.raises(TypeError, match="document 0: expected int32 as before, got int64"):
        write_tokens([np.arange(3)], tmp_path / "x.rox", append=True, block_size=4)
    with pytest.raises(TypeError, match="texts are uint8"):
        write_tokens([b"a"], tmp_path / "x.rox", append=True, block_size=4)
    (tmp_path / "x_000002.rox").write_bytes(GOOD[:-1])
    with pytest.raises(FormatError, match=r"x_000002\.rox"):
        write_tokens([[11]], tmp_path / "x.rox", append=True, block_size=4)
    (tmp_path / "x_000002.rox").unlink()
    write_tokens([[11]], tmp_path / "x.rox", append=True, block_size=4)
    assert open_tokens(tmp_path / "x").read_tokens([0], 12)[0].tolist() == list(range(12))


def test_a_writer_that_was_overtaken_adds_nothing_and_may_try_again(tmp_path: Path) -> None:
    def slow() -> Iterator[bytes]:
        yield b"slow"
        write_tokens([b"fast"], tmp_path / "x.rox", append=True, block_size=2)
        assert sum(name.startswith(".penstock") for name in os.listdir(tmp_path)) == 1  # the staging of a living writer stays

    for _ in range(2):
        with pytest.raises(ConflictError, match="another writer"):
            write_tokens(slow(), tmp_path / "x.rox", append=True, block_size=2, max_shard_bytes=50)
    write_tokens([b"slow"], tmp_path / "x.rox", append=True, block_size=2)
    assert bytes(open_tokens(tmp_path / "x").read_tokens([0], 12)[0]) == b"fastfastslow"
    assert sorted(os.listdir(tmp_path)) == [f"x_00000{number}.rox" for number in range(3)]


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    each = count(4, 8)

    def work(mark: int) -> None:
        for number in range(each):
            added = False
            while not added:
                with contextlib.suppress(ConflictError):
                    added = bool(
                        write_tokens([[mark, number]], tmp_path / "x.rox", dtype="u1", append=True, block_size=1, max_shard_bytes=1)
                    )

    children = []
    for mark in range(100, 104):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                work(mark)
                os._exit(0)
            finally:
                os._exit(1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    pairs = open_tokens(tmp_path / "x").read_tokens(range(0, 8 * each, 2), 2).tolist()
    assert sorted(pairs) == [[mark, number] for mark in range(100, 104) for number in range(each)]
    assert len(os.listdir(tmp_path)) == 8 * each


def test_a_name_taken_in_the_middle_takes_the_other_names_back(tmp_path: Path) -> None:
    def documents() -> Iterator[bytes]:
        yield b"abcdef"
        (tmp_path / "x_000002.rox").write_bytes(b"somebody else's")

    with pytest.raises(ConflictError):
        write_tokens(documents(), tmp_path / "x.rox", append=True, block_size=2, max_shard_bytes=42)
    assert os.listdir(tmp_path) == ["x_000002.rox"]
    assert (tmp_path / "x_000002.rox").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("append", [False, True])
def test_an_exception_at_any_document_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: bool) -> None:
    if append:
        write_tokens([b"old"], tmp_path / "x.rox", append=True, block_size=3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for failing in range(7):

        def broken(failing: int = failing) -> Iterator[bytes]:
            for number in range(7):
                if number == failing:
                    raise KeyboardInterrupt
                yield b"document %d" % number

        monkeypatch.setattr(writer, "FLUSH_BYTES", 8)
        with pytest.raises(KeyboardInterrupt):
            write_tokens(broken(), tmp_path / "x.rox", append=append, block_size=3, max_shard_bytes=80)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


KILLED = ["mkdir", "flock", "pwrite64", "fsync", "?link,linkat", "?unlink,unlinkat,?rmdir"]


@pytest.mark.parametrize("call", KILLED)
@pytest.mark.sampled(2)
def test_check_10_a_process_killed_while_it_appends_loses_nothing(tmp_path: Path, call: str) -> None:
    """At every call of a kind: what was there is readable, new shards are there whole and in order, and the next append works."""
    old, new = bytes(range(40)), bytes(range(100, 124))
    kept = tmp_path / "kept"
    kept.mkdir()
    write_tokens([old], kept / "x.rox", append=True, block_size=16)
    progress = set()
    for when in range(1, 30):
        place = tmp_path / str(when)
        shutil.copytree(kept, place)
        killed = killed_at(
            call, when, partial(write_tokens, [new], place / "x.rox", append=True, block_size=16, max_shard_bytes=60)
        )
        found = _line(place)
        assert found in (old, old + new[:16], old + new)
        assert killed or found == old + new
        progress.add(found)
        write_tokens([b"more"], place / "x.rox", append=True, block_size=16)
        assert _line(place) == found + b"more"
        assert all(name.startswith("x_") for name in os.listdir(place))
        if not killed:
            break
    assert not killed
    assert progress == {"mkdir": {old, old + new}, "?link,linkat": {old, old + new[:16], old + new}}.get(call, progress)


# Continuing one file


@given(corpora(), st.integers(1, 20), st.lists(st.integers(0, 8), max_size=3), st.integers(1, 64))
def test_a_file_continued_in_several_calls_is_the_file_of_one_call(
    corpus: Any, block_size: int, cuts: list[int], flush: int
) -> None:
    documents, separator, dtype, _ = corpus
    options = {"dtype": dtype, "separator": separator, "block_size": block_size}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "FLUSH_BYTES", flush)
        write_tokens(documents, f"{directory}/x.rox", **options)
        for low, high in pairwise([0, *sorted(cuts), len(documents)]):
            write_tokens(documents[low:high], f"{directory}/y.rox", append=os.path.exists(f"{directory}/y.rox"), **options)
        files = [Path(f"{directory}/{name}.rox") for name in "xy"]
        assert len({path.read_bytes() if path.exists() else b"" for path in files}) == 1
        assert len(os.listdir(directory)) == sum(path.exists() for path in files)


def test_a_continued_file_is_a_new_one_under_the_old_name(tmp_path: Path) -> None:
    write_tokens([b"one"], tmp_path / "x.rox", separator="|", block_size=8)
    (tmp_path / "link.rox").symlink_to("x.rox")
    with (tmp_path / "x.rox").open("rb") as before:
        assert write_tokens([b"two"], tmp_path / "link.rox", separator="|", block_size=8, append=True) == [tmp_path / "x.rox"]
        assert before.read(4) == b"one|"
        assert before.seek(0, os.SEEK_END) == 4 + 8 + 32
    assert open_tokens(tmp_path / "link.rox").read_tokens([0], 8).tobytes() == b"one|two|"
    content = (tmp_path / "x.rox").read_bytes()
    for documents in ([], [b""], iter([""])):
        assert write_tokens(documents, tmp_path / "x.rox", block_size=8, append=True) == []
    assert (tmp_path / "x.rox").read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["link.rox", "x.rox"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"block_size": 8}, SchemaMismatchError, r"x\.rox: expected blocks of 8 elements to append to, found blocks of 4"),
        ({"block_size": 2}, SchemaMismatchError, "expected blocks of 2 elements to append to, found blocks of 4"),
        ({"dtype": "i8"}, SchemaMismatchError, "expected elements of int64 to append to, found int32"),
        ({"separator": 7}, SchemaMismatchError, "expected the separator .* at the end of the tokens, found"),
        ({"separator": list(range(11))}, SchemaMismatchError, "expected the separator"),
    ],
    ids=str,
)
def test_what_continues_a_file_must_fit_it(tmp_path: Path, options: Any, error: type[Exception], message: str) -> None:
    write_tokens([np.arange(10, dtype=np.int32)], tmp_path / "x.rox", block_size=4)
    before = (tmp_path / "x.rox").read_bytes()
    with pytest.raises(error, match=message):
        write_tokens([[1]], tmp_path / "x.rox", append=True, **{"block_size": 4, **options})
    assert (tmp_path / "x.rox").read_bytes() == before
    write_tokens([[10], [11]], tmp_path / "x.rox", append=True, block_size=4, separator=9)
    assert open_tokens(tmp_path / "x.rox").read_tokens([0], 14)[0].tolist() == [*range(10), 10, 9, 11, 9]


@pytest.mark.parametrize("content", [GOOD[:-1], GOOD[8:], b"", b"x" * 100, GOOD + b"x"], ids=len)
def test_a_damaged_file_is_an_error_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.rox").write_bytes(content)
    with pytest.raises(PenstockError, match=r"x\.rox"):
        write_tokens([[1]], tmp_path / "x.rox", dtype="u2", append=True, block_size=2)
    assert (tmp_path / "x.rox").read_bytes() == content


def test_blocks_that_another_tool_cut_differently_are_not_continued(tmp_path: Path) -> None:
    (tmp_path / "x.rox").write_bytes(rox([b"abcd", b"ab", b"abcd"], b"uint8"))
    with pytest.raises(SchemaMismatchError, match="expected blocks of 4 elements up to the last, found shorter ones"):
        write_tokens([b"a"], tmp_path / "x.rox", append=True, block_size=4)


def test_two_writers_do_not_continue_one_file_at_once(tmp_path: Path) -> None:
    write_tokens([b"old"], tmp_path / "x.rox", block_size=2)

    def slow(disturb: Callable[[], object]) -> Iterator[bytes]:
        yield b"slow"
        disturb()

    def another() -> None:
        with pytest.raises(LockedError, match="another writer is continuing this file"):
            write_tokens([b"fast"], tmp_path / "x.rox", append=True, block_size=2)

    def replaced() -> None:
        (tmp_path / "z.rox").write_bytes(rox([b"ab"], b"uint8"))
        os.replace(tmp_path / "z.rox", tmp_path / "x.rox")

    write_tokens(slow(another), tmp_path / "x.rox", append=True, block_size=2)
    assert open_tokens(tmp_path / "x.rox").read_tokens([0], 7).tobytes() == b"oldslow"
    for disturb in (replaced, (tmp_path / "x.rox").unlink):
        with pytest.raises(ConflictError, match="another writer replaced this file"):
            write_tokens(slow(disturb), tmp_path / "x.rox", append=True, block_size=2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["mkdir", "flock", "pwrite64", "fsync", "?rename,renameat,?renameat2", "?unlink,unlinkat,?rmdir"])
@pytest.mark.sampled(2)
def test_a_process_killed_while_it_continues_a_file_loses_nothing(tmp_path: Path, call: str) -> None:
    old, new = bytes(range(40)), bytes(range(100, 124))
    progress = set()
    for when in range(1, 30):
        place = tmp_path / str(when)
        place.mkdir()
        write_tokens([old], place / "x.rox", block_size=16)
        killed = killed_at(call, when, partial(write_tokens, [new], place / "x.rox", append=True, block_size=16))
        found = _line(place)
        assert found in (old, old + new)
        assert killed or found == old + new
        progress.add(found)
        write_tokens([b"more"], place / "x.rox", append=True, block_size=16)
        assert _line(place) == found + b"more"
        assert os.listdir(place) == ["x.rox"]
        if not killed:
            break
    assert not killed
    assert old in progress or call.startswith("?unlink")


# Patterns


def test_a_new_pattern_is_a_name_with_base_in_it(tmp_path: Path) -> None:
    assert write_tokens([b"abc"], tmp_path / "tok_*.rox") == [tmp_path / "tok_base.rox"]
    assert write_tokens([b"abc"], tmp_path / "?-x*.rox", max_shard_bytes=100) == [tmp_path / "base-xbase_000000.rox"]
    assert sorted(os.listdir(tmp_path)) == ["base-xbase_000000.rox", "tok_base.rox"]


def test_a_pattern_of_files_that_are_there_stands_for_them(tmp_path: Path) -> None:
    write_tokens([b"abcd"], tmp_path / "tok.rox", block_size=2, max_shard_bytes=50)
    with pytest.raises(FileExistsError, match=r"give append=True"):
        write_tokens([b"ef"], tmp_path / "tok_*.rox", block_size=2)
    assert write_tokens([b"ef"], tmp_path / "tok_*.rox", block_size=2, append=True) == [tmp_path / "tok_000002.rox"]
    assert _line_of(tmp_path / "tok_*.rox") == b"abcdef"
    write_tokens([b"ab"], tmp_path / "one_*.rox", block_size=2)
    assert write_tokens([b"cd"], tmp_path / "one_*.rox", block_size=2, append=True) == [tmp_path / "one_base.rox"]
    assert _line_of(tmp_path / "one_*.rox") == b"abcd"


def test_patterns_of_several_names_or_of_directories_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tokens([b"abcd"], tmp_path / f"{name}.rox", max_shard_bytes=50)
    before = sorted(os.listdir(tmp_path))
    for path, message in (("*.rox", "found those of a, b"), ("x*/y.rox", "a pattern in the last name at most"), ("y*", "end in")):
        with pytest.raises(ValueError, match=message):
            write_tokens([b"ef"], tmp_path / path, append=True)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_star_that_is_in_a_name_already_stays_one(tmp_path: Path) -> None:
    (tmp_path / "x*.rox").write_bytes(GOOD)
    assert write_tokens([[7]], tmp_path / "x*.rox", dtype="u2", block_size=2, append=True) == [tmp_path / "x*.rox"]


def _line_of(path: Path) -> bytes:
    source = open_tokens(path)
    return source.read_tokens([0], source.num_tokens)[0].tobytes()


def _line(directory: Path) -> bytes:
    source = open_tokens(directory / "x.rox")
    return source.read_tokens([0], source.num_tokens)[0].tobytes()
