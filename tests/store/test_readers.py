"""Readers beside writers: other processes, forks, spawned workers, and few descriptors."""

import os
import resource
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.cli import warm
from tests.effort import count
from tests.store.records import FIELDS, assert_store, columns, digest, files, make_records, run_python, without_fsync, write
from tests.store.soak import soak

import penstock as pen
from penstock import Field
from penstock.store import stats

RECORDS = make_records(40, seed=11)


def test_batch_and_open_reader_are_unchanged_by_a_hundred_commits_and_rebalances(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    write(path, RECORDS, chunk_records=16)
    with pen.open(path) as store, pen.open(path, io="pread") as other:
        batch, view = store[::3], store.view("image")[next(i for i in range(40) if RECORDS[i]["image"] is not None)]
        before = {name: repr(column) for name, column in batch.items()}
        picture, truth = view.tolist(), digest(store)
        assert digest(other) == truth
        rng = np.random.default_rng(0)
        commits, enough = 0, count(100, 1000)
        with without_fsync():
            while commits < enough:
                with pen.open(path, mode="a") as out:
                    for step in range(commits, commits + 100):
                        if step % 3 == 0:
                            out.append({"label": step, "caption": f"step {step}"})
                        elif step % 3 == 1:
                            out.update(rng.integers(0, len(out), 2), {"label": [step, -step]})
                        else:
                            out.delete(rng.integers(0, len(out), 1))
                        out.commit()
                commits += 100
                pen.rebalance(path)
                pen.gc(path, keep=1, keep_hours=0)
        assert store.refresh().generation == 1 + enough + enough // 100
        assert {name: repr(column) for name, column in batch.items()} == before
        assert view.tolist() == picture
        assert (digest(store), digest(other)) == (truth, truth)
        assert_store(store, RECORDS)
        assert store.generation == 1


def test_processes_see_whole_generations_while_a_writer_commits_rebalances_and_collects(tmp_path: Path) -> None:
    with without_fsync():
        seen = soak(tmp_path / "a.pen", commits=24, readers=2)
    assert seen.wrong == []
    assert seen.commits == 24
    assert seen.rebalances == 2
    assert seen.collections == 4
    assert min(seen.reads) >= 12
    assert len(seen.generations) >= 6


# fork and spawn


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_forks_read_while_threads_of_the_parent_read(tmp_path: Path, io: str) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS | {"wide": Field("u1", (20_000,))}, chunk_records=5) as out:
        wide = np.random.default_rng(0).integers(0, 256, (40, 20_000), dtype=np.uint8)
        out.extend(columns(RECORDS) | {"wide": wide})  # 0.8 MB a read: native threads take part
    with pen.open(tmp_path / "a.pen", io=io, threads=3) as store:
        expected, stop, wrong = digest(store), threading.Event(), []
        forks = count(4, 25)

        def look() -> None:
            while not stop.is_set():
                wrong.extend([] if digest(store) == expected else ["wrong"])

        busy = [threading.Thread(target=look) for _ in range(2)]
        for thread in busy:
            thread.start()
        try:
            codes = []
            for _ in range(forks):
                child = os.fork()
                if child == 0:
                    os._exit(17 if digest(store) == expected else 1)
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        finally:
            stop.set()
            for thread in busy:
                thread.join()
        assert codes == [17] * forks
        assert wrong == []
        assert digest(store) == expected


def test_child_of_a_child_reads_and_ends_like_any_program(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS)
    code = """
import os, sys, penstock as pen
from tests.store.records import digest
store = pen.open(sys.argv[1])
expected = digest(store)
for _ in range(2):
    if os.fork() == 0:
        assert digest(store) == expected
    else:
        assert os.wait()[1] == 0
        print(digest(store) == expected)
        break
"""
    assert run_python(code, tmp_path / "a.pen") == "True\n" * 2


SPAWN = """
import multiprocessing, sys, penstock as pen
from tests.store.records import digest
store = pen.open(sys.argv[1], generation=1)
with multiprocessing.get_context("spawn").Pool(2) as pool:
    print(*pool.map(digest, [store] * 4, chunksize=1))
    pool.close()
    pool.join()
"""


def test_open_store_is_sent_to_spawned_workers(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS)
    expected = digest(pen.open(tmp_path / "a.pen"))
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete(range(30))
    assert run_python(SPAWN, tmp_path / "a.pen").split() == [expected] * 4


# Few descriptors


CHUNKS = count(200, 2000)


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "a.pen"
    with without_fsync(), pen.create(path, {"x": Field("i4"), "t": Field.text()}, chunk_records=1, threads=1) as out:
        for low in range(0, CHUNKS, 200):
            out.extend({"x": np.arange(low, low + 200), "t": [f"text {i}" for i in range(low, low + 200)]})
            out.commit()
    assert stats(pen.open(path)).chunks == CHUNKS
    return path


FEW = f"""
import resource, sys
import numpy as np, penstock as pen
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
store = pen.open(sys.argv[1], io=sys.argv[2], threads=2)
for ids in (slice(None), np.random.default_rng(0).permutation({CHUNKS}), [{CHUNKS - 1}, 0, {CHUNKS - 1}]):
    batch = store[ids]
    expected = np.arange({CHUNKS})[ids]
    assert np.array_equal(batch["x"], expected)
    assert batch["t"].to_list() == [f"text {{i}}" for i in expected]
assert pen.verify(sys.argv[1]) == []
print(len(store))
"""


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_thousands_of_chunks_are_read_with_64_descriptors(many_chunks: Path, io: str) -> None:
    assert run_python(FEW, many_chunks, io) == f"{CHUNKS}\n"


def test_store_with_many_chunks_leaves_no_descriptor_or_map_behind(many_chunks: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for io in ("map", "pread", "direct"):
        with pen.open(many_chunks, io=io) as store:
            assert store["x"][:].sum() == (CHUNKS - 1) * CHUNKS // 2
            if io == "pread":
                assert len(os.listdir("/proc/self/fd")) - len(before) < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert os.listdir("/proc/self/fd") == before
        assert str(many_chunks) not in Path("/proc/self/maps").read_text()


# A file that goes away


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_open_reader_survives_the_removal_of_every_file(tmp_path: Path, io: str) -> None:
    write(tmp_path / "a.pen", RECORDS, chunk_records=7)
    with pen.open(tmp_path / "a.pen", io=io) as store:
        expected = digest(store)
        for name in files(tmp_path / "a.pen"):
            (tmp_path / "a.pen" / name).unlink()
        assert digest(store) == expected


def test_soak_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.soak", "--commits", "5", "--readers", "1", "--directory", str(tmp_path)]
    done = warm.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "5 commits" in done.stdout
    assert "0 wrong" in done.stdout
