"""The web server: on this machine only, for one person, read-only; its addresses and what is behind each of them.

The figures of a running loader are in a file: StatsLog writes it line by line, ``penstock view --watch`` reads and draws it.
"""

import contextlib
import errno
import json
import math
import os
import re
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from penstock.argument import IntArray
from penstock.errors import MissingError, PenstockError
from penstock.loader import Loader
from penstock.loader.stats import Stats
from penstock.records import Source
from penstock.store.reader import Store
from penstock.tokenizer import TextTokenizer
from penstock.trace.run import visits_of
from penstock.view.dataset import (
    PARAMETERS,
    OrderChoice,
    ShownData,
    chunk_map,
    describe,
    document_fields,
    label_fields,
    mix_of,
    picture_of,
    place_of,
    without_paths,
)
from penstock.view.guard import HEADERS, Guard, Query, RefusedError, Response, as_json, whole
from penstock.view.pipeline import MOST_STEPS, BatchReader, ShownLoader, steps_of
from penstock.view.records import LONG, MOST_BYTES, MOST_FIELDS, SHORT, Limits, make_image, read_value, rows
from penstock.view.search import search, searchable

MOST_RECORDS = 200
MOST_NUMBER = 2**63 - 1
MOST_STEP = 2**48  # steps and epochs beyond this are refused: no run is as long
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
REQUEST_S = 10.0  # the longest time for a request to arrive
MOST_LOG_BYTES = 4 << 20  # of longer files, the end is read
MOST_POINTS = 400
NEEDED = ("time_s", "batches", "samples", "bytes", "wait_s", "busy_s")


