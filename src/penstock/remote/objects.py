"""The objects of one bucket or host: list, read, write and delete, with retries, and without ever passing on wrong bytes."""

import atexit
import datetime
import hashlib
import os
import pickle
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.errors import (
    CorruptError,
    NoMatchError,
    OutcomeUnknownError,
    StoreError,
    StorePermissionError,
    TruncatedError,
    WriteRefusedError,
)
from penstock.process import end_threads, in_thread
from penstock.remote.fetch import (
    Account,
    Answer,
    Clock,
    FailedError,
    Failure,
    FirstBytes,
    Means,
    Pace,
    Policy,
    Receive,
    Tries,
    Wanted,
    Write,
    check_encoding,
    fetch,
    given_up,
    read_error,
)

if TYPE_CHECKING:
    from penstock.remote.obstore_client import ObstoreClient

__all__ = ["AnyClient", "Clients", "ObjectInfo", "Objects", "close_all", "open_client", "shared_objects"]

T = TypeVar("T")
Data = bytes | memoryview
_LEAST_PART_BYTES = 5 << 20  # S3 takes no smaller ones, except for the last
_COPY_BYTES = 1 << 20
MAX_LISTED = 1_000_000
"""Objects in a listing, unless the storage option ``max_listed`` says otherwise."""
MAX_KEY_CHARACTERS = 4096
"""No provider has keys of more than 1024."""

_WEB = ("http", "https")

OUR_OPTIONS = frozenset({"allow_redirects", "max_listed"})
"""Storage options that are penstock's own."""

CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "root_certificate",
        "user_agent",
    }
)
"""Storage options of an HTTP client; everything else configures the store."""

READ_ONLY = ("hf", "storage")
"""Schemes of places that are only read: the hub, and what users bring with them."""


class AnyClient(Protocol):
    """What reads: an ObstoreClient, an HttpClient, a HubClient or a BackendClient. All but the second have ``pages``, a listing."""

    expired: bool

    def do(self, action: Callable[[], T]) -> T: ...
    @property
    def call(self) -> Callable[..., Any]: ...
    def items(self, stream: Any) -> Iterator[Any]: ...
    def close(self) -> None: ...


_inherited: list[object] = []  # clients of a parent process: to free one would end connections of the parent


# Clients


class Clients:
    """One client for reading, and one for writing: their deadlines differ."""

    def __init__(self, scheme: str, host: str, options: Mapping[str, Any]) -> None:
        self.scheme, self.host, self.options = scheme, host, MappingProxyType(dict(options))
        self._clients: dict[bool, tuple[int, Policy, AnyClient]] = {}
        self._lock = threading.Lock()

    def client(self, policy: Policy, *, write: bool = False) -> AnyClient:
        """The client of this process; ValueError if the options are not accepted."""
        write = write and self.scheme not in ("memory", *READ_ONLY)
        known = self._known(policy, write)
        if known is not None:
            return known
        with self._lock:
            known = self._known(policy, write)
            if known is None:
                self._drop(write)
                known = open_client(self.scheme, self.host, self.options, policy, write=write)
                self._clients[write] = os.getpid(), policy, known
            return known

    def _known(self, policy: Policy, write: bool) -> AnyClient | None:
        pid, made_for, client = self._clients.get(write, (0, policy, None))
        # The bytes of a memory store are in its client: it lasts as long as the process, and stays after a fork.
        fits = self.scheme == "memory" or (pid == os.getpid() and made_for is policy)
        return client if client is not None and fits and not client.expired else None

    def close(self) -> None:
        """End connections; the next request makes new ones. A memory store stays."""
        with self._lock:
            if self.scheme != "memory":
                for write in list(self._clients):
                    self._drop(write)

    def _drop(self, write: bool) -> None:
        old = self._clients.pop(write, None)
        if old is not None and old[0] == os.getpid():
            old[2].close()
        elif old is not None:
            _inherited.append(old)

    def after_fork(self) -> None:
        """Forget a lock that a thread of the parent may hold."""
        self._lock = threading.Lock()


