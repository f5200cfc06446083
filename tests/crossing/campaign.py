"""Very many cases by lot.

    python -m tests.crossing.campaign [--cases 100000] [--seed 0] [--jobs 2]

prints what was compared, refused and wrong, and which pairs of operations met. From 20,000 cases on, pairs that may meet and did
not, and rows of the table of refusals that never fired, are looked for among the cases that follow: one is drawn twenty times as
fast as it is judged. Ends with 1 if a case was wrong, or if something was not found there either. A wrong case is printed as the
expressions that build it and as its seed: ``--seed SEED --cases 1`` runs it alone.
"""

import argparse
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations

from tests.crossing.check import WrongError
from tests.crossing.generate import make_case
from tests.crossing.operations import OPERATIONS, may_meet
from tests.crossing.refusals import ROWS, Row
from tests.crossing.run import judge

CHUNK = 200
LOOKED_AT = 1_000_000  # cases that are drawn for what is rare
MOST_S = 600  # seconds that a case may take, on a busy machine too: one that hangs is wrong


@dataclass
class Seen:
    """What some cases came to."""

    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        self.cases += other.cases
        self.refused += other.refused
        self.met += other.met
        self.alone += other.alone
        self.wrong += other.wrong


def run_cases(seeds: range, *, most_wrong: int | None = None, most_s: float = MOST_S) -> Seen:
    """Judge cases, all of them unless enough were wrong."""
    seen = Seen()
    for seed in seeds:
        seen.cases += 1
        text = ""
        try:
            with _deadline(most_s):
                case = make_case(seed)
                text = case.code()
                row = judge(case)
        except WrongError as error:
            seen.wrong.append((seed, f"{text}\n{error}"))
        except Exception:
            seen.wrong.append((seed, f"{text}\n{traceback.format_exc()}"))
        else:
            if row is not None:
                seen.refused[row] += 1
                continue
            tags = sorted(case.tags)
            seen.alone.update(tags)
            seen.met.update(combinations(tags, 2))
        if most_wrong is not None and len(seen.wrong) >= most_wrong:
            break
    return seen


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise WrongError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def unmet(seen: Seen) -> list[tuple[str, str]]:
    """Pairs of operations that may meet and did not."""
    return [pair for pair in combinations(sorted(OPERATIONS), 2) if may_meet(*pair) and not seen.met[pair]]


def _silent(seen: Seen) -> list[Row]:
    return [row for row in ROWS if not seen.refused[row.name]]


def meet_rare(seen: Seen, first: int) -> None:
    """Judge those of the next cases that have a pair which has not met, or to which a row applies that never fired."""
    pairs, rows = set(unmet(seen)), _silent(seen)
    for seed in range(first, first + LOOKED_AT):
        if not pairs and not rows:
            return
        case = make_case(seed)
        if any(pair[0] in case.tags and pair[1] in case.tags for pair in pairs) or any(row.applies(case) for row in rows):
            seen.add(run_cases(range(seed, seed + 1)))
            pairs, rows = set(unmet(seen)), _silent(seen)


def _chunks(first: int, cases: int) -> Iterator[range]:
    for low in range(first, first + cases, CHUNK):
        yield range(low, min(low + CHUNK, first + cases))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def summarise(seen: Seen) -> int:
    for seed, text in seen.wrong[:10]:
        _say(f"seed {seed}:\n{text}\n")
    right = seen.cases - sum(seen.refused.values()) - len(seen.wrong)
    _say(f"{seen.cases} cases: {right} right, {sum(seen.refused.values())} refused, {len(seen.wrong)} wrong")
    for row in ROWS:
        _say(f"  refused {seen.refused[row.name]:6}  {row.name}")
    for name, what in OPERATIONS.items():
        _say(f"  right {seen.alone[name]:8}  {name}: {what}")
    silent = [row.name for row in _silent(seen)]
    missing = unmet(seen)
    possible = sum(may_meet(*pair) for pair in combinations(sorted(OPERATIONS), 2))
    unknown = sorted(set(seen.alone) - set(OPERATIONS))
    _say(
        f"{possible - len(missing)} of {possible} pairs of operations met" + "".join(f"\n  not met: {a} + {b}" for a, b in missing)
    )
    _say(f"rows that never fired: {silent or 'none'}; operations without a line in the table: {unknown or 'none'}")
    return 1 if seen.wrong or silent or missing or unknown else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Combinations of streams and loaders by lot, beside a naive model.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    seen, began = Seen(), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for part in pool.imap_unordered(run_cases, _chunks(given.seed, given.cases)):
            seen.add(part)
            for seed, text in part.wrong:
                _say(f"\nWRONG seed {seed}: {text.splitlines()[-1]}")
            rate = seen.cases / (time.monotonic() - began)
            sys.stderr.write(f"\r{seen.cases} of {given.cases} cases, {rate:.0f} a second, {len(seen.wrong)} wrong ")
            sys.stderr.flush()
    sys.stderr.write("\n")
    if given.cases >= 20_000:
        meet_rare(seen, given.seed + given.cases)
    code = summarise(seen)
    return code if given.cases >= 20_000 else 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
