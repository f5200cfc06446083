"""One range of one object, from a store that misbehaves."""

import re
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from tests.cli import warm
from tests.effort import every
from tests.remote.conftest import VirtualClock
from tests.remote.double import Double, Fault

from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    ReadError,
    StoreUnavailableError,
    TruncatedError,
)
from penstock.native import _core
from penstock.remote import fetch
from penstock.remote.fetch import Account, Clock, Failure, Pace, Policy, Tries
from penstock.remote.objects import ObjectInfo, Objects
from penstock.remote.url import url_path

KEY = "some/key"
DATA = bytes(range(100, 140))
START, STOP = 5, 35


@pytest.fixture(params=["s3", "signed", "http"])
def objects(request: pytest.FixtureRequest, double: Double, fast: Policy) -> Objects:
    """The double, seen as S3 by obstore, as S3 at signed URLs, and as a plain web server."""
    path = url_path(double.endpoint) if request.param == "http" else url_path(double.base, double.storage_options)
    path.objects.policy = fast
    path.objects.clock = Clock()
    if request.param == "signed":
        sign(path.objects, double)
    return path.objects


def sign(objects: Objects, double: Double, *, times: int = 2) -> None:
    """Let the next ranges be read at signed URLs: obstore reads the first, and the second shows that they are accepted."""
    double.put("first", b"1")
    for _ in range(times):
        objects.read(objects.head("first"), 0, 1)
    double.clear()
    objects.account = Account()


@pytest.fixture
def info(objects: Objects, double: Double) -> ObjectInfo:
    double.put(KEY, DATA)
    return objects.head(KEY if objects.scheme == "s3" else f"{double.bucket}/{KEY}")


def pieces_of(objects: Objects, info: ObjectInfo, start: int = START, stop: int = STOP) -> list[tuple[int, bytes]]:
    pieces: list[tuple[int, bytes]] = []
    objects.read_into(info, start, stop, lambda offset, data: pieces.append((offset, bytes(data))))
    return pieces


def check_exact(pieces: list[tuple[int, bytes]], start: int = START, stop: int = STOP, data: bytes = DATA) -> None:
    """Consecutive pieces, every byte once, all of them right."""
    at = start
    for offset, piece in pieces:
        assert offset == at
        at += len(piece)
    assert at == stop
    assert b"".join(piece for _, piece in pieces) == data[start:stop]


def ranges_asked(double: Double) -> list[tuple[int | None, int | None] | None]:
    return [request.range for request in double.requests("GET", KEY)]


# O1: refusals that pass


def test_o01_refused_n_times(double: Double, objects: Objects, info: ObjectInfo) -> None:
    for failures, status in every(4, list(product(range(12), (429, 500, 502, 503, 504)))):
        objects.policy, clock = Policy(), VirtualClock()
        objects.clock = clock
        double.clear()
        before = objects.account.snapshot()
        double.plan("GET", KEY, Fault(status=status), times=failures)
        if failures < 10:
            check_exact(pieces_of(objects, info))
        else:
            with pytest.raises(StoreUnavailableError) as caught:
                pieces_of(objects, info)
            for expected in (KEY, "bytes 5 to 35", "10 tries", f"{sum(clock.waits):.1f} s", str(status), "request-8"):
                assert expected in str(caught.value)
        # With the longest possible jitter: 100 ms, doubled, never above 15 s.
        assert clock.waits == [min(15.0, 0.1 * 2**n) for n in range(min(failures, 9))]
        counts = objects.account.snapshot() - before
        assert (counts.requests, counts.retries, counts.errors) == (min(failures, 9) + 1, min(failures, 9), int(failures >= 10))
        assert counts.bytes == (STOP - START if failures < 10 else 0)


def test_o01_the_total_time_is_bounded(double: Double, objects: Objects, info: ObjectInfo, clock: VirtualClock) -> None:
    objects.policy, objects.clock = Policy(tries=1000), clock
    double.plan("GET", KEY, Fault(status=503), times=1000)
    with pytest.raises(StoreUnavailableError):
        pieces_of(objects, info)
    assert clock.time <= 180


