"""The disk cache: what it gives is right, it keeps its limit, and nothing that it did not make is ever touched."""

import os
import pickle
import stat
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.cache_kit import DATA, ENTRY, ETAG, SIZE, SMALL, URL, covered, entry_files, keep, on_disk, read

from penstock.errors import CacheTooSmallError, ObjectChangedError
from penstock.remote import cache as disk_cache
from penstock.remote.cache import PAGE_BYTES, PIECE_BYTES, Cache, CacheStatistics, entry_bytes

# What it gives


def test_ranges_come_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache", 1 << 30)
    assert covered(cache, 0, SIZE) == []
    assert read(cache, 0, 10) is None
    assert read(cache, 5, 5) == b""
    for start, stop in [(0, 1), (100, 200), (200, 3_000_000), (2_500_000, 5_000_001), (9_000_000, SIZE)]:
        keep(cache, start, stop)
        assert read(cache, start, stop) == DATA[start:stop]
    assert covered(cache, 0, SIZE) == [(0, 1), (100, 5_000_001), (9_000_000, SIZE)]
    assert covered(cache, 150, 160) == [(150, 160)]
    assert covered(cache, 1, 100) == []
    assert covered(cache, 50, 150) == [(100, 150)]
    for start, stop in [
        (100, 5_000_001),
        (150, 151),
        (2_999_999, 3_000_001),
        (PAGE_BYTES + 200, 200 + 2 * PAGE_BYTES),
        (9_999_999, SIZE),
    ]:
        assert read(cache, start, stop) == DATA[start:stop]
    for start, stop in [(0, 2), (99, 200), (5_000_000, 5_000_002), (0, SIZE)]:
        assert read(cache, start, stop) is None


