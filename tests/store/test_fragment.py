"""Fragments: chunks written by one process and committed by another; receipts that nobody trusts."""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm
from tests.remote.store_kit import memory_url
from tests.store.records import FIELDS, assert_store, columns, digest, files, flip, make_records, write

import penstock as pen
from penstock import Field
from penstock.errors import ConflictError, NotPublishedError, ReadError
from penstock.remote.url import UrlPath
from penstock.store import Store, Target, Writer, commit_fragments, stats, write_fragment
from penstock.store.fragment import run_tasks
from penstock.store.generation import load_manifest

RECORDS = make_records(40, seed=3)
PARTS = [RECORDS[:15], RECORDS[15:16], [], RECORDS[16:40]]


def fragment(target: Target, task: int, parts: list[Any] = PARTS) -> Any:
    """The receipt of a task, as it arrives from another machine."""
    target = pickle.loads(pickle.dumps(target))
    batches = [columns(parts[task])] if parts[task] else []
    return json.loads(json.dumps(write_fragment(target, batches, task=task, tasks=len(parts))))


@pytest.fixture(params=["disk", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | UrlPath:
    return tmp_path / "a.pen" if request.param == "disk" else memory_url()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    out = pen.create(tmp_path / "a.pen", FIELDS, chunk_records=7)
    yield out
    out.close()


def test_fragments_become_one_commit_in_the_order_of_the_tasks(place: Path | UrlPath) -> None:
    with pen.create(place, FIELDS, chunk_records=7) as out:
        target = Target.of(out)
        receipts = [fragment(target, task) for task in (3, 0, 2, 1)]
        with pytest.raises(NotPublishedError):
            pen.open(place)
        assert commit_fragments(out, receipts) == 1
    with pen.open(place) as store:
        assert store.generation == 1
        assert_store(store, RECORDS)
        assert [chunk.rows for chunk in load_manifest(place).chunks] == [7, 7, 1, 1, 7, 7, 7, 3]
    assert pen.verify(place) == []
    assert max(len(json.dumps(receipt)) for receipt in receipts) < 500


def test_fragments_can_be_appended_to_a_store_that_has_records(place: Path | UrlPath) -> None:
    with pen.create(place, FIELDS) as out:
        out.extend(columns(RECORDS[:5]))
    with pen.open(place, mode="a") as out:
        out.update([2], {"label": [7]})
        commit_fragments(out, [fragment(Target.of(out), task) for task in range(4)])
    expected = [{**record, "label": np.int32(7)} if place == 2 else record for place, record in enumerate(RECORDS[:5])] + RECORDS
    with pen.open(place) as store:
        assert_store(store, expected)


def test_an_append_of_fragments_goes_behind_what_another_writer_committed_first() -> None:
    url = memory_url()
    with pen.create(url, FIELDS) as out:
        out.extend(columns(RECORDS[:3]))
    with pen.open(url, mode="a") as out:
        receipts = [fragment(Target.of(out), task) for task in range(4)]
        with pen.open(url, mode="a") as other:
            other.extend(columns(RECORDS[:2]))
        assert commit_fragments(out, receipts) == 3
        assert out.last_range == range(5, 45)
    with pen.open(url) as store:
        assert_store(store, RECORDS[:3] + RECORDS[:2] + RECORDS)


def test_a_task_done_twice_counts_once_and_gc_removes_the_other(writer: Writer, tmp_path: Path) -> None:
    target = Target.of(writer)
    receipts = [fragment(target, task) for task in (0, 1, 1, 2, 3, 0)]
    names = set(files(tmp_path / "a.pen"))
    commit_fragments(writer, receipts)
    with pen.open(tmp_path / "a.pen") as store:
        assert_store(store, RECORDS)
    writer.close()
    gone = {str(Path(name).relative_to(tmp_path / "a.pen")) for name in pen.gc(tmp_path / "a.pen", keep_hours=0).files}
    assert len(gone) == 4
    assert gone < names
    with pen.open(tmp_path / "a.pen") as store:
        assert_store(store, RECORDS)


def test_a_fragment_that_fails_leaves_nothing(place: Path | UrlPath) -> None:
    def batches() -> Iterator[Any]:
        yield columns(RECORDS)
        raise RuntimeError("no more")

    with pen.create(place, FIELDS, chunk_records=7) as out:
        target = Target.of(out)
        with pytest.raises(RuntimeError, match="no more"):
            write_fragment(target, batches())
        with pytest.raises(ValueError, match="unknown fields"):
            write_fragment(target, [columns(RECORDS), {"other": [1]}])
        left = files(place) if isinstance(place, Path) else [info.key for info in place.objects.list(place.key)]
        assert not left
        commit_fragments(out, [write_fragment(target, [columns(RECORDS)])])
    with pen.open(place) as store:
        assert_store(store, RECORDS)


# Receipts that are not what they should be


def changed(receipt: Any, **other: Any) -> Any:
    return {**receipt, **other}


def with_chunk(receipt: Any, place: int, value: Any) -> Any:
    rows = [list(row) for row in receipt["chunks"]]
    rows[0][place] = value
    sums = {"rows": sum(row[2] for row in rows), "bytes": sum(row[1] for row in rows)} if type(value) is int else {}
    return {**receipt, "chunks": rows, **sums}


MALFORMED = {
    "none": lambda r: None,
    "text": lambda r: json.dumps(r),
    "list": lambda r: list(r),
    "no keys": lambda r: {},
    "one key more": lambda r: changed(r, path="/etc/passwd"),
    "one key less": lambda r: {key: value for key, value in r.items() if key != "rows"},
    "another data set": lambda r: changed(r, dataset="0" * 32),
    "no data set": lambda r: changed(r, dataset=None),
    "task as text": lambda r: changed(r, task="0"),
    "task as bool": lambda r: changed(r, task=True),
    "task below 0": lambda r: changed(r, task=-1),
    "task above all": lambda r: changed(r, task=4),
    "other tasks": lambda r: changed(r, tasks=5),
    "no tasks": lambda r: changed(r, tasks=0),
    "too many tasks": lambda r: changed(r, tasks=2**40),
    "tasks as float": lambda r: changed(r, tasks=4.0),
    "a path as writer": lambda r: changed(r, writer="../../../../etc/passwd-00000000"),
    "capitals as writer": lambda r: changed(r, writer="A" * 32),
    "bytes as writer": lambda r: changed(r, writer=b"0" * 32),
    "a newline behind writer": lambda r: changed(r, writer=r["writer"] + "\n"),
    "rows that do not add up": lambda r: changed(r, rows=r["rows"] + 1),
    "bytes that do not add up": lambda r: changed(r, bytes=0),
    "chunks as dict": lambda r: changed(r, chunks={}),
    "chunks as text": lambda r: changed(r, chunks="x"),
    "a chunk of 4 numbers": lambda r: changed(r, chunks=[row[:4] for row in r["chunks"]]),
    "a chunk as text": lambda r: changed(r, chunks=["12345"]),
    "serial as text": lambda r: with_chunk(r, 0, "../0"),
    "serial below 0": lambda r: with_chunk(r, 0, -1),
    "serial above all": lambda r: with_chunk(r, 0, 2**32),
    "size of 0": lambda r: with_chunk(r, 1, 0),
    "size above all": lambda r: with_chunk(r, 1, 2**64),
    "rows of 0": lambda r: with_chunk(r, 2, 0),
    "rows above all": lambda r: with_chunk(r, 2, 2**32),
    "crc below 0": lambda r: with_chunk(r, 3, -1),
    "decoded below 0": lambda r: with_chunk(r, 4, -1),
    "a chunk twice": lambda r: changed(r, chunks=r["chunks"] * 2, rows=2 * r["rows"], bytes=2 * r["bytes"]),
}
NOT_THERE = {
    "serial": lambda r: with_chunk(r, 0, 77),
    "writer": lambda r: changed(r, writer="0" * 32),
    "size": lambda r: with_chunk(r, 1, r["chunks"][0][1] + 8),
    "rows": lambda r: with_chunk(r, 2, r["chunks"][0][2] + 1),
    "crc": lambda r: with_chunk(r, 3, r["chunks"][0][3] ^ 1),
}


@pytest.mark.parametrize("spoil", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.sampled(5)
def test_a_malformed_receipt_is_refused_and_the_writer_goes_on(writer: Writer, tmp_path: Path, spoil: Any) -> None:
    receipts = [fragment(Target.of(writer), task) for task in range(4)]
    with pytest.raises((TypeError, ValueError)) as refused:
        commit_fragments(writer, [spoil(receipts[0]), *receipts[1:]])
    assert not isinstance(refused.value, OSError)
    assert list((tmp_path / "a.pen" / "manifest").iterdir()) == []
    assert commit_fragments(writer, receipts) == 1
    with pen.open(tmp_path / "a.pen") as store:
        assert_store(store, RECORDS)


@pytest.mark.parametrize("spoil", NOT_THERE.values(), ids=NOT_THERE.keys())
def test_a_receipt_of_chunks_that_are_not_there_is_refused(place: Path | UrlPath, spoil: Any) -> None:
    with pen.create(place, FIELDS, chunk_records=7) as out:
        receipts = [fragment(Target.of(out), task) for task in range(4)]
        with pytest.raises(ReadError):
            commit_fragments(out, [spoil(receipts[0]), *receipts[1:]])
        with pytest.raises(NotPublishedError):
            pen.open(place)
        assert commit_fragments(out, receipts) == 1
    assert pen.verify(place) == []


def test_chunk_files_that_changed_after_the_receipt_are_refused(writer: Writer, tmp_path: Path) -> None:
    for spoil in (
        lambda f: f.unlink(),
        lambda f: flip(f, -20),
        lambda f: flip(f, 20),
        lambda f: f.write_bytes(f.read_bytes()[:-8]),
    ):
        receipts = [fragment(Target.of(writer), task) for task in range(4)]
        spoil(tmp_path / "a.pen" / "chunk" / f"{receipts[3]['writer']}-00000001.zr")
        with pytest.raises(ReadError):
            commit_fragments(writer, receipts)
        assert list((tmp_path / "a.pen" / "manifest").iterdir()) == []


def test_a_chunk_of_other_fields_is_refused(tmp_path: Path) -> None:
    """A chunk of an update has only some of the fields, and is a chunk of this data set nevertheless."""
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.extend(columns(RECORDS))
        out.commit()
        out.update([1], {"label": [3]})
        out.commit()
        chunk = load_manifest(tmp_path / "a.pen").chunks[1]
        row = [chunk.serial, chunk.size, chunk.rows, chunk.crc, chunk.decoded]
        receipt = {**fragment(Target.of(out), 0, [RECORDS]), "writer": chunk.writer, "chunks": [row]}
        receipt |= {"rows": chunk.rows, "bytes": chunk.size}
        with pytest.raises(ValueError, match="in the store already"):
            commit_fragments(out, [receipt])
        out.delete([1])  # the last generation no longer has that chunk
        out.commit()
        with pytest.raises(ReadError, match="expected a chunk of the fields"):
            commit_fragments(out, [receipt])
        assert out.generation == 3
    with pen.open(tmp_path / "a.pen") as store:
        assert len(store) == 39


def test_all_tasks_must_have_a_receipt(writer: Writer, tmp_path: Path) -> None:
    receipts = [fragment(Target.of(writer), task) for task in range(4)]
    with pytest.raises(ValueError, match="that of task 2 is missing"):
        commit_fragments(writer, [receipts[0], receipts[1], receipts[3]])
    with pytest.raises(ValueError, match="one plan"):
        commit_fragments(writer, [*receipts, fragment(Target.of(writer), 0, [RECORDS])])
    assert list((tmp_path / "a.pen" / "manifest").iterdir()) == []


# verify and rebalance on executors


@pytest.fixture
def worn(tmp_path: Path) -> Path:
    """A store with everything that a store can have, in many chunks."""
    write(tmp_path / "worn.pen", make_records(300, seed=4), chunk_records=7, chunk_bytes=4096)
    with pen.open(tmp_path / "worn.pen", mode="a") as out:
        out.update(np.arange(0, 300, 3), {"caption": ["new"] * 100, "tokens": [[1, 2, 3]] * 100})
        out.delete(np.arange(5, 300, 7))
    return tmp_path / "worn.pen"


def test_verify_on_an_executor_finds_the_same_faults(worn: Path) -> None:
    chunks = [worn / "chunk" / f"{chunk.writer}-{chunk.serial:08x}.zr" for chunk in load_manifest(worn).chunks]
    flip(chunks[3], 64)  # the first byte behind the header: a record
    flip(chunks[17], -30)
    chunks[9].unlink()
    seen: dict[bool, list[int]] = {False: [], True: []}
    with ThreadPoolExecutor(2) as pool:
        found = {
            is_parallel: pen.verify(
                worn, executor=pool if is_parallel else None, progress=lambda rows, size, k=is_parallel: seen[k].append(size)
            )
            for is_parallel in seen
        }
    assert len(found[False]) == 3
    assert found[True] == found[False]
    assert sorted(seen[True]) == sorted(seen[False])
    assert len(seen[True]) == len(load_manifest(worn).chunks)


def layout(store: Store) -> list[tuple[int, int, int]]:
    return [(chunk.rows, chunk.decoded, chunk.size) for chunk in store.manifest.chunks]


@pytest.mark.parametrize("kinds", [list(FIELDS), ["label", "image"], ["tokens"]], ids=["all", "fixed", "ragged"])
def test_rebalance_on_an_executor_gives_the_same_chunks(tmp_path: Path, worn: Path, kinds: list[str]) -> None:
    stores, told = [], []
    for number, is_parallel in enumerate((False, True)):
        path = tmp_path / f"{number}.pen"
        with pen.open(worn) as source:
            pen.convert(source, path, fields=kinds, chunk_records=40, chunk_bytes=4096)
        with pen.open(path, mode="a") as out:
            out.delete(np.arange(0, 200, 5))
        seen: list[int] = []
        with ThreadPoolExecutor(2) as pool:
            done = pen.rebalance(path, executor=pool if is_parallel else None, progress=lambda rows, size, s=seen: s.append(rows))
        assert done.before.utilisation < 1
        assert (done.after.utilisation, done.after.redirects, done.after.generation) == (1.0, 0, 3)
        stores.append(pen.open(path))
        told.append(sum(seen))
    assert digest(stores[0]) == digest(stores[1])
    assert layout(stores[0]) == layout(stores[1])
    assert stats(stores[0]) == stats(stores[1])
    assert told == [len(stores[0])] * 2
    assert pen.verify(tmp_path / "1.pen") == []


def test_rebalance_of_an_empty_store_on_an_executor(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete(np.arange(40))
    with ThreadPoolExecutor(1) as pool:
        assert pen.rebalance(tmp_path / "a.pen", executor=pool).after.chunks == 0


def test_a_rebalance_that_comes_second_publishes_nothing() -> None:
    url = memory_url()
    with pen.create(url, {"x": Field("i4")}, chunk_records=10) as out:
        out.extend({"x": np.arange(95)})

    def interfere(rows: int, size: int) -> None:
        with pen.open(url, mode="a") as other:
            other.append({"x": 7})

    with ThreadPoolExecutor(1) as pool, pytest.raises(ConflictError):
        pen.rebalance(url, executor=pool, progress=interfere)
    with pen.open(url) as store:
        assert store["x"][:].tolist() == [*range(95), *[7] * 10]


# Tasks on executors


def test_results_of_running_tasks_are_not_lost_when_one_fails() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise KeyError(number)
        return 10 * number

    done: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError) as failed:
        done.extend(run_tasks(((work, number) for number in range(100)), pool, at_once=4))
    assert failed.value.__notes__ == ["in 2"]
    assert {(0, 0), (1, 10)} <= set(done) <= {(n, 10 * n) for n in (0, 1, 3, 4, 5)}


def test_no_more_tasks_are_under_way_than_allowed() -> None:
    made: list[int] = []

    def calls() -> Iterator[Any]:
        for number in range(50):
            made.append(number)
            yield (lambda task: task), number

    with ThreadPoolExecutor(1) as pool:
        for count, _ in enumerate(run_tasks(calls(), pool, at_once=3), 1):
            assert len(made) <= count + 3
    assert len(made) == 50


class Cancelling(Executor):
    """Cancels every task but the first; with a word to those who wait, or without."""

    def __init__(self, *, tells: bool) -> None:
        self._tells, self._given = tells, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given += 1
        if self._given == 1:
            future.set_result(fn(*args))
        else:
            future.cancel()
            if self._tells:
                future.set_running_or_notify_cancel()
        return future


class Breaking(Executor):
    """Takes two tasks and then no more."""

    def __init__(self) -> None:
        self._given = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._given += 1
        if self._given > 2:
            raise RuntimeError("no more")
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("tells", [True, False])
def test_a_task_that_was_cancelled_is_not_taken_for_done(tells: bool) -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(CancelledError, match="was not done"):
        found.extend(run_tasks([(double, number) for number in range(5)], Cancelling(tells=tells)))
    assert found == [(0, 0)]


def test_what_was_done_before_an_executor_broke_is_not_lost() -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(RuntimeError, match="no more"):
        found.extend(run_tasks([(double, number) for number in range(5)], Breaking()))
    assert sorted(found) == [(0, 0), (1, 2)]


def test_a_real_failure_is_told_and_not_those_that_it_cancelled() -> None:
    def fail(number: int) -> int:
        raise OSError(f"real reason {number}")

    with ThreadPoolExecutor(2) as pool, pytest.raises(OSError, match="real reason"):
        list(run_tasks([(fail, number) for number in range(100)], pool))


def test_verify_on_an_executor_that_is_shut_down_does_not_say_that_all_is_well(tmp_path: Path) -> None:
    pen.convert({"x": np.arange(1000)}, tmp_path / "a.pen", chunk_records=100)
    with pytest.raises(CancelledError):
        pen.verify(tmp_path / "a.pen", executor=Cancelling(tells=False))


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import penstock as pen
out = pen.create(sys.argv[1], {"x": pen.Field("i8")})
out.extend({"x": [1, 2, 3]})
out.commit()
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    signal.pause()
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    done = warm.run([sys.executable, "-c", code, str(tmp_path / "a.pen")], capture_output=True, text=True, timeout=600, check=True)
    try:
        with pen.open(tmp_path / "a.pen", mode="a") as out:
            out.extend({"x": [4]})
    finally:
        os.kill(int(done.stdout), 9)
    with pen.open(tmp_path / "a.pen") as data:
        assert len(data) == 4