def test_o01_waits_are_drawn_from_the_whole_interval() -> None:
    policy, clock = Policy(), Clock()
    waits = [policy.wait_s(3, clock.jitter()) for _ in range(1000)]
    assert min(waits) < 0.1 < 0.3 < max(waits) < 0.4


def test_o01_waits_do_not_overflow() -> None:
    assert Policy().wait_s(100_000, 1.0) == 15.0


# O2: silence


def test_o02_no_first_byte_and_bodies_that_stall(double: Double, objects: Objects, info: ObjectInfo) -> None:
    """At once, each for an object of its own: all that time is spent waiting."""
    objects.policy = Policy(first_wait_s=0.001, read_s=1.5, piece_bytes=1)
    silent = {"never": Fault(delay_s=60)} | {f"after {k}": Fault(stall_at=k) for k in (0, 1, 17, 29)}
    infos = []
    for name, fault in silent.items():
        double.put(f"{KEY} {name}", DATA)
        double.plan("GET", f"{KEY} {name}", fault)
        infos.append(objects.head(f"{info.key} {name}"))
    with ThreadPoolExecutor(len(infos)) as threads:
        for pieces in threads.map(lambda one: pieces_of(objects, one), infos):
            check_exact(pieces)
    for name, fault in silent.items():
        asked = [request.range for request in double.requests("GET", f"{KEY} {name}")]
        assert asked == [(START, STOP), (START + (fault.stall_at or 0), STOP)]


def test_o02_silence_for_ever(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(tries=3, first_wait_s=0.001, read_s=0.05)
    double.plan("GET", KEY, Fault(delay_s=60), times=10)
    with pytest.raises(StoreUnavailableError, match="3 tries"):
        pieces_of(objects, info)


def test_o02_nobody_listens(fast: Policy) -> None:
    with socket.socket() as reserved:  # bound, not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        objects = url_path(f"http://127.0.0.1:{reserved.getsockname()[1]}").objects
        objects.policy = fast
        with pytest.raises(StoreUnavailableError, match="10 tries"):
            objects.read(ObjectInfo("a", 10, None, 0.0), 0, 10)
        with pytest.raises(StoreUnavailableError, match="10 tries"):
            objects.head("a")


def test_o02_a_connection_that_is_never_accepted() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):  # the queue of the listener is full now: further connections hang
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        objects = url_path(f"http://127.0.0.1:{full.getsockname()[1]}").objects
        objects.policy = Policy(tries=2, first_wait_s=0.001, connect_s=0.1, read_s=5)
        with pytest.raises(StoreUnavailableError, match="2 tries"):
            objects.read(ObjectInfo("a", 10, None, 0.0), 0, 10)


# O3: bodies that break off


@pytest.mark.parametrize("fault", ["reset_at", "short_at"])
def test_o03_cut_at_every_byte(double: Double, objects: Objects, info: ObjectInfo, fault: str, fast: Policy) -> None:
    objects.policy = Policy(first_wait_s=0.001, longest_wait_s=0.001, piece_bytes=1)
    for k in range(STOP - START):
        double.clear()
        double.plan("GET", KEY, Fault(**{fault: k}))
        check_exact(pieces_of(objects, info))
        assert ranges_asked(double) == [(START, STOP), (START + k, STOP)]


def test_o03_every_answer_breaks_off_after_one_byte(double: Double, objects: Objects, info: ObjectInfo) -> None:
    """With large pieces too: after the first failure no byte is lost any more."""
    double.plan("GET", KEY, Fault(reset_at=1), times=1000)
    check_exact(pieces_of(objects, info))
    assert len(ranges_asked(double)) <= STOP - START + 1


