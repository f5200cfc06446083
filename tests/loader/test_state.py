"""What a checkpoint keeps, and which states are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.loader.model import TAILS, assert_equal_batches, delivered_ids, make_source, make_stream

import penstock as pen
from penstock.batch import Ragged
from penstock.errors import StateError, StateMismatchError
from penstock.formats.array import ArraySource
from penstock.order import Cursor, Phase


def make(n: int = 97, size: int = 8, **options: Any) -> pen.Loader:
    return pen.Loader(make_stream(n), size, threads=0, ids="id", **options)


def advanced(loader: pen.Loader, steps: int = 5) -> pen.Loader:
    with loader.forever() as batches:
        for _ in range(steps):
            next(batches)
    return loader


def test_a_state_is_plain_json() -> None:
    mixed = pen.mix({"a": make_stream(40), "b": make_stream(60)}, seed=3, weights={"a": 1, "b": 2})
    for loader in (make(), pen.Loader(mixed, 8, threads=0), pen.Loader(mixed, phases=[Phase(9, 2, weights={"a": 2, "b": 1})])):
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 4000
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_a_cursor_has_24_bytes() -> None:
    loader = advanced(make())
    packed = loader.get_state()
    assert len(packed) == 24
    assert Cursor.from_bytes(packed) == loader.cursor == Cursor(7, 0, 40)
    assert loader.state_dict()["cursor"] == packed.hex()


def test_taking_a_state_changes_nothing() -> None:
    for threads in (0, 2):
        loader = pen.Loader(make_stream(97), 8, threads=threads, ids="id")
        plain = pen.Loader(make_stream(97), 8, threads=threads, ids="id")
        for batch, other in zip(loader, plain, strict=True):
            assert loader.state_dict() == loader.state_dict()
            assert loader.get_state() == loader.get_state()
            assert_equal_batches(batch, other)


@pytest.mark.parametrize("tail", TAILS)
def test_cursors_go_on_where_they_were_taken(tail: str) -> None:
    for n, size in ((97, 8), (3, 8), (8, 8), (5, 2)):
        if tail == "drop" and n < size:
            continue
        whole = make(n, size, tail=tail)
        with whole.forever() as batches:
            run = [(whole.get_state(), whole.step, delivered_ids(next(batches))) for _ in range(40)]
        for packed, step, ids in run:
            loader = make(n, size, tail=tail)
            loader.set_state(packed)
            assert loader.step == step
            assert loader.get_state() == packed
            with loader.forever() as batches:
                assert delivered_ids(next(batches)) == ids


# L9: states of other runs


OTHERS: dict[str, tuple[Any, str]] = {
    "data": (
        lambda: pen.Loader(ArraySource({"x": np.arange(97), "pair": np.zeros((97, 2), np.float32)}).shuffle(seed=7), 8),
        "data",
    ),
    "length": (lambda: pen.Loader(make_stream(96), 8), "data"),
    "seed": (lambda: pen.Loader(make_stream(97, seed=8), 8), "seed=7.*seed=8"),
    "order": (lambda: pen.Loader(make_stream(97, "blocks"), 8), "Shuffle.*BlockShuffle"),
    "bans": (lambda: pen.Loader(make_stream(97).without([3]), 8), "ban 0"),
    "phases": (lambda: pen.Loader(make_stream(97), phases=[Phase(20, 8)]), "phases"),
    "mixture": (lambda: pen.Loader(pen.mix({"a": make_stream(97)}, seed=7), 8), "mixture"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_l9_the_state_of_another_run_is_refused_with_the_differences(other: str) -> None:
    make_other, told = OTHERS[other]
    state = advanced(make()).state_dict()
    loader = make_other()
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=f"(?s)strict=False.*{told}"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    assert loader.step == 0


def test_l9_a_store_that_changed_is_refused_and_an_old_generation_goes_on(tmp_path: Path) -> None:
    """L11: ranks that opened different generations are told apart."""
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("i4")}) as out:
        out.extend({"x": np.arange(50, dtype=np.int32)})
    with pen.open(tmp_path / "a.pen") as old:
        before = pen.Loader(old.shuffle(seed=7), 8, threads=0)
        advanced(before)
        with pen.open(tmp_path / "a.pen", "a") as more:
            more.extend({"x": np.arange(50, 60, dtype=np.int32)})
        with pen.open(tmp_path / "a.pen") as new, pytest.raises(StateMismatchError, match="data"):
            pen.Loader(new.shuffle(seed=7), 8).load_state_dict(before.state_dict())
        again = pen.Loader(old.shuffle(seed=7), 8, threads=0)
        again.load_state_dict(before.state_dict())
        assert_equal_batches(list(again), list(before))


def test_l9_the_state_of_another_version_is_refused() -> None:
    for key, told, values in (
        ("version", "version 1", (2, 0, "1", None, True)),
        ("order_version", "order.version", (3, 2, 0, "1")),
    ):
        for value in values:
            state = make().state_dict() | {key: value}
            with pytest.raises(StateError, match=told):
                make().load_state_dict(state)


def test_l9_strict_false_takes_position_and_step() -> None:
    state = advanced(make()).state_dict()
    loader = pen.Loader(make_stream(97, seed=8), 8, ids="id", threads=0)
    loader.load_state_dict(state, strict=False)
    assert (loader.step, loader.cursor) == (5, Cursor(8, 0, 40))
    expected = make_stream(97, seed=8).order.indices(0, 40, 48)
    assert np.array_equal(next(iter(loader))["id"], expected)


def test_l9_the_cursor_of_another_seed_is_refused() -> None:
    packed = advanced(make()).get_state()
    with pytest.raises(StateMismatchError, match=r"seed 7.*8"):
        pen.Loader(make_stream(97, seed=8), 8).set_state(packed)
    state = make().state_dict() | {"cursor": bytes(Cursor(8, 0, 0)).hex()}
    with pytest.raises(StateMismatchError, match=r"seed 8.*7"):
        make().load_state_dict(state)


@pytest.mark.parametrize("tail", TAILS)
def test_l9_sequences_of_another_length_are_refused_or_lose_nothing(tail: str) -> None:
    stream = ArraySource({"token": Ragged.from_items([np.arange(99)], dtype="i4")}).in_order()
    for old, new in ((8, 16), (8, 30), (16, 7), (30, 8)):
        for steps in range(99 // (2 * old)):
            loader = advanced(pen.Loader(stream.sequences(old), 2, tail=tail, threads=0), steps)
            other = pen.Loader(stream.sequences(new), 2, tail=tail, threads=0)
            try:
                other.load_state_dict(loader.state_dict())
            except StateMismatchError:
                continue
            position = loader.cursor.position
            full = (99 - position) // new // 2 * 2 if tail == "drop" else (99 - position) // new
            rest = [row for batch in other for row in batch["tokens"][batch.get("valid", slice(None))].tolist()]
            assert rest[:full] == [list(range(position + new * i, position + new * (i + 1))) for i in range(full)]
            assert len(other) >= 0


# L10: hostile states


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["version", "order_version", "cursor", "step", "batch_size", "data", "plan"]


def loaders() -> list[pen.Loader]:
    texts = ArraySource({"text": ["some text"] * 11}).shuffle(seed=7)
    return [
        make(),
        make(tail="wrap"),
        make(n=0),
        pen.Loader(make_stream(97), phases=[Phase(5, 4), Phase(3, 8)], threads=0),
        pen.Loader(pen.mix({"a": make_stream(9, seed=7)}, seed=7), phases=[Phase(5, 1)], threads=0),
        *(pen.Loader(texts.sequences(30), size, tail=tail, threads=0) for size, tail in ((1, "keep"), (2, "drop"), (3, "wrap"))),
        pen.Loader(texts.sequences(7), phases=[Phase(5, 2, 7), Phase(3, 1, 30)], threads=0),
    ]


LOADERS = loaders()
STATES = [loader.state_dict() for loader in LOADERS]


@given(number=st.integers(0, len(LOADERS) - 1), key=st.sampled_from(KEYS), value=JSON, remove=st.booleans())
def test_l10_damaged_states_raise_state_errors_only(number: int, key: str, value: Any, remove: bool) -> None:
    state = copy.deepcopy(STATES[number])
    if remove:
        del state[key]
    else:
        state[key] = value
    _load(number, state)


@given(number=st.integers(0, len(LOADERS) - 1), state=JSON)
def test_l10_anything_that_is_no_state_is_refused(number: int, state: Any) -> None:
    with pytest.raises(StateError):
        LOADERS[number].load_state_dict(state)


@example(number=6, epoch=0, position=91, step=0, size=0)
@example(number=7, epoch=0, position=95, step=0, size=0)
@given(
    number=st.integers(0, len(LOADERS) - 1),
    epoch=st.integers(0, 2**64 - 1) | st.integers(0, 3),
    position=st.integers(0, 2**64 - 1) | st.integers(0, 100),
    step=st.integers(-1, 2**63) | st.integers(0, 100),
    size=st.integers(-1, 2**63) | st.integers(0, 100),
)
def test_l10_hostile_numbers_raise_state_errors_or_give_batches(
    number: int, epoch: int, position: int, step: int, size: int
) -> None:
    seed = int.from_bytes(bytes.fromhex(STATES[number]["cursor"])[:8], "little")
    packed = seed.to_bytes(8, "little") + epoch.to_bytes(8, "little") + position.to_bytes(8, "little")
    _load(number, STATES[number] | {"cursor": packed.hex(), "step": step, "batch_size": size})
    loader = LOADERS[number]
    try:
        loader.set_state(packed)
    except StateError:
        return
    assert loader.get_state() == packed


@given(packed=st.binary(max_size=40) | st.none() | st.text() | st.integers())
def test_l10_hostile_cursors_raise_state_errors_only(packed: Any) -> None:
    for loader in LOADERS:
        with pytest.raises(StateError):
            loader.set_state(packed if not isinstance(packed, bytes) or len(packed) != 24 else packed[:-1])


def _load(number: int, state: Any) -> None:
    """A state is refused, and then the loader stays where it was, or it is taken and the loader can be used."""
    loader = LOADERS[number]
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except StateError:
        assert loader.state_dict() == before
        return
    assert loader.state_dict()["cursor"] == state["cursor"]
    assert len(loader) >= 0
    with iter(loader) as batches:
        next(batches, None)
    loader.load_state_dict(STATES[number])


def test_l10_unusual_mappings_are_taken_as_they_are() -> None:
    class Odd(dict[str, Any]):
        pass

    loader = advanced(make())
    fresh = make()
    fresh.load_state_dict(Odd(loader.state_dict()))
    assert fresh.state_dict() == loader.state_dict()


def test_states_may_be_shared_and_changed_afterwards() -> None:
    loader = advanced(make())
    state = loader.state_dict()
    state["plan"]["order"] = "something else"
    assert loader.state_dict()["plan"] == make().state_dict()["plan"]


def test_fields_of_the_source_do_not_change_the_order() -> None:
    """States of equal data are equal wherever it lies; another process made this source anew."""
    assert (
        pen.Loader(make_source(20).shuffle(seed=1), 4).state_dict() == pen.Loader(make_source(20).shuffle(seed=1), 4).state_dict()
    )


def test_a_state_of_another_batch_size_says_so_where_its_order_has_another_version() -> None:
    """With batches of 6 an epoch of this mixture has none, and no weights that version 1 would have started over."""

    def loader(batch_size: int) -> pen.Loader:
        streams = {name: pen.open({"x": np.arange(n)}).shuffle(seed=n) for name, n in (("a", 4), ("b", 9))}
        weights = [(0, {"a": 1, "b": 1}), (1, {"a": 2, "b": 1})]
        return pen.Loader(pen.mix(streams, seed=3, weights=weights, unit="batch"), batch_size)

    saved, other = loader(4), loader(6)
    assert saved.stream.order_version > other.stream.order_version
    with pytest.raises(StateMismatchError, match=r"another run.*batch_size"):
        other.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("tail", TAILS)
def test_the_state_at_a_step_is_the_state_that_a_run_has_there(tail: str) -> None:
    looked, loader = make(tail=tail), make(tail=tail)
    with loader.forever() as batches:
        for step in range(30):
            loaded = make(tail=tail)
            loaded.load_state_dict(looked.state_at(step))
            assert (loaded.step, loaded.epoch) == (loader.step, loader.epoch)
            assert_equal_batches(next(loaded.forever()), next(batches))
    assert looked.step == 0


def test_the_state_at_the_end_of_all_phases() -> None:
    loader = pen.Loader(make_stream(40), phases=[Phase(9, 2)], threads=0)
    assert loader.state_at(9) == advanced(pen.Loader(make_stream(40), phases=[Phase(9, 2)], threads=0), 9).state_dict()
    with pytest.raises(ValueError, match="step must be"):
        loader.state_at(-1)


def test_a_batch_is_read_without_moving_the_loader() -> None:
    loader, shard = make(tail="wrap"), pen.Shard(1, 2)
    rank = make(tail="wrap", shard=shard)
    with loader.forever() as batches:
        for step in range(30):
            assert_equal_batches(make(tail="wrap").batch(step), batch := next(batches))
            assert rank.batch(step)["id"].tolist() == batch["id"][1::2].tolist()
    assert rank.step == 0
    memory = {"id": np.zeros(8, np.int64)}
    filled = pen.Loader(pen.open({"id": np.arange(97)}), 8, out=[memory, memory], threads=0)
    assert filled.batch(3)["id"].tolist() == list(range(24, 32))
    assert not memory["id"].any()
