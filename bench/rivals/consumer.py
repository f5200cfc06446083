"""The one consumer of all contenders: it touches every page of a batch while it is timed, and checks every byte when it is not."""

import os
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rivals.workload import CLASSES, Array, Batch, Task, Texts

__all__ = ["Checker", "Crowd", "consume", "payload"]

PAGE = 4096


def payload(batch: Batch) -> int:
    """Touch every page of a batch; its bytes."""
    total = 0
    for part in batch.values():
        if isinstance(part, np.ndarray):
            total += _touch(part)
        elif isinstance(part, tuple):
            total += _touch(part[0])
        else:
            total += sum(map(_touch_one, part))
    return total


def _touch(array: Array) -> int:
    np.add.reduce(array.reshape(-1)[:: max(1, PAGE // array.itemsize)])
    return array.nbytes


def _touch_one(text: Any) -> int:
    if isinstance(text, memoryview):  # of a file, perhaps; everything else has memory of its own
        text[0]
    return len(text)


def consume(batches: Iterator[Batch], data: str, *, lead_s: float, pass_s: float, most: int | None = None) -> dict[str, float]:
    """Take batches for a while. The first ones do not count, because some of them were read ahead before the clock started.

    It ends after ``most`` batches at the latest, or with the last one.
    """
    began = time.perf_counter()
    end = began + lead_s
    payload(next(batches))
    while time.perf_counter() < end:
        payload(next(batches))
    crowd = Crowd()
    num_batches = num_bytes = 0
    cpu_s, start = crowd.cpu_s(), time.perf_counter()
    end, now = start + pass_s, start
    for batch in islice(batches, most):
        num_bytes += payload(batch)
        num_batches += 1
        now = time.perf_counter()
        if now >= end:
            break
    found = {"batches": num_batches, "bytes": num_bytes, "wall_s": now - start, "cpu_s": crowd.cpu_s() - cpu_s}
    found |= {"total_s": now - began}
    return found | {"memory": crowd.memory_bytes(data)}


class Crowd:
    """This process and all that it has started, found by their session."""

    def _others(self) -> dict[int, list[str]]:
        own, session = os.getpid(), os.getsid(0)
        fields = {int(stat.parent.name): _stat(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
        return {pid: found for pid, found in fields.items() if pid != own and len(found) > 14 and int(found[3]) == session}

    def cpu_s(self) -> float:
        """Processor time so far, that of processes which have ended included."""
        ended = os.times()
        ticks = sum(int(tick) for found in self._others().values() for tick in found[11:15])
        return time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, data: str) -> int:
        """Memory in use, maps of the data left out; what processes share is counted once."""
        return sum(_unmapped(pid, data) for pid in [os.getpid(), *self._others()])


def _stat(path: Path) -> list[str]:
    """The fields after the name of the program: state, parent, group, session, ..."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _unmapped(pid: int, data: str) -> int:
    """Memory of a process that is not a map of a file below ``data``; of programs and libraries only what is its own."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    total, counts = 0, ""
    for line in lines:
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):  # a new map: addresses, rights, offset, device, inode, path
            path = rest[4] if len(rest) > 4 else ""
            is_memory = not path.startswith("/") or path.startswith(("/dev/shm", "/memfd"))
            counts = "" if path.startswith(data) else "Pss:" if is_memory else "Anonymous:"
        elif name == counts:
            total += 1024 * int(rest[0])
    return total


class Checker:
    """Compares batches with the plain files, and says how well they are shuffled."""

    def __init__(self, task: Task) -> None:
        self._task, self._workload = task, task.workload
        self._seen = np.zeros(task.workload.num_records, np.bool_)
        self._ids: list[Array] = []
        self._spread: list[float] = []
        if task.workload.is_text:
            self._values, self._offsets = task.texts()
        else:
            self._columns = task.columns()

    def check(self, batch: Batch) -> None:
        """AssertionError if a byte is wrong or a record came twice in the epoch."""
        ids = self._texts(batch["text"]) if self._workload.is_text else self._fixed(batch)
        assert len(ids) == self._workload.batch, f"expected a batch of {self._workload.batch}, found {len(ids)}"
        if not self._task.mixed:
            assert not self._seen[ids].any(), "a record came twice in one epoch"
            self._seen[ids] = True
        self._ids.append(ids)
        classes = np.unique(ids * CLASSES // self._workload.num_records).size
        self._spread.append(classes / (CLASSES * (1 - (1 - 1 / CLASSES) ** len(ids))))

    def _fixed(self, batch: Batch) -> Array:
        x = batch["x"]
        assert isinstance(x, np.ndarray)
        assert x.dtype == self._workload.dtype, f"expected {self._workload.dtype}, found {x.dtype}"
        rows = np.ascontiguousarray(x.reshape(len(x), -1)).view(np.uint8)
        ids: Array = np.ascontiguousarray(rows[:, :4]).view(np.uint32)[:, 0].astype(np.int64)
        for name, data in self._columns.items():
            assert np.array_equal(np.asarray(batch[name]).reshape(len(ids), *data.shape[1:]), data[ids]), f"wrong bytes in {name}"
        return ids

    def _texts(self, texts: Any) -> Array:
        found = _split(texts)
        ids = np.array([int(text[:7]) for text in found], np.int64)
        for i, text in zip(ids.tolist(), found, strict=True):
            assert self._values[self._offsets[i] : self._offsets[i + 1]].tobytes() == text, f"wrong text {i}"
        return ids

    def found(self) -> dict[str, Any]:
        """What was seen: batches, mean distance of neighbours (1/3 if uniform), classes in a batch over those expected."""
        ids, n = np.concatenate(self._ids), self._workload.num_records
        return {
            "batches": len(self._ids),
            "whole_epoch": bool(len(self._ids) >= self._task.num_steps),
            "displacement": float(np.abs(np.diff(ids)).mean() / n),
            "classes": float(np.mean(self._spread)),
            "first_part": float((ids < self._task.split).mean()),
        }


def _split(texts: Texts) -> list[bytes]:
    if not isinstance(texts, tuple):
        return [bytes(text) for text in texts]
    values, offsets = texts[0].tobytes(), texts[1].tolist()
    return [values[low:high] for low, high in pairwise(offsets)]
