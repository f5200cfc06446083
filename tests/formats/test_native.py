"""Formats whose bytes are plain are read by native threads, and give what the caller reads; others say that they cannot."""

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

import penstock as pen
from penstock.errors import BatchError, CorruptError, PenstockError
from penstock.loader.native_engine import native_groups
from penstock.records import Source
from penstock.source import write_tokens
from penstock.testing.source_suite import assert_batch, assert_typed, rows, run_in_fork

N = 1000
ROWS = np.random.default_rng(5).integers(0, 1 << 30, (N, 6)).astype(np.int32)


def tokens(directory: Path) -> Source:
    write_tokens([ROWS.reshape(-1)], directory / "a.rox", block_size=40, dtype=np.int32)
    return pen.open(directory / "a.rox")


def token_shards(directory: Path) -> Source:
    write_tokens([ROWS.reshape(-1)], directory / "b.rox", block_size=40, dtype=np.int32, max_shard_bytes="4KiB")
    source = pen.open(directory / "b")
    assert len(list(directory.glob("b_*.rox"))) > 2
    return source


def hdf5(directory: Path) -> Source:
    with h5py.File(directory / "a.h5", "w") as file:
        file["whole"] = ROWS
        chunked = file.create_dataset("chunked", (N, 6), np.int32, chunks=(64, 6))
        for low in (640, 0, 320, 960, 64):  # chunks are in the file in the order in which they were written
            chunked[low : low + 64] = ROWS[low : low + 64]
        chunked[:] = ROWS
    return pen.open(directory / "a.h5")


def hdf5_files(directory: Path) -> Source:
    for number in range(3):
        with h5py.File(directory / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=ROWS[number * 300 : number * 300 + 300], chunks=(70, 6))
    return pen.open([directory / f"{number}.h5" for number in range(3)])


def table() -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 6)
    return pa.table({"x": lists, "y": pa.array(ROWS[:, 0].astype(np.int16))})


def arrow(directory: Path) -> Source:
    for number in range(2):
        with pa.ipc.new_file(directory / f"{number}.arrow", table().schema) as writer:
            writer.write_table(table().slice(number * 500, 500), max_chunksize=130)
    return pen.open([directory / f"{number}.arrow" for number in range(2)])


def arrow_table(_: Path) -> Source:
    return pen.open(pa.concat_tables([table().slice(0, 333), table().slice(333)]))


def tensors(directory: Path) -> Source:
    for number in range(2):
        part = slice(number * 400, number * 400 + 400)
        save_file({"x": ROWS[part], "y": ROWS[part, 0].astype(np.uint8)}, directory / f"{number}.safetensors")
    return pen.open(directory / "*.safetensors")


PLAIN: list[Callable[[Path], Source]] = [tokens, token_shards, hdf5, hdf5_files, arrow, arrow_table, tensors]


