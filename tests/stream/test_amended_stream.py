"""Mixtures that are amended, capped and weighted by tokens, through loaders: before and after the step, resumed anywhere."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import StateMismatchError
from penstock.order import Amendment, Mixture
from penstock.order.layout import STOP_POLICIES
from penstock.stream import Stream
from penstock.stream.mixed import MixedStream

NAMES = ("web", "wiki", "code")


def stream_of(name: str, length: int) -> Stream:
    number = NAMES.index(name)
    return pen.open({"x": np.arange(length) + 1000 * number}).shuffle(seed=number)


def mixture(lengths: dict[str, int], **options: Any) -> MixedStream:
    return pen.mix({name: stream_of(name, length) for name, length in lengths.items()}, seed=5, **options)


def take(stream: Stream, steps: range, *, world: int = 1, state: Any = None, **options: Any) -> list[list[int]]:
    """The batches of some steps, put together from all ranks."""
    found: list[list[int]] = [[] for _ in steps]
    for rank in range(world):
        loader = pen.Loader(stream, shard=pen.Shard(rank, world), **{"threads": 0, "batch_size": 4, **options})
        if state is None:
            loader.seek(steps.start)
        else:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.step == steps.start
        for number, batch in zip(range(len(steps)), loader.forever(), strict=False):
            found[number] += [int(x) for x in batch["x"]]
    return [sorted(batch) for batch in found]


@given(
    stop=st.sampled_from(STOP_POLICIES),
    unit=st.sampled_from(["sample", "batch"]),
    tail=st.sampled_from(["keep", "drop"]),
    step=st.integers(1, 12),
    at=st.integers(0, 24),
    worlds=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    threads=st.sampled_from([0, 2]),
)
def test_an_amended_run_resumes_anywhere_on_any_ranks(
    stop: str, unit: str, tail: str, step: int, at: int, worlds: tuple[int, int], threads: int
) -> None:
    plain = mixture({"web": 40, "wiki": 24}, weights={"web": 2, "wiki": 1}, stop=stop, unit=unit, period=8)
    amended = plain.amend(step, weights={"web": 1, "wiki": 1, "code": 2}, add={"code": stream_of("code", 36)})
    given: dict[str, Any] = {"tail": tail}
    whole = take(amended, range(30), **given)
    assert whole[:step] == take(plain, range(step), **given)
    saved = pen.Loader(amended, 4, shard=pen.Shard(0, worlds[0]), **given).state_at(at)
    assert take(amended, range(at, 30), world=worlds[1], state=saved, threads=threads, **given) == whole[at:]


@pytest.mark.parametrize("staged", [False, True])
def test_a_state_of_the_run_without_the_amendment_goes_on_up_to_its_step(staged: bool) -> None:
    weights: Any = {"web": 2, "wiki": 1}
    plain = mixture(
        {"web": 50, "wiki": 30}, weights=[(0, weights), (3, {"web": 1, "wiki": 1})] if staged else weights, stop="forever"
    )
    amended = plain.amend(10, weights={"web": 1, "wiki": 0, "code": 1}, add={"code": stream_of("code", 20)})
    twice = amended.amend(20, weights={"web": 1, "wiki": 1, "code": 0})
    before = pen.Loader(plain, 4)
    whole = take(twice, range(40))
    assert whole[:20] == take(amended, range(20))
    for step in (0, 5, 10):
        assert take(twice, range(step, 40), state=before.state_at(step), world=2) == whole[step:]
    assert take(twice, range(20, 40), state=pen.Loader(amended, 4).state_at(20)) == whole[20:]
    with pytest.raises(StateMismatchError, match="without the amendment at step 10: amend the mixture at step 11 or later"):
        pen.Loader(amended, 4).load_state_dict(before.state_at(11))
    with pytest.raises(StateMismatchError, match="without the amendment at step 20: amend the mixture at step 33"):
        pen.Loader(twice, 4).load_state_dict(pen.Loader(amended, 4).state_at(33))
    with pytest.raises(StateMismatchError, match="mixture amendments"):
        pen.Loader(plain, 4).load_state_dict(pen.Loader(amended, 4).state_at(5))


def test_a_state_of_another_batch_size_does_not_go_on_in_an_amended_run() -> None:
    plain = mixture({"web": 50, "wiki": 30}, stop="forever")
    amended = plain.amend(10, weights={"web": 1, "wiki": 3})
    with pytest.raises(StateMismatchError, match="need the batch size and tail of the run"):
        pen.Loader(amended, 8).load_state_dict(pen.Loader(plain, 4).state_at(5))


def test_caps_end_a_run_on_every_rank() -> None:
    capped = mixture({"web": 40, "wiki": 10}, stop="forever", max_epochs={"web": 1, "wiki": 4}, period=8)
    loader = pen.Loader(capped, 8, threads=0)
    found = [int(x) for batch in loader for x in batch["x"]]
    assert sorted(found) == [*range(40), *(x for x in range(1000, 1010) for _ in range(4))]
    assert list(loader) == []
    assert len(loader) == 0
    assert (loader.step, len(pen.Loader(capped, 8))) == (10, 10)
    whole = take(capped, range(10), batch_size=8)
    assert take(capped, range(3, 10), batch_size=8, world=4, state=pen.Loader(capped, 8).state_at(3)) == whole[3:]


@pytest.mark.parametrize("tail", ["keep", "drop", "pad", "wrap"])
@pytest.mark.parametrize("size", [5, 6, 7, 16, 17])
@pytest.mark.parametrize("is_amended", [False, True])
@pytest.mark.sampled(3)
def test_runs_that_caps_end_stop_at_the_last_whole_batch_of_their_tail(tail: str, size: int, is_amended: bool) -> None:
    """Also where the end is that of a batch, and where what is left is less than a batch; the state at the end is taken again."""
    lengths = {"web": 20, "wiki": 10}
    capped = mixture(lengths, weights={"web": 1, "wiki": 1}, max_epochs={"web": 1.3, "wiki": 1.4})  # 20 and 20 samples
    stream = capped.amend(1, weights={"web": 1, "wiki": 1}) if is_amended else capped
    loader = pen.Loader(stream, size, tail=tail, threads=0)
    sizes = [len(batch["x"]) for batch in loader.forever()]
    epochs = [axis for _, axis in loader.stream.axes if axis]  # an amendment within a period moves the end of the first
    assert sum(epochs) == 40
    assert is_amended or epochs == [20, 20]
    epochs = [40] if tail == "wrap" else epochs
    expected = [min(size, epoch - first) for epoch in epochs for first in range(0, epoch, size)]
    if tail != "keep":
        expected = [size for one in expected if one == size or tail == "pad"]
    assert (sizes, loader.step) == (expected, len(expected))
    again = pen.Loader(stream, size, tail=tail, threads=0)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (list(again.forever()), again.step) == ([], len(expected))


def test_records_of_a_last_batch_that_is_left_out_come_at_no_step() -> None:
    """With tail="wrap" a run that caps end has whole batches only."""
    capped = mixture({"web": 10}, max_epochs={"web": 2.3})  # 23 samples
    loader = pen.Loader(capped, 5, tail="wrap", threads=0)
    batches = [batch["x"].tolist() for batch in loader.forever()]
    assert len(batches) == 4
    for record in range(10):
        found = [one["step"] for one in loader.where(("web", record), epochs=range(3))]
        assert sorted(found) == [step for step, batch in enumerate(batches) if record in batch]


def test_a_last_epoch_that_is_dropped_whole_ends_a_capped_run() -> None:
    capped = mixture({"web": 10, "wiki": 10}, weights={"web": 1, "wiki": 1}, max_epochs={"web": 1.1, "wiki": 1.1})
    loader = pen.Loader(capped, 4, tail="drop", threads=0)
    assert [len(batch["x"]) for batch in loader.forever()] == [4] * 5
    assert [len(batch["x"]) for batch in pen.Loader(capped, 4, threads=0).forever()] == [4] * 5 + [2]


def test_epochs_that_become_empty_without_caps_are_refused() -> None:
    """Whole batches of a stream that has less than one: the run must not end in silence."""
    weights: Any = [(0, {"web": 1, "wiki": 0}), (2, {"web": 0, "wiki": 1})]
    for caps in (None, {"web": 100}):
        mixed = mixture({"web": 7, "wiki": 3}, weights=weights, unit="batch", max_epochs=caps)
        with pytest.raises(ValueError, match="has no samples"):
            pen.Loader(mixed, 4, tail="drop")


@pytest.mark.parametrize("stop", ["forever", "first_exhausted"])
@pytest.mark.parametrize("is_amended", [False, True])
@pytest.mark.parametrize("tail", ["keep", "drop", "pad", "wrap"])
@pytest.mark.sampled(3)
def test_a_run_that_ends_gives_its_last_batch_and_is_resumed_behind_it(tail: str, is_amended: bool, stop: str) -> None:
    for size in (1, 4, 5, 6):
        mixed = mixture({"web": 18}, stop=stop, max_epochs={"web": 2})
        stream = mixed.amend(2, weights={"web": 2}) if is_amended else mixed
        loader = pen.Loader(stream, size, tail=tail, threads=0)
        given = [int(x) for batch in loader.forever() for x in batch["x"][batch.get("valid", ...)].reshape(-1)]
        dropped = 18 // size * size * 2 if stop == "first_exhausted" else 36 // size * size
        assert len(given) == {"drop": dropped, "wrap": 36 // size * size}.get(tail, 36)
        end, state = loader.step, loader.state_dict()
        assert loader.state_at(end) == state
        for name, argument in (("load_state_dict", state), ("set_state", loader.get_state()), ("seek", end)):
            other = pen.Loader(stream, size, tail=tail, threads=0)
            getattr(other, name)(argument)
            assert (other.step, other.state_dict(), list(other.forever())) == (end, state, [])
        epochs = pen.Loader(stream, size, tail=tail, threads=0)
        assert sum(1 for _ in range(4) for _ in epochs) == end


def test_whole_batches_that_wrap_are_not_amended_within_one() -> None:
    first = Amendment(9, weights=[2, 3, 3, 1], max_epochs={"0": 0.5, "3": 2})
    both = (first, Amendment(11, weights=[2, 3, 2, 2], max_epochs={"1": 2}))
    given: dict[str, Any] = {"weights": [0.1, 1, 3, 5], "seed": 3, "unit": "batch", "batch_size": 8, "period": 1, "tail": "wrap"}
    with pytest.raises(ValueError, match="an amendment would begin"):
        Mixture([43, 19, 8, 38], stop="all_exhausted_without_replacement", amendments=both, **given)


def test_an_amendment_at_the_end_of_a_capped_run_goes_on() -> None:
    capped = mixture({"web": 42}, stop="forever", max_epochs={"web": 0.33})  # 13 samples
    stream = capped.amend(4, weights={"web": 1, "code": 1}, add={"code": stream_of("code", 36)})
    batches = take(stream, range(8), batch_size=3, tail="drop")
    assert [min(batch) >= 2000 for batch in batches] == [False] * 4 + [True] * 4
    assert len({x for batch in batches for x in batch}) == 24
    loader = pen.Loader(stream, 3, tail="drop", threads=0)
    assert len(loader) == 4
    found = [one["step"] for one in loader.where(("code", 3), steps=range(30))]  # the second epoch never ends
    assert sorted(found) == [step for step, batch in enumerate(take(stream, range(30), batch_size=3, tail="drop")) if 2003 in batch]
    assert loader.where(("code", 3), steps=range(4)) == []
    loader.seek(5)
    with pytest.raises(TypeError, match="never ends"):
        len(loader)
    with pytest.raises(ValueError, match="never ends"):
        loader.where(("code", 3))


def test_a_mixture_whose_streams_are_all_capped_at_nothing_is_over_at_once() -> None:
    loader = pen.Loader(mixture({"web": 42}, stop="forever", max_epochs={"web": 0}), 3)
    assert (len(loader), len(loader.stream), list(loader), loader.where(("web", 3))) == (0, 0, [], [])


def test_caps_and_amendments_have_no_place_in_another_mixture() -> None:
    capped = mixture({"web": 40, "wiki": 10}, max_epochs={"wiki": 4})
    with pytest.raises(ValueError, match="max_epochs, which are those of a whole run"):
        pen.mix({"inner": capped, "code": stream_of("code", 5)}, seed=1)
    amended = mixture({"web": 40, "wiki": 10}).amend(3, weights={"web": 1, "wiki": 1})
    with pytest.raises(ValueError, match="no steps of its own inside another mixture"):
        pen.mix({"inner": amended, "code": stream_of("code", 5)}, seed=1)
    outer = pen.mix(
        {"inner": mixture({"web": 40, "wiki": 10}), "code": stream_of("code", 5)}, seed=1, max_epochs={"inner": 0.5}, stop="forever"
    )
    drawn = [x for batch in take(outer, range(50)) for x in batch]
    assert sum(x < 2000 for x in drawn) == 25


def ragged(lengths: list[int]) -> pen.Source:
    return pen.open({"ids": [np.zeros(length, np.int64) for length in lengths]})


def test_shares_of_tokens_are_those_of_the_mean_length_of_records() -> None:
    short, long = ragged([2, 4] * 100), ragged([20, 40] * 100)
    mixed = pen.mix(
        {"short": short.shuffle(seed=1), "long": long.shuffle(seed=2)},
        weights={"short": 1, "long": 1},
        seed=3,
        by="tokens",
        stop="forever",
    )
    which = mixed.locate(0, range(11_000)).which
    assert int((which == 0).sum()) in range(9990, 10_011)
    assert mixed.mean_tokens() == Fraction(60, 11) or abs(mixed.mean_tokens() - Fraction(60, 11)) < Fraction(1, 1000)
    assert "tokens" in str(mixed.plan())


def test_packs_count_tokens_without_padding() -> None:
    full, padded = ragged([8] * 64), ragged([5] * 64)
    options: dict[str, Any] = {"split": "never"}
    streams = {"full": full.shuffle(seed=1).pack(8, **options), "padded": padded.shuffle(seed=2).pack(8, **options)}
    assert [stream.mean_tokens() for stream in streams.values()] == [8, 5]
    mixed = pen.mix(streams, weights={"full": 1, "padded": 1}, seed=3, by="tokens", stop="forever")
    assert np.bincount(mixed.locate(0, range(13 * 1024)).which).tolist() == [5 * 1024, 8 * 1024]
    assert ragged([9, 3]).shuffle(seed=1).pack(8, split="never", long="drop").mean_tokens() == 3
    assert ragged([9, 3]).shuffle(seed=1).pack(8, split="never", long="truncate").mean_tokens() == Fraction(11, 2)
    assert ragged([9, 3]).in_order().sequences(4).mean_tokens() == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pen.mix({"a": stream_of("web", 5)}, seed=1, by="tokens"), "stream 'a': expected a field 'tokens', or one field"),
        (lambda: pen.mix({"a": stream_of("web", 5)}, seed=1, by="y"), "stream 'a': unknown field 'y'"),
        (lambda: pen.mix({"a": ragged([1, 2]).sample(seed=1, weights=[1, 2])}, seed=1, by="tokens"), "is not known: use shuffle"),
        (lambda: mixture({"web": 5}).amend(3, add={"web": stream_of("web", 5)}), "which the mixture has already"),
        (lambda: mixture({"web": 5}).amend(3, add=[stream_of("web", 5)]), "add must be a dict of streams by name, got list"),
        (lambda: mixture({"web": 5}).amend(3, weights={"web": 1}, add={"code": stream_of("code", 5)}), "missing .'code'."),
        (lambda: mixture({"web": 5}).amend(3, add={"code": pen.open({"y": np.arange(3)}).in_order()}), "must have the same fields"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_or_amended_is_refused(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, pen.PenstockError), match=words):
        make()


@given(stop=st.sampled_from(STOP_POLICIES), step=st.integers(1, 9), record=st.integers(0, 19), kind=st.sampled_from(NAMES))
def test_records_of_amended_mixtures_are_found(stop: str, step: int, record: int, kind: str) -> None:
    amended = mixture({"web": 20, "wiki": 20}, weights={"web": 2, "wiki": 1}, stop=stop, period=8).amend(
        step, weights={"web": 1, "wiki": 2, "code": 2}, add={"code": stream_of("code", 20)}
    )
    loader = pen.Loader(amended, 4, threads=0)
    batches = take(amended, range(20))
    value = record + 1000 * NAMES.index(kind)
    found = loader.where((kind, record), steps=range(20))
    assert [one["step"] for one in sorted(found, key=lambda one: one["step"])] == [
        step for step, batch in enumerate(batches) for x in batch if x == value
    ]
