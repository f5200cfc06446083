"""The writer: transactions, chunk limits, threads, memory."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.records import FIELDS, assert_store, columns, files, make_records, without_fsync, write

import penstock as pen
from penstock import Field
from penstock.errors import (
    ConflictError,
    CorruptError,
    MissingError,
    NotPublishedError,
    PenstockError,
    ReadError,
    SnapshotExpiredError,
    StoreError,
)
from penstock.store.generation import load_manifest

ONE = {"x": Field("i4")}


def test_nothing_is_visible_before_the_commit_and_everything_after(tmp_path: Path) -> None:
    records = make_records(30)
    write(tmp_path / "a.pen", records[:10], chunk_records=4)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        assert out.extend(columns(records[10:])) == range(10, 30)
        assert len(out) == 30
        assert_store(pen.open(tmp_path / "a.pen"), records[:10])
        assert (out.generation, out.commit(), out.generation) == (1, 2, 2)
        assert_store(pen.open(tmp_path / "a.pen"), records)
    assert pen.open(tmp_path / "a.pen").generation == 2  # leaving the block had nothing left to commit


def test_commit_without_changes_makes_no_generation(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(3))
    there = files(tmp_path / "a.pen")
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        assert out.commit() == 1
        assert out.extend({"label": []}) == range(3, 3)
        assert out.delete([]) == {}
        out.update([], {"label": []})
        assert out.commit() == 1
    assert files(tmp_path / "a.pen") == there


def test_first_commit_of_a_new_store_publishes_it_even_if_empty(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        assert out.generation == 0
    store = pen.open(tmp_path / "a.pen")
    assert_store(store, [])
    assert store.generation == 1
    assert store[:]["caption"].to_list() == []
    assert store[[]]["image"].shape == (0, 2, 3)


def test_abort_forgets_the_transaction_and_its_files(tmp_path: Path) -> None:
    records = make_records(20)
    write(tmp_path / "a.pen", records, chunk_records=3)
    there = files(tmp_path / "a.pen")
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.extend(columns(make_records(10, seed=1)))
        out.update([0], {"label": [1]})
        out.delete([3])
        out.abort()
        assert len(out) == 20
        assert files(tmp_path / "a.pen") == there
        out.append({"label": 5})
    assert_store(pen.open(tmp_path / "a.pen"), [*records, {name: np.int32(5) if name == "label" else None for name in FIELDS}])


def test_close_without_commit_publishes_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(3))
    there = files(tmp_path / "a.pen")
    out = pen.open(tmp_path / "a.pen", mode="a")
    out.append({"label": 1})
    out.close()
    out.close()
    assert files(tmp_path / "a.pen") == there
    for call in (
        lambda: out.append({"label": 1}),
        lambda: out.update([0], {"label": [1]}),
        lambda: out.delete([0]),
        out.commit,
        out.abort,
    ):
        with pytest.raises(ValueError, match="the writer is closed"):
            call()


def test_interrupt_discards_the_transaction_at_every_step(tmp_path: Path) -> None:
    records = make_records(9)
    write(tmp_path / "a.pen", records[:2], chunk_records=2)

    def feed(stop: int) -> None:
        with pen.open(tmp_path / "a.pen", mode="a") as out:
            for place, record in enumerate(records[2:]):
                if place == stop:
                    raise KeyboardInterrupt
                out.append(record)

    there = files(tmp_path / "a.pen")
    for stop in range(7):
        with pytest.raises(KeyboardInterrupt):
            feed(stop)
        assert files(tmp_path / "a.pen") == there
        assert_store(pen.open(tmp_path / "a.pen"), records[:2])


def test_fields_left_out_are_missing(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        assert out.append({"label": 7}) == 0
        assert out.extend({"caption": ["a", "b"]}) == range(1, 3)
        assert out.append({"image": None, "tokens": [1, 2]}) == 3
    nothing: dict[str, Any] = dict.fromkeys(FIELDS)
    expected = [{"label": np.int32(7)}, {"caption": "a"}, {"caption": "b"}, {"tokens": np.array([1, 2], np.uint16)}]
    assert_store(pen.open(tmp_path / "a.pen"), [nothing | record for record in expected])


def test_last_of_several_values_for_one_id_wins(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": [0, 1, 2]})
        out.update([1, 1, -2], {"x": [10, 11, 12]})
        assert out.commit() == 1
        out.update([0], {"x": [5]})
        out.update([0], {"x": [6]})
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == [6, 12, 2]


def test_update_can_make_a_value_missing_and_present_again(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.append({"label": 1, "caption": "a"})
    for value in (None, "b"):
        with pen.open(tmp_path / "a.pen", mode="a") as out:
            out.update([0], {"caption": [value]})
        assert pen.open(tmp_path / "a.pen")[0]["caption"] == value
        assert pen.open(tmp_path / "a.pen")[0]["label"] == 1


BAD_CALLS: dict[str, tuple[Any, type[Exception]]] = {
    "no dict": (lambda w: w.extend([1]), TypeError),
    "no fields": (lambda w: w.extend({}), TypeError),
    "unknown field": (lambda w: w.extend({"y": [1]}), ValueError),
    "other lengths": (lambda w: w.extend({"x": [1, 2], "t": ["a"]}), ValueError),
    "another type": (lambda w: w.extend({"x": ["a"]}), TypeError),
    "too large": (lambda w: w.extend({"x": [2**40]}), ValueError),
    "second field bad": (lambda w: w.extend({"x": [1], "t": [5]}), TypeError),
    "no records to update": (lambda w: w.update([0], {"x": []}), ValueError),
    "more records than ids": (lambda w: w.update([0], {"x": [1, 2]}), ValueError),
    "id out of range": (lambda w: w.update([3], {"x": [1]}), IndexError),
    "unknown field to update": (lambda w: w.update([0], {"y": [1]}), ValueError),
    "delete out of range": (lambda w: w.delete([0, 3]), IndexError),
    "delete by a float": (lambda w: w.delete([0.5]), IndexError),
    "delete by a short mask": (lambda w: w.delete([True]), IndexError),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_refused_call_leaves_the_transaction_as_it_was(tmp_path: Path, name: str) -> None:
    call, error = BAD_CALLS[name]
    with pen.create(tmp_path / "a.pen", {"x": Field("i4"), "t": Field.text()}) as out:
        out.extend({"x": [1, 2, 3], "t": ["a", "b", None]})
        with pytest.raises(error):
            call(out)
        assert len(out) == 3
        out.append({"x": 4, "t": "d"})
    batch = pen.open(tmp_path / "a.pen")[:]
    assert batch["x"].tolist() == [1, 2, 3, 4]
    assert batch["t"].to_list() == ["a", "b", None, "d"]


def test_mask_slice_and_negative_ids_work_for_changes_too(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": np.arange(6)})
        out.update(slice(0, 2), {"x": [10, 11]})
        out.update(np.arange(6) == 3, {"x": [13]})
        assert out.delete([-1, -1]) == {}
        assert out.delete(np.array([True, False, False, False, False])) == {4: 0}
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == [4, 11, 2, 13]


def test_delete_of_the_last_and_of_all_records(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(10), chunk_records=3)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        assert out.delete([9]) == {}
        assert out.delete(range(9)) == {}
        assert len(out) == 0
    assert_store(pen.open(tmp_path / "a.pen"), [])
    assert load_manifest(tmp_path / "a.pen").chunks == ()
    records = make_records(4, seed=2)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        assert out.extend(columns(records)) == range(4)
    assert_store(pen.open(tmp_path / "a.pen"), records)


def test_delete_of_records_added_and_updated_in_the_same_transaction(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": np.arange(10)})
        out.update([9, 0], {"x": [90, 100]})
        assert out.delete([0, 8]) == {9: 0}
        out.extend({"x": [8, 9]})
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == [90, 1, 2, 3, 4, 5, 6, 7, 8, 9]


# Chunks


def test_chunks_have_at_most_chunk_records_rows(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", ONE, chunk_records=7) as out:
        out.extend({"x": np.arange(5)})
        out.extend({"x": np.arange(5, 30)})
    assert [chunk.rows for chunk in load_manifest(tmp_path / "a.pen").chunks] == [7, 7, 7, 7, 2]
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == list(range(30))


def test_chunks_have_at_most_chunk_bytes_of_records(tmp_path: Path) -> None:
    fields = {"x": Field("u1", (1000,)), "t": Field.text(codec=pen.Zstd())}
    with pen.create(tmp_path / "a.pen", fields, chunk_bytes="8KiB") as out:
        out.extend({"x": np.zeros((20, 1000), np.uint8), "t": ["a" * 1000] * 20})
    chunks = load_manifest(tmp_path / "a.pen").chunks
    assert [chunk.rows for chunk in chunks] == [4] * 5
    assert [chunk.decoded for chunk in chunks] == [8000] * 5


def test_record_larger_than_a_chunk_has_one_of_its_own(tmp_path: Path) -> None:
    sizes = [10, 5000, 10, 10, 4096, 4097, 0, 9000, 9000]
    blobs = [bytes([i]) * size for i, size in enumerate(sizes)]
    with pen.create(tmp_path / "a.pen", {"b": Field.bytes()}, chunk_bytes=4096) as out:
        out.extend({"b": blobs[:5]})
        for blob in blobs[5:]:
            out.append({"b": blob})
    assert pen.open(tmp_path / "a.pen")["b"][:].to_list() == blobs
    for chunk in load_manifest(tmp_path / "a.pen").chunks:
        assert chunk.decoded <= 4096 or chunk.rows == 1


def test_records_of_no_bytes_fill_chunks_by_count(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("f4", (0,)), "b": Field.bytes()}, chunk_records=4) as out:
        out.extend({"x": np.empty((10, 0)), "b": [b""] * 10})
    assert [chunk.rows for chunk in load_manifest(tmp_path / "a.pen").chunks] == [4, 4, 2]
    assert pen.open(tmp_path / "a.pen")[:]["x"].shape == (10, 0)


def layout(path: Path) -> Any:
    """All of a store but its random names."""
    manifest = load_manifest(path)
    body = [(path / "chunk" / f"{c.writer}-{c.serial:08x}.zr").read_bytes()[64:-64] for c in manifest.chunks]
    tables = [(path / "redirect" / f"{r.writer}-{r.serial:08x}.rd").read_bytes()[32:] for r in manifest.redirects]
    chunks = [(c.number, c.serial, c.size, c.rows, c.decoded) for c in manifest.chunks]
    return manifest.length, manifest.segments, manifest.next_chunk, chunks, body, tables


@pytest.mark.parametrize("threads", [2, 4])
def test_layout_is_the_same_for_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    records = make_records(200)
    for number in (1, threads):
        with pen.create(tmp_path / f"{number}.pen", FIELDS, chunk_bytes=4096, chunk_records=9, threads=number) as out:
            for low in range(0, 200, 23):
                out.extend(columns(records[low : low + 23]))
            out.update(range(0, 200, 7), {"label": range(29), "caption": [f"new {i}" * 9 for i in range(29)]})
            out.update([3], {"blob": [b"x"]})
            out.delete(range(50, 90, 3))
    assert layout(tmp_path / "1.pen") == layout(tmp_path / f"{threads}.pen")
    assert len(load_manifest(tmp_path / "1.pen").chunks) > 20


def test_progress_counts_every_record_and_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with pen.create(tmp_path / "a.pen", ONE, chunk_records=10, progress=lambda records, size: seen.append((records, size))) as out:
        out.extend({"x": np.arange(95)})
        assert sum(records for records, _ in seen) == 90
    assert sum(records for records, _ in seen) == 95
    assert sum(size for _, size in seen) == sum(
        size for name, size in files(tmp_path / "a.pen").items() if name.startswith("chunk")
    )


def test_exception_of_the_progress_callback_surfaces_and_publishes_nothing(tmp_path: Path) -> None:
    def stop(records: int, size: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"), pen.create(tmp_path / "a.pen", ONE, chunk_records=10, progress=stop) as out:
        out.extend({"x": np.arange(95)})
    assert files(tmp_path / "a.pen") == {}


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_may_be_overwritten_right_after_extend(tmp_path: Path, threads: int) -> None:
    array, texts = np.empty((50, 100), np.int64), [""] * 50
    with pen.create(tmp_path / "a.pen", {"x": Field("i8", (100,)), "t": Field.text()}, chunk_bytes=16_384, threads=threads) as out:
        for step in range(20):
            array[:] = step
            texts[:] = [f"step {step}"] * 50
            out.extend({"x": array, "t": texts})
            array[:] = -1
            texts[:] = ["wrong"] * 50
        array[:] = 777
        out.update(range(50), {"x": array})
        array[:] = -1
    expected = np.repeat(np.arange(20), 50)
    expected[:50] = 777
    store = pen.open(tmp_path / "a.pen")
    assert np.array_equal(store["x"][:], np.broadcast_to(expected[:, None], (1000, 100)))
    assert store["t"][:].to_list() == [f"step {i // 50}" for i in range(1000)]


@pytest.mark.parametrize("threads", [1, 4])
def test_memory_stays_bounded_while_writing_far_more(tmp_path: Path, threads: int) -> None:
    """16 MB through chunks of 256 KiB: what is held is a few chunks a thread, not what was written."""
    batch = {"x": np.random.default_rng(0).integers(0, 256, (64, 1024), dtype=np.uint8)}
    fields = {"x": Field("u1", (1024,), codec=pen.LZ4())}
    with without_fsync(), pen.create(tmp_path / "a.pen", fields, chunk_bytes="256KiB", threads=threads) as out:
        tracemalloc.start()
        try:
            for _ in range(250):
                out.extend(batch)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(pen.open(tmp_path / "a.pen")) == 16_000
    assert peak < (threads + 2) * 4 * 256 * 1024


def test_commit_of_somebody_else_is_a_conflict_and_loses_nothing(tmp_path: Path) -> None:
    """The lock only makes for a friendly message: with it gone, exactly one of two commits wins."""
    records = make_records(4)
    write(tmp_path / "a.pen", records)
    first = pen.open(tmp_path / "a.pen", mode="a")
    os.unlink(tmp_path / "a.pen" / "LOCK")
    second = pen.open(tmp_path / "a.pen", mode="a")
    first.append({"label": 1})
    second.append({"label": 2})
    assert second.commit() == 2
    with pytest.raises(ConflictError, match="generation 2"):
        first.commit()
    first.close()
    second.close()
    assert pen.open(tmp_path / "a.pen")["label"][-1] == 2
    assert len(pen.open(tmp_path / "a.pen")) == 5
    assert pen.verify(tmp_path / "a.pen") == []


def test_redirect_files_are_folded_before_there_are_many(tmp_path: Path) -> None:
    with without_fsync(), pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": np.zeros(50)})
        for step in range(50):
            out.update([step], {"x": [step]})
            out.commit()
            assert len(load_manifest(tmp_path / "a.pen").redirects) <= 9
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == list(range(50))


def test_file_in_the_way_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a.pen").write_text("mine")
    with pytest.raises(StoreError, match="found a file"):
        pen.create(tmp_path / "a.pen", ONE)
    assert (tmp_path / "a.pen").read_text() == "mine"


def test_foreign_directory_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        pen.create(tmp_path, ONE)
    assert [name.name for name in tmp_path.iterdir()] == ["photo.jpg"]


def test_existing_store_is_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(3))
    there = files(tmp_path / "a.pen")
    with pytest.raises(StoreError, match="a store exists already"):
        pen.create(tmp_path / "a.pen", ONE)
    assert files(tmp_path / "a.pen") == there
    assert len(pen.open(tmp_path / "a.pen")) == 3


def test_directory_without_a_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        pen.create(tmp_path / "no" / "a.pen", ONE)


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"chunk_bytes": 1}, ValueError),
    ({"chunk_bytes": "many"}, ValueError),
    ({"chunk_bytes": 1e9}, TypeError),
    ({"chunk_records": 0}, ValueError),
    ({"chunk_records": 2**32}, ValueError),
    ({"threads": 0}, ValueError),
    ({"threads": 1000}, ValueError),
    ({"threads": "2"}, TypeError),
]


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS, ids=str)
def test_bad_options_make_nothing(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        pen.create(tmp_path / "a.pen", ONE, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [{}, {"x": "i4"}, {"": Field("i4")}, {"x\n": Field("i4")}], ids=repr)
def test_bad_fields_make_nothing(tmp_path: Path, fields: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        pen.create(tmp_path / "a.pen", fields)
    assert list(tmp_path.iterdir()) == []


def test_empty_directory_and_one_without_a_commit_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.pen").mkdir()
    pen.create(str(tmp_path / "a.pen"), ONE).close()
    with pytest.raises(NotPublishedError, match="nothing was ever committed"):
        pen.open(tmp_path / "a.pen")
    with pytest.raises(NotPublishedError):
        pen.open(tmp_path / "a.pen", mode="a")
    with pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": [1]})
    assert len(pen.open(str(tmp_path / "a.pen"))) == 1


@pytest.mark.parametrize("mode", ["r", "a"])
def test_what_is_no_store_is_named(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    for name, error in {"nothing": MissingError, "directory": MissingError, "file": ReadError}.items():
        with pytest.raises(error, match=name):
            pen.open(tmp_path / name, mode=mode)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file"]


def test_missing_store_is_also_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pen.open(tmp_path / "nothing")
    assert issubclass(CorruptError, ValueError)
    assert issubclass(SnapshotExpiredError, PenstockError)


BAD_OPENINGS: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "a", "generation": 1}, {"io": "fast"}, {"threads": -1}]


@pytest.mark.parametrize("options", BAD_OPENINGS, ids=str)
def test_bad_options_of_open_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path / "a.pen", make_records(3))
    with pytest.raises((ValueError, TypeError)):
        pen.open(tmp_path / "a.pen", **options)


def test_store_of_one_record_of_every_kind_of_field(tmp_path: Path) -> None:
    fields = {f"f{i}": Field("u1", (i,)) for i in range(300)}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.append({name: np.full(field.shape, 3, np.uint8) for name, field in fields.items()})
    record = pen.open(tmp_path / "a.pen")[0]
    assert [value.tolist() for value in record.values()] == [[3] * i for i in range(300)]
