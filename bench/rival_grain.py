"""Grain's shuffle beside ours: its speed, the permutation battery on both, and its known failures. Only with --grain.

Grain lives in a virtual environment of its own; its permutations are computed there, saved as .npy files in a temporary folder and
judged here, by the battery that judges penstock.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from measure import progress, table
from penstock.argument import IntArray
from penstock.testing.battery import BatteryPlan, Candidate, ShuffleCandidate, Size, Verdict, run_battery
from worker import Worker

__all__ = ["PINNED", "GrainWorker", "judge", "make_environment", "report_lines"]

PINNED = "grain==0.2.18"
ENVIRONMENT = Path(__file__).resolve().parent.parent / ".grain-venv"
PRODUCTION, RECOMMENDED = 4, 8
"""Rounds that Grain's own shuffle uses, and that the header of index_shuffle recommends."""

DUPLICATES = (Size(4**8 + 1, 3), Size(4**9 + 1, 2), Size(4**10 + 1, 1))
"""Lengths with max_index = 4**k, where Grain's domain is one too small."""

PLAN = BatteryPlan(  # Grain needs 32 ms for any permutation shorter than 65,536 (its smallest domain), 4.4 us per index above
    bijection=(1_000, 4_095, 4_096, 4_097, 16_385, 65_535, 65_536, 2**18, 2**16 + 1, 2**18 + 1),
    bijection_seeds=1,
    inverse=(),
    inverse_positions=0,
    orders=(Size(3, 120),),
    places=(Size(52, 200),),
    steps=(Size(1_000, 100), Size(10_007, 20)),
    ranks=(Size(4_096, 200), Size(65_537, 20)),
    lags=tuple(Size(n, 1) for n in (1_000, 4_096, 65_536, 10**6, 2**20, 2**20 + 1)),
    descents=(Size(4_096, 200), Size(65_537, 20)),
    coincidences=(Size(1_000, 100),),
    avalanche_bits=20,
    avalanche_seed_bits=tuple(range(20)),
    avalanche_positions=2**14,
    tables=(Size(4_096, 20), Size(65_536, 4), Size(10**6, 1)),
    walks=(),
    separation=(1_000, 10**6),
)


class GrainWorker(Worker):
    """A process in Grain's environment that answers one request at a time. Not thread-safe."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("grain_shuffle.py")
        super().__init__([str(ENVIRONMENT / "bin" / "python"), "-W", "ignore", str(program)])


@contextmanager
def _workers(count: int) -> Iterator[list[GrainWorker]]:
    workers = [GrainWorker() for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def make_environment() -> None:
    """Make Grain's environment if it is missing, and put the pinned version in it."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        progress(f"making {ENVIRONMENT.name} for {PINNED}", lasting=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-warn-conflicts", PINNED], check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class GrainCandidate(Candidate):
    """Grain's permutations as files; an epoch is seed + epoch, as in Grain's shuffle."""

    folder: Path
    rounds: int

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return self._load(n, seed + epoch, 1, n)

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        step = int(positions[1] - positions[0])
        return self._load(n, seed + epoch, step, positions.size)

    def _load(self, n: int, seed: int, step: int, count: int) -> IntArray:
        images: IntArray = np.load(self.folder / _name(self.rounds, n, seed, step, count))
        return images


def _name(rounds: int, n: int, seed: int, step: int, count: int) -> str:
    return f"r{rounds}-n{n}-s{seed}-{step}x{count}.npy"


def _needed(plan: BatteryPlan) -> set[tuple[int, int, int, int]]:
    """(n, seed, step, count) of all that the battery will ask for."""
    sizes = [*plan.orders, *plan.places, *plan.steps, *plan.ranks, *plan.lags, *plan.descents, *plan.tables]
    sizes += [*DUPLICATES, *(Size(n, plan.bijection_seeds) for n in plan.bijection)]
    sizes += [Size(size.n, size.seeds + 1) for size in plan.coincidences]  # epoch 1 of the last seed
    needed = {(size.n, seed, 1, size.n) for size in sizes for seed in range(size.seeds)}
    length = 2**plan.avalanche_bits
    needed |= {(length, 0, 1, length)}
    seeds = [0, *(1 << bit for bit in plan.avalanche_seed_bits)]
    needed |= {(length, seed, length // plan.avalanche_positions, plan.avalanche_positions) for seed in seeds}
    return needed | {(n, seed, 1, 16) for n in plan.separation for seed in range(63)}


def _fill(folder: Path, rounds: int) -> None:
    needed = sorted(_needed(PLAN), key=lambda need: -need[3] * max(1.0, 65_536 / need[0]))  # the longest work first
    jobs = []
    for n, seed, step, size in needed:
        file = str(folder / _name(rounds, n, seed, step, size))
        jobs.append({"n": n, "rounds": rounds, "seed": seed, "step": step, "count": size, "file": file})
    count = len(os.sched_getaffinity(0))
    indices = sum(need[3] for need in needed)
    progress(f"Grain with {rounds} rounds: {len(jobs)} orders, {indices:,} indices on {count} processes", lasting=True)
    with _workers(count) as workers, ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda k: workers[k].ask("fill", jobs=jobs[k::count]), range(count)))


