"""The same batches from an object store: whatever is read, however it is shuffled, on any number of ranks, and after a resume."""

import gc
import io
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import every
from tests.formats.shards import tfrecord
from tests.remote.double import Double, Fault

import penstock as pen
from penstock.errors import BatchError, WindowTooSmallError
from penstock.loader.lookahead import Lookahead
from penstock.records import Source
from penstock.remote.url import url_path
from penstock.source import encode_rows, write_rows, write_tokens
from penstock.stream import Stream

WINDOW = 470_000
COUNT = 2_000


def upload(directory: Path, base: str, options: dict[str, Any]) -> None:
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        target = url_path(f"{base}/{path.relative_to(directory)}", options)
        target.objects.put(target.key, path.read_bytes())


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all kinds of fields, row shards and token blocks."""
    directory = tmp_path_factory.mktemp("data")
    chance = np.random.default_rng(7)
    rows = chance.normal(size=(COUNT, 64)).astype("f4")
    fields = {"x": pen.Field("f4", (64,), codec=pen.LZ4()), "y": pen.Field("i8"), "text": pen.Field.text(codec=pen.Zstd(3))}
    with pen.create(directory / "store", fields, chunk_bytes="32KiB") as out:
        out.extend({"x": rows, "y": np.arange(COUNT), "text": [f"record {i} " * (i % 7) for i in range(COUNT)]})
    with pen.create(directory / "plain", {"x": pen.Field("f4", (64,)), "y": pen.Field("i8")}, chunk_bytes="32KiB") as out:
        out.extend({"x": rows, "y": np.arange(COUNT)})
    (directory / "rows").mkdir()
    for number, part in enumerate(np.array_split(rows, 5)):
        write_rows(part, directory / f"rows/part-{number}.shard")
    (directory / "tokens").mkdir()
    write_tokens([np.arange(100_000, dtype="u2")], directory / "tokens/all.rox", block_size=128, max_shard_bytes=60_000)
    return directory


@pytest.fixture(scope="module")
def base(local: Path) -> str:
    """The same data in memory."""
    upload(local, "memory://remote-loader", {})
    return "memory://remote-loader"


@pytest.fixture
def remote(base: str) -> Iterator[Callable[..., Source]]:
    """Opens it."""
    opened: list[Source] = []

    def open_again(name: str, **options: Any) -> Source:
        opened.append(pen.open(f"{base}/{name}", **{"window_bytes": WINDOW, **options}))
        return opened[-1]

    yield open_again
    for source in opened:
        source.close()


STREAMS: dict[str, Callable[[Source], Stream]] = {
    "in order": lambda data: data.in_order(),
    "blocks": lambda data: data.shuffle(seed=5, block=100, window=4),
    "lanes": lambda data: data.shuffle(seed=5, block=64, window=2, lanes=4),
    "sample": lambda data: data.sample(seed=5),
    "slide": lambda data: data.slide(32, 16),
    "design": lambda data: data.design(seed=3, size=400),
    "without": lambda data: data.shuffle(seed=5, block=100, window=4).without([3, 4, 5]),
}

SEQUENCES: dict[str, Callable[[Source], Stream]] = {
    "in order": lambda data: data.in_order().sequences(100),
    "blocks": lambda data: data.shuffle(seed=5, block=16, window=4).sequences(100),
}


def same(one: Any, other: Any) -> bool:
    assert one.keys() == other.keys()
    for name, column in one.items():
        if isinstance(column, pen.Ragged):
            if list(column) != list(other[name]):
                return False
        elif not np.array_equal(np.asarray(column), np.asarray(other[name])):
            return False
    return True


def compare(a: pen.Loader, b: pen.Loader) -> int:
    steps = 0
    for one, other in zip(a, b, strict=True):
        assert same(one, other), f"batch {steps} differs"
        if steps % 5 == 0:
            assert without_dense(a) == without_dense(b)
        steps += 1
    assert without_dense(a) == without_dense(b)
    for one, other in ((a, b), (b, a)):
        one.load_state_dict(other.state_dict())
    return steps


def without_dense(loader: pen.Loader) -> dict[str, Any]:
    """The state but for the one digest that takes too many requests."""
    state = loader.state_dict()
    return state | {"samples": {name: digest for name, digest in state["samples"].items() if name != "dense"}}


CASES = [
    (kind, name, threads)
    for i, kind in enumerate(STREAMS)
    for j, name in enumerate(("store", "plain", "rows"))
    for threads in every(2, (0, 2), i + j)
]


@pytest.mark.parametrize(("kind", "name", "threads"), CASES)
@pytest.mark.sampled(5)
def test_local_and_remote_give_the_same_batches_and_states(
    local: Path, remote: Callable[..., Source], name: str, kind: str, threads: int
) -> None:
    there, here = remote(name), pen.open(local / name)
    make = STREAMS[kind]
    loaders = [pen.Loader(make(data), 48, threads=threads, ids="id") for data in (there, here)]
    assert compare(*loaders) > 5
    assert there.remote is not None
    assert there.remote.most_bytes <= WINDOW


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("threads", [0, 2])
def test_sequences_of_tokens_are_the_same(local: Path, remote: Callable[..., Source], kind: str, threads: int) -> None:
    there, here = remote("tokens"), pen.open(local / "tokens")
    loaders = [pen.Loader(SEQUENCES[kind](data), 16, threads=threads) for data in (there, here)]
    assert compare(*loaders) > 5


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in a store, with loss masks, and as TFRecord, here and in memory."""
    directory, chance = tmp_path_factory.mktemp("documents"), np.random.default_rng(8)
    tokens = [chance.integers(0, 250, size).astype("u1") for size in chance.integers(0, 200, 1200)]
    fields = {"tokens": pen.Field.ragged("u1", codec=pen.LZ4()), "loss_mask": pen.Field.ragged("u1"), "number": pen.Field("i4")}
    with pen.create(directory / "store", fields, chunk_records=60) as out:
        out.extend({"tokens": tokens, "loss_mask": [one % 2 for one in tokens], "number": np.arange(1200)})
    (directory / "all.tfrecord").write_bytes(tfrecord([one.tobytes() for one in tokens]))
    upload(directory, "memory://remote-documents", {})
    return directory