def test_o03_a_body_without_any_progress_is_given_up(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(reset_at=0), times=1000)
    with pytest.raises(StoreUnavailableError, match="10 tries"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 10


def test_o03_a_content_length_that_is_too_small(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(fewer=3))
    check_exact(pieces_of(objects, info))
    assert ranges_asked(double) == [(START, STOP), (STOP - 3, STOP)]


def test_o03_an_object_that_really_is_shorter(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(fewer=3))
    double.plan("GET", KEY, Fault(fewer=40), times=1000)
    with pytest.raises(TruncatedError, match="the body ended after 0 of 3 bytes"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 4


@pytest.mark.parametrize("piece_bytes", [1, 1 << 18])
def test_o03_extra_bytes_are_never_passed_on(double: Double, objects: Objects, info: ObjectInfo, piece_bytes: int) -> None:
    objects.policy = Policy(first_wait_s=0.001, piece_bytes=piece_bytes)
    double.plan("GET", KEY, Fault(extra=b"xyz"))
    check_exact(pieces_of(objects, info))
    double.plan("GET", KEY, Fault(extra=b"xyz"), times=1000)
    pieces: list[bytes] = []
    with pytest.raises(CorruptError, match="more bytes than requested"):
        objects.read_into(info, START, STOP, lambda _, data: pieces.append(bytes(data)))
    assert DATA[START:STOP].startswith(b"".join(pieces))
    assert len(b"".join(pieces)) < STOP - START


def test_o03_beyond_the_end(objects: Objects, info: ObjectInfo) -> None:
    with pytest.raises(TruncatedError, match="expected at least 41 bytes, found 40"):
        objects.read(info, 30, 41)
    with pytest.raises(ValueError, match="start <= stop"):
        objects.read(info, 3, 2)
    with pytest.raises(ValueError, match="start <= stop"):
        objects.read(info, -1, 2)


def test_o03_an_error_of_the_writer_ends_the_read(double: Double, objects: Objects, info: ObjectInfo) -> None:
    def write(offset: int, data: memoryview) -> None:
        if len(data):
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        objects.read_into(info, START, STOP, write)
    assert len(ranges_asked(double)) == 1


# O4: encodings


def test_o04_a_compressed_answer_is_not_taken_for_the_object(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(gzipped=True))
    check_exact(pieces_of(objects, info))
    double.plan("GET", KEY, Fault(gzipped=True), times=1000)
    with pytest.raises(CorruptError, match="Content-Encoding 'gzip'"):
        pieces_of(objects, info)
    with pytest.raises(CorruptError, match="Content-Encoding 'gzip'"):
        objects.read_all(info.key, 1000)
    with pytest.raises(CorruptError, match="Content-Encoding 'gzip'"):
        objects.probe(info.key, first=4)


# O5: objects that change


def test_o05_replaced_between_two_ranges(double: Double, objects: Objects, info: ObjectInfo) -> None:
    check_exact(pieces_of(objects, info))
    double.put(KEY, bytes(reversed(DATA)))
    with pytest.raises(ObjectChangedError, match=re.escape(info.key)):
        pieces_of(objects, info)


def test_o05_replaced_while_a_body_is_continued(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(first_wait_s=0.001, piece_bytes=1)
    double.plan("GET", KEY, Fault(reset_at=4))
    pieces: list[bytes] = []

    def write(offset: int, data: memoryview) -> None:
        if len(data):  # without bytes it is only asked whether they are still wanted, before the first answer too
            pieces.append(bytes(data))
            double.put(KEY, bytes(reversed(DATA)))

    with pytest.raises(ObjectChangedError):
        objects.read_into(info, START, STOP, write)
    assert b"".join(pieces) == DATA[START : START + 4]


def test_o05_a_server_that_ignores_the_condition(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.put(KEY, bytes(reversed(DATA)))
    double.plan("GET", KEY, Fault(ignore_condition=True))
    before = objects.account.snapshot()
    with pytest.raises(ObjectChangedError, match="etag"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 1
    assert (objects.account.snapshot() - before).errors == 1


@pytest.mark.parametrize("size", [39, 41, 1 << 40])
def test_o05_another_size_under_the_same_etag(double: Double, objects: Objects, info: ObjectInfo, size: int) -> None:
    double.plan("GET", KEY, Fault(size=size))
    with pytest.raises(ObjectChangedError, match=f"had 40 bytes when it was opened, now {size}"):
        pieces_of(objects, info)


def test_o05_weak_and_missing_etags(double: Double, objects: Objects, info: ObjectInfo) -> None:
    """A weak etag never satisfies If-Match, so it is only compared; without any, the size is."""
    weak = ObjectInfo(info.key, info.size, 'W/"weak"', info.modified)
    double.plan("GET", KEY, Fault(etag='W/"weak"'))
    check_exact(pieces_of(objects, weak))
    with pytest.raises(ObjectChangedError, match="etag"):
        pieces_of(objects, weak)
    check_exact(pieces_of(objects, ObjectInfo(info.key, info.size, None, info.modified)))
    assert ["If-Match" in {name.title() for name in r.headers} for r in double.requests("GET", KEY)] == [False] * 3
    with pytest.raises(ObjectChangedError, match="bytes when it was opened"):
        pieces_of(objects, ObjectInfo(info.key, info.size + 1, None, info.modified))


# O6: refusals that stay


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ReadError), (401, AccessDeniedError), (403, AccessDeniedError), (404, MissingError), (410, ReadError)],
)
def test_o06_not_asked_again(double: Double, objects: Objects, info: ObjectInfo, status: int, kind: type[Exception]) -> None:
    double.plan("GET", KEY, Fault(status=status))
    with pytest.raises(kind, match=re.escape(info.key)) as caught:
        pieces_of(objects, info)
    assert type(caught.value) is kind
    assert str(status) in str(caught.value)
    assert len(ranges_asked(double)) == 1


def test_o06_expired_credentials_are_asked_for_again(double: Double, objects: Objects, info: ObjectInfo) -> None:
    for status in (400, 403):
        double.clear()
        double.plan("GET", KEY, Fault(status=status, code="ExpiredToken"))
        check_exact(pieces_of(objects, info))
        double.plan("GET", KEY, Fault(status=status, code="ExpiredToken"), times=1000)
        with pytest.raises(AccessDeniedError, match="have expired"):
            pieces_of(objects, info)
        assert len(ranges_asked(double)) == 2 + 3


# O7: other ranges than asked for


def test_o07_ignored_range_is_cut_out_of_a_small_object(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(first_wait_s=0.001, piece_bytes=7)
    double.plan("GET", KEY, Fault(ignore_range=True), times=1000)
    check_exact(pieces_of(objects, info))
    check_exact(pieces_of(objects, info, 0, 40), 0, 40)
    assert objects.probe(info.key, first=6)[1] == DATA[:6]
    assert objects.probe(info.key, last=6)[1] == DATA[-6:]


def test_o07_ignored_range_and_a_body_that_breaks_off(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(first_wait_s=0.001, longest_wait_s=0.001, piece_bytes=1)
    for k in range(40):
        double.clear()
        double.plan("GET", KEY, Fault(ignore_range=True))
        double.plan("GET", KEY, Fault(ignore_range=True, reset_at=k))
        double.plan("GET", KEY, Fault(ignore_range=True), times=1000)
        check_exact(pieces_of(objects, info))


def test_o07_ignored_range_of_a_large_object(
    double: Double, objects: Objects, info: ObjectInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "WHOLE_MOST_BYTES", len(DATA) - 1)
    double.plan("GET", KEY, Fault(ignore_range=True), times=1000)
    with pytest.raises(CorruptError, match="ignores ranges"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 1


@pytest.mark.parametrize("shift", [-5, 1, 4])
def test_o07_another_range(double: Double, objects: Objects, info: ObjectInfo, shift: int) -> None:
    double.plan("GET", KEY, Fault(shift=shift))
    check_exact(pieces_of(objects, info))
    double.plan("GET", KEY, Fault(shift=shift), times=1000)
    with pytest.raises(CorruptError, match=r"5(\.\.| to )35"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 2 + 3


def test_o07_not_satisfiable(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(status=416))
    with pytest.raises(TruncatedError, match="ends before"):
        pieces_of(objects, info)
    assert len(ranges_asked(double)) == 1


# O14: a slow tail


def test_o14_a_range_that_does_not_begin_is_asked_for_twice(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(hedge_s=0.05)
    gate = threading.Event()
    for fault in (Fault(gate=gate), Fault(stall_at=0)):
        before = objects.account.snapshot()
        double.plan("GET", KEY, fault)
        check_exact(pieces_of(objects, info))
        counts = objects.account.snapshot() - before
        assert (counts.hedges, counts.requests, counts.retries, counts.errors) == (1, 2, 0, 0)
        assert counts.bytes == STOP - START
    gate.set()


def test_o14_the_first_request_is_not_given_up_for_the_second(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(hedge_s=0.05)
    gate, before = threading.Event(), objects.account.snapshot()
    double.plan("GET", KEY, Fault(gate=gate))
    double.plan("GET", KEY, Fault(status=503, opens=gate))
    check_exact(pieces_of(objects, info))
    counts = objects.account.snapshot() - before
    assert (counts.hedges, counts.requests, counts.retries) == (1, 2, 0)


def test_o14_two_requests_that_fail_are_one_failure(double: Double, objects: Objects, info: ObjectInfo) -> None:
    objects.policy = Policy(hedge_s=0.05, first_wait_s=0.001)
    gate, before = threading.Event(), objects.account.snapshot()
    double.plan("GET", KEY, Fault(gate=gate, status=503))
    double.plan("GET", KEY, Fault(status=500, opens=gate))
    check_exact(pieces_of(objects, info))
    counts = objects.account.snapshot() - before
    assert counts.hedges >= 1  # on a busy machine the retry may be hedged too
    assert (counts.requests - counts.hedges, counts.retries) == (2, 1)


def test_o14_a_slow_tail(double: Double, objects: Objects, info: ObjectInfo) -> None:
    """One of fifty requests does not answer before everything else is done."""
    objects.policy = Policy(hedge_s=0.2, read_s=5)
    gate, before = threading.Event(), objects.account.snapshot()
    for _ in range(4):
        double.plan("GET", KEY, Fault(gate=gate), after=49)
    try:
        with ThreadPoolExecutor(4) as threads:
            for pieces in threads.map(lambda _: pieces_of(objects, info), range(200)):
                check_exact(pieces)
    finally:
        gate.set()
    counts = objects.account.snapshot() - before
    assert counts.hedges > 0
    assert counts.hedges + counts.retries >= 4  # a connection that a busy machine loses is asked for again instead
    assert (counts.errors, counts.bytes) == (0, 200 * (STOP - START))


def test_o14_no_second_request_for_what_is_always_slow() -> None:
    recent = fetch.FirstBytes()
    assert recent.slow_s == 0.0
    for n in range(1000):
        recent.add(9.0 if n % 20 == 0 else 1.0)
    assert recent.slow_s == 9.0
    for n in range(1024):
        recent.add(9.0 if n % 200 == 0 else 1.0)
    assert recent.slow_s == 1.0


def test_a_closed_store_can_be_used_again(double: Double, objects: Objects, info: ObjectInfo) -> None:
    check_exact(pieces_of(objects, info))
    assert any(thread.name.startswith("penstock-fetch") for thread in threading.enumerate())
    objects.close()
    assert not any(thread.name.startswith("penstock-fetch") for thread in threading.enumerate())
    check_exact(pieces_of(objects, info))


def test_a_thread_that_outlives_the_main_thread_can_read(double: Double) -> None:
    double.put(KEY, DATA)
    program = f"""
import threading
from penstock.remote.url import url_path
objects = url_path({double.endpoint!r}).objects
info = objects.head("data/{KEY}")
objects.read(info, 0, 1)
main = threading.main_thread()
def late():
    main.join()
    print(objects.read(info, 5, 9))
threading.Thread(target=late).start()
"""
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr, done.returncode) == (f"{DATA[5:9]!r}\n", "", 0)


# Servers that are slow on purpose


def test_a_body_below_the_least_rate_is_given_up_but_not_one_that_waits_for_this_process(clock: VirtualClock) -> None:
    def give_up(tries: int, seconds: float, failure: Failure) -> Exception:
        return StoreUnavailableError(str(failure))

    policy = Policy()
    tries = Tries(policy, clock, Account(), give_up)
    for _ in range(100):  # an hour between two pieces: the process was stopped, or its consumer did not take them
        clock.time += 3600
        tries.progress(policy.piece_bytes)
    tries = Tries(policy, clock, Account(), give_up)
    for _ in range(18):
        clock.time += 10
        tries.progress(1)
    clock.time += 10
    with pytest.raises(StoreUnavailableError, match="fewer than 4096 a second"):
        tries.progress(1)


# Straight to its place


LARGE = bytes(range(251)) * 4_000  # a million bytes, of which most are still in the socket when the head was read


@pytest.fixture(params=["signed", "http"])
def direct(request: pytest.FixtureRequest, double: Double, fast: Policy) -> tuple[Objects, ObjectInfo]:
    path = url_path(double.endpoint) if request.param == "http" else url_path(double.base, double.storage_options)
    path.objects.policy, path.objects.clock = fast, Clock()
    if request.param == "signed":
        sign(path.objects, double)
    double.put(KEY, LARGE)
    return path.objects, path.objects.head(KEY if request.param == "signed" else f"{double.bucket}/{KEY}")


class Place:
    """Memory of an object, and how many bytes came to it in which way."""

    def __init__(self, size: int) -> None:
        self.landing, self.copied, self.received = _core.Landing(size), 0, 0

    def write(self, offset: int, data: memoryview) -> None:
        self.landing.write(offset, data)
        self.copied += len(data)

    def receive(self, socket: int, start: int, stop: int, seconds: float) -> tuple[int, bool]:
        count, is_open = self.landing.receive(socket, start, stop, seconds)
        self.received += count
        return count, is_open


def landed(objects: Objects, info: ObjectInfo, start: int, stop: int) -> Place:
    place = Place(info.size)
    objects.read_into(info, start, stop, place.write, place.receive)
    assert place.landing.read(start, stop) == LARGE[start:stop]
    assert place.copied + place.received == stop - start
    return place


def test_most_of_a_body_is_received_without_a_copy(double: Double, direct: tuple[Objects, ObjectInfo]) -> None:
    objects, info = direct
    for _ in range(2):  # the second time over the same connection
        place = landed(objects, info, 12_345, 987_654)
        assert place.copied <= 1 << 16
    assert [request.range for request in double.requests("GET")] == [(12_345, 987_654)] * 2
    assert not any("authorization" in name.lower() for request in double.requests("GET") for name in request.headers)


@pytest.mark.parametrize("at", [0, 1, 70_000, 500_000, 899_999])
@pytest.mark.parametrize("how", ["reset_at", "short_at", "stall_at"])
def test_a_body_that_breaks_off_is_continued_in_its_place(
    double: Double, direct: tuple[Objects, ObjectInfo], at: int, how: str
) -> None:
    objects, info = direct
    double.plan("GET", KEY, Fault(**{how: at}))
    landed(objects, info, 100, 900_100)
    first, second = (request.range for request in double.requests("GET"))
    assert first == (100, 900_100)
    assert second is not None
    assert second[1] == 900_100
    # What the system had received when the connection was reset may be lost.
    assert second[0] == 100 + at or (how == "reset_at" and 100 <= (second[0] or 0) <= 100 + at)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(extra=b"more"), CorruptError),
        (Fault(shift=7), CorruptError),
        (Fault(gzipped=True), CorruptError),
        (Fault(etag='"another"', ignore_condition=True), ObjectChangedError),
        (Fault(size=2_000_000), ObjectChangedError),
        (Fault(status=412), ObjectChangedError),
        (Fault(status=404), MissingError),
    ],
)
def test_nothing_of_a_wrong_answer_lands(
    double: Double, direct: tuple[Objects, ObjectInfo], fault: Fault, kind: type[Exception]
) -> None:
    objects, info = direct
    double.plan("GET", KEY, fault, times=10)
    place = Place(info.size)
    with pytest.raises(kind):
        objects.read_into(info, 100, 900_100, place.write, place.receive)
    assert place.received == 0


def test_a_place_that_is_not_wanted_any_more_ends_the_fetch(double: Double, direct: tuple[Objects, ObjectInfo]) -> None:
    objects, info = direct
    double.plan("GET", KEY, Fault(stall_at=500_000))

    def closed(socket: int, start: int, stop: int, seconds: float) -> tuple[int, bool]:
        raise ReadError("closed")

    with pytest.raises(ReadError, match=r"^closed$"):
        objects.read_into(info, 100, 900_100, lambda offset, data: None, closed)


def test_a_server_that_refuses_signed_urls_is_read_by_obstore(double: Double, fast: Policy) -> None:
    objects = url_path(double.base, double.storage_options).objects
    objects.policy = fast
    sign(objects, double, times=1)
    double.put(KEY, LARGE)
    info = objects.head(KEY)
    double.plan("GET", KEY, Fault(status=403))
    for _ in range(2):
        assert objects.read(info, 0, 1000) == LARGE[:1000]
    assert ["authorization" in {name.lower() for name in request.headers} for request in double.requests("GET", KEY)] == [
        False,
        True,
        True,
    ]


def test_a_refusal_counts_once_signed_urls_were_accepted(double: Double, fast: Policy) -> None:
    objects = url_path(double.base, double.storage_options).objects
    objects.policy = fast
    sign(objects, double)
    double.put(KEY, LARGE)
    info = objects.head(KEY)
    assert objects.read(info, 0, 1000) == LARGE[:1000]
    double.plan("GET", KEY, Fault(status=403))
    with pytest.raises(AccessDeniedError) as caught:
        objects.read(info, 0, 1000)
    assert "Signature" not in f"{caught.value!r}{caught.value.__cause__!r}{caught.value.__context__!r}"
    assert len(double.requests("GET", KEY)) == 2


# How many requests at a time


def rounds(pace: Pace, clock: VirtualClock, rate: Callable[[int], float], count: int) -> list[int]:
    """The limit after each round of ranges of 1 MB that come at a rate which depends on it, in MB/s."""
    found = []
    for _ in range(count):
        limit = pace.limit
        for _ in range(limit):
            clock.time += 1 / rate(limit)
            pace.done(1_000_000, others_wait=True)
        found.append(pace.limit)
    return found


def test_requests_at_a_time_grow_while_that_is_faster(clock: VirtualClock) -> None:
    assert rounds(Pace(clock.now), clock, lambda limit: 10.0 * limit, 6) == [24, 36, 54, 64, 64, 64]


def test_requests_at_a_time_stay_where_more_are_not_faster(clock: VirtualClock) -> None:
    found = rounds(Pace(clock.now), clock, lambda limit: 10.0 * min(limit, 30), 6 + Pace.REST)
    assert found == [24, 36, 54, *[36] * (1 + Pace.REST), 54, 36]  # now and then it is tried again


def test_a_congested_store_gets_fewer_requests_once_in_a_round(clock: VirtualClock) -> None:
    pace = Pace(clock.now)
    for _ in range(5):
        pace.congested()
    assert pace.limit == 8
    rounds(pace, clock, lambda limit: 1.0, 1)
    pace.congested()
    rounds(pace, clock, lambda limit: 1.0, 1)
    pace.congested()
    assert pace.limit == fetch.LEAST_CONNECTIONS


def test_a_slow_reader_says_nothing_about_the_store(clock: VirtualClock) -> None:
    pace = Pace(clock.now)
    for _ in range(1000):
        clock.time += 0.001
        pace.done(1_000_000, others_wait=False)
    assert pace.limit == fetch.CONNECTIONS


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_of_a_busy_store_lower_the_pace(double: Double, objects: Objects, info: ObjectInfo, status: int) -> None:
    double.plan("GET", KEY, Fault(status=status), times=3)
    objects.pace = Pace(objects.clock.now)
    check_exact(pieces_of(objects, info))
    assert objects.pace.limit == fetch.CONNECTIONS // 2


def test_a_missing_object_does_not_lower_the_pace(double: Double, objects: Objects, info: ObjectInfo) -> None:
    double.plan("GET", KEY, Fault(status=404))
    objects.pace = Pace(objects.clock.now)
    with pytest.raises(MissingError):
        pieces_of(objects, info)
    assert objects.pace.limit == fetch.CONNECTIONS
