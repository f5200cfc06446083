"""Several threads around one loader, and what its statistics say."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.effort import count
from tests.loader.child import DEADLINE_S
from tests.loader.model import KINDS, make_loader, make_stream
from tests.loader.stress import close_meanwhile, hasty, share

import penstock as pen
from penstock.batch import fields_of


@pytest.mark.parametrize("kind", KINDS)
def test_l15_threads_share_an_iterator_without_duplicates(kind: str) -> None:
    """While another one takes states, which all are those between two batches."""
    for _ in range(count(2, 5)):
        share(kind, 1000, 4, takers=4)


@pytest.mark.parametrize("kind", KINDS)
def test_l15_threads_may_close_what_others_take_from(kind: str) -> None:
    chance = random.Random(kind)
    with hasty():
        for _ in range(count(3, 5)):
            close_meanwhile(kind, 1000, 4, 4, chance)


def test_l15_a_closed_engine_has_no_more_batches() -> None:
    """Another thread may close it when this one has just begun to take: it must not wait for threads that have ended."""
    engine = make_loader("threads")._start(0, None)
    engine.take()
    engine.close()
    ended: list[str] = []

    def take() -> None:
        try:
            engine.take()
        except StopIteration:
            ended.append("no more")

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(DEADLINE_S)
    assert ended == ["no more"]


def test_l15_closing_does_not_wait_for_another_thread_that_waits() -> None:
    """check 44: close returns soon from any state, also while a thread waits for a batch that does not come."""
    begun, release, patience = threading.Event(), threading.Event(), []

    def transform(batch: Any) -> Any:
        begun.set()
        patience.append(release.wait(DEADLINE_S))
        return batch

    batches = iter(pen.Loader(make_stream(97), 8, transform=transform, threads=1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, batches, None)
        assert begun.wait(DEADLINE_S)
        batches.close()
        batches.close()
        release.set()
        assert patience in ([], [True])
        waiting.exception(DEADLINE_S)  # a batch, or an error: not a wait for ever
    batches.close()


# Statistics


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_count_what_was_delivered(kind: str) -> None:
    loader = make_loader(kind)
    assert loader.stats().batches == 0
    assert "too little" in loader.stats().advice.lower()
    total = sum(sum(column.nbytes for column in batch.values()) for batch in loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (13, 97)
    assert stats.bytes == total
    assert stats.wait_s > 0
    assert stats.samples_per_s > 0
    assert stats.advice


def test_advice_sees_a_trainer_that_only_waits() -> None:
    loader = pen.Loader(make_stream(40), 2, threads=0, transform=_slowly)
    list(loader)
    assert "threads=2 or more" in loader.stats().advice


def _slowly(batch: Any) -> Any:
    threading.Event().wait(0.002)
    return batch


def test_a_loader_says_what_it_is() -> None:
    loader = make_loader("plain")
    list(loader)
    assert "step 13, epoch 1, batches of 8" in repr(loader)
    assert fields_of(next(iter(loader)))
