"""Where the bytes of an object come from: the disk cache, a peer, or the object store; from the last once in a whole job.

Peers are the processes of a job. Every piece of an object has an owner among them, the one with the highest hash of the piece and
its address (rendezvous hashing): all agree without talking to each other, and where one is down, the next in that order takes its
place. The owner fetches from the object store what is asked of it, keeps it in its cache and serves it to the others::

    GET /<digest of address, version and size> HTTP/1.1
    Host: <host>
    Range: bytes=<first>-<last>
    Authorization: penstock <nonce> <mac of "ask", nonce, digest and range>

    HTTP/1.1 206 Partial Content
    Content-Length: <bytes>
    Penstock-Answer: <mac of "answer", nonce, digest, range and crc32c of the body>

The key of both macs is the secret of the job, which is never sent. A request is exactly these lines; any other is refused. A
process serves only objects that it has opened itself. Everything that a peer does wrong, and everything that takes too long, ends
with a request to the object store.

No deadlock: a thread that serves waits for the object store, never for a peer.
"""

import atexit
import contextlib
import hashlib
import hmac
import itertools
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
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

import numpy as np

from penstock.argument import shown, whole_number
from penstock.errors import AccessDeniedError, ReadError
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
"""A connection is closed if no whole request came for this long."""

MOST_CONNECTIONS = 256
"""Connections to a server. A new one beyond that ends the one that has been idle for longest; if none is idle, it is refused."""

MOST_ANSWERS = 32
"""Answers of a server that are in memory at a time, of at most 8 MiB each if peers ask for them."""

CLOSE_S = 30.0
"""The longest wait for the threads of a server when it is closed."""

MOST_WAIT_S = 86_400.0
LEAST_SECRET = 16
HEAD_BYTES = 1024
_REQUEST = re.compile(
    r"GET /([0-9a-f]{64}) HTTP/1\.1\r\nHost: [!-~]{1,300}\r\nRange: bytes=([0-9]{1,18})-([0-9]{1,18})\r\n"
    r"Authorization: penstock ([0-9a-f]{32}) ([0-9a-f]{64})\r\n\r\n"
)
_ANSWER = "Penstock-Answer"

Count = Callable[[str, int], None]
"""Counts bytes: "fetched" from the object store, "cached" on the disk or "received" from a peer."""


# One object


class Sink(Protocol):
    """Where bytes go, and can be read back. One that has ``receive`` (``fetch.Receive``) takes them from a socket, too."""

    def write(self, offset: int, data: Any) -> None: ...
    def read(self, start: int, stop: int) -> bytes | memoryview: ...


class _Block:
    """Bytes [start, stop) of an object, in memory. ``ask`` is called with every write, and also while none arrive."""

    def __init__(self, start: int, stop: int, ask: Callable[[], None]) -> None:
        self._start, self._ask, self.data = start, ask, bytearray(stop - start)

    def write(self, offset: int, data: Any) -> None:
        self._ask()
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
        shares = [(start, stop, ())] if self.peers is None else self.peers.shares(self.digest, start, stop)
        for low, high, others in shares:
            self._obtain(low, high, sink, count, ask, others)

    def provide(self, start: int, stop: int, ask: Callable[[], None]) -> bytearray:
        """The bytes [start, stop), for a peer. ``ask`` is called during waits, and ends them if it raises."""
        block = _Block(start, stop, ask)
        if not self._read(start, stop, block, _ignore):
            self._obtain(start, stop, block, _ignore, ask, ())
        return block.data

    @property
    def digest(self) -> str:
        """The name of the object for peers."""
        return object_digest(*self._key).hex()

    @property
    def _key(self) -> tuple[str, str | None, int]:
        """The name of the object for the cache."""
        return self.url.address, self.identity, self.info.size

    def _obtain(self, start: int, stop: int, sink: Sink, count: Count, ask: Callable[[], None], others: Sequence["Origin"]) -> None:
        """Write a range that the cache does not have: from the first of ``others`` that gives it, or else from the object store."""
        assert self.cache is not None
        # A thread that waits for a peer has another kind of claim: the peer may have the same cache, and claims the range too.
        kind = 1 if others else 0
        with self.cache.claimed(*self._key, start, stop, ask, kind) as there:  # what others have fetched during the wait
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
        assert self.cache is not None
        if not self.cache.read_into(*self._key, start, stop, sink.write):
            return False
        count("cached", stop - start)
        return True

    def _receive(
        self, start: int, stop: int, sink: Sink, count: Count, ask: Callable[[], None], others: Sequence["Origin"]
    ) -> bool:
        """From a peer; False if none gives it."""
        assert self.peers is not None
        assert self.cache is not None
        for origin in others:
            data = self.peers.receive(origin, self.digest, start, stop, ask)
            if data is not None:
                sink.write(start, data)
                count("received", stop - start)
                self.cache.add(*self._key, start, data)
                return True
        return False

    def _fetch(self, start: int, stop: int, sink: Sink, count: Count) -> None:
        """From the object store."""
        self.url.objects.read_into(self.info, start, stop, sink.write, getattr(sink, "receive", None))
        count("fetched", stop - start)
        if self.cache is not None:
            self.cache.add(*self._key, start, sink.read(start, stop))

    def drop(self, start: int, stop: int) -> None:
        """Mark bytes in the cache as the first to evict."""
        if self.cache is not None:
            self.cache.drop(*self._key, start, stop)

    def forget(self, start: int, stop: int) -> None:
        """Remove bytes from the cache, because they are wrong."""
        if self.cache is not None:
            self.cache.remove(*self._key, start, stop)