def judge() -> dict[str, Any]:
    """The battery on Grain at both settings and on penstock, and Grain's duplicates, as plain values."""
    verdicts = {"penstock": run_battery(ShuffleCandidate(), PLAN)}
    duplicates = []
    with tempfile.TemporaryDirectory() as name:
        for rounds in (PRODUCTION, RECOMMENDED):
            _fill(Path(name), rounds)
            grain = GrainCandidate(Path(name), rounds)
            verdicts[f"grain rounds={rounds}"] = run_battery(grain, PLAN)
            duplicates += [_duplicates(grain, size.n, seed) for size in DUPLICATES for seed in range(size.seeds)]
    return {
        "package": PINNED,
        "verdicts": {who: [_plain(verdict) for verdict in found] for who, found in verdicts.items()},
        "duplicates": duplicates,
    }


def _plain(verdict: Verdict) -> dict[str, Any]:
    fields = ("test", "n", "statistic", "p_value", "passed", "detail")
    return {field: getattr(verdict, field) for field in fields}


def _duplicates(grain: GrainCandidate, n: int, seed: int) -> dict[str, Any]:
    counts = np.bincount(grain.whole(n, seed), minlength=n)
    twice, never = np.flatnonzero(counts > 1), np.flatnonzero(counts == 0)
    return {"n": n, "rounds": grain.rounds, "seed": seed, "twice": twice.tolist(), "never": never.tolist()}


NAMES = {
    "P1": "bijection",
    "P3": "all n! orders",
    "P4": "position against item",
    "P5": "steps",
    "P6": "rank correlation",
    "P7": "max |z| over lags",
    "P8": "descents",
    "P9": "coincidences",
    "P10": "avalanche",
    "P11": "bit tables",
    "P13": "seeds and epochs apart",
}


def report_lines(found: dict[str, Any]) -> list[str]:
    """What :func:`judge` found, as text."""
    verdicts: dict[str, list[dict[str, Any]]] = found["verdicts"]
    rows = [[_subject(row[0]), *map(_cell, row)] for row in zip(*verdicts.values(), strict=True)]
    lines = ["", f"Is the order random? The permutation battery on {found['package']} and on penstock"]
    lines += ["statistic (p-value); FAIL is p < 1e-6 or a statistic beyond its bound", "", table(["test", *verdicts], rows), ""]
    for name, outcome in verdicts.items():
        failed = [f"{v['test']} at n={v['n']:,}" for v in outcome if not v["passed"]]
        lines.append(f"{name}: {len(failed)} of {len(outcome)} fail{': ' if failed else ''}{', '.join(failed)}")
    lines += ["", "Grain at n = 4^k + 1 (max_index = 4^k): records visited twice and never in one epoch", ""]
    shown = [[f"{d['n']:,}", str(d["rounds"]), str(d["seed"]), _some(d["twice"]), _some(d["never"])] for d in found["duplicates"]]
    return [*lines, table(["n", "rounds", "seed", "twice", "never"], shown)]


def _subject(verdict: dict[str, Any]) -> str:
    test = verdict["test"]
    kind = " of input bits" if "input bit" in verdict["detail"] else " of seed bits" if "seed bit" in verdict["detail"] else ""
    length = f"{len(PLAN.bijection)} lengths" if test == "P1" else f"n={verdict['n']:,}"
    return f"{test:<4}{NAMES[test]}{kind}, {length}"


def _cell(verdict: dict[str, Any]) -> str:
    mark = "ok" if verdict["passed"] else "FAIL"
    if verdict["test"] == "P1":
        return "ok" if verdict["passed"] else f"FAIL at n={verdict['n']:,}"
    p = "" if verdict["p_value"] is None else f" (p={verdict['p_value']:.1g})"
    return f"{mark} {verdict['statistic']:.4g}{p}"


def _some(records: list[int]) -> str:
    more = f" and {len(records) - 3} more" if len(records) > 3 else ""
    return ", ".join(map(str, records[:3])) + more if records else "none"
