"""One byte range of one object, whole or a typed error, however the network behaves.

A body that breaks off is continued behind the last good byte; an answer that is not what was asked for is never passed on; a range
that does not begin to come is asked for a second time.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

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
from penstock.remote.interruptible import first_of
from penstock.remote.retry import Account, Clock, FailedError, Failure, Policy, Tries

__all__ = ["Answer", "FirstBytes", "Means", "Submit", "Wanted", "Write", "check_encoding", "fetch", "given_up", "read_error"]

Write = Callable[[int, memoryview], None]
"""Takes an offset in an object and the bytes there. Now and then none, while they do not come: what it raises ends the fetch."""

WHOLE_MOST_BYTES = 64 << 20
"""The size up to which an object is read as a whole where a server ignores ranges."""


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


@dataclass(frozen=True)
class Answer:
    """The head of an answer, and its body piece by piece."""

    etag: str | None
    modified: float
    size: int
    start: int
    stop: int
    encoding: str | None
    pieces: Iterator[memoryview]


class FirstBytes:
    """How long the first bytes of recent ranges took."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=256)
        self._lock = threading.Lock()
        self._slow = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        with self._lock:
            self._seconds.append(seconds)
            if len(self._seconds) % 16 == 0:
                self._slow = sorted(self._seconds)[len(self._seconds) * 99 // 100]

    @property
    def slow_s(self) -> float:
        """What all but one of a hundred stayed below."""
        return self._slow


def same_etag(one: str | None, other: str | None) -> bool:
    """Whether two etags are the same; the quotes are left out by some listings. An unknown one is no contradiction."""
    return one is None or other is None or one.removeprefix("W/").strip('"') == other.removeprefix("W/").strip('"')


def read_error(url: str, failure: Failure) -> ReadError | None:
    """The error of a failure that asking again does not cure, or None."""
    if failure.kind == "missing":
        return MissingError(f"{url}: there is no such object ({failure})")
    if failure.kind == "denied":
        return AccessDeniedError(f"{url}: the store refused ({failure}); check the credentials and their rights")
    if failure.kind in ("changed", "replaced"):
        how = "the object was replaced since it was opened" if failure.kind == "changed" else str(failure)
        return ObjectChangedError(f"{url}: {how}; open it anew")
    if failure.kind == "redirect":
        return UnsafePathError(f"{url}: {failure}")
    if failure.kind == "range":
        return TruncatedError(f"{url}: the object ends before the bytes that were asked for")
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


def fetch(means: Means, wanted: Wanted, write: Write) -> None:
    """Call ``write(offset, bytes)`` for consecutive pieces that cover the range exactly once."""
    _Fetch(means, wanted, write).run()


class _Fetch:
    def __init__(self, means: Means, wanted: Wanted, write: Write) -> None:
        self._means, self._wanted, self._write = means, wanted, write
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
        fatal = read_error(str(self._wanted), failure)
        if fatal is not None:
            self._means.account.add(errors=1)
            raise fatal
        self._tries.failed(failure)
        self._ask()

    def _ask(self) -> None:
        """Whether the bytes are still wanted."""
        self._write(self._position, memoryview(b""))

    def _once(self) -> None:
        # A body that breaks off loses the piece it was in: after a failure every byte counts, and the pieces are small.
        least = self._means.policy.piece_bytes if self._tries.failures == 0 else 1
        start, stop = (0, None) if self._whole else (self._position, self._wanted.stop)
        answer, first = self._begin(start, stop, least)
        self._check(answer, start, self._wanted.size if stop is None else stop)
        begin, at = self._position, start
        try:
            for view in chain(first, answer.pieces):
                fresh = view[max(0, self._position - at) :]
                at += len(view)
                if self._whole:
                    fresh = fresh[: self._wanted.stop - self._position]
                if len(fresh):
                    self._take(fresh, answer.pieces)
                if self._position == self._wanted.stop:
                    return
        finally:
            self._means.account.add(bytes=self._position - begin)
        ended = f"the body ended after {self._position - begin} of {self._wanted.stop - begin} bytes"
        raise FailedError(Failure("again" if self._position > begin else "short", ended))

    def _take(self, data: memoryview, rest: Iterator[memoryview]) -> None:
        stop = self._position + len(data)
        if not self._whole and (stop > self._wanted.stop or (stop == self._wanted.stop and any(len(more) for more in rest))):
            raise FailedError(Failure("wrong", "the store sent more bytes than it was asked for"))
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
        """The head and the first piece of whichever of one or two requests gets there first."""
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
