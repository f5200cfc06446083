"""The disk cache: what it gives is right, it keeps its limit, and nothing that it did not make is ever touched."""

import fcntl
import json
import os
import pickle
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.cache_crowd import LARGEST, with_disk

from penstock.errors import CacheTooSmallError, ObjectChangedError
from penstock.remote import cache_directory
from penstock.remote.cache import Cache, CacheStatistics
from penstock.remote.cache_entry import PAGE_BYTES, PIECE_BYTES, entry_bytes

HERE = Path(__file__).parent
URL, ETAG, SIZE = "s3://bucket/dir/key", '"abc"', 10_000_000
DATA = np.random.default_rng(1).bytes(SIZE)
SMALL = 1000
ENTRY = entry_bytes(SMALL)


def keep(cache: Cache, start: int, stop: int, url: str = URL) -> None:
    cache.add(url, ETAG, SIZE, start, DATA[start:stop])


def read(cache: Cache, start: int, stop: int, url: str = URL, etag: str | None = ETAG, size: int = SIZE) -> bytes | None:
    """The bytes that the cache gives, put together as they come; None if it does not."""
    got = bytearray()

    def write(offset: int, piece: memoryview) -> None:
        assert offset == start + len(got)
        got.extend(piece)

    whole = cache.read_into(url, etag, size, start, stop, write)
    assert bytes(got) == DATA[start : start + len(got)], "what comes before an end must be right"
    return bytes(got) if whole else None


def covered(cache: Cache, start: int, stop: int) -> list[tuple[int, int]]:
    return cache.covered(URL, ETAG, SIZE, start, stop)


