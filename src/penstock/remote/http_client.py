"""An HTTP client for reading from web servers, none of which is trusted.

obstore would read the body of an error to its end, follow redirects with the headers of the user, and wait as long as one byte
arrives before each timeout. Here every answer is bounded by bytes and by a deadline, errors show nothing of it but its status, and
a redirect to another host is refused, or followed without the headers of the user.
"""

import base64
import datetime
import email.utils
import http.client
import io
import re
import select
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.interrupt import HEARD_S
from penstock.remote.fetch import FailedError, Failure, Policy, Receive, status_failure

__all__ = ["Body", "Connection", "HttpClient", "Origin", "Pool", "is_proxied"]

T = TypeVar("T")

MOST_REDIRECTS = 5
MOST_SIZE = 2**63 - 1
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 1 << 16
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")
_PORTS = {"http": 80, "https": 443}
MOST_IDLE = 64
"""Idle connections of a pool, to all servers together."""
_PLAIN = ("User-Agent: penstock", "Accept: */*", "Accept-Encoding: identity")


# Connections: a deadline on every read, idle ones pooled for the next request, proxies, TLS


@dataclass(frozen=True)
class Origin:
    """Scheme, host and port of a web server."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Origin":
        """The origin of a URL; ValueError if it has none."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError("expected a URL with http or https and a host")
        return cls(parts.scheme, parts.hostname.encode("idna").decode(), parts.port or _PORTS[parts.scheme])

    @property
    def netloc(self) -> str:
        """Host and port as the header Host has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


class Connection:
    """A connection. ``deadline`` bounds all that is read until it is set again."""

    def __init__(self, stream: socket.socket, idle_s: float, *, names_origin: bool) -> None:
        self.stream, self.idle_s, self.deadline = stream, idle_s, 0.0
        self.names_origin = names_origin
        """A proxy wants whole URLs."""

    def send(self, data: bytes) -> None:
        self.stream.settimeout(self.idle_s)
        self.stream.sendall(data)

    def answer(self, method: str) -> http.client.HTTPResponse:
        """The head of the next answer; its body can be read then."""
        response = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        return response

    def makefile(self, mode: str) -> io.BufferedReader:
        """The stream that HTTPResponse reads from."""
        return io.BufferedReader(_Timed(self))

    @property
    def is_fresh(self) -> bool:
        """Whether the server has neither closed an idle connection nor sent unrequested bytes."""
        poll = select.poll()
        poll.register(self.stream, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """End it. Idempotent."""
        self.stream.close()


class _Timed(io.RawIOBase):
    """Reads from a connection until its deadline. Closing it leaves the connection open."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._connection.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.stream.settimeout(min(self._connection.idle_s, left))
        return self._connection.stream.recv_into(buffer)


