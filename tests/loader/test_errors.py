"""What happens when a record cannot be read or a transform fails: the same thing, at the same step, every time."""

import gc
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import is_campaign
from tests.loader.faulty import FaultySource, fail_on_40
from tests.loader.model import TAILS, WORLDS, delivered_ids, make_stream, unite

import penstock as pen
from penstock.errors import BatchError
from penstock.formats.array import ArraySource
from penstock.loader.resume_check import verify_resume
from penstock.order import Shard, Shuffle
from penstock.stream import RecordStream

N = 97
BAD = set(Shuffle(N, seed=7).indices(0, 0, N)[[9, 22, 23, 60, 96]].tolist())


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """Processes that are spawned share a tracker, which stays."""
    resource_tracker.ensure_running()


def faulty(n: int = N, bad: set[int] = BAD) -> RecordStream:
    return FaultySource(n, bad).shuffle(seed=7)


def failing_steps(size: int, steps: int, bad: set[int] = BAD) -> list[int]:
    loader = pen.Loader(make_stream(N), size, threads=0)
    return [step for step in range(steps) if bad & set(loader.explain(step)["ids"].tolist())]


# L1: errors come at their place, and stay


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_l1_check_44_good_batches_come_first_then_the_same_error_every_time(threads: int) -> None:
    first = failing_steps(4, 20)[0]
    assert first > 0
    plain = pen.Loader(make_stream(N), 4, ids="id", threads=0)
    loader = pen.Loader(faulty(), 4, ids="id", threads=threads)
    batches = iter(loader)
    for _, expected in zip(range(first), plain, strict=False):
        assert delivered_ids(next(batches)) == delivered_ids(expected)
    errors = []
    for _ in range(5):
        with pytest.raises(BatchError) as caught:
            next(batches)
        errors.append(caught.value)
    assert all(error is errors[0] for error in errors)
    assert isinstance(errors[0].__cause__, OSError)
    ids = plain.explain(first)["ids"].tolist()
    assert f"step {first}, epoch 0, records {ids}" in str(errors[0])
    assert "bad sector" in str(errors[0])
    assert loader.step == first
    batches.close()
    batches.close()
    with pytest.raises(BatchError):
        next(iter(loader))
    loader.seek(first + 1)
    assert delivered_ids(next(iter(loader))) == plain.explain(first + 1)["ids"].tolist()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_l1_errors_of_transforms_come_at_their_place(threads: int) -> None:
    where = pen.Loader(make_stream(N), 4).where(4)[0]["step"]
    assert where > 0
    loader = pen.Loader(make_stream(N), 4, transform=fail_on_40, threads=threads)
    batches = iter(loader)
    for _ in range(where):
        next(batches)
    for _ in range(3):
        with pytest.raises(
            BatchError, match=rf"transform failed on step {where}, epoch 0, records .*4.*RuntimeError: forty is too much"
        ):
            next(batches)
    assert loader.step == where
    batches.close()


@pytest.mark.parametrize("k", range(0, 25, 4))
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_l1_an_error_at_any_batch_is_raised_there(k: int, threads: int) -> None:
    def transform(batch: Any, info: Any) -> Any:
        if info.step == k:
            raise KeyError("at last")
        return batch

    loader = pen.Loader(make_stream(N), 4, transform=transform, threads=threads)
    batches = iter(loader)
    for _ in range(k):
        next(batches)
    with pytest.raises(BatchError, match="at last"):
        next(batches)
    batches.close()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_l1_errors_of_the_order_come_at_their_place(threads: int) -> None:
    """Every record is banned from step 5 on: the five batches before it come."""
    for transform in (None, lambda batch: batch):
        stream = make_stream(20).without(range(10)).without(range(10, 20), from_step=5)
        loader = pen.Loader(stream, 2, threads=threads, transform=transform)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        for _ in range(2):
            with pytest.raises((BatchError, ValueError), match="every record is banned"):
                next(batches)
        assert loader.step == 5
        batches.close()


def test_l1_errors_survive_pickling() -> None:
    error = BatchError("step 3: cause")
    assert str(pickle.loads(pickle.dumps(error))) == "step 3: cause"


