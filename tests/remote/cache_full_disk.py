"""A cache on a disk that is full, and on one that cannot be written any more; run as a program.

python cache_full_disk.py <directory>
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from penstock.remote.cache import Cache

WHAT = "s3://bucket/key", "version", 1 << 40
PART = 100_000


def part(number: int) -> bytes:
    return bytes([number]) * PART


def check(cache: Cache, count: int) -> list[int]:
    """The numbers of the parts that are there, each compared."""
    found = []
    for number in range(count):
        got = bytearray()
        if cache.read_into(*WHAT, number * PART, (number + 1) * PART, lambda _, piece, got=got: got.extend(piece)):
            assert got == part(number)
            found.append(number)
    return found


def fill(cache: Cache, count: int) -> None:
    for number in range(count):
        cache.add(*WHAT, number * PART, part(number))


def main(directory: Path) -> None:
    """Ten parts where four or so have room, then space again, then no right to write."""
    mounted = os.path.ismount(directory)
    root = directory / "cache"
    cache = Cache(root, 1 << 30)
    fill(cache, 2)
    if mounted:
        (directory / "other").write_bytes(bytes(250_000))  # somebody else fills the disk
    else:  # no disk of our own: the system refuses to write files of this size instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (PART // 2, resource.RLIM_INFINITY))
    fill(cache, 10)
    full = cache.statistics
    kept = check(cache, 10)
    incoming = os.listdir(root / "incoming")
    if mounted:
        (directory / "other").unlink()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    cache.add(*WHAT, 20 * PART, part(20))
    again = check(cache, 21)
    if mounted:
        subprocess.run(["mount", "-o", "remount,ro", directory], check=True, timeout=600)
    else:
        (root / "incoming").rmdir()
    reader = Cache(root, 1 << 30)
    reader.add(*WHAT, 30 * PART, part(30))
    reader.drop(*WHAT, 0, PART)
    frozen = {"not_kept": reader.statistics.not_kept, "kept": check(reader, 31)}
    sys.stdout.write(json.dumps({"full": vars(full), "kept": kept, "incoming": incoming, "again": again, "frozen": frozen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