@dataclass(frozen=True)
class Routes:
    """Answers for one data set, for one file of loader figures, or for both."""

    data: ShownData | None
    watched: Path | None = None
    tokenizer: TextTokenizer | None = None
    shown: ShownLoader | None = None
    name: str = ""

    def answer(self, path: str, query: str) -> Response:
        """The answer to a path below the root; errors as JSON."""
        try:
            for pattern, allowed, function in _ROUTES:
                match = re.fullmatch(pattern, path, re.ASCII)
                if match is not None:
                    return function(self, Query(query, allowed), *match.groups())
            return _static_file(path)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status)
        except MissingError as error:
            return as_json({"error": self.words(error)}, HTTPStatus.NOT_FOUND)
        except (PenstockError, OSError) as error:
            return as_json({"error": self.words(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            return as_json({"error": self.words(error)}, HTTPStatus.BAD_REQUEST)

    def words(self, error: Exception) -> str:
        """What a page may say about an error."""
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return without_paths(text, () if self.data is None else self.data.words)[:2000] or type(error).__name__

    def source(self, query: Query) -> Source:
        """The data, at the generation that was asked for."""
        if self.shown is not None:
            return self.shown.source(query.whole("part", 0, most=len(self.shown.parts) - 1))
        if self.data is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "no data was given, only a file to watch")
        return self.data.at(query.optional("generation", least=1, most=MOST_NUMBER))

    def about(self, query: Query) -> Response:
        watched = None if self.watched is None else self.watched.name
        if self.data is None and self.shown is None:
            return as_json({"names": [], "data": None, "watched": watched, "loader": None})
        source = self.source(query)
        fields = list(source.schema)
        found = [fields.index(name) for name in searchable(source, self.tokenizer)]
        about = {
            **describe(source),
            "labels": label_fields(source),
            "searchable": found,
            "documents": [fields.index(name) for name in document_fields(source)],
            "shown_fields": MOST_FIELDS,
        }
        if self.shown is not None and isinstance(source, Store):
            about["generations"] = [source.generation]  # that of the loader
        names = [self.name] if self.data is None else [_short(word) for word in self.data.words]
        loader = None if self.shown is None else self.shown.describe(self.tokenizer)
        return as_json({"names": names, "data": about, "watched": watched, "loader": loader})

    def _rows(self, source: Source, ids: IntArray, limits: Limits) -> list[dict[str, Any]]:
        return rows(source, ids, limits, self.words, self.tokenizer)

    def records(self, query: Query) -> Response:
        source = self.source(query)
        start = query.whole("start", 0, most=MOST_NUMBER)
        count = query.whole("count", 48, least=1, most=MOST_RECORDS)
        ids = np.arange(min(start, len(source)), min(start + count, len(source)), dtype=np.int64)
        return as_json({"start": start, "total": len(source), "rows": self._rows(source, ids, SHORT)})

    def record(self, query: Query, number: str) -> Response:
        source = self.source(query)
        found = self._rows(source, np.array([_id(source, number)]), LONG)[0]
        return as_json({**found, "total": len(source)})

    def search(self, query: Query) -> Response:
        source = self.source(query)
        name = _field(source, query.whole("field", 0, most=4096))
        start = query.whole("start", 0, most=MOST_NUMBER)
        count = query.whole("count", 48, least=1, most=MOST_RECORDS)
        found, ids = search(source, name, query.text("text"), start, count, self.tokenizer)
        rows = self._rows(source, ids, SHORT)
        hits = [{**row, "found": hit[1:]} for row, hit in zip(rows, found.hits, strict=True)]
        return as_json({**found.as_json(start, len(source)), "rows": hits})

    def where(self, query: Query, number: str) -> Response:
        source, choice = self.source(query), OrderChoice.of(query)
        epoch, record = query.whole("epoch", 0, most=MOST_STEP), _id(source, number)
        if self.shown is not None:
            part = query.whole("part", 0, most=len(self.shown.parts) - 1)
            return as_json({"where": self.shown.places(part, record, epoch), "text": ""})
        places = self._loader(source, choice).where(record, epochs=range(epoch, epoch + 1))
        return as_json({"where": places, "text": repr(choice.stream(source).order)})

    def _loader(self, source: Source, choice: OrderChoice) -> Loader:
        assert self.data is not None
        return self.data.loader(source, choice)

    def image(self, query: Query, field: str, number: str) -> Response:
        source = self.source(query)
        name = _field(source, whole(field, "field", most=4096))
        value = read_value(source, name, _id(source, number), MOST_BYTES)
        return make_image(value, query.optional("edge", least=16, most=4096))

    def batch(self, query: Query) -> Response:
        source, choice = self.source(query), OrderChoice.of(query)
        step, start = query.whole("step", 0, most=MOST_STEP), query.whole("start", 0, most=MOST_NUMBER)
        count = query.whole("count", 64, least=1, most=MOST_RECORDS)
        if self.shown is None:
            loader, has_losses = self._loader(source, choice), False
            visits, text, sources = visits_of(loader, step), repr(choice.stream(source).order), [source]
        else:
            loader, visits, has_losses = self.shown.visits(step)
            text, sources = "", [part.source for part in loader.stream.parts]
        reader = BatchReader(loader, step, visits, self.tokenizer, SHORT)
        rows = self._with_cells(sources, reader.rows(start, start + count))
        place, steps = reader.place, steps_of(loader)
        about = {"step": step, "epoch": place.epoch, "position": place.position, "samples": reader.num_samples, "steps": steps}
        return as_json({**about, "text": text, "has_losses": has_losses, "start": start, "rows": rows})

    def _with_cells(self, sources: Sequence[Source], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Samples that are records with their values, read stream by stream."""
        for part, source in enumerate(sources):
            mine = [row for row in found if row["part"] == part and "id" in row]
            cells = self._rows(source, np.array([row["id"] for row in mine], np.int64), SHORT) if mine else []
            for row, one in zip(mine, cells, strict=True):
                row["cells"] = one["cells"]
        return found

    def _need_loader(self) -> ShownLoader:
        if self.shown is None:
            raise RefusedError(
                HTTPStatus.NOT_FOUND, "this page needs a loader; start with: penstock view MODULE:FUNCTION, or --run RUN"
            )
        return self.shown

    def _need_losses(self) -> ShownLoader:
        if self.shown is None or not self.shown.has_losses:
            raise RefusedError(HTTPStatus.NOT_FOUND, "this page needs the losses of a run; start with: penstock view --run RUN")
        return self.shown

    def shares(self, query: Query) -> Response:
        return as_json(self._need_loader().shares(query.optional("steps", least=1, most=MOST_STEPS)))

    def losses(self, query: Query) -> Response:
        low, high = (query.optional(name, most=MOST_STEPS) for name in ("from", "to"))
        return as_json(self._need_losses().losses(low, high))

    def blame(self, query: Query) -> Response:
        return as_json(self._need_losses().blame(query.whole("step", 0, most=MOST_STEP)))

    def order(self, query: Query) -> Response:
        return as_json(picture_of(self.source(query), OrderChoice.of(query), query.whole("epoch", 0, most=MOST_STEP)))

    def mix(self, query: Query) -> Response:
        source, choice = self.source(query), OrderChoice.of(query)
        fields = list(source.schema)
        field = fields[query.whole("field", 0, most=len(fields) - 1)]
        if field not in label_fields(source):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "expected a field with one whole number a record")
        return as_json(mix_of(source, choice, query.whole("epoch", 0, most=MOST_STEP), field))

    def chunks(self, query: Query) -> Response:
        source = self.source(query)
        if not isinstance(source, Store):
            raise RefusedError(HTTPStatus.NOT_FOUND, "only stores have chunks")
        return as_json(chunk_map(source))

    def live(self, query: Query) -> Response:
        if self.watched is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "no file is watched; start with: penstock view --watch FILE")
        return as_json(read_figures(self.watched))


def _short(word: str) -> str:
    """The last part of a path or URL; the rest is private."""
    place = place_of(word)
    return word.removesuffix(place) + (place.rstrip("/").rpartition("/")[2] or place)


def _field(source: Source, place: int) -> str:
    names = list(source.schema)
    if place >= len(names):
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no field {place}; there are {len(names)}")
    return names[place]


def _id(source: Source, text: str) -> int:
    record = whole(text, "record", most=MOST_NUMBER)
    if record >= len(source):
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no record {record}; there are {len(source)}, from 0")
    return record


_SOURCE = {"generation", "part"}
_CHOICE = {"epoch", *_SOURCE, *PARAMETERS}
_ROUTES: tuple[tuple[str, set[str], Callable[..., Response]], ...] = (
    ("api/about", _SOURCE, Routes.about),
    ("api/records", {"start", "count", *_SOURCE}, Routes.records),
    ("api/record/([0-9]{1,20})", _SOURCE, Routes.record),
    ("api/search", {"field", "text", "start", "count", *_SOURCE}, Routes.search),
    ("api/where/([0-9]{1,20})", _CHOICE, Routes.where),
    ("image/([0-9]{1,4})/([0-9]{1,20})", {"edge", *_SOURCE}, Routes.image),
    ("api/batch", {"step", "start", "count", *_CHOICE} - {"epoch"}, Routes.batch),
    ("api/shares", {"steps"}, Routes.shares),
    ("api/losses", {"from", "to"}, Routes.losses),
    ("api/blame", {"step"}, Routes.blame),
    ("api/order", _CHOICE, Routes.order),
    ("api/mix", {"field", *_CHOICE}, Routes.mix),
    ("api/chunks", _SOURCE, Routes.chunks),
    ("api/live", set(), Routes.live),
)


@cache
def _load_files() -> dict[str, Response]:
    folder = resources.files("penstock.view") / "static"
    return {
        file.name: Response(HTTPStatus.OK, f"{_KINDS[Path(file.name).suffix]}; charset=utf-8", file.read_bytes())
        for file in folder.iterdir()
        if Path(file.name).suffix in _KINDS
    }


def _static_file(path: str) -> Response:
    found = _load_files().get(path or "index.html")
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing at this address")
    return found


MOST_CONNECTIONS = 64
"""At a time. For another one, the oldest that has not sent its request yet is closed; if all have, the new one."""


class ViewServer(ThreadingHTTPServer):
    """Serves the page until it is closed: ``serve_forever`` in one thread, ``shutdown`` from another, then ``close``."""

    daemon_threads = True
    request_queue_size = 128  # with the default of 5, simultaneous connections wait for seconds

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
        """End a connection whose thread waits for bytes; the thread closes it."""
        with self._lock:
            self._waiting.pop(request, None)
            self._open.discard(request)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
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
        for shown in (self.routes.data, self.routes.shown):
            if shown is not None:
                shown.close()


class _Handler(BaseHTTPRequestHandler):
    """One request. The connection is closed behind the answer."""

    server: ViewServer
    timeout = 15

    def parse_request(self) -> bool:
        is_request = super().parse_request()
        self.server.has_arrived(self.request)
        return is_request

    def do_GET(self) -> None:
        self._reply(*self._answer())

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def _answer(self) -> tuple[Response, bool]:
        """The answer, and whether the cookie goes with it."""
        guard, (path, query) = self.server.guard, _split_target(self.path)
        try:
            is_new = guard.admit(self.headers, path, query)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status), False
        if not path.startswith(guard.root):
            return as_json({"error": "there is nothing at this address"}, HTTPStatus.NOT_FOUND), False
        return self._routed(path.removeprefix(guard.root), "" if is_new else query), is_new

    def _routed(self, path: str, query: str) -> Response:
        try:
            return self.server.routes.answer(path, query)
        except Exception as error:  # whatever data makes happen, the others are still to be answered
            return as_json({"error": f"internal error: {type(error).__name__}"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _reply(self, answer: Response, sets_cookie: bool = False) -> None:
        self.request_version = "HTTP/1.0"  # to a client that names no version, only the body would be sent
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
        """The name of the program, without versions."""
        return "penstock"

    def log_message(self, *args: Any) -> None:
        """Nothing: the addresses hold the secret."""


def _split_target(target: str) -> tuple[str, str]:
    """Path and query of a request; an address that cannot be one has neither."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "", ""
    return ("", "") if parts.scheme or parts.netloc else (parts.path, parts.query)


# The figures of a running loader


class Measured(Protocol):
    """Anything that keeps figures, such as a loader."""

    def stats(self) -> Stats:
        """The figures so far."""


class StatsLog:
    """Appends the figures of a loader to a file of JSON lines, at most one every ``every_s`` seconds. For one thread.

    >>> import tempfile, numpy as np, penstock as pen
    >>> from penstock.view import StatsLog
    >>> loader = pen.Loader(pen.open(np.arange(100), field="x"), batch_size=10)
    >>> with StatsLog(tempfile.mkdtemp() + "/run.jsonl") as log:
    ...     for batch in loader:
    ...         log.add(loader)
    """

    def __init__(self, path: str | os.PathLike[str], *, every_s: float = 1.0) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._every_s = every_s
        self._next = 0.0

    def add(self, loader: Measured) -> None:
        """Write a line if it is time; otherwise this costs next to nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        line = {"time_s": round(time.time(), 3), **asdict(loader.stats())}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "StatsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


Line = dict[str, Any]


def read_figures(path: Path) -> dict[str, Any]:
    """The points of a run and its last line; ``state`` says whether there is something to show."""
    try:
        data = _end(path)
    except FileNotFoundError:
        return {"state": "absent", "points": []}
    except OSError as error:
        return {"state": f"unreadable: {error.strerror}", "points": []}
    lines = [line for line in map(_line, data.split(b"\n")[:-1]) if line is not None]  # the last one is still being written
    points = [point for earlier, later in pairwise(_thinned(lines)) if (point := _between(earlier, later)) is not None]
    return {"state": "running" if lines else "empty", "points": points, "last": _last(lines)}


def _end(path: Path) -> bytes:
    """The end of a regular file. Reading a pipe or a device could block forever."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
        return file.read(MOST_LOG_BYTES)


def _line(data: bytes) -> Line | None:
    """A line that has every figure; None for anything else, which a file may hold too."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(_is_figure(found.get(name)) for name in NEEDED):
        return None
    return found


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)


def _thinned(lines: Sequence[Line]) -> list[Line]:
    """At most MOST_POINTS lines, the last one among them; each point then stands for the time between two."""
    step = -(-len(lines) // MOST_POINTS) or 1
    return list(lines[(len(lines) - 1) % step :: step])


def _between(earlier: Line, later: Line) -> dict[str, float] | None:
    """Figures per second of running time; None where a new run began."""
    changes = {name: later[name] - earlier[name] for name in NEEDED}
    spent = changes["wait_s"] + changes["busy_s"]
    if spent <= 0 or any(change < 0 for change in changes.values()):
        return None
    return {
        "time_s": later["time_s"],
        "samples_per_s": changes["samples"] / spent,
        "bytes_per_s": changes["bytes"] / spent,
        "waiting": min(1.0, changes["wait_s"] / spent),
    }


def _last(lines: Sequence[Line]) -> dict[str, Any] | None:
    if not lines:
        return None
    last = lines[-1]
    given = last.get("network")
    network: Line = given if isinstance(given, dict) else {}
    figures = {name: last[name] for name in (*NEEDED, "make_s", "skipped") if _is_figure(last.get(name))}
    fetched = {name: network[name] for name in ("bytes", "requests", "cached_bytes") if _is_figure(network.get(name))}
    return {**figures, "network": fetched, "advice": str(last.get("advice", ""))[:500]}
