"""verify_resume finds loaders that do not resume, and names what differs; the suite on loaders of every kind."""

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.faulty import FaultySource, add_random
from tests.loader.model import make_source, make_stream

import penstock as pen
from penstock.batch import Ragged, fields_of
from penstock.errors import StateError, StateMismatchError
from penstock.loader.resume_check import Report, verify_resume
from penstock.order import Phase, Shard
from penstock.testing.source_suite import ResumeSuite

# What is compared


def test_a_report_says_what_was_done() -> None:
    report = verify_resume(lambda: pen.Loader(make_stream(20), 4, threads=0))
    assert report == Report(13, tuple(range(14)), report.batches)
    assert verify_resume(lambda: pen.Loader(make_stream(20), 4, threads=0), steps=3, points=[2, 2, 0]) == Report(3, (0, 2), 13)
    long = verify_resume(lambda: pen.Loader(make_stream(1000), 1, threads=0), points=[100])
    assert long.steps == 200
    finite = verify_resume(lambda: pen.Loader(make_stream(20), phases=[Phase(6, 2)], threads=0))
    assert (finite.steps, finite.points[-1]) == (6, 6)
    assert verify_resume(lambda: pen.Loader(make_stream(0), 4)) == Report(0, (0,), 0)
    with pytest.raises(ValueError, match="points"):
        verify_resume(lambda: pen.Loader(make_stream(20), 4, threads=0), steps=3, points=[4])
    with pytest.raises(ValueError, match="steps"):
        verify_resume(lambda: pen.Loader(make_stream(20), 4), steps=-1)


def test_default_points_are_ends_and_a_spread() -> None:
    points = verify_resume(lambda: pen.Loader(make_stream(40), 1, threads=0)).points
    assert {0, 1, 39, 40, 41, 47, 48} <= set(points)
    assert 20 <= len(points) <= 30


class Wrong:
    """A loader that is right but for one fault."""

    def __init__(self, fault: str, n: int = 10) -> None:
        self.fault, self.n, self.at, self.is_resumed = fault, n, 0, False

    def __iter__(self) -> Any:
        while self.at < self.n:
            step = self.at
            self.at += 1
            x = step
            if self.is_resumed and self.fault == "value" and step == 7:
                x = 99
            if self.is_resumed and self.fault == "skip":
                x = step + 1
            if self.fault == "time":
                Wrong.calls += 1
                x = Wrong.calls
            batch: dict[str, Any] = {"x": np.array([x]), "nested": {"y": [np.float32(step), "text"]}}
            if self.is_resumed and self.fault == "dtype":
                batch["nested"]["y"][0] = np.float64(step)
            if self.is_resumed and self.fault == "field":
                del batch["nested"]
            yield batch
        if self.is_resumed and self.fault == "more":
            yield {"x": np.array([0])}

    calls = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "odd": {1, 2} if self.fault == "json" else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.is_resumed = state["at"] - (self.fault == "repeat") + (self.fault == "end"), True


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("value", r"resumed after 2 batches by load_state_dict, step 7: field 'x' differs: expected int64 .*, got int64 "),
        ("skip", r"resumed after 2 batches by load_state_dict, step 2: field 'x'"),
        ("dtype", r"step 2: field 'nested\.y\[0\]' differs: expected float32 .*, got float64 "),
        ("field", r"step 2: field 'nested\.y': expected it, got none"),
        ("repeat", r"step 2: field 'x'"),
        ("end", r"step 2: field 'x'"),
        ("more", r"resumed after 2 batches by load_state_dict: expected the end after 10 batches, got another one"),
        ("time", r"not resumed at all, step 0: field 'x'"),
    ],
)
def test_faults_are_found_and_named(fault: str, told: str) -> None:
    with pytest.raises(StateMismatchError, match=told):
        verify_resume(lambda: Wrong(fault), points=[2, 5])


def test_states_must_be_json() -> None:
    with pytest.raises(StateError, match="plain JSON types"):
        verify_resume(lambda: Wrong("json"), points=[2])


def test_a_short_rest_is_found() -> None:
    class Short(Wrong):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at, self.n = state["at"], 8

    with pytest.raises(
        StateMismatchError, match="resumed after 2 batches by load_state_dict, step 8: expected a batch, got the end"
    ):
        verify_resume(lambda: Short(""), points=[2])


def test_a_good_loader_of_another_make_passes() -> None:
    assert verify_resume(lambda: Wrong("")).steps == 10


def test_a_fault_in_set_state_is_found() -> None:
    class Bytes(Wrong):
        def get_state(self) -> bytes:
            return bytes([self.at])

        def set_state(self, state: bytes) -> None:
            self.at = state[0] + 1

    with pytest.raises(StateMismatchError, match="resumed after 2 batches by set_state, step 2"):
        verify_resume(lambda: Bytes(""), points=[2])


def test_a_fault_that_shows_only_in_chains_is_found() -> None:
    class Chained(Wrong):
        times = 0

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at, "times": self.times + 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at, self.times = state["at"] + (state["times"] == 3), state["times"]

    with pytest.raises(StateMismatchError, match="resumed at every point, the last time after 6 batches, step 6"):
        verify_resume(lambda: Chained(""), points=[2, 4, 6])