@pytest.mark.parametrize("make", PLAIN)
def test_plain_bytes_are_read_natively_as_the_caller_reads_them(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    with make(tmp_path) as source:
        stream = source.shuffle(seed=3)
        assert native_groups(stream) is not None
        seen = 0
        with pen.Loader(stream, 64, tail="keep", threads=2, ids="id") as loader:
            for batch in loader:
                expected = source.read(batch["id"])
                assert all(np.array_equal(batch[name], expected[name]) for name in source.schema)
                seen += len(batch["id"])
        assert seen == len(source)


def test_what_is_not_in_the_file_as_it_is_read_is_not_read_natively(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["swapped"] = ROWS.astype(">i4")
        file.create_dataset("gzip", data=ROWS, chunks=(64, 6), compression="gzip")
    codes = pa.array([1, None, 3]).dictionary_encode()
    flags, lists = pa.array([True, False, True]), pa.array([[True], [], [False]])
    nulls = pa.ListArray.from_arrays([0, 1, 1, 1], pa.array([1, None]))  # a null that no list shows
    nested = pa.array([[["a"]], [], []])
    other = pa.table({"flags": flags, "lists": lists, "nulls": nulls, "code": codes, "nested": nested})
    with pen.open(tmp_path / "a.h5") as hdf5, pen.open(other) as arrow:
        assert [hdf5.native_reader(name) for name in hdf5.schema] == [None, None]
        assert [arrow.native_reader(name) for name in arrow.schema] == [None] * 5


def test_closed_sources_have_no_native_readers(tmp_path: Path) -> None:
    for make in PLAIN:
        source = make(tmp_path)
        source.close()
        assert [source.native_reader(name) for name in source.schema] == [None] * len(source.schema)


def texts_and_lists() -> pa.Table:
    """Some are missing, some of them by the structs above."""
    chance = np.random.default_rng(6)

    def texts() -> list[str | None]:
        return [None if chance.random() < 0.1 else "é😀x" * int(chance.integers(0, 9)) for _ in range(N)]

    def lists() -> list[list[int] | None]:
        return [None if chance.random() < 0.1 else list(range(int(chance.integers(0, 9)))) for _ in range(N)]

    inner = pa.StructArray.from_arrays([pa.array(texts())], ["text"], mask=pa.array(chance.random(N) < 0.2))
    outer = pa.StructArray.from_arrays([inner], ["in"], mask=pa.array(chance.random(N) < 0.2))
    columns: dict[str, pa.Array] = {
        "text": pa.array(texts()),
        "large_text": pa.array(texts(), pa.large_string()),
        "bytes": pa.array([None if one is None else one.encode() for one in texts()], pa.binary()),
        "large_bytes": pa.array([None if one is None else one.encode() for one in texts()], pa.large_binary()),
        "list": pa.array(lists(), pa.list_(pa.int16())),
        "large_list": pa.array(lists(), pa.large_list(pa.float64())),
        "full": pa.array([one or [] for one in lists()], pa.list_(pa.uint8())),
        "number": pa.array([None if one is None else len(one) for one in lists()], pa.int32()),
        "row": pa.FixedSizeListArray.from_arrays(pa.array(ROWS[:, :3].ravel()), 3, mask=pa.array(chance.random(N) < 0.2)),
        "out": outer,
    }
    return pa.table(columns)


def write_arrow(path: Path, data: pa.Table, *, stream: bool = False) -> Path:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=130)
    return path


def need_read_alike(source: Source, data: pa.Table) -> None:
    """Through the loader, in Python and by Arrow itself."""
    for stream in (source.shuffle(seed=3), source.shuffle(seed=3, block=70, window=2)):
        with pen.Loader(stream, 64, tail="keep", threads=2, ids="id") as loader:
            assert loader.engine == "native"
            for batch in loader:
                ids = batch.pop("id")
                assert_batch(batch, rows(source.read(ids)))
                assert_typed(batch, source)
                assert list(batch["out.in.text"]) == [
                    one and one["in"] and one["in"]["text"] for one in data["out"].take(ids).to_pylist()
                ]
                assert [None if one is None else one.tolist() for one in batch["list"]] == data["list"].take(ids).to_pylist()


@pytest.mark.parametrize("stream", [False, True])
def test_texts_and_lists_of_arrow_are_read_natively_with_those_that_are_missing(tmp_path: Path, stream: bool) -> None:
    data = texts_and_lists()
    paths = [write_arrow(tmp_path / f"{number}.arrow", data.slice(number * 400, 400), stream=stream) for number in range(3)]
    with pen.open(paths) as source:
        assert len(source) == N
        need_read_alike(source, data)
        assert run_in_fork(lambda: str(need_read_alike(source, data))) == "None"
        for name in ("text", "large_bytes", "list", "out.in.text"):
            ids = np.random.default_rng(1).permutation(N)[:500]
            assert np.array_equal(source.lengths(name, ids), source.read(ids, [name])[name].lengths)


def test_texts_and_lists_of_a_table_in_memory_are_read_natively() -> None:
    data = texts_and_lists()
    parts = pa.concat_tables([data.slice(3, 90), data.slice(93, 0), data.slice(93)])  # slices have offsets of their own
    with pen.open(parts) as source:
        need_read_alike(source, parts)


def test_the_extents_of_texts_and_lists_are_those_of_their_buffers(tmp_path: Path) -> None:
    data = texts_and_lists()
    path = write_arrow(tmp_path / "a.arrow", data)
    with pen.open(path) as source:
        assert list(source.paths) == [str(path)]
        whole, half = (np.zeros(path.stat().st_size, np.bool_) for _ in range(2))
        for marks, stop in ((whole, N), (half, 500)):
            numbers, low, high = source.extents(np.array([0]), np.array([stop]))
            assert not numbers.any()
            for start, end in zip(low.tolist(), high.tolist(), strict=True):
                marks[start:end] = True
        assert whole.mean() > 0.8
        assert 0.4 < half.sum() / whole.sum() < 0.6
        assert source.extents(np.array([7, 9]), np.array([7, 9]))[0].size == 0
    assert list(source.paths) == []


@pytest.mark.parametrize(
    ("data", "old", "new"),
    [
        (pa.array(["ab", "cdefg", "h"] * 9), "<4i", (0, 2, 700, 8)),
        (pa.array(["ab", "cdefg", "h"] * 9), "<4i", (0, 2, 1, 8)),
        (pa.array(["ab", "cdefg", "h"] * 9), "<4i", (0, -2, 7, 8)),
        (pa.array([b"ab", b"cdefg", b"h"] * 9, pa.large_binary()), "<4q", (0, 2, 2**62, 8)),
        (pa.array([[1, 2], [3, 4, 5, 6, 7], [8]] * 9), "<4i", (0, 2, 2**31 - 1, 8)),
    ],
)
def test_damaged_offsets_fail_in_the_loader_as_they_do_alone(
    tmp_path: Path, data: pa.Array, old: str, new: tuple[int, ...]
) -> None:
    path = write_arrow(tmp_path / "a.arrow", pa.table({"x": data}))
    before, after = (struct.pack(old, *numbers) for numbers in ((0, 2, 7, 8), new))
    assert path.read_bytes().count(before) == 1
    path.write_bytes(path.read_bytes().replace(before, after))
    need_equal_errors(path)


def test_damaged_texts_fail_in_the_loader_as_they_do_alone(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", pa.table({"x": ["plain", "mötley", "plain"] * 9}))
    path.write_bytes(path.read_bytes().replace("ö".encode(), b"\xff\xfe", 1))
    need_equal_errors(path)


def need_equal_errors(path: Path) -> None:
    with pen.open(path) as source, pen.Loader(source.in_order(), 3) as loader:
        assert loader.engine == "native"
        with pytest.raises(CorruptError) as alone:
            source.read(range(3))
        with pytest.raises(BatchError) as found:
            next(iter(loader))
        assert str(found.value.__cause__) == str(alone.value)


@pytest.mark.parametrize("make", [tokens, hdf5, arrow])
def test_a_file_that_was_replaced_after_it_was_opened_is_not_read(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    """Also if the native reader is asked for afterwards."""
    with make(tmp_path) as source:
        for path in list(tmp_path.iterdir()):
            new = tmp_path / "new"
            new.write_bytes(bytes(path.stat().st_size))
            new.rename(path)
        with pytest.raises(PenstockError), pen.Loader(source.shuffle(seed=3), 64, threads=2) as loader:
            list(loader)
