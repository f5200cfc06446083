"""A workload is measured in heats: as many contenders at a time as there is room for, LIMIT and penstock in every one of them."""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure import Spread, interleave, progress
from rivals.cold_cache import drop
from rivals.roster import CONTENDERS, LIMIT, OURS, Contender
from rivals.workload import Task, Workload
from store_case import disk_bytes
from worker import Worker

__all__ = ["Effort", "Place", "heats", "order_of", "run_cold", "run_epochs", "run_heat"]


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 5
    pass_s: float = 0.5
    lead_s: float = 0.15
    verify_s: float = 3.0
    opens: int = 5
    slow_s: float = 1.0
    """What lasts longer than this is done once."""
    cold_s: float = 1.0
    epochs: int = 50
    settled: int = 5
    """Of many epochs, those after which memory should no longer grow."""


@dataclass(frozen=True)
class Place:
    """Where the files are."""

    folder: Path
    logs: Path

    @property
    def source(self) -> Path:
        return self.folder / "plain"


def heats(names: Sequence[str], workload: Workload, room: int) -> list[list[str]]:
    """Contenders in groups whose files fit into ``room`` bytes beside the plain files and the store."""
    fixed = [name for name in (LIMIT, OURS) if name in names]
    others = sorted((name for name in names if name not in fixed), key=lambda name: CONTENDERS[name].own_files)
    groups, left = [fixed], room - 2 * workload.num_bytes
    for name in others:
        size = _cut(name, workload).num_bytes * CONTENDERS[name].own_files * CONTENDERS[name].bulk
        if size > left and len(groups[-1]) > len(fixed):
            groups, left = [*groups, fixed], room - 2 * workload.num_bytes
        groups[-1] = [*groups[-1], name]
        left -= size
    return groups


def run_heat(names: Sequence[str], workload: Workload, place: Place, effort: Effort, *, mixed: bool = False) -> dict[str, Any]:
    """Everything about one workload, by contender; who fails has only the reason."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in names:
            task, began = _task(name, workload, place, mixed), time.perf_counter()
            progress(f"{workload.name}: {name} gets ready")
            found[name] = {"records": task.workload.num_records, **_attempt(lambda t=task: _written(t, place))}
            worker = stack.enter_context(_started(CONTENDERS[name], place))
            found[name] |= _attempt(lambda w=worker, t=task: _ready(w, t, effort)) if "failed" not in found[name] else {}
            if "failed" not in found[name]:
                workers[name] = worker
                worker.pause()
                progress(f"{workload.name}: {name} ready in {time.perf_counter() - began:.0f} s", lasting=True)
        os.sync()
        turns = {name: WarmTurns(worker, _task(name, workload, place, mixed), effort) for name, worker in workers.items()}
        rates = interleave(turns, rounds=effort.rounds, label=workload.name)
        for name, turn in turns.items():
            found[name] |= turn.found(rates[name])
            workers[name].go_on()
    for name in names:
        if name != OURS:
            shutil.rmtree(place.folder / name, ignore_errors=True)
    return found


def run_cold(names: Sequence[str], workload: Workload, place: Place, effort: Effort) -> dict[str, Any]:
    """From opening on, with nothing in memory: every repetition is a process of its own."""
    found: dict[str, Any] = {}
    tasks = {name: replace(_task(name, workload, place, False), cold=True) for name in names}
    for name, task in tasks.items():
        found[name] = {"records": task.workload.num_records, **_attempt(lambda t=task: _written(t, place))}
    os.sync()
    turns = {name: ColdTurns(task, place, effort) for name, task in tasks.items() if "failed" not in found[name]}
    rates = interleave(turns, rounds=effort.rounds, label="cold")
    for name, turn in turns.items():
        found[name] |= turn.found(rates[name])
    return found


def run_epochs(names: Sequence[str], workload: Workload, place: Place, effort: Effort) -> dict[str, Any]:
    """Memory over many epochs, by contender, one after the other."""
    found: dict[str, Any] = {}
    for name in names:
        progress(f"epochs: {name}")
        task = _task(name, workload, place, False)
        found[name] = _attempt(lambda t=task: _written(t, place))
        if "failed" not in found[name]:
            with _started(CONTENDERS[name], place) as worker:
                ask = {"task": task.to_json(), "epochs": effort.epochs, "settled": effort.settled}
                found[name] = _attempt(lambda w=worker, a=ask: w.ask("growth", **a))
    return found


def _attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What work gives, or the reason why it failed."""
    try:
        return work()
    except RuntimeError as error:
        progress(f"failed: {error}", lasting=True)
        return {"failed": str(error)}


