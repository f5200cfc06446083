"""One byte range of one object, complete or a typed error, however the network behaves.

A body that breaks off is continued after the last good byte, with retries and backoff; an answer that does not match the request is
never passed on; a range whose first byte is late is hedged.
"""

import math
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Protocol

from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    ReadError,
    StoreUnavailableError,
    TruncatedError,
    UnsafePathError,
)
from penstock.process import first_of

__all__ = [
    "Account",
    "Answer",
    "Clock",
    "Counts",
    "FailedError",
    "Failure",
    "FirstBytes",
    "LoggedRequest",
    "Means",
    "Pace",
    "Policy",
    "Receive",
    "Rest",
    "Submit",
    "Tries",
    "Wanted",
    "Write",
    "check_encoding",
    "fetch",
    "given_up",
    "read_error",
    "status_failure",
]

Write = Callable[[int, memoryview], None]
"""Takes an offset in an object and the bytes there. Called without bytes while none arrive. What it raises ends the fetch."""

Receive = Callable[[int, int, int, float], tuple[int, bool]]
"""Takes a socket, start and stop in an object, and seconds: receives bytes of the socket straight to where they belong. How many
came, and whether the stream goes on. What it raises ends the fetch.
"""

CONNECTIONS = 16
"""The requests to a store that are made at a time, at first."""

LEAST_CONNECTIONS, MOST_CONNECTIONS = 4, 64
"""The bounds of that number, which follows what is observed."""

WHOLE_MOST_BYTES = 64 << 20
"""The size up to which an object is read as a whole where a server ignores ranges."""


# Retries: how often, how long, and what is counted


@dataclass(frozen=True)
class Policy:
    """Limits of one operation on an object store. Times are seconds.

    * tries, total_s: the most tries, and the most time, without a new byte; then the store counts as unavailable
    * first_wait_s, longest_wait_s: a wait is drawn between zero and a limit that doubles from the first to the longest
    * wrong_tries: the most answers that do not match the request, such as another range
    * connect_s, read_s: for a connection; for the first byte and between any two bytes
    * request_s: for a whole request to read something; what came until then counts, and the rest is requested again
    * least_bytes_per_s: a body that comes more slowly is not waited for, once total_s are over
    * write_s: from the first byte sent to the answer
    * hedge_s: a range without a first byte after this time (and longer than 99 of 100 recent ones took) is hedged: requested twice
    * piece_bytes: bytes that are handed on together while a body streams in
    * part_bytes: bytes above which an object is written in parts, of a quarter of that each
    """

    tries: int = 10
    total_s: float = 180.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 15.0
    wrong_tries: int = 3
    connect_s: float = 5.0
    read_s: float = 15.0
    request_s: float = 300.0
    least_bytes_per_s: float = 4096.0
    write_s: float = 120.0
    hedge_s: float = 2.0
    piece_bytes: int = 1 << 16
    part_bytes: int = 64_000_000

    def wait_s(self, failures: int, jitter: float) -> float:
        """The wait after ``failures`` failures in a row; ``jitter`` in [0, 1)."""
        return jitter * min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 60))


class Clock:
    """Time, waiting and chance. A test replaces them."""

    def __init__(self) -> None:
        # The system's generator has no state: forked processes do not draw the same, and no seed of the user is disturbed.
        self._random = random.SystemRandom()

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def jitter(self) -> float:
        """A number drawn from [0, 1)."""
        return self._random.random()


@dataclass(frozen=True)
class Failure:
    """Why one request failed.

    ``kind``: again (a retry may help), wrong (the answer does not match the request), short (it has no byte), whole (the range
    was ignored), missing, denied, expired and credentials (too old; none found), changed (the condition did not hold), replaced
    (the answer is of another version), range (beyond the end), redirect (to another host), exists, unsupported, refused (anything
    else).
    ``sent`` is False where the request cannot have reached the store.
    """

    kind: str
    text: str
    status: int | None = None
    request_id: str | None = None
    sent: bool = True

    def __str__(self) -> str:
        return self.text if self.request_id is None else f"{self.text} (request id {self.request_id})"


