"""zarr arrays and groups of both versions, which the package of that name writes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import penstock as pen
from penstock.errors import BatchTooLargeError, CorruptError, FormatError, SchemaMismatchError, UnsupportedTypeError
from penstock.records import Source
from penstock.testing import SourceSuite
from penstock.testing.source_suite import run_in_fork

Record = dict[str, Any]

N = 43
RNG = np.random.default_rng(2)
ROWS = RNG.random((N, 4, 3), np.float32)
LABELS = np.arange(N, dtype=np.int64)
FLAGS = np.arange(N) % 3 == 0


@pytest.fixture(scope="module", autouse=True)
def writer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The package starts threads, and keeps them."""
    zarr.create_array(tmp_path_factory.mktemp("zarr") / "a", data=np.arange(1000), chunks=(5,))


class ZarrSuite(SourceSuite):
    def test_forked_children_read(self, source: Source, expected: list[Record]) -> None:
        """They cannot after their parent has read, and say so."""
        assert len(source[:]) == len(source.schema)
        assert "RuntimeError" in run_in_fork(lambda: str(source[:]))
        assert "spawn" in run_in_fork(lambda: str(source[:]))


class TestGroup(ZarrSuite):
    """Of version 3: sharded, compressed and plain arrays, in groups."""

    def make(self, directory: Path) -> Source:
        group = zarr.open_group(directory / "data", mode="w", zarr_format=3)
        group.create_array("x", data=ROWS, chunks=(8, 4, 3), shards=(24, 4, 3))
        group.create_array("sub/label", data=LABELS, chunks=(7,))
        group.create_array("sub/flag", data=FLAGS, chunks=(50,), compressors=None)
        return pen.open(directory / "data")

    def records(self) -> list[Record]:
        return [{"sub/flag": FLAGS[i], "sub/label": LABELS[i], "x": ROWS[i]} for i in range(N)]


class TestOldArray(ZarrSuite):
    """Of version 2, in another byte order, in chunks of parts of rows."""

    def make(self, directory: Path) -> Source:
        zarr.create_array(directory / "data", data=ROWS.astype(">f4"), chunks=(10, 2, 3), zarr_format=2)
        return pen.open(directory / "data", threads=1)

    def records(self) -> list[Record]:
        return [{"data": row} for row in ROWS]


def test_blocks_are_chunks_of_rows(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=ROWS, chunks=(8, 4, 3), shards=(24, 4, 3))
    with pen.open(tmp_path / "a") as data:
        assert data.blocks.size == 8
        with pen.Loader(data.shuffle(seed=1), 10, tail="keep", ids="id") as loader:
            for batch in loader:
                assert np.array_equal(batch["data"], ROWS[batch["id"]])


def test_arrays_of_other_lengths_are_an_error_that_lists_them(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path, mode="w")
    group.create_array("x", data=ROWS)
    group.create_array("y", data=LABELS[:5])
    with pytest.raises(SchemaMismatchError, match=r"'x': float32 \[43, 4, 3\], 'y': int64 \[5\]: choose some .* fields=\["):
        pen.open(tmp_path)
    assert len(pen.open(tmp_path, fields={"label": "y"})) == 5
    with pytest.raises(KeyError, match=r"no array 'z'; there are \['x', 'y'\]"):
        pen.open(tmp_path, fields=["z"])


# What is done to the metadata of a good array, the error of opening it, and what it says.
BAD: dict[str, tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = {
    "texts": (lambda m: m.update(data_type="string"), UnsupportedTypeError, "another type in array 'data'"),
    "shape": (lambda m: m.update(shape=[-1, 4, 3]), FormatError, "the shape of the array"),
    "dimensions": (lambda m: m.update(shape=[43]), FormatError, "shape and chunks"),
    "chunks": (lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 4, 3]), FormatError, "the shape of the array"),
    "large": (
        lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[1 << 40, 4, 3]),
        BatchTooLargeError,
        "max_block_bytes",
    ),
    "node": (lambda m: m.update(node_type="tree"), FormatError, "an array or a group, found 'tree'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_metadata_is_refused(tmp_path: Path, name: str) -> None:
    change, kind, words = BAD[name]
    zarr.create_array(tmp_path / "a", data=ROWS, chunks=(8, 4, 3))
    content = json.loads((tmp_path / "a/zarr.json").read_text())
    change(content)
    (tmp_path / "a/zarr.json").write_text(json.dumps(content))
    with pytest.raises(kind, match=words) as caught:
        pen.open(tmp_path / "a")
    assert str(tmp_path) in str(caught.value)


def test_damaged_chunks_and_codecs_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=ROWS, chunks=(8, 4, 3))
    (tmp_path / "a/c/0/0/0").write_bytes(b"nonsense")
    with pen.open(tmp_path / "a") as data:
        assert np.array_equal(data[9]["data"], ROWS[9])
        with pytest.raises(CorruptError, match=r"/a/: tensorstore: "):
            data[1]
    content = json.loads((tmp_path / "a/zarr.json").read_text())
    content["codecs"][0]["name"] = "mystery"
    (tmp_path / "a/zarr.json").write_text(json.dumps(content))
    with pen.open(tmp_path / "a") as data, pytest.raises(CorruptError, match="mystery"):
        data[9]


def test_the_package_is_imported_when_something_is_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=ROWS)
    code = f"import sys, penstock as pen; pen.open({str(tmp_path / 'a')!r}); sys.exit('tensorstore' in sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
    code = f"import sys, penstock as pen; sys.modules['tensorstore'] = None; pen.open({str(tmp_path / 'a')!r})[0]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("pip install 'penstock[zarr]'")
