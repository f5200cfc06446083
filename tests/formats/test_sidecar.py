"""Sidecars: made once, kept next to the data or in a cache directory, never believed over the data, never half."""

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_every_command import obey_modes
from tests.formats.kill import killed_at
from tests.formats.sidecar_kit import Counting, check, subject_of

import penstock as pen
from penstock import _core
from penstock.errors import (
    BatchError,
    CorruptError,
    FormatError,
    MissingError,
    SizeOverflowError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats import sidecar, token_line
from penstock.formats.sidecar import ENTRY, HEAD, PAGE_BYTES, SUFFIX, Sidecar, SidecarWriter, obtain, read_sidecar
from penstock.remote.url import url_path


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be trusted from the moment they were written: nothing writes them twice in a tick of the clock."""
    monkeypatch.setattr("penstock.system.SETTLED_NS", -(10**9))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "tokens.bin"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 100)
    return path


def beside(data: Path) -> list[Path]:
    """What is next to the data, besides it."""
    return sorted(path for path in data.parent.iterdir() if path != data)


def test_arrays_are_made_once_and_mapped_afterwards(data: Path, cache: Path):
    build = Counting()
    check(obtain(subject_of(data), build, cache=cache))
    again = obtain(subject_of(data), build, cache=cache)
    check(again)
    assert build.calls == 1
    (path,) = beside(data)
    assert (again.path, path.name.startswith(".tokens.bin."), path.suffix) == (path, True, SUFFIX)
    assert not cache.exists()
    assert not again["numbers"].flags.writeable
    assert read_sidecar(path).kind == "test"


def test_other_options_are_another_sidecar(data: Path, cache: Path):
    build = Counting()
    for _ in range(2):
        obtain(subject_of(data, options=(1,)), build, cache=cache)
        obtain(subject_of(data, options=("1",)), build, cache=cache)
    assert (build.calls, len(beside(data))) == (2, 2)


def test_a_moved_directory_keeps_its_sidecars(data: Path, cache: Path, tmp_path: Path):
    build = Counting()
    other = data.with_name("b.bin")
    other.write_bytes(b"b")
    obtain(subject_of(data, other), build, cache=cache)
    moved = data.parent.rename(tmp_path / "elsewhere")
    obtain(subject_of(moved / data.name, moved / "b.bin"), build, cache=cache)
    assert build.calls == 1
    obtain(subject_of(moved / "b.bin", moved / data.name), build, cache=cache)
    assert build.calls == 2, "the order of files counts"


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def keep_time(path: Path, content: bytes) -> None:
    info = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: rewrite(path, path.read_bytes() + b"x"),
        lambda path: keep_time(path, path.read_bytes()[:-1]),
        lambda path: keep_time(path, b"x" + path.read_bytes()[1:]),
        lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + 1)),
    ],
    ids=["grown", "cut", "other bytes at the same time", "another time"],
)
def test_changed_data_is_read_again(data: Path, cache: Path, change: Callable[[Path], None]):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    change(data)
    check(obtain(subject_of(data), build, cache=cache))
    assert build.calls == 2
    assert len(beside(data)) == 1, "the old one was replaced"
    obtain(subject_of(data), build, cache=cache)
    assert build.calls == 2


def test_data_that_is_not_what_was_opened_is_refused(data: Path, cache: Path):
    subject = subject_of(data)
    data.write_bytes(data.read_bytes())
    os.utime(data, ns=(0, 10**18))
    with pytest.raises(SourceChangedError, match="not the one that was opened"):
        obtain(subject, Counting(), cache=cache)


def test_data_that_changes_while_it_is_read_leaves_nothing(data: Path, cache: Path):
    def build(writer: SidecarWriter) -> None:
        Counting()(writer)
        os.utime(data, ns=(0, 10**18))

    with pytest.raises(SourceChangedError):
        obtain(subject_of(data), build, cache=cache)
    assert beside(data) == []


def test_data_that_was_written_a_moment_ago_is_not_kept(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.system.SETTLED_NS", 10**18)
    found = obtain(subject_of(data), Counting(), cache=cache)
    check(found)
    assert (found.path, beside(data), cache.exists()) == (None, [], False)


def test_a_sidecar_that_is_damaged_anywhere_is_made_again(data: Path, cache: Path):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    (path,) = beside(data)
    whole = path.read_bytes()
    entries = [ENTRY.unpack_from(whole, HEAD.size + number * ENTRY.size) for number in range(3)]
    used = [(0, HEAD.size + 3 * ENTRY.size)]
    for _, dtype, count, offset, crcs, _ in entries:
        size = count * np.dtype(dtype.rstrip(b"\0").decode()).itemsize
        used += [(offset, offset + size), (crcs, crcs + 4 * -(-size // PAGE_BYTES))]
    places = [at for low, high in used for at in range(low, high, max(1, (high - low) // 12))]
    for calls, at in enumerate(places, start=1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        check(obtain(subject_of(data), build, cache=cache))
        assert build.calls == calls + 1, f"byte {at} was believed"
        assert path.read_bytes() == whole


@pytest.mark.parametrize("size", [0, 1, 95, 4095, 4096, -1, -4096, 10**6])
def test_a_sidecar_of_another_size_is_made_again(data: Path, cache: Path, size: int):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    (path,) = beside(data)
    whole = path.read_bytes()
    path.write_bytes(whole[:size] if size < len(whole) else whole + bytes(size))
    check(obtain(subject_of(data), build, cache=cache))
    assert (build.calls, path.read_bytes()) == (2, whole)


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["directory", "fifo", "link"]
)
def test_what_is_no_file_in_the_place_of_a_sidecar_is_not_read(data: Path, cache: Path, make: Callable[[Path], None]):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    (path,) = beside(data)
    path.unlink()
    make(path)
    check(obtain(subject_of(data), build, cache=cache))
    calls = build.calls
    check(obtain(subject_of(data), build, cache=cache))
    assert build.calls == calls
    assert len(beside(data)) == 1


def crafted(path: Path, *, entry: dict[int, Any] | None = None, head: dict[int, Any] | None = None) -> None:
    """Change values of the head or of the first entry, with checksums that fit."""
    content = bytearray(path.read_bytes())
    for layout, at, changed in ((HEAD, 0, head or {}), (ENTRY, HEAD.size, entry or {})):
        values = list(layout.unpack_from(content, at))
        for number, value in changed.items():
            values[number] = value
        layout.pack_into(content, at, *values)
    struct.pack_into("<I", content, sidecar.CRC_AT, 0)
    count = min(HEAD.unpack_from(content)[2], sidecar.MOST_ARRAYS)
    crc = _core.crc32c(np.frombuffer(bytes(content[: HEAD.size + count * ENTRY.size]), np.uint8))
    struct.pack_into("<I", content, sidecar.CRC_AT, crc)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"head": {0: b"PENSIDE\r"}}, FormatError),
        ({"head": {1: 2}}, UnsupportedVersionError),
        ({"head": {2: 2**32 - 1}}, FormatError),
        ({"head": {2: sidecar.MOST_ARRAYS}}, UnsupportedTypeError),
        ({"head": {3: 2**64 - 1}}, TruncatedError),
        ({"head": {3: 4096}}, TrailingBytesError),
        ({"head": {4: b"\xff" * 16}}, FormatError),
        ({"entry": {0: b"a\nb"}}, FormatError),
        ({"entry": {1: b"|O8"}}, UnsupportedTypeError),
        ({"entry": {1: b"<f8"}}, UnsupportedTypeError),
        ({"entry": {2: 2**61}}, SizeOverflowError),
        ({"entry": {2: 2**64 - 1}}, SizeOverflowError),
        ({"entry": {3: 2**64 - 4096}}, SizeOverflowError),
        ({"entry": {3: 4097}}, SizeOverflowError),
        ({"entry": {4: 2**63}}, SizeOverflowError),
        ({"entry": {4: 4096}}, CorruptError),
        ({"entry": {5: 1}}, CorruptError),
    ],
)
def test_a_hostile_head_is_a_typed_error(data: Path, cache: Path, changed: dict[str, Any], error: type[Exception]):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    (path,) = beside(data)
    crafted(path)
    check(read_sidecar(path))
    crafted(path, **changed)
    with pytest.raises(error):
        read_sidecar(path)
    check(obtain(subject_of(data), build, cache=cache))
    assert build.calls == 2


def test_a_sidecar_of_something_else_in_its_place_is_not_believed(data: Path, cache: Path):
    build = Counting()
    obtain(subject_of(data), build, cache=cache)
    (path,) = beside(data)
    for changed in ({4: b"other"}, {5: bytes(32)}):
        crafted(path, head=changed)
        check(obtain(subject_of(data), build, cache=cache))
    assert build.calls == 3


def test_pages_of_large_arrays_are_checked_when_they_are_needed(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sidecar.check, "__defaults__", (0,))
    obtain(subject_of(data), Counting(), cache=cache)
    (path,) = beside(data)
    content = bytearray(path.read_bytes())
    each = PAGE_BYTES // 8
    content[4096 + PAGE_BYTES + 5] ^= 1  # the second of three pages
    path.write_bytes(content)
    found = obtain(subject_of(data), Counting(), cache=cache)
    for low, high in ((0, each), (2 * each, 5000), (4999, 5000), (3, 3)):
        found.need("numbers", np.array([low]), np.array([high]))
    found.need("numbers", np.empty(0, np.int64), np.empty(0, np.int64))
    for low, high in ((0, each + 1), (2 * each - 1, 5000), (each, each + 1), (0, 5000)):
        with pytest.raises(CorruptError, match=f"bytes {PAGE_BYTES} and following of 'numbers'.*rebuilt"):
            found.need("numbers", np.array([0, low]), np.array([1, high]))
    with pytest.raises(CorruptError):
        found.check(10**9)


def test_a_sidecar_that_is_cut_under_its_map_does_not_end_the_process(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sidecar.check, "__defaults__", (0,))
    found = obtain(subject_of(data), Counting(), cache=cache)
    assert found.path is not None
    os.truncate(found.path, 4096)
    with pytest.raises(TruncatedError, match="was cut"):
        found.need("numbers", np.array([0]), np.array([1]))


def test_a_killed_builder_leaves_no_half_file(data: Path, cache: Path):
    kills = 0
    for call in ("pwrite64", "fsync", "rename"):
        for when in range(1, 30):
            if not killed_at(call, when, lambda: obtain(subject_of(data), Counting(), cache=cache)):
                break
            kills += 1
            for path in beside(data):
                assert path.suffix == SUFFIX or (path.name.startswith(".penstock-") and path.suffix == ".tmp")
            for path in data.parent.glob(f".*{SUFFIX}"):
                check(read_sidecar(path))
                path.unlink()
        for path in data.parent.glob(f".*{SUFFIX}"):
            path.unlink()
    assert kills >= 8
    check(obtain(subject_of(data), Counting(), cache=cache))
    assert len(beside(data)) == 1, "what killed builders left was removed"


def test_processes_that_come_second_wait_and_make_nothing(data: Path, cache: Path):
    begun, go = os.pipe(), os.pipe()

    def slow(writer: SidecarWriter) -> None:
        os.write(begun[1], b".")
        os.read(go[0], 1)
        Counting()(writer)

    def never(writer: SidecarWriter) -> None:
        raise AssertionError("made a second time")

    def start(build: Callable[[SidecarWriter], None]) -> int:
        child = os.fork()
        if child == 0:
            try:
                check(obtain(subject_of(data), build, cache=cache))
                os._exit(0)
            finally:
                os._exit(1)
        return child

    children = [start(slow)]
    os.read(begun[0], 1)
    children += [start(never) for _ in range(3)]
    os.write(go[1], b".")
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    for descriptor in (*begun, *go):
        os.close(descriptor)
    assert len(beside(data)) == 1


def test_processes_that_come_at_the_same_moment_make_it_once(data: Path, cache: Path, tmp_path: Path):
    log = tmp_path / "made"

    def build(writer: SidecarWriter) -> None:
        with log.open("a") as out:
            out.write("x")
        Counting()(writer)

    for _ in range(8):
        ready, go = os.pipe(), os.pipe()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os.close(go[1])
                os.write(ready[1], b".")
                os.read(go[0], 1)  # ends for all of them at once, when the parent closes it
                try:
                    check(obtain(subject_of(data), build, cache=cache))
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        for _ in children:
            os.read(ready[0], 1)
        os.close(go[1])
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        for descriptor in (*ready, go[0]):
            os.close(descriptor)
        assert log.read_text() == "x"
        log.unlink()
        (made,) = beside(data)
        made.unlink()


PROGRAM = """
import sys
from pathlib import Path
import penstock.system
penstock.system.SETTLED_NS = -10**9
from tests.formats.sidecar_kit import Counting, check, subject_of
from penstock.formats.sidecar import obtain
build = Counting()
found = obtain(subject_of(Path(sys.argv[1])), build)
check(found)
print(build.calls, found.path)
"""


def run_read_only(data: Path, home: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(data)],
        env={**os.environ, "HOME": str(home)},
        cwd=Path(__file__).parent.parent.parent,
        preexec_fn=obey_modes,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.fixture
def read_only(data: Path) -> Iterator[Path]:
    data.parent.chmod(0o555)
    yield data
    data.parent.chmod(0o755)


def test_where_the_directory_cannot_be_written_the_cache_directory_is_used(read_only: Path, tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    calls, path = run_read_only(read_only, home)
    assert (calls, Path(path).parent) == ("1", home / ".cache" / "penstock" / "index")
    assert run_read_only(read_only, home) == ["0", path]
    assert beside(read_only) == []


def test_where_nothing_can_be_written_arrays_are_in_memory(read_only: Path, tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    assert run_read_only(read_only, home) == ["1", "None"]


def test_what_cannot_be_an_array_is_refused(data: Path, cache: Path):
    for name, dtype in (("x" * 17, "i8"), ("x", "f8"), ("é", "i8")):
        with pytest.raises(ValueError):  # noqa: PT011  (one is a UnicodeEncodeError)
            obtain(subject_of(data), lambda writer, name=name, dtype=dtype: writer.add(name, dtype, []), cache=cache)
    assert beside(data) == []


def test_a_missing_sidecar_is_a_typed_error(tmp_path: Path):
    with pytest.raises(MissingError):
        read_sidecar(tmp_path / "nothing")


# Documents of token files


def write_tokens(path: Path, lengths: list[int]) -> None:
    tokens = np.arange(sum(lengths)) % 100 + 1
    tokens[np.cumsum(lengths) - 1] = 0
    tokens.astype(np.uint16).tofile(path)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small files have sidecars, too; gets the number of tokens of every piece that is searched for separators."""
    monkeypatch.setattr(token_line, "KEPT_BYTES", 1)
    searched: list[int] = []
    native = _core.find_document_ends

    def find(tokens: Any, item: int, *rest: Any) -> Any:
        searched.append(tokens.size // item)
        return native(tokens, item, *rest)

    monkeypatch.setattr(_core, "find_document_ends", find)
    return searched


LENGTHS = [3, 9, 1, 30, 2, 7, 5, 5, 12, 1, 1, 6]


def packed(path: Path | list[Path] | str) -> Any:
    return pen.open(path, dtype="uint16", check=False).shuffle(seed=3).pack(16, separator=0)


def tokens_of(stream: Any) -> list[Any]:
    return [batch["tokens"].tolist() for batch in pen.Loader(stream, batch_size=2)]


def test_documents_of_token_files_are_searched_once(tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch):
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for path, lengths in zip(paths, (LENGTHS, LENGTHS[::-1]), strict=True):
        write_tokens(path, lengths)
    first = tokens_of(packed(paths))
    assert sum(kept) == 2 * sum(LENGTHS)
    assert tokens_of(packed(paths)) == first
    assert sum(kept) == 2 * sum(LENGTHS)
    (path,) = tmp_path.glob(f".a.bin.*{SUFFIX}")
    bounds = read_sidecar(path)["bounds"]
    assert bounds.tolist() == np.cumsum([0, *LENGTHS, *LENGTHS[::-1]]).tolist()
    monkeypatch.setattr(token_line, "KEPT_BYTES", 10**9)
    path.unlink()
    assert tokens_of(packed(paths)) == first
    assert list(tmp_path.glob(f".*{SUFFIX}")) == []


def test_blocks_of_many_documents_are_in_the_sidecar(tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_line, "INDEX_BLOCKS", 5)
    monkeypatch.setattr("penstock.stream.pack.MOST_BLOCKS", 5)
    write_tokens(tmp_path / "a.bin", LENGTHS)
    stream = packed(tmp_path / "a.bin")
    assert stream.packing.block == 3
    assert stream.packing.block_bounds.tolist() == np.cumsum([0, *LENGTHS])[[0, 3, 6, 9, 12]].tolist()
    monkeypatch.setattr(token_line, "KEPT_BYTES", 10**9)
    other = packed(tmp_path / "a.bin")
    assert other.packing.block_bounds is None
    assert tokens_of(stream) == tokens_of(other)


def test_separators_are_found_across_pieces_and_files(tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 2, 500).astype(np.uint16)
    paths = [tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "c.bin"]
    for path, part in zip(paths, np.split(tokens, [100, 101]), strict=True):
        part.tofile(path)
    for separator in ([0], [0, 0], [0, 1, 0], [1, 1, 1, 1]):
        expected, at = [0], 0
        while at + len(separator) <= 500:
            is_one = tokens[at : at + len(separator)].tolist() == separator
            at += len(separator) if is_one else 1
            expected += [at] if is_one else []
        expected += [] if expected[-1] == 500 else [500]
        for size in (1, 2, 7, 1000):
            monkeypatch.setattr(token_line, "SCAN_TOKENS", size)
            for path in tmp_path.glob(f".*{SUFFIX}"):
                path.unlink()
            source: Any = pen.open(paths, dtype="uint16", check=False)
            assert source.separated(separator).bounds.tolist() == expected
    with pytest.raises(ValueError, match="at least one element"):
        source.separated([])


def test_an_opened_file_that_is_replaced_does_not_get_the_documents_of_the_new_one(tmp_path: Path, kept: list[int]):
    path = tmp_path / "a.bin"
    write_tokens(path, LENGTHS)
    source = pen.open(path, dtype="uint16", check=False)
    new = tmp_path / "new"
    write_tokens(new, LENGTHS[::-1])
    os.replace(new, path)
    with pytest.raises(SourceChangedError):
        source.shuffle(seed=3).pack(16, separator=0)


def test_a_pickled_pack_finds_its_documents_again(tmp_path: Path, kept: list[int]):
    path = tmp_path / "a.bin"
    write_tokens(path, LENGTHS * 1000)
    stream = packed(path)
    content = pickle.dumps(stream)
    assert len(content) < 5000
    again = pickle.loads(content)
    assert again.plan() == stream.plan()
    assert tokens_of(again) == tokens_of(stream)
    assert sum(kept) == sum(LENGTHS) * 1000


def test_documents_of_a_damaged_sidecar_are_not_packed(tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sidecar.check, "__defaults__", (0,))
    path = tmp_path / "a.bin"
    write_tokens(path, [5] * 10_000)
    packed(path)
    (made,) = tmp_path.glob(f".a.bin.*{SUFFIX}")
    content = bytearray(made.read_bytes())
    content[4096 + 8 * 5000] ^= 1
    made.write_bytes(content)
    stream = packed(path)
    with pytest.raises(BatchError, match=r"CorruptError: .*rebuilt"):
        tokens_of(stream)


def document_ranges(path: Path) -> Any:
    with pen.open(path, dtype="uint16", check=False) as data:
        return data.documents(0)


def spans(path: Path) -> Any:
    stream = pen.open(path, dtype="uint16", check=False).in_order().sequences(16, separator=0)
    return pen.Loader(stream, batch_size=2).explain(0, documents=True)["documents"]


@pytest.mark.parametrize("ask", [document_ranges, spans])
def test_documents_of_a_damaged_sidecar_are_not_told(
    ask: Callable[[Path], Any], tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Sidecar.check, "__defaults__", (0,))
    path = tmp_path / "a.bin"
    write_tokens(path, [5] * 10_000)
    ask(path)
    (made,) = tmp_path.glob(f".a.bin.*{SUFFIX}")
    content = bytearray(made.read_bytes())
    content[4096 + 8 * 5000] ^= 1
    made.write_bytes(content)
    with pytest.raises(CorruptError, match="rebuilt"):
        ask(path)


@pytest.mark.parametrize("ask", [document_ranges, spans])
@pytest.mark.parametrize("bad", [-1, 25, 1 << 60])
def test_documents_that_a_sidecar_puts_out_of_order_are_refused(
    ask: Callable[[Path], Any], bad: int, tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.bin"
    write_tokens(path, [5] * 100)
    write = token_line._write_bounds
    with monkeypatch.context() as patch:
        patch.setattr(
            token_line, "_write_bounds", lambda writer, _: write(writer, [np.array([0, 5, bad, *range(15, 501, 5)], np.int64)])
        )
        with pytest.raises(CorruptError, match="rebuilt"):
            ask(path)
    assert len(list(tmp_path.glob(f".a.bin.*{SUFFIX}"))) == 1
    with pytest.raises(CorruptError, match="rebuilt"):
        ask(path)


def test_documents_at_a_url_are_kept_in_the_cache_directory(kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.formats.sidecar.cache_directory", lambda: tmp_path / "index")
    write_tokens(tmp_path / "a.bin", LENGTHS)
    place = url_path("memory://sidecar/a.bin")
    place.objects.put(place.key, [memoryview((tmp_path / "a.bin").read_bytes())])
    first = tokens_of(packed(str(place)))
    assert sum(kept) == sum(LENGTHS)
    assert tokens_of(packed(str(place))) == first
    assert sum(kept) == sum(LENGTHS)
    (path,) = (tmp_path / "index").glob(f"*{SUFFIX}")
    assert read_sidecar(path)["bounds"].tolist() == np.cumsum([0, *LENGTHS]).tolist()
    write_tokens(tmp_path / "a.bin", LENGTHS[::-1])
    place.objects.put(place.key, [memoryview((tmp_path / "a.bin").read_bytes())])
    assert tokens_of(packed(str(place))) != first
    assert read_sidecar(path)["bounds"].tolist() == np.cumsum([0, *LENGTHS[::-1]]).tolist()
