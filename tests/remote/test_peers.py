"""Peers: each byte leaves the bucket once in a job; whatever a peer does wrong, the bytes are right, and nobody waits for long."""

import io
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.double import ANY, Double, Fault
from tests.remote.ranks import SECRET, free_ports, ranks, records
from tests.remote.test_ranks import times_fetched

import penstock as pen
from penstock.errors import AccessDeniedError, BatchError, ObjectChangedError, ReadError
from penstock.remote import peers as module
from penstock.remote.cache import object_digest
from penstock.remote.peers import Peers, Supply
from penstock.remote.url import url_path
from penstock.source import ObjectFacts, storage

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
        return self._stack.enter_context(pen.open(self.url, cache=self.cache(rank), peers=peers))

    def cache(self, rank: int) -> Path:
        return self._caches / str(rank)


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


def test_what_a_peer_that_never_begins_owns_comes_from_the_bucket(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    here = ours.open(0, wait_s=0.5)
    check(here)
    assert peer_bytes(here) == 0


@contextmanager
def stranger(address: str, answer: bytes | Callable[[bytes], bytes], *, ends: bool = False) -> Iterator[list[bytes]]:
    """Something at the address of a peer that answers the first request of every connection, and what it was sent."""
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
            stream.sendall(answer if isinstance(answer, bytes) else answer(heard[-1]))
            if ends:
                stream.close()
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

    def status(first: int, last: int, mac: str, more: str = "") -> bytes:
        with socket.create_connection((host, int(port))) as stream:
            head = f"GET /{digest} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={first}-{last}\r\n"
            stream.sendall(f"{head}Authorization: penstock {nonce} {mac}\r\n{more}\r\n".encode())
            return stream.recv(12)[9:]

    def mac(first: int, last: int) -> str:
        return peers.mac("ask", nonce, digest, first, last + 1)

    assert status(0, 9, mac(0, 9)) == b"206"
    assert status(0, 9, mac(0, 8)) == b"401"
    assert status(0, 9, "0" * 64) == b"401"
    assert status(0, 9, "") == b""
    assert status(0, 9, mac(0, 9), "X-More: 1\r\n") == b""
    assert status(0, info.size, mac(0, info.size)) == b"416"
    assert status(9, 5, mac(9, 5)) == b"416"


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

    def lie(self: Supply, start: int, stop: int, ask: Callable[[], None]) -> bytearray:
        data = honest(self, start, stop, ask)
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


# What a server endures


def request_for(ours: Job, data: pen.Source, first: int, last: int) -> bytes:
    """A request that the owner of an object answers."""
    ((url, info),) = data.remote.files
    digest, nonce = object_digest(url.address, info.etag, info.size).hex(), "0" * 32
    login = ours.peers(0, serve=False).mac("ask", nonce, digest, first, last + 1)
    return (
        f"GET /{digest} HTTP/1.1\r\nHost: {ours.addresses[ours.owner]}\r\nRange: bytes={first}-{last}\r\n"
        f"Authorization: penstock {nonce} {login}\r\n\r\n"
    ).encode()


def connection(ours: Job) -> socket.socket:
    host, port = ours.addresses[ours.owner].split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ends_within(seconds: float, action: Callable[[], object]) -> bool:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_close_does_not_wait_for_a_bucket_that_does_not_answer(bucket: Double, job: Callable[..., Job]) -> None:
    ours, gate, waits = job(), threading.Event(), threading.Event()
    peers = ours.peers(ours.owner)
    with pen.open(ours.url, cache=ours.cache(ours.owner), peers=peers) as there, connection(ours) as stream:
        bucket.plan("GET", KEYS[0], Fault(gate=gate, asked=waits), times=1000)
        stream.sendall(request_for(ours, there, 200, 299))
        assert waits.wait(60)
        assert ends_within(20, peers.close)
        gate.set()


def test_close_does_not_wait_for_an_object_that_is_not_opened(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, waits, find = job(), threading.Event(), Peers.find
    monkeypatch.setattr(Peers, "find", lambda self, digest: (waits.set(), find(self, digest))[1])
    peers = ours.peers(ours.owner, wait_s=10_000)
    with pen.open(ours.url, cache=ours.cache(ours.owner), peers=peers) as there, connection(ours) as stream:
        peers._supplies.clear()
        stream.sendall(request_for(ours, there, 200, 299))
        assert waits.wait(60)
        assert ends_within(20, peers.close)


def test_an_idle_connection_ends_although_a_forked_child_has_a_copy(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 1.0)
    ours = job()
    there = ours.open(ours.owner)
    asleep, wake = os.pipe()
    with connection(ours) as stream:
        stream.sendall(request_for(ours, there, 200, 299))
        assert stream.recv(9) == b"HTTP/1.1 "
        child = os.fork()
        if child == 0:
            os.read(asleep, 1)
            os._exit(0)
        try:
            while stream.recv(65536):  # a client that is not told asks there, and waits in vain
                pass
        finally:
            os.write(wake, b".")
            os.waitpid(child, 0)
            os.close(asleep)
            os.close(wake)


def test_a_head_without_an_end_is_not_read(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 1000.0)
    ours = job()
    ours.open(ours.owner)
    with connection(ours) as stream, suppress(ConnectionError):
        stream.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 50_000 + b"\r\n")
        while stream.recv(65536):
            pass


def test_a_client_that_sends_byte_by_byte_is_not_waited_for(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.3)
    ours = job()
    ours.open(ours.owner)
    sent = 0
    with connection(ours) as stream, suppress(ConnectionError):
        stream.settimeout(0.02)
        while sent < 1000:
            sent += 1
            stream.sendall(b"G")
            with suppress(TimeoutError):
                assert stream.recv(1) == b""
                break
    assert sent < 1000


def test_strangers_that_only_connect_take_no_place_of_a_peer(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 3)
    ours = job()
    check(ours.open(ours.owner))
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connection(ours))
        here = ours.open(0)
        check(here)
        assert peer_bytes(here) == (COUNT // PARTS) * 1024


def test_answers_that_are_in_memory_at_a_time_are_few(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ANSWERS", 2)
    ours, honest, running, most = job(), Supply.provide, list[int](), list[int]()

    def provide(self: Supply, *arguments: Any) -> bytearray:
        running.append(0)
        most.append(len(running))
        data = honest(self, *arguments)
        running.pop()
        return data

    there = ours.open(ours.owner)
    monkeypatch.setattr(Supply, "provide", provide)
    with ExitStack() as stack:
        streams = [stack.enter_context(connection(ours)) for _ in range(20)]
        for stream in streams:
            stream.sendall(request_for(ours, there, 200, 299))
        for stream in streams:
            assert stream.recv(65536).startswith(b"HTTP/1.1 206")
    assert len(most) == 20
    assert max(most) <= 2


def test_connections_that_come_and_go_leave_nothing(job: Callable[..., Job]) -> None:
    ours = job()
    before, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    peers = ours.peers(ours.owner)
    with pen.open(ours.url, cache=ours.cache(ours.owner), peers=peers) as there:
        asked = request_for(ours, there, 200, 299)
        for number in range(300):
            with connection(ours) as stream:
                stream.sendall(asked[: number % len(asked)])
    peers.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"penstock-fetch"}
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # a connection to the bucket


def test_a_connection_that_ended_while_it_was_idle_is_no_fault_of_the_peer(bucket: Double, job: Callable[..., Job]) -> None:
    ours = job()
    data = npy(np.arange(COUNT // PARTS))
    peers = ours.peers(0, serve=False)

    def answer(asked: bytes) -> bytes:
        digest, first, last, nonce = re.match(
            rb"GET /(\w+) .*Range: bytes=(\d+)-(\d+).*penstock (\w{32}) ", asked, re.DOTALL
        ).groups()
        body = data[int(first) : int(last) + 1]
        mac = peers.mac("answer", nonce.decode(), digest.decode(), int(first), int(last) + 1, module._crc(bytearray(body)))
        return WRONG % (len(body), mac.encode(), body)

    ends: list[bytes] = [b""]
    with stranger(ours.addresses[ours.owner], lambda asked: ends.pop() if ends else answer(asked), ends=True):
        here = ours.open(0)
        check(here)
    assert peer_bytes(here) == (COUNT // PARTS) * 1024


def test_a_source_that_is_closed_during_a_wait_is_no_fault_of_the_peer(job: Callable[..., Job]) -> None:
    ours, waits = job(), threading.Event()
    peers, origin = ours.peers(0, serve=False), _origin(ours)
    answers = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b""]

    def answer(asked: bytes) -> bytes:
        if not answers:
            waits.set()
            gate.wait(60)
        return answers.pop(0) if answers else b""

    def closed() -> None:
        if waits.is_set():
            raise ReadError("closed")

    gate = threading.Event()
    with stranger(ours.addresses[ours.owner], answer, ends=True):
        assert peers.receive(origin, "0" * 64, 0, 10, closed) is None
        with pytest.raises(ReadError, match="closed"):
            peers.receive(origin, "0" * 64, 0, 10, closed)
        gate.set()
    asked = {other for number in range(100) for _, _, others in peers.shares(f"{number:064x}", 0, 1) for other in others}
    assert asked == {origin}


# The table of the documentation


def test_a_peer_that_closes_is_replaced_by_the_bucket_and_asked_again_later(
    bucket: Double, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = job()
    first = ours.peers(ours.owner)
    here = ours.open(0)
    with pen.open(ours.url, cache=ours.cache(ours.owner), peers=first):
        assert np.array_equal(here[:10]["data"], records(np.arange(10)))
        received = peer_bytes(here)
        assert received > 0
    first.close()
    assert np.array_equal(here[100:110]["data"], records(np.arange(100, 110)))
    assert peer_bytes(here) == received
    ours.open(ours.owner)
    assert np.array_equal(here[110:120]["data"], records(np.arange(110, 120)))
    assert peer_bytes(here) == received  # it is not asked for 30 s
    monkeypatch.setattr(module.time, "monotonic", lambda at=module.time.monotonic: at() + module.REST_S)
    assert np.array_equal(here[200:210]["data"], records(np.arange(200, 210)))
    assert peer_bytes(here) > received


def test_what_was_evicted_comes_from_the_bucket_again(bucket: Double, tmp_path: Path) -> None:
    urls, addresses = [f"{bucket.http_base}/{key}" for key in KEYS[:3]], [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ExitStack() as stack:
        sources = []
        for rank in range(2):
            peers = stack.enter_context(Peers(addresses, rank, secret=SECRET))
            options = {"cache": tmp_path / str(rank), "cache_bytes": 2 * SIZE, "peers": peers, "window_bytes": "1MiB"}
            sources.append(stack.enter_context(pen.open(urls, **options)))
        for _ in range(2):
            for data in sources:
                for start in range(0, len(data), 250):
                    assert np.array_equal(data[start : start + 250]["data"], records(np.arange(start, start + 250)))
    assert max(times_fetched(bucket)) > 1


@dataclass(frozen=True)
class Shelf:
    """A storage of a user's, with etags or without."""

    root: str
    has_etags: bool

    def info(self, key: str) -> ObjectFacts:
        found = os.stat(f"{self.root}/{key}")
        return ObjectFacts(found.st_size, str(found.st_mtime_ns) if self.has_etags else None, found.st_mtime)

    def read(self, key: str, start: int, stop: int) -> bytes:
        with open(f"{self.root}/{key}", "rb") as file:
            file.seek(start)
            return file.read(stop - start)


@pytest.mark.parametrize("has_etags", [True, False])
def test_objects_are_shared_if_they_have_an_etag(tmp_path: Path, has_etags: bool) -> None:
    (tmp_path / "x.npy").write_bytes(npy(np.arange(COUNT // PARTS)))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    place = storage(Shelf(str(tmp_path), has_etags)) / "x.npy"
    with ExitStack() as stack:
        sources = []
        for rank in range(2):
            peers = stack.enter_context(Peers(addresses, rank, secret=SECRET))
            sources.append(stack.enter_context(pen.open(place, cache=tmp_path / str(rank), peers=peers)))
        for data in sources:
            check(data)
        assert sum(map(peer_bytes, sources)) == has_etags * (COUNT // PARTS) * 1024


@pytest.mark.parametrize("host", ["localhost", "[::1]", ""])
def test_addresses_of_every_kind(bucket: Double, tmp_path: Path, host: str) -> None:
    url, addresses = f"{bucket.http_base}/{KEYS[0]}", [f"{host}:{port}" for port in free_ports(2)]
    with ExitStack() as stack:
        sources = [
            stack.enter_context(
                pen.open(url, cache=tmp_path / str(rank), peers=stack.enter_context(Peers(addresses, rank, secret=SECRET)))
            )
            for rank in range(2)
        ]
        for data in sources:
            check(data)
        assert sum(map(peer_bytes, sources)) == (COUNT // PARTS) * 1024


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
        (["a"], 0, SECRET, "host:port"),
        (["a:0"], 0, SECRET, "host:port"),
        (["a/b:1"], 0, SECRET, "host:port"),
        ([1], 0, SECRET, "host:port"),
        ([":7", "127.0.0.1:7"], 0, SECRET, "different ones"),
        (["a:1"], 0, "short", "at least 16 characters"),
    ],
)
def test_bad_arguments(addresses: Any, rank: int, secret: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Peers(addresses, rank, secret=secret)


@pytest.mark.parametrize("wait_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_wait_that_is_none_or_has_no_end_is_refused(wait_s: float) -> None:
    with pytest.raises(ValueError, match="wait_s must be more than 0"):
        Peers(["a:1"], 0, secret=SECRET, wait_s=wait_s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"addresses": "a:1"}, "addresses must be a list"),
        ({"addresses": None}, "addresses must be a list"),
        ({"addresses": {"a:1"}}, "addresses must be a list"),
        ({"rank": "0"}, "rank must be a whole number"),
        ({"secret": SECRET.encode()}, "secret must be a text, got bytes"),
        ({"secret": None}, "secret must be a text"),
        ({"wait_s": "15"}, "wait_s must be a number"),
        ({"wait_s": None}, "wait_s must be a number"),
    ],
)
def test_wrong_types(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"addresses": ["a:1"], "rank": 0, "secret": SECRET, **arguments}
    with pytest.raises(TypeError, match=message):
        Peers(given.pop("addresses"), given.pop("rank"), **given)


def test_a_host_that_does_not_exist_is_an_error(bucket: Double, tmp_path: Path) -> None:
    for name in ("no-such-host.invalid", f"{'x' * 70}.invalid"):
        with (
            Peers([f"{name}:7070"], 0, secret=SECRET) as peers,
            pytest.raises(ValueError, match=r"cannot listen there \(no such host\)"),
        ):
            pen.open(f"{bucket.http_base}/{KEYS[0]}", cache=tmp_path, peers=peers)


def test_a_secret_that_is_no_text_of_unicode_is_taken() -> None:
    with Peers([":7070"], 0, secret="\udcff" * 16, serve=False) as peers:  # a variable of the environment with such a byte
        assert len(peers.mac("ask")) == 64


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
