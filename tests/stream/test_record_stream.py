"""Records of one source in an order: what comes, what no longer comes, and where a record stands."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.model import assert_equal_batches, make_orders, make_source, make_stream

from penstock.order import Design, Random, Shard, Shuffle
from penstock.stream import RecordStream

KINDS = ["sequential", "shuffle", "blocks", "random", "sliding"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 97])
def test_samples_are_the_records_of_the_order(n: int, kind: str) -> None:
    stream, order, source = make_stream(n, kind, texts=True), make_orders(n)[kind], make_source(n, texts=True)
    assert stream.axis == len(stream) == len(order)
    assert stream.stride == 1
    for epoch in (0, 1, 5):
        for run in (range(0, n), range(0, 0), range(n // 2, n), range(n // 3, n, 2), range(n - 1, n, 7)):
            picks = stream.locate(epoch, run)
            assert np.array_equal(picks.ids, order.indices(epoch, run.start, run.stop, run.step))
            assert_equal_batches(stream.fetch(picks), source.read(picks.ids))


def test_methods_of_a_source_give_the_orders() -> None:
    source = make_source(50)
    assert source.in_order().locate(3, range(2, 6)).ids.tolist() == [2, 3, 4, 5]
    assert np.array_equal(source.shuffle(seed=3).locate(1, range(50)).ids, Shuffle(50, seed=3).indices(1, 0, 50))
    assert np.array_equal(source.sample(seed=3).locate(1, range(50)).ids, Random(50, seed=3).indices(1, 0, 50))
    assert source.slide(4, 2).locate(0, range(8)).ids.tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    blocks = source.shuffle(seed=3, block=10, window=2)
    assert sorted(blocks.locate(0, range(50)).ids) == list(range(50))
    assert set(blocks.locate(0, range(20)).ids // 10) == set(blocks.locate(0, range(20)).ids[:20] // 10)
    design = source.design(seed=3, size=10)
    assert len(design) == 10
    picks = design.locate(0, range(2, 9, 3))
    assert picks.weights is not None
    assert np.array_equal(picks.ids, Design.simple(50, size=10, seed=3).indices(0, 2, 9, 3))
    batch = design.fetch(picks)
    assert list(batch) == ["x", "pair", "weight"]
    assert np.array_equal(batch["weight"], np.full(3, 5.0))


def test_an_order_longer_than_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="the source only 5 records"):
        RecordStream(make_source(5), Shuffle(6, seed=1))


def test_streams_survive_pickling() -> None:
    for kind in KINDS:
        stream = make_stream(97, kind, texts=True).without([3, 4]).without([5], from_step=9)
        twin = pickle.loads(pickle.dumps(stream))
        assert (twin.plan(), twin.data_fingerprint) == (stream.plan(), stream.data_fingerprint)
        for step in (0, 10):
            one, other = stream.locate(2, range(3, 90, 2), step), twin.locate(2, range(3, 90, 2), step)
            assert_equal_batches(stream.fetch(one), twin.fetch(other))


# Records that no longer come


@given(
    n=st.integers(2, 60),
    banned=st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=10), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    kind=st.sampled_from(KINDS),
    epoch=st.integers(0, 3),
)
def test_banned_records_are_replaced_and_nothing_else_changes(
    n: int, banned: list[set[int]], steps: list[int], kind: str, epoch: int
) -> None:
    plain = stream = make_stream(n, kind)
    bans = [({i % n for i in ids}, step) for ids, step in zip(banned, steps, strict=False)]
    bans = [(ids, step) for ids, step in bans if len(ids) < n]
    for ids, from_step in bans:
        stream = stream.without(sorted(ids, reverse=True), from_step=from_step)
    for step in range(6):
        gone = set().union(*(ids for ids, from_step in bans if step >= from_step))
        if len(gone) == n:
            continue
        before, after = plain.locate(epoch, range(n), step).ids, stream.locate(epoch, range(n), step).ids
        assert not gone & set(after.tolist())
        kept = ~np.isin(before, sorted(gone))
        assert np.array_equal(before[kept], after[kept])


def test_replacements_do_not_depend_on_ranks_or_batches() -> None:
    stream = make_stream(97).without(range(0, 97, 3), from_step=2)
    whole = stream.locate(4, range(97), 2).ids
    for world in (2, 3, 8):
        for rank in range(world):
            run = Shard(rank, world).run(10, 97)
            assert np.array_equal(stream.locate(4, run, 7).ids, whole[run.start : 97 : world])
    for position in range(97):
        assert stream.locate(4, range(position, position + 1), 3).ids[0] == whole[position]


def test_replacements_change_with_the_epoch_and_spread() -> None:
    stream = make_stream(97).without([5])
    found = set()
    for epoch in range(60):
        ids = stream.locate(epoch, range(97)).ids
        missing = set(range(97)) - {5} - set(ids.tolist())
        assert missing == set()
        found |= {int(i) for i in ids if (ids == i).sum() > 1}
    assert len(found) > 30


def test_banning_every_record_is_refused() -> None:
    stream = make_stream(6)
    with pytest.raises(ValueError, match="every record is banned"):
        stream.without(range(6))
    half = stream.without([0, 1, 2]).without([3, 4, 5], from_step=4)
    half.locate(0, range(6), 3)
    with pytest.raises(ValueError, match="every record is banned"):
        half.locate(0, range(6), 4)
    for bad in ([6], [-7], [0.5], ["x"]):
        with pytest.raises((IndexError, TypeError)):
            stream.without(bad)


def test_bans_are_part_of_the_plan() -> None:
    stream = make_stream(20)
    plans = [
        stream.plan(),
        stream.without([3]).plan(),
        stream.without([4]).plan(),
        stream.without([3], from_step=5).plan(),
        stream.without([3]).without([4]).plan(),
    ]
    assert len({str(sorted(plan.items())) for plan in plans}) == 5
    assert stream.without([4, 3, 3]).plan() == stream.without([3, 4]).plan()


# Where a record stands


@pytest.mark.parametrize("kind", ["sequential", "shuffle", "blocks"])
def test_where_is_the_inverse_of_the_order(kind: str) -> None:
    stream = make_stream(97, kind)
    lines = [stream.locate(epoch, range(97)).ids for epoch in range(4)]
    for record in (0, 1, 50, 96, -1):
        expected = [(epoch, int(np.flatnonzero(lines[epoch] == record % 97)[0])) for epoch in (1, 2, 3)]
        assert stream.where(record, epochs=range(1, 4)) == expected


def test_where_needs_an_inverse_and_a_record() -> None:
    with pytest.raises(TypeError, match="no inverse"):
        make_stream(10, "random").where(3)
    with pytest.raises(IndexError):
        make_stream(10).where(10)


def test_only_streams_of_tokens_have_a_length() -> None:
    stream = make_stream(10)
    assert stream.sized(1) is stream
    with pytest.raises(ValueError, match="needs a stream of tokens"):
        stream.sized(2)
