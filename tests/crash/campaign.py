"""The long version of the crash proof.

    python -m tests.crash.campaign [--states 100000] [--seed 0] [--workers 2]

simulates every named plan, then plans drawn by lot, until so many distinct crash states were opened, with a second crash during the
recovery from some of them; then every mutant, and every fault at every call. Ends with 1 if anything was wrong.
"""

import argparse
import itertools
import sys
import time

from tests.crash.mutant import MUTANTS
from tests.crash.plan import NAMED
from tests.crash.run import WORKERS, run_all

SUBSETS = 60
MOST = 5_000  # states of one plan, so that there are many plans


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=WORKERS)
    given = parser.parse_args()
    began = time.monotonic()
    wrong = _states(given.states, given.seed, given.workers)
    uncaught = _mutants(given.workers)
    wrong += _faults(given.workers)
    _say(f"{wrong} wrong, {uncaught} mutants not caught, {time.monotonic() - began:.0f} s")
    return 1 if wrong or uncaught else 0


def _states(wanted: int, seed: int, workers: int) -> int:
    plans = itertools.chain(NAMED, (f"random-{i}" for i in itertools.count(seed)))
    states = wrong = done = 0
    while states < wanted:
        batch = [next(plans) for _ in range(8 * workers)]
        commands = [
            ["tests.crash.simulate", plan, "--subsets", str(SUBSETS), "--most", str(MOST), "--seed", str(seed), "--recoveries", "2"]
            for plan in batch
        ]
        for result in run_all(commands, workers):
            states, wrong, done = states + result["opened"], wrong + result["wrong"], done + 1
            if result["wrong"]:
                _say(f"{result['plan']}: {result['wrong']} wrong, first: {result['first_wrong']}")
            sys.stderr.write(f"\r{done} plans, {states} of {wanted} states, {wrong} wrong ")
            sys.stderr.flush()
            if states >= wanted:
                break
    sys.stderr.write("\n")
    _say(f"{done} plans, {states} distinct crash states, {wrong} wrong")
    return wrong


def _mutants(workers: int) -> int:
    results = list(run_all([["tests.crash.simulate", f"{plan}:{name}"] for name, (_, plan) in MUTANTS.items()], workers))
    missed = [result["mutant"] for result in results if result["wrong"] == 0]
    _say(f"{len(results) - len(missed)} of {len(results)} mutants caught" + "".join(f"; missed {name}" for name in missed))
    return len(missed)


def _faults(workers: int) -> int:
    results = list(run_all([["tests.crash.inject", "--part", f"{i}/{workers}"] for i in range(workers)], workers))
    wrong = [what for result in results for what in result["wrong"]]
    for what in wrong:
        _say(what)
    _say(f"{sum(sum(result['faults'].values()) for result in results)} injected faults, {len(wrong)} wrong")
    return len(wrong)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
