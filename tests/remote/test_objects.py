"""Listing, reading and writing objects: in memory, on a real server, and on one that misbehaves."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.remote.conftest import VirtualClock
from tests.remote.double import Double, Fault
from tests.remote.seaweed import Seaweed

from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    MissingError,
    NoMatchError,
    ObjectChangedError,
    OutcomeUnknownError,
    ReadError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    WriteRefusedError,
)
from penstock.remote.fetch import Clock, Policy
from penstock.remote.objects import Objects
from penstock.remote.url import UrlPath, url_path

KEY = "some/key"


@pytest.fixture(params=["memory", "seaweed", "double"])
def place(request: pytest.FixtureRequest) -> UrlPath:
    """An empty place in each kind of store."""
    if request.param == "memory":
        return url_path(f"memory://objects/{request.node.name}")
    if request.param == "seaweed":
        found: UrlPath = request.getfixturevalue("prefix")
        return found
    double = request.getfixturevalue("double")
    return url_path(f"{double.base}/some/where", double.storage_options)


@pytest.fixture
def objects(double: Double, fast: Policy) -> Objects:
    """The double."""
    found = url_path(double.base, double.storage_options).objects
    found.policy, found.clock = fast, Clock()
    return found


# What holds for every store


def test_what_was_put_is_read(place: UrlPath) -> None:
    objects, key = place.objects, (place / "a.bin").key
    data = bytes(range(256)) * 5000
    objects.put(key, data)
    info = objects.head(key)
    assert (info.key, info.size) == (key, len(data))
    assert info.etag is not None
    assert abs(info.modified - time.time()) < 3600
    assert objects.read(info, 0, len(data)) == data
    assert objects.read(info, 1000, 1_000_000) == data[1000:1_000_000]
    assert objects.read(info, 7, 7) == b""
    assert objects.read_all(key, len(data)) == data
    assert objects.probe(key, first=10) == (info, data[:10])
    assert objects.probe(key, last=10) == (info, data[-10:])
    assert objects.probe(key) == (info, b"")
    assert objects.probe(key, first=len(data) + 1) == objects.probe(key, last=len(data) + 1) == (info, data)
    with pytest.raises(CorruptError, match=f"expected at most {len(data) - 1} bytes"):
        objects.read_all(key, len(data) - 1)
    with pytest.raises(ValueError, match="first or last"):
        objects.probe(key, first=1, last=1)
    objects.delete(key)
    objects.delete(key)
    for missing in (objects.head, objects.probe, lambda key: objects.read_all(key, 9), lambda key: objects.read(info, 0, 9)):
        with pytest.raises(MissingError, match=r"a\.bin"):
            missing(key)


def test_an_empty_object(place: UrlPath) -> None:
    objects, key = place.objects, (place / "empty").key
    objects.put(key, b"")
    info = objects.head(key)
    assert info.size == 0
    assert objects.read(info, 0, 0) == objects.read_all(key, 0) == b""
    assert objects.probe(key, first=10) == objects.probe(key, last=10) == (info, b"")


def test_pieces_are_put_together(place: UrlPath) -> None:
    objects, key = place.objects, (place / "pieces").key
    objects.put(key, [b"abc", memoryview(b"defg")[1:], b""])
    assert objects.read_all(key, 10) == b"abcefg"


def test_a_large_object_is_put_in_parts(place: UrlPath) -> None:
    objects, key = place.objects, (place / "large").key
    piece = bytes(range(256)) * 4096
    try:
        objects.policy = Policy(part_bytes=5 << 20)
        objects.put(key, [piece] * 11)
        objects.put(f"{key}-2", piece * 11)
    finally:
        objects.policy = Policy()
    assert objects.read_all(key, 11 << 20) == objects.read_all(f"{key}-2", 11 << 20) == piece * 11


def test_put_new_puts_only_once(place: UrlPath) -> None:
    objects, key = place.objects, (place / "new").key
    assert objects.supports_put_new(place.key)
    assert objects.put_new(key, b"first") is True
    assert objects.put_new(key, b"second") is False
    assert objects.read_all(key, 10) == b"first"
    assert [info.key for info in objects.list(place.key)] == [key]  # the scratch object is gone


def test_an_object_that_was_replaced_is_not_read(place: UrlPath) -> None:
    objects, key = place.objects, (place / "changing").key
    objects.put(key, b"0123456789")
    info = objects.head(key)
    objects.put(key, b"9876543210")
    with pytest.raises(ObjectChangedError, match="changing"):
        objects.read(info, 0, 5)


def test_names_of_all_kinds(place: UrlPath) -> None:
    objects = place.objects
    names = sorted(["a b", "ä+%20", "x=1/y&z", "100%", "q?a#b", "日本", "~tilde", "comma,semi;"], key=str.encode)
    for name in names:
        objects.put((place / name).key, name.encode())
    assert [info.key for info in objects.list(place.key)] == [(place / name).key for name in names]
    for name in names:
        assert objects.read_all((place / name).key, 100) == name.encode()


def test_o08_listing_is_by_whole_names_and_sorted(place: UrlPath) -> None:
    objects = place.objects
    for name in ("d/s10", "d/s2", "d/S1", "d.x", "dd/a", "d/e/f", "d/é", "d/z"):
        objects.put((place / name).key, name.encode())
    found = objects.list((place / "d").key)
    assert [info.key.removeprefix(f"{place.key}/") for info in found] == ["d/S1", "d/e/f", "d/s10", "d/s2", "d/z", "d/é"]
    for info in found:
        assert info.size == len(info.key.removeprefix(f"{place.key}/").encode())
        assert objects.read(info, 0, info.size).decode() == info.key.removeprefix(f"{place.key}/")
    assert objects.list((place / "nothing").key) == []
    assert {info.key for info in found} < {info.key for info in objects.list("")}


# Listings that are not what they should be


def test_o08_many_pages_some_of_which_fail_and_repeat() -> None:
    keys = [f"d/{n:03}" for n in range(25)]
    with Double(page=4) as double:
        objects = url_path(double.base, double.storage_options).objects
        objects.clock = VirtualClock()
        for key in keys:
            double.put(key, key.encode())
        double.plan("LIST", "d", Fault(status=503))
        double.plan("LIST", "d", Fault(twice=frozenset(keys)), times=4)
        double.plan("LIST", "d", Fault(reset_at=100))
        assert [info.key for info in objects.list("d")] == keys
        double.plan("LIST", "d", Fault(hide=frozenset(keys[:7])), times=1000)
        assert [info.key for info in objects.list("d")] == keys[7:]
        objects.close()


def test_o08_a_listing_that_never_works(double: Double, objects: Objects) -> None:
    double.plan("LIST", "d", Fault(status=500), times=1000)
    with pytest.raises(StoreUnavailableError, match=r"listing s3://data/d.*10 tries"):
        objects.list("d")
    double.clear()
    double.plan("LIST", "d", Fault(status=403))
    with pytest.raises(AccessDeniedError, match="s3://data/d"):
        objects.list("d")


def test_o08_a_web_server_cannot_list(double: Double) -> None:
    with pytest.raises(NoMatchError, match="a web server has no listing; name them one by one"):
        url_path(double.http_base).objects.list("data")


# Reading small things


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(reset_at=3), Fault(short_at=3), Fault(fewer=2), Fault(drop=True)])
def test_small_reads_are_tried_again(double: Double, objects: Objects, fault: Fault) -> None:
    double.put(KEY, b"0123456789")
    for read in (
        lambda: objects.probe(KEY, first=6)[1],
        lambda: objects.probe(KEY, last=6)[1][::-1],
        lambda: objects.read_all(KEY, 10)[:6],
    ):
        double.plan("GET", KEY, fault)
        assert read() in (b"012345", b"987654")


@pytest.mark.parametrize("fault", [Fault(extra=b"xyz"), Fault(fewer=2)])
def test_small_reads_are_never_of_another_length(double: Double, objects: Objects, fault: Fault) -> None:
    double.put(KEY, b"0123456789")
    for read in (lambda: objects.probe(KEY, first=6), lambda: objects.probe(KEY, last=6), lambda: objects.read_all(KEY, 100)):
        double.clear()
        double.plan("GET", KEY, fault, times=1000)
        try:
            found = read()
        except CorruptError:
            assert len(double.requests("GET", KEY)) == 3
        else:
            assert found in (b"01234567", b"0123456789xyz")  # the length is all there is to go by: the whole body is the object


def test_a_probe_is_one_request(double: Double, objects: Objects) -> None:
    double.put(KEY, b"0123456789")
    objects.probe(KEY, first=4)
    objects.probe(KEY, last=4)
    assert [(r.method, r.range) for r in double.requests()] == [("GET", (0, 4)), ("GET", (None, 4))]


# Writing


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=429), Fault(drop=True), Fault(delay_s=60)])
def test_o09_plain_writes_are_tried_again(double: Double, objects: Objects, fault: Fault) -> None:
    double.plan("PUT", KEY, fault)
    double.plan("DELETE", KEY, fault)
    objects.put(KEY, b"data")
    assert double.get(KEY) == b"data"
    objects.delete(KEY)
    assert double.get(KEY) is None
    assert len(double.requests("PUT")) == len(double.requests("DELETE")) == 2


def test_o09_a_write_that_never_works(double: Double, objects: Objects) -> None:
    double.plan("PUT", KEY, Fault(status=503), times=1000)
    with pytest.raises(StoreError, match=r"s3://data/some/key: not written after 10 tries"):
        objects.put(KEY, b"data")
    for status, kind in (
        (403, StorePermissionError),
        (401, StorePermissionError),
        (400, WriteRefusedError),
        (404, WriteRefusedError),
    ):
        double.clear()
        double.plan("PUT", KEY, Fault(status=status))
        with pytest.raises(kind, match=rf"s3://data/some/key: .*{status}"):
            objects.put(KEY, b"data")
        assert len(double.requests("PUT")) == 1


@pytest.mark.parametrize("method", ["BEGIN", "PART", "END"])
@pytest.mark.parametrize("fault", [Fault(status=503), Fault(drop=True)])
@pytest.mark.sampled(2)
def test_o11_a_large_write_is_tried_again_from_the_beginning(double: Double, fast: Policy, method: str, fault: Fault) -> None:
    objects = url_path(double.base, double.storage_options).objects
    objects.policy = Policy(first_wait_s=0.001, part_bytes=5 << 20)
    double.plan(method, KEY, fault)
    objects.put(KEY, [b"x" * (2 << 20)] * 6)
    assert double.get(KEY) == b"x" * (12 << 20)


LOST = [
    (Fault(drop=True), True),
    (Fault(status=500), False),
    (Fault(status=503), False),
    (Fault(status=409), False),
    (Fault(delay_s=60), None),
    (Fault(reset_at=0, status=500), False),
]


@pytest.mark.parametrize(("fault", "landed"), LOST)
def test_o09_a_lost_answer_to_put_new_is_unknown_and_not_repeated(
    double: Double, objects: Objects, fault: Fault, landed: bool | None
) -> None:
    double.plan("PUT", KEY, fault)
    with pytest.raises(OutcomeUnknownError, match=r"s3://data/some/key: .*read it back"):
        objects.put_new(KEY, b"mine")
    assert len(double.requests("PUT", KEY)) == 1
    if landed is not None:
        assert (double.get(KEY) == b"mine") == landed


def test_o09_put_new_is_repeated_where_it_cannot_have_landed(double: Double, objects: Objects) -> None:
    double.plan("PUT", KEY, Fault(status=429), times=2)
    assert objects.put_new(KEY, b"mine")
    assert not objects.put_new(KEY, b"mine")
    endpoint = url_path("s3://data", {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b"}).objects
    endpoint.policy = objects.policy
    with pytest.raises(StoreError, match="not written after 10 tries") as caught:
        endpoint.put_new(KEY, b"mine")
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_o12_a_store_that_ignores_the_condition_is_found_out(double: Double, objects: Objects) -> None:
    double.plan("PUT", "*", Fault(ignore_condition=True), times=2)
    assert not objects.supports_put_new("some/where")
    assert not objects.supports_put_new("some/where")
    assert len(double.requests("PUT")) == 2  # tried once
    assert all(request.key.startswith("some/where/") for request in double.requests("PUT"))
    assert double.keys() == []


@pytest.mark.parametrize("status", [400, 405, 501])
def test_o12_a_store_that_refuses_the_condition_is_found_out(double: Double, objects: Objects, status: int) -> None:
    double.plan("PUT", "*", Fault(status=status))
    assert not objects.supports_put_new()
    assert not url_path(double.endpoint).objects.supports_put_new()


def test_o12_lost_answers_do_not_decide(double: Double, objects: Objects) -> None:
    double.plan("PUT", "*", Fault(drop=True))
    double.plan("PUT", "*", Fault(status=500), after=1)
    assert objects.supports_put_new()
    assert double.keys() == []
    double.plan("PUT", "*", Fault(status=403))
    other = url_path(double.base, double.storage_options | {"user_agent": "other"}).objects
    with pytest.raises(StorePermissionError):
        other.supports_put_new()
    assert other.supports_put_new()


# The real server


def test_wrong_credentials(seaweed: Seaweed) -> None:
    objects = url_path(seaweed.url, seaweed.storage_options | {"secret_access_key": "wrong-s-e-c-r-e-t"}).objects
    for attempt in (lambda: objects.head("a"), lambda: objects.list(""), lambda: objects.read_all("a", 9)):
        with pytest.raises(AccessDeniedError, match="check the credentials") as caught:
            attempt()
        assert "s-e-c-r-e-t" not in str(caught.value)
    with pytest.raises(StorePermissionError):
        objects.put("a", b"")


def test_no_such_bucket(seaweed: Seaweed) -> None:
    objects = url_path("s3://no-such-bucket", seaweed.storage_options).objects
    with pytest.raises(MissingError, match="s3://no-such-bucket/a"):
        objects.head("a")
    with pytest.raises(MissingError, match="NoSuchBucket"):
        objects.list("")


def test_signatures_in_urls_are_not_shown(double: Double) -> None:
    options = {"account_name": "data", "endpoint": double.endpoint, "sas_key": "sv=2020&sig=s-e-c-r-e-t"}
    objects = url_path("az://data", options).objects
    objects.policy = Policy(tries=1)
    for attempt in (lambda: objects.list("x"), lambda: objects.head("x")):
        with pytest.raises(Exception, match="az://data/x") as caught:
            attempt()
        assert "s-e-c-r-e-t" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


# One store per process


def test_requests_are_logged_when_that_is_switched_on() -> None:
    objects = url_path("memory://logged").objects
    objects.put("a", b"0123456789")
    objects.account.log = []
    objects.read(objects.head("a"), 2, 5)
    objects.list("")
    assert objects.account.log == [("HEAD", "a", None, None), ("GET", "a", 2, 5), ("LIST", "", None, None)]


def in_child(action: Callable[[], bool]) -> bool:
    """Whether an action is true in a forked child; it is killed after a minute."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            signal.alarm(300)
            good = action()
        finally:
            os._exit(0 if good else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_reads_and_writes(prefix: UrlPath) -> None:
    """obstore itself hangs there."""
    objects, key = prefix.objects, (prefix / "a").key
    data = os.urandom(1 << 20)
    objects.put(key, data)
    info = objects.head(key)
    assert objects.read(info, 0, info.size) == data

    def grandchild() -> bool:
        return objects.read(info, 5, 500_000) == data[5:500_000]

    def child() -> bool:
        objects.put((prefix / "b").key, data)
        good = objects.read(info, 0, info.size) == data and [i.key for i in objects.list(prefix.key)] == [key, (prefix / "b").key]
        again = pickle.loads(pickle.dumps(prefix))
        return good and again == prefix and grandchild() and in_child(grandchild)

    assert in_child(child)
    assert objects.read_all((prefix / "b").key, 1 << 20) == data


def test_a_forked_child_has_the_memory_stores_of_its_parent() -> None:
    objects = url_path("memory://forked").objects
    objects.put("a", b"parent")

    def child() -> bool:
        before = objects.read_all("a", 10)
        objects.put("a", b"child")
        return (before, objects.read_all("a", 10)) == (b"parent", b"child")

    assert in_child(child)
    assert objects.read_all("a", 10) == b"parent"


def test_o02_a_server_that_dies_and_comes_back(server: Seaweed, prefix: UrlPath) -> None:
    data, objects, key = os.urandom(3 << 20), prefix.objects, f"{prefix.key}/a"
    objects.policy = Policy()
    objects.put(key, data)
    info = objects.head(key)
    server.stop()
    objects.policy = Policy(tries=1)
    with pytest.raises(StoreUnavailableError, match="1 tries"):
        objects.read(info, 0, info.size)
    server.start()
    objects.policy = Policy()
    assert objects.read(info, 0, info.size) == data


def test_a_child_that_imports_penstock_only_after_the_fork_reads(double: Double) -> None:
    double.put("a", b"0123456789")
    program = f"""
import os, signal, obstore
from obstore.store import HTTPStore
client = HTTPStore.from_url({double.endpoint!r}, client_options={{"allow_http": True}})
obstore.head(client, "data/a")
child = os.fork()
if child == 0:
    signal.alarm(300)
    from penstock.remote.url import url_path
    objects = url_path({double.endpoint!r}).objects
    print(objects.read(objects.head("data/a"), 2, 5), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr, done.returncode) == ("b'234'\n", "", 0)


@pytest.mark.parametrize("key", ["d//x", "d/../x"])
def test_a_strange_name_in_a_listing_is_named(double: Double, objects: Objects, key: str) -> None:
    double.put(key, b"")
    with pytest.raises(ReadError, match=re.escape(key)):
        objects.list("d")
