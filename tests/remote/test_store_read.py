"""Stores at URLs are read as those in directories are: the same bytes, few requests, little memory."""

import pickle
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import every
from tests.remote.double import Fault
from tests.remote.store_kit import doubled, download, keys, log, memory_url, upload
from tests.store.records import FIELDS, assert_batch, assert_store, columns, delete, digest, make_records

import penstock as pen
from penstock import Field
from penstock.errors import CorruptError, MissingError, NotPublishedError, SnapshotExpiredError, WindowTooSmallError
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.store import Store, open_store, stats


@pytest.fixture
def url() -> UrlPath:
    return memory_url()


def fill(path: UrlPath | Path) -> list[dict[str, Any]]:
    """Several generations with every kind of change; returns the records of the newest."""
    records = make_records(60)
    with pen.create(path, FIELDS, chunk_records=16) as out:
        out.extend(columns(records))
    with pen.open(path, mode="a") as out:
        changed = make_records(3, seed=1)
        out.update([5, 17, 40], columns(changed, ["caption", "image"]))
        for place, record in zip((5, 17, 40), changed, strict=True):
            records[place] = records[place] | {name: record[name] for name in ("caption", "image")}
    with pen.open(path, mode="a") as out:
        out.delete([0, 30])
        delete(records, [0, 30])
    return records


def test_a_store_at_a_url_reads_as_it_was_written(url: UrlPath) -> None:
    records = fill(url)
    with open_store(url) as store:
        assert_store(store, records)
        assert store.generations() == [1, 2, 3]
        assert_batch(store.read([7, 7, -1], ["caption", "label"]), [records[7], records[7], records[-1]])
        assert store.lengths("tokens", [1, 2]).tolist() == [
            len(r["tokens"]) if r["tokens"] is not None else 0 for r in records[1:3]
        ]
        with pytest.raises(ValueError, match="cannot be viewed"):
            store.view("image")


@pytest.mark.parametrize("window", ["2GiB", "1MiB", "64KiB"])
def test_check_17_copies_are_interchangeable_and_batches_identical(tmp_path: Path, url: UrlPath, window: str) -> None:
    records = fill(tmp_path / "a.pen")
    upload(tmp_path / "a.pen", url)
    local = open_store(tmp_path / "a.pen")
    with open_store(url, remote=RemoteOptions(window_bytes=window)) as store:
        assert (store.fingerprint, store.generation, store.blocks.length) == (local.fingerprint, 3, len(records))
        assert digest(store) == digest(local)
        rng = np.random.default_rng(0)
        for _ in range(20):
            ids = rng.integers(0, len(store), 9)
            here, there = local.read(ids), store.read(ids)
            assert_batch(there, [records[i] for i in ids])
            assert pickle.dumps(here) == pickle.dumps(there)
    with pen.open(url, mode="a") as out:
        out.append({"label": 7})
    download(url, tmp_path / "b.pen")
    assert pen.verify(tmp_path / "b.pen") == []
    assert open_store(tmp_path / "b.pen")[-1]["label"] == 7


def test_opening_is_one_listing_and_one_manifest_and_no_chunk(url: UrlPath) -> None:
    with pen.create(url, FIELDS, chunk_records=16) as out:
        out.extend(columns(make_records(100)))
    asked = log(url)
    with open_store(url) as store:
        assert [(method, key.rpartition("/")[2]) for method, key, *_ in asked] == [("LIST", "manifest"), ("GET", f"{1:020}.json")]
        with open_store(url, generation=1):
            assert len(asked) == 3
        store[3]
        assert len(asked) == 4  # a small chunk comes whole
        store[0:16]
        assert len(asked) == 4  # and stays


def test_of_a_large_chunk_the_index_and_one_page_are_fetched(url: UrlPath) -> None:
    data = np.arange(4 << 20, dtype=np.uint8).reshape(-1, 64)
    with pen.create(url, {"x": Field("u1", (64,)), "t": Field.text()}) as out:
        out.extend({"x": data, "t": [str(i) for i in range(len(data))]})
    size = url.objects.list(url.key + "/chunk")[0].size
    with open_store(url) as store:
        before = url.objects.account.snapshot()
        assert store[12345]["t"] == "12345"
        spent = url.objects.account.snapshot() - before
        assert spent.requests <= 4
        assert spent.bytes < size // 2
        np.testing.assert_array_equal(store[54321]["x"], data[54321])
        assert store.lengths("t", [9, 10, 99999 % len(data)]).tolist() == [1, 2, 5]


