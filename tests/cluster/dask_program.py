"""What is tested with Dask, in one process that starts it once: prints a JSON object of facts. Argument: a directory."""

import json
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from tests.cluster.engine import facts_of
from tests.cluster.maps import FailAt, words

import penstock as pen
from penstock.source import BatchMap

SMALL = {"chunk_bytes": 8192}


def main(directory: Path) -> dict[str, Any]:
    dask.config.set({"distributed.comm.timeouts.connect": "60s", "temporary-directory": str(directory)})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor()
        told: list[int] = []
        pen.convert(
            directory / "source.pen",
            directory / "dask.pen",
            map=words,
            executor=executor,
            progress=lambda rows, size: told.append(rows),
            **SMALL,
        )
        marker = directory / "marker"
        marker.touch()
        with pen.open(directory / "source.pen") as source:
            fields = source.schema
        cursed = BatchMap(FailAt(1700, marker, kill=True), fields=fields)
        pen.convert(directory / "source.pen", directory / "killed.pen", map=cursed, executor=executor, **SMALL)
        scale = 3
        pen.convert(
            {"number": np.arange(100)}, directory / "small.pen", map=lambda batch: {"x": batch["number"] * scale}, executor=executor
        )
        with pen.open(directory / "small.pen") as small:
            tripled = small["x"][:].tolist() == list(range(0, 300, 3))
        return {
            "convert": facts_of(directory / "dask.pen") | {"told": sum(told)},
            "killed": facts_of(directory / "killed.pen") | {"was_killed": not marker.exists()},
            "a function of the moment": tripled,
            "problems": len(pen.verify(directory / "dask.pen", executor=executor)),
        }


if __name__ == "__main__":
    sys.stdout.write(f"\nFACTS {json.dumps(main(Path(sys.argv[1])))}\n")
