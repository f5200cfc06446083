"""The server behind the double: requests, answers, and what goes wrong with them."""

import contextlib
import gzip
import hashlib
import re
import select
import socket
import struct
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape, unescape

ANY = "*"
"""A key of a plan that stands for every key."""

_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 503: "SlowDown"}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer. Offsets count the bytes of the body that is sent; times are seconds."""

    status: int | None = None  # answer with this status and do nothing
    code: str | None = None  # the error code in the body of that answer
    gate: threading.Event | None = None  # hold the answer back until the event is set (or the client is gone)
    asked: threading.Event | None = None  # set when the request has come
    opens: threading.Event | None = None  # set when the answer was sent
    delay_s: float = 0.0  # hold the answer back for so long (or until the client is gone)
    stall_at: int | None = None  # send so many bytes of the body, then nothing, until the client is gone
    reset_at: int | None = None  # send so many bytes of the body, then reset the connection
    short_at: int | None = None  # send so many bytes of the body, then close the connection in good order
    fewer: int = 0  # leave out so many bytes at the end, and say so in Content-Length (Content-Range stays)
    extra: bytes = b""  # send these bytes behind the range, and count them in Content-Length
    flip: int | None = None  # one bit of this byte of the body is wrong
    ignore_range: bool = False  # 200 and the whole object
    shift: int = 0  # 206 with a range that begins so many bytes later
    etag: str | None = None  # another ETag, on which the condition is checked too
    size: int | None = None  # another size of the object in Content-Range
    gzipped: bool = False  # the body is compressed and says so in Content-Encoding
    drop: bool = False  # do what was asked, then reset the connection instead of answering
    ignore_condition: bool = False  # as if If-Match and If-None-Match were not there
    hide: frozenset[str] = frozenset()  # keys that are missing from the listing
    twice: frozenset[str] = frozenset()  # keys that are listed twice, the second time on the next page


@dataclass(frozen=True)
class Request:
    """One request as it arrived: the range is half open, None where it was not asked for."""

    method: str
    key: str
    range: tuple[int | None, int | None] | None
    headers: dict[str, str]


@dataclass
class Plan:
    method: str
    key: str
    fault: Fault
    after: int
    times: int

    def take(self, method: str, key: str) -> Fault | None:
        if self.times == 0 or method != self.method or self.key not in (key, ANY):
            return None
        if self.after > 0:
            self.after -= 1
            return Fault()
        self.times -= 1
        return self.fault


@dataclass(frozen=True)
class Stored:
    data: bytes
    modified: float
    etag: str

    @classmethod
    def of(cls, data: bytes) -> "Stored":
        return cls(data, time.time(), f'"{hashlib.md5(data).hexdigest()}"')


@dataclass
class State:
    """What the threads of the server share; under the lock."""

    bucket: str
    page: int
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    log: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close joins them
    request_queue_size = 128

    def __init__(self, state: State) -> None:
        self.state = state
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""


class _GoneError(Exception):
    """The connection is of no further use."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_GoneError, OSError):
            self.close_connection = True

    def _serve(self) -> None:
        state = self.server.state
        length = int(self.headers.get("Content-Length", 0))
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        key = urllib.parse.unquote(url.path).removeprefix(f"/{state.bucket}").removeprefix("/")
        method, key = self._kind(key, query)
        body = b""
        if method == "DELETE" and self.command == "POST":  # the key of a bulk deletion is in its body
            body = self.rfile.read(length)
            key, length = unescape(re.findall(r"<Key>(.*?)</Key>", body.decode())[0]), 0
        with state.lock:
            state.log.append(Request(method, key, _asked(self.headers.get("Range")), dict(self.headers)))
            fault = next((f for plan in state.plans if (f := plan.take(method, key)) is not None), Fault())
        if fault.asked is not None:
            fault.asked.set()
        self._wait(fault)
        body += self.rfile.read(length)
        try:
            if fault.status is not None:
                return self._refuse(fault.status, key, fault)
            getattr(self, f"_{method.lower()}")(key, query, body, fault)
        finally:
            if fault.opens is not None:
                fault.opens.set()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _kind(self, key: str, query: dict[str, str]) -> tuple[str, str]:
        if "list-type" in query:
            return "LIST", query.get("prefix", "").removesuffix("/")
        if "delete" in query:
            return "DELETE", ""
        if "uploads" in query:
            return "BEGIN", key
        if "uploadId" in query:
            return {"PUT": "PART", "POST": "END", "DELETE": "ABORT"}[self.command], key
        return self.command, key

    # Faults

    def _gone(self) -> bool:
        """Whether the client closed the connection, or the server is being closed."""
        return bool(select.select([self.connection], [], [], 0)[0]) or self.server.state.closing.is_set()

    def _wait(self, fault: Fault) -> None:
        until = time.monotonic() + fault.delay_s
        while (fault.gate is not None and not fault.gate.is_set()) or time.monotonic() < until:
            self._leave_if_gone()
            time.sleep(0.005)

    def _leave_if_gone(self) -> None:
        body_may_wait = self.command in ("PUT", "POST")
        if self.server.state.closing.is_set() or (not body_may_wait and self._gone()):
            raise _GoneError

    def _reset(self) -> None:
        # Linger of zero seconds: close sends RST instead of FIN.
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise _GoneError

    # Answers

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: Fault) -> None:
        if fault.drop:
            self._reset()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD" or status == 204:
            return
        for offset, action in ((fault.stall_at, "stall"), (fault.reset_at, "reset"), (fault.short_at, "short")):
            if offset is not None:
                self.wfile.write(body[:offset])
                self._break_off(action)
        self.wfile.write(body)

    def _break_off(self, action: str) -> None:
        if action == "reset":
            self._reset()
        while action == "stall" and not self._gone():
            time.sleep(0.005)
        raise _GoneError

    def _refuse(self, status: int, key: str, fault: Fault) -> None:
        code = fault.code or _CODES.get(status, "InternalError")
        body = f"<Error><Code>{code}</Code><Key>{escape(key)}</Key><RequestId>request-{len(key)}</RequestId></Error>".encode()
        self._answer(status, {"Content-Type": "application/xml", "x-amz-request-id": f"request-{len(key)}"}, body, fault)

    def _head(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        self._get(key, query, body, fault)

    def _get(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        with self.server.state.lock:
            found = self.server.state.objects.get(key)
        if found is None:
            return self._refuse(404, key, fault)
        etag = fault.etag or found.etag
        wanted = self.headers.get("If-Match")
        if wanted not in (None, "*", etag) and not fault.ignore_condition:
            return self._refuse(412, key, fault)
        headers = {"ETag": etag, "Last-Modified": formatdate(found.modified, usegmt=True), "Accept-Ranges": "bytes"}
        status, data, total = 200, found.data, fault.size or len(found.data)
        asked = _asked(self.headers.get("Range"))
        if asked is not None and not fault.ignore_range:
            start, stop = _within(asked, len(data))
            if start >= len(data):
                return self._refuse(416, key, fault)
            start, stop = start + fault.shift, min(stop + fault.shift, len(data))
            status, data = 206, data[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        if fault.flip is not None:
            data = data[: fault.flip] + bytes([data[fault.flip] ^ 1]) + data[fault.flip + 1 :]
        if fault.gzipped:
            data, headers["Content-Encoding"] = gzip.compress(data), "gzip"
        data = data[: len(data) - fault.fewer] + fault.extra
        headers["Content-Length"] = str(len(data))
        self._answer(status, headers, data, fault)

    def _put(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        state = self.server.state
        with state.lock:
            taken = self.headers.get("If-None-Match") == "*" and key in state.objects and not fault.ignore_condition
            if not taken:
                state.objects[key] = Stored.of(body)
        if taken:
            return self._refuse(412, key, fault)
        self._answer(200, {"ETag": Stored.of(body).etag}, b"", fault)

    def _delete(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        with self.server.state.lock:
            self.server.state.objects.pop(key, None)
        if self.command == "DELETE":
            return self._answer(204, {}, b"", fault)
        answer = f"<DeleteResult><Deleted><Key>{escape(key)}</Key></Deleted></DeleteResult>"
        self._answer(200, {"Content-Type": "application/xml"}, answer.encode(), fault)

    def _begin(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        state = self.server.state
        with state.lock:
            name = f"upload-{len(state.log)}"
            state.uploads[name] = {}
        answer = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
        self._answer(200, {}, answer.encode(), fault)

    def _part(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        with self.server.state.lock:
            upload = self.server.state.uploads.get(query["uploadId"])
            if upload is not None:
                upload[int(query["partNumber"])] = body
        if upload is None:
            return self._refuse(404, key, fault)
        self._answer(200, {"ETag": Stored.of(body).etag}, b"", fault)

    def _end(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        state = self.server.state
        with state.lock:
            parts = state.uploads.pop(query["uploadId"], None)
            if parts is not None:
                state.objects[key] = Stored.of(b"".join(parts[n] for n in sorted(parts)))
        if parts is None:
            return self._refuse(404, key, fault)
        answer = f"<CompleteMultipartUploadResult><ETag>{state.objects[key].etag}</ETag></CompleteMultipartUploadResult>"
        self._answer(200, {}, answer.encode(), fault)

    def _abort(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        with self.server.state.lock:
            self.server.state.uploads.pop(query["uploadId"], None)
        self._answer(204, {}, b"", fault)

    def _list(self, key: str, query: dict[str, str], body: bytes, fault: Fault) -> None:
        state = self.server.state
        after = query.get("continuation-token") or query.get("start-after", "")
        with state.lock:
            found = sorted(k for k in state.objects if k.startswith(query.get("prefix", "")) and k not in fault.hide)
            objects = dict(state.objects)
        first = after.removeprefix("=")
        # A token that begins with "=" repeats its key: a listing that shows it on two pages.
        rest = [k for k in found if k > first or (after.startswith("=") and k == first)]
        page, more = rest[: state.page], len(rest) > state.page
        token = ("=" if page and page[-1] in fault.twice else "") + (page[-1] if page else "")
        rows = "".join(
            f"<Contents><Key>{escape(k)}</Key><LastModified>{_iso(objects[k].modified)}</LastModified>"
            f"<ETag>{escape(objects[k].etag)}</ETag><Size>{len(objects[k].data)}</Size></Contents>"
            for k in page
        )
        next_page = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if more else ""
        answer = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{rows}{next_page}</ListBucketResult>"
        self._answer(200, {"Content-Type": "application/xml"}, answer.encode(), fault)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _asked(header: str | None) -> tuple[int | None, int | None] | None:
    """``bytes=3-7`` as (3, 8), ``bytes=3-`` as (3, None), ``bytes=-3`` as (None, 3)."""
    if header is None:
        return None
    start, stop = header.removeprefix("bytes=").split("-")
    if not start:
        return None, int(stop)
    return int(start), int(stop) + 1 if stop else None


def _within(asked: tuple[int | None, int | None], size: int) -> tuple[int, int]:
    start, stop = asked
    if start is None:
        return max(0, size - (stop or 0)), size
    return start, size if stop is None else min(stop, size)
