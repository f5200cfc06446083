"""Writing stores at URLs: several writers, lost answers, servers that do not keep their promises, leftovers."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.remote.double import ANY, Double, Fault
from tests.remote.store_kit import contents, doubled, keys, log, memory_url
from tests.store.records import FIELDS, assert_store, columns, make_records

import penstock as pen
from penstock import Field
from penstock.errors import (
    ConflictError,
    CorruptError,
    DurabilityError,
    ForkedWriterError,
    NoMatchError,
    PenstockError,
    StoreError,
    StoreUnavailableError,
)
from penstock.remote.url import UrlPath
from penstock.store import open_store, stats

ONE = {"x": Field("i4")}


@pytest.fixture
def url() -> UrlPath:
    return memory_url()


def values(url: UrlPath, generation: int | None = None) -> list[int]:
    with open_store(url, generation=generation) as store:
        found: list[int] = store[:]["x"].tolist()
        return found


def begin(url: UrlPath, *numbers: int) -> None:
    with pen.create(url, ONE) as out:
        out.extend({"x": numbers})


# One writer


def test_objects_are_those_of_the_format_and_nothing_else(url: UrlPath) -> None:
    begin(url, 1, 2)
    with pen.open(url, mode="a") as out:
        out.update([0], {"x": [5]})
    names = list(contents(url))
    assert [name.partition("/")[0] for name in names] == ["chunk", "chunk", "manifest", "manifest", "redirect"]
    assert names[2:4] == [f"manifest/{generation:020}.json" for generation in (1, 2)]


def test_nothing_is_visible_before_the_commit_and_abort_leaves_nothing(url: UrlPath) -> None:
    begin(url, 1)
    there = contents(url)
    with pen.open(url, mode="a") as out:
        assert out.extend({"x": [2, 3]}) == range(1, 3)
        assert values(url) == [1]
        out.abort()
        assert contents(url) == there
        out.extend({"x": [4]})
        out.close()
    assert contents(url) == there


def test_last_range_is_what_the_commit_gave(url: UrlPath, tmp_path: Path) -> None:
    for place in (url, tmp_path / "a.pen"):
        with pen.create(place, ONE) as out:
            assert out.last_range is None
            out.extend({"x": [1, 2]})
            assert out.last_range is None
            out.commit()
            assert out.last_range == range(2)
            out.append({"x": 3})
            out.commit()
            out.commit()
            assert out.last_range == range(2, 3)
            out.append({"x": 4})
            out.delete([0])
            out.commit()
            assert out.last_range is None


def test_a_store_is_not_made_twice(url: UrlPath) -> None:
    first, second = pen.create(url, ONE), pen.create(url, ONE)
    first.append({"x": 1})
    second.append({"x": 2})
    assert first.commit() == 1
    with pytest.raises(ConflictError, match="generation 1"):
        second.commit()
    first.close()
    second.close()
    assert values(url) == [1]
    with pytest.raises(StoreError, match="a store exists already"):
        pen.create(url, ONE)


def test_a_writer_belongs_to_its_process(url: UrlPath) -> None:
    begin(url, 1)
    with pen.open(url, mode="a") as out:
        child = os.fork()
        if child == 0:
            try:
                out.append({"x": 2})
            except ForkedWriterError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_storage_options_go_with_urls_only(tmp_path: Path) -> None:
    for call in (
        lambda: pen.create(tmp_path / "a.pen", ONE, storage_options={}),
        lambda: pen.open(tmp_path / "a.pen", mode="a", storage_options={}),
        lambda: pen.gc(tmp_path / "a.pen", storage_options={}),
    ):
        with pytest.raises(ValueError, match="storage_options need the URL"):
            call()


def test_a_web_server_takes_no_store() -> None:
    with Double() as double, pytest.raises((StoreError, NoMatchError)):
        pen.create(f"{double.http_base}/a.pen", ONE, storage_options={"allow_http": True})


# Two writers; a transaction that only appends goes behind what came first


def test_appends_of_two_writers_go_one_behind_the_other(url: UrlPath) -> None:
    begin(url, 0)
    with pen.open(url, mode="a") as one, pen.open(url, mode="a") as two:
        assert one.extend({"x": [1, 2]}) == range(1, 3)
        assert two.extend({"x": [3]}) == range(1, 2)
        assert (one.commit(), two.commit()) == (2, 3)
        assert (one.last_range, two.last_range) == (range(1, 3), range(3, 4))
        assert one.extend({"x": [4, 5]}) == range(3, 5)  # not knowing of the other one
        two.append({"x": 6})
        assert (two.commit(), one.commit()) == (4, 5)
        assert (two.last_range, one.last_range) == (range(4, 5), range(5, 7))
        assert len(one) == 7
    assert values(url) == [0, 1, 2, 3, 6, 4, 5]
    assert [values(url, g) for g in (1, 2, 3)] == [[0], [0, 1, 2], [0, 1, 2, 3]]
    assert pen.verify(url) == []


def test_an_append_is_put_behind_any_change_of_another(url: UrlPath) -> None:
    records = make_records(12)
    with pen.create(url, FIELDS, chunk_records=4) as out:
        out.extend(columns(records))
    mine = make_records(6, seed=1)
    for change in (
        lambda other: other.update([3], {"label": [7]}),
        lambda other: other.delete([1, 11]),
        lambda other: other.delete(range(5)),
        lambda other: other.start_over(),
    ):
        with pen.open(url, mode="a") as out:
            out.extend(columns(mine))
            with pen.open(url, mode="a") as other:
                change(other)
            with open_store(url) as store:
                before = [store[i] for i in range(len(store))]
            out.commit()
            assert out.last_range == range(len(before), len(before) + 6)
        with open_store(url) as store:
            assert_store(store, [*before, *mine])
    assert pen.verify(url) == []


def test_what_is_more_than_an_append_is_a_conflict_and_loses_nothing(url: UrlPath) -> None:
    begin(url, 0, 1, 2)
    for number, change in enumerate(
        (
            lambda out: out.update([0], {"x": [9]}),
            lambda out: out.delete([0]),
            lambda out: out.start_over(),
            lambda out: (out.append({"x": 5}), out.update([3], {"x": [9]})),
        )
    ):
        expected = values(url)
        out = pen.open(url, mode="a")
        change(out)
        with pen.open(url, mode="a") as other:
            other.append({"x": 10 + number})
        there = contents(url)
        with pytest.raises(ConflictError, match="generation"):
            out.commit()
        out.close()
        assert values(url) == [*expected, 10 + number]
        assert {name: there[name] for name in there if name in contents(url)} == contents(url)


def test_a_rebase_reuses_the_chunks_that_are_written(url: UrlPath) -> None:
    begin(url, 0)
    asked = log(url)
    with pen.open(url, mode="a") as out:
        out.extend({"x": range(1000)})
        for i in range(5):
            with pen.open(url, mode="a") as other:
                other.append({"x": i})
        out.commit()
        assert out.last_range == range(6, 1006)
    assert sum(method == "PUT" and "/chunk/" in key for method, key, *_ in asked) == 6
    assert len(contents(url)) == 7 + 7


def test_a_writer_whose_generation_was_collected_goes_on(url: UrlPath) -> None:
    begin(url, 0)
    late, other_late = pen.open(url, mode="a"), pen.open(url, mode="a")
    for i in range(1, 6):
        with pen.open(url, mode="a") as out:
            out.append({"x": i})
    assert pen.gc(url, keep=2, keep_hours=0).kept_generations == (5, 6)
    late.append({"x": 6})
    assert late.commit() == 7
    late.close()
    other_late.delete([0])
    with pytest.raises(ConflictError):
        other_late.commit()
    other_late.close()
    assert values(url) == list(range(7))


def test_a_store_that_was_removed_or_replaced_is_a_conflict(url: UrlPath) -> None:
    begin(url, 0)
    for renew in (False, True):
        with pen.open(url, mode="a") as out:
            out.append({"x": 1})
            for name in contents(url):
                if not name.startswith("chunk/"):
                    url.objects.delete((url / name).key)
            if renew:
                begin(url, 8, 9)
            with pytest.raises(ConflictError, match="reopen"):
                out.commit()
        if not renew:
            begin(url, 0)
    assert values(url) == [8, 9]


# Answers that are lost: O9

MANIFEST = f"a.pen/manifest/{2:020}.json"


def other_writer(double: Double, url: UrlPath) -> None:
    """Let somebody else commit generation 2, unseen by the plans of the test."""
    with double.lock:
        plans, double.state.plans = double.state.plans, []
    with pen.open(url, mode="a") as other:
        other.append({"x": 7})
    with double.lock:
        double.state.plans = plans


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault(drop=True), 1),  # it landed
        (Fault(status=412), 1),  # it did not, whatever the answer says
        (Fault(status=409), 2),
        (Fault(status=500), 2),
        (Fault(status=503), 4),
    ],
)
def test_o09_a_lost_answer_to_the_commit_is_found_out(fault: Fault, times: int) -> None:
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out:
            out.append({"x": 1})
            double.plan("PUT", MANIFEST, fault, times=times)
            assert out.commit() == 2
            out.append({"x": 2})
        assert values(url) == [0, 1, 2]
        assert len(keys(double, "/chunk/")) == 3


def test_o09_a_landed_manifest_that_the_server_denies_is_mine() -> None:
    """Somebody on the way sent the request twice: the second answer says that the object exists."""
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out:
            out.append({"x": 1})
            double.plan("PUT", MANIFEST, Fault(drop=True))
            double.plan("GET", MANIFEST, Fault(status=404))
            assert out.commit() == 2
        assert values(url) == [0, 1]


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(status=503), Fault()])
def test_o09_somebody_elses_manifest_is_a_conflict_or_a_rebase(fault: Fault) -> None:
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out, pen.open(url, mode="a") as changes:
            out.append({"x": 1})
            changes.delete([0])
            other_writer(double, url)
            double.plan("PUT", MANIFEST, fault)
            assert out.commit() == 3
            double.plan("PUT", MANIFEST, fault)
            with pytest.raises(ConflictError):
                changes.commit()
        assert values(url) == [0, 7, 1]


@pytest.mark.parametrize("landed", [False, True])
def test_o09_when_nothing_can_be_learnt_the_writer_gives_up_and_removes_nothing(landed: bool) -> None:
    with doubled() as (double, url):
        begin(url, 0)
        out = pen.open(url, mode="a")
        out.append({"x": 1})
        double.plan("PUT", MANIFEST, Fault(drop=True) if landed else Fault(status=503), times=1000)
        double.plan("GET", MANIFEST, Fault(status=503), times=1000)
        with pytest.raises(DurabilityError, match="reopen the store"):
            out.commit()
        with pytest.raises(DurabilityError, match="cannot be trusted"):
            out.append({"x": 2})
        out.close()
        double.clear()
        assert values(url) == ([0, 1] if landed else [0])
        assert len(keys(double, "/chunk/")) == 2


def test_o09_when_all_tries_are_cut_the_outcome_is_called_unknown() -> None:
    """The manifest was absent at every look, but a request may still be on its way."""
    with doubled() as (double, url):
        begin(url, 0)
        out = pen.open(url, mode="a")
        out.append({"x": 1})
        double.plan("PUT", MANIFEST, Fault(status=503), times=1000)
        with pytest.raises(DurabilityError):
            out.commit()
        out.close()
        assert len(keys(double, "/chunk/")) == 2


def test_o09_a_manifest_read_back_wrong_is_read_again() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out:
            out.append({"x": 1})
            double.plan("PUT", MANIFEST, Fault(drop=True))
            double.plan("GET", MANIFEST, Fault(flip=30), times=2)
            assert out.commit() == 2


def test_a_commit_that_is_refused_leaves_the_store_and_the_writer_as_they_were() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out:
            out.append({"x": 1})
            double.plan("PUT", MANIFEST, Fault(status=403))
            with pytest.raises(PermissionError):
                out.commit()
            out.append({"x": 2})
            assert out.commit() == 2
        assert values(url) == [0, 2]


def test_a_chunk_that_cannot_be_put_ends_the_transaction() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        with pen.open(url, mode="a") as out:
            double.plan("PUT", ANY, Fault(status=503), times=3)
            out.append({"x": 1})
            with pytest.raises(StoreError, match="chunk/"):
                out.commit()
            double.clear()
            out.append({"x": 2})
        assert values(url) == [0, 2]
        assert len(keys(double, "/chunk/")) == 2


# Listings: O8


def test_o08_writers_find_the_newest_generation_although_the_listing_lacks_it() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        out, behind = pen.open(url, mode="a"), pen.open(url, mode="a")
        for i in range(1, 4):
            with pen.open(url, mode="a") as other:
                other.append({"x": i})
        manifests = keys(double, "/manifest/")
        for writer, hidden in ((out, manifests[2:]), (behind, manifests)):
            double.plan("LIST", "a.pen/manifest", Fault(hide=frozenset(hidden)), times=2)
            writer.append({"x": 4})
            writer.commit()
            writer.close()
        assert values(url) == [0, 1, 2, 3, 4, 4]


def test_o08_gc_keeps_what_an_unlisted_manifest_names() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        for i in range(1, 6):
            with pen.open(url, mode="a") as out:
                out.append({"x": i})
        manifests = keys(double, "/manifest/")
        for hidden in (manifests[5:], manifests[4:], manifests[2:4], manifests[:2]):
            double.clear()
            double.plan("LIST", "a.pen/manifest", Fault(hide=frozenset(hidden)), times=2)
            kept = pen.gc(url, keep=1, keep_hours=0, dry_run=True)
            double.clear()
            assert not any("/chunk/" in file for file in kept.files)
            assert {*hidden, manifests[-1]}.isdisjoint(key.removeprefix("s3://data/") for key in kept.files)


# A server that ignores the condition: O12


def test_o12_a_server_that_ignores_the_condition_is_refused_unless_there_is_one_writer() -> None:
    with doubled() as (double, url):
        double.plan("PUT", ANY, Fault(ignore_condition=True), times=1000)
        with pytest.raises(StoreError, match="single_writer=True"):
            pen.create(url, ONE)
        assert list(double.keys()) == []
        with pen.create(url, ONE, single_writer=True) as out:
            out.append({"x": 1})
        with pytest.raises(StoreError, match="single_writer=True"):
            pen.open(url, mode="a")
        with pytest.raises(StoreError, match="single_writer=True"):
            pen.rebalance(url)
        with pen.open(url, mode="a", single_writer=True) as out:
            out.append({"x": 2})
        assert values(url) == [1, 2]
        assert not keys(double, "probe")


def test_o12_a_server_that_refuses_the_condition_can_have_one_writer() -> None:
    with doubled() as (double, url):
        double.plan("PUT", ANY, Fault(status=501))
        with pytest.raises(StoreError, match="single_writer=True"):
            pen.create(url, ONE)
        with pen.create(url, ONE, single_writer=True) as out:
            out.append({"x": 1})
        assert values(url) == [1]
        assert all("If-None-Match" not in request.headers for request in double.requests("PUT", f"a.pen/manifest/{1:020}.json"))


def test_o12_a_broken_promise_is_noticed_where_it_can_be() -> None:
    with doubled() as (double, url):
        double.plan("PUT", ANY, Fault(ignore_condition=True), times=1000)
        with pen.create(url, ONE, single_writer=True) as out:
            out.append({"x": 1})
        with pen.open(url, mode="a", single_writer=True) as out, pen.open(url, mode="a", single_writer=True) as other:
            out.append({"x": 2})
            other.delete([0])
            out.commit()
            with pytest.raises(ConflictError):
                other.commit()
        assert values(url) == [1, 2]


# Leftovers and maintenance


def test_rebalance_and_stats(url: UrlPath) -> None:
    records = make_records(40)
    with pen.create(url, FIELDS, chunk_records=4) as out:
        out.extend(columns(records))
        out.commit()
        out.update(range(0, 40, 3), {"label": np.arange(14, dtype=np.int32)})
    for place, i in enumerate(range(0, 40, 3)):
        records[i] = records[i] | {"label": np.int32(place)}
    done = pen.rebalance(url)
    assert (done.before.redirects, done.after.redirects, done.after.records) == (14, 0, 40)
    with open_store(url) as store:
        assert_store(store, records)
        assert stats(store) == done.after


def test_gc_removes_what_no_generation_names_once_it_is_old(url: UrlPath) -> None:
    begin(url, 0, 1, 2)
    for i in range(3):
        with pen.open(url, mode="a") as out:
            out.update([i], {"x": [10 + i]})
    pen.rebalance(url)
    lost = f"chunk/{'a' * 32}-00000000.zr"
    others = ("notes.txt", "chunk/mine.txt", "manifest/notes.json", f"deep/{lost}")
    for name in (lost, "manifest/.tmp-" + "b" * 32, *others):
        url.objects.put((url / name).key, b"x")
    there = contents(url)
    assert pen.gc(url, keep=1).files == ()  # a week has not passed
    assert contents(url) == there
    planned = pen.gc(url, keep=1, keep_hours=0, dry_run=True)
    assert contents(url) == there
    done = pen.gc(url, keep=1, keep_hours=0)
    assert done == planned
    assert done.kept_generations == (5,)
    left = contents(url)
    assert done.freed_bytes == sum(len(there[name]) for name in there if name not in left)
    assert {f"{url}/{name}" for name in there if name not in left} == set(done.files)
    assert sorted(left) == sorted(
        [*others, *(name for name in left if name.startswith("chunk/") and "mine" not in name), f"manifest/{5:020}.json"]
    )
    assert values(url) == [10, 11, 12]


def test_gc_leaves_the_chunks_of_a_transaction_alone(url: UrlPath) -> None:
    begin(url, 0)
    with pen.open(url, mode="a") as out:
        out.extend({"x": range(100)})
        out._chunks.seal_all()
        with pen.open(url, mode="a") as other:
            other.append({"x": 1})
        assert pen.gc(url, keep=1, keep_hours=1).files == ()
    assert values(url) == [0, 1, *range(100)]


def test_gc_keeps_generations_without_a_gap(url: UrlPath) -> None:
    begin(url, 0)
    for i in range(1, 6):
        with pen.open(url, mode="a") as out:
            out.append({"x": i})
    assert pen.gc(url, keep=3, keep_hours=0).kept_generations == (4, 5, 6)
    assert [values(url, g) for g in (4, 5, 6)] == [list(range(g)) for g in (4, 5, 6)]


def test_gc_refuses_a_store_with_absurd_gaps(url: UrlPath) -> None:
    begin(url, 0)
    url.objects.put((url / f"manifest/{10**19}.json").key, b"x")
    with pytest.raises(CorruptError, match="gaps"):
        pen.gc(url)


def test_a_server_that_is_gone_is_said_so() -> None:
    with doubled() as (double, url):
        begin(url, 0)
        out = pen.open(url, mode="a")
        out.append({"x": 1})
        for method in ("GET", "HEAD", "LIST", "PUT", "DELETE"):
            double.plan(method, ANY, Fault(status=503), times=1000)
        with pytest.raises(PenstockError):
            out.commit()
        out.close()
        with pytest.raises(StoreUnavailableError):
            open_store(url)
