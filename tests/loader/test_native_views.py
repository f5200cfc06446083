"""Selections, lists, dicts and mixtures of plain data, in any combination: read by native threads as the caller reads them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import BatchError
from penstock.loader.lookahead import StreamReads, disk_extents
from penstock.loader.native_engine import native_groups
from penstock.records import Source
from penstock.source import write_collection
from penstock.stream import Stream

COUNT = 60


def write_store(path: Path, low: int, *, missing: bool = False) -> None:
    with pen.create(path, {"x": pen.Field("i8", nullable=missing), "y": pen.Field("f4", (3,))}, chunk_records=16) as out:
        for i in range(low, low + COUNT):
            out.append({"x": None if missing and i % 5 == 0 else i, "y": np.full(3, i, np.float32)})


@pytest.fixture
def data(tmp_path: Path) -> Iterator[dict[str, Source]]:
    write_store(tmp_path / "a.pen", 0)
    write_store(tmp_path / "b.pen", 100, missing=True)
    write_collection([tmp_path / "a.pen", tmp_path / "b.pen"], tmp_path / "both.json")
    np.save(tmp_path / "z.npy", np.arange(COUNT) * 10)
    np.save(tmp_path / "w.npy", np.arange(COUNT) * 100)
    opened = {name: pen.open(tmp_path / name) for name in ("a.pen", "b.pen", "both.json", "z.npy", "w.npy")}
    yield opened
    for source in opened.values():
        source.close()


Made = Callable[[dict[str, Source]], Source]
EVENS = np.arange(0, COUNT, 2)

SOURCES: dict[str, Made] = {
    "slice": lambda d: d["a.pen"].select(slice(7, 55)),
    "reversed": lambda d: d["a.pen"].select(slice(None, None, -3)),
    "chosen": lambda d: d["b.pen"].select([5, 5, 0, 59, 3, 17]),
    "slice of chosen": lambda d: d["a.pen"].select(EVENS).select(slice(3, 20, 2)),
    "list": lambda d: pen.open([d["a.pen"], d["b.pen"]]),
    "list of selections": lambda d: pen.open([d["a.pen"].select(slice(40)), d["b.pen"].select([9, 8, 7]), d["a.pen"]]),
    "list of lists": lambda d: pen.open([pen.open([d["a.pen"], d["b.pen"]]), d["b.pen"].select(slice(5, None))]),
    "selection of a list": lambda d: pen.open([d["a.pen"], d["b.pen"]]).select(slice(110, 3, -2)),
    "chosen of a list": lambda d: pen.open([d["a.pen"], d["b.pen"]]).select(np.random.default_rng(0).permutation(2 * COUNT)),
    "pick": lambda d: pen.open([d["b.pen"], d["a.pen"]]).pick("y"),
    "collection": lambda d: d["both.json"],
    "dict": lambda d: pen.open({"s": d["a.pen"], "z": d["z.npy"]}),
    "dict of other rows": lambda d: pen.open({"s": d["a.pen"].select(slice(None, None, -1)), "z": d["z.npy"], "w": d["w.npy"]}),
}
SOURCES["dict of lists"] = lambda d: pen.open(
    {
        "s": pen.open([d["a.pen"], d["b.pen"]]),
        "z": pen.open([d["z.npy"].select(slice(20)), d["w.npy"], d["z.npy"].select(slice(20, None))]),
    }
).select(slice(2, 100))


def mixed(d: dict[str, Source]) -> Stream:
    a, b = d["a.pen"].shuffle(seed=1), pen.open([d["b.pen"], d["a.pen"]]).select(slice(3, None)).shuffle(seed=2)
    inner = pen.mix({"a": a, "b": b}, weights={"a": 1, "b": 2}, seed=3)
    return pen.mix({"inner": inner, "c": d["b.pen"].select(EVENS).shuffle(seed=4)}, weights={"inner": 2, "c": 1}, seed=5)


def plain(batch: Any) -> dict[str, Any]:
    return {name: (np.ma.getdata(column).tolist(), np.ma.getmaskarray(column).tolist()) for name, column in batch.items()}


def assert_native(stream: Stream, *, tail: str = "keep") -> None:
    assert native_groups(stream) is not None
    loaders = [pen.Loader(stream, 9, tail=tail, threads=threads, ids="id") for threads in (0, 2)]
    for expected, found in zip(*(loader.forever() for loader in loaders), strict=True):
        assert list(expected) == list(found)
        for name in expected:
            assert type(expected[name]) is type(found[name])
        assert plain(expected) == plain(found)
        assert loaders[0].state_dict() == loaders[1].state_dict()
        if loaders[0].step == 20:
            break
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.sampled(2)
def test_views_are_read_natively(data: dict[str, Source], name: str) -> None:
    assert_native(SOURCES[name](data).shuffle(seed=7))
    assert_native(SOURCES[name](data).in_order(), tail="wrap")


def test_records_of_views_are_those_of_their_leaves(data: dict[str, Source]) -> None:
    """As plain Python says."""
    records = [data["a.pen"][i]["x"] for i in range(COUNT)] + [data["b.pen"][i]["x"] for i in range(COUNT)]
    order = np.random.default_rng(0).permutation(2 * COUNT)
    loader = pen.Loader(SOURCES["chosen of a list"](data), 24, threads=2)
    found = [None if missing else value for batch in loader for value, missing in zip(*plain(batch)["x"], strict=True)]
    assert found == [None if records[i] is None else int(records[i]) for i in order]


def test_mixtures_in_mixtures_are_read_natively(data: dict[str, Source]) -> None:
    assert_native(mixed(data))


def test_sequences_of_mixtures_in_mixtures_are_read_natively(tmp_path: Path) -> None:
    for number in range(3):
        pen.source.write_tokens([np.arange(500, dtype=np.uint16) + 1000 * number], tmp_path / f"{number}.rox", block_size=16)
    streams = [pen.open(tmp_path / f"{number}.rox").shuffle(seed=number).sequences(12) for number in range(3)]
    inner = pen.mix({"a": streams[0], "b": streams[1]}, seed=1)
    assert_native(pen.mix({"inner": inner, "c": streams[2]}, seed=2))


def on_disk(source: Source, units: range) -> list[tuple[str, int, int]]:
    return list(disk_extents(StreamReads(source.in_order()), units))


def test_views_are_read_ahead_where_their_leaves_are(data: dict[str, Source]) -> None:
    a, b, whole = data["a.pen"], data["b.pen"], pen.open([data["a.pen"], data["b.pen"]])
    assert on_disk(a, range(10, 15)) != []
    assert on_disk(whole, range(50, 70)) == [*on_disk(a, range(50, 60)), *on_disk(b, range(10))]
    assert on_disk(whole.select(slice(10, None)), range(5)) == on_disk(a, range(10, 15))
    assert on_disk(a.select([3, 4, 5]).map(dict), range(3)) == on_disk(a, range(3, 6))
    assert set(on_disk(a.select([3, 1, 2]), range(3))) <= {place for i in range(4) for place in on_disk(a, range(i, i + 1))}


@pytest.mark.parametrize("ids", [range(-3, 2), range(38, 43), range(5, -2, -1), range(60, 61)])
def test_a_range_is_taken_as_a_list_of_the_same_ids_is(data: dict[str, Source], ids: range) -> None:
    """Also where it is outside of the records: natively, memory behind them was read."""
    small = data["a.pen"].select(slice(40))
    if max(ids) >= 40:
        with pytest.raises(IndexError):
            small.select(ids)
        return
    found = [batch["x"].tolist() for batch in pen.Loader(small.select(ids), 99, threads=2)]
    assert found == [small[list(ids)]["x"].tolist()]


class Interrupted:
    """A ring, before the first take of which a handler of a signal raises."""

    def __init__(self, ring: Any) -> None:
        self._ring, self._is_first = ring, True

    def take(self) -> Any:
        if self._is_first:
            self._is_first = False
            raise TimeoutError("from a handler")
        return self._ring.take()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)


@pytest.mark.parametrize("number", [0, 1])
def test_after_an_exception_of_a_signal_handler_the_loader_goes_on_with_the_batch_that_was_not_taken(
    data: dict[str, Source], number: int
) -> None:
    stream = SOURCES["dict of other rows"](data).in_order()
    expected = [plain(batch) for batch in pen.Loader(stream, 4, threads=0)]
    loader = pen.Loader(stream, 4, threads=2)
    batches = iter(loader)
    found = [plain(next(batches))]
    rings = batches._opened.engine._rings  # type: ignore[union-attr]
    rings[number] = Interrupted(rings[number])
    with pytest.raises(TimeoutError, match="from a handler"):
        next(batches)
    assert found + [plain(batch) for batch in loader] == expected


def test_a_part_that_is_gone_fails_the_batch_that_needs_it(data: dict[str, Source], tmp_path: Path) -> None:
    with pen.open(tmp_path / "both.json") as whole:
        (tmp_path / "b.pen").rename(tmp_path / "gone.pen")
        batches = iter(pen.Loader(whole, 12, threads=2))
        assert [len(next(batches)["x"]) for _ in range(5)] == [12] * 5
        with pytest.raises(BatchError, match=r"step 5.*b\.pen"):
            next(batches)


@pytest.mark.parametrize("names", [("a.pen", "b.pen"), ("b.pen", "a.pen")])
def test_the_limit_of_any_store_in_a_dict_holds(data: dict[str, Source], tmp_path: Path, names: tuple[str, str]) -> None:
    with pen.open(tmp_path / "b.pen", max_batch_bytes=200) as bounded:
        stream = pen.open({name: bounded if name == "b.pen" else data[name] for name in names}).in_order()
        assert_native(stream)  # 9 records of at most 12 bytes
        for threads in (0, 2):
            with pen.Loader(stream, 20, threads=threads) as loader, pytest.raises(BatchError, match="BatchTooLargeError"):
                next(iter(loader))


def test_the_limit_of_a_store_is_for_its_own_fields(data: dict[str, Source], tmp_path: Path) -> None:
    with pen.open(tmp_path / "a.pen", max_batch_bytes=200) as bounded:
        stream = pen.open({"x": bounded.pick("x"), "y": data["b.pen"].pick("y")}).in_order()
        with pen.Loader(stream, 20, threads=2) as loader:  # 160 and 240 bytes
            next(iter(loader))
            assert loader.engine == "native"
