"""Cursor and Shard: 24 bytes from which any run goes on exactly, and ranks that never talk sharing an epoch without overlap."""

import copy
import json
import pickle
import struct
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import effort
from tests.cli import warm

from penstock.errors import PenstockError, StateError
from penstock.order import ORDER_VERSION, BlockShuffle, Cursor, Mixture, Order, Random, Sequential, Shard, Shuffle, Sliding
from penstock.testing.strategies import orders, seeds

MOST = 2**63 - 1


def cursors():
    return st.builds(Cursor, seeds(), st.integers(0, MOST), st.integers(0, MOST))


@given(cursor=cursors())
def test_cursor_is_24_bytes_of_seed_epoch_position(cursor):
    packed = bytes(cursor)
    assert len(packed) == 24
    assert packed == struct.pack("<QQQ", cursor.seed, cursor.epoch, cursor.position)
    assert Cursor.from_bytes(packed) == cursor
    assert Cursor.from_bytes(bytearray(packed)) == cursor


@given(cursor=cursors())
def test_state_is_plain_json_and_comes_back(cursor):
    state = cursor.state_dict()
    assert state == {"order_version": ORDER_VERSION, "seed": cursor.seed, "epoch": cursor.epoch, "position": cursor.position}
    assert Cursor.from_state_dict(json.loads(json.dumps(state))) == cursor


def test_layout_is_fixed_for_ever():
    assert bytes(Cursor(seed=7, epoch=258, position=2**40)).hex() == "070000000000000002010000000000000000000000010000"
    assert ORDER_VERSION == 1


def test_cursor_is_a_value():
    cursor = Cursor(1, 2, 3)
    assert cursor == eval(repr(cursor)) == pickle.loads(pickle.dumps(cursor)) == copy.copy(cursor)
    assert hash(cursor) == hash(Cursor(1, 2, 3))
    assert cursor != Cursor(1, 2, 4)
    with pytest.raises(AttributeError):
        cursor.position = 9


