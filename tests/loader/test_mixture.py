"""Mixtures and sequences through the loader: every tail, every number of ranks, every step."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count, every
from tests.loader.model import TAILS, WORLDS, make_stream, naive_batches, unite
from tests.stream.tokens import make_tokens, naive_line

import penstock as pen
from penstock.batch import fields_of
from penstock.errors import BatchError, StateMismatchError
from penstock.loader.native_engine import native_groups
from penstock.loader.resume_check import verify_resume
from penstock.order import Shard, Shuffle
from penstock.order.mixture import STOP_POLICIES
from penstock.stream.picks import join
from penstock.stream.stream import Stream

WEIGHTS = {"a": 1, "b": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weights": WEIGHTS},
    "batch": {"weights": WEIGHTS, "unit": "batch", "batch_size": 24},
    "staged": {"weights": [(0, WEIGHTS), (1, {"a": 0, "b": 1}), (2, {"a": 1, "b": 1})], "batch_size": 24},
    "staged batch": {"weights": [(0, WEIGHTS), (1, {"a": 0, "b": 1})], "batch_size": 24, "unit": "batch"},
}


def is_refused(stop: str, options: str, tail: str) -> bool:
    """Whether the last short batch of an epoch would be filled from the next one, in a mixture of whole batches."""
    return tail == "wrap" and "batch" in options and stop == "all_exhausted_without_replacement"


def mixed(stop: str, options: str, *, texts: bool = True) -> Stream:
    """A mixture; without texts it can be read natively."""
    streams = {"a": make_stream(60, seed=1, texts=texts), "b": make_stream(110, "blocks", seed=2, texts=texts)}
    return pen.mix(streams, seed=5, stop=stop, **MIXTURES[options])


@pytest.mark.parametrize("stop", STOP_POLICIES)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.sampled(3)
def test_mixtures_deliver_what_plain_lists_say(texts: bool, tail: str, stop: str) -> None:
    """With texts every other mixture, without them the others; in a campaign, all."""
    for options in every(4, list(MIXTURES), 2 * texts + TAILS.index(tail) + STOP_POLICIES.index(stop)):
        stream = mixed(stop, options, texts=texts)
        if is_refused(stop, options, tail):
            with pytest.raises(ValueError, match="batches would come from several data sets"):
                pen.Loader(stream, 24, tail=tail)
            continue
        loader = pen.Loader(stream, 24, tail=tail, threads=2)
        mixture = loader.stream._laid
        cells = list(islice(naive_batches(lambda epoch, of=mixture: min(of.length_of(epoch), 500), 24, tail), 12))
        epochs = range(13 if stop != "forever" else 1)
        lines = [loader.stream.locate(epoch, range(min(mixture.length_of(epoch), 400))) for epoch in epochs]
        with loader.forever() as batches:
            for batch in cells:
                real = [cell for cell in batch if cell is not None]
                picks = join(
                    [lines[epoch].take(np.array([p for e, p in real if e == epoch])) for epoch in dict.fromkeys(e for e, _ in real)]
                )
                found = next(batches)
                assert found.pop("valid", np.ones(24, np.bool_)).tolist()[: len(batch)] == [cell is not None for cell in batch]
                if len(real) == len(batch):
                    assert fields_of(found) == fields_of(stream.fetch(picks))
                else:
                    assert found["x"][: len(real)].tolist() == stream.fetch(picks)["x"].tolist()


@pytest.mark.parametrize(
    ("stop", "options"), [(stop, one) for i, stop in enumerate(STOP_POLICIES) for one in every(3, list(MIXTURES), i)]
)
@pytest.mark.sampled(2)
def test_l7_mixtures_resume_at_every_step(stop: str, options: str) -> None:
    stream = mixed(stop, options)
    tail = "wrap" if len(options) % 2 and not is_refused(stop, options, "wrap") else "keep"
    verify_resume(lambda: pen.Loader(stream, 24, tail=tail, threads=0, ids="id"), steps=9, points=(1, 4, 7, 8))
    plain = mixed(stop, options, texts=False)
    verify_resume(lambda: pen.Loader(plain, 24, tail=tail, threads=2, ids="id"), steps=9, points=(1, 4, 7, 8))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.sampled(3)
def test_native_threads_deliver_what_the_caller_would(tail: str, world: int) -> None:
    for number, stop in enumerate(STOP_POLICIES):
        mixtures = every(4, list(MIXTURES), number + world // 2)  # with three ranks others than with one
        for options in (one for one in mixtures if not is_refused(stop, one, tail)):
            assert_native_as_the_caller(mixed(stop, options, texts=False), 24, tail, world, steps=20)


def assert_native_as_the_caller(stream: Stream, size: int, tail: str, world: int, *, steps: int) -> None:
    """Native threads can read a stream, and deliver what the caller's own thread would."""
    assert native_groups(stream) is not None
    loaders = [pen.Loader(stream, size, tail=tail, shard=Shard(world - 1, world), threads=t, ids="id") for t in (0, 2)]
    runs = [loader.forever() for loader in loaders]
    for _ in range(steps):
        expected, found = (next(run) for run in runs)
        assert fields_of(expected) == fields_of(found)
        assert loaders[0].state_dict() == loaders[1].state_dict()
    runs[1].close()


