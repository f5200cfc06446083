"""Which records are in which batch, beside plain lists."""

from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from tests.effort import every
from tests.loader.model import (
    SIZES,
    TAILS,
    WORLDS,
    delivered_ids,
    make_orders,
    make_source,
    make_stream,
    naive_batches,
    naive_ids,
    naive_place,
    refuses,
    unite,
)

import penstock as pen
from penstock.loader.schedule import EpochSchedule
from penstock.order import Shard, Sliding
from penstock.stream import RecordStream


def identity(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(("n", "world", "tail"), every(7, list(product(SIZES, WORLDS, TAILS))))
def test_check_34_ranks_together_deliver_what_plain_lists_say(n: int, world: int, tail: str) -> None:
    order = make_orders(n)["shuffle"]
    sizes = (world, 2 * world, 5 * world) if n < 97 else (4 * world,)
    for number, size in enumerate(size for size in sizes if not refuses(n, size, tail)):
        expected = list(islice(naive_batches(n, size, tail), 2 * n // size + 3))
        for threads, transform in ((0, None), (1, None), (4, None), (4, identity))[number::3] if n < 97 else [(0, None)]:
            ranks = [
                pen.Loader(
                    make_stream(n), size, tail=tail, shard=Shard(rank, world), threads=threads, ids="id", transform=transform
                )
                for rank in range(world)
            ]
            found = [_deliver(loader, len(expected)) for loader in ranks]
            for step, cells in enumerate(expected):
                parts = [batches[step] for batches in found]
                ids = [delivered_ids(part) for part in parts]
                assert unite(ids) == naive_ids(order, cells), (size, threads, step)
                for part in parts:
                    assert np.array_equal(part["x"], part["id"] * 10)
                    assert np.array_equal(part["pair"], np.stack([part["id"] * 2, part["id"] * 2 + 1], axis=1))
            place = naive_place(n, size, tail, expected)
            for loader in ranks if expected else []:
                assert (loader.step, loader.cursor.epoch, loader.cursor.position) == (len(expected), *place)


def _deliver(loader: pen.Loader, count: int) -> list[Any]:
    if count == 0:
        with pytest.raises(ValueError, match="no batch would ever be returned"):
            loader.forever()
        return list(loader)
    with loader.forever() as batches:
        return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.sampled(5)
def test_long_runs_are_the_same_whatever_the_threads(tail: str, threads: int) -> None:
    for world in WORLDS:
        size = 3 * world
        expected = list(islice(naive_batches(97, size, tail), 2 * 97 // size + 2))
        order = make_orders(97)["blocks"]
        for transform in (None, identity):
            loader = pen.Loader(
                make_stream(97, "blocks"),
                size,
                tail=tail,
                shard=Shard(world - 1, world),
                threads=threads,
                ids="id",
                transform=transform,
            )
            for cells, batch in zip(expected, _deliver(loader, len(expected)), strict=True):
                assert delivered_ids(batch) == naive_ids(order, cells[world - 1 :: world])


@pytest.mark.parametrize("kind", ["sequential", "shuffle", "blocks", "random", "sliding"])
@pytest.mark.parametrize("tail", TAILS)
def test_every_order_is_followed(kind: str, tail: str) -> None:
    order = make_orders(23)[kind]
    loader = pen.Loader(make_stream(23, kind), 6, tail=tail, ids="id", threads=1)
    expected = list(islice(naive_batches(len(order), 6, tail), 12))
    assert [delivered_ids(batch) for batch in _deliver(loader, 12)] == [naive_ids(order, cells) for cells in expected]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.sampled(5)
def test_check_41_length_is_the_number_of_batches_of_every_epoch(n: int, tail: str) -> None:
    for size in (1, 2, 3, 8, 97, 100):
        if refuses(n, size, tail):
            with pytest.raises(ValueError, match=f"drops every epoch whole: it has {n} samples, a batch {size}"):
                pen.Loader(make_stream(n), size, tail=tail)
            continue
        loader = pen.Loader(make_stream(n), size, tail=tail, ids="id", threads=0)
        expected = list(islice(naive_batches(n, size, tail), 3 * n // size + 3))
        for epoch in range(3):
            now = loader.epoch
            promised = len(loader)
            batches = list(loader)
            assert len(batches) == promised
            mine = [cells for cells in expected if cells[0] is not None and cells[0][0] == now]
            assert [delivered_ids(batch) for batch in batches] == [naive_ids(loader.stream.order, cells) for cells in mine]
            assert loader.epoch > now or tail == "wrap", epoch


@pytest.mark.parametrize("tail", TAILS)
def test_check_41_length_counts_the_batches_already_delivered(tail: str) -> None:
    loader = pen.Loader(make_stream(97), 8, tail=tail, threads=1)
    promised = len(loader)
    with iter(loader) as batches:
        next(batches)
        next(batches)
        assert len(loader) == promised
    assert len(list(loader)) == promised - 2


def test_check_33_sliding_windows_go_around_the_data() -> None:
    stream = RecordStream(make_source(10), Sliding(10, window=4))
    loader = pen.Loader(stream, 4, tail="wrap", ids="id")
    batches = loader.forever()
    assert [next(batches)["id"].tolist() for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
    batches.close()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("n", [1, 4, 10, 25])
def test_l12_all_ranks_have_the_same_number_of_steps(n: int, tail: str) -> None:
    for size in (3, 6):
        if refuses(n, size, tail):
            continue
        lengths = set()
        for rank in range(3):
            loader = pen.Loader(make_stream(n), size, tail=tail, shard=Shard(rank, 3), threads=0)
            lengths.add((len(loader), len(list(loader)), len(list(loader))))
        assert len(lengths) == 1


@pytest.mark.parametrize("tail", TAILS)
def test_l13_less_data_than_ranks_or_batches_is_defined(tail: str) -> None:
    for n in (0, 1, 2) if tail != "drop" else (0,):
        found = []
        for rank in range(4):
            loader = pen.Loader(make_stream(n, texts=True), 8, tail=tail, shard=Shard(rank, 4), ids="id", threads=0)
            found.append([delivered_ids(batch) for batch in loader])
        expected = list(islice(naive_batches(n, 8, tail), 1))
        assert [unite(list(parts)) for parts in zip(*found, strict=True)] == [
            naive_ids(make_orders(n)["shuffle"], cells) for cells in expected
        ]


def test_seek_goes_to_any_step_in_both_directions() -> None:
    for tail in TAILS:
        loader = pen.Loader(make_stream(97), 8, tail=tail, ids="id", threads=1)
        expected = [naive_ids(loader.stream.order, cells) for cells in islice(naive_batches(97, 8, tail), 60)]
        with loader.forever() as batches:
            for step in (0, 59, 1, 12, 13, 11, 24, 25, 26, 0):
                loader.seek(step)
                assert loader.step == step
                assert delivered_ids(next(batches)) == expected[step]


def test_a_step_far_away_costs_nothing() -> None:
    loader = pen.Loader(make_stream(97), 8, tail="keep", ids="id", threads=1)
    loader.seek(10**15)
    epoch, number = divmod(10**15, 13)
    with loader.forever() as batches:
        found = next(batches)["id"]
    assert np.array_equal(found, loader.stream.order.indices(epoch, number * 8, min(97, number * 8 + 8)))
    assert loader.epoch == (epoch if number < 12 else epoch + 1)


def test_bad_arguments_are_refused() -> None:
    stream = make_stream(10)
    for options, told in (
        ({}, "batch_size or phases"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "tail": "cut"}, "tail"),
        ({"batch_size": 4, "on_error": "ignore"}, "on_error"),
        ({"batch_size": 4, "shard": Shard(0, 3)}, "divided"),
        ({"batch_size": 4, "prefetch": "much"}, "prefetch"),
        ({"batch_size": 4, "threads": -1}, "threads"),
        ({"batch_size": 4, "ids": "x"}, "field 'x' already"),
        ({"batch_size": 4, "phases": [pen.Phase(1)]}, "batch_size or phases"),
        ({"phases": [pen.Phase(1, batch_size=4)], "shard": Shard(0, 3)}, "divided"),
    ):
        with pytest.raises(ValueError, match=told):
            pen.Loader(stream, **options)
    with pytest.raises(TypeError, match="expected a stream"):
        pen.Loader(np.arange(3), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step"):
        pen.Loader(stream, 4).seek(-1)
    with pytest.raises(IndexError):
        pen.Loader(make_stream(0), 4).seek(1)


def test_steps_of_positions_are_those_of_the_batches() -> None:
    for tail in TAILS:
        for n, size in ((10, 4), (3, 8), (97, 8), (8, 8)):
            schedule = EpochSchedule(make_stream(n), size, tail, Shard())
            for step, cells in enumerate(islice(naive_batches(n, size, tail), 30)):
                for epoch, position in (cell for cell in cells if cell is not None):
                    assert schedule.step_of(epoch, position) == step
