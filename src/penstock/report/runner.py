"""Runner: takes batches of a loader as a trainer does, and looks at the clock."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loader import Loader
from penstock.loader.work import batch_bytes

__all__ = ["Endless", "Runner", "Turn", "core_of"]

_END = object()


@dataclass(frozen=True)
class Turn:
    """Batches that were taken one after the other: the wait for each, and when it was there since the turn began. ``disk_bytes``
    came from storage meanwhile; None if the system does not say.
    """

    samples: int
    bytes: float
    batches: int
    elapsed_s: float
    work_s: float
    waits: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    disk_bytes: int | None


def core_of(loader: Any) -> Loader | None:
    """The penstock loader in what the user's function gave; None if there is none that can be asked."""
    inner = loader if isinstance(loader, Loader) else getattr(loader, "loader", None)
    return inner if isinstance(inner, Loader) else None


class Runner:
    """A loader and its batches, without end: the next epoch follows, and a loader that is over is made anew. For one thread."""

    def __init__(self, make_loader: Callable[[], Any]) -> None:
        began = time.perf_counter()
        self._make, self.loader = make_loader, make_loader()
        self.open_s, self.first_s = time.perf_counter() - began, 0.0

    @property
    def core(self) -> Loader | None:
        """The penstock loader, if it can be asked."""
        return core_of(self.loader)

    @property
    def threads(self) -> int:
        """Threads that read and transform."""
        return min(8, os.cpu_count() or 1) if self.core is None else self.core.threads

    def state(self) -> Any:
        """The state of the loader; None if it has none, or is over."""
        is_over = self.core is not None and not self.core.remaining()
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") and not is_over else None

    def load(self, state: Any) -> None:
        """Go on where a run stood."""
        self.loader.load_state_dict(state)

    def take_first(self) -> None:
        """One batch, with everything that has to be set up for it; ``first_s`` is the time it took."""
        began = time.perf_counter()
        with closing(Endless(self.loader)) as batches:
            if next(batches, _END) is _END:
                raise ValueError(f"expected a loader that gives batches, got none from {self.loader!r}")
            self.first_s = time.perf_counter() - began

    def turn(self, seconds: float, work_s: float = 0.0) -> Turn:
        """Take batches for so long (two at least), each followed by a sleep of ``work_s``. A seventh of the time before that is
        thrown away: what is read ahead begins with nothing in every turn, and a batch that was ready before would count for free.
        """
        turn = self._turn(seconds, work_s, warm_s=seconds / 7)
        if turn.batches == 0:  # the loader is over
            self.loader = self._make()
            turn = self._turn(seconds, work_s, warm_s=0.0)
        return turn

    def _turn(self, seconds: float, work_s: float, warm_s: float) -> Turn:
        waits: list[float] = []
        ends: list[float] = []
        with closing(Endless(self.loader)) as batches:
            if warm_s > 0:
                _warm_up(batches, warm_s, work_s)
            counted, samples, size, read = self._counted(), 0, 0, _read_bytes()
            began = asked = time.perf_counter()
            for batch in batches:
                there = time.perf_counter()
                waits.append(there - asked)
                ends.append(there - began)
                if counted is None:
                    samples, size = samples + num_samples(batch), size + batch_bytes(batch)
                if work_s:
                    time.sleep(work_s)
                asked = time.perf_counter()
                if asked - began >= seconds and len(waits) >= 2:
                    break
            if counted is not None and (after := self._counted()) is not None:
                samples, size = after[0] - counted[0], after[1] - counted[1]
        disk = None if read is None else (_read_bytes() or 0) - read
        return Turn(samples, size, len(waits), asked - began, work_s, np.array(waits), np.array(ends), disk)

    def _counted(self) -> tuple[int, int] | None:
        """Samples and bytes so far, as the loader counts them; that costs nothing per batch."""
        if self.core is None:
            return None
        stats = self.core.stats()
        return stats.samples, stats.bytes

    def close(self) -> None:
        """Stop reading ahead."""
        if hasattr(self.loader, "close"):
            self.loader.close()


class Endless:
    """Batches epoch after epoch, until an epoch has none."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._count = loader, 0
        self._current = self._begin()

    def _begin(self) -> Iterator[Any]:
        return self._loader.forever() if isinstance(self._loader, Loader) else iter(self._loader)

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> Any:
        for batch in self._current:
            self._count += 1
            return batch
        if self._count == 0:
            raise StopIteration
        self._count, self._current = 0, self._begin()
        return next(self)

    def close(self) -> None:
        """Stop reading ahead."""
        if hasattr(self._current, "close"):
            self._current.close()


def _warm_up(batches: Iterator[Any], seconds: float, work_s: float) -> None:
    began = time.perf_counter()
    for _ in batches:
        time.sleep(work_s)
        if time.perf_counter() - began >= seconds:
            return


def num_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of the first thing in it that has one."""
    values = batch.values() if hasattr(batch, "values") and hasattr(batch, "keys") else batch
    if hasattr(values, "shape"):
        return int(values.shape[0]) if values.shape else 1
    return max((num_samples(value) for value in list(values)[:1]), default=0) if not isinstance(values, str | bytes) else 1


def _read_bytes() -> int | None:
    """Bytes that storage gave this process, as the system counts them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
