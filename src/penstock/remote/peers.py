"""Where the bytes of an object come from: the disk cache, a peer, or the object store; from the last once in a whole job.

Peers are the processes of a job. Every piece of an object has an owner among them, the one with the highest hash of the piece and
its address (rendezvous hashing): all agree without talking to each other, and where one is down, the next in that order takes its
place. The owner fetches from the object store what is asked of it, keeps it in its cache and serves it to the others::

    GET /<digest of address, version and size> HTTP/1.1
    Range: bytes=<first>-<last>
    If-Match: "<digest>"
    Authorization: penstock <nonce> <mac of "ask", nonce, digest and range>

    206, Content-Range, ETag: "<digest>"
    Penstock-Answer: <mac of "answer", nonce, digest, range and crc32c of the body>

The key of both macs is the secret of the job, which is never sent. A process serves only objects that it has opened itself.
Everything that a peer does wrong, and everything that takes too long, ends with a request to the object store.

No deadlock: who serves waits for the object store, never for a peer.
"""

import atexit
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.argument import whole_number
from penstock.errors import AccessDeniedError
from penstock.interrupt import shielded
from penstock.native import _core
from penstock.process import ForkAware
from penstock.remote.cache import Cache, Extent, object_digest
from penstock.remote.fetch import FailedError, Policy
from penstock.remote.objects import ObjectInfo
from penstock.remote.residency import GAP_BYTES, PIECE_BYTES
from penstock.remote.url import UrlPath

if TYPE_CHECKING:
    from penstock.remote.http_client import Connection, Origin

__all__ = ["Peers", "Sink", "Supply"]

OWNED_BYTES = 4 * PIECE_BYTES
"""The size of the pieces that have an owner each: few requests have parts of two."""

MOST_ASKED = 2
"""Peers that are asked for a range before the object store is."""

REST_S = 30.0
"""A peer that did not answer is not asked for this long."""

IDLE_S = 30.0
"""An idle connection is closed after this long."""

MOST_CONNECTIONS = 1024
LEAST_SECRET = 16
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_LOGIN = re.compile(r"penstock ([0-9a-f]{32}) ([0-9a-f]{64})")
_ANSWER = "Penstock-Answer"

Count = Callable[[str, int], None]
"""Is told that bytes came: "fetched" from the object store, "cached" from the disk or "received" from a peer."""


# One object


class Sink(Protocol):
    """Where bytes go, and can be read back."""

    def write(self, offset: int, data: Any) -> None: ...
    def read(self, start: int, stop: int) -> bytes | memoryview: ...


