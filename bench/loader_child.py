"""What bench/loader.py measures in a process of its own: memory over epochs, and the time to the first batch."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import penstock as pen


def resident_mb() -> float:
    """Memory of this process that is not a map of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


def memory_of_epochs(path: str, epochs: str) -> dict[str, Any]:
    """In a child: anonymous memory after each epoch, over what it was before."""
    store = pen.open(path, threads=2)
    before = resident_mb()
    loader = pen.Loader(store.shuffle(seed=1), 256, prefetch="64MB", threads=2)
    grown = []
    for _ in range(int(epochs)):
        for _batch in loader:
            pass
        grown.append(resident_mb() - before)
    return {"grown_mb": grown}


def start_times(path: str, rows: str) -> dict[str, Any]:
    """In a child: milliseconds from opening to the first batch, at the beginning and after resuming in the middle."""
    began = time.perf_counter()
    loader = pen.Loader(pen.open(path, threads=2).shuffle(seed=1), 256, threads=2)
    next(iter(loader))
    first = time.perf_counter() - began
    loader.seek(int(rows) // 256 // 2)
    state = loader.state_dict()
    again = time.perf_counter()
    loader = pen.Loader(pen.open(path, threads=2).shuffle(seed=1), 256, threads=2)
    loader.load_state_dict(state)
    next(iter(loader))
    return {"first_ms": first * 1e3, "resume_ms": (time.perf_counter() - again) * 1e3}


if __name__ == "__main__":
    work = {"memory_of_epochs": memory_of_epochs, "start_times": start_times}[sys.argv[1]]
    print(json.dumps(work(*sys.argv[2:])))
