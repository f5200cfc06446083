"""Runs in a fresh process: memory one contender of bench/shuffle.py needs, or the time to its first index. Prints JSON.

::

    cold.py memory NAME N                   resident-set growth of making the order and reading from it
    cold.py first NAME N EPOCH POSITION     seconds from nothing but imports to the id at a position, and to others after it
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from contender import ORDERS, make_whole

READ = 1 << 23
STEP = 4096
WARM = 100_000


def main(arguments: list[str]) -> None:
    mode, name, n = arguments[0], arguments[1], int(arguments[2])
    work = _memory(name, n) if mode == "memory" else _first(name, n, int(arguments[3]), int(arguments[4]))
    print(json.dumps(work))


def _memory(name: str, n: int) -> dict[str, Any]:
    run = partial(_read, name) if name in ORDERS else partial(_make, make_whole(name))
    run(WARM)  # pages of code and of the allocator come in here, the same for everybody
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before = _status("VmRSS")
    run(n)
    return {"growth_bytes": max(0, _status("VmHWM") - before)}


def _read(name: str, n: int) -> None:
    """READ indices in small batches: half from the start of the epoch, half up to its end."""
    order = ORDERS[name](n)
    half = min(n, READ) // 2
    for first, last in ((0, half), (n - half, n)):
        for start in range(first, last, STEP):
            order.indices(3, start, min(start + STEP, last))


def _make(make: Callable[[int], Any], n: int) -> None:
    int(make(n)[n // 2])


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in the status of this process")


def _first(name: str, n: int, epoch: int, position: int) -> dict[str, Any]:
    if name not in ORDERS:
        make = make_whole(name)
        start = time.perf_counter()
        index = int(make(n)[position])
        return {"first_s": time.perf_counter() - start, "index": index}
    start = time.perf_counter()
    order = ORDERS[name](n)
    index = int(order.indices(epoch, position, position + 1)[0])
    first_s = time.perf_counter() - start
    seek_s = _clock(lambda: order.indices(epoch, n // 2, n // 2 + 1))
    epoch_s = _clock(lambda: order.indices(epoch + 1, n // 3, n // 3 + 1))
    return {"first_s": first_s, "seek_s": seek_s, "other_epoch_s": epoch_s, "index": index}


def _clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
