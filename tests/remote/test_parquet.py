"""Parquet at URLs: the same records as on disk, few requests, and no mixture of two versions of a file."""

import io
import itertools
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.effort import every
from tests.formats.test_parquet import N, record, table
from tests.remote.double import Fault
from tests.remote.store_kit import doubled

import penstock as pen
from penstock.errors import (
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    ObjectChangedError,
    PenstockError,
    SchemaMismatchError,
    TruncatedError,
    WindowTooSmallError,
)
from penstock.formats.parquet import RemoteParquetSource, open_parquet
from penstock.records import Source
from penstock.remote.url import UrlPath, url_path
from penstock.remote.window import RemoteOptions
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

_numbers = itertools.count()
_places: dict[type, UrlPath] = {}


def memory_place() -> UrlPath:
    """An empty place in memory."""
    return url_path(f"memory://parquet-{os.getpid()}-{next(_numbers)}/data")


def parquet_bytes(data: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(data, file, **options)
    return file.getvalue()


def put(place: UrlPath, data: bytes) -> UrlPath:
    place.objects.put(place.key, data)
    return place


@cache
def table_bytes(low: int, high: int, **options: Any) -> bytes:
    return parquet_bytes(table(low, high), **options)


def put_table(place: UrlPath, low: int = 0, high: int = N, **options: Any) -> UrlPath:
    return put(place, table_bytes(low, high, **{"row_group_size": 9} | options))


def watched(place: UrlPath) -> list[Any]:
    """The requests from now on."""
    place.objects.account.log = []
    return place.objects.account.log


class OnServer(SourceSuite):
    """Sources on a server that other processes can reach as well."""

    @pytest.fixture(autouse=True)
    def place_on_server(self, prefix: UrlPath) -> None:
        self.prefix = prefix

    def put(self, place: UrlPath) -> None:
        raise NotImplementedError

    def place(self, directory: Path) -> UrlPath:
        """Where the data is: put there once, for all tests; anew where a test wants it a second time."""
        if type(self) not in _places or directory.name == "other":
            _places[type(self)] = self.prefix / f"{next(_numbers)}-{directory.name}"
            self.put(_places[type(self)])
        return _places[type(self)]

    def records(self) -> list[dict[str, Any]]:
        return [record(i) for i in range(N)]

    def test_closing_twice_does_no_harm(self, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
        """Connections belong to the store and stay for its next user; memory is given back."""
        with self.make(tmp_path) as source:
            batch = source[:]
        source.close()
        assert source.remote is not None
        assert source.remote.used_bytes == 0
        assert_batch(batch, expected)


class TestOneFile(OnServer):
    def put(self, place: UrlPath) -> None:
        put_table(place / "a.parquet")

    def make(self, directory: Path) -> Source:
        return open_parquet(self.place(directory) / "a.parquet")


class TestManyFiles(OnServer):
    """One of them empty, in other encodings, nothing is kept decoded, and the window is small."""

    names = every(2, list(record(0)))

    def put(self, place: UrlPath) -> None:
        put_table(place / "a.parquet", 0, 20, row_group_size=7, compression="zstd", data_page_version="2.0")
        put_table(place / "b.parquet", 20, 20)
        put_table(place / "c.parquet", 20, 23, compression="none", use_dictionary=False)
        put_table(place / "d.parquet", 23, N, row_group_size=11, write_page_checksum=True)

    def make(self, directory: Path) -> Source:
        remote = RemoteOptions(window_bytes=300_000, cache=directory / "cache", cache_bytes=10_000_000)
        return open_parquet(self.place(directory), fields=self.names, threads=1, cache_bytes=0, remote=remote)

    def records(self) -> list[dict[str, Any]]:
        return [{name: record(i)[name] for name in self.names} for i in range(N)]


class TestChosenColumns(OnServer):
    def put(self, place: UrlPath) -> None:
        data = table().append_column("a.b", pa.array(range(N)))
        put(place / "a.parquet", parquet_bytes(data, row_group_size=20))

    def make(self, directory: Path) -> Source:
        return open_parquet([self.place(directory) / "a.parquet"], fields={"path": "image.path", "dotted": "a.b", "label": "label"})

    def records(self) -> list[dict[str, Any]]:
        return [{"path": record(i)["image.path"], "dotted": np.int64(i), "label": record(i)["label"]} for i in range(N)]


# The same as on disk


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Source, RemoteParquetSource]]:
    """Two files on disk and at a URL."""
    place = memory_place()
    for name, low, high in [("a.parquet", 0, 20), ("b.parquet", 20, N)]:
        (tmp_path / name).write_bytes(parquet_bytes(table(low, high), row_group_size=6))
        put(place / name, (tmp_path / name).read_bytes())
    with pen.open(tmp_path) as local, pen.open(f"{place}/*.parquet") as remote:
        assert isinstance(remote, RemoteParquetSource)
        yield local, remote