def _ignore(kind: str, num_bytes: int) -> None:
    """Bytes for a peer are not counted."""


def _holes(start: int, stop: int, parts: Sequence[Extent]) -> Iterator[Extent]:
    """The gaps between disjoint parts of a range, in order."""
    edges = [start, *itertools.chain.from_iterable(parts), stop]
    return ((low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high)


# All peers


class Peers(ForkAware):
    """The processes of a job, which fetch each byte from the object store once and serve it to each other.

    ``addresses`` is the ``host:port`` of every process, the same list everywhere; ``rank`` is the place of this process in it;
    ``secret`` is a text of at least 16 characters that only they know. This process serves at its own address,
    from the first source that is opened until ``close``; ``:port`` is on loopback. With ``serve=False`` it does not: another
    process of this host, with the same cache and rank, serves. A peer that takes longer than ``wait_s`` seconds counts as down.

    Use one for all sources of a process, and keep it open until all processes have read what they need. Safe to use from several
    threads. A pickled or forked copy serves nothing. A pickle, also one of a source, contains the secret.

    >>> peers = Peers(["10.0.0.1:7070", "10.0.0.2:7070"], rank=1, secret="one secret for the whole job")
    >>> peers  # for penstock.open("s3://...", cache="/local/cache", peers=peers)
    Peers(['10.0.0.1:7070', '10.0.0.2:7070'], 1)
    >>> peers.close()
    """

    def __init__(self, addresses: Sequence[str], rank: int, *, secret: str, serve: bool = True, wait_s: float = 15.0) -> None:
        if isinstance(addresses, str) or not isinstance(addresses, Sequence):
            raise TypeError(f"addresses must be a list with the host:port of each process, got {shown(addresses)}")
        if not isinstance(secret, str):
            raise TypeError(f"secret must be a text, got {type(secret).__name__}")
        if len(secret) < LEAST_SECRET:
            raise ValueError(f"secret must have at least {LEAST_SECRET} characters, the same for all processes of the job")
        if isinstance(wait_s, bool) or not isinstance(wait_s, SupportsFloat):
            raise TypeError(f"wait_s must be a number of seconds, got {shown(wait_s)}")
        if not 0 < float(wait_s) <= MOST_WAIT_S:
            raise ValueError(f"wait_s must be more than 0 and at most {MOST_WAIT_S:.0f} seconds, got {shown(wait_s)}")
        self._addresses, self._origins = tuple(addresses), tuple(map(_origin, addresses))
        if not addresses or len(set(self._origins)) != len(addresses):
            raise ValueError(f"addresses must be different ones, host:port of each process, got {shown(addresses)}")
        self._rank = whole_number("rank", rank, least=0, most=len(addresses) - 1)
        self._secret, self._wait_s, self._serve = secret, float(wait_s), bool(serve)
        self._key = hashlib.sha256(f"penstock peers: {secret}".encode(errors="surrogateescape")).digest()
        self._supplies: dict[str, Supply] = {}
        self._server: _Server | None = None
        self._owner = os.getpid()
        self._finalizer: weakref.finalize[..., Peers] | None = None
        super().__init__()
        _open.add(self)

    def _begin(self) -> None:
        from penstock.remote.http_client import Pool  # here, because asyncio, http and ssl take as long to load as half of numpy

        # No proxy, whatever the environment says.
        policy = Policy(connect_s=min(5.0, self._wait_s), read_s=self._wait_s)
        self._pool: Pool = Pool({"proxy_url": ""}, policy)
        if self._finalizer is not None:
            self._finalizer.detach()  # a thread of the parent may have held the lock of that pool
        self._finalizer = weakref.finalize(self, self._pool.close)  # a copy may never be closed
        self._began = time.monotonic()
        self._down: dict[Origin, float] = {}
        self._has_answered: set[Origin] = set()
        self._is_new = threading.Condition(self._lock)
        if self._owner != os.getpid():
            self._serve = False
            if self._server is not None:
                self._server.leave()
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
            self._supplies.clear()
            self._serve = False
            self._is_new.notify_all()
        if self._server is not None:
            self._server.close()
        self._pool.close()

    def add(self, supplies: Sequence[Supply]) -> None:
        """Serve objects from now on. ValueError if the address of this process is not its own, or taken."""
        with self._here():
            if self._serve and self._server is None:
                self._server = _Server(self, self._origins[self._rank])
            for one in supplies if self._serve else ():
                if one.identity is not None:
                    self._supplies[one.digest] = one
            self._is_new.notify_all()

    # Asking

    def shares(self, digest: str, start: int, stop: int) -> Iterator[tuple[int, int, tuple["Origin", ...]]]:
        """Split a range by owner: start, stop and the peers to ask, in this order; none if this process is to fetch it."""
        self._here()
        for piece in range(start // OWNED_BYTES, -(-stop // OWNED_BYTES)):
            low, high = max(start, piece * OWNED_BYTES), min(stop, (piece + 1) * OWNED_BYTES)
            order = sorted(range(len(self._origins)), key=lambda rank: self._weight(digest, piece, rank), reverse=True)
            now = time.monotonic()
            others = (self._origins[rank] for rank in itertools.takewhile(lambda rank: rank != self._rank, order))
            yield low, high, tuple(itertools.islice((one for one in others if self._down.get(one, now) <= now), MOST_ASKED))

    def _weight(self, digest: str, piece: int, rank: int) -> bytes:
        return hashlib.blake2b(f"{digest} {piece} {self._addresses[rank]}".encode(), digest_size=16).digest()

    def receive(self, origin: "Origin", digest: str, start: int, stop: int, ask: Callable[[], None]) -> bytearray | None:
        """A range from a peer; None if it does not give it in time. AccessDeniedError if it has another secret."""
        self._here()
        until = time.monotonic() + self._wait_s
        for number in itertools.count():
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
            except (OSError, FailedError, ValueError, _WrongError) as error:
                ask()  # what it raises may be what was caught, which is no fault of the peer
                # The server may have ended an idle connection, and a peer that has never answered may not have begun yet.
                is_new = origin not in self._has_answered and time.monotonic() < self._began + self._wait_s
                if isinstance(error, TimeoutError | _WrongError) or time.monotonic() >= until or (number > 0 and not is_new):
                    break
            time.sleep(0.05 if number else 0.0)
        self._down[origin] = time.monotonic() + REST_S
        return None

    def _exchange(
        self, origin: "Origin", digest: str, start: int, stop: int, until: float, ask: Callable[[], None]
    ) -> bytearray | None:
        """The answer of a peer: bytes, or None if it does not give any."""
        nonce = secrets.token_hex(16)
        connection = self._pool.take(origin)
        try:
            connection.deadline = until
            connection.send(
                f"GET /{digest} HTTP/1.1\r\nHost: {origin.netloc}\r\nRange: bytes={start}-{stop - 1}\r\n"
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
        except http.client.RemoteDisconnected:
            raise
        except http.client.HTTPException:
            raise _WrongError from None
        expected = self.mac("answer", nonce, digest, start, stop, _crc(data))
        if not hmac.compare_digest(expected, response.headers.get(_ANSWER, "").encode("ascii", "replace").decode()):
            raise _WrongError
        return data

    def mac(self, *parts: object) -> str:
        """A code that needs the secret to be computed."""
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
    raise ValueError(f"expected the address of a peer as host:port, got {shown(address)}")


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
        self._socket = _listening(origin)
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._idle: dict[threading.Thread, socket.socket] = {}  # those that wait for a request, the longest first
        self._answers = threading.Semaphore(MOST_ANSWERS)
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="penstock-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections and threads; a thread in a request to the object store abandons it. Idempotent."""
        until = time.monotonic() + CLOSE_S
        with self._lock:
            self._is_closed = True
        _end(self._socket)
        self._thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            connections = list(self._connections.items())
        for _, stream in connections:
            _end(stream)
        for thread, _ in connections:
            thread.join(max(0.0, until - time.monotonic()))
        self._socket.close()

    def leave(self) -> None:
        """In a forked child: its copies of the sockets would keep the connections of the parent open."""
        for stream in [self._socket, *self._connections.values()]:
            stream.close()

    def _ask(self) -> None:
        if self._is_closed:
            raise ReadError("closed while a peer was served")

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                if not self._is_closed:
                    time.sleep(0.1)  # no more descriptors, for instance
                continue
            if not self._begin(stream):
                stream.close()

    def _begin(self, stream: socket.socket) -> bool:
        """Serve a new connection; False if there are too many, or no more threads."""
        thread = threading.Thread(target=self._serve, args=(stream,), name="penstock-peer", daemon=True)
        with self._lock:
            if len(self._connections) >= MOST_CONNECTIONS:
                if not self._idle:
                    return False
                _end(self._idle.pop(next(iter(self._idle))))
            self._connections[thread] = self._idle[thread] = stream
        try:
            thread.start()
        except RuntimeError:
            self._forget(thread)
            return False
        return True

    def _forget(self, thread: threading.Thread) -> None:
        with self._lock:
            self._connections.pop(thread, None)
            self._idle.pop(thread, None)

    def _serve(self, stream: socket.socket) -> None:
        me = threading.current_thread()
        try:
            with contextlib.suppress(OSError), stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    while asked := _next_request(stream):
                        with self._lock:
                            self._idle.pop(me, None)
                        self._respond(stream, asked)
                        with self._lock:
                            self._idle[me] = stream
                finally:
                    _end(stream)  # not left to close: a child that was forked meanwhile may have a copy
        finally:
            self._forget(me)

    def _respond(self, stream: socket.socket, asked: re.Match[str]) -> None:
        digest, nonce, mac, start, stop = asked[1], asked[4], asked[5], int(asked[2]), int(asked[3]) + 1
        if not hmac.compare_digest(mac, self._peers.mac("ask", nonce, digest, start, stop)):
            return _send(stream, 401)
        supply = self._peers.find(digest)
        if supply is None:
            return _send(stream, 404)
        if not start < stop <= supply.info.size or stop - start > OWNED_BYTES:
            return _send(stream, 416)
        with self._answers:
            try:
                data = supply.provide(start, stop, self._ask)
            except Exception:  # the client learns from the object store what is wrong
                return _send(stream, 503)
            _send(stream, 206, data, self._peers.mac("answer", nonce, digest, start, stop, _crc(data)))


def _listening(origin: "Origin") -> socket.socket:
    """A socket that listens at an address; ValueError if it is not one of this host's, or taken."""
    reason = ""
    with contextlib.ExitStack() as stack:
        try:
            for family, kind, protocol, _, place in socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
                stream = stack.enter_context(socket.socket(family, kind, protocol))
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    stream.bind(place)
                    stream.listen(128)
                except OSError as error:
                    reason = reason or str(error.strerror)
                else:
                    stack.pop_all()
                    return stream
        except (OSError, UnicodeError):  # of the resolver
            reason = "no such host"
    raise ValueError(
        f"{origin.netloc}: this process cannot listen there ({reason}); rank must be its place in addresses, and "
        "no other process may have the address"
    )


def _next_request(stream: socket.socket) -> re.Match[str] | None:
    """The next request of a connection; None if it ends, if none comes in time, or if something else comes."""
    head, until = b"", time.monotonic() + IDLE_S
    while len(head) < HEAD_BYTES and not head.endswith(b"\r\n\r\n"):
        left = until - time.monotonic()
        if left <= 0:
            return None
        stream.settimeout(left)
        piece = stream.recv(HEAD_BYTES - len(head))
        if not piece:
            return None
        head += piece
    return _REQUEST.fullmatch(head.decode("latin-1"))


def _send(stream: socket.socket, status: int, body: bytearray | bytes = b"", mac: str = "") -> None:
    stream.settimeout(IDLE_S)
    stream.sendall(f"HTTP/1.1 {status} \r\nContent-Length: {len(body)}\r\n{_ANSWER}: {mac}\r\n\r\n".encode())
    stream.sendall(body)


def _end(stream: socket.socket) -> None:
    """End a connection, also for a thread that reads from it, and for processes that have a copy."""
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


_open: "weakref.WeakSet[Peers]" = weakref.WeakSet()


@atexit.register
@shielded
def _close_all() -> None:
    """No thread may be in a request when the interpreter ends."""
    for peers in list(_open):
        peers.close()


def _after_fork() -> None:
    """The sockets of the parent's server must not stay open in a child, which does not answer."""
    for peers in list(_open):
        peers.left_behind()


os.register_at_fork(after_in_child=_after_fork)