def test_an_index_that_begins_earlier_than_thought_is_fetched_whole(url: UrlPath) -> None:
    """Records are far smaller than their index if most of them are missing or empty."""
    rows = 100_000
    fields = {"t": Field.text(codec=pen.LZ4())}
    with pen.create(url, fields) as out:
        out.extend({"t": ["" if i % 2 else "x" for i in range(rows)]})
    with open_store(url) as store:
        store.chunks.remote._starts[:] = store.chunks.remote._sizes - 100  # type: ignore[union-attr]
        assert store[[0, 1, rows - 1]]["t"].to_list() == ["x", "", ""]


def test_redirect_objects_are_fetched_when_the_store_is_opened(url: UrlPath) -> None:
    with pen.create(url, {"x": Field("i4")}) as out:
        out.extend({"x": range(10)})
        for i in range(5):
            out.commit()
            out.update([i], {"x": [100 + i]})
    asked = log(url)
    with open_store(url) as store:
        assert sum("redirect/" in key for _, key, *_ in asked) == 5
        assert store[:]["x"].tolist() == [100, 101, 102, 103, 104, 5, 6, 7, 8, 9]


def test_refresh_and_older_generations(url: UrlPath) -> None:
    records = make_records(9)
    with pen.create(url, FIELDS) as out:
        out.extend(columns(records[:4]))
        out.commit()
        old = open_store(url)
        out.extend(columns(records[4:]))
    with old, old.refresh() as new, open_store(url, generation=1) as first:
        assert (old.generation, new.generation, first.generation) == (1, 2, 1)
        assert_store(old, records[:4])
        assert_store(new, records)
        assert_store(first, records[:4])
    with pytest.raises(SnapshotExpiredError, match="generation 7"):
        open_store(url, generation=7)


def test_what_is_not_there_is_named(url: UrlPath) -> None:
    with pytest.raises(NotPublishedError, match=r"memory://.*a\.pen"):
        open_store(url)
    with pytest.raises(NotPublishedError):
        open_store(url, generation=1)
    with pytest.raises(NotPublishedError):
        pen.open(url, mode="a")
    with pytest.raises(MissingError):
        pen.gc(url)
    fill(url)
    with open_store(url) as store:
        for info in url.objects.list(url.key + "/chunk"):
            url.objects.delete(info.key)
        with pytest.raises(MissingError, match="chunk/"):
            store[0]


def test_a_generation_that_was_collected_meanwhile_is_named(url: UrlPath) -> None:
    fill(url)
    with open_store(url, generation=1) as store:
        pen.rebalance(url)
        pen.gc(url, keep=1, keep_hours=0)
        with pytest.raises(SnapshotExpiredError, match="generation 1"):
            store[0]


def test_reads_that_do_not_fit_the_window_are_cut_and_one_record_too_many_is_refused(url: UrlPath) -> None:
    data = np.random.default_rng(0).integers(0, 256, (600, 1000), np.uint8)
    with pen.create(url, {"x": Field("u1", (1000,)), "b": Field.bytes()}, chunk_bytes="64KiB") as out:
        out.extend(
            {"x": np.ma.MaskedArray(data, mask=np.repeat((np.arange(600) % 7 == 0)[:, None], 1000, 1)), "b": list(map(bytes, data))}
        )
    with open_store(url, remote=RemoteOptions(window_bytes="200KiB")) as store:
        batch = store[::-1]
        np.testing.assert_array_equal(np.ma.getmaskarray(batch["x"])[:, 0], np.arange(600)[::-1] % 7 == 0)
        np.testing.assert_array_equal(batch["x"].data[np.arange(600)[::-1] % 7 != 0], data[::-1][np.arange(600)[::-1] % 7 != 0])
        assert batch["b"].to_list() == list(map(bytes, data[::-1]))
        assert store.remote is not None
        assert store.remote.most_bytes <= 200 << 10
    with open_store(url, remote=RemoteOptions(window_bytes="8KiB")) as store, pytest.raises(WindowTooSmallError):
        store[0]


