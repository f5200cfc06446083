"""What a cold disk gives, and what of it arrives in batches: next to sequential reads, and to fio's random reads.

::

    python bench/cold_disk.py [--json FILE] [--quick] [--gb SIZE] [--rounds N] [--only TEXT] [--dir DIR]

* *blocks*: a whole epoch of a block shuffle of records of 2 KiB, next to a read of the same files from front to back
  (by the page cache or past it, with the best of three sizes of a read);
* *2 KiB*, *150 KB*: batches of a global shuffle for a few seconds, next to ``fio --rw=randread --direct=1`` on the same files
  with reads of that size, at the best of three depths.

All take turns in one run. Before every turn the files are dropped from the page cache, which is checked. Every record that is
delivered is compared with its number at three places, and some batches of every contender byte by byte; no record comes twice.
Times include making the loader and its first batch. After a turn with ``io="direct"`` the page cache must not have the files, and a
second epoch must not need more memory than the first.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from compose import drop, resident
from measure import machine, progress, table, versions, write_json
from penstock.report.doctor import Others

OUT = Path(__file__).parent.parent / "out"
WORDS = {"2 KiB": 512, "150 KB": 37_632}  # of 4 bytes
BATCH = {"2 KiB": 256, "150 KB": 64}
BLOCK, WINDOW = 1024, 16
DEPTHS = (8, 32, 128)
READ_BYTES = (1 << 20, 8 << 20)
GOALS = {"blocks": 0.85, "2 KiB": 0.9, "150 KB": 0.9}


def values_of(ids: npt.NDArray[Any], words: int) -> npt.NDArray[np.uint32]:
    """Records: every word follows from the number of the record and the place of the word."""
    places = np.arange(words, dtype=np.uint32) * np.uint32(2_654_435_761)
    return ids.astype(np.uint32)[:, None] + places[None, :]


def write(path: Path, words: int, size: int) -> int:
    """A store of about ``size`` bytes; its number of records."""
    rows, step = size // (4 * words), max(1, (8 << 20) // (4 * words))
    with pen.create(path, {"row": pen.Field("u4", (words,))}) as out:
        for low in range(0, rows, step):
            out.extend({"row": values_of(np.arange(low, min(rows, low + step)), words)})
    return rows


def files_of(store: Path) -> list[Path]:
    """The files that hold the records."""
    return sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size > 1 << 20)


@dataclass
class Turn:
    """What one turn gave."""

    bytes_per_s: float
    cpu_s_per_gb: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    """For each batch but the first."""


Contender = Callable[[], Turn]


def sequential(store: Path, read_bytes: int, *, direct: bool) -> Turn:
    """The files from front to back."""
    buffer = np.empty(read_bytes + 4096, np.uint8)
    skip = -buffer.ctypes.data % 4096
    view = memoryview(buffer)[skip : skip + read_bytes]
    began, spent, total = time.perf_counter(), time.process_time(), 0
    for path in files_of(store):
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        try:
            size, place = os.fstat(descriptor).st_size, 0
            while place < size:
                got = os.preadv(descriptor, [view], place)
                if got <= 0:
                    raise AssertionError(f"{path}: {place} of {size} bytes")
                place += got
            total += size
        finally:
            os.close(descriptor)
    return Turn(total / (time.perf_counter() - began), (time.process_time() - spent) / (total / 1e9))


def fio(store: Path, size: int, depth: int, run_s: float) -> Turn:
    """Random reads at that size and depth."""
    names = ":".join(map(str, files_of(store)))
    command = [
        "fio",
        "--name=r",
        f"--filename={names}",
        "--rw=randread",
        "--direct=1",
        "--readonly",
        f"--bs={size}",
        "--blockalign=512",
    ]
    command += [
        "--ioengine=io_uring",
        f"--iodepth={depth}",
        f"--runtime={run_s}",
        "--time_based",
        "--randrepeat=0",
        "--norandommap",
    ]
    command += ["--file_service_type=random", "--output-format=json", "--thread"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Turn(float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]))


def batches_of(store: Path, name: str, how: dict[str, Any], order: dict[str, Any]) -> Iterator[tuple[npt.NDArray[Any], float]]:
    """Batches, and how long each was waited for; the first time begins before the files are opened."""
    began = time.perf_counter()
    with closing(pen.open(store, **how)) as data, pen.Loader(data.shuffle(**order), BATCH[name], threads=2) as loader:
        for batch in loader:
            yield batch["row"], time.perf_counter() - began
            began = time.perf_counter()


def deliver(store: Path, name: str, how: dict[str, Any], order: dict[str, Any], rows: int, run_s: float | None) -> Turn:
    """Batches for a time, or of a whole epoch; all of them are looked at."""
    words, seen = WORDS[name], np.zeros(rows, np.bool_)
    waits: list[float] = []
    total, count = 0, 0
    began, spent = time.perf_counter(), time.process_time()
    for row, wait in batches_of(store, name, how, order):
        waits.append(wait)
        ids = row[:, 0].astype(np.int64)
        expected = values_of(ids, words) if len(waits) % 200 == 1 else None
        some = (0, words // 2, words - 1)
        wanted = ids.astype(np.uint32)[:, None] + (np.array(some, np.uint32) * np.uint32(2_654_435_761))[None, :]
        if ids.max() >= rows or np.any(seen[ids]) or not np.array_equal(row[:, some], wanted):
            raise AssertionError(f"{name}, {how}: a record that is wrong, or comes twice")
        if expected is not None and not np.array_equal(row, expected):
            raise AssertionError(f"{name}, {how}: a record that is not whole")
        seen[ids] = True
        total, count = total + row.nbytes, count + len(ids)
        if run_s is not None and time.perf_counter() - began > run_s:
            break
    took = time.perf_counter() - began
    if int(seen.sum()) != count or (run_s is None and count < rows - BATCH[name]):
        raise AssertionError(f"{name}, {how}: {int(seen.sum())} records in {count} places")
    return Turn(total / took, (time.process_time() - spent) / (total / 1e9), waits[1:])


def share_resident(store: Path) -> float:
    """The part of the files in the page cache."""
    shares = []
    for path in files_of(store):
        with path.open("rb") as file:
            shares.append(resident(file.fileno()))
    return float(np.mean(shares))


def memory_bytes() -> int:
    """The resident set of this process without files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in the status of this process")


