"""A server that goes away in the middle of an epoch: for a while, which nobody may notice in the batches, and for good."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count
from tests.remote.seaweed import Seaweed, serving

import penstock as pen
from penstock.errors import BatchError, StoreUnavailableError
from penstock.records import Source
from penstock.remote.retry import Policy
from penstock.remote.url import url_path
from penstock.source import write_rows

AWAY_S = count(3, 10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Seaweed]:
    """One that this test may kill."""
    with serving(tmp_path / "server") as running:
        yield running


def rows() -> Any:
    return np.random.default_rng(1).normal(size=(20_000, 64)).astype("f4")


@pytest.fixture
def data(server: Seaweed, tmp_path: Path) -> Iterator[Source]:
    """Rows on that server, of which the window holds a fifth."""
    write_rows(rows(), tmp_path / "a.shard")
    target = url_path(f"{server.url}/a.shard", server.storage_options)
    target.objects.put(target.key, (tmp_path / "a.shard").read_bytes())
    with pen.open(f"{server.url}/a.shard", storage_options=server.storage_options, window_bytes="1MB") as source:
        yield source


def test_a_server_that_is_away_for_seconds_changes_nothing(server: Seaweed, data: Source) -> None:
    expected = rows()
    loader = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    back: list[threading.Thread] = []

    def revive() -> None:
        time.sleep(AWAY_S)
        server.start()

    seen = np.zeros(len(expected), np.int64)
    for step, batch in enumerate(loader):
        if step == 50:
            server.stop()
            back.append(threading.Thread(target=revive))
            back[0].start()
        assert np.array_equal(batch["row"], expected[batch["id"]])
        seen[batch["id"]] += 1
    back[0].join()
    assert np.all(seen == 1)
    assert data.remote is not None
    assert data.remote.files[0][0].objects.account.snapshot().retries > 0


def test_a_server_that_is_away_for_good_is_one_clear_error_within_the_deadline(server: Seaweed, data: Source) -> None:
    assert data.remote is not None
    objects = data.remote.files[0][0].objects
    objects.policy = Policy(connect_s=0.5, read_s=0.5, tries=4, total_s=5.0)
    loader = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    server.stop()
    with pytest.raises(BatchError, match=r"a\.shard.*tries") as caught:
        for _ in batches:
            pass
    assert isinstance(caught.value.__cause__, StoreUnavailableError)
    step = loader.step
    server.start()
    again = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    again.seek(step)
    assert np.array_equal(next(iter(again))["id"], again.explain(step)["ids"])
