"""Figures of a loader for trackers: what they count, and in which form each tracker gets them."""

from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.deliver.torch import DataLoader
from penstock.deliver.tracker import Metrics


def make() -> pen.Loader:
    return pen.Loader(pen.open({"x": np.arange(100)}), batch_size=10)


def test_figures_are_those_since_the_last_call() -> None:
    loader = make()
    metrics = Metrics(loader)
    assert metrics() == {}
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    found = metrics()
    assert set(found) == {
        f"loader/{name}" for name in ("batches_per_s", "samples_per_s", "bytes_per_s", "wait_share", "wait_ms", "epoch")
    }
    assert found["loader/samples_per_s"] == pytest.approx(10 * found["loader/batches_per_s"])
    assert found["loader/bytes_per_s"] == pytest.approx(80 * found["loader/batches_per_s"])
    assert 0 <= found["loader/wait_share"] <= 1
    assert metrics() == {}


def test_of_worker_processes_only_batches_are_known() -> None:
    loader = make()
    metrics = Metrics(loader)
    assert len(list(DataLoader(loader))) == 10
    assert set(metrics()) == {"loader/batches_per_s", "loader/epoch"}


def test_every_tracker_gets_its_form() -> None:
    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, step))

    class Experiment:
        def log_metrics(self, found: dict[str, float], *, step: int) -> None:
            told.extend((name, step) for name in found)

    class Run:
        def log(self, found: dict[str, float], *, step: int) -> None:
            told.extend((name, step) for name in found)

    def function(found: dict[str, float], step: int) -> None:
        told.extend((name, step) for name in found)

    forms = []
    for tracker in (Writer(), Experiment(), Run(), function):
        told: list[Any] = []
        loader = make()
        metrics = Metrics(loader, prefix="data/")
        next(iter(loader))
        metrics.log(tracker)
        forms.append(told)
        metrics.log(tracker)  # nothing was taken since: nothing is sent
        assert told == forms[-1]
    assert forms[0] == forms[1] == forms[2] == forms[3]
    assert ("data/wait_ms", 1) in forms[0]
    next(iter(loader))
    with pytest.raises(TypeError, match="expected a run of W&B, mlflow, a SummaryWriter or a function, got int"):
        metrics.log(3)