_REQUEST_ID = re.compile(r"<RequestId>([\w.:=/+-]{1,100})</RequestId>", re.IGNORECASE | re.ASCII)
_CODE = re.compile(r"<Code>(\w{1,100})</Code>", re.ASCII)
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_BY_STATUS = {401: "denied", 403: "denied", 404: "missing", 412: "changed", 416: "range"}
_BY_STATUS |= dict.fromkeys((408, 429, 500, 502, 503, 504), "again")


def status_failure(status: int, text: str, body: str) -> Failure:
    """What a status other than 2xx means, with the code and the id of the request that a store like S3 has in the body."""
    code, request_id = _CODE.search(body), _REQUEST_ID.search(body)
    kind = "expired" if code and code[1] in _EXPIRED else _BY_STATUS.get(status, "refused")
    return Failure(kind, f"{text} ({code[1]})" if code else text, status, request_id[1] if request_id else None)


class FailedError(Exception):
    """One request failed; ``failure`` says how. Never leaves this package."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


LoggedRequest = tuple[str, str, int | None, int | None]
"""Method, key, and the requested range [start, stop), if any."""


@dataclass(frozen=True)
class Counts:
    """The counters at one moment."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    errors: int = 0
    cache_hits: int = 0
    cache_bytes: int = 0

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))


class Account:
    """Counters of requests to an object store. Safe to use from several threads.

    ``log``: None, or a list to which every request is appended; set it to a list to switch it on.
    """

    def __init__(self) -> None:
        self.log: list[LoggedRequest] | None = None
        self._counts = Counts()
        self._lock = threading.Lock()

    def add(self, **amounts: int) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in amounts.items()})

    def request(self, method: str, key: str, start: int | None = None, stop: int | None = None) -> None:
        self.add(requests=1)
        if self.log is not None:
            self.log.append((method, key, start, stop))

    def snapshot(self) -> Counts:
        with self._lock:
            return self._counts

    def after_fork(self) -> None:
        """A lock that no thread of the parent holds."""
        self._lock = threading.Lock()


