"""The commands on every format that is not made of tokens: tiny files, each command once."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from tests.array_record import write_array_record
from tests.effort import every, is_campaign
from tests.formats import shards
from tests.formats.energon_files import prepare
from tests.golden.make_token_files import DIRECTORY as GOLDEN
from tests.view.conftest import routes_at

import penstock as pen

N = 7
TABLE = pa.table({"x": np.arange(N), "t": [f"text {i}" for i in range(N)]})
LINES = b"".join(b'{"x": %d, "t": "text %d"}\n' % (i, i) for i in range(N))
TAR = shards.tar([(f"{i}.{end}", b"%d" % i) for i in range(N) for end in ("cls", "txt")])


def arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(N)


def energon(path: Path) -> None:
    path.mkdir()
    (path / "a.tar").write_bytes(TAR)
    prepare(path, ["a.tar"])


def saved(path: Path) -> None:
    """As save_to_disk of datasets writes it, which takes a second to import."""
    path.mkdir()
    with pa.OSFile(str(path / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}], "_split": null}')
    (path / "dataset_info.json").write_text("{}")


def zarr(path: Path) -> None:
    import tensorstore as ts

    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(path)}, "create": True}
    ts.open(spec, dtype=ts.int64, shape=[N, 2]).result().write(np.arange(2 * N).reshape(N, 2)).result()


def lance(path: Path) -> None:
    import lance

    lance.write_dataset(TABLE, path)


def folder(path: Path) -> None:
    path.mkdir()
    for i in range(N):
        (path / f"{i}.dat").write_bytes(b"%d" % i)


def golden(name: str) -> Callable[[Path], object]:
    return lambda path: shutil.copytree(GOLDEN / name, path)


FORMATS: dict[str, Callable[[Path], object]] = {
    "a.npy": lambda path: np.save(path, np.arange(N)),
    "a.h5": hdf5,
    "a.arrow": arrow,
    "a.parquet": lambda path: pq.write_table(TABLE, path),
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "a.jsonl.zst": lambda path: path.write_bytes(pa.compress(LINES, codec="zstd", asbytes=True)),
    "a.csv": lambda path: path.write_bytes(b"x,t\n" + b"".join(b"%d,text %d\n" % (i, i) for i in range(N))),
    "a.tsv": lambda path: path.write_bytes(b"x\tt\n" + b"".join(b"%d\ttext %d\n" % (i, i) for i in range(N))),
    "a.safetensors": lambda path: save_file({"x": np.arange(N), "y": np.ones((N, 2), np.float32)}, path),
    "a.array_record": lambda path: write_array_record(path, [b"%d" % i for i in range(N)], "group_size:1"),
    "a.tfrecord": lambda path: path.write_bytes(shards.tfrecord([b"%d" % i for i in range(N)])),
    "a.tar": lambda path: path.write_bytes(TAR),
    "a.tgz": lambda path: path.write_bytes(gzip.compress(TAR)),
    "a.tar.zst": lambda path: path.write_bytes(pa.compress(TAR, codec="zstd", asbytes=True)),
    "energon": energon,
    "mds": golden("mds/plain"),
    "mds-zstd": golden("mds/zstd"),
    "mds-json": golden("lines/json"),
    "mds-csv-zstd": golden("lines/csv-zstd"),
    "litdata": golden("items/plain"),
    "litdata-batches": golden("items/batches"),
    "litdata-rows": golden("items/rows"),
    "saved": saved,
    "zarr": zarr,
    "lance": lance,
    "folder": folder,
}


TRIED = every(3, list(FORMATS), 1)
MEASURED = ("a.tgz", "a.csv", "mds-json", "litdata-rows", "zarr")
"""Those on which the slowest command runs in every test run; in campaigns, on all."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("formats")
    for name in TRIED:
        FORMATS[name](directory / name)
        with pen.open(directory / name) as source:  # what libraries start, and keep, is there before the first test
            source[0]
    return directory


@pytest.mark.parametrize("name", TRIED)
def test_commands_work_on_every_format(run_json: Callable[..., Any], place: Path, tmp_path: Path, name: str) -> None:
    data = place / name
    with pen.open(data) as source:
        records, fields = len(source), list(source.schema)
    found = run_json("info", data)
    assert (found["records"], list(found["fields"])) == (records, fields)
    shown = run_json("head", data, "-n", 3)
    assert [list(one["fields"]) for one in shown] == [fields] * 3
    checked = run_json("verify", data)
    assert (checked["records"], checked["ok"]) == (records, True)
    if is_campaign() or name in MEASURED:
        assert run_json("bench", data, "--batch-size", 2, "--seconds", 0.1)
    assert run_json("convert", data, tmp_path / "new.pen")["records"] == records
    with pen.open(tmp_path / "new.pen") as made:
        assert (len(made), list(made.schema)) == (records, fields)
    assert run_json("head", tmp_path / "new.pen", "-n", 3) == shown
    routes = routes_at(data)
    try:
        for path in ("", "api/about", "api/records"):
            assert routes.answer(path, "").status == 200, path
    finally:
        assert routes.data is not None
        routes.data.close()
