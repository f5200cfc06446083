"""The plan of a run is what the run then does."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count

import penstock as pen
from penstock.order.layout import STOP_POLICIES


def stream_of(number: int, length: int) -> pen.Stream:
    return pen.open({"x": np.arange(length), "kind": np.full(length, number)}).shuffle(seed=number)


def compare(loader: pen.Loader, steps: int, lengths: list[int], caps: dict[int, int], times: int) -> None:
    """Run it, and count."""
    found = pen.plan(loader, steps, seen_more_than=times)
    seen: Counter[tuple[int, int]] = Counter()
    counts, exhausted, capped, taken = [0] * len(lengths), [None] * len(lengths), dict.fromkeys(caps), 0
    for step, batch in zip(range(steps), loader.forever(), strict=False):
        taken += 1
        is_own = batch["valid"] if "valid" in batch else np.ones(len(batch["x"]), bool)  # what fills a batch up does not count
        for kind, x in zip(batch["kind"][is_own].tolist(), batch["x"][is_own].tolist(), strict=True):
            counts[kind] += 1
            seen[kind, x] += 1
            if counts[kind] == lengths[kind]:
                exhausted[kind] = step
            if counts[kind] == caps.get(kind):
                capped[kind] = step
    assert (found.steps, found.samples) == (taken, sum(counts))
    assert [one.samples for one in found.streams] == counts
    assert [one.epochs for one in found.streams] == [count / length for count, length in zip(counts, lengths, strict=True)]
    assert [one.exhausted_at for one in found.streams] == exhausted
    assert [one.capped_at for one in found.streams] == [capped.get(kind) for kind in range(len(lengths))]
    for kind, one in enumerate(found.streams):
        assert one.repeated == sum(number > times for (which, _), number in seen.items() if which == kind)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    stop=st.sampled_from(STOP_POLICIES),
    size=st.integers(1, 9),
    tail=st.sampled_from(["keep", "pad", "wrap"]),
    amend=st.none() | st.integers(1, 9),
    data=st.data(),
)
def test_a_plan_is_what_the_run_does(lengths: list[int], stop: str, size: int, tail: str, amend: int | None, data: Any) -> None:
    names = [f"s{k}" for k in range(len(lengths))]
    weights = {name: data.draw(st.integers(1, 5)) for name in names}
    caps = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0.5, 1, 2])))
    streams = {name: stream_of(k, lengths[k]) for k, name in enumerate(names)}
    mixed = pen.mix(streams, weights=weights, seed=3, stop=stop, max_epochs=caps, period=8)
    if amend is not None:
        lengths, names = [*lengths, 20], [*names, "new"]
    steps = data.draw(st.integers(0, 60))
    whole = {names.index(name): int(cap * lengths[names.index(name)]) for name, cap in caps.items()}
    try:
        if amend is not None:
            mixed = mixed.amend(amend, weights={**weights, "new": 2}, add={"new": stream_of(len(names) - 1, 20)})
        loader = pen.Loader(mixed, size, tail=tail, threads=0)
    except ValueError as error:
        assert "the run ends" in str(error)  # noqa: PT017
        return
    compare(loader, steps, lengths, whole, data.draw(st.integers(0, 2)))


def test_a_plan_of_five_hundred_streams_is_what_the_run_does() -> None:
    number, steps = count(120, 500), count(100, 400)  # nearly as many epochs of each stream
    lengths = [50 + 7 * (k % 37) for k in range(number)]
    streams = {f"s{k}": stream_of(k, length) for k, length in enumerate(lengths)}
    weights = {f"s{k}": 1 + k % 11 for k in range(number)}
    caps = {f"s{k}": 1 + k % 3 for k in range(0, number, 5)}
    mixed = pen.mix(streams, weights=weights, seed=3, stop="forever", max_epochs=caps)
    compare(pen.Loader(mixed, 256, threads=0), steps, lengths, {k: (1 + k % 3) * lengths[k] for k in range(0, number, 5)}, 1)


def test_plans_of_single_streams_phases_and_dropped_batches() -> None:
    data = pen.open({"ids": [np.arange(5)] * 32}).shuffle(seed=1)
    one = pen.plan(pen.Loader(data, 5, tail="drop"), 13).streams[0]
    assert (one.samples, one.epochs, one.exhausted_at, one.tokens) == (65, 65 / 32, 5, 325.0)
    packs = pen.plan(data.pack(8, split="never"), batch_size=4)
    assert (packs.steps, packs.streams[0].padding, packs.streams[0].documents, packs.tokens) == (8, 0.375, 1.0, 160.0)
    phases = [pen.Phase(3, batch_size=4, seq_len=4), pen.Phase(2, batch_size=2, seq_len=8)]
    assert pen.plan(pen.Loader(data.sequences(4), phases=phases)).samples == 16
    mixed = pen.mix({"a": stream_of(0, 10), "b": stream_of(1, 13)}, seed=1)
    loader = pen.Loader(mixed, 4, tail="drop", threads=0)
    drawn = Counter(kind for _, batch in zip(range(17), loader.forever(), strict=False) for kind in batch["kind"].tolist())
    assert [one.samples for one in pen.plan(loader, 17).streams] == [drawn[0], drawn[1]]


def test_a_plan_without_an_end_needs_steps() -> None:
    mixed = pen.mix({"a": stream_of(0, 10)}, seed=1, stop="forever")
    with pytest.raises(TypeError, match="never ends"):
        pen.plan(mixed, batch_size=4)


def tokens_of(number: int, length: int) -> pen.Stream:
    return pen.open({"ids": [np.full(7, number, np.int32)] * length}).shuffle(seed=number)


def test_a_plan_of_sequences_in_phases_is_what_the_run_does() -> None:
    parts = {"a": tokens_of(0, 143).sequences(300, field="ids"), "b": tokens_of(1, 100).sequences(300, field="ids")}
    mixed = pen.mix(parts, weights={"a": 1, "b": 1}, seed=1, stop="forever")
    for stream in (mixed, parts["a"]):
        loader = pen.Loader(stream, phases=[pen.Phase(6, batch_size=8, seq_len=100), pen.Phase(4, batch_size=4, seq_len=200)])
        found, drawn, tokens = pen.plan(loader), Counter[int](), 0
        for batch in loader:
            drawn.update(batch["tokens"][:, 0].tolist())
            tokens += batch["tokens"].size
        assert (found.samples, found.tokens) == (drawn.total(), tokens)
        assert [one.samples for one in found.streams] == [drawn[kind] for kind in range(len(found.streams))]
    assert (found.streams[0].epochs, found.streams[0].exhausted_at) == (8000 / 1001, 1)


def test_tokens_of_a_plan_are_those_that_the_mixture_goes_by() -> None:
    def data(seed: int) -> pen.Stream:
        return pen.open({"ids": [np.arange(3)] * 20, "words": [np.arange(30), np.arange(50)] * 10}).shuffle(seed=seed)

    mixed = pen.mix({"a": data(1), "b": data(2).buckets(4, field="words")}, weights={"a": 1, "b": 1}, by="words", seed=1)
    assert pen.plan(mixed, 5, batch_size=4).tokens == 5 * 4 * 40


def test_whole_batches_are_capped_before_their_cap() -> None:
    mixed = pen.mix({"a": stream_of(0, 20), "b": stream_of(1, 20)}, seed=1, stop="forever", unit="batch", max_epochs={"a": 0.5})
    loader = pen.Loader(mixed, 4, threads=0)
    last = max(step for step in range(40) if 0 in loader.batch(step)["kind"])
    assert [(one.samples, one.capped_at) for one in pen.plan(loader, 40).streams] == [(8, last), (152, None)]


def test_draws_with_replacement_and_a_second_batch_size_have_no_answer() -> None:
    drawn = pen.open({"x": np.arange(100)}).sample(seed=1)
    assert pen.plan(drawn, batch_size=10).streams[0].repeated is None
    with pytest.raises(ValueError, match="leave out batch_size=5"):
        pen.plan(pen.Loader(drawn, 10), batch_size=5)
