"""Sources that are too large to exist: nothing in the loader depends on how many records there are."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.loader.model import TAILS

import penstock as pen
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.errors import FullPassError
from penstock.loader.resume_check import verify_resume
from penstock.order import Shard
from penstock.records import Recipe, Source
from penstock.schema import Field


class Virtual(Source):
    """Record i holds i."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    @property
    def schema(self) -> Mapping[str, Field]:
        """One number."""
        return {"x": Field("i8")}

    @property
    def fingerprint(self) -> str:
        """Of the length."""
        return f"{self._n:032d}"

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: ids.copy() for name in fields}

    def _recipe(self) -> Recipe:
        return (Virtual, (self._n,))


def test_check_48_a_full_pass_as_an_estimate_must_be_asked_for_by_name() -> None:
    assert len(Virtual(99_999_999).design(seed=1, size=99_999_999)) == 99_999_999
    with pytest.raises(FullPassError, match="full_pass=True"):
        Virtual(10**8).design(seed=1, size=10**8)
    with pytest.raises(FullPassError):
        Virtual(10**8).design(seed=1, fraction=1.0)
    asked = Virtual(10**8).design(seed=1, size=10**8, full_pass=True)
    batch = next(iter(pen.Loader(asked, 64, threads=0)))
    assert batch["weight"].tolist() == [1.0] * 64
    sample = Virtual(10**8).design(seed=1, size=10**6)
    assert set(next(iter(pen.Loader(sample, 64, threads=0)))["weight"]) == {100.0}
    assert len(pen.Loader(Virtual(10**8).shuffle(seed=1), 64)) == 10**8 // 64  # training on everything is no estimate


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("n", [10**11, 10**15 + 7])
@pytest.mark.sampled(3)
def test_l13_length_does_not_matter(n: int, tail: str) -> None:
    for stream in (Virtual(n).shuffle(seed=7), Virtual(n).shuffle(seed=7, block=1000, window=8, lanes=4), Virtual(n).in_order()):
        loader = pen.Loader(stream, 256, tail=tail, threads=1, shard=Shard(1, 4))
        steps = len(loader)
        assert abs(steps - n / 256) <= 1
        for step in (0, 12345, steps - 1, steps, 3 * steps + 5):
            loader.seek(step)
            with loader.forever() as batches:
                ids = next(batches)["x"]
            assert len(ids) <= 64
            assert loader.step == step + 1
            assert ids.tolist() == loader.explain(step)["ids"].tolist()[1::4][: len(ids)]
        fresh = pen.Loader(stream, 256, tail=tail, threads=0, shard=Shard(1, 4))
        fresh.load_state_dict(loader.state_dict())
        assert fresh.cursor == loader.cursor


def test_l13_mixtures_of_very_long_streams() -> None:
    streams = {"a": Virtual(10**11).shuffle(seed=1), "b": Virtual(10**12).shuffle(seed=2)}
    mixed = pen.mix(streams, seed=3, weights={"a": 1, "b": 3}, stop="all_exhausted")
    loader = pen.Loader(mixed, 64, threads=0)
    loader.seek(10**9)
    names = loader.explain(10**9)["source"]
    assert set(names.tolist()) == {"a", "b"}
    with loader.forever() as batches:
        assert len(next(batches)["x"]) == 64


def test_l7_runs_far_away_resume() -> None:
    stream = Virtual(10**11).shuffle(seed=7)

    def make() -> pen.Loader:
        loader = pen.Loader(stream, 64, threads=0, tail="wrap")
        loader.seek(10**11 // 64 - 3)
        return loader

    report = verify_resume(make, steps=8, points=range(9))
    assert report.batches == 2 * sum(range(9)) + sum(range(9)) + 8
    assert np.iinfo(np.int64).max > 10**11
