"""Readers: what a read returns, in which form, and for how long."""

import gc
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.records import FIELDS, assert_batch, assert_store, columns, digest, make_records, write

import penstock as pen
from penstock import Field, Ragged
from penstock.errors import BatchTooLargeError, MissingError, SnapshotExpiredError, SourceChangedError
from penstock.store import Store

N = 40
RECORDS = make_records(N, seed=3)
NULLABLE = {name: field.with_nullable(True) for name, field in FIELDS.items()}  # some records miss something, in every field
MODES = ["map", "pread", "direct"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three chunks of appended records and, behind redirects, updates and moves of deleted ones that give RECORDS."""
    where = tmp_path_factory.mktemp("snapshot") / "a.pen"
    other = make_records(N + 2, seed=4)
    with pen.create(where, FIELDS, chunk_records=15) as out:
        out.extend(columns([*other[:5], RECORDS[N - 1], *RECORDS[6 : N - 1], other[0], RECORDS[5]]))
    with pen.open(where, mode="a") as out:
        out.update(range(5), columns(RECORDS[:5]))
        assert out.delete([5, N - 1]) == {N: 5}
        out.append(RECORDS[N - 1])
    return where


@pytest.fixture(params=MODES)
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    with pen.open(path, io=request.param) as opened:
        yield opened


def test_reader_has_all_records(store: Store) -> None:
    assert_store(store, RECORDS)
    for place, record in enumerate(RECORDS):
        assert_batch({name: [value] for name, value in store[place].items()}, [record])


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(st.integers(-N, N - 1), max_size=60), st.sets(st.sampled_from(sorted(FIELDS))), st.sampled_from(MODES))
def test_batch_keeps_order_duplicates_and_fields(path: Path, ids: list[int], names: set[str], io: str) -> None:
    batch = pen.open(path, io=io).read(ids, fields=sorted(names))
    assert list(batch) == sorted(names)
    assert_batch(batch, [RECORDS[i] for i in ids])


def test_unverified_reads_give_the_same(path: Path) -> None:
    assert_store(pen.open(path, verify=False), RECORDS)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(tmp_path: Path, threads: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3000, 700), dtype=np.uint8)
    blobs = [bytes([i % 256]) * (i % 900) for i in range(3000)]
    with pen.create(
        tmp_path / "a.pen", {"x": Field("u1", (700,)), "b": Field.bytes(codec=pen.Zstd(1))}, chunk_bytes="300KB"
    ) as out:
        out.extend({"x": array, "b": blobs})
    ids = np.random.default_rng(1).integers(0, 3000, 4000)  # 2.8 MB: enough for several threads to share
    batch = pen.open(tmp_path / "a.pen", threads=threads)[ids]
    assert np.array_equal(batch["x"], array[ids])
    assert batch["b"].to_list() == [blobs[i] for i in ids]


def test_one_reader_serves_many_threads(path: Path) -> None:
    store, expected, found = pen.open(path), digest(pen.open(path)), []

    def look() -> None:
        found.extend(digest(store) for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 80


# The form of results


def test_batch_is_arrays_and_ragged(store: Store) -> None:
    batch = store[3:9]
    assert {name: type(column) for name, column in batch.items() if isinstance(column, Ragged)} == dict.fromkeys(
        ("boxes", "tokens", "blob", "caption"), Ragged
    )
    for name in ("label", "image", "score", "half"):
        assert isinstance(batch[name], np.ndarray)
        assert batch[name].shape == (6, *FIELDS[name].shape)
        assert batch[name].dtype == FIELDS[name].dtype


def test_missing_records_are_masked(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("i4")}) as out:
        out.extend({"x": [1, None, 3]})
    store = pen.open(tmp_path / "a.pen")
    masked = store["x"][:]
    assert isinstance(masked, np.ma.MaskedArray)
    assert (masked.mask.tolist(), masked.data.tolist()) == ([False, True, False], [1, 0, 3])
    assert masked.sum() == 4


def test_batch_belongs_to_its_reader_to_write(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("i4", (2,)), "r": Field.ragged("i4")}) as out:
        out.extend({"x": [None, [1, 2]], "r": [[1], [2]]})
    store = pen.open(tmp_path / "a.pen")
    batch = store[:]
    batch["x"][0] = 5
    batch["x"][1] = 6
    batch["r"].values[:] = 9
    assert batch["x"].tolist() == [[5, 5], [6, 6]]
    again = store[:]
    assert again["x"].tolist() == [[None, None], [1, 2]]
    assert again["r"].values.tolist() == [1, 2]


def test_scalars_come_as_numpy_scalars_and_records_as_dicts(store: Store) -> None:
    record = store[next(i for i in range(N) if RECORDS[i]["label"] is not None and RECORDS[i]["image"] is not None)]
    assert isinstance(record["label"], np.int32)
    assert isinstance(record["image"], np.ndarray)
    assert list(record) == list(FIELDS)


KINDS: list[tuple[Field, Any, Any]] = [
    (Field("i4"), 0, 1),
    (Field("i4", codec=pen.Zstd()), 0, 1),
    (Field("f8", (3,)), [0, 0, 0], [1, 2, 3]),
    (Field("f8", (3,), codec=pen.LZ4()), [0, 0, 0], [1, 2, 3]),
    (Field("bool"), False, True),
    (Field("bf16"), 0, 1),
    (Field("f8e4m3fn", (2,), codec=pen.Deflate()), [0, 0], [1, 2]),
    (Field("i4", (0,)), [], []),
    (Field("i4", (2, 0), codec=pen.Zstd()), [[], []], [[], []]),
    (Field.text(), "", "a"),
    (Field.text(codec=pen.Zstd()), "", "a" * 100),
    (Field.bytes(), b"", b"\0"),
    (Field.bytes(codec=pen.Deflate()), b"", b"\0" * 100),
    (Field.ragged("u2"), [], [0]),
    (Field.ragged("f4", codec=pen.LZ4()), [], [0.0]),
    (Field.ragged("f4", 2), np.empty((0, 3)), [[0.0]]),
    (Field.ragged("f4", 3, codec=pen.Zstd()), np.empty((2, 0, 3)), [[[0.0]]]),
]


@pytest.mark.parametrize("io", MODES)
@pytest.mark.parametrize(("field", "empty", "full"), KINDS, ids=repr)
@pytest.mark.sampled(3)
def test_missing_empty_and_full_stay_apart_through_rebalance_and_convert(
    tmp_path: Path, field: Field, empty: Any, full: Any, io: str
) -> None:
    values = [empty, None, full, None, None, empty, full]
    with pen.create(tmp_path / "a.pen", {"x": field, "id": Field("i4")}, chunk_records=3) as out:
        out.extend({"x": values[:5], "id": range(5)})
        out.append({"id": 5})
        out.append({"x": full, "id": 6})
        out.update([5], {"x": [empty]})

    def check(path: Path) -> None:
        store = pen.open(path, io=io)
        for place, value in enumerate(values):
            found = store[place]["x"]
            assert (found is None) == (value is None)
            if isinstance(value, str | bytes):
                assert found == value
            elif value is not None:
                assert np.asarray(found).tolist() == np.asarray(value, field.dtype).tolist()
                assert np.shape(found) == np.shape(value)

    check(tmp_path / "a.pen")
    pen.rebalance(tmp_path / "a.pen")
    check(tmp_path / "a.pen")
    pen.convert(pen.open(tmp_path / "a.pen"), tmp_path / "b.pen")
    check(tmp_path / "b.pen")


# out=


@pytest.mark.parametrize("io", MODES)
def test_out_is_filled_and_returned(path: Path, io: str) -> None:
    store = pen.open(path, io=io)
    out = {"label": np.full(4, 77, np.int32), "image": np.full((4, 2, 3), 77, np.uint8), "score": np.full((4, 2), 77.0)}
    batch = store.read([5, 0, 5, -1], out=out)
    assert_batch(batch, [RECORDS[i] for i in (5, 0, 5, -1)])
    for name, array in out.items():
        assert (
            np.ma.getdata(batch[name]) is array or batch[name].base is array or np.shares_memory(np.ma.getdata(batch[name]), array)
        )
        plain = store.read([5, 0, 5, -1], fields=[name])[name]
        assert np.array_equal(array, np.ma.getdata(plain))


BAD_OUT: dict[str, Any] = {
    "short": np.empty(3, np.int32),
    "long": np.empty(5, np.int32),
    "shaped": np.empty((4, 1), np.int32),
    "another type": np.empty(4, np.int64),
    "another order": np.empty(4, ">i4"),
    "strided": np.empty(8, np.int32)[::2],
    "read-only": np.broadcast_to(np.int32(0), 4).copy(),
}
BAD_OUT["read-only"].flags.writeable = False


@pytest.mark.parametrize("name", BAD_OUT)
def test_out_that_cannot_be_filled_is_refused(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"out\['label'\] must be"):
        pen.open(path).read([0, 1, 2, 3], out={"label": BAD_OUT[name]})


def test_out_for_other_fields_is_refused(path: Path) -> None:
    with pytest.raises(KeyError, match="unknown fields"):
        pen.open(path).read([0], out={"nothing": np.empty(1)})
    with pytest.raises(ValueError, match="fixed fields only"):
        pen.open(path).read([0], out={"caption": np.empty(1, np.uint8)})
    with pytest.raises(ValueError, match="label"):
        pen.open(path).read([0], fields=["image"], out={"label": np.empty(1, np.int32)})


def test_unknown_fields_are_refused(store: Store) -> None:
    with pytest.raises(KeyError, match="unknown field"):
        store.read([0], fields=["nothing"])
    with pytest.raises(KeyError, match="unknown field"):
        store["nothing"]
    with pytest.raises(KeyError):
        store.view("nothing")


# Views without a copy


def test_view_is_a_read_only_array_on_the_file(path: Path) -> None:
    store = pen.open(path)
    view = store.view("image")
    assert len(view) == N
    for place, record in enumerate(RECORDS):
        if record["image"] is None:
            with pytest.raises(ValueError, match="misses"):
                view[place]
        else:
            assert np.array_equal(view[place - N], record["image"])
            assert not view[place].flags.writeable
            assert not view[place].flags.owndata
    with pytest.raises(IndexError):
        view[N]
    with pytest.raises(IndexError):
        view[-N - 1]


def test_view_outlives_the_reader_and_the_files(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((100, 50))
    with pen.create(tmp_path / "a.pen", {"x": Field("f8", (50,))}, chunk_records=7) as out:
        out.extend({"x": array})
    store = pen.open(tmp_path / "a.pen")
    views = [store.view("x")[i] for i in range(100)]
    store.close()
    del store
    gc.collect()
    shutil.rmtree(tmp_path / "a.pen")
    assert np.array_equal(np.array(views), array)
    views = views[:1]
    gc.collect()
    assert np.array_equal(views[0], array[0])


def test_view_of_scalars_and_of_records_without_elements(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("i4"), "e": Field("f4", (0, 2))}) as out:
        out.extend({"x": [4, 5], "e": np.empty((2, 0, 2))})
    store = pen.open(tmp_path / "a.pen")
    assert int(store.view("x")[1]) == 5
    assert store.view("e")[1].shape == (0, 2)


@pytest.mark.parametrize("name", ["score", "caption", "boxes", "blob"])
def test_other_fields_cannot_be_viewed(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be viewed"):
        pen.open(path).view(name)
    with pytest.raises(ValueError, match="cannot be viewed"):
        pen.open(path, io="pread").view("image")


# Life


def test_repr_says_where_and_what(path: Path) -> None:
    store = pen.open(path)
    assert repr(store) == f"<penstock store {str(path)!r}: {N} records, generation 2, fields {NULLABLE}>"
    assert repr(store["label"]) == f"<field 'label' of {store!r}>"
    assert len(store["label"]) == N
    assert store.path == path
    assert store.schema == NULLABLE


def test_schema_given_out_is_a_copy(path: Path) -> None:
    store = pen.open(path)
    store.schema["label"] = Field("f8")  # type: ignore[index]
    assert store.schema["label"] == NULLABLE["label"]


def test_generations_can_be_listed_opened_and_refreshed(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS[:5])
    first = pen.open(tmp_path / "a.pen")
    for count in (6, 7):
        with pen.open(tmp_path / "a.pen", mode="a") as out:
            out.append(RECORDS[count - 1])
    assert first.generations() == [1, 2, 3]
    assert [len(pen.open(tmp_path / "a.pen", generation=g)) for g in (1, 2, 3)] == [5, 6, 7]
    assert (len(first), first.generation) == (5, 1)
    newest = first.refresh()
    assert (len(newest), newest.generation) == (7, 3)
    assert_store(first, RECORDS[:5])
    for missing in (0, 4, 10**9):
        with pytest.raises(SnapshotExpiredError, match=f"generation {missing} does not exist"):
            pen.open(tmp_path / "a.pen", generation=missing)


def test_refresh_keeps_how_the_store_was_opened(path: Path) -> None:
    newer = pen.open(path, io="pread", threads=3, verify=False).refresh()
    assert (newer.chunks.how.io, newer.chunks.how.threads, newer.chunks.how.verify) == ("pread", 3, False)


def test_fingerprint_names_the_generation(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS[:5])
    first = pen.open(tmp_path / "a.pen").fingerprint
    assert first == pen.open(tmp_path / "a.pen").fingerprint
    assert len(first) == 64
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.append(RECORDS[5])
    assert pen.open(tmp_path / "a.pen").fingerprint != first
    assert pen.open(tmp_path / "a.pen", generation=1).fingerprint == first
    shutil.copytree(tmp_path / "a.pen", tmp_path / "copy.pen")
    assert pen.open(tmp_path / "copy.pen", generation=1).fingerprint == first


def test_copied_and_moved_stores_read_the_same(tmp_path: Path, path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy.pen")
    assert_store(pen.open(tmp_path / "copy.pen"), RECORDS)
    (tmp_path / "copy.pen").rename(tmp_path / "moved.pen")
    assert_store(pen.open(tmp_path / "moved.pen"), RECORDS)


def test_read_only_directory_can_be_read_without_a_lock_file(tmp_path: Path, path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy.pen")
    (tmp_path / "copy.pen" / "LOCK").unlink()
    before = sorted(p.name for p in (tmp_path / "copy.pen").rglob("*"))
    assert_store(pen.open(tmp_path / "copy.pen"), RECORDS)
    assert pen.verify(tmp_path / "copy.pen") == []
    assert sorted(p.name for p in (tmp_path / "copy.pen").rglob("*")) == before


@pytest.mark.parametrize("io", MODES)
def test_close_lets_go_of_the_files_and_arrays_stay(path: Path, io: str) -> None:
    descriptors = os.listdir("/proc/self/fd")
    with pen.open(path, io=io) as store:
        batch, field = store[:], store["label"]
        view = store.view("image") if io == "map" else None
    assert os.listdir("/proc/self/fd") == descriptors
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert_batch(batch, RECORDS)
    store.close()
    for call in (lambda: store[0], lambda: field[0], lambda: store.read([0])):
        with pytest.raises(ValueError, match="the store is closed"):
            call()
    if view is not None:
        with pytest.raises(ValueError, match="the store is closed"):
            view[0]


def test_dropped_reader_lets_go_of_the_files(path: Path) -> None:
    pen.open(path)[:]
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_pickle_opens_the_same_generation_again(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS[:5])
    store = pen.open(tmp_path / "a.pen", io="pread", threads=3)
    data = pickle.dumps(store)
    assert len(data) < 2000
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.append(RECORDS[5])
    again = pickle.loads(data)
    assert_store(again, RECORDS[:5])
    assert (again.generation, again.fingerprint, again.chunks.how.io, again.chunks.how.threads) == (
        1,
        store.fingerprint,
        "pread",
        3,
    )
    pen.gc(tmp_path / "a.pen", keep=1, keep_hours=0)
    with pytest.raises(SnapshotExpiredError):
        pickle.loads(data)


def test_pickle_of_another_store_at_the_same_path_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", RECORDS[:5])
    data = pickle.dumps(pen.open(tmp_path / "a.pen"))
    shutil.rmtree(tmp_path / "a.pen")
    with pytest.raises(MissingError):
        pickle.loads(data)
    write(tmp_path / "a.pen", RECORDS[:5])
    with pytest.raises(SourceChangedError, match="not what it was when the source was pickled"):
        pickle.loads(data)


def test_pickle_works_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.pen", RECORDS[:5])
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(pen.open("a.pen"))
    monkeypatch.chdir("/")
    assert_store(pickle.loads(data), RECORDS[:5])


def test_a_batch_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("u1", (1000,)), "t": pen.Field.text(codec=pen.Zstd())}) as out:
        out.extend({"x": np.zeros((2, 1000), np.uint8), "t": ["a" * 1000, "b" * 50_000_000]})
    store = pen.open(tmp_path / "a.pen", max_batch_bytes="100MB")
    assert len(store["t"][[1]][0]) == 50_000_000
    for ids, field in (([1] * 3, "t"), ([0, *[1] * 1_000_000], "t"), (np.zeros(100_001, np.int64), "x")):
        with pytest.raises(BatchTooLargeError, match=r"a\.pen.* the limit for a batch"):
            store.read(ids, [field])
    assert store.read(np.zeros(100_000, np.int64), ["x"])["x"].nbytes == 100_000_000
    assert pickle.loads(pickle.dumps(store)).chunks.how == store.chunks.how == store.refresh().chunks.how