@pytest.mark.parametrize("length", [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_ranges_around_the_size_of_pages(tmp_path: Path, length: int) -> None:
    cache = Cache(tmp_path, 1 << 30)
    keep(cache, 77, 77 + length)
    assert cache.used == on_disk(tmp_path) == entry_bytes(length)
    for low in {0, length // 2, length - 1}:
        for high in {low + 1, length}:
            assert read(cache, 77 + low, 77 + high) == DATA[77 + low : 77 + high]


@given(
    kept=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=8),
    asked=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 300)), max_size=8),
)
def test_any_ranges(tmp_path_factory: pytest.TempPathFactory, kept: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    """Compared with a plain set of the bytes that are there."""
    cache = Cache(tmp_path_factory.mktemp("cache"), 1 << 20)
    there: set[int] = set()
    for start, length in kept:
        keep(cache, start, start + length)
        there.update(range(start, start + length))
    for start, length in asked:
        wanted = range(start, start + length)
        parts = covered(cache, start, start + length)
        assert [i for low, high in parts for i in range(low, high)] == [i for i in wanted if i in there]
        assert all(low < high for low, high in parts)
        assert all(one[1] < other[0] for one, other in pairwise(parts))
        assert (read(cache, start, start + length) is not None) == there.issuperset(wanted)


def test_another_version_of_an_object_is_another_object(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    keep(cache, 0, SMALL)
    assert read(cache, 0, SMALL, etag='"abd"') is None
    assert read(cache, 0, SMALL, size=SIZE + 1) is None
    assert read(cache, 0, SMALL, url=URL + "2") is None
    assert read(cache, 0, SMALL) == DATA[:SMALL]


def test_an_object_without_a_version_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    cache.add(URL, None, SIZE, 0, DATA[:SMALL])
    assert cache.covered(URL, None, SIZE, 0, SMALL) == []
    assert (cache.used, cache.statistics.not_kept) == (0, 1)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_data_of_any_kind(tmp_path: Path, form: Callable[[bytes], bytes]) -> None:
    cache = Cache(tmp_path, 1 << 20)
    cache.add(URL, ETAG, SIZE, 5, form(DATA[5:SMALL]))
    assert read(cache, 5, SMALL) == DATA[5:SMALL]


def test_errors_of_the_reader_pass_and_nothing_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    keep(cache, 0, SMALL)

    def write(offset: int, piece: memoryview) -> None:
        raise ObjectChangedError("not the cache's business")

    with pytest.raises(ObjectChangedError):
        cache.read_into(URL, ETAG, SIZE, 0, SMALL, write)
    assert read(cache, 0, SMALL) == DATA[:SMALL]
    assert cache.statistics.damaged == 0


def test_names_give_nothing_away(tmp_path: Path) -> None:
    """A URL may be private; the names and contents of the cache do not have it."""
    cache = Cache(tmp_path, 1 << 20)
    keep(cache, 0, SMALL)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        assert "bucket" not in str(path.relative_to(tmp_path))
        assert path.is_dir() or b"bucket" not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path == tmp_path


def test_listings_are_remembered_and_forgotten(tmp_path: Path) -> None:
    """What another process adds or removes is seen, however old the listing is."""
    one, other = Cache(tmp_path, 1 << 20), Cache(tmp_path, 1 << 20)
    keep(one, 0, SMALL)
    folder = entry_files(tmp_path)[0].parent
    for place in range(1, 4):
        os.utime(folder, ns=(0, place))  # long settled: from now on the listing is remembered
        assert covered(one, 0, SIZE) == [(0, place * SMALL)]
        assert covered(one, 0, SIZE) == [(0, place * SMALL)]
        keep(other, place * SMALL, (place + 1) * SMALL)
        assert covered(one, 0, SIZE) == [(0, (place + 1) * SMALL)]
    os.utime(folder, ns=(0, 4))
    assert covered(one, 0, SIZE) == [(0, 4 * SMALL)]
    (folder / f"0-{SMALL}").unlink()
    os.utime(folder, ns=(0, 4))  # as if nothing had happened
    assert read(one, 0, SMALL) is None
    assert covered(one, 0, SIZE) == [(SMALL, 4 * SMALL)]


# Limit and order of removal


def test_the_limit_holds_and_the_oldest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * ENTRY)
    for number in range(4):
        keep(cache, number * SMALL, (number + 1) * SMALL)
        set_age(tmp_path, number, 100 - number)
    assert read(cache, 0, SMALL) is not None  # used just now: 1 is the oldest
    keep(cache, 4 * SMALL, 5 * SMALL)
    assert on_disk(tmp_path) <= 4 * ENTRY
    assert read(cache, SMALL, 2 * SMALL) is None
    assert read(cache, 0, SMALL) is not None
    assert read(cache, 4 * SMALL, 5 * SMALL) is not None
    assert cache.statistics.evictions >= 1


def test_what_the_plan_dropped_goes_before_what_is_old(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * ENTRY)
    for number in range(4):
        keep(cache, number * SMALL, (number + 1) * SMALL)
        set_age(tmp_path, number, 100 - number)
    cache.drop(URL, ETAG, SIZE, 2 * SMALL, 4 * SMALL - 1)  # 2 wholly, 3 in part
    keep(cache, 4 * SMALL, 5 * SMALL)
    assert covered(cache, 2 * SMALL, 3 * SMALL) == []
    assert covered(cache, 3 * SMALL, 5 * SMALL) == [(3 * SMALL, 5 * SMALL)]


def test_what_was_dropped_and_used_again_is_as_good_as_new(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * ENTRY + ENTRY // 2)
    for number in range(3):
        keep(cache, number * SMALL, (number + 1) * SMALL)
        set_age(tmp_path, number, 100 - number)
    cache.drop(URL, ETAG, SIZE, 0, SMALL)
    assert read(cache, 10, 20) is not None
    keep(cache, 3 * SMALL, 4 * SMALL)
    assert read(cache, 0, SMALL) is not None


def set_age(directory: Path, number: int, age_s: float) -> None:
    then = time.time() - age_s
    os.utime(next(directory.glob(f"*/{number * SMALL}-*")), (then, then))


def test_a_smaller_limit_than_last_time(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100 * ENTRY)
    for number in range(50):
        keep(cache, number * SMALL, (number + 1) * SMALL)
    cache = Cache(tmp_path, 10 * ENTRY)
    keep(cache, SIZE - SMALL, SIZE)
    assert on_disk(tmp_path) <= 10 * ENTRY
    assert read(cache, SIZE - SMALL, SIZE) is not None


@pytest.mark.parametrize("text", [b"", b"x" * 21, b"-0000000000000000001\n", b"00000000000000000000\n", b"9" * 20 + b"\n", b"1\n"])
def test_a_wrong_figure_is_counted_anew(tmp_path: Path, text: bytes) -> None:
    """As after a power cut: the limit holds from the first range on."""
    cache = Cache(tmp_path, 4 * ENTRY)
    for number in range(4):
        keep(cache, number * SMALL, (number + 1) * SMALL)
    (tmp_path / disk_cache.MARK).write_bytes(text)
    cache = Cache(tmp_path, 4 * ENTRY)
    for number in range(10, 20):
        keep(cache, number * SMALL, (number + 1) * SMALL)
        assert on_disk(tmp_path) <= 4 * ENTRY
        assert read(cache, number * SMALL, (number + 1) * SMALL) is not None


def test_empty_folders_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * ENTRY)
    for number in range(20):
        keep(cache, 0, SMALL, url=f"{URL}-{number}")
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) <= 5


