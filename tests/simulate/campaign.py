"""The simulation at length: ``python -m tests.simulate.campaign --kind window --count 1000000 --processes 2``.

Every seed is one run of a kind. A seed that is wrong is printed, and ``--kind K --seed N -v`` shows it step by step. ``--first``
goes on where another campaign stopped: each process prints how far it is. ``--mutants`` looks how many seeds it takes to find each
mutant.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.simulate.mutant import MUTANTS, SEEDS, find
from tests.simulate.run import installed
from tests.simulate.window import KINDS, run_seed

COUNTS = {"window": 1_000_000, "loader": 20_000}
COLLECTED = {"window": 4, "loader": 50}
"""Runs between two collections of garbage: often enough that memory is used again while it is in a cache of the processor."""
READ = {"window": "ranges", "loader": "batches"}
EVERY_S = 60.0
MOST_WRONG = 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show(kind: str, seed: int, *, verbose: bool) -> int:
    """One run, step by step."""
    with installed():
        try:
            run = run_seed(kind, seed, say if verbose else None)
        except Exception as error:
            traceback.print_exc()
            say(f"seed {seed}: WRONG {type(error).__name__}: {error}")
            return 1
    say(f"seed {seed}: {run.case}")
    errors = ", ".join(type(one).__name__ for one in run.failures) or "no error"
    say(f"seed {seed}: {run.compared} {READ[kind]}, {errors}, {run.scheduler.steps} steps, {run.scheduler.now:.3f} s; all is well")
    return 0


def run_some(kind: str, first: int, count: int, stride: int) -> int:
    """Seeds ``first, first + stride, ...``: how many were wrong."""
    wrong, told, began, ends = 0, time.monotonic(), time.process_time(), Counter[str]()
    compared = requests = 0
    with installed():
        for number in range(count):
            seed = first + number * stride
            try:
                run = run_seed(kind, seed)
            except Exception as error:
                wrong += 1
                say(f"WRONG --kind {kind} --seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            else:
                ends[type(run.failures[0]).__name__ if run.failures else "no error"] += 1
                compared, requests = compared + run.compared, requests + len(run.bucket.log)
            if (number + 1) % COLLECTED[kind] == 0:
                gc.collect()
            if time.monotonic() > told + EVERY_S:
                told = time.monotonic()
                each = (time.process_time() - began) / (number + 1) * 1e3
                say(f"{kind}, up to seed {seed}: {number + 1:,} runs, {wrong} wrong, {each:.2f} ms each")
            if wrong >= MOST_WRONG:
                break
    each = (time.process_time() - began) / max(1, count) * 1e3
    found = f"{compared:,} {READ[kind]}, {requests:,} requests, {each:.2f} ms each, {dict(ends)}"
    say(f"{kind}, {count:,} seeds from {first} by {stride}: {found}")
    return wrong


def run_all(kind: str, first: int, count: int, processes: int) -> int:
    """The same in several processes: how many of them found something wrong."""
    counts = [len(range(number, count, processes)) for number in range(processes)]
    program = [sys.executable, "-m", "tests.simulate.campaign", "--kind", kind, "--stride", str(processes)]
    running = [
        subprocess.Popen([*program, "--first", str(first + number), "--count", str(counts[number])]) for number in range(processes)
    ]
    failed = sum(one.wait() != 0 for one in running)
    say(f"{kind}, {count:,} seeds from {first} on: {'WRONG, see above' if failed else 'nothing is wrong'}")
    return failed


def run_mutants(kinds: Sequence[str], most: int | None) -> int:
    """Every mutant: those that were missed by a kind that has to find them."""
    missed = 0
    for name, mutant in MUTANTS.items():
        for kind in kinds:
            found = find(mutant, kind, most=most)
            missed += found is None and name in SEEDS[kind]
            told = "not found" if found is None else f"seed {found[0]}: {found[1][:100]}"
            say(f"{name:36} {kind:6} {'MISSED' if found is None and name in SEEDS[kind] else told}")
    say(f"{len(MUTANTS)} mutants, {missed} missed")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=[*KINDS, "both"], default="both", help="what runs: readers of a window, or loaders")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="1,000,000 of readers, 20,000 of loaders, unless given")
    parser.add_argument("--stride", type=int, default=1, help="between seeds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one; --kind says of what")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: step by step")
    parser.add_argument("--mutants", action="store_true", help="only the mutants; --count is the most seeds for each")
    given = parser.parse_args()
    kinds = KINDS if given.kind == "both" else (given.kind,)
    if given.seed is not None:
        return sum(show(kind, given.seed, verbose=given.verbose) for kind in kinds)
    os.nice(10)
    if given.mutants:
        return run_mutants(kinds, given.count)
    wrong = 0
    for kind in kinds:
        count = COUNTS[kind] if given.count is None else given.count
        if given.processes > 1:
            wrong += run_all(kind, given.first, count, given.processes)
        else:
            wrong += run_some(kind, given.first, count, given.stride)
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
