"""Several threads around one loader, and what its statistics say."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.loader.model import delivered_ids, make_stream

import penstock as pen
from penstock.loader.verify import fields_of

DEADLINE_S = 60
KINDS = {"plain": (0, None), "native": (2, None), "threads": (2, lambda batch: batch)}


def make(kind: str, n: int = 97, size: int = 8, **options: Any) -> pen.Loader:
    threads, transform = KINDS[kind]
    return pen.Loader(make_stream(n), size, ids="id", threads=threads, transform=transform, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_l15_threads_share_an_iterator_without_duplicates(kind: str) -> None:
    for _ in range(5):
        loader = make(kind, 1000, 4)
        batches = iter(loader)

        def consume(batches: Any = batches) -> list[Any]:
            return [tuple(delivered_ids(batch)) for batch in batches]

        with ThreadPoolExecutor(4) as pool:
            found = [batch for done in [pool.submit(consume) for _ in range(4)] for batch in done.result(DEADLINE_S)]
        expected = Counter(tuple(loader.explain(step)["ids"].tolist()) for step in range(250))
        assert Counter(found) == expected
        assert loader.step == 250
        batches.close()


@pytest.mark.parametrize("kind", KINDS)
def test_l15_states_may_be_taken_by_another_thread(kind: str) -> None:
    loader = make(kind, 1000, 4)
    states: list[Any] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            states.append(loader.state_dict())

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for _ in loader:
            pass
        over.set()
        watching.result(DEADLINE_S)
    fresh = make("plain", 1000, 4)
    for state in states:
        fresh.load_state_dict(state)
        assert fresh.cursor.epoch * 1000 + fresh.cursor.position == 4 * fresh.step


def test_l15_closing_does_not_wait_for_another_thread_that_waits() -> None:
    """check 44: close returns soon from any state, also while a thread waits for a batch that does not come."""
    begun, release, patience = threading.Event(), threading.Event(), []

    def transform(batch: Any) -> Any:
        begun.set()
        patience.append(release.wait(20))
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
    loader = make(kind)
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
    loader = make("plain")
    list(loader)
    assert "step 13, epoch 1, batches of 8" in repr(loader)
    assert fields_of(next(iter(loader)))
