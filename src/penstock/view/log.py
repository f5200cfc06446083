"""A file with the figures of a running loader, line by line, for ``penstock view --watch``."""

import dataclasses
import json
import os
import time
from types import TracebackType
from typing import Protocol

from penstock.loader.stats import Stats

__all__ = ["StatsLog"]


class Measured(Protocol):
    """Anything that keeps figures, such as a loader."""

    def stats(self) -> Stats:
        """The figures so far."""


class StatsLog:
    """Appends the figures of a loader to a file of JSON lines, at most one every ``every_s`` seconds. For one thread.

    >>> import tempfile, numpy as np, penstock as pen
    >>> from penstock.view import StatsLog
    >>> loader = pen.Loader(pen.open(np.arange(100), field="x"), batch_size=10)
    >>> with StatsLog(tempfile.mkdtemp() + "/run.jsonl") as log:
    ...     for batch in loader:
    ...         log.add(loader)
    """

    def __init__(self, path: str | os.PathLike[str], *, every_s: float = 1.0) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._every_s = every_s
        self._next = 0.0

    def add(self, loader: Measured) -> None:
        """Write a line if it is time; otherwise this costs next to nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        line = {"time_s": round(time.time(), 3), **dataclasses.asdict(loader.stats())}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> "StatsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