@given(seed=seeds(), length=st.integers(1, 10**6), start=st.integers(0, 10**7), counts=st.lists(st.integers(0, 10**7), max_size=5))
def test_advance_counts_epochs(seed, length, start, counts):
    cursor = Cursor(seed, start // length, start % length)
    for count in counts:
        cursor = cursor.advance(count, length=length)
        assert 0 <= cursor.position < length
    assert (cursor.seed, cursor.epoch * length + cursor.position) == (seed, start + sum(counts))


def test_end_of_an_epoch_is_the_start_of_the_next():
    assert Cursor(7, 3, 60).advance(40, length=100) == Cursor(7, 4, 0)
    assert Cursor(7).advance(250, length=100) == Cursor(7, 2, 50)
    assert Cursor(7).advance(0, length=1) == Cursor(7)


def run_from(order, cursor, count, batch):
    """The ids from a cursor on, batch by batch, across epochs; and the cursor after them."""
    found = []
    while count > 0:
        size = min(batch, count, len(order) - cursor.position)
        found += order.indices(cursor.epoch, cursor.position, cursor.position + size).tolist()
        cursor = cursor.advance(size, length=len(order))
        count -= size
    return found, cursor


@pytest.mark.parametrize("batch", [1, 7, 8, 97, 100])
def test_l7_resume_at_every_step_equals_the_uninterrupted_run(batch):
    n, total = 97, 250
    makers = [
        lambda seed: Shuffle(n, seed=seed),
        lambda seed: Random(n, seed=seed),
        lambda seed: BlockShuffle(n, block=8, window=3, lanes=2, seed=seed),
        lambda seed: Mixture([50, Shuffle(47, seed=seed)], weights=[1, 1], seed=seed, stop="all_exhausted"),
        lambda seed: Sliding(n, window=4, stride=3),
        lambda seed: Sequential(n),
    ]
    for make in makers:
        whole, last = run_from(make(5), Cursor(5), total, batch)
        for cut in range(0, total + 1, effort.count(10, 1) if batch == 7 else effort.count(52, 13)):
            begun, cursor = run_from(make(5), Cursor(5), cut, batch)
            saved = bytes(cursor)
            restored = Cursor.from_bytes(saved)
            rest, end = run_from(make(restored.seed), restored, total - cut, batch)
            assert begun + rest == whole
            assert end == last


@given(order=orders(60), data=st.data())
def test_l7_chain_of_resumes_equals_the_uninterrupted_run(order, data):
    if len(order) == 0:
        assert order.indices(0, 0, 0).tolist() == []
        return
    order = order if len(order) <= 200 else Sequential(200)
    cuts = data.draw(st.lists(st.integers(0, 150), min_size=3, max_size=3))
    whole, last = run_from(order, Cursor(0), sum(cuts), 16)
    found, cursor = [], Cursor(0)
    for cut in cuts:
        part, cursor = run_from(
            pickle.loads(pickle.dumps(order)), Cursor.from_bytes(bytes(cursor)), cut, data.draw(st.integers(1, 40))
        )
        found += part
    assert found == whole
    assert cursor == last


def test_resume_in_a_new_process_gives_the_same_ids():
    order = Shuffle(1000, seed=12)
    _, cursor = run_from(order, Cursor(12), 1234, 10)
    expected, _ = run_from(order, cursor, 900, 10)
    program = """
import sys
from penstock.order import Cursor, Shuffle
cursor = Cursor.from_bytes(bytes.fromhex(sys.argv[1]))
order, ids = Shuffle(1000, seed=cursor.seed), []
while len(ids) < 900:
    size = min(17, 900 - len(ids), 1000 - cursor.position)
    ids += order.indices(cursor.epoch, cursor.position, cursor.position + size).tolist()
    cursor = cursor.advance(size, length=1000)
print(ids)
"""
    done = warm.run([sys.executable, "-c", program, bytes(cursor).hex()], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == str(expected), done.stderr


@pytest.mark.parametrize("size", [0, 1, 8, 23, 25, 48])
def test_bytes_of_another_length_are_refused(size):
    with pytest.raises(StateError, match=rf"24 bytes, got {size}"):
        Cursor.from_bytes(b"x" * size)


@pytest.mark.parametrize(
    ("state", "name", "found"),
    [
        (struct.pack("<QQQ", 1, 2**63, 0), "epoch", str(2**63)),
        (struct.pack("<QQQ", 1, 0, 2**64 - 1), "position", str(2**64 - 1)),
        (b"\xff" * 24, "epoch", str(2**64 - 1)),
    ],
)
def test_bytes_out_of_range_are_refused(state, name, found):
    with pytest.raises(StateError, match=f"{name} must be in .*got {found}"):
        Cursor.from_bytes(state)


GOOD = {"order_version": ORDER_VERSION, "seed": 7, "epoch": 1, "position": 5}


@pytest.mark.parametrize(
    ("state", "expected", "found"),
    [
        (GOOD | {"order_version": 2}, "order_version 1", "2"),
        (GOOD | {"order_version": 0}, "order_version 1", "0"),
        (GOOD | {"order_version": None}, "order_version 1", "None"),
        (GOOD | {"order_version": "1"}, "order_version 1", "'1'"),
        (GOOD | {"order_version": True}, "order_version 1", "True"),
        (GOOD | {"seed": -1}, "seed must be in [0, ", "-1"),
        (GOOD | {"seed": 2**64}, "seed must be in [0, ", str(2**64)),
        (GOOD | {"epoch": -1}, "epoch must be in [0, ", "-1"),
        (GOOD | {"position": 2**63}, "position must be in [0, ", str(2**63)),
        (GOOD | {"position": 1.0}, "position must be a whole number", "1.0"),
        (GOOD | {"position": True}, "position must be a whole number", "True"),
        (GOOD | {"epoch": None}, "epoch must be a whole number", "None"),
        (GOOD | {"epoch": [1]}, "epoch must be a whole number", "[1]"),
        (GOOD | {"seed": "7"}, "seed must be a whole number", "'7'"),
        (GOOD | {"more": 1}, "'order_version'", "'more'"),
        ({k: v for k, v in GOOD.items() if k != "epoch"}, "'epoch'", "['order_version', 'position', 'seed']"),
        ({}, "'epoch'", "[]"),
        ({1: 2}, "'epoch'", "['1']"),
        (None, "keys", "NoneType"),
        ([("seed", 7)], "keys", "list"),
        ("state", "keys", "str"),
        (b"x" * 24, "keys", "bytes"),
    ],
)
def test_damaged_states_are_refused_with_expected_and_found(state, expected, found):
    with pytest.raises(StateError) as caught:
        Cursor.from_state_dict(state)
    assert expected in str(caught.value)
    assert found in str(caught.value)
    assert isinstance(caught.value, PenstockError)
    assert isinstance(caught.value, ValueError)


@given(
    state=st.dictionaries(
        st.sampled_from(["order_version", "seed", "epoch", "position", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]),
    )
)
def test_l10_any_state_is_taken_or_refused_with_a_state_error(state):
    try:
        cursor = Cursor.from_state_dict(state)
    except StateError:
        return
    assert cursor.state_dict() == state


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers_of_a_cursor(number):
    cursor = Cursor(number(7), number(2), number(100)).advance(number(50), length=number(120))
    assert cursor == Cursor(7, 3, 30)
    assert bytes(cursor) == bytes(Cursor(7, 3, 30))
    assert json.loads(json.dumps(cursor.state_dict())) == Cursor(7, 3, 30).state_dict()


BAD_CURSORS = [
    (lambda: Cursor(-1), ValueError, "seed must be in [0, ", "-1"),
    (lambda: Cursor(2**64), ValueError, "18446744073709551615]", str(2**64)),
    (lambda: Cursor(1.0), TypeError, "seed must be a whole number", "1.0"),
    (lambda: Cursor(True), TypeError, "seed must be a whole number", "True"),
    (lambda: Cursor(0, -1), ValueError, "epoch must be in [0, ", "-1"),
    (lambda: Cursor(0, 2**63), ValueError, "epoch must be in [0, ", str(2**63)),
    (lambda: Cursor(0, 0, -1), ValueError, "position must be in [0, ", "-1"),
    (lambda: Cursor(0, 0, float("nan")), TypeError, "position must be a whole number", "nan"),
    (lambda: Cursor(0).advance(-1, length=5), ValueError, "count must be in [0, ", "-1"),
    (lambda: Cursor(0).advance(1, length=0), ValueError, "length must be in [1, ", "0"),
    (lambda: Cursor(0).advance(1.5, length=5), TypeError, "count must be a whole number", "1.5"),
    (lambda: Cursor(0, MOST).advance(5, length=5), ValueError, "epoch must be in [0, ", str(2**63)),
]


@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD_CURSORS)
def test_bad_cursors_are_refused_with_expected_and_found(make, error, expected, found):
    with pytest.raises(error) as caught:
        make()
    assert expected in str(caught.value)
    assert found in str(caught.value)


WORLDS = (1, 2, 3, 4, 8)


@given(world=st.integers(1, 20), start=st.integers(0, 10**6), count=st.integers(0, 100))
def test_ranks_hold_every_position_once(world, start, count):
    runs = [Shard(rank, world).run(start, start + count) for rank in range(world)]
    assert sorted(p for run in runs for p in run) == list(range(start, start + count))
    for rank, run in enumerate(runs):
        assert list(run) == [p for p in range(start, start + count) if p % world == rank]
        assert start <= run.start <= run.stop <= start + count  # what order.indices accepts


@given(world=st.integers(1, 20), start=st.integers(0, 1000), batches=st.integers(1, 9), local=st.integers(1, 9))
def test_ranks_get_equal_parts_if_the_batch_divides(world, start, batches, local):
    for batch in range(batches):
        first = start + batch * local * world
        assert {len(Shard(rank, world).run(first, first + local * world)) for rank in range(world)} == {local}


def test_l12_ranks_of_an_uneven_end_have_the_same_number_of_steps():
    n, batch, world = 100, 12, 3
    for rank in range(world):
        runs = [Shard(rank, world).run(low, min(n, low + batch)) for low in range(0, n, batch)]
        assert len(runs) == 9
        assert [len(run) for run in runs[:-1]] == [4] * 8
    assert sorted(len(Shard(rank, world).run(96, 100)) for rank in range(world)) == [1, 1, 2]


def epoch_by_ranks(order: Order, batch: int, world: int, start: int, stop: int) -> list[int]:
    """Global batches from start on, each put together from what its ranks compute alone."""
    found = []
    for low in range(start, stop, batch):
        high = min(stop, low + batch)
        part = [-1] * (high - low)
        for rank in range(world):
            run = Shard(rank, world).run(low, high)
            part[run.start - low : run.stop - low : run.step] = order.indices(0, run.start, run.stop, run.step).tolist()
        found += part
    return found


@pytest.mark.parametrize(("before", "after"), list(product(WORLDS, WORLDS)))
@pytest.mark.sampled(3)
def test_l8_resume_on_another_world_repeats_and_loses_nothing(before, after):
    n = 97
    for order in (Shuffle(n, seed=3), BlockShuffle(n, block=5, window=2, lanes=8, seed=3)):
        whole = order.indices(0, 0, n).tolist()
        for cut in range(n + 1):
            assert epoch_by_ranks(order, 8, before, 0, cut) + epoch_by_ranks(order, 24, after, cut, n) == whole


@given(order=orders(200), data=st.data())
def test_any_order_survives_any_changes_of_world_and_batch(order, data):
    n, low, found = len(order), 0, []
    stop = min(n, 200)
    while low < stop:
        high = data.draw(st.integers(low + 1, stop))
        found += epoch_by_ranks(order, data.draw(st.integers(1, 64)), data.draw(st.integers(1, 9)), low, high)
        low = high
    assert found == order.indices(0, 0, stop).tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("world", [1, 8])
def test_l13_less_data_than_ranks_or_batch_is_shared_all_the_same(n, world):
    for order in (Shuffle(n, seed=1), Mixture([n, n], weights=[1, 1], seed=1)):
        assert epoch_by_ranks(order, 64, world, 0, len(order)) == order.indices(0, 0, len(order)).tolist()


def test_far_positions_are_exact():
    start = 2**63 - 1000
    assert list(Shard(5, 7).run(start, start + 50)) == [p for p in range(start, start + 50) if p % 7 == 5]


def test_shard_is_a_value():
    shard = Shard(2, 4)
    assert shard == Shard(rank=2, world=4) == eval(repr(shard)) == pickle.loads(pickle.dumps(shard)) == copy.copy(shard)
    assert hash(shard) == hash(Shard(2, 4))
    assert shard != Shard(2, 5)
    assert Shard() == Shard(0, 1)


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers_of_a_shard(number):
    assert list(Shard(number(1), number(3)).run(2, 12)) == [4, 7, 10]
    assert list(Shard(1, 3).run(number(2), number(12))) == [4, 7, 10]


BAD_SHARDS = [
    ((3, 3), ValueError, "rank must be in [0, 3)", "3"),
    ((9, 3), ValueError, "rank must be in [0, 3)", "9"),
    ((-1, 3), ValueError, "rank must be in [0, ", "-1"),
    ((0, 0), ValueError, "world must be in [1, ", "0"),
    ((0, -2), ValueError, "world must be in [1, ", "-2"),
    ((0.0, 2), TypeError, "rank must be a whole number", "0.0"),
    ((True, 2), TypeError, "rank must be a whole number", "True"),
    ((0, 2.0), TypeError, "world must be a whole number", "2.0"),
    ((0, float("nan")), TypeError, "world must be a whole number", "nan"),
    ((None, 2), TypeError, "rank must be a whole number", "None"),
    ((0, "2"), TypeError, "world must be a whole number", "'2'"),
]


@pytest.mark.parametrize(("arguments", "error", "expected", "found"), BAD_SHARDS)
def test_bad_shards_are_refused_with_expected_and_found(arguments, error, expected, found):
    with pytest.raises(error) as caught:
        Shard(*arguments)
    assert expected in str(caught.value)
    assert found in str(caught.value)
