"""A bucket in memory that answers when the scheduler says so, and a process that uses it.

The seam is the native module of obstore: everything above it is the product itself (ObstoreClient, Objects with its retries,
ObjectStorage, Writer, gc, rebalance). A process is a greenlet. Each of its requests hands over to the scheduler, which performs it,
loses its answer, performs it twice or late, or ends the process.

What a process does is a function of the answers that it got. So it is remembered: the real code runs once for every sequence of
answers, and a schedule in which no process gets answers that are new costs no more than a few lookups.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from greenlet import greenlet
from obstore.exceptions import AlreadyExistsError, GenericError

from penstock.remote.backend import ObjectFacts, Result, as_meta
from penstock.remote.fetch import Clock, Policy
from penstock.remote.objects import Objects
from penstock.remote.obstore_client import ObstoreClient
from penstock.remote.url import UrlPath

STORE = "a.pen"
EXISTS, MISSING, LOST, INTERRUPT = "exists", "missing", "lost", "interrupt"
"""Answers that become exceptions: there is an object already, there is none, nothing came, Ctrl-C came instead."""


class Stored(NamedTuple):
    """An object: its bytes, and when they were written."""

    data: bytes
    modified: float


@dataclass(frozen=True, eq=False)
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
Answer = Any
"""None, a Stored, a listing, or the name of a failure."""


@dataclass
class Bucket:
    """Objects by key. ``watch`` sees every write before it is performed."""

    objects: dict[str, Stored]
    now: float
    watch: Watch | None = None

    def perform(self, request: Request) -> Answer:
        """What the server does and answers. A listing has keys, sizes and times."""
        method, key, objects = request.method, request.key, self.objects
        if method == "get" or method == "head":
            return objects.get(key, MISSING)
        if method == "wait":
            return None
        if method == "list":
            return tuple([(name, len(one.data), one.modified) for name, one in sorted(objects.items()) if name.startswith(key)])
        if method == "create" and key in objects:
            return EXISTS
        if self.watch is not None:
            self.watch(request, objects)
        if method == "delete":
            objects.pop(key, None)
        else:
            objects[key] = Stored(request.data, self.now)
        return None


class QuietClock(Clock):
    """Waiting takes no time: what happens meanwhile is the choice of the scheduler."""

    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass

    def jitter(self) -> float:
        return 0.0


# A process


class DeadError(BaseException):
    """The process is no more: every further request raises it again, so that nothing that it does has an effect."""


@dataclass(eq=False)
class Step:
    """A process between two answers: what it said, what it requests (None: it came to its end), and how it went on from there."""

    said: tuple[Any, ...]
    request: Request | None
    following: "dict[Answer, Step]" = field(default_factory=dict)


Script = Callable[["Runner"], None]


class Runner:
    """A script in a greenlet, from its beginning on. ``say`` is for what the world must know; ``label`` goes with requests."""

    def __init__(self, number: int, script: Script) -> None:
        self.number, self.label = number, None
        self._script, self._identities, self._is_dead = script, 0, False
        self._said: list[Any] = []
        self._request: Request | None = None
        self._greenlet = greenlet(self._run)

    def _run(self, _: Answer) -> None:
        with contextlib.suppress(DeadError):
            self._script(self)

    def go_on(self, answer: Answer) -> Step:
        """Run until the next request."""
        native.process, self._request = self, None
        self._greenlet.switch(answer)
        said, self._said = tuple(self._said), []
        return Step(said, self._request)

    def say(self, *words: Any) -> None:
        self._said.append(words)

    def ask(self, method: str, key: str, data: bytes = b"") -> Answer:
        """Make a request, and wait for its answer."""
        if self._is_dead:
            raise DeadError
        self._request = Request(method, key, data, self.label)
        answer = self._greenlet.parent.switch()
        if self._is_dead:
            raise DeadError
        return answer

    def wait(self) -> None:
        """Let others go on."""
        self.ask("wait", "")

    def end(self) -> None:
        """End it now, wherever it is."""
        native.process, self._is_dead = self, True
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.switch(None)

    def identity(self) -> str:
        """In place of 128 random bits: the same in every run, and no other process has it."""
        self._identities += 1
        return f"{self.number:04x}{self._identities:028x}"


class Alone(Runner):
    """A process without a scheduler: its requests are performed at once."""

    def __init__(self, number: int, bucket: Bucket) -> None:
        super().__init__(number, lambda _: None)
        self.bucket = bucket
        native.process = self

    def ask(self, method: str, key: str, data: bytes = b"") -> Answer:
        return self.bucket.now if method == "time" else self.bucket.perform(Request(method, key, data, self.label))


class Process:
    """One process of a world: a way through the steps that are known, and the real code where they end."""

    def __init__(self, number: int, script: Script, root: Step) -> None:
        self.number, self._script = number, script
        self._answers: list[Answer] = []
        self._runner: Runner | None = None
        self._num_fed = 0
        self.step: Step = root
        self.is_dead = self.was_offline = False
        self.to_lose = 0  # so many of its next requests get no answer

    @property
    def request(self) -> Request | None:
        return None if self.is_dead else self.step.request

    def answer(self, answer: Answer) -> bool:
        """Go on to the next request. Whether the real code had to be run for it."""
        self._answers.append(answer)
        found = self.step.following.get(answer)
        if found is not None:
            self.step = found
            return False
        if self._runner is None:
            self._runner = Runner(self.number, self._script)
        while self._num_fed < len(self._answers):
            made = self._runner.go_on(self._answers[self._num_fed])
            self._num_fed += 1
        self.step.following[answer] = made
        self.step = made
        return True

    def close(self) -> None:
        """End the real code, wherever it is."""
        if self._runner is not None:
            self._runner.end()


# The native module of obstore


class Native:
    """The functions of obstore's native module, for the process that is current."""

    def __init__(self) -> None:
        self.process: Runner | None = None

    def ask(self, method: str, key: str, data: bytes = b"") -> Answer:
        assert self.process is not None
        answer = self.process.ask(method, key, data)
        if answer == EXISTS:
            raise AlreadyExistsError(key)
        if answer == MISSING:
            raise FileNotFoundError(key)
        if answer == INTERRUPT:
            raise KeyboardInterrupt
        if answer == LOST:
            raise GenericError("Generic store error: no answer\n\nDebug source:\nHttpError {\n    kind: Timeout,\n}")
        return answer

    def head(self, _: Any, key: str) -> Mapping[str, Any]:
        stored = self.ask("head", key)
        return _meta(key, len(stored.data), stored.modified)

    def get(self, _: Any, key: str, *, options: Mapping[str, Any]) -> Result:
        stored = self.ask("get", key)
        start, stop = options.get("range", (0, len(stored.data)))
        return Result(_meta(key, len(stored.data), stored.modified), (start, stop), stored.data[start:stop], {})

    def put(self, _: Any, key: str, data: bytes, *, mode: str = "overwrite", **options: Any) -> None:
        self.ask("create" if mode == "create" else "put", key, bytes(data))

    def delete(self, _: Any, key: str) -> None:
        self.ask("delete", key)

    def list(self, _: Any, prefix: str, *, offset: str | None, chunk_size: int) -> Iterator[list[Mapping[str, Any]]]:
        return iter([[_meta(*one) for one in self.ask("list", f"{prefix}/")]])


def _meta(key: str, size: int, modified: float) -> Mapping[str, Any]:
    return as_meta(key, ObjectFacts(size, "etag", modified))


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
