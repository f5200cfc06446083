"""What JSON lines cost: the index, the second open, and random records, next to a naive Python reader and Hugging Face datasets.

::

    python bench/jsonl.py [--lines 1e7] [--datasets] [--json FILE] [--quick]

Everything that is compared is read from the same file, and compared value by value before it is measured. Rates of the index are
those of one thread by its processor time, with the file in the page cache; the time that fsync waits is told with it.
"""

import argparse
import json
import mmap
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from measure import Spread, interleave, machine, progress, table, versions, write_json
from penstock import _core
from penstock.formats.sidecar import SUFFIX
from penstock.report.doctor import Others

OUT = Path(__file__).parent.parent / "out"
BATCH = 256
GOALS = {"index, GB/s a core": 1.0, "second open, ms": 50.0}


def make(path: Path, lines: int) -> None:
    """Documents with an id, a number, tokens and a text of 0 to 2 KB; a few thousand different ones, in turn."""
    rng, words = np.random.default_rng(0), [f"word{i}" for i in range(500)]
    made = []
    for i in range(5000):
        text = " ".join(words[int(k)] for k in rng.integers(0, 500, int(rng.integers(0, 60))))
        made.append({"id": i, "score": float(rng.random()), "tokens": rng.integers(0, 50_000, 8).tolist(), "text": text})
    block = "".join(json.dumps(one) + "\n" for one in made).encode()
    with path.open("wb") as file:
        for _ in range(lines // len(made)):
            file.write(block)
    time.sleep(3)  # until the time of its last change tells whether it is written again


def remove_index(path: Path) -> None:
    for index in path.parent.glob(f".{path.name}.*{SUFFIX}"):
        index.unlink()


class Naive:
    """Offsets found by iterating over the file, records by seeking and json.loads: what one writes in ten lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.offsets, at = [], 0
        for line in self._file:
            self.offsets.append(at)
            at += len(line)

    def __call__(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        found = []
        for one in ids:
            self._file.seek(self.offsets[one])
            found.append(json.loads(self._file.readline()))
        return found


def datasets_reader(path: Path, cache: Path) -> tuple[Callable[[Sequence[int]], Any], float]:
    """Hugging Face datasets, and the seconds that it takes to convert the file into its cache."""
    import datasets

    datasets.disable_progress_bars()
    began = time.perf_counter()
    data = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    return lambda ids: data[ids], time.perf_counter() - began


def need_equal(found: Any, wanted: list[dict[str, Any]]) -> None:
    """The values of a batch must be those of Python's json."""
    for name in ("id", "score"):
        if np.asarray(found[name]).tolist() != [one[name] for one in wanted]:
            raise RuntimeError(f"{name}: other values")
    if list(found["text"]) != [one["text"] for one in wanted]:
        raise RuntimeError("text: other values")
    if [np.asarray(one).tolist() for one in found["tokens"]] != [one["tokens"] for one in wanted]:
        raise RuntimeError("tokens: other values")


def measure_index(path: Path, rounds: int) -> dict[str, Spread]:
    """Processor seconds of an index by one thread, and of the scan alone; seconds of the first and the second open."""
    piece, size = 4 << 20, path.stat().st_size
    out = np.empty(2 * _core.LineScanner.most_lines(piece), np.int64)

    def scan() -> float:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            data, scanner = np.frombuffer(content, np.uint8), _core.LineScanner()
            began = time.process_time()
            for low in range(0, size, piece):
                scanner.scan(data[low : low + piece], out)
            taken = time.process_time() - began
            del data
        return taken

    def first(clock: Callable[[], float]) -> float:
        remove_index(path)
        began = clock()
        pen.open(path, threads=1).close()
        return clock() - began

    def second() -> float:
        began = time.perf_counter()
        pen.open(path, threads=1).close()
        return time.perf_counter() - began

    found = interleave(
        {
            "scan alone": scan,
            "index, processor": lambda: first(time.process_time),
            "index, wall": lambda: first(time.perf_counter),
            "Python, for line in file": lambda: _seconds(lambda: Naive(path)),
        },
        rounds=rounds,
        slow_s=20,
        label="index",
    )
    return found | {"second open": Spread(tuple(second() for _ in range(5)))}


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure_reads(readers: dict[str, Callable[[Any], Any]], length: int, rounds: int) -> dict[str, Spread]:
    """Records a second of random batches."""
    rng = np.random.default_rng(1)

    def rate(read: Callable[[Any], Any]) -> float:
        batches = [rng.integers(0, length, BATCH) for _ in range(40)]
        began = time.perf_counter()
        for ids in batches:
            read(ids)
        return len(batches) * BATCH / (time.perf_counter() - began)

    return interleave({name: lambda read=read: rate(read) for name, read in readers.items()}, rounds=rounds, label="read")


def run(path: Path, lines: int, rounds: int, *, with_datasets: bool) -> dict[str, Any]:
    make(path, lines)
    size = path.stat().st_size
    progress(f"{lines:,} lines, {size / 1e9:.2f} GB", lasting=True)
    pen.open({"x": [1]}).close()
    index = measure_index(path, rounds)
    rows = [[name, f"{one.min:.3f} s", f"{one.median:.3f} s", f"{size / one.min / 1e9:.2f}"] for name, one in index.items()]
    print(table(["index", "min", "median", "GB/s"], rows))
    naive, source, raw = Naive(path), pen.open(path), pen.open(path, raw=True)
    readers: dict[str, Callable[[Any], Any]] = {
        "penstock": source.__getitem__,
        "penstock, raw=True": raw.__getitem__,
        "penstock, one field": source.pick("id").__getitem__,
        "Python, seek and json.loads": naive,
    }
    loading = None
    if with_datasets:
        readers["datasets"], loading = datasets_reader(path, path.parent / "cache")
    ids = np.random.default_rng(2).integers(0, lines, 2000)
    wanted = naive(ids.tolist())
    need_equal(source[ids], wanted)
    if [json.loads(line) for line in raw[ids]["line"]] != wanted:
        raise RuntimeError("raw: other lines")
    if with_datasets:
        need_equal(readers["datasets"](ids), wanted)
    reads = measure_reads(readers, lines, rounds)
    plain = reads["Python, seek and json.loads"].median
    rows = [[name, f"{one.max:,.0f}", f"{one.median:,.0f}", f"{one.median / plain:.1f}"] for name, one in reads.items()]
    print("\n" + table([f"random batches of {BATCH}, records/s", "best", "median", "x Python"], rows))
    if loading is not None:
        print(f"\ndatasets converted the file into its cache in {loading:.1f} s, for the first open")
    rate, opened = size / index["index, processor"].min / 1e9, index["second open"].median * 1e3
    print(f"\n{len(ids):,} records compared with json.loads")
    print(f"goal: an index at 1 GB/s a core or more: {rate:.2f}, {'met' if rate >= 1 else 'MISSED'}")
    print(f"goal: the second open of {lines:,} lines within 50 ms: {opened:.1f}, {'met' if opened <= 50 else 'MISSED'}")
    for one in (source, raw):
        one.close()
    return {
        "lines": lines,
        "bytes": size,
        "index_s": {name: one.to_json() for name, one in index.items()},
        "records_per_s": {name: one.to_json() for name, one in reads.items()},
        "datasets_load_s": loading,
        "goals": {"index_gb_s": rate, "second_open_ms": opened},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=float, default=1e7)
    parser.add_argument("--datasets", action="store_true", help="also Hugging Face datasets, which first writes a copy")
    parser.add_argument("--quick", action="store_true", help="a smoke test: 10^5 lines")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    others, lines = Others(), int(1e5 if given.quick else given.lines)
    OUT.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=OUT))
    try:
        found = run(directory / "a.jsonl", lines, 2 if given.quick else 3, with_datasets=given.datasets or given.quick)
    finally:
        shutil.rmtree(directory)
    print(f"other programs took {others.share():.0%} of the processors")
    if given.json is not None:
        write_json(given.json, {"machine": machine(), "versions": versions("penstock", "pyarrow", "datasets"), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
