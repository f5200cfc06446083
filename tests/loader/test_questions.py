"""What is in a step, where a record comes, and records that no longer come, beside brute force."""

from typing import Any

import numpy as np
import pytest
from tests.loader.model import TAILS, WORLDS, delivered_ids, make_source, make_stream

import penstock as pen
from penstock.loader.resume_check import verify_resume
from penstock.order import Phase, Shard, Shuffle
from penstock.order.mixture import STOP_POLICIES
from penstock.stream import RecordStream
from penstock.stream.stream import Stream

N = 97


def run(stream: Stream, steps: int, size: int = 8, **options: Any) -> list[list[int | None]]:
    loader = pen.Loader(stream, size, ids="id", threads=0, **options)
    with loader.forever() as batches:
        return [delivered_ids(next(batches)) for _ in range(steps)]


# Records that no longer come


@pytest.mark.parametrize("tail", TAILS)
def test_banned_records_do_not_come_from_their_step_on(tail: str) -> None:
    banned = {3, 50, 96}
    plain = run(make_stream(N), 40, tail=tail)
    found = run(make_stream(N).without(sorted(banned), from_step=9), 40, tail=tail)
    assert found[:9] == plain[:9]
    for old, new in zip(plain[9:], found[9:], strict=True):
        assert len(old) == len(new)
        assert not banned & set(new)
        assert [a for a in old if a not in banned] == [b for a, b in zip(old, new, strict=True) if a not in banned]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("threads", [0, 4])
def test_banned_records_are_replaced_alike_on_every_rank(world: int, threads: int) -> None:
    stream = make_stream(N).without(range(0, N, 4), from_step=2)
    whole = run(stream, 9, 24)
    for rank in range(world):
        loader = pen.Loader(stream, 24, ids="id", threads=threads, shard=Shard(rank, world))
        with loader.forever() as batches:
            assert [delivered_ids(next(batches)) for _ in range(9)] == [batch[rank::world] for batch in whole]


def test_bans_resume_and_are_refused_by_runs_without_them() -> None:
    stream = make_stream(N).without([3, 4, 5], from_step=7)
    verify_resume(lambda: pen.Loader(stream, 8, threads=0), points=(6, 7, 8, 13))


def test_bans_of_a_mixture() -> None:
    mixed = pen.mix({"a": make_stream(40, seed=1), "b": make_stream(60, seed=2)}, seed=3, stop="all_exhausted_without_replacement")
    banned = mixed.without({"b": range(30)}, from_step=4)
    loader = pen.Loader(banned, 10, ids="id", threads=2)
    for step, batch in enumerate(loader):
        names = loader.explain(step)["source"]
        gone = (names == "b") & (batch["id"] < 30)
        assert not gone.any() or step < 4


# What is in a step


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 4])
def test_explain_says_what_comes(tail: str, world: int) -> None:
    loader = pen.Loader(make_stream(N).without([5], from_step=3), 24, tail=tail, ids="id", threads=0, shard=Shard(world - 1, world))
    said = [loader.explain(step) for step in range(12)]
    assert loader.step == 0
    with loader.forever() as batches:
        for step, told in enumerate(said):
            assert (told["step"], told["epoch"], told["position"]) == (step, loader.cursor.epoch, loader.cursor.position)
            found = delivered_ids(next(batches))
            expected = told["ids"].tolist()[world - 1 :: world]
            assert [i for i in found if i is not None] == expected[: sum(i is not None for i in found)]
    assert loader.explain(2)["ids"].tolist() == said[2]["ids"].tolist()
    assert len(loader.explain(10**12)["ids"]) <= 24


def test_explain_of_sequences_and_mixtures() -> None:
    texts = make_source(50, texts=True)
    stream = texts.shuffle(seed=1).sequences(10, field="text")
    loader = pen.Loader(stream, 3, threads=0)
    flat = "".join(f"record {i}" * (i % 3) for i in range(50)).encode()
    for step, batch in enumerate(loader):
        spans = loader.explain(step)["tokens"]
        assert [b"".join(flat[a:b] for a, b in sample) for sample in spans] == [row.tobytes() for row in batch["tokens"]]
    mixed = pen.mix({"a": make_stream(40, seed=1), "b": make_stream(60, seed=2)}, seed=3)
    mixing = pen.Loader(mixed, phases=[Phase(3, 4), Phase(2, 8)], ids="id", threads=0)
    for step, batch in enumerate(mixing):
        told = mixing.explain(step)
        rows = {name: iter(part["ids"].tolist()) for name, part in told["parts"].items()}
        assert [next(rows[name]) for name in told["source"]] == batch["id"].tolist()


def test_explain_of_a_design_tells_the_weights() -> None:
    loader = pen.Loader(make_source(50).design(seed=1, size=20), 6, threads=0, ids="id")
    for step, batch in enumerate(loader):
        assert loader.explain(step)["weights"].tolist() == batch["weight"].tolist()


def test_explain_beyond_the_end() -> None:
    with pytest.raises(IndexError):
        pen.Loader(make_stream(N), phases=[Phase(3, 4)]).explain(3)
    with pytest.raises(IndexError):
        pen.Loader(make_stream(0), 4).explain(0)
    with pytest.raises(ValueError, match="step"):
        pen.Loader(make_stream(N), 4).explain(-1)


# Where a record comes