class Run:
    """The turns of a section and their figures."""

    def __init__(self, name: str, store: Path, options: argparse.Namespace) -> None:
        self.name, self.store = name, store
        size = "2 KiB" if name == "blocks" else name
        self.rows = write(store, WORDS[size], int(options.gb * 1e9))
        self.turns: dict[str, list[Turn]] = {}
        self.cached: dict[str, float] = {}
        self.memory: dict[str, list[int]] = {}
        self._size, self._run_s = size, options.seconds
        order: dict[str, Any] = {"seed": 7, "block": BLOCK, "window": WINDOW} if name == "blocks" else {"seed": 7}
        run_s = None if name == "blocks" else options.seconds
        ways: dict[str, dict[str, Any]] = {"map": {}, "direct": {"io": "direct"}}
        if name != "blocks":
            ways["direct, verify=False"] = {"io": "direct", "verify": False}
        self.ours = {f"penstock, {way}": self._ours(how, order, run_s) for way, how in ways.items()}
        self.limits = self._limits()

    def _ours(self, how: dict[str, Any], order: dict[str, Any], run_s: float | None) -> Contender:
        return lambda: deliver(self.store, self._size, how, order, self.rows, run_s)

    def _limits(self) -> dict[str, Contender]:
        made: dict[str, Contender] = {}
        if self.name == "blocks":
            for size in READ_BYTES:
                made[f"read, {size >> 20} MiB"] = lambda size=size: sequential(self.store, size, direct=False)
            made["read, 8 MiB, direct"] = lambda: sequential(self.store, 8 << 20, direct=True)
            return made
        for depth in DEPTHS:
            made[f"fio, depth {depth}"] = lambda depth=depth: fio(self.store, 4 * WORDS[self.name], depth, min(2.0, self._run_s))
        return made

    def round(self, number: int) -> None:
        """Everybody once."""
        contenders = {**self.limits, **self.ours}
        for name in random.Random(number).sample(list(contenders), len(contenders)):
            drop(self.store)
            progress(f"{self.name}, round {number + 1}: {name}")
            turn = contenders[name]()
            self.turns.setdefault(name, []).append(turn)
            if name in self.ours:
                self.cached[name] = max(self.cached.get(name, 0.0), share_resident(self.store))
                self.memory.setdefault(name, []).append(memory_bytes())

    def ratio(self, name: str) -> float:
        """Of the best limit: the median of the ratios of all rounds."""
        return statistics.median(self._ratios(name))

    def _ratios(self, name: str) -> list[float]:
        best = self.best_limit()
        return [a.bytes_per_s / b.bytes_per_s for a, b in zip(self.turns[name], self.turns[best], strict=True)]

    def best_limit(self) -> str:
        """The limit with the best median."""
        return max(self.limits, key=lambda name: statistics.median(turn.bytes_per_s for turn in self.turns[name]))

    def lines(self) -> list[list[str]]:
        """A line of the table for everybody."""
        made = []
        for name, turns in self.turns.items():
            waits = [1000 * wait for turn in turns for wait in turn.waits_s]
            rate = statistics.median(turn.bytes_per_s for turn in turns)
            per_s = "" if self.name == "blocks" else f"{rate / (4 * WORDS[self._size]):,.0f}"
            cpu = statistics.median(turn.cpu_s_per_gb for turn in turns)
            ratios = self._ratios(name)
            cells = [f"{rate / 1e6:,.0f}", per_s, f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"]
            cells += [f"{cpu:.2f}" if cpu else ""]
            cells += [f"{statistics.median(waits):.1f} / {max(waits):.0f}" if waits else ""]
            cells += [f"{self.cached[name]:.0%}" if name in self.cached else ""]
            made.append([name, *cells])
        return sorted(made)

    def check(self) -> Iterator[str]:
        """What a direct read must leave alone."""
        for name in self.ours:
            if "direct" not in name:
                continue
            if self.cached[name] > 0.01:
                yield f"{self.name}, {name}: {self.cached[name]:.0%} of the files are in the page cache"
            first, *others = self.memory[name]
            if others and max(others) > first + (64 << 20):
                yield f"{self.name}, {name}: memory grew from {first >> 20} to {max(others) >> 20} MiB"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--gb", type=float, default=1.5, help="of each store")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of a global shuffle")
    parser.add_argument("--only", help="one of: " + ", ".join(GOALS))
    parser.add_argument("--dir", type=Path, default=OUT, help="where the stores are made")
    options = parser.parse_args(arguments)
    if options.quick:
        options.gb, options.rounds, options.seconds = 0.2, 2, 0.5
    options.dir.mkdir(parents=True, exist_ok=True)
    others, found, problems = Others(), {}, []
    with tempfile.TemporaryDirectory(prefix="cold-disk-", dir=options.dir) as place:
        for name, goal in GOALS.items():
            if options.only not in (None, name):
                continue
            progress(f"writing {name}")
            run = Run(name, Path(place) / f"{name.replace(' ', '')}.pen", options)
            for number in range(options.rounds):
                run.round(number)
            print(f"\n{name} ({run.rows:,} records; the limit is: {run.best_limit()})\n")
            head = ["", "MB/s", "records/s", "of the limit", "range", "CPU s/GB", "batch ms, median / max", "in the page cache"]
            print(table(head, run.lines()))
            best = max(run.ours, key=run.ratio)
            print(f"\ngoal {goal}: {run.ratio(best):.2f} ({best}): {'met' if run.ratio(best) >= goal else 'NOT MET'}", flush=True)
            problems += run.check()
            found[name] = {who: [vars(turn) for turn in turns] for who, turns in run.turns.items()}
    print(f"\nother programs took {others.share():.0%} of the cores meanwhile")
    for problem in problems:
        print(f"WRONG: {problem}")
    if options.json is not None:
        write_json(options.json, {"machine": machine(), "versions": versions("penstock", "numpy"), "turns": found})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
