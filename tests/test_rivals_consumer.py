"""The comparison with rivals notices a wrong byte, a record that comes twice, and a batch of another size."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from rivals.consumer import Checker
from rivals.workload import Task, Workload, make

WORKLOAD = Workload("tokens", 64, 8, "u2", (16,), label=True)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    make(WORKLOAD, tmp_path / "plain")
    return Task(WORKLOAD, tmp_path / "plain", tmp_path / "own")


def batch(task: Task, ids: Any) -> dict[str, Any]:
    return {name: np.array(data[ids]) for name, data in task.columns().items()}


def test_a_right_epoch_is_counted(task: Task) -> None:
    checker, order = Checker(task), np.random.default_rng(0).permutation(64)
    for low in range(0, 64, 8):
        checker.check(batch(task, order[low : low + 8]))
    found = checker.found()
    assert (found["batches"], found["whole_epoch"]) == (8, True)
    assert 0.2 < found["displacement"] < 0.5


@pytest.mark.parametrize("name", ["x", "label"])
def test_a_wrong_byte_is_noticed(task: Task, name: str) -> None:
    made = batch(task, np.arange(8))
    made[name].reshape(8, -1)[5, -1] ^= 1
    with pytest.raises(AssertionError, match=f"wrong bytes in {name}"):
        Checker(task).check(made)


def test_a_record_that_comes_twice_is_noticed(task: Task) -> None:
    checker = Checker(task)
    checker.check(batch(task, np.arange(8)))
    with pytest.raises(AssertionError, match="twice"):
        checker.check(batch(task, np.arange(7, 15)))


def test_a_batch_of_another_size_is_noticed(task: Task) -> None:
    with pytest.raises(AssertionError, match="expected a batch of 8, found 7"):
        Checker(task).check(batch(task, np.arange(7)))