def brute_where(loader: pen.Loader, record: Any, epochs: range, steps: int) -> list[tuple[int, int]]:
    """(epoch, step) of every time a record comes."""
    found = []
    for step in range(steps):
        told = loader.explain(step)
        if "source" in told:
            rows = {name: iter(part["ids"].tolist()) for name, part in told["parts"].items()}
            ids: list[Any] = [(name, next(rows[name])) for name in told["source"].tolist()]
        else:
            ids = told["ids"].tolist()
        axis = loader.stream.axis
        for place, i in enumerate(ids):
            epoch = told["epoch"] + (told["position"] + place) // axis
            if i == record and epoch in epochs and not (loader._work.pads and told["position"] + place >= axis):
                found.append((epoch, step))
    return found


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("n", "size"), [(N, 8), (10, 4), (9, 8), (8, 8)])
@pytest.mark.sampled(3)
def test_where_says_when_a_record_comes(tail: str, n: int, size: int) -> None:
    loader = pen.Loader(make_stream(n), size, tail=tail, threads=0)
    steps = len(loader) * 4 + 8 if loader._schedule.is_endless else 0
    for record in range(0, n, 3):
        found = loader.where(record, epochs=range(3))
        assert [(one["epoch"], one["step"]) for one in found] == brute_where(loader, record, range(3), steps), record
        for one in found:
            assert loader.stream.order.at(one["epoch"], [one["position"]])[0] == record


@pytest.mark.parametrize("stop", STOP_POLICIES[:-1])
@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_where_in_a_mixture(stop: str, tail: str) -> None:
    mixed = pen.mix(
        {"a": make_stream(12, seed=1), "b": make_stream(30, "blocks", seed=2)}, seed=3, weights={"a": 1, "b": 1}, stop=stop
    )
    loader = pen.Loader(mixed, 5, tail=tail, threads=0)
    for record in [("a", 0), ("a", 11), ("b", 0), ("b", 17), ("b", 29)]:
        found = [(one["epoch"], one["step"]) for one in loader.where(record, epochs=range(3))]
        assert sorted(found) == brute_where(loader, record, range(3), 4 * len(mixed) // 5 + 8)


def test_where_looks_at_the_current_epoch_unless_told() -> None:
    loader = pen.Loader(make_stream(N), 8, threads=0)
    list(loader)
    assert [one["epoch"] for one in loader.where(5)] == [1]
    order = Shuffle(N, seed=7)
    assert loader.where(5)[0]["position"] == order.positions(1, [5])[0]


@pytest.mark.parametrize("tail", TAILS)
def test_where_in_a_run_with_two_batch_sizes(tail: str) -> None:
    """Places before the change were in batches of another size, so nothing is said of them."""
    first = pen.Loader(make_stream(N), 24, tail=tail, threads=0)
    with first.forever() as batches:
        for _ in range(6):
            next(batches)
    loader = pen.Loader(make_stream(N), 7, tail=tail, threads=0, ids="id")
    loader.load_state_dict(first.state_dict())
    seen: dict[int, list[int]] = {i: [] for i in range(N)}
    with loader.forever() as batches:
        for _ in range(40):
            step = loader.step
            for i in delivered_ids(next(batches)):
                if i is not None:
                    seen[i].append(step)
    for record in range(N):
        assert [one["step"] for one in loader.where(record, epochs=range(6)) if one["step"] < loader.step] == seen[record]


def test_where_needs_an_inverse() -> None:
    with pytest.raises(TypeError, match="no inverse"):
        pen.Loader(make_stream(N, "random"), 8).where(3)


# Designed samples


@pytest.mark.parametrize("threads", [0, 2])
def test_check_47_weights_come_with_their_records(threads: int) -> None:
    values = np.random.default_rng(0).gamma(2, 3, 2000)
    source = pen.open({"y": values})
    for options in ({"size": 400}, {"strata": 50, "size": 400}, {"masses": values, "size": 400}, {"fraction": 0.25}):
        stream = source.design(seed=5, **options)
        loader = pen.Loader(stream, 64, ids="id", threads=threads)
        batches = list(loader)
        weights = np.concatenate([batch["weight"] for batch in batches])
        y = np.concatenate([batch["y"] for batch in batches])
        ids = np.concatenate([batch["id"] for batch in batches])
        assert np.array_equal(y, values[ids])
        assert abs(weights.sum() / 2000 - 1) < 0.15
        assert abs((weights * y).sum() / values.sum() - 1) < 0.1
        again = np.concatenate([batch["id"] for batch in pen.Loader(source.design(seed=5, **options), 64, ids="id", threads=0)])
        assert np.array_equal(ids, again)
        verify_resume(lambda stream=stream: pen.Loader(stream, 64, threads=threads), points=(1, 6))  # type: ignore[misc]
    whole = pen.Loader(source.design(seed=5, size=2000), 64, ids="id", threads=threads)
    everything = list(whole)
    assert sorted(i for batch in everything for i in batch["id"]) == list(range(2000))
    assert {w for batch in everything for w in batch["weight"]} == {1.0}


def test_check_49_fractions_are_nested() -> None:
    source = pen.open({"y": np.arange(20_000)})

    def ids(fraction: float) -> set[int]:
        loader = pen.Loader(source.design(seed=5, fraction=fraction), 1000, ids="id", threads=0)
        return {int(i) for batch in loader for i in batch["id"]}

    small, large = ids(0.1), ids(0.25)
    assert small < large
    assert (len(small), len(large)) == (2000, 5000)


def test_where_and_bans_of_a_design() -> None:
    stream = make_source(50).design(seed=1, size=20)
    loader = pen.Loader(stream.without([int(stream.order.indices(0, 0, 1)[0])]), 5, ids="id", threads=0)
    found = [int(i) for batch in loader for i in batch["id"]]
    assert len(found) == 20
    assert int(stream.order.indices(0, 0, 1)[0]) not in found
    assert isinstance(stream, RecordStream)
