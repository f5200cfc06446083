"""The interleavings at length: ``python -m tests.interleave.campaign --schedules 1000000``.

Scenarios that are small enough are explored as a whole, with one crash and one fault anywhere; what is left of the schedules
goes to the large ones: half of it depth first, half of it by lot. A wrong schedule is printed as a list of numbers, which
``--scenario NAME --replay 0,3,1`` runs again.
"""

import argparse
import os
import sys
import time
from dataclasses import replace

from tests.interleave.explore import Tally, WrongError, explore, replay, sample
from tests.interleave.mutant import MUTANTS, mutated
from tests.interleave.scenario import LARGE, scenarios
from tests.interleave.world import Scenario, World, installed

PART = 20_000
MUTANT_SCHEDULES = 3000


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(name: str, how: str, tally: Tally, seconds: float) -> int:
    """One line; the schedules that are wrong."""
    end = "whole" if tally.is_whole else how
    say(f"{name:32} {tally.schedules:9,} schedules ({end}), {tally.actions:11,} steps, {seconds:7.1f} s")
    for schedule, text in tally.failures:
        say(f"  WRONG {text}\n  --scenario {name} --replay {','.join(map(str, schedule))}")
    return len(tally.failures)


def run(name: str, most: int, *, seeds: range | None = None) -> tuple[int, int]:
    """Explore a scenario, or draw schedules of it: how many there were, and how many were wrong."""
    begin, one = time.process_time(), scenarios()[name]
    tally = explore(lambda: World(one), most) if seeds is None else sample(lambda: World(one), seeds)
    one.roots.clear()
    how = "the first ones" if seeds is None else f"drawn, seeds {seeds.start} to {seeds.stop - 1}"
    return tally.schedules, report(name, how, tally, time.process_time() - begin)


def run_all(schedules: int, first_seed: int) -> int:
    """The whole campaign: schedules that are wrong."""
    done = wrong = 0
    for name in scenarios():
        if name not in LARGE:
            more, bad = run(name, schedules)
            done, wrong = done + more, wrong + bad
    for name in LARGE:
        more, bad = run(name, max(1, (schedules - done) // (2 * len(LARGE))))
        done, wrong = done + more, wrong + bad
    seed = first_seed
    while done < schedules:
        for name in LARGE:
            more, bad = run(name, PART, seeds=range(seed, seed + min(PART, max(1, schedules - done))))
            done, wrong = done + more, wrong + bad
        seed += PART
    say(f"{done:,} schedules, {wrong} wrong")
    return wrong


def run_mutants() -> int:
    """Every mutant: those that were missed."""
    missed = 0
    for name, mutant in MUTANTS.items():
        tally = try_mutant(scenarios()[mutant.scenario], name)
        missed += not tally.failures
        found = f"found in schedule {tally.schedules}: {tally.failures[0][1][:90]}" if tally.failures else "MISSED"
        say(f"{name:48} {found}")
    say(f"{len(MUTANTS)} mutants, {missed} missed")
    return missed


def try_mutant(scenario: Scenario, name: str) -> Tally:
    """Explore a scenario with a mutant until it shows."""
    with mutated(MUTANTS[name]):
        fresh = replace(scenario, roots=[])
        return explore(lambda: World(fresh), MUTANT_SCHEDULES)


def run_again(name: str, schedule: list[int]) -> int:
    """One schedule, step by step."""
    try:
        for action in replay(lambda: World(scenarios()[name]), schedule):
            say(f"  {action.actor:3} {action.name:22} {action.key}")
    except WrongError as error:
        say(f"WRONG {error}")
        return 1
    say("nothing is wrong")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed of schedules that are drawn")
    parser.add_argument("--scenario", help="only this one")
    parser.add_argument("--replay", help="a schedule: numbers with commas")
    parser.add_argument("--mutants", action="store_true", help="only the mutants")
    given = parser.parse_args()
    os.nice(10)
    with installed():
        if given.replay is not None:
            return run_again(given.scenario, [int(number) for number in given.replay.split(",")])
        if given.mutants:
            return run_mutants()
        if given.scenario is not None:
            return run(given.scenario, given.schedules)[1]
        return run_all(given.schedules, given.seed) + run_mutants()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
