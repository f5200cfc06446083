"""Transforms: in order, reproducible, in threads or other processes."""

import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context, resource_tracker
from typing import Any

import numpy as np
import pytest
from tests.effort import is_campaign
from tests.loader.faulty import add_random, dawdle, die_on_40, double
from tests.loader.model import TAILS, WORLDS, assert_equal_batches, delivered_ids, make_stream, unite

import penstock as pen
from penstock.batch import fields_of
from penstock.errors import BatchError, WorkerDiedError
from penstock.loader.resume_check import verify_resume
from penstock.order import Shard

N = 97


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """Processes that are spawned share a tracker, which stays."""
    resource_tracker.ensure_running()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("threads", [1, 4])
def test_check_42_random_delays_keep_the_order(tail: str, threads: int) -> None:
    plain = pen.Loader(make_stream(N, texts=True), 8, tail=tail, ids="id", transform=add_random, threads=0)
    loader = pen.Loader(make_stream(N, texts=True), 8, tail=tail, ids="id", transform=dawdle, threads=threads)
    for expected, found in zip(plain, loader, strict=True):
        assert_equal_batches(found, expected)
        assert set(found["step"].tolist()) == {loader.step - 1}


def test_check_42_threads_work_at_the_same_time() -> None:
    """Four batches are transformed side by side: each waits until four are there."""
    barrier = threading.Barrier(4)

    def meet(batch: Any) -> Any:
        barrier.wait(300)
        return batch

    loader = pen.Loader(make_stream(96), 8, ids="id", transform=meet, threads=4)
    assert [delivered_ids(batch) for batch in loader] == [loader.explain(step)["ids"].tolist() for step in range(12)]


def test_check_43_delays_do_not_disturb_states() -> None:
    verify_resume(lambda: pen.Loader(make_stream(N), 8, ids="id", transform=dawdle, threads=4), points=(1, 5, 12, 13, 14))


def test_seeds_are_those_of_record_and_epoch() -> None:
    seen: dict[tuple[int, int], int] = {}

    def note(batch: Any, info: Any) -> Any:
        assert np.array_equal(info.ids, batch["id"])
        assert info.seeds.dtype == np.uint64
        for i, seed in zip(info.ids.tolist(), info.seeds.tolist(), strict=True):
            assert seen.setdefault((i, info.epoch), seed) == seed
        return batch

    loader = pen.Loader(make_stream(N), 8, ids="id", transform=note, threads=0)
    for _ in range(3):
        list(loader)
    for world in WORLDS:
        for rank in range(world):
            part = pen.Loader(make_stream(N), 24, ids="id", transform=note, threads=0, shard=Shard(rank, world))
            for _ in range(3):
                list(part)
    assert len(seen) == 3 * N
    assert len(set(seen.values())) == 3 * N
    assert loader.seed_for(np.arange(N), epoch=2).tolist() == [seen[i, 2] for i in range(N)]


@pytest.mark.parametrize("tail", TAILS)
def test_random_transforms_are_the_same_on_every_rank_thread_and_resume(tail: str) -> None:
    whole = pen.Loader(make_stream(N), 24, tail=tail, transform=add_random, threads=0)
    runs = {}
    with whole.forever() as batches:
        for _ in range(9):
            step = whole.step
            runs[step] = next(batches)
    for world in (2, 3, 8):
        for start in (0, 3, 4):
            ranks = [
                pen.Loader(make_stream(N), 24, tail=tail, transform=dawdle, threads=rank % 3, shard=Shard(rank, world))
                for rank in range(world)
            ]
            for loader in ranks:
                loader.seek(start)
            iterators = [loader.forever() for loader in ranks]
            for step in range(start, start + 3):
                parts = [next(iterator) for iterator in iterators]
                assert unite([part["noise"].tolist() for part in parts]) == runs[step]["noise"].tolist()
            for iterator in iterators:
                iterator.close()


def test_transforms_may_give_anything() -> None:
    for threads in (0, 2):
        loader = pen.Loader(make_stream(10), 4, transform=lambda batch: (batch["x"].tolist(), None, "text"), threads=threads)
        assert [batch[1:] for batch in loader] == [(None, "text")] * 3


