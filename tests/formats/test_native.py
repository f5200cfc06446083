"""Formats whose bytes are plain are read by native threads, and give what the caller reads; others say that they cannot."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

import penstock as pen
from penstock.errors import PenstockError
from penstock.loader.native_engine import native_groups
from penstock.records import Source
from penstock.source import write_tokens

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
    holes = pa.array([1, None, 3])
    other = pa.table(
        {"bits": pa.array([True, False, True]), "holes": holes, "words": ["a", "b", "c"], "code": holes.dictionary_encode()}
    )
    with pen.open(tmp_path / "a.h5") as hdf5, pen.open(other) as arrow:
        assert [hdf5.native_reader(name) for name in hdf5.schema] == [None, None]
        assert [arrow.native_reader(name) for name in arrow.schema] == [None] * 4


def test_closed_sources_have_no_native_readers(tmp_path: Path) -> None:
    for make in PLAIN:
        source = make(tmp_path)
        source.close()
        assert [source.native_reader(name) for name in source.schema] == [None] * len(source.schema)


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
