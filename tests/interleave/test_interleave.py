"""Interleavings of writers, gc, rebalance and readers on one bucket, with a crash and lost, doubled and late answers."""

from collections.abc import Iterator

import pytest
from tests.effort import count, every
from tests.interleave.campaign import try_mutant
from tests.interleave.explore import Action, explore, replay, sample
from tests.interleave.mutant import MUTANTS
from tests.interleave.scenario import LARGE, scenarios
from tests.interleave.world import World, installed


@pytest.fixture(autouse=True)
def in_greenlets() -> Iterator[None]:
    with installed():
        yield


@pytest.mark.parametrize("name", [name for name in scenarios() if name not in LARGE])
def test_schedules_show_what_the_model_says(name: str) -> None:
    one = scenarios()[name]
    tally = explore(lambda: World(one), count(150, 1_000_000))
    one.roots.clear()
    assert tally.failures == []
    assert tally.schedules > 40


@pytest.mark.parametrize("name", LARGE)
def test_schedules_that_are_drawn_show_what_the_model_says(name: str) -> None:
    one = scenarios()[name]
    tally = sample(lambda: World(one), range(count(100, 20_000)))
    one.roots.clear()
    assert tally.failures == []


@pytest.mark.parametrize("name", every(2, list(MUTANTS)))
def test_broken_protocols_are_found_and_replayed(name: str) -> None:
    scenario = scenarios()[MUTANTS[name].scenario]
    tally = try_mutant(scenario, name)
    assert len(tally.failures) == 1, "no schedule showed it"
    schedule, _ = tally.failures[0]
    assert len(list(replay(lambda: World(scenario), schedule[:1]))) == 1


class Counters:
    """Two actors that take a few steps each, some of them on one key: how often each state is the last one is known."""

    def __init__(self, shared: bool) -> None:
        self.left, self.shared, self.order = [3, 3], shared, ""

    def actions(self) -> list[Action]:
        key = (lambda actor: "both") if self.shared else str
        return [Action(actor, "go", key(actor), writes=True) for actor in (0, 1) if self.left[actor]]

    def perform(self, action: Action) -> None:
        self.left[action.actor] -= 1
        self.order += str(action.actor)

    def finish(self) -> None:
        seen.append(self.order)

    def close(self) -> None:
        pass


seen: list[str] = []


@pytest.mark.parametrize(("shared", "schedules"), [(True, 20), (False, 1)])
def test_the_search_finds_every_order_of_dependent_steps_and_one_of_independent_ones(shared: bool, schedules: int) -> None:
    seen.clear()
    tally = explore(lambda: Counters(shared), 1000)
    assert tally.is_whole
    assert len(set(seen)) == len(seen) == tally.schedules == schedules