class Scale:
    """A transform with parameters of its own."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, batch: Any, extra: int = 3) -> Any:
        return {"x": batch["x"] * self.by + extra}


def test_transforms_are_called_as_they_want_to_be() -> None:
    def with_info(batch: Any, info: Any) -> Any:
        return info.step

    assert list(pen.Loader(make_stream(9), 4, transform=with_info, threads=0)) == [0, 1, 2]
    found = next(iter(pen.Loader(make_stream(9), 9, transform=Scale(2), threads=0)))
    assert sorted(found["x"].tolist()) == [20 * i + 3 for i in range(9)]
    assert len(list(pen.Loader(make_stream(9), 4, transform=dict, threads=0))) == 3


def test_check_45_batches_are_not_overwritten_by_later_ones() -> None:
    for threads in (0, 1, 4):
        for transform in (None, lambda batch: batch):
            loader = pen.Loader(make_stream(N), 8, ids="id", threads=threads, transform=transform)
            held = list(loader)
            kept = [fields_of(batch) for batch in held]
            list(loader)
            assert [fields_of(batch) for batch in held] == kept
            for batch in held:
                assert np.array_equal(batch["x"], batch["id"] * 10)
                batch["x"][:] = -1  # it is the caller's
            assert [fields_of(batch) for batch in pen.Loader(make_stream(N), 8, ids="id", threads=0)] == kept


def test_check_46_all_fields_come_from_the_same_records() -> None:
    from penstock.errors import SchemaMismatchError
    from penstock.formats.array import ArraySource

    for threads in (0, 1, 4):
        for batch in pen.Loader(make_stream(N, texts=True), 8, ids="id", threads=threads):
            for place, i in enumerate(batch["id"].tolist()):
                assert batch["x"][place] == 10 * i
                assert batch["pair"][place].tolist() == [2 * i, 2 * i + 1]
                assert batch["text"][place] == f"record {i}" * (i % 3)
    with pytest.raises(SchemaMismatchError):
        ArraySource({"x": np.arange(3), "y": np.arange(4)})


# Executors

START = "spawn" if is_campaign() else "fork"
"""How the processes of executors start; in every run one executor has new interpreters, which import all of this again."""


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_executors_give_identical_batches(kind: str) -> None:
    pool: Executor = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with pool as executor:
        for transform in (None, double, add_random):
            plain = pen.Loader(make_stream(N, texts=transform is None), 8, ids="id", transform=transform, threads=0)
            loader = pen.Loader(make_stream(N, texts=transform is None), 8, ids="id", transform=transform, executor=executor)
            for _ in range(2):
                for expected, found in zip(plain, loader, strict=True):
                    assert_equal_batches(found, expected)
            assert loader.state_dict() == plain.state_dict()
        verify_resume(lambda: pen.Loader(make_stream(N), 8, executor=executor), points=(1, 13))


def test_executors_and_mixtures_of_sequences() -> None:
    from penstock.batch import Ragged
    from penstock.formats.array import ArraySource

    texts = ArraySource({"t": Ragged.from_items([f"text number {i}" for i in range(200)], dtype="u1", kind="text")})
    streams = {name: texts.shuffle(seed=i).sequences(16, separator=0, documents=True) for i, name in enumerate("ab")}
    mixed = pen.mix(streams, seed=1, weights={"a": 1, "b": 2})
    phases = [pen.Phase(3, 4, 16), pen.Phase(2, 2, 32)]
    with ProcessPoolExecutor(1, mp_context=get_context(START)) as executor:
        found = list(pen.Loader(mixed, phases=phases, executor=executor))
    for one, other in zip(found, pen.Loader(mixed, phases=phases, threads=0), strict=True):
        assert_equal_batches(one, other)


def test_work_that_cannot_be_sent_is_refused() -> None:
    with ThreadPoolExecutor(1) as executor:
        loader = pen.Loader(make_stream(10), 4, transform=lambda batch: batch, executor=executor)
        with pytest.raises(TypeError, match="picklable"):
            next(iter(loader))


def test_l2_a_killed_worker_is_named() -> None:
    where = pen.Loader(make_stream(N), 8).where(4)[0]["step"]
    with ProcessPoolExecutor(1, mp_context=get_context(START)) as executor:
        loader = pen.Loader(make_stream(N), 8, transform=die_on_40, executor=executor)
        batches = iter(loader)
        with pytest.raises(WorkerDiedError, match="step"):
            list(batches)
        assert loader.step <= where
        with pytest.raises(WorkerDiedError):
            next(batches)
        batches.close()
        with pytest.raises(WorkerDiedError):
            next(iter(loader))


def test_l2_a_worker_killed_from_outside_is_named() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context(START)) as executor:
        worker = executor.submit(os.getpid).result(300)
        loader = pen.Loader(make_stream(N), 1, executor=executor)
        with iter(loader) as batches:
            next(batches)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                list(batches)
        state = loader.state_dict()
    fresh = pen.Loader(make_stream(N), 1, threads=0)
    fresh.load_state_dict(state)
    assert fresh.step == loader.step


def test_l2_an_executor_that_was_shut_down_is_named() -> None:
    executor = ThreadPoolExecutor(1)
    loader = pen.Loader(make_stream(N), 8, executor=executor)
    with iter(loader) as batches:
        next(batches)
        executor.shutdown(cancel_futures=True)
        with pytest.raises(WorkerDiedError):
            list(batches)


class Immediate(Executor):
    """An executor that does the work when it is asked to, such as those of clusters in their tests."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_any_executor_will_do() -> None:
    loader = pen.Loader(make_stream(N), 8, ids="id", executor=Immediate())
    assert [delivered_ids(batch) for batch in loader] == [loader.explain(step)["ids"].tolist() for step in range(13)]


def test_errors_of_executors_of_other_kinds_are_raised_as_they_are() -> None:
    class Odd(Immediate):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(LookupError("no such queue"))
            return future

    with iter(pen.Loader(make_stream(N), 8, executor=Odd())) as batches, pytest.raises((LookupError, BatchError), match="queue"):
        next(batches)
