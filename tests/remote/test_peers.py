"""Peers: each byte leaves the bucket once in a job; whatever a peer does wrong, the bytes are right, and nobody waits for long."""

import io
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.double import ANY, Double, Fault
from tests.remote.ranks import SECRET, free_ports, ranks, records
from tests.remote.test_ranks import times_fetched

import penstock as pen
from penstock.errors import AccessDeniedError, BatchError, ObjectChangedError
from penstock.remote.cache import object_digest
from penstock.remote.peers import Peers, Supply
from penstock.remote.url import url_path

COUNT, PARTS = 2_000, 8
KEYS = [f"x-{number}.npy" for number in range(PARTS)]


def npy(ids: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, records(ids))
    return file.getvalue()


@pytest.fixture
def bucket(double: Double) -> Double:
    for key, ids in zip(KEYS, np.split(np.arange(COUNT), PARTS), strict=True):
        double.put(key, npy(ids))
    return double


def owner(bucket: Double, key: str, addresses: list[str]) -> int:
    """The rank that fetches an object of a single piece."""
    info = url_path(f"{bucket.http_base}/{key}").objects.head(f"{bucket.bucket}/{key}")
    digest = object_digest(f"{bucket.http_base}/{key}", info.etag, info.size).hex()
    with Peers(addresses, 0, secret=SECRET, serve=False) as peers:
        ((_, _, others),) = peers.shares(digest, 0, info.size)
    return addresses.index(others[0].netloc) if others else 0


# Processes


def test_four_peers_fetch_each_byte_once(bucket: Double, tmp_path: Path) -> None:
    urls = [f"{bucket.http_base}/{key}" for key in KEYS]
    with ranks(urls, 4, are_peers=True, cache=str(tmp_path), window_bytes=1_000_000) as group:
        bucket.clear()
        bucket.plan("GET", ANY, Fault(delay_s=0.05), times=1000)  # as of a network
        group.tell("read", 0, 1, 2, 3)
        assert group.heard(4) == [f"{rank} read {COUNT // 4} of {COUNT // 4}" for rank in range(4)]
    assert times_fetched(bucket) == {1}


def test_a_peer_that_is_killed_while_it_fetches_for_others_is_replaced(bucket: Double, tmp_path: Path) -> None:
    gate, waits = threading.Event(), threading.Event()
    with ranks([f"{bucket.http_base}/{key}" for key in KEYS], 4, are_peers=True, wait_s=2, cache=str(tmp_path)) as group:
        victim = owner(bucket, KEYS[0], group.peers)
        others = [rank for rank in range(4) if rank != victim]
        bucket.clear()
        bucket.plan("GET", KEYS[0], Fault(gate=gate, asked=waits))
        group.tell("read", *others)
        assert waits.wait(60)
        group.tell("kill", victim)
        share = COUNT // 4
        assert group.heard(4) == sorted([f"{victim} killed", *(f"{rank} read {share} of {share}" for rank in others)])
        gate.set()
    assert times_fetched(bucket) <= {1, 2}


# In one process


class Job:
    """Ranks of a job, all of them in this process, with a cache each; and rank 0 is the one that does not own the object."""

    def __init__(self, stack: ExitStack, bucket: Double, caches: Path, key: str, world: int) -> None:
        self._stack, self._caches, self.url = stack, caches, f"{bucket.http_base}/{key}"
        addresses = [f"127.0.0.1:{port}" for port in free_ports(world)]
        place = owner(bucket, key, addresses)
        self.addresses = [address for rank, address in enumerate(addresses) if rank != place] + [addresses[place]]
        self.owner = world - 1

    def peers(self, rank: int, **options: Any) -> Peers:
        return self._stack.enter_context(Peers(self.addresses, rank, **{"secret": SECRET, "wait_s": 60, **options}))

    def open(self, rank: int, **options: Any) -> pen.Source:
        peers = self.peers(rank, **options)
        return self._stack.enter_context(pen.open(self.url, cache=self._caches / str(rank), peers=peers))