def test_native_mixtures_of_stores_with_missing_values_and_bans(tmp_path: Path) -> None:
    streams: dict[str, Stream] = {}
    for number, name in enumerate(("a", "b", "c")):
        values = np.arange(50, dtype=np.int64) + 1000 * number
        holes = np.ma.masked_array(values, mask=values % 3 == number)
        with pen.create(tmp_path / name, {"x": pen.Field("i8"), "maybe": pen.Field("i8")}) as out:
            out.extend({"x": values, "maybe": holes})
        streams[name] = pen.open(tmp_path / name).shuffle(seed=number).without([number, 40], from_step=number)
    stream = pen.mix(streams, seed=4)
    loaders = [pen.Loader(stream, 8, threads=threads, ids="id") for threads in (0, 2)]
    for one, other in zip(*(islice(loader.forever(), 60) for loader in loaders), strict=True):
        assert fields_of(one) == fields_of(other)
        assert np.ma.getmaskarray(other["maybe"]).tolist() == (other["x"] % 3 == other["x"] // 1000).tolist()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.sampled(3)
def test_l8_mixtures_on_other_ranks(tail: str, world: int) -> None:
    stream = mixed("all_exhausted_without_replacement", "weights")
    whole = pen.Loader(stream, 24, tail=tail, threads=0)
    ranks = [pen.Loader(stream, 24, tail=tail, shard=Shard(rank, world), threads=0) for rank in range(world)]
    runs = [whole.forever(), *(loader.forever() for loader in ranks)]
    for step in range(9):
        expected, *parts = (next(run) for run in runs)
        for name in ("x", "pair", "text"):
            columns = [[np.asarray(v).tolist() for v in part[name]] for part in parts]
            assert unite(columns) == [np.asarray(v).tolist() for v in expected[name]], step
        assert all(loader.state_dict() == whole.state_dict() for loader in ranks)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_damaged_record_of_a_mixture_is_raised_at_its_step_or_replaced(tmp_path: Path, threads: int) -> None:
    streams: dict[str, Stream] = {}
    for number, name in enumerate(("a", "b")):
        with pen.create(tmp_path / name, {"x": pen.Field("i8", shape=(600,))}) as out:
            out.extend({"x": np.repeat(np.arange(100) + 1000 * number, 600).reshape(100, 600)})
    chunk = next((tmp_path / "b" / "chunk").iterdir())
    image = bytearray(chunk.read_bytes())
    image[4096 + 30 * 4800 + 7] ^= 1  # in record 30
    chunk.write_bytes(image)
    for number, name in enumerate(("a", "b")):
        streams[name] = pen.open(tmp_path / name).shuffle(seed=number)
    stream = pen.mix(streams, seed=4)

    def bad_step() -> int:
        plain = pen.Loader(stream, 10, threads=0, ids="id")
        return next(step for step in range(20) if ("b", 30) in _records(plain.explain(step)))

    loader = pen.Loader(stream, 10, threads=threads)
    with pytest.raises(BatchError, match=f"step {bad_step()}, ") as failure:
        list(loader)
    assert loader.step == bad_step()
    assert "crc" in str(failure.value)
    skipping = pen.Loader(stream, 10, threads=threads, on_error="skip", ids="id")
    batches = list(skipping)
    assert len(batches) == 20
    assert skipping.stats().skipped == 1
    assert all((batch["x"] == batch["x"][:, :1]).all() and 1030 not in batch["x"] for batch in batches)
    assert all((batch["x"][:, 0] % 1000 == batch["id"]).all() for batch in batches)


def _records(explained: dict[str, Any]) -> list[tuple[str, int]]:
    rest = {name: iter(part["ids"].tolist()) for name, part in explained["parts"].items()}
    return [(name, next(rest[name])) for name in explained["source"].tolist()]


# Sequences


def naive_sequences(count: int, seq_len: int, size: int, tail: str) -> list[list[int | None]]:
    """Where the sequences of batches begin on the endless line of tokens."""
    if tail == "wrap":  # no token is left out
        return [[(step * size + i) * seq_len for i in range(size)] for step in range(12)]
    batches = islice(naive_batches(count // seq_len, size, tail), 12)
    return [[None if cell is None else cell[0] * count + cell[1] * seq_len for cell in batch] for batch in batches]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("count", "page", "seq_len"), [(1000, 16, 8), (999, 7, 10), (50, 8, 10), (5, 2, 10)])
@pytest.mark.sampled(3)
def test_sequences_deliver_what_plain_lists_say(tmp_path: Path, count: int, page: int, seq_len: int, tail: str) -> None:
    with make_tokens(tmp_path, count, page) as source:
        stream = source.shuffle(seed=5).sequences(seq_len, page=page)
        order = Shuffle(count // min(page, count), seed=5)
        line = [token for epoch in range(2500 // count + 2) for token in naive_line(range(count), page, order, epoch)]
        for world in every(3, (1, 3, 8), count + seq_len + TAILS.index(tail)):
            size = 2 * world
            cells = naive_sequences(count, seq_len, size, tail)
            if not cells:
                with pytest.raises(ValueError, match=r"drops every epoch whole|fewer than the 10 of a sequence"):
                    pen.Loader(stream, size, tail=tail)
                continue
            loaders = [pen.Loader(stream, size, tail=tail, shard=Shard(rank, world), threads=rank % 3) for rank in range(world)]
            runs = [loader.forever() for loader in loaders]
            for batch in cells:
                parts = [next(run) for run in runs]
                rows = unite([[r if ok else None for r, ok in zip(p["tokens"].tolist(), _valid(p), strict=True)] for p in parts])
                assert rows == [None if c is None else line[c : c + seq_len] for c in batch]
            for run in runs:
                run.close()


def _valid(batch: Any) -> list[bool]:
    return list(batch.get("valid", np.ones(len(batch["tokens"]), np.bool_)))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("count", "page", "seq_len"), [(1000, 16, 8), (50, 8, 10)])
@pytest.mark.sampled(3)
def test_l7_sequences_resume_at_every_step(tmp_path: Path, count: int, page: int, seq_len: int, tail: str) -> None:
    with make_tokens(tmp_path, count, page) as source:
        stream = source.shuffle(seed=5).sequences(seq_len, separator=3, documents=True)
        verify_resume(lambda: pen.Loader(stream, 3, tail=tail, threads=1), steps=36, points=(1, 33))


def test_mixtures_of_sequences_resume_at_every_step(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 500, 16) as one, make_tokens(tmp_path, 333, 7) as other:
        streams = {"one": one.shuffle(seed=1).sequences(10), "other": other.shuffle(seed=2).sequences(10)}
        for stop in STOP_POLICIES:
            stream = pen.mix(streams, seed=3, stop=stop, weights={"one": 1, "other": 1})
            verify_resume(lambda stream=stream: pen.Loader(stream, 6, threads=0, tail="wrap"), steps=14, points=(3, 8, 13))  # type: ignore[misc]
            verify_resume(lambda stream=stream: pen.Loader(stream, 6, threads=2, tail="wrap"), steps=14, points=(3, 8, 13))  # type: ignore[misc]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.sampled(3)
def test_native_threads_deliver_the_sequences_that_the_caller_would(tmp_path: Path, tail: str, world: int) -> None:
    with make_tokens(tmp_path, 500, 16) as one, make_tokens(tmp_path, 333, 7) as other, make_tokens(tmp_path, 65, 64) as third:
        streams = {
            "one": one.shuffle(seed=1).sequences(10),
            "other": other.shuffle(seed=2, block=3, window=2).sequences(10),
            "third": third.in_order().sequences(10),
        }
        mixtures = [pen.mix(streams, seed=3, stop=stop, weights={"one": 2, "other": 1, "third": 1}) for stop in STOP_POLICIES]
        documents = one.shuffle(seed=1).sequences(10, separator=[3, 4], documents=True)
        for stream in (*streams.values(), documents, *mixtures):
            assert_native_as_the_caller(stream, 6, tail, world, steps=count(24, 40))


def test_mixtures_of_unequal_lengths_of_sequences_are_refused(tmp_path: Path) -> None:
    from penstock.errors import SchemaMismatchError

    with make_tokens(tmp_path, 500, 16) as source, pytest.raises(SchemaMismatchError):
        pen.mix({"a": source.shuffle(seed=1).sequences(8), "b": source.shuffle(seed=1).sequences(9)}, seed=1)


def test_an_amendment_that_ends_a_run_where_a_state_was_saved_is_loaded_and_gives_nothing() -> None:
    """The state is at position 6 of a line that never ended; with the cap its epoch has 6 positions."""
    data = pen.open({"x": np.arange(2)})
    mixed = pen.mix({"a": data.shuffle(seed=1)}, seed=2, stop="forever", period=4)
    with pen.Loader(mixed, 2, tail="drop") as run:
        batches = iter(run)
        for _ in range(3):
            next(batches)
        state = run.state_dict()
    with pen.Loader(mixed.amend(3, weights={"a": 1}, max_epochs={"a": 3}), 2, tail="drop") as run:
        run.load_state_dict(state)
        assert list(run) == []
        assert run.step == 3


def test_epochs_that_drop_everything_are_passed_over_where_caps_make_later_ones_longer() -> None:
    """Record 100 ends the first two epochs after one sample each; behind its cap, epochs have 12 samples."""
    sources = {"a": pen.open({"x": np.arange(12)}), "b": pen.open({"x": np.arange(100, 101)})}
    streams = {name: source.shuffle(seed=1) for name, source in sources.items()}
    caps = {"a": 4, "b": 2}
    mixed = pen.mix(streams, seed=3, stop="first_exhausted", weights={"a": 1, "b": 2}, period=4, max_epochs=caps)
    with pen.Loader(mixed, 4, tail="drop") as loader:
        epochs = [(loader.epoch, len(loader), sum(1 for _ in loader)) for _ in range(4)]
        assert epochs == [(2, 3, 3), (3, 3, 3), (4, 3, 3), (5, 3, 3)]
        assert loader.step == 12
        assert list(loader) == []


def test_an_amendment_that_leaves_less_than_a_batch_of_a_run_ends_it_where_a_state_was_saved() -> None:
    """With the cap there are 7 positions, of which the last fills no batch."""
    data = pen.open({"x": np.arange(2)})
    mixed = pen.mix({"a": data.shuffle(seed=1)}, seed=2, stop="forever", period=4)
    with pen.Loader(mixed, 2, tail="drop") as run:
        state = run.state_at(3)
    with pen.Loader(mixed.amend(3, weights={"a": 1}, max_epochs={"a": 3.5}), 2, tail="drop") as run:
        run.load_state_dict(state)
        assert list(run) == []
        assert run.step == 3


@pytest.mark.parametrize("size", [4, 8])
def test_an_epoch_that_an_amendment_ends_where_a_state_was_saved_is_over(size: int) -> None:
    """Of the stream that alone goes on there are 2 records left: less than a batch."""
    parts = {name: pen.open({"x": np.arange(10) + first}).in_order() for name, first in (("a", 0), ("b", 100))}
    mixed = pen.mix(parts, weights={"a": 1, "b": 1}, seed=2, period=4)
    amended = mixed.amend(16 // size, weights={"a": 1, "b": 0})
    with pen.Loader(mixed, size, tail="drop") as run:
        state = run.state_at(16 // size)
    with pen.Loader(amended, size, tail="drop") as run:
        expected = [run.batch(step)["x"].tolist() for step in range(16 // size, 16 // size + 3)]
        run.load_state_dict(state)
        assert (run.epoch, run.step, run.state_dict()["cursor"]) == (1, 16 // size, state["cursor"])
        assert [batch["x"].tolist() for batch in islice(run.forever(), 3)] == expected
        run.load_state_dict(state)
        assert next(iter(run))["x"].tolist() == expected[0]


def test_a_state_of_another_batch_size_is_refused_where_less_than_a_batch_is_left() -> None:
    """Position 8 is within the second batch of 6, behind which nothing is left of the epoch of 13 positions."""
    mixed = pen.mix({"a": pen.open({"x": np.arange(13)}).in_order()}, seed=2, period=4)
    with pen.Loader(mixed, 4, tail="drop") as run:
        state = run.state_at(2)
    with pen.Loader(mixed.amend(2, weights={"a": 1}), 6, tail="drop") as run, pytest.raises(StateMismatchError):
        run.load_state_dict(state)
