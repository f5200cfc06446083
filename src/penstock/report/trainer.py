"""Stand-ins for a training program: one that takes batches and measures the time (Runner), one that is killed and resumes (train).

``train`` writes a line to a log after every step: the step, digests of the batch, and its state. ``verify_kills`` kills such a
process (SIGKILL) several times; at the end the log must have every step once, with the batches of a run that was never killed.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.batch import batch_bytes, fields_of
from penstock.errors import StateMismatchError, WorkerDiedError
from penstock.loader import Loader

_END = object()
AHEAD = 3  # steps that a process may be ahead of the one that kills it: it dies at work
WAIT_S = 600.0  # the longest time a process may take for a batch


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

    @property
    def waiting(self) -> float:
        """The share of the time that was spent waiting for batches."""
        return min(1.0, float(self.waits.sum()) / self.elapsed_s)


def core_of(loader: Any) -> Loader | None:
    """The penstock loader in what the user's function gave; None if there is none that can be asked."""
    inner = loader if isinstance(loader, Loader) else getattr(loader, "loader", None)
    return inner if isinstance(inner, Loader) else None


class Runner:
    """A loader and its batches, without end: the next epoch follows, and an exhausted loader is made again. For one thread."""

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
        return min(8, os.cpu_count() or 1) if self.core is None else self.core.threads

    def state(self) -> Any:
        """The state of the loader; None if it has none, or is exhausted."""
        is_over = self.core is not None and not self.core.remaining()
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") and not is_over else None

    def take_first(self) -> None:
        """One batch, with everything that has to be set up for it; ``first_s`` is the time it took."""
        began = time.perf_counter()
        with closing(Endless(self.loader)) as batches:
            if next(batches, _END) is _END:
                raise ValueError(f"expected a loader that gives batches, got none from {self.loader!r}")
            self.first_s = time.perf_counter() - began

    def turn(self, seconds: float, work_s: float = 0.0) -> Turn:
        """Take batches for ``seconds`` (two at least), each followed by a sleep of ``work_s``. A seventh of the time before that is
        thrown away: what is read ahead begins with nothing in every turn, and a batch that was ready before would count for free.
        """
        turn = self._turn(seconds, work_s, warm_s=seconds / 7)
        if turn.batches == 0:  # the loader is exhausted
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


@dataclass(frozen=True)
class Kills:
    """What was compared: a run of ``steps`` batches, killed after each of ``points`` batches or a little later."""

    steps: int
    points: tuple[int, ...]


def train(make_loader: Callable[[], Any], log: str | Path, steps: int, *, pace: int | None = None) -> None:
    """Take batches until the log has ``steps`` of them, and resume where it ends. A line on stdout says that a batch is in it.

    ``pace`` is a descriptor from which a byte is read before every step, until its end: so that a process which is to be killed in
    the middle is not done before.
    """
    done = _read(Path(log))
    loader = make_loader()
    if done:
        loader.load_state_dict(done[-1]["state"])
    kept = sum(len(_line(entry)) for entry in done)
    with open(log, "ab", buffering=0) as file:
        file.truncate(kept)  # a line that was cut short by the end of the process is no step
        batches = Endless(loader)
        for step in range(len(done), steps):
            pace = None if pace is None or not os.read(pace, 1) else pace
            batch = next(batches, None)
            if batch is None:
                break
            file.write(_line({"step": step, "fields": fields_of(batch), "state": loader.state_dict()}))
            os.write(1, b"%d\n" % step)
        batches.close()


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _read(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a log."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]


def verify_kills(
    command: Callable[[str, int], Sequence[str]],
    *,
    steps: int = 60,
    points: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Kills:
    """Run a command that calls :func:`train`, with and without kill -9, and compare. ``command(log, steps)`` gives its words; it
    must pace itself by its stdin (``pace=0``). It is killed after each of ``points`` batches, or a few later (three, evenly spread,
    unless given). A difference raises StateMismatchError.
    """
    steps = whole_number("steps", steps, least=1)
    chosen = [steps * k // 4 for k in (1, 2, 3)] if points is None else points
    chosen = sorted({whole_number("points", point, most=steps) for point in chosen} - {0, steps})
    told = progress or (lambda records, size: None)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as place:
        whole, killed = Path(place) / "whole.jsonl", Path(place) / "killed.jsonl"
        _run(command(str(whole), steps), None, told)
        expected = _read(whole)
        died = [point for point in chosen if _run(command(str(killed), steps), point - len(_read(killed)), told)]
        _run(command(str(killed), steps), None, told)
        _compare(expected, _read(killed), died)
    return Kills(len(expected), tuple(died))


def _run(words: Sequence[str], kill_after: int | None, told: Callable[[int, int], None]) -> bool:
    """Run a process to its end, or kill it after ``kill_after`` lines of output; whether it was killed."""
    if kill_after is not None and kill_after <= 0:
        return False  # the last one came further than this point before it died
    with tempfile.TemporaryFile() as said, _process(words, said) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _allow(process.stdin, 0 if kill_after is None else AHEAD)
        for seen, _ in enumerate(_lines(process.stdout.fileno()), start=1):
            told(1, 0)
            if seen == kill_after:
                process.send_signal(signal.SIGKILL)
                return process.wait(WAIT_S) == -signal.SIGKILL
            _allow(process.stdin, 0 if kill_after is None else 1)
        if process.wait(WAIT_S) != 0:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerDiedError(f"the process that trains ended with {process.returncode}: {''.join(last) or 'it said nothing'}")
        return False


def _allow(pace: IO[bytes], steps: int) -> None:
    """Allow a process this many more steps; 0: any number."""
    if steps == 0:
        pace.close()
        return
    with suppress(BrokenPipeError):  # it is done
        pace.write(bytes(steps))
        pace.flush()


@contextmanager
def _process(words: Sequence[str], said: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _lines(descriptor: int) -> Iterator[bytes]:
    rest, deadline = b"", time.monotonic() + WAIT_S
    while True:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise WorkerDiedError(f"the process that trains gave no batch for {WAIT_S:.0f} s")
        data = os.read(descriptor, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        deadline = time.monotonic() + WAIT_S
        yield from lines


def _compare(expected: list[dict[str, Any]], found: list[dict[str, Any]], points: Sequence[int]) -> None:
    told = f"killed after {', '.join(map(str, points)) or 'no'} batches"
    for step, (one, other) in enumerate(zip(expected, found, strict=False)):
        if other["step"] != step:
            raise StateMismatchError(f"{told}: expected step {step} in the log, got step {other['step']}")
        for field in dict.fromkeys([*one["fields"], *other["fields"]]):
            if one["fields"].get(field) != other["fields"].get(field):
                raise StateMismatchError(f"{told}, step {step}: field {field!r} differs from the run that was not killed")
    if len(expected) != len(found):
        raise StateMismatchError(f"{told}: expected {len(expected)} batches, got {len(found)}")
