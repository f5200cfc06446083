"""convert between URLs and paths: the same records everywhere, and nothing to be seen before all is there."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from tests.conversion.test_convert import Flaky, StoppedError
from tests.remote.conftest import VirtualClock
from tests.remote.double import Double, Fault
from tests.remote.store_kit import contents, memory_url
from tests.store.records import FIELDS, digest, make_records, write

import penstock as pen
from penstock.conversion.tasks import records_noted
from penstock.errors import MissingError, StoreError, StoreUnavailableError
from penstock.formats import publish
from penstock.remote.fetch import Policy
from penstock.remote.url import UrlPath, url_path
from penstock.source import encode_rows, write_rows, write_tokens
from penstock.store.generation import load_manifest

conversion = importlib.import_module("penstock.conversion.convert")

ROWS = np.random.default_rng(0).standard_normal((500, 7)).astype(np.float32)


def keys(place: UrlPath) -> list[str]:
    return [info.key for info in place.objects.list("")]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A store with everything that a store can have."""
    write(tmp_path / "source.pen", make_records(60, seed=8)[:40], chunk_records=7)
    with pen.open(tmp_path / "source.pen", mode="a") as out:
        out.update([3], {"caption": ["new"]})
        out.delete([5, 6])
    return tmp_path / "source.pen"


def test_a_store_is_the_same_after_any_way_through_urls_and_paths(local: Path, tmp_path: Path) -> None:
    one, other = memory_url("a.pen"), memory_url("deep/er/b.pen")
    pen.convert(local, str(one))
    pen.convert(str(one), other, chunk_records=5)
    pen.convert(other, tmp_path / "back.pen")
    with pen.open(local) as wanted:
        for place in (one, str(other), tmp_path / "back.pen"):
            with pen.open(place) as found:
                assert digest(found) == digest(wanted)
                assert found.schema == wanted.schema
                assert {name: field.with_nullable(False) for name, field in found.schema.items()} == FIELDS
                assert found.generation == 1
    assert [chunk.rows for chunk in load_manifest(other).chunks] == [5] * 7 + [3]


def test_other_sources_at_urls_become_stores_at_urls(tmp_path: Path) -> None:
    place = memory_url("rows")
    for number, part in enumerate(np.split(ROWS, [100, 100, 130])):
        place.objects.put(f"rows/{number}.shard", encode_rows(part))
    seen: list[tuple[int, int]] = []
    pen.convert(str(place), place.with_name("rows.pen"), chunk_bytes=4096, progress=lambda rows, size: seen.append((rows, size)))
    assert sum(rows for rows, _ in seen) == 500
    assert len(seen) > 3
    pen.convert(f"{place}/*.shard", tmp_path / "rows.pen")
    for store in (place.with_name("rows.pen"), tmp_path / "rows.pen"):
        with pen.open(store) as source:
            assert source["row"][:].tobytes() == ROWS.tobytes()
    pen.convert({"x": np.arange(3)}, str(place.with_name("small.pen")), progress=True)
    with pen.open(place.with_name("small.pen")) as source:
        assert source["x"][:].tolist() == [0, 1, 2]


def test_large_shards_are_read_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "BATCH_BYTES", 4000)
    place = memory_url("rows.shard")
    place.objects.put(place.key, encode_rows(ROWS))
    place.objects.account.log = []
    with pen.open(place) as source:
        pen.convert(source, place.with_name("out.pen"))
    ranges = [stop - start for method, key, start, stop in place.objects.account.log if key == "rows.shard" and method == "GET"]
    assert sum(ranges) == ROWS.nbytes + 32
    assert max(ranges) <= 4000


def test_nothing_is_seen_of_an_unfinished_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "BATCH_BYTES", 4000)
    place = memory_url()
    data = Flaky({"x": np.arange(20_000).reshape(-1, 4), "t": [str(i) for i in range(5_000)]})
    for data.fails_at in (0, 1, 3000, 4999):
        with pytest.raises(StoppedError):
            pen.convert(data, place, chunk_bytes=4096)
        with pytest.raises(MissingError):
            pen.open(place)
        assert keys(place) == []
    data.fails_at = 1 << 60
    pen.convert(data, place, chunk_bytes=4096)
    with pen.open(place) as store:
        assert store["x"][:].tolist() == data["x"][:].tolist()
        assert store["t"][:].to_list() == data["t"][:].to_list()