@pytest.fixture
def job(bucket: Double, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as stack:
        yield lambda key=KEYS[0], world=2: Job(stack, bucket, tmp_path, key, world)


def check(data: pen.Source) -> None:
    assert np.array_equal(data[:]["data"], records(np.arange(COUNT // PARTS)))


def peer_bytes(data: pen.Source) -> int:
    assert data.remote is not None
    return data.remote.peer_bytes


def test_what_a_peer_owns_comes_from_it_and_stays_in_the_cache(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    there, here = ours.open(ours.owner), ours.open(0)
    bucket.clear()
    check(here)
    check(here)
    assert peer_bytes(here) == (COUNT // PARTS) * 1024
    check(there)
    assert peer_bytes(there) == 0
    assert len(bucket.requests()) == 1


def test_a_loader_counts_what_came_from_peers(job: Callable[..., Job]) -> None:
    ours = job()
    ours.open(ours.owner)
    loader = pen.Loader(ours.open(0).in_order(), 50)
    assert sum(len(batch["data"]) for batch in loader) == COUNT // PARTS
    assert loader.stats().network.peer_bytes == (COUNT // PARTS) * 1024
    assert loader.stats().network.bytes == 0


def test_a_peer_that_begins_later_is_waited_for(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    here = ours.open(0)
    reader = threading.Thread(target=check, args=(here,))
    reader.start()
    check(ours.open(ours.owner))
    reader.join()
    assert peer_bytes(here) == (COUNT // PARTS) * 1024


def test_the_next_peer_takes_the_place_of_one_that_is_down(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job(world=3)
    sources = [ours.open(rank, wait_s=0.5) for rank in range(2)]  # and nobody at the address of the owner
    bucket.clear()
    for data in sources:
        check(data)
    assert times_fetched(bucket) - {0} == {1}
    assert sorted(map(peer_bytes, sources)) == [0, (COUNT // PARTS) * 1024]


def test_what_a_peer_that_has_closed_owns_comes_from_the_bucket(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    here = ours.open(0, wait_s=0.5)
    check(here)
    assert peer_bytes(here) == 0


@contextmanager
def stranger(address: str, answer: bytes) -> Iterator[list[bytes]]:
    """Something at the address of a peer that gives every request the same answer, and what it was sent."""
    host, port = address.split(":")
    heard: list[bytes] = []

    def serve(server: socket.socket) -> None:
        streams = []
        while True:
            try:
                stream, _ = server.accept()
            except OSError:
                break
            heard.append(stream.recv(65536))
            stream.sendall(answer)
            streams.append(stream)
        for stream in streams:
            stream.close()

    with socket.create_server((host, int(port))) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield heard
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


SIZE = len(npy(np.arange(COUNT // PARTS)))
WRONG = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nPenstock-Answer: %s\r\n\r\n%s"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="none"),
        pytest.param(WRONG % (SIZE - 128, b"0" * 64, bytes(SIZE - 128)), id="wrong bytes"),
        pytest.param(WRONG % (SIZE - 128, b"\xff", bytes(SIZE - 128)), id="no mac"),
        pytest.param(WRONG % (5, b"0" * 64, b"bytes"), id="too short"),
        pytest.param(WRONG % (SIZE - 128, b"0" * 64, b"bytes"), id="breaks off"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", id="busy"),
    ],
)
def test_nothing_is_taken_from_one_who_does_not_know_the_secret(bucket: Double, job: Callable[..., Job], answer: bytes) -> None:
    ours = job()
    with stranger(ours.addresses[ours.owner], answer) as heard:
        here = ours.open(0, wait_s=0.5)
        check(here)
    assert peer_bytes(here) == 0
    assert heard
    assert SECRET.encode() not in b"".join(heard)


def test_a_process_with_another_secret_is_refused_and_told(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    ours.open(ours.owner)
    with pytest.raises(AccessDeniedError, match="refused the secret"):
        check(ours.open(0, secret="something else altogether"))


def test_a_request_without_the_secret_gets_no_byte(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    data = ours.open(ours.owner)
    check(data)
    ((url, info),) = data.remote.files
    digest = object_digest(url.address, info.etag, info.size).hex()
    host, port = ours.addresses[ours.owner].split(":")
    nonce, peers = "0" * 32, ours.peers(0, serve=False)

    def status(digest: str, first: int, last: int, mac: str, match: str) -> bytes:
        with socket.create_connection((host, int(port))) as stream:
            head = f"GET /{digest} HTTP/1.1\r\nRange: bytes={first}-{last}\r\nIf-Match: {match}\r\nConnection: close\r\n"
            stream.sendall(f"{head}Authorization: penstock {nonce} {mac}\r\n\r\n".encode())
            return b"".join(iter(lambda: stream.recv(65536), b""))[9:12]

    def mac(digest: str, first: int, last: int) -> str:
        return peers.mac("ask", nonce, digest, first, last + 1)

    same = f'"{digest}"'
    assert status(digest, 0, 9, mac(digest, 0, 9), same) == b"206"
    assert status(digest, 0, 9, mac(digest, 0, 8), same) == b"401"
    assert status(digest, 0, 9, "0" * 64, same) == b"401"
    assert status(digest, 0, 9, "", same) == b"401"
    assert status(digest, 0, 9, mac(digest, 0, 9), '"another"') == b"412"
    assert status(digest, 0, info.size, mac(digest, 0, info.size), same) == b"416"
    assert status(digest, 9, 5, mac(digest, 9, 5), same) == b"416"


def test_an_object_that_nobody_opened_is_not_served(job: Callable[..., Job]) -> None:
    ours = job()
    ours.open(ours.owner, wait_s=0.01)
    assert ours.peers(0, serve=False).receive(_origin(ours), "0" * 64, 0, 10, lambda: None) is None


def _origin(ours: Job) -> Any:
    peers = ours.peers(0, serve=False)
    digests = (f"{number:064x}" for number in range(1000))
    return next(others[0] for digest in digests for _, _, others in peers.shares(digest, 0, 1) if others)


def test_wrong_bytes_of_a_peer_that_knows_the_secret_do_not_pass_a_checksum(
    bucket: Double, tmp_path: Path, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Supply.provide

    def lie(self: Supply, start: int, stop: int) -> bytearray:
        data = honest(self, start, stop)
        data[len(data) // 2] ^= 1
        return data

    local = tmp_path / "store"
    pen.convert({"x": records(np.arange(COUNT))}, local)
    for path in (path for path in local.rglob("*") if path.is_file()):
        bucket.put(f"store/{path.relative_to(local)}", path.read_bytes())
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    monkeypatch.setattr(Supply, "provide", lie)
    with ExitStack() as stack:
        options = {"storage_options": bucket.storage_options}
        sources = [
            stack.enter_context(
                pen.open(
                    f"{bucket.base}/store",
                    cache=tmp_path / f"cache-{rank}",
                    peers=stack.enter_context(Peers(addresses, rank, secret=SECRET)),
                    **options,
                )
            )
            for rank in range(2)
        ]
        for data in sources:
            assert np.array_equal(data[:]["x"], records(np.arange(COUNT)))
        assert sum(map(peer_bytes, sources)) > 0


def test_an_object_that_was_replaced_is_an_error(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    ours.open(ours.owner)
    here = ours.open(0)
    bucket.put(KEYS[0], npy(np.arange(7, 7 + COUNT // PARTS)))
    with pytest.raises(ObjectChangedError):
        here[:]
    with pytest.raises(BatchError) as caught:
        next(iter(pen.Loader(here.in_order(), 50)))
    assert isinstance(caught.value.__cause__, ObjectChangedError)


def test_copies_in_other_processes_read_and_serve_nothing(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    check(ours.open(ours.owner))
    here = ours.open(0)
    with pickle.loads(pickle.dumps(here)) as copy:
        check(copy)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(here)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


# What is refused


def test_combinations_that_make_no_sense_are_refused(bucket: Double, tmp_path: Path) -> None:
    url = f"{bucket.http_base}/{KEYS[0]}"
    pen.convert({"x": records(np.arange(3))}, "memory://peers/a.pen")
    bucket.put("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    with Peers([f"127.0.0.1:{free_ports(1)[0]}"], 0, secret=SECRET) as peers:
        with pytest.raises(ValueError, match="peers= needs cache="):
            pen.open(url, peers=peers)
        with pytest.raises(TypeError, match=re.escape("penstock.Peers, got list")):
            pen.open(url, cache=tmp_path / "cache", peers=["127.0.0.1:1"])
        with pytest.raises(ValueError, match="objects in memory"):
            pen.open("memory://peers/a.pen", cache=tmp_path / "cache", peers=peers)
        with pytest.raises(ValueError, match="peers do not share"):
            pen.open(f"{bucket.http_base}/a.h5", cache=tmp_path / "cache", peers=peers)


@pytest.mark.parametrize(
    ("addresses", "rank", "secret", "message"),
    [
        (["a:1"], 1, SECRET, "rank must be in"),
        (["a:1", "a:1"], 0, SECRET, "different ones"),
        ([], 0, SECRET, "different ones"),
        ("a:1", 0, SECRET, "different ones"),
        (["a"], 0, SECRET, "host:port"),
        (["a:0"], 0, SECRET, "host:port"),
        (["a/b:1"], 0, SECRET, "host:port"),
        ([1], 0, SECRET, "host:port"),
        (["a:1"], 0, "short", "at least 16 characters"),
    ],
)
def test_bad_arguments(addresses: Any, rank: int, secret: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Peers(addresses, rank, secret=secret)


def test_an_address_that_is_taken_is_an_error(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    with stranger(ours.addresses[0], b""), pytest.raises(ValueError, match="cannot listen there"):
        ours.open(0)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    with Peers([":7070", "[::1]:7071"], 0, secret=SECRET, serve=False) as peers:
        assert repr(peers) == "Peers([':7070', '[::1]:7071'], 0)"


def test_pieces_are_spread_over_peers_and_all_agree() -> None:
    addresses = [f"host-{number}:7000" for number in range(5)]
    digest = "ab" * 32
    owners = []
    for rank in range(5):
        with Peers(addresses, rank, secret=SECRET, serve=False) as peers:
            shares = list(peers.shares(digest, 1, 200 * (32 << 20)))
        assert shares[0][0] == 1
        assert shares[-1][1] == 200 * (32 << 20)
        owners.append([others[0].netloc if others else addresses[rank] for _, _, others in shares])
    assert all(one == owners[0] for one in owners)
    counts = [owners[0].count(address) for address in addresses]
    assert min(counts) > 20
