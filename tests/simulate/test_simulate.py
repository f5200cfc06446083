"""The remote loader in virtual time: runs that are functions of their seeds."""

import random

import pytest
from tests.effort import count, every
from tests.simulate import thread
from tests.simulate.mutant import MUTANTS, SEEDS, find
from tests.simulate.run import installed
from tests.simulate.window import KINDS, run_seed


def test_batches_are_those_of_local_files_or_an_error_that_a_fault_explains() -> None:
    with installed():
        batches = sum(run_seed("loader", seed).compared for seed in range(count(20, 3000)))
    assert batches > 20


def test_ranges_are_those_of_the_objects_or_an_error_that_a_fault_explains() -> None:
    with installed():
        ranges = sum(run_seed("window", seed).compared for seed in range(count(120, 30_000)))
    assert ranges > 120


def test_two_plans_whose_steps_do_not_fit_together_take_turns() -> None:
    with installed():
        run_seed("window", 6432)


def test_what_cannot_be_fetched_is_not_asked_for_over_and_over_while_a_reader_waits_for_memory() -> None:
    with installed():
        run_seed("window", 111051)


@pytest.mark.parametrize(("kind", "name"), every(8, [(kind, name) for kind in KINDS for name in SEEDS[kind]]))
def test_broken_remote_code_is_found(kind: str, name: str) -> None:
    seed = SEEDS[kind][name]
    assert find(MUTANTS[name], kind, seed, most=1) is not None, "run campaign --mutants for a seed that shows it"
    with installed():
        run_seed(kind, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_the_same_run_every_time(kind: str) -> None:
    def trace(seed: int) -> tuple[int, float, int]:
        run = run_seed(kind, seed)
        return run.scheduler.digest, run.scheduler.now, run.compared

    with installed():
        first = [trace(seed) for seed in range(100, 106)]
        again = [trace(seed) for seed in range(105, 99, -1)]
    assert again[::-1] == first
    assert len(set(first)) == 6


def test_a_deadlock_is_reported_with_the_stacks() -> None:
    scheduler = thread.Scheduler(random.Random(0), preempt=1.0)
    thread.begin(scheduler)
    one, other = thread.Lock(), thread.Lock()
    meeting = thread.Event()

    def cross(first: thread.Lock, second: thread.Lock) -> None:
        with first:
            meeting.wait(1.0)
            with second:
                pass

    for locks in ((one, other), (other, one)):
        thread.Thread(target=cross, args=locks).start()
    with pytest.raises(thread.HangError, match=r"deadlock(.|\n)*cross(.|\n)*cross"):
        scheduler.run(lambda: not scheduler.alive())
    scheduler.end()
