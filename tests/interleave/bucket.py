"""A bucket in memory that answers when the scheduler says so, and a process that uses it.

The seam is the native module of obstore: everything above it is the product itself (ObstoreClient, Objects with its retries,
ObjectStorage, Writer, gc, rebalance). A process is a greenlet. Each of its requests hands over to the scheduler, which performs it,
loses its answer, performs it twice or late, or ends the process.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from greenlet import greenlet
from obstore.exceptions import AlreadyExistsError, GenericError

from penstock.remote.backend import ObjectFacts, Result, as_meta
from penstock.remote.fetch import Clock, Policy
from penstock.remote.objects import Objects
from penstock.remote.obstore_client import ObstoreClient
from penstock.remote.url import UrlPath

STORE = "a.pen"


class DeadError(BaseException):
    """The process is no more: every further request raises it again, so that nothing that it does has an effect."""


@dataclass(frozen=True)
class Stored:
    """An object: its bytes, and when they were written."""

    data: bytes
    modified: float


@dataclass(frozen=True)
class Request:
    """One request of a process; ``label`` is what the process was doing."""

    method: str
    key: str
    data: bytes = b""
    label: Any = None

    @property
    def writes(self) -> bool:
        return self.method in ("create", "put", "delete")


Watch = Callable[[Request, Mapping[str, Stored]], None]


@dataclass
class Bucket:
    """Objects by key. ``watch`` sees every write before it is performed."""

    objects: dict[str, Stored]
    now: float
    watch: Watch | None = None

    def perform(self, request: Request) -> Any:
        """What the server does and answers."""
        if request.method == "create" and request.key in self.objects:
            raise AlreadyExistsError(request.key)
        if request.writes and self.watch is not None:
            self.watch(request, self.objects)
        if request.method in ("create", "put"):
            self.objects[request.key] = Stored(request.data, self.now)
            return None
        if request.method == "delete":
            self.objects.pop(request.key, None)
            return None
        if request.method == "list":
            return sorted((key, stored) for key, stored in self.objects.items() if key.startswith(request.key))
        if request.key not in self.objects:
            raise FileNotFoundError(request.key)
        return self.objects[request.key]


def lost_answer() -> GenericError:
    """What obstore raises if no answer came."""
    return GenericError("Generic store error: no answer\n\nDebug source:\nHttpError {\n    kind: Timeout,\n}")


class QuietClock(Clock):
    """Waiting takes no time: what happens meanwhile is the choice of the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        pass

    def jitter(self) -> float:
        return 0.0


@dataclass
class Process:
    """A greenlet with a client of its own; alone (``run`` is None), its requests are performed at once."""

    number: int
    bucket: Bucket
    run: "greenlet | None" = None
    request: Request | None = None
    label: Any = None
    is_dead: bool = False
    is_offline: bool = False
    identities: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    def ask(self, method: str, key: str, data: bytes = b"") -> Any:
        """Make a request, and wait for its answer."""
        if self.is_dead:
            raise DeadError
        if self.is_offline:
            raise lost_answer()
        request = Request(method, key, data, self.label)
        if self.run is None:
            return self.bucket.perform(request)
        self.request = request
        return self.run.parent.switch()

    def resume(self, answer: Any = None, error: BaseException | None = None) -> None:
        """Go on until the next request."""
        assert self.run is not None
        self.request = None
        if error is None:
            self.run.switch(answer)
        else:
            self.run.throw(error)

    def identity(self) -> str:
        """In place of 128 random bits: the same in every run, and no other process has it."""
        self.identities += 1
        return f"{self.number:04x}{self.identities:028x}"


class Native:
    """The functions of obstore's native module, for the process that is current."""

    def __init__(self) -> None:
        self.process: Process | None = None

    def _ask(self, method: str, key: str, data: bytes = b"") -> Any:
        assert self.process is not None
        return self.process.ask(method, key, data)

    def head(self, _: Any, key: str) -> Mapping[str, Any]:
        return _meta(key, self._ask("head", key))

    def get(self, _: Any, key: str, *, options: Mapping[str, Any]) -> Result:
        stored = self._ask("get", key)
        start, stop = options.get("range", (0, len(stored.data)))
        return Result(_meta(key, stored), (start, stop), stored.data[start:stop], {})

    def put(self, _: Any, key: str, data: bytes, *, mode: str = "overwrite", **options: Any) -> None:
        self._ask("create" if mode == "create" else "put", key, bytes(data))

    def delete(self, _: Any, key: str) -> None:
        self._ask("delete", key)

    def list(self, _: Any, prefix: str, *, offset: str | None, chunk_size: int) -> Iterator[list[Mapping[str, Any]]]:
        return iter([[_meta(key, stored) for key, stored in self._ask("list", f"{prefix}/")]])


def _meta(key: str, stored: Stored) -> Mapping[str, Any]:
    return as_meta(key, ObjectFacts(len(stored.data), "etag", stored.modified))


native = Native()
_places: dict[int, UrlPath] = {}


def place_of(number: int) -> UrlPath:
    """The store as a process sees it, through a client of its own; made once for each number, because it takes a while."""
    if number not in _places:
        objects = Objects("memory", f"interleaved-{number}", {})
        objects.policy, objects.clock = Policy(tries=2), QuietClock()
        client = ObstoreClient(native, None, is_quick=True)
        objects._clients._clients[False] = os.getpid(), objects.policy, client  # there is no other way to bring a client along
        objects._can_put_new = True
        _places[number] = UrlPath(objects, STORE)
    return _places[number]