class Pace:
    """How many requests to a store are made at a time: as many as make it faster, fewer where it refuses or does not answer.
    Safe to use from several threads.

    The rate is measured in rounds of as many ranges as there are requests at a time, while more ranges wait than that. A round
    that is faster than the one before by ``GAIN`` is followed by one with half as many requests more; after one that is not, the
    number is what it was, for ``REST`` rounds. A store that is congested (429, 503, a timeout) halves it, once in a round.
    """

    GAIN, REST = 1.05, 32

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._lock = now, threading.Lock()
        self.limit = CONNECTIONS
        self._slower: tuple[int, float] | None = None  # the limit before it grew, and its rate
        self._rest = 0  # rounds until it may grow
        self._is_halved = False
        self._begin_round()

    def _begin_round(self) -> None:
        self._since, self._bytes, self._ranges = self._now(), 0, 0

    def done(self, num_bytes: int, *, others_wait: bool) -> None:
        """A range came; ``others_wait``: further ones were not requested because of the limit."""
        with self._lock:
            if not others_wait:  # the reader is slower than the store, which says nothing about the limit
                self._begin_round()
                return
            self._bytes, self._ranges = self._bytes + num_bytes, self._ranges + 1
            if self._ranges < self.limit:
                return
            rate = self._bytes / max(1e-9, self._now() - self._since)
            self._decide(rate)
            self._is_halved = False
            self._begin_round()

    def _decide(self, rate: float) -> None:
        if self._rest > 0:
            self._rest -= 1
        elif self._slower is not None and rate < self.GAIN * self._slower[1]:
            self.limit, self._slower, self._rest = self._slower[0], None, self.REST
        elif self.limit < MOST_CONNECTIONS:
            self._slower = self.limit, rate
            self.limit = min(MOST_CONNECTIONS, self.limit + max(1, self.limit // 2))

    def congested(self) -> None:
        """The store refuses requests, or does not answer in time."""
        with self._lock:
            if not self._is_halved:
                self.limit = max(min(LEAST_CONNECTIONS, self.limit), self.limit // 2)
                self._is_halved, self._slower, self._rest = True, None, self.REST
                self._begin_round()

    def after_fork(self) -> None:
        """A lock that no thread of the parent holds."""
        self._lock = threading.Lock()


def _is_congestion(failure: Failure) -> bool:
    return failure.status in (429, 503) or (failure.kind == "again" and failure.status is None and failure.sent)


class Tries:
    """The tries of one operation.

    ``give_up`` makes the error of the number of tries, the seconds they took and the last failure.
    """

    def __init__(self, policy: Policy, clock: Clock, account: Account, give_up: Callable[[int, float, Failure], Exception]) -> None:
        self._policy, self._clock, self._account, self._give_up = policy, clock, account, give_up
        self._begin = self._since = clock.now()
        self._count = self._failures = self._wrong = 0
        self._bytes = self._waited = 0.0

    @property
    def failures(self) -> int:
        """Failures since the last new byte."""
        return self._failures

    @property
    def is_late(self) -> bool:
        """Whether the time without a new byte is over."""
        return self._clock.now() - self._since > self._policy.total_s

    def progress(self, num_bytes: float = math.inf) -> None:
        """New bytes came: start counting again, unless they come too slowly."""
        now, policy = self._clock.now(), self._policy
        self._waited += min(now - self._since, policy.read_s)  # more is no wait for the server: this process was stopped, or busy
        self._bytes += num_bytes
        self._failures, self._since = 0, now
        if self._waited > policy.total_s + self._bytes / policy.least_bytes_per_s:
            slow = f"{self._bytes:.0f} bytes came in {self._waited:.1f} s, fewer than {policy.least_bytes_per_s:g} a second"
            self._account.add(errors=1)
            raise self._give_up(self._count + 1, now - self._begin, Failure("again", slow))

    def failed(self, failure: Failure) -> None:
        """Wait for the next try, or raise."""
        policy, now = self._policy, self._clock.now()
        self._count += 1
        self._failures += 1
        self._wrong += failure.kind in ("wrong", "short", "expired", "credentials")
        wait = policy.wait_s(self._failures, self._clock.jitter())
        late = now + wait - self._since > policy.total_s
        if self._failures >= policy.tries or self._wrong >= policy.wrong_tries or late:
            self._account.add(errors=1)
            raise self._give_up(self._count, now - self._begin, failure)
        self._account.add(retries=1)
        self._clock.sleep(wait)


# One range


@dataclass(frozen=True)
class Wanted:
    """A range [start, stop) of an object of known size, etag and date (0: unknown)."""

    url: str
    etag: str | None
    modified: float
    size: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.url}, bytes {self.start} to {self.stop}"


class Rest(Protocol):
    """The part of a body that is still in the socket, without any encoding."""

    @property
    def left(self) -> int:
        """Its bytes."""

    def receive(self, into: Receive, start: int) -> int:
        """Receive some of it to ``start`` in the object: how many bytes, none if none came for a moment; FailedError."""

    def close(self) -> None:
        """End the connection, unless all of the body was received. Idempotent."""


@dataclass(frozen=True)
class Answer:
    """The head of an answer, and its body piece by piece; all but the first piece of it can be received from ``rest`` instead, if
    there is one.
    """

    etag: str | None
    modified: float
    size: int
    start: int
    stop: int
    encoding: str | None
    pieces: Iterator[memoryview]
    rest: Rest | None = None


class FirstBytes:
    """The latency of the first bytes of recent ranges."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=256)
        self._lock = threading.Lock()
        self._slow = 0.0

    def add(self, seconds: float) -> None:
        with self._lock:
            self._seconds.append(seconds)
            if len(self._seconds) % 16 == 0:
                self._slow = sorted(self._seconds)[len(self._seconds) * 99 // 100]

    @property
    def slow_s(self) -> float:
        """The 99th percentile."""
        return self._slow


def same_etag(one: str | None, other: str | None) -> bool:
    """Whether two etags are the same; the quotes are left out by some listings. An unknown one is no contradiction."""
    return one is None or other is None or one.removeprefix("W/").strip('"') == other.removeprefix("W/").strip('"')


def read_error(url: str, failure: Failure) -> ReadError | None:
    """The error of a failure that a retry does not cure, or None."""
    if failure.kind == "missing":
        return MissingError(f"{url}: there is no such object ({failure})")
    if failure.kind == "denied":
        return AccessDeniedError(f"{url}: the store refused ({failure}); check the credentials and their rights")
    if failure.kind in ("changed", "replaced"):
        how = "the object was replaced since it was opened" if failure.kind == "changed" else str(failure)
        return ObjectChangedError(f"{url}: {how}; open it again")
    if failure.kind == "redirect":
        return UnsafePathError(f"{url}: {failure}")
    if failure.kind == "range":
        return TruncatedError(f"{url}: the object ends before the requested bytes")
    if failure.kind in ("again", "wrong", "short", "expired", "credentials"):
        return None
    if failure.kind == "whole":
        return CorruptError(f"{url}: the server ignores ranges, and the object is larger than {WHOLE_MOST_BYTES} bytes ({failure})")
    return ReadError(f"{url}: the store refused the request: {failure}")


def given_up(what: object, tries: int, seconds: float, failure: Failure) -> ReadError:
    """The error after the last try."""
    if failure.kind in ("wrong", "short"):
        kind = TruncatedError if failure.kind == "short" else CorruptError
        return kind(f"{what}: {failure}; {tries} tries; look at the object, and at the proxies between here and the store")
    if failure.kind in ("expired", "credentials"):
        state = "the credentials have expired" if failure.kind == "expired" else "no credentials were found"
        return AccessDeniedError(f"{what}: {state}; give new ones in storage_options or in the environment ({failure})")
    return StoreUnavailableError(f"{what}: not read after {tries} tries in {seconds:.1f} s; the last failure: {failure}")


Begun = tuple[Answer, list[memoryview]]
"""The head of an answer and its first piece (none if the body is empty)."""
Submit = Callable[[Callable[[], Begun]], "Future[Begun]"]


@dataclass(frozen=True)
class Means:
    """What a store offers for fetching.

    ``open`` begins a GET: start, stop (None: the whole object, without a range), and the bytes of a piece; FailedError.
    ``submit`` runs a request in a thread, so that it can be left behind; None where a second request for a range makes no sense.
    """

    open: Callable[[int, int | None, int], Answer]
    policy: Policy
    clock: Clock
    account: Account
    first_bytes: FirstBytes
    submit: Submit | None
    pace: Pace


def fetch(means: Means, wanted: Wanted, write: Write, receive: Receive | None = None) -> None:
    """Call ``write(offset, bytes)`` for consecutive pieces that cover the range exactly once; or ``receive``, where it is given and
    the store lets bytes be received without a copy.
    """
    _Fetch(means, wanted, write, receive).run()


class _Fetch:
    def __init__(self, means: Means, wanted: Wanted, write: Write, receive: Receive | None) -> None:
        self._means, self._wanted, self._write, self._receive = means, wanted, write, receive
        self._position = wanted.start
        self._whole = False
        self._tries = Tries(means.policy, means.clock, means.account, partial(given_up, wanted))

    def run(self) -> None:
        while self._position < self._wanted.stop:
            try:
                self._once()
            except FailedError as error:
                failure = error.failure
            else:
                continue
            self._failed(failure)  # not above: what is raised there keeps the failed answer, and with it a connection

    def _failed(self, failure: Failure) -> None:
        if failure.kind == "whole" and not self._whole and self._wanted.size <= WHOLE_MOST_BYTES:
            self._whole = True
            return
        if _is_congestion(failure):
            self._means.pace.congested()
        fatal = read_error(str(self._wanted), failure)
        if fatal is not None:
            self._means.account.add(errors=1)
            raise fatal
        self._tries.failed(failure)
        self._ask()

    def _ask(self) -> None:
        """Raise what ``write`` raises if the bytes are not wanted any more."""
        self._write(self._position, memoryview(b""))

    def _once(self) -> None:
        # A body that breaks off loses the piece it was in: after a failure every byte counts, and the pieces are small.
        least = self._means.policy.piece_bytes if self._tries.failures == 0 else 1
        start, stop = (0, None) if self._whole else (self._position, self._wanted.stop)
        answer, first = self._begin(start, stop, least)
        begin, at = self._position, start
        try:
            self._check(answer, start, self._wanted.size if stop is None else stop)
            for view in chain(first, answer.pieces):
                fresh = view[max(0, self._position - at) :]
                at += len(view)
                if self._whole:
                    fresh = fresh[: self._wanted.stop - self._position]
                if len(fresh):
                    self._take(fresh, answer.pieces)
                if self._position == self._wanted.stop or self._is_landed(answer.rest):
                    return
        finally:
            self._means.account.add(bytes=self._position - begin)
            if answer.rest is not None:  # a body that is not wanted any more must not keep its connection
                answer.rest.close()
        ended = f"the body ended after {self._position - begin} of {self._wanted.stop - begin} bytes"
        raise FailedError(Failure("again" if self._position > begin else "short", ended))

    def _is_landed(self, rest: Rest | None) -> bool:
        """Receive all that is left straight to its place, if that can be done and the body ends where it should."""
        if self._receive is None or rest is None or self._whole or rest.left != self._wanted.stop - self._position:
            return False
        while self._position < self._wanted.stop:
            count = rest.receive(self._receive, self._position)
            if count:
                self._position += count
                self._tries.progress(count)
            else:
                self._ask()
        return True

    def _take(self, data: memoryview, rest: Iterator[memoryview]) -> None:
        stop = self._position + len(data)
        if not self._whole and (stop > self._wanted.stop or (stop == self._wanted.stop and any(len(more) for more in rest))):
            raise FailedError(Failure("wrong", "the store sent more bytes than requested"))
        self._write(self._position, data)
        self._position = stop
        self._tries.progress(len(data))

    def _check(self, answer: Answer, start: int, stop: int) -> None:
        wanted = self._wanted
        if not same_etag(answer.etag, wanted.etag):
            etags = f"etag {ascii(wanted.etag)[:80]}, now {ascii(answer.etag)[:80]}"
            raise _replaced(f"the object was replaced since it was opened ({etags})")
        # An etag tells more than a date, which some listings have with fractions of a second and answers without.
        is_undated = None not in (answer.etag, wanted.etag) or not answer.modified or not wanted.modified
        if not is_undated and int(answer.modified) != int(wanted.modified):
            raise _replaced("the object was replaced since it was opened (it has another date, and no etag)")
        if answer.size != wanted.size:
            raise _replaced(f"the object had {wanted.size} bytes when it was opened, now {answer.size}")
        if (answer.start, answer.stop) != (start, stop):
            found = f"asked for bytes {start} to {stop}, the store sent {answer.start} to {answer.stop}"
            raise FailedError(Failure("wrong", found))
        check_encoding(answer.encoding)

    def _begin(self, start: int, stop: int | None, least: int) -> Begun:
        """The head and the first piece of the request, or of its hedge if that is faster."""
        means = self._means
        if means.submit is None:
            return self._first(start, stop, least)
        first = partial(self._first, start, stop, least)
        begin = means.clock.now()
        pending = {means.submit(first)}
        done, pending = first_of(pending, self._ask, max(means.policy.hedge_s, means.first_bytes.slow_s))
        if not done:
            means.account.add(hedges=1)
            pending.add(means.submit(first))
            done, pending = first_of(pending, self._ask)
        if pending and all(one.exception() is not None for one in done):
            done, pending = first_of(pending, self._ask)
        for one in pending:
            one.cancel()
        best = next((one for one in done if one.exception() is None), next(iter(done)))
        answer = best.result()
        means.first_bytes.add(means.clock.now() - begin)
        return answer

    def _first(self, start: int, stop: int | None, least: int) -> Begun:
        answer = self._means.open(start, stop, least)
        return answer, list(islice(answer.pieces, 1))


def _replaced(text: str) -> FailedError:
    return FailedError(Failure("replaced", text))


def check_encoding(encoding: str | None) -> None:
    """FailedError where the bytes of an answer are not the bytes of the object."""
    if encoding not in (None, "", "identity", "aws-chunked"):
        text = f"the answer has the Content-Encoding {encoding!r}, so its bytes are not those that records are read from"
        raise FailedError(Failure("wrong", text))
