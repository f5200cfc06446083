"""Features that meet: mixtures with steps, ids, bans, phases, transforms, tails; one fact each. tests/crossing crosses them all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.loader.faulty import FaultySource

import penstock as pen
from penstock.errors import BatchError, StateMismatchError
from penstock.stream import Stream


def numbers(n: int, first: int = 0) -> pen.Source:
    return pen.open({"x": np.arange(first, first + n)})


def two(n: int = 40, m: int = 60) -> dict[str, Stream]:
    return {"a": numbers(n).shuffle(seed=1), "b": numbers(m, 1000).shuffle(seed=2)}


STAGED = [(0, {"a": 1, "b": 0}), (12, {"a": 0, "b": 1})]


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever"])
@pytest.mark.parametrize("tail", ["keep", "drop", "wrap"])
def test_weights_by_step_change_at_the_step_of_the_run(stop: str, tail: str) -> None:
    """They began anew in every epoch, and at another step if the mixture was not told the batch size."""
    streams = {"a": numbers(40).shuffle(seed=1), "b": numbers(40, 1000).shuffle(seed=2)}
    weights = [(0, {"a": 1, "b": 0.001}), (12, {"a": 0.001, "b": 1})] if stop == "all_exhausted" else STAGED
    loader = pen.Loader(pen.mix(streams, seed=5, weights=weights, stop=stop), 8, tail=tail)
    if stop == "all_exhausted_without_replacement":
        shares = [float((batch["x"] >= 1000).mean()) for _, batch in zip(range(20), loader.forever(), strict=False)]
        assert shares[0] == 0  # and every record comes once, so that b comes when a has ended
        return
    shares = [float((batch["x"] >= 1000).mean()) for _, batch in zip(range(30), loader.forever(), strict=False)]
    assert all(share <= 0.25 for share in shares[:12]), shares
    assert all(share >= 0.75 for share in shares[12:]), shares


def test_the_batch_size_of_a_mixture_is_the_loaders() -> None:
    with pytest.raises(ValueError, match="for batches of 5, the loader has batches of 8: leave batch_size out"):
        pen.Loader(pen.mix(two(), seed=5, batch_size=5), 8)
    with pytest.raises(ValueError, match="for batches of 5, a phase has 8"):
        pen.Loader(pen.mix(two(), seed=5, batch_size=5, stop="forever"), phases=[pen.Phase(3, 8)])
    told, left_out = (
        pen.Loader(pen.mix(two(), seed=5, weights=STAGED, stop="forever", **size), 8) for size in ({"batch_size": 8}, {})
    )
    assert told.state_dict() == left_out.state_dict()
    assert [told.explain(12)["source"].tolist()] == [left_out.explain(12)["source"].tolist()] == [["b"] * 8]


@pytest.mark.parametrize("options", [{"weights": STAGED}, {"unit": "batch"}])
def test_such_a_run_does_not_resume_with_another_batch_size_or_tail(options: dict[str, Any]) -> None:
    mixed = pen.mix(two(), seed=5, **options)
    state = pen.Loader(mixed, 8).state_dict()
    pen.Loader(mixed, 8, shard=pen.Shard(1, 2)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="mixture batch_size: 8 in the state, 4 here"):
        pen.Loader(mixed, 4).load_state_dict(state)
    if "weights" in options:
        with pytest.raises(StateMismatchError, match="mixture tail: keep in the state, drop here"):
            pen.Loader(mixed, 8, tail="drop").load_state_dict(state)


@pytest.mark.parametrize("size", [1, 3, 7, 16])
def test_whole_batches_without_replacement_give_every_record_once(size: int) -> None:
    mixed = pen.mix(two(37, 50), seed=5, unit="batch", stop="all_exhausted_without_replacement")
    loader = pen.Loader(mixed, size)
    for _ in range(3):
        batches = [batch["x"].tolist() for batch in loader]
        assert sorted(x for batch in batches for x in batch) == [*range(37), *range(1000, 1050)]
        whole = 37 // size + 50 // size
        assert all(len({x >= 1000 for x in batch}) == 1 for batch in batches[:whole])


def test_steps_inside_another_mixture_are_refused() -> None:
    for options in ({"weights": STAGED}, {"unit": "batch"}):
        inner = pen.mix(two(), seed=5, batch_size=4, **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'in' has weights by step or draws whole batches"):
            pen.mix({"in": inner, "c": numbers(9).in_order()}, seed=1)
    with pytest.raises(ValueError, match="'in' is a mixture that never ends"):
        pen.mix({"in": pen.mix(two(), seed=5, stop="forever")}, seed=1)


def test_what_has_no_length_has_no_len() -> None:
    endless = pen.mix(two(), seed=5, stop="forever")
    for thing in (endless, pen.Loader(endless, 4)):
        with pytest.raises(TypeError, match="never ends"):
            len(thing)
    with pytest.raises(TypeError, match="depends on the batch size"):
        len(pen.mix(two(), seed=5, weights=STAGED))
    assert len(pen.mix(two(), seed=5, weights=STAGED, batch_size=8)) == 40
    assert "MixedStream" in repr(endless)


@pytest.mark.parametrize("threads", [0, 2])
def test_ids_of_a_mixture_carry_their_stream(threads: int) -> None:
    inner = pen.mix({"p": numbers(10, 100).shuffle(seed=1), "q": numbers(10, 200).shuffle(seed=2)}, seed=3)
    flat = {"a": numbers(10).shuffle(seed=1), "b": numbers(10, 100).shuffle(seed=2)}
    for streams, firsts, names in (
        (flat, [0, 100], ("a", "b")),
        ({"o": numbers(10).shuffle(seed=4), "in": inner}, [0, 100, 200], ("o", "in/p", "in/q")),
    ):
        loader = pen.Loader(pen.mix(streams, seed=9, stop="all_exhausted"), 6, ids="id", threads=threads)  # type: ignore[arg-type]
        assert loader.stream.leaf_names == names
        for batch in loader:
            assert batch["id_source"].dtype == np.int32
            assert (batch["x"] == batch["id"] + np.array(firsts)[batch["id_source"]]).all()
    assert "id_source" not in next(iter(pen.Loader(numbers(5), 2, ids="id")))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_that_returns_nothing_is_an_error(threads: int) -> None:
    def forgets(batch: dict[str, Any]) -> None:
        batch["x"] += 1

    with pytest.raises(BatchError, match="it returned None; a transform returns the batch"):
        next(iter(pen.Loader(numbers(9), 3, transform=forgets, threads=threads)))


def test_skipped_counts_samples_and_not_the_substitutes_that_were_tried() -> None:
    for bad in ([3], list(range(1, 40))):
        loader = pen.Loader(FaultySource(40, bad=set(bad)).in_order(), 8, on_error="skip", threads=0)
        list(loader)
        assert loader.stats().skipped == len(bad)


def test_an_epoch_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="drops every epoch whole: it has 5 samples, a batch 8"):
        pen.Loader(numbers(5), 8, tail="drop")
    texts = pen.open({"text": ["ab", "c"]}).in_order()
    for tail in ("keep", "drop", "pad"):
        with pytest.raises(ValueError, match="an epoch has 3 tokens, fewer than the 4 of a sequence"):
            pen.Loader(texts.sequences(4), 1, tail=tail)
    assert next(pen.Loader(texts.sequences(4), 1, tail="wrap").forever())["tokens"].tobytes() == b"abca"
    assert list(pen.Loader(numbers(0), 8, tail="drop")) == []


def test_the_epoch_is_that_of_the_next_batch_after_a_resume_with_larger_batches() -> None:
    small = pen.Loader(numbers(10), 3, tail="drop")
    next(iter(small)), small.seek(2)
    large = pen.Loader(numbers(10), 5, tail="drop")
    large.load_state_dict(small.state_dict())
    assert (large.epoch, large.step, len(large)) == (1, 2, 2)  # 4 records are left of epoch 0, too few for a batch
    assert [batch["x"].tolist() for batch in large] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_phases_are_checked_when_the_loader_is_made() -> None:
    inner = pen.mix({"t": pen.open({"text": ["abcdefgh"]}).in_order().sequences(2)}, seed=1)
    cases: Sequence[tuple[Any, list[pen.Phase], str]] = (
        (numbers(9), [pen.Phase(1, 2, seq_len=4)], "needs a stream of tokens"),
        (numbers(9), [pen.Phase(1, 2, weights={"a": 1})], "the stream is not a mixture"),
        (numbers(9), [], "at least one phase"),
        (pen.mix({"in": inner}, seed=1), [pen.Phase(1, 1, 4)], "mix all streams of tokens in one mixture"),
    )
    for stream, phases, told in cases:
        with pytest.raises(ValueError, match=told):
            pen.Loader(stream, phases=phases)


def test_where_leaves_out_the_steps_at_which_a_record_is_banned() -> None:
    stream = numbers(10).shuffle(seed=7)
    loaders = [pen.Loader(one, 4) for one in (stream, stream.without([2], from_step=1))]
    (found,) = loaders[0].where(2)
    assert loaders[1].where(2) == ([found] if found["step"] < 1 else [])
    both = pen.Loader(pen.mix({"a": stream.without([2])}, seed=1), 4)
    assert both.where(("a", 2)) == []


def test_no_field_that_a_loader_adds_takes_the_place_of_another() -> None:
    """A field ``valid`` of the data was overwritten by that of the padding, and so were ids of that name."""
    data = pen.open({"valid": np.arange(5), "id_source": np.arange(5)})
    with pytest.raises(ValueError, match="the stream has a field 'valid' already: use another tail"):
        pen.Loader(data, 2, tail="pad")
    with pytest.raises(ValueError, match="the stream has a field 'valid' already; choose another name for the ids"):
        pen.Loader(data, 2, ids="valid")
    with pytest.raises(ValueError, match="tail='pad' adds a field 'valid': choose another name for the ids"):
        pen.Loader(numbers(5), 2, ids="valid", tail="pad")
    with pytest.raises(ValueError, match="the stream has a field 'id_source' already"):
        pen.Loader(pen.mix({"a": data.in_order()}, seed=5), 2, ids="id")
    assert set(next(iter(pen.Loader(data, 2, ids="id")))) == {"valid", "id_source", "id"}  # only ids of mixtures have a source
