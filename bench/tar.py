"""A shuffle of WebDataset's archives without conversion: penstock next to WebDataset, from the same archives, which that wrote.

::

    python bench/rivals/environments.py webdataset     # once: the package, in an environment of its own
    python bench/tar.py [--quick] [--json FILE] [--python PATH]

penstock shuffles all records; WebDataset shuffles shards, and records in a buffer. Every record of an epoch is checked on both
sides (id and crc32 of the bytes); the epochs after that are measured. Both deliver batches of 256 records to the caller, from
archives that are in memory. The scan of the archives, which the first open waits for, is measured by itself.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import penstock as pen
from mds_rival import BATCH, check_of
from measure import machine, progress, run_child, table, versions, write_json
from penstock.report.doctor import Others
from rivals.environments import python_of
from tar_rival import SIZES

OUT = Path(__file__).parent.parent / "out"
GOAL, LEAST_S = 10.0, 3.0
RECORDS = {"small": 200_000, "images": 6_000}


def ours(directory: Path) -> dict[str, float]:
    """Records a second of epochs, the check of the first one, and the seconds that the first and the second open take."""
    times = []
    for _ in range(2):
        time.sleep(0 if times else 2.1)  # younger files get no index: they may still be written
        began = time.perf_counter()
        data = pen.open(directory)
        times.append(time.perf_counter() - began)
        data.close()
    with pen.open(directory) as data, pen.Loader(data.pick("cls", "bin").shuffle(seed=7), BATCH, tail="keep", threads=2) as loader:
        check = sum(check_of(map(int, batch["cls"].to_list()), batch["bin"].to_list()) for batch in loader) % 2**64
        records, began = 0, time.perf_counter()
        while time.perf_counter() - began < LEAST_S:
            records += sum(len(batch["bin"]) for batch in loader)
        return {"check": check, "rate": records / (time.perf_counter() - began), "first": times[0], "second": times[1]}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", type=Path, default=python_of("webdataset"), help="the interpreter that has webdataset")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    script, others = Path(__file__).with_name("tar_rival.py"), Others()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=OUT) as place:
        for name in SIZES:
            directory, count = Path(place, name), RECORDS[name] // (20 if given.quick else 1)
            progress(f"{name}: WebDataset writes {count} records")
            run_child(script, "write", name, directory, count, python=str(given.python))
            progress(f"{name}: WebDataset reads two epochs")
            theirs = run_child(script, "read", name, directory, count, python=str(given.python))
            progress(f"{name}: penstock reads")
            own = ours(directory)
            if own["check"] != theirs["check"]:
                sys.exit(f"{name}: the records differ: {own['check']} and {theirs['check']}")
            results[name] = {**own, "webdataset": theirs["rate"], "ratio": own["rate"] / theirs["rate"]}
    rows = [
        (
            name,
            f"{one['rate']:,.0f}",
            f"{one['webdataset']:,.0f}",
            f"{one['ratio']:.1f}",
            f"{one['first']:.2f}",
            f"{one['second']:.3f}",
        )
        for name, one in results.items()
    ]
    print(machine(), versions("numpy"), f"other programs, the rival among them, took {others.share():.0%} of the cores", sep="; ")
    print(table(("records", "penstock /s", "WebDataset /s", f"ratio (goal {GOAL:.0f})", "first open s", "second open s"), rows))
    if given.json:
        write_json(given.json, results)


if __name__ == "__main__":
    main()