def _written(task: Task, place: Place) -> dict[str, Any]:
    """The contender's files, if it has some of its own; by another process, whose memory is not that of reading."""
    contender, found = CONTENDERS[task.folder.name], {}
    if contender.own_files and not task.folder.exists():
        with _started(contender, place) as writer:
            found = writer.ask("prepare", task=task.to_json())
    return found | {"disk_bytes": disk_bytes(task.folder if contender.own_files else task.source)}


def order_of(name: str, num_records: int, place: Place) -> dict[str, Any]:
    """What a contender makes before the first batch of so many records."""
    with _started(CONTENDERS[name], place) as worker:
        return _attempt(lambda: worker.ask("order", num_records=num_records))


def _task(name: str, workload: Workload, place: Place, mixed: bool) -> Task:
    return Task(_cut(name, workload), place.source, place.folder / name, CONTENDERS[name].variant, mixed=mixed)


def _cut(name: str, workload: Workload) -> Workload:
    return workload.cut(CONTENDERS[name].most or workload.num_records)


def _ready(worker: Worker, task: Task, effort: Effort) -> dict[str, Any]:
    """Starts timed, an epoch verified, an iterator open."""
    contender, plain, found = CONTENDERS[task.folder.name], task.to_json(), worker.ask("about")
    found["first_s"] = _repeat(lambda: worker.ask("first", task=plain)["first_s"], effort)
    if contender.resume and task.workload.name == "tokens" and not task.mixed:
        late = replace(task, start=task.num_steps * 9 // 10).to_json()
        worker.ask("stop", task=late)
        found["resume_s"] = _repeat(lambda: worker.ask("first", task=late)["first_s"], effort)
    found["verified"] = worker.ask("verify", task=plain, most_s=effort.verify_s, least=16)
    worker.ask("first", task=plain)
    return found


@contextmanager
def _started(contender: Contender, place: Place) -> Iterator[Worker]:
    worker = contender.start(place.logs / f"{contender.name}.log")
    try:
        yield worker
    finally:
        worker.close()


def _repeat(work: Callable[[], float], effort: Effort) -> list[float]:
    found = [work()]
    while len(found) < effort.opens and found[0] < effort.slow_s:
        found.append(work())
    return found


class Turns:
    """The turns of one contender: each gives samples per second, or NaN from the moment it has failed."""

    def __init__(self, task: Task, effort: Effort) -> None:
        self._task, self._effort = task, effort
        self._replies: list[dict[str, float]] = []
        self._failed: dict[str, str] = {}

    def __call__(self) -> float:
        reply = self._failed or _attempt(self._take)
        if "failed" in reply:
            self._failed = reply
            return math.nan
        self._replies.append(reply)
        return float(reply["batches"] * self._task.workload.batch / reply["wall_s"])

    def _take(self) -> dict[str, Any]:
        raise NotImplementedError

    def found(self, rates: Spread) -> dict[str, Any]:
        """Samples per second, processor seconds per gigabyte delivered, and the most memory seen; or the reason why not."""
        if self._failed:
            return self._failed
        cpu_s, num_bytes = (sum(reply[key] for reply in self._replies) for key in ("cpu_s", "bytes"))
        costs = {"cpu_s_per_gb": cpu_s / (num_bytes / 1e9), "memory_peak": max(reply["memory"] for reply in self._replies)}
        return {"samples_per_s": rates.to_json()} | costs


class WarmTurns(Turns):
    """In a process that stays, and stands still in between."""

    def __init__(self, worker: Worker, task: Task, effort: Effort) -> None:
        super().__init__(task, effort)
        self._worker = worker

    def _take(self) -> dict[str, Any]:
        self._worker.go_on()
        reply = self._worker.ask("turn", lead_s=self._effort.lead_s, pass_s=self._effort.pass_s)
        self._worker.pause()
        return reply


class ColdTurns(Turns):
    """In a process of its own each, from opening on, its files out of memory before; at most an epoch."""

    def __init__(self, task: Task, place: Place, effort: Effort) -> None:
        super().__init__(task, effort)
        self._place = place

    def _take(self) -> dict[str, Any]:
        contender, task = CONTENDERS[self._task.folder.name], self._task
        with _started(contender, self._place) as worker:
            worker.ask("about")  # imports are done
            drop(task.folder if contender.own_files else task.source)
            first = worker.ask("first", task=task.to_json())
            reply = worker.ask("turn", lead_s=0.0, pass_s=self._effort.cold_s, most=task.num_steps - 2)
        # The first batches count: they wait for the first blocks of the disk.
        return reply | first | {"batches": reply["batches"] + 2, "wall_s": first["first_s"] + reply["total_s"]}

    def found(self, rates: Spread) -> dict[str, Any]:
        """Also the time to each first batch."""
        return super().found(rates) | {"first_s": [reply["first_s"] for reply in self._replies]}