def open_client(scheme: str, host: str, options: Mapping[str, Any], policy: Policy, *, write: bool = False) -> AnyClient:
    """A new client; ValueError if one of the options is unknown or has a bad value."""
    from penstock.remote.http_client import HttpClient  # here, because asyncio, http and ssl take as long to load as half of numpy
    from penstock.remote.obstore_client import first_line, open_obstore

    try:
        _check_ours(scheme, options)
        if scheme in READ_ONLY:
            return _open_read_only(scheme, host, options, policy)
        config = {name: value for name, value in options.items() if name not in OUR_OPTIONS | CLIENT_OPTIONS}
        if config and scheme in ("memory", *_WEB):
            raise ValueError(f"unknown option {min(config)!r} (a store of this kind has no configuration)")
        if scheme in _WEB and not write:
            return HttpClient(f"{scheme}://{host}", options, policy)
        client_options = {name: value for name, value in options.items() if name in CLIENT_OPTIONS}
        return open_obstore(scheme, host, config, client_options, policy, write=write)
    except Exception as error:
        refused = f"storage_options of {scheme}://{host} were not accepted: {first_line(str(error))}"
    raise ValueError(refused)


def _open_read_only(scheme: str, host: str, options: Mapping[str, Any], policy: Policy) -> AnyClient:
    if scheme == "storage":
        from penstock.remote.backend import BackendClient

        return BackendClient(options["backend"], host)
    from penstock.remote.hub import OPTIONS, HubClient

    unknown = set(options) - OUR_OPTIONS - CLIENT_OPTIONS - OPTIONS
    if unknown:
        raise ValueError(f"unknown option {min(unknown)!r}")
    return HubClient(host, options, policy)


def _check_ours(scheme: str, options: Mapping[str, Any]) -> None:
    redirects, listed = options.get("allow_redirects", False), options.get("max_listed", 1)
    if not isinstance(redirects, bool) or (redirects and scheme not in _WEB):
        raise ValueError("expected allow_redirects to be a bool, and True only for http:// and https://")
    if not isinstance(listed, int) or isinstance(listed, bool) or listed < 1:
        raise ValueError(f"expected max_listed to be a whole number of at least 1, got {ascii(listed)[:100]}")


# Objects


@dataclass(frozen=True)
class ObjectInfo:
    """One version of one object; ``modified`` in seconds since 1970."""

    key: str
    size: int
    etag: str | None
    modified: float


