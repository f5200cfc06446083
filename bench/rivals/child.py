"""Runs in a contender's environment and does as it is told: a line of JSON in, a line of JSON out.

::

    python -m rivals.child MODULE        # of rivals.adapter

What libraries print goes to stderr.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from rivals.consumer import Checker, Crowd, consume, payload
from rivals.workload import Batch, Task

PR_SET_PDEATHSIG = 1


class Session:
    """One contender at work; it has at most one iterator at a time."""

    def __init__(self, module: str) -> None:
        self._adapter: Any = importlib.import_module(f"rivals.adapter.{module}")
        self._batches: Iterator[Batch] | None = None
        self._data = ""

    def about(self) -> dict[str, Any]:
        """Memory after imports, before anything is opened."""
        return {"memory_before": Crowd().memory_bytes("/nowhere")}

    def prepare(self, task: Task) -> dict[str, Any]:
        """Write the records in the contender's format."""
        task.folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        self._adapter.prepare(task)
        return {"prepare_s": time.perf_counter() - start}

    def stop(self, task: Task) -> dict[str, Any]:
        """Leave behind what a run needs that is resumed at ``task.start``."""
        if hasattr(self._adapter, "stop"):
            task.folder.mkdir(exist_ok=True)
            self._adapter.stop(task)
        return {}

    def first(self, task: Task) -> dict[str, Any]:
        """From nothing but imports to the first batch; the iterator stays open."""
        self.close()
        self._data = str(task.folder.parent)
        gc.collect()
        start = time.perf_counter()
        self._batches = iter(self._adapter.batches(task))
        payload(next(self._batches))
        return {"first_s": time.perf_counter() - start}

    def turn(self, lead_s: float, pass_s: float, most: int | None = None) -> dict[str, Any]:
        """Batches of the open iterator for a while."""
        assert self._batches is not None
        gc.collect()
        gc.disable()
        try:
            return consume(self._batches, self._data, lead_s=lead_s, pass_s=pass_s, most=most)
        finally:
            gc.enable()

    def verify(self, task: Task, most_s: float, least: int) -> dict[str, Any]:
        """Every byte of an epoch from its start, or of as many batches as the time allows, but ``least``."""
        self.close()
        checker, end = Checker(task), time.perf_counter() + most_s
        with closing(self._adapter.batches(task)) as batches:
            for number in range(task.num_steps):
                checker.check(next(batches))
                if number + 1 >= least and time.perf_counter() > end:
                    break
        found = checker.found()
        del checker, batches
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the check has left behind is not the contender's memory
        return found

    def growth(self, task: Task, epochs: int, settled: int) -> dict[str, Any]:
        """Memory after ``settled`` epochs and after all of them, without anything else in between."""
        self.close()
        crowd, data, found = Crowd(), str(task.folder.parent), {}
        crowd.memory_bytes(data)  # what looking itself needs is there before it counts
        with closing(self._adapter.batches(task)) as batches:
            for epoch in range(1, epochs + 1):
                for batch in islice(batches, task.num_steps):
                    payload(batch)
                if epoch in (settled, epochs):
                    gc.collect()
                    found["memory_settled" if epoch == settled else "memory_after"] = crowd.memory_bytes(data)
        return found | {"epochs": epochs, "verified": self.verify(task, most_s=3.0, least=16)}  # last: it needs memory of its own

    def order(self, num_records: int) -> dict[str, Any]:
        """Make the order of an epoch of so many records: seconds, and memory at its peak over before."""
        self._adapter.order(1000)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before, start = _status("VmRSS"), time.perf_counter()
        kept = self._adapter.order(num_records)
        took_s = time.perf_counter() - start
        del kept
        return {"order_s": took_s, "order_bytes": max(0, _status("VmHWM") - before)}

    def close(self) -> dict[str, Any]:
        """End the open iterator."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]
        return {}


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it may stand still when the benchmark is killed
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if "task" in request:
            request["task"] = Task.from_json(request["task"])
        answers.write(json.dumps(getattr(session, request.pop("do"))(**request)) + "\n")
        answers.flush()
    session.close()


if __name__ == "__main__":
    main()
