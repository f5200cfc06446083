"""Other processes write, check and rewrite stores on a real S3 server: as one process does on a disk, in one commit, or nothing."""

from collections.abc import Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cluster.engine import TEXTS
from tests.cluster.maps import FailAt, words
from tests.cluster.pool import new_pool, running_pool
from tests.remote.seaweed import Seaweed
from tests.remote.store_kit import contents, log
from tests.store.records import digest, make_records, write

import penstock as pen
from penstock.errors import MissingError
from penstock.remote.url import UrlPath
from penstock.source import BatchMap
from penstock.store.generation import load_manifest
from penstock.store.storage import Location

COLUMNS: dict[str, Any] = {"number": np.arange(3000), "text": TEXTS}
SMALL = {"chunk_bytes": 4096}


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with running_pool() as pool:
        yield pool


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Numbers and texts, on a disk."""
    pen.convert(COLUMNS, tmp_path / "source.pen", **SMALL)
    return tmp_path / "source.pen"


def rows(place: Location) -> list[int]:
    return [chunk.rows for chunk in load_manifest(place).chunks]


def assert_same(one: Location, other: Location) -> None:
    """The same fields, records and chunks."""
    with pen.open(one) as found, pen.open(other) as wanted:
        assert found.schema == wanted.schema
        assert digest(found) == digest(wanted)
    assert rows(one) == rows(other)
    assert len(rows(one)) > 4


@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
@pytest.mark.parametrize("function", [None, words], ids=["as it is", "mapped"])
@pytest.mark.sampled(3)
def test_a_conversion_to_a_url_gives_the_store_of_one_process_in_one_commit(
    tmp_path: Path,
    source: Path,
    prefix: UrlPath,
    seaweed: Seaweed,
    processes: Executor,
    function: Any,
    in_memory: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.conversion.tasks.LIGHT_BYTES", 1000)  # what is in memory is sent in parts
    given: Any = COLUMNS if in_memory else source
    options: dict[str, Any] = {"map": function, "fields": ["number"] if function is None else None, "codec": pen.Zstd(1), **SMALL}
    told, asked = list[int](), log(prefix)
    pen.convert(
        given,
        f"{prefix}/a.pen",
        executor=processes,
        storage_options=seaweed.storage_options,
        progress=lambda records, size: told.append(records),
        **options,
    )
    assert not any("/chunk/" in key for method, key, *_ in asked if method == "PUT")  # they were written in the other processes
    pen.convert(given, tmp_path / "here.pen", **options)
    assert_same(prefix / "a.pen", tmp_path / "here.pen")
    assert sum(told) == 3000
    with pen.open(f"{prefix}/a.pen", storage_options=seaweed.storage_options) as store:
        assert store.generations() == [1]
    assert len(contents(prefix / "a.pen")) == len(rows(prefix / "a.pen")) + 1


def test_a_task_that_raises_leaves_nothing_at_a_url_and_a_second_conversion_succeeds(
    tmp_path: Path, source: Path, prefix: UrlPath, processes: Executor
) -> None:
    cursed = FailAt(1700, tmp_path / "marker")
    cursed.marker.touch()
    with pytest.raises(RuntimeError, match="record 1700 is cursed") as caught:
        pen.convert(source, prefix, map=cursed, executor=processes, **SMALL)
    assert any("Task(" in note for note in caught.value.__notes__)
    with pytest.raises(MissingError):
        pen.open(prefix)
    assert contents(prefix) == {}
    pen.convert(source, prefix, map=cursed, executor=processes, **SMALL)
    pen.convert(source, tmp_path / "here.pen", map=cursed, **SMALL)
    assert_same(prefix, tmp_path / "here.pen")
    assert pen.open(prefix).generations() == [1]


def test_a_killed_process_publishes_nothing_at_a_url_and_is_in_nobodys_way(
    tmp_path: Path, source: Path, prefix: UrlPath, processes: Executor
) -> None:
    with pen.open(source) as data:
        cursed = BatchMap(FailAt(1700, tmp_path / "marker", kill=True), fields=data.schema)
    (tmp_path / "marker").touch()
    with new_pool() as pool, pytest.raises(BrokenProcessPool):
        pen.convert(source, prefix, map=cursed, executor=pool, **SMALL)
    with pytest.raises(MissingError):
        pen.open(prefix)
    pen.convert(source, prefix, map=cursed, executor=processes, **SMALL)
    pen.convert(source, tmp_path / "here.pen", map=cursed, **SMALL)
    assert_same(prefix, tmp_path / "here.pen")
    pen.gc(prefix, keep=1, keep_hours=0)
    assert len(contents(prefix)) == len(rows(prefix)) + 1


def test_verify_finds_a_healthy_store_healthy_and_names_the_chunk_with_a_wrong_byte(
    prefix: UrlPath, seaweed: Seaweed, processes: Executor
) -> None:
    url, options = f"{prefix}/a.pen", seaweed.storage_options
    pen.convert(COLUMNS, url, storage_options=options, **SMALL)
    told: list[int] = []
    asked = log(prefix)
    found = pen.verify(url, storage_options=options, executor=processes, progress=lambda records, size: told.append(records))
    assert found == []
    assert not any("/chunk/" in key for _, key, *_ in asked)  # they were read in the other processes
    assert sorted(told) == sorted(rows(prefix / "a.pen"))
    chunk = load_manifest(prefix / "a.pen").chunks[2]
    damaged = prefix / "a.pen" / chunk.file
    data = bytearray(damaged.objects.read_all(damaged.key, 1 << 20))
    data[len(data) // 2] ^= 1
    damaged.objects.put(damaged.key, bytes(data))
    found = pen.verify(url, storage_options=options, executor=processes)
    assert [problem.file for problem in found] == [str(damaged)]
    assert found == pen.verify(url, storage_options=options)


def test_rebalance_keeps_the_records_and_makes_one_commit(
    tmp_path: Path, prefix: UrlPath, seaweed: Seaweed, processes: Executor
) -> None:
    url, options = f"{prefix}/a.pen", seaweed.storage_options
    write(tmp_path / "a.pen", make_records(200), chunk_records=20)
    pen.convert(tmp_path / "a.pen", url, chunk_records=20, storage_options=options)
    for place in (tmp_path / "a.pen", prefix / "a.pen"):
        with pen.open(place, mode="a") as out:
            out.delete(np.arange(0, 200, 3))
    with pen.open(url, storage_options=options) as store:
        before = digest(store)
    asked = log(prefix)
    done = pen.rebalance(url, storage_options=options, executor=processes)
    assert {key for method, key, *_ in asked if method == "PUT"} == {f"{prefix.key}/a.pen/manifest/00000000000000000003.json"}
    assert done.before.utilisation < done.after.utilisation == 1.0
    pen.rebalance(tmp_path / "a.pen")
    assert_same(prefix / "a.pen", tmp_path / "a.pen")
    with pen.open(url, storage_options=options) as store:
        assert digest(store) == before
        assert store.generations() == [1, 2, 3]


def test_data_at_a_url_is_read_into_a_store_on_a_disk(
    tmp_path: Path, source: Path, prefix: UrlPath, seaweed: Seaweed, processes: Executor
) -> None:
    pen.convert(source, prefix / "a.pen", **SMALL)
    pen.convert(
        f"{prefix}/a.pen", tmp_path / "a.pen", map=words, executor=processes, storage_options=seaweed.storage_options, **SMALL
    )
    pen.convert(source, tmp_path / "here.pen", map=words, **SMALL)
    assert_same(tmp_path / "a.pen", tmp_path / "here.pen")
    assert pen.open(tmp_path / "a.pen").generation == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pen", "here.pen", "source.pen"]
