"""The server of the page: on this machine only, for one person, for reading only."""

import contextlib
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from penstock.view.answer import Answer, RefusedError, as_json
from penstock.view.guard import HEADERS, Guard
from penstock.view.routes import Routes

__all__ = ["ViewServer"]

MOST_CONNECTIONS = 64
"""At a time. For another one, the oldest that has not sent its request yet is closed; if all have, the new one."""
REQUEST_S = 10.0
"""So long may a request take to arrive, however it comes."""


class ViewServer(ThreadingHTTPServer):
    """Serves the page until it is closed: ``serve_forever`` in one thread, ``shutdown`` from another, then ``close``."""

    daemon_threads = True
    request_queue_size = 128  # with 5, as it comes, those who knock at once wait for seconds

    def __init__(self, routes: Routes, *, port: int = 0) -> None:
        self.routes = routes
        self._open: set[Any] = set()
        self._waiting: dict[Any, float] = {}  # connections whose request has not arrived, the oldest first, and since when
        self._answering: list[threading.Thread] = []
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)
        self.guard = Guard(self.server_address[1])

    def server_bind(self) -> None:
        """Take the port. (HTTPServer would look up the name of the machine, which may ask the network.)"""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._lock:
            is_full = len(self._open) >= MOST_CONNECTIONS
            oldest = next(iter(self._waiting), None) if is_full else None
            self._open.add(request)
            self._waiting[request] = time.monotonic()
        if oldest is not None:
            self._end(oldest)
        elif is_full:
            self.shutdown_request(request)
            return
        thread.start()
        self._answering = [*(one for one in self._answering if one.is_alive()), thread]

    def service_actions(self) -> None:
        """End the connections whose requests take too long; called by ``serve_forever`` after every request, and now and then."""
        late = time.monotonic() - REQUEST_S
        with self._lock:
            found = [request for request, since in self._waiting.items() if since < late]
        for request in found:
            self._end(request)

    def has_arrived(self, request: Any) -> None:
        """A request was read: its connection is not to be closed for another one."""
        with self._lock:
            self._waiting.pop(request, None)

    def _end(self, request: Any) -> None:
        """End a connection in whose thread somebody waits for bytes; the thread closes it."""
        with self._lock:
            self._waiting.pop(request, None)
            self._open.discard(request)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._waiting.pop(request, None)
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no event."""

    def close(self) -> None:
        """Close the port, end the connections and wait a moment for their threads. Idempotent."""
        self.server_close()
        with self._lock:
            left = list(self._open)
        for request in left:
            self._end(request)
        for thread in self._answering:
            thread.join(timeout=5)
        if self.routes.data is not None:
            self.routes.data.close()


class _Handler(BaseHTTPRequestHandler):
    """One request. The connection is closed behind the answer."""

    server: ViewServer
    timeout = 15

    def parse_request(self) -> bool:
        """Read the headers of a request."""
        is_request = super().parse_request()
        self.server.has_arrived(self.request)
        return is_request

    def do_GET(self) -> None:
        self._reply(*self._answer())

    def do_HEAD(self) -> None:
        self._reply(*self._answer())

    def _answer(self) -> tuple[Answer, bool]:
        """The answer, and whether the cookie goes with it."""
        guard, (path, query) = self.server.guard, _split(self.path)
        try:
            is_new = guard.admit(self.headers, path, query)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status), False
        if not path.startswith(guard.root):
            return as_json({"error": "there is nothing at this address"}, HTTPStatus.NOT_FOUND), False
        return self._routed(path.removeprefix(guard.root), "" if is_new else query), is_new

    def _routed(self, path: str, query: str) -> Answer:
        try:
            return self.server.routes.answer(path, query)
        except Exception as error:  # whatever data makes happen, the others are still to be answered
            return as_json({"error": f"internal error: {type(error).__name__}"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _reply(self, answer: Answer, sets_cookie: bool = False) -> None:
        self.request_version = "HTTP/1.0"  # to somebody who names no version, nothing but the body would be sent
        self.send_response(answer.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if sets_cookie:
            self.send_header("Set-Cookie", self.server.guard.cookie)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses: unknown methods, and what is no request at all."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered"
        self.close_connection = True
        self._reply(as_json({"error": HTTPStatus(code).phrase if code != HTTPStatus.METHOD_NOT_ALLOWED else message}, code))

    def version_string(self) -> str:
        """The name of the program; which version of what is nobody's business."""
        return "penstock"

    def log_message(self, *args: Any) -> None:
        """Nothing: the addresses hold the secret."""


def _split(target: str) -> tuple[str, str]:
    """Path and query of a request; an address that cannot be one has neither."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "", ""
    return ("", "") if parts.scheme or parts.netloc else (parts.path, parts.query)
