"""Sources on a store that fails, lies or changes its mind: the same records as ever, or an error that says what happened."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.remote.conftest import VirtualClock
from tests.remote.double import ANY, Double, Fault

import penstock as pen
from penstock.errors import AccessDeniedError, BatchError, MissingError, ObjectChangedError, StoreUnavailableError
from penstock.process import AT_ONCE
from penstock.remote.fetch import Policy
from penstock.remote.url import url_path
from penstock.source import encode_rows

ROWS = np.random.default_rng(0).standard_normal((600, 64)).astype(np.float32)
DEADLINE_S = 300


@pytest.fixture(autouse=True)
def shards(double: Double, clock: VirtualClock) -> None:
    """Six shards of 100 rows, asked for five times at most, without waiting in between."""
    for number, part in enumerate(np.split(ROWS, 6)):
        double.put(f"rows/s{number}.shard", encode_rows(part))
    objects = url_path(double.base, double.storage_options).objects
    objects.clock, objects.policy = clock, Policy(tries=5, read_s=5.0, hedge_s=60.0)


def sequence(double: Double, **options: int) -> list[tuple[list[int], bytes]]:
    """All batches of the shards."""
    with pen.open(f"{double.base}/rows", storage_options=double.storage_options, **options) as source:
        return [(ids.tolist(), rows.tobytes()) for rows, ids in source.batches(70)]


def test_check_24_a_store_that_fails_twice_gives_the_same_sequence(double: Double) -> None:
    plain = sequence(double)
    for method, key in (("LIST", "rows"), ("GET", "rows/s0.shard"), ("GET", "rows/s3.shard"), ("GET", "rows/s5.shard")):
        for fault in (Fault(status=503), Fault(reset_at=10), Fault(short_at=5), Fault(status=500)):
            double.clear()
            double.plan(method, key, fault, times=2)
            assert sequence(double) == plain
            if method == "GET":
                double.clear()
                double.plan(method, key, fault, after=1, times=2)  # the first request is for the header
                assert sequence(double) == plain


def test_check_24_a_store_that_always_fails_gives_its_error_with_the_key(double: Double) -> None:
    for after in (0, 1):
        double.clear()
        double.plan("GET", "rows/s3.shard", Fault(status=503), after=after, times=1000)
        with pytest.raises(StoreUnavailableError, match=r"rows/s3\.shard.*5 tries"):
            sequence(double)
        assert len(double.requests("GET", "rows/s3.shard")) == 5 + after
    double.clear()
    double.plan("GET", "rows/s3.shard", Fault(status=403), times=1000)
    with pytest.raises(AccessDeniedError, match=r"rows/s3\.shard"):
        sequence(double)
    double.clear()
    with pen.open(f"{double.base}/rows", storage_options=double.storage_options) as source:
        double.delete("rows/s3.shard")
        with pytest.raises(MissingError, match=r"rows/s3\.shard"):
            source[:]
        assert source[0]["row"].tobytes() == ROWS[0].tobytes()


@pytest.mark.parametrize(
    "other", [ROWS[300:400] + 1, ROWS[300:350], np.concatenate([ROWS[300:400]] * 2)], ids=["same", "less", "more"]
)
def test_check_25_an_object_that_is_replaced_during_a_pass_is_an_error_and_never_mixed(double: Double, other: np.ndarray) -> None:
    with pen.open(f"{double.base}/rows", storage_options=double.storage_options) as source:
        batches = source.batches(150)
        for low in (0, 150):
            assert next(batches)[0].tobytes() == ROWS[low : low + 150].tobytes()
        double.put("rows/s3.shard", encode_rows(other))
        with pytest.raises(ObjectChangedError, match=r"rows/s3\.shard.*replaced"):
            next(batches)
        with pytest.raises(ObjectChangedError, match=r"rows/s3\.shard"):
            source[399]
        assert source[400:]["row"].tobytes() == ROWS[400:].tobytes()
        with pytest.raises(ObjectChangedError, match=r"rows/s3\.shard"):
            pickle.dumps(source)  # needs the fingerprint


def test_check_25_a_loader_says_so_too(double: Double) -> None:
    with pen.open(f"{double.base}/rows", storage_options=double.storage_options, window_bytes=60_000) as source:
        batches = iter(pen.Loader(source.in_order(), batch_size=50))
        assert next(batches)["row"].tobytes() == ROWS[:50].tobytes()
        double.put("rows/s5.shard", encode_rows(ROWS[:100]))
        for low in range(50, 500, 50):
            assert next(batches)["row"].tobytes() == ROWS[low : low + 50].tobytes()
        with pytest.raises(BatchError, match=r"step 10.*ObjectChangedError.*rows/s5\.shard"):
            next(batches)


def test_a_shard_that_is_replaced_between_listing_and_look_is_an_error(double: Double) -> None:
    double.plan("GET", "rows/s2.shard", Fault(etag='"another"'))
    with pytest.raises(ObjectChangedError, match=r"rows/s2\.shard"):
        sequence(double)


def test_pickles_stay_the_versions_that_they_are(double: Double) -> None:
    with pen.open(f"{double.base}/rows", storage_options=double.storage_options) as source:
        recipe = pickle.dumps(source)
    double.clear()
    with pickle.loads(recipe) as twin:
        assert twin[599]["row"].tobytes() == ROWS[599].tobytes()
    assert [request for request in double.requests() if "if-match" not in {name.lower() for name in request.headers}] == []
    double.put("rows/s2.shard", encode_rows(ROWS[:100]))
    with pickle.loads(recipe) as twin, pytest.raises(ObjectChangedError, match=r"rows/s2\.shard"):
        twin[200]


def test_check_21_shards_are_looked_at_side_by_side(double: Double) -> None:
    for number in range(100):
        double.put(f"many/{number:03d}.shard", encode_rows(ROWS[number : number + 1]))
    gate = threading.Event()
    double.plan("GET", ANY, Fault(gate=gate), times=1000)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(pen.open, f"{double.base}/many/*.shard", storage_options=double.storage_options)
        deadline = time.monotonic() + DEADLINE_S
        while len(double.requests("GET")) < AT_ONCE and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert len(double.requests("GET")) == AT_ONCE
        gate.set()
        with opening.result(DEADLINE_S) as source:
            assert source["row"][:].tobytes() == ROWS[:100].tobytes()
    ranges = [request.range for request in double.requests("GET")]
    assert ranges[:100] == [(0, 32)] * 100


def test_plain_web_servers_serve_what_is_named(double: Double) -> None:
    urls = [f"{double.http_base}/rows/s{number}.shard" for number in range(6)]
    with pen.open(urls) as source:
        assert source["row"][:].tobytes() == ROWS.tobytes()
    with pen.open(urls[2]) as source:
        assert source["row"][:].tobytes() == ROWS[200:300].tobytes()
    for missing in (f"{double.http_base}/rows/none.shard", f"{double.http_base}/rows"):
        with pytest.raises(MissingError):
            pen.open(missing)