def test_l1_a_program_that_ends_itself_is_not_an_error_of_a_batch() -> None:
    def transform(batch: Any) -> Any:
        raise SystemExit(3)

    for threads in (0, 2):
        batches = iter(pen.Loader(make_stream(N), 4, transform=transform, threads=threads))
        with pytest.raises(SystemExit):
            next(batches)
        batches.close()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_check_44_an_exhausted_loader_stays_exhausted(threads: int) -> None:
    batches = iter(pen.Loader(make_stream(10), 4, threads=threads))
    assert len(list(batches)) == 3
    for _ in range(5):
        with pytest.raises(StopIteration):
            next(batches)
    batches.close()
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_check_44_closing_does_not_wait_for_what_has_not_begun() -> None:
    """Of many batches under way only those that a thread works on are waited for."""
    begun, release = [], threading.Event()

    def transform(batch: Any, info: Any) -> Any:
        begun.append(info.step)
        if info.step > 0:
            release.wait(1)
        return batch

    batches = iter(pen.Loader(make_stream(N), 1, transform=transform, threads=2))
    next(batches)
    batches.close()
    batches.close()
    release.set()
    assert len(begun) <= 8


# Records that cannot be read are left out


def replaced_ids(n: int = N, bad: set[int] = BAD, *, epochs: int = 2, size: int = 12, tail: str = "keep") -> list[list[int | None]]:
    """What a reader in the caller's thread delivers."""
    loader = pen.Loader(FaultySource(n, bad).shuffle(seed=7), size, tail=tail, ids="id", threads=0, on_error="skip")
    return [delivered_ids(batch) for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.sampled(5)
def test_l1_skipped_records_are_replaced_alike_on_every_rank_and_thread(world: int, tail: str) -> None:
    expected = replaced_ids(tail=tail)
    for threads in (0, 1, 4):
        ranks = [
            pen.Loader(faulty(), 12, tail=tail, ids="id", threads=threads, shard=Shard(rank, world), on_error="skip")
            for rank in range(world)
        ]
        found = []
        for _ in range(2):
            for parts in zip(*ranks, strict=True):
                for part in parts:
                    assert np.array_equal(part["x"], part["id"] * 10)
                found.append(unite([delivered_ids(part) for part in parts]))
        assert found == expected


def test_l1_only_bad_records_are_replaced() -> None:
    order = Shuffle(N, seed=7)
    found = [i for batch in replaced_ids(epochs=3) for i in batch]
    plain = [int(i) for epoch in range(3) for i in order.indices(epoch, 0, N)]
    assert not BAD & set(found)
    assert [a for a, b in zip(found, plain, strict=True) if b not in BAD] == [b for b in plain if b not in BAD]


def test_l1_skipping_resumes_at_every_step() -> None:
    verify_resume(lambda: pen.Loader(faulty(), 12, ids="id", threads=2, on_error="skip"))


def test_l1_most_records_may_be_bad() -> None:
    bad = set(range(N)) - {5, 6}
    found = [i for batch in replaced_ids(bad=bad, epochs=1) for i in batch]
    assert set(found) == {5, 6}
    loader = pen.Loader(FaultySource(5, set(range(5))).shuffle(seed=7), 2, threads=0, on_error="skip")
    with pytest.raises(BatchError, match="too few records can be read"):
        next(iter(loader))


def test_l1_a_function_is_told_of_every_bad_record() -> None:
    told: list[tuple[str, list[int]]] = []
    lock = threading.Lock()

    def tell(error: BaseException, ids: Any) -> None:
        with lock:
            told.append((str(error), ids.tolist()))

    for threads in (0, 4):
        loader = pen.Loader(faulty(), 12, ids="id", threads=threads, on_error=tell)
        assert [delivered_ids(batch) for batch in loader] == replaced_ids(epochs=1)
        assert {i for _, ids in told for i in ids} == BAD
        assert all("bad sector" in text for text, _ in told)
        told.clear()


@pytest.mark.parametrize("threads", [0, 2])
def test_l1_a_function_may_raise_itself(threads: int) -> None:
    def refuse(error: BaseException, ids: Any) -> None:
        raise LookupError(f"no more of {ids.tolist()}")

    loader = pen.Loader(faulty(), 12, threads=threads, on_error=refuse)
    with pytest.raises((BatchError, LookupError), match="no more of"):
        list(loader)


def test_l1_records_that_are_banned_do_not_come_instead_of_bad_ones() -> None:
    banned = set(range(20, 90))
    loader = pen.Loader(faulty(bad=set(range(10))).without(sorted(banned)), 12, ids="id", threads=0, on_error="skip")
    for _ in range(3):
        for batch in loader:
            assert not (banned | set(range(10))) & set(batch["id"].tolist())


@pytest.mark.parametrize("threads", [0, 2])
def test_l1_bad_records_of_a_mixture_are_replaced_too(threads: int) -> None:
    streams = {"good": RecordStream(ArraySource({"x": np.arange(40) * 10}), Shuffle(40, seed=1)), "bad": faulty(60, {1, 2, 3})}
    mixed = pen.mix(streams, seed=3, stop="all_exhausted_without_replacement")
    loader = pen.Loader(mixed, 10, threads=threads, ids="id", on_error="skip")
    names = [loader.explain(step)["source"].tolist() for step in range(10)]
    found = [(name, i) for step, batch in enumerate(loader) for name, i in zip(names[step], batch["id"].tolist(), strict=True)]
    assert len(found) == 100
    assert {("bad", 1), ("bad", 2), ("bad", 3)} & set(found) == set()
    assert sorted(i for name, i in found if name == "good") == list(range(40))


def test_l1_bad_sequences_raise_and_say_so() -> None:
    """There are no single records to be replaced in a line of tokens."""
    from penstock.batch import Ragged

    class Bad(ArraySource):
        is_bad = False

        def _read(self, ids: Any, fields: Any, out: Any) -> Any:
            if self.is_bad and 3 in ids:
                raise OSError("bad sector")
            return super()._read(ids, fields, out)

    source = Bad({"t": Ragged.from_items(["some text"] * 9, dtype="u1", kind="text")})
    stream = source.in_order().sequences(10)
    source.is_bad = True
    with pytest.raises((BatchError, ValueError), match=r"bad sector|on_error"):
        list(pen.Loader(stream, 1, threads=0, on_error="skip"))


# Errors in other processes


def test_l1_errors_of_other_processes_come_at_their_place() -> None:
    where = pen.Loader(make_stream(N), 4).where(4)[0]["step"]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn" if is_campaign() else "fork")) as executor:
        loader = pen.Loader(make_stream(N), 4, transform=fail_on_40, executor=executor)
        with iter(loader) as batches:
            for _ in range(where):
                next(batches)
            for _ in range(2):
                with pytest.raises(BatchError, match=rf"step {where}, .*forty is too much"):
                    next(batches)
            assert loader.step == where
        skipping = pen.Loader(faulty(), 12, ids="id", executor=executor, on_error="skip")
        assert [delivered_ids(batch) for batch in skipping] == replaced_ids(epochs=1)


def test_l1_worlds_agree_about_the_step_that_fails() -> None:
    first = failing_steps(24, 4)[0]
    for world in WORLDS:
        errors = 0
        for rank in range(world):
            loader = pen.Loader(faulty(), 24, shard=Shard(rank, world), threads=0)
            loader.seek(first)
            try:
                next(iter(loader))
            except BatchError:
                errors += 1
        assert errors >= 1


def test_native_threads_end_when_their_batch_fails_whoever_keeps_the_traceback(tmp_path: Path) -> None:
    """They would read bytes that were released: at a URL that was a segmentation fault. No garbage collection helps here."""
    path = tmp_path / "damaged.pen"
    with pen.create(path, {"x": pen.Field("f4", (64,))}, chunk_records=100) as out:
        out.extend({"x": np.zeros((1000, 64), np.float32)})
    for chunk in sorted((path / "chunk").iterdir())[2:8]:
        data = bytearray(chunk.read_bytes())
        data[len(data) // 3] ^= 1
        chunk.write_bytes(data)
    loader = pen.Loader(pen.open(path).in_order(), 50, threads=4, on_error="skip")
    assert loader.engine == "native"
    batches = iter(loader)
    next(batches)
    threads = len(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        for _ in range(15):
            next(batches)
            assert len(os.listdir("/proc/self/task")) <= threads
    finally:
        gc.enable()
        batches.close()
    assert loader.stats().skipped >= 6
