"""Thousands of random runs, saved and resumed on other ranks, threads and batch sizes, beside plain lists.

As a program::

    python -m tests.loader.campaign --cases 10000
    python -m tests.loader.campaign --stress 60         # seconds of several threads on one iterator instead

A case that fails is named by its number; ``--first NUMBER --cases 1`` runs it alone.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.loader.case import Case, Data, Leg, make_case, make_ranks, make_stream, naive_run, samples
from tests.loader.model import KINDS, unite
from tests.loader.stress import run as run_stress

import penstock as pen


def check(case: Case, data: Data) -> int:
    """Run a case; returns the number of batches that were compared."""
    stream = make_stream(case, data)
    size, done, compared = case.size, 0, 0
    state: Any = None
    expected = naive_run(case, size, _steps(case))
    for leg in case.legs:
        size = leg.size or size
        ranks = make_ranks(case, stream, leg, size)
        if state is not None:
            for loader in ranks:
                _load(loader, leg, state)
            if leg.size is not None:
                cursor = ranks[0].cursor
                expected = naive_run(case, size, _steps(case), cursor.epoch, cursor.position)
                done = 0
        compared += _compare(case, leg, ranks, expected[done : done + leg.steps])
        done += min(leg.steps, len(expected) - done)
        state = _save(ranks, leg)
    return compared


def _steps(case: Case) -> int:
    return sum(leg.steps for leg in case.legs) + 1


def _load(loader: pen.Loader, leg: Leg, state: tuple[str, bytes]) -> None:
    if leg.as_bytes:
        loader.set_state(state[1])
    else:
        loader.load_state_dict(json.loads(state[0]))
        assert json.loads(json.dumps(loader.state_dict()))["cursor"] == json.loads(state[0])["cursor"]


def _save(ranks: list[pen.Loader], leg: Leg) -> tuple[str, bytes]:
    states = {json.dumps(loader.state_dict()) for loader in ranks}
    assert len(states) == 1, f"ranks disagree: {states}"
    return states.pop(), ranks[0].get_state()


def _compare(case: Case, leg: Leg, ranks: list[pen.Loader], expected: list[Any]) -> int:
    """The ranks must give those batches, by one loop after the other."""
    runs = [iter(loader) for loader in ranks]
    try:
        for number, batch in enumerate(expected):
            parts = [_next(loader, runs, rank) for rank, loader in enumerate(ranks)]
            found = unite([samples(case, part) for part in parts])
            assert found == batch, f"{leg}, batch {number}: expected {batch}, got {found}"
    finally:
        for run in runs:
            run.close()
    return len(expected)


def _next(loader: pen.Loader, runs: list[Any], rank: int) -> Any:
    for _ in range(2):  # where an epoch has ended, the next loop is the next epoch; one that was resumed may have nothing left
        for batch in runs[rank]:
            return batch
        runs[rank] = iter(loader)
    for batch in runs[rank]:
        return batch
    raise AssertionError(f"rank {rank}: expected a batch, got the end")


REFUSED = re.compile("drops every epoch whole|fewer than the .* of a sequence|batches would come from several data sets")
"""What a loader says of an epoch that has no batch, or no batch of one data set."""


def run(first: int, cases: int, *, tells: bool = False) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Check cases; what was seen, and those that failed."""
    seen: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        data = Data(Path(directory))
        for number in range(first, first + cases):
            case = make_case(number)
            try:
                seen["batches"] += check(case, data)
            except ValueError as error:
                if REFUSED.search(str(error)):
                    seen["refused"] += 1
                else:
                    failed.append((number, f"{case}\n{traceback.format_exc()}"))
            except Exception:
                failed.append((number, f"{case}\n{traceback.format_exc()}"))
            seen["cases"] += 1
            seen[f"{case.kind}{' in phases' if case.phases is not None else ''}"] += 1
            if tells and seen["cases"] % 500 == 0:
                rate = seen["cases"] / (time.monotonic() - began)
                sys.stdout.write(f"{seen['cases']} cases, {rate:.0f} a second, {len(failed)} failed\n")
                sys.stdout.flush()
        data.close()
    return seen, failed


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Random runs of loaders beside plain lists.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stress", type=float, metavar="SECONDS", help="threads on one iterator, instead of the cases")
    options = parser.parse_args()
    if options.stress is not None:
        return stress(options.stress)
    seen, failed = run(options.first, options.cases, tells=True)
    for number, text in failed[:5]:
        sys.stdout.write(f"case {number}: {text}\n")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.items()) if kind not in ("cases", "batches"))
    numbers = f" (numbers {[number for number, _ in failed[:40]]})" if failed else ""
    sys.stdout.write(f"{seen['cases']} cases ({kinds}), {seen['batches']} batches compared, {len(failed)} failed{numbers}\n")
    return 1 if failed else 0


def stress(seconds: float) -> int:
    """Threads on one iterator; what fails is raised."""
    seen = run_stress(seconds)
    kinds = ", ".join(f"{seen[kind]} {kind}" for kind in KINDS)
    sys.stdout.write(f"{sum(seen[kind] for kind in KINDS)} epochs ({kinds}), {seen['batches']} batches, each taken once\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
