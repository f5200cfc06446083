"""Ranks that start while a writer commits: each in a process of its own, each commit between the openings of two ranks."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.child import Child, finish, heard, start, tell
from tests.loader.model import unite

import penstock as pen

WORLD = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 50 records."""
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("i4")}) as out:
        out.extend({"x": np.arange(50, dtype=np.int32)})
    return tmp_path / "a.pen"


def commit(path: Path, number: int) -> None:
    """Another generation: now one with other records, now one with more of them."""
    with pen.open(path, mode="a") as out:
        if number % 2:
            out.extend({"x": np.arange(100, 110, dtype=np.int32)})
        else:
            out.update([3], {"x": np.array([1000 + number], np.int32)})


@contextmanager
def rank(path: Path, number: int, *generation: int) -> Iterator[tuple[Child, int]]:
    """A rank that has opened the store, and which generation of it."""
    child = start("rank", path, number, WORLD, *generation)
    try:
        yield child, int(heard(child))
    finally:
        code, _, error = finish(child)
        assert (code, error) == (0, "")


def deliver(children: list[Child]) -> tuple[list[Any], list[Any]]:
    """The batches of an epoch, and the state behind them, of all ranks."""
    for child in children:
        tell(child, "go")
    answers = [json.loads(heard(child)) for child in children]
    return [batches for batches, _ in answers], [state for _, state in answers]


def test_l11_ranks_of_different_generations_refuse_each_others_states(path: Path) -> None:
    with ExitStack() as stack:
        children, generations = [], []
        for number in range(WORLD):
            child, generation = stack.enter_context(rank(path, number))
            children.append(child)
            generations.append(generation)
            commit(path, number)
        assert generations == [1, 2, 3]
        _, states = deliver(children)
        assert all(one["data"] != other["data"] for one, other in permutations(states, 2))
        for mine, others in permutations(range(WORLD), 2):
            tell(children[mine], json.dumps(states[others]))
            assert heard(children[mine]) == "StateMismatchError"
        for child, state in zip(children, states, strict=True):
            tell(child, json.dumps(state))
            assert heard(child) == "taken"


def test_l11_ranks_that_are_given_the_generation_of_the_first_agree(path: Path) -> None:
    with pen.open(path) as data:
        whole = pen.Loader(data.shuffle(seed=7), 9, threads=0)
        expected, state = [batch["x"].tolist() for batch in whole], whole.state_dict()
    with ExitStack() as stack:
        first, generation = stack.enter_context(rank(path, 0))
        children = [first]
        for number in range(1, WORLD):
            commit(path, number)
            child, found = stack.enter_context(rank(path, number, generation))
            assert found == generation
            children.append(child)
        commit(path, WORLD)
        batches, states = deliver(children)
        assert [unite(list(parts)) for parts in zip(*batches, strict=True)] == expected
        assert states == [state] * WORLD
        for child in children:
            tell(child, json.dumps(state))
            assert heard(child) == "taken"