def test_what_a_killed_conversion_left_behind_is_in_nobodys_way(local: Path) -> None:
    place = memory_url()
    place.objects.put(f"{place.key}/chunk/of-a-dead-writer", b"anything")
    with pytest.raises(MissingError, match="nothing was ever committed"):
        pen.open(place)
    pen.convert(local, place)
    with pen.open(local) as wanted, pen.open(place) as found:
        assert digest(found) == digest(wanted)


def test_a_conversion_from_a_url_to_a_path_goes_on_where_it_was(
    double: Double, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "BATCH_BYTES", 1400)
    double.put("rows.shard", encode_rows(ROWS))
    place = url_path(f"{double.base}/rows.shard", double.storage_options)
    place.objects.clock, place.objects.policy = clock, Policy(tries=2, hedge_s=60)
    double.plan("GET", "rows.shard", Fault(status=503), after=11, times=2)
    with pytest.raises(StoreUnavailableError, match=r"rows\.shard"):
        pen.convert(place, tmp_path / "rows.pen", chunk_bytes=4200)
    done = records_noted(tmp_path / "rows.pen.partial.json")
    assert done in (150, 300, 450)
    double.clear()
    pen.convert(f"{place}", tmp_path / "rows.pen", storage_options=double.storage_options, chunk_bytes=4200)
    with pen.open(tmp_path / "rows.pen") as store:
        assert store["row"][:].tobytes() == ROWS.tobytes()
    read = [request.range for request in double.requests("GET", "rows.shard") if request.range != (0, 32)]
    assert min(start for start, _ in read[1:]) == 32 + done * 28


def test_what_is_there_is_not_overwritten(local: Path) -> None:
    place = memory_url()
    pen.convert(local, place)
    before = contents(place)
    with pytest.raises(StoreError, match="already"):
        pen.convert({"x": np.zeros(3)}, place)
    assert contents(place) == before
    notes = place.with_name("notes")
    place.objects.put("notes/a.txt", b"a note")
    with pytest.raises(StoreError, match="it exists already"):
        pen.convert({"x": np.zeros(3)}, notes)
    assert contents(notes) == {"a.txt": b"a note"}


@pytest.mark.parametrize("at_once", [1 << 20, 100])
def test_rows_and_tokens_are_put_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(publish, "AT_ONCE_BYTES", at_once)
    place = memory_url("d/rows.pen")
    pen.convert({"row": ROWS}, place)
    pen.convert(place, str(place.with_name("x.shard")))
    assert contents(place.parent)["x.shard"] == encode_rows(ROWS)
    texts = ["one", "", "three"] * 50
    write_tokens(texts, tmp_path / "x.rox", separator=0)
    pen.convert({"text": texts}, place.with_name("x.rox"), separator=0)
    assert contents(place.parent)["x.rox"] == (tmp_path / "x.rox").read_bytes()
    for name in ("x.shard", "x.rox"):
        before = contents(place.parent)
        with pytest.raises(FileExistsError, match=f"this name exists already.*{name}"):
            pen.convert(place if name == "x.shard" else {"text": texts}, place.with_name(name))
        assert contents(place.parent) == before


def test_a_failure_leaves_no_rows_and_no_tokens_no_file() -> None:
    place = memory_url("x.shard")
    data = Flaky({"x": ROWS})
    data.fails_at = 400
    with pytest.raises(StoppedError):
        pen.convert(data, place)
    pen.convert({"text": np.empty((0, 3), np.uint8)}, place.with_name("x.rox"))
    assert keys(place) == []


def test_only_names_of_urls_take_storage_options(tmp_path: Path) -> None:
    write_rows(ROWS, tmp_path / "x.shard")
    with pytest.raises(ValueError, match="storage_options"):
        pen.convert(tmp_path / "x.shard", "memory://x/y.pen", storage_options={"no_such_option": 1})
    with pytest.raises(ValueError, match="storage_options"):
        pen.convert(tmp_path / "x.shard", tmp_path / "y.pen", storage_options={"region": "x"})
    assert not (tmp_path / "y.pen").exists()
    with pytest.raises(ValueError, match="storage_options"):
        pen.convert({"x": ["memory://x/y.npy"]}, tmp_path / "y.pen", storage_options={"no_such_option": 1})
    with pytest.raises(ValueError, match="storage_options"):
        pen.open(str(url_path("memory://x/y.pen")), mode="a", storage_options={"no_such_option": 1})
