"""Readers in other processes check every generation they see while a writer commits, rebalances and collects.

The writer notes the digest of every generation; a reader that saw something else is wrong. As a program::

    python -m tests.store.soak --seconds 30
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.store.records import FIELDS, columns, digest, make_records

import penstock as pen
from penstock.errors import MissingError

KEEP = 12
"""Generations kept by the collections: enough for a reader to open all files of the one it found."""


@dataclass
class Seen:
    """What happened."""

    commits: int = 0
    rebalances: int = 0
    collections: int = 0
    reads: list[int] = field(default_factory=list)
    expired: int = 0
    generations: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.commits} commits, {self.rebalances} rebalances, {self.collections} collections; "
            f"{sum(self.reads)} full reads of {len(self.generations)} generations by {len(self.reads)} processes, "
            f"{self.expired} found their generation collected, {len(self.wrong)} wrong"
        )


class Reader:
    """A process that reads, and a thread here that takes down what it saw."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.store.soak", "--watch", str(path)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._take_down)
        self._thread.start()

    def _take_down(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        """Until it has read so many times more, or is dead."""
        with self._news:
            wanted = len(self.lines) + count
            self._news.wait_for(lambda: len(self.lines) >= wanted or self.process.poll() is not None)

    def finish(self) -> int:
        """Tell it to stop; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self._thread.join()
        self.process.stdout.close()
        return self.process.wait()


def soak(path: Path, *, readers: int = 4, commits: int | None = None, seconds: float | None = None) -> Seen:
    """Write until ``commits`` commits are made or ``seconds`` are over, with ``readers`` processes beside."""
    seen = Seen()
    with pen.create(path, FIELDS, chunk_records=16) as out:
        out.extend(columns(make_records(40)))
    watched = [Reader(path) for _ in range(readers)]
    truth = {1: digest(pen.open(path))}
    try:
        for step in _steps(commits, seconds):
            if step % 4 == 0:  # nobody is left behind for long: of two reads more, the second began after the last commit
                for reader in watched:
                    reader.wait_for(2)
            truth |= _change(path, step, seen)
    finally:
        codes = [reader.finish() for reader in watched]
    for reader, code in zip(watched, codes, strict=True):
        if code != 0:
            seen.wrong.append(f"reader {reader.process.pid} ended with {code}")
        _judge(reader.lines, truth, seen)
    return seen


def _steps(commits: int | None, seconds: float | None) -> Iterator[int]:
    end = None if seconds is None else time.monotonic() + seconds
    for step in itertools.count():
        if (commits is not None and step >= commits) or (end is not None and time.monotonic() >= end):
            return
        yield step


def _change(path: Path, step: int, seen: Seen) -> dict[int, str]:
    """One commit, and now and then a rebalance and a collection; returns the digests of what was published."""
    rng = np.random.default_rng(step)
    with pen.open(path, mode="a") as out:
        out.extend(columns(make_records(int(rng.integers(1, 6)), seed=step)))
        out.update(rng.integers(0, len(out), 3), {"label": rng.integers(0, 99, 3), "caption": [f"step {step}"] * 3})
        out.delete(rng.integers(0, len(out), int(rng.integers(0, 5))))
        published = [out.commit()]
    seen.commits += 1
    if step % 12 == 11:
        published.append(pen.rebalance(path).after.generation)
        seen.rebalances += 1
    if step % 6 == 5:
        pen.gc(path, keep=KEEP, keep_hours=0)
        seen.collections += 1
    return {generation: digest(pen.open(path, generation=generation)) for generation in published}


def _judge(lines: list[str], truth: dict[int, str], seen: Seen) -> None:
    reads = 0
    for line in lines:
        generation, found = json.loads(line)
        if found is None:
            seen.expired += 1
            continue
        reads += 1
        seen.generations.add(generation)
        if truth.get(generation) != found:
            seen.wrong.append(f"generation {generation}: {found}")
    seen.reads.append(reads)


def _watch(path: Path) -> None:
    """Read the newest generation twice, again and again, until the standard input ends."""
    os.nice(10)  # the writer goes on however few processors there are
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    kept = pen.open(path)
    first = digest(kept)
    _tell(json.dumps([kept.generation, first]))
    while not over.is_set():
        store = pen.open(path)
        try:
            found = digest(store)
        except MissingError:
            _tell(json.dumps([store.generation, None]))
            continue
        assert digest(store) == found
        _tell(json.dumps([store.generation, found]))
        assert digest(kept) == first  # whatever was committed and collected since


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--commits", type=int)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    if options.watch is not None:
        _watch(options.watch)
        return 0
    if options.seconds is None and options.commits is None:
        options.seconds = 30.0
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        seen = soak(Path(directory) / "soak.pen", readers=options.readers, commits=options.commits, seconds=options.seconds)
    sys.stdout.write(f"{seen}\n" + "".join(f"{line}\n" for line in seen.wrong))
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
