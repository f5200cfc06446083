"""States saved by version 1 (made with the real one by tests/golden/make_states.py) resume, or are refused with the reason."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
from tests.effort import every
from tests.golden.make_states import FOLDER, NEXT, STAGED, STATES, WEIGHTS, Case, Data, cases, named, summary

import penstock as pen
from penstock import Field
from penstock.errors import StateError, StateMismatchError
from penstock.stream import Stream

DATA = Data(FOLDER)
CASES = {case.name: case for case in cases()}
GOLDEN = {golden["name"]: golden for golden in json.loads(STATES.read_text())}

FIRST_EPOCH_ONLY = {
    "mix first_exhausted, weights by step",
    "mix all_exhausted, weights by step",
    "mix all_exhausted_without_replacement, weights by step",
    "mix first_exhausted, unit batch, weights by step",
    "mix all_exhausted, unit batch, weights by step",
}
"""In version 1 the stages began anew in every epoch; now they are those of the whole run."""

UNBUILDABLE: dict[str, tuple[type[Exception], str]] = {
    "mix in mix, weights by step inside": (ValueError, "by step"),
    "mix in mix, unit batch inside": (ValueError, "batch"),
    "sequences, sliding": (TypeError, "Sliding"),
    "texts sliding": (TypeError, "Sliding"),
    "texts sampled": (ValueError, "tokens"),
}
"""Streams that version 1 made and that are refused now."""

REFUSED: dict[str, tuple[type[StateError], str]] = {
    "mix all_exhausted_without_replacement, unit batch": (StateError, "replacement"),
    "mix all_exhausted_without_replacement, unit batch, weights by step": (StateError, "replacement"),
    "mix, weights by sample": (StateMismatchError, "batch.?size|weights by step"),
    "mix, unit batch of half the size": (StateMismatchError, "batch.?size"),
    "mix, weights by step, then half batches": (StateMismatchError, "batch.?size|weights by step"),
    "sequences, bans that were not respected": (StateMismatchError, r"\bban"),
}
"""States whose order no longer exists, and what the reason must name."""

RESUMED = [name for name in CASES if name not in UNBUILDABLE and name not in REFUSED]

MADE_OF_LINES = [name for name in RESUMED if any(key.endswith(("page", "stop")) for key in GOLDEN[name]["state"]["plan"])]
"""Sequences and mixtures, which must remember that their order is the old one."""

TOKENS_ONLY = {name for name in CASES if "documents" in name and "in order" not in name}
"""Version 1 did not see that a document ends where a page does: tokens are compared, segments are not."""


def _staged(**options: Any) -> Callable[[Data], Stream]:
    return lambda data: pen.mix(data.three(), seed=5, weights=STAGED, **options)


def _by_batch(**options: Any) -> Callable[[Data], Stream]:
    return lambda data: pen.mix(data.three(), seed=5, weights=WEIGHTS, unit="batch", period=6, **options)


def _nullable(data: Data) -> pen.Source:
    return data.missing().map(named, schema={"x": Field("i8"), "t": Field.text(nullable=True)})


NOW: dict[str, Callable[[Data], Stream]] = {
    "map with missing values, in order": lambda data: _nullable(data).in_order(),
    "map with missing values, shuffled": lambda data: _nullable(data).shuffle(seed=7),
    "mix, a batch size without effect": lambda data: pen.mix(data.three(), seed=5, weights=WEIGHTS),
    "mix, weights by sample": _staged(),
    "mix, unit batch of half the size": lambda data: pen.mix(data.three(), seed=5, unit="batch"),
    "mix, weights by step, then half batches": _staged(),
}
"""Streams that are written in another way now: a field is declared nullable, or what version 1 was told did not fit its loader."""

WITHOUT_BATCH_SIZE: dict[str, Callable[[Data], Stream]] = {
    "mix first_exhausted, weights by step": _staged(period=16),
    "mix forever, weights by step": _staged(stop="forever", period=16),
    "mix first_exhausted, unit batch": _by_batch(),
    "mix all_exhausted, unit batch": _by_batch(stop="all_exhausted"),
    "mix forever, unit batch": _by_batch(stop="forever"),
}
"""The same mixtures with the batch size left to the loader."""


@contextmanager
def opened(case: Case, make: Callable[[Data], Stream] | None = None) -> Iterator[pen.Loader]:
    """The loader that resumes a case."""
    with case.loader(DATA, resumes=True, make=make or NOW.get(case.name)) as loader:
        try:
            yield loader
        finally:
            loader.stream.close()


def states(name: str) -> list[tuple[dict[str, Any], list[int], list[Any]]]:
    """Every state of a case, and the batches that come next with their epochs."""
    golden = GOLDEN[name]
    return [(golden["state"] | {"step": at["step"], "cursor": at["cursor"]}, at["epochs"], at["next"]) for at in golden["at"]]


def resumable(name: str) -> list[tuple[dict[str, Any], list[int], list[Any]]]:
    """The states that resume, and the batches that must come next."""
    found = states(name)
    if name in FIRST_EPOCH_ONLY:
        found = [(state, [0] * epochs.count(0), batches[: epochs.count(0)]) for state, epochs, batches in found if epochs[0] == 0]
    if name in TOKENS_ONLY:
        found = [(state, epochs, [batch[:2] for batch in batches]) for state, epochs, batches in found]
    return found


def taken(name: str, loader: pen.Loader, count: int) -> list[Any]:
    """The next batches as the golden values have them."""
    batches = [summary(batch) for batch in islice(loader.forever(), count)]
    return [batch[:2] for batch in batches] if name in TOKENS_ONLY else batches


def check_resumes(name: str, make: Callable[[Data], Stream] | None = None) -> None:
    with opened(CASES[name], make) as loader:
        for state, epochs, batches in every(2, resumable(name)):
            loader.load_state_dict(state)
            # Version 1 named the old epoch where too little was left of it for a batch that is not to be short.
            is_over = name == "tail wrap, then drop" and loader.cursor.position == 96
            assert (loader.step, loader.epoch) == (state["step"], epochs[0] + is_over), state
            assert taken(name, loader, len(batches)) == batches, state


def test_every_case_has_golden_values() -> None:
    assert list(GOLDEN) == list(CASES)
    assert all(len(states(name)) >= 5 for name in CASES)
    assert all(state["order_version"] == 1 for name in CASES for state, _, _ in states(name))


@pytest.mark.parametrize("name", RESUMED)
def test_a_state_of_version_1_resumes(name: str) -> None:
    check_resumes(name)


@pytest.mark.parametrize("name", WITHOUT_BATCH_SIZE)
def test_a_state_of_version_1_resumes_where_the_mixture_is_not_told_the_batch_size(name: str) -> None:
    check_resumes(name, WITHOUT_BATCH_SIZE[name])


@pytest.mark.parametrize("name", MADE_OF_LINES)
@pytest.mark.sampled(3)
def test_a_resumed_run_that_is_saved_again_goes_on_in_its_order(name: str) -> None:
    state, _, batches = next(found for found in reversed(resumable(name)) if len(found[2]) == NEXT)
    with opened(CASES[name]) as loader:
        loader.load_state_dict(state)
        taken(name, loader, 1)
        saved = json.loads(json.dumps(loader.state_dict()))
    with opened(CASES[name]) as loader:
        loader.load_state_dict(saved)
        assert loader.step == state["step"] + 1
        assert taken(name, loader, 1) == batches[1:]


@pytest.mark.parametrize("name", ["sequences of 12, shuffled", "ragged shuffled", "mix first_exhausted of sequences"])
def test_a_loader_that_resumed_the_old_order_takes_a_state_of_the_new_one(name: str) -> None:
    with opened(CASES[name]) as loader:
        fresh = loader.state_dict()
        new = taken(name, loader, NEXT)
        old, _, batches = states(name)[0]
        loader.load_state_dict(old)
        assert taken(name, loader, NEXT) == batches
        loader.load_state_dict(fresh)
        assert taken(name, loader, NEXT) == new
    assert fresh["order_version"] == 2
    assert new != batches


@pytest.mark.parametrize("name", sorted(FIRST_EPOCH_ONLY))
def test_a_state_of_weights_by_step_is_refused_in_later_epochs(name: str) -> None:
    later = [state for state, epochs, _ in states(name) if epochs[0] > 0]
    assert len(later) == 3
    with opened(CASES[name]) as loader:
        for state in later:
            with pytest.raises(StateError, match=r"(?i)weights.*epoch|epoch.*weights"):
                loader.load_state_dict(state)
        assert (loader.step, loader.epoch) == (0, 0)


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_of_an_order_that_no_longer_exists_is_refused(name: str) -> None:
    error, reason = REFUSED[name]
    with opened(CASES[name]) as loader:
        for state, _, _ in states(name):
            with pytest.raises(error, match=reason):
                loader.load_state_dict(state)
        assert (loader.step, loader.epoch) == (0, 0)


@pytest.mark.parametrize("name", UNBUILDABLE)
def test_a_stream_that_no_longer_exists_is_refused_when_it_is_made(name: str) -> None:
    error, reason = UNBUILDABLE[name]
    with pytest.raises(error, match=re.compile(reason, re.IGNORECASE)):
        CASES[name].loader(DATA, resumes=True)


def test_a_state_that_is_refused_changes_nothing() -> None:
    name = "sequences of 12, shuffled"
    with opened(CASES[name]) as loader:
        state, _, batches = resumable(name)[1]
        for key, value in (("data", "another"), ("step", state["step"] + 1), ("cursor", "00" * 8 + "ff" * 16)):
            loader.load_state_dict(state)
            first = taken(name, loader, 1)
            bad = state | {key: value} if key != "step" else state | {"plan": {}}
            with pytest.raises(StateError):
                loader.load_state_dict(bad)
            assert loader.state_dict()["order_version"] == 1
            assert first + taken(name, loader, len(batches) - 1) == batches


@pytest.mark.parametrize("workers", [0, 1])
def test_a_torch_data_loader_goes_on_in_the_old_order_too(workers: int) -> None:
    from penstock.deliver.torch import DataLoader

    name = "sequences of 12, shuffled"
    with opened(CASES[name]) as loader:
        options = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
        data = DataLoader(loader, num_workers=workers, **options)
        next(iter(data))  # workers have begun, with the new order
        state, _, batches = resumable(name)[1]
        data.load_state_dict(state)
        with_arrays = ({field: column.numpy() for field, column in batch.items()} for batch in data)
        assert [summary(batch) for batch in islice(with_arrays, len(batches))] == batches