def entry_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*-*") if path.is_file())


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/*"))


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
    (tmp_path / cache_directory.MARK).write_bytes(text)
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
    assert int((tmp_path / cache_directory.MARK).read_text()) == ENTRY


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


# O13: damage


def one_entry(tmp_path: Path) -> tuple[Cache, Path]:
    cache = Cache(tmp_path, 1 << 30)
    keep(cache, 100, 100 + SMALL)
    return cache, entry_files(tmp_path)[0]


def test_o13_any_flipped_bit_is_found(tmp_path: Path) -> None:
    cache, path = one_entry(tmp_path)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
        assert read(cache, 100, 100 + SMALL) is None
        assert not path.exists()
    assert cache.statistics.damaged == len(good)
    path.write_bytes(good)
    assert read(cache, 100, 100 + SMALL) == DATA[100 : 100 + SMALL]


def test_o13_half_files_are_found(tmp_path: Path) -> None:
    """Cut anywhere, or longer than it was."""
    cache, path = one_entry(tmp_path)
    good = path.read_bytes()
    for end in [*range(0, len(good), 7), len(good) - 1]:
        path.write_bytes(good[:end])
        assert read(cache, 100, 101) is None
        assert not path.exists()
    path.write_bytes(good + b"\0")
    assert read(cache, 100, 101) is None


def test_o13_a_file_in_the_wrong_place_is_not_served(tmp_path: Path) -> None:
    cache, path = one_entry(tmp_path)
    keep(cache, 0, SMALL, url="s3://bucket/other")
    other = next(file for file in entry_files(tmp_path) if file.parent != path.parent)
    good = path.read_bytes()
    (path.parent / f"200-{200 + SMALL}").write_bytes(good)
    assert read(cache, 1000, 200 + SMALL) is None
    (other.parent / path.name).write_bytes(good)
    assert read(cache, 100 + SMALL - 10, 100 + SMALL, url="s3://bucket/other") is None
    assert read(cache, 100, 100 + SMALL) == DATA[100 : 100 + SMALL]
    assert read(cache, 0, SMALL, url="s3://bucket/other") == DATA[:SMALL]


def test_o13_damage_far_away_does_no_harm_and_is_found_when_it_is_reached(tmp_path: Path) -> None:
    """Pages are checked one by one; what came before the damaged one was right."""
    cache = Cache(tmp_path, 1 << 30)
    keep(cache, 0, 3 * PIECE_BYTES)
    path = entry_files(tmp_path)[0]
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"wrong")
    assert read(cache, 0, 3 * PIECE_BYTES - PAGE_BYTES) == DATA[: 3 * PIECE_BYTES - PAGE_BYTES]
    assert read(cache, 0, 3 * PIECE_BYTES) is None
    assert not path.exists()
    keep(cache, 0, 3 * PIECE_BYTES)
    assert read(cache, 0, 3 * PIECE_BYTES) == DATA[: 3 * PIECE_BYTES]


@pytest.mark.parametrize(
    "name", ["0-0", "9-5", "00-5", "0-05", "-5", "5-", "0x1-5", "1e3-2000", "٣-٩", f"0-{10**19}", "0-1000.tmp"]
)
def test_o13_odd_names_are_ignored(tmp_path: Path, name: str) -> None:
    cache, path = one_entry(tmp_path)
    (path.parent / name).write_bytes(b"?")
    assert covered(cache, 0, SIZE) == [(100, 100 + SMALL)]


# O13: crashes


def test_o13_a_killed_writer_leaves_nothing_that_is_served_or_stays(tmp_path: Path) -> None:
    """Killed while it writes a range; what a living writer has written so far stays."""
    code = (
        "import os, sys; from penstock.remote.cache_directory import *\n"
        "with opened(sys.argv[1], os.O_DIRECTORY) as root:\n"
        "    with locked(root) as ledger:\n"
        "        ledger.used = 3000; file = incoming_file(root, 3000); name, descriptor = file.__enter__()\n"
        "    os.write(descriptor, b'half'); print(name, flush=True); sys.stdin.read()\n"
    )
    cache = Cache(tmp_path, 6000)
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert select.select([writer.stdout], [], [], 60)[0]
        half = tmp_path / "incoming" / writer.stdout.readline().decode().strip()
        assert cache.used == half.stat().st_size == 3000
        for number in range(5):  # room for two, beside what is being written
            keep(cache, number * SMALL, (number + 1) * SMALL)
            assert on_disk(tmp_path) <= 6000
        assert half.exists()
        assert len(entry_files(tmp_path)) == 2
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
    for number in range(5):
        keep(cache, number * SMALL, (number + 1) * SMALL)
    assert not half.exists()
    assert len(entry_files(tmp_path)) == 5


def test_o13_a_stopped_process_with_the_lock_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_directory, "LOCK_WAIT_S", 0.05)
    cache = Cache(tmp_path, 1 << 20)
    keep(cache, 0, SMALL)
    with (tmp_path / cache_directory.MARK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        keep(cache, SMALL, 2 * SMALL)
        assert read(cache, 0, SMALL) == DATA[:SMALL]
        assert covered(cache, 0, SIZE) == [(0, SMALL)]
        cache.drop(URL, ETAG, SIZE, 0, SMALL)
    assert cache.statistics.not_kept == 1
    keep(cache, SMALL, 2 * SMALL)
    assert covered(cache, 0, SIZE) == [(0, 2 * SMALL)]


# O13: full disks, many processes


def run_on_disk(directory: Path, size: int, *program: object) -> dict[str, object]:
    directory.mkdir()
    done = with_disk(directory, size, [sys.executable, *map(str, program)])
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_o13_a_full_disk_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    """What was kept stays, what has no room is not kept, nothing half-written stays, and nothing is raised."""
    directory = tmp_path / "disk"
    found = run_on_disk(directory, 512 << 10, HERE / "cache_full_disk.py", directory)
    assert found["kept"] == [0, 1]
    assert found["incoming"] == []
    assert found["full"] == vars(
        CacheStatistics(misses=12, kept_bytes=4 * 100_000, not_kept=8)  # the first two are added twice
    )
    assert found["again"] == [0, 1, 20]
    assert found["frozen"] == {"not_kept": 1, "kept": [0, 1, 20]}


@pytest.mark.parametrize(("disk", "limit"), [(4 << 20, 400_000), (300_000, 10_000_000)], ids=["small limit", "full disk"])
def test_o13_eight_processes_fill_one_small_cache(tmp_path: Path, disk: int, limit: int) -> None:
    """Every byte any of them gets is right, the limit holds at every moment, and none of them fails or waits for ever."""
    directory = tmp_path / "disk"
    found = run_on_disk(directory, disk, HERE / "cache_crowd.py", directory / "cache", limit, 150)
    assert found["most"] <= limit + entry_bytes(LARGEST)  # a file that is renamed while the watcher looks counts twice
    assert found["left"] <= limit
    statistics = [CacheStatistics(**one) for one in found["statistics"]]
    assert len(statistics) == 8
    assert sum(one.hits for one in statistics) > 50
    assert sum(one.damaged for one in statistics) == 0
    assert all(one.hits + one.misses == 150 for one in statistics)
    if limit < disk:
        assert sum(one.evictions for one in statistics) > 50


def test_threads_and_forks_at_once(tmp_path: Path) -> None:
    """Children are forked while threads of the parent add and read; none hangs, whatever was locked."""
    cache = Cache(tmp_path, 20 * ENTRY)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                some_work(cache, rng)
        except BaseException as error:
            failures.append(error)

    def some_work(cache: Cache, rng: np.random.Generator) -> None:
        start = int(rng.integers(60)) * SMALL
        if read(cache, start, start + SMALL) is None:
            keep(cache, start, start + SMALL)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                rng = np.random.default_rng(100 + seed)
                for _ in range(50):
                    some_work(cache, rng)
                os._exit(0 if cache.statistics.hits + cache.statistics.misses == 50 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert cache.statistics.damaged == 0
    assert on_disk(tmp_path) <= 20 * ENTRY


def test_a_pickled_cache_is_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache("here", 1 << 20)
    keep(cache, 0, SMALL)
    monkeypatch.chdir("/")
    twin = pickle.loads(pickle.dumps(cache))
    assert repr(twin) == repr(cache)
    assert twin.limit == 1 << 20
    assert read(twin, 0, SMALL) == DATA[:SMALL]


# What is not the cache's is left alone


@pytest.mark.parametrize("name", ["data.npy", ".hidden", "incoming", "0" * 64])
def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="empty directory or a cache"):
        Cache(tmp_path, 1 << 20)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1MB"])
def test_a_limit_is_a_number_of_bytes(tmp_path: Path, limit: object) -> None:
    with pytest.raises((ValueError, TypeError), match="cache_bytes"):
        Cache(tmp_path / "cache", limit)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_mark_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "data").write_bytes(b"data")
    (tmp_path / "cache" / cache_directory.MARK).symlink_to(tmp_path / "data")
    with pytest.raises(ValueError, match="regular file"):
        Cache(tmp_path / "cache", 1 << 20)
    assert (tmp_path / "data").read_bytes() == b"data"


def test_source_data_is_never_removed_nor_served(tmp_path: Path) -> None:
    """Links to data, folders that are links, and other files in the cache: whatever happens there, they stay."""
    data, root = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    names = [f"{number * SMALL}-{(number + 1) * SMALL}" for number in range(10)]
    for name in names:
        (data / name).write_bytes(DATA[:SMALL])
    cache = Cache(root, 3 * ENTRY)
    keep(cache, 0, 10)
    folder = entry_files(root)[0].parent
    (root / ("f" * 64)).symlink_to(data)
    (root / "incoming" / ("0" * 32)).symlink_to(data / names[0])
    (root / "notes").mkdir()
    (root / "notes" / names[0]).write_bytes(b"mine")
    (root / "0-1000").write_bytes(b"mine")
    (folder / "readme").write_bytes(b"mine")
    (folder / names[5]).symlink_to(data / names[5])
    os.mkfifo(folder / names[6])
    (folder / names[7]).mkdir()
    before = sorted(str(path) for path in [*data.iterdir(), *root.iterdir(), *(root / "notes").iterdir()])
    assert read(cache, 5 * SMALL, 6 * SMALL) is None
    assert read(cache, 6 * SMALL, 7 * SMALL) is None
    assert read(cache, 7 * SMALL, 8 * SMALL) is None
    for number in range(10):
        keep(cache, number * SMALL, (number + 1) * SMALL)
        keep(cache, number * SMALL, (number + 1) * SMALL, url=URL + "2")
        cache.drop(URL, ETAG, SIZE, 0, SIZE)
    assert cache.statistics.evictions > 10
    after = sorted(str(path) for path in [*data.iterdir(), *root.iterdir(), *(root / "notes").iterdir()])
    assert set(before) <= set(after)
    assert all((data / name).read_bytes() == DATA[:SMALL] for name in names)
    assert (folder / names[5]).is_symlink()
    assert {path.name for path in folder.iterdir()} >= {"readme", *names[5:8]}
    assert (data / names[0]).stat().st_mtime > 1


def test_an_incoming_folder_that_leads_elsewhere_is_not_used(tmp_path: Path) -> None:
    data, root = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    (data / ("0" * 32)).write_bytes(b"data")
    cache = Cache(root, 1 << 20)
    (root / "incoming").rmdir()
    (root / "incoming").symlink_to(data)
    keep(cache, 0, SMALL)
    assert cache.statistics.not_kept == 1
    assert os.listdir(data) == ["0" * 32]


def test_a_cache_that_was_removed_while_it_was_open(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 1 << 20)
    keep(cache, 0, SMALL)
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    assert read(cache, 0, SMALL) is None
    keep(cache, 0, SMALL)
    cache.drop(URL, ETAG, SIZE, 0, SMALL)
    assert (cache.used, cache.statistics.not_kept) == (0, 1)
