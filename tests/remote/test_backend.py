"""A storage of the user's own is read as a bucket is: every format, with windows, retries, counters and typed errors."""

import io
import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli import warm

import penstock as pen
from penstock.errors import AccessDeniedError, MissingError, ObjectChangedError, ReadError, SourceChangedError, StoreError
from penstock.formats import sidecar, spans
from penstock.remote.fetch import Policy
from penstock.source import ObjectFacts, storage, write_collection, write_rows, write_tokens
from penstock.testing import SourceSuite

X = np.arange(6000, dtype=np.float32).reshape(500, 12)


@dataclass(frozen=True)
class Shelf:
    """Files of a directory."""

    root: str
    counts: Counter = field(default_factory=Counter, compare=False)
    faults: list = field(default_factory=list, compare=False)

    def info(self, key: str) -> ObjectFacts:
        self.counts["info"] += 1
        found = (Path(self.root) / key).stat()
        if not (Path(self.root) / key).is_file():
            raise FileNotFoundError(key)
        return ObjectFacts(found.st_size, f"{found.st_mtime_ns}", found.st_mtime)

    def read(self, key: str, start: int, stop: int) -> bytes:
        self.counts["read"] += 1
        if self.faults:
            raise self.faults.pop()
        with (Path(self.root) / key).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


class Listed(Shelf):
    def list(self, prefix: str) -> Iterable[tuple[str, ObjectFacts]]:
        root = Path(self.root)
        return [
            (str(path.relative_to(root)), self.info(str(path.relative_to(root))))
            for path in (root / prefix).rglob("*")
            if path.is_file()
        ]


def fill(root: Path) -> None:
    np.save(root / "x.npy", X)
    write_rows(X, root / "x.shard")
    write_tokens([np.arange(1000, dtype=np.uint16)], root / "x.rox", block_size=50)
    pq.write_table(
        pa.table({"x": np.arange(500), "text": [f"record {i}" for i in range(500)]}), root / "x.parquet", row_group_size=50
    )
    pen.convert({"x": X, "text": [f"text {i}" for i in range(500)]}, root / "x.pen", chunk_records=100)
    write_collection([root / "x.npy"], root / "all.json")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shelf")
    fill(directory)
    return directory


class TestBackend(SourceSuite):
    equal_when_written_again = False

    def make(self, directory: Path) -> Any:
        pq.write_table(pa.table({"n": [1, None, 3], "t": ["a", "", None]}), directory / "a.parquet", row_group_size=2)
        return pen.open(storage(Shelf(str(directory))) / "a.parquet")

    def records(self) -> list[dict[str, Any]]:
        return [{"n": np.int64(1), "t": "a"}, {"n": None, "t": ""}, {"n": np.int64(3), "t": None}]


@pytest.mark.parametrize("name", ["x.npy", "x.shard", "x.rox", "x.parquet", "x.pen", "all.json"])
def test_every_format_is_read_like_files(root: Path, name: str) -> None:
    with pen.open(root / name) as here, pen.open(storage(Listed(str(root))) / name) as there:
        assert there.remote is not None or name == "all.json"
        ours, theirs = (list(pen.Loader(data.shuffle(seed=3, block=50, window=2), 32)) for data in (here, there))
        for one, other in zip(ours, theirs, strict=True):
            assert all(
                np.array_equal(
                    np.asarray(one[n]) if n != "text" else one[n].to_list(),
                    np.asarray(other[n]) if n != "text" else other[n].to_list(),
                )
                for n in one
            )


def test_patterns_and_prefixes_need_a_listing(root: Path) -> None:
    with pen.open(storage(Listed(str(root))) / "*.npy") as data:
        assert len(data) == 500
    with pytest.raises(ReadError, match="this backend has no listing; name them one by one"):
        pen.open(storage(Shelf(str(root))) / "*.npy")
    with pen.open([storage(Shelf(str(root))) / "x.npy", storage(Shelf(str(root))) / "x.npy"]) as data:
        assert len(data) == 1000


def test_failures_are_tried_again_and_others_are_typed_errors(root: Path) -> None:
    shelf = Shelf(str(root))
    place = storage(shelf, "attic")
    place.objects.policy = Policy(first_wait_s=0.001)
    with pen.open(place / "x.npy") as data:
        shelf.faults.extend([TimeoutError(), ConnectionError("gone")])
        assert data[499]["data"].tolist() == X[499].tolist()
        shelf.faults.append(PermissionError("no"))
        with pytest.raises(AccessDeniedError, match=r"storage://attic/x\.npy"):
            pen.open(place / "x.npy")[3]
        shelf.faults.clear()
    with pytest.raises(MissingError, match=r"storage://attic/nothing\.npy"):
        pen.open(place / "nothing.npy")
    shelf.faults.append(RuntimeError("a mistake in the backend"))
    with pytest.raises(RuntimeError, match="a mistake in the backend"):
        pen.open(place / "x.shard")[0]


def test_a_change_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pen.open(storage(Shelf(str(tmp_path))) / "x.npy", window_bytes="1MiB") as data:
        np.save(tmp_path / "x.npy", X[::-1].copy())
        with pytest.raises((ObjectChangedError, SourceChangedError)):
            data[:]


def test_requests_are_counted_and_large(root: Path) -> None:
    shelf = Shelf(str(root))
    with pen.open(storage(shelf, "counted") / "x.shard") as data:
        loader = pen.Loader(data.shuffle(seed=1), 50)
        shelf.counts.clear()
        assert sum(len(batch["row"]) for batch in loader) == 500
        assert shelf.counts["read"] <= 2
        assert loader.stats().network.requests == shelf.counts["read"]