def test_records_blocks_and_fingerprint_are_those_of_the_files(both: tuple[Source, RemoteParquetSource]) -> None:
    local, remote = both
    assert remote.fingerprint == local.fingerprint
    assert remote.schema == local.schema
    assert [remote.blocks[i] for i in range(len(remote.blocks))] == [local.blocks[i] for i in range(len(local.blocks))]
    assert remote.reads_blocks
    assert_batch(remote[:], [record(i) for i in range(N)])


@pytest.mark.parametrize("threads", [0, 2])
def test_check_17_batches_are_those_of_the_files(both: tuple[Source, RemoteParquetSource], threads: int) -> None:
    loaders = [pen.Loader(source.shuffle(seed=3), batch_size=5, threads=threads, ids="id") for source in both]
    for _ in range(2):
        for ours, theirs in zip(*loaders, strict=True):
            assert ours["id"].tolist() == theirs["id"].tolist()
            assert_batch(ours, [record(int(i)) | {"id": i} for i in theirs["id"]])


def test_a_state_saved_on_disk_continues_at_a_url(both: tuple[Source, RemoteParquetSource]) -> None:
    local, remote = (pen.Loader(source.shuffle(seed=3), batch_size=5, ids="id") for source in both)
    batches = iter(local)
    for _ in range(3):
        next(batches)
    remote.load_state_dict(local.state_dict())
    for ours, theirs in zip(remote, batches, strict=True):
        assert ours["id"].tolist() == theirs["id"].tolist()
        assert_batch(ours, [record(int(i)) | {"id": i} for i in theirs["id"]])


def test_files_of_very_old_writers() -> None:
    """Arrow reads some bytes behind their columns, which are not in the window."""
    data = parquet_bytes(table(), row_group_size=9)
    writer = pq.read_metadata(io.BytesIO(data)).created_by
    old = data.replace(writer.encode(), b"parquet-mr version 1.2.8 (build 1)"[: len(writer)].ljust(len(writer)))
    with open_parquet(put(memory_place() / "a.parquet", old)) as source:
        assert_batch(source[:], [record(i) for i in range(N)])


# Requests


def test_a_file_is_opened_with_one_request() -> None:
    place = memory_place()
    for name in "abc":
        put(place / f"{name}.parquet", parquet_bytes(pa.table({"x": np.arange(200_000)}), compression="none", use_dictionary=False))
    log = watched(place)
    with open_parquet([place / f"{name}.parquet" for name in "abc"]) as source:
        assert len(source) == 600_000
        assert [method for method, *_ in log] == ["GET"] * 3
        assert place.objects.account.snapshot().bytes <= 3 * (64 << 10)


def test_a_footer_larger_than_usual() -> None:
    place = memory_place()
    data = pa.table({"x": [7]}).replace_schema_metadata({"note": "n" * 100_000})
    put(place / "a.parquet", parquet_bytes(data))
    log = watched(place)
    with open_parquet(place / "a.parquet") as source:
        assert 1 < len(log) <= 3
        assert source[0]["x"] == 7


def test_only_wanted_columns_are_fetched_and_only_once() -> None:
    place = memory_place()
    columns = {"small": np.arange(1000), "large": pa.array([os.urandom(1000) for _ in range(1000)])}
    put(place / "a.parquet", parquet_bytes(pa.table(columns), row_group_size=100))
    with open_parquet(place / "a.parquet") as source:
        before = place.objects.account.snapshot().bytes
        assert source.read(np.arange(1000)[::-1], ["small"])["small"].tolist() == list(range(1000))[::-1]
        small = place.objects.account.snapshot().bytes - before
        assert 0 < small < 100_000
        for _ in range(2):
            for i in range(0, 1000, 50):
                source.read(np.arange(i, i + 50))
        assert place.objects.account.snapshot().bytes - before < 1_150_000


def test_row_groups_are_fetched_side_by_side() -> None:
    """The bytes of all groups that a batch touches are on their way before the first is decoded."""
    with doubled() as (double, url):
        file = put_table(url / "a.parquet", row_group_size=3)
        with open_parquet(file, threads=1) as source:
            double.clear()
            assert_batch(source[::3], [record(i) for i in range(0, N, 3)])
            assert len(double.requests("GET")) == 1  # they lie one behind the other
            assert source.remote.fetched_bytes < file.objects.head(file.key).size


def test_extents_are_those_of_the_touched_groups(both: tuple[Source, RemoteParquetSource]) -> None:
    _, remote = both
    ids = np.array([25, 0, 1, 24])
    numbers, starts, stops = remote.extents(ids, ids + 1)
    assert sorted(set(numbers.tolist())) == [0, 1]
    assert len(numbers) == 2 * len(remote.schema)
    assert (starts < stops).all()
    none = np.empty(0, np.int64)
    assert remote.extents(none, none)[0].tolist() == []


