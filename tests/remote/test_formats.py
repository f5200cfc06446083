"""Every format on a real server: what is read there is what is read on a disk, and what it took is what was foreseen."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from safetensors.numpy import save_file
from tests.array_record import write_array_record
from tests.formats.packed_files import write_items, write_mds
from tests.formats.shards import tar, tfrecord
from tests.hostile.mutate_rows import mutate, tokens_image
from tests.remote.double import Double
from tests.remote.test_sources_suite import RemoteSuite

import penstock as pen
from penstock.batch import Ragged
from penstock.errors import CorruptError, FormatError, MissingError, ObjectChangedError, ReadError
from penstock.formats import sidecar, spans
from penstock.records import Source
from penstock.remote.url import UrlPath, url_path
from penstock.testing.source_suite import run_in_fork

pytestmark = pytest.mark.usefixtures("csv_was_read")

Record = dict[str, Any]

N = 60
X = np.random.default_rng(3).standard_normal((N, 6)).astype(np.float32)
FILES = 12
TEXTS = [f"text {number} {'é' * (number % 5)}" for number in range(N)]


@pytest.fixture(scope="module", autouse=True)
def packages_have_threads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They start them, and keep them."""
    directory = tmp_path_factory.mktemp("threads")
    zarr.create_array(directory / "zarr", data=np.arange(1000), chunks=(5,))
    lance.write_dataset(pa.table({"x": [1]}), directory / "lance")


# The files


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"n": n, "text": TEXTS[n]}) + "\n" for n in range(N)))


def _csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["n", "text"], *([n, TEXTS[n]] for n in range(N))])


def _tar(path: Path) -> None:
    path.write_bytes(tar((f"{n:03}.{end}", data) for n in range(N) for end, data in (("x", X[n].tobytes()), ("txt", b"a"))))


def _tfrecord(path: Path) -> None:
    path.write_bytes(tfrecord([row.tobytes() for row in X]))


def _mds(path: Path) -> None:
    rows = [(np.int64(n).tobytes(), TEXTS[n].encode()) for n in range(N)]
    write_mds(path, {"n": ("int", 8), "text": ("str", None)}, [rows[:20], rows[20:]])


def _litdata(path: Path) -> None:
    items = [(np.int64(n).tobytes(), TEXTS[n].encode()) for n in range(N)]
    write_items(path, {"n": "int", "text": "str"}, [items[:30], items[30:]])


def _safetensors(path: Path) -> None:
    save_file({"x": X, "n": np.arange(N)}, path)


def _table() -> pa.Table:
    return pa.table({"n": np.arange(N), "text": TEXTS})


def _arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _table().schema) as out:
        out.write_table(_table(), max_chunksize=25)


def _saved(path: Path) -> None:
    """As save_to_disk of datasets writes it."""
    path.mkdir()
    for number, part in enumerate((_table()[:40], _table()[40:])):
        with pa.OSFile(str(path / f"data-{number:05}-of-00002.arrow"), "wb") as file, pa.ipc.new_stream(file, part.schema) as out:
            out.write_table(part)
    names = [{"filename": f"data-{number:05}-of-00002.arrow"} for number in range(2)]
    (path / "state.json").write_text(json.dumps({"_data_files": names, "_split": "train", "_indices_data_files": None}))
    (path / "dataset_info.json").write_text("{}")


def _splits(path: Path) -> None:
    path.mkdir()
    _saved(path / "train")
    (path / "dataset_dict.json").write_text('{"splits": ["train"]}')


