"""Blame names planted records first, and hardly any in a clean run, whatever the tail of its losses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import penstock as pen
from penstock.trace import Run, blame_run

NUM_RECORDS, BATCH_SIZE, NUM_EPOCHS = 4000, 40, 3
BAD = (17, 1234, 2345, 3210, 3999)
Losses = npt.NDArray[np.float64]

TAILS: dict[str, Callable[[np.random.Generator], Losses]] = {
    "normal": lambda chance: 3 + chance.normal(0, 0.5, NUM_RECORDS),
    "lognormal": lambda chance: chance.lognormal(0, 0.6, NUM_RECORDS),
    "exponential": lambda chance: chance.exponential(1, NUM_RECORDS),
}


def make_run(path: Path, tail: str, bad: tuple[int, ...]) -> Run:
    """Losses of records that fall while training goes on; those of bad records do not."""
    stream = pen.open({"x": np.arange(NUM_RECORDS)}).shuffle(seed=7)
    chance = np.random.default_rng(3)
    usual = TAILS[tail](chance)
    usual[list(bad)] = 40.0
    loader = pen.Loader(stream, BATCH_SIZE, threads=0)
    with pen.LossLog(path, loader) as log:
        batches = loader.forever()
        for step in range(NUM_EPOCHS * NUM_RECORDS // BATCH_SIZE):
            ids = next(batches)["x"]
            log(usual[ids] + 5 * np.exp(-step / 50) + chance.normal(0, 0.05, len(ids)))
        batches.close()
    return Run.open(path, pen.Loader(stream, BATCH_SIZE))


@pytest.mark.parametrize("tail", TAILS)
def test_planted_records_are_named_first(tmp_path: Path, tail: str) -> None:
    suspects = blame_run(make_run(tmp_path, tail, BAD)).suspects
    assert {suspect.id for suspect in suspects[: len(BAD)]} == set(BAD)


@pytest.mark.parametrize("tail", TAILS)
def test_a_clean_run_has_hardly_a_suspect(tmp_path: Path, tail: str) -> None:
    """At z = 6 by median deviations alone, 6 of 1,000 exponential losses were suspects."""
    assert len(blame_run(make_run(tmp_path, tail, ())).suspects) <= 4
