"""What size costs: manifests, indices and states of stores of 10^9 and 10^12 records and 1 PB, built and opened with the real code.

A store of a petabyte does not fit here, so its chunks are one and the same file: the manifest has an entry for each of them, and
opening, ordering and reading do what they would do there. Of chunks larger than 64 MiB only the entries are real: such stores are
opened, not read. Everything is measured in a fresh process per case. The time to open is that of the processor: the same as wall
time on a quiet machine, and it keeps its meaning on a busy one. ``--ranks`` is what needs no data: see scale_ranks.py.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
import scale_ranks
from loader_child import resident_mb
from measure import Spread, machine, progress, run_child, seconds, table, versions, write_json
from penstock.order import Shuffle
from penstock.remote.url import url_path
from penstock.report.doctor import Others
from penstock.store.chunk import encode_chunk
from penstock.store.column import make_column
from penstock.store.generation import load_manifest
from penstock.store.manifest import SegmentEntry, encode_manifest
from penstock.store.storage import manifest_file

BATCH, ROUNDS = 256, 5
GOAL_S = 1.0
"""A store of 10^9 records in chunks of 64 MiB opens in less."""


@dataclass(frozen=True)
class Case:
    """A store: so many records like these, in chunks of so many bytes."""

    name: str
    records: int
    field: pen.Field
    make: Callable[[int], Any]
    record_bytes: int
    chunk_bytes: int = 64 << 20

    @property
    def chunk_rows(self) -> int:
        return min(2**24, self.chunk_bytes // self.record_bytes)

    @property
    def num_chunks(self) -> int:
        return -(-self.records // self.chunk_rows)

    @property
    def is_read(self) -> bool:
        return self.chunk_bytes <= 64 << 20


CASES = {
    "billion": Case("10^9 x 2 KiB", 10**9, pen.Field("u1", (2048,)), lambda n: np.zeros((n, 2048), np.uint8), 2048),
    "labels": Case("10^9 x 4 B", 10**9, pen.Field("i4"), lambda n: np.arange(n), 4),
    "texts": Case("10^9 texts of 12 B", 10**9, pen.Field.text(), lambda n: ["twelve bytes"] * n, 12),
    "tokens": Case(
        "10^12 tokens, 1024 each", 10**12 // 1024, pen.Field("u2", (1024,)), lambda n: np.zeros((n, 1024), np.uint16), 2048
    ),
    "trillion": Case(
        "10^12 x 1 KiB = 1 PB", 10**12, pen.Field("u1", (1024,)), lambda n: np.zeros((n, 1024), np.uint8), 1024, 2 << 30
    ),
    "images": Case(
        "10^10 x 100 kB = 1 PB", 10**10, pen.Field("u1", (100_000,)), lambda n: np.zeros((n, 100_000), np.uint8), 100_000, 4 << 30
    ),
}


def build(path: Path, case: Case) -> None:
    """A store whose manifest names as many chunks as the case has."""
    with pen.create(path, {"x": case.field}, chunk_bytes=case.chunk_bytes) as out:
        out.extend({"x": case.make(case.chunk_rows if case.is_read else 1)})
    one = load_manifest(path)
    rows = list(_rows(case))
    chunk = replace(one.chunks[0], rows=case.chunk_rows, decoded=case.chunk_rows * case.record_bytes)
    if not case.is_read:
        chunk = replace(chunk, size=chunk.decoded + chunk.decoded // 1024 + 256)
    many = replace(
        one,
        generation=2,
        parent=one.digest,
        length=case.records,
        next_chunk=len(rows),
        chunks=tuple(replace(chunk, number=number) for number in range(len(rows))),
        segments=tuple(SegmentEntry(number * case.chunk_rows, count, number, 0) for number, count in enumerate(rows)),
    )
    (path / manifest_file(2)).write_bytes(encode_manifest(many))


def _rows(case: Case) -> Iterator[int]:
    for number in range(case.num_chunks):
        yield min(case.chunk_rows, case.records - number * case.chunk_rows)


def in_child(path: Path, name: str) -> dict[str, Any]:
    """In a fresh process: what one rank pays."""
    case, before = CASES[name], resident_mb()
    began = time.perf_counter()
    store = pen.open(path)
    found: dict[str, Any] = {"first_open_s": time.perf_counter() - began, "memory_mb": resident_mb() - before}
    opened = [_open_once(path) for _ in range(ROUNDS)]
    found |= {
        "open_s": Spread(tuple(wall for wall, _ in opened)).to_json(),
        "open_cpu_s": Spread(tuple(c for _, c in opened)).to_json(),
    }
    loader = pen.Loader(store.shuffle(seed=7), batch_size=BATCH, tail="drop")
    found["seek_s"] = seconds(lambda: loader.seek(case.records // BATCH - 1))
    found["explain_s"] = seconds(lambda: loader.explain(case.records // BATCH - 1))
    state = loader.state_dict()
    found["state_bytes"] = len(json.dumps(state))
    if case.is_read:
        found["first_batch_s"] = seconds(lambda: next(iter(pen.Loader(store.shuffle(seed=7), batch_size=BATCH))))
        found["memory_mb_reading"] = resident_mb() - before
    return found


def _open_once(path: Path) -> tuple[float, float]:
    """Seconds on the wall, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    pen.open(path).close()
    return time.perf_counter() - wall, time.process_time() - processor


