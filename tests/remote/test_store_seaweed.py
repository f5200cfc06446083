"""Stores on a real S3 server."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.remote.seaweed import Seaweed
from tests.remote.store_kit import contents, download, upload
from tests.store.records import FIELDS, assert_store, columns, digest, make_records, write

import penstock as pen
from penstock import Field
from penstock.errors import ConflictError
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.store import open_store, stats


def test_the_life_of_a_store(prefix: UrlPath, seaweed: Seaweed) -> None:
    url, options = f"{prefix}/train.pen", seaweed.storage_options
    records = make_records(50)
    with pen.create(url, FIELDS, chunk_records=8, storage_options=options) as out:
        out.extend(columns(records[:40]))
    with pen.open(url, mode="a", storage_options=options) as out, pen.open(url, mode="a", storage_options=options) as other:
        out.extend(columns(records[45:]))
        other.extend(columns(records[40:45]))
        other.commit()
        out.commit()
        assert out.last_range == range(45, 50)
        other.delete([1])
        with pytest.raises(ConflictError):
            other.commit()
    with pen.open(url, storage_options=options) as store:
        assert_store(store, records)
        assert store.generations() == [1, 2, 3]
        before = stats(store)
    assert pen.verify(url, storage_options=options) == []
    assert pen.rebalance(url, storage_options=options).before == before
    assert pen.gc(url, storage_options=options).files == ()
    done = pen.gc(url, keep=1, keep_hours=0, storage_options=options)
    assert done.kept_generations == (4,)
    with pen.open(url, storage_options=options, window_bytes="1MiB") as store:
        assert_store(store, records)
        assert len(contents(prefix / "train.pen")) == 1 + len(store.manifest.chunks)


def test_a_large_chunk_goes_up_in_parts_and_comes_down_in_ranges(prefix: UrlPath) -> None:
    data = np.random.default_rng(0).integers(0, 256, (70_000, 1000), np.uint8)
    with pen.create(prefix, {"x": Field("u1", (1000,))}, chunk_bytes="80MB") as out:
        out.extend({"x": data})
    (chunk,) = prefix.objects.list(f"{prefix.key}/chunk")
    assert chunk.size > 64_000_000
    with open_store(prefix, remote=RemoteOptions(window_bytes="16MiB")) as store:
        ids = np.random.default_rng(1).integers(0, len(data), 50)
        np.testing.assert_array_equal(store[ids]["x"], data[ids])
        np.testing.assert_array_equal(store[30_000:65_000]["x"], data[30_000:65_000])


def test_copies_of_a_store_are_the_same_store(tmp_path: Path, prefix: UrlPath) -> None:
    write(tmp_path / "a.pen", make_records(30), chunk_records=7)
    upload(tmp_path / "a.pen", prefix)
    with open_store(prefix) as store:
        assert digest(store) == digest(open_store(tmp_path / "a.pen"))
        assert store.fingerprint == open_store(tmp_path / "a.pen").fingerprint
    with pen.open(prefix, mode="a") as out:
        out.append({"label": 5})
    download(prefix, tmp_path / "b.pen")
    with pen.open(tmp_path / "b.pen", mode="a") as out:
        assert (len(out), out.generation) == (31, 2)


def test_a_forked_child_reads_what_its_parent_opened(prefix: UrlPath) -> None:
    records = make_records(30)
    with pen.create(prefix, FIELDS, chunk_records=7) as out:
        out.extend(columns(records))
    with open_store(prefix) as store:
        store[:10]
        child = os.fork()
        if child == 0:
            try:
                assert_store(store, records)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_store(store, records)


def test_threads_read_through_a_small_window(prefix: UrlPath) -> None:
    data = np.random.default_rng(0).integers(0, 256, (4000, 300), np.uint8)
    texts = [f"{i} " * (i % 90) for i in range(4000)]
    with pen.create(prefix, {"x": Field("u1", (300,)), "t": Field.text(codec=pen.Zstd())}, chunk_bytes="128KiB") as out:
        out.extend({"x": data, "t": texts})
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(5):
                ids = rng.integers(0, 4000, 40)
                batch = store[ids]
                np.testing.assert_array_equal(batch["x"], data[ids])
                assert batch["t"].to_list() == [texts[i] for i in ids]
        except BaseException as error:
            failures.append(error)

    with open_store(prefix, remote=RemoteOptions(window_bytes="1MiB")) as store:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
        assert failures == []
        assert store.remote is not None
        assert store.remote.most_bytes <= 1 << 20
