"""An HTTP client for reading from web servers, none of which is trusted.

obstore would read the body of an error to its end, follow redirects with the headers of the user, and wait as long as one byte
comes now and then. Here every answer is bounded by bytes and by a deadline, nothing of it but its status is shown, and a redirect
to another host is refused, or followed without the headers of the user.
"""

import datetime
import email.utils
import http.client
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.remote.http_connection import Connection, Origin, Pool
from penstock.remote.retry import FailedError, Failure, Policy, status_failure

__all__ = ["HttpClient"]

T = TypeVar("T")

MOST_REDIRECTS = 5
MOST_SIZE = 2**63 - 1
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 1 << 16
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")


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

    def call(self, name: str, key: str, *, options: Mapping[str, Any] | None = None) -> Any:
        """``get`` or ``head``."""
        asked = dict(options or {})
        exchange = self._guarded(lambda: self._exchange("HEAD" if name == "head" else "GET", key, asked))
        try:
            return _head(exchange, key) if name == "head" else _got(exchange, key, asked.get("range"))
        except BaseException:
            exchange.close()
            raise

    def items(self, stream: "Iterator[bytes]") -> Iterator[bytes]:
        """The pieces of a body."""
        while (piece := self._guarded(lambda: next(stream, None))) is not None:
            yield piece

    def close(self) -> None:
        """End the connections."""
        self._pool.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        """What goes wrong on the way becomes a FailedError. What the server wrote is not in it."""
        try:
            return action()
        except TimeoutError:
            failure = Failure("again", f"{self._origin}: the answer was not complete in time")
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = Failure("again", f"{self._origin}: the answer broke off or is no HTTP ({type(error).__name__})")
        raise FailedError(failure)

    def _exchange(self, method: str, key: str, asked: Mapping[str, Any]) -> "_Exchange":
        """The answer to a request, behind its redirects."""
        url, deadline = f"{self._origin}/{urllib.parse.quote(key)}", time.monotonic() + self._policy.request_s
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
            raise FailedError(Failure("refused", f"{self._origin}: a redirect to what is no web address"))
        is_weaker = self._origin.scheme == "https" and origin.scheme == "http"
        if is_weaker or not (self._follows or _is_same(self._origin, origin)):
            remedy = "open that place itself, or allow it with storage_options={'allow_redirects': True}"
            why = "without encryption; open that place itself" if is_weaker else f"another host; {remedy}"
            raise FailedError(Failure("redirect", f"the server redirects to {origin}, {why}"))
        return target


def _is_same(ours: Origin, other: Origin) -> bool:
    """Whether headers for one place may be sent to the other: the same server, or the same host with encryption."""
    secured = Origin("https", ours.host, 443) if ours == Origin("http", ours.host, 80) else ours
    return other in (ours, secured)


_PLAIN = ("User-Agent: penstock", "Accept: */*", "Accept-Encoding: identity")


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
        self._pool, self._origin, self._connection, self.response = pool, origin, connection, response
        self._is_done = False

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

    def finish(self) -> None:
        """Nothing more is read."""
        response = self.response
        is_whole = response.isclosed() if response.chunked else response.length == 0
        if self._is_done or response.will_close or not is_whole:
            return self.close()
        self._is_done = True
        response.close()
        self._pool.give_back(self._origin, self._connection)

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

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """The body in pieces."""
        return iter(lambda: self.exchange.read(min_chunk_size), b"")


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
