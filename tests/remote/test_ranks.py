"""Ranks on one host that share a cache: together they fetch each byte once, also when one of them is killed while it fetches."""

import errno
import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.remote.cache_kit import ETAG, SIZE, URL, keep
from tests.remote.double import Double, Fault
from tests.remote.ranks import ranks, records

from penstock.errors import ReadError
from penstock.remote import cache as disk_cache
from penstock.remote.cache import Cache

COUNT = 2_000
KEY = "x.npy"


@pytest.fixture
def bucket(double: Double) -> Double:
    file = io.BytesIO()
    np.save(file, records(np.arange(COUNT)))
    double.put(KEY, file.getvalue())
    return double


def times_fetched(double: Double) -> set[int]:
    """How often bytes of records were requested."""
    found: set[int] = set()
    for key in list(double.keys()):
        data = double.get(key)
        assert data is not None
        count = np.zeros(len(data), np.int64)
        for request in double.requests("GET", key):
            assert request.range is not None
            count[slice(*request.range)] += 1
        found |= set(count[128:].tolist())  # behind the header
    return found


def nothing() -> None:
    """No reason to end a wait."""


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_begin_together_fetch_each_byte_once(bucket: Double, tmp_path: Path, world: int) -> None:
    with ranks(f"{bucket.http_base}/{KEY}", world, cache=str(tmp_path), window_bytes=1_000_000) as group:
        bucket.clear()
        bucket.plan("GET", KEY, Fault(delay_s=0.1), times=1000)  # as of a network: all ranks want a range before one has it
        group.tell("read", *range(world))
        share = COUNT // world
        assert group.heard(world) == [f"{rank} read {share} of {share}" for rank in range(world)]
    assert times_fetched(bucket) == {1}


def test_a_rank_that_is_killed_while_it_fetches_is_waited_for_no_longer(bucket: Double, tmp_path: Path) -> None:
    gate, waits = threading.Event(), threading.Event()
    with ranks(f"{bucket.http_base}/{KEY}", 2, cache=str(tmp_path), window_bytes=1_000_000) as group:
        bucket.clear()
        bucket.plan("GET", KEY, Fault(gate=gate, asked=waits))
        group.tell("read", 0)
        assert waits.wait(60)  # rank 0 has asked for a range, and gets no answer
        group.tell("read", 1)
        group.tell("kill", 0)
        assert group.heard(2) == ["0 killed", f"1 read {COUNT // 2} of {COUNT // 2}"]
        gate.set()
    assert times_fetched(bucket) <= {1, 2}


def test_a_claim_is_waited_for_where_ranges_overlap_and_nowhere_else(tmp_path: Path) -> None:
    cache, waits, order = Cache(tmp_path, 1 << 30), threading.Event(), list[str]()

    def second() -> None:
        with cache.claimed(URL, ETAG, SIZE, 999, 2000, waits.set) as there:
            order.append("second")
            assert there == [(999, 1000)]

    thread = threading.Thread(target=second)
    with cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing) as there:
        assert there == []
        with cache.claimed(URL, ETAG, SIZE, 1000, 2000, nothing), cache.claimed(URL, '"other"', SIZE, 0, 1000, nothing):
            pass
        thread.start()
        assert waits.wait(60)
        keep(cache, 0, 1000)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_claim_of_a_process_that_was_stopped_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "CLAIM_WAIT_S", 0.01)
    cache = Cache(tmp_path, 1 << 30)
    with cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing), cache.claimed(URL, ETAG, SIZE, 500, 600, nothing) as there:
        assert there == []


def test_a_wait_for_a_claim_ends_with_what_the_reader_raises(tmp_path: Path) -> None:
    def closed() -> None:
        raise ReadError("closed")

    cache = Cache(tmp_path, 1 << 30)
    with (
        cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing),
        pytest.raises(ReadError, match="closed"),
        cache.claimed(URL, ETAG, SIZE, 0, 1000, closed),
    ):
        pass


def test_a_claim_dies_with_its_process_but_not_with_a_forked_child(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 30)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing):
            os.write(tell, b".")
            os._exit(0)  # no lock is given back
    os.read(ready, 1)
    os.waitpid(child, 0)
    with cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing):
        asleep, wake = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(asleep, 1)
            os._exit(0)
    with cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing):  # the child has a copy of the descriptor
        os.write(wake, b".")
        os.waitpid(child, 0)
    for descriptor in (ready, tell, asleep, wake):
        os.close(descriptor)


def test_a_cache_that_cannot_be_written_has_no_claims(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 30)
    keep(cache, 0, 1000)
    (tmp_path / "claims").mkdir()
    with (
        cache.claimed(URL, ETAG, SIZE, 0, 2000, nothing) as there,
        cache.claimed(URL, ETAG, SIZE, 0, 2000, nothing) as also,
    ):
        assert there == also == [(0, 1000)]


def test_what_cannot_be_kept_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(descriptor: int, parts: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache, times = Cache(tmp_path, 1 << 30), list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(disk_cache, "write_all", is_full)
        keep(cache, 0, 1000)
    with (
        cache.claimed(URL, ETAG, SIZE, 0, 1000, nothing),
        cache.claimed(URL, ETAG, SIZE, 0, 1000, lambda: times.append(1)),
    ):
        assert len(times) == 1  # otherwise it is asked again and again, while the threads fetch one after the other
    keep(cache, 0, 1000)
    monkeypatch.setattr(disk_cache, "CLAIM_WAIT_S", 0.01)
    with (
        cache.claimed(URL, ETAG, SIZE, 500, 1500, nothing),
        cache.claimed(URL, ETAG, SIZE, 500, 1500, lambda: times.append(1)),
    ):
        assert len(times) > 2
