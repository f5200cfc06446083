"""A server that goes away in the middle of an epoch: for a while, which nobody may notice in the batches, and for good."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count
from tests.remote.seaweed import Seaweed

import penstock as pen
from penstock.errors import BatchError, StoreUnavailableError
from penstock.records import Source
from penstock.remote.fetch import Policy
from penstock.remote.url import UrlPath
from penstock.source import write_rows

AWAY_S = count(0, 10)
PATIENCE_S = 300
ROWS, STEPS = count(8_000, 20_000), count(20, 50)


def rows() -> Any:
    return np.random.default_rng(1).normal(size=(ROWS, 64)).astype("f4")


@pytest.fixture
def data(server: Seaweed, prefix: UrlPath, tmp_path: Path) -> Iterator[Source]:
    """Rows on that server, of which the window holds a fifth."""
    write_rows(rows(), tmp_path / "a.shard")
    target = prefix / "a.shard"
    target.objects.put(target.key, (tmp_path / "a.shard").read_bytes())
    with pen.open(f"{prefix}/a.shard", storage_options=server.storage_options, window_bytes=50 * ROWS) as source:
        yield source


def test_a_server_that_is_away_for_seconds_changes_nothing(server: Seaweed, data: Source) -> None:
    expected = rows()
    assert data.remote is not None
    objects = data.remote.files[0][0].objects
    objects.policy = Policy(tries=1_000_000, longest_wait_s=0.2)  # however long a busy machine needs to start a server
    loader = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    back: list[threading.Thread] = []

    def revive() -> None:
        until = time.monotonic() + PATIENCE_S
        while objects.account.snapshot().retries == before and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(AWAY_S)
        server.start()

    seen = np.zeros(len(expected), np.int64)
    for step, batch in enumerate(loader):
        if step == STEPS:
            before = objects.account.snapshot().retries
            server.stop()
            back.append(threading.Thread(target=revive))
            back[0].start()
        assert np.array_equal(batch["row"], expected[batch["id"]])
        seen[batch["id"]] += 1
    back[0].join()
    assert np.all(seen == 1)
    assert objects.account.snapshot().retries > before


def test_a_server_that_is_away_for_good_is_one_clear_error_within_the_deadline(server: Seaweed, data: Source) -> None:
    assert data.remote is not None
    objects = data.remote.files[0][0].objects
    objects.policy = Policy(tries=4, total_s=5.0, read_s=5.0)
    loader = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    batches = iter(loader)
    for _ in range(STEPS // 2):
        next(batches)
    server.stop()
    with pytest.raises(BatchError, match=r"a\.shard.*tries") as caught:
        for _ in batches:
            pass
    assert isinstance(caught.value.__cause__, StoreUnavailableError)
    step = loader.step
    server.start()
    objects.policy = Policy()
    again = pen.Loader(data.shuffle(seed=3, block=500, window=2), 100, ids="id")
    again.seek(step)
    assert np.array_equal(next(iter(again))["id"], again.explain(step)["ids"])
