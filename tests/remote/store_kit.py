"""Stores on object stores, for tests: names, clocks that do not wait, copies, and what is there."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.remote.double import Double

from penstock.remote.fetch import Clock
from penstock.remote.objects import Objects
from penstock.remote.url import UrlPath, url_path

_numbers = itertools.count()


def memory_url(name: str = "a.pen") -> UrlPath:
    """A place in a memory store of its own."""
    return url_path(f"memory://store-{os.getpid()}-{next(_numbers)}/{name}")


class QuickClock(Clock):
    """Time passes only by waiting, and waiting takes none."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@contextmanager
def doubled(key: str = "a.pen", *, tries: int = 3) -> Iterator[tuple[Double, UrlPath]]:
    """A misbehaving server and a place on it, asked a few times without waiting in between."""
    with Double() as double:
        url = url_path(f"{double.base}/{key}", double.storage_options)
        url.objects.clock = QuickClock()
        url.objects.policy = replace(url.objects.policy, tries=tries, read_s=5.0, hedge_s=60.0)
        try:
            yield double, url
        finally:
            double.hang_up()
            url.objects.close()


def keys(double: Double, part: str) -> list[str]:
    """The keys with this in them."""
    return [key for key in list(double.keys()) if part in key]


def contents(url: UrlPath) -> dict[str, bytes]:
    """Every object under a place, by its name there."""
    objects: Objects = url.objects
    cut = len(url.key) + 1
    return {info.key[cut:]: objects.read_all(info.key, 1 << 30) for info in objects.list(url.key)}


def upload(path: Path, url: UrlPath) -> None:
    """Copy a directory to a place, file by file, as a tool that knows nothing of stores does."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            url.objects.put((url / str(file.relative_to(path))).key, file.read_bytes())


def download(url: UrlPath, path: Path) -> None:
    """The other way."""
    for name, data in contents(url).items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def log(url: UrlPath) -> list[Any]:
    """From now on every request is noted here."""
    made: list[Any] = []
    url.objects.account.log = made
    return made
