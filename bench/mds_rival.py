"""MosaicML Streaming's side of bench/mds.py, which runs it in the rival's environment.

::

    python bench/mds_rival.py write WORKLOAD DIRECTORY RECORDS
    python bench/mds_rival.py read WORKLOAD DIRECTORY RECORDS

``read`` prints a JSON object: the check of one epoch, and records a second of the next one. Settings are those of
rivals/adapter/mosaic_streaming.py: shuffle ``naive``, which is global, two workers, everything predownloaded.
"""

import json
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 256
WORKLOADS = {"tokens": "ndarray:uint16:1024", "texts": "bytes"}
LENGTHS = (200, 3000)


def check_of(ids: Iterable[Any], values: Iterable[bytes]) -> int:
    """A number that only the same records with the same ids give, in any order."""
    return sum((int(number) + 1) * zlib.crc32(value) for number, value in zip(ids, values, strict=True))


def value(name: str, number: int) -> Any:
    """The content of a record."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 2**16, 1024, np.uint16) if name == "tokens" else rng.bytes(int(rng.integers(*LENGTHS)))


def write(name: str, directory: Path, count: int) -> None:
    """Shards of 64 MB."""
    from streaming import MDSWriter

    with MDSWriter(out=str(directory), columns={"id": "int", "x": WORKLOADS[name]}, size_limit=1 << 26) as out:
        for number in range(count):
            out.write({"id": number, "x": value(name, number)})


def read(name: str, directory: Path, count: int) -> dict[str, Any]:
    """Two epochs."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(
        local=str(directory),
        shuffle=True,
        shuffle_algo="naive",
        shuffle_seed=7,
        batch_size=BATCH,
        predownload=count,
        num_canonical_nodes=1,
    )
    loader: Any = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=_list if name == "texts" else None)
    check = 0
    for batch in loader:
        values = batch["x"] if name == "texts" else [one.tobytes() for one in batch["x"].numpy()]
        check += check_of(batch["id"], values)
    began, records = time.perf_counter(), 0
    for batch in loader:
        records += len(batch["id"])
    return {"check": check % 2**64, "rate": records / (time.perf_counter() - began)}


def _list(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [record[key] for record in records] for key in ("id", "x")}


def main() -> None:
    """The command line."""
    import torch

    # Importing streaming imports torchvision, whose build for other processors will not load without these operators.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    do, workload, directory, count = sys.argv[1:]
    if do == "write":
        write(workload, Path(directory), int(count))
        print(json.dumps({}))
    else:
        print(json.dumps(read(workload, Path(directory), int(count))))


if __name__ == "__main__":
    main()
