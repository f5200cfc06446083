"""The simulation at length: ``python -m tests.simulate.campaign --count 1000000 --processes 2``.

Every seed is one run. A seed that is wrong is printed, and ``--seed N -v`` shows it step by step. ``--first`` goes on where another
campaign stopped: each process prints how far it is. ``--mutants`` looks how many seeds it takes to find each mutant.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
import traceback
from collections import Counter

from tests.simulate.mutant import MUTANTS, find
from tests.simulate.run import installed, run_seed

EVERY_S = 60.0
MOST_WRONG = 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show(seed: int, *, verbose: bool) -> int:
    """One run, step by step."""
    with installed():
        try:
            run = run_seed(seed, say if verbose else None)
        except Exception as error:
            traceback.print_exc()
            say(f"seed {seed}: WRONG {type(error).__name__}: {error}")
            return 1
    say(f"seed {seed}: {run.case}")
    errors = ", ".join(type(one).__name__ for one in run.failures) or "no error"
    say(f"seed {seed}: {run.batches} batches, {errors}, {run.scheduler.steps} steps, {run.scheduler.now:.3f} s; all is well")
    return 0


def run_some(first: int, count: int, stride: int) -> int:
    """Seeds ``first, first + stride, ...``: how many were wrong."""
    wrong, told, began, ends = 0, time.monotonic(), time.process_time(), Counter[str]()
    batches = requests = 0
    with installed():
        for number in range(count):
            seed = first + number * stride
            try:
                run = run_seed(seed)
            except Exception as error:
                wrong += 1
                say(f"WRONG --seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            else:
                ends[type(run.failures[0]).__name__ if run.failures else "no error"] += 1
                batches, requests = batches + run.batches, requests + len(run.bucket.log)
            if number % 50 == 49:
                gc.collect()
            if time.monotonic() > told + EVERY_S:
                told = time.monotonic()
                each = (time.process_time() - began) / (number + 1) * 1e3
                say(f"up to seed {seed}: {number + 1:,} runs, {wrong} wrong, {each:.2f} ms each")
            if wrong >= MOST_WRONG:
                break
    each = (time.process_time() - began) / max(1, count) * 1e3
    say(f"{count:,} seeds from {first} by {stride}: {batches:,} batches, {requests:,} requests, {each:.2f} ms each, {dict(ends)}")
    return wrong


def run_all(first: int, count: int, processes: int) -> int:
    """The same in several processes: how many of them found something wrong."""
    counts = [len(range(number, count, processes)) for number in range(processes)]
    program = [sys.executable, "-m", "tests.simulate.campaign", "--stride", str(processes)]
    running = [
        subprocess.Popen([*program, "--first", str(first + number), "--count", str(counts[number])]) for number in range(processes)
    ]
    failed = sum(one.wait() != 0 for one in running)
    say(f"{count:,} seeds from {first} on: {'WRONG, see above' if failed else 'nothing is wrong'}")
    return failed


def run_mutants() -> int:
    """Every mutant: those that were missed."""
    missed = 0
    for name, mutant in MUTANTS.items():
        found = find(mutant)
        missed += found is None
        say(f"{name:36} {'MISSED' if found is None else f'seed {found[0]}: {found[1][:100]}'}")
    say(f"{len(MUTANTS)} mutants, {missed} missed")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--stride", type=int, default=1, help="between seeds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: step by step")
    parser.add_argument("--mutants", action="store_true", help="only the mutants")
    given = parser.parse_args()
    if given.seed is not None:
        return show(given.seed, verbose=given.verbose)
    os.nice(10)
    if given.mutants:
        return run_mutants()
    if given.processes > 1:
        return run_all(given.first, given.count, given.processes)
    return run_some(given.first, given.count, given.stride)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
