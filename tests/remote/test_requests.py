"""Requests, counted by a server: however sources are combined, every byte is fetched once, in about as few requests as can be."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import every
from tests.remote.double import Double

import penstock as pen
from penstock.remote.residency import PIECE_BYTES
from penstock.source import encode_rows, write_collection
from penstock.stream import Stream

RECORDS, WIDTH, PARTS = 2400, 64, 12
FIELDS = {"row": pen.Field("f4", (WIDTH,))}
ROWS = np.arange(RECORDS * WIDTH, dtype=np.float32).reshape(RECORDS, WIDTH)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    """One store of all records, and twelve of a part of them each; chunks of 50 records."""
    path = tmp_path_factory.mktemp("stores")
    with Double() as double:
        for name, rows in [("all", ROWS), *((f"part{n:02d}", part) for n, part in enumerate(np.split(ROWS, PARTS)))]:
            with pen.create(path / f"{name}.pen", FIELDS, chunk_records=50) as out:
                out.extend({"row": rows})
            put(double, path / f"{name}.pen")
        yield double


def put(server: Double, path: Path) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            server.put(f"{path.name}/{file.relative_to(path)}", file.read_bytes())


def data_requests(server: Double) -> list[tuple[int, int]]:
    """The ranges of records that were asked for; not manifests and listings."""
    return [request.range for request in server.requests("GET") if "/chunk" in request.key and request.range is not None]


def run(server: Double, open_stream: Callable[[dict[str, Any]], Stream], **options: Any) -> tuple[int, int]:
    """Load an epoch; the requests for data and their bytes, which the loader must have foreseen and counted."""
    stream = open_stream({"storage_options": server.storage_options, **options})
    server.clear()
    with pen.Loader(stream, 100) as loader:
        foreseen = loader.forecast()
        before = loader.stats().network
        found = [int(row) for batch in loader for row in np.asarray(next(iter(batch.values()))).reshape(-1, WIDTH)[:, 0]]
        after = loader.stats().network
        asked = data_requests(server)
        size = sum(stop - start for start, stop in asked)
    stream.close()
    assert len(set(found)) == len(found)
    assert (foreseen.requests, foreseen.bytes) == (len(asked), size)
    assert (after.requests - before.requests, after.bytes - before.bytes) == (len(asked), size)
    return len(asked), size


def test_combined_stores_take_as_many_requests_as_one(server: Double, tmp_path: Path) -> None:
    def opened(name: str, options: Any) -> pen.Source:
        return pen.open(f"{server.base}/{name}.pen", **options)

    urls = [f"{server.base}/part{number:02d}.pen" for number in range(PARTS)]
    write_collection(urls, f"{server.base}/all.json", storage_options=server.storage_options)
    streams: dict[str, Callable[[Any], Stream]] = {
        "list": lambda options: pen.open(urls, **options).shuffle(seed=7),
        "list, small blocks": lambda options: pen.open(urls, **options).shuffle(seed=7, block=50, window=2),
        "collection": lambda options: pen.open(f"{server.base}/all.json", **options).shuffle(seed=7),
        "select": lambda options: opened("all", options).select(slice(100, 2300)).shuffle(seed=7),
        "select, not aligned": lambda options: opened("all", options).select(slice(17, 2391)).shuffle(seed=7),
        "pick": lambda options: opened("all", options).pick("row").shuffle(seed=7),
        "dict": lambda options: pen.open({"a": opened("all", options)}).shuffle(seed=7),
        "map": lambda options: opened("all", options).map(dict, schema=FIELDS).shuffle(seed=7),
        "mix": lambda options: pen.mix(
            {name: pen.open(name, **options).shuffle(seed=7) for name in urls[:6]}
            | {"rest": pen.open(urls[6:], **options).shuffle(seed=7)},
            weights=dict.fromkeys(urls[:6], 1) | {"rest": 6},
            seed=1,
            stop="first_exhausted",
        ),
        "in order": lambda options: pen.open(urls, **options).in_order(),
    }
    plain, size = run(server, lambda options: opened("all", options).shuffle(seed=7))
    assert size <= ROWS.nbytes * 1.25
    for name in every(3, list(streams)):
        requests, asked = run(server, streams[name])
        assert requests <= 1.1 * plain, name
        assert asked <= 1.1 * size, name


def test_a_window_that_is_small_is_shared_by_the_stores_of_a_list(server: Double) -> None:
    urls = [f"{server.base}/part{number:02d}.pen" for number in range(PARTS)]
    plain, size = run(
        server, lambda o: pen.open(f"{server.base}/all.pen", **o).shuffle(seed=7, block=50, window=4), window_bytes="200KiB"
    )
    requests, asked = run(server, lambda o: pen.open(urls, **o).shuffle(seed=7, block=50, window=4), window_bytes="200KiB")
    assert requests <= 1.1 * plain
    assert asked <= 1.1 * size


@pytest.mark.parametrize(
    ("kind", "megabytes"),
    [(kind, size) for i, kind in enumerate(("shard", "npy")) for size in every(5, [1, 20, 60, 120, 160], i + 1)],
)
def test_a_file_of_rows_is_fetched_in_large_pieces_whatever_its_size(kind: str, megabytes: int) -> None:
    rows = np.repeat(np.arange(megabytes * 250, dtype=np.float32)[:, None], 1024, axis=1)
    if kind == "npy":
        file = io.BytesIO()
        np.save(file, rows)
        data = file.getvalue()
    else:
        data = encode_rows(rows)
    with Double() as double:
        double.put(f"x.{kind}", data)
        with pen.open(f"{double.base}/x.{kind}", storage_options=double.storage_options) as source:
            loader = pen.Loader(source.shuffle(seed=7), 256)
            seen = np.concatenate([next(iter(batch.values()))[:, 0] for batch in loader])
            loader.close()
        assert np.array_equal(np.sort(seen), rows[:, 0])
        assert len(double.requests("GET")) <= len(data) / PIECE_BYTES + 5


CHOICES: dict[str, Callable[[pen.Source], pen.Source]] = {
    "few records": lambda data: data.select([0, 1500, 2399]),
    "few records through a function": lambda data: data.select([0, 1500, 2399]).map(dict, schema=data.schema),
    "few results of a function": lambda data: data.map(dict, schema=data.schema).select([0, 1500, 2399]),
    "a slice": lambda data: data.select(slice(1000, 1003)),
    "a slice through a function": lambda data: data.select(slice(1000, 1003)).map(dict, schema=data.schema),
    "a slice of a slice through functions": lambda data: (
        data.select(slice(900, 1100)).map(dict, schema=data.schema).select(slice(100, 103)).map(dict, schema=data.schema)
    ),
    "a slice in a dict": lambda data: pen.open({"a": data.select(slice(1000, 1003)), "b": np.zeros(3)}),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_of_few_records_only_their_bytes_are_fetched(choice: str) -> None:
    file = io.BytesIO()
    np.save(file, ROWS.repeat(8, axis=1))
    with Double() as double:
        double.put("x.npy", file.getvalue())
        with pen.open(f"{double.base}/x.npy", storage_options=double.storage_options) as source:
            double.clear()
            with pen.Loader(CHOICES[choice](source).in_order(), 3) as loader:
                foreseen = loader.forecast()
                (batch,) = loader
                network = loader.stats().network
            asked = [request.range for request in double.requests("GET") if request.range is not None]
    found = sum(stop - start for start, stop in asked)
    assert len(next(iter(batch.values()))) == 3
    assert found <= 4 * 8 * ROWS[0].nbytes
    assert (foreseen.bytes, network.bytes) == (found, found)


@pytest.mark.parametrize("kind", every(2, ["list", "collection"]))
def test_however_many_stores_at_urls_are_read_together_their_requests_are_counted(tmp_path: Path, kind: str) -> None:
    one = tmp_path / "one.pen"
    with pen.create(one, FIELDS) as out:
        out.extend({"row": ROWS[:4]})
    files = {file.relative_to(one): file.read_bytes() for file in one.rglob("*") if file.is_file()}
    with Double() as double:
        urls = [f"{double.base}/{number:03}.pen" for number in range(260)]
        for number in range(260):
            for name, data in files.items():
                double.put(f"{number:03}.pen/{name}", data)
        if kind == "collection":
            write_collection(urls, f"{double.base}/all.json", storage_options=double.storage_options)
        what: Any = urls if kind == "list" else f"{double.base}/all.json"
        with pen.open(what, storage_options=double.storage_options) as source:
            double.clear()
            with pen.Loader(source.shuffle(seed=1, block=4), 52) as loader:
                assert loader.engine == "native"
                foreseen, before = loader.forecast(), loader.stats().network
                assert sum(len(batch["row"]) for batch in loader) == 260 * 4
                after = loader.stats().network
        asked = data_requests(double)
    assert len(asked) == foreseen.requests == after.requests - before.requests == 260
    assert sum(stop - start for start, stop in asked) == foreseen.bytes == after.bytes - before.bytes


@pytest.mark.parametrize("block", [20, 70, 130])
@pytest.mark.sampled(2)
def test_chunks_of_which_blocks_have_a_small_part_are_fetched_once_for_each_block(server: Double, block: int) -> None:
    touched = sum(-(-min(RECORDS, start + block) // 50) - start // 50 for start in range(0, RECORDS, block))
    with pen.open(f"{server.base}/all.pen", storage_options=server.storage_options, window_bytes="500KiB") as source:
        server.clear()
        with pen.Loader(source.shuffle(seed=7, block=block, window=2), 40) as loader:
            foreseen = loader.forecast()
            found = [batch["row"] for batch in loader]
    asked = data_requests(server)
    assert np.array_equal(np.sort(np.concatenate(found)[:, 0]), ROWS[:, 0])
    assert RECORDS // 50 <= len(asked) <= foreseen.requests <= touched  # blocks that are in memory at a time share theirs


def test_a_window_without_room_for_chunks_of_which_blocks_have_a_small_part_is_no_error(server: Double) -> None:
    with pen.open(f"{server.base}/all.pen", storage_options=server.storage_options, window_bytes="150KiB") as source:
        for threads in (0, 2):
            with pen.Loader(source.shuffle(seed=7, block=70, window=2), 20, threads=threads) as loader:
                assert np.array_equal(np.sort(np.concatenate([batch["row"] for batch in loader])[:, 0]), ROWS[:, 0])


def test_a_plan_of_a_mixture_says_what_the_run_then_fetches(server: Double) -> None:
    """Bytes and requests of each of two ranks, over the ends of epochs, a cap and an amendment."""
    options: dict[str, Any] = {"storage_options": server.storage_options}
    for rank in range(2):
        parts = [pen.open(f"{server.base}/part{number:02d}.pen", **options).shuffle(seed=number, block=25) for number in range(3)]
        two = {"a": parts[0], "b": parts[1]}
        mixed = pen.mix(two, weights={"a": 2, "b": 1}, seed=5, stop="forever", max_epochs={"a": 1.5, "b": 2})
        amended = mixed.amend(6, weights={"a": 1, "b": 1, "c": 2}, add={"c": parts[2]}, max_epochs={"c": 0.7})
        with pen.Loader(amended, 40, shard=pen.Shard(rank, 2)) as loader:
            found = pen.plan(loader)
            server.clear()
            before = loader.stats().network
            assert sum(1 for _ in loader.forever()) == found.steps
            after = loader.stats().network
        asked = data_requests(server)
        amended.close()
        assert (after.requests - before.requests, after.bytes - before.bytes) == (found.requests, found.bytes)
        assert (len(asked), sum(stop - start for start, stop in asked)) == (found.requests, found.bytes)
        assert found.requests > 10
