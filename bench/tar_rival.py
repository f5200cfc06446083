"""WebDataset's side of bench/tar.py, which runs it in the rival's environment.

::

    python bench/tar_rival.py write WORKLOAD DIRECTORY RECORDS
    python bench/tar_rival.py read WORKLOAD DIRECTORY RECORDS

``read`` prints a JSON object: the check of one epoch, and records a second of the next one. Shards are shuffled, records in a
buffer of 5,000, in two workers.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mds_rival import BATCH, check_of

SIZES = {"small": (200, 3000), "images": (60_000, 140_000)}
SHARD_BYTES, BUFFER, WORKERS = 64 << 20, 5000, 2


def value(name: str, number: int) -> bytes:
    """The content of a record."""
    rng = np.random.default_rng(number)
    return rng.bytes(int(rng.integers(*SIZES[name])))


def write(name: str, directory: Path, count: int) -> None:
    """Shards of 64 MB."""
    import webdataset

    directory.mkdir(parents=True)
    with webdataset.ShardWriter(str(directory / "train-%06d.tar"), maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as out:
        for number in range(count):
            out.write({"__key__": f"{number:08d}", "cls": str(number).encode(), "bin": value(name, number)})


def read(name: str, directory: Path, count: int) -> dict[str, Any]:
    """Two epochs."""
    import webdataset

    shards = sorted(map(str, directory.glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=7, empty_check=False).shuffle(BUFFER, initial=BUFFER)
    batches = data.to_tuple("cls", "bin").batched(BATCH, collation_fn=_lists)
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=WORKERS)
    check = sum(check_of(map(int, ids), values) for ids, values in loader)
    began, records = time.perf_counter(), 0
    for ids, _ in loader:
        records += len(ids)
    if records != count:
        raise AssertionError(f"expected {count} records in an epoch, got {records}")
    return {"check": check % 2**64, "rate": records / (time.perf_counter() - began)}


def _lists(records: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [one for one, _ in records], [other for _, other in records]


if __name__ == "__main__":
    do, workload, place, number_of_records = sys.argv[1:]
    if do == "write":
        write(workload, Path(place), int(number_of_records))
        print(json.dumps({}))
    else:
        print(json.dumps(read(workload, Path(place), int(number_of_records))))
