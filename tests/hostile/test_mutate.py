"""Damaged files of foreign formats are read or refused with a typed error: no crash, no hang, no other exception."""

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
from tests.effort import count, every
from tests.hostile.mutate import FORMATS

import penstock as pen
from penstock.errors import CorruptError
from penstock.formats import hdf5
from penstock.formats.hdf5 import shared_process

ROOT = Path(__file__).parents[2]
DEADLINE_S = 800


TAKEN = every(3, list(FORMATS), 1)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What came of the mutants of every format, and the faults among them."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.hostile.mutate", "--json", "--count", str(count(3, 1000)), *TAKEN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=True)
    return {line["format"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", TAKEN)
def test_mutants_are_read_or_refused_with_a_typed_error(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["faults"] == []
    assert sum(outcomes[name]["outcomes"].values()) >= count(3, 1000)


def test_an_hdf5_library_that_loops_or_crashes_is_a_typed_error_and_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = ["a", "b"]
    monkeypatch.setattr(hdf5, "DEADLINE_S", 1e-6)  # less than anything takes: the process ends as after a loop
    with pytest.raises(CorruptError, match=r"a\.h5: the HDF5 library did not come to an end within"):
        pen.open(tmp_path / "a.h5")
    monkeypatch.undo()
    with pen.open(tmp_path / "a.h5") as source:
        assert source["t"][:].to_list() == ["a", "b"]
        child = shared_process()._child
        assert child is not None
        child.kill()
        child.wait()
        assert source["t"][:].to_list() == ["a", "b"]  # a process that has ended is started again


def test_a_file_that_was_replaced_is_not_read_from_what_the_library_knew_of_it(tmp_path: Path) -> None:
    for texts in (["a", "bb"], ["c", "dd"]):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("t", data=texts, dtype=h5py.string_dtype())
            file.create_dataset("pieces", data=np.full((2, 4), ord(texts[0])), chunks=(1, 2), compression="gzip")
        with pen.open(tmp_path / "a.h5") as source:
            assert source["t"][:].to_list() == texts
            assert np.all(source["pieces"][:] == ord(texts[0]))


def test_a_parquet_column_of_another_type_than_the_schema_says_is_corrupt(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, None, 3])}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    place = content.rindex(b"\x15\x04\x19")  # the type of the column in its row group: 2, and a list after it
    (tmp_path / "a.parquet").write_bytes(content[:place] + b"\x15\x0c" + content[place + 2 :])
    with pytest.raises(CorruptError, match=r"a\.parquet: group 0.*expected values of INT64 as in the schema, found BYTE_ARRAY"):
        pen.open(tmp_path / "a.parquet")


def test_parquet_statistics_that_hide_missing_values_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, None, 3] * 7)}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    place = content.index(b"\x16\x0e", footer)  # 7 nulls, in the statistics of the column
    (tmp_path / "a.parquet").write_bytes(content[:place] + b"\x16\x00" + content[place + 2 :])
    with pen.open(tmp_path / "a.parquet") as source, pytest.raises(CorruptError, match=r"a\.parquet: expected no missing values"):
        source[:]
