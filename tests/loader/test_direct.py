"""``io="direct"``: the same records from every kind of file, read past the page cache, with blocks brought into memory before."""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.matrix import COUNT, HOW, KINDS

import penstock as pen
from penstock.batch import Batch, Ragged
from penstock.errors import BatchError, PenstockError, SourceChangedError, TruncatedError
from penstock.loader.lookahead import AdvisedFiles
from penstock.native import _core

DIRECT = [name for name in KINDS if not name.startswith(("Arrow", "Parquet", "ArrayRecord", "folder"))]
ORDERS: dict[str, dict[str, Any]] = {"global": {"seed": 7}, "blocks": HOW}
EDGE = 64


def values(batch: Batch) -> dict[str, Any]:
    """What compares by ==: types, shapes and bytes of arrays, texts of what is ragged."""
    return {name: _texts(one) if isinstance(one, Ragged) else _bytes(np.asarray(one)) for name, one in batch.items()}


def _bytes(column: np.ndarray) -> Any:
    return column.tolist() if column.dtype.hasobject else (column.dtype, column.shape, column.tobytes())


def _texts(column: Ragged) -> list[str]:
    return [one if isinstance(one, str) else repr(np.asarray(one).tolist()) for one in column]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("direct")


def path_of(name: str, files: Path) -> Path:
    kind = KINDS[name]
    path = files / f"{DIRECT.index(name)}.{kind.suffix}"
    if not path.exists():
        kind.write(path, range(COUNT // 2))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.pen"
    with pen.create(path, {"x": pen.Field("i8", (100,)), "t": pen.Field.text(codec=pen.Zstd(3))}, chunk_records=200) as out:
        out.extend({"x": np.arange(100_000).reshape(1000, 100), "t": [f"text {number}" * 9 for number in range(1000)]})
    return path


@pytest.mark.parametrize("name", DIRECT)
def test_every_kind_of_file_gives_the_records_that_maps_give(name: str, files: Path) -> None:
    path = path_of(name, files)
    ids = np.random.default_rng(3).integers(0, 1000, 50)
    with pen.open(path, io="map") as mapped, pen.open(path, io="direct") as direct:
        assert values(direct[ids]) == values(mapped[ids])
        for order in ORDERS.values():
            wanted = [values(batch) for batch in pen.Loader(mapped.shuffle(**order), EDGE, threads=0)]
            for threads in (0, 2):
                assert [values(batch) for batch in pen.Loader(direct.shuffle(**order), EDGE, threads=threads)] == wanted


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_formats_that_others_decode_refuse_the_option(suffix: str, tmp_path: Path) -> None:
    kind = next(one for one in KINDS.values() if one.suffix == suffix)
    kind.write(tmp_path / f"a.{suffix}", range(10))
    with pytest.raises(TypeError, match="io"):
        pen.open(tmp_path / f"a.{suffix}", io="direct")


def test_a_file_system_without_direct_reads_is_an_error_that_says_what_to_do() -> None:
    path, size = "/sys/kernel/btf/vmlinux", os.stat("/sys/kernel/btf/vmlinux").st_size  # a file of its size that is on no disk
    reader = _core.RowReader([path], np.array([[size, 0, size, 0, 0, 0]], np.uint64), 1, "direct")
    with pytest.raises(PenstockError, match="has no direct reads: open the data with io='pread' or io='map'"):
        reader.read(np.array([0]), 1, np.empty(1, np.uint8), _core.ThreadPool(1))


def test_other_ways_to_read_are_refused(store: Path) -> None:
    with pytest.raises(ValueError, match="'auto', 'map', 'pread' or 'direct', got 'none'"):
        pen.open(store, io="none")


def resident(path: Path) -> int:
    """Pages of a file in the page cache."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        with mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            start = ctypes.c_ubyte.from_buffer(mapped)
            assert ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(size), flags) == 0
            del start
    return sum(flag & 1 for flag in flags)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_page_cache_is_left_alone(order: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3000 * 512, dtype=np.uint32).reshape(3000, 512))
    with pen.open(path, io="direct") as data:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = resident(path)
        with pen.Loader(data.shuffle(**order), 100, threads=2) as loader:
            assert sorted(batch["data"][:, 0].sum() for batch in loader) != []
    assert resident(path) <= before + 8  # the header may be read in another way


def test_blocks_are_brought_into_memory_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3000 * 512, dtype=np.uint32).reshape(3000, 512))
    fetched: list[tuple[int, int]] = []
    real = AdvisedFiles.fetch

    def fetch(self: AdvisedFiles, name: str, start: int, stop: int, step: int) -> None:
        fetched.append((start, stop))
        real(self, name, start, stop, step)

    monkeypatch.setattr(AdvisedFiles, "fetch", fetch)
    monkeypatch.setattr(AdvisedFiles, "advise", None)  # would be an error
    with pen.open(path, io="direct") as data, pen.Loader(data.shuffle(**HOW), 100, threads=2) as loader:
        rows = np.concatenate([batch["data"][:, 0] for batch in loader])
    assert np.array_equal(np.sort(rows), np.arange(0, 3000 * 512, 512))
    assert sum(stop - start for start, stop in fetched) == 3000 * 2048


def test_what_was_read_is_kept_until_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(3000 * 512, dtype=np.uint32).reshape(3000, 512))
    closed: list[AdvisedFiles] = []
    real = AdvisedFiles.close
    monkeypatch.setattr(AdvisedFiles, "close", lambda self: (closed.append(self), real(self)))
    with pen.open(tmp_path / "a.npy", io="direct") as data, pen.Loader(data.shuffle(**HOW), 100, threads=2) as loader:
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        assert not closed
        assert next(batches, None) is None
    assert closed


def test_where_records_are_is_found_without_reading_them(store: Path) -> None:
    chunk = min((path for path in store.rglob("*") if path.is_file() and path.stat().st_size > 100_000), key=lambda path: path.name)
    with chunk.open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    rows = np.array([0]), np.array([200])
    with pen.open(store, io="map") as mapped, pen.open(store, io="direct") as direct:
        for expected, found in zip(mapped.extents(*rows), direct.extents(*rows), strict=True):
            assert np.array_equal(found, expected)


def test_what_is_read_in_vain_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pen.create(tmp_path / "a.pen", {"large": pen.Field("u1", (4000,)), "y": pen.Field("i8", ())}, chunk_records=1000) as out:
        out.extend({"large": np.ones((5000, 4000), np.uint8), "y": np.arange(5000)})
    held: list[int] = []
    fetched: list[int] = []
    real = AdvisedFiles.fetch

    def fetch(self: AdvisedFiles, name: str, start: int, stop: int, step: int) -> None:
        real(self, name, start, stop, step)
        assert self._ahead is not None
        held.append(self._ahead.size)
        fetched.append(stop - start)

    monkeypatch.setattr(AdvisedFiles, "fetch", fetch)
    monkeypatch.setattr("penstock.loader.lookahead.DIRECT_AHEAD_BYTES", 1 << 20)
    order = {"seed": 1, "block": 50, "window": 2}
    with pen.open(tmp_path / "a.pen", io="direct") as data, pen.Loader(data.pick("y").shuffle(**order), 50, threads=2) as loader:
        batches = iter(loader)
        seen = [next(batches)["y"] for _ in range(99)]
        while sum(fetched) < 5000 * 4000:
            time.sleep(0.01)
        seen.append(next(batches)["y"])
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(5000))
    assert max(held) <= 4 << 20


def read_the_rest(batches: Iterator[Batch]) -> None:
    for batch in batches:
        assert batch["data"].any(axis=1).all()  # no row is of the new version


def test_a_file_that_is_cut_or_rewritten_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    rows = np.arange(3000 * 512, dtype=np.uint32).reshape(3000, 512)
    for order in ORDERS.values():
        for change, error in (("cut", TruncatedError), ("rewrite", SourceChangedError)):
            np.save(path, rows)
            with pen.open(path, io="direct") as data, pen.Loader(data.shuffle(**order), 100, threads=2, prefetch="1MB") as loader:
                batches = iter(loader)
                next(batches)
                if change == "cut":
                    os.truncate(path, 10_000)
                else:
                    with path.open("r+b") as file:
                        file.seek(128)
                        file.write(bytes(rows.nbytes))
                    os.utime(path, ns=(1, 1))
                with pytest.raises(BatchError) as caught:
                    read_the_rest(batches)
                assert isinstance(caught.value.__cause__, (error, SourceChangedError))
                del caught


def test_checksums_are_checked(store: Path) -> None:
    chunk = max(store.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    with chunk.open("r+b") as file:
        file.seek(10_000)
        byte = file.read(1)[0]
        file.seek(10_000)
        file.write(bytes([byte ^ 1]))
    with pen.open(store, io="direct") as data, pytest.raises(PenstockError, match="crc"):
        data[:]
    with pen.open(store, io="direct", verify=False) as data:
        assert len(data["x"][:]) == 1000


def test_a_forked_child_reads_with_rings_of_its_own(store: Path) -> None:
    ids = np.random.default_rng(3).permutation(1000)
    with pen.open(store, io="direct") as data:
        expected = data["x"][ids].sum()
        child = os.fork()
        if child == 0:
            os._exit(0 if data["x"][ids].sum() == expected else 1)
        assert data["x"][ids].sum() == expected
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_longest_wait_is_one_of_the_waits(store: Path) -> None:
    with pen.open(store, io="direct") as data, pen.Loader(data.shuffle(seed=1), 10, threads=2) as loader:
        assert loader.stats().longest_wait_s == 0
        batches = iter(loader)
        next(batches)
        assert loader.stats().longest_wait_s == 0  # the first one is not counted
        for _ in batches:
            pass
        assert 0 < loader.stats().longest_wait_s <= loader.stats().wait_s
