"""Servers for the tests of remote data, and clients that leave nothing behind.

``seaweed`` is a real object store, one for all tests; ``prefix`` is a place in it that no other test uses. ``double`` is a store
that misbehaves on demand. ``fast`` is a policy that hardly waits, and has deadlines that a
healthy answer meets on a busy machine too; ``clock`` is a clock that never waits.
"""

import gc
import os
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.fresh import fresh_processes
from tests.remote.double import Double
from tests.remote.seaweed import Seaweed, serving

from penstock.remote import objects
from penstock.remote.fetch import Clock, Policy
from penstock.remote.objects import close_all
from penstock.remote.url import UrlPath, url_path


class VirtualClock(Clock):
    """Time that passes only where it is waited for; every wait is as long as it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.waits = 0.0, list[float]()

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def jitter(self) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def no_hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are counted: a busy machine is no reason for a second one. Tests of hedges have policies of their own."""
    monkeypatch.setattr(objects, "Policy", partial(Policy, hedge_s=3600))


def _sockets() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture(autouse=True)
def no_connections(obstore_is_running: None) -> Iterator[None]:
    """Every client is closed after every test; obstore closes its connections a moment later."""
    before = _sockets()
    yield
    close_all()
    began, generation = time.monotonic(), 1
    while _sockets() - before and time.monotonic() < began + 10:
        time.sleep(0.001)
        # A caught exception holds its frames, and they a client, in a circle: most often a young one, which is found quickly.
        if generation < 3 and time.monotonic() > began + (0.003, 0.05)[generation - 1]:
            gc.collect(generation)
            generation += 1


@pytest.fixture(scope="session", autouse=True)
def pickles_are_read_in_fresh_processes() -> Iterator[None]:
    with fresh_processes():
        yield


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    directory: Path = tmp_path_factory.mktemp("seaweed")
    with serving(directory) as server:
        yield server


@pytest.fixture
def prefix(seaweed: Seaweed) -> UrlPath:
    return url_path(f"{seaweed.url}/{uuid.uuid4().hex}", seaweed.storage_options)


@pytest.fixture
def server(seaweed: Seaweed) -> Iterator[Seaweed]:
    """That store, for a test that kills it; it is back after the test."""
    yield seaweed
    if not seaweed.is_running:
        seaweed.start()


@pytest.fixture
def double(no_connections: None) -> Iterator[Double]:
    with Double() as server:
        yield server
        server.hang_up()  # what a client still waits for ends
        close_all()  # clients first, so that no handler waits for the next request


@pytest.fixture
def fast() -> Policy:
    return Policy(first_wait_s=0.001, longest_wait_s=0.002, connect_s=5, read_s=0.7, write_s=0.7, hedge_s=30)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