def test_digests_of_the_users_own() -> None:
    verify_resume(lambda: Wrong("dtype"), points=[2], digest=lambda batch: batch["x"].tolist())
    with pytest.raises(StateMismatchError, match=r"the batch differs: expected \[2\], got \[3\]"):
        verify_resume(lambda: Wrong("skip"), points=[2], digest=lambda batch: batch["x"].tolist())


def test_leaves_of_every_kind_are_told_apart() -> None:
    leaves: list[Any] = [
        np.arange(3),
        np.arange(3, dtype=np.int32),
        np.arange(4),
        np.arange(3)[:, None],
        np.ma.MaskedArray(np.arange(3), mask=[0, 0, 1]),
        np.ma.MaskedArray(np.arange(3), mask=[0, 1, 0]),
        torch.arange(3, dtype=torch.int16),
        torch.ones(3, requires_grad=True),
        Ragged.from_items(["ab", "c"], dtype="u1", kind="text"),
        Ragged.from_items(["a", "bc"], dtype="u1", kind="text"),
        Ragged.from_items(["ab", "c", None], dtype="u1", kind="text"),
        Ragged.from_items(["ab", "c", ""], dtype="u1", kind="text"),
        Ragged.from_items([b"ab", b"c"], dtype="u1", kind="bytes"),
        Ragged.from_items([np.ones((1, 2)), np.ones((2, 1))], dtype="f8", ndim=2),
        Ragged.from_items([np.ones((2, 1)), np.ones((2, 1))], dtype="f8", ndim=2),
        b"abc",
        "abc",
        "abc" * 50,
        "abd" * 50,
        None,
        True,
        1,
        1.0,
        [1, 2],
        (1, 2),
        [[1], 2],
        np.array(["a", "b"]),
        np.array(["a", None], object),
        np.array(["a", "c"], object),
        np.float32(1),
    ]
    texts = [str(fields_of({"x": leaf})) for leaf in leaves]
    assert len(set(texts)) == len(texts)
    assert texts == [str(fields_of({"x": leaf})) for leaf in leaves]
    whole = Ragged.from_items(["zz", "ab", "c", "y"], dtype="u1", kind="text")
    part = Ragged(whole.values, whole.offsets[1:4], "text")
    assert fields_of({"x": part}) == fields_of({"x": leaves[8]})
    masked = [np.ma.MaskedArray([1, hidden], mask=[0, 1]) for hidden in (5, 6)]
    assert fields_of(masked[0]) == fields_of(masked[1])


def test_leaves_that_cannot_be_compared_are_named() -> None:
    for odd in (object(), {1, 2}, torch.ones(2, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match=r"a\.b: cannot compare .*digest="):
            fields_of({"a": {"b": odd}})


# The suite


class Quick(ResumeSuite):
    most_steps = 12


class TestRecords(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(97, texts=True), 8, ids="id")


class TestWrapped(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(30, "blocks"), 8, tail="wrap", threads=1)


class TestPadded(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(30), 12, tail="pad", shard=Shard(2, 3), threads=0)


class TestDropped(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(30, "random"), 7, tail="drop", transform=add_random, threads=3)


class TestEmpty(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(0), 8, threads=0)


class TestOne(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(1), 1, threads=1)


class TestMixture(Quick):
    def make(self) -> pen.Loader:
        streams = {"a": make_stream(40, seed=1, texts=True), "b": make_stream(60, seed=2, texts=True)}
        return pen.Loader(pen.mix(streams, seed=3, weights={"a": 1, "b": 2}, stop="all_exhausted"), 8, threads=2)


class TestSequences(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(
            make_source(50, texts=True).shuffle(seed=7).sequences(10, field="text", separator="\n", documents=True), 3
        )


class TestPhases(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(97), phases=[Phase(3, 8), Phase(0, 2), Phase(9, 24)], threads=1)


class TestPhasesOfAMixture(Quick):
    def make(self) -> pen.Loader:
        texts = {"a": make_source(50, texts=True), "b": make_source(70, texts=True)}
        streams = {name: source.shuffle(seed=7).sequences(8, field="text") for name, source in texts.items()}
        phases = [Phase(3, 4, 8), Phase(4, 2, 16, {"a": 1, "b": 3})]
        return pen.Loader(pen.mix(streams, seed=3, weights={"a": 1, "b": 1}), phases=phases, threads=2)


class TestBansAndErrors(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(FaultySource(97, {1, 5, 9}).shuffle(seed=7).without([3], from_step=4), 8, on_error="skip", threads=2)


class TestDesign(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_source(97).design(seed=7, size=50, strata=10), 8, threads=2)


class TestSliding(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_source(20).slide(4, 2), 4, threads=2)


class TestExecutor(Quick):
    executor: Executor

    @pytest.fixture(autouse=True)
    def pool(self) -> Any:
        with ThreadPoolExecutor(1) as self.executor:
            self.executor.submit(int).result()  # its thread is there before the test
            yield

    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(30), 4, executor=self.executor)

    test_forked_children_go_on = None  # an executor of threads is no use in a forked child


class TestAnotherDigest(Quick):
    def make(self) -> pen.Loader:
        return pen.Loader(make_stream(30), 4, transform=lambda batch: set(batch["x"].tolist()), threads=1)

    def digest(self, batch: Any) -> Any:
        return sorted(batch)
