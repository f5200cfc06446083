"""Runs inside Grain's own virtual environment: computes and times its index_shuffle on request.

One JSON object per line on stdin, one reply per line on stdout::

    {"do": "time", "n", "rounds", "seed", "count"}    -> {"ns", "distinct", "lowest", "highest", "count"}
    {"do": "fill", "jobs": [{"n", "rounds", "seed", "step", "count", "file"}, ...]}    -> {"seconds"}

It calls the function the way grain/_src/python/dataset/transformations/shuffle.py does: one call per index, by keyword (with
rounds=4 there). An epoch is seed + epoch in Grain, so a seed is all there is.
"""

import json
import sys
import time
from typing import Any

import numpy as np
from grain._src.python.experimental.index_shuffle.python import index_shuffle_module


def images(n: int, rounds: int, seed: int, positions: range) -> list[int]:
    """The images of some positions, one call each."""
    shuffle = index_shuffle_module.index_shuffle
    return [shuffle(index, max_index=n - 1, seed=seed, rounds=rounds) for index in positions]


def measure(n: int, rounds: int, seed: int, count: int) -> dict[str, Any]:
    """Nanoseconds of processor time per index over the first ``count`` positions, and what came out."""
    start = time.thread_time()
    ids = images(n, rounds, seed, range(min(n, count)))
    ns = (time.thread_time() - start) / len(ids) * 1e9
    return {"ns": ns, "distinct": len(set(ids)), "lowest": min(ids), "highest": max(ids), "count": len(ids)}


def fill(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Save the images of every step-th position, one .npy file per job."""
    start = time.perf_counter()
    for job in jobs:
        positions = range(0, job["step"] * job["count"], job["step"])
        np.save(job["file"], np.array(images(job["n"], job["rounds"], job["seed"], positions), np.int64))
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    actions = {"time": measure, "fill": fill}
    for line in sys.stdin:
        request = json.loads(line)
        reply = actions[request.pop("do")](**request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
