"""gc against a writer that no lock protects: what a commit acknowledges is there, whatever gc does and whenever it does it.

    python -m tests.hostile.gc_adversary --count N

One process commits, with LOCK removed (as on a filesystem that ignores it), in transactions that take from no time to twice the
time that gc keeps files. Others collect without a pause. A commit may be refused, but only if its transaction took longer.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import penstock as pen
from penstock.errors import ConflictError, PenstockError

FIELDS = {"x": pen.Field("i8"), "text": pen.Field.text()}
KEEP_S = 1.0


def unlock(path: Path) -> None:
    """Let a second writer, or gc, in."""
    (path / "LOCK").unlink(missing_ok=True)


def batch(first: int, count: int) -> dict[str, Any]:
    """Records that say which they are."""
    return {"x": list(range(first, first + count)), "text": [f"record {first + i}" for i in range(count)]}


def is_whole(path: Path, length: int) -> str:
    """What is wrong with a store that must have these records; empty if nothing is."""
    problems = pen.verify(path)
    if problems:
        return f"{problems[0].file}: {problems[0].what}"
    with pen.open(path) as store:
        same = len(store) == length and store["x"][:].tolist() == list(range(length))
        return "" if same else f"expected {length} records, found {len(store)}"


def collect(path: str, stop: Event, keep_s: float) -> None:
    """Collect until told to stop."""
    while not stop.is_set():
        unlock(Path(path))
        try:
            pen.gc(path, keep=1, keep_hours=keep_s / 3600)
        except PenstockError:  # another collector has the lock, or was faster
            time.sleep(0.001)


def attack(path: Path, count: int, seed: int, *, report: Callable[[str], object]) -> list[str]:
    """Commit ``count`` times under attack; returns what was wrong."""
    rng, wrong, refused, length = random.Random(seed), list[str](), 0, 0
    with pen.create(path, FIELDS, chunk_records=8) as out:
        out.commit()
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    collectors = [spawn.Process(target=collect, args=(str(path), stop, KEEP_S)) for _ in range(2)]
    for process in collectors:
        process.start()
    try:
        for number in range(count):
            unlock(path)
            took = rng.choice([0.0, 0.0, 0.0, KEEP_S / 2, 2 * KEEP_S])
            size = rng.randrange(1, 40)
            try:
                with pen.open(path, mode="a") as out:
                    begin = time.monotonic()
                    unlock(path)
                    out.extend(batch(length, size))
                    time.sleep(took)
                    out.commit()
                length += size
            except ConflictError as error:
                refused += 1
                if time.monotonic() - begin < KEEP_S:
                    wrong.append(f"commit {number} was refused without need: {error}")
            except PenstockError as error:
                if "another writer is active" not in str(error):
                    wrong.append(f"commit {number}: {type(error).__name__}: {error}")
            found = is_whole(path, length)
            if found:
                wrong.append(f"after commit {number} of {took} s: {found}")
                break
    finally:
        stop.set()
        for process in collectors:
            process.join()
    report(f"{count} transactions, {length} records, {refused} refused, {len(wrong)} wrong")
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = attack(Path(folder) / "a.pen", given.count, given.seed, report=lambda text: sys.stdout.write(text + "\n"))
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
