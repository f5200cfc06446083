"""A cache in tests: one object, ranges of it kept and read back, and what lies on the disk."""

from pathlib import Path

import numpy as np

from penstock.remote.cache import Cache, entry_bytes

URL, ETAG, SIZE = "s3://bucket/dir/key", '"abc"', 10_000_000
DATA = np.random.default_rng(1).bytes(SIZE)
SMALL = 1000
ENTRY = entry_bytes(SMALL)


def keep(cache: Cache, start: int, stop: int, url: str = URL) -> None:
    cache.add(url, ETAG, SIZE, start, DATA[start:stop])


def read(cache: Cache, start: int, stop: int, url: str = URL, etag: str | None = ETAG, size: int = SIZE) -> bytes | None:
    """The bytes that the cache gives, put together as they come; None if it does not."""
    got = bytearray()

    def write(offset: int, piece: memoryview) -> None:
        assert offset == start + len(got)
        got.extend(piece)

    whole = cache.read_into(url, etag, size, start, stop, write)
    assert bytes(got) == DATA[start : start + len(got)], "what comes before an end must be right"
    return bytes(got) if whole else None


def covered(cache: Cache, start: int, stop: int) -> list[tuple[int, int]]:
    return cache.covered(URL, ETAG, SIZE, start, stop)


def entry_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*-*") if path.is_file())


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/*"))