def test_pickles_and_other_processes_have_the_backend(root: Path) -> None:
    with pen.open(storage(Shelf(str(root))) / "x.npy") as data, pickle.loads(pickle.dumps(data)) as again:
        assert np.array_equal(again[:]["data"], X)
        code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[499]['data'][0])"
        done = warm.run([sys.executable, "-c", code], sent=pickle.dumps(data), capture_output=True, check=True)
    assert float(done.stdout) == X[499, 0]


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_file_systems_of_fsspec_are_taken_as_they_are(root: Path, protocol: str) -> None:
    files = fsspec.filesystem(protocol)
    if protocol == "memory":
        for path in root.rglob("*"):
            if path.is_file():
                files.pipe_file(f"/bucket/{path.relative_to(root)}", path.read_bytes())
    place = storage(files, "bucket" if protocol == "memory" else str(root))
    with pen.open(place / "x.pen") as store, pen.open(place / "*.parquet") as table:
        assert store[499]["text"] == "text 499"
        assert table[7]["text"] == "record 7"
    with pytest.raises(MissingError):
        pen.open(place / "nothing.npy")


def test_what_is_no_backend_is_refused(root: Path) -> None:
    with pytest.raises(TypeError, match="expected a backend with the methods info and read"):
        storage(io.BytesIO)
    with pytest.raises(TypeError, match="name: expected a text"):
        storage(Shelf(str(root)), 3)  # type: ignore[arg-type]

    class Careless(Shelf):
        def read(self, key: str, start: int, stop: int) -> Any:
            return "text"

    with pytest.raises(TypeError, match="expected bytes from read, got a str"):
        pen.open(storage(Careless(str(root))) / "x.npy")
    with pytest.raises(StoreError, match="read-only"):
        pen.convert({"x": X}, storage(Listed(str(root))) / "new.pen")


@dataclass(frozen=True)
class Jar:
    """One object, whatever its name."""

    data: bytes
    etag: Any = "v1"
    modified: Any = 0.0
    size: Any = None
    token: str = "secret-token"

    def info(self, key: str) -> ObjectFacts:
        return ObjectFacts(len(self.data) if self.size is None else self.size, self.etag, self.modified)

    def read(self, key: str, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def saved(x: Any, kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "h5":
        with h5py.File(file, "w") as made:
            made["data"] = x
    else:
        np.save(file, x)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["npy", "h5"])
def test_two_storages_of_one_name_share_nothing_in_a_cache(tmp_path: Path, kind: str) -> None:
    for x in (X, X + 1, X):
        with pen.open(storage(Jar(saved(x, kind)), "jar") / f"x.{kind}", cache=tmp_path / "cache") as data:
            assert np.array_equal(data[:]["data"], x)


def test_lines_of_two_storages_of_one_name_have_an_index_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path)
    for number in range(2):
        lines = [json.dumps({"x": 10 ** ((i + number) % 2)}) for i in range(2000)]
        with pen.open(storage(Jar("\n".join(lines).encode()), "jar") / "x.jsonl") as data:
            assert data[:]["x"].tolist() == [json.loads(line)["x"] for line in lines]
    assert len(list(tmp_path.glob(f"*{sidecar.SUFFIX}"))) == 2


def test_a_copy_of_an_object_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"storage://jar/x\.h5: its server says neither an etag nor a date"):
        pen.open(storage(Jar(saved(X, "h5"), None), "jar") / "x.h5", cache=tmp_path / "cache")
    for x, when in ((X, 1.0), (X + 1, 2.0)):
        with pen.open(storage(Jar(saved(x, "h5"), None, when), "jar") / "x.h5", cache=tmp_path / "cache") as data:
            assert np.array_equal(data[:]["data"], x)


class Moving:
    """Two versions of an object, the second of which is there after some reads."""

    def __init__(self, before: bytes, after: bytes, reads: int) -> None:
        self.versions, self.reads = (before, after), reads

    def info(self, key: str) -> ObjectFacts:
        return ObjectFacts(len(self.versions[0]), f"v{self.reads < 0}")

    def read(self, key: str, start: int, stop: int) -> bytes:
        self.reads -= 1
        return self.versions[self.reads < 0][start:stop]


@pytest.mark.parametrize("reads", range(5))
def test_no_byte_of_another_version_is_used(reads: int) -> None:
    place = storage(Moving(saved(X, "npy"), saved(X + 1, "npy"), reads), f"moving{reads}")
    place.objects.policy = Policy(first_wait_s=0.001)
    with pen.open(place / "x.npy") as data:
        try:
            found = np.concatenate([data[low : low + 125]["data"] for low in range(0, 500, 125)])
        except (ObjectChangedError, SourceChangedError):
            return
        assert np.array_equal(found, X) or np.array_equal(found, X + 1)


@pytest.mark.parametrize(
    "wrong", [{"size": -5}, {"size": "5"}, {"etag": 5}, {"modified": None}, {"modified": float("nan")}, {"modified": 1e30}]
)
def test_facts_that_are_none_are_named_and_nothing_else_is_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"jar: expected .* as {next(iter(wrong))} .*from info") as raised:
        pen.open(storage(Jar(saved(X, "npy"), **wrong), "jar") / "x.npy")
    assert "secret" not in str(raised.value)


def test_fsspec_takes_names_of_directories_as_it_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "x.npy", X)
    monkeypatch.chdir(tmp_path)
    files = fsspec.filesystem("file")
    for name in ("in", "./in/", f"file://{tmp_path}/in", f"{tmp_path}//in", f"{tmp_path}/in/"):
        with pen.open(storage(files, name) / "*.npy") as data:
            assert len(data) == 500