class Pool:
    """Idle connections; the oldest is closed when there are too many. Safe to use from several threads."""

    def __init__(self, options: Mapping[str, Any], policy: Policy) -> None:
        self._options, self._policy = options, policy
        self._idle: list[tuple[Origin, Connection]] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None

    def take(self, origin: Origin) -> Connection:
        """A connection that nothing else uses, idle or new."""
        while True:
            with self._lock:
                place = next((place for place in reversed(range(len(self._idle))) if self._idle[place][0] == origin), None)
                connection = None if place is None else self._idle.pop(place)[1]
            if connection is None:
                return self._dial(origin)
            if connection.is_fresh:
                return connection
            connection.close()

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            if not self._is_closed:
                self._idle.append((origin, connection))
                if len(self._idle) <= MOST_IDLE:
                    return
                _, connection = self._idle.pop(0)
        connection.close()

    def close(self) -> None:
        """End the idle connections, and the others when they are given back."""
        with self._lock:
            self._is_closed = True
            connections, self._idle = self._idle, []
        for _, connection in connections:
            connection.close()

    def _dial(self, origin: Origin) -> Connection:
        proxy = _proxy(origin, self._options)
        try:
            return self._through(origin, proxy) if proxy else self._straight(origin)
        except ssl.SSLCertVerificationError as error:
            failure = Failure("refused", f"{origin}: the certificate is not valid: {error.verify_message}", sent=False)
        except (OSError, http.client.HTTPException) as error:
            text = f"no connection to {origin}: {type(error).__name__} {getattr(error, 'strerror', None) or ''}".rstrip()
            failure = Failure("again", text, sent=False)
        raise FailedError(failure)

    def _straight(self, origin: Origin) -> Connection:
        stream = _connected(origin.host, origin.port, self._policy.connect_s)
        return Connection(self._secured(stream, origin), self._policy.read_s, names_origin=False)

    def _through(self, origin: Origin, proxy: str) -> Connection:
        parts = urllib.parse.urlsplit(proxy)
        if parts.scheme != "http" or not parts.hostname:
            raise FailedError(Failure("refused", "expected a proxy at http://host:port", sent=False))
        stream = _connected(parts.hostname, parts.port or 80, self._policy.connect_s)
        connection = Connection(stream, self._policy.read_s, names_origin=origin.scheme == "http")
        if origin.scheme == "https":
            host = f"{origin.netloc}:443" if origin.port == 443 else origin.netloc
            connection.deadline = time.monotonic() + self._policy.connect_s
            try:
                connection.send(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{_proxy_login(parts)}\r\n".encode())
                status = connection.answer("CONNECT").status
            except BaseException:
                connection.close()
                raise
            if status != 200:
                connection.close()
                raise FailedError(Failure("again", f"the proxy answered with status {status}", status, sent=False))
            connection.stream = self._secured(stream, origin)
        return connection

    def login(self, origin: Origin) -> str:
        """The header that a proxy for this origin wants with every request, or nothing."""
        proxy = _proxy(origin, self._options)
        return _proxy_login(urllib.parse.urlsplit(proxy)) if proxy and origin.scheme == "http" else ""

    def _secured(self, stream: socket.socket, origin: Origin) -> socket.socket:
        if origin.scheme == "http":
            return stream
        try:
            if self._tls is None:
                self._tls = _tls(self._options)
            return self._tls.wrap_socket(stream, server_hostname=origin.host)
        except BaseException:
            stream.close()
            raise


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    stream = socket.create_connection((host, port), timeout=seconds)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    more = options.get("root_certificate")
    if more is not None:
        context.load_verify_locations(cadata=more.decode() if isinstance(more, bytes) else str(more))
    if str(options.get("allow_invalid_certificates", False)).lower() in ("true", "1"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _proxy(origin: Origin, options: Mapping[str, Any]) -> str | None:
    """The proxy for an origin: that of the options, or else of the environment."""
    given = options.get("proxy_url")
    if given is not None:
        excluded = [name.strip().lstrip(".") for name in str(options.get("proxy_excludes", "")).split(",")]
        names = [name for name in excluded if name]
        return None if any(origin.host == name or origin.host.endswith(f".{name}") for name in names) else str(given)
    known = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass_environment(origin.host, known):  # type: ignore[attr-defined]
        return None
    return known.get(origin.scheme) or known.get("all")


def is_proxied(origin: Origin, options: Mapping[str, Any]) -> bool:
    """Whether requests to an origin go through a proxy."""
    return _proxy(origin, options) is not None


def _proxy_login(proxy: urllib.parse.SplitResult) -> str:
    """The header with the name and password in the URL of a proxy, if it has them."""
    if proxy.username is None:
        return ""
    login = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"


# Requests and answers


class HttpClient:
    """Reads from one web server, as ``ObstoreClient`` does from other stores. Safe to use from several threads."""

    expired = False

    def __init__(self, url: str, options: Mapping[str, Any], policy: Policy) -> None:
        self._origin, self._policy = Origin.of(url), policy
        self._pool = Pool(options, policy)
        self._follows = options.get("allow_redirects", False) is True
        self._headers = _headers(options)

    def do(self, action: Callable[[], T]) -> T:
        """Do something that may wait for the server. An interrupt ends the wait."""
        return action()

    def call(self, name: str, key: str, *, options: Mapping[str, Any] | None = None, target: str | None = None) -> Any:
        """``get`` or ``head``, at the path and query ``target`` if they are not those of the key."""
        asked, method, path = dict(options or {}), "HEAD" if name == "head" else "GET", key if target is None else target
        exchange = self._guarded(lambda: self._exchange(method, path, asked, is_quoted=target is not None))
        try:
            return _head(exchange, key) if name == "head" else _got(exchange, key, asked.get("range"))
        except BaseException:
            exchange.close()
            raise

    def document(self, path: str, query: str, most: int) -> tuple[bytes, Mapping[str, str]]:
        """All of an answer of at most ``most`` bytes, for a path that is quoted already, and its headers by names in lower case."""

        def whole() -> tuple[bytes, Mapping[str, str]]:
            exchange = self._exchange("GET", f"{path}?{query}" if query else path, {}, is_quoted=True)
            try:
                _check_status(exchange, 200)
                data = bytearray()
                while piece := exchange.read(1):
                    data += piece
                    if len(data) > most:
                        raise FailedError(Failure("wrong", f"expected an answer of at most {most} bytes"))
                return bytes(data), {name.lower(): value for name, value in exchange.response.headers.items()}
            finally:
                exchange.close()

        return self._guarded(whole)

    def items(self, stream: "Iterator[bytes]") -> Iterator[bytes]:
        """The pieces of a body."""
        return stream

    def close(self) -> None:
        self._pool.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        return _guarded(self._origin, action)

    def _exchange(self, method: str, key: str, asked: Mapping[str, Any], *, is_quoted: bool = False) -> "_Exchange":
        """The answer to a request, after its redirects."""
        url = f"{self._origin}/{key if is_quoted else urllib.parse.quote(key)}"
        deadline = time.monotonic() + self._policy.request_s
        for _ in range(MOST_REDIRECTS + 1):
            exchange = self._ask(method, url, asked, deadline)
            if exchange.response.status not in _REDIRECTS or exchange.response.headers.get("Location") is None:
                return exchange
            url = self._location(url, exchange)
        raise FailedError(Failure("refused", f"{self._origin}: more than {MOST_REDIRECTS} redirects"))

    def _ask(self, method: str, url: str, asked: Mapping[str, Any], deadline: float) -> "_Exchange":
        origin = Origin.of(url)
        connection = self._pool.take(origin)
        connection.deadline = deadline
        try:
            connection.send(self._request(method, url, origin, asked, connection))
            return _Exchange(self._pool, origin, connection, connection.answer(method))
        except BaseException:
            connection.close()
            raise

    def _request(self, method: str, url: str, origin: Origin, asked: Mapping[str, Any], connection: Connection) -> bytes:
        parts = urllib.parse.urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        if connection.names_origin:
            target = f"{origin}{target}"
        ours = self._headers if _is_same(self._origin, origin) else _PLAIN
        lines = [f"{method} {target} HTTP/1.1", f"Host: {origin.netloc}", *ours, *_conditions(asked)]
        login = self._pool.login(origin) if connection.names_origin else ""
        return ("\r\n".join(lines) + f"\r\n{login}\r\n").encode("latin-1")

    def _location(self, url: str, exchange: "_Exchange") -> str:
        """Where a redirect leads; FailedError if that is another host, unless the user allows it."""
        exchange.close()
        location = str(exchange.response.headers["Location"])
        try:
            target = urllib.parse.urljoin(url, location).partition("#")[0]
            origin = Origin.of(target)
        except ValueError:
            origin = None
        if (
            origin is None
            or not re.fullmatch("[!-~]{1,8192}", target)
            or not re.fullmatch(r"[\w.:-]{1,253}", origin.host, re.ASCII)
        ):
            raise FailedError(Failure("refused", f"{self._origin}: a redirect to something that is not a web address"))
        is_weaker = self._origin.scheme == "https" and origin.scheme == "http"
        if is_weaker or not (self._follows or _is_same(self._origin, origin)):
            remedy = "open that place itself, or allow it with storage_options={'allow_redirects': True}"
            why = "without encryption; open that place itself" if is_weaker else f"another host; {remedy}"
            raise FailedError(Failure("redirect", f"the server redirects to {origin}, {why}"))
        return target


def _guarded(origin: Origin, action: Callable[[], T]) -> T:
    """Errors of the connection become a FailedError, without any text of the server."""
    try:
        return action()
    except TimeoutError:
        failure = Failure("again", f"{origin}: the answer was not complete in time")
    except (OSError, http.client.HTTPException, ValueError) as error:
        failure = Failure("again", f"{origin}: the answer broke off or is no HTTP ({type(error).__name__})")
    raise FailedError(failure)


def _is_same(ours: Origin, other: Origin) -> bool:
    """Whether headers for one place may be sent to the other: the same server, or the same host with encryption."""
    secured = Origin("https", ours.host, 443) if ours == Origin("http", ours.host, 80) else ours
    return other in (ours, secured)


def _headers(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The header lines of every request to the server itself; ValueError if one of them is no header."""
    given = {"user-agent": "penstock", "accept": "*/*", "accept-encoding": "identity"}
    if "user_agent" in options:
        given["user-agent"] = str(options["user_agent"])
    for name, value in dict(options.get("default_headers", {})).items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if not re.fullmatch(r"[!#$%&'*+.^_`|~\w-]+", str(name), re.ASCII) or not re.fullmatch(r"[\t -~\x80-\xff]*", text):
            raise ValueError(f"expected names and values of headers in default_headers, got something else for {str(name)[:100]!r}")
        given[str(name).lower()] = text
    return tuple(f"{name}: {value}" for name, value in given.items())


def _conditions(asked: Mapping[str, Any]) -> Iterator[str]:
    wanted = asked.get("range")
    if isinstance(wanted, Mapping):
        yield f"Range: bytes=-{wanted['suffix']}"
    elif wanted is not None:
        yield f"Range: bytes={wanted[0]}-{wanted[1] - 1}"
    if "if_match" in asked:
        yield f"If-Match: {asked['if_match']}"
    if "if_unmodified_since" in asked:
        yield f"If-Unmodified-Since: {email.utils.format_datetime(asked['if_unmodified_since'], usegmt=True)}"


class _Exchange:
    """An answer and the connection it comes through, which is kept if the answer is read to its end."""

    def __init__(self, pool: Pool, origin: Origin, connection: Connection, response: http.client.HTTPResponse) -> None:
        self._pool, self.origin, self._connection, self.response = pool, origin, connection, response
        self._is_done = False
        self._heard = 0.0

    def read(self, least: int) -> bytes:
        """The next bytes, as many as there are if ``least`` is 1; none at the end."""
        response = self.response
        try:
            data = response.read1(_PIECE_BYTES) if least <= 1 else response.read(min(least, _PIECE_BYTES))
        except BaseException:
            self.close()
            raise
        if not data or response.length == 0:
            self.finish()
        return data

    @property
    def left(self) -> int:
        """Bytes that can be received from the socket as they are, if the first piece of the body was read; 0 if they cannot."""
        response = self.response
        is_plain = not (response.chunked or self._is_done or self.origin.scheme != "http")
        return response.length or 0 if is_plain else 0

    def receive(self, into: Receive, start: int) -> int:
        """The next bytes, straight to where they belong; none if none came for a moment. FailedError."""
        connection, response, now = self._connection, self.response, time.monotonic()
        wanted, left = response.length or 0, connection.deadline - now
        self._heard = self._heard or now
        try:
            count, is_open = into(connection.stream.fileno(), start, start + wanted, min(HEARD_S, left)) if left > 0 else (0, True)
        except BaseException:
            self.close()
            raise
        response.length = wanted - count
        if count == wanted:
            self.finish()
        elif count:
            self._heard = time.monotonic()
        elif not is_open or left <= 0 or time.monotonic() - self._heard > connection.idle_s:
            self.close()
            how = "was not complete in time" if is_open else "broke off"
            raise FailedError(Failure("again", f"{self.origin}: the answer {how}"))
        return count

    def finish(self) -> None:
        """Return the connection to the pool if the answer was read to its end; otherwise end it."""
        response = self.response
        is_whole = response.isclosed() if response.chunked else response.length == 0
        if self._is_done or response.will_close or not is_whole:
            return self.close()
        self._is_done = True
        response.close()
        self._pool.give_back(self.origin, self._connection)

    def close(self) -> None:
        """End the connection, unless it was given back. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self.response.close()
            self._connection.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class _Result:
    """What obstore's ``get`` gives."""

    meta: Mapping[str, Any]
    range: tuple[int, int]
    attributes: Mapping[str, str]
    exchange: _Exchange

    def stream(self, min_chunk_size: int) -> "Body":
        return Body(self.exchange, min_chunk_size)

    @property
    def rest(self) -> _Exchange:
        """The body without its first piece, from the socket: see ``fetch.Rest``."""
        return self.exchange


class Body(Iterator[bytes]):
    """A body, piece by piece. The first is what came with the head, or soon after it, so that the rest is in the socket."""

    def __init__(self, exchange: _Exchange, least: int) -> None:
        self._exchange, self._least, self._is_begun = exchange, least, False

    def __next__(self) -> bytes:
        data = _guarded(self._exchange.origin, lambda: self._exchange.read(self._least if self._is_begun else 1))
        self._is_begun = True
        if not data:
            raise StopIteration
        return data


def _head(exchange: _Exchange, key: str) -> Mapping[str, Any]:
    _check_status(exchange, 200)
    exchange.response.length = 0  # a HEAD has no body, whatever it says
    size = _length(exchange)
    exchange.finish()
    return _meta(exchange, key, size)


def _got(exchange: _Exchange, key: str, asked: Any) -> _Result:
    if asked is None:
        _check_status(exchange, 200)
        start, stop, size = 0, _length(exchange), _length(exchange)
    else:
        if exchange.response.status == 200:
            raise FailedError(Failure("whole", "the server sent the whole object instead of a range", 200))
        _check_status(exchange, 206)
        start, stop, size = _content_range(exchange)
        wanted = (max(0, size - asked["suffix"]), size) if isinstance(asked, Mapping) else (asked[0], min(asked[1], size))
        if (start, stop) != wanted:
            raise FailedError(Failure("wrong", f"asked for bytes {wanted[0]} to {wanted[1]}, the server sent {start} to {stop}"))
    encoding = exchange.response.headers.get("Content-Encoding")
    attributes = {} if encoding is None else {"Content-Encoding": ascii(encoding)[1:-1][:40]}
    return _Result(_meta(exchange, key, size), (start, stop), attributes, exchange)


def _check_status(exchange: _Exchange, expected: int) -> None:
    status = exchange.response.status
    if status != expected and 200 <= status < 300:
        raise FailedError(Failure("wrong", f"the server answered with status {status} instead of {expected}", status))
    if status != expected:
        text = f"the server answered with status {status} {http.client.responses.get(status, '')}".rstrip()
        raise FailedError(status_failure(status, text, _beginning(exchange)))


def _beginning(exchange: _Exchange) -> str:
    """The first bytes of the body that comes with an error."""
    try:
        return exchange.read(1).decode("latin-1")
    except (OSError, http.client.HTTPException, ValueError):
        return ""


def _length(exchange: _Exchange) -> int:
    text = exchange.response.headers.get("Content-Length", "")
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MOST_SIZE:
        raise FailedError(Failure("wrong", f"expected the size of the object as Content-Length, found {ascii(text)[:60]}"))
    return int(text)


def _content_range(exchange: _Exchange) -> tuple[int, int, int]:
    text = exchange.response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(text)
    start, stop, size = (int(match[1]), int(match[2]) + 1, int(match[3])) if match else (0, 0, 0)
    if not start < stop <= size <= MOST_SIZE:
        raise FailedError(Failure("wrong", f"expected a range of the object as Content-Range, found {ascii(text)[:100]}"))
    return start, stop, size


def _meta(exchange: _Exchange, key: str, size: int) -> Mapping[str, Any]:
    headers = exchange.response.headers
    etag = headers.get("ETag")
    usable = etag is not None and re.fullmatch(r"[ -~]{1,1024}", etag) is not None
    return {"path": key, "size": size, "e_tag": etag if usable else None, "last_modified": _date(headers.get("Last-Modified"))}


def _date(text: str | None) -> datetime.datetime:
    try:
        found = email.utils.parsedate_to_datetime(text or "")
        return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found
    except (ValueError, OverflowError, TypeError):
        return _EPOCH
