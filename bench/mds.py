"""A global shuffle of MDS shards: penstock next to MosaicML's own reader, from the same shards, which that package wrote.

::

    python bench/rivals/environments.py mosaic     # once: the package, in an environment of its own
    python bench/mds.py [--records N] [--quick] [--json FILE] [--python PATH]

Every record of an epoch is checked on both sides (id and crc32 of the bytes); the epochs after that are measured. Both deliver
batches of 256 records as arrays, or lists of byte strings, to the caller, from shards that are in memory.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from mds_rival import BATCH, WORKLOADS, check_of
from measure import machine, progress, run_child, table, versions, write_json
from penstock.report.doctor import Others
from rivals.environments import python_of

OUT = Path(__file__).parent.parent / "out"
GOAL = 10.0
LEAST_S = 3.0


def ours(directory: Path, name: str) -> dict[str, float]:
    """Records a second of epochs, and the check of the first one."""
    with pen.open(directory) as data, pen.Loader(data.shuffle(seed=7), BATCH, tail="keep", threads=2) as loader:
        check = sum(check_of(batch["id"], values(batch["x"])) for batch in loader) % 2**64
        records, began = 0, time.perf_counter()
        while time.perf_counter() - began < LEAST_S:
            records += sum(len(batch["id"]) for batch in loader)
        return {"check": check, "rate": records / (time.perf_counter() - began), "engine": loader.engine}


def values(column: Any) -> list[bytes]:
    """Every record as bytes."""
    return [one.tobytes() for one in column] if isinstance(column, np.ndarray) else column.to_list()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", type=Path, default=python_of("mosaic"), help="the interpreter that has mosaicml-streaming")
    given = parser.parse_args()
    count = 10_000 if given.quick else given.records
    OUT.mkdir(exist_ok=True)
    script = Path(__file__).with_name("mds_rival.py")
    results: dict[str, dict[str, Any]] = {}
    others = Others()
    with tempfile.TemporaryDirectory(dir=OUT) as place:
        for name in WORKLOADS:
            directory = Path(place, name)
            progress(f"{name}: MosaicML writes {count} records")
            run_child(script, "write", name, directory, count, python=str(given.python))
            progress(f"{name}: MosaicML reads two epochs")
            theirs = run_child(script, "read", name, directory, count, python=str(given.python))
            progress(f"{name}: penstock reads")
            own = ours(directory, name)
            if own["check"] != theirs["check"]:
                sys.exit(f"{name}: the records differ: {own['check']} and {theirs['check']}")
            results[name] = {"penstock": own["rate"], "mosaic": theirs["rate"], "ratio": own["rate"] / theirs["rate"]}
    rows = [
        (name, f"{one['penstock']:,.0f}", f"{one['mosaic']:,.0f}", f"{one['ratio']:.1f}", "yes" if one["ratio"] >= GOAL else "no")
        for name, one in results.items()
    ]
    print(machine(), versions("numpy"), f"other programs, the rival among them, took {others.share():.0%} of the cores", sep="; ")
    print(table(("records", "penstock /s", "MosaicML /s", "ratio", f">= {GOAL:.0f}"), rows))
    if given.json:
        write_json(given.json, results)


if __name__ == "__main__":
    main()
