"""The disk cache where things go wrong: damage, crashes, full disks, many processes, and files that are not its own."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.effort import count
from tests.remote.cache_crowd import LARGEST, with_disk
from tests.remote.cache_kit import DATA, ENTRY, ETAG, SIZE, SMALL, URL, covered, entry_files, keep, on_disk, read

from penstock.remote import cache as disk_cache
from penstock.remote.cache import PAGE_BYTES, PIECE_BYTES, Cache, CacheStatistics, entry_bytes

HERE = Path(__file__).parent
TIMES = count(75, 150)


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
        "import os, sys; from penstock.remote.cache import incoming_file, locked, opened\n"
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
        writer.wait(300)
    for number in range(5):
        keep(cache, number * SMALL, (number + 1) * SMALL)
    assert not half.exists()
    assert len(entry_files(tmp_path)) == 5


def test_o13_processes_killed_at_any_moment(tmp_path: Path) -> None:
    """While they add and remove; whoever comes next finds right bytes or none, and the limit holds."""
    limit = 5 * entry_bytes(50_000)
    Cache(tmp_path, limit)
    for turn in range(count(10, 20)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            cache = Cache(tmp_path, limit)
            for number in range(10_000):
                start = (turn * 7 + number) % 100 * 50_000
                keep(cache, start, start + 50_000)
                os.write(writing, b".")
            os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as done:
            for _ in range(1 + turn):
                assert select.select([done], [], [], 60)[0]
                assert done.read(1) == b"."
            os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert on_disk(tmp_path) <= limit
        cache = Cache(tmp_path, limit)
        for number in range(100):
            read(cache, number * 50_000, (number + 1) * 50_000)
        assert cache.statistics.damaged == 0
        keep(cache, 5_000_000, 5_000_000 + turn + 1)
        assert os.listdir(tmp_path / "incoming") == []
        assert on_disk(tmp_path) <= limit


def test_o13_a_stopped_process_with_the_lock_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "LOCK_WAIT_S", 0.05)
    cache = Cache(tmp_path, 1 << 20)
    keep(cache, 0, SMALL)
    with (tmp_path / disk_cache.MARK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        keep(cache, SMALL, 2 * SMALL)
        assert read(cache, 0, SMALL) == DATA[:SMALL]
        assert covered(cache, 0, SIZE) == [(0, SMALL)]
        cache.drop(URL, ETAG, SIZE, 0, SMALL)
    keep(cache, SMALL, 2 * SMALL)  # nobody asks for the lock again for a while
    assert cache.statistics.not_kept == 2
    monkeypatch.setattr(cache._here(), "paused_until", 0.0)
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
    found = run_on_disk(directory, disk, HERE / "cache_crowd.py", directory / "cache", limit, TIMES)
    assert found["most"] <= limit + entry_bytes(LARGEST)  # a file that is renamed while the watcher looks counts twice
    assert found["left"] <= limit
    statistics = [CacheStatistics(**one) for one in found["statistics"]]
    assert len(statistics) == 8
    assert sum(one.hits for one in statistics) > TIMES // 3
    assert sum(one.damaged for one in statistics) == 0
    assert all(one.hits + one.misses == TIMES for one in statistics)
    if limit < disk:
        assert sum(one.evictions for one in statistics) > TIMES // 3


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
        for seed in range(count(5, 10)):
            child = os.fork()
            if child == 0:
                signal.alarm(300)
                rng = np.random.default_rng(100 + seed)
                for _ in range(50):
                    some_work(cache, rng)
                os._exit(0 if cache.statistics.hits + cache.statistics.misses == 50 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(300)
    assert failures == []
    assert cache.statistics.damaged == 0
    assert on_disk(tmp_path) <= 20 * ENTRY


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
    (tmp_path / "cache" / disk_cache.MARK).symlink_to(tmp_path / "data")
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