def test_the_same_range_twice_is_kept_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    for _ in range(3):
        keep(cache, 0, SMALL)
    assert cache.used == ENTRY
    assert int((tmp_path / disk_cache.MARK).read_text()) == ENTRY


def test_o13_a_cache_smaller_than_one_range(tmp_path: Path) -> None:
    """An error where it is opened; whoever goes on all the same is served by the network."""
    cache = Cache(tmp_path, ENTRY - 1)
    with pytest.raises(CacheTooSmallError, match=rf"{SMALL} bytes.*{ENTRY - 1};.*cache_bytes"):
        cache.need(SMALL)
    keep(cache, 0, SMALL)
    assert (cache.used, cache.statistics.not_kept) == (0, 1)
    Cache(tmp_path, ENTRY).need(SMALL)


def test_statistics(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * ENTRY)
    for number in range(3):
        keep(cache, number * SMALL, (number + 1) * SMALL)
    read(cache, 2 * SMALL, 3 * SMALL)
    read(cache, 2 * SMALL + 1, 3 * SMALL)
    keep(cache, 0, 3 * SMALL)
    entry_files(tmp_path)[-1].write_bytes(b"?")
    read(cache, 2 * SMALL, 3 * SMALL)
    assert cache.statistics == CacheStatistics(
        hits=2, misses=4, served_bytes=2 * SMALL - 1, kept_bytes=3 * SMALL, evictions=2, damaged=1, not_kept=1
    )


def test_wrong_bytes_go_at_once_with_all_that_overlaps_them(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    for start, stop in [(0, 100), (50, 200), (60, 90), (60, 70), (200, 300), (300, 400)]:
        keep(cache, start, stop)
    cache.remove(URL, ETAG, SIZE, 65, 201)
    assert covered(cache, 0, SIZE) == [(300, 400)]
    cache.remove(URL, ETAG, SIZE, 400, 500)
    assert covered(cache, 0, SIZE) == [(300, 400)]
    cache.remove(URL, ETAG, SIZE, 399, 500)
    cache.remove(URL, ETAG, SIZE, 0, 500)
    assert (cache.used, [path.name for path in tmp_path.iterdir() if path.is_dir()]) == (0, ["incoming"])


def test_a_pickled_cache_is_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache("here", 1 << 20)
    keep(cache, 0, SMALL)
    monkeypatch.chdir("/")
    twin = pickle.loads(pickle.dumps(cache))
    assert repr(twin) == repr(cache)
    assert twin.limit == 1 << 20
    assert read(twin, 0, SMALL) == DATA[:SMALL]