def _zarr(path: Path) -> None:
    """Plain, compressed and sharded arrays, one in chunks of parts of rows, and one with chunks that are not there."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.create_array("x", data=X, chunks=(4, 3), shards=(16, 6))
    group.create_array("in/n", data=np.arange(N), chunks=(7,), compressors=None)
    holes = group.create_array("in/hole", shape=(N, 2), dtype="i2", chunks=(9, 1), fill_value=-3)
    holes[10:30] = np.arange(40).reshape(20, 2)


def _zarr2(path: Path) -> None:
    zarr.create_array(path, data=X.astype(">f4"), chunks=(10, 4), zarr_format=2)


def _lance(path: Path) -> None:
    lance.write_dataset(_table(), path, max_rows_per_file=25)
    lance.dataset(path).delete("n in (3, 30)")
    lance.write_dataset(_table(), path, mode="append")


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, chunks=(16, 6), compression="gzip")
        file["n"] = np.arange(N)


def _array_record(path: Path) -> None:
    write_array_record(path, [row.tobytes() for row in X])


def _folder(path: Path) -> None:
    """With names whose order depends on the levels, and one that is hidden."""
    for n in range(FILES):
        file = path / ("cat", "cat-2", "dog", ".")[n % 4] / f"{n}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if n == 7 else TEXTS[n])
    (path / "dog" / ".hidden").write_text("x")
    (path / "none").mkdir()
    (path / "none" / ".hidden").write_text("x")


@dataclass(frozen=True)
class Format:
    """How it is written, and whether its bytes come through a window, rather than as a copy."""

    write: Callable[[Path], None]
    is_windowed: bool = True
    options: tuple[tuple[str, Any], ...] = ()


FORMATS = {
    "a.jsonl": Format(_jsonl),
    "a.csv": Format(_csv),
    "a.tar": Format(_tar),
    "a.tfrecord": Format(_tfrecord),
    "a.safetensors": Format(_safetensors),
    "a.parquet": Format(lambda path: pq.write_table(_table(), path, row_group_size=10)),
    "mds": Format(_mds),
    "litdata": Format(_litdata),
    "a.zarr": Format(_zarr),
    "old.zarr": Format(_zarr2),
    "folder": Format(_folder),
    "saved": Format(_saved, is_windowed=False),
    "splits": Format(_splits, is_windowed=False, options=(("split", "train"),)),
    "a.lance": Format(_lance, is_windowed=False),
    "a.h5": Format(_hdf5, is_windowed=False),
    "a.arrow": Format(_arrow, is_windowed=False),
    "a.array_record": Format(_array_record, is_windowed=False),
}


def put_all(place: UrlPath, directory: Path) -> None:
    """The files of a directory, and of those in it, as objects; those that are there stay."""
    there = {info.key for info in place.objects.list(place.key)}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and f"{place.key}/{path.relative_to(directory)}" not in there:
            place.objects.put(f"{place.key}/{path.relative_to(directory)}", path.read_bytes())


def plain(column: Any) -> Any:
    return column.to_list() if isinstance(column, Ragged) else np.ma.filled(np.ma.asarray(column).astype("O"), None).tolist()


def batches(data: Source, **how: Any) -> list[dict[str, Any]]:
    with pen.Loader(data.shuffle(seed=5, **how), 8, tail="keep", ids="id") as loader:
        return [{name: plain(column) for name, column in batch.items()} for batch in loader]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.sampled(3)
def test_every_format_is_read_on_the_server_as_on_a_disk(
    prefix: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)  # so that what was searched once is not read again
    monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path / "indexes")
    form, here = FORMATS[name], tmp_path / "here"
    here.mkdir()
    form.write(here / name)
    put_all(prefix, here)
    how: dict[str, Any] = dict(form.options)
    cache = {} if form.is_windowed else {"cache": tmp_path / "cache"}
    if cache:
        with pytest.raises(ValueError, match=r"needs files: pass cache='a directory' to copy the [0-9,]+ bytes"):
            pen.open(prefix / name, **how)
    with pen.open(here / name, **how) as local, pen.open(prefix / name, **how, **cache) as remote:
        assert (remote.schema, remote.fingerprint, remote.metadata) == (local.schema, local.fingerprint, local.metadata)
        assert batches(remote, block=7, window=2) == batches(local, block=7, window=2)
    for order in ({}, {"block": 7, "window": 2}) if form.is_windowed else ():
        with pen.open(prefix / name, **how) as remote, pen.Loader(remote.shuffle(seed=5, **order), 8, tail="keep") as loader:
            forecast, before = loader.forecast(), prefix.objects.account.snapshot()
            assert sum(len(next(iter(batch.values()))) for batch in loader) == len(remote)
            network, after = loader.stats().network, prefix.objects.account.snapshot()
        assert network is not None
        sent = after.requests - before.requests, after.bytes - before.bytes
        assert (network.requests, network.bytes) == sent
        if name == "a.zarr":  # chunks of 7 and 9 rows, of which some are in two blocks of 16
            assert sent < (forecast.requests, forecast.bytes) < (2 * sent[0], 2 * sent[1])
        else:
            assert sent == (forecast.requests, forecast.bytes)


# Every one keeps the promises of all sources; those that are not here do so in test_sources_suite.py and test_lines.py


class FormatSuite(RemoteSuite):
    name: str

    @pytest.fixture(autouse=True)
    def directories(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.directories = tmp_path_factory

    def put(self, place: UrlPath) -> None:
        here = self.directories.mktemp("here")
        FORMATS[self.name].write(here / self.name)
        put_all(place, here)

    def open(self, place: UrlPath) -> Source:
        cache = {} if FORMATS[self.name].is_windowed else {"cache": self.directories.mktemp("cache")}
        source: Source = pen.open(place / self.name, **cache)
        return source


class TestFolder(FormatSuite):
    """Through a window of a few pages."""

    name = "folder"

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place / self.name, window_bytes=40_000)
        return source

    def records(self) -> list[Record]:
        names = [("cat", "cat-2", "dog", "")[n % 4] for n in range(FILES)]
        ids = sorted(range(FILES), key=lambda n: [*filter(None, [names[n].encode()]), f"{n}.txt".encode()])
        return [
            {
                "data": b"" if n == 7 else TEXTS[n].encode(),
                "path": f"{names[n]}/{n}.txt".lstrip("/"),
                "label": np.int32(n % 4) if names[n] else None,
            }
            for n in ids
        ]


class TestZarr(FormatSuite):
    name = "a.zarr"

    def records(self) -> list[Record]:
        holes = np.full((N, 2), -3, "i2")
        holes[10:30] = np.arange(40).reshape(20, 2)
        return [{"in/hole": holes[n], "in/n": np.int64(n), "x": X[n]} for n in range(N)]

    def test_forked_children_read(self, source: Source, expected: list[Record]) -> None:
        """They cannot after their parent has read, and say so."""
        assert len(source[:]) == len(source.schema)
        assert "RuntimeError" in run_in_fork(lambda: str(source[:]))


class TestSaved(FormatSuite):
    name = "saved"

    def records(self) -> list[Record]:
        return [{"n": np.int64(n), "text": TEXTS[n]} for n in range(N)]


class TestArrow(TestSaved):
    name = "a.arrow"


class TestLance(FormatSuite):
    name = "a.lance"
    equal_when_written_again = False

    def records(self) -> list[Record]:
        return [{"n": np.int64(n), "text": TEXTS[n]} for n in [*(n for n in range(N) if n not in (3, 30)), *range(N)]]

    def test_forked_children_read(self, source: Source, expected: list[Record]) -> None:
        """They cannot, and say so."""
        assert len(source[:]) == len(source.schema)
        assert "RuntimeError" in run_in_fork(lambda: str(source[:]))


class TestHdf5(FormatSuite):
    name = "a.h5"

    def records(self) -> list[Record]:
        return [{"n": np.int64(n), "x": X[n]} for n in range(N)]


class TestArrayRecord(FormatSuite):
    name = "a.array_record"

    def records(self) -> list[Record]:
        return [{"data": row.tobytes()} for row in X]


# Folders


def test_a_folder_counts_what_the_server_counts_in_any_window(double: Double) -> None:
    for n in range(40):
        double.put(f"images/{'ab'[n % 2]}/{n:02}.bin", bytes([n]) * (3000 + n))
    for limit in ("1GiB", 90_000):
        for order in ({}, {"block": 5, "window": 2}):
            with pen.open(f"{double.base}/images", storage_options=double.storage_options, window_bytes=limit) as data:
                with pen.Loader(data.shuffle(seed=2, **order), 6, tail="keep", ids="id") as loader:
                    forecast = loader.forecast()
                    double.clear()
                    for batch in loader:
                        for n, one in zip(batch["id"].tolist(), batch["data"], strict=True):
                            number = int(data[n]["path"][2:4]) if limit == "1GiB" else one[0]
                            assert bytes(one) == bytes([number]) * (3000 + number)
                    served = len(double.requests("GET"))
                    network = loader.stats().network
                assert network is not None
                assert network.requests == served == forecast.requests == 40
                assert network.bytes == forecast.bytes == sum(3000 + n for n in range(40))


def test_objects_are_read_in_the_version_that_was_listed(prefix: UrlPath) -> None:
    for name in ("a/1.txt", "b/2.txt"):
        prefix.objects.put(f"{prefix.key}/{name}", name.encode())
    with pen.open(prefix) as data:
        prefix.objects.put(f"{prefix.key}/b/2.txt", b"another")
        assert data[0]["data"] == b"a/1.txt"
        with pytest.raises(ObjectChangedError):
            data[1]


def test_folders_are_decoded_and_chosen_by_suffix_as_on_a_disk(tmp_path: Path) -> None:
    place = url_path("memory://folders/some")
    for name, content in {"a/1.txt": b"one", "b/2.bin": b"two", "b/deep/3.TXT": b"three", "c/4.npy": b"x"}.items():
        place.objects.put(f"{place.key}/{name}", content)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    place.objects.put(f"{place.key}/b", b"")  # as some tools write directories
    for options in ({}, {"suffixes": ".txt"}, {"suffixes": [".txt", ".bin"], "decode": len, "label": "kind"}):
        with pen.open(str(place), **options) as data, pen.open(tmp_path, **options) as local:
            assert data.fingerprint == local.fingerprint
            assert {name: plain(column) for name, column in data[:].items()} == {
                name: plain(column) for name, column in local[:].items()
            }
            assert data.metadata == local.metadata
    with pytest.raises(MissingError, match=r"expected files named \*\.jpg under this folder"):
        pen.open(str(place), suffixes=".jpg")
    with pytest.raises(TypeError, match="no_such_option"):
        pen.open(str(place), no_such_option=1)


# zarr


def test_a_shard_with_a_bad_index_and_chunks_of_other_names_are_noticed(tmp_path: Path) -> None:
    place = url_path("memory://zarr/bad")
    zarr.create_array(tmp_path / "a", data=X, chunks=(4, 6), shards=(16, 6), compressors=None)
    put_all(place, tmp_path)
    shard = place.objects.read_all(f"{place.key}/a/c/1/0", 1 << 20)
    for bad, words in (
        (shard[:40], "an index of 68 bytes"),
        (shard[:-10] + bytes([shard[-10] ^ 1]) + shard[-9:], "index of the shard is not what was written"),
    ):
        place.objects.put(f"{place.key}/a/c/1/0", bad)
        with pytest.raises(CorruptError, match=words):
            pen.open(str(place / "a"))
    place.objects.put(f"{place.key}/a/c/1/0", shard)
    with pen.open(str(place / "a")) as data:
        assert np.array_equal(data["data"][:], X)
        assert data.blocks.size == 16  # what one request fetches
    for number in range(4):
        place.objects.delete(f"{place.key}/a/c/{number}/0")
    with pen.open(str(place / "a")) as data:
        assert not data["data"][:].any()  # the fill value
    place.objects.put(f"{place.key}/a/1.0", shard)
    with pytest.raises(FormatError, match="expected chunks named like"):
        pen.open(str(place / "a"))


def test_an_array_of_more_chunks_than_rows_is_forecast_as_it_is_fetched(tmp_path: Path) -> None:
    place = url_path("memory://zarr/narrow")
    zarr.create_array(tmp_path / "a", data=X, chunks=(8, 1), compressors=None)
    zarr.create_array(tmp_path / "b", data=np.tile(X[:30], 3), chunks=(8, 1), compressors=None)
    put_all(place, tmp_path)
    for name in ("a", "b"):
        for order in ({}, {"block": 8, "window": 2}):
            with pen.open(str(place / name)) as data, pen.Loader(data.shuffle(seed=5, **order), 6, tail="keep") as loader:
                forecast = loader.forecast()
                assert sum(len(batch["data"]) for batch in loader) == len(data)
                network = loader.stats().network
            assert network is not None
            assert (network.requests, network.bytes) == (forecast.requests, forecast.bytes)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing": lambda m: None,
    "grid": lambda m: m["chunk_grid"].update(name="other"),
    "no grid": lambda m: m.pop("chunk_grid"),
    "encoding": lambda m: m["chunk_key_encoding"].update(configuration=None),
    "no encoding": lambda m: m.pop("chunk_key_encoding"),
    "no codecs": lambda m: m.update(codecs=[]),
    "inner codecs": lambda m: m["codecs"][0]["configuration"].update(codecs=None),
    "index": lambda m: m["codecs"][0]["configuration"].update(index_codecs=[{"name": "bytes"}]),
    "index at the start": lambda m: m["codecs"][0]["configuration"].update(index_location="start"),
    "inner chunks": lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[5, 6]),
    "more": lambda m: m["codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
    "shape": lambda m: m.update(shape=[70, 6]),
    "fewer": lambda m: m.update(shape=[20, 6]),
    "fill value": lambda m: m.update(fill_value="x"),
    "transformers": lambda m: m.update(storage_transformers=[{"name": "x"}]),
}


def test_whatever_the_metadata_says_nothing_is_read_that_is_not_read_on_a_disk(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "good", data=X, chunks=(4, 3), shards=(16, 6))
    found = {}
    for name, change in CHANGES.items():
        place = url_path(f"memory://zarr-metadata/{name.replace(' ', '-')}")
        content = json.loads((tmp_path / "good/zarr.json").read_text())
        change(content)
        shutil.copytree(tmp_path / "good", tmp_path / name)
        (tmp_path / name / "zarr.json").write_text(json.dumps(content))
        put_all(place, tmp_path / name)
        found[name] = [_values(what) for what in (str(place), tmp_path / name)]
    assert {name: at_url for name, (at_url, _) in found.items()} == {name: on_disk for name, (_, on_disk) in found.items()}
    assert [name for name, (_, values) in found.items() if values is not None] == ["nothing", "shape", "fewer"]


def _values(what: Any) -> Any:
    """None if it is refused."""
    try:
        with pen.open(what) as data:
            return data["data"][:].tolist()
    except ReadError:
        return None


def test_damaged_chunks_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    place = url_path("memory://zarr/damaged")
    zarr.create_array(tmp_path / "a", data=X, chunks=(8, 6))
    put_all(place, tmp_path)
    place.objects.put(f"{place.key}/a/c/1/0", b"nonsense")
    with pen.open(str(place / "a")) as data:
        assert np.array_equal(data[3]["data"], X[3])
        with pytest.raises(CorruptError, match=r"memory://zarr/damaged/a/: tensorstore"):
            data[9]


# Lance


def test_only_files_of_the_version_are_copied_and_those_of_the_next_are_added(tmp_path: Path) -> None:
    place = url_path("memory://lance/some")
    lance.write_dataset(_table()[:20], tmp_path / "a.lance")
    put_all(place, tmp_path)
    how = {"cache": tmp_path / "cache"}
    with pen.open(str(place / "a.lance"), **how) as data:
        assert (len(data), data.version) == (20, 1)  # type: ignore[attr-defined]
    before = place.objects.account.snapshot().bytes
    lance.write_dataset(_table()[20:], tmp_path / "a.lance", mode="append")
    put_all(place, tmp_path)
    with pen.open(str(place / "a.lance"), **how) as data, pen.open(str(place / "a.lance"), version=1, **how) as old:
        assert (data["n"][:].tolist(), len(old)) == (list(range(N)), 20)
    [first, second] = sorted((tmp_path / "a.lance/data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    fetched = place.objects.account.snapshot().bytes - before
    assert second.stat().st_size <= fetched < second.stat().st_size + first.stat().st_size
    with pytest.raises(MissingError, match="expected version 9"):
        pen.open(str(place / "a.lance"), version=9, **how)
    place.objects.delete(f"{place.key}/a.lance/data/{second.name}")
    with pytest.raises(CorruptError, match="which is not there"):
        pen.open(str(place / "a.lance"), **how)


def test_documents_that_are_anywhere_in_a_file_are_those_of_the_disk(double: Double, tmp_path: Path) -> None:
    """Several pieces of one object: once there was a landing for each object only."""
    index = mutate("idx scattered", random.Random("idx scattered 50"))
    for name, data in (("a.idx", index), ("a.bin", tokens_image())):
        (tmp_path / name).write_bytes(data)
        double.put(name, data)
    with (
        pen.open(tmp_path / "a.idx", scattered=True) as local,
        pen.open(f"{double.base}/a.idx", scattered=True, storage_options=double.storage_options) as remote,
    ):
        ids = np.random.default_rng(1).integers(0, len(local), 200)
        found, wanted = remote[ids]["tokens"], local[ids]["tokens"]
        assert np.array_equal(found.values, wanted.values)
        assert np.array_equal(found.offsets, wanted.offsets)
        assert remote.fingerprint == local.fingerprint