def test_a_disk_cache_serves_the_next_time(tmp_path: Path) -> None:
    file = put_table(memory_place() / "a.parquet", row_group_size=3)
    options = {"cache": tmp_path / "cache", "cache_bytes": "1MB"}
    with pen.open(str(file), **options) as source:
        assert_batch(source[:], [record(i) for i in range(N)])
    log = watched(file)
    with pen.open(str(file), **options) as source:
        assert_batch(source[:], [record(i) for i in range(N)])
        assert len(log) == 1  # the footer
        assert source.remote.fetched_bytes == 0


# Windows


def test_a_window_for_a_few_groups_is_enough() -> None:
    data = pa.table({"x": pa.array([os.urandom(10_000) for _ in range(100)])})
    file = put(memory_place() / "a.parquet", parquet_bytes(data, row_group_size=5, compression="none", use_dictionary=False))
    with open_parquet(file, cache_bytes=0, remote=RemoteOptions(window_bytes=150_000)) as source:
        assert_batch(source[::-1], [{"x": value} for value in data["x"].to_pylist()[::-1]])
        assert source.remote.most_bytes <= 150_000


def test_a_window_smaller_than_a_group() -> None:
    data = pa.table({"x": pa.array([os.urandom(10_000) for _ in range(10)])})
    file = put(memory_place() / "a.parquet", parquet_bytes(data, compression="none", use_dictionary=False))
    with open_parquet(file, remote=RemoteOptions(window_bytes=50_000)) as source, pytest.raises(WindowTooSmallError, match="50000"):
        source[0]


# What is wrong with a file


def test_check_25_a_file_that_is_replaced_while_it_is_open() -> None:
    place = memory_place()
    file = put_table(place / "a.parquet", row_group_size=3)
    with open_parquet(file) as source:
        source[0]
        put_table(file, row_group_size=3, compression="zstd")
        assert_batch(source[:3], [record(i) for i in range(3)])  # decoded before
        with pytest.raises(ObjectChangedError, match=r"a\.parquet"):
            source[N - 1]
    with open_parquet(file) as source:
        assert_batch(source[:], [record(i) for i in range(N)])


def test_a_file_that_is_removed_while_it_is_open() -> None:
    file = put_table(memory_place() / "a.parquet")
    with open_parquet(file) as source:
        file.objects.delete(file.key)
        with pytest.raises(MissingError, match=r"a\.parquet"):
            source[0]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"", EmptyFileError),
        (lambda data: data[:1], FormatError),
        (lambda data: data[:4], TruncatedError),
        (lambda data: data[:7], TruncatedError),
        (lambda data: data[: len(data) // 2], TruncatedError),
        (lambda data: data[:-1], TruncatedError),
        (lambda data: b"x" * len(data), FormatError),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", CorruptError),
        (lambda data: data[:-100] + b"\xff" * 90 + data[-10:], CorruptError),
    ],
)
def test_damaged_files(change: Any, error: type[PenstockError], tmp_path: Path) -> None:
    """The same errors as on disk."""
    data = change(parquet_bytes(table()))
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(error):
        open_parquet(tmp_path / "a.parquet")
    with pytest.raises(error, match=r"a\.parquet"):
        open_parquet(put(memory_place() / "a.parquet", data))


def test_files_that_do_not_fit_together() -> None:
    place = memory_place()
    put(place / "a.parquet", parquet_bytes(pa.table({"x": [1]})))
    put(place / "b.parquet", parquet_bytes(pa.table({"x": ["1"]})))
    with pytest.raises(SchemaMismatchError, match=r"b\.parquet"):
        open_parquet(place)
    with pytest.raises(MissingError):
        open_parquet(place / "c.parquet")


def test_any_flipped_byte_of_a_footer_is_an_error_or_harmless() -> None:
    """Offsets and sizes that lead anywhere: never another process's bytes, never a crash."""
    good = parquet_bytes(table(0, 12), row_group_size=6, write_page_checksum=True)
    rng = np.random.default_rng(0)
    footer = int.from_bytes(good[-8:-4], "little")
    outcomes = set()
    for place in every(9, rng.choice(footer, 300, replace=False)):
        data = bytearray(good)
        data[len(good) - 8 - footer + int(place)] ^= int(rng.integers(1, 256))
        try:
            with open_parquet(put(memory_place() / "a.parquet", bytes(data)), remote=RemoteOptions("4MiB")) as source:
                source[:]
            outcomes.add("harmless")
        except PenstockError:
            outcomes.add("error")
    assert outcomes == {"harmless", "error"}


def test_o04_bytes_that_were_damaged_on_their_way_are_fetched_again() -> None:
    with doubled() as (double, url):
        file = put_table(url / "a.parquet", write_page_checksum=True, row_group_size=N)
        with open_parquet(file, threads=1) as source:
            double.plan("GET", file.key, Fault(flip=200), times=2)
            assert_batch(source.read([3], ["label"]), [{"label": record(3)["label"]}])
            double.plan("GET", file.key, Fault(flip=30), times=100)
            with pytest.raises(CorruptError, match=r"a\.parquet"):
                source.read([3], ["name"])
