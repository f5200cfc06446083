"""A hostile HTTP and S3 server, its attacks as a table: python -m tests.hostile.server [--count N] [--only NAME].

An attack answers every request in its own way. ``run`` opens and reads an object (or lists a bucket) of a server under attack and
says what became of it: the records, or the error. Whatever happens, ``leaks`` looks for the planted secrets in all that the client
shows, and the stranger (another server, on another address of this machine) in what it was sent.
"""

import argparse
import contextlib
import io
import itertools
import logging
import random
import socket
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import penstock as pen
from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    PenstockError,
    ReadError,
    StoreUnavailableError,
    UnsafePathError,
)
from penstock.remote.url import UrlPath, url_path

API_KEY, BEARER, PASSWORD = "planted-api-key-6b1f", "planted-bearer-90ac", "planted-password-c44e"
SECRET_KEY, TOKEN = "planted-secret-key-17d2", "planted-session-token-e8f0"
SECRETS = (API_KEY, BEARER, PASSWORD, SECRET_KEY, TOKEN)
"""What must never be shown, nor sent to another host."""

RECORDS = np.arange(4000, dtype=np.int32)
MOST_SENT_BYTES = 64 << 20
"""Far more than the buffers of a connection, far less than an endless body."""


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@dataclass
class State:
    """What the threads of a server share."""

    data: bytes = field(default_factory=lambda: npy(RECORDS))
    modified: float = 1_700_000_000.0
    attack: "Callable[[Handler], None] | None" = None
    stranger: str = ""
    sent_bytes: int = 0
    log: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Hostile"

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _serve(self) -> None:
        state = self.server.state
        state.log.append((self.command, self.path, dict(self.headers)))
        (state.attack or Handler.honest)(self)

    do_GET = do_HEAD = _serve  # noqa: N815

    # What attacks are made of

    @property
    def is_listing(self) -> bool:
        return "list-type" in self.path

    @property
    def asked(self) -> tuple[int, int]:
        """The range that was asked for, half open."""
        size, header = len(self.server.state.data), self.headers.get("Range", "bytes=0-")
        first, _, last = header.removeprefix("bytes=").partition("-")
        if not first:
            return max(0, size - int(last)), size
        return int(first), min(size, int(last) + 1) if last else size

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def object_head(self, status: int = 206, **headers: object) -> bytes:
        """The head of an answer about the object; the bytes that belong behind it."""
        state, (start, stop) = self.server.state, self.asked
        data = state.data[start:stop] if "Range" in self.headers else state.data
        status = status if "Range" in self.headers else 200
        said: dict[str, object] = {"ETag": '"one"', "Last_Modified": formatdate(state.modified, usegmt=True)}
        said["Content_Length"] = len(data)
        if status == 206:
            said["Content_Range"] = f"bytes {start}-{stop - 1}/{len(state.data)}"
        self.head(status, **(said | headers))
        return b"" if self.command == "HEAD" else data

    def honest(self) -> None:
        self.send(self.object_head())

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.server.state.sent_bytes += len(data)

    def endless(self, head: bytes = b"", *, chunked: bool = False) -> None:
        """Bytes as long as the client takes them, up to 1 GiB."""
        if self.command == "HEAD":
            return
        self.send(_chunk(head) if chunked and head else head)
        block = _chunk(bytes(1 << 20)) if chunked else bytes(1 << 20)
        for _ in range(1 << 10):
            self.send(block)
        self.close_connection = True

    def drip(self, data: bytes) -> None:
        """One byte after the other."""
        for place in range(len(data)):
            self.send(data[place : place + 1])
            if self.server.state.closing.wait(0.01):
                return

    def page(self, keys: Iterator[str] | list[str], token: str | None) -> bytes:
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
            "<Size>10</Size></Contents>"
            for key in keys
        )
        more = "" if token is None else f"<NextContinuationToken>{token}</NextContinuationToken>"
        truncated = str(token is not None).lower()
        return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{rows}{more}</ListBucketResult>".encode()

    def listing(self, keys: Iterator[str] | list[str], token: str | None) -> None:
        body = self.page(keys, token)
        self.head(200, Content_Type="application/xml", Content_Length=len(body))
        self.send(body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Hostile(ThreadingHTTPServer):
    """The server; a context manager. ``address``: another one on loopback is another host."""

    daemon_threads = False  # so that server_close joins them
    request_queue_size = 128

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.state, self.clients = State(), set[Any]()
        self._open: set[socket.socket] = set()
        super().__init__((address, 0), Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="hostile")
        self._thread.start()

    @property
    def base(self) -> str:
        return "http://{}:{}".format(*self.server_address[:2])

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        self.clients.add(address)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""

    def __enter__(self) -> "Hostile":
        return self

    def __exit__(self, *_: object) -> None:
        self.state.closing.set()
        self.shutdown()
        self._thread.join()
        self.hang_up()
        self.server_close()

    def hang_up(self) -> None:
        """End all connections, and with them their threads."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


# The attacks

_numbers = itertools.count()


def huge_body(handler: Handler) -> None:
    """A small range, and 1 GiB behind it."""
    handler.endless(handler.object_head(Content_Length=1 << 30))


def huge_chunked_body(handler: Handler) -> None:
    """The same without a length."""
    handler.endless(handler.object_head(Content_Length=None, Transfer_Encoding="chunked"), chunked=True)


def whole_instead_of_range(handler: Handler) -> None:
    """200 and more than the object has, whatever was asked for."""
    handler.endless(handler.object_head(200, Content_Length=1 << 30))


def dripping_body(handler: Handler) -> None:
    """Right bytes, one at a time."""
    handler.drip(handler.object_head())


def dripping_head(handler: Handler) -> None:
    """Headers without an end, byte by byte."""
    handler.drip(b"HTTP/1.1 206 Partial Content\r\n" + b"X-A: b\r\n" * 1000)


def dripping_error(handler: Handler) -> None:
    """An error whose text comes byte by byte."""
    handler.head(404, Content_Length=10_000)
    if handler.command != "HEAD":
        handler.drip(b"x" * 10_000)


def huge_error(handler: Handler) -> None:
    """404 and 1 GiB of text about it."""
    handler.head(404, Content_Length=1 << 30)
    handler.endless()


def header_bomb(handler: Handler) -> None:
    """Headers without an end."""
    handler.send(b"HTTP/1.1 206 Partial Content\r\n")
    for _ in range(64):
        handler.send(b"X-A: " + b"b" * (1 << 20))


def many_headers(handler: Handler) -> None:
    """10,000 headers."""
    handler.send(b"HTTP/1.1 206 Partial Content\r\n" + b"X-A: b\r\n" * 10_000)
    handler.send(b"\r\n")


def not_yet(handler: Handler) -> None:
    """100 Continue, again and again."""
    for _ in range(10_000):
        handler.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def no_http(handler: Handler) -> None:
    """An answer in another protocol, with secrets."""
    handler.send(f"220 {' '.join(SECRETS)} ESMTP\r\n".encode())
    handler.close_connection = True


def gzipped(handler: Handler) -> None:
    """Bytes that are said to be compressed."""
    handler.send(handler.object_head(Content_Encoding="gzip"))


def short_body(handler: Handler) -> None:
    """Half of what was announced."""
    body = handler.object_head()
    handler.send(body[: len(body) // 2])
    handler.close_connection = True


def new_etags(handler: Handler) -> None:
    """Another version with every answer."""
    handler.send(handler.object_head(ETag=f'"{next(_numbers)}"'))


def new_dates(handler: Handler) -> None:
    """No etag, and another date with every answer."""
    handler.send(handler.object_head(ETag=None, Last_Modified=formatdate(1.7e9 + next(_numbers), usegmt=True)))


def bad_dates(handler: Handler) -> None:
    """No etag, and dates that are none."""
    handler.send(handler.object_head(ETag=None, Last_Modified="Thu, 99 Foo 99999 99:99:99 GMT"))


def says_range(text: str) -> Callable[[Handler], None]:
    def attack(handler: Handler) -> None:
        handler.send(handler.object_head(Content_Range=text))

    attack.__doc__ = f"The range {text}, whatever was asked for."
    return attack


def moved_here(handler: Handler) -> None:
    """A redirect to another name on the same server, which answers."""
    if handler.path.endswith("/moved.npy"):
        return handler.honest()
    handler.head(302, Location="/moved.npy", Content_Length=0)


def says_size(size: object) -> Callable[[Handler], None]:
    def attack(handler: Handler) -> None:
        start, stop = handler.asked
        handler.send(handler.object_head(Content_Range=f"bytes {start}-{stop - 1}/{size}"))

    attack.__doc__ = f"An object that has {size} bytes."
    return attack


def redirect(status: int, to: str) -> Callable[[Handler], None]:
    def attack(handler: Handler) -> None:
        place = to.format(stranger=handler.server.state.stranger, here=handler.server.base)
        handler.head(status, Location=place, Content_Length=0)

    attack.__doc__ = f"{status} to {to}"
    return attack


def echo(status: int) -> Callable[[Handler], None]:
    def attack(handler: Handler) -> None:
        said = "".join(f"{name}: {value}\n" for name, value in handler.headers.items())
        body = f"<Error><Code>Echo</Code><Message>{said}{' '.join(SECRETS)}\x1b[31m</Message></Error>".encode()
        handler.head(status, Content_Length=len(body))
        if handler.command != "HEAD":
            handler.send(body)

    attack.__doc__ = f"{status} with a text that has all that was sent, and more."
    return attack


def same_page(handler: Handler) -> None:
    """A listing that begins again and again."""
    handler.listing([f"d/{n}.npy" for n in range(1000)], f"t{next(_numbers)}")


def empty_pages(handler: Handler) -> None:
    """A listing of pages with nothing on them."""
    handler.listing([], f"t{next(_numbers)}")


def ever_more_keys(handler: Handler) -> None:
    """A listing with new keys on every page."""
    handler.listing([f"d/{next(_numbers):020}.npy" for _ in range(1000)], f"t{next(_numbers)}")


def long_keys(handler: Handler) -> None:
    """Keys of 10 kB."""
    handler.listing([f"d/{next(_numbers)}{'x' * 10_000}.npy" for _ in range(200)], f"t{next(_numbers)}")


def dripping_listing(handler: Handler) -> None:
    """A listing byte by byte."""
    body = handler.page([f"d/{n}.npy" for n in range(1000)], None)
    handler.head(200, Content_Type="application/xml", Content_Length=len(body))
    handler.drip(body)


Errors = tuple[type[Exception], ...]


@dataclass(frozen=True)
class Attack:
    """How the server answers, and what the client must make of it: ``errors``; with ``may_read`` also the right records.

    One that ``is_slow`` goes on until a deadline, which is short then; on all others time has no influence.
    """

    serve: Callable[[Handler], None]
    errors: Errors
    schemes: tuple[str, ...] = ("http", "s3")
    may_read: bool = False
    is_slow: bool = False


_OTHER = "{stranger}/o.npy?sig=1"

ATTACKS: Mapping[str, Attack] = {
    "huge body": Attack(huge_body, (CorruptError,)),
    "huge chunked body": Attack(huge_chunked_body, (ReadError,)),
    "whole instead of range": Attack(whole_instead_of_range, (ReadError,)),
    "dripping body": Attack(dripping_body, (StoreUnavailableError,), is_slow=True),
    "dripping head": Attack(dripping_head, (StoreUnavailableError,), is_slow=True),
    "dripping error": Attack(dripping_error, (StoreUnavailableError, MissingError), is_slow=True),
    "huge error": Attack(huge_error, (MissingError,), ("http",)),  # obstore reads the text of an error to its end
    "header bomb": Attack(header_bomb, (StoreUnavailableError,)),
    "many headers": Attack(many_headers, (StoreUnavailableError,)),
    "100 continue": Attack(not_yet, (StoreUnavailableError,), is_slow=True),
    "no http": Attack(no_http, (StoreUnavailableError,)),
    "gzip": Attack(gzipped, (CorruptError,)),
    "short body": Attack(short_body, (ReadError,), may_read=True),
    "new etags": Attack(new_etags, (ObjectChangedError,)),
    "new dates": Attack(new_dates, (ObjectChangedError,)),
    "bad dates": Attack(bad_dates, (ReadError,), may_read=True),
    **{
        f"range {text}": Attack(says_range(text), (ReadError,))
        for text in (
            "bytes 0-0/16128",
            "bytes 5-1/16128",
            "bytes */16128",
            "bytes 0-99999999/100000000",
            "lines 1-2/3",
            "bytes 0-1/*",
        )
    },
    "moved here": Attack(moved_here, (ReadError,), may_read=True),
    **{
        f"size {size}": Attack(says_size(size), (ReadError,)) for size in (2**63, 2**63 - 1, 2**62, 2**64 - 1, 2**64, -1, "x", 0, 5)
    },
    **{f"redirect {status}": Attack(redirect(status, _OTHER), (UnsafePathError,)) for status in (301, 302, 303, 307, 308)},
    "redirect to https": Attack(redirect(302, "https://127.0.0.2:9/o.npy"), (UnsafePathError,)),
    "redirect to metadata": Attack(redirect(302, "http://169.254.169.254/latest"), (UnsafePathError,)),
    "redirect to a file": Attack(redirect(302, "file:///etc/passwd"), (ReadError,)),
    "redirect in a circle": Attack(redirect(302, "{here}/o.npy"), (ReadError,)),
    "redirect to nowhere": Attack(redirect(302, "::"), (ReadError,)),
    **{f"echo {status}": Attack(echo(status), (PenstockError,)) for status in (400, 401, 403, 404, 409, 412, 416, 500, 503)},
    "same page": Attack(same_page, (StoreUnavailableError,), ("list",), is_slow=True),
    "empty pages": Attack(empty_pages, (StoreUnavailableError,), ("list",), is_slow=True),
    "ever more keys": Attack(ever_more_keys, (CorruptError,), ("list",)),
    "long keys": Attack(long_keys, (CorruptError,), ("list",)),
    "dripping listing": Attack(dripping_listing, (StoreUnavailableError,), ("list",), is_slow=True),
    "listing redirected": Attack(redirect(307, _OTHER), (UnsafePathError,), ("list",)),
    "listing echoed": Attack(echo(403), (AccessDeniedError,), ("list",)),
}

CASES = [(name, scheme) for name, attack in ATTACKS.items() for scheme in attack.schemes]


# The client


def target(server: Hostile, scheme: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A URL of the server and options with all kinds of secrets in them."""
    headers = {"X-Api-Key": API_KEY, "Authorization": f"Bearer {BEARER}"}
    if scheme == "http":
        return f"{server.base}/o.npy", {"default_headers": headers} | more
    endpoint = server.base.replace("://", f"://user:{PASSWORD}@")
    keys = {"access_key_id": "key", "secret_access_key": SECRET_KEY, "session_token": TOKEN, "region": "us-east-1"}
    options = {"endpoint": endpoint, "default_headers": {"X-Api-Key": API_KEY}, "allow_http": True} | keys | more
    return "s3://data/d/*.npy" if scheme == "list" else "s3://data/o.npy", options


def hurried(url: str, options: dict[str, Any], seconds: float = 60.0) -> UrlPath:
    """The place, with hardly a wait between tries, and a deadline."""
    place = url_path(url, options)
    quick = {"first_wait_s": 0.001, "longest_wait_s": 0.01, "hedge_s": 60.0, "tries": 3}
    deadlines = dict.fromkeys(("total_s", "read_s", "request_s"), seconds)
    place.objects.policy = replace(place.objects.policy, **deadlines, **quick)
    return place


@dataclass
class Outcome:
    """What became of reading under an attack; ``shown`` is all that anybody could see of it."""

    error: Exception | None
    shown: str


def run(place: UrlPath) -> Outcome:
    """Open and read; the error, if there was one, and all that was shown."""
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    error: Exception | None = None
    shown = [repr(place), str(place), repr(place.objects), repr(place.objects.__dict__.get("account"))]
    try:
        with pen.open(place) as source:
            shown += [repr(source), str(source)]
            assert np.array_equal(source[:]["data"], RECORDS)
    except Exception as failure:
        error = failure
        shown += ["".join(traceback.format_exception(failure)), *_shown(failure)]
    finally:
        logging.getLogger().removeHandler(handler)
        place.objects.close()
    return Outcome(error, "\n".join([*shown, logged.getvalue()]))


def _shown(error: BaseException | None) -> Iterator[str]:
    """What an error and those that it came from say, also where tracebacks leave them out."""
    while error is not None:
        yield from (repr(error), str(error), repr(vars(error)), *map(str, error.args))
        error = error.__cause__ or error.__context__


def leaks(outcome: Outcome) -> list[str]:
    """Secrets that were shown, also as parts of URLs."""
    return [secret for secret in SECRETS if secret in outcome.shown or urllib.parse.quote(secret) in outcome.shown]


def problems(name: str, scheme: str, server: Hostile, stranger: Hostile) -> list[str]:
    """Make one attack; what is wrong with how the client took it."""
    attack = ATTACKS[name]
    server.state.attack, server.state.stranger, server.state.sent_bytes = attack.serve, stranger.base, 0
    stranger.state.log.clear()
    url, options = target(server, scheme, **({"max_listed": 5_000} if scheme == "list" else {}))
    outcome = run(hurried(url, options, 0.2 if attack.is_slow else 60.0))
    server.hang_up()
    stranger.hang_up()
    found = [f"showed {secret}" for secret in leaks(outcome)]
    found += [f"sent {len(stranger.state.log)} requests to a stranger"] * bool(stranger.state.log)
    if server.state.sent_bytes > MOST_SENT_BYTES:
        found.append(f"took {server.state.sent_bytes} bytes")
    if outcome.error is None:
        found += ["no error"] * (not attack.may_read)
    elif not isinstance(outcome.error, attack.errors):
        found.append(f"expected {' or '.join(kind.__name__ for kind in attack.errors)}, got {outcome.error!r}"[:600])
    else:
        text = str(outcome.error)
        found += [f"a message that is long or has control characters: {text[:900]!r}"] * (len(text) > 900 or not text.isprintable())
        found += [f"a message without its place: {text}"] * ("o.npy" not in text and "data/d" not in text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=0, help="attacks to make: one of each, the others drawn by lot")
    parser.add_argument("--only", help="the name of one attack")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in (None, case[0])]
    chance, wrong = random.Random(7), 0
    cases += [chance.choice(cases) for _ in range(arguments.count - len(cases))]
    with Hostile() as server, Hostile("127.0.0.2") as stranger:
        for number, (name, scheme) in enumerate(cases):
            begin = time.monotonic()
            found = problems(name, scheme, server, stranger)
            wrong += bool(found)
            seconds = time.monotonic() - begin
            sys.stdout.write(f"{number} {scheme} {name}: {'; '.join(found) or 'right'} ({seconds:.1f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(cases)} attacks, {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