def requests_of(path: Path, case: Case) -> dict[str, int]:
    """Requests to an object store: to open it, and for the first batch of a global shuffle: every record in a chunk of its own."""
    place = url_path(f"memory://scale-{case.num_chunks}/a.pen")
    for file in path.rglob("*"):
        if file.is_file():
            place.objects.put((place / str(file.relative_to(path))).key, file.read_bytes())
    made: list[Any] = []
    place.objects.account.log = made
    counts = {}
    with pen.open(place) as store:
        counts["open"] = len(made)
        if case.is_read:
            store.read(Shuffle(len(store), seed=7).indices(0, 0, BATCH))
            counts["batch"] = len(made) - counts["open"]
    place.objects.close()
    return counts


def index_bytes(case: Case) -> int:
    """The bytes of a chunk that are not records, from a chunk that the writer encoded."""
    rows = min(case.chunk_rows, 1 << 16)
    column = make_column("x", case.field, case.make(rows))
    chunk = encode_chunk("0" * 32, "0" * 32, 0, {0: case.field}, {0: column})
    return (chunk.size - column.values.size) * case.num_chunks * case.chunk_rows // rows


def measure(directory: Path, name: str) -> dict[str, Any]:
    case, path = CASES[name], directory / name
    progress(f"{case.name}: {case.num_chunks:,} chunks", lasting=True)
    build(path, case)
    manifest = path / manifest_file(2)
    found = {
        "case": case.name,
        "records": case.records,
        "data_bytes": case.records * case.record_bytes,
        "chunk_bytes": case.chunk_bytes,
        "chunks": case.num_chunks,
        "manifest_bytes": manifest.stat().st_size,
        "index_bytes": index_bytes(case),
        "requests": requests_of(path, case),
        **run_child(Path(__file__), "--child", path, name),
    }
    shutil.rmtree(path)
    return found


def report(rows: list[dict[str, Any]]) -> str:
    head = ["store", "chunks", "manifest", "open", "first batch", "requests", "memory", "index", "state", "seek"]
    return table(head, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[str]:
    return [
        row["case"],
        f"{row['chunks']:,}",
        f"{row['manifest_bytes'] / 1e6:.1f} MB",
        f"{row['open_cpu_s']['median']:.2f} s",
        f"{row['first_batch_s'] * 1e3:.0f} ms" if "first_batch_s" in row else "-",
        "/".join(str(count) for count in row["requests"].values()),
        f"{row['memory_mb']:.0f} MB",
        f"{row['index_bytes'] / row['data_bytes']:.2%}",
        f"{row['state_bytes']} B",
        f"{row['seek_s'] * 1e6:.0f} us",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, metavar=("PATH", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these; all unless given")
    parser.add_argument("--dir", type=Path, default=Path("out"), help="where the stores are built")
    parser.add_argument("--json", type=Path, help="everything measured goes there")
    parser.add_argument("--ranks", action="store_true", help="instead: 10,000 ranks and 10^12 records on paper, without data")
    arguments = parser.parse_args()
    if arguments.ranks:
        text, found, met = scale_ranks.report()
        print(text)
        if arguments.json:
            write_json(arguments.json, {"machine": machine(), "versions": versions("penstock", "numpy"), **found})
        return 0 if met else 1
    if arguments.child:
        print(json.dumps(in_child(Path(arguments.child[0]), arguments.child[1])))
        return 0
    directory = arguments.dir / "scale"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    others = Others()
    try:
        rows = [measure(directory, name) for name in arguments.case or CASES]
    finally:
        shutil.rmtree(directory)
    missed = [row["case"] for row in rows if row["records"] <= 10**9 and row["open_cpu_s"]["median"] >= GOAL_S]
    print(report(rows))
    print(f"\nother programs took {others.share():.0%} of the processors")
    verdict = f"missed by {missed}" if missed else "met"
    print(f"goal: 10^9 records in chunks of 64 MiB open in less than {GOAL_S:.0f} s: {verdict}")
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "versions": versions("penstock", "numpy"), "cases": rows})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