def test_a_store_can_be_pickled_and_closed(url: UrlPath) -> None:
    records = fill(url)
    with open_store(url) as store:
        with pickle.loads(pickle.dumps(store)) as other:
            assert_store(other, records)
        assert repr(str(url)) in repr(store)
        assert store.path == url
    with pytest.raises(ValueError, match="closed"):
        store[0]
    store.close()


def test_extents_are_whole_chunks_or_nothing_and_ask_nobody(url: UrlPath) -> None:
    with pen.create(url, FIELDS, chunk_records=10) as out:
        out.extend(columns(make_records(35)))
    asked = log(url)
    with open_store(url) as store:
        del asked[:]
        sizes = [chunk.size for chunk in store.manifest.chunks]
        for ids, expected in (
            (range(10, 20), [1]),
            (range(5, 21), [1]),
            (range(4, 21), [0, 1]),
            (range(3), []),
            (range(35), [0, 1, 2, 3]),
        ):
            runs = np.array(ids, np.int64)[::-1]
            numbers, starts, stops = store.extents(runs, runs + 1)
            assert (numbers.tolist(), starts.tolist()) == (expected, [0] * len(expected))
            assert stops.tolist() == [sizes[i] for i in expected]
        assert asked == []
        with store.hold(np.array([3]), np.array([25])):
            before = len(asked)
            store.native_reader("label")
            assert_batch(store.read(np.arange(3, 25)), make_records(35)[3:25])
            assert len(asked) == before


def test_loader_gives_the_same_batches_as_from_disk(tmp_path: Path, url: UrlPath) -> None:
    fill(tmp_path / "a.pen")
    upload(tmp_path / "a.pen", url)

    def batches(store: Store) -> Iterator[bytes]:
        for stream in (store.shuffle(seed=1, block=16, window=2), store.in_order(), store.sample(seed=1), store.slide(5, 3)):
            with closing(pen.Loader(stream, batch_size=8).forever()) as loader:
                yield from map(pickle.dumps, islice(loader, 20))

    with open_store(url, remote=RemoteOptions(window_bytes="1MiB")) as store:
        assert list(batches(store)) == list(batches(open_store(tmp_path / "a.pen")))


def test_stats_and_verify_are_those_of_the_same_store_on_disk(tmp_path: Path, url: UrlPath) -> None:
    fill(tmp_path / "a.pen")
    upload(tmp_path / "a.pen", url)
    with open_store(url) as store:
        assert stats(store) == stats(open_store(tmp_path / "a.pen"))
    assert pen.verify(url) == []
    chunk = url.objects.list(url.key + "/chunk")[1]
    data = bytearray(url.objects.read_all(chunk.key, 1 << 20))
    data[70] ^= 1
    url.objects.put(chunk.key, bytes(data))
    problems = pen.verify(url)
    assert problems
    assert {problem.file for problem in problems} == {f"{url.objects.url}/{chunk.key}"}


# Faults


@pytest.mark.parametrize("times", [1, 2, 3])
def test_o04_bytes_that_fail_their_checksum_are_fetched_twice_more(times: int) -> None:
    records = make_records(20)
    with doubled() as (double, url):
        with pen.create(url, FIELDS) as out:
            out.extend(columns(records))
        (chunk,) = keys(double, "/chunk/")
        for offset in (70, len(double.get(chunk) or b"") - 20):  # a page, the tail
            double.clear()
            double.plan("GET", chunk, Fault(flip=offset), times=times)
            with open_store(url) as store:
                if times < 3:
                    assert_store(store, records)
                else:
                    with pytest.raises(CorruptError, match=r"chunk/"):
                        store[:]
                assert len(double.requests("GET", chunk)) == min(times + 1, 3)


