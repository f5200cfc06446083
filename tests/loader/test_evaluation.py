"""Loaders for evaluation: every iteration begins at step 0, whatever came before it."""

import json

import numpy as np
import pytest

import penstock as pen
from penstock.errors import StateMismatchError


def evaluation(seed: int = 7, **options: object) -> pen.Loader:
    return pen.Loader(pen.open({"x": np.arange(50)}).shuffle(seed=seed), 8, restart=True, **options)  # type: ignore[arg-type]


def seen(loader: pen.Loader, batches: int | None = None) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader):
        if number == batches:
            break
        found += batch["x"].tolist()
    return found


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("tail", ["keep", "drop", "pad", "wrap"])
def test_every_iteration_sees_the_same_records(threads: int, tail: str) -> None:
    loader = evaluation(threads=threads, tail=tail)
    sanity = seen(loader, 2)
    whole = seen(loader)
    assert sanity == whole[:16]
    assert seen(loader) == whole
    assert [seen(loader, 3) for _ in range(3)] == [whole[:24]] * 3


def test_a_loader_without_restart_goes_on() -> None:
    loader = pen.Loader(pen.open({"x": np.arange(50)}).shuffle(seed=7), 8)
    assert not loader.restart
    assert seen(loader, 2) == seen(evaluation())[:16]
    assert seen(loader) == seen(evaluation())[24:]  # the batch at which the loop was left was taken


def test_forever_begins_at_step_0_too() -> None:
    loader = evaluation()
    first = [next(loader.forever())["x"].tolist() for _ in range(2)]
    assert first[0] == first[1]


def test_a_state_is_checked_and_the_iteration_begins_at_step_0_all_the_same() -> None:
    loader = evaluation()
    seen(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    other = evaluation()
    other.load_state_dict(state)
    assert len(other) == 7
    assert seen(other) == seen(loader)
    with pytest.raises(StateMismatchError, match="order"):
        evaluation(seed=8).load_state_dict(state)


def test_seek_is_refused() -> None:
    with pytest.raises(ValueError, match="restart=True begins every iteration at step 0"):
        evaluation().seek(3)


def test_figures_are_those_of_the_next_iteration() -> None:
    weights = [(0, {"a": 1, "b": 1}), (4, {"a": 1, "b": 9})]
    streams = {"a": pen.open({"x": np.arange(30)}).shuffle(seed=1), "b": pen.open({"x": np.arange(30)}).shuffle(seed=2)}
    mixed = pen.mix(streams, seed=3, weights=weights)
    for stream, tail in ((mixed, "keep"), (mixed, "wrap"), (streams["a"], "wrap")):
        loader = pen.Loader(stream, 8, tail=tail, restart=True)
        expected = len(loader), loader.remaining(), loader.epoch
        for _ in range(3):
            assert sum(1 for _ in loader) == expected[0] == len(expected[1])
            assert (len(loader), loader.remaining(), loader.epoch) == expected


def test_a_second_iteration_ends_the_first() -> None:
    loader = evaluation()
    outer = iter(loader)
    next(outer)
    assert len(list(loader)) == 7
    with pytest.raises(RuntimeError, match="another iteration over this loader"):
        next(outer)
