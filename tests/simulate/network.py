"""A bucket behind a network that is slow, breaks off, lies and forgets, all of it drawn; in place of obstore's native module.

What is above the native module is the product itself: ObstoreClient, Objects, fetch with its retries and hedges.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from obstore.exceptions import GenericError, PreconditionError
from tests.simulate import thread

from penstock.remote.backend import ObjectFacts, as_meta
from penstock.remote.fetch import Account, FirstBytes, Pace, Policy
from penstock.remote.objects import Objects
from penstock.remote.obstore_client import ObstoreClient
from penstock.remote.url import UrlPath

_OTHER = bytes(range(255, -1, -1))

RETRIED = ("status", "reset", "stall", "cut", "away")
"""Faults that are cured by another try."""
WRONG = ("empty", "long", "other range")
"""Answers that do not match the request, of which only a few are taken."""
FINAL = ("gone", "replaced", "other etag")
"""What no try cures. Once it has happened to an object, it stays."""


MOST_PACKETS = 4
"""Of a body: each takes the time of the run."""


@dataclass(frozen=True)
class Weather:
    """How the network behaves. ``faults`` are the kinds that may come, each request has one with the probability ``chance``, and
    there are at most ``most`` of them. ``final`` may happen to an object from ``final_s`` on.
    """

    latency_s: float = 0.02
    spread: float = 1.0
    """Latencies are drawn: 0 is always the same, 1 is anything up to twice as long, 2 has a long tail too."""
    bytes_per_s: float = 1e6
    packet_bytes: int = 2000
    faults: tuple[str, ...] = ()
    chance: float = 0.0
    most: int = 0
    final: str | None = None
    final_s: float = 0.0
    ignores_conditions: bool = False


@dataclass(frozen=True)
class Version:
    """An object as it is now."""

    data: bytes
    etag: str


@dataclass
class Bucket:
    """The objects, and what happened to requests. In place of obstore's native module."""

    objects: dict[str, Version]
    weather: Weather
    chance: random.Random
    policy: Policy
    happened: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str, int, int]] = field(default_factory=list)
    is_open: bool = False
    """Whether the sources are open: what is final comes only then."""
    struck: str | None = None

    # What obstore calls

    def head(self, _: Any, key: str) -> Mapping[str, Any]:
        self._travel("HEAD", key)
        self._fail_early(self._draw_fault(("status", "away", "stall")), key)
        return self._meta(key, self._find(key))

    def list(self, _: Any, prefix: str, *, offset: str | None, chunk_size: int) -> "Iterator[list[Mapping[str, Any]]]":
        self._travel("LIST", prefix)
        self._fail_early(self._draw_fault(("status", "away", "stall")), prefix)
        names = [key for key in sorted(self.objects) if key.startswith(f"{prefix}/") and key > (offset or "")]
        return iter([[self._meta(key, self.objects[key]) for key in names]] if names else [])

    def get(self, _: Any, key: str, *, options: Mapping[str, Any]) -> "Answer":
        asked = options.get("range")
        words = "" if asked is None else f" {asked}"
        fault = self._draw_fault(RETRIED + WRONG)
        self._travel(f"GET{words}", key)
        self._strike(key)
        self._fail_early(fault, key)
        version = self._find(key)
        size = len(version.data)
        start, stop = self._bounds(asked, size)
        if "if_match" in options and options["if_match"].strip('"') != version.etag and not self.weather.ignores_conditions:
            thread.now().say(f"412 {key}")
            raise PreconditionError(f"{key} was replaced")
        etag = version.etag
        if fault == "other range" and start:
            start -= 1
        self.log.append((thread.now().now, key, start, stop))
        return Answer(self, self._meta(key, version, etag), (start, stop), version.data[start:stop], fault)

    # What happens on the way

    def _bounds(self, asked: Any, size: int) -> tuple[int, int]:
        if asked is None:
            return 0, size
        if isinstance(asked, Mapping):
            return max(0, size - asked["suffix"]), size
        return asked[0], min(asked[1], size)

    def _find(self, key: str) -> Version:
        if key not in self.objects:
            thread.now().say(f"404 {key}")
            raise FileNotFoundError(key)
        return self.objects[key]

    def _meta(self, key: str, version: Version, etag: str | None = None) -> Mapping[str, Any]:
        return as_meta(key, ObjectFacts(len(version.data), etag or version.etag))

    def _travel(self, what: str, key: str) -> None:
        weather, draw = self.weather, self.chance.random
        seconds = weather.latency_s * (1 + min(1.0, weather.spread) * (2 * draw() - 1))
        if weather.spread > 1 and draw() < 0.2:
            seconds = min(seconds * 10 ** (3 * draw()), 0.9 * self.policy.read_s)  # so late that a hedge is sent
        if thread.now().is_told:
            thread.now().say(f"{what} {key}, {seconds:.3f} s")
        thread.now().block(seconds)

    def _draw_fault(self, possible: tuple[str, ...]) -> str | None:
        weather = self.weather
        if not weather.faults or self.chance.random() >= weather.chance or self.happened.total() >= weather.most:
            return None
        fault = self.chance.choice(weather.faults)
        if fault not in possible:
            return None
        self.happened[fault] += 1
        thread.now().say(f"fault: {fault}")
        return fault

    def _fail_early(self, fault: str | None, key: str) -> None:
        if fault == "status":
            status = self.chance.choice((429, 500, 503))
            raise GenericError(f"Generic store error: {key}\n\nDebug source:\nServer {{\n    status: {status},\n}}")
        if fault == "away":
            raise _broken("Connect")
        if fault == "stall" and self.chance.random() < 0.5:
            thread.now().block(self.policy.read_s)
            raise _broken("Timeout")

    def _strike(self, key: str) -> None:
        """What is final happens to an object that is being read."""
        weather = self.weather
        if weather.final is None or self.struck is not None or not self.is_open or thread.now().now < weather.final_s:
            return
        self.struck = key
        self.happened[weather.final] += 1
        thread.now().say(f"{weather.final}: {key}")
        old = self.objects[key]
        if weather.final == "gone":
            del self.objects[key]
        else:
            data = old.data if weather.final == "other etag" else old.data.translate(_OTHER)
            self.objects[key] = Version(data, f"{old.etag}-new")


