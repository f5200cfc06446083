"""Many processes that fill, read and empty one cache at once; run as a program, on a small disk if the system allows one.

python cache_crowd.py <directory> <limit of the cache> <ranges per process>
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from penstock.remote.cache import Cache

PROCESSES = 8
OBJECTS = 3
OBJECT_BYTES = 600_000
LARGEST = 150_000


def object_bytes(number: int) -> bytes:
    return np.random.default_rng(number).bytes(OBJECT_BYTES)


def work(directory: Path, limit: int, seed: int, steps: int) -> dict[str, int]:
    """Read ranges at random, from the cache if they are there; every byte is compared."""
    cache, rng = Cache(directory, limit), np.random.default_rng(seed)
    objects = [object_bytes(number) for number in range(OBJECTS)]
    for _ in range(steps):
        number = int(rng.integers(OBJECTS))
        start = int(rng.integers(20)) * 30_000
        stop = min(OBJECT_BYTES, start + int(rng.choice([30_000, 60_000, LARGEST])))
        what = f"s3://crowd/{number}", "version", OBJECT_BYTES
        got = bytearray(stop - start)

        def write(offset: int, piece: memoryview, got: bytearray = got, start: int = start) -> None:
            got[offset - start : offset - start + len(piece)] = piece

        if cache.read_into(*what, start, stop, write):
            assert got == objects[number][start:stop]
        else:
            cache.add(*what, start, objects[number][start:stop])
        if rng.random() < 0.2:
            cache.drop(*what, start, stop)
    return vars(cache.statistics)


def disk_bytes(directory: Path) -> int:
    """What lies in a cache, by other means than the cache's."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names if folder != str(directory) else ():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(f"{folder}/{name}").st_size
    return total


def main(directory: Path, limit: int, steps: int) -> None:
    """Start the crowd, watch the disk, and print what became of both."""
    Cache(directory, limit)
    results = [os.pipe() for _ in range(PROCESSES)]
    children = []
    for seed, (_, writing) in enumerate(results):
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, json.dumps(work(directory, limit, seed, steps)).encode())
            finally:
                os._exit(0)
        children.append(child)
        os.close(writing)
    most = 0
    while children:
        most = max(most, disk_bytes(directory))
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
        time.sleep(0.001)
    statistics = []
    for reading, _ in results:
        with os.fdopen(reading) as file:
            statistics.append(json.loads(file.read()))
    sys.stdout.write(json.dumps({"most": most, "left": Cache(directory, limit).used, "statistics": statistics}))


def with_disk(directory: Path, size: int, program: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program for which the directory is a disk of that size, where the system allows it; it goes with the program."""
    script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    apart = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    possible = subprocess.run([*apart, "sh", "-c", script, directory, "true"], capture_output=True, timeout=600, check=False)
    command = [*apart, "sh", "-c", script, directory] if possible.returncode == 0 else []
    return subprocess.run([*command, *program], capture_output=True, text=True, timeout=600, check=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
