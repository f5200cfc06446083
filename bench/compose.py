"""What combining sources costs: the same records through a plain store, a selection, lists, a dict, a collection, mixtures.

::

    python bench/compose.py [--json FILE] [--quick] [--cold]

Every contender delivers all records once an epoch, shuffled, and each batch is compared with the records by id. With ``--cold`` the
files are dropped from the page cache before every turn and blocks are shuffled.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from measure import Spread, interleave, machine, progress, table, versions, write_json
from penstock.report.doctor import Others
from penstock.source import write_collection
from penstock.stream import Stream

OUT = Path(__file__).parent.parent / "out"
WIDTH, BATCH, GOAL = 512, 256, 0.95
PLAIN = "plain store"


def write(path: Path, low: int, high: int) -> None:
    """Records [low, high) of 2 KiB; the first value is the number of the record."""
    with pen.create(path, {"row": pen.Field("f4", (WIDTH,))}) as out:
        for start in range(low, high, 10_000):
            numbers = np.arange(start, min(high, start + 10_000), dtype=np.float32)
            out.extend({"row": np.repeat(numbers[:, None], WIDTH, axis=1)})


def make(directory: Path, rows: int) -> None:
    """One store of all records, and the same records in 2 and in 12."""
    write(directory / "all.pen", 0, rows)
    for parts in (2, 12):
        for number in range(parts):
            write(directory / f"{parts}-{number}.pen", rows * number // parts, rows * (number + 1) // parts)
    write_collection([directory / f"12-{number}.pen" for number in range(12)], directory / "12.json")


def streams(directory: Path, *, cold: bool) -> dict[str, Stream]:
    """Everybody who takes part."""
    how: dict[str, Any] = {"seed": 7, "block": 1024, "window": 16} if cold else {"seed": 7}
    lists = {parts: [pen.open(directory / f"{parts}-{number}.pen") for number in range(parts)] for parts in (2, 12)}

    def whole() -> pen.Source:
        return pen.open(directory / "all.pen")

    def mixed(sources: Mapping[str, pen.Source]) -> Stream:
        return pen.mix({name: source.shuffle(**how) for name, source in sources.items()}, seed=1, stop="all_exhausted")

    half = len(whole()) // 2
    rest = whole().select(slice(half, None)).shuffle(**how)
    inner = mixed({"a": whole().select(slice(0, half // 2)), "b": whole().select(slice(half // 2, half))})
    return {
        PLAIN: whole().shuffle(**how),
        "select(slice)": whole().select(slice(None)).shuffle(**how),
        "select(ids)": whole().select(np.arange(2 * half)).shuffle(**how),
        "list of 2 stores": pen.open(lists[2]).shuffle(**how),
        "list of 12 stores": pen.open(lists[12]).shuffle(**how),
        "collection of 12": pen.open(directory / "12.json").shuffle(**how),
        "dict": pen.open({"row": whole()}).shuffle(**how),
        "mixture": mixed({"a": whole().select(slice(0, half)), "b": whole().select(slice(half, None))}),
        "mixture in a mixture": pen.mix({"in": inner, "c": rest}, seed=2, stop="all_exhausted"),
    }


def drop(directory: Path) -> None:
    """Take all files out of the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def turn(stream: Stream, steps: int, directory: Path | None) -> Callable[[], float]:
    """Seconds per record of some batches, from where the last turn ended."""
    loader = pen.Loader(stream, BATCH, threads=2, tail="wrap")

    def run() -> float:
        if directory is not None:
            drop(directory)
        batches = loader.forever()
        next(batches)  # threads are started, and the first blocks are under way
        began = time.perf_counter()
        for _ in range(steps):
            row = next(iter(next(batches).values()))
            if row[0, 0] != row[0, -1]:
                raise AssertionError("a record that is not one")
        took = time.perf_counter() - began
        batches.close()
        return took / (steps * BATCH)

    return run


def check(name: str, stream: Stream, rows: int) -> None:
    """Every record that an epoch should have is in it, whole."""
    seen = np.zeros(rows, np.int64)
    for batch in pen.Loader(stream, BATCH, threads=2):
        row = next(iter(batch.values()))
        if not np.array_equal(row, np.repeat(row[:, :1], WIDTH, axis=1)):
            raise AssertionError(f"{name}: a record is not whole")
        np.add.at(seen, row[:, 0].astype(np.int64), 1)
    if seen.min() < 1 or ("mixture" not in name and seen.max() > 1):
        raise AssertionError(f"{name}: records come {seen.min()} to {seen.max()} times in an epoch")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, fewer turns")
    parser.add_argument("--cold", action="store_true", help="from the disk, in blocks")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    rows, rounds, others = (24_000 if options.quick else 240_000), (5 if options.quick else 15), Others()
    with tempfile.TemporaryDirectory(prefix="compose-", dir=OUT) as place:
        directory = Path(place)
        make(directory, rows)
        contenders = streams(directory, cold=options.cold)
        for name, stream in contenders.items():
            progress(f"checking {name}")
            check(name, stream, rows)
        steps = max(10, rows // BATCH // 3)
        turns = {name: turn(stream, steps, directory if options.cold else None) for name, stream in contenders.items()}
        spreads: dict[str, Spread] = interleave(turns, rounds=rounds)
        for stream in contenders.values():
            stream.close()
    base = spreads[PLAIN]
    lines = [
        [name, f"{1 / s.median:,.0f}", f"{base.median / s.median:.2f}", f"{base.min / s.min:.2f}", _verdict(base, s)]
        for name, s in spreads.items()
    ]
    print(table(["", "records/s", "of the plain store", "best turns", ""], lines))
    print(f"\nother programs took {others.share():.0%} of the cores meanwhile")
    if options.json is not None:
        figures = {name: s.to_json() for name, s in spreads.items()}
        write_json(options.json, {"machine": machine(), "versions": versions("penstock", "numpy"), "seconds_per_record": figures})
    return 0


def _verdict(base: Spread, spread: Spread) -> str:
    return "met" if base.median / spread.median >= GOAL else f"below {GOAL}"


if __name__ == "__main__":
    raise SystemExit(main())
