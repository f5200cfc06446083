"""Batches whose shape changes during the run: one continuous line, whatever the ranks, resumable at every step."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.effort import every
from tests.loader.model import WORLDS, delivered_ids, make_orders, make_stream, unite
from tests.stream.tokens import make_tokens, shuffled_line

import penstock as pen
from penstock.batch import fields_of
from penstock.errors import StateError, StateMismatchError
from penstock.loader.resume_check import verify_resume
from penstock.order import Phase, Shard
from penstock.order.mixture import STOP_POLICIES
from penstock.stream.stream import RecordStream, Stream

PHASES = [Phase(5, 4, 8), Phase(3, 2, 16), Phase(2, 8, 4)]


def flat(batches: list[Any]) -> list[int]:
    return [int(t) for batch in batches for t in batch["tokens"].reshape(-1)]


@pytest.mark.parametrize(("count", "page"), [(10_000, 64), (333, 16), (97, 8), (50, 7), (16, 16), (3, 2)])
@pytest.mark.parametrize("threads", [0, 4])
def test_check_37_phases_are_one_run_of_the_shuffled_line(tmp_path: Path, count: int, page: int, threads: int) -> None:
    with make_tokens(tmp_path, count, page) as source:
        loader = pen.Loader(source.shuffle(seed=7).sequences(8, page=page), phases=PHASES, threads=threads)
        assert len(loader) == 10
        batches = list(loader)
        assert [batch["tokens"].shape for batch in batches] == [(4, 8)] * 5 + [(2, 16)] * 3 + [(8, 4)] * 2
        total = 5 * 4 * 8 + 3 * 2 * 16 + 2 * 8 * 4
        assert flat(batches) == shuffled_line(range(count), page, 7, total // count + 1)[:total]
        assert list(loader) == []
        assert loader.step == 10


@pytest.mark.parametrize(("count", "page"), [(10_000, 64), (97, 8), (3, 2)])
def test_check_37_restarts_at_each_of_the_ten_steps(tmp_path: Path, count: int, page: int) -> None:
    with make_tokens(tmp_path, count, page) as source:
        stream = source.shuffle(seed=7).sequences(8)
        for threads in every(2, (0, 4), count):
            report = verify_resume(lambda threads=threads: pen.Loader(stream, phases=PHASES, threads=threads), points=range(11))  # type: ignore[misc]
            assert report.steps == 10


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("other", [1, 2])
def test_l8_phases_on_other_ranks(tmp_path: Path, world: int, other: int) -> None:
    with make_tokens(tmp_path, 97, 8) as source:
        stream = source.shuffle(seed=7).sequences(8)
        whole = [batch["tokens"].tolist() for batch in pen.Loader(stream, phases=PHASES, threads=0)]
        first = [pen.Loader(stream, phases=PHASES, shard=Shard(rank, world), threads=0) for rank in range(world)]
        runs = [iter(loader) for loader in first]
        for step in range(10):
            state = first[-1].state_dict()
            again = [pen.Loader(stream, phases=PHASES, shard=Shard(rank, other), threads=0) for rank in range(other)]
            for loader in again:
                loader.load_state_dict(state)
            rest = [unite([part["tokens"].tolist() for part in parts]) for parts in zip(*again, strict=True)]
            assert rest == whole[step:]
            assert unite([next(run)["tokens"].tolist() for run in runs]) == whole[step]


def test_phases_of_records_go_on_through_epochs() -> None:
    phases = [Phase(3, 24), Phase(4, 72), Phase(0, 24), Phase(5, 48)]
    order = make_orders(97)["shuffle"]
    line = [int(i) for epoch in range(7) for i in order.indices(epoch, 0, 97)]
    for world in WORLDS:
        loaders = [pen.Loader(make_stream(97), phases=phases, shard=Shard(r, world), ids="id", threads=r % 3) for r in range(world)]
        whole = [unite([delivered_ids(part) for part in parts]) for parts in zip(*loaders, strict=True)]
        assert [len(batch) for batch in whole] == [24] * 3 + [72] * 4 + [48] * 5
        assert [i for batch in whole for i in batch] == line[: sum(map(len, whole))]
        assert all((loader.step, len(loader)) == (12, 12) for loader in loaders)


def test_phases_of_records_resume_at_every_step() -> None:
    for n in (1, 2, 5, 97):
        verify_resume(lambda n=n: pen.Loader(make_stream(n), phases=[Phase(3, 2), Phase(4, 7)], threads=0), points=range(8))  # type: ignore[misc]


def test_phases_given_in_epochs(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 1000, 16) as source:
        loader = pen.Loader(
            source.shuffle(seed=7).sequences(8, page=16), phases=[Phase(epochs=0.5, batch_size=4, seq_len=8), Phase(2, 2, 16)]
        )
        assert len(loader) == 15 + 2
        assert flat(list(loader)) == shuffled_line(range(1000), 16, 7, 1)[: 15 * 32 + 64]
    records = pen.Loader(make_stream(97), phases=[Phase(epochs=2, batch_size=8)], ids="id", threads=0)
    assert len(records) == len(list(records)) == 24


def test_a_phase_of_sequences_needs_tokens() -> None:
    with pytest.raises(ValueError, match="needs a stream of tokens"):
        list(pen.Loader(make_stream(97), phases=[Phase(2, 4, 8)], threads=0))


def test_phases_of_no_data_or_no_steps() -> None:
    with pytest.raises(ValueError, match="at least one phase"):
        pen.Loader(make_stream(97), phases=[])
    assert list(pen.Loader(make_stream(97), phases=[Phase(0, 4)], threads=0)) == []
    with pytest.raises((ValueError, IndexError), match=r"empty|no record"):
        list(pen.Loader(make_stream(0), phases=[Phase(1, 4)], threads=0))


# Mixtures


def two(directory: Path, sizes: tuple[int, int] = (1000, 1333), seq_len: int = 8) -> dict[str, Stream]:
    pages = (8, 16)
    sources = [make_tokens(directory, count, page) for count, page in zip(sizes, pages, strict=True)]
    parts = zip("ab", sources, pages, strict=True)
    return {name: s.shuffle(seed=i).sequences(seq_len, page=page) for i, (name, s, page) in enumerate(parts)}


def close(streams: dict[str, Stream]) -> None:
    for stream in streams.values():
        stream.close()


def rows_of(loader: pen.Loader, steps: int) -> dict[str, list[list[int]]]:
    """Sequences by stream, as explain says that they come."""
    found: dict[str, list[list[int]]] = {"a": [], "b": []}
    with iter(loader) as batches:
        for _ in range(steps):
            names = loader.explain(loader.step)["source"]
            for name, row in zip(names, next(batches)["tokens"].tolist(), strict=True):
                found[name].append(row)
    return found


@pytest.mark.parametrize("unit", ["sample", "batch"])
@pytest.mark.parametrize("stop", STOP_POLICIES)
def test_check_38_no_token_repeats_within_an_epoch(tmp_path: Path, stop: str, unit: str) -> None:
    streams = two(tmp_path)
    phases = [Phase(5, 4, 8), Phase(6, 2, 16)]
    loader = pen.Loader(pen.mix(streams, seed=4, weights={"a": 0.5, "b": 0.5}, stop=stop, unit=unit), phases=phases, threads=1)
    found = rows_of(loader, 11)
    for name, size, page, seed in (("a", 1000, 8, 0), ("b", 1333, 16, 1)):
        tokens = [t for row in found[name] for t in row]
        assert max(Counter(tokens).values()) == 1
        line = shuffled_line(range(size), page, seed, 1)
        assert sorted(tokens) == sorted(line[: len(tokens)])
        if unit == "sample":
            lengths = Counter(len(row) for row in found[name])
            assert abs(lengths[8] - 10) <= 1
            assert abs(lengths[16] - 6) <= 1
    close(streams)


def test_check_38_weights_of_phases_and_weight_zero(tmp_path: Path) -> None:
    streams = two(tmp_path)
    phases = [Phase(5, 4, 8, {"a": 1, "b": 0}), Phase(5, 4, 8, {"a": 0, "b": 1}), Phase(5, 4, 8)]
    loader = pen.Loader(pen.mix(streams, seed=4, weights={"a": 1, "b": 3}), phases=phases, threads=0)
    names = [set(loader.explain(step)["source"].tolist()) for step in range(15)]
    assert names[:5] == [{"a"}] * 5
    assert names[5:10] == [{"b"}] * 5
    assert sum((loader.explain(step)["source"] == "b").sum() for step in range(10, 15)) == 15
    with pytest.raises(ValueError, match="weights must name"):
        pen.Loader(pen.mix(streams, seed=4), phases=[Phase(5, 4, 8, {"a": 1, "z": 2})])
    with pytest.raises(ValueError, match="exclude each other"):
        pen.Loader(pen.mix(streams, seed=4, weights=[(0, {"a": 1, "b": 1})]), phases=[Phase(5, 4, 8)])
    close(streams)


@pytest.mark.parametrize("stop", STOP_POLICIES)
@pytest.mark.parametrize("unit", ["sample", "batch"])
@pytest.mark.sampled(3)
def test_check_37_mixtures_in_phases_resume_at_every_step(tmp_path: Path, stop: str, unit: str) -> None:
    streams = two(tmp_path, (300, 400))
    mixed = pen.mix(streams, seed=4, weights={"a": 1, "b": 2}, stop=stop, unit=unit)
    report = verify_resume(lambda: pen.Loader(mixed, phases=PHASES, threads=1), points=(1, 4, 5, 6, 8))
    assert report.steps >= 8
    close(streams)


@pytest.mark.parametrize("phased", [False, True])
def test_check_39_the_smaller_one_runs_out(tmp_path: Path, phased: bool) -> None:
    """4 batches and 32 batches at equal weights, 20 steps: 20 steps, the last ones only from the larger; known up front."""
    streams = two(tmp_path, (4 * 4 * 8, 32 * 4 * 8))
    mixed = pen.mix(
        streams, seed=4, weights={"a": 0.5, "b": 0.5}, stop="all_exhausted_without_replacement", unit="batch", batch_size=4
    )
    loader = pen.Loader(mixed, phases=[Phase(20, 4, 8)]) if phased else pen.Loader(mixed, 4)
    assert len(loader) == (20 if phased else 36)
    names = [set(loader.explain(step)["source"].tolist()) for step in range(20)]
    assert names.count({"a"}) == 4
    assert names.count({"b"}) == 16
    assert names[9:] == [{"b"}] * 11
    assert len(list(loader)) == len(loader)
    close(streams)


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"])
@pytest.mark.parametrize("unit", ["sample", "batch"])
@pytest.mark.sampled(2)
def test_check_39_phases_longer_than_the_data_end_with_it(tmp_path: Path, stop: str, unit: str) -> None:
    """The length is known up front, and is that of the run."""
    streams = two(tmp_path, (100, 200))
    mixed = pen.mix(streams, seed=4, weights={"a": 1, "b": 1}, stop=stop, unit=unit)
    loader = pen.Loader(mixed, phases=[Phase(3, 4, 8), Phase(30, 2, 16)], threads=0)
    promised = len(loader)
    assert 3 < promised < 33
    batches = list(loader)
    assert len(batches) == promised == loader.step
    assert [batch["tokens"].shape for batch in batches] == [(4, 8)] * 3 + [(2, 16)] * (promised - 3)
    verify_resume(lambda: pen.Loader(mixed, phases=[Phase(3, 4, 8), Phase(30, 2, 16)], threads=0))
    close(streams)


def test_phases_of_a_mixture_given_in_epochs(tmp_path: Path) -> None:
    """An epoch of a mixture in phases is as many elements as all its data sets have."""
    streams = two(tmp_path, (800, 800))
    mixed = pen.mix(streams, seed=4, stop="all_exhausted_without_replacement")
    loader = pen.Loader(mixed, phases=[Phase(epochs=0.5, batch_size=4, seq_len=8), Phase(epochs=0.5, batch_size=2, seq_len=16)])
    assert len(loader) == 25 + 25
    tokens = flat(list(loader))
    assert Counter(tokens) == Counter(dict.fromkeys(range(800), 2))
    close(streams)


def test_mixtures_of_records_in_phases_use_every_record_once() -> None:
    streams = {"a": make_stream(30, seed=1), "b": make_stream(66, seed=2)}
    mixed = pen.mix(streams, seed=4, stop="all_exhausted_without_replacement")
    for world in (1, 2, 3):
        loaders = [
            pen.Loader(mixed, phases=[Phase(4, 12), Phase(8, 6)], shard=Shard(rank, world), ids="id", threads=0)
            for rank in range(world)
        ]
        whole = [unite([part["id"].tolist() for part in parts]) for parts in zip(*loaders, strict=True)]
        assert sorted(i for batch in whole for i in batch) == sorted([*range(30), *range(66)])


def test_check_40_any_step_of_a_mixture_is_found_at_once() -> None:
    mixed = pen.mix({"a": make_stream(40), "b": make_stream(97)}, seed=3, weights={"a": 1, "b": 2}, stop="forever")
    loader = pen.Loader(mixed, 8, threads=0, ids="id")
    for step in (10**7, 10**12):
        loader.seek(step)
        with loader.forever() as batches:
            found = next(batches)
        expected = mixed.fetch(mixed.locate(0, range(8 * step, 8 * step + 8)))
        assert found["x"].tolist() == expected["x"].tolist()
        assert loader.state_dict()["step"] == step + 1


def test_states_of_other_phases_are_refused(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 1000, 16) as source:
        stream = source.shuffle(seed=7).sequences(8)
        loader = pen.Loader(stream, phases=PHASES, threads=0)
        with iter(loader) as batches:
            for _ in range(6):
                next(batches)
        for phases in (PHASES[:2], [*PHASES, Phase(1, 1, 1)], [Phase(10, 4, 8)]):
            with pytest.raises(StateMismatchError, match="phases"):
                pen.Loader(stream, phases=phases).load_state_dict(loader.state_dict())
        state = loader.state_dict()
        for step in (0, 5, 7, 10, 11, 2**62):
            with pytest.raises(StateError):
                pen.Loader(stream, phases=PHASES).load_state_dict(state | {"step": step})
        with pytest.raises(TypeError, match="ask the stream"):
            loader.where(3)


@pytest.mark.parametrize("world", [1, 2])
def test_native_threads_deliver_the_phases_that_the_caller_would(tmp_path: Path, world: int) -> None:
    with make_tokens(tmp_path, 500, 16) as one, make_tokens(tmp_path, 333, 7) as other:
        plain = {"one": one.shuffle(seed=1).sequences(8), "other": other.in_order().sequences(8)}
        streams: list[Stream] = [one.shuffle(seed=1).sequences(8, separator=3, documents=True), make_stream(97)]
        streams += [pen.mix(plain, seed=2, stop=stop, weights={"one": 2, "other": 1}) for stop in STOP_POLICIES]
        for stream in streams:
            phases = (
                [Phase(5, 4), Phase(30, 6)]
                if isinstance(stream, RecordStream)
                else [Phase(5, 4, 8), Phase(9, 2, 16), Phase(2, 8, 4)]
            )
            loaders = [pen.Loader(stream, phases=phases, shard=Shard(world - 1, world), threads=t, ids="id") for t in (0, 2)]
            for expected, found in zip(*loaders, strict=True):
                assert fields_of(expected) == fields_of(found)
            assert loaders[0].state_dict() == loaders[1].state_dict()
            assert loaders[0].step == len(loaders[0])