class Objects:
    """One bucket or host. Safe to use from several threads, and after a fork.

    ``policy`` and ``clock`` can be replaced; the next request uses them. Made by ``shared_objects``: the same for the same options.
    """

    def __init__(self, scheme: str, host: str, options: Mapping[str, Any]) -> None:
        self._clients = Clients(scheme, host, options)
        self.scheme, self.host, self.options = scheme, host, self._clients.options
        self.url = f"{scheme}://{host}"
        self.account, self.policy, self.clock = Account(), Policy(), Clock()
        self.pace = Pace(lambda: self.clock.now())
        self._first_bytes = FirstBytes()
        self._can_put_new: bool | None = None
        self._client()  # so that bad options are refused at once

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    @cached_property
    def identity(self) -> str:
        """What tells these objects from others with the same URLs, in caches that processes share: nothing where the URL does;
        of a storage of the user's own, whose name need not be its own, a digest of its pickle.
        """
        if self.scheme != "storage":
            return ""
        try:
            return hashlib.sha256(pickle.dumps(self.options["backend"], protocol=4)).hexdigest()[:32]
        except Exception:  # no other process can have it then
            return uuid.uuid4().hex

    def url_of(self, key: str) -> str:
        """The whole URL of an object; never with credentials."""
        shown = urllib.parse.quote(key, safe="/+,=@:~") if self.scheme in _WEB else key
        return f"{self.url}/{shown}" if key else self.url

    # Reading

    def head(self, key: str) -> ObjectInfo:
        """What is there, without its bytes; MissingError if nothing is."""
        return self._reading(key, lambda: self._head(key))

    def _head(self, key: str) -> ObjectInfo:
        self.account.request("HEAD", key)
        return _info(self._client().call("head", key))

    def probe(self, key: str, first: int | None = None, last: int | None = None) -> tuple[ObjectInfo, bytes]:
        """What is there, and its first or last bytes (fewer where it is smaller), in one request."""
        if first is not None and last is not None:
            raise ValueError(f"expected first or last, got first={first} and last={last}")
        count = (last if first is None else first) or 0
        if count < 1:
            return self.head(key), b""
        return self._reading(key, lambda: self._probe(key, count, from_end=first is None))

    def _probe(self, key: str, count: int, *, from_end: bool) -> tuple[ObjectInfo, bytes]:
        try:
            info, data, _ = self._get(key, {"suffix": count} if from_end else (0, count), count)
        except FailedError as error:
            if error.failure.kind not in ("range", "unsupported", "whole"):
                raise
            # An empty object has no range, some stores have no ranges from the end, and some servers no ranges at all.
            info = self._head(key)
            count = min(count, info.size)
            data = self.read(info, info.size - count, info.size) if from_end else self.read(info, 0, count)
        if len(data) != min(count, info.size):
            raise FailedError(Failure("short", f"the body has {len(data)} bytes instead of {min(count, info.size)}"))
        return info, data

    def read_all(self, key: str, most: int) -> bytes:
        """The bytes of a small object; CorruptError if there are more than ``most``."""
        return self._reading(key, lambda: self._read_all(key, most))

    def _read_all(self, key: str, most: int) -> bytes:
        info, data, whole = self._get(key, None, most)
        if not whole:
            raise CorruptError(f"{self.url_of(key)}: expected at most {most} bytes, found an object of {info.size}")
        if len(data) != info.size:
            raise FailedError(Failure("short", f"the body has {len(data)} bytes instead of {info.size}"))
        return data

    def _get(self, key: str, asked: Any, most: int) -> tuple[ObjectInfo, bytes, bool]:
        """One GET: what is there, the body, and whether it fits into ``most`` bytes (otherwise nothing of it is read)."""
        start, stop = asked if isinstance(asked, tuple) else (None, None)
        self.account.request("GET", key, start, stop)
        client = self._client()
        return client.do(lambda: self._got(client, key, {} if asked is None else {"range": asked}, most))

    def _got(self, client: AnyClient, key: str, options: Any, most: int) -> tuple[ObjectInfo, bytes, bool]:
        result = client.call("get", key, options=options)
        info = _info(result.meta)
        check_encoding(result.attributes.get("Content-Encoding"))
        if result.range[1] - result.range[0] > most:
            return info, b"", False
        data = bytearray()
        for piece in _pieces(client, result, min(most, self.policy.piece_bytes)):
            data += piece
            if len(data) > most:
                raise FailedError(Failure("wrong", "the store sent more bytes than requested"))
        self.account.add(bytes=len(data))
        return info, bytes(data), True

    def read(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        self.read_into(info, start, stop, lambda _, data: pieces.append(bytes(data)))
        return b"".join(pieces)

    def read_into(self, info: ObjectInfo, start: int, stop: int, write: Write, receive: Receive | None = None) -> None:
        """Call ``write(offset, bytes)`` for consecutive pieces that cover [start, stop) exactly once, or ``receive`` where
        bytes can be received without a copy; see ``fetch.Write`` and ``fetch.Receive``.
        """
        url = self.url_of(info.key)
        if not 0 <= start <= stop:
            raise ValueError(f"expected 0 <= start <= stop, got start={start}, stop={stop}")
        if stop > info.size:
            raise TruncatedError(f"{url}: expected at least {stop} bytes, found {info.size}")
        submit = None if self.scheme == "memory" else in_thread
        means = Means(partial(self._open, info), self.policy, self.clock, self.account, self._first_bytes, submit, self.pace)
        fetch(means, Wanted(url, info.etag, info.modified, info.size, start, stop), write, receive)

    def _open(self, info: ObjectInfo, start: int, stop: int | None, least: int) -> Answer:
        options: dict[str, Any] = {} if stop is None else {"range": (start, stop)}
        # A weak etag never satisfies If-Match; the etag of the answer is compared in any case.
        if info.etag is not None and not info.etag.startswith("W/"):
            options["if_match"] = f'"{info.etag}"' if self.scheme == "az" and not info.etag.startswith('"') else info.etag
        elif info.etag is None and info.modified and self.scheme in _WEB:
            options["if_unmodified_since"] = datetime.datetime.fromtimestamp(info.modified, datetime.UTC)
        self.account.request("GET", info.key, start, stop)
        client = self._client()
        result = client.call("get", info.key, options=options)
        found, encoding = _info(result.meta), result.attributes.get("Content-Encoding")
        begin, end = result.range
        return Answer(
            found.etag,
            found.modified,
            found.size,
            begin,
            end,
            encoding,
            _pieces(client, result, least),
            getattr(result, "rest", None),
        )

    @property
    def can_list(self) -> bool:
        """Whether there is a listing: not of a plain web server, or of a backend without one."""
        return self.scheme not in _WEB and (self.scheme != "storage" or hasattr(self.options["backend"], "list"))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose key begins with ``prefix`` and a slash ("": all there are), sorted by the bytes of their keys."""
        if not self.can_list:
            what = "a web server" if self.scheme in _WEB else "this backend"
            raise NoMatchError(
                f"{self.url_of(prefix)}: expected the names of files, because {what} has no listing; name them one by one"
            )
        found: dict[str, ObjectInfo] = {}
        tries = Tries(self.policy, self.clock, self.account, partial(given_up, f"listing {self.url_of(prefix)}"))
        while True:
            try:
                # Directory buckets do not list in order, so that nothing can be said about what comes after a key.
                after = None if self.host.endswith("--x-s3") else max(found, default=None)
                for page in self._pages(prefix, after):
                    self._add_page(prefix, found, page, tries)
                return sorted(found.values(), key=lambda info: info.key.encode())
            except FailedError as error:
                failure = error.failure
            # Not above: what is raised there keeps the failed answer, and with it a connection.
            self._raise_if_final(self.url_of(prefix), failure)
            tries.failed(failure)

    def _add_page(self, prefix: str, found: dict[str, ObjectInfo], page: Sequence[Any], tries: Tries) -> None:
        before, most, url = len(found), self.options.get("max_listed", MAX_LISTED), self.url_of(prefix)
        for info in map(_info, page):
            if len(info.key) > MAX_KEY_CHARACTERS:
                raise CorruptError(f"{url}: expected keys of at most {MAX_KEY_CHARACTERS} characters, found one of {len(info.key)}")
            found[info.key] = info
        if len(found) > most:
            raise CorruptError(
                f"{url}: expected at most {most} objects in the listing; if there are more, "
                "raise the limit with storage_options={'max_listed': ...}"
            )
        if len(found) > before:
            tries.progress()
        elif tries.is_late:
            raise FailedError(Failure("again", "the listing has pages, but no further objects"))

    def _pages(self, prefix: str, offset: str | None) -> Iterator[Sequence[Any]]:
        self.account.request("LIST", prefix)
        try:
            client: Any = self._client()
            yield from client.pages(self.policy.total_s, prefix or None, offset)
        except TimeoutError:
            late = Failure("again", f"no page of the listing came in {self.policy.total_s:g} s")
        else:
            return
        raise FailedError(late)

    def _reading(self, key: str, action: Callable[[], T]) -> T:
        tries = Tries(self.policy, self.clock, self.account, partial(given_up, self.url_of(key)))
        while True:
            try:
                return action()
            except FailedError as error:
                failure = error.failure
            self._raise_if_final(self.url_of(key), failure)
            tries.failed(failure)

    def _raise_if_final(self, url: str, failure: Failure) -> None:
        final = read_error(url, failure)
        if final is not None:
            self.account.add(errors=1)
            raise final

    # Writing

    def put(self, key: str, data: bytes | Sequence[Data]) -> None:
        """Write an object, whatever was there; in parts if it is large."""
        pieces = [data] if isinstance(data, bytes) else data
        size = sum(memoryview(piece).nbytes for piece in pieces)
        parts = size > self.policy.part_bytes
        whole = b"" if parts else b"".join(pieces)
        part_bytes = max(_LEAST_PART_BYTES, self.policy.part_bytes // 4)
        self._writing(key, lambda: self._put(key, _copies(pieces) if parts else whole, use_multipart=parts, chunk_size=part_bytes))

    def _put(self, key: str, data: bytes | Iterator[bytes], **options: Any) -> None:
        self.account.request("PUT", key)
        self._obstore(write=True).call("put", key, data, max_concurrency=4, **options)

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one: whether it landed. OutcomeUnknownError if the answer was lost."""
        try:
            self._writing(key, lambda: self._put(key, data, use_multipart=False, mode="create"), once=True)
        except _ExistsError:
            return False
        return True

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._writing(key, lambda: self._delete(key))

    def _delete(self, key: str) -> None:
        self.account.request("DELETE", key)
        try:
            self._obstore(write=True).call("delete", key)
        except FailedError as error:
            if error.failure.kind != "missing":
                raise

    def supports_put_new(self, under: str = "") -> bool:
        """Whether the store honours the condition of ``put_new``: tested once, with a scratch object under a prefix."""
        if self.scheme in READ_ONLY:
            raise WriteRefusedError(f"{self.url_of(under)}: nothing can be written there, {self.scheme}:// is read-only")
        if self._can_put_new is None:
            self._can_put_new = self.scheme not in _WEB and self._try_put_new(under)
        return self._can_put_new

    def _try_put_new(self, under: str) -> bool:
        for _ in range(self.policy.tries):
            key = f"{under}/probe-{uuid.uuid4().hex}".lstrip("/")
            try:
                return self.put_new(key, b"first") and not self.put_new(key, b"second")
            except WriteRefusedError:
                return False
            except OutcomeUnknownError as error:
                unknown = error
            finally:
                self.delete(key)
        raise unknown

    def _writing(self, key: str, action: Callable[[], None], *, once: bool = False) -> None:
        url = self.url_of(key)
        tries = Tries(self.policy, self.clock, self.account, partial(_not_written, url))
        while True:
            try:
                return action()
            except FailedError as error:
                failure = error.failure
            if failure.kind == "exists" or (once and failure.kind == "changed"):
                raise _ExistsError
            if once and failure.kind == "again" and failure.sent and failure.status != 429:
                self.account.add(errors=1)
                raise OutcomeUnknownError(f"{url}: the response to a write was lost ({failure}); read it back to see")
            if failure.kind not in ("again", "expired", "credentials"):
                self.account.add(errors=1)
                kind = StorePermissionError if failure.kind == "denied" else WriteRefusedError
                raise kind(f"{url}: the store refused to write: {failure}")
            tries.failed(failure)

    # The connection

    def _client(self) -> AnyClient:
        return self._clients.client(self.policy)

    def _obstore(self, *, write: bool = False) -> "ObstoreClient":
        """The client for everything except reads from a web server."""
        from penstock.remote.obstore_client import ObstoreClient

        if self.scheme in READ_ONLY:
            raise FailedError(Failure("refused", f"{self.scheme}:// is read-only", sent=False))
        client = self._clients.client(self.policy, write=write)
        assert isinstance(client, ObstoreClient)
        return client

    def close(self) -> None:
        """End threads and connections; the next request makes new ones. Objects in memory stay."""
        end_threads()
        self.end_connections()

    def end_connections(self) -> None:
        """End those that are idle, and the others after their requests."""
        self._clients.close()

    def after_fork(self) -> None:
        """Forget what only the parent has: its threads, and locks that they may hold."""
        self._clients.after_fork()
        self._first_bytes = FirstBytes()
        self.pace.after_fork()
        self.account.after_fork()


class _ExistsError(Exception):
    """There is an object already."""


def _not_written(url: str, tries: int, seconds: float, failure: Failure) -> StoreError:
    if failure.kind in ("expired", "credentials"):
        return StorePermissionError(f"{url}: no valid credentials; give them in storage_options or in the environment ({failure})")
    return StoreError(f"{url}: not written after {tries} tries in {seconds:.1f} s; the last failure: {failure}")


def _copies(pieces: Sequence[Data]) -> Iterator[bytes]:
    """The bytes of pieces, copied piece by piece: an interrupted write is abandoned, and must not keep the caller's memory."""
    for piece in pieces:
        for start in range(0, memoryview(piece).nbytes, _COPY_BYTES):
            yield memoryview(piece).cast("B")[start : start + _COPY_BYTES].tobytes()


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], meta["last_modified"].timestamp())


def _pieces(client: AnyClient, result: Any, least: int) -> Iterator[memoryview]:
    return map(memoryview, client.items(result.stream(min_chunk_size=max(least, 1))))


_shared: dict[object, Objects] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for objects in _shared.values():
        objects.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _frozen(value: Any) -> object:
    return tuple(sorted((name, _frozen(one)) for name, one in value.items())) if isinstance(value, Mapping) else value


def shared_objects(scheme: str, host: str, options: Mapping[str, Any]) -> Objects:
    """The one Objects of this process for a bucket or host and these options."""
    identity = scheme, host, _frozen(options)
    with _lock:
        if identity not in _shared:
            _shared[identity] = Objects(scheme, host, options)
        return _shared[identity]


@atexit.register
def _end_connections() -> None:
    for objects in list(_shared.values()):
        objects.end_connections()


def close_all() -> None:
    """Close every Objects of this process."""
    for objects in list(_shared.values()):
        objects.close()
