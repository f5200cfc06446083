"""What combining sources costs: the same records through a plain store, a selection, lists, a dict, a collection, mixtures.

::

    python bench/compose.py [--json FILE] [--quick] [--cold]

Every contender delivers all records once an epoch, shuffled, and each batch is compared with the records by id. With ``--cold``
blocks are shuffled, and before every turn the files are closed and dropped from the page cache, which is checked. A disk does not
give all files at one speed: cold figures are shown beside, and divided by, those of reading the same files from front to back.

Copies of the same store differ by 5 % in speed, by where their pages are in memory, and files on a disk by more: parts of them
are mapped in huge pages, as the fragments of memory allow. So files are in memory (``/dev/shm``, which has small pages only) where
there is room, and are written anew several times, in another order each, which spreads that over all contenders.
"""

import argparse
import ctypes
import mmap
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
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
TRIES = 50
READ_BYTES = 8 << 20
READS = {"all.pen": "all.pen", "2 stores": "2-*.pen", "12 stores": "12-*.pen"}
"""Files that are read from front to back: those of contenders that are named like them; all others read the first."""
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 << 30
PLACEMENTS = 10


def write(path: Path, low: int, high: int) -> None:
    """Records [low, high) of 2 KiB; the first value is the number of the record."""
    with pen.create(path, {"row": pen.Field("f4", (WIDTH,))}) as out:
        for start in range(low, high, 10_000):
            numbers = np.arange(start, min(high, start + 10_000), dtype=np.float32)
            out.extend({"row": np.repeat(numbers[:, None], WIDTH, axis=1)})


def make(directory: Path, rows: int, placement: int = 0) -> None:
    """One store of all records, and the same records in 2 and in 12; which are written first is drawn."""
    for parts in random.Random(placement).sample([1, 2, 12], 3):
        for number in range(parts):
            path = directory / ("all.pen" if parts == 1 else f"{parts}-{number}.pen")
            write(path, rows * number // parts, rows * (number + 1) // parts)
    write_collection([directory / f"12-{number}.pen" for number in range(12)], directory / "12.json")


def recipes(directory: Path, *, cold: bool) -> dict[str, Callable[[], Stream]]:
    """Everybody who takes part: functions that open the files and give a stream."""
    how: dict[str, Any] = {"seed": 7, "block": 1024, "window": 16} if cold else {"seed": 7}

    def whole() -> pen.Source:
        return pen.open(directory / "all.pen")

    def part(low: float, high: float) -> pen.Source:
        data = whole()
        return data.select(slice(int(len(data) * low), int(len(data) * high)))

    def in_list(parts: int) -> pen.Source:
        return pen.open([directory / f"{parts}-{number}.pen" for number in range(parts)])

    def mixed(*sources: pen.Source) -> Stream:
        streams = {f"part {number}": source.shuffle(**how) for number, source in enumerate(sources)}
        return pen.mix(streams, seed=1, stop="all_exhausted")

    def in_a_mixture() -> Stream:
        inner = mixed(part(0, 0.25), part(0.25, 0.5))
        return pen.mix({"in": inner, "c": part(0.5, 1).shuffle(**how)}, seed=2, stop="all_exhausted")

    return {
        PLAIN: lambda: whole().shuffle(**how),
        "select(slice)": lambda: part(0, 1).shuffle(**how),
        "select(ids)": lambda: (data := whole()).select(np.arange(len(data))).shuffle(**how),
        "list of 2 stores": lambda: in_list(2).shuffle(**how),
        "list of 12 stores": lambda: in_list(12).shuffle(**how),
        "collection of 12 stores": lambda: pen.open(directory / "12.json").shuffle(**how),
        "dict": lambda: pen.open({"row": whole()}).shuffle(**how),
        "mixture": lambda: mixed(part(0, 0.5), part(0.5, 1)),
        "mixture in a mixture": in_a_mixture,
    }


def drop(directory: Path) -> None:
    """Take all files out of the page cache, which works as long as nobody maps them."""
    for path in directory.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                for _ in range(TRIES):  # what the last turn asked the disk for may still be on its way
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    if (share := resident(file.fileno())) <= 0.01:
                        break
                    time.sleep(0.1)
                else:
                    raise AssertionError(f"{path}: {share:.0%} of it is still in memory")


def resident(descriptor: int) -> float:
    """The part of a file that is in the page cache."""
    size = os.fstat(descriptor).st_size
    flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        start = ctypes.c_ubyte.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(start), ctypes.c_size_t(size), flags)
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return float(np.mean(np.frombuffer(flags, np.uint8) & 1))


def warm_turn(stream: Stream, steps: int) -> Callable[[], float]:
    """Seconds per record of some batches, from where the last turn ended."""
    loader = pen.Loader(stream, BATCH, threads=2, tail="wrap")
    return lambda: measure(loader, steps)


