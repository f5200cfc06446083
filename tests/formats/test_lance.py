"""Lance data sets, which pylance writes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import CorruptError, ReadError
from penstock.records import Source
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch, run_in_fork

Record = dict[str, Any]

N = 37


@pytest.fixture(scope="module", autouse=True)
def writer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The package starts threads, and keeps them."""
    lance.write_dataset(table(), tmp_path_factory.mktemp("lance") / "a")


def table(first: int = 0) -> pa.Table:
    ids = range(first, first + N)
    schema = pa.schema(
        [
            pa.field("x", pa.list_(pa.float32(), 3), nullable=False),
            pa.field("text", pa.string()),
            pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.binary())])),
            pa.field("tokens", pa.list_(pa.int16()), nullable=False),
        ]
    )
    rows = {
        "x": [[i, i + 0.5, -i] for i in ids],
        "text": [None if i % 5 == 1 else "é" * (i % 4) for i in ids],
        "s": [{"a": i, "b": None if i % 7 == 2 else bytes(i % 3)} for i in ids],
        "tokens": [list(range(i % 6)) for i in ids],
    }
    return pa.table(rows, schema)


def record(i: int) -> Record:
    return {
        "x": np.array([i, i + 0.5, -i], np.float32),
        "text": None if i % 5 == 1 else "é" * (i % 4),
        "s.a": np.int32(i),
        "s.b": None if i % 7 == 2 else bytes(i % 3),
        "tokens": np.arange(i % 6, dtype=np.int16),
    }


class TestLance(SourceSuite):
    """Several fragments, one with records that were deleted, and a newer version that is not opened."""

    def make(self, directory: Path) -> Source:
        lance.write_dataset(table(), directory / "data", max_rows_per_file=10)
        lance.write_dataset(table(N), directory / "data", mode="append")
        lance.dataset(directory / "data").delete("s.a in (3, 4)")
        version = lance.dataset(directory / "data").version
        lance.write_dataset(table(), directory / "data", mode="overwrite")
        return pen.open(directory / "data", version=version)

    def records(self) -> list[Record]:
        return [record(i) for i in range(2 * N) if i not in (3, 4)]

    def test_forked_children_read(self, source: Source, expected: list[Record]) -> None:
        """They cannot, and say so."""
        assert len(source[:]) == len(source.schema)
        assert "RuntimeError" in run_in_fork(lambda: str(source[:]))


def test_the_version_that_was_opened_is_read_whatever_is_written(tmp_path: Path) -> None:
    lance.write_dataset(table(), tmp_path / "data")
    with pen.open(tmp_path / "data", fields={"y": "s.a"}) as data:
        before = data.fingerprint
        lance.write_dataset(table(N), tmp_path / "data", mode="overwrite")
        assert data["y"][:].tolist() == list(range(N))
        assert data.fingerprint == before
        with pen.open(tmp_path / "data", fields={"y": "s.a"}) as newer:
            assert newer["y"][:].tolist() == list(range(N, 2 * N))
            assert newer.fingerprint != before


def test_blocks_are_fragments_and_loaders_read_all(tmp_path: Path) -> None:
    lance.write_dataset(table(), tmp_path / "data", max_rows_per_file=10)
    with pen.open(tmp_path / "data") as data:
        assert [len(data.blocks[number]) for number in range(len(data.blocks))] == [10, 10, 10, 7]
        with pen.Loader(data.shuffle(seed=1), 8, tail="keep", ids="id") as loader:
            for batch in loader:
                ids = batch.pop("id").tolist()
                assert_batch(batch, [record(i) for i in ids])


def test_damaged_data_is_an_error_with_the_path(tmp_path: Path) -> None:
    lance.write_dataset(table(), tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    for path in (tmp_path / "data/data").iterdir():
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorruptError, match=r"/data/: Lance: "), pen.open(tmp_path / "data") as data:
        data[1]
    for path in (tmp_path / "other/_versions").iterdir():
        path.write_bytes(b"nonsense")
    with pytest.raises(ReadError, match="/other"):
        pen.open(tmp_path / "other")


def test_the_error_of_a_missing_package_names_the_extra(tmp_path: Path) -> None:
    lance.write_dataset(table(), tmp_path / "data")
    code = f"import sys, penstock as pen; sys.modules['lance'] = None; pen.open({str(tmp_path / 'data')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("this needs pylance: pip install 'penstock[lance]'")
