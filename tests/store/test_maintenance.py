"""verify, rebalance, gc and stats."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm
from tests.store.records import FIELDS, assert_store, columns, delete, digest, files, flip, make_records, write

import penstock as pen
from penstock import Field
from penstock.errors import MissingError, NotPublishedError, PenstockError
from penstock.store import Stats, stats
from penstock.store.generation import load_manifest

RECORDS = make_records(50, seed=6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.pen", RECORDS, chunk_records=8)
    return tmp_path / "a.pen"


# stats


def test_stats_of_a_fresh_store(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("i4", (4,))}, chunk_records=10) as out:
        out.extend({"x": np.zeros((35, 4))})
    assert stats(pen.open(tmp_path / "a.pen")) == Stats(
        records=35, generation=1, chunks=4, unfull_chunks=1, redirects=0, live_bytes=560, stored_bytes=560, row_utilisation=1.0
    )


def test_stats_of_an_empty_store(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", [])
    assert stats(pen.open(tmp_path / "a.pen")) == Stats(0, 1, 0, 0, 0, 0, 0, 1.0)
    assert stats(pen.open(tmp_path / "a.pen")).utilisation == 1.0


def test_many_small_commits_leave_unfull_chunks_that_a_rebalance_joins(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("i4")}, chunk_records=10) as out:
        for i in range(25):
            out.append({"x": i})
            out.commit()
    before = stats(pen.open(tmp_path / "a.pen"))
    assert (before.chunks, before.unfull_chunks, before.utilisation) == (25, 25, 1.0)
    after = pen.rebalance(tmp_path / "a.pen").after
    assert (after.chunks, after.unfull_chunks, after.generation) == (3, 1, 26)
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == list(range(25))


def test_updates_and_deletes_lower_the_utilisation_and_count_redirects(tmp_path: Path) -> None:
    fields = {"x": Field("i4", (4,)), "y": Field("u1", (16,))}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend({"x": np.zeros((10, 4)), "y": np.zeros((10, 16))})
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.update([0, 1], {"x": np.ones((2, 4))})
    updated = stats(pen.open(tmp_path / "a.pen"))
    assert (updated.redirects, updated.live_bytes, updated.stored_bytes) == (2, 320, 352)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete([5])
    deleted = stats(pen.open(tmp_path / "a.pen"))
    assert (deleted.records, deleted.redirects, deleted.live_bytes, deleted.stored_bytes) == (9, 4, 288, 352)
    assert deleted.utilisation == pytest.approx(288 / 352)
    assert deleted.row_utilisation == pytest.approx(9 / 12)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete([0, 1])  # the chunk of the updates is named no longer
    assert stats(pen.open(tmp_path / "a.pen")).chunks == 1


# verify


def test_verify_of_a_good_store_finds_nothing_and_reports_progress(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert pen.verify(path, progress=lambda records, size: seen.append((records, size))) == []
    assert sum(records for records, _ in seen) == 50
    assert sum(size for _, size in seen) == sum(size for name, size in files(path).items() if name.startswith("chunk"))


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_flipped_byte_is_found_with_file_field_and_rows(tmp_path: Path, io: str) -> None:
    with pen.create(tmp_path / "a.pen", {"label": Field("i4"), "image": Field("u1", (1000,))}, chunk_records=100) as out:
        out.extend({"label": np.arange(250), "image": np.zeros((250, 1000), np.uint8)})
    second = sorted((tmp_path / "a.pen" / "chunk").iterdir())[1]
    # The region of the labels begins at 64 and has 400 bytes, that of the images at 512: row 42 lies in the page of rows 40 to 44.
    flip(second, 512 + 42 * 1000 + 7)
    problems = pen.verify(tmp_path / "a.pen")
    assert [problem.file for problem in problems] == [str(second)]
    assert "field 'image', rows 40 to 44" in problems[0].what
    with pen.open(tmp_path / "a.pen", io=io) as store:
        with pytest.raises(PenstockError, match=second.name):
            store[142]
        assert store["label"][:].tolist() == list(range(250))
        assert store["image"][[0, 139, 145, 249]].sum() == 0
        for hurt in range(140, 145):
            with pytest.raises(PenstockError, match="rows 40 to 44"):
                store["image"][hurt]
    flip(second, 512 + 42 * 1000 + 7)
    assert pen.verify(tmp_path / "a.pen") == []


def test_every_bad_file_is_reported_at_once(path: Path) -> None:
    chunks = sorted((path / "chunk").iterdir())
    flip(chunks[0], 70)
    flip(chunks[2], chunks[2].stat().st_size - 30)
    chunks[3].unlink()
    with chunks[5].open("ab") as file:
        file.write(b"more")
    assert sorted(problem.file for problem in pen.verify(path)) == [str(chunks[i]) for i in (0, 2, 3, 5)]
    assert all(problem.what for problem in pen.verify(path))


def test_bad_manifest_and_redirects_are_reported(path: Path) -> None:
    with pen.open(path, mode="a") as out:
        out.delete([3])
    redirect = next((path / "redirect").iterdir())
    flip(redirect, 40)
    assert redirect.name in pen.verify(path)[0].what
    flip(redirect, 40)
    flip(path / "manifest" / f"{2:020d}.json", 5)
    assert "generation 1 can be opened" in pen.verify(path)[0].what
    assert pen.verify(path, generation=1) == []


def test_verify_of_an_older_generation_looks_at_its_files(path: Path) -> None:
    with pen.open(path, mode="a") as out:
        out.append(RECORDS[0])
    newest = {str(c) for c in (path / "chunk").iterdir()} - {
        str(path / "chunk" / f"{c.writer}-{c.serial:08x}.zr") for c in load_manifest(path, 1).chunks
    }
    flip(Path(newest.pop()), 65)
    assert pen.verify(path, generation=1) == []
    assert len(pen.verify(path)) == 1


# rebalance


def test_rebalance_keeps_order_and_disturbs_no_reader(path: Path) -> None:
    records = list(RECORDS)
    with pen.open(path, mode="a") as out:
        out.delete(range(3, 30, 4))
        delete(records, range(3, 30, 4))
        out.update([1], {"caption": ["new"]})
        records[1] = records[1] | {"caption": "new"}
    old, first = pen.open(path), pen.open(path, generation=1)
    seen: list[int] = []
    done = pen.rebalance(path, progress=lambda rows, size: seen.append(rows))
    assert sum(seen) == len(records)
    assert done.before == stats(old)
    assert (done.before.utilisation, done.after.utilisation) == (pytest.approx(done.before.utilisation), 1.0)
    assert done.before.utilisation < 1
    assert done.after.redirects == 0
    assert_store(pen.open(path), records)
    assert_store(old, records)
    assert_store(first, RECORDS)
    assert_store(pen.open(path, generation=1), RECORDS)
    pen.gc(path, keep=1, keep_hours=0)
    assert_store(pen.open(path), records)
    assert_store(old, records)
    assert_store(first, RECORDS)
    assert pen.verify(path) == []


def test_rebalance_of_an_empty_store(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", [])
    assert pen.rebalance(tmp_path / "a.pen").after.records == 0
    assert_store(pen.open(tmp_path / "a.pen"), [])


def test_rebalanced_store_can_be_written_on(path: Path) -> None:
    pen.rebalance(path)
    pen.gc(path, keep=1, keep_hours=0)
    records = list(RECORDS)
    with pen.open(path, mode="a") as out:
        out.extend(columns(RECORDS[:9]))
        out.delete([0, 7])
    records += RECORDS[:9]
    delete(records, [0, 7])
    assert_store(pen.open(path), records)


def test_failed_rebalance_leaves_the_store_as_it_was(path: Path) -> None:
    def stop(rows: int, size: int) -> None:
        raise RuntimeError("enough")

    there = files(path)
    with pytest.raises(RuntimeError, match="enough"):
        pen.rebalance(path, progress=stop)
    flip(sorted((path / "chunk").iterdir())[-1], 70)
    with pytest.raises(PenstockError):
        pen.rebalance(path)
    flip(sorted((path / "chunk").iterdir())[-1], 70)
    assert files(path) == there
    assert_store(pen.open(path), RECORDS)


def test_rebalance_and_gc_of_no_store_are_refused(tmp_path: Path) -> None:
    for call in (pen.rebalance, pen.gc):
        with pytest.raises(MissingError):
            call(tmp_path / "nothing")
        pen.create(tmp_path / "new.pen", FIELDS).close()
        with pytest.raises(NotPublishedError):
            call(tmp_path / "new.pen")


# gc


@pytest.fixture
def aged(path: Path) -> Path:
    """Five generations; generation g is 5 - g days old."""
    with pen.open(path, mode="a") as out:
        for step in range(4):
            out.update([step], {"label": [step]})
            out.commit()
    newest = (path / "manifest" / f"{5:020d}.json").stat().st_mtime
    for generation in range(1, 6):
        age = (5 - generation) * 86_400
        os.utime(path / "manifest" / f"{generation:020d}.json", (newest - age, newest - age))
    return path


KEPT: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [1, 2, 3, 4, 5]),
    ({"keep": 1}, [5]),
    ({"keep": 2}, [4, 5]),
    ({"keep": 1, "keep_hours": 0}, [5]),
    ({"keep": 3, "keep_hours": 0}, [3, 4, 5]),
    ({"keep": 99, "keep_hours": 0}, [1, 2, 3, 4, 5]),
    ({"keep": 1, "keep_hours": 60}, [3, 4, 5]),
]


@pytest.mark.parametrize(("options", "kept"), KEPT, ids=str)
def test_gc_keeps_the_newest_and_the_young(aged: Path, options: dict[str, Any], kept: list[int]) -> None:
    truth = {generation: digest(pen.open(aged, generation=generation)) for generation in kept}
    before = files(aged)
    planned = pen.gc(aged, **options, dry_run=True)
    assert files(aged) == before
    done = pen.gc(aged, **options)
    assert done == planned
    assert list(done.kept_generations) == kept == pen.open(aged).generations()
    after = files(aged)
    assert set(done.files) == {str(aged / name) for name in before.keys() - after.keys()}
    assert done.freed_bytes == sum(before.values()) - sum(after.values())
    assert truth == {generation: digest(pen.open(aged, generation=generation)) for generation in kept}
    assert pen.gc(aged, **options).files == ()


@pytest.mark.parametrize("keep", [0, -1])
def test_gc_always_keeps_one(aged: Path, keep: int) -> None:
    with pytest.raises(ValueError, match="keep must be in"):
        pen.gc(aged, keep=keep)


KILLED = """
import os, signal, sys, penstock as pen
from penstock.store import local
from tests.store.records import columns, make_records
out = pen.open(sys.argv[1], mode="a")
out.extend(columns(make_records(20, seed=1)))
out.delete([0])
local.Filesystem.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
out.commit()
"""


def test_leftovers_of_a_killed_writer_are_listed_and_removed(path: Path) -> None:
    before = files(path)
    killed = warm.run([sys.executable, "-c", KILLED, str(path)], check=False, cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    leftovers = files(path).keys() - before.keys()
    assert {name.split("/")[0] for name in leftovers} == {"chunk", "redirect", "manifest"}
    assert_store(pen.open(path), RECORDS)
    assert set(pen.gc(path, keep_hours=0, dry_run=True).files) == {str(path / name) for name in leftovers}
    assert set(pen.gc(path, keep_hours=0).files) == {str(path / name) for name in leftovers}
    assert files(path) == before
    assert_store(pen.open(path), RECORDS)


def test_gc_leaves_files_of_others_alone(path: Path) -> None:
    others = ["README", "chunk/notes.txt", "chunk/0.zr", "redirect/x.rd", "manifest/old.json"]
    for name in others:
        (path / name).write_text("mine")
    pen.gc(path, keep=1, keep_hours=0)
    assert [name for name in others if (path / name).read_text() == "mine"] == others
    assert_store(pen.open(path), RECORDS)


def test_gc_with_a_damaged_manifest_removes_nothing(aged: Path) -> None:
    flip(aged / "manifest" / f"{4:020d}.json", 20)
    before = files(aged)
    with pytest.raises(PenstockError, match=f"{4:020d}"):
        pen.gc(aged, keep=2, keep_hours=0)
    assert files(aged) == before


def test_reader_of_a_collected_generation_keeps_what_it_opened_and_names_what_it_lost(aged: Path) -> None:
    with pen.open(aged, generation=1) as opened, pen.open(aged, generation=1) as lazy:
        truth = digest(opened)
        pen.rebalance(aged)
        pen.gc(aged, keep=1, keep_hours=0)
        assert digest(opened) == truth
        with pytest.raises(MissingError, match=r"generation|\.zr"):
            digest(lazy)


def test_stats_and_verify_of_many_chunks_need_few_descriptors(tmp_path: Path) -> None:
    with pen.create(tmp_path / "s", {"x": Field("u1")}, chunk_records=1) as out:
        out.extend({"x": np.arange(400, dtype=np.uint8)})
    code = """
import os, resource, sys
import penstock as pen
from penstock.store import stats, verify
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
data = pen.open(sys.argv[1], io="pread")
assert stats(data).chunks == 400
assert list(verify(sys.argv[1])) == []
print(len(os.listdir("/proc/self/fd")))
"""
    done = warm.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100