@dataclass(frozen=True)
class Answer:
    """A range that is on its way, as obstore gives it."""

    bucket: Bucket
    meta: Mapping[str, Any]
    range: tuple[int, int]
    body: bytes
    fault: str | None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """Pieces of at least that size, but for the last. What comes of a piece before the connection breaks is lost."""
        chance, weather, fault = self.bucket.chance, self.bucket.weather, self.fault
        body = self.body + b"more" if fault == "long" else self.body
        end = len(body)
        if fault in ("reset", "stall", "cut"):
            end = int(chance.random() * len(body))
        elif fault == "empty":
            end = 0
        buffer = bytearray()
        size = max(weather.packet_bytes, -(-len(body) // MOST_PACKETS))
        for low in range(0, end, size):
            packet = body[low : min(end, low + size)]
            thread.now().block(len(packet) / weather.bytes_per_s)
            buffer += packet
            if len(buffer) >= min_chunk_size:
                yield bytes(buffer)
                buffer.clear()
        if fault == "reset":
            raise _broken("Body")
        if fault == "stall":
            thread.now().block(self.bucket.policy.read_s)
            raise _broken("Timeout")
        if buffer:
            yield bytes(buffer)


def _broken(kind: str) -> GenericError:
    return GenericError(f"Generic store error: no answer\n\nDebug source:\nHttpError {{\n    kind: {kind},\n}}")


class Client(ObstoreClient):
    """Without the event loop that obstore's listings need."""

    def pages(self, seconds: float, prefix: str | None, offset: str | None) -> Iterator[Any]:
        yield from self.items(self.call("list", prefix, offset=offset, chunk_size=1000))


_objects: list[Objects] = []


def place_in(bucket: Bucket) -> UrlPath:
    """The root of a bucket, as penstock opens it. There is one at a time."""
    if not _objects:
        _objects.append(Objects("s3", "simulated", {"skip_signature": True, "region": "none"}))
    objects = _objects[0]
    objects.policy, objects.clock = bucket.policy, thread.VirtualClock()
    objects.account, objects._first_bytes, objects.pace = Account(), FirstBytes(), Pace(objects.clock.now)
    objects._clients._clients[False] = os.getpid(), bucket.policy, Client(bucket, None)  # there is no other way to bring one along
    return UrlPath(objects, "")
