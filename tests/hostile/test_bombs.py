"""Files of a few kilobytes that claim to be gigabytes are refused before they take memory, and the limit can be raised."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.array_record import write_array_record
from tests.effort import every, is_campaign
from tests.formats.arrow_table import write
from tests.hostile.bombs import BOMBS

import penstock as pen
from penstock.errors import BatchTooLargeError, ReadError

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600
LARGEST_MB = 300
SLOW = {"arrow_file", "arrow_lz4", "arrow_columns", "arrow_stream", "arrow_dictionary", "csv_zstd"}
"""Gigabytes are compressed to make them, as for other files of Arrow, or decoded as for JSON lines; they are read in a campaign."""
TAKEN = every(3, [name for name in BOMBS if is_campaign() or name not in SLOW])


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What reading every bomb leads to, in processes of their own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.hostile.bombs", *TAKEN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=True)
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", TAKEN)
def test_a_bomb_is_a_typed_error_that_names_the_file_and_takes_little_memory(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert found["outcome"] in ("BatchTooLargeError", "CorruptError"), found
    assert "/a." in found["words"]
    assert found["growth_mb"] < LARGEST_MB, found
    if found["outcome"] == "BatchTooLargeError":
        assert "max_block_bytes" in found["words"] or "MAX_IMAGE_PIXELS" in found["words"]


def test_the_limit_can_be_set_for_every_format(tmp_path: Path) -> None:
    data = pa.table({"x": np.zeros(100_000, np.int64)})
    pq.write_table(data, tmp_path / "a.parquet")
    write(tmp_path / "a.arrow", data, rows=100_000, compression="zstd")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(100_000, np.int64), chunks=(100_000,), compression="gzip")
    write_array_record(tmp_path / "a.array_record", [bytes(10_000)] * 100, "group_size:100,zstd")
    for name in ("a.parquet", "a.arrow", "a.h5", "a.array_record"):
        with pytest.raises(BatchTooLargeError, match=rf"{name}.*more than the limit of 65536.*max_block_bytes"):
            pen.open(tmp_path / name, max_block_bytes="64KiB")[0]
        with pen.open(tmp_path / name, max_block_bytes="2MiB") as source:
            assert not np.any(source[0][next(iter(source.schema))] != (0 if name != "a.array_record" else bytes(10_000)))


def test_large_blocks_that_are_stored_in_a_64th_of_their_bytes_need_no_larger_limit(tmp_path: Path) -> None:
    data = pa.table({"x": np.random.default_rng(0).integers(0, 2**60, 100_000)})
    pq.write_table(data, tmp_path / "a.parquet")
    with pen.open(tmp_path / "a.parquet", max_block_bytes="64KiB") as source:
        assert np.array_equal(source["x"][:], data["x"].to_numpy())


@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
def test_texts_that_would_be_larger_than_the_limit_when_spread_out_are_read(tmp_path: Path, encoding: str) -> None:
    texts = [None if i % 11 == 0 else f"{i % 40:05d}" * 20 for i in range(5000)]
    nested = [[text] if text else [] for text in texts]
    how = {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": {"x": encoding}}
    pq.write_table(pa.table({"x": texts, "y": nested}), tmp_path / "a.parquet", **how)
    with pen.open(tmp_path / "a.parquet", max_block_bytes="2MiB") as source, pen.open(tmp_path / "a.parquet") as other:
        ids = np.random.default_rng(0).permutation(5000)
        assert source["x"][ids].to_list() == [texts[i] for i in ids]
        assert source["y"][ids].to_list() == other["y"][ids].to_list()


def test_texts_of_hdf5_that_are_all_the_same_one_do_not_take_more_than_the_limit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("t", (4000,), dtype=h5py.string_dtype())
        data[...] = [b"x"] * 4000
        data[0] = b"x" * (1 << 20)
        place = data.id.get_offset()
    content = bytearray((tmp_path / "a.h5").read_bytes())
    content[place : place + 16 * 4000] = content[place : place + 16] * 4000  # length and place of the first one, for all
    (tmp_path / "a.h5").write_bytes(content)
    with pen.open(tmp_path / "a.h5", max_block_bytes="64MiB") as source:
        assert [len(text) for text in source["t"][[3999, 0, 7]]] == [1 << 20] * 3
        with pytest.raises(ReadError, match=r"a\.h5"):
            source["t"][:]
        assert len(source["t"][5]) == 1 << 20
