"""ResumeSuite: the conformance tests that a loader resumes exactly.

A subclass says how to make its loader; pytest runs every test below on it::

    class TestMine(ResumeSuite):
        def make(self):
            return pen.Loader(pen.open("train.pen").shuffle(seed=7), batch_size=256)

``make`` is called again whenever a test wants a loader without a history, so it must give equal loaders every time. Runs are looked
at for an epoch and a little more, at most ``most_steps`` batches.
"""

import json
import threading
from itertools import islice
from typing import Any, ClassVar

import pytest

from penstock.batch import fields_of
from penstock.errors import StateError, StateMismatchError
from penstock.loader import Loader
from penstock.loader.resume_check import verify_resume
from penstock.testing.source_suite import run_in_fork

__all__ = ["ResumeSuite"]

DEADLINE_S = 60  # how long a forked child may take; a hang is a failure, not a wait


class ResumeSuite:
    """Inherit, and give :meth:`make`."""

    most_steps: ClassVar[int] = 30
    """The most batches that a test compares."""

    def make(self) -> Loader:
        """The loader to test: a fresh one, equal in every call."""
        raise NotImplementedError(f"{type(self).__name__} must define make() -> a loader")

    def digest(self, batch: Any) -> Any:
        """What is compared of a batch: by default every leaf of a dict, list or tuple of arrays."""
        return fields_of(batch)

    @pytest.fixture
    def loader(self) -> Loader:
        return self.make()

    @pytest.fixture
    def expected(self) -> list[Any]:
        """The batches of a run that is not interrupted."""
        return self._run(self.make(), self.most_steps)

    def _run(self, loader: Loader, steps: int) -> list[Any]:
        """The digests of up to ``steps`` batches, epoch after epoch."""
        found: list[Any] = []
        while len(found) < steps:
            before = len(found)
            with iter(loader) as batches:
                found += [self.digest(batch) for batch in islice(batches, steps - before)]
            if len(found) == before:
                break
        return found

    # Batches

    def test_runs_are_equal(self, expected: list[Any]) -> None:
        assert self._run(self.make(), self.most_steps) == expected

    def test_length_is_the_number_of_batches(self, loader: Loader) -> None:
        """``len`` is known before, and right after, whatever was delivered."""
        promised = len(loader)
        if promised > 10 * self.most_steps:
            return
        with iter(loader) as batches:
            for number, _ in enumerate(islice(batches, promised), 1):
                assert loader.step == number
            assert next(batches, None) is None

    def test_a_loop_that_breaks_off_goes_on(self, loader: Loader, expected: list[Any]) -> None:
        """The batches that were delivered count, not those that were read ahead."""
        found: list[Any] = []
        while len(found) < len(expected):
            found += self._run(loader, min(3, len(expected) - len(found)))
        assert found == expected

    def test_any_step_is_found_by_itself(self, loader: Loader, expected: list[Any]) -> None:
        """``seek`` goes to any step, in both directions."""
        for step in [len(expected) - 1, 0, len(expected) // 2, 1, len(expected) - 1] if len(expected) > 1 else []:
            loader.seek(step)
            assert loader.step == step
            assert self._run(loader, 1) == [expected[step]]

    # States

    def test_every_place_resumes_to_the_same_batches(self, loader: Loader) -> None:
        """Saved as JSON and as bytes, loaded into fresh loaders, again and again."""
        report = verify_resume(self.make, steps=self.most_steps, digest=self.digest)
        assert report.steps <= self.most_steps

    def test_states_are_plain_json(self, loader: Loader, expected: list[Any]) -> None:
        """What is loaded is what was saved, and a cursor has 24 bytes."""
        for number in range(min(3, len(expected))):
            state = loader.state_dict()
            assert json.loads(json.dumps(state)) == state
            assert state["step"] == number
            assert len(loader.get_state()) == 24
            fresh = self.make()
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            self._run(loader, 1)

    def test_taking_a_state_disturbs_nothing(self, loader: Loader, expected: list[Any]) -> None:
        found = []
        for _ in expected:
            found += self._run(loader, 1)
            loader.state_dict()
            loader.get_state()
        assert found == expected

    def test_states_of_other_runs_are_refused(self, loader: Loader) -> None:
        """Other data, another order, another seed; the loader stays where it was."""
        state = loader.state_dict()
        plan = dict.fromkeys(state["plan"], "something else")
        cursor = bytearray.fromhex(state["cursor"])
        cursor[0] ^= 1  # of the seed
        other = {"data": "0" * 64, "samples": dict.fromkeys(state.get("samples", {}), "0" * 64)}
        changes: list[dict[str, Any]] = [other, {"plan": plan}, {"plan": {}}, {"cursor": cursor.hex()}]
        for change in changes:
            with pytest.raises(StateMismatchError):
                loader.load_state_dict(state | change)
        with pytest.raises(StateMismatchError):
            loader.set_state(bytes(cursor))
        assert loader.state_dict() == state

    def test_damaged_states_are_refused(self, loader: Loader) -> None:
        state = loader.state_dict()
        damaged: list[Any] = [None, {}, [], "state", {**state, "more": 1}, {key: state[key] for key in list(state)[1:]}]
        values: list[Any] = [None, -1, 2**70, 0.5, "x", [], {"x": 1}, b"x"]
        unsampled = {
            key: value for key, value in state.items() if key != "samples"
        }  # samples speak for the data, whatever its name
        damaged += [(unsampled if key == "data" else state) | {key: value} for key in state for value in values]
        for one in damaged:
            with pytest.raises(StateError):
                loader.load_state_dict(one)
        for packed in (b"", bytes(23), bytes(25), None, "x"):
            with pytest.raises(StateError):
                loader.set_state(packed)  # type: ignore[arg-type]
        assert loader.state_dict() == state

    # Threads and processes

    def test_dropped_iterators_leave_no_threads(self, loader: Loader) -> None:
        before = set(threading.enumerate())
        for _ in range(5):
            for _batch in loader:
                break
        assert set(threading.enumerate()) <= before

    def test_forked_children_go_on(self, loader: Loader, expected: list[Any]) -> None:
        """In the middle of iteration; the child gives what the parent would have given, and so does the parent."""
        half = len(expected) // 2
        self._run(loader, half)
        rest = len(expected) - half

        def compare() -> str:
            return "right" if self._run(loader, rest) == expected[half:] else "other batches"

        def go_on() -> None:
            assert self._run(loader, rest) == expected[half:]

        assert run_in_fork(compare, meanwhile=go_on) == "right"
