"""How often and how long a failed request is retried; the clock that measures it, and the counters of requests and retries."""

import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

__all__ = ["Account", "Clock", "Counts", "FailedError", "Failure", "LoggedRequest", "Policy", "Tries", "status_failure"]


@dataclass(frozen=True)
class Policy:
    """Limits of one operation on an object store. Times are seconds.

    * tries, total_s: the most tries, and the most time, without a new byte; then the store counts as unavailable
    * first_wait_s, longest_wait_s: a wait is drawn between zero and a limit that doubles from the first to the longest
    * wrong_tries: the most answers that are not what was asked for, such as another range
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
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def jitter(self) -> float:
        """A number drawn from [0, 1)."""
        return self._random.random()


@dataclass(frozen=True)
class Failure:
    """Why one request failed.

    ``kind``: again (asking again may help), wrong (the answer is not what was asked for), short (it has no byte), whole (the range
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
"""Method, key, and the range [start, stop) that was asked for, if any."""


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
        """What happened since an earlier moment."""
        return Counts(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))


class Account:
    """Counters of what was asked of an object store. Safe to use from several threads.

    ``log``: None, or a list to which every request is appended; set it to a list to switch it on.
    """

    def __init__(self) -> None:
        self.log: list[LoggedRequest] | None = None
        self._counts = Counts()
        self._lock = threading.Lock()

    def add(self, **amounts: int) -> None:
        """Add to counters, by name."""
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in amounts.items()})

    def request(self, method: str, key: str, start: int | None = None, stop: int | None = None) -> None:
        """Count one request."""
        self.add(requests=1)
        if self.log is not None:
            self.log.append((method, key, start, stop))

    def snapshot(self) -> Counts:
        """The counters now."""
        with self._lock:
            return self._counts

    def after_fork(self) -> None:
        """A lock that no thread of the parent holds."""
        self._lock = threading.Lock()


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