@pytest.mark.parametrize("kind", ["manifest", "redirect"])
@pytest.mark.parametrize("times", [2, 3])
def test_o04_manifests_and_redirects_too(kind: str, times: int) -> None:
    with doubled() as (double, url):
        with pen.create(url, {"x": Field("i4")}) as out:
            out.extend({"x": range(5)})
            out.commit()
            out.update([2], {"x": [9]})
        key = keys(double, f"/{kind}/")[-1]
        double.plan("GET", key, Fault(flip=40), times=times)
        if times == 3:
            with pytest.raises(CorruptError, match=kind):
                open_store(url)
        else:
            with open_store(url) as store:
                assert store[:]["x"].tolist() == [0, 1, 9, 3, 4]


def test_o08_a_listing_that_lacks_keys_or_has_them_twice_gives_a_committed_generation() -> None:
    with doubled() as (double, url):
        with pen.create(url, {"x": Field("i4")}) as out:
            for i in range(3):
                out.append({"x": i})
                out.commit()
        manifests = keys(double, "/manifest/")
        for hidden, expected in (({manifests[2]}, 2), ({manifests[0]}, 3), (set(manifests[1:]), 1)):
            double.plan("LIST", "a.pen/manifest", Fault(hide=frozenset(hidden)))
            with open_store(url) as store:
                assert (store.generation, store[:]["x"].tolist()) == (expected, list(range(expected)))
        double.plan("LIST", "a.pen/manifest", Fault(twice=frozenset(manifests)))
        with open_store(url) as store:
            assert store.generation == 3
        double.plan("LIST", "a.pen/manifest", Fault(twice=frozenset(manifests)))
        assert store.generations() == [1, 2, 3]


def test_chunks_that_are_not_those_of_the_manifest_are_refused_by_name(url: UrlPath) -> None:
    records = make_records(60)
    with pen.create(url, FIELDS, chunk_records=30) as out:
        out.extend(columns(records))
    key, other = (info.key for info in url.objects.list(url.key + "/chunk"))
    data = url.objects.read_all(key, 1 << 20)
    for wrong in (data[:-8], data[:100], b"", data + bytes(8), bytes(len(data)), url.objects.read_all(other, 1 << 20)):
        url.objects.put(key, wrong)
        with open_store(url) as store, pytest.raises(CorruptError, match=key):
            store[:]
        assert any(key in problem.file for problem in pen.verify(url))
    url.objects.put(key, data)
    assert pen.verify(url) == []


def test_no_changed_byte_of_a_chunk_is_ever_read_as_data(url: UrlPath) -> None:
    records = make_records(12)
    with pen.create(url, FIELDS) as out:
        out.extend(columns(records))
    (info,) = url.objects.list(url.key + "/chunk")
    data = url.objects.read_all(info.key, 1 << 20)
    with open_store(url) as store:
        right = digest(store)
    refused = 0
    for offset in every(3, range(0, len(data), 13)):
        url.objects.put(info.key, data[:offset] + bytes([data[offset] ^ 0x5A]) + data[offset + 1 :])
        with open_store(url) as store:
            try:
                assert digest(store) == right  # padding
            except CorruptError:
                refused += 1
    assert refused > len(every(3, range(0, len(data), 13))) * 0.8


def test_what_was_fetched_is_in_the_cache_for_the_next(url: UrlPath, tmp_path: Path) -> None:
    records = fill(url)
    options = RemoteOptions(cache=tmp_path / "cache", cache_bytes="100MB")
    with open_store(url, remote=options) as store:
        assert_store(store, records)
    asked = log(url)
    with open_store(url, remote=options) as store:
        assert_store(store, records)
    assert not any("/chunk/" in key for _, key, *_ in asked)


@pytest.mark.parametrize("times", [1, 2])
def test_o04_a_loader_heals_damaged_pages_too(times: int) -> None:
    data = np.repeat(np.arange(3000, dtype=np.int32)[:, None], 16, axis=1)
    with doubled() as (double, url):
        with pen.create(url, {"x": Field("i4", (16,))}, chunk_records=1000) as out:
            out.extend({"x": data})
        for chunk in keys(double, "/chunk/"):
            double.plan("GET", chunk, Fault(flip=5000), times=times)
        with open_store(url) as store, closing(iter(pen.Loader(store.in_order(), batch_size=50))) as loader:
            np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in loader]), data)