class _Block:
    """Bytes [start, stop) of an object, in memory."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self.data = start, bytearray(stop - start)

    def write(self, offset: int, data: Any) -> None:
        self.data[offset - self._start : offset - self._start + len(data)] = data

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self.data)[start - self._start : stop - self._start]


@dataclass(frozen=True, slots=True)
class Supply:
    """The bytes of one object. ``identity`` is its version for caches and peers; None: no version is known, and neither is used."""

    url: UrlPath
    info: ObjectInfo
    cache: Cache | None = None
    identity: str | None = None
    peers: "Peers | None" = None

    def bring(self, start: int, stop: int, sink: Sink, count: Count, ask: Callable[[], None]) -> None:
        """Write all of [start, stop). ``ask`` is called during waits, and ends them if it raises."""
        if self.cache is None or self.identity is None:
            return self._fetch(start, stop, sink, count)
        if self._read(start, stop, sink, count):
            return
        shares = [(start, stop, ())] if self.peers is None else self.peers.shares(self._digest, start, stop)
        for low, high, others in shares:
            self._obtain(low, high, sink, count, ask, others)

    def provide(self, start: int, stop: int) -> bytearray:
        """The bytes [start, stop), for a peer."""
        block = _Block(start, stop)
        if not self._read(start, stop, block, _ignore):
            self._obtain(start, stop, block, _ignore, lambda: None, ())
        return block.data

    @property
    def _digest(self) -> str:
        return object_digest(self.url.address, self.identity, self.info.size).hex()

    def _obtain(self, start: int, stop: int, sink: Sink, count: Count, ask: Callable[[], None], others: Sequence["Origin"]) -> None:
        """Write what another process has not brought into the cache meanwhile, from the first of the peers that has it."""
        assert self.cache is not None
        # One who waits for a peer has a claim of another kind: a peer with the same cache fetches under the usual one.
        kind = 1 if others else 0
        with self.cache.claimed(self.url.address, self.identity, self.info.size, start, stop, ask, kind) as there:
            # A small part in the middle costs less than a second request.
            kept = [part for part in there if part[0] == start or part[1] == stop or part[1] - part[0] > GAP_BYTES]
            for low, high in _holes(start, stop, kept):
                if not others:
                    self._fetch(low, high, sink, count)
                elif not self._receive(low, high, sink, count, ask, others):
                    self._obtain(low, high, sink, count, ask, ())
            for low, high in kept:
                if not self._read(low, high, sink, count):
                    self._fetch(low, high, sink, count)

    def _read(self, start: int, stop: int, sink: Sink, count: Count) -> bool:
        """From the disk cache; False if something is missing."""
        cache = self.cache
        if cache is None or not cache.read_into(self.url.address, self.identity, self.info.size, start, stop, sink.write):
            return False
        count("cached", stop - start)
        return True

    def _receive(
        self, start: int, stop: int, sink: Sink, count: Count, ask: Callable[[], None], others: Sequence["Origin"]
    ) -> bool:
        """From a peer; False if none gives it."""
        assert self.peers is not None
        for origin in others:
            data = self.peers.receive(origin, self._digest, start, stop, ask)
            if data is not None:
                sink.write(start, data)
                count("received", stop - start)
                self._keep(start, data)
                return True
        return False

    def _fetch(self, start: int, stop: int, sink: Sink, count: Count) -> None:
        """From the object store."""
        self.url.objects.read_into(self.info, start, stop, sink.write)
        count("fetched", stop - start)
        if self.cache is not None:
            self._keep(start, sink.read(start, stop))

    def _keep(self, start: int, data: bytes | bytearray | memoryview) -> None:
        if self.cache is not None:
            self.cache.add(self.url.address, self.identity, self.info.size, start, data)

    def drop(self, start: int, stop: int) -> None:
        """Mark bytes in the cache as the first to evict."""
        if self.cache is not None:
            self.cache.drop(self.url.address, self.identity, self.info.size, start, stop)

    def forget(self, start: int, stop: int) -> None:
        """Remove bytes from the cache, because they are wrong."""
        if self.cache is not None:
            self.cache.remove(self.url.address, self.identity, self.info.size, start, stop)


def _ignore(kind: str, num_bytes: int) -> None:
    """Bytes for a peer are not counted here."""


def _holes(start: int, stop: int, parts: Sequence[Extent]) -> Iterator[Extent]:
    """What disjoint parts of a range, in order, leave of it."""
    edges = [start, *chain.from_iterable(parts), stop]
    return ((low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high)


# All peers


class Peers(ForkAware):
    """The processes of a job, which fetch each byte from the object store once and pass it on to each other.

    ``addresses`` has the ``host:port`` of every process, in the same order everywhere, ``rank`` is the place of this one, and
    ``secret`` at least 16 characters that all have and nobody else. The server of this process listens at its own address, from the
    first source that is opened until ``close``; ``:port`` is one on loopback. With ``serve=False`` another process of this host,
    with the same cache and rank, does so. A peer that takes longer than ``wait_s`` is not waited for: what it owns is fetched from
    the object store.

    Use it for all sources of a process, and keep it open until all processes have read what they need. Safe to use from several
    threads. A copy in another process (pickled, or forked) serves nothing.

    >>> peers = Peers(["10.0.0.1:7070", "10.0.0.2:7070"], rank=1, secret="one secret for the whole job")
    >>> peers  # for penstock.open("s3://...", cache="/local/cache", peers=peers)
    Peers(['10.0.0.1:7070', '10.0.0.2:7070'], 1)
    >>> peers.close()
    """

    def __init__(self, addresses: Sequence[str], rank: int, *, secret: str, serve: bool = True, wait_s: float = 15.0) -> None:
        if isinstance(addresses, str) or len(set(addresses)) != len(addresses) or not addresses:
            raise ValueError(f"expected addresses to be different ones, host:port of each process, got {ascii(addresses)[:200]}")
        if not isinstance(secret, str) or len(secret) < LEAST_SECRET:
            raise ValueError(f"expected a secret of at least {LEAST_SECRET} characters, the same for all processes of the job")
        if not wait_s > 0:
            raise ValueError(f"expected wait_s to be more than 0 seconds, got {wait_s}")
        self._addresses, self._origins = tuple(addresses), tuple(map(_origin, addresses))
        self._rank = whole_number("rank", rank, least=0, most=len(addresses) - 1)
        self._secret, self._wait_s, self._serve = secret, float(wait_s), serve
        self._key = hashlib.sha256(f"penstock peers: {secret}".encode()).digest()
        self._supplies: dict[str, Supply] = {}
        self._server: _Server | None = None
        self._owner = os.getpid()
        super().__init__()

    def _begin(self) -> None:
        from penstock.remote.http_client import Pool  # here, because asyncio, http and ssl take as long to load as half of numpy

        # No proxy, whatever the environment says.
        policy = Policy(connect_s=min(5.0, self._wait_s), read_s=self._wait_s)
        self._pool: Pool = Pool({"proxy_url": ""}, policy)
        weakref.finalize(self, self._pool.close)  # nobody closes a copy
        self._began = time.monotonic()
        self._down: dict[Origin, float] = {}
        self._has_answered: set[Origin] = set()
        self._is_new = threading.Condition(self._lock)
        if self._owner != os.getpid():
            self._serve = False
            if self._server is not None:
                self._server.socket.close()
                self._server = None

    def left_behind(self) -> None:
        """In a forked child: the server is the parent's."""
        self._here()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Peers, secret=self._secret, serve=False, wait_s=self._wait_s), (self._addresses, self._rank)

    def __repr__(self) -> str:
        return f"Peers({list(self._addresses)}, {self._rank})"

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve nothing any more, and close all connections. Idempotent."""
        with self._here():
            server, self._server = self._server, None
            self._supplies.clear()
            self._serve = False
        if server is not None:
            server.close()
        self._pool.close()

    def add(self, supplies: Sequence[Supply]) -> None:
        """Serve objects from now on. ValueError if the address of this process is not its own, or taken."""
        with self._here():
            if self._serve and self._server is None:
                self._server = _Server(self, self._origins[self._rank])
                _open.add(self)
            for one in supplies if self._serve else ():
                if one.identity is not None:
                    self._supplies[object_digest(one.url.address, one.identity, one.info.size).hex()] = one
            self._is_new.notify_all()

    # Asking

    def shares(self, digest: str, start: int, stop: int) -> Iterator[tuple[int, int, tuple["Origin", ...]]]:
        """The parts of a range by owner, and which peers to ask for each, in this order; none where this process fetches it."""
        self._here()
        for piece in range(start // OWNED_BYTES, -(-stop // OWNED_BYTES)):
            low, high = max(start, piece * OWNED_BYTES), min(stop, (piece + 1) * OWNED_BYTES)
            order = sorted(range(len(self._origins)), key=lambda rank: self._weight(digest, piece, rank), reverse=True)
            now = time.monotonic()
            others = (self._origins[rank] for rank in takewhile(lambda rank: rank != self._rank, order))
            yield low, high, tuple(islice((one for one in others if self._down.get(one, now) <= now), MOST_ASKED))

    def _weight(self, digest: str, piece: int, rank: int) -> bytes:
        return hashlib.blake2b(f"{digest} {piece} {self._addresses[rank]}".encode(), digest_size=16).digest()

    def receive(self, origin: "Origin", digest: str, start: int, stop: int, ask: Callable[[], None]) -> bytearray | None:
        """A range from a peer; None if it does not give it in time. AccessDeniedError if it has another secret."""
        self._here()
        until = time.monotonic() + self._wait_s
        for number in range(1_000_000):
            try:
                data = self._exchange(origin, digest, start, stop, until, ask)
                self._has_answered.add(origin)
                return data
            except _RefusedError:
                if origin not in self._has_answered:
                    raise AccessDeniedError(
                        f"the peer at {origin.netloc} refused the secret of this process: give the same to all, and look what "
                        "else may have that address"
                    ) from None
                break
            except (TimeoutError, FailedError, OSError, ValueError, _WrongError) as error:
                # A connection may end while it is idle, and a peer that was never heard of may not have begun yet.
                is_new = origin not in self._has_answered and time.monotonic() < self._began + self._wait_s
                if isinstance(error, TimeoutError | _WrongError) or time.monotonic() >= until or (number > 0 and not is_new):
                    break
            ask()
            time.sleep(0.05 if number else 0.0)
        self._down[origin] = time.monotonic() + REST_S
        return None

    def _exchange(
        self, origin: "Origin", digest: str, start: int, stop: int, until: float, ask: Callable[[], None]
    ) -> bytearray | None:
        """The answer of a peer: bytes, or None if it has none of that object."""
        nonce = secrets.token_hex(16)
        connection = self._pool.take(origin)
        try:
            connection.deadline = until
            connection.send(
                f'GET /{digest} HTTP/1.1\r\nHost: {origin.netloc}\r\nRange: bytes={start}-{stop - 1}\r\nIf-Match: "{digest}"\r\n'
                f"Authorization: penstock {nonce} {self.mac('ask', nonce, digest, start, stop)}\r\n\r\n".encode()
            )
            _wait(connection, until, ask)
            data = self._answer(connection, nonce, digest, start, stop)
        except BaseException:
            connection.close()
            raise
        if data is None:
            connection.close()
        else:
            self._pool.give_back(origin, connection)
        return data

    def _answer(self, connection: "Connection", nonce: str, digest: str, start: int, stop: int) -> bytearray | None:
        import http.client

        try:
            response = connection.answer("GET")
            if response.status == 401:
                raise _RefusedError
            if response.status != 206:
                return None
            data = bytearray(stop - start)
            if response.length != len(data):
                raise _WrongError
            view, at = memoryview(data), 0
            while at < len(data):
                count = response.readinto(view[at:])
                if not count:
                    raise _WrongError
                at += count
        except http.client.HTTPException:
            raise _WrongError from None
        expected = self.mac("answer", nonce, digest, start, stop, _crc(data))
        if not hmac.compare_digest(expected, response.headers.get(_ANSWER, "").encode("ascii", "replace").decode()):
            raise _WrongError
        return data

    def mac(self, *parts: object) -> str:
        """What only one who knows the secret can say."""
        return hmac.new(self._key, " ".join(map(str, parts)).encode(), "sha256").hexdigest()

    # Serving

    def find(self, digest: str) -> Supply | None:
        """An object that this process has opened; waits for it while the job begins."""
        with self._here():
            self._is_new.wait_for(
                lambda: digest in self._supplies or not self._serve, max(0.0, self._began + self._wait_s / 2 - time.monotonic())
            )
            return self._supplies.get(digest)


class _RefusedError(Exception):
    """A peer does not accept the secret."""


class _WrongError(Exception):
    """An answer that no peer gives."""


def _origin(address: str) -> "Origin":
    from penstock.remote.http_client import Origin

    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if re.fullmatch("[1-9][0-9]{0,4}", port) and int(port) < 1 << 16 and re.fullmatch(r"[\w.-]*|\[[0-9a-fA-F:]+\]", host, re.ASCII):
        return Origin("http", host.strip("[]") or "127.0.0.1", int(port))
    raise ValueError(f"expected the address of a peer as host:port, got {ascii(address)[:100]}")


def _wait(connection: "Connection", until: float, ask: Callable[[], None]) -> None:
    """Wait for the first byte of an answer."""
    poll = select.poll()
    poll.register(connection.stream, select.POLLIN)
    while not poll.poll(200):
        ask()
        if time.monotonic() >= until:
            raise TimeoutError


def _crc(data: bytearray) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))


class _Server:
    """Answers peers, a thread for each connection."""

    def __init__(self, peers: Peers, origin: "Origin") -> None:
        self._peers = peers
        family = socket.AF_INET6 if ":" in origin.host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((origin.host, origin.port))
            self.socket.listen(128)
        except OSError as error:
            self.socket.close()
            raise ValueError(
                f"{origin.netloc}: this process cannot listen there ({error.strerror}); rank must be its place in addresses, and "
                "no other process may have the address"
            ) from None
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="penstock-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            threads, streams = [self._thread, *self._connections], [self.socket, *self._connections.values()]
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)  # which ends an accept or a read in another thread
        for thread in threads:
            thread.join()
        self.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self.socket.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # no more descriptors, for instance
                continue
            thread = threading.Thread(target=self._serve, args=(stream,), name="penstock-peer", daemon=True)
            with self._lock:
                is_welcome = not self._is_closed and len(self._connections) < MOST_CONNECTIONS
                if is_welcome:
                    self._connections[thread] = stream
            try:
                if is_welcome:
                    thread.start()
                    continue
            except RuntimeError:  # no more threads
                with self._lock:
                    self._connections.pop(thread)
            stream.close()

    def _serve(self, stream: socket.socket) -> None:
        from http.server import BaseHTTPRequestHandler

        peers = self._peers

        class Handler(BaseHTTPRequestHandler):
            protocol_version, timeout, disable_nagle_algorithm = "HTTP/1.1", IDLE_S, True

            def do_GET(self) -> None:
                status, headers, body = _answer_to(peers, self.path, self.headers)
                self.send_response_only(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        try:
            with contextlib.suppress(OSError, ValueError), stream:
                Handler(stream, stream.getpeername(), self)  # type: ignore[arg-type]
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread())


def _answer_to(peers: Peers, path: str, asked: Any) -> tuple[int, dict[str, str], bytes | bytearray]:
    """Status, headers and body of the answer to a request."""
    digest, login, wanted = path[1:], _LOGIN.fullmatch(asked.get("Authorization", "")), _RANGE.fullmatch(asked.get("Range", ""))
    if login is None or wanted is None:
        return 401, {}, b""
    start, stop = int(wanted[1]), int(wanted[2]) + 1
    if not hmac.compare_digest(login[2], peers.mac("ask", login[1], digest, start, stop)):
        return 401, {}, b""
    if asked.get("If-Match") != f'"{digest}"':
        return 412, {}, b""
    supply = peers.find(digest)
    if supply is None:
        return 404, {}, b""
    if not start < stop <= supply.info.size or stop - start > OWNED_BYTES:
        return 416, {}, b""
    try:
        data = supply.provide(start, stop)
    except Exception:  # who asked finds out from the object store what is wrong
        return 503, {}, b""
    return (
        206,
        {
            "ETag": f'"{digest}"',
            "Content-Range": f"bytes {start}-{stop - 1}/{supply.info.size}",
            _ANSWER: peers.mac("answer", login[1], digest, start, stop, _crc(data)),
        },
        data,
    )


_open: "weakref.WeakSet[Peers]" = weakref.WeakSet()


@atexit.register
@shielded
def _close_all() -> None:
    """No thread may be in a request when the interpreter ends."""
    for peers in list(_open):
        peers.close()


def _after_fork() -> None:
    """The socket of the parent's server must not stay open in a child, which does not answer."""
    for peers in list(_open):
        peers.left_behind()


os.register_at_fork(after_in_child=_after_fork)
