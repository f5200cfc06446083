"""The disk under a directory: its file system, and how fast a small file is read from it and from memory."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from penstock import _core
from penstock.report.page_cache import cached_share, drop_from_cache

__all__ = ["Disk", "filesystem_of", "measure_disk"]

TEST_BYTES = 64 << 20
PIECE = 1 << 20
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


@dataclass(frozen=True)
class Disk:
    """A directory's disk. Speeds are of a small file, read from one end to the other; ``cold_bytes_per_s`` is None where the file
    could not be brought out of memory, both are None where nothing may be written.
    """

    path: str
    filesystem: str
    is_network: bool
    is_memory: bool
    free_bytes: int
    cold_bytes_per_s: float | None
    warm_bytes_per_s: float | None


def measure_disk(directory: str | Path) -> Disk:
    """Look at a directory, with a file of 64 MB that is gone afterwards."""
    place = Path(directory).resolve()
    kind, free = filesystem_of(place), os.statvfs(place)
    free_bytes = free.f_bavail * free.f_frsize
    cold = warm = None
    if free_bytes > 4 * TEST_BYTES and os.access(place, os.W_OK):
        cold, warm = _read_speeds(place)
    return Disk(str(place), kind, _core.is_network_filesystem(str(place)), kind in IN_MEMORY, free_bytes, cold, warm)


def _read_speeds(place: Path) -> tuple[float | None, float | None]:
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
            for _ in range(TEST_BYTES // PIECE):
                file.write(os.urandom(PIECE))
            file.flush()
            os.fsync(file.fileno())
            drop_from_cache(file.fileno())
            is_cold = (cached_share([file.name]) or 0.0) < 0.1
            first, second = _read_s(file.name), _read_s(file.name)
    except OSError:
        return None, None
    return TEST_BYTES / first if is_cold else None, TEST_BYTES / second


def _read_s(path: str) -> float:
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(PIECE)
        began = time.perf_counter()
        while file.readinto(piece):
            pass
        return time.perf_counter() - began


def filesystem_of(path: str | Path) -> str:
    """The kind of file system a path is on, as the list of mounts has it."""
    wanted, best, kind = str(Path(path).resolve()), -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        if (wanted == mount or wanted.startswith(mount.rstrip("/") + "/")) and len(mount) >= best:
            best, kind = len(mount), after.split()[0]
    return kind
