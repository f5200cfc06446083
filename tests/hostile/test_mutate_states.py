"""L10: mutated states and cursors of every kind of stream; ``python -m tests.hostile.mutate_states`` does more of it."""

import json

import numpy as np
import pytest
from tests.effort import count
from tests.hostile.mutate_states import HIDDEN, JUNK, LONG, run

import penstock as pen
from penstock.argument import shown
from penstock.errors import StateError, StateMismatchError
from penstock.order import Cursor


def test_l10_mutated_states_are_refused_in_one_short_line_or_taken_for_what_they_say() -> None:
    done = run(count(500, 20_000), seed=1)
    assert done["refused"] > done["taken"] > 0


def make() -> pen.Loader:
    return pen.Loader(pen.open({"x": np.arange(1000)}).shuffle(seed=7), 64, threads=0)


@pytest.mark.parametrize("text", [LONG, HIDDEN, HIDDEN * 100])
def test_l10_texts_of_a_state_are_shown_short_and_escaped(text: str) -> None:
    good = make().state_dict()
    bad = [
        good | {"data": text, "samples": {}},
        good | {"samples": {"dense": text}},
        good | {"plan": good["plan"] | {"order": text}},
        good | {"plan": good["plan"] | {text: "x"}},
        good | {"plan": good["plan"] | {str(number): text[:1000] for number in range(1000)}},
        good | {"cursor": text},
        good | {"step": text},
        good | {"version": text},
        good | {text: 1},
    ]
    for state in bad:
        with pytest.raises(StateError) as refused:
            make().load_state_dict(state)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 3000


def test_l10_a_state_is_bounded() -> None:
    state = make().state_dict()
    with pytest.raises(StateError, match="characters"):
        make().load_state_dict(state | {"plan": {"order": LONG}}, strict=False)


def test_l9_differences_are_told_on_one_line() -> None:
    state = make().state_dict() | {"plan": {"order": "another", "x": "y"}}
    with pytest.raises(
        StateMismatchError, match=r"order: another in the state, Shuffle\(n=1000, seed=7\) here; x: y in the state"
    ) as told:
        make().load_state_dict(state)
    assert "\n" not in str(told.value)


def test_l10_the_cursor_of_a_place_that_no_run_reaches_is_refused() -> None:
    endless = pen.Loader(pen.mix({"a": pen.open(np.arange(9)).shuffle(seed=7)}, seed=7, stop="forever"), 4, threads=0)
    before = endless.state_dict()
    with pytest.raises(StateError, match="damaged state"):
        endless.set_state(bytes(Cursor(7, 16384, 0)))
    with pytest.raises(StateError, match="damaged state"):
        endless.load_state_dict(before | {"cursor": bytes(Cursor(7, 16384, 0)).hex()})
    assert endless.state_dict() == before


@pytest.mark.parametrize("value", JUNK, ids=lambda value: type(value).__name__)
def test_whatever_is_shown_in_a_message_is_short_and_printable(value: object) -> None:
    assert len(shown(value)) <= 110
    assert shown(value).isprintable()
    with pytest.raises(StateError) as refused:
        Cursor.from_state_dict({"order_version": value, "seed": -1, "epoch": value, "position": value})  # type: ignore[dict-item]
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


def test_values_are_shown_as_they_are_where_they_are_short() -> None:
    assert [shown(value) for value in (7, "x", [1, 2], {"a": 1}, None, 1.5, b"x")] == [
        "7", "'x'", "[1, 2]", "{'a': 1}", "None", "1.5", "b'x'",
    ]  # fmt: skip
    assert json.dumps(shown("\n")) == "\"'\\\\n'\""
