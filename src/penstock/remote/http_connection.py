"""The connections of the HTTP client: a deadline on every read, idle ones pooled for the next request, proxies, TLS."""

import base64
import http.client
import io
import select
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.remote.retry import FailedError, Failure, Policy

__all__ = ["Connection", "Origin", "Pool"]

_PORTS = {"http": 80, "https": 443}
_MOST_IDLE = 64


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
        """Send all of it."""
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
        """Whether the server has neither closed an idle connection nor sent what was not asked for."""
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
    """Idle connections, by origin. Safe to use from several threads."""

    def __init__(self, options: Mapping[str, Any], policy: Policy) -> None:
        self._options, self._policy = options, policy
        self._idle: dict[Origin, list[Connection]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None

    def take(self, origin: Origin) -> Connection:
        """A connection that nothing else uses, idle or new."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                connection = idle.pop() if idle else None
            if connection is None:
                return self._dial(origin)
            if connection.is_fresh:
                return connection
            connection.close()

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            if not self._is_closed and len(idle) < _MOST_IDLE:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """End the idle connections, and the others when they are given back."""
        with self._lock:
            self._is_closed = True
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
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
                connection.send(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{proxy_login(parts)}\r\n".encode())
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
        return proxy_login(urllib.parse.urlsplit(proxy)) if proxy and origin.scheme == "http" else ""

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


def proxy_login(proxy: urllib.parse.SplitResult) -> str:
    """The header with the name and password in the URL of a proxy, if it has them."""
    if proxy.username is None:
        return ""
    login = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
