"""What a second process is worth to a conversion with a map that keeps a processor busy: texts into tokens, in plain Python.

The same conversion here, on a pool of one process and on one of two, in turns. LIMIT is the bare map on the same pools, without a
store: what the machine gives at that moment. Every store is compared record by record with what the map gives; the goal is judged
on medians.
"""

import argparse
import multiprocessing
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from measure import interleave, machine, seconds, table, versions, write_json
from penstock.report.doctor import Others
from penstock.source import BatchMap

GOAL, TASKS = 1.6, 16
WORDS = [f"word{number * number % 9973}" for number in range(5000)]


def tokenise(batch: dict[str, Any]) -> dict[str, Any]:
    """A token per word: slow on purpose, and only in Python."""
    tokens = []
    for text in batch["text"]:
        made = []
        for word in text.split():
            value = 0
            for letter in word:
                value = (value * 31 + ord(letter)) % 65521
            made.append(value)
        tokens.append(np.array(made, np.uint16))
    return {"tokens": tokens}


def make_texts(count: int) -> list[str]:
    """Texts of about 400 letters."""
    rng = np.random.default_rng(0)
    return [" ".join(WORDS[k] for k in rng.integers(0, len(WORDS), 50)) for _ in range(count)]


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """A pool whose processes run already."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job in [pool.submit(make_texts, 2000) for _ in range(2 * count)]:
            job.result()
        yield pool


class Contender:
    """One way to convert; every call is a conversion, and gives its seconds."""

    def __init__(self, source: Path, target: Path, executor: Executor | None, task_records: int) -> None:
        self._source, self._target, self._executor = source, target, executor
        self._map = BatchMap(tokenise, fields={"tokens": pen.Field.ragged("u2")}, task_records=task_records)

    def __call__(self) -> float:
        shutil.rmtree(self._target, ignore_errors=True)
        return seconds(lambda: pen.convert(self._source, self._target, map=self._map, executor=self._executor))

    def check(self) -> None:
        """The store has what the map gives, record by record."""
        with pen.open(self._source) as source, pen.open(self._target) as made:
            for low in range(0, len(source), 5000):
                wanted, found = tokenise(source[low : low + 5000])["tokens"], made[low : low + 5000]["tokens"]
                if len(wanted) != len(found) or any(not np.array_equal(a, b) for a, b in zip(wanted, found, strict=True)):
                    raise RuntimeError(f"{self._target}: records from {low} on are not what the map gives")
            if len(made) != len(source) or made.generation != 1:
                raise RuntimeError(f"{self._target}: expected {len(source)} records in generation 1, found {made!r}")


def bare(texts: list[str], executor: Executor) -> float:
    """The seconds of the map alone."""
    parts = [{"text": texts[low : low + len(texts) // TASKS]} for low in range(0, len(texts), len(texts) // TASKS)]
    return seconds(lambda: list(executor.map(count_tokens, parts)))


def count_tokens(batch: dict[str, Any]) -> int:
    """The map without its result, which would have to travel."""
    return sum(map(len, tokenise(batch)["tokens"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("out"), help="where the stores are written")
    parser.add_argument("--json", type=Path, help="everything measured goes there")
    arguments = parser.parse_args()
    directory = arguments.dir / "convert"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    texts = make_texts(arguments.records)
    pen.convert({"text": texts}, directory / "source.pen")
    others = Others()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        pools = {"here": None, "one process": stack.enter_context(processes(1)), "two processes": stack.enter_context(processes(2))}
        contenders = {
            name: Contender(directory / "source.pen", directory / f"{name}.pen", pool, max(1, arguments.records // TASKS))
            for name, pool in pools.items()
        }
        limits = {f"LIMIT, {name}": partial(bare, texts, pool) for name, pool in pools.items() if pool is not None}
        spreads = interleave({**contenders, **limits}, rounds=arguments.rounds, slow_s=60, label="convert")
        for contender in contenders.values():
            contender.check()
    one = spreads["one process"]
    rows = [[name, f"{s.min:.2f} / {s.median:.2f} s", f"{one.median / s.median:.2f}"] for name, s in spreads.items()]
    print(table(["conversion", "min / median", "times one process"], rows))
    ratio = one.median / spreads["two processes"].median
    limit = spreads["LIMIT, one process"].median / spreads["LIMIT, two processes"].median
    print(f"\nevery record verified; other programs took {others.share():.0%} of the processors")
    print(f"goal: two processes are at least {GOAL} times as fast as one: {ratio:.2f}, {'met' if ratio >= GOAL else 'MISSED'}")
    print(f"the machine gave the bare map {limit:.2f}")
    if arguments.json:
        figures = {name: spread.to_json() for name, spread in spreads.items()}
        write_json(
            arguments.json,
            {"machine": machine(), "versions": versions("penstock", "numpy"), "seconds": figures, "ratio": ratio, "limit": limit},
        )
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
