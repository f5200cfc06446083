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
    if loader.schedule.tail != "drop":  # of what is dropped it is the next step
        assert [one.exhausted_at for one in found.streams] == exhausted
        assert [one.capped_at for one in found.streams] == [capped.get(kind) for kind in range(len(lengths))]
    for kind, one in enumerate(found.streams):
        assert one.repeated == sum(number > times for (which, _), number in seen.items() if which == kind)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    stop=st.sampled_from(STOP_POLICIES),
    size=st.integers(1, 9),
    tail=st.sampled_from(["keep", "drop", "pad", "wrap"]),
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
        assert "the run ends" in str(error) or "drops every epoch" in str(error) or "fewer samples" in str(error)  # noqa: PT017
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


def documents_of(seed: int, count: int) -> pen.Source:
    chance = np.random.default_rng(seed)
    return pen.open({"ids": [np.arange(1, 1 + int(n), dtype=np.int32) for n in chance.lognormal(2, 1, count)]})


@pytest.mark.parametrize("split", ["fit", "always", "never"])
def test_tokens_and_ratios_of_packs_are_those_of_a_full_run(split: str) -> None:
    """Tokens, padding, documents that are cut, tokens that never come, and documents per sequence, counted in a whole epoch."""
    source = documents_of(1, 300)
    lengths = source.lengths("ids", np.arange(300))
    stream = source.shuffle(seed=3).pack(
        32, window=50, fields=("tokens", "segment"), split=split, long="truncate" if split == "never" else "error"
    )
    loader = pen.Loader(stream, 16, threads=0)
    found = pen.plan(loader)
    tokens = padding = sequences = pieces = 0
    for batch in loader:
        tokens += int((batch["segment"] >= 0).sum())
        padding += int((batch["segment"] < 0).sum())
        sequences += len(batch["segment"])
    spans = [
        span for step in range(found.steps) for row in loader.explain(step, documents=True)["documents"] for span in row.tolist()
    ]
    shown: Counter[int] = Counter()
    for document, low, high in spans:
        shown[document] += high - low
    whole = {document for document, low, high in spans if high - low == lengths[document]}
    pieces = len(shown)
    one = found.streams[0]
    assert (found.tokens, one.samples) == (tokens, sequences)
    assert one.padding == pytest.approx(padding / (padding + tokens))
    assert one.cut == pytest.approx(1 - len(whole) / np.count_nonzero(lengths))
    assert one.truncated == pytest.approx(1 - sum(shown.values()) / lengths.sum())
    assert (one.documents, pieces) == (pytest.approx(300 / sequences), np.count_nonzero(lengths))


def test_shares_of_tokens_are_met_at_every_thousand_steps_of_a_real_run() -> None:
    """Packs, counted in the batches; within 0.1 % at every 1,000 steps."""
    wanted = {"web": 0.5, "code": 0.3, "wiki": 0.2}
    packs = {
        name: documents_of(k, 400 + 100 * k).shuffle(seed=k).pack(16, fields=("tokens", "segment")) for k, name in enumerate(wanted)
    }
    mixed = pen.mix(packs, weights=wanted, by="tokens", seed=5, stop="forever", period=64)
    counts, steps = np.zeros(3, np.int64), count(1000, 20_000)
    for step, batch in zip(range(steps), pen.Loader(mixed, 16, ids="id", threads=0).forever(), strict=False):
        own = (batch["segment"] >= 0).sum(axis=1)
        counts += np.bincount(batch["id_source"], weights=own, minlength=3).astype(np.int64)
        if step % 1000 == 999:
            assert np.abs(counts / counts.sum() - list(wanted.values())).max() <= 0.001, (step, counts)
    found = pen.plan(mixed, steps, batch_size=16)
    assert [one.tokens for one in found.streams] == pytest.approx(counts.tolist(), rel=1e-3)
    assert [one.token_share for one in found.streams] == pytest.approx(list(wanted.values()), abs=1e-3)


def test_repeats_of_a_single_stream_leave_out_what_is_dropped() -> None:
    data = pen.open({"x": np.arange(10)}).shuffle(seed=3)
    for steps in range(12):
        loader = pen.Loader(data, 4, tail="drop", threads=0)
        seen = Counter(x for _, batch in zip(range(steps), loader.forever(), strict=False) for x in batch["x"].tolist())
        for times in range(3):
            expected = sum(count > times for count in seen.values())
            assert pen.plan(loader, steps, seen_more_than=times).streams[0].repeated == expected, (steps, times)


def test_plans_of_very_many_epochs_take_no_longer() -> None:
    one, other = (pen.open({"x": np.arange(length)}).shuffle(seed=length) for length in (10, 23))
    found = pen.plan(pen.Loader(one, 4, tail="drop"), 10**12)
    assert (found.samples, found.epochs, found.streams[0].repeated) == (4 * 10**12, 5 * 10**11, None)
    assert pen.plan(pen.Loader(one, 4), 3 * 10**12).streams[0].samples == 10**13
    mixed = pen.Loader(pen.mix({"one": one, "other": other}, seed=1), 8, tail="drop")
    found = pen.plan(mixed, 10**12)
    assert found.samples == 8 * 10**12
    assert sum(part.samples for part in found.streams) == pytest.approx(8 * 10**12, rel=1e-9)
    assert found.streams[0].share == pytest.approx(10 / 33, rel=1e-2)