BLOCKS: Any = {"seed": 5, "block": 60, "window": 2}
DOCUMENTS: dict[str, Callable[[Source, str], Stream]] = {
    "sequences": lambda data, field: data.shuffle(**BLOCKS).sequences(100, field=field),
    "in order": lambda data, field: data.in_order().sequences(333, field=field, separator=[7, 8]),
    "selected": lambda data, field: data.select(np.arange(len(data))[::-3].copy()).shuffle(**BLOCKS).sequences(64, field=field),
    "packs": lambda data, field: data.shuffle(**BLOCKS).pack(128, field=field),
    "without": lambda data, field: data.shuffle(**BLOCKS).without(range(50, 90)).sequences(100, field=field),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("name", ["store", "all.tfrecord"])
def test_sequences_of_documents_are_read_natively_and_the_same(documents: Path, name: str, kind: str) -> None:
    window, field = 8 << 20, "tokens" if name == "store" else "data"
    with pen.open(f"memory://remote-documents/{name}", window_bytes=window) as there, pen.open(documents / name) as here:
        loaders = [pen.Loader(DOCUMENTS[kind](data, field), 16) for data in (there, here)]
        assert [loader.engine for loader in loaders] == ["native", "native"]
        assert compare(*loaders) > 5
        assert there.remote is not None
        assert there.remote.most_bytes <= window
        assert not any(
            one.holds for number in range(len(there.remote.files)) for one in there.remote.window.residency.ranges_of(number)
        )


@pytest.mark.parametrize("masks", ["of the same records", "of another source"])
def test_loss_masks_of_documents_are_held_with_their_tokens(documents: Path, masks: str) -> None:
    def make(base: str, **options: Any) -> Stream:
        data = pen.open(f"{base}/store", **options)
        if masks == "of another source":
            data = pen.open({"tokens": data.pick("tokens"), "loss_mask": pen.open(f"{base}/store", **options).pick("loss_mask")})
        return data.shuffle(**BLOCKS).sequences(100, field="tokens", fields=("tokens", "loss_mask"))

    streams = make("memory://remote-documents", window_bytes=8 << 20), make(str(documents))
    with pen.Loader(streams[0], 16) as there, pen.Loader(streams[1], 16) as here:
        assert there.engine == "native"
        assert sum(same(one, other) for one, other in zip(there, here, strict=True)) == len(here)


def test_documents_of_two_windows_are_mixed(documents: Path) -> None:
    def make(base: str, **options: Any) -> Stream:
        parts = {name: pen.open(f"{base}/{name}", **options) for name in ("store", "all.tfrecord")}
        fields = {"store": "tokens", "all.tfrecord": "data"}
        return pen.mix({name: one.shuffle(**BLOCKS).sequences(100, field=fields[name]) for name, one in parts.items()}, seed=2)

    streams = make("memory://remote-documents", window_bytes=8 << 20), make(str(documents))
    with pen.Loader(streams[0], 16) as there, pen.Loader(streams[1], 16) as here:
        assert there.engine == "native"
        assert sum(same(one, other) for one, other in zip(there, here, strict=True)) == len(here)


def test_mixtures_are_the_same(local: Path, remote: Callable[..., Source]) -> None:
    def make(plain: Source, store: Source) -> Stream:
        parts = {"a": plain.shuffle(seed=1, block=100, window=2), "b": store.shuffle(seed=2, block=80, window=2)}
        return pen.mix(parts, seed=3, weights={"a": 0.3, "b": 0.7}, stop="all_exhausted")

    sources = [remote("plain"), remote("plain")], [pen.open(local / "plain"), pen.open(local / "plain")]
    loaders = [pen.Loader(make(*pair), 64, ids="id") for pair in sources]
    assert compare(*loaders) > 5


@pytest.mark.parametrize("here", ["", "first", "second"])
def test_every_part_of_a_dict_is_waited_for(here: str) -> None:
    """One ring reads the fields of both, as their rows have the same numbers; the blocks of the second part come late."""
    rows = {name: np.random.default_rng(len(name)).standard_normal((600, 64), dtype=np.float32) for name in ("first", "second")}
    with Double() as double:
        for name, array in rows.items():
            double.put(f"{name}.shard", encode_rows(array))

        def opened(name: str) -> Source:
            if name == here:
                return pen.open({name: rows[name]})
            return pen.open(f"{double.base}/{name}.shard", storage_options=double.storage_options, window_bytes=190_000)

        data = pen.open({name: opened(name) for name in rows})
        double.plan("GET", "second.shard", Fault(delay_s=0.05), after=2, times=100)
        with pen.Loader(data.shuffle(seed=7, block=50, window=2), 40, ids="id") as loader:
            assert loader.engine == "native"
            for batch in loader:
                for name, array in rows.items():
                    assert np.array_equal(batch[name], array[batch["id"]])
        data.close()


@pytest.mark.parametrize("tail", ["drop", "pad", "wrap"])
def test_every_tail_over_two_epochs(local: Path, remote: Callable[..., Source], tail: str) -> None:
    loaders = [pen.Loader(STREAMS["blocks"](data), 128, tail=tail, ids="id") for data in (remote("rows"), pen.open(local / "rows"))]
    for _ in range(2):
        assert compare(*loaders) > 5


@pytest.mark.parametrize("name", ["store", "rows"])
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.sampled(5)
def test_resume_from_a_local_state_on_another_world(local: Path, remote: Callable[..., Source], name: str, world: int) -> None:
    make = STREAMS["lanes"]
    here = pen.Loader(make(pen.open(local / name)), 64, ids="id")
    before = here.forever()
    for _ in range(11):
        next(before)
    state = here.state_dict()
    whole = [next(before)["id"] for _ in range(10)]
    ranks = [pen.Loader(make(remote(name)), 64, ids="id", shard=pen.Shard(rank, world)) for rank in range(world)]
    for loader in ranks:
        loader.load_state_dict(state)
    streams = [loader.forever() for loader in ranks]
    for expected in whole:
        got = np.empty(64, np.int64)
        for rank, batches in enumerate(streams):
            got[rank::world] = next(batches)["id"]
        assert np.array_equal(got, expected)
    for batches in streams:
        batches.close()


def fetched(source: Source) -> list[tuple[str, int, int]]:
    """The log of the ranges that are fetched from now on."""
    assert source.remote is not None
    account = source.remote.files[0][0].objects.account
    account.log = []
    return account.log


def once(log: list[Any]) -> int:
    """How many bytes were fetched; none of them twice."""
    ranges = sorted((key, start, stop) for method, key, start, stop in log if method == "GET" and start is not None)
    for (key, _, stop), (next_key, start, _) in pairwise(ranges):
        assert key != next_key or stop <= start, "a byte was fetched twice"
    return sum(stop - start for _, start, stop in ranges)


@pytest.mark.parametrize("name", ["plain", "rows"])
def test_check_22_every_byte_is_fetched_once_an_epoch_within_the_window(remote: Callable[..., Source], name: str) -> None:
    data = remote(name)
    block = data.blocks.size
    assert data.remote is not None
    size = sum(info.size for _, info in data.remote.files)
    for epoch in range(2):
        loader = pen.Loader(data.shuffle(seed=epoch, block=block, window=2), 32)
        forecast = loader.forecast()
        log = fetched(data)
        for _ in loader:
            assert sum(landing.resident() for landing in data.remote.landings) <= WINDOW
        assert once(log) == forecast.bytes <= size
        assert forecast.bytes >= 0.98 * size
        assert len([entry for entry in log if entry[0] == "GET"]) == forecast.requests
        assert forecast.peak_bytes <= WINDOW


def test_check_22_in_order_the_files_are_fetched_in_their_order(remote: Callable[..., Source]) -> None:
    data = remote("rows")
    log = fetched(data)
    assert sum(len(batch["row"]) for batch in pen.Loader(data, 100)) == COUNT
    keys = [key for method, key, _, _ in log if method == "GET"]
    assert once(log) == COUNT * 64 * 4
    assert sorted(set(keys)) == list(dict.fromkeys(sorted(keys)))


def test_check_23_the_first_batch_comes_after_at_most_one_window_of_bytes(remote: Callable[..., Source]) -> None:
    data = remote("rows", window_bytes=100_000)
    log = fetched(data)
    with pen.Loader(data, 16).forever() as batches:
        next(batches)
        assert once(list(log)) <= 100_000


def test_ranks_with_a_lane_of_their_own_fetch_disjoint_blocks(local: Path, remote: Callable[..., Source]) -> None:
    seen: list[set[tuple[str, int, int]]] = []
    total = 0
    for rank in range(4):
        data = remote("rows")
        log = fetched(data)
        stream = data.shuffle(seed=9, block=50, window=2, lanes=4)
        for _ in pen.Loader(stream, 64, shard=pen.Shard(rank, 4), tail="drop"):
            pass
        total += once(log)
        seen.append({(key, start, stop) for method, key, start, stop in log if method == "GET"})
    for one in range(4):
        for other in range(one):
            assert not seen[one] & seen[other]
    assert total == COUNT * 64 * 4


def test_a_window_too_small_for_a_group_is_an_error_and_no_hang(remote: Callable[..., Source]) -> None:
    data = remote("rows", window_bytes=65_536)
    with pytest.raises((BatchError, WindowTooSmallError), match="window"):
        list(pen.Loader(data.shuffle(seed=1, block=400, window=2), 32))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", ["npy", "map"])
@pytest.mark.sampled(3)
def test_batches_of_scattered_records_may_be_larger_than_the_window(tmp_path: Path, kind: str, threads: int) -> None:
    rows = np.arange(1_000 * 256, dtype=np.float32).reshape(1_000, 256)
    np.save(tmp_path / "rows.npy", rows)
    upload(tmp_path, "memory://remote-large-batches", {})
    with pen.open("memory://remote-large-batches/rows.npy", window_bytes="256KiB") as data:
        source = data.map(dict, schema=data.schema) if kind == "map" else data
        found = pen.Loader(source.shuffle(seed=3, block=1, window=1_000), 300, threads=threads)
        expected = pen.Loader(pen.open({"data": rows}).shuffle(seed=3, block=1, window=1_000), 300, threads=0)
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
        assert data.remote is not None
        assert data.remote.most_bytes <= data.remote.window_bytes


def test_stats_count_what_came_over_the_network(remote: Callable[..., Source], tmp_path: Path) -> None:
    data = remote("rows", cache=tmp_path / "cache", cache_bytes="10MB")
    loader = pen.Loader(data.shuffle(seed=1, block=100, window=2), 32)
    list(loader)
    first = loader.stats().network
    assert first.bytes == COUNT * 64 * 4
    assert first.cached_bytes == 0
    assert 0 < first.requests <= 40
    again = pen.Loader(remote("rows", cache=tmp_path / "cache", cache_bytes="10MB").shuffle(seed=1, block=100, window=2), 32)
    list(again)
    assert again.stats().network.bytes == 0
    assert again.stats().network.cached_bytes == COUNT * 64 * 4


def test_seek_and_early_stop_let_go_of_the_window(remote: Callable[..., Source]) -> None:
    data = remote("plain")
    loader = pen.Loader(data.shuffle(seed=1, block=100, window=2), 32, ids="id")
    expected = [batch["id"] for batch in loader]
    for step in (35, 3, 58, 0):
        loader.seek(step)
        with loader.forever() as batches:
            for place in range(step, step + 3):
                assert np.array_equal(next(batches)["id"], expected[place])
    assert data.remote is not None
    data.close()
    assert data.remote.used_bytes == 0


def test_local_data_has_an_empty_forecast(local: Path) -> None:
    forecast = pen.Loader(pen.open(local / "rows").shuffle(seed=1), 32).forecast()
    assert (forecast.bytes, forecast.requests, forecast.peak_bytes) == (0, 0, 0)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("name", ["store", "plain", "rows"])
def test_a_source_that_is_closed_under_a_loader_is_an_error_and_no_crash(
    remote: Callable[..., Source], name: str, threads: int
) -> None:
    data = remote(name)
    batches = iter(pen.Loader(data.shuffle(seed=1, block=100, window=2), 32, threads=threads))
    next(batches)
    data.close()
    with pytest.raises((BatchError, ValueError), match="closed"):
        for _ in batches:
            pass


@pytest.mark.parametrize("kind", every(2, ["blocks", "sample"]))
def test_two_loaders_in_two_threads_share_a_small_window(local: Path, remote: Callable[..., Source], kind: str) -> None:
    data = remote("plain")
    expected = [batch["y"] for batch in pen.Loader(STREAMS[kind](pen.open(local / "plain")), 48)]
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for batch, ids in zip(pen.Loader(STREAMS[kind](data), 48), expected, strict=True):
                assert np.array_equal(batch["y"], ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_the_plan_says_what_leaves_a_cache_that_is_too_small_for_an_epoch(remote: Callable[..., Source], tmp_path: Path) -> None:
    """In order, what was used longest ago is what comes next: a cache that removed that would never have anything."""
    size = COUNT * 64 * 4
    served = []
    for _ in range(3):
        data = remote("rows", window_bytes=70_000, cache=tmp_path / "cache", cache_bytes=size // 2)
        assert sum(len(batch["row"]) for batch in pen.Loader(data, 50)) == COUNT
        network = pen.Loader(data, 50).stats().network
        assert network.bytes + network.cached_bytes == size
        assert (network.cache_hits == 0) == (network.cached_bytes == 0)
        served.append(network.cached_bytes)
        data.close()
    assert served[0] == 0
    assert min(served[1:]) > size / 4


def test_an_iterator_collected_as_garbage_while_a_window_changes_is_closed_behind_that() -> None:
    """It was closed by the thread that had just laid hands on the window: an IndexError in the loader that did."""
    root = url_path("memory://garbage/x.npy")
    file = io.BytesIO()
    np.save(file, np.arange(100_000))
    root.objects.put(root.key, file.getvalue())
    with pen.open(str(root), window_bytes=100_000) as source:
        window = source.remote
        assert window is not None
        gc.disable()
        try:
            batches: Any = iter(pen.Loader(source.shuffle(seed=1, block=500, window=4), 64, threads=0))
            next(batches)
            batches.itself = batches  # only the garbage collection finds it
            del batches
            with window.window.lock:
                gc.collect(0)  # it is young
                assert len(window.window.prefetchers) == 1
        finally:
            gc.enable()
        for thread in threading.enumerate():
            if thread.name == "penstock-close":
                thread.join(300)
        assert window.window.prefetchers == []
        list(
            pen.Loader(source.select(slice(0, 64)), 64, threads=0)
        )  # its end, in the main thread, puts the program's handler of SIGINT back


def test_a_slice_of_large_data_is_read_through_a_window_that_is_smaller_than_a_block(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (10_000, 1024), dtype=np.uint8)
    np.save(tmp_path / "rows.npy", rows)
    upload(tmp_path, "memory://remote-slice", {})
    for part in (slice(0, 300), slice(8_100, 8_400)):  # blocks of 8192 rows
        with pen.open("memory://remote-slice/rows.npy", window_bytes="1MiB") as data:
            found = pen.Loader(data.select(part).shuffle(seed=3, block=1, window=300), 16, threads=2)
            expected = pen.Loader(pen.open({"data": rows[part]}).shuffle(seed=3, block=1, window=300), 16, threads=0)
            assert all(same(one, other) for one, other in zip(found, expected, strict=True))
            assert data.remote is not None
            assert data.remote.fetched_bytes <= 301 * 1024


@pytest.fixture(scope="module")
def small_parts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 stores of 10 records."""
    directory = tmp_path_factory.mktemp("small")
    for number in range(120):
        with pen.create(directory / f"{number:03}", {"x": pen.Field("i8")}) as out:
            out.extend({"x": np.arange(10) + 10 * number})
    upload(directory, "memory://remote-small", {})
    return "memory://remote-small/*"


@pytest.mark.parametrize("window", [100_000, 400_000])
@pytest.mark.parametrize("kind", ["in order", "blocks"])
@pytest.mark.sampled(3)
def test_many_small_parts_take_a_page_each(small_parts: str, kind: str, window: int) -> None:
    make = {"in order": lambda data: data.in_order(), "blocks": lambda data: data.shuffle(seed=5, block=10, window=4)}[kind]
    with pen.open(small_parts, window_bytes=window) as data:
        expected = pen.Loader(make(pen.open({"x": np.arange(1200)})), 8, threads=0)
        found = pen.Loader(make(data), 8, threads=2)
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))


def test_what_is_kept_is_fetched_once_in_all_epochs(remote: Callable[..., Source]) -> None:
    data = remote("rows", window_bytes="4MiB")
    loader = pen.Loader(data.shuffle(seed=5, block=1, window=COUNT), 100, threads=2)
    for _ in range(3):
        assert sum(1 for _ in loader) == COUNT // 100
    assert data.remote is not None
    assert data.remote.fetched_bytes <= COUNT * 256 + 5 * 100


def test_two_loaders_each_of_which_could_keep_its_data_share_a_window(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (4_000, 1024), dtype=np.uint8)
    np.save(tmp_path / "rows.npy", rows)
    upload(tmp_path, "memory://remote-both", {})
    with pen.open("memory://remote-both/rows.npy", window_bytes="3000KiB") as data:
        parts = [slice(0, 2_000), slice(2_000, 4_000)]
        found = [
            pen.Loader(data.select(part).shuffle(seed=3, block=1, window=2_000), 16, threads=2, prefetch=40_000) for part in parts
        ]
        expected = [
            pen.Loader(pen.open({"data": rows[part]}).shuffle(seed=3, block=1, window=2_000), 16, threads=0) for part in parts
        ]
        for batches in zip(*found, *expected, strict=True):
            assert same(batches[0], batches[2])
            assert same(batches[1], batches[3])


def test_runs_of_tokens_that_cross_blocks_are_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.token_line.BLOCK_BYTES", 6_000)
    write_tokens([np.arange(50_000, dtype="u2")], tmp_path / "all.rox", block_size=100)
    upload(tmp_path, "memory://remote-crossing", {})
    with pen.open("memory://remote-crossing/all.rox", window_bytes="1MiB") as data:
        run = pen.Loader(data.in_order().sequences(700), 4)
        ahead = Lookahead(run.work, run.schedule, run.remaining())
        leaf = data.token_leaf  # type: ignore[attr-defined]
        starts, stops = np.array([2_900]), np.array([9_100])
        with ahead.hold([(leaf, starts, stops)]):
            window = leaf.remote.window
            held = [one for one in window.residency.ranges_of(0) if one.holds]
            assert min(one.start for one in held) <= leaf.extents(starts, stops)[1][0]
            assert max(one.stop for one in held) >= leaf.extents(starts, stops)[2][0]
        ahead.close()


@pytest.mark.parametrize(("kind", "window"), every(3, list(product(["blocks", "global"], ["600KiB", "1MiB", "1500KiB"])), 1))
def test_an_evaluation_in_the_middle_of_a_training_loop_shares_its_window(tmp_path: Path, kind: str, window: str) -> None:
    rows = np.arange(3_000 * 200, dtype=np.float32).reshape(3_000, 200)
    np.save(tmp_path / "rows.npy", rows)
    with pen.create(tmp_path / "store", {"data": pen.Field("f4", (200,))}, chunk_records=50) as out:
        out.extend({"data": rows})
    upload(tmp_path, "memory://remote-evaluation", {})
    how: Any = {"blocks": {"block": 50, "window": 2}, "global": {"block": 1, "window": 3_000}}[kind]
    for name in ("rows.npy", "store"):
        data = pen.open(f"memory://remote-evaluation/{name}", window_bytes=window)
        with data, pen.Loader(data.shuffle(seed=4, **how), 10, ids="id") as train:
            for step, batch in zip(range(30), train, strict=False):
                assert np.array_equal(batch["data"], rows[batch["id"]])
                if step == 15:
                    with pen.Loader(data.in_order(), 30) as evaluation:
                        found = np.concatenate([one["data"] for one in evaluation])
                    assert np.array_equal(found, rows)


def test_batches_that_are_read_ahead_leave_most_of_the_window_to_others(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((3_000, 200), np.float32))
    upload(tmp_path, "memory://remote-pins", {})
    with pen.open("memory://remote-pins/rows.npy", window_bytes="800KiB") as data:
        for how in ({"block": 10, "window": 2}, {"block": 1, "window": 3_000}):
            with pen.Loader(data.shuffle(seed=4, **how), 10) as loader:
                assert loader.engine == "native"
                batches = iter(loader)
                for _ in range(30):
                    next(batches)
                    assert data.remote is not None
                    assert sum(one.cost for one in data.remote.window.residency.ranges_of(0) if one.holds) <= 400 << 10
