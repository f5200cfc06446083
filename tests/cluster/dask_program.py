"""What is tested with Dask, in one process that starts it once: prints a JSON object of facts. Argument: a directory."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from tests.cluster.engine import convert, convert_with_a_worker_that_dies

import penstock as pen


def main(directory: Path) -> dict[str, Any]:
    dask.config.set({"distributed.comm.timeouts.connect": "60s", "temporary-directory": str(directory)})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor()
        engine = partial(pen.convert, executor=executor)
        found = {part.__name__: part(directory, engine) for part in (convert, convert_with_a_worker_that_dies)}
        scale = 3
        engine({"number": np.arange(100)}, directory / "small.pen", map=lambda batch: {"x": batch["number"] * scale})
        with pen.open(directory / "small.pen") as small:
            tripled = small["x"][:].tolist() == list(range(0, 300, 3))
        return found | {
            "a function of the moment": tripled,
            "problems": len(pen.verify(directory / "words.pen", executor=executor)),
        }


if __name__ == "__main__":
    sys.stdout.write(f"\nFACTS {json.dumps(main(Path(sys.argv[1])))}\n")