def cold_turn(recipe: Callable[[], Stream], steps: int, directory: Path) -> Callable[[], float]:
    """Seconds per record of the first batches, from files that were opened just now and are not in memory."""

    def run() -> float:
        drop(directory)
        stream = recipe()
        with pen.Loader(stream, BATCH, threads=2, tail="wrap") as loader:
            took = measure(loader, steps)
        stream.close()
        return took

    return run


def sequential_turn(directory: Path, pattern: str) -> Callable[[], float]:
    """Seconds per record of reading some stores from front to back, none of which is in memory."""
    files = sorted(path for store in directory.glob(pattern) for path in store.rglob("*.zr"))
    rows = sum(path.stat().st_size for path in files) / (4 * WIDTH)

    def run() -> float:
        drop(directory)
        began = time.perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass
        return (time.perf_counter() - began) / rows

    return run


def measure(loader: pen.Loader, steps: int) -> float:
    """Seconds per record of the next batches."""
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


def where_to_write(*, cold: bool) -> Path:
    """In memory if there is room, so that all files have pages of the same size; on the disk for cold turns."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    if not cold and MEMORY.is_dir() and min(free, shutil.disk_usage(MEMORY).free) > MEMORY_BYTES:
        return MEMORY
    OUT.mkdir(parents=True, exist_ok=True)
    return OUT


def run(directory: Path, rows: int, rounds: int, *, cold: bool) -> dict[str, Spread]:
    """All contenders in turns, on files that were just written."""
    contenders = recipes(directory, cold=cold)
    steps = max(10, rows // BATCH)  # an epoch; starting the threads is a part of a turn
    if cold:
        turns = {name: cold_turn(recipe, steps, directory) for name, recipe in contenders.items()}
        reads = {f"read {name}": sequential_turn(directory, pattern) for name, pattern in READS.items()}
        return interleave(turns | reads, rounds=rounds)
    streams = {name: recipe() for name, recipe in contenders.items()}
    spreads = interleave({name: warm_turn(stream, steps) for name, stream in streams.items()}, rounds=rounds)
    for stream in streams.values():
        stream.close()
    return spreads


def check_all(directory: Path, rows: int, *, cold: bool) -> None:
    """What every contender delivers."""
    for name, recipe in recipes(directory, cold=cold).items():
        progress(f"checking {name}")
        stream = recipe()
        check(name, stream, rows)
        stream.close()


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, fewer turns")
    parser.add_argument("--cold", action="store_true", help="from the disk, in blocks")
    options = parser.parse_args(arguments)
    rows, rounds, placements, others = (240_000, 100, PLACEMENTS, Others())
    if options.cold:
        rows, rounds, placements = 960_000, 12, 3
    if options.quick:
        rows, rounds, placements = rows // 10, 5, 1
    figures: dict[str, list[float]] = {}
    for placement in range(placements):
        with tempfile.TemporaryDirectory(prefix="compose-", dir=where_to_write(cold=options.cold)) as place:
            make(Path(place), rows, placement)
            if placement == 0:
                check_all(Path(place), rows, cold=options.cold)
            for name, spread in run(Path(place), rows, rounds // placements, cold=options.cold).items():
                figures.setdefault(name, []).extend(spread.values)
    spreads = {name: Spread(tuple(values)) for name, values in figures.items()}
    print(
        table(
            ["", "records/s", "of the plain store", "best turns", *(["of the disk"] if options.cold else []), ""], _lines(spreads)
        )
    )
    print(f"\nother programs took {others.share():.0%} of the cores meanwhile")
    if options.json is not None:
        all_figures = {name: s.to_json() for name, s in spreads.items()}
        write_json(
            options.json, {"machine": machine(), "versions": versions("penstock", "numpy"), "seconds_per_record": all_figures}
        )
    return 0


def _lines(spreads: dict[str, Spread]) -> list[list[str]]:
    base, lines = spreads[PLAIN], []
    for name, spread in spreads.items():
        share, disk = base.median / spread.median, []
        line = [name, f"{1 / spread.median:,.0f}", f"{share:.2f}", f"{base.min / spread.min:.2f}"]
        if read := _read_of(name, spreads):
            share = (base.median / spreads["read all.pen"].median) / (spread.median / read.median)
            disk = [f"{read.median / spread.median:.2f}"]
        is_read = name.startswith("read ")
        lines.append([*line, *disk, "" if is_read else f"{share:.2f} {'met' if share >= GOAL else f'below {GOAL}'}"])
    return lines


def _read_of(name: str, spreads: dict[str, Spread]) -> Spread | None:
    """The sequential read of the same files; None if there was none."""
    found = next((files for files in READS if name.endswith(f" {files}")), "all.pen")
    return spreads.get(f"read {found}")


if __name__ == "__main__":
    raise SystemExit(main())
