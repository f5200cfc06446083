"""Several streams drawn from by weight, beside the mixture of their orders."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.model import assert_equal_batches, make_stream
from tests.stream.tokens import make_tokens, shuffled_line

import penstock as pen
from penstock.argument import as_positions
from penstock.batch import Ragged
from penstock.errors import SchemaMismatchError
from penstock.formats.array import ArraySource
from penstock.order import Mixture, Phase, Shuffle
from penstock.order.mixture import STOP_POLICIES
from penstock.stream import MixedStream, RecordStream
from penstock.stream.picks import flatten, ids_of
from penstock.stream.stream import Stream

LENGTHS = {"a": 40, "b": 97, "c": 8}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def parts(kinds: tuple[str, ...] = ("shuffle", "blocks", "sequential")) -> dict[str, Stream]:
    return {name: make_stream(n, kind, seed=n, texts=True) for (name, n), kind in zip(LENGTHS.items(), kinds, strict=True)}


OPTIONS: list[dict[str, Any]] = [
    {"weights": WEIGHTS},
    {},
    {"weights": {"a": 1, "b": 0, "c": 1}},
    {"weights": WEIGHTS, "unit": "batch", "batch_size": 4},
    {"weights": [(0, WEIGHTS), (3, {"a": 0, "b": 1, "c": 0}), (9, {"a": 1, "b": 1, "c": 1})], "batch_size": 5},
    {"weights": [(0, WEIGHTS), (2, {"a": 1, "b": 1, "c": 0})], "batch_size": 6, "unit": "batch"},
    {"weights": WEIGHTS, "period": 7},
]


@pytest.mark.parametrize("stop", STOP_POLICIES)
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_samples_are_those_of_the_mixture_of_orders(options: dict[str, Any], stop: str) -> None:
    streams = parts()
    mixed = pen.mix(streams, seed=3, stop=stop, **options)
    orders = {name: stream.order for name, stream in streams.items()}  # type: ignore[attr-defined]
    mixture = Mixture(orders, seed=3, stop=stop, **options)
    assert mixed.num_samples == mixed.axis == len(mixture)
    firsts = dict(zip(LENGTHS, np.cumsum([0, *LENGTHS.values()]).tolist(), strict=False))
    end = min(60, *(mixture.length_of(epoch) for epoch in (0, 1, 4)))
    runs = [range(0, end), range(5, 6), range(3, end, 4), range(end // 2, end, 8)]
    for epoch in (0, 1, 4) if stop != "forever" else (0,):
        for run in runs:
            picks = mixed.locate(epoch, run)
            expected = mixture.indices(epoch, run.start, run.stop, run.step)
            described = picks.describe()
            rows = {name: iter(part["ids"].tolist()) for name, part in described["parts"].items()}
            assert [firsts[name] + next(rows[name]) for name in described["source"]] == expected.tolist()
            batch = mixed.fetch(picks)
            assert list(batch) == ["x", "pair", "text"]
            wanted = [(name, int(i) - firsts[name]) for name, i in zip(described["source"].tolist(), expected, strict=True)]
            assert batch["x"].tolist() == [10 * i for _, i in wanted]
            assert batch["pair"].tolist() == [[2 * i, 2 * i + 1] for _, i in wanted]
            assert batch["text"].to_list() == [f"record {i}" * (i % 3) for _, i in wanted]


def test_missing_values_stay_missing() -> None:
    def source(n: int, every: int) -> ArraySource:
        values = np.ma.MaskedArray(np.arange(n, dtype=np.int64), mask=np.arange(n) % every == 0)
        texts = [None if i % every == 1 else str(i) for i in range(n)]
        return ArraySource({"v": values, "t": Ragged.from_items(texts, dtype="u1", kind="text")})

    one, other = source(30, 3), source(20, 5)
    mixed = pen.mix({"one": one.in_order(), "other": other.in_order()}, seed=1, stop="all_exhausted_without_replacement")
    picks = mixed.locate(0, range(50))
    batch, described = mixed.fetch(picks), picks.describe()
    seen = {"one": iter(described["parts"]["one"]["ids"]), "other": iter(described["parts"]["other"]["ids"])}
    for place, name in enumerate(described["source"]):
        i = int(next(seen[name]))
        every = 3 if name == "one" else 5
        assert batch["t"][place] == (None if i % every == 1 else str(i))
        assert np.ma.getmaskarray(batch["v"])[place] == (i % every == 0)
        assert i % every == 0 or batch["v"][place] == i


def test_all_without_replacement_gives_every_record_once() -> None:
    mixed = pen.mix(parts(), seed=3, weights=WEIGHTS, stop="all_exhausted_without_replacement")
    assert len(mixed) == sum(LENGTHS.values())
    for epoch in range(3):
        described = mixed.locate(epoch, range(len(mixed))).describe()["parts"]
        assert {name: sorted(part["ids"].tolist()) for name, part in described.items()} == {
            name: list(range(n)) for name, n in LENGTHS.items()
        }


@pytest.mark.parametrize("stop", STOP_POLICIES)
@pytest.mark.parametrize("unit", ["sample", "batch"])
def test_where_finds_every_time_a_record_comes(stop: str, unit: str) -> None:
    mixed = pen.mix(parts(("shuffle", "blocks", "shuffle")), seed=3, weights=WEIGHTS, stop=stop, unit=unit, batch_size=3)
    looked_at = min(mixed.num_samples, 400)
    seen: dict[tuple[str, int], list[tuple[int, int]]] = {}
    epochs = range(3) if stop != "forever" else range(1)
    for epoch in epochs:
        described = mixed.locate(epoch, range(looked_at)).describe()
        rows = {name: iter(part["ids"].tolist()) for name, part in described["parts"].items()}
        for position, name in enumerate(described["source"].tolist()):
            seen.setdefault((name, next(rows[name])), []).append((epoch, position))
    for name, n in LENGTHS.items():
        for record in range(0, n, 3):
            if stop == "forever":
                continue
            found = [place for place in mixed.where((name, record), epochs=epochs) if place[1] < looked_at]
            assert sorted(found) == seen.get((name, record), []), (name, record)


def test_where_in_a_mixture_names_stream_and_record() -> None:
    mixed = pen.mix(parts(), seed=3)
    with pytest.raises(TypeError, match="named by"):
        mixed.where(3)
    with pytest.raises((KeyError, ValueError), match="zzz"):
        mixed.where(("zzz", 3))


def test_where_in_a_mixture_that_never_ends_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match=r"forever|never ends"):
        pen.mix(parts(("shuffle", "blocks", "shuffle")), seed=3, stop="forever").where(("a", 3))


def test_banned_records_of_a_mixture_no_longer_come() -> None:
    mixed = pen.mix(parts(), seed=3, weights=WEIGHTS, stop="all_exhausted")
    banned = mixed.without({"a": range(0, 40, 2), "c": [1, 2]}, from_step=5)
    for step in (4, 5):
        before, after = (one.locate(0, range(len(mixed)), step).describe() for one in (mixed, banned))
        assert before["source"].tolist() == after["source"].tolist()
        for name in LENGTHS:
            old, new = before["parts"][name]["ids"], after["parts"][name]["ids"]
            gone = {"a": set(range(0, 40, 2)), "c": {1, 2}}.get(name, set()) if step == 5 else set()
            kept = ~np.isin(old, sorted(gone))
            assert np.array_equal(old[kept], new[kept])
            assert not gone & set(new.tolist())
    with pytest.raises(KeyError, match="unknown streams"):
        mixed.without({"d": [1]})


def test_mixtures_of_mixtures(tmp_path: Path) -> None:
    inner = pen.mix({"p": make_stream(10, seed=1), "q": make_stream(20, seed=2)}, seed=5, stop="all_exhausted_without_replacement")
    outer = pen.mix({"in": inner, "r": make_stream(30, seed=3)}, seed=6, stop="all_exhausted_without_replacement")
    picks = outer.locate(0, range(len(outer)))
    described = picks.describe()["parts"]
    assert sorted(described["r"]["ids"].tolist()) == list(range(30))
    assert sorted(described["in"]["parts"]["p"]["ids"].tolist()) == list(range(10))
    assert sorted(described["in"]["parts"]["q"]["ids"].tolist()) == list(range(20))
    assert len(outer.fetch(picks)["x"]) == 60


@pytest.mark.parametrize("stop", STOP_POLICIES[:-1])
def test_mixtures_of_sequences_take_the_lines_of_their_streams(tmp_path: Path, stop: str) -> None:
    with make_tokens(tmp_path, 100, 8) as one, make_tokens(tmp_path, 333, 16) as other:
        streams = {"one": one.shuffle(seed=1).sequences(10, page=8), "other": other.shuffle(seed=2).sequences(10, page=16)}
        mixed = pen.mix(streams, seed=4, weights={"one": 1, "other": 1}, stop=stop)
        lines = {
            "one": _rows(shuffled_line(range(100), 8, 1, 30), 100, 10),
            "other": _rows(shuffled_line(range(333), 16, 2, 30), 333, 10),
        }
        given = {"one": 0, "other": 0}
        for epoch in range(3):
            picks = mixed.locate(epoch, range(len(mixed)))
            found = _by_name(picks, mixed.fetch(picks))
            for name, rows in found.items():
                assert sorted(rows) == sorted(lines[name][given[name] : given[name] + len(rows)])
                given[name] += len(rows)


def _rows(line: list[int], length: int, seq_len: int) -> list[list[int]]:
    """The sequences of every epoch of a line; what is left of an epoch is left out."""
    return [
        line[epoch + low : epoch + low + seq_len]
        for epoch in range(0, len(line), length)
        for low in range(0, length - seq_len + 1, seq_len)
    ]


def _by_name(picks: Any, batch: dict[str, Any]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for name, row in zip(picks.describe()["source"].tolist(), batch["tokens"].tolist(), strict=True):
        found.setdefault(name, []).append(row)
    return found


def test_check_38_phases_of_a_mixture_use_each_line_without_gaps(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 1000, 8) as one, make_tokens(tmp_path, 1333, 16) as other:
        streams = {"one": one.shuffle(seed=1).sequences(8, page=8), "other": other.shuffle(seed=2).sequences(8, page=16)}
        mixed = pen.mix(streams, seed=4, weights={"one": 1, "other": 1})
        phases = [Phase(5, 4, 8), Phase(3, 2, 16), Phase(2, 8, 4)]
        phased = mixed.with_phases(phases)
        assert len(phased) == 20 + 6 + 16
        lines = {"one": shuffled_line(range(1000), 8, 1, 1), "other": shuffled_line(range(1333), 16, 2, 1)}
        first = 0
        given = {"one": 0, "other": 0}
        for phase in phases:
            count = (phase.steps or 0) * phase.batch_size
            sized = phased.sized(phase.seq_len)
            picks = sized.locate(0, range(first, first + count))
            for name, rows in _by_name(picks, sized.fetch(picks)).items():
                assert abs(len(rows) - count / 2) <= 1
                end = given[name] + len(rows) * phase.seq_len
                line = lines[name][given[name] : end]
                assert sorted(rows) == sorted(line[low : low + phase.seq_len] for low in range(0, len(line), phase.seq_len))
                given[name] = end
            first += count


def test_streams_survive_pickling() -> None:
    mixed = pen.mix(parts(), seed=3, weights=WEIGHTS, stop="all_exhausted")
    twin = pickle.loads(pickle.dumps(mixed))
    assert (twin.plan(), twin.data_fingerprint) == (mixed.plan(), mixed.data_fingerprint)
    assert_equal_batches(mixed.fetch(mixed.locate(3, range(50))), twin.fetch(twin.locate(3, range(50))))


def test_plans_tell_mixtures_apart() -> None:
    plans = [
        pen.mix(parts(), seed=3).plan(),
        pen.mix(parts(), seed=4).plan(),
        pen.mix(parts(), seed=3, stop="forever").plan(),
        pen.mix(parts(), seed=3, weights=WEIGHTS).plan(),
        pen.mix(parts(), seed=3, unit="batch", batch_size=4).plan(),
        pen.mix(parts(), seed=3, unit="batch", batch_size=5).plan(),
        pen.mix(parts(), seed=3, period=9).plan(),
        pen.mix(parts(("shuffle", "shuffle", "sequential")), seed=3).plan(),
    ]
    assert len({str(sorted(plan.items())) for plan in plans}) == len(plans)


def test_equal_weights_make_equal_plans_in_any_order_of_their_names() -> None:
    one = pen.mix(parts(), seed=3, weights={"a": 1, "b": 2, "c": 3})
    other = pen.mix(parts(), seed=3, weights={"c": 3, "b": 2, "a": 1})
    assert one.plan() == other.plan()


def test_bad_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match="dict of streams"):
        pen.mix({}, seed=1)
    with pytest.raises(TypeError, match="must be a stream"):
        pen.mix({"a": ArraySource({"x": np.arange(3)})}, seed=1)  # type: ignore[dict-item]
    with pytest.raises(SchemaMismatchError, match="same fields"):
        pen.mix({"a": make_stream(3), "b": make_stream(3, texts=True)}, seed=1)
    for weights in ({"a": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "b": 1, "z": 1}):
        with pytest.raises(ValueError, match="weights must name"):
            pen.mix(parts(), seed=1, weights=weights)
    assert isinstance(pen.mix({"only": RecordStream(ArraySource({"x": np.arange(3)}), Shuffle(3, seed=1))}, seed=1), MixedStream)


def test_an_empty_batch_has_all_fields() -> None:
    for stream in (pen.mix(parts(), seed=1), pen.mix({"a": make_stream(0), "b": make_stream(0)}, seed=1)):
        batch = stream.fetch(stream.locate(0, range(0)))
        assert list(batch) == list(stream.schema)
        assert {len(column) for column in batch.values()} == {0}


def _flat(stream: Stream, epoch: int, run: range) -> tuple[list[int], list[int]]:
    picks, sources = flatten(stream.locate(epoch, run))
    assert sources is not None
    return sources.tolist(), ids_of(picks).tolist()


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever"])
def test_native_orders_of_mixtures_in_mixtures_are_those_of_numpy(stop: str) -> None:
    """As long as no stream begins another epoch of its own; then they say so."""
    sizes = {"a": 5_000, "b": 700, "c": 1_300}
    streams: dict[str, Stream] = {
        "a": pen.open(np.arange(sizes["a"])).shuffle(seed=1),
        "b": pen.open(np.arange(sizes["b"])).shuffle(seed=2, block=16),
        "c": pen.open(np.arange(sizes["c"])).in_order(),
    }
    inner = pen.mix({name: streams[name] for name in "ab"}, seed=3, weights={"a": 0.9, "b": 0.1}, stop="all_exhausted", period=64)
    mixed = pen.mix({"first": streams["c"], "in": inner, "last": streams["b"]}, seed=4, stop=stop, period=100)
    native = refused = 0
    for epoch in range(1 if stop == "forever" else 3):  # which has only one
        for start in range(0, min(8_000, mixed.num_samples) - 300, 300):
            run = range(start, start + 300)
            order = mixed.native_order(epoch, start, 0)
            assert order is not None
            leaves, ids = np.empty(300, np.int32), np.empty(300, np.int64)
            if order.at(as_positions(run), leaves, ids):
                assert (leaves.tolist(), ids.tolist()) == _flat(mixed, epoch, run)
                native += 1
                again, records = np.empty(300, np.int32), np.empty(300, np.int64)
                assert order.run(start, again, records)
                assert np.array_equal(again, leaves)
                assert np.array_equal(records, ids)
            else:
                refused += 1
    assert native > 3 * refused > 0


def test_what_numpy_must_work_out_has_no_native_order() -> None:
    a, b = (pen.open(np.arange(100)).shuffle(seed=seed) for seed in (1, 2))
    assert pen.mix({"a": a, "b": b}, seed=3).native_order(0, 0, 0) is not None
    for other in (a.without([3]), pen.open(np.arange(100)).sample(seed=1), pen.open(np.arange(100)).design(seed=1, size=10)):
        assert pen.mix({"a": other, "b": other}, seed=3).native_order(0, 0, 0) is None
    whole = pen.mix({"a": a, "b": b}, seed=3, unit="batch", batch_size=4)
    assert whole.native_order(0, 0, 0) is None
